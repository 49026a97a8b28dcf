"""The everything server of ../cells.py on Callboard.

python everything.py stdio
python everything.py http-json PORT       /mcp, which answers with JSON alone
python everything.py http-sse PORT        /mcp, which may answer with a stream
python everything.py sse PORT             /sse, the HTTP+SSE of 2024-11-05
"""

import asyncio
import sys
from typing import Literal

import uvicorn
from msgspec import Struct

from callboard import Context, Server, ToolError, asgi, run, types

PATIENCE = 5.0  # seconds that `watch` waits
LOOK = 0.01  # seconds between two looks
BEAT = 0.02  # seconds after a note
REST = 0.3  # seconds between the last note and the result: npm's clients drop notes that arrive in one piece with it

server = Server("everything", version="1.0.0")
seen: set[tuple[str, str]] = set()  # name of a hold, what it has come to


class Sum(Struct):
    """A sum.

    Attributes:
        total: Both numbers together.
    """

    total: int


class Drink(Struct):
    """A drink.

    Attributes:
        kind: What it is.
        sugar: How many lumps.
    """

    kind: Literal["tea", "coffee"]
    sugar: int = 1


@server.tool
async def greet(name: str) -> types.TextContent:
    """Greet somebody."""
    return types.text(f"Hello, {name}.")


@server.tool
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(a + b)


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count aloud: a progress notification per number."""
    for number in range(1, to + 1):
        ctx.progress(number, to, f"number {number}")
        await asyncio.sleep(BEAT)
    await asyncio.sleep(REST)
    return f"Counted to {to}."


@server.tool
async def refuse() -> str:
    """Fail in band."""
    raise ToolError("The curtain is stuck.")


@server.tool
async def choose(ctx: Context) -> str:
    """Ask for a drink."""
    answer = await ctx.elicit("What would you like?", Drink)
    return f"{answer.value.kind} with {answer.value.sugar}"


@server.tool
async def hold(name: str, ctx: Context) -> str:
    """Report progress once, then wait to be cancelled."""
    seen.add((name, "held"))
    try:
        ctx.progress(1, 2, "holding")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen.add((name, "released"))
        raise
    return "never"


@server.tool
async def watch(name: str, event: str, patience: float = PATIENCE) -> str:
    """Wait until a `hold` runs, or has been cancelled."""
    try:
        async with asyncio.timeout(patience):
            while (name, event) not in seen:  # noqa: ASYNC110 - what it waits for has no event of its own
                await asyncio.sleep(LOOK)
    except TimeoutError:
        raise ToolError(f"{name} was not {event}") from None
    return f"{name} {event}"


@server.resource("everything://greeting", mime_type="text/plain")
async def greeting() -> str:
    """A greeting."""
    return "Good evening."


@server.prompt
async def review(play: str) -> str:
    """A review to write."""
    return f"Write a review of {play}."


@server.complete("review", "play")
async def plays(value: str) -> list[str]:
    return [play for play in ("Hamlet", "Hedda Gabler", "Faust") if play.startswith(value)]


if __name__ == "__main__":
    transport = sys.argv[1]
    if transport == "stdio":
        run(server, transport="stdio")
    else:
        app = asgi(server, json_only=transport == "http-json", sse_path="/sse" if transport == "sse" else None)
        uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
