"""Structured logs on stderr, as key=value or JSON.

Levels follow `--log-level`: 0 errors, 1 warnings too, 2 one line per evaluation, 3 what happens inside a call,
4 the libraries' own messages, 5 the resource lists themselves (the server asks for that one by name).
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["text", "json"]

_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO}
PAYLOADS = 5
_LIBRARIES = 4
_FIRST = ("timestamp", "level", "event")
_SPECIAL = re.compile(r'[ ="\n]')


def configure(*, level: int, log_format: LogFormat) -> None:
    """Set up logging for the whole process, once."""
    ours = _LEVELS.get(level, logging.DEBUG)
    renderer: Processor = structlog.processors.JSONRenderer() if log_format == "json" else logfmt
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _seconds_rounded,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(ours),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Unbreakable(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(logging.DEBUG if level > _LIBRARIES else logging.INFO if level == _LIBRARIES else logging.WARNING)
    logging.captureWarnings(True)


def logfmt(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """One line of key=value, as structlog's renderer writes it.

    That one looks at every letter of the keys, which takes half the time of a line; ours are words.
    """
    ordered: EventDict = {name: event.pop(name, None) for name in _FIRST}
    ordered.update(event)
    return " ".join([f"{key}={_logfmt_value(value)}" for key, value in ordered.items()])


def _logfmt_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _SPECIAL.search(text) is None:
        return text
    is_quoted = any(character in text for character in ' ="')
    if is_quoted:
        text = text.replace("\\", "\\\\")
    text = text.replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"' if is_quoted else text


def _seconds_rounded(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, float):
            event[key] = round(value, 6)
    return event


class _Unbreakable:
    """A stream whose reader may go away: lines are lost then, but nothing that logs fails for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:  # noqa: SIM105 - a context manager costs more than the flush, once per line
            self._stream.flush()
        except (OSError, ValueError):
            pass


class _ToStructlog(logging.Handler):
    """Messages of libraries, in the same shape as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger("library")
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        fields = {"exc_info": exc_info} if exc_info else {}
        logger.log(max(record.levelno, logging.DEBUG), record.getMessage(), library=record.name, **fields)
