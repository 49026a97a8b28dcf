"""The desk as a process: `python desk_server.py PORT`."""

import asyncio
import gc
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from desk import Desk
from e2e.vitals import descriptors, resident

import callboard
from callboard import Context, Request, Service
from callboard.core.outcome import Outcome


def main() -> None:
    """Serve until the process is told to stop."""
    desk = Desk(middleware=[slow_listen] if "--slow-listen" in sys.argv else ())
    server = desk.server

    @server.tool
    async def state() -> dict[str, Any]:
        """What goes on in this process."""
        gc.collect()
        return {
            "listeners": len(server.hub),
            "ended": len(desk.ended),
            "calls": len(desk.calls),
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "descriptors": descriptors(),
            "resident": resident(),
        }

    @server.tool
    async def linger(seconds: float) -> str:
        """Answer later."""
        await asyncio.sleep(seconds)
        return "lingered"

    @server.tool
    async def flood(count: int, ctx: Context) -> str:
        """Send as fast as can be."""
        for number in range(count):
            ctx.progress(number, message="x" * 100)
            ctx.log("info", "x" * 200)
            if number % 500 == 0:
                await asyncio.sleep(0)
        desk.calls.append("flood")
        return "flooded"

    @server.tool
    async def touch(uri: str) -> None:
        """Tell listeners that a resource has changed."""
        server.resource_updated(uri)

    callboard.run(server, port=int(sys.argv[1]), log_level="error", keep_alive=0.2 if "--quick" in sys.argv else 15.0)


def slow_listen(inner: Service) -> Service:
    """A layer that takes its time with listen requests, as one that asks a database who may."""

    async def service(request: Request, ctx: Context) -> Outcome:
        if request.method == "subscriptions/listen":
            await asyncio.sleep(0.5)
        return await inner(request, ctx)

    return service


if __name__ == "__main__":
    main()
