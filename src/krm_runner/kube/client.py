"""Requests to the API server, JSON in and out, its refusals as typed errors with its own words.

kubernetes_asyncio finds the cluster (in the pod, or by kubeconfig), authenticates and connects; its models are not
used, and neither is its reading of bodies, which would write Secrets into the debug log. Every request has a time
limit. Nothing is retried here: what a failure means is the caller's to know.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.config_exception import ConfigException
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
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject, as_object, as_text

_REQUEST_TIMEOUT = 15.0
_MAX_MESSAGE = 1000
_TLS_GOODBYE = 0.25
_MAX_LINE = 16 * 1024 * 1024
_MAY_PASS = frozenset({408, 425, 429})


class KubeClient:
    """One pool of connections to one API server; an async context manager."""

    def __init__(self, configuration: Configuration, *, request_timeout: float = _REQUEST_TIMEOUT) -> None:
        self._configuration = configuration
        self._request_timeout = request_timeout
        self._api: ApiClient | None = None

    async def __aenter__(self) -> KubeClient:
        self._api = ApiClient(self._configuration)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._api is not None  # noqa: S101 - entered before it is left
        await self._api.close()
        # aiohttp does not wait for the end of TLS connections; its documentation asks for a moment.
        await asyncio.sleep(_TLS_GOODBYE)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> JsonObject:
        """An object, or a list of them."""
        return await self._request("GET", path, query=query)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        """The new object as the server has it."""
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: JsonObject) -> JsonObject:
        """The object as the server has it now; KubernetesConflictError when its resourceVersion is an old one."""
        return await self._request("PUT", path, body=body)

    async def delete(self, path: str, body: JsonObject | None = None) -> JsonObject:
        """What the server says of the deletion; `body` may hold preconditions."""
        return await self._request("DELETE", path, body=body)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], *, seconds: float) -> AsyncGenerator[Lines]:
        """The lines of an answer that goes on, for at most so many seconds: a watch, or a log."""
        response = await self._send("GET", path, query=query, timeout=seconds)
        try:
            if not _is_success(response):
                raise await self._refusal(f"GET {path}", response)
            yield Lines(response.content)
        except TimeoutError as error:
            raise KubernetesUnavailableError(f"GET {path}: no word from the API server for too long") from error
        except (aiohttp.ClientError, OSError) as error:
            raise KubernetesUnavailableError(f"GET {path}: the connection was lost: {error}") from error
        finally:
            # Not read to its end, so its connection is of no use to anybody else.
            response.close()

    async def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: JsonObject | None = None
    ) -> JsonObject:
        what = f"{method} {path}"
        response = await self._send(method, path, query=query, body=body, timeout=self._request_timeout)
        async with response:
            if not _is_success(response):
                raise await self._refusal(what, response)
            return _json(await self._read(what, response))

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        timeout: float,
    ) -> aiohttp.ClientResponse:
        assert self._api is not None  # noqa: S101 - used inside its own context
        what = f"{method} {path}"
        try:
            return cast(
                aiohttp.ClientResponse,
                await self._api.call_api(  # pyright: ignore[reportUnknownMemberType] - its types are partial
                    path,
                    method,
                    query_params=list((query or {}).items()),
                    header_params={"Accept": "application/json", "Content-Type": "application/json"},
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

    async def _read(self, what: str, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.read()
        except TimeoutError as error:
            raise KubernetesUnavailableError(f"{what}: no answer within {self._request_timeout:g}s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise KubernetesUnavailableError(f"{what}: the API server cannot be reached: {error}") from error

    async def _refusal(self, what: str, response: aiohttp.ClientResponse) -> KubernetesError:
        content = await self._read(what, response)
        return _error(what, response.status, content, response.headers.get("Retry-After", ""))


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


async def find_cluster() -> Configuration:
    """The cluster that this process runs in, else the one of KUBECONFIG or ~/.kube/config."""
    configuration = Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # as above
        else:
            # Said outright: the library looks at the variable only once, when it is imported.
            path = os.environ.get("KUBECONFIG") or None
            await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError) as error:
        raise ConfigurationError(
            f"no Kubernetes cluster is known: {error}; run in a pod with a service account, or set KUBECONFIG"
        ) from error
    return configuration


def _error(what: str, status: int, content: bytes, retry_after: str) -> KubernetesError:
    said = as_text(_json(content).get("message"))[:_MAX_MESSAGE] or "no reason given"
    message = f"{what}: {said} (status {status})"
    if status == 404:
        return KubernetesNotFoundError(message, status=status)
    if status == 409:
        return KubernetesConflictError(message, status=status)
    if status in _MAY_PASS or status >= 500:
        delay = parse_retry_after(retry_after, unix_now=time.time())
        return KubernetesUnavailableError(message, status=status, retry_after=delay)
    if status in (401, 403):
        return KubernetesForbiddenError(message, status=status)
    return KubernetesError(message, status=status)


def _json(content: bytes) -> JsonObject:
    try:
        return as_object(json.loads(content))
    except (ValueError, RecursionError):
        return {}
