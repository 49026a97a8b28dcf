"""`callboard run`: serve a program, for a laptop and for production."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

import click

from callboard.cli_arguments import Refusal, name_store, parse_limits
from callboard.compose import asgi, reach
from callboard.errors import RegistrationError
from callboard.loader import Found, LoadError, load_program, split_place
from callboard.logs import configure
from callboard.reloader import serve_with_reload
from callboard.serving import LOG_FORMATS, UDS_MODE, Plan, check_plan, keep_in, run_app, run_workers, warn_if_piped
from callboard.serving import run as serve
from callboard.transport.asgi import App
from callboard.transport.http_server import GRACE
from callboard.transport.listening import CannotListenError
from callboard.transport.ports import refuse_port
from callboard.transport.security import is_address, is_loopback
from callboard.transport.stdio import guard
from callboard.transport.worker_link import WorkerLink

__all__ = ["RUN", "run"]

HOST, PORT, PATH = "127.0.0.1", 8000, "/mcp"
RUN = [sys.executable, "-m", "callboard", "run"]
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
# Seconds that running calls get where somebody has just changed the program, and waits for the new one.
RELOAD_GRACE = "0.5"
_WORDS = "callboard.words"


class _Run(click.Command):
    """`run`; who gives it an option of `callboard.asgi` learns where that goes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, and keep it: workers are started with the same."""
        ctx.meta[_WORDS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name not in signature(asgi).parameters or not error.option_name.startswith("--"):
                raise
            text = f"{error.option_name} is set in the program: app = callboard.asgi(server, {name}=...)."
            raise click.UsageError(text, ctx) from error


class _Mode(click.ParamType[int]):
    """Permissions, in octal digits."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read them."""
        if isinstance(value, str) and re.fullmatch(r"[0-7]{3,4}", value):
            return int(value, 8)
        return self.fail(f"{value!r} is no permissions in octal digits, like 660.", param, ctx) if isinstance(value, str) else int(value)


@click.command(cls=_Run, short_help="Serve a program.")
@click.argument("program")
@click.option("--stdio", is_flag=True, help="Serve on stdin and stdout instead of HTTP.")
@click.option("--host", help=f"Address to listen on.  [default: {HOST}]")
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port to listen on; 0 for any free one.  [default: {PORT}]")
@click.option("--uds", metavar="PATH", help="Unix socket to listen on, in place of a port.")
@click.option("--uds-mode", type=_Mode(), metavar="MODE", help=f"Its permissions, in octal digits.  [default: {UDS_MODE:o}]")
@click.option("--path", help=f"Path of the endpoint.  [default: {PATH}]")
@click.option("--workers", type=click.IntRange(min=1), metavar="NUMBER", help="Serve with so many processes.")
@click.option(
    "--store", envvar="CALLBOARD_STORE", metavar="URL", help="Redis that keeps sessions; with a password better in CALLBOARD_STORE."
)
@click.option(
    "--grace", type=click.FloatRange(min=0), metavar="SECONDS", help=f"Time for running calls once told to stop.  [default: {GRACE:g}]"
)
@click.option("--health-port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer /healthz and /readyz on this port, too.")
@click.option("--ssl-certfile", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
@click.option("--ssl-keyfile", metavar="FILE", help="Its key, where that is in a file of its own.")
@click.option("--reload", is_flag=True, help="Start anew when a .py file changes.")
@click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Set a limit, such as max_body=8MiB; may come more than once.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What to log on stderr.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Log each request, too, as lines of text or of JSON.")
@click.option("--access-log", type=click.Choice(LOG_FORMATS), help="Log each HTTP request, too, as lines of text or of JSON.")
@click.pass_context
def run(ctx: click.Context, /, program: str, *, stdio: bool, reload: bool, store: str | None, limits: Sequence[str], **given: Any) -> None:
    """Serve PROGRAM: app.py, app.py:name, package.module or package.module:name.

    Without a name: what callboard.asgi made of a server, with its options; else server, app or mcp, else the only Server there is.
    """
    link = WorkerLink.take()
    log = _Log(given.pop("log_level"), given.pop("log_format"), given.pop("access_log"))
    bounds: dict[str, Any] = {"limits": parse_limits(limits)} if limits else {}
    if stdio:
        if wrong := [name for name, value in {**given, "reload": reload or None}.items() if value is not None]:
            raise Refusal(f"--stdio serves one client on stdin and stdout, in one process: leave out {', '.join(map(_spell, wrong))}.")
        guard()  # before the program's own code can print
        served = _load(program, log).served
        server = served.endpoint.server if isinstance(served, App) else served
        _keep_in(server, store)
        serve(server, transport="stdio", log_level=log.level, **bounds)
        return
    path = given.pop("path")
    plan = _make_plan(given, log, path, bound=link is not None)
    if reload:
        if plan.workers is not None:
            raise Refusal("--reload is for development, with one process: leave out --workers (SIGHUP replaces workers one by one).")
        words = [word for word in ctx.meta[_WORDS] if word != "--reload"]
        sys.exit(serve_with_reload([*RUN, *words, *(() if given["grace"] is not None else ("--grace", RELOAD_GRACE))], _folder(program)))
    if plan.workers is not None and link is None:
        log.set_up()
        try:
            sys.exit(run_workers(plan, [*RUN, *ctx.meta[_WORDS]]))
        except CannotListenError as error:
            raise Refusal(f"Can't serve: {error}.") from error
    signal.signal(signal.SIGTERM, _leave)  # A40: what a supervisor asks for is no failure
    try:
        found = _load(program, log)
        _keep_in(found.served.endpoint.server if isinstance(found.served, App) else found.served, store)
        _serve_http(found, plan, path, bounds, link)
    except KeyboardInterrupt:
        return


class _Log:
    """What to log, and how.

    Args:
        level: The least level.
        requests: How requests are logged; None for not.
        access: How HTTP requests are; None for not.
    """

    def __init__(self, level: str, requests: str | None, access: str | None) -> None:
        if requests and access and requests != access:
            raise Refusal(f"--log-format is {requests} and --access-log is {access}: there is one log, so give both the same.")
        self.level = level
        self.requests = requests is not None
        self.access = access is not None
        self.form = requests or access

    def set_up(self) -> None:
        """Set logging up, unless the program has done it itself."""
        if self.form is not None or not logging.getLogger().handlers:
            configure(json=self.form == "json", level=self.level, requests=self.requests)


def _spell(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _make_plan(given: Mapping[str, Any], log: _Log, path: str | None, *, bound: bool) -> Plan:
    """How to serve; refuses what can't work before the program is loaded."""
    if given["uds"] is not None and given["port"] is not None:
        raise Refusal("--uds listens on a path in place of a port: leave out --port.")
    if given["uds_mode"] is not None and given["uds"] is None:
        raise Refusal("--uds-mode goes with --uds.")
    plan = Plan(log_level=log.level, access_log=log.access)._replace(**{name: value for name, value in given.items() if value is not None})
    if not plan.host:
        raise Refusal("--host is empty: give an address of this machine, or 0.0.0.0 for all of them.")
    if path is not None and not re.fullmatch(r"/[^\s?#%]*", path):
        raise Refusal(f"--path begins with a slash and has no blank, ?, # or % in it, as in {PATH}.")
    if not bound and plan.uds is None and (complaint := refuse_port(plan.host, plan.port)):
        raise Refusal(f"Can't serve: {complaint}.")
    if complaint := check_plan(plan, _spell):
        raise Refusal(complaint)
    return plan


def _folder(program: str) -> Path:
    """The folder of what is to be watched."""
    return (Path(split_place(program)[0]).parent if program.partition(":")[0].endswith(".py") else Path()).resolve()


def _serve_http(found: Found, plan: Plan, path: str | None, bounds: Mapping[str, Any], link: WorkerLink | None) -> None:
    """Serve what a program has; an application that it made keeps the options that it was made with: who may call is one of them."""
    app = found.served
    try:
        if not isinstance(app, App):
            if link is None:
                warn_if_piped(app.name)
            app = asgi(app, path=path or PATH, **reach(plan.host), **bounds)
        elif found.inside:  # what stands around it may be what keeps strangers out
            raise Refusal(
                "PROGRAM has its MCP endpoint inside another application: serve that, with uvicorn, say; or name a server of PROGRAM."
            )
        elif path or bounds:
            raise Refusal("PROGRAM has made its application with callboard.asgi: say there what --path and --limit would say.")
        elif not (is_address(plan.host) and is_loopback(plan.host)) and plan.host != "localhost" and not app.rules.allow_remote:
            raise Refusal(
                "PROGRAM has made its application with callboard.asgi, which lets no other machine in: say allow_remote=True there."
            )
        run_app(app, plan, link, _spell)
    except RegistrationError as error:
        raise Refusal(str(error)) from error
    except CannotListenError as error:
        raise Refusal(f"Can't serve: {error}.") from error


def _keep_in(server: Any, store: str | None) -> None:
    try:
        keep_in(server, store)
    except RegistrationError as error:
        raise Refusal(f"{name_store()}: {error}") from error


def _load(program: str, log: _Log) -> Found:
    try:
        found = load_program(program)
    except LoadError as error:
        if error.broken:
            raise click.ClickException(str(error)) from error
        raise Refusal(f"{error}.") from error
    log.set_up()
    return found


def _leave(*_: object) -> NoReturn:
    sys.exit(0)
