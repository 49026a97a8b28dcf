"""The default store: this process's memory. Time comes in as a function, so that tests own the clock."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from threading import Lock

from callboard.stores.base import Bus, Entry, Event, EventLog, Kv
from callboard.stores.topics import Topics

__all__ = ["MemoryBus", "MemoryEventLog", "MemoryKv", "MemoryStore"]

# Writes between two looks for expired keys that nobody reads.
_PURGE_EVERY = 256
# Messages of the Bus that can be asked for again, and their bytes.
MAX_KEPT = (1_000, 4 << 20)
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
    """`Bus` by calling the subscribers, in the publisher's thread.

    Attributes:
        position: Id of the newest message, `n-0`; within `deliver`, of the one that is being delivered, unless another thread publishes.
    """

    def __init__(self) -> None:
        self.position = "0-0"
        self._lock = Lock()
        self._topics = Topics()
        self._newest = 0
        self._kept: deque[tuple[int, str, bytes]] = deque()
        self._size = 0

    def publish(self, topic: str, message: bytes) -> None:
        """Call every subscriber; one that raises is logged."""
        with self._lock:
            self._newest += 1
            number = self._newest
            self._kept.append((number, topic, message))
            self._size += len(message)
            while len(self._kept) > MAX_KEPT[0] or self._size > MAX_KEPT[1]:
                self._size -= len(self._kept.popleft()[2])
        self.position = f"{number}-0"
        self._topics.deliver(topic, message, self._stand_at(number))
        self.position = f"{self._newest}-0"

    def _stand_at(self, number: int) -> Callable[[], None]:
        def stand() -> None:  # a subscriber that published itself has moved it
            self.position = f"{number}-0"

        return stand

    def subscribe(self, topic: str, deliver: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `deliver` called with every message of a topic; call what is returned to end it."""
        return self._topics.subscribe(topic, deliver)

    async def since(self, position: str) -> list[tuple[str, str, bytes]]:
        """Id, topic and message of each that came after a position, of the newest 1,000 in 4 MiB."""
        if not position:
            return []
        after = int(position.partition("-")[0])
        with self._lock:
            return [(f"{number}-0", topic, message) for number, topic, message in self._kept if number > after]


class MemoryStore:
    """`Store` in this process's memory.

    Args:
        clock: Seconds, monotonic.
        shared: Whether to pass for a store that several processes share: for tests of what depends on it. Each `twin` is a process.

    Attributes:
        shared: As given.
        kv: Keys and values.
        log: Streams of events.
        bus: Messages.
        worker: Random id: 16 hex digits.
        direct: Called on the event loop with each message to this worker, or to all.
        epoch: Goes up whenever messages to this worker may have been lost; here only where a test says so.
        hears: Whether messages to this worker arrive.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, shared: bool = False) -> None:
        self.shared = shared
        self.kv: Kv = MemoryKv(clock)
        self.log: EventLog = MemoryEventLog()
        self.bus: Bus = MemoryBus()
        self._enter({})

    def _enter(self, workers: dict[str, MemoryStore]) -> None:
        self.worker = secrets.token_hex(8)
        self.direct: Callable[[bytes], None] | None = None
        self.epoch = 0
        self.hears = True
        self._workers = workers
        self._workers[self.worker] = self

    def twin(self) -> MemoryStore:
        """What another process sees: the same data, under an id of its own.

        Raises:
            ValueError: This one is not `shared`.
        """
        if not self.shared:
            raise ValueError("MemoryStore.twin: only a store that is made with shared=True has twins.")
        twin = object.__new__(MemoryStore)
        twin.shared, twin.kv, twin.log, twin.bus = True, self.kv, self.log, self.bus
        twin._enter(self._workers)
        return twin

    def name(self, server: str) -> None:
        """See `Store.name`: nobody else can see what is in it."""

    async def open(self) -> None:
        """See `Store.open`."""
        self._workers[self.worker] = self

    async def check(self) -> None:
        """See `Store.check`."""

    async def close(self) -> None:
        """See `Store.close`: what is kept stays, this worker is not alive any more."""
        self._workers.pop(self.worker, None)

    def tell(self, worker: str, message: bytes) -> None:
        """Send a message to a worker, or to `all`, without waiting; from the event loop's thread.

        Args:
            worker: A worker's id, or `all`.
            message: What its `direct` is called with, in another turn of the loop.
        """
        loop = asyncio.get_running_loop()
        for store in [*self._workers.values()] if worker == "all" else [self._workers.get(worker)]:
            if store is not None and store.hears:
                loop.call_soon(store._hear, message)  # noqa: SLF001 - another of its own kind

    def _hear(self, message: bytes) -> None:
        if self.direct is not None:
            try:
                self.direct(message)
            except Exception:  # noqa: BLE001 - one message that can't be read must not cost those after it
                _log.exception("A message from another worker could not be handled.")

    async def alive(self, worker: str) -> bool:
        """Whether a worker is open."""
        return worker in self._workers
