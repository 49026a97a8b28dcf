"""The stores that the contract tests run on: each kind makes a new one, opened on the running loop, and says how its time passes."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from redis_server import RedisServer, share_server

from callboard.stores.memory import MemoryStore
from callboard.stores.redis import RedisStore, Script

AnyStore = MemoryStore | RedisStore
_AGE = Script(
    """
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, math.max(0, left - tonumber(ARGV[2]))) end
end
return 0
"""
)


class Clock:
    """Time that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Kind:
    """One store, empty.

    Attributes:
        store: It.
        twin: The same data as another process sees it, or None where the store can't be shared.
        pass_time: Lets keys get older by so many seconds.
    """

    store: AnyStore
    twin: AnyStore

    async def pass_time(self, seconds: float) -> None:
        raise NotImplementedError


class _InMemory(Kind):
    def __init__(self) -> None:
        self.clock = Clock()
        store = MemoryStore(self.clock, shared=True)
        super().__init__(store, store.twin())

    async def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


class _InRedis(Kind):
    """Its keys are made to end earlier: what waits for them need not."""

    def __init__(self, server: RedisServer) -> None:
        self.prefix = f"test-{secrets.token_hex(4)}"
        super().__init__(RedisStore(server.url, prefix=self.prefix, timeout=10.0), RedisStore(server.url, prefix=self.prefix, timeout=10.0))

    async def pass_time(self, seconds: float) -> None:
        assert isinstance(self.store, RedisStore)
        await self.store.run(_AGE, (), (f"{self.prefix}:*:kv:*", round(seconds * 1000)))


@asynccontextmanager
async def _opened(kind: Kind) -> AsyncIterator[Kind]:
    for store in (kind.store, kind.twin):
        store.name("the server")
        await store.open()
    try:
        yield kind
    finally:
        for store in (kind.twin, kind.store):
            await store.close()


def in_memory() -> AbstractAsyncContextManager[Kind]:
    return _opened(_InMemory())


def in_redis() -> AbstractAsyncContextManager[Kind]:
    return _opened(_InRedis(share_server()))


STORES: dict[str, Callable[[], AbstractAsyncContextManager[Kind]]] = {"memory": in_memory, "redis": in_redis}
