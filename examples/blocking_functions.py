"""Plain `def` functions run on threads: they may block, report progress from there, and wait for coroutines."""

import asyncio
import threading

from callboard import Client, Context, Server
from callboard.limits import Limits

server = Server("legacy", version="1.0.0")
meeting = threading.Barrier(2)


@server.tool
def meet(name: str) -> str:
    """Block until a second call is here too: on one thread that would be for ever."""
    meeting.wait(timeout=1)
    return name


@server.tool
def crunch(steps: int, ctx: Context) -> str:
    """Report progress from the thread; a long loop looks now and then whether anybody still waits."""
    for step in range(steps):
        if ctx.cancelled:
            return "nobody cares"
        ctx.progress(step + 1, steps)
    return threading.current_thread().name


async def fetch(key: str) -> str:
    await asyncio.sleep(0)
    return f"{key} by {threading.current_thread().name}"


@server.tool
def mixed(key: str, ctx: Context) -> str:
    """Wait for a coroutine, which runs on the event loop."""
    return ctx.wait(fetch(key))


async def main() -> None:
    steps: list[float] = []
    async with Client(server, limits=Limits(threads=4)) as client:
        both = await asyncio.gather(client.call_tool("meet", {"name": "a"}), client.call_tool("meet", {"name": "b"}))
        assert not any(result.is_error for result in both)

        crunched = await client.call_tool("crunch", {"steps": 5}, on_progress=lambda step, *_: steps.append(step))
        assert steps == [1, 2, 3, 4, 5]
        assert "MainThread" not in str(crunched.content)

        fetched = await client.call_tool("mixed", {"key": "ships"})
        assert "ships by MainThread" in str(fetched.content)
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
