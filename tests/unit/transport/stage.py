"""A server whose tools do as the test says, and a pipe to it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from unit.transport.lines import LIMIT, Reader

from callboard import Context, Server
from callboard.compose import endpoint
from callboard.limits import Limits
from callboard.transport.pipe import Pipe


class Stage:
    """A server whose tools wait until the test lets them go on."""

    def __init__(self) -> None:
        self.server = Server("stage")
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        for tool in (self.echo, self.hold, self.count, self.shout, self.chatter, self.large, self.turns, self.quit, self.abandon):
            self.server.tool(tool)

    async def echo(self, text: str) -> str:
        return text

    async def hold(self, name: str) -> str:
        self.started.put_nowait(name)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.put_nowait(name)
            raise
        return name

    async def count(self, to: int, size: int, ctx: Context) -> str:
        for step in range(to):
            ctx.progress(step + 1, to, f"step {step + 1}")
        return "x" * size

    async def chatter(self, notes: int, size: int, ctx: Context) -> str:
        for step in range(notes):
            ctx.log("info", f"{step}:" + "x" * size)
            ctx.progress(step + 1, notes, "y" * size)
        self.started.put_nowait("chattered")
        await self.go.wait()
        return "done"

    async def shout(self, ctx: Context) -> str:
        ctx.progress(1, 2)
        self.started.put_nowait("shouted")
        await self.go.wait()
        return "done"

    async def large(self, size: int) -> str:
        return "x" * size

    async def turns(self, count: int) -> str:
        for _ in range(count):
            await asyncio.sleep(0)
        return "done"

    async def quit(self) -> str:
        raise SystemExit(3)

    async def abandon(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "never"


@asynccontextmanager
async def serving(
    server: Server, *, reader: Reader | None = None, versions: Sequence[str] | None = None, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[Pipe, Reader]]:
    """A pipe to a server and who reads it; both are over when the block is left."""
    served = endpoint(server, versions=versions, limits=limits)
    reader = reader or Reader()
    pipe = Pipe(served, await served.open(), reader.write, **options)
    try:
        yield pipe, reader
    finally:
        await pipe.drain(0)
        await pipe.hang_up()
        await served.close()
        await pipe.close()


async def within(awaitable: Any) -> Any:
    """Wait for it, not for ever."""
    return await asyncio.wait_for(awaitable, LIMIT)
