"""From a 401 to an Authorization header: Basic, or a Bearer token from the server that the challenge names.

Tokens are kept until they expire, by registry, repository and credentials, so that rotated credentials never meet an
old token. Tokens are only asked for over HTTPS, or where plain HTTP is allowed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import cast

from yarl import URL

from krm_runner.core.auth_challenge import Challenge, parse_challenges, pull_scope, strongest
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.registry_auth import Credentials
from krm_runner.core.secret import Secret
from krm_runner.registry.exchange import Answer, Request, shown
from krm_runner.registry.keychain import Match
from krm_runner.registry.transport import Transport

_MAX_TOKEN_ANSWER = 1024 * 1024
_MAX_TOKEN_LENGTH = 256 * 1024
_MAX_KEPT = 1000
_DEFAULT_LIFETIME = 60.0
_LONGEST_LIFETIME = 3600.0
_MARGIN = 5.0

_Key = tuple[str, str, Credentials]


@dataclass(frozen=True, slots=True)
class _Kept:
    header: Secret
    until: float


class Authenticator:
    """Answers challenges, and remembers the answers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()

    def remembered(self, image: ImageRef, match: Match) -> Secret:
        """The header that worked last time, if it still counts; empty if not."""
        if match.credentials.registry_token:
            return _bearer(match.credentials.registry_token.reveal())
        kept = self._kept.get(_key(image, match))
        if kept is None or asyncio.get_running_loop().time() >= kept.until:
            return Secret()
        return kept.header

    async def authorize(
        self, image: ImageRef, match: Match, answer: Answer, *, private: bool, deadline: float
    ) -> Secret:
        """A new header after a 401; ImageFault when none can be had."""
        self._kept.pop(_key(image, match), None)
        challenge = strongest(parse_challenges(answer.challenges))
        if challenge is None:
            raise refused(image, match, "the registry asks for credentials in a way that is neither Basic nor Bearer")
        if challenge.scheme == "basic":
            if not match.credentials.username:
                raise refused(image, match, f"{image.registry} asks for a user and a password")
            return self._keep(image, match, _basic(match.credentials), float("inf"))
        return await self._token(image, match, challenge, private=private, deadline=deadline)

    async def _token(
        self, image: ImageRef, match: Match, challenge: Challenge, *, private: bool, deadline: float
    ) -> Secret:
        request = self._token_request(image, match.credentials, challenge, private=private)
        answer = await self._transport.fetch(request, deadline=deadline)
        if answer.status in (400, 401, 403):
            raise refused(image, match, f"the token server {request.place} answered with status {answer.status}")
        if answer.status != 200:
            raise ImageFault(
                FaultKind.UNUSABLE, f"the token server {request.place} answered with status {answer.status}"
            )
        token, lifetime = _read_token(answer.body, request)
        until = asyncio.get_running_loop().time() + max(0.0, lifetime - _MARGIN)
        return self._keep(image, match, _bearer(token), until)

    def _token_request(
        self, image: ImageRef, credentials: Credentials, challenge: Challenge, *, private: bool
    ) -> Request:
        try:
            realm = URL(challenge.parameters["realm"]).with_user(None).with_fragment(None)
        except ValueError:
            realm = URL()
        if realm.scheme not in ("http", "https") or not realm.host:
            raise ImageFault(FaultKind.UNUSABLE, f"{image.registry} names a token server with an invalid address")
        if realm.scheme == "http" and not self._transport.allows_plain_http(realm):
            raise ImageFault(FaultKind.UNTRUSTED, f"{image.registry} names a token server without TLS: {shown(realm)}")
        # Our own scope, not the challenge's: a token for more than this pull is nothing that we want.
        fields = {"service": challenge.parameters.get("service", ""), "scope": pull_scope(image)}
        if credentials.identity_token:
            form: dict[str, Secret | str] = {
                **fields,
                "grant_type": "refresh_token",
                "client_id": "krm-runner",
                "refresh_token": credentials.identity_token,
            }
            return Request(realm, _MAX_TOKEN_ANSWER, private, method="POST", form=form)
        query = {name: value for name, value in fields.items() if value}
        authorization = _basic(credentials) if credentials.username else Secret()
        return Request(realm.update_query(query), _MAX_TOKEN_ANSWER, private, authorization=authorization)

    def _keep(self, image: ImageRef, match: Match, header: Secret, until: float) -> Secret:
        self._kept[_key(image, match)] = _Kept(header, until)
        self._kept.move_to_end(_key(image, match))
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return header


def refused(image: ImageRef, match: Match, what: str) -> ImageFault:
    """One clear message for wrong and for missing credentials: it names where they come from, never what they are."""
    if match.credentials:
        why = f"{what}; the credentials of {match.source} are not accepted by {image.registry} for {image.repository}"
    else:
        why = f"{what}; no credentials for {image.registry} were found ({match.source})"
    return ImageFault(FaultKind.REFUSED, f"{why}; the image may also not exist")


def _key(image: ImageRef, match: Match) -> _Key:
    return image.registry, image.repository, match.credentials


def _basic(credentials: Credentials) -> Secret:
    pair = f"{credentials.username}:{credentials.password.reveal()}".encode()
    return Secret("Basic " + base64.b64encode(pair).decode())


def _bearer(token: str) -> Secret:
    return Secret(f"Bearer {token}")


def _read_token(body: bytes, request: Request) -> tuple[str, float]:
    try:
        document = cast("dict[str, object]", json.loads(body))
        token = document.get("token") or document.get("access_token")
        lifetime = document.get("expires_in")
    except (ValueError, AttributeError, RecursionError):
        token, lifetime = None, None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or len(token) > _MAX_TOKEN_LENGTH:
        raise ImageFault(FaultKind.UNUSABLE, f"the token server {request.place} sent no token")
    if isinstance(lifetime, bool) or not isinstance(lifetime, (int, float)) or lifetime <= 0:
        lifetime = _DEFAULT_LIFETIME
    return token, min(float(lifetime), _LONGEST_LIFETIME)
