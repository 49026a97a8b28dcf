"""The default store: this process's memory. Time comes in as a function, so that tests own the clock."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from threading import Lock

from callboard.stores.base import Entry, Event

__all__ = ["MemoryBus", "MemoryEventLog", "MemoryKv"]

# Writes between two looks for expired keys that nobody reads.
_PURGE_EVERY = 256
_log = logging.getLogger("callboard.stores")


class MemoryKv:
    """`Kv` in a dict.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[Entry, float | None]] = {}
        self._versions = count(1)

    async def get(self, key: str) -> Entry | None:
        """Read a key; None when absent or expired."""
        found = self._entries.get(key)
        if found is None:
            return None
        entry, until = found
        if until is not None and self._clock() >= until:
            del self._entries[key]
            return None
        return entry

    async def put(self, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None) -> int | None:
        """Write a key; None when `expect` did not hold."""
        if expect is not None:
            present = await self.get(key)
            if (0 if present is None else present.version) != expect:
                return None
        version = next(self._versions)
        if version % _PURGE_EVERY == 0:
            now = self._clock()
            self._entries = {name: found for name, found in self._entries.items() if found[1] is None or found[1] > now}
        self._entries[key] = (Entry(value, version), None if ttl is None else self._clock() + ttl)
        return version

    async def delete(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return await self.get(key) is not None and self._entries.pop(key, None) is not None


class MemoryEventLog:
    """`EventLog` in deques."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[count[int], deque[Event]]] = {}

    async def append(self, stream: str, data: bytes, *, keep: int) -> int:
        """Add an event and let all but the newest `keep` fall off; the event's id."""
        ids, events = self._streams.setdefault(stream, (count(1), deque()))
        event = Event(next(ids), data)
        events.append(event)
        while len(events) > keep:
            events.popleft()
        return event.id

    async def read(self, stream: str, after: int) -> list[Event]:
        """Events with an id above `after` that are still there, oldest first."""
        found = self._streams.get(stream)
        return [] if found is None else [event for event in found[1] if event.id > after]

    async def drop(self, stream: str) -> None:
        """Forget a stream."""
        self._streams.pop(stream, None)


class MemoryBus:
    """`Bus` by calling the subscribers, in the publisher's thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._topics: dict[str, dict[object, Callable[[bytes], None]]] = {}

    def publish(self, topic: str, message: bytes) -> None:
        """Call every subscriber; one that raises is logged."""
        for deliver in list(self._topics.get(topic, {}).values()):
            try:
                deliver(message)
            except Exception:  # noqa: BLE001 - the contract: it harms nobody else
                _log.exception("A subscriber of %r failed.", topic)

    def subscribe(self, topic: str, deliver: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `deliver` called with every message of a topic; call what is returned to end it."""
        token = object()
        with self._lock:
            self._topics[topic] = {**self._topics.get(topic, {}), token: deliver}

        def cancel() -> None:
            with self._lock:
                left = {key: value for key, value in self._topics.pop(topic, {}).items() if key is not token}
                if left:
                    self._topics[topic] = left

        return cancel
