"""A server with tight limits, as a process: `python slow_server.py PORT [NAME=VALUE ...]`, the names being those of `Limits`, or `parser`."""

import asyncio
import gc
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.vitals import descriptors, resident

import callboard
from callboard import Context, Server
from callboard.limits import Limits

server = Server("slow")
seen: ContextVar[str] = ContextVar("seen", default="nobody")
ended: list[str] = []
ran: list[str] = []


@server.tool
async def echo(text: str) -> str:
    """Say it again."""
    ran.append(text)
    return text


@server.tool
async def blob(size: int) -> str:
    """A large result."""
    return "x" * size


@server.tool
async def linger(seconds: float) -> str:
    """Answer later, if the client waits."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append("done")
    return "lingered"


@server.tool
async def flood(count: int, ctx: Context, size: int = 200) -> str:
    """Send as fast as can be."""
    for number in range(count):
        ctx.progress(number, message="x" * size)
        if number % 100 == 0:
            await asyncio.sleep(0)
    return "flooded"


@server.tool
async def tick(count: int, ctx: Context) -> str:
    """Report progress."""
    for number in range(count):
        await ctx.progress(number)
        await asyncio.sleep(0)
    return "ticked"


@server.tool
async def structured(seconds: float) -> list[str]:
    """Use what needs a task of its own."""
    said: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        said.append("timeout")
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        said.append("group")
    return said


@server.tool
async def mark(text: str) -> str:
    """Tell which mark was there before, and leave one."""
    before = seen.get()
    seen.set(text)
    return before


@server.tool
async def state() -> dict[str, Any]:
    """What goes on in this process."""
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": descriptors(),
        "resident": resident(),
        "ended": ended,
        "ran": ran,
    }


def main() -> None:
    """Serve until the process is told to stop."""
    port, *options = sys.argv[1:]
    given = dict(option.split("=") for option in options)
    if given.pop("parser", "httptools") == "h11":
        from uvicorn.protocols.http import auto, h11_impl

        auto.AutoHTTPProtocol = h11_impl.H11Protocol
    values: dict[str, Any] = {name: float(value) if name.endswith("timeout") else int(value) for name, value in given.items()}
    callboard.run(server, port=int(port), log_level="error", limits=Limits(**values))


if __name__ == "__main__":
    main()
