"""Whether a store is worth asking, for those who can do without its answer: nobody waits for what has just failed somebody else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from callboard.errors import StoreError

__all__ = ["PAUSE", "Outage"]

PAUSE = 1.0
"""Seconds in which one caller tries again, and all others go on without the store."""

_log = logging.getLogger("callboard.stores")


class Outage:
    """What is known of a store's last answers.

    Args:
        instead: What is done without the store, for the log.
        clock: Seconds, monotonic.
    """

    __slots__ = ("_again", "_clock", "_instead")

    def __init__(self, instead: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._instead = instead
        self._clock = clock
        self._again: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether the last one who asked got no answer."""
        return self._again is not None

    def asks(self) -> bool:
        """Whether to ask the store now. While it does not answer one caller in `PAUSE` seconds is told to."""
        if self._again is None:
            return True
        now = self._clock()
        if now < self._again:
            return False
        self._again = now + PAUSE
        return True

    def failed(self, error: StoreError) -> None:
        """It did not answer; the log says so once until it does."""
        if self._again is None:
            _log.warning("%s %s", error, self._instead)
        self._again = self._clock() + PAUSE

    def worked(self) -> None:
        """It answered."""
        if self._again is not None:
            self._again = None
            _log.warning("The shared store answers again.")
