"""Machine of one session of a 2025 client. Sans-IO: `actor.py` is its shell, which owns tasks, timers and connections.

A session is OPEN until `end`. A call in it::

    QUEUED ── its turn ──> RUNNING ── finish ──> OVER
      │                      ├── expire ──> RUNNING             its caller is freed; the work goes on and keeps its state
      │                      └── stop ────> STOPPING ── finish ──> OVER
      └── expire, stop ───> OVER                               it never runs

Rules:
    1. An id is in use from `submit` until its call is OVER; a second request with it is refused (SA24). Ids match by JSON type (A25).
    2. Calls that take state run one at a time, in the order they came. At most `max_pending` wait; the one that runs is not counted.
       All others run at once, those on a snapshot too.
    3. The state that a call leaves is kept when it was its turn and nobody stopped it. A snapshot's never is.
    4. `end` works once. It stops every call; from then on nothing is taken.
    5. A session is idle when no call is in it and no connection hangs on it: only then does its time run out.

Its streams are tracks: one for each call that streams (`c1`, `c2`, ...), one for each GET stream that is open at once (`g0`, `g1`, ...).

    6. An event's id is `<track>-<number>`, numbers from 1 in the order of the track (HL-17). A message is on one track (HL-16).
    7. The last `keep` events of all tracks, and at most `MAX_KEPT` bytes of them, can be replayed, each on its own track (HL-18). Where all
       sessions together keep more than they may, those that keep most forget their oldest, the newest too.
    8. An event id is one that went out, on a track on which more can come or of which an event is kept. Of a call that ended without an
       answer nothing is kept: a client that came back for one would come back for ever.
    9. What the server says of its own accord goes to the first GET stream that a client reads, else it waits on `g0` for a replay.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Any

from callboard.core.exchange import Exchange
from callboard.core.exchange import State as Progress
from callboard.errors import Reason
from callboard.server.state import Turn
from callboard.wire.jsonrpc import RequestId

__all__ = ["MAX_CHANNELS", "MAX_KEPT", "Call", "Kept", "Phase", "Session", "Track"]

# Bytes of events that one session keeps for replay; the newest event stays whatever its size.
MAX_KEPT = 1024 * 1024
# The same for all sessions together, where nobody says otherwise.
ALL_KEPT = 256 * 1024 * 1024
# Bytes that an event costs beside its own.
EVENT_COST = 200
# GET streams of one session.
MAX_CHANNELS = 16


class Phase(Enum):
    """Where a call stands; see the module's table."""

    QUEUED = auto()
    RUNNING = auto()
    STOPPING = auto()
    OVER = auto()


_QUEUED, _RUNNING, _STOPPING, _OVER = Phase
_IN_TURN = Turn.IN_TURN
_UNANSWERED = Progress.OPEN


class Track:
    """One stream of events.

    Attributes:
        name: What its event ids begin with.
        last: Number of its newest event.
        primed: Whether it began with an empty event, which has the number 0.
        call: The call whose stream it is; None for a GET stream, and for a track on which nothing more comes.
        live: Whether more can come.
        outlet: The connection that it is written to, of whatever type the shell has; None for none.
    """

    __slots__ = ("call", "last", "live", "name", "outlet", "primed")

    def __init__(self, name: str, call: Call | None = None, *, last: int = 0, live: bool = True) -> None:
        self.name = name
        self.call = call
        self.last = last
        self.primed = False
        self.live = live
        self.outlet: Any = None

    @property
    def is_channel(self) -> bool:
        """Whether it is a GET stream, open or to be opened again."""
        return self.live and self.call is None


class Call:
    """One request in flight.

    Attributes:
        id: Its JSON-RPC id.
        turn: How it stands to the session's state.
        exchange: Its way out.
        phase: Where it stands.
        track: Where its events go once it streams.
    """

    __slots__ = ("exchange", "id", "phase", "track", "turn")

    def __init__(self, request_id: RequestId, turn: Turn, exchange: Exchange) -> None:
        self.id = request_id
        self.turn = turn
        self.exchange = exchange
        self.phase = _RUNNING
        self.track: Track | None = None


class Kept:
    """What all sessions together keep for replay, in bytes: what each event costs besides (`EVENT_COST`) included.

    Args:
        limit: How much it may be.

    Attributes:
        total: How much it is.
    """

    __slots__ = ("_sessions", "limit", "total")

    def __init__(self, limit: int = ALL_KEPT) -> None:
        self.limit = limit
        self.total = 0
        self._sessions: dict[Session, None] = {}

    def join(self, session: Session) -> None:
        """Count a session, which keeps its first event."""
        self._sessions[session] = None

    def part(self, session: Session, size: int) -> None:
        """Count a session no more."""
        if session in self._sessions:
            del self._sessions[session]
            self.total -= size

    def add(self, size: int) -> None:
        """Count what one session keeps more, and see that it is not too much."""
        self.total += size
        if self.total > self.limit:
            self.shed()

    def shed(self) -> None:
        """Forget the oldest events of the sessions that keep most, until an eighth is free: seldom, since it looks at all of them."""
        room = self.limit - self.limit // 8
        sizes = sorted(session.kept_size for session in self._sessions)
        share = room
        for number, size in enumerate(sizes):
            share = room // (len(sizes) - number)
            if size > share:
                break
            room -= size
        for session in self._sessions:
            session.forget_to(share)
        self.total = sum(session.kept_size for session in self._sessions)


class Session:
    """One session.

    Args:
        state: The state it begins with, as it is kept; None for a server without state.
        max_pending: Calls that may wait for their turn.
        keep: Events that can be replayed; 0 for none.
        kept: What all sessions keep; its own by default.

    Attributes:
        state: The state that the last call left, as it is kept.
        calls: Calls in flight by id.
        initialized: Whether the client has sent `notifications/initialized`.
        ended: Whether it is over.
        attached: Connections that hang on it.
    """

    __slots__ = (
        "_channels",
        "_events",
        "_holder",
        "_keep",
        "_kept",
        "_max_pending",
        "_opened",
        "_queue",
        "_size",
        "_tracks",
        "attached",
        "calls",
        "ended",
        "initialized",
        "state",
    )

    def __init__(self, state: Any, *, max_pending: int, keep: int, kept: Kept | None = None) -> None:
        self.state = state
        self.calls: dict[RequestId, Call] = {}
        self.initialized = False
        self.ended = False
        self.attached = 0
        self._max_pending = max_pending
        self._keep = keep
        self._kept = kept
        self._holder: Call | None = None
        # An idle session that never needed them has none of these.
        self._queue: deque[Call] | None = None
        self._events: deque[tuple[str, int, bytes]] | None = None
        self._tracks: dict[str, Track] | None = None
        self._channels: list[Track] | None = None
        self._size = 0
        self._opened = 0

    @property
    def idle(self) -> bool:
        """Whether its time runs (rule 5)."""
        return not self.calls and not self.attached

    def submit(self, call: Call) -> Reason | None:
        """Take a call; it is RUNNING or QUEUED then.

        Returns:
            Why it is refused; None when it is taken.
        """
        if self.ended:
            return Reason.SESSION_ENDED
        if call.id in self.calls:
            return Reason.DUPLICATE_ID
        if call.turn.queues:
            if self._holder is None:
                self._holder = call
            else:
                if self._queue is None:
                    self._queue = deque()
                if len(self._queue) >= self._max_pending:
                    return Reason.SESSION_OVERLOADED
                self._queue.append(call)
                call.phase = _QUEUED
        self.calls[call.id] = call
        return None

    def finish(self, call: Call, state: Any = None) -> Call | None:
        """A call's work is over.

        Args:
            call: The call.
            state: The state that it leaves, as it is kept; None where that is not to be kept.

        Returns:
            The call whose turn it is now, RUNNING; None when nobody waits.
        """
        if call.phase is _OVER:
            return None
        if state is not None and call.phase is _RUNNING and call.turn is _IN_TURN:
            self.state = state
        call.phase = _OVER
        del self.calls[call.id]
        if call is not self._holder:
            return None
        self._holder = self._queue.popleft() if self._queue else None
        if self._holder is not None:
            self._holder.phase = _RUNNING
        return self._holder

    def expire(self, call: Call) -> bool:
        """A call has taken too long: drop it when it waits, else free its caller, unless bytes have gone to it.

        Returns:
            Whether the caller is to be told.
        """
        if call.phase is _QUEUED:
            self._drop(call)
            return True
        return call.phase is _RUNNING and call.exchange.state is _UNANSWERED

    def stop(self, request_id: RequestId) -> Call | None:
        """Stop a call: one that waits is OVER, one that runs is STOPPING and must be ended.

        Returns:
            The call; None when there is none of this id, or it is stopping already.
        """
        call = self.calls.get(request_id)
        if call is None or call.phase is _STOPPING:
            return None
        if call.phase is _QUEUED:
            self._drop(call)
        else:
            call.phase = _STOPPING
        return call

    def end(self) -> list[Call] | None:
        """End the session.

        Returns:
            The calls that this stopped; None when it had ended before.
        """
        if self.ended:
            return None
        self.ended = True
        if self._kept is not None:
            self._kept.part(self, self.kept_size)
            self._kept = None
        stopped = [self.stop(call.id) for call in list(self.calls.values())]
        return [call for call in stopped if call is not None]

    def _drop(self, call: Call) -> None:
        assert self._queue is not None
        self._queue.remove(call)
        call.phase = _OVER
        del self.calls[call.id]

    # Streams

    def open_track(self, call: Call) -> Track:
        """The track of a call; it begins with its first event."""
        if call.track is None:
            self._opened += 1
            call.track = self._add(Track(f"c{self._opened}", call))
        return call.track

    def open_channel(self) -> Track | None:
        """A track for a new GET stream: the first that nobody reads; None when there are too many."""
        channels = self._channels = self._channels or []
        for track in channels:
            if track.outlet is None:
                return track
        if len(channels) >= MAX_CHANNELS:
            return None
        channels.append(self._add(Track(f"g{len(channels)}")))
        return channels[-1]

    def route(self) -> Track:
        """The track for what the server says of its own accord (rule 9)."""
        for track in self._channels or ():
            if track.outlet is not None:
                return track
        first = self._channels[0] if self._channels else self.open_channel()
        assert first is not None
        return first

    @property
    def channel_read(self) -> bool:
        """Whether a client reads a GET stream."""
        return any(track.outlet is not None for track in self._channels or ())

    def outlets(self) -> list[Any]:
        """The connections of all tracks."""
        return [track.outlet for track in (self._tracks or {}).values() if track.outlet is not None]

    def find(self, event_id: str) -> tuple[Track, int] | None:
        """The track of an event id, and the event's number; None when it is no id of this session's (rule 8)."""
        name, _, digits = event_id.rpartition("-")
        if not self._keep or not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            return None
        number = int(digits)
        track = (self._tracks or {}).get(name) or self._find_closed(name)
        if track is None or str(number) != digits or number > track.last or (number == 0 and not track.primed):
            return None
        return track, number

    def _find_closed(self, name: str) -> Track | None:
        """A track on which nothing more comes, by its events that are kept: the last of them is the last there was."""
        last = max((number for owner, number, _ in self._events or () if owner == name), default=0)
        track = Track(name, last=last, live=False) if last else None
        if track is not None:
            track.primed = True
        return track

    def stamp(self, track: Track, notes: list[bytes]) -> bytes:
        """Make messages events of a track, and keep them for replay.

        Returns:
            The events as they go out.
        """
        if not self._keep:
            return b"".join(b"data: %b\n\n" % note for note in notes)
        events = self._begin_events() if self._events is None else self._events
        name, number, size, before = track.name, track.last, self._size, len(events)
        head = b"id: %b-" % name.encode()
        framed = []
        for note in notes:
            number += 1
            size += len(note)
            events.append((name, number, note))
            framed.append(b"%b%d\ndata: %b\n\n" % (head, number, note))
        track.last = number
        while len(events) > self._keep or (size > MAX_KEPT and len(events) > 1):
            size -= len(events.popleft()[2])
        grown, self._size = size - self._size, size
        if self._kept is not None:
            self._kept.add(grown + (len(events) - before) * EVENT_COST)
        return b"".join(framed)

    def answer(self, note: bytes, *, priming: bool) -> bytes:
        """The events of a stream that ends with the message that it begins with."""
        if not self._keep:
            return b"data: %b\n\n" % note
        self._opened += 1
        name = f"c{self._opened}"
        events = self._begin_events() if self._events is None else self._events
        size, before = self._size + len(note), len(events)
        events.append((name, 1, note))
        while len(events) > self._keep or (size > MAX_KEPT and len(events) > 1):
            size -= len(events.popleft()[2])
        grown, self._size = size - self._size, size
        if self._kept is not None:
            self._kept.add(grown + (len(events) - before) * EVENT_COST)
        head = name.encode()
        if priming:
            return b"id: %b-0\ndata: \n\nid: %b-1\ndata: %b\n\n" % (head, head, note)
        return b"id: %b-1\ndata: %b\n\n" % (head, note)

    def prime(self, track: Track) -> bytes:
        """An empty event: its id is where a client resumes that has seen nothing more (HL-08)."""
        if not self._keep:
            return b""
        track.primed = True
        return b"id: %b-%d\ndata: \n\n" % (track.name.encode(), track.last)

    def replay(self, track: Track, after: int) -> bytes:
        """The events of a track above a number that are still kept, as they go out."""
        name = track.name.encode()
        return b"".join(
            b"id: %b-%d\ndata: %b\n\n" % (name, number, note)
            for owner, number, note in self._events or ()
            if owner == track.name and number > after
        )

    def close(self, track: Track, *, forget: bool = False) -> None:
        """Nothing more comes on a track: its call is over, and all that it said is an event.

        Args:
            track: The track.
            forget: Whether nothing of it is kept (rule 8).
        """
        track.live = False
        if self._tracks is not None:
            self._tracks.pop(track.name, None)
        if track.call is not None:
            track.call.track = None
            track.call = None
        if forget and self._events is not None:
            kept = [event for event in self._events if event[0] != track.name]
            size = sum(len(note) for _, _, note in kept)
            if self._kept is not None:
                self._kept.total += size - self._size + (len(kept) - len(self._events)) * EVENT_COST
            self._events, self._size = deque(kept), size

    @property
    def kept_size(self) -> int:
        """Bytes that its events cost that are kept."""
        return self._size + len(self._events or ()) * EVENT_COST

    def forget_to(self, size: int) -> None:
        """Forget the oldest events until no more than so many bytes are left (rule 7)."""
        while self._events and self.kept_size > size:
            self._size -= len(self._events.popleft()[2])

    def _begin_events(self) -> deque[tuple[str, int, bytes]]:
        """Where events are kept: an idle session that never streamed has none."""
        events = self._events = deque()
        if self._kept is not None:
            self._kept.join(self)
        return events

    def _add(self, track: Track) -> Track:
        if self._tracks is None:
            self._tracks = {}
        self._tracks[track.name] = track
        return track
