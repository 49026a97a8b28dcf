"""`callboard.run`: a server over HTTP, in one process or in several, or over stdio, until it is told to stop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import ssl
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from socket import socket
from typing import Any, Literal, NamedTuple

from callboard.compose import (
    Options,
    OptionsFactory,
    SessionOptions,
    asgi,
    endpoint,
    meant_option,
    reach,
    refuse_while_loading,
    static_options,
)
from callboard.errors import RegistrationError
from callboard.handling.handler import Served, adapt
from callboard.logs import configure
from callboard.server.limits import Limits, refuse_moved
from callboard.stores.base import Store
from callboard.supervisor import supervise
from callboard.telemetry.prometheus import Prometheus
from callboard.transport.asgi import App
from callboard.transport.http_server import GRACE, LOG_LEVELS, Settings, serve_with
from callboard.transport.listening import CannotListenError, bind_path, bind_port
from callboard.transport.ports import refuse_port
from callboard.transport.stdio import run as run_stdio
from callboard.transport.worker_link import LOADED, VARIABLE, WorkerLink

__all__ = ["Plan", "check_plan", "keep_in", "run", "run_app", "run_workers", "warn_if_piped"]

UDS_MODE = 0o660
LOG_FORMATS = ("text", "json")
# Else each worker's process would start workers, and so on for ever.
_NESTED = "callboard.run: workers= starts this program anew, so call it in the program's own process, not in one of multiprocessing."
_log = logging.getLogger("callboard")


class Plan(NamedTuple):
    """How a server is served over HTTP; `run` says what each means."""

    host: str = "127.0.0.1"
    port: int = 8000
    log_level: str = "info"
    workers: int | None = None
    grace: float = GRACE
    health_port: int | None = None
    uds: str | None = None
    uds_mode: int = UDS_MODE
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    access_log: bool = False

    @property
    def settings(self) -> Settings:
        """The same, as far as one process needs it."""
        return Settings(
            self.host,
            self.port,
            self.log_level,
            grace=self.grace,
            certfile=self.ssl_certfile,
            keyfile=self.ssl_keyfile,
            access_log=self.access_log,
        )


def check_plan(plan: Plan, spell: Callable[[str], str]) -> str | None:
    """Why a plan can't work, in a sentence; None where it may.

    Args:
        plan: The plan.
        spell: How the one who made it writes an option, given its name here.
    """
    if plan.workers is not None and (type(plan.workers) is not int or plan.workers < 1):
        return f"{spell('workers')} is a number from 1 up, not {plan.workers!r}."
    if plan.workers is not None and not hasattr(os, "fork"):
        return f"{spell('workers')} needs a system with Unix processes; here one process serves, so leave it out."
    if isinstance(plan.grace, bool) or not isinstance(plan.grace, int | float) or not 0 <= plan.grace < 1e6:
        return f"{spell('grace')} is a number of seconds from 0 up, not {plan.grace!r}."
    if plan.health_port is not None:
        if type(plan.health_port) is not int or not 0 <= plan.health_port <= 65535:
            return f"{spell('health_port')} is an integer from 0 to 65535, not {plan.health_port!r}."
        if plan.health_port and plan.health_port == plan.port and plan.uds is None:
            return f"{spell('health_port')} is the server's own port, where health is answered anyhow: leave it out."
    return _check_tls(plan, spell)


def _check_tls(plan: Plan, spell: Callable[[str], str]) -> str | None:
    if plan.ssl_certfile is None:
        return None if plan.ssl_keyfile is None else f"{spell('ssl_keyfile')} goes with {spell('ssl_certfile')}."
    for name in ("ssl_certfile", "ssl_keyfile"):
        path = getattr(plan, name)
        if path is not None and not os.access(path, os.R_OK):
            return f"{spell(name)}: {path} can't be read."
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(plan.ssl_certfile, plan.ssl_keyfile, password=_refuse_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        where = plan.ssl_certfile if plan.ssl_keyfile is None else f"{plan.ssl_certfile} and {plan.ssl_keyfile}"
        way_out = f" Where the key is in another file, {spell('ssl_keyfile')} names it." if plan.ssl_keyfile is None else ""
        return f"{spell('ssl_certfile')}: no certificate with its key is in {where}: {reason}.{way_out}"
    return None


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; a server that starts by itself needs one that is not")


def keep_in(server: Any, store: Store | str | None) -> None:
    """Give a server the store that it was started with, before anything is served.

    Raises:
        RegistrationError: It is none.
    """
    if store is not None:
        server.keep_in(store)


def run_workers(plan: Plan, command: Sequence[str]) -> int:
    """Serve with several processes.

    Args:
        plan: How.
        command: What starts one that finds its `WorkerLink`.

    Returns:
        The exit code.

    Raises:
        CannotListenError: The port, path or health port can't be had.
    """
    _fill_standard_streams()
    bound = None if plan.uds is None else bind_path(plan.uds, plan.uds_mode)
    sockets = bind_port(plan.host, plan.port) if bound is None else [bound.listening]
    try:
        probes = [] if plan.health_port is None else bind_port(plan.host, plan.health_port)
        return supervise(command, sockets, workers=plan.workers or 1, grace=plan.grace, probes=probes)
    finally:
        if bound is not None:
            bound.remove()


def _fill_standard_streams() -> None:
    """See that stdin, stdout and stderr are there: a socket in their place would not reach a worker, who has its own."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free


def run_app(app: App, plan: Plan, link: WorkerLink | None, spell: Callable[[str], str]) -> None:
    """Serve an application in this process, which may be a worker, until it is told to stop.

    Args:
        app: The application.
        plan: How.
        link: Line to the supervisor; None where there is none.
        spell: How the one who made the plan writes an option.

    Raises:
        RegistrationError: Several workers would each have sessions that the others don't know.
        CannotListenError: The port, path or health port can't be had.
    """
    if complaint := refuse_lonely_workers(app, plan, spell):
        raise RegistrationError(complaint)
    settings = plan.settings
    if link is not None:
        if link.speaks:
            warn_of_workers(app, plan)
        link.tell(LOADED)
        serve_with(app, settings._replace(sockets=link.sockets, place=plan.uds, link=link))
        return
    probes: list[socket] | None = None if plan.health_port is None else bind_port(plan.host, plan.health_port)
    settings = settings._replace(health=probes)
    if plan.uds is None:
        serve_with(app, settings)
        return
    bound = bind_path(plan.uds, plan.uds_mode)
    try:
        serve_with(app, settings._replace(sockets=[bound.listening], place=plan.uds))
    finally:
        bound.remove()


def refuse_lonely_workers(app: App, plan: Plan, spell: Callable[[str], str]) -> str | None:
    """Why several workers can't serve an application, in a sentence; None where they can."""
    server, older = app.endpoint.server, app.endpoint.older
    if (plan.workers or 1) < 2 or server.store.shared:
        return None
    if older is None or older.facts().get("sessions") == "off":
        return None
    text = (
        f"{spell('workers')} {plan.workers} needs a store that all workers share, since a session of one is unknown to the others: give "
        f"{spell('store')} redis://HOST:PORT/0, or turn sessions off with callboard.asgi(server, sessions='off')."
    )
    return text.replace("= ", "=")  # as each is written: --workers 2, workers=2


def warn_of_workers(app: App, plan: Plan) -> None:
    """Say what several workers that can serve an application don't do as one would."""
    server = app.endpoint.server
    if (plan.workers or 1) < 2:
        return
    if not server.store.shared:
        _log.warning(
            "%d workers share no store: a change that one announces is not heard by listeners of the others, and limits count in each.",
            plan.workers,
        )
    pages = {} if server.journal.sinks is None else server.journal.sinks.pages
    if paths := [path for path, page in pages.items() if isinstance(getattr(page, "__self__", None), Prometheus)]:
        _log.warning(
            "Prometheus(path=%r) shows the numbers of one of %d workers, now this one's, now that one's: say Prometheus(port=9464), which "
            "gives each worker a port of its own, and scrape them all.",
            paths[0],
            plan.workers,
        )


def run(
    server: Served,
    *,
    transport: Literal["http", "stdio"] = "http",
    host: str = "127.0.0.1",
    port: int = 8000,
    log_level: str = "info",
    options: Options | OptionsFactory = None,
    limits: Limits | None = None,
    workers: int | None = None,
    store: Store | str | None = None,
    grace: float = GRACE,
    health_port: int | None = None,
    uds: str | None = None,
    uds_mode: int = UDS_MODE,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    access_log: Literal["text", "json"] | None = None,
    **http: Any,
) -> None:
    """Serve until the process is told to stop; the one for `if __name__ == "__main__"`.

    Told by SIGTERM or SIGINT it drains: it takes nothing new, ends streams in good order, and leaves running calls their time. A second
    signal does not wait. Docs: `docs/run.md`.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        transport: `http` (uvicorn), or `stdio`.
        host: Address to listen on. Any other than a loopback one lets clients of other machines in, who may ask for it by this name or
            by any IP address; further names go into `hosts`.
        port: Port to listen on.
        log_level: Of uvicorn: `critical`, `error`, `warning`, `info`, `debug`, `trace`.
        options: What functions see as `ctx.options`.
        limits: Bounds of what clients can make the server take; see `callboard.limits.Limits`.
        workers: Processes that serve, started and watched by this one, each of which runs this program anew; None: this process alone.
        store: Where sessions and whatever else outlasts a request are kept: the URL of a Redis, such as `redis://127.0.0.1:6379/0`.
        grace: Seconds that running calls get once the process is told to stop (30).
        health_port: Another port that answers `/healthz` and `/readyz`, beside the server's own; None for none.
        uds: Path of a Unix socket to listen on, in place of host and port.
        uds_mode: Its permissions (0o660: the owner and the group may call).
        ssl_certfile: PEM file with the certificate, and those between it and its root.
        ssl_keyfile: PEM file with its key, not encrypted; None where that is in `ssl_certfile`.
        access_log: Whether each HTTP request is logged, and how the log is written if nobody has set logging up: `text` or `json`.
        **http: Further options of `asgi`, such as `path`, `hosts`, `origins`.

    Raises:
        RegistrationError: An option can't work, or the port can't be had; the text says why.
        SystemExit: It could not begin to serve; the log says why.
    """
    in_worker = VARIABLE in os.environ
    link = WorkerLink.take()
    if workers is not None and link is None and in_worker:
        raise RegistrationError(_NESTED)
    if _in_event_loop():
        raise RegistrationError(
            "callboard.run blocks, with an event loop of its own; inside one, `await callboard.stdio(server)` or serve `callboard.asgi(server)`."
        )
    refuse_while_loading("callboard.run")
    if transport not in {"http", "stdio"}:
        raise RegistrationError(f"callboard.run: transport is 'http' (Streamable HTTP) or 'stdio', not {transport!r}.")
    server = adapt(server)
    keep_in(server, store)
    plan = Plan(host, port, log_level, workers, grace, health_port, uds, uds_mode, ssl_certfile, ssl_keyfile, access_log is not None)
    if transport == "stdio":
        _refuse_http_options(plan, http)
        run_stdio(endpoint(server, options=static_options(options), limits=limits))
        return
    _check_http_options(plan, access_log, http, bound=link is not None)
    if link is None:
        warn_if_piped(server.name)
    if access_log is not None and not logging.getLogger().handlers:
        configure(json=access_log == "json", level=log_level, requests=False)
    app = asgi(server, options=options, limits=limits, **{**reach(host), **http})
    _start(app, plan, link)


def _start(app: App, plan: Plan, link: WorkerLink | None) -> None:
    """Serve, with workers where they are asked for.

    Raises:
        RegistrationError: It can't be.
        SystemExit: No worker came up.
    """
    try:
        if plan.workers is None or link is not None:
            run_app(app, plan, link, _spell)
            return
        if complaint := refuse_lonely_workers(app, plan, _spell):
            raise RegistrationError(f"callboard.run: {complaint}")
        if code := run_workers(plan, _this_program()):
            raise SystemExit(code)
    except CannotListenError as error:
        raise RegistrationError(f"callboard.run: {error}.") from error


def _spell(name: str) -> str:
    return f"{name}="


def _this_program() -> list[str]:
    """What starts this program anew.

    Raises:
        RegistrationError: Nobody can.
    """
    words, main = sys.orig_argv[1:], sys.modules.get("__main__")
    if "--multiprocessing-fork" in words:
        raise RegistrationError(_NESTED)
    if "-c" in words:
        return [sys.executable, *words]
    file = getattr(main, "__file__", None)
    if file is None or file == "<stdin>":
        raise RegistrationError("callboard.run: workers= starts this program anew, so it has to be in a file.")
    if getattr(main, "__spec__", None) is None and sys.argv[0] in words:
        words[words.index(sys.argv[0])] = os.path.abspath(file)  # noqa: PTH100 - the program may have gone to another folder since
    return [sys.executable, *words]


def _refuse_http_options(plan: Plan, more: Mapping[str, Any]) -> None:
    """Refuse what only HTTP has.

    Raises:
        RegistrationError: There is some.
    """
    given = [name for name, value in zip(Plan._fields, plan, strict=True) if name not in _STDIO and value != Plan._field_defaults[name]]
    if wrong := [*more, *given]:
        raise RegistrationError(f"callboard.run: {wrong[0]} is an option of HTTP; leave it out with transport='stdio'.")


# What was passed over with stdio before, and is.
_STDIO = {"host", "port", "log_level"}


def _check_http_options(plan: Plan, access_log: Any, more: Mapping[str, Any], *, bound: bool) -> None:
    """Refuse what can't work before anything is served.

    Raises:
        RegistrationError: It can't.
    """
    host, port = plan.host, plan.port
    if plan.log_level not in LOG_LEVELS:
        raise RegistrationError(f"callboard.run: log_level is one of {', '.join(LOG_LEVELS)}, not {plan.log_level!r}.")
    if access_log not in {None, *LOG_FORMATS}:
        raise RegistrationError(f"callboard.run: access_log is 'text' or 'json', or None for none, not {access_log!r}.")
    refuse_moved(more)
    if not host:
        raise RegistrationError("callboard.run: host is an address or a name, like '127.0.0.1', not an empty text.")
    if type(port) is not int or not 0 <= port <= 65535:
        raise RegistrationError(f"callboard.run: port is an integer from 0 to 65535, not {port!r}.")
    if unknown := sorted(more.keys() - inspect.signature(asgi).parameters.keys() - SessionOptions.__annotations__.keys()):
        raise RegistrationError(f"callboard.run takes no {unknown[0]!r}; {meant_option(unknown[0], inspect.signature(run).parameters)}")
    if complaint := check_plan(plan, _spell):
        raise RegistrationError(f"callboard.run: {complaint}")
    if not bound and plan.uds is None and (complaint := refuse_port(host, port)):
        raise RegistrationError(f"callboard.run: {complaint} (host=, port=).")


def warn_if_piped(name: str) -> None:
    """Say so where a host seems to wait for a server that speaks stdio.

    Args:
        name: The server's name.
    """
    if _is_piped():
        text = "%s serves HTTP, but stdin and stdout are pipes: a host that speaks stdio needs transport='stdio' or `callboard run FILE --stdio`."
        _log.warning(text, name)


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
