"""Tasks that run where they are called, of servers that share a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from errands import Errands, Follower
from redis_server import RedisServer, needs_redis
from rounds import accept

from callboard import Server, asgi
from callboard.compose import endpoint
from callboard.limits import Limits
from callboard.server.task_table import RESTARTED
from callboard.server.task_worker import TaskWorker
from callboard.tasks import DocketTasks

pytestmark = needs_redis


async def wait_for(look: Callable[[], Awaitable[Any]]) -> Any:
    """What there is to see, once there is."""
    async with asyncio.timeout(20):
        while not (found := await look()):  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.02)
        return found


async def test_any_server_answers_cancels_and_knows() -> None:
    # TX-06, TX-10, TX-11
    with RedisServer() as redis:
        first, second = Errands(Limits(max_tasks_per_principal=3)), Errands(Limits(max_tasks_per_principal=3))
        for errands in (first, second):
            errands.server.keep_in(redis.url)
        here, there = Follower(first.app, "ann"), Follower(second.app, "ann")
        held, asking, done = await here.begin("hold"), await here.begin("confirm"), await here.begin("must")
        assert (await there.get(done))["result"]["structuredContent"] == {"n": 1}
        asked = await wait_for(lambda: _at(there, asking, "input_required"))
        assert list(asked["inputRequests"]) == ["sure"]
        refused = await there.call("must")
        assert (refused.status, "max_tasks_per_principal" not in str(refused.message)) == (200, True), "the one that is seen makes room"
        assert (await there.call("hold")).status == 503
        await there.update(asking, sure=accept(value=True))
        assert "yes: True" in str((await wait_for(lambda: _at(there, asking, "completed")))["result"])
        await there.cancel(held)
        await wait_for(lambda: _has_stopped(first))
        assert (await here.get(held))["status"] == "cancelled"
        last = await here.begin("hold")
        for errands in (first, second):
            app: Any = errands.app
            await app.aclose()
        third = Errands()
        third.server.keep_in(redis.url)
        later = Follower(third.app, "ann")
        ended = await later.get(last)
        assert (ended["status"], ended["error"]["message"]) == ("failed", RESTARTED)
        assert last.encode() not in redis.cli("KEYS", "*")
        app = third.app
        await app.aclose()


async def _at(client: Follower, task_id: str, status: str) -> Any:
    found = await client.get(task_id)
    return found if found["status"] == status else None


async def _has_stopped(errands: Errands) -> bool:
    return ("stopped", True) in errands.seen


def make_press(url: str) -> Server:
    """A program whose tasks have a Redis of their own."""
    server = Server("press", tasks=DocketTasks(url))

    @server.tool(task="allowed")
    async def print_book(copies: int) -> str:
        return f"{copies} copies"

    return server


async def test_tasks_may_have_a_redis_of_their_own() -> None:
    pytest.importorskip("docket", reason="pydocket is not installed.")
    with RedisServer() as redis:
        app: Any = asgi(make_press(redis.url))
        made = endpoint(make_press(redis.url))
        tasks = made.server.tasks
        assert tasks is not None
        assert isinstance(tasks.tasks, DocketTasks)
        worker, stop, ready = TaskWorker(await made.open(), tasks.tasks), asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(worker.serve(stop, ready.set))
        await asyncio.wait_for(ready.wait(), 20)
        client = Follower(app)
        task_id = await client.begin("print_book", {"copies": 3})
        assert "3 copies" in str((await wait_for(lambda: _at(client, task_id, "completed")))["result"])
        stop.set()
        await asyncio.wait_for(serving, 20)
        await made.close()
        await app.aclose()
