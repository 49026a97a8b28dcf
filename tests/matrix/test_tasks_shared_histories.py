"""Random histories of tasks that three workers share, with workers that fall silent and a store that goes away: what has ended stays ended."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgi_driver import JSON
from errands import Errands, Follower
from fleet_store import Fleet
from rounds import accept
from virtual_time import virtual_time

NAMES = ("one", "two", "three")
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
        self.errands = {name: Errands() for name in NAMES}
        for name, errands in self.errands.items():
            errands.server.keep_in(self.fleet.member(name))
        self.clients = [Follower(errands.app, "ann") for errands in self.errands.values()]
        self.ids: list[str] = []
        self.ends: dict[str, JSON] = {}
        self.asked: dict[str, list[str]] = {}
        self.trail: list[Any] = []

    async def step(self) -> None:
        """Do something."""
        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "begin": self.begin, "get": self.get, "answer": self.answer, "cancel": self.cancel,
            "silence": self.silence, "outage": self.outage, "wait": self.wait,
        }  # fmt: skip
        self.trail.append(self.random.choice([*steps, "begin", "get"]))
        await steps[self.trail[-1]]()

    async def begin(self) -> None:
        """Begin a task."""
        tool = self.random.choice(("confirm", "stumble", "hold", "both", "must"))
        answer = await self.random.choice(self.clients).call(tool)
        if "error" not in answer.message:
            self.ids.append(answer.result["taskId"])

    async def get(self, task_id: str | None = None, client: Follower | None = None) -> JSON | None:
        """Look at a task; what has ended must be as it was."""
        if not self.ids:
            return None
        task_id = task_id or self.random.choice(self.ids)
        answer = await (client or self.random.choice(self.clients)).ask("tasks/get", task_id)
        if "error" in answer.message:
            assert self.fleet.kv.is_down, (answer.message, self.trail)
            return None
        found = answer.result
        if task_id in self.ends:
            assert _essence(found) == self.ends[task_id], self.trail
        elif found["status"] in OVER:
            self.ends[task_id] = _essence(found)
        self.asked[task_id] = list(found.get("inputRequests", ()))
        return found

    async def answer(self) -> None:
        """Answer what a task asked when it was last looked at."""
        waiting = [task_id for task_id, keys in self.asked.items() if keys]
        if waiting:
            task_id = self.random.choice(waiting)
            value: Any = self.random.choice((True, "text"))
            given = {key: accept(value=value) for key in self.asked[task_id]}
            await self.random.choice(self.clients).ask("tasks/update", task_id, inputResponses=given)

    async def cancel(self) -> None:
        """Cancel a task; if that was taken it has ended."""
        if self.ids:
            task_id, client = self.random.choice(self.ids), self.random.choice(self.clients)
            answer = await client.ask("tasks/cancel", task_id)
            found = await self.get(task_id)
            assert "error" in answer.message or found is None or found["status"] in OVER, self.trail

    async def silence(self) -> None:
        """A worker gives no sign of life, or gives them again; it goes on working."""
        name = self.random.choice(NAMES)
        self.fleet.dead ^= {name}

    async def outage(self) -> None:
        """The store goes away, or is back."""
        self.fleet.kv.is_down = not self.fleet.kv.is_down

    async def wait(self) -> None:
        """Time passes."""
        await asyncio.sleep(self.random.choice((0.01, 1, 5)))

    async def end(self) -> None:
        """All is well again, and whoever waits is let go."""
        self.fleet.kv.is_down = False
        self.fleet.dead.clear()
        for errands in self.errands.values():
            errands.go.set()
        for _ in range(6):
            await asyncio.sleep(15)
            for task_id in self.ids:
                if (found := await self.get(task_id)) is not None and (keys := found.get("inputRequests")):
                    given = {key: accept(value=True if key.startswith("sure") else "text") for key in keys}
                    await self.clients[0].ask("tasks/update", task_id, inputResponses=given)
        for task_id in self.ids:
            for client in self.clients:
                found = await self.get(task_id, client)
                assert found is not None
                assert found["status"] in OVER, (found, self.trail)
        for errands in self.errands.values():
            app: Any = errands.app
            await app.aclose()


def _essence(found: JSON) -> JSON:
    return {
        key: value for key, value in found.items() if key in {"status", "result", "error", "statusMessage", "createdAt", "lastUpdatedAt"}
    }


@pytest.mark.parametrize("seed", range(6))
@virtual_time
async def test_what_has_ended_is_the_same_for_ever_and_everywhere(seed: int) -> None:
    # TX-09, TX-10, TX-11
    history = History(seed)
    for client in history.clients:
        await client.call("greet")
    for _ in range(STEPS):
        await history.step()
    await history.end()
    assert history.ends
