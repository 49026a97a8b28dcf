"""Timers for many things that all have the same delay: one timer of the event loop for however many wait, none while nothing does.

A timer per request would cost more than the look-up of its session.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Alarm"]

T = TypeVar("T", bound=Hashable)


class Alarm(Generic[T]):
    """Calls `ring` with everything that has waited for `delay`.

    Args:
        loop: The event loop, whose clock counts.
        delay: Seconds.
        ring: Called once for each thing that is still there when its time is up.
    """

    __slots__ = ("_delay", "_loop", "_ring", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay: float, ring: Callable[[T], None]) -> None:
        self._loop = loop
        self._delay = delay
        self._ring = ring
        # In the order of their times. A dict looks for its first behind all that have been taken out since it grew last.
        self._waiting: OrderedDict[T, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many things wait."""
        return len(self._waiting)

    def set(self, thing: T) -> None:
        """Let the time of a thing begin; anew when it waits already."""
        due = self._waiting[thing] = self._loop.time() + self._delay
        self._waiting.move_to_end(thing)
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._check)

    def unset(self, thing: T) -> bool:
        """Forget a thing; whether it waited."""
        return self._waiting.pop(thing, None) is not None

    def close(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        # A timer may come a little before its time.
        now = self._loop.time() + 0.001
        due = []
        for thing, at in self._waiting.items():
            if at > now:
                break
            due.append(thing)
        for thing in due:
            if self._waiting.pop(thing, None) is not None:
                self._ring(thing)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_at(next(iter(self._waiting.values())), self._check)
