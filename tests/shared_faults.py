"""Sessions that several workers serve, over a store that fails when it is told to."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shared_sessions import Fleet, at

from callboard.errors import StoreError
from callboard.stores.memory import MemoryStore

__all__ = ["Flaky", "make_flaky", "make_fleet", "warm_up"]


class Flaky:
    """A store of sessions whose methods fail when told to: before they do anything, or after.

    Args:
        inner: The store.

    Attributes:
        before: Names of methods that fail before.
        after: Names of methods that fail after.
        pauses: Names of methods that wait, after they have done what they do, until their event is set.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.before: set[str] = set()
        self.after: set[str] = set()
        self.pauses: dict[str, asyncio.Event] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.inner, name)
        if not asyncio.iscoroutinefunction(real):
            return real
        return self._wrap(name, real)

    def _wrap(self, name: str, real: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            if name in self.before:
                raise StoreError("The store can't be reached.")
            result = await real(*args, **named)
            if (pause := self.pauses.get(name)) is not None:
                await pause.wait()
            if name in self.after:
                raise StoreError("The store can't be reached.")
            return result

        return call


def make_fleet(number: int = 2, **options: Any) -> Fleet:
    """A fleet over a store in memory."""
    first = MemoryStore(shared=True)
    return Fleet([first, *(first.twin() for _ in range(number - 1))], **options)


def make_flaky(fleet: Fleet, number: int) -> Flaky:
    """Make the store of one worker, which has served before, one that may fail."""
    table = fleet.table(number)
    flaky = Flaky(table.stored)
    stored: Any = flaky
    table.stored = stored
    return flaky


async def warm_up(fleet: Fleet, session: Any) -> None:
    """Let every worker know a session."""
    for number in range(len(fleet.apps)):
        assert (await session.call("peek", **at(number))).status == 200
