"""The everything server of ../cells.py on PyPI fastmcp 4.

python peer_fastmcp.py stdio
python peer_fastmcp.py http-json PORT       /mcp, which answers with JSON alone
python peer_fastmcp.py http-sse PORT        /mcp, which may answer with a stream
python peer_fastmcp.py sse PORT             /sse, the HTTP+SSE of 2024-11-05
"""

import sys
from typing import Any, Literal

import anyio
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from mcp_types import (
    Completion,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
)
from pydantic import BaseModel

MODERN = "2026-07-28"
PATIENCE = 5.0  # seconds that `watch` waits
LOOK = 0.01  # seconds between two looks
BEAT = 0.02  # seconds after a note, so that it travels on its own

everything = FastMCP("everything", version="1.0.0")
seen: set[tuple[str, str]] = set()  # name of a hold, what it has come to


class Sum(BaseModel):
    total: int


class Drink(BaseModel):
    kind: Literal["tea", "coffee"]
    sugar: int = 1


@everything.tool(output_schema=None)
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}."


@everything.tool
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@everything.tool
async def count(to: int, ctx: Context) -> str:
    """Count aloud: a progress notification per number."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"number {number}")
        await anyio.sleep(BEAT)
    return f"Counted to {to}."


@everything.tool
async def refuse() -> str:
    """Fail in band."""
    raise ToolError("The curtain is stuck.")


@everything.tool
async def choose(ctx: Context) -> str | InputRequiredResult:
    """Ask for a drink."""
    if ctx.request_context.protocol_version >= MODERN:
        if ctx.input_responses is None:
            question = ElicitRequestFormParams(message="What would you like?", requested_schema=Drink.model_json_schema())
            return InputRequiredResult(input_requests={"drink": ElicitRequest(params=question)})
        given = Drink.model_validate(ctx.input_responses["drink"].content)
        return f"{given.kind} with {given.sugar}"
    answer = await ctx.elicit("What would you like?", Drink)
    return f"{answer.data.kind} with {answer.data.sugar}"


@everything.tool
async def hold(name: str, ctx: Context) -> str:
    """Report progress once, then wait to be cancelled."""
    seen.add((name, "held"))
    try:
        await ctx.report_progress(1, 2, "holding")
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        seen.add((name, "released"))
        raise
    return "never"


@everything.tool
async def watch(name: str, event: str, patience: float = PATIENCE) -> str:
    """Wait until a `hold` runs, or has been cancelled."""
    with anyio.move_on_after(patience):
        while (name, event) not in seen:  # noqa: ASYNC110 - what it waits for has no event of its own
            await anyio.sleep(LOOK)
        return f"{name} {event}"
    raise ToolError(f"{name} was not {event}")


@everything.resource("everything://greeting", mime_type="text/plain")
async def greeting() -> str:
    """A greeting."""
    return "Good evening."


@everything.prompt
async def review(play: str) -> str:
    """A review to write."""
    return f"Write a review of {play}."


@everything.completion
async def complete(ref: Any, argument: Any, context: Any) -> Any:
    """Plays that begin so."""
    plays = ("Hamlet", "Hedda Gabler", "Faust") if (ref.name, argument.name) == ("review", "play") else ()
    return Completion(values=[play for play in plays if play.startswith(argument.value)])


if __name__ == "__main__":
    transport = sys.argv[1]
    if transport == "stdio":
        everything.run("stdio", show_banner=False)
    else:
        json = transport == "http-json"
        app = everything.http_app("/sse", transport="sse") if transport == "sse" else everything.http_app(json_response=json)
        uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
