"""A server of both eras that is always right, for clients that meet trouble on the way to it: on a thread of its own, or as a process.

python upstream.py                 on stdin and stdout
python upstream.py PORT            over HTTP
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from callboard import Context, Server, asgi, run
from callboard.types import CallToolResult, TextContent

__all__ = ["COMMAND", "PAGE", "TOOLS", "board", "many", "serve"]

# The server as a process.
COMMAND = [sys.executable, str(Path(__file__).resolve())]
# Tools that there are to fill pages with, and how many fit on one.
TOOLS, PAGE = 120, 50


class Weather(msgspec.Struct):
    """What `refuse` would give."""

    celsius: float


def board() -> Server:
    """The server."""
    server = Server("upstream", version="1", page_size=PAGE)
    add_calls(server)
    add_troubles(server)
    return server


def add_calls(server: Server) -> None:
    """Tools that do as they are told, and one of each other kind."""

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(text: str, ctx: Context, steps: int = 3, pause: float = 0) -> str:
        for step in range(steps):
            ctx.progress(step + 1, steps, text)
            await asyncio.sleep(pause)
        return text

    @server.tool
    async def large(length: int, ctx: Context) -> str:
        for step in range(3):
            ctx.progress(step + 1)
        return "x" * length

    @server.tool
    async def ask_roots(ctx: Context) -> int:
        return len(await ctx.roots())

    @server.tool
    async def grow(name: str) -> None:
        async def added() -> None: ...

        server.tool(added, name=name)

    @server.resource("note://one")
    def one() -> str:
        return "first"


def add_troubles(server: Server) -> None:
    """Tools that do not end well."""
    cancelled: asyncio.Queue[str] = asyncio.Queue()
    ran = 0

    @server.tool
    async def wait(seconds: float, ctx: Context) -> str:
        ctx.progress(0)
        await asyncio.sleep(seconds)
        return "rested"

    @server.tool
    async def hold(ctx: Context) -> None:
        ctx.progress(0)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.put_nowait("hold")

    @server.tool
    async def was_cancelled() -> str:
        async with asyncio.timeout(5):
            return await cancelled.get()

    @server.tool
    async def refuse() -> Weather:
        return CallToolResult(content=[TextContent(text="no sensor")], structured_content={"reason": 7}, is_error=True)  # type: ignore[return-value] # A23

    @server.tool
    async def run_once() -> int:
        nonlocal ran
        ran += 1
        return ran

    @server.tool
    async def leave() -> None:
        os.write(2, b"the database is on fire\n")
        os._exit(3)


def many() -> Server:
    """A server with more tools than fit on a page."""
    server = Server("many", page_size=PAGE)
    for number in range(TOOLS):

        async def tool() -> None: ...

        server.tool(tool, name=f"tool_{number}")
    return server


@contextmanager
def serve(server: Server | None = None, **options: Any) -> Iterator[str]:
    """URL of a server on a free port; options go to `callboard.asgi`."""
    listener = socket.create_server(("127.0.0.1", 0))
    # A stream that stays open is no reason to wait at the end.
    config = uvicorn.Config(asgi(server or board(), **options), log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(runner.serve([listener])), name="upstream")
    thread.start()
    while not runner.started and thread.is_alive():
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        runner.should_exit = True
        thread.join()
        listener.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(board(), port=int(sys.argv[1]), log_level="error")
    else:
        run(board(), transport="stdio")
