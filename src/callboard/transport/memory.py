"""A server in this very process: for tests, and for programs that host their own tools."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from callboard.server.mount import Mount
from callboard.transport.endpoint import Endpoint
from callboard.transport.pipe import Pipe

__all__ = ["MAX_WAITING", "MemoryConnection", "connect"]

# Bytes that may wait for `receive` before the server is told that its client is slow.
MAX_WAITING = 64 * 1024


async def connect(endpoint: Endpoint, principal: str | None = None) -> MemoryConnection:
    """Connect to a server on this event loop. The endpoint is the connection's own: it ends with it.

    Args:
        endpoint: The server.
        principal: Who the client is; None when that is not known.

    Raises:
        Exception: What the server's lifespan raised.
    """
    return MemoryConnection(endpoint, await endpoint.open(), principal)


class MemoryConnection:
    """The client's end of a connection: one JSON-RPC message per call, as bytes without a line end.

    It may be closed in another task than the one that opened it (A43).
    """

    def __init__(self, endpoint: Endpoint, mount: Mount, principal: str | None = None) -> None:
        self._endpoint = endpoint
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._open = True
        self._take: Callable[[bytes], None] | None = None
        self._pipe = Pipe(endpoint, mount, self._write, principal=principal)

    async def send(self, line: bytes) -> None:
        """Hand the server one message; waits while very many answers are left unread.

        Raises:
            EOFError: The connection is closed.
        """
        while self._open and self._pipe.congested:
            drained = asyncio.Event()
            self._pipe.when_drained(drained.set)
            await drained.wait()
        if not self._open:
            raise EOFError("the connection is closed")
        self._pipe.feed(line)

    async def receive(self) -> bytes:
        """Take the server's next message.

        Raises:
            EOFError: The connection is closed.
        """
        while not self._lines:
            if not self._open:
                raise EOFError("the connection is closed")
            self._changed.clear()
            await self._changed.wait()
        line = self._lines.popleft()
        self._size -= len(line)
        if self._size <= MAX_WAITING:
            self._room.set()
        return line

    def pass_on(self, take: Callable[[bytes], None]) -> None:
        """Have each of the server's messages given to `take` as it comes, in place of `receive`."""
        self._take = take

    async def aclose(self) -> None:
        """Close the connection: what runs is cancelled, the server's lifespan ends with its last connection. Twice is harmless.

        Raises:
            Exception: What the lifespan raised on its way out.
        """
        if not self._open:
            return
        self._open = False
        self._changed.set()
        self._room.set()
        await self._pipe.drain(0)
        await self._pipe.hang_up()
        try:
            await self._endpoint.close()
        finally:
            await self._pipe.close()

    def _write(self, lines: list[bytes]) -> Awaitable[None] | None:
        if not self._open:
            return None
        if self._take is not None:
            for line in lines:
                self._take(line)
            return None
        self._lines += lines
        self._size += sum(map(len, lines))
        self._changed.set()
        if self._size <= MAX_WAITING:
            return None
        self._room.clear()
        return self._wait_for_room()

    async def _wait_for_room(self) -> None:
        await self._room.wait()
