"""Requests to the API server, JSON in and out, its refusals as typed errors with its own words.

kubernetes_asyncio finds the cluster (in the pod, or by kubeconfig), authenticates and connects; its models are not
used, and neither is its reading of bodies, which would write Secrets into the debug log. Every request has a time
limit, and so has their number at a time: many starts at once would open many connections, and each handshake holds up
every call for a millisecond or more. Nothing is retried here, but for a request that was refused for want of
credentials when there are new ones: what a failure means is the caller's to know. Whoever counts requests is told the
answer of each, in Kubernetes' own verbs.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import cast

import aiohttp
import structlog
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.incluster_config import (
    load_incluster_config,  # pyright: ignore[reportUnknownVariableType] - its types are partial
)
from kubernetes_asyncio.config.kube_config import (
    load_kube_config,  # pyright: ignore[reportUnknownVariableType] - its types are partial
)

from krm_runner.core.backoff import parse_retry_after
from krm_runner.core.errors import (
    ConfigurationError,
    KubernetesConflictError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesInvalidError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.kube.credentials import Certificates, TokenFile, certificates_of, current_hook, hook_of, token_of

_log = structlog.get_logger("krm_runner.kube")
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOGIN_TIMEOUT = 60.0
_REQUEST_TIMEOUT = 15.0
_MAX_MESSAGE = 1000
_MAX_TEXT = 64 * 1024
_TLS_GOODBYE = 0.25
_MOST_REQUESTS = 8
"""At a time. Watches and logs have connections of their own: they last, and a log may hang with its node."""
_KEPT_SECONDS = 60.0
"""A connection that nobody uses; the API server itself keeps it for 90 s."""
_MAX_LINE = 16 * 1024 * 1024
_MAY_PASS = frozenset({408, 425, 429})
_JSON = "application/json"
_METADATA = _JSON + ";as={kind};g=meta.k8s.io;v=v1"
_MERGE_PATCH = "application/merge-patch+json"

KEPT = "_keepalive_timeout"
"""The attribute of aiohttp's connector."""

OnAnswer = Callable[[str, str, int], None]
"""Hears verb, path and status of every request; status 0 when there was no answer."""


class KubeClient:
    """One pool of connections to one API server; an async context manager."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        request_timeout: float = _REQUEST_TIMEOUT,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.on_answer: OnAnswer | None = on_answer
        self._configuration = configuration
        self._request_timeout = request_timeout
        self._connections: _Connections | None = None
        self._certificates: Certificates = ()
        self._turns = asyncio.Semaphore(_MOST_REQUESTS)

    async def __aenter__(self) -> KubeClient:
        try:
            await self._connect()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the certificates for the Kubernetes cluster cannot be read: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._connections is not None  # noqa: S101 - entered before it is left
        await self._connections.close()
        # aiohttp does not wait for the end of TLS connections; its documentation asks for a moment.
        await asyncio.sleep(_TLS_GOODBYE)

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        metadata_only: bool = False,
    ) -> JsonObject:
        """An object, or a list of them; of large ones the metadata may be enough."""
        verb = "list" if _is_collection(path) else "get"
        kind = "PartialObjectMetadataList" if verb == "list" else "PartialObjectMetadata"
        accept = _METADATA.format(kind=kind) if metadata_only else _JSON
        return _json(await self._request(verb, "GET", path, query=query, timeout=timeout, accept=accept))

    async def text(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        limit: int = _MAX_TEXT,
        timeout: float | None = None,
    ) -> str:
        """What is no JSON, such as a log: its first `limit` bytes."""
        content = await self._request("get", "GET", path, query=query, timeout=timeout, accept="*/*", limit=limit)
        return content.decode(errors="replace")

    async def create(
        self, path: str, body: JsonObject, *, query: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> JsonObject:
        """The new object as the server has it."""
        return _json(await self._request("create", "POST", path, query=query, body=body, timeout=timeout))

    async def replace(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject:
        """The object as the server has it now; KubernetesConflictError when its resourceVersion is an old one."""
        return _json(await self._request("update", "PUT", path, body=body, timeout=timeout))

    async def patch(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject:
        """The object as the server has it after a merge patch."""
        return _json(await self._request("patch", "PATCH", path, body=body, timeout=timeout, content_type=_MERGE_PATCH))

    async def delete(self, path: str, body: JsonObject | None = None, *, timeout: float | None = None) -> JsonObject:
        """What the server says of the deletion; `body` may hold preconditions."""
        return _json(await self._request("delete", "DELETE", path, body=body, timeout=timeout))

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, seconds: float, metadata_only: bool = False
    ) -> AsyncGenerator[Lines]:
        """The lines of an answer that goes on, for at most so many seconds: a watch."""
        what = f"GET {path}"
        accept = _METADATA.format(kind="PartialObjectMetadata") if metadata_only else _JSON
        async with AsyncExitStack() as stack:
            try:
                response = await self._send(stack, "GET", path, query=query, accept=accept, timeout=seconds)
            except KubernetesUnavailableError:
                self._tell("watch", path, 0)
                raise
            self._tell("watch", path, response.status)
            try:
                if not _is_success(response):
                    raise _error(what, response, await _read(what, response, _MAX_TEXT, seconds))
                yield Lines(response.content)
            except TimeoutError as error:
                raise KubernetesUnavailableError(f"{what}: no word from the API server for too long") from error
            except (aiohttp.ClientError, OSError) as error:
                raise KubernetesUnavailableError(f"{what}: the connection was lost: {error}") from error

    async def _request(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> bytes:
        what = f"{method} {path}"
        timeout = self._request_timeout if timeout is None else min(timeout, self._request_timeout)
        try:
            async with self._turn(what, timeout) if limit is None else nullcontext(), AsyncExitStack() as stack:
                response = await self._send(
                    stack,
                    method,
                    path,
                    query=query,
                    body=body,
                    content_type=content_type,
                    accept=accept,
                    timeout=timeout,
                )
                content = await _read(what, response, limit, timeout)
        except KubernetesUnavailableError:
            self._tell(verb, path, 0)
            raise
        self._tell(verb, path, response.status)
        if not _is_success(response):
            raise _error(what, response, content)
        return content

    @asynccontextmanager
    async def _turn(self, what: str, timeout: float) -> AsyncGenerator[None]:
        """Wait until there are few enough requests under way; what is sent has all of its time then.

        With what is left of it a request that takes long would be broken off, and made again.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._turns.acquire()
        except TimeoutError as error:
            raise KubernetesUnavailableError(
                f"{what}: not sent within {timeout:g}s, {_MOST_REQUESTS} other requests wait for the API server",
                is_sent=False,
            ) from error
        try:
            yield
        finally:
            self._turns.release()

    async def _connect(self) -> None:
        certificates = certificates_of(self._configuration)
        self._connections, retired = _Connections(self._configuration), self._connections
        self._certificates = certificates
        if retired is not None:
            await retired.retire()

    def _tell(self, verb: str, path: str, status: int) -> None:
        if self.on_answer is not None:
            self.on_answer(verb, path, status)

    async def _send(
        self,
        stack: AsyncExitStack,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        timeout: float,
    ) -> aiohttp.ClientResponse:
        """The answer, which must be read before the stack is closed."""
        headers = {"Accept": accept, "Content-Type": content_type}

        async def exchange() -> aiohttp.ClientResponse:
            return await stack.enter_async_context(
                self._exchange(method, path, query=query, headers=dict(headers), body=body, timeout=timeout)
            )

        await self._refresh()
        token = token_of(self._configuration)
        try:
            response = await exchange()
        except KubernetesUnavailableError as error:
            if (
                isinstance(error.__cause__, aiohttp.ClientSSLError | ssl.SSLError)
                and await self._has_new_certificates()
            ):
                return await exchange()
            raise
        if response.status == 401 and await self._has_new_credentials(refused=token):
            response.close()
            return await exchange()
        return response

    async def _refresh(self) -> None:
        """As the library does itself, but before it is noted which token is used."""
        if (hook := current_hook(self._configuration)) is not None and (
            refreshing := hook(self._configuration)
        ) is not None:
            await refreshing

    async def _has_new_credentials(self, *, refused: str) -> bool:
        if (hook := current_hook(self._configuration)) is not None:
            await hook.renew(self._configuration, refused=refused)
        return await self._has_new_certificates() or token_of(self._configuration) != refused

    async def _has_new_certificates(self) -> bool:
        if certificates_of(self._configuration) == self._certificates:
            return False
        try:
            await self._connect()
        except (OSError, ValueError) as error:
            _log.warning("new certificates not read, the old ones stay", error=str(error))
            return False
        return True

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        body: JsonObject | None,
        timeout: float,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        assert self._connections is not None  # noqa: S101 - used inside its own context
        what = f"{method} {path}"
        async with self._connections.used() as api:
            try:
                response = cast(
                    aiohttp.ClientResponse,
                    await api.call_api(  # pyright: ignore[reportUnknownMemberType] - its types are partial
                        path,
                        method,
                        query_params=list((query or {}).items()),
                        header_params=headers,
                        body=body,
                        auth_settings=["BearerToken"],
                        _preload_content=False,
                        _request_timeout=timeout,
                    ),
                )
            except TimeoutError as error:
                raise KubernetesUnavailableError(f"{what}: no answer within {timeout:g}s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise KubernetesUnavailableError(f"{what}: the API server cannot be reached: {error}") from error
            try:
                yield response
            finally:
                # If it was not read to its end, its connection is of no use to another request.
                response.close()


class _Connections:
    """Connections with one set of certificates. Once retired, they are closed when their last request is over."""

    def __init__(self, configuration: Configuration) -> None:
        self._api = ApiClient(configuration)
        keep_connections(self._api, _KEPT_SECONDS)
        self._requests = 0
        self._is_retired = False

    @asynccontextmanager
    async def used(self) -> AsyncGenerator[ApiClient]:
        """For one request, until its answer is read."""
        self._requests += 1
        try:
            yield self._api
        finally:
            self._requests -= 1
            await self._close_if_over()

    async def retire(self) -> None:
        """No new request uses them; those in flight, such as a watch, are not disturbed."""
        self._is_retired = True
        await self._close_if_over()

    async def close(self) -> None:
        """End what is in flight, too."""
        await self._api.close()

    async def _close_if_over(self) -> None:
        if self._is_retired and not self._requests:
            await self.close()


def keep_connections(api: ApiClient, seconds: float) -> None:
    """The library does not let one choose for how long a connection is kept that nobody uses: 15 s."""
    vars(api.rest_client.pool_manager.connector)[KEPT] = seconds


class Lines:
    """Whole lines out of a stream, however long they are (objects are), up to a bound."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for chunk in self._content.iter_any():
            rest += chunk
            *lines, last = bytes(rest).split(b"\n") if b"\n" in chunk else (bytes(rest),)
            rest = bytearray(last)
            for line in lines:
                yield line
            if len(rest) > _MAX_LINE:
                raise KubernetesError(f"the API server sends a line of more than {_MAX_LINE} bytes", status=0)


def _is_success(response: aiohttp.ClientResponse) -> bool:
    return 200 <= response.status < 300


async def _read(what: str, response: aiohttp.ClientResponse, limit: int | None, timeout: float) -> bytes:
    """The whole body, or its beginning where there is a limit; what is left of it goes with its connection."""
    try:
        if limit is None:
            return await response.read()
        content = bytearray()
        while len(content) < limit and (chunk := await response.content.read(limit - len(content))):
            content += chunk
        if not response.content.at_eof():
            response.close()
        return bytes(content)
    except TimeoutError as error:
        raise KubernetesUnavailableError(f"{what}: no answer within {timeout:g}s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise KubernetesUnavailableError(f"{what}: the API server cannot be reached: {error}") from error


async def find_cluster(service_account: Path = _SERVICE_ACCOUNT) -> Configuration:
    """The cluster that this process runs in, else that of KUBECONFIG or ~/.kube/config; ConfigurationError if none."""
    configuration = Configuration()
    is_in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    kubeconfig = "" if is_in_pod else _kubeconfig()
    try:
        if is_in_pod:
            _enter_pod(configuration, service_account)
        else:
            async with asyncio.timeout(_LOGIN_TIMEOUT):
                loader = await load_kube_config(
                    config_file=kubeconfig, client_configuration=configuration, persist_config=False
                )
            configuration.refresh_api_key_hook = hook_of(loader)
    except Exception as error:  # the library lets through whatever a broken file leads to
        place = str(service_account) if is_in_pod else f"kubeconfig {kubeconfig}"
        why = f"its login takes longer than {_LOGIN_TIMEOUT:g}s" if isinstance(error, TimeoutError) else str(error)
        raise ConfigurationError(
            f"no Kubernetes cluster is known: {place}: {why or type(error).__name__}; "
            "run in a pod with a service account, or set KUBECONFIG"
        ) from error
    return configuration


def _kubeconfig() -> str:
    """The file's path. Looked for here: the library looks at the variable only once, when it is imported."""
    if named := os.environ.get("KUBECONFIG"):
        if not any(Path(path).expanduser().exists() for path in named.split(os.pathsep) if path):
            raise ConfigurationError(
                f"no Kubernetes cluster is known: KUBECONFIG is {named}, and there is no such file; "
                "correct it, or do without functions in pods (--disable-runtimes=pod)"
            )
        return named
    usual = Path.home() / ".kube" / "config"
    if not usual.exists():
        raise ConfigurationError(
            f"no Kubernetes cluster is known: this is no pod, KUBECONFIG is not set, and there is no {usual}; "
            "set KUBECONFIG, or do without functions in pods (--disable-runtimes=pod)"
        )
    return str(usual)


def _enter_pod(configuration: Configuration, service_account: Path) -> None:
    token = service_account / "token"
    load_incluster_config(  # type: ignore[no-untyped-call] # as above
        client_configuration=configuration,
        token_filename=str(token),
        cert_filename=str(service_account / "ca.crt"),
    )
    # The library's own looks at the file only once a minute, and takes its line break for a part of the token.
    configuration.refresh_api_key_hook = TokenFile(token)


def _error(what: str, response: aiohttp.ClientResponse, content: bytes) -> KubernetesError:
    status = response.status
    said = as_text(_json(content).get("message"))[:_MAX_MESSAGE] or "no reason given"
    message = f"{what}: {said} (status {status})"
    if status == 404:
        return KubernetesNotFoundError(message, status=status)
    if status == 409:
        return KubernetesConflictError(message, status=status)
    if status == 422:
        return KubernetesInvalidError(message, status=status)
    if status in _MAY_PASS or status >= 500:
        delay = parse_retry_after(response.headers.get("Retry-After", ""), unix_now=time.time())
        return KubernetesUnavailableError(message, status=status, retry_after=delay)
    if status in (401, 403):
        return KubernetesForbiddenError(message, status=status)
    return KubernetesError(message, status=status)


def _is_collection(path: str) -> bool:
    """Whether a path ends in the name of a kind, and not of an object; paths are those of kinds and objects only."""
    _, kind, *rest = path.strip("/").split("/")
    return len(rest if kind == "v1" else rest[1:]) % 2 == 1


def _json(content: bytes) -> JsonObject:
    try:
        return as_object(json.loads(content))
    except (ValueError, RecursionError):
        return {}
