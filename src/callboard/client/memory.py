"""A server in this very process, reached without bytes leaving it: for tests, and for programs that host their own tools."""

from __future__ import annotations

from callboard.client.errors import ClientError, ConnectionFailed, Origin
from callboard.compose import endpoint
from callboard.server.app import Server
from callboard.transport.memory import MemoryConnection, connect

__all__ = ["MemoryStream"]


class MemoryStream:
    """Lines to and from a server object.

    Args:
        server: The server. It runs in the event loop that opens the stream.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lines: MemoryConnection | None = None

    async def open(self, origin: Origin) -> None:
        """Connect; what the server's lifespan raises comes out here."""
        del origin
        self._lines = await connect(endpoint(self._server))

    async def send(self, line: bytes) -> None:
        """Hand the server one message."""
        assert self._lines is not None
        await self._lines.send(line)

    async def receive(self) -> bytes:
        """Take one message of the server's."""
        assert self._lines is not None
        return await self._lines.receive()

    @property
    def last_words(self) -> str:
        """Nothing: its logs are this program's."""
        return ""

    def explain(self, origin: Origin) -> ClientError:
        """Say that the server ended it."""
        return ConnectionFailed("the server in this process ended the connection", origin)

    async def aclose(self) -> None:
        """Disconnect."""
        if self._lines is not None:
            await self._lines.aclose()
