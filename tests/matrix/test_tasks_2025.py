"""Tasks of 2025-11-25: asked for by the client, with methods of their own; and how other versions know nothing of them."""

import asyncio
from typing import Any

import pytest
from asgi_driver import JSON, Client
from errands import Errands, Follower, principal
from legacy_driver import RELATED, V11, VERSIONS, Answer, Legacy, Session
from oracles import TASKS, shared_schema, validate
from rounds import accept
from virtual_time import settle, virtual_time

from callboard import Context, Fail, Outcome, Request, Server, Service, asgi, text, types

FORMS: JSON = {"elicitation": {"form": {}}}


@pytest.fixture
def errands() -> Errands:
    return Errands()


async def connect(errands: Errands, who: str | None = None, version: str = V11) -> Session:
    """A session of a client that answers forms."""
    return await Legacy(errands.app, version, state={"principal": who}).connect(capabilities=FORMS)


async def create(session: Session, tool: str, arguments: JSON | None = None, **task: Any) -> Answer:
    """Call a tool as a task."""
    return await session.request("tools/call", {"name": tool, "arguments": arguments or {}, "task": task})


async def begin(session: Session, tool: str, arguments: JSON | None = None, **task: Any) -> str:
    """Call a tool as a task; the task's id."""
    created = (await create(session, tool, arguments, **task)).result
    assert created["task"]["status"] == "working"
    assert created["_meta"] == {RELATED: {"taskId": created["task"]["taskId"]}}  # TK-06
    task_id: str = created["task"]["taskId"]
    return task_id


async def get(session: Session, task_id: str) -> JSON:
    """How a task stands."""
    return (await session.request("tasks/get", {"taskId": task_id})).result


# What is offered


@virtual_time
async def test_it_is_offered_in_its_words_alone(errands: Errands) -> None:
    # TK-01, TK-09, TX-17, EX-05
    session, owned = await connect(errands), await connect(errands, "ann")
    assert session.opening["capabilities"]["tasks"] == {"requests": {"tools": {"call": {}}}, "cancel": {}}
    assert owned.opening["capabilities"]["tasks"] == {"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}}
    assert "extensions" not in session.opening["capabilities"]
    tools = {tool["name"]: tool.get("execution") for tool in (await session.request("tools/list")).result["tools"]}
    assert (tools["greet"], tools["walk"], tools["must"]) == (None, {"taskSupport": "optional"}, {"taskSupport": "required"})


@pytest.mark.parametrize("version", VERSIONS[:2])
@virtual_time
async def test_older_versions_know_nothing_of_it(errands: Errands, version: str) -> None:
    # TK-01, TK-03
    session = await connect(errands, "ann", version)
    assert "tasks" not in session.opening["capabilities"]
    assert all("execution" not in tool for tool in (await session.request("tools/list")).result["tools"])
    answer = await create(session, "quick", ttl=1000)
    assert answer.text == "at once"
    task_id = await begin(await connect(errands, "ann"), "hold")
    for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
        assert (await session.request(method, {"taskId": task_id})).error["code"] == -32601
    refused = await session.call("must")
    assert refused.error["code"] == -32601
    assert "must" in refused.error["message"]


@virtual_time
async def test_a_server_without_such_tools_ignores_what_asks_for_a_task() -> None:
    # TK-03, EC-10
    server = Server("plain")

    @server.tool
    async def greet() -> str:
        return "hello"

    session = await Legacy(asgi(server)).connect()
    assert "tasks" not in session.opening["capabilities"]
    answer = await session.request("tools/call", {"name": "greet", "task": {"ttl": "no number"}})
    assert answer.text == "hello"
    for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
        assert (await session.request(method)).error["code"] == -32601


@virtual_time
async def test_a_client_that_declares_the_extension_has_not_declared_it_here(errands: Errands) -> None:
    # TX-17
    session = await Legacy(errands.app).connect(capabilities={"extensions": {TASKS: {}}})
    exchange = session.begin("hold")
    errands.go.set()
    assert (await exchange.end()).text == "held"


# How a call becomes one


@virtual_time
async def test_a_call_that_asks_for_it_is_a_task_at_once(errands: Errands) -> None:
    # TK-03, TK-04
    session = await connect(errands)
    created = (await create(session, "quick", ttl=60_000)).result["task"]
    assert created.keys() == {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
    assert (created["ttl"], created["pollInterval"]) == (60_000, 1000)
    await settle()
    assert (await get(session, created["taskId"]))["status"] == "completed"


@pytest.mark.parametrize(("asked", "given"), [(None, 3_600_000), (10**9, 3_600_000), (0, 1000), (-5, 1000), (7000, 7000)])
@virtual_time
async def test_the_server_decides_how_long_it_is_kept(errands: Errands, asked: int | None, given: int) -> None:
    # TK-03
    session = await connect(errands)
    answer = await create(session, "hold", None, **({} if asked is None else {"ttl": asked}))
    assert answer.result["task"]["ttl"] == given


@pytest.mark.parametrize("task", [1, [], {"ttl": "long"}, {"ttl": 1.5}])
@virtual_time
async def test_what_asks_for_it_in_no_way_that_it_can_be_asked_for_is_refused(errands: Errands, task: Any) -> None:
    session = await connect(errands)
    answer = await session.request("tools/call", {"name": "walk", "task": task})
    assert answer.error["code"] == -32602
    assert (await session.request("tools/call", {"name": "quick", "task": None})).text == "at once"


@virtual_time
async def test_a_tool_says_whether_it_may_be_one(errands: Errands) -> None:
    # TK-02
    session = await connect(errands)
    for answer in (await create(session, "greet"), await session.call("must"), await session.call("stumble")):
        assert (answer.status, answer.error["code"]) == (200, -32601)
    assert (await session.call("quick")).text == "at once"
    assert (await session.call("greet", {"name": "task"})).text == "Hello, task!", "the word in the arguments means nothing"


# The methods


@virtual_time
async def test_the_result_is_waited_for_and_is_that_of_the_call(errands: Errands) -> None:
    # TK-05, TK-06
    session = await connect(errands)
    task_id = await begin(session, "walk", {"seconds": 100})
    exchange = session.start(session.make("tasks/result", {"taskId": task_id}))
    await asyncio.sleep(150)
    assert not exchange.ended, "longer than a request may take otherwise"
    assert (await get(session, task_id))["statusMessage"] == "Nearly there."
    await asyncio.sleep(100)
    answer = await exchange.end()
    assert answer.result == {"content": [{"type": "text", "text": "there"}], "_meta": {RELATED: {"taskId": task_id}}}
    again = await session.request("tasks/result", {"taskId": task_id})
    assert (again.result, again.is_stream) == (answer.result, False)


@virtual_time
async def test_a_result_is_lowered_like_that_of_any_call(errands: Errands) -> None:
    # TK-05, TL-07
    @errands.server.tool(task="allowed")
    async def listing() -> list[int]:
        return [1, 2**70]

    @errands.server.tool(task="allowed")
    async def own_meta() -> types.CallToolResult:
        return types.CallToolResult(content=[text("x")], meta={"com.example/a": 1})

    session = await connect(errands)
    answer = await session.request("tasks/result", {"taskId": await begin(session, "listing")})
    assert answer.result["structuredContent"] == {"result": [1, 2**70]}
    answer = await session.request("tasks/result", {"taskId": (task_id := await begin(session, "own_meta"))})
    assert answer.result["_meta"] == {"com.example/a": 1, RELATED: {"taskId": task_id}}


@virtual_time
async def test_a_tools_own_failure_fails_the_task(errands: Errands) -> None:
    # TK-04, TK-05
    session = await connect(errands)
    task_id = await begin(session, "stumble")
    answer = await session.request("tasks/result", {"taskId": task_id})
    assert (answer.result["isError"], answer.text) == (True, "It fell.")
    assert (await get(session, task_id))["status"] == "failed"


@virtual_time
async def test_an_error_comes_as_it_is(errands: Errands) -> None:
    # TK-05
    session = await connect(errands)
    task_id = await begin(session, "refuse")
    answer = await session.request("tasks/result", {"taskId": task_id})
    assert answer.error == {"code": -32602, "message": "Not that way.", "data": {"way": 1}}
    found = await get(session, task_id)
    assert (found["status"], found["statusMessage"]) == ("failed", "Not that way.")


@virtual_time
async def test_a_task_is_cancelled_once(errands: Errands) -> None:
    # TK-07
    session = await connect(errands)
    task_id = await begin(session, "hold", {"stubborn": True})
    await settle()
    waiting = session.start(session.make("tasks/result", {"taskId": task_id}))
    await settle()
    cancelled = (await session.request("tasks/cancel", {"taskId": task_id})).result
    assert (cancelled["taskId"], cancelled["status"]) == (task_id, "cancelled")
    assert (await waiting.end()).error["code"] == -32603
    await settle()
    assert errands.seen == [("begun", False), ("stopped", True)]
    assert (await get(session, task_id))["status"] == "cancelled"
    for ended in (task_id, await begin(session, "quick")):
        await settle()
        answer = await session.request("tasks/cancel", {"taskId": ended})
        assert (answer.status, answer.error["code"]) == (200, -32602)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@virtual_time
async def test_a_task_is_its_owners(errands: Errands, method: str) -> None:
    # TK-08, TK-09
    session = await connect(errands, "ann")
    task_id = await begin(session, "hold")
    answers = []
    for who, asked in (("ann", "none"), ("bob", task_id), (None, task_id)):
        answer = await (await connect(errands, who)).request(method, {"taskId": asked})
        answers.append(answer.error)
    assert answers == [answers[0]] * 3
    assert answers[0]["code"] == -32602
    assert (await get(await connect(errands, "ann"), task_id))["status"] == "working", "a session of the same principal sees it"


@virtual_time
async def test_tasks_are_listed_for_their_owner(errands: Errands) -> None:
    # TK-08, TK-09, PG-01
    session = await connect(errands, "ann")
    await begin(await connect(errands, "bob"), "hold")
    ids = [await begin(session, "quick") for _ in range(60)]
    await settle()
    first = (await session.request("tasks/list")).result
    rest = (await session.request("tasks/list", {"cursor": first["nextCursor"]})).result
    assert [task["taskId"] for task in (*first["tasks"], *rest["tasks"])] == ids
    assert "nextCursor" not in rest
    assert (await session.request("tasks/list", {"cursor": "none"})).error["code"] == -32602
    assert (await (await connect(errands)).request("tasks/list")).error["code"] == -32601


# Asking


@virtual_time
async def test_what_a_task_asks_comes_on_the_stream_of_its_result(errands: Errands) -> None:
    # TK-04, TK-06, TK-10
    session = await connect(errands)
    task_id = await begin(session, "both")
    await asyncio.sleep(2)
    assert (await get(session, task_id))["status"] == "input_required"
    exchange = session.start(session.make("tasks/result", {"taskId": task_id}))
    for _ in range(2):
        question = await exchange.message()
        assert question["method"] == "elicitation/create"
        assert question["params"]["_meta"] == {RELATED: {"taskId": task_id}}
        await session.respond(question, accept(value=question["params"]["message"].upper()))
    answer = await exchange.end()
    assert answer.messages[-1]["result"]["structuredContent"] == {"result": ["FIRST?", "SECOND?"]}


@virtual_time
async def test_a_result_that_is_asked_for_again_asks_again(errands: Errands) -> None:
    # TK-10
    session = await connect(errands)
    task_id = await begin(session, "confirm")
    first = session.start(session.make("tasks/result", {"taskId": task_id}))
    lost = await first.message()
    await session.cancel(next(call.id for call in _calls(session)))
    await first.end()
    second = session.start(session.make("tasks/result", {"taskId": task_id}))
    question = await second.message()
    assert question["id"] != lost["id"]
    await session.respond(question, accept(value=True))
    assert (await second.end()).messages[-1]["result"]["content"][0]["text"] == "yes: True"


def _calls(session: Session) -> Any:
    """Calls in flight of the only session there is."""
    app: Any = session.client.app
    (actor,) = app.endpoint.older.table(app.endpoint.mount).sessions.values()
    return list(actor.machine.calls.values())


@virtual_time
async def test_a_client_that_refuses_fails_the_question(errands: Errands) -> None:
    session = await connect(errands)
    task_id = await begin(session, "confirm")
    exchange = session.start(session.make("tasks/result", {"taskId": task_id}))
    await session.respond(await exchange.message(), error={"code": -1, "message": "Nobody is here."})
    answer = (await exchange.end()).messages[-1]["result"]
    assert (answer["isError"], answer["content"][0]["text"]) == (True, "Nobody is here.")


@virtual_time
async def test_a_client_that_does_not_answer_in_time_fails_the_question(errands: Errands) -> None:
    session = await connect(errands)
    task_id = await begin(session, "confirm")
    exchange = session.start(session.make("tasks/result", {"taskId": task_id}))
    await asyncio.sleep(310)
    assert (await exchange.end()).messages[-1]["result"]["isError"]


@virtual_time
async def test_a_client_that_takes_no_stream_is_not_asked_until_it_does(errands: Errands) -> None:
    session = await connect(errands)
    task_id = await begin(session, "confirm")
    plain = session.start(session.make("tasks/result", {"taskId": task_id}), accept="application/json")
    await asyncio.sleep(61)
    assert (await plain.end()).error["code"] == -32603, "the time limit of any request (request_timeout)"
    exchange = session.start(session.make("tasks/result", {"taskId": task_id}))
    await session.respond(await exchange.message(), accept(value=True))
    assert (await exchange.end()).messages[-1]["result"]["content"][0]["text"] == "yes: True"


@virtual_time
async def test_a_function_that_asks_first_is_a_task_that_asks(errands: Errands) -> None:
    # TK-04
    session = await connect(errands)
    task_id = await begin(session, "ask_first")
    exchange = session.start(session.make("tasks/result", {"taskId": task_id}))
    for name in ("Ann", "Bob"):
        await session.respond(await exchange.message(), accept(value=name))
    assert (await exchange.end()).messages[-1]["result"]["content"][0]["text"] == "Ann, Bob, 1"


# What is told unasked


@virtual_time
async def test_the_session_hears_how_its_tasks_stand(errands: Errands) -> None:
    # TK-10
    session = await connect(errands)
    async with session.listen() as channel:
        task_id = await begin(session, "walk", {"seconds": 5})
        await asyncio.sleep(11)
        notes = [note for note in channel.untaken if note["method"] == "notifications/tasks/status"]
        assert [(note["params"]["status"], note["params"].get("statusMessage")) for note in notes] == [
            ("working", "On the way."),
            ("working", "Nearly there."),
            ("completed", None),
        ]
        assert all(note["params"]["taskId"] == task_id and "_meta" not in note["params"] for note in notes)
    await begin(session, "walk", {"seconds": 5})
    await session.delete()
    await asyncio.sleep(11)


@virtual_time
async def test_a_task_outlives_its_session(errands: Errands) -> None:
    # TK-09
    session = await connect(errands, "ann")
    task_id = await begin(session, "walk", {"seconds": 5})
    await session.delete()
    await asyncio.sleep(11)
    assert (await get(await connect(errands, "ann"), task_id))["status"] == "completed"
    assert (await Follower(errands.app, "ann").get(task_id))["status"] == "completed", "and is the same for every client of its owner"


@virtual_time
async def test_without_sessions_too(errands: Errands) -> None:
    # TK-03, TK-05
    client = Legacy(asgi(errands.server, sessions="off", principal=principal))
    opened = await client.initialize()
    assert "tasks" in opened.opening["capabilities"]
    session = client.sessionless()
    task_id = await begin(session, "walk", {"seconds": 1})
    assert (await session.request("tasks/result", {"taskId": task_id})).text == "there"


@virtual_time
async def test_layers_see_the_methods(errands: Errands) -> None:
    seen: list[str] = []

    def layer(inner: Service) -> Service:
        async def serve(request: Request, ctx: Context) -> Outcome:
            seen.append(request.method)
            return Fail.custom(1, "Not now.") if request.method == "tasks/get" else await inner(request, ctx)

        return serve

    server = Server("layered", middleware=[layer])

    @server.tool(task="allowed")
    async def walk() -> str:
        return "there"

    session = await Legacy(asgi(server)).connect()
    task_id = await begin(session, "walk")
    assert (await session.request("tasks/get", {"taskId": task_id})).error["code"] == 1
    await session.request("tasks/result", {"taskId": task_id})
    assert seen == ["tools/call", "tasks/get", "tasks/result"]


@shared_schema
@virtual_time
async def test_what_is_offered_is_valid_by_the_schema(errands: Errands) -> None:
    # TK-01, TK-02
    session = await connect(errands, "ann")
    validate("InitializeResult", session.opening, V11)
    validate("ListToolsResult", (await session.request("tools/list")).result, V11)
    assert "tools" in (await Client(errands.app).request("server/discover")).result["capabilities"]
