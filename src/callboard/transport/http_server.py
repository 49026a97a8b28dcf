"""uvicorn, set up for MCP: what `callboard.run` serves with."""

from __future__ import annotations

import gc
import socket
from typing import TYPE_CHECKING, Any

from callboard.transport.asgi import App

if TYPE_CHECKING:
    import uvicorn

__all__ = ["serve"]

# Seconds that running calls get once the process is told to stop.
GRACE = 30


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

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.endpoint.server.hub.close()
            await super().shutdown(sockets)

    config: dict[str, Any] = {"access_log": False, "ws": "none", "server_header": False, "timeout_graceful_shutdown": GRACE}
    server: uvicorn.Server = Server(uvicorn.Config(app, host=host, port=port, log_level=log_level, **config))
    # What start-up left behind lives for ever: the collector need not walk it while calls wait.
    gc.collect()
    gc.freeze()
    server.run()
