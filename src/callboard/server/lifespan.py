"""A server's lifespan: entered once per server however many transports serve it (A33), left when the last one is done.

It runs in a task of its own, since what an async context manager enters (task groups, cancel scopes) must be left in the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

__all__ = ["Lifespan", "LifespanFactory"]

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
        self._run: _Run | None = None

    async def enter(self) -> Mapping[str, Any]:
        """Count one more user; what the lifespan yielded.

        Raises:
            Exception: What the lifespan raised on its way in; the next `enter` tries again.
        """
        if self._factory is None:
            return {}
        loop = asyncio.get_running_loop()
        run = self._run
        if run is None or run.loop is not loop:
            manager = self._factory(self._server)
            run = self._run = _Run(loop)
            run.task = loop.create_task(run.live(manager), name="callboard-lifespan")
        run.users += 1
        try:
            return await asyncio.shield(run.ready)
        except BaseException:
            run.users -= 1
            if self._run is run and run.ready.done() and run.ready.exception() is not None:
                self._run = None
            raise

    async def leave(self) -> None:
        """Count one user less; the last one leaves the lifespan and waits until its teardown is done.

        Raises:
            Exception: What the lifespan raised on its way out.
        """
        run = self._run
        if run is None:
            return
        run.users -= 1
        if run.users <= 0:
            self._run = None
            run.stop.set()
            assert run.task is not None
            await run.task
