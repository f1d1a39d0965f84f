"""Command-line flags the way Go programs take them, since existing manifests are written for one.

`--flag=value` and `--flag value`; booleans also bare, and never with a separate value.
A flag that is given twice keeps its last value. Everything that is wrong is a ConfigurationError of one line.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from krm_runner.core.errors import ConfigurationError

_TRUE, _FALSE = frozenset({"1", "t", "true"}), frozenset({"0", "f", "false"})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `parse` turns its text into its value, and raises ValueError with what it expects."""

    name: str
    group: str
    default: str
    help: str
    parse: Callable[[str], object] = str
    is_boolean: bool = False
    short: str = ""
    """One letter that stands for it after a single dash."""


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """Every flag's value, which flags stood on the command line, and what else stood there."""

    values: Mapping[str, object]
    given: frozenset[str]
    arguments: tuple[str, ...] = ()


def parse_flags(flags: Sequence[Flag], argv: Sequence[str], *, takes_arguments: bool = False) -> ParsedFlags:
    """The values of `flags` after `argv`. Arguments that are no flags are refused unless they are asked for."""
    by_name = {flag.name: flag for flag in flags}
    by_letter = {flag.short: flag for flag in flags if flag.short}
    texts: dict[str, str] = {}
    others: list[str] = []
    remaining = iter(argv)
    for argument in remaining:
        letter = argument[1:2] if argument.startswith("-") and not argument.startswith("--") else ""
        if takes_arguments and argument == "--":
            others += remaining
        elif letter in by_letter:
            flag, text = by_letter[letter], argument[2:].removeprefix("=")
            texts[flag.name] = text or _following(flag, remaining)
        elif argument.startswith("--") and argument != "--":
            name, equals, text = argument[2:].partition("=")
            if name not in by_name:
                raise ConfigurationError(f"unknown flag --{name}{_suggestion(name, by_name)}")
            texts[name] = text if equals else _following(by_name[name], remaining)
        elif takes_arguments and (not argument.startswith("-") or argument == "-"):
            others.append(argument)
        else:
            raise ConfigurationError(f"unexpected argument {json.dumps(argument)}; flags are written as --flag=value")
    values = {flag.name: _parse_value(flag, texts.get(flag.name, flag.default)) for flag in flags}
    return ParsedFlags(values, frozenset(texts), tuple(others))


def _following(flag: Flag, remaining: Iterator[str]) -> str:
    """The value of a flag that has no `=`: true for a boolean, else the next argument."""
    if flag.is_boolean:
        return "true"
    text = next(remaining, None)
    if text is None:
        raise ConfigurationError(f"--{flag.name} needs a value")
    return text


def render_help(flags: Sequence[Flag]) -> str:
    """The flags by group, one line each."""
    width = max(len(flag.name) + (6 if flag.short else 2) for flag in flags)
    lines: list[str] = []
    group = ""
    for flag in flags:
        if flag.group != group:
            group = flag.group
            lines += ["", f"{group}:"]
        default = f" [{flag.default}]" if flag.default else ""
        name = f"-{flag.short}, --{flag.name}" if flag.short else f"--{flag.name}"
        lines.append(f"  {name:<{width}}  {flag.help}{default}")
    return "\n".join(lines[1:])


def boolean(text: str) -> bool:
    """As Go's strconv.ParseBool, in any case."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("true or false")


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number between two bounds."""

    def parse(text: str) -> int:
        expected = f"a whole number from {low} to {high}"
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ValueError(expected)
        if not low <= int(text) <= high:
            raise ValueError(expected)
        return int(text)

    return parse


def choice(*allowed: str) -> Callable[[str], str]:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return text

    return parse


def _parse_value(flag: Flag, text: str) -> object:
    try:
        return flag.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"invalid value {json.dumps(text)} for --{flag.name}: it takes {error}") from error


def _suggestion(name: str, by_name: Mapping[str, Flag]) -> str:
    close = difflib.get_close_matches(name, by_name, n=1)
    return f"; did you mean --{close[0]}?" if close else "; --help lists them all"
