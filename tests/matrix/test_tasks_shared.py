"""Tasks of a server with several workers: each runs in one of them, and all know it."""

import asyncio
from typing import Any

from errands import Errands, Follower
from fleet_store import Fleet
from legacy_driver import V11, Legacy, Session
from rounds import accept
from telemetry_sinks import Recorder
from virtual_time import now, settle, virtual_time

from callboard import Server, asgi
from callboard.limits import Limits
from callboard.server.task_table import RESTARTED
from callboard.stores.memory import MemoryStore
from callboard.stores.topics import LOST
from callboard.telemetry.events import TaskEnded, TaskStarted


class Workers:
    """Two workers that share a store, and a client of each.

    Attributes:
        fleet: What they share.
        first: The one that takes calls.
        second: Another one.
        here: A client of the first.
        there: The same client at the second.
    """

    def __init__(self, who: str | None = None, limits: Limits | None = None, **options: Any) -> None:
        self.fleet = Fleet()
        self.first, self.second = Errands(limits, **options), Errands(limits, **options)
        self.first.server.keep_in(self.fleet.member("first"))
        self.second.server.keep_in(self.fleet.member("second"))
        self.here, self.there = Follower(self.first.app, who), Follower(self.second.app, who)

    async def close(self) -> None:
        """End both."""
        for errands in (self.first, self.second):
            app: Any = errands.app
            await app.aclose()


@virtual_time
async def test_every_worker_knows_how_a_task_stands_and_what_it_came_to() -> None:
    # TX-06, TX-08
    workers = Workers()
    task_id = await workers.here.begin("walk", {"seconds": 10})
    found = await workers.there.get(task_id)
    assert (found["status"], found["statusMessage"]) == ("working", "On the way.")
    await asyncio.sleep(11)
    assert (await workers.there.get(task_id))["statusMessage"] == "Nearly there."
    await asyncio.sleep(11)
    for client in (workers.here, workers.there):
        ended = await client.get(task_id)
        assert (ended["status"], ended["result"]["content"][0]["text"]) == ("completed", "there")
    await workers.close()


@virtual_time
async def test_what_is_over_at_once_is_known_everywhere() -> None:
    workers = Workers()
    task_id = await workers.here.begin("must")
    assert (await workers.there.get(task_id))["result"]["structuredContent"] == {"n": 1}
    await workers.close()


@virtual_time
async def test_an_answer_may_come_by_another_worker() -> None:
    # TX-11, TX-12
    workers = Workers()
    task_id = await workers.here.begin("both")
    await asyncio.sleep(2)
    asked = await workers.there.get(task_id)
    assert (asked["status"], sorted(asked["inputRequests"])) == ("input_required", ["first", "second"])
    await workers.there.update(task_id, first=accept(value="one"), nobody=accept(value="x"))
    assert list((await workers.there.get(task_id))["inputRequests"]) == ["second"]
    await workers.there.update(task_id, first=accept(value="again"))
    await workers.here.update(task_id, second=accept(value="two"))
    await asyncio.sleep(1)
    ended = await workers.there.get(task_id)
    assert ended["result"]["structuredContent"] == {"result": ["one", "two"]} or "one" in str(ended["result"])
    await workers.close()


@virtual_time
async def test_an_answer_that_does_not_fit_is_asked_for_again() -> None:
    workers = Workers()
    task_id = await workers.here.begin("confirm")
    await asyncio.sleep(2)
    await workers.there.update(task_id, sure=accept(value="maybe"))
    await asyncio.sleep(1)
    asked = await workers.there.get(task_id)
    assert list(asked["inputRequests"]) == ["sure#2"]
    await workers.there.update(task_id, **{"sure#2": accept(value=True)})
    await asyncio.sleep(1)
    assert "yes: True" in str((await workers.there.get(task_id))["result"])
    await workers.close()


@virtual_time
async def test_another_worker_cancels() -> None:
    # TX-10
    workers = Workers()
    task_id = await workers.here.begin("hold", {"stubborn": True})
    await workers.there.cancel(task_id)
    for client in (workers.there, workers.here):
        assert (await client.get(task_id))["status"] == "cancelled", "at once, and everywhere"
    await asyncio.sleep(1)
    assert workers.first.seen == [("begun", False), ("stopped", True)]
    assert (await workers.here.get(task_id))["status"] == "cancelled", "what it returns all the same is dropped"
    await workers.close()


@virtual_time
async def test_a_cancellation_that_nobody_was_told_of_is_found() -> None:
    """The Bus delivers at most once."""
    workers = Workers()
    task_id = await workers.here.begin("hold")
    await asyncio.sleep(1)
    publish, workers.fleet.bus.publish = workers.fleet.bus.publish, lambda *_: None  # type: ignore[method-assign]
    await workers.there.cancel(task_id)
    await asyncio.sleep(11)
    assert workers.first.seen[-1] == ("stopped", True)
    workers.fleet.bus.publish = publish  # type: ignore[method-assign]
    await workers.close()


@virtual_time
async def test_it_is_found_at_once_where_the_bus_says_that_it_has_lost_something() -> None:
    workers = Workers()
    task_id = await workers.here.begin("hold")
    await asyncio.sleep(1)
    publish, workers.fleet.bus.publish = workers.fleet.bus.publish, lambda *_: None  # type: ignore[method-assign]
    await workers.there.cancel(task_id)
    publish(LOST, b"")
    await asyncio.sleep(0.5)
    assert workers.first.seen[-1] == ("stopped", True)
    workers.fleet.bus.publish = publish  # type: ignore[method-assign]
    await workers.close()


@virtual_time
async def test_what_the_store_has_lost_is_written_again() -> None:
    """A Redis that is restarted without its data."""
    workers = Workers()
    task_id = await workers.here.begin("walk", {"seconds": 20})
    await asyncio.sleep(1)
    for key in [key for key in workers.fleet.kv.keys if "task" in key]:
        await workers.fleet.kv.delete(key)
    assert (await workers.here.get(task_id))["status"] == "working", "whoever runs it knows"
    await asyncio.sleep(11)
    assert (await workers.there.get(task_id))["status"] == "working"
    await workers.close()


@virtual_time
async def test_a_task_is_its_owners_at_every_worker() -> None:
    # TX-14, TX-16
    workers = Workers("ann")
    bob = Follower(workers.second.app, "bob")
    task_id = await workers.here.begin("walk")
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        answer = await bob.ask(method, task_id, inputResponses={})
        assert (answer.status, answer.error["code"]) == (400, -32602)
    assert (await workers.there.get(task_id))["status"] == "working"
    await workers.close()


@virtual_time
async def test_the_task_of_a_worker_that_is_gone_has_failed() -> None:
    workers = Workers()
    task_id = await workers.here.begin("hold")
    workers.fleet.dead.add("first")
    assert (await workers.there.get(task_id))["status"] == "working", "once is no proof"
    await asyncio.sleep(4)
    ended = await workers.there.get(task_id)
    assert (ended["status"], ended["error"]["message"]) == ("failed", RESTARTED)
    workers.first.go.set()
    await asyncio.sleep(11)
    assert (await workers.here.get(task_id))["status"] == "failed", "it came back, and learns how it ended"
    await workers.close()


@virtual_time
async def test_a_worker_that_was_silent_for_a_moment_is_not_gone() -> None:
    workers = Workers()
    task_id = await workers.here.begin("walk", {"seconds": 5})
    workers.fleet.dead.add("first")
    await workers.there.get(task_id)
    workers.fleet.dead.clear()
    await asyncio.sleep(4)
    assert (await workers.there.get(task_id))["status"] == "working"
    await asyncio.sleep(10)
    assert (await workers.there.get(task_id))["status"] == "completed"
    await workers.close()


@virtual_time
async def test_what_it_came_to_is_kept_though_the_store_was_away() -> None:
    workers = Workers()
    task_id = await workers.here.begin("walk", {"seconds": 2})
    workers.fleet.kv.is_down = True
    await asyncio.sleep(30)
    workers.fleet.kv.is_down = False
    await asyncio.sleep(2)
    for client in (workers.there, workers.here):
        assert (await client.get(task_id))["status"] == "completed"
    await workers.close()


@virtual_time
async def test_without_the_store_there_is_no_task() -> None:
    workers = Workers()
    await workers.here.call("greet")
    workers.fleet.kv.is_down = True
    answer = await workers.here.call("hold")
    assert answer.error["code"] == -32603
    await settle()
    assert workers.first.seen == [("begun", False), ("stopped", True)]
    workers.fleet.kv.is_down = False
    await workers.close()


@virtual_time
async def test_a_server_that_ends_says_so_of_its_tasks() -> None:
    workers = Workers()
    done, held = await workers.here.begin("must"), await workers.here.begin("hold")
    app: Any = workers.first.app
    await app.aclose()
    assert (await workers.there.get(done))["status"] == "completed"
    ended = await workers.there.get(held)
    assert (ended["status"], ended["error"]["message"]) == ("failed", RESTARTED)
    await workers.close()


@virtual_time
async def test_a_task_is_kept_for_its_time_and_no_longer() -> None:
    # TX-05, TX-14
    workers = Workers("ann", ttl=60)
    task_id = await workers.here.begin("must")
    assert (await workers.there.get(task_id))["ttlMs"] // 1000 == 60
    await asyncio.sleep(58)
    assert (await workers.there.get(task_id))["status"] == "completed"
    await asyncio.sleep(3)
    assert (await workers.there.ask("tasks/get", task_id)).error["code"] == -32602
    await asyncio.sleep(3 + 24 * 3600)
    await workers.there.begin("must")
    await workers.close()


@virtual_time
async def test_one_principal_has_so_many_at_all_workers_together() -> None:
    workers = Workers("ann", Limits(max_tasks_per_principal=2))
    first = await workers.here.begin("hold")
    await workers.there.begin("hold")
    for client in (workers.here, workers.there):
        refused = await client.call("hold")
        assert (refused.status, "max_tasks_per_principal" in refused.error["message"]) == (503, True)
    await workers.there.cancel(first)
    assert (await workers.here.call("hold")).status == 503, "it is kept, and takes its place"
    assert (await workers.here.get(first))["status"] == "cancelled"
    await workers.here.begin("hold")
    assert (await workers.here.ask("tasks/get", first)).error["code"] == -32602, "its end was seen: it went for the new one"
    await workers.close()


@virtual_time
async def test_the_tasks_of_a_worker_that_is_gone_do_not_count_for_ever() -> None:
    workers = Workers("ann", Limits(max_tasks_per_principal=1), ttl=60)
    task_id = await workers.here.begin("hold")
    workers.fleet.dead.add("first")
    assert (await workers.there.call("hold")).status == 503
    await asyncio.sleep(4)
    assert (await workers.there.call("hold")).status == 503, "its owner has not seen the end"
    assert (await workers.there.get(task_id))["status"] == "failed"
    assert (await workers.there.call("hold")).result["resultType"] == "task"
    await workers.close()


@virtual_time
async def test_an_idle_task_costs_a_look_in_ten_seconds() -> None:
    # A56
    workers = Workers()
    await workers.here.begin("hold")
    await asyncio.sleep(1)
    before, began = workers.fleet.kv.reads, now()
    await asyncio.sleep(100)
    assert workers.fleet.kv.reads - before <= (now() - began) / 10 + 1
    await workers.close()


# Clients of 2025


async def join(errands: Errands) -> Session:
    """A session of a client that answers forms."""
    return await Legacy(errands.app, V11, state={"principal": "ann"}).connect(capabilities={"elicitation": {"form": {}}})


async def begin(session: Session, tool: str) -> str:
    """Call a tool as a task; the task's id."""
    created = (await session.request("tools/call", {"name": tool, "arguments": {}, "task": {"ttl": 60_000}})).result
    task_id: str = created["task"]["taskId"]
    return task_id


@virtual_time
async def test_a_result_is_waited_for_and_asked_about_at_another_worker() -> None:
    # TK-05, TK-10
    workers = Workers("ann")
    here, there = await join(workers.first), await join(workers.second)
    task_id = await begin(here, "confirm")
    waiting = there.start(there.make("tasks/result", {"taskId": task_id}))
    question = await waiting.message()
    assert question["method"] == "elicitation/create"
    assert (await here.request("tasks/get", {"taskId": task_id})).result["status"] == "input_required"
    await there.respond(question, accept(value=True))
    assert (await waiting.end()).messages[-1]["result"]["content"][0]["text"] == "yes: True"
    await workers.close()


@virtual_time
async def test_they_are_listed_and_cancelled_at_another_worker() -> None:
    # TK-07, TK-09
    workers = Workers("ann")
    here, there = await join(workers.first), await join(workers.second)
    ids = [await begin(here, "hold") for _ in range(52)]
    pages: list[list[str]] = []
    cursor = None
    while cursor is not None or not pages:
        page = (await there.request("tasks/list", {} if cursor is None else {"cursor": cursor})).result
        pages.append([task["taskId"] for task in page["tasks"]])
        cursor = page.get("nextCursor")
    assert [len(page) for page in pages] == [50, 2]
    assert [task_id for page in pages for task_id in page] == ids
    assert (await there.request("tasks/cancel", {"taskId": ids[0]})).result["status"] == "cancelled"
    assert (await here.request("tasks/cancel", {"taskId": ids[0]})).error["code"] == -32602
    await workers.close()


@virtual_time
async def test_a_session_hears_of_its_tasks_wherever_its_stream_is() -> None:
    """One session; its stream is at one worker, its calls go to the other."""
    # TK-08
    workers = Workers("ann")
    stores = MemoryStore(lambda: asyncio.get_running_loop().time(), shared=True)
    workers.first.server.keep_in(stores)
    workers.second.server.keep_in(stores.twin())
    here = await join(workers.first)
    there = Session(Legacy(workers.second.app, V11, state={"principal": "ann"}), here.id, here.version)
    async with there.listen() as stream:
        await asyncio.sleep(1)
        task_id = await begin(here, "confirm")
        statuses: list[str] = []
        while statuses[-1:] != ["input_required"]:
            note = await stream.message()
            assert (note["method"], note["params"]["taskId"]) == ("notifications/tasks/status", task_id)
            statuses.append(note["params"]["status"])
        assert (await there.request("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
        while statuses[-1:] != ["cancelled"]:
            statuses.append((await stream.message())["params"]["status"])
    await workers.close()


@virtual_time
async def test_of_two_who_cancel_one_has() -> None:
    # TK-07
    workers = Workers("ann")
    here, there = await join(workers.first), await join(workers.second)
    for _ in range(5):
        task_id = await begin(here, "hold")
        answers = await asyncio.gather(*(session.request("tasks/cancel", {"taskId": task_id}) for session in (there, here)))
        assert sorted("error" in answer.messages[-1] for answer in answers) == [False, True]
    await workers.close()


@virtual_time
async def test_a_stream_at_another_worker_hears_of_each_change() -> None:
    # TX-15
    workers = Workers()
    task_id = await workers.here.begin("confirm")
    async with workers.there.http.open(
        "subscriptions/listen", {"notifications": {"taskIds": [task_id]}}, meta=workers.there.meta
    ) as stream:
        said = [(await stream.message())["params"] for _ in range(3)]
        assert [note.get("status") for note in said[1:]] == ["working", "input_required"]
        await workers.here.update(task_id, sure=accept(value=True))
        statuses = []
        while "completed" not in statuses:
            statuses.append((await stream.message())["params"]["status"])
    await workers.close()


@virtual_time
async def test_a_stream_hears_that_a_worker_is_gone() -> None:
    workers = Workers()
    task_id = await workers.here.begin("hold")
    async with workers.there.http.open(
        "subscriptions/listen", {"notifications": {"taskIds": [task_id]}}, meta=workers.there.meta
    ) as stream:
        for _ in range(2):
            await stream.message()
        workers.fleet.dead.add("first")
        note = (await stream.message())["params"]
        assert (note["status"], note["error"]["message"]) == ("failed", RESTARTED)
    await workers.close()


@virtual_time
async def test_sinks_are_told_once_of_its_beginning_and_its_end() -> None:
    recorder = Recorder()
    server = Server("errands", telemetry=recorder, store=Fleet().member("first"))

    @server.tool(task="always")
    async def must(seconds: float) -> int:
        await asyncio.sleep(seconds)
        return 1

    app: Any = asgi(server)
    for seconds in (0, 5):
        await Follower(app).begin("must", {"seconds": seconds})
    await asyncio.sleep(10)
    told = [event for event in recorder.events if isinstance(event, TaskStarted | TaskEnded)]
    assert [(type(event), event.component) for event in told] == [
        (TaskStarted, "must"), (TaskEnded, "must"), (TaskStarted, "must"), (TaskEnded, "must"),
    ]  # fmt: skip
    assert {event.status for event in told if isinstance(event, TaskEnded)} == {"completed"}
    await app.aclose()
