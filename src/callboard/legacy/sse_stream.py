"""The stream of one HTTP+SSE client: what all its calls, and the server of its own accord, say to it.

Rules:
    1. What calls say waits in their own exchanges, which coalesce and bound it, until the client has read most of what came before.
    2. One client's cost is bounded: `MAX_CALLS` requests that are not answered or whose answer it has not read. What belongs to no call
       goes into the stream's exchange; past the cap of that the stream ends.
    3. The session ends with the stream, and the stream with the session. Told to hang up, it takes nothing new, and ends when all that runs
       is answered. After `LIFETIME` it ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial

from callboard.auth.principal import seconds_left
from callboard.core.exchange import Exchange
from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor
from callboard.legacy.batch import answer_batch
from callboard.legacy.session import Track
from callboard.transport.endpoint import HttpCall
from callboard.transport.stream import Outlet, nobody
from callboard.wire.jsonrpc import Batch, RawRequest, RequestId

__all__ = ["LIFETIME", "MAX_CALLS", "SseStream"]

_log = logging.getLogger("callboard")
# Seconds until a stream ends, so that one whose client is lost does not stay for ever.
LIFETIME = 3600.0
# Seconds that the client of a stream which ends gets to read the rest.
LAST_WORDS = 30.0
# Requests of one stream that are not answered, or whose answer is not read yet.
MAX_CALLS = 256
# Bytes of answers that it has not read.
MAX_UNREAD = 16 * 1024 * 1024


class SseStream(Outlet):
    """One client: what it has POSTed flows back to it here.

    Args:
        http: The GET.
        uri: Where the client is to POST.
        loop: The running event loop.

    Attributes:
        principal: Who opened it.
        actor: The session; None before `initialize`.
        opening: Whether an `initialize` is being served.
        reason: Why it ends.
    """

    call = None  # as of a GET stream

    def __init__(self, http: HttpCall, uri: str, loop: asyncio.AbstractEventLoop) -> None:
        Outlet.__init__(self, Exchange(nobody, cap=http.pulse.buffer), loop, http.receive, http.send, http.pulse, http.extra)
        self.principal = http.principal
        self.actor: Actor | None = None
        self.opening = False
        self.reason = "closed"
        self._uri = uri.encode()
        self._unread: dict[Exchange, None] = {}
        # Calls that have something to say, and what the last one asked said.
        self._speaking: dict[Exchange, None] = {}
        self._notes: deque[bytes] = deque()
        self._waits = False
        self._closing = False
        self._batches: set[asyncio.Task[None]] = set()
        self._track: Track | None = None
        self._over: asyncio.Future[None] = loop.create_future()
        self._timer = loop.call_later(min(LIFETIME, seconds_left(http.principal, time.time())), self.expire)

    async def run(self) -> None:
        """Write until the client is gone or the stream is to end, and end the session.

        Raises:
            asyncio.CancelledError: This task was cancelled.
        """
        self.exchange.open_stream()
        try:
            await self._over
            async with asyncio.timeout(LAST_WORDS):
                await self._end()
        except Exception:  # noqa: BLE001 - servers raise what they like where the client is gone
            _log.debug("The client of an HTTP+SSE stream did not read its end.", exc_info=True)
        finally:
            self._release()

    def frame(self, notes: list[bytes], *, first: bool) -> bytes:
        """Messages as events; the first event of the stream says where to POST."""
        lead = b"event: endpoint\ndata: %b\n\n" % self._uri if first else b""
        return lead + b"".join(b"event: message\ndata: %b\n\n" % note for note in notes)

    def begin(self, actor: Actor) -> None:
        """Be the one stream of a session, on which it says all that it has to say."""
        if self._over.done():
            actor.end(self.reason)
            return
        self.actor = actor
        self._track = actor.machine.open_channel()
        assert self._track is not None
        actor.enter()
        actor.attach(self._track, self)

    def start(self, message: RawRequest | Batch, http: HttpCall) -> None:
        """Serve a request, or a batch, of the session."""
        actor = self.actor
        assert actor is not None
        exchange = Exchange(nobody, cap=self.exchange.cap)
        exchange.wake = partial(self._hear, exchange, message.id if isinstance(message, RawRequest) else None)
        self._unread[exchange] = None
        state = http.scope.get("state")
        if isinstance(message, RawRequest):
            actor.start(message, exchange, headers=http.headers, principal=http.principal, scope_state=state)
        else:
            task = self.loop.create_task(self._answer_batch(actor, message, exchange, http))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    def busy(self) -> Fail | None:
        """Why no request can be taken; None when it can."""
        if self._closing:
            return Fail(Reason.OVERLOADED, "This stream is about to end: open another one.")
        if len(self._unread) >= MAX_CALLS or sum(exchange.size for exchange in self._unread) > MAX_UNREAD:
            return Fail(Reason.SESSION_OVERLOADED)
        return None

    def say(self, message: bytes) -> None:
        """Send a message that belongs to no call."""
        self.exchange.emit(message)

    def hang_up(self, retry: float | None = None) -> None:  # noqa: ARG002 - of interest to those who can be resumed
        """Take nothing new, and end when all that runs is answered."""
        self._closing = True
        if self.actor is None or self.actor.machine.ended:
            self._timer.cancel()
            self._timer = self.loop.call_later(LAST_WORDS, self._give_up)
        self._settle()

    def expire(self) -> None:
        """End it now: what runs is told so."""
        self._leave_for("expired")

    def give_way(self) -> None:
        """Somebody else reads this session."""
        self._leave_for("closed")

    def leave(self) -> None:
        """The client is gone."""
        self._close()

    def _leave_for(self, reason: str) -> None:
        self.reason = reason
        if self.actor is not None:
            self.actor.end(reason)
        self.hang_up()

    async def _answer_batch(self, actor: Actor, batch: Batch, exchange: Exchange, http: HttpCall) -> None:
        state = http.scope.get("state")
        answer = await answer_batch(actor, batch, headers=http.headers, principal=http.principal, scope_state=state)
        if isinstance(answer, Fail):
            answer = actor.codec.render_fail(None, answer)[1]
        exchange.finish(200, answer)
        exchange.wake()

    def _hear(self, call: Exchange, request_id: RequestId | None) -> None:
        """A call has something to say, is over, or has said more than fits."""
        if call.overflowed:
            self._forget(call)
            if self.actor is not None and request_id is not None:
                self.actor.cancel(request_id)
                fail = Fail(Reason.OVERLOADED, f"More than {self.exchange.cap} bytes of notifications waited unread (stream_buffer).")
                self.say(self.actor.codec.render_fail(request_id, fail)[1])
        else:
            self._speaking[call] = None
        if not self._waits:
            self._pump()

    def _pump(self) -> None:
        """Let the calls speak, as far as the client reads: what it does not read waits in their exchanges, which bound it."""
        self._waits = False
        stream = self.exchange
        while stream.open and (self._notes or self._speaking):
            if stream.congested:
                self._waits = True
                stream.when_drained(self._pump)
                return
            if self._notes:
                stream.emit(self._notes.popleft())
                continue
            call = next(iter(self._speaking))
            del self._speaking[call]
            if (write := call.take()) is not None:
                self._notes += write.notes
            if not call.open:
                self._forget(call)
        self._settle()

    def _forget(self, call: Exchange) -> None:
        del self._unread[call]
        self._speaking.pop(call, None)
        call.wake = nobody  # else it would hold itself until the garbage collector comes

    def _settle(self) -> None:
        if self._closing and not self._unread and not self._notes:
            self.exchange.finish(200, b"")
            self._close()

    def _wake(self) -> None:
        if self.exchange.overflowed:
            _log.warning("An HTTP+SSE stream ends: its client does not read.")
        if self.exchange.open or self.exchange.overflowed:
            Outlet._wake(self)  # noqa: SLF001 - its own class's
        else:
            self._close()

    def _close(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def _end(self) -> None:
        if self._writer is not None:
            await asyncio.wait({self._writer})
        while not self._gone and (write := self.exchange.take()) is not None:
            await self._write(write)

    def _release(self) -> None:
        self._close()
        self._timer.cancel()
        self._unwatch()
        if self._writer is not None:
            self._writer.cancel()
        self.exchange.cancel()
        self.exchange.wake = nobody
        if self.actor is not None and self._track is not None:
            self._track.outlet = None
            self.actor.end(self.reason)
            self.actor = None
        for call in list(self._unread):
            self._forget(call)
