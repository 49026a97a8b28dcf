"""Ends connections whose other side takes its time: one timer looks at all of them now and then, so that a call costs nothing more.

Rules, each look in this order:
    1. Where bytes wait to be sent, the reader must take some of them within `write_timeout`; else the connection is cut.
    2. A request's head must be there `head_timeout` after its first byte, or after the connection was made.
    3. Its body must be there `body_timeout` after the head, and a second later for every `LEAST_RATE` bytes of it that have come, so that a
       large body may come over a slow line. Time in which nobody wanted to read it does not count.
    4. A connection between requests may be silent for `keep_alive`.
    5. What waits to be sent on all connections together is at most `max_unsent`; past that, whoever has not kept up longest is cut.
    6. Once a lot has waited and nothing has for a while, memory is given back.

Nothing of this is measured where it happens: a look compares what it finds with what the last one found. So a limit is kept to within two
looks, and one that is reached between two looks is not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Any, Protocol

__all__ = ["LEAST_RATE", "Connection", "Phase", "Sweep", "Watch"]

# Bytes of a body per second that buy another second.
LEAST_RATE = 16 * 1024
# Bytes that count as a lot, and how long nothing must have waited since.
A_LOT = 32 * 1024 * 1024
QUIET_FOR = 2.0
# Seconds between two looks: an eighth of the shortest limit, within these.
SHORTEST_LOOK, LONGEST_LOOK = 0.02, 1.0


class Phase(Enum):
    """What a connection is waiting for."""

    FRESH = auto()
    """The first byte."""
    HEAD = auto()
    """The rest of a request's head."""
    BODY = auto()
    """The rest of a request's body."""
    BUSY = auto()
    """Its answer."""
    IDLE = auto()
    """The next request."""


class Watch:
    """What the last look at a connection found.

    Attributes:
        phase: Its phase; None before the first look.
        request: What stands for the request that it was at.
        since: When that began, on the loop's clock.
        received: Bytes that had come by then.
        taken: Bytes that the reader had taken.
        stalled: Since when they had taken no more, while some waited; None while none did.
        held: What it counts for among the unsent bytes.
    """

    __slots__ = ("held", "phase", "received", "request", "since", "stalled", "taken")

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.request: Any = None
        self.since = 0.0
        self.received = 0
        self.taken = 0
        self.stalled: float | None = None
        self.held = 0


class Connection(Protocol):
    """A connection, as far as it is looked at.

    Attributes:
        watch: The sweep's own.
        received: Bytes that came over it, those of whole requests need not count.
    """

    watch: Watch
    received: int

    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        ...

    def taken(self) -> int:
        """Bytes that the other side has taken so far."""
        ...

    def phase(self) -> tuple[Phase, Any]:
        """What it is waiting for, and what stands for the request that it is at: another one for each request."""
        ...

    def is_reading(self) -> bool:
        """Whether somebody wants what comes."""
        ...

    def is_closing(self) -> bool:
        """Whether its end has begun."""
        ...

    def time_out(self, phase: Phase) -> None:
        """End it in good order, with an answer where there is room for one."""
        ...

    def cut(self) -> None:
        """End it at once; what waits is lost."""
        ...


class Sweep:
    """Looks at all connections now and then.

    Args:
        head_timeout: Seconds; see the module.
        body_timeout: Seconds.
        write_timeout: Seconds.
        keep_alive: Seconds.
        max_unsent: Bytes.
        give_back: Gives memory back that is not needed any more.
    """

    def __init__(
        self,
        *,
        head_timeout: float = 10.0,
        body_timeout: float = 30.0,
        write_timeout: float = 30.0,
        keep_alive: float = 5.0,
        max_unsent: int = 256 * 1024 * 1024,
        give_back: Callable[[], object] = lambda: None,
    ) -> None:
        self._connections: Collection[Connection] = ()
        self._limits = {Phase.FRESH: head_timeout, Phase.HEAD: head_timeout, Phase.BODY: body_timeout, Phase.IDLE: keep_alive}
        self._write_timeout = write_timeout
        self._max_unsent = max_unsent
        self._held: dict[Connection, None] = {}
        self._unsent = 0
        self._give_back = give_back
        self._looked = self._elapsed = 0.0
        self._peak = 0
        self._quiet_since: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.interval = min(LONGEST_LOOK, max(SHORTEST_LOOK, min(*self._limits.values(), write_timeout) / 8))

    @property
    def unsent(self) -> int:
        """Bytes that wait on connections whose readers are behind."""
        return self._unsent

    def start(self, loop: asyncio.AbstractEventLoop, connections: Collection[Connection]) -> None:
        """Look at the connections from now on.

        Args:
            loop: The running event loop.
            connections: Those there are, at any time.
        """
        self._loop = loop
        self._connections = connections
        self._timer = loop.call_later(self.interval, self._tick)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(self.interval, self._tick)
        self.look(self._loop.time())

    def look(self, now: float) -> None:
        """Look at every connection once.

        Args:
            now: The loop's time.
        """
        self._looked, self._elapsed = now, now - self._looked
        for connection in list(self._connections):
            if not self._is_stuck(connection, now) and not connection.is_closing():
                self._check_phase(connection, now)
        self._relieve(now)

    def _relieve(self, now: float) -> None:
        if self._held or self._peak < A_LOT:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since >= QUIET_FOR:
            self._peak = 0
            self._give_back()

    def _is_stuck(self, connection: Connection, now: float) -> bool:
        """Whether a reader takes nothing; then its connection is cut."""
        watch, unsent = connection.watch, connection.unsent()
        if not unsent:
            watch.stalled = None
            return False
        taken = connection.taken()
        if watch.stalled is None or taken != watch.taken:
            watch.stalled, watch.taken = now, taken
            return False
        if now - watch.stalled < self._write_timeout:
            return False
        connection.cut()
        return True

    def _check_phase(self, connection: Connection, now: float) -> None:
        watch = connection.watch
        phase, request = connection.phase()
        if phase is not watch.phase or request is not watch.request:
            watch.phase, watch.request, watch.since, watch.received = phase, request, now, connection.received
            return
        if phase is Phase.BUSY:
            return
        limit = self._limits[phase]
        if phase is Phase.BODY:
            if not connection.is_reading():
                watch.since += self._elapsed
            limit += (connection.received - watch.received) / LEAST_RATE
        if now - watch.since >= limit:
            connection.time_out(phase)

    def hold(self, connection: Connection) -> None:
        """A reader is behind: count what waits for them. Where it is too much in all, cut those that have been behind longest."""
        self.release(connection)
        connection.watch.held = connection.unsent()
        self._unsent += connection.watch.held
        self._held[connection] = None
        self._peak = max(self._peak, self._unsent)
        while self._unsent > self._max_unsent:
            longest = next(iter(self._held))
            self.release(longest)
            longest.cut()

    def release(self, connection: Connection) -> None:
        """They caught up, or are gone."""
        if connection in self._held:
            del self._held[connection]
            self._unsent -= connection.watch.held
