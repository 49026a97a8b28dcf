"""A stream of lines whose messages wait until a test takes them."""

import asyncio

from callboard.client.errors import ClientError, Origin
from callboard.client.line import LineStream


class LineInbox:
    """Wraps a stream that is not open yet.

    Attributes:
        stream: The stream.
        ends: How often it said that no more will come.
    """

    def __init__(self, stream: LineStream) -> None:
        self.stream = stream
        self.ends = 0
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def open(self, origin: Origin) -> None:
        """Open the stream."""
        await self.stream.open(origin, self._lines.put_nowait, self._end)

    async def receive(self) -> bytes:
        """Take a message. Raises `EOFError` where there will be no more."""
        line = None if self.ends and self._lines.empty() else await self._lines.get()
        if line is None:
            raise EOFError
        return line

    async def send(self, line: bytes) -> None:
        """Write a message."""
        await self.stream.send(line)

    def explain(self, origin: Origin) -> ClientError:
        """Why the stream ended."""
        return self.stream.explain(origin)

    async def aclose(self) -> None:
        """End the stream."""
        await self.stream.aclose()

    def _end(self) -> None:
        self.ends += 1
        self._lines.put_nowait(None)
