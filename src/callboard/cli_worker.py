"""`callboard worker`: run the tasks that servers of a program hand over."""

from __future__ import annotations

import asyncio
import logging
import signal
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

__all__ = ["worker"]

CONCURRENCY, GRACE = 10, 30.0
LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
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
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="Least level that is logged.")
def worker(program: str, *, store: str | None, concurrency: int, grace: float, log_level: str) -> None:
    """Run the tasks of PROGRAM, which says Server(tasks=DocketTasks()); see `callboard run` for how a program is named.

    Start as many as it takes, on any machine that reaches the Redis. SIGTERM lets running tasks end.
    """
    made, tasks = _load(program, store, log_level)
    try:
        asyncio.run(_serve(made, tasks, concurrency, grace))
    except RegistrationError as error:
        raise Refusal(str(error)) from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _load(program: str, store: str | None, log_level: str) -> tuple[Endpoint, DocketTasks]:
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
    if not logging.getLogger().handlers:
        configure(level=log_level)
        if log_level != "debug":
            logging.getLogger("docket").setLevel(logging.WARNING)  # it tells of each task twice
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


async def _serve(made: Endpoint, tasks: DocketTasks, concurrency: int, grace: float) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop.set)
    mount = await made.open()
    try:
        runs = TaskWorker(mount, tasks, concurrency=concurrency, grace=grace)
        await runs.serve(stop, lambda: click.echo(f"Runs tasks of {made.server.name}, {concurrency} at once.", err=True))
    finally:
        await made.close()
