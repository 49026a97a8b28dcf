"""The three things a store must do, with what it guarantees. Every implementation passes the same contract tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

__all__ = ["Bus", "Entry", "Event", "EventLog", "Kv", "Store"]


class Entry(NamedTuple):
    """A value and the version that a compare-and-set must name. Versions are never reused for one key; they need not increase."""

    value: bytes
    version: int


class Kv(Protocol):
    """Keys and values with expiry.

    Guarantees: `put` is atomic and, with `expect`, happens only while the key is at that version (0: while it is absent); a key whose
    time is up is absent for every reader at once; what `put` acknowledged, every later `get` sees.
    """

    async def get(self, key: str) -> Entry | None:
        """Read a key; None when absent or expired."""
        ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None) -> int | None:
        """Write a key.

        Args:
            key: The key.
            value: The bytes.
            expect: Version that the key must be at; None for whatever it is.
            ttl: Seconds until it expires; None for never.

        Returns:
            The new version, or None when `expect` did not hold and nothing was written.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        ...


class Event(NamedTuple):
    """One entry of an event log. Ids of one stream increase."""

    id: int
    data: bytes


class EventLog(Protocol):
    """Bounded streams of events.

    Guarantees: ids of a stream increase by one and are never reused while it exists, not even when old events have fallen off its end.
    """

    async def append(self, stream: str, data: bytes, *, keep: int) -> int:
        """Add an event and let all but the newest `keep` fall off; the event's id."""
        ...

    async def read(self, stream: str, after: int) -> list[Event]:
        """Events with an id above `after` that are still there, oldest first."""
        ...

    async def drop(self, stream: str) -> None:
        """Forget a stream."""
        ...


class Bus(Protocol):
    """Messages to whoever listens now.

    Guarantees: at most once to each subscriber, the publisher's own process included, and exactly once while the store is not away for
    longer than it keeps messages; in the order published, per publisher;
    a subscriber that raises harms nobody else. Nothing is delivered to those who come later; the newest messages can be asked for.

    Attributes:
        position: Id of the newest message that this process was delivered; within `deliver`, of the one that is being delivered. Ids are
            two numbers, `ms-n`, that increase as pairs. Empty until the store is open.
    """

    @property
    def position(self) -> str:
        """Id of the newest message that was delivered here."""
        ...

    def publish(self, topic: str, message: bytes) -> None:
        """Send a message; returns at once, from any thread."""
        ...

    def subscribe(self, topic: str, deliver: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `deliver` called with every message of a topic; call what is returned to end it."""
        ...

    async def since(self, position: str) -> list[tuple[str, str, bytes]]:
        """Messages after a position, of all topics, oldest first: those of the newest 1,000, or more, that are still there.

        Args:
            position: A `position` of any process; nothing comes after the empty one.

        Returns:
            Id, topic and message of each.
        """
        ...


class Store(Protocol):
    """All that a server keeps beyond a request: one object for one server, in each of the processes that serve it.

    Attributes:
        shared: Whether the processes that serve this server see the same. Where not, each has its own sessions, marks and counts.
        kv: Keys and values.
        log: Streams of events.
        bus: Messages to all processes.
    """

    shared: bool
    kv: Kv
    log: EventLog
    bus: Bus

    def name(self, server: str) -> None:
        """Keep what is kept apart from that of other servers; called once, before anything else.

        Args:
            server: The server's name.
        """
        ...

    async def open(self) -> None:
        """Be ready for use on this event loop; nothing happens where it is.

        Raises:
            StoreError: It can't be reached; the text names it, without its password.
        """
        ...

    async def check(self) -> None:
        """See that it answers now.

        Raises:
            StoreError: It does not.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and tasks; `open` begins anew."""
        ...
