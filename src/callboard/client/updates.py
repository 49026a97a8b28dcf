"""Resources whose updates a session was asked for: `subscribe` before the first listener, `unsubscribe` after the last (SB-14)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from callboard.client.errors import ClientError, ServerError

__all__ = ["Updates"]

FAREWELL = 2.0
"""Seconds to tell a server that nobody listens any more."""


class Updates:
    """See the module.

    Args:
        ask: Sends `resources/subscribe` or `resources/unsubscribe` for a URI; the last is its time limit in seconds, None for the usual one.
    """

    def __init__(self, ask: Callable[[str, str, float | None], Awaitable[object]]) -> None:
        self._ask = ask
        self._listeners: Counter[str] = Counter()
        # What is said of one resource is said in order: a late `unsubscribe` must not undo the next `subscribe`.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._farewells: set[asyncio.Task[None]] = set()
        self._closed = False

    async def add(self, uri: str) -> None:
        """There is one more who listens.

        Raises:
            ClientError: The server refuses, or can't be asked; then there is not.
        """
        async with self._turn(uri):
            if not self._listeners[uri]:
                del self._listeners[uri]
                try:
                    await self._ask("resources/subscribe", uri, None)
                except ServerError:
                    raise
                except BaseException:
                    self._leave(uri)  # it may have arrived
                    raise
            self._listeners[uri] += 1

    def remove(self, uri: str, *, told: bool = True) -> None:
        """One who listened does so no more; nobody waits for the server to know.

        Args:
            uri: The resource.
            told: Whether the server is told; a session that is gone need not be.
        """
        self._listeners[uri] -= 1
        if self._listeners[uri] <= 0:
            del self._listeners[uri]
            if told:
                self._leave(uri)

    async def close(self) -> None:
        """Say what is still to be said."""
        self._closed = True
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=FAREWELL)
        for task in self._farewells:
            task.cancel()

    def _turn(self, uri: str) -> asyncio.Lock:
        return self._turns.setdefault(uri, asyncio.Lock())

    def _leave(self, uri: str) -> None:
        if not self._closed:
            task = asyncio.create_task(self._say_goodbye(uri), name=f"callboard client unsubscribes from {uri}")
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    async def _say_goodbye(self, uri: str) -> None:
        async with self._turn(uri):
            if uri not in self._listeners:
                with suppress(ClientError):
                    await self._ask("resources/unsubscribe", uri, FAREWELL)
