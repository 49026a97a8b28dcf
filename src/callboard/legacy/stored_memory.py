"""`SessionStore` in the memory of one process: workers that share a `MemorySpace` see the same sessions.

What a server has that runs in one process, and what tests hold the shell to: deterministic, on one event loop, with a clock of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from secrets import token_hex

import msgspec

from callboard.errors import Fail, Reason
from callboard.legacy.session import MAX_KEPT
from callboard.legacy.stored import (
    AGAIN,
    ALL,
    CHANNEL,
    Answer,
    Changed,
    Ended,
    Entered,
    Event,
    Finished,
    Found,
    Message,
    Moved,
    Occurred,
    Read,
    Reading,
    Record,
    Resumed,
    Turned,
    Yielded,
    plain,
    worker_of,
)
from callboard.server.places import Places

__all__ = ["MemorySessions", "MemorySpace"]


class _Track:
    """A call's track. `follower`: who follows it beside the worker; `worker`: None once `fail_track` has ended it."""

    __slots__ = ("follower", "newest", "over", "worker")

    def __init__(self, worker: str) -> None:
        self.worker: str | None = worker
        self.follower: str | None = None
        self.newest = 0
        self.over = False


class _Entry:
    """One session."""

    __slots__ = ("events", "left", "newest", "number", "queue", "readers", "record", "revision", "size", "state", "tracks", "ttl", "until")

    def __init__(self, record: Record, state: bytes | None, ttl: float, until: float) -> None:
        self.record = record
        self.revision = 1
        self.state = state
        self.ttl = ttl
        self.until = until
        self.queue: list[str] = []
        self.left: str | None = None
        self.readers: list[str] = []
        self.tracks: dict[str, _Track] = {}
        self.events: deque[Event] = deque()
        self.size = 0
        self.newest = 0
        self.number = 1

    def kept(self, track: str, after: int) -> list[Event]:
        """Events of a track above a number."""
        return [event for event in self.events if event.track == track and event.number > after]

    def keep(self, event: Event, most: int) -> None:
        """Keep one more event, and forget the oldest where there are too many."""
        self.events.append(event)
        self.size += len(event.note)
        while len(self.events) > most or (self.size > MAX_KEPT and len(self.events) > 1):
            gone = self.events.popleft()
            self.size -= len(gone.note)
            if gone.last:
                del self.tracks[gone.track]

    def begin(self, track: str, worker: str, first: int) -> _Track | None:
        """The track of a call that `worker` runs, begun where it is new; None where nothing more may come on it from there."""
        found = self.tracks.get(track)
        if found is None and first == 1 and track != CHANNEL:
            found = self.tracks[track] = _Track(worker)
        return found if found is not None and found.worker == worker and first <= found.newest + 1 else None


class MemorySpace:
    """Where the workers of one process keep sessions.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.places = Places("sessions", "max_sessions", _keep_all)
        self.entries: dict[str, _Entry] = {}
        self.looks: list[tuple[float, str]] = []
        self._hearers: dict[str, list[MemorySessions]] = {}

    def join(self, one: MemorySessions) -> None:
        """A worker is there; it may have more than one endpoint."""
        ours = self._hearers.setdefault(one.worker, [])
        if one not in ours:
            ours.append(one)

    def leave(self, one: MemorySessions) -> None:
        """An endpoint of a worker is there no more; with the last of them the worker is gone."""
        ours = self._hearers.get(one.worker, [])
        if one in ours:
            ours.remove(one)
        if not ours:
            self._hearers.pop(one.worker, None)

    def part(self, worker: str) -> None:
        """A worker dies: what it has begun stays as it is."""
        self._hearers.pop(worker, None)

    def has(self, worker: str) -> bool:
        """Whether a worker is there."""
        return worker in self._hearers

    def tell(self, worker: str, message: Message) -> None:
        """Deliver a message to one or all of those that are there, in the loop's next turn."""
        for name in list(self._hearers) if worker == ALL else [worker]:
            for hearer in self._hearers.get(name, ()):
                asyncio.get_running_loop().call_soon(hearer.deliver, message)

    def touched(self, sid: str) -> _Entry | None:
        """A session whose time begins anew."""
        entry = self.entries.get(sid)
        if entry is not None:
            entry.until = self.clock() + entry.ttl
        return entry


class MemorySessions:
    """`SessionStore` of one worker.

    Args:
        space: What it shares with the others.
        keep: Events that one session keeps.
        worker: Its name; a new one by default.

    Attributes:
        worker: Its name.
        epoch: 0: no message is missed.
    """

    def __init__(self, space: MemorySpace, *, keep: int, worker: str | None = None) -> None:
        self.worker = worker or token_hex(8)
        self.epoch = 0
        self._space = space
        self._keep = keep
        self._hearer: Callable[[Message], None] | None = None
        space.join(self)

    @property
    def hears(self) -> bool:
        """Whether it is there."""
        return self._space.has(self.worker)

    def hear(self, deliver: Callable[[Message], None] | None) -> None:
        """Have `deliver` called with each message for this worker; with None it is there no more."""
        self._hearer = deliver
        if deliver is None:
            self._space.leave(self)

    def deliver(self, message: Message) -> None:
        """Take a message, unless the worker is gone by now."""
        if self._hearer is not None and self.hears:
            self._hearer(message)

    def tell(self, worker: str, message: Message) -> None:
        """Tell one worker, or `ALL`."""
        self._space.tell(worker, message)

    async def alive(self, worker: str) -> bool:
        """Whether a worker is there."""
        return self._space.has(worker)

    async def open(self, sid: str, record: Record, state: bytes | None, *, ttl: float, total: int, per_owner: int) -> None:
        """Begin a session."""
        space = self._space
        if sid in space.entries:
            raise ValueError("Another session has this id.")
        space.places.take(record.owner, total, per_owner)
        until = space.clock() + ttl
        space.entries[sid] = _Entry(plain(record), state, ttl, until)
        heappush(space.looks, (until, sid))

    async def find(self, sid: str, *, renew: bool = True) -> Found | None:
        """The session of this id."""
        entry = self._space.touched(sid) if renew else self._space.entries.get(sid)
        return None if entry is None else Found(entry.record, entry.revision)

    async def change(self, sid: str, revision: int, record: Record) -> int | None:
        """Replace a record, but for its news."""
        entry = self._space.entries.get(sid)
        if entry is None or entry.revision != revision:
            return None
        entry.record = msgspec.structs.replace(plain(record), news=entry.record.news)
        entry.revision += 1
        self.tell(ALL, Changed(sid))
        return entry.revision

    # The turn

    async def enter(self, sid: str, ticket: str, *, max_pending: int | None = None) -> Entered | None:
        """Join the queue for the turn."""
        entry = self._space.touched(sid)
        if entry is None:
            return None
        queue = entry.queue
        if ticket not in queue:
            if max_pending is not None and len(queue) > max_pending:
                raise Fail(Reason.SESSION_OVERLOADED)
            queue.append(ticket)
        turn = queue[0] == ticket
        return Entered(turn, entry.state if turn else None)

    async def state(self, sid: str) -> bytes | None:
        """The state that was kept last."""
        entry = self._space.entries.get(sid)
        return None if entry is None else entry.state

    async def leave(self, sid: str, ticket: str, state: bytes | None = None, answer: Answer | None = None) -> bool:
        """Leave the queue; keep state and answer if it is the ticket's turn."""
        entry = self._space.touched(sid)
        if entry is None:
            return False
        if ticket not in entry.queue:
            return entry.left == ticket
        was_head = entry.queue[0] == ticket
        kept = was_head and (
            answer is None or self._append(sid, entry, answer.track, answer.number, [answer.note], worker_of(ticket), last=True)
        )
        if kept:
            entry.left = ticket
            entry.state = entry.state if state is None else state
        entry.queue.remove(ticket)
        if was_head:
            self._call_next(sid, entry)
        return kept

    async def evict(self, sid: str, ticket: str) -> None:
        """Take off a dead worker's ticket if it is its turn."""
        entry = self._space.entries.get(sid)
        if entry is not None and entry.queue[:1] == [ticket]:
            entry.queue.pop(0)
            self._call_next(sid, entry)

    async def head(self, sid: str) -> str | None:
        """The ticket whose turn it is."""
        entry = self._space.entries.get(sid)
        return None if entry is None else _first(entry.queue)

    def _call_next(self, sid: str, entry: _Entry) -> None:
        if entry.queue:
            self.tell(worker_of(entry.queue[0]), Turned(sid, entry.queue[0]))

    # Events

    async def number(self, sid: str, many: int = 1) -> int:
        """Take numbers that are unique in the session; the first of them."""
        entry = self._space.entries.get(sid)
        if entry is None:
            return 0
        first = entry.number
        entry.number += many
        return first

    async def append(self, sid: str, track: str, first: int, notes: list[bytes], *, worker: str, last: bool) -> bool:
        """Add events to the track of a call."""
        entry = self._space.entries.get(sid)
        return entry is not None and self._append(sid, entry, track, first, notes, worker, last=last)

    def _append(self, sid: str, entry: _Entry, track: str, first: int, notes: list[bytes], worker: str, *, last: bool) -> bool:
        found = entry.begin(track, worker, first)
        if found is None:
            return False
        end = first + len(notes) - 1
        if found.over:
            return end <= found.newest
        for note in notes[found.newest + 1 - first :]:
            self._add(sid, entry, track, found, note, last=last and found.newest + 1 == end)
        return True

    def _add(self, sid: str, entry: _Entry, track: str, found: _Track, note: bytes, *, last: bool) -> None:
        found.newest += 1
        found.over = last
        event = Event(track, found.newest, note, last)
        if found.follower is not None:
            self.tell(found.follower, Occurred(sid, *event))
        if self._keep:
            entry.keep(event, self._keep)
        elif last:
            del entry.tracks[track]

    async def push(self, sid: str, note: bytes, news: str = "") -> int | None:
        """Add an event to `g0`."""
        entry = self._space.entries.get(sid)
        if entry is None or (news and _order(news) <= _order(entry.record.news)):
            return None
        if news:
            entry.record = msgspec.structs.replace(entry.record, news=news)
        entry.newest += 1
        event = Event(CHANNEL, entry.newest, note, last=False)
        if self._keep:
            entry.keep(event, self._keep)
        if entry.readers:
            self.tell(worker_of(entry.readers[0]), Occurred(sid, *event))
        return entry.newest

    async def follow(self, sid: str, track: str, after: int, worker: str) -> Resumed | None:
        """Events of a track above a number, and what comes from now on."""
        entry = self._space.entries.get(sid)
        if entry is None:
            return None
        if track == CHANNEL:
            return None if after > entry.newest else Resumed(entry.kept(track, after), entry.newest, None, over=False)
        found = entry.tracks.get(track)
        if found is None or after > found.newest:
            return None
        events = entry.kept(track, after)
        if found.over:
            return Resumed(events, found.newest, None, over=True)
        before = found.follower or found.worker
        if before is not None and before != worker:
            self.tell(before, Moved(sid, track))
        found.follower = None if worker == found.worker else worker
        return Resumed(events, found.newest, found.worker, over=False)

    async def fail_track(self, sid: str, track: str, note: bytes) -> bool:
        """End the track of a dead worker's call."""
        entry = self._space.entries.get(sid)
        found = None if entry is None else entry.tracks.get(track)
        if entry is None or found is None or found.over:
            return False
        found.worker = None
        self._add(sid, entry, track, found, note, last=True)
        return True

    # Readers

    async def take_reader(self, sid: str, token: str, *, force: bool = False, after: int | None = None) -> Reading | None:
        """Be the reader of `g0`, or the next in line."""
        entry = self._space.entries.get(sid)
        if entry is None:
            return None
        if after is not None and after > entry.newest:
            return Reading(turn=False, newest=entry.newest, events=[])
        readers = entry.readers
        if force and readers[:1] != [token]:
            if readers:
                self.tell(worker_of(readers[0]), Yielded(sid, readers.pop(0)))
            entry.readers = readers = [token, *(reader for reader in readers if reader != token)]
        elif token not in readers:
            readers.append(token)
        turn = readers[0] == token
        return Reading(turn, entry.newest, entry.kept(CHANNEL, after) if turn and after is not None else [])

    async def leave_reader(self, sid: str, token: str) -> None:
        """Be no reader any more."""
        entry = self._space.entries.get(sid)
        if entry is None or token not in entry.readers:
            return
        was_head = entry.readers[0] == token
        entry.readers.remove(token)
        if was_head and entry.readers:
            following = entry.readers[0]
            self.tell(worker_of(following), Read(sid, following, entry.newest))

    async def reader(self, sid: str) -> str | None:
        """The reader of `g0`."""
        entry = self._space.entries.get(sid)
        return None if entry is None else _first(entry.readers)

    # Time and end

    async def end(self, sid: str, *, due: bool = False) -> Ended | None:
        """End a session."""
        space = self._space
        entry = space.entries.get(sid)
        if entry is None or (due and space.clock() < entry.until):
            return None
        del space.entries[sid]
        space.places.give_back(entry.record.owner)
        self.tell(ALL, Finished(sid))
        return Ended(entry.record, entry.state)

    async def due(self, limit: int = 100) -> list[str]:
        """Sessions whose time is up."""
        space, now, found = self._space, self._space.clock(), list[str]()
        looked: list[tuple[float, str]] = []
        while space.looks and space.looks[0][0] <= now and len(found) < limit:
            _, sid = heappop(space.looks)
            entry = space.entries.get(sid)
            if entry is not None:
                is_due = entry.until <= now
                looked.append((now + AGAIN if is_due else entry.until, sid))
                if is_due:
                    found.append(sid)
        for look in looked:
            heappush(space.looks, look)
        return found

    async def touch(self, sids: list[str]) -> None:
        """Let the time of sessions begin anew."""
        for sid in sids:
            self._space.touched(sid)

    async def count(self) -> int:
        """How many sessions there are."""
        return self._space.places.taken


def _first(line: Sequence[str]) -> str | None:
    return line[0] if line else None


def _order(position: str) -> tuple[int, int]:
    """What positions on the Bus are compared by: before all is the empty one."""
    if not position:
        return (-1, -1)
    time_part, _, count = position.partition("-")
    return (int(time_part), int(count or 0))


def _keep_all(principal: str | None, *, is_full: bool) -> None:
    """A session ends when its time is up, not when somebody else wants one."""
