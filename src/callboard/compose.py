"""The only composition root: a server, the eras it speaks, and the transport that serves it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from callboard.core.modern import Modern
from callboard.errors import RegistrationError
from callboard.server.app import Server
from callboard.server.context import ListenLimits
from callboard.transport.asgi import App
from callboard.transport.endpoint import Endpoint
from callboard.transport.ports import refuse_port
from callboard.transport.security import LOOPBACK_HOSTS, HttpRules, is_address, is_loopback
from callboard.transport.stream import Scope
from callboard.wire.versions import LATEST

__all__ = ["asgi", "endpoint", "run", "stdio"]


def endpoint(
    server: Server,
    *,
    options: Mapping[str, Any] | None = None,
    listen_limits: ListenLimits | None = ListenLimits(),
    logs: bool = True,
) -> Endpoint:
    """Make a server ready for a transport.

    Args:
        server: The server.
        options: What functions see as `ctx.options`.
        listen_limits: Caps of `subscriptions/listen`; None where it can't work.
        logs: Whether log messages can be delivered.

    Raises:
        RegistrationError: `server` is no server, or `options` no mapping.
    """
    if not isinstance(server, Server):
        raise RegistrationError(f"What is served must be a callboard.Server, not {server!r}.")
    if options is not None and not isinstance(options, Mapping):
        raise RegistrationError(f"options must be a mapping, not {type(options).__name__}.")
    versions = (LATEST,)
    eras = [Modern(server.info, supported=versions)]
    return Endpoint(server, eras, versions=versions, options=options, listen_limits=listen_limits, logs=logs)


def asgi(
    server: Server,
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
    options: Mapping[str, Any] | None = None,
    principal: Callable[[Scope], str | None] | None = None,
) -> App:
    """Make an ASGI application of a server: run it alone, route to it, or mount it.

    Args:
        server: The server.
        path: Where the endpoint is when the application is not mounted.
        hosts: `Host` names that are this server's: `name`, `name:port`, `*.example.com`, or `*` (then something before it must check).
        origins: Web origins whose pages may call it.
        cors: Whether to answer CORS preflights of these origins.
        allow_remote: Whether clients of other machines may connect.
        max_body: Bytes of a request's body; past that 413.
        max_headers: Bytes of its headers; past that 431.
        keep_alive: Longest silence in seconds on a stream; None for no keep-alive.
        json_only: Whether every answer is plain JSON; then there are no progress, logs and listen streams.
        max_listens: Open `subscriptions/listen` streams; 0 for none at all.
        max_listens_per_principal: The same for one principal.
        listen_lifetime: Seconds until a listen stream is closed in good order.
        options: What functions see as `ctx.options`.
        principal: Tells from the ASGI scope who is asking, as established by middleware before it.

    Raises:
        RegistrationError: An option can't work.
    """
    for name, value in (("hosts", hosts), ("origins", origins)):
        if isinstance(value, str):
            raise RegistrationError(f"{name} takes a list, not a str: write {name}=[{value!r}].")
    if not isinstance(path, str):
        raise RegistrationError(f"path is a text like '/mcp', not {path!r}.")
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
    return App(
        endpoint(server, options=options, listen_limits=limits, logs=not json_only),
        rules,
        path=path,
        keep_alive=keep_alive,
        json_only=json_only,
        cors=cors,
        principal=principal,
    )


async def stdio(server: Server, *, options: Mapping[str, Any] | None = None) -> None:
    """Serve one client over stdin and stdout until stdin ends.

    File descriptor 1 belongs to the protocol from here on: prints, logs and child processes write to stderr instead.

    Args:
        server: The server.
        options: What functions see as `ctx.options`.
    """
    from callboard.transport.stdio import serve

    await serve(endpoint(server, options=options))


def run(
    server: Server,
    *,
    transport: Literal["http", "stdio"] = "http",
    host: str = "127.0.0.1",
    port: int = 8000,
    log_level: str = "info",
    options: Mapping[str, Any] | None = None,
    **http: Any,
) -> None:
    """Serve until the process is told to stop; the one for `if __name__ == "__main__"`.

    Args:
        server: The server.
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
    if transport == "stdio":
        if http:
            raise RegistrationError(f"callboard.run: {next(iter(http))} is an option of HTTP; leave it out with transport='stdio'.")
        from callboard.transport.stdio import run as run_stdio

        run_stdio(endpoint(server, options=options))
        return
    from callboard.transport.http_server import serve

    _check_http_options(host, port, log_level, http)
    http.setdefault("allow_remote", not (host == "localhost" or (is_address(host) and is_loopback(host))))
    http.setdefault("hosts", (*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host))
    if _is_piped():
        text = "%s serves HTTP, but stdin and stdout are pipes: a host that speaks stdio needs transport='stdio' or `callboard run FILE --stdio`."
        logging.getLogger("callboard").warning(text, server.name)
    serve(asgi(server, options=options, **http), host=host, port=port, log_level=log_level)


def _check_http_options(host: str, port: int, log_level: str, more: Mapping[str, Any]) -> None:
    """Refuse what can't work before anything is served."""
    from callboard.transport.http_server import LOG_LEVELS

    if log_level not in LOG_LEVELS:
        raise RegistrationError(f"callboard.run: log_level is one of {', '.join(LOG_LEVELS)}, not {log_level!r}.")
    if not host:
        raise RegistrationError("callboard.run: host is an address or a name, like '127.0.0.1', not an empty text.")
    if type(port) is not int or not 0 <= port <= 65535:
        raise RegistrationError(f"callboard.run: port is an integer from 0 to 65535, not {port!r}.")
    if unknown := sorted(more.keys() - inspect.signature(asgi).parameters.keys()):
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
