"""Streamable HTTP: `callboard.run` in a process of its own, and a client. Run with a port this file is that server."""

import asyncio
import socket
import subprocess
import sys

import callboard
from callboard import Client, Context, Server
from callboard.client.errors import ConnectionFailed

server = Server("web", version="1.0.0")


@server.tool
async def browser(ctx: Context) -> str:
    """What the client sends as user agent: HTTP headers are at hand, where there is HTTP."""
    assert ctx.headers is not None
    return ctx.headers["user-agent"]


@server.tool
async def count(to: int, ctx: Context) -> int:
    """Count, and stream the progress."""
    for number in range(1, to + 1):
        ctx.progress(number, to)
    return to


async def until_it_listens(url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                async with Client(url):
                    return
            except ConnectionFailed:
                await asyncio.sleep(0.02)


async def main(port: int) -> None:
    steps: list[float] = []
    url = f"http://127.0.0.1:{port}/mcp"
    await until_it_listens(url)
    async with Client(url) as client:
        assert not (await client.call_tool("browser")).is_error
        counted = await client.call_tool("count", {"to": 3}, on_progress=lambda step, *_: steps.append(step))
        assert counted.structured_content == 3
        assert steps == [1, 2, 3]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    if sys.argv[1:]:
        callboard.run(server, port=int(sys.argv[1]), log_level="warning")
    else:
        port = free_port()
        child = subprocess.Popen([sys.executable, __file__, str(port)])  # noqa: S603 - this very file
        try:
            asyncio.run(main(port))
        finally:
            child.terminate()
            child.wait()
        print("OK")
