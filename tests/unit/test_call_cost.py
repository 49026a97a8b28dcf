"""What a call costs, counted in Python functions entered, which does not vary from run to run as time does."""

import pytest

from benchmarks.in_process import App, python_calls
from benchmarks.traffic import Exchange, call, request
from callboard import Server, asgi

LIMIT = 60


def make_app(fillers: int) -> App:
    """An application with one tool that matters and some that don't."""
    server = Server("cost", page_size=10_000)

    @server.tool
    async def echo(text: str) -> dict[str, str]:
        return {"result": text}

    for number in range(fillers):
        server.tool(name=f"filler_{number}")(echo)
    return asgi(server)


ECHO = call("echo", {"text": "hello world"})


async def test_a_tool_call_enters_few_functions() -> None:
    entered = await python_calls(make_app(0), ECHO)
    assert len(entered) <= LIMIT, "\n".join(entered)


@pytest.mark.parametrize("exchange", [pytest.param(ECHO, id="tools/call"), pytest.param(request("tools/list"), id="tools/list")])
async def test_a_request_costs_the_same_with_a_thousand_tools_more(exchange: Exchange) -> None:
    few = await python_calls(make_app(0), exchange)
    many = await python_calls(make_app(1000), exchange)
    assert [function.rpartition(" ")[2] for function in many] == [function.rpartition(" ")[2] for function in few]
