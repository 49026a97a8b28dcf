"""The asyncio shell around one exchange over HTTP: it writes, it watches for the client going away, it keeps streams alive.

It decides nothing: the exchange says what to write. A call that never suspends costs no task and no timer here: its request's own task
writes head and body. The first suspension starts a timer, and only a call that takes longer starts the watcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from types import coroutine
from typing import Any, NamedTuple, TypeAlias

from callboard.core.exchange import HARD_CAP, Exchange, State, Write
from callboard.core.sse import comment
from callboard.server.places import Load

__all__ = [
    "JSON_HEADERS",
    "JSON_LINES",
    "NO_CONTENT",
    "SHORTCUTS",
    "SSE_HEADERS",
    "WATCH_AFTER",
    "Outlet",
    "Pulse",
    "Receive",
    "Scope",
    "Send",
    "Shortcut",
    "Stream",
    "find_shortcut",
    "nobody",
    "send_answer",
    "take_whole",
    "write_whole",
]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log = logging.getLogger("callboard")
# Seconds that a suspended call is left alone before somebody watches for its client to go away.
WATCH_AFTER = 0.05
# Seconds between two looks at what waits to be read.
WEIGH_EVERY = 1.0
# What an answer says of its content: browsers guess nothing of it (SA14), and nobody keeps what may be for one reader alone.
_PRIVATE = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
JSON_HEADERS = [(b"content-type", b"application/json"), *_PRIVATE]
"""Headers of a JSON answer, but for its length."""
# Statuses of answers that say when to try again, and of those that may say what else to get.
_BUSY = frozenset({429, 503})
_ADVISED = _BUSY | {403}
NO_CONTENT = 204
"""The status of answers that have no content, and so no length either (RFC 9110 section 8.6)."""
# X-Accel-Buffering: HM-12. A proxy that compresses would hold events back, too.
SSE_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]
"""Headers of an event stream."""
# The same as they are written.
JSON_LINES = b"".join(b"%b: %b\r\n" % header for header in JSON_HEADERS)
"""Headers of a JSON answer, but for its length, as they are written."""
_SSE_LINES = b"".join(b"%b: %b\r\n" % header for header in SSE_HEADERS)
_COMMENT = comment()
_DONE = State.DONE


class Shortcut(NamedTuple):
    """A way past the ASGI `receive` and `send` of an HTTP server, where a body is there already and an answer is whole.

    Attributes:
        take: The body of a request, given the owner of `receive`; None where it has to be waited for.
        ready: Whether it can now, given the owner of `send`.
        write: Writes status, header lines of the content but for its length, further headers, and body; of `NO_CONTENT` no length.
    """

    take: Callable[[Any], bytes | None]
    ready: Callable[[Any], bool]
    write: Callable[[Any, int, bytes, list[tuple[bytes, bytes]], bytes], None]


# By the type that owns the server's `receive` and `send`.
SHORTCUTS: dict[type, Shortcut] = {}


def nobody() -> None:
    """Nothing is left to wake."""


class Pulse:
    """All open streams of one app: keep-alive comments on them (HM-13), and what waits on them to be read, weighed.

    Its timers run only while there are streams.

    Args:
        seconds: Longest silence on a stream; None for no keep-alive.
        buffer: Bytes that may wait on one stream.
        load: Gives what what waits on all of them is counted into; None to count nothing.

    Attributes:
        buffer: As given.
    """

    def __init__(self, seconds: float | None, buffer: int = HARD_CAP, load: Callable[[], Load] | None = None) -> None:
        self.buffer = buffer
        self._seconds = seconds
        self._load = load
        self._streams: dict[Outlet, None] = {}
        self._beating: asyncio.AbstractEventLoop | None = None
        self._weighing: asyncio.AbstractEventLoop | None = None

    def join(self, stream: Outlet) -> None:
        """Keep a stream alive from now on."""
        if self._seconds is None and self._load is None:
            return
        self._streams[stream] = None
        loop = stream.loop
        if self._seconds is not None and self._beating is not loop:
            self._beating = loop
            loop.call_later(self._seconds / 2, self._beat, loop)
        if self._load is not None and self._weighing is not loop:
            self._weighing = loop
            loop.call_later(WEIGH_EVERY, self._weigh, loop, self._load())

    def _weigh(self, loop: asyncio.AbstractEventLoop, load: Load) -> None:
        """Count what waits to be read; where that is too much, those who hold most of it lose their streams."""
        streams = [stream for stream in self._streams if stream.loop is loop]
        load.unread = sum([stream.unread for stream in streams])
        if load.is_full:
            for stream in sorted(streams, key=attrgetter("unread"), reverse=True):
                if not load.is_full or not stream.unread:
                    break
                load.unread -= stream.unread
                _log.warning(
                    "A stream was given up: its client does not read, and %d bytes wait in all (max_buffered).", load.limits.max_buffered
                )
                stream.give_up()
        if streams:
            loop.call_later(WEIGH_EVERY, self._weigh, loop, load)
        else:
            self._weighing = None

    def leave(self, stream: Outlet) -> None:
        """Forget a stream."""
        self._streams.pop(stream, None)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._seconds is not None
        for stream in list(self._streams):
            if stream.loop is loop:
                stream.beat()
            else:
                del self._streams[stream]  # its loop is gone
        if self._streams:
            loop.call_later(self._seconds / 2, self._beat, loop)
        else:
            self._beating = None


class Outlet:
    """Writes one exchange into one HTTP response, and watches for the client going away.

    Args:
        exchange: What is written; its `wake` is this outlet's from now on.
        loop: The running event loop.
        receive: ASGI receive.
        send: ASGI send.
        pulse: Keep-alive of the app.
        headers: Headers for every head, beside the content type.
    """

    __slots__ = (
        "_gone",
        "_headers",
        "_pulse",
        "_quiet",
        "_receive",
        "_scheduled",
        "_send",
        "_watcher",
        "_writer",
        "_writing",
        "exchange",
        "loop",
    )

    def __init__(
        self,
        exchange: Exchange,
        loop: asyncio.AbstractEventLoop,
        receive: Receive,
        send: Send,
        pulse: Pulse,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self.loop = loop
        self.exchange = exchange
        exchange.wake = self._wake
        self._receive = receive
        self._send = send
        self._pulse = pulse
        self._headers = headers
        self._gone = False
        self._quiet = False
        self._scheduled = False
        self._watcher: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._writing = 0

    @property
    def unread(self) -> int:
        """Bytes that wait until the client reads."""
        return self.exchange.size + self._writing

    def give_up(self) -> None:
        """Take the client for gone."""
        self._give_up()

    def beat(self) -> None:
        """Break a long silence."""
        if self._quiet and self._writer is None and self.exchange.open:
            self._writer = self.loop.create_task(self._write_waiting(_COMMENT))
        self._quiet = True

    def frame(self, notes: list[bytes], *, first: bool) -> bytes:  # noqa: ARG002 - of interest to those who prime a stream
        """Make messages a part of the event stream.

        Args:
            notes: Encoded JSON-RPC messages.
            first: Whether the stream begins with them.
        """
        return b"data: " + b"\n\ndata: ".join(notes) + b"\n\n" if notes else b""

    def leave(self) -> None:
        """The client is gone."""
        raise NotImplementedError

    def _wake(self) -> None:
        if self.exchange.overflowed:
            self._give_up()
        elif self._writer is None and not self._scheduled:
            # What is emitted in one turn of the loop leaves in one send.
            self._scheduled = True
            self.loop.call_soon(self._start_writer)

    def _start_writer(self) -> None:
        self._scheduled = False
        if self._writer is None and self.exchange.open:
            self._writer = self.loop.create_task(self._write_waiting())

    async def _write_waiting(self, first: bytes = b"") -> None:
        try:
            if first:
                await self._send({"type": "http.response.body", "body": first, "more_body": True})
            while not self._gone and self.exchange.open and (write := self.exchange.take()) is not None:
                await self._write(write)
        except Exception:  # noqa: BLE001 - servers raise what they like where the client is gone
            _log.debug("A stream can't be written any more.", exc_info=True)
            self._give_up()
        finally:
            self._writer = None

    def _write_whole(self, write: Write) -> bool:
        """Write an answer that begins and ends with this write; False where that takes `_write`."""
        status, notes = write.status, write.notes
        owner = getattr(self._send, "__self__", None)
        shortcut = SHORTCUTS.get(type(owner))
        if shortcut is None or not status or not write.last or not shortcut.ready(owner):
            return False
        lines, headers = JSON_LINES if notes else b"", self._headers
        if write.streaming:
            lines, body = _SSE_LINES, self.frame(notes, first=True)
        else:
            body = notes[0] if notes else b""
            if status in _ADVISED:
                headers = [*headers, *self._advice(status)]
        shortcut.write(owner, status, lines, headers, body)
        return True

    async def _write(self, write: Write) -> None:
        notes, status = write.notes, write.status
        if status and not write.streaming:
            extra = [*self._headers, *self._advice(status)] if status in _ADVISED else self._headers
            await _send_both(self._send, status, notes[0] if notes else b"", extra)
            return
        body = self.frame(notes, first=status != 0)
        if status:
            if not write.last:
                self._pulse.join(self)
                self._watch()  # a stream is watched from its first byte on: a listener that dies gives its place back at once
            await self._send({"type": "http.response.start", "status": status, "headers": [*self._headers, *SSE_HEADERS]})
        self._quiet = False
        self._writing = len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": not write.last})
        self._writing = 0

    def _advice(self, status: int) -> list[tuple[bytes, bytes]]:
        """What a refused client can do: try again after a while, or get a scope (AR-06)."""
        if status in _BUSY:
            return [_retry_after(self.exchange.retry_after)]
        return [] if self.exchange.challenge is None else [(b"www-authenticate", self.exchange.challenge)]

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = self.loop.create_task(self._watch_client())

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._give_up()

    def _give_up(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._writer is not None and self._writer is not asyncio.current_task():
            self._writer.cancel()
        self.leave()

    def _unwatch(self) -> None:
        if self._watcher is None:
            return  # nor is the pulse kept: a stream is watched from its first byte on
        self._watcher.cancel()
        self._pulse.leave(self)
        self._watcher = None  # a cancelled watcher holds this object by its traceback


class Stream(Outlet):
    """Writes one exchange of the current protocol, in whose task the call runs: without its client there is no call.

    Args:
        loop: The running event loop.
        receive: ASGI receive.
        send: ASGI send.
        pulse: Keep-alive of the app.
        headers: Headers for every head, beside the content type.
        streams: Whether the client takes an event stream.
        streams_only: Whether it takes nothing else.
    """

    __slots__ = ("_task", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receive: Receive,
        send: Send,
        pulse: Pulse,
        headers: list[tuple[bytes, bytes]],
        *,
        streams: bool,
        streams_only: bool,
    ) -> None:
        exchange = Exchange(nobody, streams=streams, streams_only=streams_only, cap=pulse.buffer)
        Outlet.__init__(self, exchange, loop, receive, send, pulse, headers)
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, answer: Coroutine[Any, Any, None]) -> None:
        """Run what finishes the exchange in this task, and write all that comes of it.

        Raises:
            asyncio.CancelledError: Somebody else than the client cancelled this task.
        """
        exchange = self.exchange
        try:
            try:
                waiting = answer.send(None)
            except StopIteration:
                pass
            else:
                self._suspended()
                await _resume(answer, waiting)
            if self._gone:
                self._given_up()
                await self._say_gone()  # the work went on after it was cancelled; nobody waits for what came of it
                return
            if self._writer is not None:
                await self._writer
            # What was written whole was the last.
            while (write := exchange.take()) is not None and not self._write_whole(write):
                await self._write(write)
                if write.last:
                    break
        except asyncio.CancelledError:
            if not self._given_up():
                raise
            await self._say_gone()
        finally:
            exchange.wake = nobody  # else the two would hold each other, and the request, until the garbage collector comes
            if self._timer is not None or exchange.state is not _DONE:  # else it never waited, so nothing was started
                self._end()

    def leave(self) -> None:
        """The client is gone: its request is cancelled (HM-15)."""
        self.exchange.cancel()
        if self._task is not None:
            self._task.cancel()

    def _suspended(self) -> None:
        self._task = asyncio.current_task()
        self._timer = self.loop.call_later(WATCH_AFTER, self._watch)

    def _given_up(self) -> bool:
        """Whether the client is gone; then this task's cancellation was ours, and is over."""
        if self._gone and self._task is not None:
            self._task.uncancel()
        return self._gone

    async def _say_gone(self) -> None:
        """Begin an answer that nobody reads: middleware in front may insist on one."""
        if not self.exchange.begun:
            with suppress(Exception):
                await self._send({"type": "http.response.start", "status": 499, "headers": [(b"content-length", b"0")]})
                await self._send({"type": "http.response.body", "body": b""})

    def _end(self) -> None:
        self.exchange.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._unwatch()
        self._timer = self._task = None


def _retry_after(seconds: int) -> tuple[bytes, bytes]:
    return b"retry-after", b"%d" % seconds


async def send_answer(send: Send, status: int, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    """Send a whole response at once.

    Args:
        send: ASGI send.
        status: HTTP status.
        body: Encoded JSON; empty for none.
        extra: Headers beside the content's own; where the status says to try again and none of them says when, that is in a second.
    """
    if status in _BUSY and all(name != b"retry-after" for name, _ in extra):
        extra = [*extra, _retry_after(1)]
    if write_whole(send, status, JSON_LINES if body else b"", extra, body):
        return
    await _send_both(send, status, body, extra)


async def _send_both(send: Send, status: int, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
    """Send head and body of a whole response by ASGI."""
    headers = [*extra] if status == NO_CONTENT else [*extra, (b"content-length", b"%d" % len(body))]
    if body:
        headers += JSON_HEADERS
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def find_shortcut(send: Send) -> Shortcut | None:
    """What can write a whole answer in place of `send`; None where somebody in between has a `send` of his own."""
    owner = getattr(send, "__self__", None)
    shortcut = SHORTCUTS.get(type(owner))
    return shortcut if shortcut is not None and shortcut.ready(owner) else None


def take_whole(receive: Receive) -> bytes | None:
    """The whole body of a request, where the HTTP server has it already and nobody in between has a `receive` of his own; else None.

    Args:
        receive: ASGI receive.
    """
    owner = getattr(receive, "__self__", None)
    shortcut = SHORTCUTS.get(type(owner))
    return None if shortcut is None else shortcut.take(owner)


def write_whole(send: Send, status: int, lines: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
    """Write a whole answer without a coroutine, where the HTTP server can.

    Args:
        send: ASGI send.
        status: HTTP status.
        lines: Headers of the content as they are written, but for its length.
        headers: Further headers.
        body: The whole body.

    Returns:
        Whether it is done; if not, `send` must do it.
    """
    writer = find_shortcut(send)
    if writer is not None:
        writer.write(getattr(send, "__self__", None), status, lines, headers, body)
    return writer is not None


@coroutine
def _resume(work: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has begun, in this task: `waiting` is what it waits for."""
    while True:
        try:
            sent = yield waiting
        except BaseException as error:  # noqa: BLE001 - thrown on into the coroutine
            step: Callable[[], Any] = partial(work.throw, error)
        else:
            step = partial(work.send, sent)
        del waiting  # like step, it may hold an error, that its frames, and one of those is this
        try:
            waiting = step()
        except StopIteration:
            return
        finally:
            del step
