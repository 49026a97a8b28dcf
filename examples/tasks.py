"""Work that outlives its call: a task that tells how it stands, asks, and is read over another connection."""

import asyncio
from typing import Any

from callboard import Client, Context, Server
from callboard.client.errors import ServerError
from callboard.types import ElicitRequestFormParams, ElicitRequestURLParams

server = Server("archive", version="1.0.0")
stopped: list[bool] = []


@server.tool(task="allowed")
async def reindex(ctx: Context, shelves: int = 3) -> str:
    """Index every shelf anew; for clients without tasks too, who just wait."""
    for shelf in range(shelves):
        ctx.progress(shelf + 1, shelves, f"shelf {shelf + 1} of {shelves}")
        await asyncio.sleep(0.01)
    answer = await ctx.elicit("Publish the new index?", bool)
    return "published" if answer.value else "kept back"


@server.tool(task="always")
async def watch_over(ctx: Context) -> None:
    """Work without an end; a client that knows no tasks could only hang."""
    try:
        await asyncio.Event().wait()
    finally:
        stopped.append(ctx.cancelled)


def agree(_asked: ElicitRequestFormParams | ElicitRequestURLParams) -> dict[str, Any]:
    return {"value": True}


async def main() -> None:
    # A client that follows tasks needs no more than to say so.
    async with Client(server, tasks=True, on_elicit=agree) as client:
        result = await client.call_tool("reindex")
        assert str(result.content).count("published") == 1

        # Nobody waits any more: the client cancels the task, and the server its function.
        try:
            async with asyncio.timeout(0.05):
                await client.call_tool("watch_over")
        except TimeoutError:
            await asyncio.sleep(0)
        assert stopped == [True]

    # One that doesn't gets an answer to its call, or learns what it would need.
    async with Client(server, on_elicit=agree) as client:
        result = await client.call_tool("reindex", {"shelves": 1})
        assert str(result.content).count("published") == 1
        missing = None
        try:
            await client.call_tool("watch_over")
        except ServerError as error:
            missing = error.data["requiredCapabilities"]
        assert missing == {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
