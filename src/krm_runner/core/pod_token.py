"""Tokens of function pods: a pod serves only calls that show the token which it was started with.

Nothing is stored: a token is made of a key that all runners have, the pod's id, and a random text that is kept on the
pod, so that every runner can make it again for every pod that it sees. Which key that was is part of the pod's template
version. So a pod of a key that a runner does not have, or without one, is to it a pod of another template: it gets no
calls. Of several keys the first makes new tokens; pods of the others are as good as those of the first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from krm_runner.core.bearer_tokens import secret_lines
from krm_runner.core.secret import Secret

TOKEN_VARIABLE = "KRM_RUNNER_TOKEN"  # noqa: S105 - the name of a variable
SHORTEST_KEY = 32

_IDENTITY_LENGTH = 12
_MARK = "-key-"


class TokenKey:
    """One key; it does not show itself."""

    __slots__ = ("_secret", "identity")

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self.identity = self._mac("identity").hex()[:_IDENTITY_LENGTH]
        """Says which key it is, and nothing about it."""

    def __repr__(self) -> str:
        return f"TokenKey({self.identity})"

    def token(self, *, pod_id: str, nonce: str) -> Secret:
        """That of one pod."""
        return Secret(base64.urlsafe_b64encode(self._mac(f"{pod_id}/{nonce}")).decode().rstrip("="))

    def _mac(self, text: str) -> bytes:
        return hmac.digest(self._secret.reveal().encode(), text.encode(), hashlib.sha256().name)


class TokenKeys:
    """The keys of a runner; none when pods want no tokens."""

    def __init__(self, keys: Sequence[TokenKey] = ()) -> None:
        self._keys = {key.identity: key for key in keys}
        self.first = keys[0] if keys else None
        """Makes the tokens of new pods."""

    @classmethod
    def parse(cls, text: bytes, *, source: str) -> TokenKeys:
        """The keys of a file; ConfigurationError when there is none, or a line is no key."""
        lines = secret_lines(text, source=source, what="key", shortest=SHORTEST_KEY)
        return cls([TokenKey(line) for line in lines])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenKeys) and list(self._keys) == list(other._keys)

    def __hash__(self) -> int:
        return hash(tuple(self._keys))

    def current_version(self, version: str) -> str:
        """A pod's version as if its token were of the first key, if it is of one of ours; else as it is."""
        template, mark, identity = version.rpartition(_MARK)
        if not mark or self.first is None or identity not in self._keys:
            return version
        return keyed_version(template, self.first)

    def token(self, *, version: str, pod_id: str, nonce: str) -> Secret | None:
        """That of a pod that is there; None when it has none, or it is of a key that is not ours."""
        _, mark, identity = version.rpartition(_MARK)
        key = self._keys.get(identity) if mark and nonce else None
        return None if key is None else key.token(pod_id=pod_id, nonce=nonce)


NO_KEYS = TokenKeys()


def keyed_version(version: str, key: TokenKey) -> str:
    """The version of a template whose pods have tokens of this key."""
    return f"{version}{_MARK}{key.identity}"
