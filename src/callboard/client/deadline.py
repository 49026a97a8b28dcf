"""Time limits of many tasks on one timer.

`asyncio.timeout` makes a timer for each request, which costs more than all else that a client does for one. Here a limit is an entry in a set;
the only timer is set to the first of them, and is not touched while requests that end long before their time come and go.
"""

from __future__ import annotations

import asyncio
from math import inf

__all__ = ["Deadline", "Deadlines"]

# Seconds: a timer may come a little before its time; and how often all limits are looked at, at most.
_EARLY = 0.001
_PAUSE = 0.01


class Deadline:
    """A limit for the task that began it: past its time the task is cancelled, once.

    Made by `Deadlines.begin`. What the task must do, as `asyncio.timeout` does it by itself:

        limit = deadlines.begin(at)
        try:
            ...
        except asyncio.CancelledError:
            if limit.take_back():
                raise SomethingElse from None
            raise
        finally:
            limit.close()

    Attributes:
        at: When, on the event loop's clock; infinity for never. To change it, use `move`.
        expired: Whether the task was cancelled for it.
    """

    __slots__ = ("_before", "_deadlines", "_owed", "_task", "at", "expired")

    def __init__(self, deadlines: Deadlines, at: float, task: asyncio.Task[object]) -> None:
        self._deadlines = deadlines
        self._task = task
        self._before = task.cancelling()
        self._owed = False
        self.at = at
        self.expired = False

    def move(self, at: float) -> None:
        """Set another time; nothing happens when it is too late for that."""
        self.at = at
        self._deadlines.arm(at)

    def expire(self) -> None:
        """Cancel the task now."""
        if not self.expired:
            self.expired = self._owed = True
            self._task.cancel()

    def take_back(self) -> bool:
        """Whether a `CancelledError` means this limit and nothing else. Asking settles it: the task counts as cancelled no more."""
        if not self._owed:
            return False
        self._owed = False
        return self._task.uncancel() <= self._before

    def close(self) -> None:
        """The task is done with what was limited."""
        self._deadlines.forget(self)
        if self._owed:
            self.take_back()


class Deadlines:
    """The limits of one client's requests, on one event loop."""

    def __init__(self) -> None:
        self._running: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf

    def begin(self, at: float) -> Deadline:
        """Limit the current task.

        Args:
            at: When it is cancelled, on the event loop's clock; infinity for never.
        """
        task = asyncio.current_task()
        assert task is not None
        limit = Deadline(self, at, task)
        self._running.add(limit)
        if at < self._due:
            self.arm(at)
        return limit

    def arm(self, at: float) -> None:
        """Look at all limits no later than then."""
        if at < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = at
            self._timer = asyncio.get_running_loop().call_at(at, self._check)

    def forget(self, limit: Deadline) -> None:
        """A limit is over."""
        self._running.discard(limit)

    def close(self) -> None:
        """Stop the timer; limits that still run have no effect any more."""
        self._running.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, inf

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        self._disarm()
        following = inf
        for limit in self._running:
            if limit.expired:
                continue
            if limit.at <= now + _EARLY:
                limit.expire()
            else:
                following = min(following, limit.at)
        if following < inf:
            self.arm(max(following, now + _PAUSE))
