"""Uvicorn's HTTP protocol, less what an application can't mend: its clients may be slow, or many, and its answers take two writes.

It stands on parts of uvicorn that it does not promise to keep. `make_protocol` looks whether they are all there; where one is not, uvicorn
serves as it is made.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason
from callboard.transport.asgi import App
from callboard.transport.slow_clients import Phase, Sweep, Watch
from callboard.transport.stream import JSON_LINES, NO_CONTENT, SHORTCUTS, Shortcut
from callboard.transport.whole_call import Head, Heads, WholeCall

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = termios = None  # type: ignore[assignment]

__all__ = ["OneWrite", "answer_at_once", "make_protocol"]

# Bytes that a head may have beyond its headers before it is complete: request line, and what comes with it in one packet.
HEAD_ROOM = 256 * 1024
# Bytes that are parsed at once: requests are a hundred times as large once they are parsed, so not many may wait for their turn.
SLICE = 8 * 1024
_NO_REQUEST = Fail(Reason.INVALID_REQUEST, "This is no HTTP/1.1 request.")
_HEAD_END = re.compile(rb"\n\r?\n")
_LENIENT = re.compile(rb"[^\r]\n|\n[ \t]")
_LINES = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    408: b"HTTP/1.1 408 Request Timeout\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
    503: b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n",
}
# What is used of uvicorn's protocols: their methods, and what their constructors set.
_METHODS = {"connection_made", "connection_lost", "data_received", "on_response_complete", "pause_writing", "resume_writing", "shutdown"}
_METHODS |= {"send_400_response", "timeout_keep_alive_handler", "_unset_keepalive_if_required"}
_CALLBACKS = {"on_message_begin", "on_headers_complete", "on_message_complete"}
_ATTRIBUTES = {"client", "connections", "cycle", "flow", "loop", "server_state", "transport"}
_PARSED = {"access_log", "access_logger", "app_state", "headers", "logger", "parser", "pipeline", "scheme", "scope", "server", "tasks"}
_PARSED |= {"timeout_keep_alive_task"}
# What is used of its cycle; all of it is set by the cycle's constructor.
_CYCLE = {"access_log", "default_headers", "flow", "keep_alive", "message_event", "on_response", "transport"}
_REPLACED = _CYCLE | {"access_logger", "expect_100_continue", "logger", "scope"}


class OneWrite:
    """A transport that keeps what is written in one turn of the loop, and writes it at once: head and body of an answer are one packet.

    Measured on uvicorn with uvloop it takes a quarter off the CPU time of a call. It stands on the contract of `asyncio.Transport` alone.

    Args:
        transport: The connection's transport, which does the work.
        loop: Its event loop.

    Attributes:
        written: Bytes handed to the transport so far.
    """

    __slots__ = ("_kept", "_loop", "_transport", "get_write_buffer_size", "is_closing", "written")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._kept: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for with every answer
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep some bytes until this turn of the loop is over."""
        if not self._kept:
            self._loop.call_soon(self.flush)
        self._kept.append(data)

    def write_now(self, data: bytes) -> None:
        """Write some bytes, which nothing will follow soon."""
        if self._kept:
            self._kept.append(data)
        else:
            self.written += len(data)
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes]) -> None:
        """Keep several."""
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        """Write what is kept."""
        kept, self._kept = self._kept, []
        if kept and not self._transport.is_closing():
            data = b"".join(kept)
            self.written += len(data)
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection when everything is written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._kept.clear()
        self._transport.abort()


def count_unacknowledged(connected: Any) -> int:
    """Bytes that the system holds for a socket's reader; 0 where it does not tell.

    It may hold megabytes, and then asks for more only once a third of them is gone: a slow reader would seem to take nothing.
    """
    if connected is None or fcntl is None or termios is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


class Guarded(asyncio.Protocol):
    """What is the same for both parsers of uvicorn; goes before its protocol among the bases. A `Connection` of the sweep.

    Attributes:
        sweep: What ends slow connections.
        app: What is served.
        max_connections: How many there may be.
        is_held_up: Whether the next request has to wait until the reader has taken what the answers before it came to.
        is_deaf: Whether what comes counts for nothing: the connection ends with the answers that are due.
    """

    mcp: ClassVar[App]
    sweep: ClassVar[Sweep]
    max_connections: ClassVar[int]
    loop: asyncio.AbstractEventLoop
    cycle: Any
    flow: Any
    transport: Any
    connections: set[Any]
    server_state: Any
    client: tuple[str, int] | None
    watch: Watch
    received = 0
    is_held_up = False
    is_deaf = False
    earlier: deque[Any]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.watch = Watch()
        self.earlier = deque()
        # uvloop's transports say nowhere that they are asyncio's, nor does the other: they have all that one has.
        super().connection_made(cast("Any", OneWrite(cast("asyncio.Transport", transport), self.loop)))
        if len(self.connections) > self.max_connections:
            text = f"The server has {self.max_connections} connections (max_connections): try again later."
            self.refuse(503, Fail(Reason.OVERLOADED, text))

    def connection_lost(self, exc: Exception | None) -> None:
        self.sweep.release(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.sweep.hold(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.sweep.release(self)
        if self.is_held_up:
            self.is_held_up = False
            self.on_response_complete()

    def on_response_complete(self) -> None:
        """An answer is written: the next request may begin. Not while a reader is behind: its answer would wait where nobody counts it."""
        self.transport.flush()
        if self.flow.write_paused and not self.transport.is_closing():
            self.is_held_up = True
            self.flow.pause_reading()
        else:
            super().on_response_complete()  # type: ignore[misc] # uvicorn's

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        self.refuse(400, _NO_REQUEST)

    def refuse(self, status: int, fail: Fail) -> None:
        """Answer what is no request yet, and close. Where that would pass for another request's answer, close after that one's."""
        if self.transport.is_closing():
            return
        if pending := self.pending():
            pending[-1].keep_alive = False
            self.is_deaf = True
            self.flow.pause_reading()
            return
        _, body = render_fail(None, fail)
        dated = b"".join([b"%b: %b\r\n" % header for header in self.server_state.default_headers])
        head = b"%b%b%bcontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (_LINES[status], dated, JSON_LINES, len(body)) + body)
        self.transport.close()

    def pending(self) -> list[Any]:
        """Cycles whose request is whole, or whose answer has begun, in order."""
        cycles = (*self.earlier, self.cycle)
        return [cycle for cycle in cycles if cycle and not cycle.response_complete and (cycle.response_started or not cycle.more_body)]

    def unsent(self) -> int:
        """See `Connection`."""
        size: int = self.transport.get_write_buffer_size()
        return size

    def taken(self) -> int:
        """See `Connection`."""
        written: int = self.transport.written
        return written - self.unsent() - count_unacknowledged(self.transport.get_extra_info("socket"))

    def phase(self) -> tuple[Phase, Any]:
        """See `Connection`."""
        raise NotImplementedError

    def is_reading(self) -> bool:
        """See `Connection`."""
        return not self.flow.read_paused

    def is_closing(self) -> bool:
        """See `Connection`."""
        closing: bool = self.transport.is_closing()
        return closing

    def time_out(self, phase: Phase) -> None:
        """See `Connection`."""
        if phase is Phase.HEAD or phase is Phase.BODY:
            what = "headers" if phase is Phase.HEAD else "body"
            self.refuse(408, Fail(Reason.SLOW, f"The {what} of the request did not come in time ({what[:4]}_timeout)."))
        else:
            self.transport.close()

    def cut(self) -> None:
        """See `Connection`."""
        self.loop.call_soon(self.transport.abort)


class H11Guarded(Guarded):
    """Before the protocol that parses with h11."""

    conn: Any

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if not self.is_deaf:
            super().data_received(data)

    def handle_events(self) -> None:
        # h11 puts folded lines together, and takes a line feed alone for the end of one (SA15).
        if str(self.conn.their_state) == "IDLE" and not self.transport.is_closing():
            began, _ = self.conn.trailing_data
            if _LENIENT.search(began, 0, end.start() + 1 if (end := _HEAD_END.search(began)) else len(began)):
                self.refuse(400, _NO_REQUEST)
                return
        super().handle_events()  # type: ignore[misc] # uvicorn's

    def phase(self) -> tuple[Phase, Any]:
        """See `Connection`; h11 calls its states by name."""
        cycle, state = self.cycle, str(self.conn.their_state)
        if state == "SEND_BODY":
            return Phase.BODY, cycle
        if self.is_held_up or (cycle is not None and not cycle.response_complete):
            return Phase.BUSY, cycle
        if state == "IDLE" and self.conn.trailing_data[0]:
            return Phase.HEAD, cycle
        return (Phase.FRESH if cycle is None else Phase.IDLE), cycle


class HttptoolsGuarded(Guarded):
    """Before the protocol that parses with httptools.

    Attributes:
        heads: Heads that have been seen lately; None where whole calls can't be answered past the parser.
        is_ordinary: Whether all that comes is the parser's: every request is logged.
        backlog: What came, and is parsed when the request that waits for its turn has had it.
        cycle_type: Uvicorn's cycle.
        status_lines: Status lines by status.
    """

    heads: ClassVar[Heads | None]
    cycle_type: ClassVar[Any]
    status_lines: ClassVar[dict[int, bytes]]
    # Default headers as uvicorn has them for this second, and as they are written.
    dated: ClassVar[tuple[Any, bytes]] = (None, b"")
    scope: Any
    url: bytes
    headers: Any
    parser: Any
    server: Any
    scheme: Any
    logger: Any
    access_logger: Any
    access_log: bool
    app_state: dict[str, Any]
    tasks: set[Any]
    pipeline: Any
    timeout_keep_alive_task: Any
    unread_head = 0
    head_began = False
    in_message = False
    is_ordinary = False
    backlog = b""
    peer: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = None if self.client is None else self.client[0]
        self.is_ordinary = self.access_log or self.heads is None

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells only the newest cycle; the one that runs may have other requests waiting behind it on this connection.
        earlier, self.earlier, self.backlog = self.earlier, deque(), b""
        super().connection_lost(exc)
        for cycle in earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def on_message_begin(self) -> None:
        super().on_message_begin()  # type: ignore[misc] # uvicorn's
        self.head_began = self.in_message = True

    def on_headers_complete(self) -> None:
        before = self.cycle
        if not self.url.startswith(b"/"):
            # A whole URL for a target (RFC 9112 section 3.2.2): what it asks for must be what Host says, which is what gets checked.
            asked = (b"host", self.url.partition(b"://")[2].partition(b"/")[0])
            self.headers += [asked] if asked[1] and asked not in self.headers else []
        super().on_headers_complete()  # type: ignore[misc] # uvicorn's
        if before is not None and not before.response_complete:
            while self.earlier and self.earlier[0].response_complete:  # answers go out in order
                self.earlier.popleft()
            self.earlier.append(before)
        # uvicorn adds trailers to the very list that the application gets: one that says Mcp-Name must not pass for a header (HH-06).
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["headers"] = self.headers[:]

    def on_message_complete(self) -> None:
        super().on_message_complete()  # type: ignore[misc] # uvicorn's
        self.in_message = False

    def is_in_head(self) -> bool:
        """Whether a request's head has begun and does not end; uvicorn makes a cycle when it is complete."""
        return self.in_message and (self.cycle is None or self.cycle.scope is not self.scope)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if self.is_ordinary or self.in_message or self.is_held_up or not (cycle is None or cycle.response_complete):
            self.parse(data)
            return
        assert self.heads is not None
        end = data.find(b"\r\n\r\n") + 4
        head = self.heads.get((self.peer, data[:end])) or self.heads.read(data, end, self.client, self.loop)
        if head is None or len(data) != end + head.length or not self._answer(head, data[end:]):
            self.parse(data)

    def _answer(self, head: Head, body: bytes) -> bool:
        """Have a whole request answered past the parser, which stands between two messages; whether that can be."""
        call = WholeCall(self, head, self.make_cycle)
        work = self.mcp.serve_known(head.known, body, self.app_state.copy(), call.receive, call.send)
        if work is None:
            return False
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()  # type: ignore[attr-defined] # uvicorn's
        self.cycle = call
        call.task = self.loop.create_task(call.run(work))
        self.tasks.add(call.task)
        return True

    def write_whole(self, status: int, lines: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write the whole answer of a `WholeCall`, and go on to the next request."""
        state = self.server_state
        defaults, dated = self.dated
        if defaults is not state.default_headers:
            dated = b"".join([b"%b: %b\r\n" % header for header in state.default_headers])
            type(self).dated = (state.default_headers, dated)
        if headers:
            lines = b"".join([b"%b: %b\r\n" % header for header in headers]) + lines
        if status == NO_CONTENT:
            self.transport.write_now(b"%b%b%b\r\n" % (self.status_lines[status], dated, lines))
        else:
            self.transport.write_now(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (self.status_lines[status], dated, lines, len(body), body))
        if self.pipeline or self.backlog or self.flow.write_paused:
            self.on_response_complete()
        else:
            state.total_requests += 1  # the sweep ends it when it is idle for long

    def make_cycle(self, call: WholeCall) -> Any:
        """Put a cycle of uvicorn's in the place of a `WholeCall`."""
        scope = {
            **call.head.make_scope(),
            "client": self.client,
            "server": self.server,
            "scheme": self.scheme,
            "state": self.app_state.copy(),
        }
        cycle = self.cycle_type(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=call.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        cycle.disconnected = call.disconnected
        if self.cycle is call:
            self.cycle = cycle
        else:
            self.earlier = deque(cycle if other is call else other for other in self.earlier)
        return cycle

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.backlog and not self.pipeline and not self.is_held_up:
            backlog, self.backlog = self.backlog, b""
            self._feed(backlog)
        if self.backlog:
            self.flow.pause_reading()  # uvicorn goes on reading whenever an answer is written

    def parse(self, data: bytes) -> None:
        """Have the parser read what comes, for as long as no request waits for its turn."""
        self.received += len(data)
        if self.backlog:
            self.backlog += data
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        for at in range(0, len(data), SLICE):
            if self.is_deaf or self.transport.is_closing():
                return
            if self.pipeline:
                self.backlog = data[at:]
                self.flow.pause_reading()
                return
            self._parse_slice(data if len(data) <= SLICE else data[at : at + SLICE])

    def _parse_slice(self, data: bytes) -> None:
        self.head_began = False
        super().data_received(data)
        if not self.is_in_head():
            if self.cycle is not None and self.parser is not None and self.parser.should_upgrade():
                # The parser drops what came with the request, and takes what comes later for others (SA15): there are none.
                self.is_deaf = True
                self.cycle.keep_alive = False
            if self.unread_head:
                self.unread_head = 0
            return
        # Of data in which a head begins nobody knows how much belongs to those before it.
        self.unread_head = 0 if self.head_began else self.unread_head + len(data)
        most = self.mcp.rules.max_headers
        if self.unread_head > most + HEAD_ROOM:
            self.refuse(431, Fail(Reason.HEADERS_TOO_LARGE, f"The headers have more than {most} bytes (max_headers)."))

    def phase(self) -> tuple[Phase, Any]:
        """See `Connection`."""
        cycle = self.cycle
        if self.in_message and cycle is not None and cycle.scope is self.scope:
            return Phase.BODY, cycle
        if self.is_held_up or (cycle is not None and not cycle.response_complete):
            return Phase.BUSY, cycle
        if self.in_message:
            return Phase.HEAD, cycle
        return (Phase.FRESH if cycle is None else Phase.IDLE), cycle


def answer_at_once() -> None:
    """Have whole answers written without uvicorn's `send`, which takes a tenth off a call.

    Without effect where the parser is another one than httptools, or this uvicorn is not made as those that it was tested with: then
    answers go the ordinary way.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
    except ImportError:
        return
    if not inspect.signature(RequestResponseCycle).parameters.keys() >= _CYCLE:
        return

    def ready(cycle: RequestResponseCycle) -> bool:
        busy = cycle.response_started or cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused or cycle.access_log
        return not busy and cycle.scope["method"] != "HEAD"

    def write(cycle: RequestResponseCycle, status: int, lines: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        more = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers + headers])
        length = b"" if status == NO_CONTENT else b"content-length: %d\r\n" % len(body)
        cycle.transport.write(b"%b%b%b%b\r\n%b" % (STATUS_LINE[status], more, lines, length, body))
        cycle.message_event.set()
        cycle.on_response()

    def take(cycle: RequestResponseCycle) -> bytes | None:
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected or cycle.flow.read_paused or not cycle.body:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        return body

    SHORTCUTS[RequestResponseCycle] = Shortcut(take, ready, write)
    SHORTCUTS[WholeCall] = Shortcut(_take_nothing, WholeCall.is_ready, WholeCall.write)


def _take_nothing(_call: WholeCall) -> None:
    """Its body has been taken."""


def make_protocol(app: App, sweep: Sweep, *, max_connections: int) -> type[asyncio.Protocol] | None:
    """Uvicorn's HTTP protocol, with whichever parser is installed, less what an application can't mend.

    Args:
        app: What is served.
        sweep: What ends slow connections.
        max_connections: How many there may be.

    Returns:
        The protocol; None where this uvicorn is not made as those that it was tested with.
    """
    from uvicorn.protocols.http import auto

    parser: Any = auto.AutoHTTPProtocol
    shared = {"mcp": app, "sweep": sweep, "max_connections": max_connections}
    if not _has(parser, _METHODS, _ATTRIBUTES):
        return None
    if _has(parser, {"handle_events"}, {"conn"}):
        return type("Protocol", (H11Guarded, parser), shared)
    if not _has(parser, _CALLBACKS, _PARSED):
        return None
    from uvicorn.protocols.http import httptools_impl

    cycle = httptools_impl.RequestResponseCycle
    whole = inspect.signature(cycle).parameters.keys() == _REPLACED and WholeCall in SHORTCUTS and type(app) is App
    heads = Heads(app) if whole else None
    parts = {"heads": heads, "cycle_type": cycle, "status_lines": httptools_impl.STATUS_LINE}
    return type("Protocol", (HttptoolsGuarded, parser), {**shared, **parts})


def _has(parser: Any, methods: set[str], attributes: set[str]) -> bool:
    """Whether a protocol has these methods, and its constructor sets these attributes."""
    return all(callable(getattr(parser, name, None)) for name in methods) and attributes <= {*parser.__init__.__code__.co_names}
