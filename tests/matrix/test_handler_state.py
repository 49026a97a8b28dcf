"""A handler's state over HTTP: threaded by what callbacks return, in sessions and without."""

import asyncio
import json
from typing import Any

import pytest
from asgi_driver import Client, make_meta
from handlers import Counter
from legacy_driver import VERSIONS, Legacy, Session, ends
from msgspec import Struct
from virtual_time import virtual_time

from callboard import RegistrationError, Server, asgi
from callboard.compose import endpoint
from callboard.errors import Fail
from callboard.handler import Channel, Handler, Hello, Reply, Stop
from callboard.limits import Limits
from callboard.transport.memory import connect
from callboard.wire.jsonrpc import encode


async def counted(session: Session, tool: str = "look", **more: Any) -> int:
    """The number that a tool says."""
    return int((await session.call(tool, **more)).text)


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_calls_of_one_session_count_on(version: str) -> None:
    """Scenario 1."""
    session = await Legacy(asgi(Counter()), version).connect()
    assert [await counted(session, "bump") for _ in range(3)] == [1, 2, 3]


@virtual_time
async def test_without_sessions_every_call_begins_anew() -> None:
    """Scenario 2, on a stateless endpoint and on the current protocol."""
    counter = Counter()
    session = Legacy(asgi(counter, sessions="off")).sessionless()
    client = Client(asgi(counter))
    assert [await counted(session, "bump") for _ in range(3)] == [1, 1, 1]
    assert [(await client.call("bump")).text for _ in range(3)] == ["1", "1", "1"]
    assert len(counter.hellos) == 6
    assert counter.over == []


@pytest.mark.parametrize("tool", ["fail", "refuse"])
@virtual_time
async def test_a_failure_of_its_own_keeps_the_state_that_it_gives(tool: str) -> None:
    """Scenario 3."""
    session = await Legacy(asgi(Counter())).connect()
    answer = await session.call(tool)
    if tool == "fail":
        assert (answer.result["isError"], answer.text) == (True, "Out of numbers.")
    else:
        assert (answer.error["code"], answer.error["message"]) == (-32602, "Not today.")
    assert await counted(session) == 1


@pytest.mark.parametrize("tool", ["crash", "nonsense", "quit"])
@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_what_a_crash_gives_is_dropped(tool: str, token: str | None) -> None:
    """Scenarios 4 and 25; a return that is no result is a crash too."""
    session = await Legacy(asgi(Counter())).connect()
    assert await counted(session, "bump") == 1
    answer = await session.call(tool, token=token)
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert b"hunter2" not in answer.body
    assert await counted(session) == 1


@virtual_time
async def test_a_streaming_call_writes_nothing_back() -> None:
    """Scenario 5."""
    session = await Legacy(asgi(Counter())).connect()
    assert await counted(session, "bump", token="t") == 1
    assert await counted(session) == 0


@virtual_time
async def test_a_streaming_call_runs_at_once_on_what_was_there() -> None:
    """Scenario 6."""
    counter = Counter()
    session = await Legacy(asgi(counter)).connect()
    buffered = session.begin("slow")
    streamed = session.begin("slow", {"seconds": 1}, token="t")
    assert [answer.text for answer in await ends([streamed, buffered])] == ["1", "1"]
    assert counter.most == 2
    assert await counted(session) == 1


@pytest.mark.parametrize("accept", ["application/json", None])
@virtual_time
async def test_a_call_that_wants_progress_but_takes_no_stream_queues(accept: str | None) -> None:
    """It is decided on arrival, by what its client takes."""
    counter = Counter()
    session = await Legacy(asgi(counter, json_only=accept is None)).connect()
    headers: dict[str, Any] = {} if accept is None else {"accept": accept}
    calls = [session.begin("slow", token=number, **headers) for number in range(2)]
    assert [answer.text for answer in await ends(calls)] == ["1", "2"]
    assert counter.most == 1


@virtual_time
async def test_calls_run_in_the_order_of_arrival_and_pings_pass_them() -> None:
    """Scenario 7; lists queue with the calls, for they see the state too."""
    counter = Counter()
    session = await Legacy(asgi(counter)).connect()
    calls = [session.begin("slow") for _ in range(5)]
    assert (await session.request("ping")).result == {}
    assert not any(call.ended for call in calls)
    assert [answer.text for answer in await ends(calls)] == ["1", "2", "3", "4", "5"]
    assert (counter.most, counter.ran) == (1, [0, 1, 2, 3, 4])


# How sessions begin and end


@virtual_time
async def test_init_sees_who_begins_a_session_once() -> None:
    counter = Counter()
    app = asgi(counter, options=lambda caller: {"user": (caller.headers or {})["x-user"]})
    session = await Legacy(app, headers={"x-user": "ada"}).connect(capabilities={"roots": {}})
    await session.call("bump")
    (hello,) = counter.hellos
    assert (hello.session_id, hello.version, hello.capabilities) == (session.id, session.version, {"roots": {}})
    assert (hello.options, hello.params["clientInfo"]["name"]) == ({"user": "ada"}, "tester")
    assert session.opening["serverInfo"]["name"] == "counter"
    assert session.opening["instructions"] == "Count."
    assert session.opening["capabilities"]["tools"] == {"listChanged": True}


class Identified(Handler[dict[str, Any]]):
    """Acts for whoever began the session, whatever is sent later."""

    def init(self, hello: Hello) -> dict[str, Any]:
        return {"user": hello.options["user"], "calls": 0}

    def list_tools(self, ctx: Channel, state: dict[str, Any]) -> list[Any]:
        return [{"name": "whoami"}]

    def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: dict[str, Any]) -> Any:
        return Reply(f"{state['user']} {state['calls']}", state={**state, "calls": state["calls"] + 1})


@virtual_time
async def test_identity_is_bound_at_initialize() -> None:
    app = asgi(Identified, options=lambda caller: {"user": (caller.headers or {})["authorization"]})
    client = Legacy(app, headers={"authorization": "ada"})
    session = await client.connect()
    assert (await session.call("whoami")).text == "ada 0"
    client.headers["authorization"] = "mallory"
    assert (await session.call("whoami")).text == "ada 1"


@pytest.mark.parametrize("begin", [ValueError("hunter2"), Stop("no seats"), Fail.custom(7, "Closed on Sundays.")])
@virtual_time
async def test_a_session_whose_init_fails_never_begins(begin: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 34, of init."""
    counter = Counter(begin)
    app = asgi(counter, limits=Limits(max_sessions=1))
    for _ in range(2):
        answer = await Legacy(app).try_initialize()
        assert "mcp-session-id" not in answer.headers
        assert b"hunter2" not in answer.body
        assert b"seats" not in answer.body
        expected = {ValueError: (500, -32603), Stop: (200, -32603), Fail: (200, 7)}[type(begin)]
        assert (answer.status, answer.error["code"]) == expected
    counter.begin = 5
    assert await counted(await Legacy(app).connect()) == 5
    assert counter.over == []


@pytest.mark.parametrize("begin", [ValueError("hunter2"), Stop("no seats")])
@virtual_time
async def test_a_request_whose_init_fails_is_refused(begin: Any) -> None:
    answer = await Client(asgi(Counter(begin))).call("bump")
    assert (answer.status, answer.error["code"]) == (500 if isinstance(begin, Exception) else 200, -32603)
    assert b"hunter2" not in answer.body
    assert b"seats" not in answer.body


@virtual_time
async def test_places_are_taken_while_init_is_at_work() -> None:
    class Slow(Counter):
        async def init(self, hello: Hello) -> int:
            await asyncio.sleep(1)
            return 1

    app = asgi(Slow(), limits=Limits(max_sessions=1))
    answers = await asyncio.gather(*(Legacy(app).try_initialize() for _ in range(3)))
    assert sorted(answer.status for answer in answers) == [200, 503, 503]


@virtual_time
async def test_an_id_can_not_be_taken_while_init_is_at_work() -> None:
    class Slow(Counter):
        async def init(self, hello: Hello) -> int:
            await asyncio.sleep(1)
            return 1

    app = asgi(Slow(), session_id=lambda: "same")
    answers = await asyncio.gather(*(Legacy(app).try_initialize() for _ in range(3)))
    assert sorted("mcp-session-id" in answer.headers for answer in answers) == [False, False, True]


@pytest.mark.parametrize(("tool", "reason", "count"), [("stop", "secret reason", 1), ("say", "said bye", 2)])
@virtual_time
async def test_stop_ends_the_session_after_the_answer(tool: str, reason: str, count: int) -> None:
    counter = Counter()
    app = asgi(counter)
    session = await Legacy(app).connect()
    await session.call("bump")
    answer = await session.call(tool)
    if tool == "stop":
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert b"secret" not in answer.body
    else:
        assert answer.text == "bye"
    await asyncio.sleep(1)
    assert counter.over == [(reason, count)]
    assert (await session.call("look")).status == 404


@virtual_time
async def test_stop_frees_calls_that_wait() -> None:
    counter = Counter()
    session = await Legacy(asgi(counter)).connect()
    calls = [session.begin(tool) for tool in ("slow", "say", "bump")]
    first, second, third = await ends(calls)
    assert (first.text, second.text) == ("1", "bye")
    assert third.error["code"] == -32603
    assert counter.over == [("said bye", 2)]


@virtual_time
async def test_without_a_session_stop_has_nobody_to_terminate() -> None:
    counter = Counter()
    client = Client(asgi(counter))
    stopped, said = await client.call("stop"), await client.call("say")
    assert (stopped.error["code"], said.text) == (-32603, "bye")
    assert counter.over == []


@virtual_time
async def test_middleware_sees_why_a_request_was_stopped() -> None:
    reasons: list[str | None] = []

    class Watched(Counter):
        @staticmethod
        def layer(service: Any) -> Any:
            async def watch(request: Any, ctx: Any) -> Any:
                outcome = await service(request, ctx)
                reasons.append(ctx.stop_reason)
                return outcome

            return watch

        middleware = (layer,)

    client = Client(asgi(Watched()))
    for tool in ("bump", "stop", "say"):
        await client.call(tool)
    assert reasons == [None, "secret reason", "said bye"]


@virtual_time
async def test_a_tool_function_ends_its_session_too() -> None:
    over: list[str] = []
    server = Server("desk", terminate=lambda reason, state: over.append(reason))

    @server.tool
    async def leave() -> Any:
        return Reply("bye", stop_reason="left")

    session = await Legacy(asgi(server)).connect()
    assert (await session.call("leave")).text == "bye"
    await asyncio.sleep(1)
    assert over == ["left"]
    assert (await Client(asgi(server)).call("leave")).text == "bye"


@virtual_time
async def test_a_pipe_whose_session_was_stopped_is_told_so() -> None:
    counter = Counter()
    connection = await connect(endpoint(counter))
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    answers = []
    for number, (method, params) in enumerate([("initialize", hello), *(("tools/call", {"name": name}) for name in ("say", "bump"))]):
        await connection.send(encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        answers.append(json.loads(await connection.receive()))
    assert answers[1]["result"]["content"][0]["text"] == "bye"
    assert answers[2]["error"]["code"] == -32603
    await connection.aclose()
    assert counter.over == [("said bye", 1)]


@virtual_time
async def test_deleted_sessions_are_terminated_once() -> None:
    counter = Counter()
    session = await Legacy(asgi(counter)).connect()
    await session.call("bump")
    await session.delete()
    assert (await session.delete()).status == 404
    assert counter.over == [("deleted", 1)]


# What a state can be


class Cart(Struct):
    """What a session keeps, as bytes."""

    items: list[str] = []


class Shop(Handler[Cart]):
    """Changes the copy that it is given."""

    over: list[Cart]

    def list_tools(self, ctx: Channel, state: Cart) -> list[Any]:
        return [{"name": name} for name in ("add", "add_and_crash", "replace")]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Cart) -> Any:
        state.items.append(arguments["item"])
        if name == "add_and_crash":
            raise ValueError
        if name == "replace":
            return Reply("ok", state=Cart([arguments["item"]]))
        return ", ".join(state.items)


@virtual_time
async def test_a_declared_state_is_a_copy_for_each_call() -> None:
    session = await Legacy(asgi(Shop)).connect()
    assert (await session.call("add", {"item": "a"})).text == "a"
    assert (await session.call("add_and_crash", {"item": "b"})).error["code"] == -32603
    assert (await session.call("add", {"item": "c"})).text == "a, c"
    assert (await session.call("replace", {"item": "d"})).text == "ok"
    assert (await session.call("add", {"item": "e"})).text == "d, e"


@virtual_time
async def test_a_state_of_another_type_than_declared_is_a_crash() -> None:
    class Wrong(Shop):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Cart) -> Any:
            return Reply("ok", state=5)

    app = asgi(Wrong)
    session = await Legacy(app).connect()
    assert (await session.call("add", {"item": "a"})).error["code"] == -32603
    assert (await Client(app).call("add", {"item": "a"})).error["code"] == -32603


@virtual_time
async def test_an_object_is_kept_by_reference() -> None:
    class Connection:
        calls = 0

    class Keeper(Handler[Connection]):
        def init(self, hello: Hello) -> Connection:
            return Connection()

        def list_tools(self, ctx: Channel, state: Connection) -> list[Any]:
            return [{"name": "use"}]

        def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Connection) -> str:
            state.calls += 1
            return str(state.calls)

    session = await Legacy(asgi(Keeper)).connect()
    assert [(await session.call("use")).text for _ in range(2)] == ["1", "2"]


def test_a_state_that_can_not_be_made_is_refused() -> None:
    class Seat(Struct):
        number: int

    class Theatre(Handler[Seat]):
        def list_tools(self, ctx: Channel, state: Seat) -> list[Any]:
            return []

    with pytest.raises(RegistrationError, match="init"):
        asgi(Theatre)


@virtual_time
async def test_progress_reaches_a_streaming_client_of_the_current_protocol() -> None:
    class Slow(Counter):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: int) -> Any:
            ctx.progress(1, 2)
            return "ok"

    answer = await Client(asgi(Slow())).call("bump", meta=make_meta(progressToken="t"))
    assert [note["params"]["progress"] for note in answer.notes] == [1]
