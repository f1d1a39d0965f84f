"""Is it a ResourceList? The envelope check, and the results that a function reports.

A ResourceList is one YAML (or JSON) document, a mapping whose `kind` is ResourceList and whose `apiVersion`, if it
has one, is of the group config.kubernetes.io. Where a key stands twice, the last one counts; merge keys count too.

`recognise` proves that in one pass over the bytes where it can: it reads the lines that start in the first column
of block YAML, or the whole of JSON. It only ever says yes; what it cannot prove goes to `parse`, which reads every
event of the document with libyaml, and so has the parser's own reason for a no. The rule between the two: on every
well-formed document the same verdict, and never a no to what a full parse accepts. Damage below the top level may
pass `recognise`; whoever uses the list parses it anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from krm_runner.core.function_result import FunctionResult, results_from
from krm_runner.core.yaml_events import UnreadableError, read_documents

KIND = "ResourceList"
GROUP_PREFIX = "config.kubernetes.io/"

_MAX_TOP_LEVEL_LINES = 64
_MAX_GLANCED_RESULTS = 64 * 1024


class NotAResourceListError(ValueError):
    """The bytes are no ResourceList; the message says why."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the check found out on its way."""

    results: tuple[FunctionResult, ...]


# --- recognise: one pass ------------------------------------------------------------------------------------------

# No pattern here can be made slow by a function's output: none repeats what itself repeats. (Possessive quantifiers
# would see to that as well, but do not work in every release of Python 3.11.)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_WITH_CONTENT = re.compile(rb"(?:\A|(?<=\n)|(?<=\A\xef\xbb\xbf))[ ]*[^ #\r\n]")
_SPACE = re.compile(rb"[ \t\r\n]*")
_JSON_START = re.compile(rb"[ \t\r\n]*\{")

_FIRST_COLUMN = re.compile(rb"\n(?:[^ \n\r#-]|-[^ \n\r])[^\n]*")
"""A line that starts in the first column and is neither a comment nor an entry of a sequence."""

_TOP_LEVEL_KEY = re.compile(
    rb"(?P<key>[A-Za-z_][A-Za-z0-9_.-]*):"
    rb"(?:[ \t]+(?:"
    rb"(?P<plain>[A-Za-z0-9_./](?:[^\n\r:#]*[^\n\r:# \t])?)"
    rb'|"(?P<double>[^"\\\n\r]*)"'
    rb"|'(?P<single>[^'\n\r]*)'"
    rb"|(?P<other>\[\]|\{\}|[|>][+-]?)"
    rb"))?"
    rb"[ \t]*(?:[ \t]#[^\n]*)?\r?"
)
"""`key:` with a value that is over at the end of its line, or that goes on in indented lines."""

_EXOTIC_BREAKS = (b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9")
"""Line breaks of YAML 1.1 that the patterns here do not know."""


def recognise(data: bytes) -> Envelope | None:
    """The envelope, if a glance proves that `data` is a ResourceList; None means: parse it.

    Its results may be left out if none of them is of severity error.
    """
    if not _has_plain_lines(data):
        return None
    start = _skip_leading(data)
    if _JSON_START.match(data, start):
        return _recognise_json(data)
    return _recognise_block(data, start)


def _has_plain_lines(data: bytes) -> bool:
    """UTF-8 throughout, and no line break but LF and CRLF."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        if any(line_break in data for line_break in _EXOTIC_BREAKS):
            return False
    return b"\r" not in data or data.count(b"\r") == data.count(b"\r\n")


def _recognise_json(data: bytes) -> Envelope | None:
    fields = _json_object(data)
    if fields is None or _refusal(fields.get("kind"), fields.get("apiVersion")) is not None:
        return None
    return Envelope(results_from(fields.get("results")))


def _json_object(data: bytes) -> dict[str, object] | None:
    """The document, if it is a JSON object and nothing else."""
    try:
        document: object = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, object], document) if isinstance(document, dict) else None


def _recognise_block(data: bytes, start: int) -> Envelope | None:
    values: dict[bytes, bytes] = {}
    results: tuple[int, int] | None = None
    open_key: tuple[bytes, int] | None = None
    for count, (begin, end) in enumerate(_first_column_lines(data, start)):
        line = _TOP_LEVEL_KEY.fullmatch(data, begin, end)
        if line is None or count >= _MAX_TOP_LEVEL_LINES:
            return None
        if line.lastgroup != "key" and _entry_follows(data, end):
            return None
        if open_key is not None and open_key[0] == b"results":
            results = (open_key[1], begin)
        key = line["key"]
        open_key = (key, begin)
        if key in (b"kind", b"apiVersion"):
            value = line["plain"] or line["double"] or line["single"]
            if value is None or key in values or not _scalar_ends(data, end):
                return None
            values[key] = value
    if open_key is not None and open_key[0] == b"results":
        results = (open_key[1], len(data))
    api_version = values.get(b"apiVersion")
    kind = values.get(b"kind", b"").decode()
    if _refusal(kind, None if api_version is None else api_version.decode()) is not None:
        return None
    return Envelope(_glance_at_results(data, results))


def _first_column_lines(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Begin and end of every line that starts in the first column, from `start` on, where the first one must be."""
    first_end = data.find(b"\n", start)
    yield start, len(data) if first_end < 0 else first_end
    if first_end >= 0:
        for line in _FIRST_COLUMN.finditer(data, first_end):
            yield line.start() + 1, line.end()


def _skip_leading(data: bytes) -> int:
    """A byte order mark, empty lines, comments and one `---` may come before the envelope."""
    start = _skip_blank_lines(data, len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0)
    if data.startswith(b"---", start):
        end = data.find(b"\n", start)
        rest = data[start + 3 : end]
        content = rest.lstrip(b" \t").rstrip(b"\r")
        if end >= 0 and (not content or (content.startswith(b"#") and rest[:1] in (b" ", b"\t"))):
            return _skip_blank_lines(data, end + 1)
    return start


def _skip_blank_lines(data: bytes, start: int) -> int:
    """Past the lines that are empty or hold nothing but a comment."""
    line = _LINE_WITH_CONTENT.search(data, start)
    return line.start() if line else len(data)


def _after_empty_lines(data: bytes, end: int) -> int:
    """From the end of a line to the end of the last of the empty lines that follow it."""
    space = _SPACE.match(data, end)
    following = space.end() if space else end
    return following if following == len(data) else max(end, data.rfind(b"\n", end, following))


def _scalar_ends(data: bytes, end: int) -> bool:
    """After a scalar's line: the next line that is not empty starts in the first column, so the scalar is over."""
    end = _after_empty_lines(data, end)
    return data[end + 1 : end + 2] not in (b" ", b"\t", b"\r", b"\n", b"-")


def _entry_follows(data: bytes, end: int) -> bool:
    """The next line that is not empty is an entry of a sequence, which only a key without a value may have."""
    end = _after_empty_lines(data, end)
    return data[end + 1 : end + 3] in (b"- ", b"-\r", b"-\n")


def _glance_at_results(data: bytes, section: tuple[int, int] | None) -> tuple[FunctionResult, ...]:
    """The results of a list that is fine: worth a look while they are small, never worth an error.

    Of a success only results of severity error matter, and reading YAML costs more than all the rest of the glance: a
    section that cannot hold such a result, not even in escapes, is not read.
    """
    if section is None or section[1] - section[0] > _MAX_GLANCED_RESULTS:
        return ()
    if data.find(b"error", *section) < 0 and data.find(b"\\", *section) < 0:
        return ()
    try:
        return results_from(_parse_yaml(data[section[0] : section[1]], _never).get("results"))
    except NotAResourceListError:
        return ()


# --- parse: every event of the document ---------------------------------------------------------------------------


def _never() -> bool:
    return False


def parse(data: bytes, *, is_cancelled: Callable[[], bool] = _never) -> Envelope:
    """The envelope after a full parse; NotAResourceListError with the parser's reason.

    Slow for large documents, and safe to run in a thread: it holds the interpreter for one event at a time, and ends
    soon after `is_cancelled` says so.
    """
    # What is JSON is judged as JSON: YAML is stricter there (escapes of surrogate pairs).
    fields = _json_object(data) if _JSON_START.match(data) else None
    if fields is None:
        fields = _parse_yaml(data, is_cancelled)
    refusal = _refusal(fields.get("kind"), fields.get("apiVersion"))
    if refusal is not None:
        raise NotAResourceListError(refusal)
    return Envelope(results_from(fields.get("results")))


def _parse_yaml(data: bytes, is_cancelled: Callable[[], bool]) -> dict[str, object]:
    """The fields of the one document that matter."""
    try:
        documents = read_documents(data, ("kind", "apiVersion", "results"), is_cancelled)
    except UnreadableError as error:
        raise NotAResourceListError(str(error)) from error
    match documents:
        case []:
            raise NotAResourceListError("it is empty")
        case [dict()]:
            return cast(dict[str, object], documents[0])
        case [list()]:
            raise NotAResourceListError("it is a list, not a mapping")
        case [_]:
            raise NotAResourceListError("it is plain text, not a mapping")
        case _:
            raise NotAResourceListError(f"it has {len(documents)} YAML documents, not one")


# --- the verdict, shared by both ----------------------------------------------------------------------------------


def _refusal(kind: object, api_version: object) -> str | None:
    if kind is None or kind == "":
        return "it has no kind"
    if kind != KIND:
        return f"its kind is {json.dumps(kind)[:200]}, not {KIND}"
    if api_version is not None and not (isinstance(api_version, str) and api_version.startswith(GROUP_PREFIX)):
        return f"its apiVersion is {json.dumps(api_version)[:200]}, not one of {GROUP_PREFIX}"
    return None
