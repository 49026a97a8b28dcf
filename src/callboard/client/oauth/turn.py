"""One thing at a time for many who wait: however many requests are refused, one login is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from callboard.client.oauth.urls import Place

__all__ = ["Turn", "within"]

T = TypeVar("T")


class Turn:
    """Something that is being done for all who wait for it. It begins at once, and ends with its last waiter.

    Args:
        work: What is done; it gives whether it helped.
        interactive: Somebody may be asked something, so it is not done twice when it fails.

    Attributes:
        interactive: As given.
    """

    def __init__(self, work: Coroutine[Any, Any, bool], *, interactive: bool) -> None:
        self.interactive = interactive
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the waiters may all be gone
        self._waiting = 0
        self._given_up = False

    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._given_up or self._task.done()

    async def wait(self) -> bool:
        """Wait for its end; all who wait share the result and the error. When the last one is cancelled it is given up."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._task.done():
                self._given_up = True
                self._task.cancel()
                await asyncio.wait({self._task})  # pages close before the caller goes on


async def within(seconds: float, place: Place, discovery: Awaitable[T]) -> T:
    """Wait for a discovery, but not for ever: each of many documents may come slowly.

    Raises:
        AuthorizationFailed: It took longer.
    """
    try:
        async with asyncio.timeout(seconds):
            return await discovery
    except TimeoutError:
        raise place.fail(f"the authorization server was not found within {seconds:g} s: what describes it comes too slowly") from None
