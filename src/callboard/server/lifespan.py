"""A server's lifespan: entered once per server however many transports serve it (A33), left when the last one is done.

It runs in a task of its own, since what an async context manager enters (task groups, cancel scopes) must be left in the same task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

__all__ = ["Lifespan", "LifespanFactory"]

_log = logging.getLogger("callboard")

LifespanFactory = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


class _Run:
    """One entered lifespan, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.users = 0
        self.ready: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def live(self, manager: AbstractAsyncContextManager[Mapping[str, Any] | None]) -> None:
        try:
            async with manager as values:
                self.ready.set_result(values or {})
                await self.stop.wait()
        except BaseException as error:
            if self.ready.done():
                if not self.stop.is_set() and not isinstance(error, asyncio.CancelledError):
                    _log.exception("The server's lifespan ended while the server serves.")
                raise
            self.ready.set_exception(error)


class Lifespan:
    """Enters and leaves a server's lifespan.

    Args:
        server: Passed to the factory.
        factory: `factory(server)` gives an async context manager, which may yield a mapping for `ctx.locals`; None for no lifespan.
    """

    def __init__(self, server: Any, factory: LifespanFactory | None) -> None:
        self._server = server
        self._factory = factory
        self._runs: dict[asyncio.AbstractEventLoop, _Run] = {}

    async def enter(self) -> Mapping[str, Any]:
        """Count one more user on this event loop; what the lifespan yielded.

        Raises:
            Exception: What the lifespan raised on its way in; the next `enter` tries again.
        """
        if self._factory is None:
            return {}
        loop = asyncio.get_running_loop()
        self._runs = {known: run for known, run in self._runs.items() if not known.is_closed()}
        run = self._runs.get(loop)
        if run is None:
            manager = self._factory(self._server)
            run = self._runs[loop] = _Run(loop)
            run.task = loop.create_task(run.live(manager), name="callboard-lifespan")
        run.users += 1
        try:
            return await asyncio.shield(run.ready)
        except BaseException:
            self._release(run)
            raise

    async def leave(self) -> None:
        """Count one user less; the last one leaves the lifespan and waits until its teardown is done.

        Raises:
            Exception: What the lifespan raised on its way out.
        """
        run = self._runs.get(asyncio.get_running_loop())
        if run is not None and self._release(run):
            assert run.task is not None
            await run.task

    def _release(self, run: _Run) -> bool:
        """Count one user less; whether it was the last."""
        run.users -= 1
        if run.users > 0:
            return False
        self._runs.pop(run.loop, None)
        run.stop.set()
        return True
