"""uvicorn, set up for MCP: what `callboard.run` serves with."""

from __future__ import annotations

import asyncio
import gc
import socket
from types import FrameType
from typing import TYPE_CHECKING, Any

from callboard.transport.asgi import App

if TYPE_CHECKING:
    import uvicorn

__all__ = ["serve"]

# Seconds that running calls get once the process is told to stop.
GRACE = 30


class OneWrite(asyncio.Transport):
    """A transport that keeps what is written in one turn of the loop, and writes it at once: head and body of an answer are one packet.

    Measured on uvicorn with uvloop it takes a quarter off the CPU time of a call. It stands on the contract of `asyncio.Transport` alone.

    Args:
        transport: The connection's transport, which does the work.
        loop: Its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._kept: list[bytes] = []
        for name in (
            "get_extra_info",
            "get_protocol",
            "get_write_buffer_size",
            "is_closing",
            "is_reading",
            "pause_reading",
            "resume_reading",
        ):
            setattr(self, name, getattr(transport, name))

    def write(self, data: Any) -> None:
        """Keep some bytes until this turn of the loop is over."""
        if not self._kept:
            self._loop.call_soon(self.flush)
        self._kept.append(data)

    def writelines(self, list_of_data: Any) -> None:
        """Keep several."""
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        """Write what is kept."""
        kept, self._kept = self._kept, []
        if kept and not self._transport.is_closing():
            self._transport.write(b"".join(kept))

    def close(self) -> None:
        """Close the connection when everything is written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._kept.clear()
        self._transport.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self._transport.set_protocol(protocol)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks of flow control."""
        self._transport.set_write_buffer_limits(high, low)


def serve(app: App, *, host: str, port: int, log_level: str = "info") -> None:
    """Serve an application until SIGINT or SIGTERM.

    Open listen streams get their closing result first, so that the process does not wait for them.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on.
        log_level: Of uvicorn.
    """
    import uvicorn
    from uvicorn.protocols.http import auto

    parser: Any = auto.AutoHTTPProtocol

    class Protocol(parser):  # type: ignore[misc] # whichever parser is installed
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(OneWrite(transport, self.loop))

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
            # uvicorn's own raises the signal again afterwards; being told to stop is no failure (A40). A second signal does not wait.
            self.force_exit = self.should_exit
            self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.endpoint.server.hub.close()
            await super().shutdown(sockets)

    config: dict[str, Any] = {
        "access_log": False,
        "http": Protocol,
        "ws": "none",
        "server_header": False,
        "timeout_graceful_shutdown": GRACE,
    }
    server: uvicorn.Server = Server(uvicorn.Config(app, host=host, port=port, log_level=log_level, **config))
    # What start-up left behind lives for ever: the collector need not walk it while calls wait.
    gc.collect()
    gc.freeze()
    server.run()
