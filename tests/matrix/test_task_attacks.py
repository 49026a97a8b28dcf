"""Tasks against functions and clients that do what nobody should."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest
from asgi_driver import JSON
from errands import KNOWING, Errands, Follower
from legacy_driver import V11, Legacy, Session
from oracles import TASKS
from rounds import accept
from virtual_time import settle, virtual_time

import callboard
from callboard import Context, Fail, Reason, Server, asgi
from callboard.limits import Limits


class Odd(BaseException):
    """What no `except Exception` catches."""


async def connect(errands: Errands) -> Session:
    """A session of a client that answers forms."""
    return await Legacy(errands.app, V11).connect(capabilities={"elicitation": {"form": {}}})


async def create(session: Session, tool: str, **task: Any) -> str:
    """Call a tool as a task; the task's id."""
    answer = await session.request("tools/call", {"name": tool, "arguments": {}, "task": task})
    task_id: str = answer.result["task"]["taskId"]
    return task_id


# Our client


@virtual_time
async def test_our_client_fetches_what_was_over_when_it_was_created() -> None:
    # TX-05, TX-08, TX-13: what creates a task says that it has ended, and not what came of it
    async with callboard.Client(Errands().server, tasks=True) as client:
        assert (await client.call_tool("must")).structured_content == {"n": 1}


# Functions


@pytest.mark.parametrize("seconds", [0, 1])
@virtual_time
async def test_whatever_ends_a_function_ends_its_task(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    # TX-08: else it would be working until its max_age
    server = Server("odd")

    @server.tool(task="allowed")
    async def odd() -> str:
        if seconds:
            await asyncio.sleep(seconds)
        raise Odd

    client = Follower(asgi(server))
    with caplog.at_level(logging.ERROR):
        answer = (await client.call("odd")).messages[-1]
        await asyncio.sleep(2)
    error = (await client.get(answer["result"]["taskId"]))["error"] if seconds else answer["error"]
    assert error["code"] == -32603
    assert "Odd" in caplog.text


@pytest.mark.parametrize("message", ["half of \ud800", 5, ["x"]])
@pytest.mark.parametrize("plain", [False, True])
@virtual_time
async def test_a_message_that_nobody_could_read_is_refused_by_name(message: Any, *, plain: bool) -> None:
    # TX-05, TX-08, PR-01: it would make the task unreadable as long as it is its status message
    server = Server("odd")

    async def tell(ctx: Context) -> str:
        with pytest.raises(TypeError, match=r"ctx\.progress: message "):
            ctx.progress(1, message=message)
        await asyncio.sleep(1)
        ctx.progress(2, message="x" * 100_000)
        await asyncio.sleep(1)
        return "done"

    def tell_plainly(ctx: Context) -> str:
        return ctx.wait(tell(ctx))

    server.tool(name="tell", task="allowed")(tell_plainly if plain else tell)
    client = Follower(asgi(server))
    task_id = await client.begin("tell")
    assert "statusMessage" not in await client.get(task_id)
    await asyncio.sleep(1.5)
    assert len((await client.get(task_id))["statusMessage"]) == 1000
    await asyncio.sleep(1)
    assert (await client.get(task_id))["status"] == "completed"
    ordinary = Follower(asgi(server), capabilities={})
    ordinary.meta["progressToken"] = 1
    assert (await ordinary.call("tell")).text == "done"


@pytest.mark.parametrize("end", ["cancel", "close", "max_age"])
@virtual_time
async def test_a_thread_that_waits_for_an_answer_is_freed_with_its_task(end: str) -> None:
    # TX-10: there are 40 threads; one lost with each task that is cancelled would stop the server
    errands = Errands(max_age=100)
    freed: list[str] = []

    @errands.server.tool(task="allowed")
    def block(ctx: Context) -> str:
        try:
            return ctx.wait(ctx.elicit("Who?", str)).value
        except BaseException as error:
            freed.append(type(error).__name__)
            raise

    client = Follower(errands.app)
    task_id = await client.begin("block")
    await settle()
    assert (await client.get(task_id))["status"] == "input_required"
    if end == "cancel":
        await client.cancel(task_id)
    elif end == "close":
        await errands.app.aclose()
    else:
        await asyncio.sleep(101)
    await settle()
    assert freed == ["CancelledError"]


@virtual_time
async def test_a_question_that_nobody_waits_for_ends_with_its_task(errands: Errands) -> None:
    # TX-08, TX-10
    asking: list[asyncio.Task[Any]] = []

    @errands.server.tool(task="allowed")
    async def leave(ctx: Context) -> str:
        await asyncio.sleep(1)
        asking.append(asyncio.create_task(ctx.elicit("Who?", str)))
        await asyncio.sleep(1)
        return "gone"

    client = Follower(errands.app)
    task_id = await client.begin("leave")
    await asyncio.sleep(3)
    assert (await client.get(task_id))["status"] == "completed"
    assert asking[0].cancelled()


class _Large:
    """What nobody should keep for the ttl of a task."""


@pytest.mark.parametrize("failure", [None, Fail(Reason.INVALID_PARAMS, "No."), ValueError("no")])
@virtual_time
async def test_a_task_that_has_ended_keeps_nothing_of_its_function(failure: Exception | None) -> None:
    server = Server("large")
    kept: list[weakref.ref[_Large]] = []

    @server.tool(task="allowed")
    async def hold() -> str:
        large = _Large()
        kept.append(weakref.ref(large))
        await asyncio.sleep(1)
        if failure is not None:
            raise type(failure)(*((failure.reason, failure.text) if isinstance(failure, Fail) else failure.args))
        return "done"

    client = Follower(asgi(server))
    task_id = await client.begin("hold")
    logging.disable()  # what records a failure keeps it
    gc.disable()
    try:
        await asyncio.sleep(2)
        assert [ref() for ref in kept] == [None], "kept, or left to the garbage collector"
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
    assert (await client.get(task_id))["status"] == ("failed" if failure else "completed")


@virtual_time
async def test_a_task_cancelled_at_any_turn_ends_once() -> None:
    # TX-10, TX-11: the answer and the cancellation at once
    seen: set[tuple[str, bool]] = set()
    for turns in range(14):
        server = Server("turns")
        ended: list[bool] = []

        @server.tool(task="allowed")
        async def ask(ctx: Context, ended: str = "") -> str:
            try:
                await asyncio.sleep(1)
                answer = await ctx.elicit("Who?", str, key="who")
                for _ in range(4):
                    await asyncio.sleep(0)
                return answer.value
            finally:
                _note(ctx)

        def _note(ctx: Context, ended: list[bool] = ended) -> None:
            ended.append(ctx.cancelled)

        client = Follower(asgi(server))
        task_id = await client.begin("ask")
        await asyncio.sleep(2)
        update = asyncio.create_task(client.update(task_id, who=accept(value="Ann")))
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.cancel(task_id)
        await update
        await settle()
        found = await client.get(task_id)
        assert len(ended) == 1
        assert (found["status"] == "completed") == ("result" in found) == (not ended[0])
        seen.add((found["status"], ended[0]))
    assert seen == {("cancelled", True), ("completed", False)}


@virtual_time
async def test_no_task_begins_when_the_server_ends(errands: Errands) -> None:
    # TX-06: its work would be stopped with the server, or go on after it
    client, session = Follower(errands.app), await connect(errands)
    waiting = session.begin("walk")  # without a call the session would end at once
    await client.begin("hold")
    errands.app.endpoint.drain()
    assert (await client.call("hold")).status == 503
    refused = await session.request("tools/call", {"name": "hold", "arguments": {}, "task": {}})
    assert "shutting down" in refused.error["message"]
    assert (await client.call("quick")).status == 503, "whoever drains takes nothing new"
    await session.delete()
    await waiting.end()
    await errands.app.aclose()
    await settle()
    assert len(asyncio.all_tasks()) == 1
    assert (await client.call("quick")).text == "at once", "the next request begins everything anew"


# Clients


@pytest.fixture
def errands() -> Errands:
    return Errands()


@virtual_time
async def test_a_tool_that_is_always_a_task_says_at_once_what_its_client_lacks(errands: Errands) -> None:
    # MR-05, TX-07: what is asked in rounds is asked, or refused, before there is a task
    client = Follower(errands.app, capabilities={"extensions": {TASKS: {}}})
    answer = await client.call("ask_first")
    assert (answer.status, answer.error["code"]) == (400, -32021)
    assert answer.error["data"] == {"requiredCapabilities": {"elicitation": {}}}


@pytest.mark.parametrize(("asked", "given"), [(10**400, 3_600_000), (-(10**400), 1000), (2**63, 3_600_000)])
@virtual_time
async def test_a_ttl_out_of_all_proportion_is_bounded_like_others(errands: Errands, asked: int, given: int) -> None:
    # TK-03
    session = await connect(errands)
    answer = await session.request("tools/call", {"name": "hold", "arguments": {}, "task": {"ttl": asked}})
    assert answer.result["task"]["ttl"] == given


@virtual_time
async def test_a_state_that_is_sent_again_makes_another_task(errands: Errands) -> None:
    # TX-07: a round that is sent again is a call of its own, unless single_use says otherwise
    client = Follower(errands.app)
    asked = (await client.call("ask_first")).result
    more: JSON = {"requestState": asked["requestState"], "inputResponses": {"who": accept(value="Ann")}}
    ids = [await client.begin("ask_first", **more) for _ in range(2)]
    await asyncio.sleep(2)
    assert len(set(ids)) == 2
    for task_id in ids:
        assert list((await client.get(task_id))["inputRequests"]) == ["other"]


@virtual_time
async def test_two_who_wait_for_a_result_are_asked_and_one_answer_is_enough(errands: Errands) -> None:
    # TK-05, TK-10
    session = await connect(errands)
    task_id = await create(session, "confirm")
    waiting = [session.start(session.make("tasks/result", {"taskId": task_id})) for _ in range(2)]
    questions = [await each.message() for each in waiting]
    assert (await session.respond(questions[1], accept(value=True))).status == 202
    for each in waiting:
        assert (await each.end()).messages[-1]["result"]["content"][0]["text"] == "yes: True"


@pytest.mark.parametrize("end", ["cancel", "leave", "delete"])
@virtual_time
async def test_what_waits_for_a_result_ends_in_every_way(errands: Errands, end: str) -> None:
    # TK-05, TK-07
    session = await connect(errands)
    task_id = await create(session, "confirm")
    waiting = session.start(session.make("tasks/result", {"taskId": task_id}))
    await waiting.message()
    if end == "cancel":
        await session.request("tasks/cancel", {"taskId": task_id})
        assert (await waiting.end()).messages[-1]["error"]["code"] == -32603
    elif end == "leave":
        await waiting.drop()
    else:
        await session.delete()
        await waiting.end()
    other = await connect(errands)
    status = "cancelled" if end == "cancel" else "input_required"
    assert (await other.request("tasks/get", {"taskId": task_id})).result["status"] == status
    job = errands.tasks._jobs[task_id]
    assert len(job.watchers) <= 1, "the session that created it, and nobody who has gone"


@virtual_time
async def test_a_thousand_tasks_leave_nothing() -> None:
    errands = Errands(Limits(max_tasks=5000), ttl=5)
    client = Follower(errands.app, capabilities=KNOWING)
    counts: list[int] = []
    for _ in range(3):
        for tool in ("must", "ask_first", "hold", "stumble"):
            for _ in range(25):
                created = (await client.call(tool)).result
                if tool == "hold":
                    await client.cancel(created["taskId"])
        await asyncio.sleep(20)
        await settle()
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert not errands.tasks._jobs
    assert errands.tasks._places.taken == 0
    assert len(asyncio.all_tasks()) == 1
    assert counts[2] - counts[1] < 50, counts
