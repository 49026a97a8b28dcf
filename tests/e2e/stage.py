"""The server that official clients and other people's ASGI servers are tried against.

`app` is for ASGI servers, `fleeting` the same with listen streams that soon end, `modern` for the current protocol alone, `june` and
`march` for nothing but a protocol of 2025, `sse` for HTTP+SSE too, `mounted` the same under `/tools`; `python stage.py stdio` serves
stdio. What must be seen to happen is told by tools, so that no test waits a fixed time: `hold` reports progress when it runs and
`released` answers when `hold` was cancelled; `departed` answers when a session has ended.
"""

import asyncio
import sys
from typing import Annotated

from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.routing import Mount

from callboard import Context, NotFound, Server, ToolError, asgi, run, types
from callboard.limits import Limits

PATIENCE = 10.0  # seconds that a tool waits for what another call must bring about
BEAT = 0.02  # seconds after a note
REST = 0.3  # seconds between the last note and the result: npm's clients drop notes that arrive in one piece with it

held: asyncio.Queue[str] = asyncio.Queue()
cue: asyncio.Queue[str] = asyncio.Queue()
departures: asyncio.Queue[dict[str, str | int]] = asyncio.Queue()


class Tally(Struct):
    """What a session remembers.

    Attributes:
        count: How often it called `tally`.
    """

    count: int = 0


async def depart(reason: str, tally: Tally) -> None:
    """Tells `departed` of a session that has ended."""
    departures.put_nowait({"reason": reason, "count": tally.count})


server = Server(
    "stage",
    version="1.2.3",
    title="Stage",
    instructions="Ask the prompter.",
    page_size=5,
    state=Tally,
    channels=["everyone"],
    terminate=depart,
)


class Sum(Struct):
    """A sum.

    Attributes:
        total: Both numbers together.
    """

    total: int


@server.tool(title="Addition", annotations=types.ToolAnnotations(read_only_hint=True))
async def add(a: int, b: int) -> Sum:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return Sum(a + b)


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count aloud: a progress notification per number."""
    for number in range(1, to + 1):
        ctx.progress(number, to, f"number {number}")
        await asyncio.sleep(BEAT)
    await asyncio.sleep(REST)
    return f"counted to {to}"


@server.tool
async def log(line: str, ctx: Context) -> str:
    """Log a line at three levels."""
    for level in ("debug", "info", "error"):
        ctx.log(level, line, logger="stage")
        await asyncio.sleep(BEAT)
    await asyncio.sleep(REST)
    return "logged"


@server.tool
async def refuse() -> str:
    """Fail in band."""
    raise ToolError("The curtain is stuck.")


@server.tool
async def crash() -> str:
    """Fail with an exception that nobody outside may read."""
    raise RuntimeError("password=hunter2")


@server.tool
async def seat(row: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Row"})]) -> str:
    """Find a seat; HTTP clients repeat the row in a header."""
    return f"row {row}"


@server.tool
async def double(number: int) -> int:
    """Double a number, to tell concurrent calls apart."""
    await asyncio.sleep(0)
    return 2 * number


@server.tool
async def hold(name: str, ctx: Context) -> str:
    """Report progress once, then wait to be cancelled."""
    try:
        ctx.progress(1, 2, "holding")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        held.put_nowait(name)
        raise
    return "never"


@server.tool
async def released() -> str:
    """Wait for a `hold` to be cancelled; answers its name."""
    return await asyncio.wait_for(held.get(), PATIENCE)


@server.tool
async def perform(ctx: Context) -> str:
    """Report progress, wait for `prompt_actor`, report progress again."""
    ctx.progress(1, 3, "enters")
    line = await asyncio.wait_for(cue.get(), PATIENCE)
    ctx.progress(2, 3, line)
    return "bows"


@server.tool
async def prompt_actor(line: str) -> str:
    """Give `perform` its cue."""
    cue.put_nowait(line)
    return "whispered"


@server.tool
async def tally(tally: Tally) -> int:
    """Count the session's calls of this tool."""
    count = tally.count
    await asyncio.sleep(0)  # what another call writes meanwhile would be lost
    tally.count = count + 1
    return tally.count


@server.tool
async def interval(ctx: Context) -> str:
    """Report progress, close the call's stream, report progress again and answer."""
    ctx.progress(1, 2, "the curtain falls")
    await asyncio.sleep(BEAT)
    ctx.disconnect(retry=BEAT)
    await asyncio.sleep(BEAT)
    ctx.progress(2, 2, "the curtain rises")
    await asyncio.sleep(REST)
    return "applause"


@server.tool
async def whisper(line: str, ctx: Context) -> str:
    """Log a line to this session from outside of the call."""
    if ctx.session_id is not None:
        server.log(ctx.session_id, "info", line, logger="prompter")
    return "whispered"


@server.tool
async def shout(line: str) -> str:
    """Log a line to every session."""
    server.broadcast("everyone", {"method": "notifications/message", "params": {"level": "notice", "data": line}})
    return "shouted"


@server.tool
async def departed() -> dict[str, str | int]:
    """Wait for a session to end; answers why it did and what it remembered."""
    return await asyncio.wait_for(departures.get(), PATIENCE)


@server.tool
async def announce(name: str) -> str:
    """Add a tool, so that listeners hear that the list changed."""

    async def act() -> str:
        return name

    server.tool(name=name, description=f"Play {name}.")(act)
    return f"added {name}"


@server.tool
async def sell() -> str:
    """Change the number of tickets, so that subscribers hear of it."""
    server.resource_updated("stage://tickets")
    return "sold"


@server.resource("stage://tickets", mime_type="application/json", title="Tickets")
async def tickets() -> dict[str, int]:
    """How many tickets are left."""
    return {"left": 7}


@server.resource("stage://poster", mime_type="image/png")
async def poster() -> bytes:
    """The poster."""
    return b"\x89PNG\r\n"


@server.resource("stage://cast/{role}", mime_type="text/plain")
async def cast(role: str) -> str:
    """Who plays a role."""
    if role == "ghost":
        raise NotFound
    return f"{role} is played by Ada"


@server.prompt(title="Review")
async def review(play: str, tone: str = "kind") -> list[types.PromptMessage]:
    """A review to write.

    Args:
        play: Which play.
        tone: How to speak of it.
    """
    return [types.user(f"Write a {tone} review of {play}."), types.assistant("Gladly.")]


@server.complete("review", "play")
async def plays(value: str) -> list[str]:
    return [play for play in ("Hamlet", "Hedda Gabler", "Faust") if play.startswith(value)]


@server.complete("stage://cast/{role}", "role")
async def roles(value: str) -> list[str]:
    return [role for role in ("ghost", "gertrude", "hamlet") if role.startswith(value)]


app = asgi(server, limits=Limits(max_listens=20))
fleeting = asgi(server, limits=Limits(listen_lifetime=0.2))
modern = asgi(server, versions=["2026-07-28"])
june = asgi(server, versions=["2025-06-18"])
march = asgi(server, versions=["2025-03-26"])
sse = asgi(server, sse_path="/sse")
mounted = Starlette(routes=[Mount("/tools", app=asgi(server, sse_path="/sse"))])

if __name__ == "__main__":
    if sys.argv[1:] != ["stdio"]:
        sys.exit("usage: stage.py stdio")
    run(server, transport="stdio")
