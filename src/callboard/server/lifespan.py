"""A server's lifespan: entered once per server however many transports serve it (A33), left when the last one is done.

It runs in a task of its own, since what an async context manager enters (task groups, cancel scopes) must be left in the same task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from callboard.errors import RegistrationError
from callboard.server.signature import accepts
from callboard.server.workers import is_imposed

__all__ = ["Dependent", "Lifespan", "LifespanFactory"]

_log = logging.getLogger("callboard")

LifespanFactory = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


class Dependent(Protocol):
    """What lives as long as a server. It fails by itself."""

    async def enter(self) -> Any:
        """The server begins."""
        ...

    async def leave(self) -> None:
        """The server ends."""
        ...


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
                self.ready.set_result(_check_values(values))
                await self.stop.wait()
        except BaseException as error:  # noqa: BLE001 - it is raised, or those who wait are told
            failure = error
            if isinstance(error, asyncio.CancelledError) and not is_imposed(error):
                # It waited for something that was cancelled. Who waits for the lifespan is not, and may go on without it.
                failure = RuntimeError("The lifespan raised CancelledError.")
                failure.__cause__ = error
            if self.ready.done():
                if not self.stop.is_set() and not isinstance(failure, asyncio.CancelledError):
                    _log.error("The server's lifespan ended while the server serves.", exc_info=failure)
                raise failure from failure.__cause__
            self.ready.set_exception(failure)


class Lifespan:
    """Enters and leaves a server's lifespan.

    Args:
        server: Passed to the factory.
        factory: `factory(server)` gives an async context manager, which may yield a mapping for `ctx.locals`; None for no lifespan.

    Raises:
        RegistrationError: `factory` can't be that.

    Attributes:
        dependents: What is entered after it, and left before it.
    """

    def __init__(self, server: Any, factory: LifespanFactory | None) -> None:
        if factory is not None:
            _check_factory(factory)
        self._server = server
        self._factory = factory
        self.dependents: list[Dependent] = []
        self._runs: dict[asyncio.AbstractEventLoop, _Run] = {}
        self._users: Counter[asyncio.AbstractEventLoop] = Counter()

    @property
    def in_use(self) -> bool:
        """Whether anybody serves the server."""
        return bool(self._users)

    async def enter(self) -> Mapping[str, Any]:
        """Count one more user on this event loop; what the lifespan yielded.

        Raises:
            Exception: What the lifespan raised on its way in; the next `enter` tries again.
        """
        loop = asyncio.get_running_loop()
        values = await self._enter_own(loop)
        self._users[loop] += 1
        try:
            for dependent in list(self.dependents):
                await dependent.enter()
        except BaseException:
            await self.leave()
            raise
        return values

    async def leave(self) -> None:
        """Count one user less; the last one leaves the lifespan and waits until its teardown is done.

        Raises:
            Exception: What the lifespan raised on its way out.
        """
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if self._users[loop] <= 0:
            del self._users[loop]
            for dependent in reversed(self.dependents):
                await dependent.leave()
        run = self._runs.get(loop)
        if run is not None and self._release(run):
            assert run.task is not None
            await run.task

    async def _enter_own(self, loop: asyncio.AbstractEventLoop) -> Mapping[str, Any]:
        if self._factory is None:
            return {}
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

    def _release(self, run: _Run) -> bool:
        """Count one user less; whether it was the last."""
        run.users -= 1
        if run.users > 0:
            return False
        self._runs.pop(run.loop, None)
        run.stop.set()
        return True


def _check_values(values: Any) -> Mapping[str, Any]:
    if values is None or isinstance(values, Mapping):
        return values or {}
    raise RegistrationError(
        f"The lifespan yielded {type(values).__name__}; yield a mapping, like {{'app': value}}, which functions see as ctx.locals."
    )


def _check_factory(factory: Any) -> None:
    """Find out now what would fail the first request."""
    if not callable(factory):
        raise RegistrationError("lifespan must be a function that takes the server and gives an async context manager.")
    if inspect.isasyncgenfunction(factory) or inspect.iscoroutinefunction(factory):
        raise RegistrationError("lifespan must give an async context manager: decorate it with @contextlib.asynccontextmanager.")
    if not accepts(factory, None):
        raise RegistrationError("lifespan must take one argument, the server.")
