"""Workers that write the same keys while their Redis is stopped, restarted and cut off: what was acknowledged stands, and nothing stands twice.

Every value is unique and names the version that it was written over, so that what is left tells the whole history. (HOSTILE_INPUTS, Jepsen)
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, ExitStack

import pytest
from redis_server import Proxy, RedisServer, needs_redis, require_program

from callboard.errors import StoreError
from callboard.stores.redis import RedisStore

pytestmark = needs_redis
KEYS = ("a", "b", "c")
WORKERS = 4
SECONDS = 4.0


class History:
    """What the workers know: writes by key, as (version written over, own value) -> new version, or None where no answer came."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, dict[int, tuple[int, bytes]]] = {key: {} for key in KEYS}
        self.unknown: dict[str, set[bytes]] = {key: set() for key in KEYS}
        self.tokens: Counter[str] = Counter()
        self.doubtful: set[str] = set()

    async def write(self, store: RedisStore, key: str, value: bytes) -> None:
        """Put a value over whatever is there now."""
        entry = await store.kv.get(key)
        over = 0 if entry is None else entry.version
        try:
            version = await store.kv.put(key, b"%d:%b" % (over, value), expect=over)
        except StoreError:
            self.unknown[key].add(b"%d:%b" % (over, value))
            raise
        if version is not None:
            assert over not in self.acknowledged[key], "two writers were told that they wrote over the same version"
            self.acknowledged[key][over] = (version, value)

    async def spend(self, store: RedisStore, token: str) -> None:
        """Use what may be used once."""
        try:
            done = await store.kv.put(token, b"", expect=0, ttl=1000)
        except StoreError:
            self.doubtful.add(token)
            raise
        self.tokens[token] += done is not None

    async def check(self, store: RedisStore) -> None:
        """Every acknowledged write is the last one, or somebody wrote over it and nobody else."""
        for key in KEYS:
            entry = await store.kv.get(key)
            assert entry is not None
            over = int(entry.value.partition(b":")[0])
            chain = self.acknowledged[key]
            for version, value in chain.values():
                doubtful = any(each.startswith(b"%d:" % version) for each in self.unknown[key])
                assert version == entry.version or version in chain or doubtful, f"{value!r} was acknowledged, and is lost"
            last = chain.get(over)
            assert last == (entry.version, entry.value.partition(b":")[2]) or entry.value in self.unknown[key]
        assert self.tokens, "no token was used"
        for token, times in self.tokens.items():
            assert times <= 1, "a token was used twice"
            assert times == 1 or token in self.doubtful, "nobody was told that the token is theirs, and it is gone"


async def work(history: History, store: RedisStore, chance: random.Random, name: int, end: float) -> int:
    """Write and spend until the end; how often that failed."""
    failed = number = 0
    while asyncio.get_running_loop().time() < end:
        number += 1
        try:
            await history.write(store, chance.choice(KEYS), b"%d.%d" % (name, number))
            await history.spend(store, f"token-{number // 2}")
        except StoreError:
            failed += 1
            await asyncio.sleep(0.01)
    return failed


async def disturb(server: RedisServer, proxies: list[Proxy], chance: random.Random, end: float) -> None:
    """One trouble after another."""
    while asyncio.get_running_loop().time() < end - 1.5:
        await asyncio.sleep(chance.uniform(0.05, 0.3))
        proxy = chance.choice(proxies)
        kind = chance.choice(("drop", "drop", "stall", "answers", "freeze", "stop", "kill"))
        if kind in {"stall", "answers"}:
            await asyncio.to_thread(proxy.stall, answers_alone=kind == "answers")
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            if chance.random() < 0.5:
                await asyncio.to_thread(proxy.drop)
            await asyncio.to_thread(proxy.restore)
        elif kind == "stop":
            server.pause()
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            server.resume()
        elif kind == "kill":
            await asyncio.to_thread(lambda: server.restart(kill=True))
        else:
            await asyncio.to_thread(proxy.drop if kind == "drop" else proxy.freeze)


@pytest.mark.parametrize("seed", [1])
async def test_what_was_acknowledged_stands_and_nothing_stands_twice(seed: int) -> None:
    require_program()
    chance = random.Random(seed)
    with ExitStack() as machines:
        server = machines.enter_context(RedisServer(appendonly="yes", appendfsync="always"))
        proxies = [machines.enter_context(Proxy(server.port)) for _ in range(WORKERS)]
        stores = [RedisStore(proxy.url, timeout=0.4) for proxy in proxies]
        checker = RedisStore(server.url)
        async with AsyncExitStack() as opened:
            for store in (*stores, checker):
                await store.open()
                opened.push_async_callback(store.close)
            history, end = History(), asyncio.get_running_loop().time() + SECONDS
            jobs = [work(history, store, random.Random(seed + name), name, end) for name, store in enumerate(stores)]
            *failed, _ = await asyncio.gather(*jobs, disturb(server, proxies, chance, end))
            assert sum(each for each in failed if each is not None) > 0, "nothing was disturbed"
            await history.check(checker)
            assert sum(map(len, history.acknowledged.values())) > 100
