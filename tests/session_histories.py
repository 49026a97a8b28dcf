"""Random histories of sessions that several workers share, held against `session_model.py` step by step."""

from typing import Any, Final

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from session_fleet import Fleet, a_record
from session_model import Model

from callboard.errors import Fail
from callboard.legacy.stored import Answer, SessionStore

__all__ = ["KEEP", "Act", "histories", "walk"]

KEEP: Final = 5
TOTAL: Final = 3
PER_OWNER: Final = 2
TTL: Final = 60.0
NEWS: Final = ["", "", "1-0", "1-1", "2-0", "9-5", "10-0", "10-11", "11-2"]


class Act(Struct, frozen=True):
    """One thing that a worker does.

    Attributes:
        kind: What.
        sid: In which session.
        worker: Which worker.
        pick: Which ticket, token or track; how many; which version of all that can be varied.
        other: Whose ticket, token or track.
        size: Bytes of a note.
    """

    kind: str
    sid: int
    worker: int
    pick: int
    other: int
    size: int


KINDS: Final = [
    *["enter", "leave", "append"] * 6,
    *["push", "follow"] * 3,
    *["open", "take_reader", "leave_reader", "evict", "fail_track", "change", "find", "pass"] * 2,
    *["number", "look", "end", "end_due", "touch"],
]
acts = st.builds(
    Act,
    kind=st.sampled_from(KINDS),
    sid=st.sampled_from([0, 0, 0, 1, 2, 3]),
    worker=st.integers(0, 2),
    pick=st.integers(0, 7),
    other=st.integers(0, 2),
    size=st.sampled_from([0, 1, 1, 1, 300_000, 1_200_000]),
)
histories = st.lists(acts, min_size=10, max_size=60)


class Walk:
    """One history.

    Attributes:
        fleet: The workers.
        model: What they are held against.
        run: Makes the names of sessions those of this history.
        steps: How many there were.
    """

    def __init__(self, fleet: Fleet, run: str) -> None:
        self.fleet = fleet
        self.model = Model(KEEP, [worker.worker for worker in fleet.workers])
        self.run = run
        self.steps = 0

    async def both(self, by: SessionStore, method: str, /, *args: Any, **named: Any) -> Any:
        """Do something, and say what came of it: the same as in the model."""
        outcomes: list[Any] = []
        try:
            outcomes.append(await getattr(by, method)(*args, **named))
        except (Fail, ValueError) as error:
            outcomes.append((type(error), str(error)))
        try:
            outcomes.append(getattr(self.model, method)(*args, **named))
        except (Fail, ValueError) as error:
            outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1], (method, args, named)
        return outcomes[0]

    async def step(self, act: Act) -> None:
        """One act."""
        self.steps += 1
        sid = f"{self.run}~{act.sid}"
        worker = self.fleet.workers[act.worker]
        name = f"{self.fleet.workers[act.other].worker}:{act.pick % 3}"
        await getattr(self, f"do_{act.kind}")(act, sid, worker, name)

    def note(self, act: Act) -> bytes:
        return b"%d " % self.steps + b"x" * act.size

    def answer(self, sid: str, track: str, act: Act) -> Answer | None:
        """The answer of a call: most of the time with the number that is due."""
        held = self.model.sessions.get(sid)
        if act.pick > 5 or held is None or self.model.forgotten(sid, track):
            return None
        return Answer(track, self.note(act), held.newest(track) + (2 if act.pick == 0 else 1))

    async def do_open(self, act: Act, sid: str, worker: SessionStore, _: str) -> None:
        owner = [None, "ann", "ann", "böb "][act.pick % 4]
        state = None if act.pick == 0 else b"state"
        own = sum(1 for held in self.model.sessions.values() if held.record.owner == owner)
        if sid in self.model.sessions and (len(self.model.sessions) >= TOTAL or own >= PER_OWNER):
            return  # taken, and no room: it is left open which of them is said
        room = {"ttl": TTL, "total": TOTAL, "per_owner": PER_OWNER}
        await self.both(worker, "open", sid, a_record(owner, news="1-0" if act.pick > 5 else ""), state, **room)
        await self.both(worker, "count")

    async def do_find(self, _: Act, sid: str, worker: SessionStore, __: str) -> None:
        await self.both(worker, "find", sid)

    async def do_change(self, act: Act, sid: str, worker: SessionStore, _: str) -> None:
        found = await self.both(worker, "find", sid)
        record = replace(a_record() if found is None else found.record, topics=(f"topic:{self.steps}",), initialized=True)
        await self.both(worker, "change", sid, 0 if found is None else found.revision - (act.pick == 0), record)

    async def do_enter(self, act: Act, sid: str, worker: SessionStore, name: str) -> None:
        await self.both(worker, "enter", sid, name, max_pending=[None, None, None, 0, 1, 2, 3, 4][act.pick])

    async def do_leave(self, act: Act, sid: str, worker: SessionStore, name: str) -> None:
        state = None if act.pick == 1 else b"state %d" % self.steps
        await self.both(worker, "leave", sid, name, state, self.answer(sid, name, act))

    async def do_evict(self, _: Act, sid: str, worker: SessionStore, name: str) -> None:
        await self.both(worker, "evict", sid, name)

    async def do_number(self, act: Act, sid: str, worker: SessionStore, _: str) -> None:
        await self.both(worker, "number", sid, act.pick + 1)

    async def do_append(self, act: Act, sid: str, worker: SessionStore, name: str) -> None:
        if self.model.forgotten(sid, name):
            return
        held = self.model.sessions.get(sid)
        first = max(1, (0 if held is None else held.newest(name)) + [1, 1, 1, 1, 0, 2, -1, 1][act.pick])
        notes = [self.note(act)] * ([1, 2, 1, 0, 2, 1, 2, KEEP + 2][act.pick] if first == 1 or act.pick != 3 else 1)
        runner = name.partition(":")[0]
        await self.both(worker, "append", sid, name, first, notes, worker=runner, last=bool(notes) and act.size == 0)

    async def do_push(self, act: Act, sid: str, worker: SessionStore, _: str) -> None:
        await self.both(worker, "push", sid, self.note(act), NEWS[(act.pick + act.other) % len(NEWS)])

    async def do_follow(self, act: Act, sid: str, worker: SessionStore, name: str) -> None:
        await self.both(worker, "follow", sid, "g0" if act.pick == 5 else name, act.pick // 2, worker.worker)

    async def do_fail_track(self, act: Act, sid: str, worker: SessionStore, name: str) -> None:
        await self.both(worker, "fail_track", sid, name, self.note(act))

    async def do_take_reader(self, act: Act, sid: str, worker: SessionStore, name: str) -> None:
        await self.both(worker, "take_reader", sid, name, force=act.pick > 4, after=[None, 0, 1, 9][act.size % 4])

    async def do_leave_reader(self, _: Act, sid: str, worker: SessionStore, name: str) -> None:
        await self.both(worker, "leave_reader", sid, name)

    async def do_look(self, _: Act, sid: str, worker: SessionStore, __: str) -> None:
        for method in ("state", "head", "reader"):
            await self.both(worker, method, sid)

    async def do_end(self, _: Act, sid: str, worker: SessionStore, __: str) -> None:
        await self.both(worker, "end", sid)
        await self.both(worker, "count")

    async def do_touch(self, act: Act, sid: str, worker: SessionStore, _: str) -> None:
        await self.both(worker, "touch", [sid, f"{self.run}~{act.pick % 4}", "nobody"])

    async def do_pass(self, act: Act, sid: str, worker: SessionStore, _: str) -> None:
        """A time that is never so near to the end of one that the real time, which passes too, would matter."""
        seconds = 16.0 * (act.pick + 1)
        if any(self.model.now + seconds > held.until + 55 for held in self.model.sessions.values()):
            return  # a minute after its time a session is gone for good
        await self.fleet.pass_time(seconds)
        self.model.now += seconds

    async def do_end_due(self, _: Act, __: str, worker: SessionStore, ___: str) -> None:
        """What is due is named, by one of two calls at most, and ends once."""
        named = await worker.due()
        over = {sid for sid, held in self.model.sessions.items() if held.until <= self.model.now}
        assert set(named) == over
        assert await worker.due() == []
        for sid in self.model.sessions.copy():
            await self.both(worker, "end", sid, due=True)
        await self.both(worker, "count")

    async def finish(self) -> None:
        """Everything has been told, to whom and in the order of the model; all places are given back."""
        for sid in self.model.sessions.copy():
            await self.both(self.fleet.workers[0], "end", sid)
        await self.both(self.fleet.workers[0], "count")
        await self.fleet.settle()
        for worker, heard in self.fleet.heard.items():
            assert heard == self.model.told.get(worker, [])
            heard.clear()


async def walk(fleet: Fleet, history: list[Act], run: str) -> None:
    """Walk one history; sessions of different ones have nothing in common."""
    await fleet.clear()
    walked = Walk(fleet, run)
    await walked.step(Act("open", 0, 0, 1, 0, 0))
    for act in history:
        await walked.step(act)
    await walked.finish()
