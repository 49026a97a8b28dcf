"""What a call costs, counted in Python functions entered and objects left behind, which do not vary from run to run as time does."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from benchmarks import legacy_traffic
from benchmarks.in_process import App, open_session, python_calls, send_once
from benchmarks.traffic import Exchange, call, request
from callboard import Context, Server, asgi
from callboard.legacy import home
from callboard.transport import stream

LIMIT = 60
SESSION_LIMIT = 80  # of ours: a call in a session has a task of its own, and the loop's functions for it depend on the loop
TEXT = {"text": "hello world"}
TURNS = 10  # of the event loop: enough for whatever watches a waiting call to start


async def echo(text: str) -> dict[str, str]:
    """What matters most."""
    return {"result": text}


def make_app(fillers: int, *, task: Literal["never", "allowed"] = "never") -> App:
    """An application with a few tools that matter and some that don't, which may be tasks."""
    server = Server("cost", page_size=10_000)

    server.tool(echo)

    @server.tool
    async def wait(text: str) -> str:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return text

    @server.tool
    async def tell(text: str, ctx: Context) -> str:
        ctx.progress(1)
        await asyncio.sleep(0)
        return text

    for number in range(fillers):
        server.tool(name=f"filler_{number}", task=task)(echo)
    return asgi(server)


ECHO = call("echo", TEXT)
WAIT = call("wait", TEXT)


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector runs only when it is asked to: what it finds of earlier tests would enter functions too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_tool_call_enters_few_functions() -> None:
    entered = await python_calls(make_app(0), ECHO)
    assert len(entered) <= LIMIT, "\n".join(entered)


@pytest.mark.parametrize("exchange", [pytest.param(ECHO, id="tools/call"), pytest.param(request("tools/list"), id="tools/list")])
async def test_a_request_costs_the_same_with_a_thousand_tools_more(exchange: Exchange) -> None:
    few = await python_calls(make_app(0), exchange)
    many = await python_calls(make_app(1000), exchange)
    assert [function.rpartition(" ")[2] for function in many] == [function.rpartition(" ")[2] for function in few]


async def test_a_call_costs_the_same_beside_tools_that_may_be_tasks() -> None:
    for exchange in (ECHO, request("tools/list")):
        assert await python_calls(make_app(1, task="allowed"), exchange) == await python_calls(make_app(1), exchange)
    assert await session_calls(make_app(1, task="allowed")) == await session_calls(make_app(1))


@pytest.mark.parametrize("exchange", [pytest.param(ECHO, id="tools/call"), pytest.param(request("prompts/list"), id="prompts/list")])
async def test_a_request_costs_the_same_beside_what_depends_on_the_caller(exchange: Exchange) -> None:
    plain, mixed = Server("cost"), Server("cost")
    for server in (plain, mixed):
        server.tool(echo)
        server.prompt(lambda text: text, name="say")
    mixed.tool(echo, name="hidden", visible=lambda _ctx: False, scopes={"x"}, rate="1/s")
    mixed.resource("a://x", visible=lambda _ctx: False)(lambda: "x")
    other = Server("other")
    other.tool(echo)
    mixed.mount("other", other)
    few = await python_calls(asgi(plain), exchange)
    assert await python_calls(asgi(mixed), exchange) == few


async def session_calls(app: App) -> list[str]:
    """Our own functions that a call in a session enters."""
    exchange = legacy_traffic.call("echo", TEXT, sessions=(await open_session(app),))
    return [function for function in await python_calls(app, exchange) if "/callboard/" in function]


async def test_a_call_in_a_session_enters_few_functions() -> None:
    entered = await session_calls(make_app(0))
    assert len(entered) <= SESSION_LIMIT, "\n".join(entered)


async def test_a_call_in_a_session_costs_the_same_among_many_sessions_and_tools() -> None:
    few = await session_calls(make_app(0))
    crowded = make_app(1000)
    for _ in range(300):
        await open_session(crowded)
    assert await session_calls(crowded) == few


@pytest.mark.parametrize(
    "exchange", [pytest.param(ECHO, id="at once"), pytest.param(WAIT, id="after a while"), pytest.param(call("x", {}), id="never")]
)
async def test_a_request_leaves_no_garbage(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs the collector to go away piles up between its rounds, with the connection and all else that it holds."""
    monkeypatch.setattr(stream, "WATCH_AFTER", 0.0)
    app = make_app(0)
    await send_once(app, exchange)
    await asyncio.sleep(0)
    gc.collect()
    for _ in range(3):
        await send_once(app, exchange)
        await asyncio.sleep(0)  # what was cancelled ends
    assert gc.collect() == 0


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda session: legacy_traffic.call("echo", TEXT, sessions=(session,)), id="at once"),
        pytest.param(lambda session: legacy_traffic.call("wait", TEXT, sessions=(session,)), id="after a while"),
        pytest.param(lambda session: legacy_traffic.call("tell", TEXT, sessions=(session,), token="t"), id="as a stream"),
        pytest.param(lambda session: legacy_traffic.request("tools/list", {}, sessions=(session,)), id="a list"),
        pytest.param(legacy_traffic.initialized, id="a notification"),
        pytest.param(lambda session: legacy_traffic.initialize(), id="a session"),
        pytest.param(lambda session: legacy_traffic.call("echo", TEXT, sessions=(session + "x",)), id="never"),
    ],
)
async def test_a_request_of_2025_leaves_no_garbage(make: Callable[[str], Exchange], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "WATCH_AFTER", 0.0)
    app = make_app(0)
    exchange = make(await open_session(app))
    await send_once(app, exchange)
    await asyncio.sleep(0)
    gc.collect()
    for _ in range(3):
        await send_once(app, exchange)
        await asyncio.sleep(0)  # what was cancelled ends
    assert gc.collect() == 0
