"""News while a tool works: progress for the person who waits, log messages for those who asked for them."""

import asyncio

from callboard import Client, Context, Server, types

server = Server("indexer", version="1.0.0")


@server.tool
async def index(pages: int, ctx: Context) -> int:
    """Index some pages."""
    ctx.log("debug", {"pages": pages})
    for page in range(1, pages + 1):
        # Acts at once. Awaiting is optional: it waits while the client reads more slowly than the function writes.
        await ctx.progress(page, pages, f"page {page}")
    ctx.log("warning", "one page was empty", logger="parser")
    return pages


async def main() -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    lines: list[types.LoggingMessageNotificationParams] = []

    async with Client(server, on_log=lines.append, log_level="info") as client:
        done = await client.call_tool("index", {"pages": 3}, on_progress=lambda *step: steps.append(step))
        assert done.structured_content == 3
    assert steps == [(1, 3, "page 1"), (2, 3, "page 2"), (3, 3, "page 3")]
    assert [(line.level, line.data, line.logger) for line in lines] == [("warning", "one page was empty", "parser")]

    # A client that asks for neither gets the result alone; the function is the same.
    async with Client(server) as quiet:
        assert (await quiet.call_tool("index", {"pages": 3})).structured_content == 3
    assert len(steps) == 3
    assert len(lines) == 1
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
