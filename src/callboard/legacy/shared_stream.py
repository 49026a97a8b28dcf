"""One HTTP response of a session that every worker may serve: events are in the store before they are on the wire."""

from __future__ import annotations

from callboard.core.exchange import Exchange, Write
from callboard.errors import Fail, Reason, StoreError
from callboard.legacy.actor import Work
from callboard.legacy.connection import Connection
from callboard.legacy.session import MAX_CHANNELS, Track
from callboard.legacy.shared import SharedActor
from callboard.legacy.stored import CHANNEL, Event
from callboard.transport.endpoint import HttpCall
from callboard.transport.stream import nobody

__all__ = ["SharedConnection", "connect_stream"]

# Digits of an event's number.
MAX_DIGITS = 18


class SharedConnection(Connection):
    """Writes one exchange of a session: a call's that runs here, or one of its own for what comes from the store.

    Arguments are those of `Connection`, and:

    Args:
        token: What the store knows a reader of `g0` by; empty for all else.
        received: Number of the newest event that has come.
        turn: Whether it is the reader, or waits to be.

    Attributes:
        token: As given.
        received: As given; moves on.
        turn: As given; changes.
        worker: Who runs the call whose track it follows; None where nobody need be watched.
        behind: Whether something may have been missed that has not been fetched yet.
    """

    __slots__ = ("_filling", "_framed", "behind", "received", "token", "turn", "worker")

    def __init__(
        self,
        http: HttpCall,
        actor: SharedActor,
        exchange: Exchange,
        *,
        track: Track | None = None,
        call: Work | None = None,
        after: int | None = None,
        token: str = "",
        received: int = 0,
        turn: bool = True,
    ) -> None:
        self.token = token
        self.received = received
        self.turn = turn
        self.worker: str | None = None
        self._filling = self.behind = False
        self._framed: bytes | None = None
        Connection.__init__(self, http, actor, exchange, track=track, call=call, after=after)
        actor.home.busy[actor] = None

    @property
    def shared(self) -> SharedActor:
        """The session."""
        assert isinstance(self.actor, SharedActor)
        return self.actor

    def frame(self, notes: list[bytes], *, first: bool) -> bytes:
        """Make messages events of the track; those that have been are the next to be written."""
        if (framed := self._framed) is not None:
            self._framed = None
            return framed
        if self.track is None and self.call is not None:
            self.track = self.actor.machine.open_track(self.call)
            self.track.outlet = self
        return Connection.frame(self, notes, first=first)

    def _write_whole(self, write: Write) -> bool:
        if write.streaming and not (self.call is None or self.call.track is None or self.shared.is_saved(self.call.track)):
            return False
        if write.streaming and self.call is not None and self.call.track is None:
            return False
        return Connection._write_whole(self, write)  # noqa: SLF001 - its own class's

    async def _write(self, write: Write) -> None:
        if self.call is not None and (write.streaming or not write.status):
            track = self.actor.machine.open_track(self.call)
            if not self.shared.is_saved(track):
                # They have their numbers before anything is waited for: this may be cancelled there.
                self._framed = self.frame(write.notes, first=write.status != 0)
                await self.shared.save(track.name, write.notes, last=write.last)
        await Connection._write(self, write)  # noqa: SLF001 - its own class's

    def _release(self) -> None:
        if self.track is None and self.call is not None:
            self.track = self.call.track  # its answer is an event already, and has not been written
        Connection._release(self)  # noqa: SLF001 - its own class's

    # What comes from the store

    def take(self, event: Event) -> None:
        """Write an event that has come; what came before is no matter, and where some are missing they are fetched."""
        if event.number <= self.received or not self.exchange.open:
            return
        if event.number > self.received + 1:
            self.fill()
            return
        self.received = event.number
        self.exchange.emit(event.note)
        if event.last:
            self.exchange.finish(200, b"")
            self.exchange.wake()

    def fill(self) -> None:
        """Fetch what may have been missed."""
        self.behind = True
        if not self._filling:
            self._filling = True
            self.shared.home.see_off(self._fill())

    async def _fill(self) -> None:
        assert self.track is not None
        try:
            while self.behind and self.exchange.open:
                self.behind = False
                try:
                    await (self._fill_channel() if self.track.name == CHANNEL else self._fill_track(self.track.name))
                except StoreError:
                    self.behind = True
                    raise
        finally:
            self._filling = False

    async def _fill_channel(self) -> None:
        actor, token = self.shared, self.token
        if token not in actor.readers:
            return
        reading = await actor.home.stored.take_reader(actor.id, token, after=self.received if self.turn else None)
        if reading is None:
            actor.let_go()
        elif token not in actor.readers:  # it has gone in the meantime
            actor.home.free_reader(actor.id, token)
        elif not self.turn and reading.turn:
            self.promote(reading.newest)
        elif self.turn and reading.turn:
            self.begin(reading.events)
        elif self.turn:  # another one has taken its place
            del actor.readers[token]
            actor.home.free_reader(actor.id, token)
            self.give_way()

    async def _fill_track(self, name: str) -> None:
        stored = self.shared.home.stored
        resumed = await stored.follow(self.shared.id, name, self.received, stored.worker)
        if resumed is not None:
            self.begin(resumed.events)
        if self.exchange.open and (resumed is None or resumed.over):
            self.exchange.finish(200, b"")
            self.exchange.wake()

    def begin(self, events: list[Event]) -> None:
        """Write events that were fetched; the oldest may have been forgotten."""
        if events and events[0].number > self.received + 1:
            if self.exchange.size:  # its client is too far behind: it comes back with what it has seen
                self.give_up()
                return
            assert self.track is not None
            self.received = self.track.last = events[0].number - 1
        for event in events:
            self.take(event)

    def promote(self, newest: int) -> None:
        """It is the reader now, from here on."""
        self.turn = True
        self.received = newest
        assert self.track is not None
        self.track.last = newest
        self.shared.catch_up()


async def connect_stream(http: HttpCall, actor: SharedActor, *, single: bool) -> Connection | Fail:
    """Answer a GET: with the stream of what belongs to no call, or the rest of a stream that broke off, whichever worker it was on.

    Args:
        http: The request.
        actor: Its session.
        single: Whether a second stream is refused while one is open.
    """
    event_id = http.headers.get(b"last-event-id")
    try:
        if event_id is None:
            return await _open_reader(http, actor, None, single=single)
        name, _, digits = event_id.decode("latin-1").strip(" \t").rpartition("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < MAX_DIGITS and str(int(digits)) == digits):
            return Fail(Reason.EVENT_ID)
        if int(digits) == 0 and not actor.codec.features.priming:
            return Fail(Reason.EVENT_ID)  # streams of this version do not begin with an event
        if name == CHANNEL:
            return await _open_reader(http, actor, int(digits), single=False)
        return await _resume_call(http, actor, name, int(digits))
    except StoreError:
        return Fail(Reason.STORE)


async def _open_reader(http: HttpCall, actor: SharedActor, after: int | None, *, single: bool) -> Connection | Fail:
    if after is None and len(actor.readers) >= MAX_CHANNELS:
        return Fail(Reason.CONFLICT, f"This session has {MAX_CHANNELS} streams already: close one.")
    if after is not None and not actor.home.mount.limits.session_buffer:
        return Fail(Reason.EVENT_ID)
    home, token = actor.home, actor.home.next_token()
    kept = False
    try:
        reading = await home.stored.take_reader(actor.id, token, force=after is not None, after=after)
        if reading is None:
            return Fail(Reason.SESSION_NOT_FOUND)
        if after is not None and after > reading.newest:
            return Fail(Reason.EVENT_ID)
        if single and not reading.turn:
            return Fail(Reason.CONFLICT)
        kept = not actor.machine.ended
    finally:
        if not kept:
            home.free_reader(actor.id, token)
    if not kept:
        return Fail(Reason.SESSION_NOT_FOUND)
    received = reading.newest if after is None else after
    if reading.events:
        received = reading.events[0].number - 1
    exchange = Exchange(nobody, cap=http.pulse.buffer)
    connection = SharedConnection(
        http, actor, exchange, track=Track(CHANNEL, last=received), token=token, received=received, turn=reading.turn
    )
    actor.readers[token] = connection
    exchange.open_stream()
    connection.begin(reading.events)
    if reading.turn:
        connection.fill()  # what came between the look and the entry in the list
        actor.catch_up()
    return connection


async def _resume_call(http: HttpCall, actor: SharedActor, name: str, after: int) -> Connection | Fail:
    for call in actor.machine.calls.values():
        if call.track is not None and call.track.name == name and isinstance(call, Work):
            return _resume_here(http, actor, call, call.track, after)
    stored = actor.home.stored
    resumed = await stored.follow(actor.id, name, after, stored.worker)
    if resumed is None:
        return Fail(Reason.EVENT_ID)
    received = resumed.events[0].number - 1 if resumed.events else after
    exchange = Exchange(nobody, cap=http.pulse.buffer)
    connection = SharedConnection(http, actor, exchange, track=Track(name, last=received, live=False), received=received)
    exchange.open_stream()
    connection.begin(resumed.events)
    if resumed.over and exchange.open:
        exchange.finish(200, b"")
    elif exchange.open:
        connection.worker = resumed.worker
        before, actor.followers[name] = actor.followers.get(name), connection
        if before is not None:
            before.give_way()
        connection.fill()  # what came between the look and the entry in the list
    return connection


def _resume_here(http: HttpCall, actor: SharedActor, call: Work, track: Track, after: int) -> Connection | Fail:
    """Go on with the stream of a call that runs in this worker."""
    if after > track.last:
        return Fail(Reason.EVENT_ID)
    if call.exchange.ended:
        actor.settle(call)  # its last words are on their way over a connection that may be dead
    connection = SharedConnection(http, actor, call.exchange, track=track, call=call, after=after)
    call.exchange.reopen(call.exchange.wake)
    call.exchange.wake()
    actor.reclaim(track)
    return connection
