"""What a call costs, counted in Python functions entered and objects left behind, which do not vary from run to run as time does."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from benchmarks.in_process import App, python_calls, send_once
from benchmarks.traffic import Exchange, call, request
from callboard import Server, asgi
from callboard.transport import stream

LIMIT = 60
TEXT = {"text": "hello world"}
TURNS = 10  # of the event loop: enough for whatever watches a waiting call to start


def make_app(fillers: int) -> App:
    """An application with a few tools that matter and some that don't."""
    server = Server("cost", page_size=10_000)

    @server.tool
    async def echo(text: str) -> dict[str, str]:
        return {"result": text}

    @server.tool
    async def wait(text: str) -> str:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return text

    for number in range(fillers):
        server.tool(name=f"filler_{number}")(echo)
    return asgi(server)


ECHO = call("echo", TEXT)
WAIT = call("wait", TEXT)


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector runs only when it is asked to."""
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


@pytest.mark.usefixtures("collector")
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
