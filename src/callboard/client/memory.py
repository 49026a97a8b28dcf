"""A server in this very process, reached without bytes leaving it: for tests, and for programs that host their own tools."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context

from callboard.client.errors import ClientError, ConnectionFailed, Origin
from callboard.compose import endpoint
from callboard.server.app import Server
from callboard.server.limits import Limits
from callboard.transport.memory import MemoryConnection, connect

__all__ = ["MemoryStream"]


class MemoryStream:
    """Lines to and from a server object.

    Args:
        server: The server. It runs in the event loop that opens the stream.
        principal: Who the client is there; None when that is not known.
        limits: Bounds of what it can make the server take; None for the defaults.
    """

    def __init__(self, server: Server, principal: str | None = None, limits: Limits | None = None) -> None:
        self._principal = principal
        self._limits = limits
        self._server = server
        self._lines: MemoryConnection | None = None

    async def open(self, origin: Origin, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Connect; what the server's lifespan raises comes out here. There is no end but the client's own."""
        del origin, end
        self._lines = await connect(endpoint(self._server, limits=self._limits), self._principal)
        # What the client does with a line shall not see the context variables of the call that wrote it.
        context = copy_context()
        self._lines.pass_on(lambda line: context.run(take, line))

    async def send(self, line: bytes) -> None:
        """Hand the server one message."""
        assert self._lines is not None
        await self._lines.send(line)

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
