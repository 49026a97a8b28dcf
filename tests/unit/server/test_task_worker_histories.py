"""Random histories of tasks that workers run: workers that die, end or are cut off, entries that are handed out twice, a store that goes away."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from asgi_driver import JSON
from errands import KNOWING, Follower
from fleet_store import Fleet, FleetKv
from virtual_time import virtual_time

from callboard import Context, Server, asgi
from callboard.compose import endpoint
from callboard.server.task_queue import INBOX
from callboard.server.task_worker import TaskWorker
from callboard.tasks import DocketTasks

STEPS = 60
OVER = {"completed", "failed", "cancelled"}


class History:
    """What happens, and what was seen of each task.

    Args:
        seed: Of what happens.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fleet = Fleet()
        self.apps: list[Any] = [asgi(self.make(name)) for name in ("first", "second")]
        self.clients = [Follower(app, None, KNOWING) for app in self.apps]
        self.workers: dict[str, tuple[Any, DocketTasks, TaskWorker]] = {}
        self.gone: list[tuple[Any, DocketTasks, TaskWorker]] = []
        self.begun: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.ids: list[str] = []
        self.ends: dict[str, JSON] = {}
        self.runs: list[asyncio.Task[None]] = []
        self.count = 0

    def make(self, name: str) -> Server:
        """A process's server."""
        server = Server("depot", store=self.fleet.member(name), tasks=DocketTasks())

        @server.tool(task="allowed", idempotent=True)
        async def carry(ctx: Context, number: int, seconds: float) -> int:
            await ctx.once("made", lambda: self.note(f"carry {number}"))
            await asyncio.sleep(seconds)
            return number

        @server.tool(task="allowed")
        async def pay(number: int, seconds: float) -> int:
            self.begun[f"pay {number}"] += 1
            await asyncio.sleep(seconds)
            return number

        return server

    def note(self, what: str) -> bool:
        """Count what `ctx.once` makes."""
        self.made[what] += 1
        return True

    async def begin(self) -> None:
        """Begin a task."""
        self.count += 1
        given = {"number": self.count, "seconds": self.random.choice((0, 1, 20))}
        answer = await self.random.choice(self.clients).call(self.random.choice(("carry", "pay")), given)
        if "error" not in answer.message:
            self.ids.append(answer.result["taskId"])

    async def start(self) -> None:
        """Start a worker."""
        if self.fleet.kv.is_down or len(self.workers) >= 4:
            return
        name = f"w{len(self.workers) + len(self.gone)}"
        made = endpoint(self.make(name))
        mount = await made.open()
        tasks: Any = made.server.tasks
        self.workers[name] = made, tasks.tasks, TaskWorker(mount, tasks.tasks)

    async def hand(self) -> None:
        """Hand something to a worker: what is new, or what was handed out before."""
        entries = self.fleet.lists.get(INBOX)
        if entries and self.workers:
            entry = self.random.choice(entries[-6:]).decode().partition(" ")[0]
            _, _, worker = self.random.choice(list(self.workers.values()))
            self.runs.append(asyncio.create_task(worker._perform(entry)))

    async def kill(self) -> None:
        """A worker is cut off: what it writes and reads fails from now on, while its functions go on for a while."""
        if self.workers:
            name = self.random.choice(list(self.workers))
            made, tasks, worker = self.workers.pop(name)
            made.server.store.kv = cut = FleetKv()
            cut.is_down = True
            self.fleet.dead.add(name)
            self.gone.append((made, tasks, worker))

    async def stop(self) -> None:
        """A worker is told to end, and has no time."""
        if self.workers:
            name = self.random.choice(list(self.workers))
            made, tasks, worker = self.workers.pop(name)
            worker._ending.set()
            await worker._give_up()
            self.fleet.dead.add(name)
            self.gone.append((made, tasks, worker))

    async def look(self) -> None:
        """Look at a task; what has ended must be as it was."""
        if self.ids:
            await self.see(self.random.choice(self.ids), self.random.choice(self.clients))

    async def see(self, task_id: str, client: Follower) -> str:
        """How a task stands."""
        answer = await client.ask("tasks/get", task_id)
        if "error" in answer.message:
            assert self.fleet.kv.is_down, answer.message
            return ""
        found = {key: value for key, value in answer.result.items() if key in {"status", "result", "error", "lastUpdatedAt"}}
        if found["status"] in OVER:
            assert self.ends.setdefault(task_id, found) == found
        return str(found["status"])

    async def cancel(self) -> None:
        """Cancel a task."""
        if self.ids:
            await self.random.choice(self.clients).ask("tasks/cancel", self.random.choice(self.ids))

    async def outage(self) -> None:
        """The store goes away, or is back."""
        self.fleet.kv.is_down = not self.fleet.kv.is_down and self.random.random() < 0.5

    async def wait(self) -> None:
        """Time passes."""
        await asyncio.sleep(self.random.choice((0.01, 1, 5)))

    async def end(self) -> None:
        """All is well again, and a worker is handed all that there is, as often as it takes."""
        self.fleet.kv.is_down = False
        await self.start()
        _, _, worker = list(self.workers.values())[-1]
        for _ in range(3):
            for entry in {entry.decode().partition(" ")[0] for entry in self.fleet.lists.get(INBOX, [])}:
                self.runs.append(asyncio.create_task(worker._perform(entry)))
            await asyncio.sleep(60)
        for task_id in self.ids:
            for client in self.clients:
                assert await self.see(task_id, client) in OVER

    async def close(self) -> None:
        """End all."""
        for _, tasks, _ in [*self.workers.values(), *self.gone]:
            for keeper in list(tasks.recorded.keepers.values()):
                keeper.run.cancel()
        for run in self.runs:
            run.cancel()
        await asyncio.gather(*self.runs, return_exceptions=True)
        for made, _, _ in [*self.workers.values(), *self.gone]:
            await made.close()
        for app in self.apps:
            await app.aclose()


@pytest.mark.parametrize("seed", range(6))
@virtual_time
async def test_each_task_ends_once_and_what_must_not_be_begun_twice_is_not(seed: int) -> None:
    # TX-09
    history = History(seed)
    for client in history.clients:
        await client.http.request("tools/list")
    steps = [history.begin, history.begin, history.hand, history.hand, history.look, history.start]
    steps += [history.kill, history.stop, history.cancel, history.outage, history.wait]
    for step in (history.begin, history.begin, history.start, history.hand):
        await step()
    for _ in range(STEPS):
        await history.random.choice(steps)()
    await history.end()
    assert history.ends
    assert all(times == 1 for what, times in history.begun.items() if what.startswith("pay")), history.begun
    await history.close()
