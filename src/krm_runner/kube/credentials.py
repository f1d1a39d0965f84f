"""Credentials that change while the process lives: a token file that the kubelet rotates, a login that expires.

kubernetes_asyncio asks a hook before every request; the hooks here keep the token in its configuration up to date. What
the API server refuses (401) is renewed at once, since a token may end before its time. Certificates are files: they are
compared by `certificates_of`, and whoever has connections with the old ones makes new ones.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import structlog
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config.kube_config import KubeConfigLoader

from krm_runner.core.errors import KubernetesUnavailableError
from krm_runner.core.json_object import JsonObject, as_text

_log = structlog.get_logger("krm_runner.kube")
_TOKEN = "BearerToken"  # noqa: S105 - what kubernetes_asyncio calls it
_LOGIN_TIMEOUT = 60.0
_PAUSE = 5.0
"""Between two logins that nothing but a refusal asks for."""
_NEVER = float("inf")
_MARGIN = 300.0
_MARGIN_SHARE = 0.2

Certificates = tuple[tuple[str, int, int, int], ...]


@runtime_checkable
class Hook(Protocol):
    """Knows a configuration's credentials."""

    def __call__(self, configuration: Configuration) -> Awaitable[None] | None:
        """Before every request."""
        ...

    async def renew(self, configuration: Configuration, *, refused: str) -> None:
        """Get others than those that were refused, if there are any."""
        ...


class TokenFile:
    """A token in a file, which is read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._is_missing = False

    def __call__(self, configuration: Configuration) -> None:
        """The hook."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            self._read(configuration)
        except OSError as error:
            if not self._is_missing:
                _log.warning("token not read again, the old one stays", path=str(self._path), error=str(error))
            self._is_missing = True
            return
        self._seen, self._is_missing = seen, False

    async def renew(self, configuration: Configuration, *, refused: str) -> None:
        """A file may change without a trace that its status shows."""
        if token_of(configuration) == refused:
            self._seen = None
            self(configuration)

    def _read(self, configuration: Configuration) -> None:
        token = self._path.read_text(encoding="utf-8", errors="replace").strip()
        if token:
            _set_token(configuration, f"Bearer {token}")


class Login:
    """Of a kubeconfig whose user has a program, or a provider, that hands out tokens or certificates."""

    def __init__(self, loader: KubeConfigLoader) -> None:
        self._loader = loader
        self._lock = asyncio.Lock()
        self._last_try = -_PAUSE
        self._failure = ""
        self._expiry = self._renew_at = _NEVER
        self._set_times()

    async def __call__(self, configuration: Configuration) -> None:
        """The hook: renews what is about to expire."""
        if time.time() < self._renew_at:
            return
        async with self._lock:
            if time.time() < self._renew_at:
                return
            try:
                await self._log_in(configuration)
            except KubernetesUnavailableError as error:
                if time.time() >= self._expiry:
                    raise
                _log.warning("login not renewed, the old one stays", error=str(error))

    async def renew(self, configuration: Configuration, *, refused: str) -> None:
        """Log in again, unless somebody else just did."""
        async with self._lock:
            if token_of(configuration) == refused:
                await self._log_in(configuration)

    async def _log_in(self, configuration: Configuration) -> None:
        now = time.monotonic()
        if now - self._last_try < _PAUSE:
            if self._failure:
                raise KubernetesUnavailableError(self._failure)
            return
        self._last_try, self._failure = now, ""
        if hasattr(self._loader, "exec_plugin_expiry"):
            # Else the library keeps what it has until then.
            del self._loader.exec_plugin_expiry
        try:
            async with asyncio.timeout(_LOGIN_TIMEOUT):
                await self._loader._load_authentication()  # pyright: ignore[reportPrivateUsage] - for users of all kinds
        except Exception as error:  # whatever a plugin, or the library's reading of its answer, may raise
            self._failure = f"the kubeconfig's login failed: {str(error) or type(error).__name__}"
            raise KubernetesUnavailableError(self._failure) from error
        self._set_times()
        if token := getattr(self._loader, "token", ""):
            _set_token(configuration, token)
        configuration.cert_file = getattr(self._loader, "cert_file", None)
        configuration.key_file = getattr(self._loader, "key_file", None)
        _log.info("logged in to the cluster again")

    def _set_times(self) -> None:
        """Renewed is some time before the end; of a short life, in its last part."""
        expiry: object = getattr(self._loader, "exec_plugin_expiry", None)
        if not isinstance(expiry, datetime):
            self._expiry = self._renew_at = _NEVER
            return
        self._expiry = expiry.timestamp()
        self._renew_at = self._expiry - min(_MARGIN, max(0.0, self._expiry - time.time()) * _MARGIN_SHARE)


def hook_of(loader: KubeConfigLoader) -> Login | TokenFile | None:
    """What keeps a kubeconfig's credentials up to date; None where they stay as they are."""
    user = loader._user  # pyright: ignore[reportPrivateUsage] - nothing else tells the kinds apart
    if user is None:
        return None
    if "exec" in user or "auth-provider" in user:
        return Login(loader)
    if "tokenFile" in user and "token" not in user:
        base = Path(str(user.path)).absolute().parent
        return TokenFile(base / str(user["tokenFile"]))
    return None


def current_hook(configuration: Configuration) -> Hook | None:
    """The one that a configuration has, if it is one of ours."""
    hook = cast(object, configuration.refresh_api_key_hook)  # pyright: ignore[reportUnknownMemberType] - as below
    return hook if isinstance(hook, Hook) else None


def token_of(configuration: Configuration) -> str:
    """What the next request would say; empty when it authenticates in another way."""
    return as_text(_tokens(configuration).get(_TOKEN))


def _set_token(configuration: Configuration, token: str) -> None:
    _tokens(configuration)[_TOKEN] = token


def _tokens(configuration: Configuration) -> JsonObject:
    return cast(JsonObject, configuration.api_key)  # pyright: ignore[reportUnknownMemberType] - its types are partial


def certificates_of(configuration: Configuration) -> Certificates:
    """What changes when one of the files does."""
    paths = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return tuple(_signature(str(path)) for path in paths if path)


def _signature(path: str) -> tuple[str, int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, status.st_mtime_ns, status.st_size, status.st_ino
