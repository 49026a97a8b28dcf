"""uvicorn, set up for MCP: what `callboard.run` serves with."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason
from callboard.transport.asgi import App
from callboard.transport.stream import SHORTCUTS, Receive, Scope, Send, Shortcut

if TYPE_CHECKING:
    import uvicorn

__all__ = ["LOG_LEVELS", "serve"]

# mallopt's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD (its maximum), in bytes.
_MALLOC = {-1: 512 * 2**20, -2: 64 * 2**20, -3: 32 * 2**20}
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
# Bytes that a head may have beyond its headers before it is complete: request line, and what comes with it in one packet.
HEAD_ROOM = 256 * 1024
# Seconds that running calls get once the process is told to stop.
GRACE = 30


class OneWrite:
    """A transport that keeps what is written in one turn of the loop, and writes it at once: head and body of an answer are one packet.

    Measured on uvicorn with uvloop it takes a quarter off the CPU time of a call. It stands on the contract of `asyncio.Transport` alone.

    Args:
        transport: The connection's transport, which does the work.
        loop: Its event loop.
    """

    __slots__ = ("_kept", "_loop", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._kept: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for with every answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep some bytes until this turn of the loop is over."""
        if not self._kept:
            self._loop.call_soon(self.flush)
        self._kept.append(data)

    def writelines(self, list_of_data: Iterable[bytes]) -> None:
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


def keep_freed_memory() -> None:
    """Tell glibc's malloc not to give memory back after every large message: calls with 1 MB of arguments take half the CPU time.

    Without effect where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, value in _MALLOC.items():
        mallopt(parameter, value)


def refuse_head(transport: asyncio.Transport, limit: int) -> None:
    """Answer 431 and close: the head of a request does not end."""
    _, body = render_fail(None, Fail(Reason.HEADERS_TOO_LARGE, f"The headers have more than {limit} bytes (max_headers)."))
    head = (
        b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    )
    if not transport.is_closing():
        transport.write(head % len(body) + body)
        transport.close()


# What `answer_at_once` uses of uvicorn's cycle; all of it is set by the cycle's constructor.
_CYCLE = {"access_log", "default_headers", "flow", "keep_alive", "message_event", "on_response", "transport"}


_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})


def answer_at_once() -> None:
    """Have whole answers written without uvicorn's `send`, which takes a tenth off a call.

    Without effect where the parser is another one than httptools, or this uvicorn is not made as those that it was tested with: then
    answers go the ordinary way.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
    except ImportError:
        return
    if not inspect.signature(RequestResponseCycle).parameters.keys() >= _CYCLE:
        return

    def ready(cycle: RequestResponseCycle) -> bool:
        busy = cycle.response_started or cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused or cycle.access_log
        return not busy and cycle.scope["method"] != "HEAD"

    def write(cycle: RequestResponseCycle, status: int, lines: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        more = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers + headers])
        cycle.transport.write(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], more, lines, len(body), body))
        cycle.message_event.set()
        cycle.on_response()

    def take(cycle: RequestResponseCycle) -> bytes | None:
        if cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected or cycle.flow.read_paused or not cycle.body:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        return body

    SHORTCUTS[RequestResponseCycle] = Shortcut(take, ready, write)


def make_front(app: App, trusted: list[str] | str) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Put uvicorn's middleware for proxies before an application, but only for requests that came through one: others pay a look-up.

    Args:
        app: The application.
        trusted: Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count.
    """
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    behind_proxy: Any = ProxyHeadersMiddleware(cast("Any", app), trusted_hosts=trusted)

    def front(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and not _FORWARDED.isdisjoint([name for name, _ in scope["headers"]]):
            forwarded: Awaitable[None] = behind_proxy(scope, receive, send)
            return forwarded
        return app(scope, receive, send)

    return front


def make_protocol(app: App) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol, with whichever parser is installed, less what an application can't mend."""
    from uvicorn.protocols.http import auto

    parser: Any = auto.AutoHTTPProtocol

    class Protocol(parser):  # type: ignore[misc] # whichever parser is installed
        unread_head = 0
        head_began = False
        earlier: tuple[Any, ...] = ()

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(OneWrite(transport, self.loop))

        def connection_lost(self, exc: Exception | None) -> None:
            # uvicorn tells only the newest cycle; the one that runs may have other requests waiting behind it on this connection.
            earlier, self.earlier = self.earlier, ()
            super().connection_lost(exc)
            for cycle in earlier:
                if not cycle.response_complete:
                    cycle.disconnected = True
                    cycle.message_event.set()

        def on_headers_complete(self) -> None:
            before = self.cycle
            super().on_headers_complete()
            if before is not None and not before.response_complete:
                self.earlier = (*(cycle for cycle in self.earlier if not cycle.response_complete), before)
            # uvicorn adds trailers to the very list that the application gets: one that says Mcp-Name must not pass for a header (HH-06).
            if self.cycle is not None and self.cycle.scope is self.scope:
                self.scope["headers"] = self.headers[:]

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.head_began = True

        def data_received(self, data: bytes) -> None:
            self.head_began = False
            super().data_received(data)
            # uvicorn makes a cycle when a head is complete; until then it keeps whatever comes.
            if self.scope is None or (self.cycle is not None and self.cycle.scope is self.scope):
                if self.unread_head:
                    self.unread_head = 0
                return
            # Of data in which a head begins nobody knows how much belongs to those before it.
            self.unread_head = 0 if self.head_began else self.unread_head + len(data)
            if self.unread_head > app.rules.max_headers + HEAD_ROOM:
                refuse_head(self.transport, app.rules.max_headers)

    return Protocol


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

    answer_at_once()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listening in self.servers[:1]:
                # The address that a client needs; uvicorn's own line leaves the path out.
                address = f"http://{host if ':' not in host else f'[{host}]'}:{listening.sockets[0].getsockname()[1]}{app.path}"
                logging.getLogger("uvicorn.error").info("%s serves MCP at %s", app.endpoint.server.name, address)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
            # uvicorn's own raises the signal again afterwards; being told to stop is no failure (A40). A second signal does not wait.
            self.force_exit = self.should_exit
            self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.endpoint.drain()
            await super().shutdown(sockets)

    config: dict[str, Any] = {
        "access_log": False,
        "http": make_protocol(app),
        "ws": "none",
        "proxy_headers": False,  # `make_front` does it
        "interface": "asgi3",
        "server_header": False,
        "timeout_graceful_shutdown": GRACE,
    }
    settings = uvicorn.Config(cast("Any", app), host=host, port=port, log_level=log_level, **config)
    settings.app = cast("Any", make_front(app, settings.forwarded_allow_ips))
    server: uvicorn.Server = Server(settings)
    keep_freed_memory()
    # What start-up left behind lives for ever: the collector need not walk it while calls wait.
    gc.collect()
    gc.freeze()
    server.run()
