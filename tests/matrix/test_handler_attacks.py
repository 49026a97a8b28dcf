"""Handlers whose callbacks do what nobody should."""

import asyncio
import logging
from typing import Any

import pytest
from asgi_driver import JSON, Client, make_meta
from errands import Follower
from legacy_driver import Legacy
from oracles import TASKS
from rounds import accept
from virtual_time import settle, virtual_time

from callboard import Handler, RegistrationError, Server, asgi
from callboard.core.task import Task
from callboard.errors import Fail, Reason, ToolError
from callboard.handler import Channel, Crashed, Deferred, Finished, Reply, Stop, Stream, handle_method
from callboard.limits import Limits
from callboard.server.task_table import tell_time

CALL: JSON = {"name": "go"}


class Odd(BaseException):
    """What no `except Exception` catches."""


class Going(Handler[Any]):
    """Has one tool."""

    def list_tools(self, ctx: Channel, state: Any) -> list[JSON]:
        return [{"name": "go"}]

    async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
        return "went"


async def ask(handler: Handler[Any], method: str = "tools/call", params: JSON = CALL) -> JSON:
    """What a client of the current protocol gets: the result, or the error."""
    message = (await Client(asgi(handler)).request(method, params)).messages[-1]
    found: JSON = message.get("result") or message["error"]
    return found


# Jobs


@pytest.mark.parametrize(("error", "shown"), [(SystemExit(3), "RuntimeError"), (Odd(), "Odd"), (ValueError(), "ValueError")])
@virtual_time
async def test_a_job_can_not_end_the_server(error: BaseException, shown: str) -> None:
    # What ends a task of the loop with SystemExit ends the loop, and every other request with it
    class Working(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            ctx.spawn(self.work(), "work")
            return Stream()

        async def work(self) -> None:
            await asyncio.sleep(1)
            raise error

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            assert isinstance(message, Crashed)
            return type(message.error).__name__

    assert (await ask(Working()))["content"][0]["text"] == shown


@virtual_time
async def test_a_job_that_is_cancelled_before_it_begins_is_closed() -> None:
    # a coroutine that nobody awaits is a warning, and a warning fails this test
    class Hasty(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            for number in range(3):
                assert ctx.spawn(asyncio.sleep(100), number)
            return "went"

    assert (await ask(Hasty()))["content"][0]["text"] == "went"
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("way", ["open", "closed"])
@virtual_time
async def test_a_job_is_a_coroutine(way: str) -> None:
    class Wrong(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            if way == "closed":
                ctx.close()
            with pytest.raises(TypeError, match=r"channel\.spawn takes a coroutine.*work"):
                ctx.spawn(self.work)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"channel\.subscribe: topic is a str, not int"):
                ctx.subscribe(5)  # type: ignore[arg-type]
            return "went"

        async def work(self) -> None: ...

    found = await ask(Wrong())
    assert found.get("content", [{"text": found.get("message")}])[0]["text"].startswith("went" if way == "open" else "The server ended")


@virtual_time
async def test_more_jobs_than_the_mailbox_has_room_for_all_report() -> None:
    class Many(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            for number in range(2500):
                ctx.spawn(asyncio.sleep(0, number), number)
            return Stream(0)

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            assert isinstance(message, Finished)
            return Stream(state + 1) if state < 2499 else "all"

    assert (await ask(Many()))["content"][0]["text"] == "all"


@virtual_time
async def test_a_handler_that_writes_to_itself_keeps_nobody_waiting() -> None:
    # CN-04: nor does it go on when its client is gone
    seen: list[int] = []

    class Ticking(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            if arguments:
                return "went"
            ctx.send("tick")
            return Stream(0)

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            seen.append(state)
            channel.send("tick")
            return Stream(state + 1) if state < 5000 else "the end"

    app = asgi(Ticking())
    async with Client(app).open("tools/call", {**CALL, "arguments": {}}):
        assert (await Client(app).call("go", {"at": "once"})).text == "went"
        assert len(seen) < 2500, "another call was answered meanwhile"
    assert len(seen) < 4000, "that its client is gone is noticed after 50 ms"


# The end of a stream


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), Odd(), ValueError()])
@virtual_time
async def test_whatever_handle_close_raises_the_answer_is_the_same(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Closing(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            ctx.close()
            return Stream()

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any: ...

        async def handle_close(self, channel: Channel, state: Any) -> None:
            raise error

    with caplog.at_level(logging.ERROR):
        found = await ask(Closing())
    assert found == {"code": -32603, "message": "The server ended this request without a result."}
    assert "handle_close failed" in caplog.text


@virtual_time
async def test_the_last_stream_counts_also_when_its_callback_closed_the_channel() -> None:
    seen: list[Any] = []

    class Closing(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            ctx.send("end")
            return Stream("first")

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            channel.close()
            return Stream("last")

        async def handle_close(self, channel: Channel, state: Any) -> None:
            seen.append(state)

    await ask(Closing())
    assert seen == ["last"]


@pytest.mark.parametrize("plain", [False, True])
@virtual_time
async def test_a_question_in_a_stream_is_no_close(*, plain: bool) -> None:
    # MR-01: as with NeedInput by hand, the client has been answered
    closed: list[Any] = []

    class Asking(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            ctx.send("ask")
            return Stream()

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            return (await channel.elicit("Who?", str, key="who")).value

        async def handle_close(self, channel: Channel, state: Any) -> None:
            closed.append(state)

    class Plain(Asking):
        def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            return channel.wait(channel.elicit("Who?", str, key="who")).value

    client = Client(asgi(Plain() if plain else Asking()))
    meta = make_meta({"elicitation": {"form": {}}})
    asked = (await client.request("tools/call", CALL, meta=meta)).result
    more = {"requestState": asked["requestState"], "inputResponses": {"who": accept(value="Ann")}}
    assert (await client.request("tools/call", {**CALL, **more}, meta=meta)).text == "Ann"
    assert closed == []
    session = await Legacy(client.app).connect(capabilities={"elicitation": {}})
    exchange = session.begin("go")
    await session.respond(await exchange.message(), accept(value="Bob"))
    assert (await exchange.end()).messages[-1]["result"]["content"][0]["text"] == "Bob"
    assert closed == []


# init


@pytest.mark.parametrize("way", ["returned", "raised"])
@virtual_time
async def test_init_refuses_with_a_fail_however_it_is_given(way: str) -> None:
    # Taken for a state, it would let everybody in
    class Guarded(Going):
        async def init(self, hello: Any) -> Any:
            fail = Fail(Reason.INVALID_PARAMS, "Not you.")
            if way == "returned":
                return fail
            raise fail

    assert await ask(Guarded()) == {"code": -32602, "message": "Not you."}
    assert (await Legacy(asgi(Guarded())).try_initialize()).error["message"] == "Not you."


@pytest.mark.parametrize(
    "given", [ToolError("hunter2"), Reply("hunter2"), Stream("hunter2"), asyncio.CancelledError(), Odd("hunter2"), SystemExit("hunter2")]
)
@virtual_time
async def test_what_init_can_not_give_refuses_without_detail(given: Any) -> None:
    class Failing(Going):
        async def init(self, hello: Any) -> Any:
            if isinstance(given, BaseException) and not isinstance(given, ToolError):
                raise given
            return given

    app = asgi(Failing(), limits=Limits(max_sessions=1))
    answers = [await Legacy(app).try_initialize() for _ in range(2)]  # its place is free again
    assert [(answer.status, answer.error["code"]) for answer in answers] == [(500, -32603)] * 2
    assert "hunter2" not in str(answers[0].messages)
    assert (await Client(app).call("go")).error == answers[0].error


# Notifications


@virtual_time
async def test_whatever_handle_notification_does_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    left: list[BaseException] = [Odd(), asyncio.CancelledError(), SystemExit(1), ValueError()]

    class Deaf(Going):
        async def handle_notification(self, notification: Any, channel: Channel, state: Any) -> Any:
            channel.spawn(asyncio.sleep(100))
            if left:
                raise left.pop(0)
            return Stop("enough")

    with caplog.at_level(logging.ERROR):
        session = await Legacy(asgi(Deaf())).connect()
        for _ in range(4):
            assert (await session.notify("notifications/roots/list_changed")).status == 202
            await settle()
    assert caplog.text.count("handle_notification failed") == 4
    assert (await session.call("go")).text == "went"
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_the_end_of_one_transport_ends_what_hears_for_it_alone() -> None:
    go = asyncio.Event()
    heard: list[str] = []

    class Slow(Going):
        async def handle_notification(self, notification: Any, channel: Channel, state: Any) -> None:
            try:
                await go.wait()
            except asyncio.CancelledError:
                heard.append("cancelled")
                raise
            heard.append("heard")

    handler = Slow()
    one, other = asgi(handler), asgi(handler)
    for app in (one, other):
        await Legacy(app).connect()
    await settle()
    await one.aclose()
    go.set()
    await settle()
    assert heard == ["cancelled", "heard"]


@pytest.mark.parametrize(
    ("method", "params", "text"),
    [
        (5, None, "method is the name"),
        ("", {}, "method is the name"),
        ("notifications/message", [1], "are an object, not list"),
        ("notifications/message", "news", "are an object, not str"),
        ("notifications/message", {"data": object()}, "no JSON form"),
    ],
)
@virtual_time
async def test_what_is_no_notification_is_not_sent(method: Any, params: Any, text: str) -> None:
    # JR-01
    class Telling(Going):
        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            with pytest.raises(TypeError, match=rf"channel\.notify: .*{text}"):
                ctx.notify(method, params)
            return "went"

    assert (await ask(Telling()))["content"][0]["text"] == "went"


# What callbacks return


@virtual_time
async def test_a_state_of_another_type_than_declared_is_refused_with_and_without_sessions() -> None:
    class Typed(Handler[int]):
        def list_tools(self, ctx: Channel, state: int) -> list[JSON]:
            return [{"name": "go"}]

        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: int) -> Any:
            ctx.send("go on")
            return Stream("no number")

        async def handle_message(self, message: Any, channel: Channel, state: int) -> Any:
            return "went"

    app = asgi(Typed())
    session = await Legacy(app).connect()
    for answer in (await Client(app).call("go"), await session.call("go")):
        assert answer.messages[-1]["error"]["code"] == -32603


class Elsewhere:
    """Tasks of an author, run wherever."""

    def __init__(self) -> None:
        self.known: dict[str, Task] = {}

    async def start(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("no tool of components is there")

    async def find(self, task_id: str, owner: str | None) -> Task | None:
        return self.known.get(task_id)

    async def answer(self, task_id: str, owner: str | None, responses: Any) -> None: ...

    async def cancel(self, task_id: str, owner: str | None) -> bool:
        return self.known[task_id].cancel("enough", tell_time())

    async def page(self, owner: str | None, after: int, size: int) -> tuple[list[Task], int | None]:
        return [], None

    def watch(self, task_id: str, tell: Any) -> Any:
        return lambda: None


@virtual_time
async def test_tasks_of_the_authors_own_are_offered_and_can_be_asked_about() -> None:
    # TX-01, TX-06, TX-08, TX-10, TK-01
    tasks = Elsewhere()

    class Deferring(Going):
        server_options = {"tasks": tasks}  # noqa: RUF012 - as an author writes it

        async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
            tasks.known["t1"] = Task("t1", tell_time(), ttl=60, poll=1)
            return Deferred(tasks.known["t1"].render(tell_time()))

    app = asgi(Deferring())
    client = Follower(app)
    assert (await client.http.request("server/discover")).result["capabilities"]["extensions"] == {TASKS: {}}
    assert await client.begin("go") == "t1"
    assert (await client.get("t1"))["status"] == "working"
    await client.cancel("t1")
    assert (await client.get("t1"))["status"] == "cancelled"
    session = await Legacy(app).connect()
    created = await session.request("tools/call", {"name": "go", "task": {}})
    assert created.result["task"]["taskId"] == "t1"
    assert (await session.request("tasks/get", {"taskId": "t1"})).result["status"] == "working"


@pytest.mark.parametrize(("given", "sent"), [(None, None), ("more", "more")])
@virtual_time
async def test_the_last_page_may_say_that_no_other_follows(given: Any, sent: str | None) -> None:
    # PG-01: null is no cursor
    class Paging(Going):
        def list_tools(self, ctx: Channel, state: Any) -> Any:
            return {"tools": [{"name": "go"}], "next_cursor": given}

    found = await ask(Paging(), "tools/list", {})
    assert found.get("nextCursor") == sent
    unknown = await ask(Paging(), "tools/call", {"name": "other"})
    assert ("message" in unknown) == (given is None), "a whole list tells which tools there are"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"nextCursor": 5}, "nextCursor is a str"),
        ({"ttlMs": "soon"}, "ttlMs is a whole number"),
        ({"ttlMs": 1.5}, "ttlMs is a whole number"),
        ({"cacheScope": 1}, "cacheScope private or public"),
    ],
)
@virtual_time
async def test_what_no_client_could_read_names_the_culprit(more: JSON, text: str, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Going):
        def list_tools(self, ctx: Channel, state: Any) -> Any:
            return {"tools": [{"name": "go"}], **more}

    with caplog.at_level(logging.ERROR):
        assert (await ask(Wrong(), "tools/list", {}))["code"] == -32603
    assert text in caplog.text


# What a class says


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("server", "prod-1", r"\.server is what every handler has, its Server: give 'prod-1' another name"),
        ("server_options", None, r"\.server_options must be a mapping"),
        ("server_options", {"name": "x"}, "name is an attribute of a handler"),
        ("capabilities", [], r"\.capabilities must be a mapping of mappings"),
        ("capabilities", {"tools": None}, r"\.capabilities must be a mapping of mappings"),
        ("page_size", "many", "page_size must be an integer"),
        ("page_size", True, "page_size must be an integer"),
    ],
)
def test_an_attribute_of_the_wrong_type_is_named(attribute: str, value: Any, text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        asgi(type("Mine", (Going,), {attribute: value}))


def test_what_a_factory_raises_is_the_authors_to_see() -> None:
    class Broken(Going):
        def __init__(self) -> None:
            len(5)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        asgi(Broken)
    with pytest.raises(RegistrationError, match="or what makes one, not <callboard"):
        asgi(lambda: Server("made"))  # type: ignore[arg-type,return-value]


# Without a transport


@virtual_time
async def test_a_stream_that_nobody_could_read_is_refused() -> None:
    outcome, _ = await handle_method(Going(), "subscriptions/listen", {"notifications": {}})
    assert isinstance(outcome, Fail)
    assert outcome.reason is Reason.METHOD_NOT_FOUND
