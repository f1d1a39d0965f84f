"""HTTP to a registry that may be slow, broken or hostile.

What it promises: every request ends by its deadline; an Authorization header goes to the origin it was made for and
nowhere else; a redirect never leads from HTTPS to HTTP, and there are few of them; plain HTTP is only spoken to
loopback and to hosts that the operator named. Failures that may pass (connections, 5xx, 429) are tried again with
backoff. What comes out is an answer or an ImageFault.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from dataclasses import replace

import aiohttp
import structlog
from yarl import URL

from krm_runner.core.backoff import Backoff, parse_retry_after
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.secret import Secret
from krm_runner.registry.exchange import (
    REDIRECTS,
    Answer,
    HungUpError,
    NoTlsError,
    Request,
    UntrustedCertificateError,
    is_loopback,
    new_session,
    send,
)
from krm_runner.registry.trust import Trust

_log = structlog.get_logger("krm_runner.registry")
_MAX_REDIRECTS = 5
_MAX_ATTEMPTS = 5
_WORTH_A_RETRY = frozenset({408, 429, 500, 502, 503, 504})
_BACKOFF = Backoff(first=0.2, longest=5.0)


class Transport:
    """One pool of connections for all registries; an async context manager."""

    def __init__(
        self, trust: Trust, *, plain_http: frozenset[str] = frozenset(), request_timeout: float = 10.0
    ) -> None:
        self._trust = trust
        self._plain_http = plain_http
        self._request_timeout = request_timeout
        self._speaks_plain: set[str] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Transport:
        self._session = new_session()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None  # noqa: S101 - entered before it is left
        await self._session.close()

    def allows_plain_http(self, url: URL) -> bool:
        """Loopback, and what the operator named."""
        return is_loopback(url.host or "") or bool({url.host, f"{url.host}:{url.port}"} & self._plain_http)

    async def fetch(self, request: Request, *, deadline: float) -> Answer:
        """The final answer, whatever its status, unless that says that a retry may help and there is time for one."""
        loop = asyncio.get_running_loop()
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            answer, fault = await self._try_once(request, deadline=deadline)
            if answer is not None and fault is None:
                return answer
            asked = "" if answer is None else answer.headers.get("retry-after", "")
            delay = max(
                parse_retry_after(asked, unix_now=time.time()) or 0.0,
                _BACKOFF.delay(attempt, chance=random.random()),  # noqa: S311 - jitter
            )
            if attempt == _MAX_ATTEMPTS or loop.time() + delay >= deadline:
                tries = "" if attempt == 1 else f" ({attempt} attempts)"
                raise ImageFault(FaultKind.AWAY, f"{fault}{tries}") from fault
            _log.debug("registry is asked again", url=request.place, after=delay, error=str(fault))
            await asyncio.sleep(delay)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _try_once(self, request: Request, *, deadline: float) -> tuple[Answer | None, ImageFault | None]:
        """An answer, a fault that may pass, or an answer that is one."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout_at(min(deadline, started + self._request_timeout)):
                answer = await self._follow(request)
        except TimeoutError:
            seconds = f"{loop.time() - started:.1f}s"
            return None, ImageFault(FaultKind.AWAY, f"{request.place} did not answer within {seconds}")
        except ImageFault as fault:
            if not fault.registry_is_away:
                raise
            return None, fault
        _log.debug("registry asked", url=request.place, status=answer.status, seconds=loop.time() - started)
        if answer.status in _WORTH_A_RETRY:
            return answer, ImageFault(FaultKind.AWAY, f"{request.place} answered with status {answer.status}")
        return answer, None

    async def _follow(self, request: Request) -> Answer:
        """Send, and follow redirects."""
        for _ in range(_MAX_REDIRECTS + 1):
            answer, url = await self._send_by_scheme(request)
            if answer.status not in REDIRECTS:
                return answer
            request = self._redirected(replace(request, url=url), answer)
        raise ImageFault(FaultKind.UNUSABLE, f"more than {_MAX_REDIRECTS} redirects, the last one to {request.place}")

    def _redirected(self, request: Request, answer: Answer) -> Request:
        location = answer.headers.get("location", "")
        if request.method == "POST":
            # The body holds a secret that is not for somebody else.
            raise ImageFault(FaultKind.UNUSABLE, f"{request.place} redirects a request for a token")
        try:
            target = request.url.join(URL(location, encoded=True)).with_user(None)
        except ValueError:
            target = URL()
        if target.scheme not in ("http", "https") or not target.host or not location:
            raise ImageFault(FaultKind.UNUSABLE, f"{request.place} redirects to an invalid address")
        if target.scheme == "http" and (request.url.scheme == "https" or not self.allows_plain_http(target)):
            raise ImageFault(
                FaultKind.UNTRUSTED, f"{request.place} redirects to plain HTTP on {target.host}, which is not allowed"
            )
        is_same = target.origin() == request.url.origin()
        return replace(request, url=target, authorization=request.authorization if is_same else Secret())

    async def _send_by_scheme(self, request: Request) -> tuple[Answer, URL]:
        """HTTPS first; plain HTTP where the other side speaks nothing else and it is allowed there."""
        host = f"{request.url.host}:{request.url.port}"
        if request.url.scheme == "http":
            if not self.allows_plain_http(request.url):
                raise ImageFault(FaultKind.UNTRUSTED, f"{request.place} is plain HTTP, which is not allowed there")
            return await self._send(request, None), request.url
        if host not in self._speaks_plain:
            try:
                return await self._send_by_trust(request), request.url
            except NoTlsError as error:
                if not self.allows_plain_http(request.url):
                    raise ImageFault(
                        FaultKind.AWAY if isinstance(error, HungUpError) else FaultKind.UNTRUSTED,
                        f"no TLS connection to {request.url.host}: {error}; "
                        "name it in --plain-http-registries if it speaks plain HTTP only",
                    ) from error
        plain = request.url.with_scheme("http")
        try:
            answer = await self._send(replace(request, url=plain), None)
        except ImageFault:
            self._speaks_plain.discard(host)
            raise
        self._speaks_plain.add(host)
        return answer, plain

    async def _send_by_trust(self, request: Request) -> Answer:
        """With the private CA first where it counts; a certificate that it does not know may be one of the system's."""
        host = request.url.host
        *extended, system = self._trust.contexts(private=request.private)
        hint = "a private CA is given with --enable-private-registries-tls and --tls-secret-path"
        why: UntrustedCertificateError | None = None
        for context in extended:
            try:
                return await self._send(request, context)
            except UntrustedCertificateError as error:
                event = "certificate not trusted with the CA of private registries, trying the system's CAs alone"
                _log.warning(event, registry=host, error=str(error))
                hint = "is the CA in --tls-secret-path the one that signed it?"
                why = error
        try:
            return await self._send(request, system)
        except UntrustedCertificateError as error:
            # The first reason is the better one: it knows the CA that was meant.
            raise ImageFault(
                FaultKind.UNTRUSTED, f"the certificate of {host} is not trusted: {why or error}; {hint}"
            ) from error

    async def _send(self, request: Request, context: ssl.SSLContext | None) -> Answer:
        assert self._session is not None  # noqa: S101 - used inside its own context
        return await send(self._session, request, context)
