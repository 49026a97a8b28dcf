"""What a soak is about: `callboard run soak_server.py`. SOAK_TTL is the life of an idle session, in seconds."""

import asyncio
import gc
import os

from msgspec import Struct

from callboard import Context, Server, asgi


class Tally(Struct):
    """What a session remembers.

    Attributes:
        count: How often it called `tally`.
    """

    count: int = 0


server = Server("soak", version="1.0.0", state=Tally, channels=["everyone"])


@server.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
async def climb(steps: int, pause: float, ctx: Context) -> str:
    """Report progress, step by step."""
    for number in range(1, steps + 1):
        ctx.progress(number, steps, "x" * 100)
        await asyncio.sleep(pause)
    return f"{steps} steps"


@server.tool
async def hold(ctx: Context, *, silent: bool = False) -> str:
    """Wait for a cancellation, for a minute at the most."""
    if not silent:
        ctx.progress(1, 2, "holding")
    await asyncio.sleep(60)
    return "nobody came"


@server.tool
def block(text: str) -> int:
    """What runs in a thread."""
    return sum(text.encode())


@server.tool
async def tally(tally: Tally) -> int:
    """Count the session's calls of this tool."""
    tally.count += 1
    return tally.count


@server.tool
async def shout(line: str) -> str:
    """Say a line to every session, and that the number has changed."""
    server.broadcast("everyone", {"method": "notifications/message", "params": {"level": "notice", "data": line}})
    server.resource_updated("soak://number")
    return "shouted"


@server.tool
async def vitals() -> dict[str, int]:
    """Which process, and what lives in it."""
    gc.collect()
    return {"pid": os.getpid(), "tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())}


@server.resource("soak://number")
async def number() -> str:
    """A number."""
    return "7"


app = asgi(server, session_ttl=float(os.environ.get("SOAK_TTL", "5")), keep_alive=1.0)
