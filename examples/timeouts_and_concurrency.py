"""Policy of one tool: how long a call may take, and how many run at once."""

import asyncio

from callboard import Client, Server, text

server = Server("printer", version="1.0.0")
events: list[str] = []
running = most = 0


@server.tool(timeout=0.05)
async def hang() -> None:
    """Wait for something that never comes."""
    try:
        await asyncio.Event().wait()
    finally:
        events.append("stopped")


@server.tool(concurrency=2)
async def print_page(page: int) -> int:
    """Print; there are two printers, further calls wait their turn."""
    global running, most  # noqa: PLW0603
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    return page


@server.tool(timeout=0.05, concurrency=1)
async def slow_queue() -> None:
    """Time spent waiting for a turn counts."""
    await asyncio.Event().wait()


async def main() -> None:
    async with Client(server) as client:
        result = await client.call_tool("hang")
        assert result.is_error
        assert result.content == [text("hang was stopped: it took longer than 0.05 s.")]
        assert events == ["stopped"], "the work itself was cancelled"

        pages = await asyncio.gather(*(client.call_tool("print_page", {"page": page}) for page in range(10)))
        assert [page.structured_content for page in pages] == list(range(10))
        assert most == 2

        both = await asyncio.gather(client.call_tool("slow_queue"), client.call_tool("slow_queue"))
        assert all(result.is_error for result in both)
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
