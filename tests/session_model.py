"""What a `SessionStore` has to be, written as plainly as possible: it forgets nothing, and works out each time anew what is kept."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from callboard.errors import Fail, Reason
from callboard.legacy.session import MAX_KEPT
from callboard.legacy.stored import (
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
    worker_of,
)

__all__ = ["Model"]


@dataclass
class Run:
    """A call's track: who runs it, who follows it, how it stands."""

    worker: str
    follower: str | None = None
    over: bool = False
    failed: bool = False


@dataclass
class Held:
    """One session, with all events that there ever were."""

    record: Record
    state: bytes | None
    ttl: float
    until: float
    revision: int = 1
    taken: int = 0
    left: str | None = None
    queue: list[str] = field(default_factory=list)
    line: list[str] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)

    def newest(self, track: str) -> int:
        return sum(1 for event in self.log if event.track == track)

    def kept(self, keep: int) -> list[Event]:
        """The longest end of all events that is within bounds."""
        size, many = 0, 0
        for event in reversed(self.log[-keep:] if keep else []):
            size += len(event.note)
            if many and size > MAX_KEPT:
                break
            many += 1
        return self.log[len(self.log) - many :]

    def above(self, keep: int, track: str, after: int) -> list[Event]:
        return [event for event in self.kept(keep) if event.track == track and event.number > after]


@dataclass
class Model:
    """The model: methods are named as those of `SessionStore`, and return and raise the same.

    Attributes:
        keep: Events that a session keeps.
        workers: Names of all workers.
        now: The time, as `pass_time` moves it.
        told: Each worker's messages.
    """

    keep: int
    workers: list[str]
    now: float = 0
    sessions: dict[str, Held] = field(default_factory=dict)
    told: dict[str, list[Message]] = field(default_factory=dict)

    def tell(self, worker: str, message: Message) -> None:
        self.told.setdefault(worker, []).append(message)

    def tell_all(self, message: Message) -> None:
        for worker in self.workers:
            self.tell(worker, message)

    def touched(self, sid: str) -> Held | None:
        held = self.sessions.get(sid)
        if held is not None:
            held.until = self.now + held.ttl
        return held

    def forgotten(self, sid: str, track: str) -> bool:
        """Whether a track is over and none of its events is kept: nobody may use its name again."""
        held = self.sessions.get(sid)
        run = None if held is None else held.runs.get(track)
        return held is not None and run is not None and run.over and not held.above(self.keep, track, 0)

    def open(self, sid: str, record: Record, state: bytes | None, *, ttl: float, total: int, per_owner: int) -> None:
        own = sum(1 for held in self.sessions.values() if held.record.owner == record.owner)
        if sid in self.sessions:
            raise ValueError("Another session has this id.")
        if len(self.sessions) >= total:
            raise Fail(Reason.OVERLOADED, f"There are {total} sessions already (max_sessions): try again later.")
        if record.owner is not None and own >= per_owner:
            text = f"You have {per_owner} sessions already (max_sessions_per_principal): wait until one has ended."
            raise Fail(Reason.OVERLOADED, text)
        self.sessions[sid] = Held(record, state, ttl, self.now + ttl)

    def find(self, sid: str) -> Found | None:
        held = self.touched(sid)
        return None if held is None else Found(held.record, held.revision)

    def touch(self, sids: list[str]) -> None:
        for sid in sids:
            self.touched(sid)

    def count(self) -> int:
        return len(self.sessions)

    def change(self, sid: str, revision: int, record: Record) -> int | None:
        held = self.sessions.get(sid)
        if held is None or held.revision != revision:
            return None
        held.record = replace(record, news=held.record.news)
        held.revision += 1
        self.tell_all(Changed(sid))
        return held.revision

    def enter(self, sid: str, ticket: str, *, max_pending: int | None = None) -> Entered | None:
        held = self.touched(sid)
        if held is None:
            return None
        if ticket not in held.queue:
            if max_pending is not None and len(held.queue[1:]) >= max_pending and held.queue:
                raise Fail(Reason.SESSION_OVERLOADED)
            held.queue.append(ticket)
        return Entered(turn=True, state=held.state) if held.queue[0] == ticket else Entered(turn=False, state=None)

    def state(self, sid: str) -> bytes | None:
        held = self.sessions.get(sid)
        return None if held is None else held.state

    def head(self, sid: str) -> str | None:
        held = self.sessions.get(sid)
        return held.queue[0] if held and held.queue else None

    def reader(self, sid: str) -> str | None:
        held = self.sessions.get(sid)
        return held.line[0] if held and held.line else None

    def leave(self, sid: str, ticket: str, state: bytes | None = None, answer: Answer | None = None) -> bool:
        held = self.touched(sid)
        if held is None or ticket not in held.queue:
            return held is not None and held.left == ticket
        is_head = held.queue[0] == ticket
        kept = is_head
        if is_head and answer is not None:
            kept = self.append(sid, answer.track, answer.number, [answer.note], worker=worker_of(ticket), last=True)
        if kept:
            held.left = ticket
            held.state = held.state if state is None else state
        self._take_off(sid, held, ticket)
        return kept

    def evict(self, sid: str, ticket: str) -> None:
        if self.head(sid) == ticket:
            self._take_off(sid, self.sessions[sid], ticket)

    def _take_off(self, sid: str, held: Held, ticket: str) -> None:
        is_head = held.queue[0] == ticket
        held.queue.remove(ticket)
        if is_head and held.queue:
            self.tell(worker_of(held.queue[0]), Turned(sid, held.queue[0]))

    def number(self, sid: str, many: int = 1) -> int:
        held = self.sessions.get(sid)
        if held is None:
            return 0
        held.taken += many
        return held.taken - many + 1

    def append(self, sid: str, track: str, first: int, notes: list[bytes], *, worker: str, last: bool) -> bool:
        held = self.sessions.get(sid)
        if held is None or (track not in held.runs and first > 1):
            return False
        run = held.runs.setdefault(track, Run(worker))
        newest, end = held.newest(track), first + len(notes) - 1
        if run.failed or first > newest + 1 or (run.over and end > newest):
            return False
        for number in range(newest + 1, end + 1):
            run.over = last and number == end
            self._add(sid, held, Event(track, number, notes[number - first], run.over), run.follower)
        return True

    def _add(self, sid: str, held: Held, event: Event, worker: str | None) -> None:
        held.log.append(event)
        if worker is not None:
            self.tell(worker, Occurred(sid, *event))

    def push(self, sid: str, note: bytes, news: str = "") -> int | None:
        held = self.sessions.get(sid)
        if held is None:
            return None
        if news:
            if held.record.news and _parts(news) <= _parts(held.record.news):
                return None
            held.record = replace(held.record, news=news)
        number = held.newest("g0") + 1
        self._add(sid, held, Event("g0", number, note, last=False), worker_of(held.line[0]) if held.line else None)
        return number

    def follow(self, sid: str, track: str, after: int, worker: str) -> Resumed | None:
        held = self.sessions.get(sid)
        if held is None or after > held.newest(track):
            return None
        newest, events, run = held.newest(track), held.above(self.keep, track, after), held.runs.get(track)
        if track == "g0":
            return Resumed(events, newest, None, over=False)
        if run is None or self.forgotten(sid, track):
            return None
        if run.over:
            return Resumed(events, newest, None, over=True)
        before, run.follower = run.follower or run.worker, worker if worker != run.worker else None
        if before != worker:
            self.tell(before, Moved(sid, track))
        return Resumed(events, newest, run.worker, over=False)

    def fail_track(self, sid: str, track: str, note: bytes) -> bool:
        held = self.sessions.get(sid)
        run = None if held is None else held.runs.get(track)
        if held is None or run is None or run.over:
            return False
        run.over = run.failed = True
        self._add(sid, held, Event(track, held.newest(track) + 1, note, last=True), run.follower)
        return True

    def take_reader(self, sid: str, token: str, *, force: bool = False, after: int | None = None) -> Reading | None:
        held = self.sessions.get(sid)
        if held is None:
            return None
        newest = held.newest("g0")
        if after is not None and after > newest:
            return Reading(turn=False, newest=newest, events=[])
        if force and self.reader(sid) != token:
            if held.line:
                old = held.line.pop(0)
                self.tell(worker_of(old), Yielded(sid, old))
            held.line = [token] + [other for other in held.line if other != token]
        elif token not in held.line:
            held.line.append(token)
        turn = held.line[0] == token
        return Reading(turn, newest, held.above(self.keep, "g0", after) if turn and after is not None else [])

    def leave_reader(self, sid: str, token: str) -> None:
        held = self.sessions.get(sid)
        if held is not None and token in held.line:
            is_head = held.line[0] == token
            held.line.remove(token)
            if is_head and held.line:
                self.tell(worker_of(held.line[0]), Read(sid, held.line[0], held.newest("g0")))

    def end(self, sid: str, *, due: bool = False) -> Ended | None:
        held = self.sessions.get(sid)
        if held is None or (due and self.now < held.until):
            return None
        del self.sessions[sid]
        self.tell_all(Finished(sid))
        return Ended(held.record, held.state)


def _parts(position: str) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split("-"))
