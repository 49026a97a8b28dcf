"""One HTTP response of a session: the answer to a POST, or a GET stream. What goes out on it are events of one track.

A client that comes back for a stream (`Last-Event-ID`) gets a new connection for the same track; the old one is hung up.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from callboard.core.exchange import Exchange, Write
from callboard.legacy.actor import Actor, Work
from callboard.legacy.session import Track
from callboard.transport.endpoint import HttpCall
from callboard.transport.stream import Outlet, nobody

__all__ = ["Connection"]

_log = logging.getLogger("callboard")
# Seconds that a connection which is hung up gets for what it is writing.
LAST_WORDS = 2.0


class Connection(Outlet):
    """Writes one exchange of a session.

    Args:
        http: The HTTP request.
        actor: The session.
        exchange: What is written: a call's, or one of its own for a GET stream.
        track: Where its events belong; None for a call that has not streamed yet.
        call: The call; None for a GET stream.
        after: Number of the event after which the client resumes; None for a stream that begins.
    """

    __slots__ = ("_after", "_begun", "_hung_up", "_over", "_replaced", "_retry", "actor", "call", "track")

    def __init__(
        self,
        http: HttpCall,
        actor: Actor,
        exchange: Exchange,
        *,
        track: Track | None = None,
        call: Work | None = None,
        after: int | None = None,
    ) -> None:
        Outlet.__init__(self, exchange, actor.home.loop, http.receive, http.send, http.pulse, http.extra)
        self.actor = actor
        self.track = track
        self.call = call
        self._after = after
        self._over: asyncio.Future[None] | None = None
        self._begun = False
        self._hung_up = False
        self._replaced = False
        self._retry: float | None = None
        actor.enter()
        if track is not None:
            actor.attach(track, self)
        if call is not None:
            call.connection = self

    async def run(self) -> None:
        """Write until the exchange is over, the client is gone, or somebody hangs up.

        Raises:
            asyncio.CancelledError: This task was cancelled; the call goes on.
        """
        try:
            if self.exchange.open and not self._hung_up:
                self._over = self.loop.create_future()
                await self._over
            if self._writer is not None:
                # Of a connection that somebody hangs up the client may not read any more.
                done, _ = await asyncio.wait({self._writer}, timeout=LAST_WORDS if self._hung_up or self._replaced else None)
                if not done:
                    self._give_up()
                    return
            await self._end()
        except Exception:  # noqa: BLE001 - servers raise what they like where the client is gone
            _log.debug("A stream can't be written any more.", exc_info=True)
            self._give_up()
        finally:
            if self._writer is not None:
                self._writer.cancel()
            if self._watcher is not None:
                self._unwatch()
            self._release()

    def frame(self, notes: list[bytes], *, first: bool) -> bytes:
        """Make messages events of the track; the first ones follow what a stream begins with."""
        machine = self.actor.machine
        if self.track is None and first and len(notes) == 1 and self.call is not None and not self.exchange.open:
            return machine.answer(notes[0], priming=self.actor.codec.features.priming)
        if self.track is None and self.call is None:
            return Outlet.frame(self, notes, first=first)  # a request that was refused
        if self.track is None:
            assert self.call is not None
            self.track = machine.open_track(self.call)
            self.track.outlet = self
        lead = b""
        if first and self._after is not None:
            lead = machine.replay(self.track, self._after)
        elif first and self.actor.codec.features.priming:
            lead = machine.prime(self.track)
        return lead + machine.stamp(self.track, notes)

    def hang_up(self, retry: float | None) -> None:
        """Close this connection after what waits has been written.

        Args:
            retry: Seconds after which the client should come back; None to leave that to it (HL-09).
        """
        self._hung_up = True
        self._retry = retry
        self._close()

    def give_way(self) -> None:
        """Close this connection at once: its client has come back over another one."""
        self._gone = self._replaced = True
        if self.call is None:
            self.exchange.wake = nobody
        self._close()

    def watch(self) -> None:
        """Watch for the client going away from now on."""
        self._watch()

    def leave(self) -> None:
        """The client is gone: of a call the rule of this endpoint decides (HL-07)."""
        if self.call is not None and not self._hung_up:
            self.actor.drop(self.call)
        self._close()

    def _wake(self) -> None:
        if self.exchange.overflowed:
            self._give_up()
        elif self.exchange.open and not self._hung_up:
            Outlet._wake(self)  # noqa: SLF001 - its own class's
        elif self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _close(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _write(self, write: Write) -> None:
        self._begun = True
        await Outlet._write(self, write)  # noqa: SLF001 - its own class's

    async def _end(self) -> None:
        exchange = self.exchange
        if self._replaced and self._begun:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        while not self._gone and (write := exchange.take()) is not None:
            if not self._write_whole(write):
                await self._write(write)
            if write.last:
                return
        if self._gone or not self._begun:
            await self._say_nothing()
            return
        last = b""
        if self._retry is not None and self.track is not None:
            last = b"retry: %d\n" % round(self._retry * 1000) + self.actor.machine.prime(self.track)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _say_nothing(self) -> None:
        """End a response that has not begun: nobody is there to read it, or its call was cancelled and has no answer (CN-04)."""
        if not self._begun:
            with suppress(Exception):
                headers = [*self._headers, (b"content-length", b"0")]
                status = 409 if self._replaced else 499 if self._gone else 202 if self._after is None else 400
                await self._send({"type": "http.response.start", "status": status, "headers": headers})
                await self._send({"type": "http.response.body", "body": b""})

    def _release(self) -> None:
        self.actor.leave()
        if self._replaced:
            return
        exchange, call, track = self.exchange, self.call, self.track
        exchange.wake = nobody
        if call is not None:
            call.connection = None
        if track is not None:
            self.actor.release(track, self)
        if call is None:
            return
        if exchange.open:
            self.actor.detach(call)
        elif track is not None:
            self.actor.settle(call)
