"""Workers that serve a few sessions all at once, and die in the middle of it: what must hold whatever happens when."""

import asyncio
from random import Random
from typing import Final

from session_fleet import Fleet, a_record

from callboard.legacy.stored import Answer, Message, SessionStore, Turned, worker_of

__all__ = ["Lives"]

SESSIONS: Final = 3
CALLS: Final = 90


class Lives:
    """One run.

    Attributes:
        fleet: The workers.
        dead: Those that were given up by the others. Some of them do not know it and go on.
        over: What `leave` said to each ticket; what it would have said to a dead worker nobody knows.
    """

    def __init__(self, fleet: Fleet, seed: int, *, patience: float) -> None:
        self.fleet = fleet
        self.random = Random(seed)
        self.patience = patience
        self.dead: set[str] = set()
        self.over: dict[str, bool] = {}
        self.turns: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, list[asyncio.Task[None]]] = {worker.worker: [] for worker in fleet.workers}
        for worker in fleet.workers:
            worker.hear(self.hear)

    def hear(self, message: Message) -> None:
        if isinstance(message, Turned) and message.ticket in self.turns:
            self.turns[message.ticket].set()

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0, self.patience / 10, self.patience / 3]))

    async def call(self, worker: SessionStore, sid: str, ticket: str) -> None:
        """As a worker does: wait for the turn and see that nobody dead has it, work, leave."""
        turn = self.turns[ticket] = asyncio.Event()
        entered = await worker.enter(sid, ticket)
        while entered is not None and not entered.turn:
            try:
                async with asyncio.timeout(self.patience):
                    await turn.wait()
            except TimeoutError:
                await self.look(worker, sid)
            turn.clear()
            entered = await worker.enter(sid, ticket)
        assert entered is not None and entered.state is not None  # noqa: PT018 - for the type
        many = self.random.randrange(3)
        for number in range(1, many + 1):
            await self.pause()
            await worker.append(sid, ticket, number, [b"%d" % number], worker=worker.worker, last=False)
        await self.pause()
        if worker.worker in self.dead:
            await asyncio.sleep(self.patience * 3)  # it does not know it, and comes back when its turn is long over
        self.over[ticket] = await worker.leave(sid, ticket, entered.state + ticket.encode() + b" ", Answer(ticket, b"answer", many + 1))

    async def look(self, worker: SessionStore, sid: str) -> None:
        """See that the one whose turn it is is not dead."""
        head = await worker.head(sid)
        if head is not None and worker_of(head) in self.dead:
            await worker.evict(sid, head)
            await worker.fail_track(sid, head, b"lost")

    async def run(self) -> None:
        """Live, and see that all is well in the end."""
        workers = self.fleet.workers
        for number in range(SESSIONS):
            await workers[0].open(f"s{number}", a_record(), b"", ttl=60, total=100, per_owner=100)
        for number in range(CALLS):
            worker = self.random.choice([worker for worker in workers if worker.worker not in self.dead])
            ticket, sid = f"{worker.worker}:{number}", f"s{number % SESSIONS}"
            self.tasks[worker.worker].append(asyncio.create_task(self.call(worker, sid, ticket)))
            await self.pause()
            if number in {CALLS // 3, CALLS // 2}:
                self.die(worker.worker, knows=number == CALLS // 2)
        async with asyncio.timeout(60):
            await asyncio.gather(*(task for tasks in self.tasks.values() for task in tasks), return_exceptions=True)
        for number in range(SESSIONS):
            await self.check(workers[0], f"s{number}", [f":{at}" for at in range(number, CALLS, SESSIONS)])

    def die(self, worker: str, *, knows: bool) -> None:
        """Give a worker up; where it does not know it, its calls go on, for nothing."""
        self.dead.add(worker)
        if knows:
            for task in self.tasks[worker]:
                task.cancel()

    async def check(self, worker: SessionStore, sid: str, ends: list[str]) -> None:
        """Each call that was told so is in the state, once, and none that was told otherwise; their tracks say the same."""
        state = await worker.state(sid)
        assert state is not None
        kept = state.decode().split()
        assert len(kept) == len(set(kept))
        tickets = [f"{store.worker}{end}" for end in ends for store in self.fleet.workers if f"{store.worker}{end}" in self.turns]
        assert set(kept) <= set(tickets)
        for ticket in tickets:
            told = self.over.get(ticket)
            assert told is None or told == (ticket in kept), ticket
            assert told is not None or worker_of(ticket) in self.dead, "each call of a worker that lives is over"
            await self.check_track(worker, sid, ticket, kept=ticket in kept)
        for store in self.fleet.workers:
            numbers = [int(ticket.partition(":")[2]) for ticket in kept if worker_of(ticket) == store.worker]
            assert numbers == sorted(numbers), "in the order in which they came"
        head = await worker.head(sid)
        assert head is None or worker_of(head) in self.dead, "nobody has the turn for ever"

    async def check_track(self, worker: SessionStore, sid: str, ticket: str, *, kept: bool) -> None:
        """The events of a call have no hole, and end with the answer exactly where its state was kept."""
        found = await worker.follow(sid, ticket, 0, worker.worker)
        assert found is not None or not kept
        if found is not None:
            assert [event.number for event in found.events] == list(range(1, found.newest + 1))
            assert (found.over and found.events[-1].note == b"answer") == kept
