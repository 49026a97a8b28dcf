"""What people who come from other frameworks do first, and what they are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from asgi_driver import Client

from callboard import Context, Depends, Fail, RegistrationError, Server, ToolError, asgi, embed, image
from callboard.limits import Limits
from callboard.types import Completion, ReadResourceResult, ResourceContents


async def test_a_tool_error_in_a_prompt_or_resource_reaches_the_client() -> None:
    server = Server("desk")

    @server.prompt
    def plan() -> str:
        raise ToolError("No such branch.")

    @server.resource("desk://plan")
    def page() -> str:
        raise ToolError("No such page.")

    client = Client(asgi(server))
    prompt = await client.request("prompts/get", {"name": "plan"})
    assert (prompt.error["code"], prompt.error["message"]) == (-32603, "No such branch.")
    resource = await client.request("resources/read", {"uri": "desk://plan"})
    assert (resource.error["code"], resource.error["message"]) == (-32603, "No such page.")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (embed("desk://other", "text", mime_type="text/plain"), {"uri": "desk://other", "text": "text", "mimeType": "text/plain"}),
        (image(b"\x89", "image/png"), {"uri": "desk://a", "blob": "iQ==", "mimeType": "image/png"}),
        (ReadResourceResult(contents=[ResourceContents(uri="desk://b", text="b")]), {"uri": "desk://b", "text": "b"}),
    ],
)
async def test_contents_that_are_already_made_are_taken(value: Any, expected: dict[str, Any]) -> None:
    # RS-04
    server = Server("desk")
    server.resource("desk://a")(lambda: value)
    answer = await Client(asgi(server)).request("resources/read", {"uri": "desk://a"})
    assert answer.result["contents"] == [expected]


async def test_a_completion_may_say_how_many_there_are() -> None:
    # CP-03
    server = Server("desk")
    server.prompt(name="plan")(lambda city: city)
    server.complete("plan", "city")(lambda value: Completion(values=["Oslo"], total=500, has_more=True))
    params = {"ref": {"type": "ref/prompt", "name": "plan"}, "argument": {"name": "city", "value": "O"}}
    answer = await Client(asgi(server)).request("completion/complete", params)
    assert answer.result["completion"] == {"values": ["Oslo"], "total": 500, "hasMore": True}


def test_a_completion_of_nothing_is_refused_whichever_comes_first() -> None:
    server = Server("desk")
    server.prompt(name="plan")(lambda city: city)
    with pytest.raises(RegistrationError, match="'town', which 'plan' doesn't have; it has city"):
        server.complete("plan", "town")(lambda value: [value])
    server.complete("later", "town")(lambda value: [value])
    with pytest.raises(RegistrationError, match="'town', which 'later' doesn't have"):
        server.prompt(name="later")(lambda city: city)


async def test_a_prompt_can_be_replaced_with_its_completion() -> None:
    server = Server("desk")
    for _ in range(2):
        server.prompt(name="plan")(lambda city: city)
        server.complete("plan", "city")(lambda value: [value])
        server.remove("prompts", "plan")
    assert server.registry.completers == {}


@pytest.mark.parametrize("returns", [int, dict[str, str], bytes])
def test_a_prompt_of_something_else_is_refused_when_added(returns: Any) -> None:
    server = Server("desk")

    def plan() -> Any: ...

    plan.__annotations__["return"] = returns
    with pytest.raises(RegistrationError, match="a prompt returns str"):
        server.prompt(plan)


def test_fail_takes_a_reason() -> None:
    with pytest.raises(TypeError, match="ToolError"):
        Fail("boom")  # type: ignore[arg-type]


async def test_a_thread_can_wait_for_its_client_to_read() -> None:
    server = Server("desk")

    @server.tool
    def count(ctx: Context) -> str:
        ctx.wait(ctx.progress(1, 2))
        return "counted"

    assert (await Client(asgi(server)).call("count")).text == "counted"


@pytest.mark.parametrize("keyword", ["tags", "nmae"])
def test_an_unknown_option_is_named_with_those_there_are(keyword: str) -> None:
    with pytest.raises(RegistrationError, match=f"takes no '{keyword}'.*title"):
        Server("desk").tool(**{keyword: "x"})  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "facts", [{"description": 5}, {"title": 5}, {"icons": ["x"]}, {"annotations": {"read_only_hint": True}}, {"meta": "x"}]
)
def test_facts_that_would_spoil_the_list_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(RegistrationError):
        Server("desk").tool(**facts)(lambda: "")


async def test_a_thread_keeps_its_turn_until_it_returns() -> None:
    server = Server("desk")
    running = most = 0

    @server.tool(concurrency=1, timeout=0.05)
    def block() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        door.wait(0.2)
        running -= 1
        return ""

    door = threading.Event()
    client = Client(asgi(server))
    await asyncio.gather(*(client.call("block", request_id=n) for n in range(3)))
    assert most == 1


async def test_a_provider_may_be_a_context_manager_already() -> None:
    server, closed = Server("desk"), []

    @asynccontextmanager
    async def database() -> AsyncIterator[str]:
        yield "DB"
        closed.append("database")

    @contextmanager
    def file() -> Iterator[str]:
        yield "file"
        closed.append("file")

    @server.tool
    async def both(db: str = Depends(database), name: str = Depends(file)) -> str:
        assert closed == []
        return f"{db} {name}"

    assert (await Client(asgi(server)).call("both")).text == "DB file"
    assert closed == ["file", "database"]


def test_a_class_is_no_function() -> None:
    class Shout:
        def __call__(self, text: str) -> str:
            return text.upper()

    with pytest.raises(RegistrationError, match="the class Shout"):
        Server("desk").add(Shout)
    with pytest.raises(RegistrationError, match="the class Shout"):
        Server("desk").tool(Shout)
    with pytest.raises(RegistrationError, match="instructions"):
        Server("desk", instructions=5)  # type: ignore[arg-type]


async def test_what_a_provider_opened_is_closed_though_its_client_left_while_the_threads_were_busy() -> None:
    # A20, SA25
    server, seen = Server("desk"), []
    door, ready, closed = threading.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def file() -> Iterator[str]:
        seen.append("open")
        yield "file"
        seen.append("close")
        loop.call_soon_threadsafe(closed.set)

    @server.tool
    async def use(name: str = Depends(file)) -> str:
        ready.set()
        await asyncio.sleep(0)
        return name

    @server.tool
    def block() -> str:
        door.wait(5)
        return ""

    client = Client(asgi(server, limits=Limits(threads=1)))
    async with asyncio.timeout(5):
        async with client.open("tools/call", {"name": "use"}) as stream:
            await ready.wait()
            blocking = asyncio.create_task(client.call("block", request_id=2))
            await asyncio.sleep(0)
            stream.disconnect()
        door.set()
        await closed.wait()
        await blocking
    assert seen == ["open", "close"]
