"""The only composition root: a server, the eras it speaks, and the transport that serves it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from urllib.parse import quote

from callboard.core.modern import Modern
from callboard.errors import RegistrationError
from callboard.handling.handler import Served, adapt
from callboard.server.mount import Caller, ListenLimits
from callboard.server.signature import accepts
from callboard.transport.asgi import App
from callboard.transport.endpoint import Endpoint, Older
from callboard.transport.ports import refuse_port
from callboard.transport.security import LOOPBACK_HOSTS, HttpRules, is_address, is_loopback
from callboard.transport.stream import Scope
from callboard.wire.versions import LEGACY, MODERN

__all__ = ["SessionOptions", "asgi", "endpoint", "run", "stdio"]


Options: TypeAlias = Mapping[str, Any] | None
"""What functions see as `ctx.options`."""

OptionsFactory: TypeAlias = Callable[[Caller], Options | Awaitable[Options]]
"""Makes them for one session, or for one request where there are no sessions."""


class SessionOptions(TypedDict, total=False):
    """How 2025 clients are served over HTTP; each option is told of in `docs/sessions.md`.

    Attributes:
        sessions: `auto`: each client has one. `off`: every request stands alone.
        handshake: `strict`: until `notifications/initialized` nothing but `ping` is served.
        max_sessions: Sessions at once (10,000); past that 503.
        session_ttl: Seconds that a session lives while nothing happens in it (300).
        session_max_pending: Calls of one session that may wait for their turn (100).
        request_timeout: Seconds until a caller that has had no bytes is told that it takes too long (60).
        session_buffer: Events of one session that can be replayed (256).
        session_id: Makes the id of a new session; 128 random bits.
        cancel_on_disconnect: Which calls end when their connection does: `streaming` ones, `never`, `always`.
        single_stream: Whether a second GET stream is refused while one is open.
        reply_on_cancel: Whether the caller of a cancelled call is answered.
        sse_path: Where to offer HTTP+SSE, the transport of 2024-11-05, beside the endpoint; None (the default) for nowhere.
        max_sse_connections: Its streams at once (1,000); past that 503.
    """

    sessions: Literal["auto", "off"]
    handshake: Literal["lenient", "strict"]
    max_sessions: int
    session_ttl: float
    session_max_pending: int
    request_timeout: float
    session_buffer: int
    session_id: Callable[[], str]
    cancel_on_disconnect: Literal["streaming", "never", "always"]
    single_stream: bool
    reply_on_cancel: bool
    sse_path: str | None
    max_sse_connections: int


def endpoint(
    server: Served,
    *,
    options: Options | OptionsFactory = None,
    instructions: str | None = None,
    versions: Sequence[str] | None = None,
    listen_limits: ListenLimits | None = ListenLimits(),
    logs: bool = True,
    sessions: Mapping[str, Any] | None = None,
) -> Endpoint:
    """Make a server ready for a transport.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        options: What functions see as `ctx.options`: a mapping, or over HTTP a function that makes it.
        instructions: Advice for the model in place of the server's.
        versions: Protocol versions to serve; all by default.
        listen_limits: Caps of `subscriptions/listen`; None where it can't work.
        logs: Whether log messages can be delivered.
        sessions: Options of sessions.

    Raises:
        RegistrationError: `server` is nothing that can be served, or an option can't work.
    """
    server = adapt(server)
    factory = _check_factory(options) if callable(options) else None
    if options is not None and factory is None and not isinstance(options, Mapping):
        raise RegistrationError(f"options must be a mapping, or a function that makes one, not {type(options).__name__}.")
    if instructions is not None and not isinstance(instructions, str):
        raise RegistrationError(f"instructions must be a str, not {instructions!r}.")
    served = _check_versions(versions)
    made = Endpoint(
        server,
        Modern(server.info, supported=served, methods=server.methods),
        versions=served,
        options=None if factory else options,
        options_factory=factory,
        instructions=instructions,
        listen_limits=listen_limits,
        logs=logs,
    )
    made.older = _serve_older(made, served, sessions or {})
    return made


def _check_factory(factory: OptionsFactory) -> OptionsFactory:
    """Find out now what would fail every session."""
    if not accepts(factory, None):
        raise RegistrationError("options: the function is called with one argument, the Caller; let it take that.")
    return factory


def _check_versions(versions: Sequence[str] | None) -> tuple[str, ...]:
    """The versions to serve, newest first; the current one alone where the package was installed without the older ones."""
    known = (*MODERN, *LEGACY) if _has_legacy() else MODERN
    if versions is None:
        return known
    if isinstance(versions, str) or not versions or not set(versions) <= set(known):
        raise RegistrationError(f"versions takes a list of protocol versions out of {', '.join(known)}, not {versions!r}.")
    return tuple(version for version in known if version in versions)


def _has_legacy() -> bool:
    return importlib.util.find_spec("callboard.legacy") is not None


def _serve_older(made: Endpoint, served: tuple[str, ...], sessions: Mapping[str, Any]) -> Older | None:
    """What serves 2025 clients, where it is there and asked for."""
    if unknown := sorted(sessions.keys() - SessionOptions.__annotations__.keys() - {"json_only"}):
        raise RegistrationError(
            f"callboard.asgi takes no {unknown[0]!r}; its options of sessions are {', '.join(SessionOptions.__annotations__)}."
        )
    older = tuple(version for version in served if version in LEGACY)
    more = dict(sessions)
    sse_path, max_streams = more.pop("sse_path", None), more.pop("max_sse_connections", 1000)
    if not older or not _has_legacy():
        if sse_path is not None:
            raise RegistrationError("sse_path is for clients of older protocols, and none of those is served here: leave it out.")
        return None
    from callboard.legacy.http import Legacy
    from callboard.legacy.rules import Rules

    rules = Rules(versions=older, **more)
    if sse_path is None:
        return Legacy(made, rules, supported=served)
    from callboard.legacy.sse_2024 import LegacyAndSse

    return LegacyAndSse(made, rules, supported=served, path=sse_path, max_connections=max_streams)


def asgi(
    server: Served,
    *,
    path: str = "/mcp",
    hosts: Sequence[str] = LOOPBACK_HOSTS,
    origins: Sequence[str] = (),
    cors: bool = False,
    allow_remote: bool = False,
    max_body: int = 4 * 1024 * 1024,
    max_headers: int = 16 * 1024,
    keep_alive: float | None = 15.0,
    json_only: bool = False,
    max_listens: int = 10_000,
    max_listens_per_principal: int = 8,
    listen_lifetime: float = 3600.0,
    options: Options | OptionsFactory = None,
    instructions: str | None = None,
    versions: Sequence[str] | None = None,
    principal: Callable[[Scope], str | None] | None = None,
    **sessions: Unpack[SessionOptions],
) -> App:
    """Make an ASGI application of a server: run it alone, route to it, or mount it.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        path: Where the endpoint is when the application is not mounted.
        hosts: `Host` names that are this server's: `name`, `name:port`, `*.example.com`, or `*` (then something before it must check).
        origins: Web origins whose pages may call it.
        cors: Whether to answer CORS preflights of these origins.
        allow_remote: Whether clients of other machines may connect.
        max_body: Bytes of a request's body; past that 413.
        max_headers: Bytes of its headers; past that 431.
        keep_alive: Longest silence in seconds on a stream; None for no keep-alive.
        json_only: Whether every answer is plain JSON; then there are no progress, logs, listen and GET streams.
        max_listens: Open `subscriptions/listen` streams; 0 for none at all.
        max_listens_per_principal: The same for one principal.
        listen_lifetime: Seconds until a listen stream is closed in good order.
        options: What functions see as `ctx.options`: a mapping, or a function that makes it from a `Caller` (headers, principal, scope
            state), called once for each session of a 2025 client, and for each request on the current protocol.
        instructions: Advice for the model in place of the server's.
        versions: Protocol versions to serve; all by default.
        principal: Tells from the ASGI scope who is asking, as established by middleware before it.
        **sessions: How 2025 clients are served; see `SessionOptions`.

    Raises:
        RegistrationError: An option can't work.
    """
    for name, value in (("hosts", hosts), ("origins", origins)):
        if isinstance(value, str):
            raise RegistrationError(f"{name} takes a list, not a str: write {name}=[{value!r}].")
    if not isinstance(path, str):
        raise RegistrationError(f"path is a text like '/mcp', not {path!r}.")
    sse_path = _check_sse_path(sessions.get("sse_path"), path)
    if keep_alive is not None and keep_alive <= 0:
        raise RegistrationError(f"keep_alive must be more than 0 seconds, not {keep_alive:g}; None turns it off.")
    limits = ListenLimits(max_listens, max_listens_per_principal, listen_lifetime) if max_listens > 0 and not json_only else None
    rules = HttpRules(
        hosts=tuple(host.lower() for host in hosts),
        origins=tuple(origin.lower() for origin in origins),
        allow_remote=allow_remote,
        max_body=max_body,
        max_headers=max_headers,
    )
    made = endpoint(
        server,
        options=options,
        instructions=instructions,
        versions=versions,
        listen_limits=limits,
        logs=not json_only,
        sessions={**sessions, "sse_path": sse_path, "json_only": json_only},
    )
    return App(made, rules, path=path, keep_alive=keep_alive, json_only=json_only, cors=cors, principal=principal, sse_path=sse_path)


def _check_sse_path(sse_path: Any, path: str) -> str | None:
    """The path without a slash at its end; it must be another than the endpoint's, and hold nothing that a URI would have to escape."""
    if sse_path is None:
        return None
    if not isinstance(sse_path, str) or not sse_path.strip("/") or quote(sse_path) != sse_path:
        raise RegistrationError(f"sse_path is a path like '/sse', not {sse_path!r}.")
    clean = "/" + sse_path.strip("/")
    if f"/{path.strip('/')}/".startswith(clean + "/"):
        raise RegistrationError(f"sse_path {sse_path!r} would hide the endpoint at {path!r}: give each a path of its own.")
    return clean


async def stdio(server: Served, *, options: Mapping[str, Any] | None = None) -> None:
    """Serve one client over stdin and stdout until stdin ends.

    File descriptor 1 belongs to the protocol from here on: prints, logs and child processes write to stderr instead.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        options: What functions see as `ctx.options`.
    """
    from callboard.transport.stdio import serve

    await serve(endpoint(server, options=_static(options)))


def run(
    server: Served,
    *,
    transport: Literal["http", "stdio"] = "http",
    host: str = "127.0.0.1",
    port: int = 8000,
    log_level: str = "info",
    options: Options | OptionsFactory = None,
    **http: Any,
) -> None:
    """Serve until the process is told to stop; the one for `if __name__ == "__main__"`.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        transport: `http` (uvicorn), or `stdio`.
        host: Address to listen on. Any other than a loopback one lets clients of other machines in, who may ask for it by this name or
            by any IP address; further names go into `hosts`.
        port: Port to listen on.
        log_level: Of uvicorn: `critical`, `error`, `warning`, `info`, `debug`, `trace`.
        options: What functions see as `ctx.options`.
        **http: Further options of `asgi`, such as `path`, `hosts`, `origins`.

    Raises:
        RegistrationError: An option can't work, or the port can't be had; the text says why.
    """
    if _in_event_loop():
        raise RegistrationError(
            "callboard.run blocks, with an event loop of its own; inside one, `await callboard.stdio(server)` or serve `callboard.asgi(server)`."
        )
    if transport not in {"http", "stdio"}:
        raise RegistrationError(f"callboard.run: transport is 'http' (Streamable HTTP) or 'stdio', not {transport!r}.")
    server = adapt(server)
    if transport == "stdio":
        if http:
            raise RegistrationError(f"callboard.run: {next(iter(http))} is an option of HTTP; leave it out with transport='stdio'.")
        from callboard.transport.stdio import run as run_stdio

        run_stdio(endpoint(server, options=_static(options)))
        return
    from callboard.transport.http_server import serve

    _check_http_options(host, port, log_level, http)
    http.setdefault("allow_remote", not (host == "localhost" or (is_address(host) and is_loopback(host))))
    http.setdefault("hosts", (*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host))
    if _is_piped():
        text = "%s serves HTTP, but stdin and stdout are pipes: a host that speaks stdio needs transport='stdio' or `callboard run FILE --stdio`."
        logging.getLogger("callboard").warning(text, server.name)
    serve(asgi(server, options=options, **http), host=host, port=port, log_level=log_level)


def _static(options: Any) -> Options:
    """Options where there is no request that they could depend on."""
    if callable(options):
        raise RegistrationError("options: a function that makes them needs a request to look at, which only HTTP has; pass a mapping.")
    return options  # type: ignore[no-any-return] # `endpoint` checks it


def _check_http_options(host: str, port: int, log_level: str, more: Mapping[str, Any]) -> None:
    """Refuse what can't work before anything is served."""
    from callboard.transport.http_server import LOG_LEVELS

    if log_level not in LOG_LEVELS:
        raise RegistrationError(f"callboard.run: log_level is one of {', '.join(LOG_LEVELS)}, not {log_level!r}.")
    if not host:
        raise RegistrationError("callboard.run: host is an address or a name, like '127.0.0.1', not an empty text.")
    if type(port) is not int or not 0 <= port <= 65535:
        raise RegistrationError(f"callboard.run: port is an integer from 0 to 65535, not {port!r}.")
    if unknown := sorted(more.keys() - inspect.signature(asgi).parameters.keys() - SessionOptions.__annotations__.keys()):
        raise RegistrationError(f"callboard.run takes no {unknown[0]!r}; beside its own options it takes those of callboard.asgi.")
    if complaint := refuse_port(host, port):
        raise RegistrationError(f"callboard.run: {complaint} (host=, port=).")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_piped() -> bool:
    """Whether stdin and stdout lead to another program, as a host that speaks stdio has it."""
    try:
        return all(stat.S_ISFIFO(os.fstat(descriptor).st_mode) for descriptor in (0, 1))
    except OSError:
        return False
