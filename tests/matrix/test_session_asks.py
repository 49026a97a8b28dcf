"""What a server asks a client of 2025 in the middle of a call: on which stream, who gets which answer, and when it gives up."""

import asyncio
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import V11, VERSIONS, Legacy
from virtual_time import now, settle, virtual_time

from callboard import Context, Server, asgi

JSON_ONLY = "application/json"


class Asker:
    """A server whose tools ask.

    Attributes:
        heard: What came of each question.
    """

    def __init__(self) -> None:
        self.server = Server("asker")
        self.heard: list[Any] = []

        @self.server.tool
        async def ask(ctx: Context, seconds: float = 60, method: str = "roots/list") -> str:
            assert ctx.session is not None
            try:
                found = await ctx.session.ask(method, {}, exchange=ctx.exchange, timeout=seconds)
            except Exception as error:
                self.heard.append(type(error).__name__)
                raise
            self.heard.append(found)
            return str(found)

        @self.server.tool
        async def ask_twice(ctx: Context) -> list[Any]:
            assert ctx.session is not None
            asks = (ctx.session.ask("roots/list", {}, exchange=ctx.exchange) for _ in range(2))
            return list(await asyncio.gather(*asks))

        @self.server.tool
        async def ask_aside(ctx: Context) -> str:
            """Ask on the session's own stream."""
            assert ctx.session is not None
            return str(await ctx.session.ask("ping", {}, timeout=5))


@pytest.fixture
def asker() -> Asker:
    return Asker()


ROOTS = {"roots": [{"uri": "file:///a"}]}


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_a_question_is_on_the_stream_of_its_call_and_the_answer_comes_on_its_own_post(asker: Asker, version: str) -> None:
    # HL-06, JR-07, HL-04
    session = await Legacy(asgi(asker.server), version).connect(capabilities={"roots": {}})
    async with session.open("ask", {}, token=None) as stream, session.listen() as channel:
        question = await stream.message()
        assert question["method"] == "roots/list"
        assert isinstance(question["id"], str | int)
        answer = await session.respond(question, ROOTS)
        assert (answer.status, answer.body) == (202, b"")
        assert "file:///a" in (await stream.end()).text
        await settle()
        assert channel.untaken == []
    assert asker.heard == [ROOTS]


@virtual_time
async def test_each_question_gets_its_own_answer_whatever_their_order(asker: Asker) -> None:
    """A10, of questions: two of one call, and the same in another session."""
    app = asgi(asker.server)
    first, second = await Legacy(app).connect(), await Legacy(app).connect()
    async with first.open("ask_twice", {}, token=None) as one, second.open("ask_twice", {}, token=None) as two:
        asked = await one.take(2)
        other = await two.take(2)
        assert len({question["id"] for question in asked}) == 2
        for session, question, name in (
            (second, other[1], "d"),
            (first, asked[1], "b"),
            (first, asked[0], "a"),
            (second, other[0], "c"),
        ):
            assert (await session.respond(question, {"roots": [{"uri": f"file:///{name}"}]})).status == 202
        for stream, names in ((one, "ab"), (two, "cd")):
            found = (await stream.end()).result["structuredContent"]["result"]
            assert [answer["roots"][0]["uri"] for answer in found] == [f"file:///{name}" for name in names]


@virtual_time
async def test_an_answer_that_comes_twice_or_from_elsewhere_is_refused(asker: Asker) -> None:
    """A26: ids of another session are nobody's."""
    app = asgi(asker.server)
    session, other = await Legacy(app).connect(), await Legacy(app).connect()
    async with session.open("ask", {}, token=None) as stream:
        question = await stream.message()
        assert (await other.respond(question, {"roots": [{"uri": "file:///evil"}]})).status == 400
        for wrong in (1, f"{question['id']}0", None):
            assert (await session.respond({"id": wrong}, ROOTS)).status == 400
        assert (await session.respond(question, ROOTS)).status == 202
        assert (await session.respond(question, {"roots": []})).status == 400
        assert "file:///a" in (await stream.end()).text
    assert asker.heard == [ROOTS]


@virtual_time
async def test_a_client_may_refuse(asker: Asker) -> None:
    session = await Legacy(asgi(asker.server)).connect()
    async with session.open("ask", {}, token=None) as stream:
        question = await stream.message()
        answer = await session.respond(question, error={"code": -32601, "message": "No roots here."})
        assert answer.status == 202
        assert "error" in (await stream.end()).message or (await stream.end()).result["isError"]
    assert asker.heard == ["AskError"]


@virtual_time
async def test_a_question_that_is_not_answered_in_time_is_given_up_and_the_client_told(asker: Asker) -> None:
    # CN-02, CN-05, CN-07
    session = await Legacy(asgi(asker.server)).connect()
    began = now()
    async with session.open("ask", {"seconds": 5}, token=None) as stream:
        question = await stream.message()
        answer = await stream.end()
        assert now() - began == pytest.approx(5)
        (note,) = [message for message in answer.messages if message.get("method") == "notifications/cancelled"]
        assert note["params"]["requestId"] == question["id"]
        assert (await session.respond(question, ROOTS)).status == 400
    assert asker.heard == ["NoAnswerError"]


@virtual_time
async def test_a_question_does_not_run_out_of_the_requests_time(asker: Asker) -> None:
    """A caller that has had bytes is not cut off; people take their time."""
    session = await Legacy(asgi(asker.server, request_timeout=1)).connect()
    async with session.open("ask", {"seconds": 600}, token=None) as stream:
        question = await stream.message()
        await asyncio.sleep(300)
        assert (await session.respond(question, ROOTS)).status == 202
        assert "file:///a" in (await stream.end()).text


@virtual_time
async def test_when_the_call_is_cancelled_its_question_is_too(asker: Asker) -> None:
    # CN-04
    session = await Legacy(asgi(asker.server)).connect()
    async with session.open("ask", {}, request_id=1, token=None) as stream:
        question = await stream.message()
        assert (await session.cancel(1)).status == 202
        answer = await stream.end()
        assert all("result" not in message and "error" not in message for message in answer.messages)
        assert (await session.respond(question, ROOTS)).status == 400
    assert (await session.request("ping")).result == {}


@virtual_time
async def test_when_the_session_ends_nobody_waits_for_an_answer(asker: Asker) -> None:
    """Scenario 16."""
    session = await Legacy(asgi(asker.server)).connect()
    async with session.open("ask", {}, token=None) as stream:
        question = await stream.message()
        began = now()
        await session.delete()
        await stream.end()
        assert (await session.respond(question, ROOTS)).status == 404
        assert now() - began < 0.01


@virtual_time
async def test_a_client_that_comes_back_for_the_stream_finds_the_question(asker: Asker) -> None:
    # HL-18, HL-19
    session = await Legacy(asgi(asker.server, cancel_on_disconnect="never"), V11).connect()
    async with session.open("ask", {}, token=None) as stream:
        primer = await stream.frame()
        await stream.message()
        await stream.drop()
    async with session.listen(primer.event_id) as again:
        question = await again.message()
        assert (await session.respond(question, ROOTS)).status == 202
        assert "file:///a" in (await again.end()).text


@virtual_time
async def test_where_no_stream_can_carry_it_the_question_fails_at_once(asker: Asker) -> None:
    session = await Legacy(asgi(asker.server)).connect()
    began = now()
    answer = await session.call("ask", {}, accept=JSON_ONLY)
    assert now() == began
    assert "error" in answer.message or answer.result["isError"]
    assert asker.heard == ["NoAnswerError"]


@virtual_time
async def test_a_client_that_takes_json_can_be_asked_on_its_channel(asker: Asker) -> None:
    # HL-05, HL-16
    session = await Legacy(asgi(asker.server)).connect()
    async with session.listen() as channel:
        call = session.begin("ask", {}, accept=JSON_ONLY)
        question = await channel.message()
        assert (await session.respond(question, ROOTS)).status == 202
        assert "file:///a" in (await call.end()).text


@virtual_time
async def test_a_session_can_be_asked_outside_of_its_calls(asker: Asker) -> None:
    # LC-08, HL-13
    session = await Legacy(asgi(asker.server)).connect()
    async with session.listen() as channel:
        call = session.begin("ask_aside")
        question = await channel.message()
        assert question["method"] == "ping"
        assert (await session.respond(question, {})).status == 202
        assert (await call.end()).text == "{}"


@virtual_time
async def test_questions_leave_nothing_behind(asker: Asker) -> None:
    """A07."""
    session = await Legacy(asgi(asker.server)).connect()
    tasks = asyncio.all_tasks()
    for _ in range(20):
        async with session.open("ask", {"seconds": 1}, token=None) as stream:
            await stream.message()
            await stream.end()
    assert asyncio.all_tasks() == tasks


@virtual_time
async def test_current_clients_are_asked_nothing() -> None:
    # JR-05
    server = Server("plain")

    @server.tool
    async def has_session(ctx: Context) -> bool:
        return ctx.session is not None

    assert (await Client(asgi(server)).call("has_session")).text == "false"
