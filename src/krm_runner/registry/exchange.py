"""One HTTP request on the wire and its answer, read to its end but never beyond its limit.

No redirect is followed and nothing is tried again here; that is `transport`'s. What fails is one of three: the
certificate, the TLS connection as such, or anything else, which is an ImageFault in words that hold nothing of what the
other side wrote.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from krm_runner import __version__
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.secret import Secret

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 65_536


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
        """The address as it may be shown."""
        return shown(self.url)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, read to its end."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """By lower-case name; the first where there are several."""
    challenges: tuple[str, ...] = ()


class UntrustedCertificateError(Exception):
    """The other side's certificate is not trusted."""


class NoTlsError(Exception):
    """No TLS connection came about, for another reason than the certificate."""


class HungUpError(NoTlsError):
    """The other side closed the connection instead of answering the TLS greeting: plain, or merely unwell."""


def new_session() -> aiohttp.ClientSession:
    """A pool of connections without cookies, compression, or passwords from ~/.netrc (which trust_env would send)."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"krm-runner/{__version__}", "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
    )


async def send(session: aiohttp.ClientSession, request: Request, context: ssl.SSLContext | None) -> Answer:
    """Send and read; the caller sets the time limit."""
    headers = dict(request.headers)
    if request.authorization:
        headers["Authorization"] = request.authorization.reveal()
    try:
        async with session.request(
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
        why = getattr(error.certificate_error, "verify_message", "") or "it is invalid"
        raise UntrustedCertificateError(why.rstrip(".")) from error
    except aiohttp.ClientConnectorError as error:
        if _hung_up(error, request):
            raise HungUpError("the connection was closed") from error
        if isinstance(error, aiohttp.ClientSSLError):
            raise NoTlsError(_reason_of(error)) from error
        raise ImageFault(FaultKind.AWAY, f"{request.place}: {_reason_of(error)}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ImageFault(FaultKind.AWAY, f"{request.place}: {_reason_of(error)}") from error


def shown(url: URL) -> str:
    """An address without what may be secret in it: user, query and fragment."""
    return str(url.with_user(None).with_query(None).with_fragment(None)) if url.host else "an invalid address"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _read(response: aiohttp.ClientResponse, request: Request) -> Answer:
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        headers.setdefault(name.lower(), value)
    challenges = tuple(response.headers.getall("WWW-Authenticate", ()))
    if request.method == "HEAD" or response.status in REDIRECTS:
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


def _hung_up(error: aiohttp.ClientConnectorError, request: Request) -> bool:
    cause = error.os_error
    was_cut = isinstance(cause, ConnectionResetError | ssl.SSLEOFError)
    return was_cut and request.url.scheme == "https"


def _proxy_for(url: URL) -> str | None:
    """HTTPS_PROXY, HTTP_PROXY and NO_PROXY as everywhere; never for loopback."""
    host = url.host or ""
    if is_loopback(host) or proxy_bypass(f"{host}:{url.port}"):
        return None
    return getproxies().get(url.scheme)


def _reason_of(error: BaseException) -> str:
    """In words, without the address (which is said already) and without anything that the other side wrote."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "the host name cannot be found"
        case aiohttp.ClientProxyConnectionError():
            return "the proxy cannot be reached"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered with status {error.status}"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before an answer came"
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
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
