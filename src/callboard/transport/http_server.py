"""uvicorn, set up for MCP: what `callboard.run` serves with."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason, RegistrationError
from callboard.logs import is_configured
from callboard.server.limits import Limits
from callboard.transport.access_log import log_access
from callboard.transport.asgi import App, report_lifespan
from callboard.transport.duty import Duty
from callboard.transport.http_protocol import answer_at_once, make_protocol
from callboard.transport.slow_clients import Sweep
from callboard.transport.stream import JSON_HEADERS, Receive, Scope, Send
from callboard.transport.worker_link import WorkerLink

if TYPE_CHECKING:
    import uvicorn

__all__ = ["GRACE", "LOG_LEVELS", "Settings", "serve", "serve_with"]

_log = logging.getLogger("callboard")
# mallopt's M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD (its maximum), in bytes.
_MALLOC = {-1: 512 * 2**20, -2: 64 * 2**20, -3: 32 * 2**20}
LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
# Seconds that running calls get once the process is told to stop.
GRACE = 30.0
# Descriptors of the process that are not for connections.
SPARE_DESCRIPTORS = 64
_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
# One of the parsers takes a request line without a version, the other takes any.
_VERSIONS = frozenset({"1.0", "1.1"})
_AMBIGUOUS = (
    "More than one host, Content-Length beside Transfer-Encoding, or neither HTTP/1.1 nor 1.0: others may read this request differently."
)
_STOCK = (
    "slow clients are not timed out, connections are not counted, and calls cost more. Have a proxy before it, or install another version."
)


def keep_freed_memory() -> Callable[[], object]:
    """Tell glibc's malloc not to give memory back after every large message: calls with 1 MB of arguments take half the CPU time.

    Returns:
        What gives it back after all. Without effect, as this, where there is no glibc.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt, malloc_trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return int
    for parameter, value in _MALLOC.items():
        mallopt(parameter, value)
    return partial(malloc_trim, 0)


def make_front(app: App, trusted: list[str] | str) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Put before an application what it can't know itself.

    What two readers may read differently is refused (SA15): where uvicorn's parsers have no doubt, a proxy in between may have. Requests
    that came through a proxy go through uvicorn's middleware for that; others pay a look-up.

    Args:
        app: The application.
        trusted: Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count.
    """
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

    behind_proxy: Any = ProxyHeadersMiddleware(cast("Any", app), trusted_hosts=trusted)

    def front(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            names = [name for name, _ in scope["headers"]]
            doubtful = names.count(b"host") > 1 or (b"transfer-encoding" in names and b"content-length" in names)
            if doubtful or scope["http_version"] not in _VERSIONS:
                return send_closing(send, Fail(Reason.INVALID_REQUEST, _AMBIGUOUS))
            if not _FORWARDED.isdisjoint(names):
                forwarded: Awaitable[None] = behind_proxy(scope, receive, send)
                return forwarded
        return app(scope, receive, send)

    return front


async def send_closing(send: Send, fail: Fail) -> None:
    """Refuse a request and all that may follow on its connection.

    Args:
        send: ASGI send.
        fail: Why.
    """
    status, body = render_fail(None, fail)
    headers = [*JSON_HEADERS, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def make_sweep(limits: Limits, *, keep_alive: float, give_back: Callable[[], object]) -> Sweep:
    """What ends slow connections.

    Args:
        limits: How slow they may be.
        keep_alive: Seconds that a connection may be silent between two requests.
        give_back: See `keep_freed_memory`.
    """
    return Sweep(
        head_timeout=limits.head_timeout,
        body_timeout=limits.body_timeout,
        write_timeout=limits.write_timeout,
        keep_alive=keep_alive,
        max_unsent=limits.max_buffered,
        give_back=give_back,
    )


def most_connections(limits: Limits) -> int:
    """How many connections there may be: no more than the process may have descriptors, less a few."""
    try:
        import resource
    except ImportError:
        return limits.max_connections  # Windows has no such limit
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = math.inf if soft == resource.RLIM_INFINITY else max(soft - SPARE_DESCRIPTORS, soft // 2)
    if there < limits.max_connections:
        _log.info("The process may have %d descriptors (ulimit -n): at most %d connections are taken.", soft, there)
    return int(min(limits.max_connections, there))


class Settings(NamedTuple):
    """How an application is served over HTTP.

    Attributes:
        host: Address to listen on.
        port: Port to listen on.
        log_level: Of uvicorn.
        sockets: Sockets that listen already, in place of host and port; None for those.
        place: What the sockets are called in the log, such as a path; None for host and port.
        grace: Seconds that running calls get once the process is told to stop.
        certfile: File with the certificate; None without TLS.
        keyfile: File with its key; None where that is in `certfile`.
        health: Sockets where probes are answered, too; the application answers them on its own port.
        access_log: Whether each HTTP request is logged.
        link: Line to the supervisor; None where there is none.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    log_level: str = "info"
    sockets: list[socket.socket] | None = None
    place: str | None = None
    grace: float = GRACE
    certfile: str | None = None
    keyfile: str | None = None
    health: list[socket.socket] | None = None
    access_log: bool = False
    link: WorkerLink | None = None


def serve(app: App, *, host: str, port: int, log_level: str = "info") -> None:
    """Serve an application until SIGINT or SIGTERM; see `serve_with`."""
    serve_with(app, Settings(host, port, log_level))


def serve_with(app: App, settings: Settings) -> None:
    """Serve an application until SIGINT or SIGTERM, or until the supervisor says so.

    Then it drains (see `Ending`): streams get their end, running calls their time. A second signal does not wait.

    Args:
        app: The application.
        settings: How.

    Raises:
        SystemExit: It could not begin; the log says why, once.
    """
    import uvicorn

    warn_of_strangers(app)
    app.signals = None  # `Duty` hears them, and has each connection end with its answer before streams end
    answer_at_once()
    config = make_settings(app, settings)
    limits = app.endpoint.limits
    sweep = make_sweep(limits, keep_alive=config.timeout_keep_alive, give_back=keep_freed_memory())
    protocol = make_protocol(app, sweep, max_connections=most_connections(limits))
    if protocol is None:
        _log.warning("uvicorn %s is not made as those that Callboard was tested with: %s", uvicorn.__version__, _STOCK)
    else:
        if settings.access_log and hasattr(protocol, "heads"):
            cast("Any", protocol).heads = None  # whole calls would pass the log by
        config.http = cast("Any", protocol)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await duty.begin(cast("Any", self))
            await open_or_leave(app)
            await super().startup(sockets)
            duty.started()
            if protocol is not None:
                sweep.start(asyncio.get_running_loop(), cast("Any", self.server_state.connections))
            for listening in self.servers[:1]:
                # The address that a client needs; uvicorn's own line leaves the path out.
                logging.getLogger("uvicorn.error").info(
                    "%s serves MCP at %s", app.endpoint.server.name, tell_address(settings, listening.sockets[0], app.path)
                )

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
            # uvicorn's own raises the signal again afterwards; being told to stop is no failure (A40). A second signal does not wait.
            duty.stop(cast("Any", self))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.endpoint.drain()
            await super().shutdown(sockets)
            sweep.stop()

    duty = Duty(app.endpoint, grace=settings.grace, probes=settings.health, link=settings.link)
    server: uvicorn.Server = Server(config)
    # What start-up left behind lives for ever: the collector need not walk it while calls wait.
    gc.collect()
    gc.freeze()
    try:
        server.run(settings.sockets)
    finally:
        duty.over()


async def open_or_leave(app: App) -> None:
    """Enter the lifespan before uvicorn has it entered, which would say all over again why it failed, and end with 3.

    Args:
        app: The application.

    Raises:
        SystemExit: It failed; the log says why.
    """
    try:
        await app.endpoint.open()
    except Exception as error:  # noqa: BLE001 - user code
        report_lifespan(error)
        raise SystemExit(2 if isinstance(error, RegistrationError) else 1) from None


def tell_address(settings: Settings, listening: socket.socket, path: str) -> str:
    """Where clients find the endpoint."""
    if settings.place is not None:
        return f"{settings.place}, path {path}"
    host = settings.host if ":" not in settings.host else f"[{settings.host}]"
    return f"{'https' if settings.certfile else 'http'}://{host}:{listening.getsockname()[1]}{path}"


def warn_of_strangers(app: App) -> None:
    """Say so where clients of other machines may call whatever there is, and nobody asks who they are (SC-10)."""
    if app.rules.allow_remote and app.door is None:
        text = "%s lets clients of other machines in, and asks nobody who they are: give auth=, or have it listen on 127.0.0.1."
        _log.warning(text, app.endpoint.server.name)


def make_settings(app: App, settings: Settings) -> uvicorn.Config:
    """What uvicorn is told; see `serve_with`."""
    import uvicorn

    config: dict[str, Any] = {
        "access_log": False,
        "ws": "none",
        "workers": 1,  # else WEB_CONCURRENCY is read, which may be anything
        "proxy_headers": False,  # `make_front` does it
        "interface": "asgi3",
        "server_header": False,
        "timeout_graceful_shutdown": settings.grace,
        "ssl_certfile": settings.certfile,
        "ssl_keyfile": settings.keyfile,
        **({"log_config": None} if is_configured() else {}),
    }
    made = uvicorn.Config(cast("Any", app), host=settings.host, port=settings.port, log_level=settings.log_level, **config)
    front = make_front(app, made.forwarded_allow_ips)
    made.app = cast("Any", log_access(front) if settings.access_log else front)
    return made
