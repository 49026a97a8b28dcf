"""The everything server of ../cells.py on PyPI mcp 2.

python peer_mcp2.py stdio
python peer_mcp2.py http-json PORT       /mcp, which answers with JSON alone
python peer_mcp2.py http-sse PORT        /mcp, which may answer with a stream
python peer_mcp2.py sse PORT             /sse, the HTTP+SSE of 2024-11-05
"""

import sys
from typing import Annotated, Any, Literal

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import Completion
from pydantic import BaseModel

PATIENCE = 5.0  # seconds that `watch` waits
LOOK = 0.01  # seconds between two looks
BEAT = 0.02  # seconds after a note, so that it travels on its own

everything = MCPServer("everything", version="1.0.0", log_level="WARNING")
seen: set[tuple[str, str]] = set()  # name of a hold, what it has come to


class Sum(BaseModel):
    total: int


class Drink(BaseModel):
    kind: Literal["tea", "coffee"]
    sugar: int = 1


def ask() -> Elicit[Drink]:
    return Elicit("What would you like?", Drink)


@everything.tool(structured_output=False)
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}."


@everything.tool()
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@everything.tool()
async def count(to: int, ctx: Context) -> str:
    """Count aloud: a progress notification per number."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"number {number}")
        await anyio.sleep(BEAT)
    return f"Counted to {to}."


@everything.tool()
async def refuse() -> str:
    """Fail in band."""
    raise ToolError("The curtain is stuck.")


@everything.tool()
async def choose(drink: Annotated[Drink, Resolve(ask)]) -> str:
    """Ask for a drink."""
    return f"{drink.kind} with {drink.sugar}"


@everything.tool()
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


@everything.tool()
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


@everything.prompt()
async def review(play: str) -> str:
    """A review to write."""
    return f"Write a review of {play}."


@everything.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Any:
    """Plays that begin so."""
    plays = ("Hamlet", "Hedda Gabler", "Faust") if (ref.name, argument.name) == ("review", "play") else ()
    return Completion(values=[play for play in plays if play.startswith(argument.value)])


if __name__ == "__main__":
    transport = sys.argv[1]
    if transport == "stdio":
        everything.run("stdio")
    else:
        app = everything.sse_app() if transport == "sse" else everything.streamable_http_app(json_response=transport == "http-json")
        uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
