"""Asking the client in the middle of a function, of 2025 clients: the same functions as on the current protocol, the same answers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgi_driver import JSON
from legacy_driver import V03, V06, V11, Answer, Exchange, Legacy, Session
from rounds import accept
from shapes import Region, Shapes, respond
from virtual_time import now, settle, virtual_time

from callboard import Context, NeedInput, Server, asgi
from callboard.errors import NoAnswerError

EVERYTHING: JSON = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
Respond = Callable[[str, JSON], JSON | None]


async def connect(server: Server, version: str = V11, capabilities: JSON = EVERYTHING, **options: Any) -> Session:
    return await Legacy(asgi(server, **options), version).connect(capabilities=capabilities)


async def answer(session: Session, stream: Exchange, react: Respond) -> tuple[list[JSON], Answer]:
    """Answer what a call asks until it is over; what was asked, and the end."""
    asked: list[JSON] = []
    while True:
        message = await stream.message()
        if "method" not in message:
            return asked, await stream.end()
        if "id" in message:
            asked.append(message)
            request = {"method": message["method"], "params": {"mode": "form", **message.get("params", {})}}
            if (result := react("", request)) is not None:
                assert (await session.respond(message, result)).status == 202


async def call(session: Session, tool: str, react: Respond = respond) -> tuple[list[JSON], Answer]:
    async with session.open(tool, {}, token=None) as stream:
        return await answer(session, stream, react)


@pytest.mark.parametrize(
    ("tool", "asks", "text"),
    [
        ("plain", 1, "eu 1"),
        ("guarded", 1, "eu"),
        ("stubborn", 1, "eu"),
        ("together", 2, "eu text"),
        ("after_io", 2, "eu text"),
        ("after_once", 2, "eu fetchedtext"),
        ("grouped", 3, "text text four"),
        ("looped", 3, "text text text"),
        ("keyed", 2, "text text"),
        ("everything", 2, "['file:///a'] accept"),
        ("threaded", 1, "eu"),
        ("depending", 2, "eu text"),
    ],
)
@virtual_time
async def test_every_shape_of_asking(tool: str, asks: int, text: str) -> None:
    # MR-17, JR-07
    shapes = Shapes()
    asked, end = await call(await connect(shapes.server), tool)
    assert end.text == text
    assert len(asked) == asks
    assert "swallowed" not in shapes.log


@pytest.mark.parametrize("version", [V06, V03])
@virtual_time
async def test_older_versions_are_asked_what_they_have(version: str) -> None:
    # EL-01, SM-01, RT-01
    shapes = Shapes()
    session = await connect(shapes.server, version)
    if version == V06:
        asked, end = await call(session, "plain")
        assert end.text == "eu 1"
        assert "mode" not in asked[0]["params"]
    else:
        end = await session.call("plain")
        assert end.error["code"] == -32603
        assert version in end.error["message"]

    @shapes.server.tool
    async def model(ctx: Context) -> str:
        return str((await ctx.sample("2 + 2?")).model) + (await ctx.roots())[0].uri

    asked, end = await call(session, "model")
    assert end.text == "mfile:///a"
    assert [message["method"] for message in asked] == ["sampling/createMessage", "roots/list"]


@virtual_time
async def test_asks_of_one_call_go_out_together() -> None:
    session = await connect(Shapes().server)
    async with session.open("grouped", {}, token=None) as stream:
        assert len(await stream.take(3)) == 3


@pytest.mark.parametrize(("capabilities", "tool"), [({}, "plain"), ({"elicitation": {"form": {}}, "roots": {}}, "everything")])
@virtual_time
async def test_what_a_client_did_not_declare_is_not_asked(capabilities: JSON, tool: str) -> None:
    # EL-02, MR-17
    session = await connect(Shapes().server, capabilities=capabilities)
    async with session.open(tool, {}, token=None) as stream:
        end = await stream.end()
    assert end.error["code"] == -32603
    assert V11 in end.error["message"]
    assert [message for message in end.messages if "id" in message and "url" in message.get("params", {})] == []


@virtual_time
async def test_without_a_session_nobody_can_be_asked() -> None:
    client = Legacy(asgi(Shapes().server, sessions="off"))
    end = await client.sessionless().call("plain")
    assert end.error["code"] == -32603
    assert "session" in end.error["message"]


@virtual_time
async def test_an_answer_that_does_not_fit_ends_the_call() -> None:
    # EL-14
    shapes = Shapes()
    session = await connect(shapes.server)
    for tool in ("plain", "guarded"):
        _, end = await call(session, tool, lambda _key, _request: accept(region="secret-place"))
        assert end.error["code"] == -32602
        assert "region" in end.error["message"]
        assert "secret-place" not in end.error["message"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
@virtual_time
async def test_a_user_may_say_no(action: str) -> None:
    # EL-15
    _, end = await call(await connect(Shapes().server), "plain", lambda _key, _request: {"action": action})
    assert end.result["isError"] is True


@virtual_time
async def test_a_client_that_refuses_or_says_nothing_fails_the_tool_in_band() -> None:
    # EL-15, CN-05
    shapes = Shapes(ask_timeout=30)
    session = await connect(shapes.server)
    async with session.open("plain", {}, token=None) as stream:
        question = await stream.message()
        await session.respond(question, error={"code": -1, "message": "User rejected."})
        end = await stream.end()
    assert end.result["isError"] is True
    assert "User rejected." in end.text
    began = now()
    async with session.open("plain", {}, token=None) as stream:
        question = await stream.message()
        end = await stream.end()
    assert now() - began == pytest.approx(30)
    assert end.result["isError"] is True
    assert "30 s" in end.text


@virtual_time
async def test_a_timeout_around_an_ask_is_the_authors() -> None:
    session = await connect(Shapes().server)
    async with session.open("timed", {}, token=None) as stream:
        await stream.message()
        end = await stream.end()
    assert end.text == "timed out"
    assert [message["method"] for message in end.messages if "method" in message][-1] == "notifications/cancelled"


@virtual_time
async def test_once_and_the_chain() -> None:
    shapes = Shapes()
    _, end = await call(await connect(shapes.server), "counted")
    assert end.text.startswith("1 text text ")
    assert shapes.log == ["bump"]


def make_manual(seen: list[Any]) -> Server:
    server = Server("manual")
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    request = {"method": "elicitation/create", "params": {"mode": "form", "message": "Name?", "requestedSchema": form}}

    @server.tool
    async def greet(ctx: Context) -> str | NeedInput:
        seen.append(ctx.input)
        if ctx.input is None:
            return NeedInput({"name": request, "roots": {"method": "roots/list"}}, state={"step": (1, 2)})
        return f"Hello, {ctx.input.responses['name']['content']['name']}! {ctx.input.state}"

    @server.prompt
    async def pack(ctx: Context) -> str | NeedInput:
        return NeedInput({"name": request}) if ctx.input is None else ctx.input.responses["name"]["action"]

    return server


@virtual_time
async def test_input_asked_for_by_hand_is_bridged() -> None:
    # MR-17, scenario 45
    seen: list[Any] = []
    server = make_manual(seen)
    session = await connect(server)
    asked, end = await call(
        session, "greet", lambda key, request: accept(name="Ann") if "message" in request["params"] else respond(key, request)
    )
    assert end.text == "Hello, Ann! {'step': [1, 2]}"
    assert sorted(message["method"] for message in asked) == ["elicitation/create", "roots/list"]
    assert len(seen) == 2
    async with _prompt(session) as stream:
        _, end = await answer(session, stream, lambda _key, _request: {"action": "decline"})
    assert end.result["messages"][0]["content"]["text"] == "decline"
    poor = await connect(server, capabilities={"elicitation": {}})
    end = await poor.call("greet")
    assert end.error["code"] == -32603
    assert V11 in end.error["message"]


def _prompt(session: Session) -> Any:
    return _Opened(session.start(session.make("prompts/get", {"name": "pack"})))


class _Opened:
    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    async def __aenter__(self) -> Exchange:
        return self.exchange

    async def __aexit__(self, *_: object) -> None:
        self.exchange.disconnect()
        await self.exchange.gone()


@virtual_time
async def test_a_call_that_is_cancelled_takes_its_asks_with_it() -> None:
    shapes = Shapes()
    session = await connect(shapes.server)
    async with session.open("guarded", {}, request_id=7, token=None) as stream:
        question = await stream.message()
        await session.cancel(7)
        await settle()
        assert (await session.respond(question, accept(region="eu"))).status == 400
    assert shapes.log == ["closed"]


@virtual_time
async def test_the_end_of_a_session_ends_its_asks() -> None:
    server = Server("s")
    heard: list[str] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Which?", Region)).value.region
        except (NoAnswerError, asyncio.CancelledError) as error:
            heard.append(type(error).__name__)
            raise

    session = await connect(server)
    async with session.open("ask", {}, token=None) as stream:
        await stream.message()
        await session.delete()
    assert len(heard) == 1
