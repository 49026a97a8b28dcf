"""One connection to a Redis that many commands share: what is asked in one turn of the loop travels together, answers come back in order.

Rules:
    1. A command is written once. What may have reached the Redis when the connection broke is never sent again: its caller is told.
    2. A command that was not written yet waits for the next connection, until its time is up.
    3. Where the Redis has said nothing for as long as a command may take, and owes an answer all that time, the connection is taken for dead.
    4. While there has been no connection for longer than a command may take, commands fail at once.
    5. A command that is late is spared for as long again while answers come in, or where it was written only now: it is this process or the
       Redis that is busy, not the connection that is dead.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from callboard.errors import StoreError
from callboard.stores.redis_dial import Dialer, Outage, Wire

__all__ = ["Link"]

# Bytes that are written at once, commands that may wait, and pauses between attempts to connect, in seconds.
_MOST_BYTES = 1 << 20
MAX_WAITING = 100_000
_PAUSES = (0.02, 0.5)
# Seconds in which what has arrived may still be read before its command is called late, and for which an answer shows that more will come.
_GRACE, _FLOW = 0.05, 0.25


class _Command:
    __slots__ = ("future", "packed", "sent", "until")

    def __init__(self, packed: bytes, future: asyncio.Future[Any], until: float) -> None:
        self.packed = packed
        self.future = future
        self.until = until
        self.sent = 0.0


class Link:
    """A connection that is made anew whenever it is lost.

    Args:
        dialer: Says what went wrong.
        dial: Makes a connection.
        outage: Is told when it is lost, and back.
        timeout: Seconds that a command may take, the making of a connection included.
        up: Called when there is a connection.

    Attributes:
        since: When the present connection was made, by the loop's clock; None while there is none.
    """

    def __init__(
        self, dialer: Dialer, dial: Callable[[], Awaitable[Wire]], outage: Outage, *, timeout: float, up: Callable[[], None] | None = None
    ) -> None:
        self.since: float | None = None
        self._dialer = dialer
        self._dial = dial
        self._outage = outage
        self._timeout = timeout
        self._up = up
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Command] = deque()
        self._sent: deque[_Command] = deque()
        self._wake = asyncio.Event()
        self._cut: asyncio.Future[str] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._received = 0.0
        self._lost: float | None = None
        self._reason = "there is no connection yet"
        self._timer: asyncio.TimerHandle | None = None
        self._patient = True
        self._closed = False
        self._task = self._loop.create_task(self._live())

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Send a command together with all others of this turn of the loop.

        Args:
            packed: The command.

        Returns:
            Its reply: bytes, int, list or None. Or an exception: redis-py's where the Redis answered with an error, StoreError where it
            did not answer.
        """
        future = self._loop.create_future()
        now = self._loop.time()
        if self._closed:
            future.set_exception(self._gone())
        elif self._lost is not None and now - self._lost > self._timeout:
            future.set_exception(self._unreachable())
        elif len(self._waiting) >= MAX_WAITING:
            future.set_exception(StoreError(f"The store {self._dialer.place.shown} is too slow: too many commands wait for it."))
        else:
            self._waiting.append(_Command(packed, future, now + self._timeout))
            self._wake.set()
            if self._timer is None:
                self._timer = self._loop.call_at(now + self._timeout, self._expire)
        return future

    async def ready(self) -> None:
        """Wait for the first connection.

        Raises:
            StoreError: There is none in time, or the Redis does not want us.
        """
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            raise self._unreachable() from None

    def cut(self, reason: str) -> None:
        """Take the connection for lost.

        Args:
            reason: Why.
        """
        if not self._cut.done():
            self._cut.set_result(reason)

    async def stop(self) -> None:
        """Close the connection; whatever waits is told."""
        self._closed = True
        self._task.cancel()
        await asyncio.wait({self._task})
        self._outage.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # whether anybody waits for it is not known
        self._ready.cancel()
        self._cut.cancel()
        self._fail(self._sent, self._gone())
        self._fail(self._waiting, self._gone())

    def _gone(self) -> StoreError:
        return StoreError(f"The connection to the store {self._dialer.place.shown} was closed.")

    def _unreachable(self) -> StoreError:
        return StoreError(f"The store {self._dialer.place.shown} can't be reached: {self._reason}.")

    @staticmethod
    def _fail(commands: deque[_Command], error: StoreError) -> None:
        while commands:
            command = commands.popleft()
            if not command.future.done():
                command.future.set_exception(error)

    async def _live(self) -> None:
        least, most = _PAUSES
        pause = least
        while True:
            try:
                wire = await self._dial()
            except Exception as error:  # noqa: BLE001 - whatever it was, the store must not stay away for ever
                self._note_failure(error)
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - so that workers don't come all at once
                pause = min(most, pause * 2)
                continue
            pause = least
            reason = await self._serve(wire)
            self._lost = self._loop.time()
            self._reason = reason
            self._outage.gone(self, reason)

    def _note_failure(self, error: Exception) -> None:
        self._reason = self._dialer.explain(error)
        if self._lost is not None:
            self._outage.gone(self, self._reason)
        elif self._dialer.is_final(error) and not self._ready.done():
            self._ready.set_exception(self._unreachable())

    async def _serve(self, wire: Wire) -> str:
        """Use a connection until it is lost; why it was."""
        self._cut = self._loop.create_future()
        self.since = self._received = self._loop.time()
        self._lost = None
        tasks: list[asyncio.Task[None]] = [self._loop.create_task(self._read(wire)), self._loop.create_task(self._write(wire))]
        self._outage.back(self)
        if not self._ready.done():
            self._ready.set_result(None)
        if self._up is not None:
            self._up()
        try:
            ends_it: list[asyncio.Future[Any]] = [*tasks, self._cut]
            await asyncio.wait(ends_it, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.since = None
            wire.abort()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, Exception)]
        reason = self._dialer.explain(errors[0]) if errors else self._cut.result() if self._cut.done() else "its tasks were cancelled"
        shown = self._dialer.place.shown
        self._fail(
            self._sent,
            StoreError(f"The store {shown} was lost while a command was under way ({reason}): whether it was done is not known."),
        )
        return reason

    async def _write(self, wire: Wire) -> None:
        waiting, sent, wake = self._waiting, self._sent, self._wake
        while True:
            if not waiting:
                wake.clear()
                await wake.wait()
            now = self._loop.time()
            size, pieces = 0, []
            while waiting and size < _MOST_BYTES:
                command = waiting.popleft()
                if command.future.done():  # its caller has gone: it need not be sent any more
                    continue
                command.sent = now
                size += len(command.packed)
                pieces.append(command.packed)
                command.packed = b""
                sent.append(command)
            if pieces:
                await wire.send_packed_command([b"".join(pieces)], check_health=False)

    async def _read(self, wire: Wire) -> None:
        from redis.exceptions import ResponseError

        read, sent, time = wire.read_response, self._sent, self._loop.time
        while True:
            error: ResponseError | None = None
            try:
                reply = await read(disable_decoding=True)
            except ResponseError as refusal:
                reply, error = None, refusal
            self._received = time()
            if not sent:
                raise ConnectionError("it said something that nobody asked for")
            future = sent.popleft().future
            if future.done():
                continue
            if error is None:
                future.set_result(reply)
            else:
                future.set_exception(error)

    def _expire(self) -> None:
        """End what has waited too long, and look again when the next one has."""
        now = self._loop.time()
        if self._patient:  # where the loop stood still the answers may be here, and unread
            self._patient = False
            self._timer = self._loop.call_at(now + _GRACE, self._expire)
            return
        self._patient = True
        newest = max(self._received, self._sent[0].sent) if self._sent else self._received
        limit = now - self._timeout if self.since is not None and now - newest < _FLOW else now
        upcoming = [*self._expire_waiting(limit), *self._expire_sent(limit, now)]
        self._timer = self._loop.call_at(max(now + _GRACE, min(upcoming)), self._expire) if upcoming else None

    def _expire_waiting(self, limit: float) -> list[float]:
        waiting = self._waiting
        while waiting and (waiting[0].until <= limit or waiting[0].future.done()):
            command = waiting.popleft()
            if not command.future.done():
                command.future.set_exception(self._late() if self.since is not None else self._unreachable())
        return [waiting[0].until] if waiting else []

    def _expire_sent(self, limit: float, now: float) -> list[float]:
        sent = self._sent
        upcoming = []
        for command in sent:
            if command.until > limit:
                upcoming.append(command.until)
                break
            if not command.future.done():
                command.future.set_exception(self._late())
        if sent and sent[0].until <= limit:
            silent_until = max(self._received, sent[0].sent) + self._timeout
            if silent_until <= now:
                self.cut(f"no answer within {self._timeout:g} s")
            else:
                upcoming.append(silent_until)
        return upcoming

    def _late(self) -> StoreError:
        return StoreError(f"The store {self._dialer.place.shown} did not answer within {self._timeout:g} s.")
