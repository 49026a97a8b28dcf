"""Several workers on one `SessionStore`, in memory or in a Redis, with a clock that only the test moves."""

import asyncio
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import Any, Protocol

from callboard.legacy.stored import Message, Record, Relayed, SessionStore
from callboard.legacy.stored_memory import MemorySessions, MemorySpace
from callboard.legacy.stored_redis import RedisSessions
from callboard.stores.redis import RedisStore

__all__ = ["Fleet", "MemoryFleet", "RedisFleet", "a_record"]


def a_record(owner: str | None = None, **more: Any) -> Record:
    """A record as the tests have it."""
    return Record(owner, "2025-11-25", b'{"protocolVersion":"2025-11-25"}', **more)


class Fleet(Protocol):
    """Workers that share sessions.

    Attributes:
        workers: Their stores.
        heard: What each of them has been told so far.
    """

    workers: list[SessionStore]
    heard: dict[str, list[Message]]

    async def settle(self) -> None:
        """Wait until all has been heard that has been told."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def kill(self, worker: SessionStore) -> None:
        """Let a worker die: what it has begun stays as it is."""
        ...

    async def clear(self) -> None:
        """Forget all sessions, and what has been heard: whatever a test before has left."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class MemoryFleet:
    """`Fleet` in memory.

    Args:
        keep: Events that a session keeps.
        many: How many workers.
    """

    def __init__(self, keep: int, many: int = 3) -> None:
        self.now = 1000.0
        self._keep = keep
        self.space = MemorySpace(lambda: self.now)
        self.workers: list[SessionStore] = [MemorySessions(self.space, keep=keep) for _ in range(many)]
        self.heard: dict[str, list[Message]] = _listen(self.workers)

    async def settle(self) -> None:
        """See `Fleet`."""
        await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """See `Fleet`."""
        self.now += seconds

    async def kill(self, worker: SessionStore) -> None:
        """See `Fleet`."""
        self.space.part(worker.worker)

    async def clear(self) -> None:
        """See `Fleet`: a new one."""
        MemoryFleet.__init__(self, self._keep, len(self.workers))

    async def close(self) -> None:
        """See `Fleet`."""


class RedisFleet:
    """`Fleet` in a Redis, under a name of its own.

    Args:
        url: The Redis.
        keep: Events that a session keeps.
        many: How many workers.
    """

    def __init__(self, url: str, keep: int, many: int = 3) -> None:
        name = token_hex(4)
        self.stores = [RedisStore(url, timeout=30) for _ in range(many)]  # a machine that is busy is no outage
        for store in self.stores:
            store.name(name)
        self.workers: list[SessionStore] = []
        self.heard: dict[str, list[Message]] = {}
        self._keep = keep
        self._told = 0

    async def open(self) -> "RedisFleet":
        """Begin."""
        for store in self.stores:
            await store.open()
        self.workers = [RedisSessions(store, keep=self._keep) for store in self.stores]
        self.heard = _listen(self.workers)
        return self

    async def settle(self) -> None:
        """See `Fleet`: what comes last has come after everything else."""
        self._told += 1
        last = Relayed("", "settle", b"%d" % self._told)
        for worker in self.workers:
            worker.tell(worker.worker, last)
        async with asyncio.timeout(10):
            for worker in self.workers:
                while last not in self.heard[worker.worker]:  # noqa: ASYNC110 - tests read what was heard as it is
                    await asyncio.sleep(0.001)
                self.heard[worker.worker].remove(last)

    async def pass_time(self, seconds: float) -> None:
        """See `Fleet`: everything that is there comes so much closer to its end."""
        store, milliseconds = self.stores[0], round(seconds * 1000)
        for key in await store.execute("KEYS", store.key("session", "*")):
            left = await store.execute("PTTL", key)
            await store.execute("PEXPIRE", key, left - milliseconds)
        index = store.key("sessions", "{index}", "due")
        for member in await store.execute("ZRANGE", index, 0, -1):
            await store.execute("ZINCRBY", index, -milliseconds, member)

    async def kill(self, worker: SessionStore) -> None:
        """See `Fleet`."""
        at = self.workers.index(worker)
        await self.stores[at].close()

    async def clear(self) -> None:
        """See `Fleet`."""
        self.heard = _listen(self.workers)
        await self.settle()
        for heard in self.heard.values():
            heard.clear()
        keys = await self.stores[0].execute("KEYS", self.stores[0].key("session*"))
        if keys:
            await self.stores[0].execute("DEL", *keys)

    async def close(self) -> None:
        """See `Fleet`."""
        for store in self.stores:
            await store.close()


def _listen(workers: list[SessionStore]) -> dict[str, list[Message]]:
    heard: dict[str, list[Message]] = {worker.worker: [] for worker in workers}
    for worker in workers:
        deliver: Callable[[Message], None] = partial(_note, heard[worker.worker])
        worker.hear(deliver)
    return heard


def _note(heard: list[Message], message: Message) -> None:
    heard.append(message)
