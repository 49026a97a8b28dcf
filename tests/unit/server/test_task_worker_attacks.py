"""What lies in a shared store where tasks should: cut off, of another release, or put there by somebody else."""

import asyncio
import logging
from typing import Any

import pytest
from errands import KNOWING, Follower
from unit.server.test_task_worker import Site
from virtual_time import settle, virtual_time

from callboard.limits import Limits
from callboard.server.task_index import Index
from callboard.server.task_ledger import digest
from callboard.server.task_queue import INBOX


class Intake:
    """pydocket, as far as it takes tasks in.

    Attributes:
        taken: What it was given.
    """

    def __init__(self) -> None:
        self.taken: list[str] = []

    def add(self, _function: Any, key: str) -> Any:
        """Give what takes a task."""

        async def take(entry: str) -> None:
            assert entry == key
            self.taken.append(entry)

        return take


@virtual_time
async def test_an_entry_that_is_no_task_stops_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    site = Site("ann")
    _, worker = await site.worker("one")
    rubbish = [b"\xff\xfe", b"", b"x" * 100_000, b"callboard_task 0", b"0" * 32 + b" 0 0", b"../../etc 1"]
    site.fleet.lists[INBOX] = list(rubbish)
    task_id = await site.client.begin("pay")
    intake = Intake()
    taking = asyncio.create_task(worker._take_in(intake, None, site.fleet.members["one"]))
    await asyncio.sleep(3)
    assert not taking.done()
    taking.cancel()
    assert intake.taken == [f"{digest(task_id)} 0"]
    assert site.fleet.lists[INBOX] == []
    assert "is no task" in caplog.text
    assert "x" * 200 not in caplog.text
    await site.close()


@virtual_time
@pytest.mark.parametrize("spoiled", [b"\xc1", b"\x80", b"\x81\xa6status\xa7dreamed", b"{}", b"\x00" * 1000])
async def test_a_record_that_cannot_be_read_is_said_so_and_passed_over(spoiled: bytes, caplog: pytest.LogCaptureFixture) -> None:
    site = Site("ann", Limits(max_tasks_per_principal=3))
    lost, kept = await site.client.begin("pay"), await site.client.begin("pay")
    key = f"callboard:task:{digest(lost)}"
    await site.fleet.kv.put(key, spoiled)
    with caplog.at_level(logging.ERROR):
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            answer = await site.client.ask(method, lost, inputResponses={})
            assert answer.error["code"] == -32603
            assert "Traceback" not in caplog.text, "it is no crash of ours"
        _, worker = await site.worker("one")
        run = asyncio.create_task(worker._perform(digest(lost)))
        await asyncio.wait({run}, timeout=5)
        assert run.done(), "it holds no place of a worker for ever"
    assert run.exception() is None
    assert (await site.client.get(kept))["status"] == "working"
    tasks, _ = await site.program.tasks.page("ann", 0, 50)
    assert [task.id for task in tasks] == [kept]
    await site.client.begin("pay")
    assert (await site.client.call("pay")).status == 503, "it counts until its time is up, and is no crash"
    await site.close()


@virtual_time
async def test_the_record_of_a_task_that_runs_is_written_again_where_it_was_spoiled() -> None:
    site = Site("ann")
    program, worker = await site.worker("one")
    task_id = await site.client.begin("pay")
    await site.hand(worker)
    await site.fleet.kv.put(f"callboard:task:{digest(task_id)}", b"\xc1")
    program.go.set()
    await asyncio.sleep(15)
    assert (await site.client.get(task_id))["status"] == "completed"
    await site.close()


@virtual_time
async def test_an_index_that_cannot_be_read_locks_nobody_out() -> None:
    site = Site("ann")
    await site.client.begin("pay")
    (key,) = [key for key in site.fleet.kv.keys if key.startswith("callboard:tasks-of:")]
    await site.fleet.kv.put(key, b"\xc1")
    task_id = await site.client.begin("pay")
    rows = await Index(site.fleet.kv, 1000).rows("ann")
    assert [row.id for row in rows] == [task_id]
    await site.close()


@virtual_time
async def test_of_many_that_begin_at_once_no_more_get_in_than_may() -> None:
    site = Site("ann", Limits(max_tasks_per_principal=5))
    answers = await asyncio.gather(*(site.client.call("pay") for _ in range(30)))
    begun = [answer for answer in answers if answer.status == 200]
    assert len(begun) == 5
    assert {answer.status for answer in answers} == {200, 503}
    assert len(site.entries()) == site.program.tasks._places.taken == 5
    await settle()
    records = [key for key in site.fleet.kv.keys if key.startswith("callboard:task:")]
    held = [key for key in records if (entry := await site.fleet.kv.get(key)) is not None and entry.value]
    assert len(held) == 5
    await site.close()


@virtual_time
async def test_what_is_another_ones_is_what_never_was_byte_for_byte() -> None:
    # TX-14
    site = Site("ann")
    task_id = await site.client.begin("pay")
    for who in ("bob", None):
        other = Follower(site.app, who, KNOWING)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            answers = [await other.ask(method, each, inputResponses={}) for each in (task_id, task_id[:-1] + "x", "", "\u2028", "0" * 500)]
            texts = [str(answer.error).replace(each, "") for answer, each in zip(answers[:2], (task_id, task_id[:-1] + "x"), strict=True)]
            assert texts[0] == texts[1]
            assert {answer.status for answer in answers} == {400}
    assert (await site.client.get(task_id))["status"] == "working"
    await site.close()


@virtual_time
async def test_what_pydocket_pickles_is_a_digest_and_a_number_whatever_the_client_says() -> None:
    site = Site("ann")
    _, worker = await site.worker("one")
    evil = "cbuiltins\neval\n(S'1/0'\ntR."
    meta = {**site.client.meta, "progressToken": evil, "traceparent": evil, evil: evil}
    message = {"name": "pay", "arguments": {}, "task": {"ttl": 1000}}
    answer = await site.client.http.request("tools/call", message, meta=meta, request_id=evil)
    assert answer.status == 200
    intake = Intake()
    taking = asyncio.create_task(worker._take_in(intake, None, site.fleet.members["one"]))
    await asyncio.sleep(2)
    taking.cancel()
    (entry,) = intake.taken
    name, begun = entry.split(" ")
    assert (len(name), set(name) <= set("0123456789abcdef"), begun) == (32, True, "0")
    await site.close()


@virtual_time
async def test_a_result_that_nobody_would_serve_ends_its_task() -> None:
    site = Site("ann", Limits(max_result=100_000))
    program, worker = await site.worker("one")
    for server in (program.server, site.program.server):

        @server.tool(task="always")
        async def big(size: int) -> str:
            return "x" * size

    for size, status in ((200_000, "failed"), (1_000, "completed")):
        task_id = await site.client.begin("big", {"size": size})
        await site.hand(worker)
        await asyncio.sleep(1)
        found = await site.client.get(task_id)
        assert found["status"] == status
        assert ("max_result" in found.get("statusMessage", "")) == (status == "failed")
        kept = await site.fleet.kv.get(f"callboard:task:{digest(task_id)}")
        assert kept is not None
        assert len(kept.value) < 10_000, "nor is it kept"
    await site.close()
