"""Logs that nobody can forge: formatters, the id of the request that is served, and what of a flood of refusals is written.

Loggers, of the standard library:

    callboard            what goes wrong in the server; callboard.stores: in what it keeps
    callboard.requests   one line per request at INFO; at DEBUG with the arguments of tools, redacted
    callboard.security   what was refused because of who asked, or how
    callboard.access     one line per HTTP request, with --access-log
    callboard.client     what goes wrong in clients

Whatever comes from a client or an exception is one line of printable characters, whichever handler writes it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol, TextIO

__all__ = [
    "REQUEST",
    "Flood",
    "JsonFormatter",
    "Named",
    "TextFormatter",
    "clean",
    "configure",
    "is_configured",
    "render_fields",
    "report",
    "request_id",
    "write",
]

# Characters of a message, of one line of a traceback and of one field; lines of a traceback, from its beginning and from its end.
MAX_MESSAGE = 16_384
MAX_LINE = 1_000
MAX_FIELD = 200
MAX_LINES = (60, 140)
# Refusals of one kind that are written in so many seconds; the rest are counted.
MOST, SECONDS = 20, 60.0


class Named(Protocol):
    """What knows the id of a request, and may make it when it is first asked for it: most of them nobody ever asks for."""

    @property
    def request(self) -> str:
        """The id, as its line in the log has it."""
        ...


REQUEST: ContextVar[Named | None] = ContextVar("callboard_request", default=None)
"""What knows the id of the request that is served; None while nobody is told of requests."""


def request_id() -> str | None:
    """Id of the request that is served; None while nobody is told of requests."""
    named = REQUEST.get()
    return None if named is None else named.request


_FIELDS = "callboard"
_MARGIN = "    | "
_LOGGERS = ("callboard", "callboard.requests", "callboard.security", "callboard.access", "callboard.stores", "callboard.client")
_LEVELS = {"critical": 50, "error": 40, "warning": 30, "info": 20, "debug": 10, "trace": 5}
_security = logging.getLogger("callboard.security")
_encode = json.JSONEncoder(allow_nan=False).encode


def clean(text: str, limit: int = MAX_MESSAGE) -> str:
    """A text as one line that shows what it holds: control characters, line ends, bidi marks and lone surrogates are escaped.

    Args:
        text: Any text.
        limit: Characters; what is more is counted, not kept.
    """
    if len(text) > limit:
        text = f"{text[:limit]}... ({len(text) - limit} characters more)"
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text])


def render_fields(fields: Mapping[str, Any]) -> str:
    """Fields as `name=value`, in quotes where a value could be taken for more than one.

    Args:
        fields: Name -> a text, number or JSON value; None is left out.
    """
    return " ".join([f"{name}={_shown(value)}" for name, value in fields.items() if value is not None])


def _shown(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    return value if value and not set(value) & set(" =\"'\\") and value.isprintable() else json.dumps(value)


class Line:
    """What one record says: a sentence, and fields that are a part of it. Its text is made when somebody writes it.

    Args:
        text: What happened, clean.
        fields: Name -> value, clean.
    """

    __slots__ = ("fields", "text")

    def __init__(self, text: str, fields: Mapping[str, Any]) -> None:
        self.text = text
        self.fields = fields

    def __str__(self) -> str:
        return (
            f"{self.text} {render_fields({name: value for name, value in self.fields.items() if (name, value) != ('method', self.text)})}"
        )


def write(logger: logging.Logger, level: int, text: str, fields: Mapping[str, Any]) -> None:
    """Log a sentence with fields; formatters find the fields as the record's `callboard`.

    Args:
        logger: One of ours.
        level: Of the record.
        text: What happened, clean.
        fields: Name -> value, clean; None is left out.
    """
    kept = {name: value for name, value in fields.items() if value is not None}
    if logger.isEnabledFor(level):  # as `logger.log`, but for the walk up the stack to its caller, who is always the same
        logger.handle(logger.makeRecord(logger.name, level, __file__, 0, Line(text, kept), (), None, extra={_FIELDS: kept}))


class Flood:
    """Lets the first of a kind through, and counts the rest.

    Args:
        most: Of one kind, in `seconds`.
        seconds: How long that is.
        clock: Seconds, from whenever.
    """

    def __init__(self, most: int = MOST, seconds: float = SECONDS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def admit(self, kind: str) -> tuple[bool, int]:
        """Count one.

        Args:
            kind: One of few.

        Returns:
            Whether it is to be written, and how many were not since one was.
        """
        now = self._clock()
        with self._lock:
            since, count = self._seen.get(kind, (now, 0))
            if now - since >= self._seconds:
                missed, since, count = max(0, count - self._most), now, 0
            else:
                missed = 0
            self._seen[kind] = (since, count + 1)
        return count < self._most, missed


_flood = Flood()

# What is worth knowing of who tries what. The kinds are few and fixed: what is counted can't grow.
EVENTS = {
    "auth": "A request was refused: its credential is no good.",
    "scope": "A request was refused: it needs a scope that was not granted.",
    "session": "A session was asked for by somebody who does not own it.",
    "rate": "Requests are refused: somebody sends too many.",
    "host": "A request was refused: it asks for a host that is not this server's.",
    "origin": "A request was refused: it comes from a web page of another origin.",
    "peer": "A request was refused: it comes from another machine.",
    "state": "A request was refused: its requestState is not one that it can go on from.",
    "size": "A request was refused: it is too large.",
}


def report(kind: str, **facts: str | int | None) -> None:
    """Log that something was refused because of who asked, or how: the first 20 of a kind in a minute, then their number.

    Args:
        kind: A key of `EVENTS`.
        **facts: What is known, such as `peer` (an address), `reason`, `principal` and `session` (hashes): never a credential.
    """
    if not _security.isEnabledFor(logging.WARNING):
        return
    written, missed = _flood.admit(kind)
    if missed:
        write(_security, logging.WARNING, "Refusals were not written, because there were too many.", {"event": kind, "missed": missed})
    if written:
        known = {name: clean(fact, MAX_FIELD) if isinstance(fact, str) else fact for name, fact in facts.items()}
        write(_security, logging.WARNING, EVENTS[kind], {"event": kind, "request": request_id(), **known})


def show_error(error: BaseException) -> list[str]:
    """A traceback as clean lines, bounded, whatever the exception's own methods do."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as reason:  # noqa: BLE001 - of groups nested thousands deep, or of the exception's own methods
        text = f"{type(error).__name__} (its traceback can't be shown: {type(reason).__name__})"
    lines = text.rstrip("\n").split("\n")
    first, last = MAX_LINES
    if len(lines) > first + last:
        lines = [*lines[:first], f"... ({len(lines) - first - last} lines more)", *lines[-last:]]
    return [clean(line, MAX_LINE) for line in lines]


class Cleaning(logging.Filter):
    """Makes records of our own loggers safe for whoever writes them: one line of message, and every line of a traceback behind a margin.

    Formatters of the standard library take `exc_text` for the traceback where it is there.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean a record; all of them go on."""
        message = "" if isinstance(record.msg, Line) else _read_message(record)
        if not message.isprintable() or len(message) > MAX_MESSAGE:
            record.msg, record.args = clean(message), ()
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None:
            record.exc_text = "\n".join([_MARGIN + line for line in show_error(error)])
        return True


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(Cleaning())


def _read_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage().rstrip("\n")  # some end with one, like uvicorn's
    except Exception as error:  # noqa: BLE001 - its arguments don't fit, or one of them can't say what it is
        return f"(a message that can't be shown: {type(error).__name__})"


def _read_traceback(record: logging.LogRecord) -> list[str]:
    """The lines of a record's traceback and stack. What another formatter has made of it before does not count."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is not None:
        lines = show_error(error)
    else:
        lines = [clean(line.removeprefix(_MARGIN), MAX_LINE) for line in (record.exc_text or "").split("\n") if line]
    return lines + [clean(line, MAX_LINE) for line in (record.stack_info or "").split("\n") if line]


def _read_fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, _FIELDS, None)
    known = dict(fields) if isinstance(fields, Mapping) else {}
    request = known.pop("request", None) or request_id()
    return known if request is None else {"request": request, **known}


class TextFormatter(logging.Formatter):
    """One line for each record, and for its traceback lines that begin with a margin, so that no message can pass for a record.

    2026-11-30T12:00:00.123Z INFO callboard.requests: tools/call ok in 1.9 ms request=5f0c11aa tool=add ...
    """

    def format(self, record: logging.LogRecord) -> str:
        """Make the text of a record."""
        said = _read_message(record) if not isinstance(record.msg, Line) else str(record.msg)
        request = None if isinstance(record.msg, Line) else _read_fields(record).get("request")
        line = f"{_tell_time(record)} {clean(record.levelname, 20)} {clean(record.name, MAX_FIELD)}: {clean(said)}"
        if request is not None:
            line += f" [request={clean(str(request), MAX_FIELD)}]"
        return "\n".join([line, *[_MARGIN + each for each in _read_traceback(record)]])


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record: `time`, `level`, `logger`, `message`, the fields of ours, and `error` with `type` and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """Make the JSON of a record."""
        said = record.msg.text if isinstance(record.msg, Line) else _read_message(record)
        shown: dict[str, Any] = {
            "time": _tell_time(record),
            "level": clean(record.levelname, 20).lower(),
            "logger": clean(record.name, MAX_FIELD),
            "message": clean(said),
        }
        shown = {**_read_fields(record), **shown}
        if lines := _read_traceback(record):
            kind = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
            shown["error"] = {"type": None if kind is None else clean(kind.__qualname__, MAX_FIELD), "traceback": "\n".join(lines)}
        try:
            return _encode(shown)
        except (TypeError, ValueError, RecursionError):  # fields of somebody else's
            return json.dumps({name: clean(str(value)) if name != "error" else value for name, value in shown.items()})


def _tell_time(record: logging.LogRecord) -> str:
    return f"{_tell_second(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(2)
def _tell_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


class _Handler(logging.StreamHandler[TextIO]):
    """The one handler that `configure` puts in."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base's name
        """Whoever read the stream is gone: there is nobody to tell, and the base would write the record unclean."""


def is_configured() -> bool:
    """Whether `configure` has set logging up, so that others should leave it as it is."""
    return any(isinstance(handler, _Handler) for handler in logging.getLogger().handlers)


def configure(*, json: bool = False, level: str | int = "info", requests: bool = True, stream: TextIO | None = None) -> None:
    """Set logging up for a process that does nothing else: one handler for all loggers, uvicorn's too. Doing it again replaces it.

    Args:
        json: Whether to write JSON, one object a line; text otherwise.
        level: The least severe level that is written: `critical`, `error`, `warning`, `info`, `debug`, `trace`, or a number. With
            `debug` the line of a request has its arguments, redacted.
        requests: Whether to write a line per request.
        stream: Where to write; stderr by default.

    Raises:
        ValueError: There is no such level.
    """
    least = _LEVELS.get(level.lower(), -1) if isinstance(level, str) else level
    if least < 0:
        raise ValueError(f"configure: level is one of {', '.join(_LEVELS)}, or a number, not {level!r}.")
    handler = _Handler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(least)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        other = logging.getLogger(name)
        other.handlers.clear()
        other.propagate = True
    logging.getLogger("callboard.requests").setLevel(least if requests else logging.WARNING)
