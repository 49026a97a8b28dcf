"""What a session asks of its client: answers, errors, silence, and the end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from unit.legacy.lobby import Ask, Lobby, Wire, lobby, make_call, read
from virtual_time import now, settle, virtual_time

from callboard import Context, Server
from callboard.errors import AskError, NoAnswerError
from callboard.legacy.actor import Actor
from callboard.wire.jsonrpc import RawResponse


def respond(actor: Actor, request_id: Any, **parts: Any) -> bool:
    message = read({"jsonrpc": "2.0", "id": request_id, **parts})
    assert isinstance(message, RawResponse)
    return actor.respond(message)


class Asking:
    """A server with a tool that asks its client, and what came of it."""

    def __init__(self) -> None:
        self.server = Server("asking")
        self.got: list[Any] = []
        self.server.tool(self.ask)

    async def ask(self, ctx: Context, seconds: float = 60) -> str:
        """Ask on the call's own stream."""
        assert ctx.session is not None
        try:
            self.got.append(await ctx.session.ask("roots/list", {"n": 1}, exchange=ctx.exchange, timeout=seconds))
        except (AskError, NoAnswerError) as fault:
            self.got.append(fault)
        return "asked"


@pytest.fixture
def asking() -> Asking:
    return Asking()


async def asked(place: Lobby) -> AsyncIterator[tuple[Actor, Ask, dict[str, Any]]]:
    """A call that has asked its client."""
    actor = await place.open()
    ask = Ask(actor, make_call("ask", 1, seconds=5))
    await settle()
    (request,) = ask.said
    assert request["method"] == "roots/list"
    yield actor, ask, request


@virtual_time
async def test_the_answer_of_a_client_goes_to_the_call_that_asked() -> None:
    asking = Asking()
    async with lobby(asking.server) as place:
        async for actor, ask, request in asked(place):
            assert not respond(actor, "server-77", result={})
            assert not respond(actor, 1, result={})
            assert respond(actor, request["id"], result={"roots": []})
            assert not respond(actor, request["id"], result={"roots": []})
            await ask.end()
            assert asking.got == [{"roots": []}]


@virtual_time
async def test_an_error_of_a_client_is_an_exception_in_the_call() -> None:
    asking = Asking()
    async with lobby(asking.server) as place:
        async for actor, ask, request in asked(place):
            assert respond(actor, request["id"], error={"code": -1, "message": "no"})
            await ask.end()
            assert isinstance(asking.got[0], AskError)


@virtual_time
async def test_a_client_that_does_not_answer_is_told_that_nobody_waits() -> None:
    asking = Asking()
    async with lobby(asking.server) as place:
        async for actor, ask, request in asked(place):
            began = now()
            await ask.end()
            assert now() - began == pytest.approx(5, abs=0.01)
            assert isinstance(asking.got[0], NoAnswerError)
            assert [message.get("method") for message in ask.said] == ["roots/list", "notifications/cancelled", None]
            assert ask.said[1]["params"]["requestId"] == request["id"]
            assert not respond(actor, request["id"], result={})


@virtual_time
async def test_nobody_waits_for_a_client_whose_session_has_ended() -> None:
    asking = Asking()
    async with lobby(asking.server) as place:
        async for actor, ask, request in asked(place):
            actor.end("deleted")
            await ask.end()
            await settle()
            assert not respond(actor, request["id"], result={})
            with pytest.raises(NoAnswerError):
                await actor.ask("roots/list", {})
            assert place.is_empty


@virtual_time
async def test_whoever_else_has_asked_hears_that_the_session_has_ended() -> None:
    wire = Wire()
    async with lobby(Server("plain")) as place:
        actor = await place.open()
        wire.listen(actor)
        await settle()
        asking = asyncio.create_task(actor.ask("roots/list", {}))
        await settle()
        assert [message["method"] for message in wire.messages] == ["roots/list"]
        actor.end("deleted")
        with pytest.raises(NoAnswerError, match="ended"):
            await asking


@virtual_time
async def test_a_call_that_is_cancelled_waits_for_no_answer() -> None:
    asking = Asking()
    async with lobby(asking.server) as place:
        async for actor, ask, request in asked(place):
            actor.cancel(1)
            assert await ask.end() is None
            await settle()
            assert not respond(actor, request["id"], result={})
            assert asking.got == []


@virtual_time
async def test_without_a_stream_nobody_can_be_asked() -> None:
    asking = Asking()
    async with lobby(asking.server) as place:
        actor = await place.open()
        await Ask(actor, make_call("ask", 1), streams=False).end()
        assert isinstance(asking.got[0], NoAnswerError)
        assert "no stream" in str(asking.got[0])
