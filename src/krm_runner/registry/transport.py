"""HTTP to a registry that may be slow, broken or hostile.

What it promises: every request ends by its deadline; no body is read beyond its limit; an Authorization header goes to
the origin it was made for and nowhere else; a redirect never leads from HTTPS to HTTP, and there are few of them; plain
HTTP is only spoken to loopback and to hosts that the operator named. Failures that may pass (connections, 5xx, 429) are
tried again with backoff. What comes out is an answer or an ImageFault; query strings, which may hold signatures, and
headers are never part of a message.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.request import getproxies, proxy_bypass

import aiohttp
import structlog
from yarl import URL

from krm_runner import __version__
from krm_runner.core.backoff import Backoff, parse_retry_after
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.secret import Secret
from krm_runner.registry.trust import Trust

_log = structlog.get_logger("krm_runner.registry")
_MAX_REDIRECTS = 5
_MAX_ATTEMPTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_WORTH_A_RETRY = frozenset({408, 429, 500, 502, 503, 504})
_CHUNK = 65_536
_BACKOFF = Backoff(first=0.2, longest=5.0)


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a registry or its token server."""

    url: URL
    limit: int
    """The largest body that is read."""
    private: bool
    """Whether the private CA counts."""
    method: Literal["GET", "HEAD", "POST"] = "GET"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    authorization: Secret = field(default_factory=Secret)
    form: Mapping[str, Secret | str] | None = None

    @property
    def place(self) -> str:
        """The address as it may be shown: without user, query and fragment."""
        return shown(self.url)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, read to its end."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """By lower-case name; the first where there are several."""
    challenges: tuple[str, ...] = ()


class Transport:
    """One pool of connections for all registries; an async context manager."""

    def __init__(
        self,
        trust: Trust,
        *,
        plain_http: frozenset[str] = frozenset(),
        request_timeout: float = 10.0,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._trust = trust
        self._plain_http = plain_http
        self._request_timeout = request_timeout
        self._backoff = backoff
        self._speaks_plain: set[str] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Transport:
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": f"krm-runner/{__version__}", "Accept-Encoding": "identity"},
            auto_decompress=False,
            trust_env=False,  # it would also send passwords from ~/.netrc
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None  # noqa: S101 - entered before it is left
        await self._session.close()

    def allows_plain_http(self, url: URL) -> bool:
        """Loopback, and what the operator named."""
        return _is_loopback(url.host or "") or bool({url.host, f"{url.host}:{url.port}"} & self._plain_http)

    async def fetch(self, request: Request, *, deadline: float) -> Answer:
        """The final answer, whatever its status, unless that says that a retry may help and there is time for one."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while True:
            attempt += 1
            wait: float | None = None
            started = loop.time()
            try:
                async with asyncio.timeout_at(min(deadline, started + self._request_timeout)):
                    answer = await self._follow(request)
            except TimeoutError:
                fault = ImageFault(
                    FaultKind.AWAY, f"{request.place} did not answer within {loop.time() - started:.1f}s"
                )
            except ImageFault as found:
                if not found.registry_is_away:
                    raise
                fault = found
            else:
                _log.debug("registry asked", url=request.place, status=answer.status, seconds=loop.time() - started)
                if answer.status not in _WORTH_A_RETRY:
                    return answer
                wait = parse_retry_after(answer.headers.get("retry-after", ""), unix_now=time.time())
                fault = ImageFault(FaultKind.AWAY, f"{request.place} answered with status {answer.status}")
            delay = max(wait or 0.0, self._backoff.delay(attempt, chance=random.random()))  # noqa: S311 - jitter
            if attempt >= _MAX_ATTEMPTS or loop.time() + delay >= deadline:
                tries = "" if attempt == 1 else f" ({attempt} attempts)"
                raise ImageFault(FaultKind.AWAY, f"{fault.why}{tries}") from fault
            _log.debug("registry asked again", url=request.place, after=delay, error=fault.why)
            await asyncio.sleep(delay)

    async def _follow(self, request: Request) -> Answer:
        """Send, and follow redirects."""
        for _ in range(_MAX_REDIRECTS + 1):
            answer, origin = await self._send_by_scheme(request)
            if answer.status not in _REDIRECTS:
                return answer
            request = self._redirected(replace(request, url=origin), answer)
        raise ImageFault(FaultKind.UNUSABLE, f"more than {_MAX_REDIRECTS} redirects, the last one to {request.place}")

    def _redirected(self, request: Request, answer: Answer) -> Request:
        if request.method == "POST":
            # The body holds a secret that is not for somebody else.
            raise ImageFault(FaultKind.UNUSABLE, f"{request.place} redirects a request for a token")
        try:
            target = request.url.join(URL(answer.headers.get("location", ""), encoded=True)).with_user(None)
        except ValueError:
            raise ImageFault(FaultKind.UNUSABLE, f"{request.place} redirects to an invalid address") from None
        if target.scheme not in ("http", "https") or not target.host or not answer.headers.get("location"):
            raise ImageFault(FaultKind.UNUSABLE, f"{request.place} redirects to an invalid address")
        if target.scheme == "http" and (request.url.scheme == "https" or not self.allows_plain_http(target)):
            raise ImageFault(
                FaultKind.UNTRUSTED, f"{request.place} redirects to plain HTTP on {target.host}, which is not allowed"
            )
        same = target.origin() == request.url.origin()
        return replace(request, url=target, authorization=request.authorization if same else Secret())

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
            except _NotTlsError as error:
                if not self.allows_plain_http(request.url):
                    raise ImageFault(
                        FaultKind.UNTRUSTED,
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
        *extended, system = self._trust.contexts(private=request.private)
        for context in extended:
            try:
                return await self._send(request, context)
            except _CertificateError as error:
                _log.warning(
                    "certificate not trusted with the CA of private registries, trying the system's CAs alone",
                    registry=request.url.host,
                    error=str(error),
                )
        try:
            return await self._send(request, system)
        except _CertificateError as error:
            hint = (
                "is the CA in --tls-secret-path the one that signed it?"
                if extended
                else ("a private CA is given with --enable-private-registries-tls and --tls-secret-path")
            )
            raise ImageFault(
                FaultKind.UNTRUSTED, f"the certificate of {request.url.host} is not trusted: {error}; {hint}"
            ) from error

    async def _send(self, request: Request, context: ssl.SSLContext | None) -> Answer:
        assert self._session is not None  # noqa: S101 - used inside its own context
        headers = dict(request.headers)
        if request.authorization:
            headers["Authorization"] = request.authorization.reveal()
        try:
            async with self._session.request(
                request.method,
                request.url,
                headers=headers,
                data=None if request.form is None else _revealed(request.form),
                allow_redirects=False,
                ssl=context if context is not None else True,
                proxy=_proxy_for(request.url),
            ) as response:
                return await _read(response, request)
        except aiohttp.ClientConnectorCertificateError as error:
            raise _CertificateError(
                getattr(error.certificate_error, "verify_message", "") or "it is invalid"
            ) from error
        except aiohttp.ClientSSLError as error:
            raise _NotTlsError(_reason_of(error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._hung_up_on_tls(error, request):
                raise _NotTlsError("it closed the connection") from error
            raise ImageFault(FaultKind.AWAY, f"{request.place}: {_reason_of(error)}") from error

    def _hung_up_on_tls(self, error: Exception, request: Request) -> bool:
        """Some plain servers close the connection when they are greeted with TLS."""
        return (
            isinstance(error, aiohttp.ClientConnectorError)
            and isinstance(error.os_error, ConnectionResetError)
            and request.url.scheme == "https"
            and self.allows_plain_http(request.url)
        )


class _CertificateError(Exception):
    """The other side's certificate is not trusted."""


class _NotTlsError(Exception):
    """No TLS connection came about, for another reason than the certificate."""


def shown(url: URL) -> str:
    """An address without what may be secret in it."""
    return str(url.with_user(None).with_query(None).with_fragment(None)) if url.host else "an invalid address"


async def _read(response: aiohttp.ClientResponse, request: Request) -> Answer:
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        headers.setdefault(name.lower(), value)
    challenges = tuple(response.headers.getall("WWW-Authenticate", ()))
    if request.method == "HEAD" or response.status in _REDIRECTS:
        return Answer(response.status, b"", headers, challenges)
    if headers.get("content-encoding", "identity") != "identity":
        raise ImageFault(FaultKind.UNUSABLE, f"{request.place} sent compressed content that was not asked for")
    if response.content_length is not None and response.content_length > request.limit:
        raise ImageFault(
            FaultKind.UNUSABLE,
            f"{request.place} announces {response.content_length} bytes; {request.limit} are allowed",
        )
    body = bytearray()
    while chunk := await response.content.read(_CHUNK):
        body += chunk
        if len(body) > request.limit:
            raise ImageFault(FaultKind.UNUSABLE, f"{request.place} sends more than the {request.limit} bytes allowed")
    return Answer(response.status, bytes(body), headers, challenges)


def _revealed(form: Mapping[str, Secret | str]) -> dict[str, str]:
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in form.items()}


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _proxy_for(url: URL) -> str | None:
    """HTTPS_PROXY, HTTP_PROXY and NO_PROXY as everywhere; never for loopback."""
    host = url.host or ""
    if _is_loopback(host) or proxy_bypass(f"{host}:{url.port}"):
        return None
    return getproxies().get(url.scheme)


def _reason_of(error: BaseException) -> str:
    """In words, without the address (which is said already) and without anything that the other side wrote."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "the host name cannot be found"
        case aiohttp.ClientProxyConnectionError():
            return "the proxy cannot be reached"
        case aiohttp.ServerTimeoutError():
            return "no answer in time"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before an answer came"
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered with status {error.status}"
        case aiohttp.ClientResponseError():
            return "the answer is no valid HTTP"
        case aiohttp.ClientConnectorError():
            return _reason_of(error.os_error)
        case ssl.SSLError():
            return (error.reason or "TLS failed").lower().replace("_", " ")
        case OSError():
            return error.strerror or "the connection failed"
        case _:
            return "the request could not be sent"
