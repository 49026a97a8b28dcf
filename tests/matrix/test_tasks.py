"""Tasks of the current protocol, over HTTP: what becomes one, what is said of it, and who may ask."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from asgi_driver import Client, make_meta
from errands import KNOWING, Errands, Follower
from oracles import TASKS
from rounds import accept
from virtual_time import settle, virtual_time

from callboard import Context, NeedInput, Outcome, Request, Server, Service, ToolError, asgi
from callboard.core.outcome import Deferred, Reply
from callboard.tasks import MemoryTasks

BARE: dict[str, Any] = {"elicitation": {"form": {}}}


@pytest.fixture
def errands() -> Errands:
    return Errands()


@virtual_time
async def test_it_is_offered_where_a_tool_may_be_a_task() -> None:
    # TX-01, TX-17, EX-01, EX-03
    with_tasks, without = Client(asgi(Errands().server)), Client(asgi(Server("plain")))
    capabilities = (await with_tasks.request("server/discover")).result["capabilities"]
    assert capabilities["extensions"] == {TASKS: {}}
    assert "tasks" not in capabilities
    assert "extensions" not in (await without.request("server/discover")).result["capabilities"]
    assert all("execution" not in tool for tool in (await with_tasks.request("tools/list")).result["tools"])


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@virtual_time
async def test_a_server_without_such_tools_has_none_of_its_methods(method: str) -> None:
    # EC-10, TX-14
    server = Server("plain")
    server.tool(name="plain")(lambda: "plain")
    answer = await Follower(asgi(server)).ask(method, "x", inputResponses={})
    assert (answer.status, answer.error["code"]) == (404, -32601)


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
@virtual_time
async def test_methods_of_2025_are_none_here(errands: Errands, method: str) -> None:
    # TX-14, TX-17
    client = Follower(errands.app)
    task_id = await client.begin("walk")
    answer = await client.ask(method, task_id)
    assert (answer.status, answer.error["code"]) == (404, -32601)


@virtual_time
async def test_work_that_takes_its_time_is_a_task(errands: Errands) -> None:
    # TX-03, TX-05, TX-06, TX-08
    client = Follower(errands.app)
    created = (await client.call("walk", {"seconds": 10})).result
    assert created["status"] == "working"
    assert created.keys() >= {"taskId", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
    assert not created.keys() & {"task", "ttl", "pollInterval", "result", "error", "inputRequests", "requestState"}
    found = await client.get(created["taskId"])
    assert (found["resultType"], found["status"], found["statusMessage"]) == ("complete", "working", "On the way.")
    await asyncio.sleep(11)
    assert (await client.get(created["taskId"]))["statusMessage"] == "Nearly there."
    await asyncio.sleep(11)
    ended = await client.get(created["taskId"])
    assert ended["status"] == "completed"
    assert ended["result"]["content"] == [{"type": "text", "text": "there"}]
    assert "statusMessage" not in ended
    assert "_meta" not in ended["result"]


@virtual_time
async def test_what_is_over_at_once_is_an_answer_unless_it_always_is_a_task(errands: Errands) -> None:
    # TX-03, TX-04
    client = Follower(errands.app)
    assert (await client.call("quick")).text == "at once"
    assert (await client.call("greet", {"name": "sep-2243"})).text == "Hello, sep-2243!"
    ended = await client.get(await client.begin("must"))
    assert (ended["status"], ended["result"]["structuredContent"]) == ("completed", {"n": 1})
    assert (await client.call("quick", {"wrong": 1})).result["isError"], "faulty arguments are answered at once"


@pytest.mark.parametrize(
    "capabilities",
    [
        pytest.param(BARE, id="says nothing"),
        pytest.param({"tasks": {"requests": {"tools": {"call": {}}}}}, id="those of 2025"),
        pytest.param({"extensions": {TASKS: None}}, id="null"),
    ],
)
@virtual_time
async def test_a_client_that_does_not_declare_it_gets_no_task(errands: Errands, capabilities: dict[str, Any]) -> None:
    """Scenario 47."""
    # TX-02, TX-17, EX-02
    client = Follower(errands.app, capabilities=capabilities)
    answer = await client.call("walk", {"seconds": 1}, task={"ttl": 1000})
    assert (answer.result["resultType"], answer.text) == ("complete", "there")
    refused = await client.call("must")
    assert (refused.status, refused.error["code"]) == (400, -32021)
    assert refused.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert "must" in refused.error["message"]


@virtual_time
async def test_each_request_declares_it_anew(errands: Errands) -> None:
    # TX-01, TX-02
    client = Client(errands.app)
    assert (await client.call("hold", meta=make_meta(KNOWING))).result["resultType"] == "task"
    errands.go.set()
    assert (await client.call("hold")).text == "held"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.parametrize("known", [True, False])
@virtual_time
async def test_the_methods_are_for_clients_that_declare_it(errands: Errands, method: str, known: bool) -> None:
    # TX-14, EX-02: before the id is looked up
    task_id = await Follower(errands.app).begin("walk") if known else "none"
    answer = await Follower(errands.app, capabilities=BARE).ask(method, task_id, inputResponses={})
    assert (answer.status, answer.error["code"]) == (400, -32021)
    assert answer.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@virtual_time
async def test_a_task_is_its_owners(errands: Errands, method: str) -> None:
    # TX-14, TX-16: somebody else's looks like one that never was
    mine = Follower(errands.app, "ann")
    task_id = await mine.begin("walk")
    refusals = []
    for client, asked in ((Follower(errands.app, "bob"), task_id), (Follower(errands.app), task_id), (mine, "0" * 50), (mine, "")):
        answer = await client.ask(method, asked, inputResponses={})
        refusals.append((answer.status, answer.error))
    assert refusals == [refusals[0]] * 4
    assert (refusals[0][0], refusals[0][1]["code"]) == (400, -32602)
    assert (await mine.get(task_id))["status"] == "working"


@virtual_time
async def test_ids_cannot_be_guessed(errands: Errands) -> None:
    # TX-16
    client = Follower(errands.app)
    ids = [await client.begin("must") for _ in range(50)]
    secrets = {task_id.rpartition("-")[2] for task_id in ids}
    assert len(secrets) == 50
    assert all(len(secret) == 32 for secret in secrets), "128 random bits"


@virtual_time
async def test_headers_mirror_the_id(errands: Errands) -> None:
    # HH-04, HH-08
    client = Client(errands.app)
    task_id = await Follower(errands.app).begin("walk")
    answer = await client.request("tasks/get", {"taskId": task_id}, meta=make_meta(KNOWING), mcp_name="other")
    assert (answer.status, answer.error["code"]) == (400, -32020)


@virtual_time
async def test_a_tools_own_failure_is_a_result(errands: Errands) -> None:
    # TX-09
    client = Follower(errands.app)
    task_id = await client.begin("stumble")
    await asyncio.sleep(1)
    ended = await client.get(task_id)
    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "error" not in ended


@virtual_time
async def test_a_protocol_error_fails_the_task(errands: Errands) -> None:
    # TX-08, TX-09
    client = Follower(errands.app)
    task_id = await client.begin("refuse")
    await asyncio.sleep(1)
    ended = await client.get(task_id)
    assert (ended["status"], ended["statusMessage"]) == ("failed", "Not that way.")
    assert ended["error"] == {"code": -32602, "message": "Not that way.", "data": {"way": 1}}
    assert "result" not in ended


@pytest.mark.parametrize("tool", ["break_down", "exit_process"])
@virtual_time
async def test_a_crash_is_masked_and_logged(errands: Errands, tool: str, caplog: pytest.LogCaptureFixture) -> None:
    client = Follower(errands.app)
    task_id = await client.begin(tool)
    with caplog.at_level(logging.ERROR, "callboard"):
        await asyncio.sleep(1)
    ended = await client.get(task_id)
    assert ended["error"]["code"] == -32603
    assert "secret" not in str(ended)
    assert tool in caplog.text


@virtual_time
async def test_the_policy_of_a_tool_holds_for_its_tasks(errands: Errands) -> None:
    client = Follower(errands.app)
    task_id = await client.begin("dawdle")
    await asyncio.sleep(5)
    ended = await client.get(task_id)
    assert "took longer than 5 s" in ended["result"]["content"][0]["text"]


@virtual_time
async def test_what_cannot_be_encoded_fails_the_task(errands: Errands) -> None:
    @errands.server.tool(task="allowed")
    async def odd() -> Any:
        await asyncio.sleep(1)
        return Reply({"odd": object()})

    @errands.server.tool(task="allowed")
    async def odder() -> Any:
        await asyncio.sleep(1)
        raise ToolError("x", structured={"odd": object()})

    client = Follower(errands.app)
    for tool in ("odd", "odder"):
        task_id = await client.begin(tool)
        await asyncio.sleep(1)
        assert (await client.get(task_id))["error"]["code"] == -32603


# Asking


@virtual_time
async def test_a_task_asks_and_its_function_goes_on_where_it_was(errands: Errands) -> None:
    # TX-08, TX-10
    client = Follower(errands.app)
    task_id = await client.begin("confirm")
    await asyncio.sleep(1)
    found = await client.get(task_id)
    assert found["status"] == "input_required"
    assert found["inputRequests"]["sure"]["method"] == "elicitation/create"
    assert "requestState" not in found
    await client.update(task_id, sure=accept(value=True), unknown=accept())
    ended = await client.get(task_id)
    assert (ended["status"], ended["result"]["content"][0]["text"]) == ("completed", "yes: True")
    await client.update(task_id, sure=accept(value=False))


@virtual_time
async def test_answers_may_come_one_by_one(errands: Errands) -> None:
    # TX-08, TX-11
    client = Follower(errands.app)
    task_id = await client.begin("both")
    await asyncio.sleep(1)
    assert (await client.get(task_id))["inputRequests"].keys() == {"first", "second"}
    await client.update(task_id, second=accept(value="b"))
    found = await client.get(task_id)
    assert (found["status"], list(found["inputRequests"])) == ("input_required", ["first"])
    await client.update(task_id, first=accept(value="a"))
    await settle()
    assert (await client.get(task_id))["result"]["structuredContent"] == ["a", "b"]


@virtual_time
async def test_an_answer_that_does_not_fit_is_asked_for_again_under_another_key(errands: Errands) -> None:
    # TX-12
    client = Follower(errands.app)
    task_id = await client.begin("confirm")
    await asyncio.sleep(1)
    await client.update(task_id, sure=accept(value="perhaps"))
    assert list((await client.get(task_id))["inputRequests"]) == ["sure#2"]
    await client.update(task_id, sure=accept(value=True))
    assert (await client.get(task_id))["status"] == "input_required"
    await client.update(task_id, **{"sure#2": accept(value=True)})
    assert (await client.get(task_id))["status"] == "completed"


@virtual_time
async def test_what_is_asked_before_anything_else_is_asked_in_rounds(errands: Errands) -> None:
    # TX-07, MR-01
    client = Follower(errands.app)
    first = (await client.call("ask_first")).result
    assert first["resultType"] == "input_required"
    assert "taskId" not in first
    answers = {"who": accept(value="Ann")}
    created = (await client.call("ask_first", inputResponses=answers, requestState=first["requestState"])).result
    assert created["resultType"] == "task"
    assert not created.keys() & {"requestState", "inputRequests"}
    await asyncio.sleep(1)
    found = await client.get(created["taskId"])
    assert list(found["inputRequests"]) == ["other"]
    await client.update(created["taskId"], other=accept(value="Bob"))
    assert (await client.get(created["taskId"]))["result"]["content"][0]["text"] == "Ann, Bob, 1"


@virtual_time
async def test_a_task_cannot_ask_for_what_its_client_did_not_declare(errands: Errands) -> None:
    # MR-05
    client = Follower(errands.app, capabilities={"extensions": {TASKS: {}}})
    task_id = await client.begin("confirm")
    await asyncio.sleep(1)
    ended = await client.get(task_id)
    assert ended["error"]["code"] == -32021
    assert ended["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}


@pytest.mark.parametrize("responses", [1, {"sure": 1}, None])
@virtual_time
async def test_responses_are_objects(errands: Errands, responses: Any) -> None:
    client = Follower(errands.app)
    task_id = await client.begin("confirm")
    answer = await client.ask("tasks/update", task_id, inputResponses=responses)
    assert (answer.status, answer.error["code"]) == (400, -32602)


# The end


@pytest.mark.parametrize("stubborn", [False, True])
@virtual_time
async def test_a_cancelled_task_is_stopped_and_what_comes_later_is_dropped(errands: Errands, stubborn: bool) -> None:
    # TX-10
    client = Follower(errands.app)
    task_id = await client.begin("hold", {"stubborn": stubborn})
    await client.cancel(task_id)
    await settle()
    assert errands.seen == [("begun", False), ("stopped", True)]
    ended = await client.get(task_id)
    assert ended["status"] == "cancelled"
    assert not ended.keys() & {"result", "error", "inputRequests"}
    await client.cancel(task_id)
    assert await client.get(task_id) == ended


@virtual_time
async def test_a_task_that_asks_can_be_cancelled(errands: Errands) -> None:
    # TX-10
    client = Follower(errands.app)
    task_id = await client.begin("confirm")
    await asyncio.sleep(1)
    await client.cancel(task_id)
    await client.update(task_id, sure=accept(value=True))
    assert (await client.get(task_id))["status"] == "cancelled"


@virtual_time
async def test_a_client_that_leaves_before_there_is_a_task_stops_the_call(errands: Errands) -> None:
    client = Client(errands.app)
    async with client.open("tools/call", {"name": "hold", "arguments": {}}, meta=make_meta(KNOWING)) as exchange:
        exchange.disconnect()
        await exchange.gone()
    await settle()
    assert ("begun", False) in errands.seen
    assert errands.tasks._places.taken in {0, 1}


@virtual_time
async def test_layers_see_a_call_that_became_a_task_as_deferred() -> None:
    outcomes: list[str] = []

    def layer(inner: Service) -> Service:
        async def serve(request: Request, ctx: Any) -> Outcome:
            outcome = await inner(request, ctx)
            outcomes.append(f"{request.method} {type(outcome).__name__}")
            return outcome

        return serve

    server = Server("layered", middleware=[layer])

    @server.tool(task="allowed")
    async def walk() -> str:
        await asyncio.sleep(10)
        return "there"

    client = Follower(asgi(server))
    task_id = await client.begin("walk")
    await client.get(task_id)
    assert outcomes == [f"tools/call {Deferred.__name__}", "tasks/get Reply"]


# Whatever mode a tool was written in


class Reindex:
    """Index anew."""

    task = "allowed"

    async def execute(self, shelves: int, ctx: Context) -> str:
        await asyncio.sleep(1)
        answer = await ctx.elicit("Publish?", bool, key="publish")
        return f"{shelves} {answer.value}"


def by_class(server: Server) -> str:
    server.add(Reindex)
    return "reindex"


def by_mount(server: Server) -> str:
    child = Server("child")
    server.mount("kid", child)
    child.add(Reindex)
    return "kid_reindex"


def by_provider(server: Server) -> str:
    server.provide(lambda _ctx: [Reindex])
    return "reindex"


@pytest.mark.parametrize("add", [by_class, by_mount, by_provider])
@virtual_time
async def test_every_kind_of_tool_can_be_a_task(add: Callable[[Server], str]) -> None:
    server = Server("modes", tasks=MemoryTasks())
    tool = add(server)
    client = Follower(asgi(server))
    task_id = await client.begin(tool, {"shelves": 3})
    await asyncio.sleep(1)
    await client.update(task_id, publish=accept(value=True))
    ended = await client.get(task_id)
    assert ended["result"]["content"][0]["text"] == "3 True"
    assert (await client.call(tool, {})).result["isError"]


@virtual_time
async def test_what_is_asked_by_hand_is_asked_by_the_task() -> None:
    server = Server("by hand")

    @server.tool(task="allowed")
    async def confirm(ctx: Context) -> Any:
        await asyncio.sleep(1)
        if ctx.input is None:
            return NeedInput({"sure": {"method": "roots/list", "params": {}}}, state={"n": 1})
        return f"{ctx.input.state} {ctx.input.responses}"

    client = Follower(asgi(server))
    task_id = await client.begin("confirm")
    await asyncio.sleep(1)
    found = await client.get(task_id)
    assert found["inputRequests"] == {"sure": {"method": "roots/list", "params": {}}}
    await client.update(task_id, sure={"roots": []})
    await asyncio.sleep(1)
    assert (await client.get(task_id))["result"]["content"][0]["text"] == "{'n': 1} {'sure': {'roots': []}}"


@virtual_time
async def test_refusals_before_the_function_are_no_tasks() -> None:
    server = Server("limited")

    @server.tool(task="always", rate=(1, 60))
    async def once() -> str:
        return "once"

    client = Follower(asgi(server))
    await client.begin("once")
    assert (await client.call("once")).status == 429
