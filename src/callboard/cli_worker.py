"""`callboard worker`: run the tasks that servers of a program hand over."""

from __future__ import annotations

import asyncio
import logging
import signal
from socket import socket
from typing import Any

import click

from callboard.cli_arguments import Refusal, name_store
from callboard.compose import endpoint
from callboard.errors import RegistrationError, StoreError
from callboard.loader import LoadError, load_program
from callboard.logs import configure
from callboard.server.task_queue import DocketTasks
from callboard.server.task_worker import TaskWorker, require_docket
from callboard.transport.asgi import App
from callboard.transport.endpoint import Endpoint
from callboard.transport.health import Health, serve_probes
from callboard.transport.listening import CannotListenError, bind_port

__all__ = ["worker"]

CONCURRENCY, GRACE = 10, 30.0
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
# Loggers of pydocket that tell of the Redis.
_CALLS_REDIS = ("docket.worker", "docket.strikelist", "docket.docket")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command(short_help="Run the tasks of a program.")
@click.argument("program")
@click.option("--store", envvar="CALLBOARD_STORE", metavar="URL", help="The servers' Redis; with a password better in CALLBOARD_STORE.")
@click.option("--concurrency", type=click.IntRange(min=1), default=CONCURRENCY, show_default=True, help="Tasks that run at once.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=GRACE,
    show_default=True,
    help="Time for running tasks once told to stop.",
)
@click.option("--health-port", type=click.IntRange(0, 65535), metavar="PORT", help="Answer /healthz and /readyz on this port.")
@click.option("--health-host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where that port is.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="Least level that is logged.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Log as lines of text or of JSON, whatever the program has set up.")
def worker(
    program: str,
    *,
    store: str | None,
    concurrency: int,
    grace: float,
    health_port: int | None,
    health_host: str,
    log_level: str,
    log_format: str | None,
) -> None:
    """Run the tasks of PROGRAM, which says Server(tasks=DocketTasks()); see `callboard run` for how a program is named.

    Start as many as it takes, on any machine that reaches the Redis. SIGTERM lets running tasks end.
    """
    made, tasks = _load(program, store, log_level, log_format)
    try:
        probes = [] if health_port is None else bind_port(health_host, health_port)
        asyncio.run(_serve(made, tasks, concurrency, grace, probes))
    except CannotListenError as error:
        raise click.ClickException(f"--health-port: {error}") from error
    except RegistrationError as error:
        raise Refusal(str(error)) from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _load(program: str, store: str | None, log_level: str, log_format: str | None) -> tuple[Endpoint, DocketTasks]:
    """The program, and what its servers hand tasks over to.

    Raises:
        Refusal: It has no such tasks.
    """
    try:
        served = load_program(program).served
    except LoadError as error:
        if error.broken:
            raise click.ClickException(str(error)) from error
        raise Refusal(f"{error}.") from error
    _set_up_log(log_level, log_format)
    made: Any = served.endpoint if isinstance(served, App) else endpoint(served)
    server = made.server
    try:
        if store is not None:
            server.keep_in(store)
    except RegistrationError as error:
        raise Refusal(f"{name_store()}: {error}") from error
    try:
        tasks = None if server.tasks is None else server.tasks.tasks
    except RegistrationError as error:
        raise Refusal(str(error)) from error
    if not isinstance(tasks, DocketTasks):
        why = "has no tool with task=" if tasks is None else "runs its tasks in the servers themselves"
        raise Refusal(f"{server.name} {why}: workers are for Server(tasks=DocketTasks()).")
    try:
        require_docket()
    except RegistrationError as error:
        raise click.ClickException(str(error)) from error
    return made, tasks


def _set_up_log(level: str, form: str | None) -> None:
    """Log, unless the program has set that up itself."""
    if form is not None or not logging.getLogger().handlers:
        configure(json=form == "json", level=level)
        if level != "debug":
            logging.getLogger("docket").setLevel(logging.WARNING)  # it tells of each task twice
    if level != "debug":
        for name in _CALLS_REDIS:
            logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of pydocket's says more than that the Redis is away: we say that once, it does several times a second."""
    error = record.exc_info[1] if record.exc_info else None
    return not str(record.msg).startswith("Redis ") and "ConnectionError" not in [kind.__name__ for kind in type(error).__mro__]


async def _serve(made: Endpoint, tasks: DocketTasks, concurrency: int, grace: float, probes: list[socket]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop.set)
    if probes:
        await serve_probes(probes, Health(made, opens=False).check)
    mount = await made.open()
    try:
        runs = TaskWorker(mount, tasks, concurrency=concurrency, grace=grace)
        await runs.serve(stop, lambda: click.echo(f"Runs tasks of {made.server.name}, {concurrency} at once.", err=True))
    finally:
        await made.close()
