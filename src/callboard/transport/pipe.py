"""The server's side of one stream of JSON-RPC lines (SD-01): what stdio and in-memory connections share.

Rules:
    1. A line that is no message is answered, with its id where that can be read (A37, JR-09). Blank lines are none; a response has no
       addressee here (JR-06) and is passed over.
    2. Every request runs in a task of its own. An id is taken from the request to its answer: a second request with it is refused.
    3. A cancelled request is never answered (CN-04), a finished one can't be cancelled (CN-06): each id has at most one terminal message.
    4. A listen stream that the server ends gets its closing result (SB-09), then `notifications/cancelled` (CN-03). In this order: the
       official clients take whichever comes first for the end, and only the result for a graceful one.
    5. The first request fixes the protocol: one with an envelope of its own means the current one, `initialize` an older one and its
       session. `server/discover` fixes nothing: it is how clients find out (VN-13), and some give up waiting for its answer.
    6. One write at a time. What is said in one turn of the loop leaves in one write; while the client does not read, notes wait in their
       exchanges, which coalesce and bound them, and answers wait here. Past `MAX_BACKLOG` of those nothing more should be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from callboard.core.era import Era
from callboard.core.exchange import Exchange
from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason
from callboard.server.mount import Caller, Mount
from callboard.transport.endpoint import Endpoint, PipeSession, read_cancelled
from callboard.wire.jsonrpc import (
    Batch,
    Malformed,
    Message,
    RawNotification,
    RawRequest,
    RawResponse,
    RequestId,
    decode,
    encode_notification,
)
from callboard.wire.versions import LATEST

__all__ = ["MAX_BACKLOG", "MAX_CALLS", "MAX_LINE", "Lines", "Pipe", "WriteLines"]

# Bytes of one line; more than an HTTP body may have, since the client is who started this process.
MAX_LINE = 16 * 1024 * 1024
# Requests in flight on one stream.
MAX_CALLS = 4096
# Bytes of answers that wait for a client that does not read.
MAX_BACKLOG = 16 * 1024 * 1024
# Seconds that cancelled work and last words get.
SETTLE = 0.15

_CANCELLED = "notifications/cancelled"
_log = logging.getLogger("callboard")

# Takes encoded messages, in order, to write each as one line. Returns None when that is done, else something to await until it is.
WriteLines = Callable[[list[bytes]], Awaitable[None] | None]


class Lines:
    """Cuts a stream of bytes into lines. Sans-IO.

    Args:
        max_line: Bytes of the longest line. Of a longer one comes a beginning that is longer too; the rest of it is skipped, not kept.
    """

    __slots__ = ("_held", "_max_line", "_size", "_skipping")

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._held: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; the lines that are complete with them, without their ends."""
        *lines, rest = data.split(b"\n")
        if lines and self._skipping:
            self._skipping = False
            del lines[0]
        elif lines and self._held:
            lines[0] = self._release(lines[0])
        if rest and not self._skipping:
            self._held.append(rest)
            self._size += len(rest)
            if self._size > self._max_line:
                self._skipping = True
                lines.append(self._release(b""))
        return lines

    def end(self) -> bytes:
        """The last line, where the stream ended without a line end; empty when there is none."""
        return self._release(b"")

    def _release(self, last: bytes) -> bytes:
        held, self._held, self._size = self._held, [], 0
        return b"".join((*held, last))


class _Call:
    """One request in flight; without an era it is the session's."""

    __slots__ = ("era", "exchange", "listens", "task")

    def __init__(self, era: Era | None, exchange: Exchange, *, listens: bool = False) -> None:
        self.era = era
        self.exchange = exchange
        self.listens = listens
        self.task: asyncio.Future[None] | None = None


class Pipe:
    """Serves one client over lines; see the module for its rules.

    Args:
        endpoint: The server.
        mount: What its `open` returned, on this event loop.
        write: Where lines go.
        principal: Who the client is; None when that is not known.
    """

    def __init__(self, endpoint: Endpoint, mount: Mount, write: WriteLines, *, principal: str | None = None) -> None:
        self._endpoint = endpoint
        self._mount = mount
        self._write = write
        self._max_line = mount.limits.max_line
        self._principal = principal
        self._loop = asyncio.get_running_loop()
        self._calls: dict[RequestId, _Call] = {}
        self._leaving: set[asyncio.Future[None]] = set()
        self._fixed = False
        self._session: PipeSession | None = None
        # What came while the session was being opened.
        self._held: list[Message] | None = None
        self._opening: asyncio.Task[None] | None = None
        # What the server says in the session of its own accord.
        self._channel = Exchange(self._wake_channel, cap=mount.limits.stream_buffer)
        self._noisy: dict[RequestId, None] = {}
        self._said: list[bytes] = []
        self._backlog = 0
        self._scheduled = False
        self._writer: asyncio.Task[None] | None = None
        self._drained: list[Callable[[], None]] = []

    @property
    def congested(self) -> bool:
        """Whether so many answers wait that no more requests should be read."""
        return self._backlog > MAX_BACKLOG

    def when_drained(self, call: Callable[[], None]) -> None:
        """Have `call` called once when the client has caught up."""
        self._drained.append(call)

    def feed(self, line: bytes) -> None:
        """Take one line, without its end; a carriage return is harmless (A36)."""
        if len(line) > self._max_line:
            self._refuse(
                None, Fail(Reason.BODY_TOO_LARGE, f"The line has more than {self._max_line} bytes, the most that is read (max_line).")
            )
            return
        if not line or line.isspace():
            return
        limits = self._mount.limits
        message = decode(line, max_depth=limits.max_depth, max_items=limits.max_items)
        if self._held is None:
            self._take(message)
        else:
            self._held.append(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, RawRequest):
            self._route(message)
        elif isinstance(message, RawNotification):
            self._notice(message)
        elif isinstance(message, Malformed):
            if message.answerable:
                self._refuse(message.id, message.fail)
        elif self._session is not None:
            if isinstance(message, Batch):
                self._session.take_batch(message)
            else:
                self._session.respond(message)
        elif isinstance(message, RawResponse):
            _log.debug("Ignored a response of the client: this server asks nothing (JR-06).")
        else:
            self._refuse(None, Fail(Reason.INVALID_REQUEST, "A line must be one message: there are no batches."))

    def _route(self, message: RawRequest) -> None:
        """Find out who serves a request: rule 5."""
        claimed = self._endpoint.era.claims(message, None)
        if self._session is not None:
            if not claimed:
                self._start_older(message, self._session)
            elif message.method == "server/discover":
                self._start(message)
            else:
                text = "This connection speaks the protocol of its initialize: send requests without an envelope of their own in _meta."
                self._refuse(message.id, Fail(Reason.INVALID_REQUEST, text))
        elif message.method == "initialize" and not claimed and self._endpoint.older is not None:
            if self._fixed:
                text = f"This connection speaks {LATEST} since its first request: go on so, or begin another connection with initialize."
                self._refuse(message.id, Fail(Reason.INVALID_REQUEST, text))
            else:
                self._held = []
                self._opening = self._loop.create_task(self._open(message))
        else:
            self._fixed = self._fixed or (claimed and message.method != "server/discover")
            self._start(message)

    async def _open(self, message: RawRequest) -> None:
        assert self._endpoint.older is not None
        try:
            self._session = await self._endpoint.older.connect(
                self._mount, message, Caller(None, self._principal), self._say, self._channel
            )
        except BaseException:
            self._refuse(message.id, Fail(Reason.INTERNAL))
            raise
        finally:
            held, self._held, self._opening = self._held or [], None, None
            for later in held:
                self._take(later)

    def _start_older(self, message: RawRequest, session: PipeSession) -> None:
        """Serve a request in the session."""
        if fail := self._check_room(message.id):
            self._refuse(message.id, fail)
            return
        call = self._calls[message.id] = _Call(None, Exchange(partial(self._wake, message.id), cap=self._mount.limits.stream_buffer))
        call.task = self._loop.create_future()
        session.start(message, call.exchange)

    def _check_room(self, request_id: RequestId) -> Fail | None:
        if request_id in self._calls:
            return Fail(Reason.DUPLICATE_ID)
        if len(self._calls) >= MAX_CALLS:
            return Fail(Reason.OVERLOADED, f"There are {MAX_CALLS} requests in flight already: try again later.")
        return None

    async def drain(self, grace: float) -> int:
        """Give running requests time to be answered, then cancel them. Listen streams go on.

        Args:
            grace: Seconds until they are cancelled.

        Returns:
            How many were cancelled.
        """
        until = self._loop.time() + grace
        await self._settle({call.task for call in self._calls.values() if not call.listens}, grace)
        late = [request_id for request_id, call in self._calls.items() if not call.listens]
        for request_id in late:
            self._cancel(request_id)
        if late:
            await self._settle(self._leaving)
        await self._settle({self._writer}, until - self._loop.time())
        return len(late)

    async def hang_up(self) -> None:
        """The client is gone: its session, where it had one, ends with it."""
        if self._opening is not None:
            self._opening.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """End it within bounded time: what the endpoint ended may have its last words, the rest is cancelled."""
        await self.hang_up()
        await self._settle({call.task for call in self._calls.values()})
        for request_id in list(self._calls):
            self._cancel(request_id)
        self._pump()
        await self._settle({self._writer})
        if self._writer is not None:
            self._writer.cancel()

    async def _settle(self, tasks: Iterable[asyncio.Future[None] | None], seconds: float = SETTLE) -> None:
        running = {task for task in tasks if task is not None}
        if running and seconds > 0:
            await asyncio.wait(running, timeout=seconds)

    def _start(self, message: RawRequest) -> None:
        request_id = message.id
        if fail := self._check_room(request_id):
            self._refuse(request_id, fail)
            return
        era = self._endpoint.era
        exchange = Exchange(partial(self._wake, request_id), cap=self._mount.limits.stream_buffer)
        call = self._calls[request_id] = _Call(era, exchange, listens=message.method == "subscriptions/listen")
        call.task = self._loop.create_task(self._serve(message, call, era))

    async def _serve(self, message: RawRequest, call: _Call, era: Era) -> None:
        request_id = message.id
        try:
            await self._endpoint.answer(self._mount, era, message, call.exchange, principal=self._principal)
        except BaseException:
            if self._calls.get(request_id) is call:  # not our doing, and nobody else would answer
                self._give_up(request_id, Fail(Reason.INTERNAL))
            raise
        if self._calls.get(request_id) is call:
            del self._calls[request_id]
            self._noisy.pop(request_id, None)
            write = call.exchange.take()
            if write is not None:
                lines = write.notes
                if call.listens and (write.streaming or not write.status):
                    lines.append(encode_notification(_CANCELLED, {"requestId": request_id}))
                self._say(lines)

    def _notice(self, message: RawNotification) -> None:
        if self._session is None:
            self._endpoint.hear(self._mount, message, principal=self._principal)
        else:
            self._session.notice(message)
        if message.method != _CANCELLED:
            return
        request_id = read_cancelled(message)
        if request_id is not None:
            self._cancel(request_id)

    def _cancel(self, request_id: RequestId) -> None:
        """Stop a request without an answer; nothing happens when it is not in flight."""
        call = self._calls.get(request_id)
        if call is None or call.era is None:
            if self._session is not None:  # the request may be one of a batch, too
                self._session.give_up(request_id, None)
            return
        if call.task is None:
            return
        del self._calls[request_id]
        self._noisy.pop(request_id, None)
        call.exchange.cancel()
        self._leaving.add(call.task)
        call.task.add_done_callback(self._leaving.discard)
        call.task.cancel()

    def _give_up(self, request_id: RequestId, fail: Fail) -> None:
        """Stop a request with an error: nobody else would tell the client."""
        call = self._calls[request_id]
        if call.era is None:
            assert self._session is not None
            self._session.give_up(request_id, fail)
            return
        self._cancel(request_id)
        lines = [call.era.render(request_id, fail, None)[1]]
        if call.listens:
            lines.append(encode_notification(_CANCELLED, {"requestId": request_id}))
        self._say(lines)

    def _refuse(self, request_id: RequestId | None, fail: Fail) -> None:
        self._say([render_fail(request_id, fail)[1] if self._session is None else self._session.refuse(request_id, fail)])

    def _wake(self, request_id: RequestId) -> None:
        """Something of this request waits to be written, or too much."""
        call = self._calls.get(request_id)
        if call is None:
            return
        if call.era is None and not call.exchange.open:
            self._end_older(request_id, call)
            return
        if call.exchange.overflowed:
            self._give_up(
                request_id, Fail(Reason.OVERLOADED, f"More than {self._channel.cap} bytes of notifications waited unread (stream_buffer).")
            )
            return
        self._noisy[request_id] = None
        self._schedule()

    def _wake_channel(self) -> None:
        if self._channel.overflowed:
            _log.warning("More than %d bytes of notifications waited unread; they were dropped (stream_buffer).", self._channel.cap)
            self._channel.restart()
        else:
            self._schedule()

    def _end_older(self, request_id: RequestId, call: _Call) -> None:
        """A request of the session is over, with an answer or without."""
        overflowed = call.exchange.overflowed
        del self._calls[request_id]
        self._noisy.pop(request_id, None)
        if call.task is not None and not call.task.done():
            call.task.set_result(None)
        write = call.exchange.take()
        if overflowed and self._session is not None:
            self._session.give_up(
                request_id, Fail(Reason.OVERLOADED, f"More than {self._channel.cap} bytes of notifications waited unread (stream_buffer).")
            )
        elif write is not None:
            self._say(write.notes)

    def _say(self, lines: list[bytes]) -> None:
        self._said += lines
        self._backlog += sum(map(len, lines))
        self._schedule()

    def _schedule(self) -> None:
        if self._scheduled:
            return
        if self._calls:
            self._scheduled = True
            self._loop.call_soon(self._pump)
        else:
            self._pump()

    def _pump(self) -> None:
        self._scheduled = False
        if self._writer is not None:
            return
        lines, self._said, self._backlog = self._said, [], 0
        noisy, self._noisy = self._noisy, {}
        for request_id in noisy:
            write = self._calls[request_id].exchange.take()
            if write is not None:
                lines += write.notes
        if (write := self._channel.take()) is not None:
            lines += write.notes
        if lines and (waiting := self._write(lines)) is not None:
            self._writer = self._loop.create_task(self._wait(waiting))
        drained, self._drained = self._drained, []
        for call in drained:
            call()

    async def _wait(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        finally:
            self._writer = None
        self._pump()
