"""What lives as long as the server: opened once, however many transports and clients use it, closed with the last of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from callboard import Client, Context, Server

events: list[str] = []


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[dict[str, Any]]:
    events.append(f"open {server.name}")
    async with asyncio.TaskGroup() as tasks:
        ticker = tasks.create_task(asyncio.Event().wait())  # work in the background ends with the server
        yield {"cache": {"answer": 42}}
        ticker.cancel()
    events.append("closed")


server = Server("cache", version="1.0.0", lifespan=lifespan)


@server.tool
async def look_up(key: str, ctx: Context) -> int | None:
    """Look into the cache."""
    cache: dict[str, int] = ctx.locals["cache"]
    return cache.get(key)


@server.tool
async def store(key: str, value: int, ctx: Context) -> None:
    """Put something into the cache."""
    ctx.locals["cache"][key] = value


async def main() -> None:
    async with Client(server) as first, Client(server) as second:
        assert events == ["open cache"]
        await first.call_tool("store", {"key": "ships", "value": 7})
        assert (await second.call_tool("look_up", {"key": "ships"})).structured_content == 7
        assert (await second.call_tool("look_up", {"key": "answer"})).structured_content == 42
    assert events == ["open cache", "closed"]

    async with Client(server) as again:
        assert (await again.call_tool("look_up", {"key": "ships"})).structured_content is None, "a new life, a new cache"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
