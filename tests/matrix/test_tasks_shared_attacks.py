"""Tasks that several workers know, attacked from two sides at once: strangers, races, and rubbish on the Bus."""

import asyncio
import logging
from typing import Any

import pytest
from errands import Errands, Follower
from legacy_driver import V11, Legacy, Session
from matrix.test_tasks_shared import Workers
from rounds import accept
from virtual_time import settle, virtual_time

from callboard.server.task_ledger import TOPIC, digest


async def join(errands: Errands, who: str) -> Session:
    """A client of 2025-11-25 that is a principal's."""
    return await Legacy(errands.app, V11, state={"principal": who}).connect(capabilities={"elicitation": {"form": {}}})


@virtual_time
async def test_a_session_of_somebody_else_at_another_worker_finds_nothing() -> None:
    # TK-05, TK-07, TK-09
    workers = Workers("ann")
    ann, bob = await join(workers.first, "ann"), await join(workers.second, "bob")
    created = (await ann.request("tools/call", {"name": "hold", "arguments": {}, "task": {"ttl": 60_000}})).result
    task_id = created["task"]["taskId"]
    never = task_id[:-1] + ("0" if task_id[-1] != "0" else "1")
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        theirs, unknown = [(await bob.request(method, {"taskId": each})).error for each in (task_id, never)]
        assert str(theirs).replace(task_id, "") == str(unknown).replace(never, "")
    assert (await bob.request("tasks/list", {})).result["tasks"] == []
    assert (await ann.request("tasks/get", {"taskId": task_id})).result["status"] == "working"
    await workers.close()


RUBBISH = [b"", b" ", b"a b", b"a b c d", b"\xff\xfe \xff over", b"x" * 100_000, b"%s\x00 by over", b"../.. by over"]


@virtual_time
async def test_rubbish_on_the_bus_ends_no_task(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers("ann")
    task_id = await workers.here.begin("walk", {"seconds": 10})
    with caplog.at_level(logging.CRITICAL):
        for message in (*RUBBISH, f"{digest(task_id)} nobody over".encode(), f"{digest(task_id)} nobody ".encode()):
            workers.fleet.bus.publish(TOPIC, message)
            await asyncio.sleep(0.2)
    assert (await workers.there.get(task_id))["status"] == "working"
    await asyncio.sleep(25)
    assert (await workers.there.get(task_id))["status"] == "completed"
    await workers.close()


@virtual_time
async def test_one_answer_that_comes_by_both_workers_is_taken_once() -> None:
    # TX-11
    workers = Workers()
    task_id = await workers.here.begin("both")
    await asyncio.sleep(2)
    first = [client.update(task_id, first=accept(value=said)) for client in (workers.here, workers.there) for said in ("one", "uno")]
    await asyncio.gather(*first)
    await asyncio.gather(*(client.update(task_id, second=accept(value="two")) for client in (workers.there, workers.here)))
    await asyncio.sleep(2)
    found = [await client.get(task_id) for client in (workers.here, workers.there)]
    assert [each["status"] for each in found] == ["completed"] * 2
    assert found[0]["result"] == found[1]["result"]
    assert sum(said in str(found[0]["result"]["content"]) for said in ("one", "uno")) == 1
    await workers.close()


@virtual_time
@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_a_cancellation_that_races_the_end_leaves_one_truth(turns: int) -> None:
    # TX-09, TX-10
    workers = Workers()
    task_id = await workers.here.begin("hold")
    await settle()
    workers.first.go.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    await workers.there.ask("tasks/cancel", task_id)
    seen: set[str] = set()
    for _ in range(4):
        for client in (workers.there, workers.here):
            seen.add((await client.get(task_id))["status"])
        await asyncio.sleep(11)
    ended = seen - {"working"}
    assert len(ended) == 1, seen
    assert ended <= {"completed", "cancelled"}
    await workers.close()


@virtual_time
async def test_two_who_look_at_the_task_of_a_dead_worker_see_one_end() -> None:
    workers = Workers("ann")
    third = Errands()
    third.server.keep_in(workers.fleet.member("third"))
    other = Follower(third.app, "ann")
    task_id = await workers.here.begin("hold")
    workers.fleet.dead.add("first")
    found: list[Any] = []
    for _ in range(6):
        found += await asyncio.gather(*(client.get(task_id) for client in (workers.there, other, workers.there, other)))
        await asyncio.sleep(1)
    ended = [each for each in found if each["status"] == "failed"]
    assert ended
    assert all(each["lastUpdatedAt"] == ended[0]["lastUpdatedAt"] and each["statusMessage"] == ended[0]["statusMessage"] for each in ended)
    assert {each["status"] for each in found} == {"working", "failed"}
    app: Any = third.app
    await app.aclose()
    await workers.close()


@virtual_time
async def test_when_all_is_over_nothing_is_left_in_the_store() -> None:
    workers = Workers("ann", ttl=30)
    ids = [await workers.here.begin("walk", {"seconds": 1}) for _ in range(5)]
    await workers.there.cancel(ids[0])
    await asyncio.sleep(40)
    for task_id in ids:
        assert (await workers.there.ask("tasks/get", task_id)).error["code"] == -32602
    await asyncio.sleep(24 * 3600 + 3600)
    kept = [key for key in workers.fleet.kv.keys if "task" in key and await workers.fleet.kv.get(key) is not None]
    assert kept == []
    await workers.close()
