"""Server-sent events: the frames a server writes, and the reader a client feeds with whatever the socket gave.

The format is the WHATWG HTML standard's `text/event-stream`. MCP puts one JSON-RPC message into each event, of the default type
`message`, so a frame needs no `event:` line. Data stays bytes: the one JSON decode that follows judges its UTF-8.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["CONTENT_TYPE", "KEEP_ALIVE", "MAX_EVENT", "Event", "SseDecoder", "SseLimitError", "comment", "frame"]

CONTENT_TYPE: Final = b"text/event-stream"
"""Media type of a stream of events, without parameters."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""A comment line: keeps proxies from closing a quiet stream, and means nothing to the client (HM-13)."""

MAX_EVENT: Final = 16 * 1024 * 1024
"""Default of `SseDecoder(max_event=...)`: 16 MiB, in bytes."""

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
# Milliseconds: 12 digits are 31 years; past that a `retry` is a fault, not a wish.
_RETRY_DIGITS = 12


class SseLimitError(ValueError):
    """An event is larger than the reader accepts.

    Attributes:
        limit: The limit in bytes.
        events: Events that were complete before the large one, in this same `feed`.
    """

    def __init__(self, limit: int, events: list[Event]) -> None:
        super().__init__(
            f"a server-sent event is larger than max_event ({limit} bytes): raise max_event, or have the server send less at once"
        )
        self.limit = limit
        self.events = events


class Event(NamedTuple):
    """One event of a stream.

    Attributes:
        data: The `data` lines joined by line feeds; empty for a priming event.
        event: Its type.
        id: The stream's last event id when the event was complete; empty before the first.
    """

    data: bytes
    event: str = "message"
    id: str = ""


def frame(data: bytes, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:  # noqa: A002
    """Write one event.

    Args:
        data: Payload in UTF-8. Every kind of line end inside it becomes a line feed for the reader; JSON has none.
        event: Type of the event; None for `message`.
        id: Event id; None for no id (HM-14: current-protocol streams have none).
        retry: Milliseconds a client should wait before it reconnects; None to leave that to the client.

    Returns:
        The frame, with the blank line that ends it.

    Raises:
        ValueError: `event` or `id` holds a line end or NUL, or `retry` is negative: the reader would see something else.
    """
    if b"\n" in data or b"\r" in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        data = b"\ndata: ".join(lines)
    if event is None and id is None and retry is None:
        return b"data: " + data + b"\n\n"
    head = b""
    if retry is not None:
        if retry < 0:
            raise ValueError(f"retry of a server-sent event is {retry}: give milliseconds, 0 or more")
        head += b"retry: %d\n" % retry
    if event is not None:
        head += _field("event", event)
    if id is not None:
        head += _field("id", id)
    return head + b"data: " + data + b"\n\n"


def comment(text: bytes = b"keep-alive") -> bytes:
    """Write a comment, which clients ignore (HM-13).

    Args:
        text: What it says, for people who watch the wire.

    Returns:
        The comment and a blank line.

    Raises:
        ValueError: `text` holds a line end: what follows it would be read as a field.
    """
    if b"\n" in text or b"\r" in text:
        raise ValueError("a comment of an event stream is one line: remove the line ends from its text")
    return b": " + text + b"\n\n"


def _field(name: str, value: str) -> bytes:
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"{name} of a server-sent event holds a line end or NUL: remove it")
    return f"{name}: {value}\n".encode()


class SseDecoder:
    """Reads one stream after another, split at any byte.

    Attributes:
        max_event: Most bytes an event may have, counting its data so far and the line that is being read.
        last_event_id: Id to resume after (`Last-Event-ID`): of the last complete event that had one; empty when none had.
        retry: Milliseconds the server asked for before a reconnect; None when it did not ask.
    """

    __slots__ = ("_after_cr", "_at_start", "_data", "_event", "_id", "_line", "last_event_id", "max_event", "retry")

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        """Start at the beginning of a stream.

        Args:
            max_event: Most bytes of one event; what bounds the memory that a server can take here.
        """
        self.max_event = max_event
        self.last_event_id = ""
        self.retry: int | None = None
        self.close()

    def close(self) -> None:
        """End this stream: drop an incomplete event, and be ready for the next stream.

        `last_event_id` and `retry` stay, because the next connection resumes with them.
        """
        self._line = bytearray()
        self._data = bytearray()
        self._event = ""
        self._id = self.last_event_id
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes of the stream.

        Args:
            chunk: Any number of bytes.

        Returns:
            The events that these bytes complete, oldest first.

        Raises:
            SseLimitError: An event exceeds `max_event`. Only `close` helps then: the stream can't be read on.
        """
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        events: list[Event] = []
        start = 0
        for found in _LINE_END.finditer(chunk):
            self._line += chunk[start : found.start()]
            start = found.end()
            self._check_size(events)
            line = bytes(self._line)
            self._line.clear()
            self._take_line(line, events)
        self._line += chunk[start:]
        self._check_size(events)
        # The line feed of a CRLF may come with the next chunk.
        self._after_cr = chunk.endswith(b"\r") or (self._after_cr and not chunk)
        return events

    def _check_size(self, events: list[Event]) -> None:
        if len(self._data) + len(self._line) > self.max_event:
            raise SseLimitError(self.max_event, events)

    def _take_line(self, line: bytes, events: list[Event]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._end_event(events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _RETRY_DIGITS:
            self.retry = int(value)

    def _end_event(self, events: list[Event]) -> None:
        self.last_event_id = self._id
        # No `data` line at all: nothing happened; an empty one: an event with empty data.
        if self._data:
            events.append(Event(bytes(self._data[:-1]), self._event or "message", self._id))
            self._data.clear()
        self._event = ""
