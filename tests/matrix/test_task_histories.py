"""Any history of tasks of several principals: what is said of each stays true, and in the end nothing is left of any."""

import asyncio
from typing import Any, NamedTuple

from errands import Errands, Follower
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import accept
from virtual_time import run

from callboard.limits import Limits

OVER = {"completed", "failed", "cancelled"}
WHO = ("ann", "bob", None)
TOOLS = ("quick", "must", "walk", "hold", "stumble", "refuse", "break_down", "dawdle", "confirm", "both", "greet")
TTL, MAX_AGE = 50, 80
STEP = 30  # seconds from look to look, so that each end is seen


class Act(NamedTuple):
    """One thing that happens.

    Attributes:
        kind: What.
        who: Whose client does it.
        tool: What is called.
        pick: Which task it is about.
        seconds: How long it takes.
    """

    kind: str
    who: str | None
    tool: str
    pick: int
    seconds: float


acts = st.builds(
    Act,
    st.sampled_from(["call", "call", "get", "answer", "misfit", "cancel", "wait", "go"]),
    st.sampled_from(WHO),
    st.sampled_from(TOOLS),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.5, 1.0, 10.0, STEP]),
)


class History:
    """What was seen of each task."""

    def __init__(self) -> None:
        self.errands = Errands(Limits(max_tasks=6, max_tasks_per_principal=3), ttl=TTL, max_age=MAX_AGE)
        self.clients = {who: Follower(self.errands.app, who) for who in WHO}
        self.owners: dict[str, str | None] = {}
        self.ends: dict[str, Any] = {}
        self.keys: dict[str, set[str]] = {}

    async def do(self, act: Act) -> None:
        if act.kind == "call":
            await self.call(act)
        elif act.kind == "wait":
            await asyncio.sleep(act.seconds)
        elif act.kind == "go":
            self.errands.go.set()
        elif self.owners:
            task_id = list(self.owners)[act.pick % len(self.owners)]
            await self.touch(act, task_id)
        await self.check()

    async def call(self, act: Act) -> None:
        answer = await self.clients[act.who].call(act.tool)
        if answer.status == 503:
            mine = sum(owner == act.who for owner in self.owners.values())
            assert len(self.owners) >= 6 or (act.who is not None and mine >= 3), "refused without need"
        elif answer.result["resultType"] == "task":
            self.owners[answer.result["taskId"]] = act.who

    async def touch(self, act: Act, task_id: str) -> None:
        client = self.clients[act.who]
        value = {"misfit": [1], "answer": True}.get(act.kind)
        if act.kind == "cancel":
            answer = await client.ask("tasks/cancel", task_id)
        elif value is not None:
            found = await client.ask("tasks/get", task_id)
            asked = found.message.get("result", {}).get("inputRequests", {})
            responses = {key: accept(value=value if key.startswith("sure") or act.kind == "misfit" else "x") for key in asked}
            answer = await client.ask("tasks/update", task_id, inputResponses=responses)
        else:
            answer = await client.ask("tasks/get", task_id)
        assert (answer.status == 200) == (self.owners[task_id] == act.who), "a task is its owner's"

    async def check(self) -> None:
        for task_id, who in list(self.owners.items()):
            answer = await self.clients[who].ask("tasks/get", task_id)
            if answer.status != 200:
                assert task_id in self.ends, "dropped before its end"
                del self.owners[task_id]
                continue
            found = {name: value for name, value in answer.result.items() if name != "ttlMs"}
            assert self.ends.get(task_id, found) == found, "an end is final"
            if found["status"] in OVER:
                self.ends[task_id] = found
            asked = set(found.get("inputRequests", {}))
            assert bool(asked) == (found["status"] == "input_required")
        # Only now is it known what was dropped to make room: an end that its owner has read.
        assert len(self.owners) <= 6
        assert all(list(self.owners.values()).count(who) <= 3 for who in WHO if who is not None)

    async def finish(self) -> None:
        for _ in range(0, MAX_AGE + TTL + STEP, STEP):
            await asyncio.sleep(STEP)
            await self.check()
        assert self.owners == {}
        tasks = self.errands.tasks
        assert (tasks._jobs, tasks._places.taken, dict(tasks._places.per_principal)) == ({}, 0, {})
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert others == set(), "a function goes on"


@settings(max_examples=100, deadline=None)
@given(st.lists(acts, max_size=25))
def test_any_history_ends_with_nothing_left(history: list[Act]) -> None:
    # TX-09, TX-11, TX-16
    async def main() -> None:
        seen = History()
        for act in history:
            await seen.do(act)
        await seen.finish()

    run(main)
