"""What a listen stream is told of tasks."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from asgi_driver import JSON, Client, Exchange, make_meta
from errands import KNOWING, Errands, Follower
from oracles import TASKS
from rounds import accept
from virtual_time import settle, virtual_time

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
def errands() -> Errands:
    return Errands()


def listen(
    errands: Errands, task_ids: Any, who: str | None = None, capabilities: JSON = KNOWING, **more: Any
) -> AbstractAsyncContextManager[Exchange]:
    """Open a stream."""
    params = {"notifications": {"taskIds": task_ids, **more}}
    client = Client(errands.app, state={"principal": who})
    return client.open("subscriptions/listen", params, request_id="stream", meta=make_meta(capabilities))


async def told(stream: Exchange) -> JSON:
    """The next thing that is said of a task, without what every note on the stream has."""
    note = await stream.message()
    assert note["method"] == "notifications/tasks"
    params: JSON = note["params"]
    assert params.pop("_meta") == {SUBSCRIPTION: "stream"}
    return params


@virtual_time
async def test_each_change_is_told_in_full(errands: Errands) -> None:
    # TX-15, SB-03, SB-04
    client = Follower(errands.app)
    task_id = await client.begin("confirm")
    async with listen(errands, [task_id, "unknown"], toolsListChanged=True) as stream:
        acknowledged = await stream.message()
        assert acknowledged["params"]["notifications"] == {"taskIds": [task_id], "toolsListChanged": True}
        assert (await told(stream))["status"] == "working"
        asking = await told(stream)
        assert (asking["status"], list(asking["inputRequests"])) == ("input_required", ["sure"])
        await client.update(task_id, sure=accept(value=True))
        assert (await told(stream))["status"] == "working"
        ended = await told(stream)
        assert (ended["status"], ended["result"]["content"][0]["text"]) == ("completed", "yes: True")
        found = await client.get(task_id)
        assert ended == {name: value for name, value in found.items() if name not in {"resultType", "_meta"}}


@virtual_time
async def test_progress_and_logs_stay_off_the_stream(errands: Errands) -> None:
    # TX-15, HM-16
    task_id = await Follower(errands.app).begin("walk", {"seconds": 1}, _meta=make_meta(KNOWING, progressToken=1, logLevel="debug"))
    async with listen(errands, [task_id]) as stream:
        await stream.message()
        said = [(await told(stream)).get("statusMessage") for _ in range(3)]
        assert said == ["On the way.", "Nearly there.", None]


@virtual_time
async def test_what_has_ended_already_is_told_at_once(errands: Errands) -> None:
    task_id = await Follower(errands.app).begin("must")
    async with listen(errands, [task_id]) as stream:
        await stream.message()
        assert (await told(stream))["status"] == "completed"


@pytest.mark.parametrize(("who", "capabilities"), [("bob", KNOWING), (None, KNOWING)], ids=["another", "nobody"])
@virtual_time
async def test_others_hear_nothing(errands: Errands, who: str | None, capabilities: JSON) -> None:
    # TX-15, TX-16
    client = Follower(errands.app, "ann")
    task_id = await client.begin("walk", {"seconds": 1})
    async with listen(errands, [task_id], who, capabilities) as stream:
        assert (await stream.message())["params"]["notifications"] == {"taskIds": []}
        await client.cancel(task_id)
        await settle()
        assert b"notifications/tasks" not in stream.body.partition(b"acknowledged")[2]


@pytest.mark.parametrize("task_ids", ["x", [1], ["x"] * 1001, None])
@virtual_time
async def test_ids_are_a_list_of_bounded_length(errands: Errands, task_ids: Any) -> None:
    async with listen(errands, task_ids) as stream:
        answer = await stream.end()
        assert (answer.status, answer.error["code"]) == (400, -32602)


@virtual_time
async def test_a_server_without_tasks_does_not_know_the_field() -> None:
    # EX-03
    class Plain(Errands):
        def _add_plain(self) -> None:
            self.server.tool(name="plain")(lambda: "plain")

        def _add_failing(self) -> None: ...

        def _add_asking(self) -> None: ...

    plain = Plain()
    assert TASKS not in plain.server.extensions
    async with listen(plain, 7) as stream:
        assert (await stream.message())["params"]["notifications"] == {}


@virtual_time
async def test_a_stream_that_is_gone_is_told_nothing(errands: Errands) -> None:
    client = Follower(errands.app)
    task_id = await client.begin("hold")
    async with listen(errands, [task_id]) as stream:
        await stream.message()
        await told(stream)
    await asyncio.sleep(0)
    (job,) = errands.tasks._jobs.values()
    assert job.watchers == []
    errands.go.set()
    await settle()
    assert (await client.get(task_id))["status"] == "completed"


@virtual_time
async def test_who_does_not_know_tasks_can_not_ask_for_them(errands: Errands) -> None:
    # SB-13, TX-02
    async with listen(errands, [], capabilities={}) as stream:
        refused = await stream.end()
    assert refused.status == 400
    assert refused.error["code"] == -32021
    assert refused.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
