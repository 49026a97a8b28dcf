"""Servers on this machine, in the test's own event loop, that do with a connection whatever a test wants, and leave nothing behind."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def host(serve: Serve, port: int = 0, **options: Any) -> AsyncIterator[int]:
    """Serves each connection of a port (a free one by default), and gives the port. What is still served at the end is cut off."""
    serving: set[asyncio.Task[None]] = set()

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await serve(reader, writer)
        finally:
            serving.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(each, "127.0.0.1", port, **options)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()
