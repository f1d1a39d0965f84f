"""A text that must never be shown: it hides itself from repr, str, formatting, pickling and dataclass reprs.

Whoever needs the text asks for it by name (`reveal`), so that every place which does can be found.
"""

from __future__ import annotations

from typing import NoReturn

_HIDDEN = "[hidden]"


class Secret:
    """A password or a token."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return _HIDDEN

    def __format__(self, specification: str) -> str:
        return format(_HIDDEN, specification)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not copied out of the process")
