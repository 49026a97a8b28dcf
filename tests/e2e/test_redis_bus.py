"""The Bus in a Redis where it is hard: floods, large messages, slow and late readers, a Redis that forgets, a name that somebody else took."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from redis_server import Proxy, RedisServer, needs_redis, share_server

from callboard.errors import StoreError
from callboard.stores import redis_bus
from callboard.stores.redis import RedisStore
from callboard.stores.topics import LOST

pytestmark = needs_redis
LIMIT = 30.0


@pytest.fixture
def redis_server() -> RedisServer:
    """The one that all tests share."""
    return share_server()


@asynccontextmanager
async def opened(url: str, prefix: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, timeout=2.0, prefix=prefix)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - it is true in another process
            await asyncio.sleep(0.01)


async def test_threads_that_publish_at_once_are_heard_by_all_in_one_order(redis_server: RedisServer) -> None:
    async with opened(redis_server.url, "bus-threads") as store, opened(redis_server.url, "bus-threads") as other:
        here: list[bytes] = []
        there: list[bytes] = []
        store.bus.subscribe("t", here.append)
        other.bus.subscribe("t", there.append)

        def publish(own: int) -> None:
            for number in range(500):
                store.bus.publish("t", b"%d:%d" % (own, number))

        threads = [threading.Thread(target=publish, args=(own,)) for own in range(4)]
        for thread in threads:
            thread.start()
        await until(lambda: len(here) >= 2000 and len(there) >= 2000)
        for thread in threads:
            thread.join(LIMIT)
        assert here == there
        for own in range(4):
            assert [each for each in here if each.startswith(b"%d:" % own)] == [b"%d:%d" % (own, number) for number in range(500)]


async def test_the_stream_is_bounded_in_messages_and_in_bytes(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_bus, "MAX_ENTRIES", 500)
    monkeypatch.setattr(redis_bus, "MAX_BYTES", 1 << 20)
    async with opened(redis_server.url, "bus-bounds") as store:
        heard: list[bytes] = []
        ends: list[bytes] = []
        for topic, ear in (("small", heard), ("large", heard), ("end", ends)):
            store.bus.subscribe(topic, ear.append)
        for _ in range(3000):
            store.bus.publish("small", b"x")
        store.bus.publish("end", b".")
        await until(lambda: len(ends) == 1)
        assert 500 <= await store.execute("XLEN", store.key("{bus}")) <= 700
        for _ in range(100):
            store.bus.publish("large", b"x" * 100_000)
        store.bus.publish("end", b".")
        await until(lambda: len(ends) == 2)
        assert heard
        held = await store.execute("MEMORY", "USAGE", store.key("{bus}"), "SAMPLES", "0", key=store.key("{bus}"))
        assert held < 4 << 20


async def test_who_was_away_for_longer_than_the_stream_lasts_is_told(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_bus, "MAX_ENTRIES", 200)
    with Proxy(redis_server.port) as proxy:
        async with opened(proxy.url, "bus-gap") as store, opened(redis_server.url, "bus-gap") as other:
            heard: list[bytes] = []
            there: list[bytes] = []
            store.bus.subscribe("t", heard.append)
            other.bus.subscribe("t", there.append)
            await asyncio.to_thread(proxy.cut)
            for number in range(2000):
                other.bus.publish("t", b"%d" % number)
            await until(lambda: there[-1:] == [b"1999"])
            epoch = store.epoch
            lost: list[bytes] = []
            store.bus.subscribe(LOST, lost.append)
            await asyncio.to_thread(proxy.restore)
            await until(lambda: heard[-1:] == [b"1999"])
            assert len(heard) == len(set(heard)) < 2000
            await until(lambda: store.epoch >= epoch + 2)
            assert lost
            assert "Messages of the Bus were lost" in caplog.text


async def test_a_redis_that_has_forgotten_the_stream_is_listened_to_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """A Redis without an append-only file, killed: what was in it is gone; workers go on."""
    with RedisServer() as server:
        async with opened(server.url, "bus-lost") as store, opened(server.url, "bus-lost") as other:
            heard: list[bytes] = []
            there: list[bytes] = []
            store.bus.subscribe("t", heard.append)
            other.bus.subscribe("t", there.append)
            lost: list[bytes] = []
            store.bus.subscribe(LOST, lost.append)
            store.bus.publish("t", b"1")
            await until(lambda: heard == there == [b"1"])
            await asyncio.to_thread(lambda: server.restart(kill=True))
            for number in (b"2", b"3"):
                other.bus.publish("t", number)
            await until(lambda: heard == there == [b"1", b"2", b"3"])
            assert lost, "that there were messages which nobody can know of is told"
            assert "is back after" in caplog.text


async def test_a_full_outbox_drops_what_is_new_and_says_so(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_bus, "MAX_OUTBOX", (10, 1000))
    with Proxy(redis_server.port) as proxy:
        async with opened(proxy.url, "bus-full") as store:
            heard: list[bytes] = []
            store.bus.subscribe("t", heard.append)
            store.bus.publish("t", b"before")
            await until(lambda: heard == [b"before"])
            await asyncio.to_thread(proxy.cut)
            with caplog.at_level(logging.ERROR):
                for number in range(25):
                    store.bus.publish("t", b"%d" % number)
                store.bus.publish("t", b"x" * 2000)
            await asyncio.to_thread(proxy.restore)
            await until(lambda: len(heard) >= 11)
            assert heard == [b"before", *(b"%d" % number for number in range(10))]
            store.bus.publish("t", b"after")
            await until(lambda: heard[-1] == b"after")
        said = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
        assert said == [
            "Messages of the Bus are dropped: the store does not take them, and 10 wait already.",
            "16 messages of the Bus were dropped.",
        ]


async def test_a_slow_subscriber_costs_others_time_but_no_message(redis_server: RedisServer) -> None:
    """One that blocks the loop of its process: it hears all of it, later; other processes don't notice."""
    async with opened(redis_server.url, "bus-slow") as store, opened(redis_server.url, "bus-slow") as other:
        heard: list[int] = []
        messages: list[bytes] = []
        pause = threading.Event()

        def hear(message: bytes) -> None:
            heard.append(int(message))
            if len(heard) % 100 == 0:
                pause.wait(0.02)

        other.bus.subscribe("t", hear)
        other.direct = messages.append
        for number in range(3000):
            store.bus.publish("t", b"%d" % number)
            if number % 100 == 0:
                store.tell(other.worker, b"%d" % number)
        await until(lambda: len(heard) == 3000 and len(messages) == 30)
        assert heard == list(range(3000))
        assert messages == [b"%d" % number for number in range(0, 3000, 100)]


async def test_what_somebody_else_writes_into_the_stream_is_passed_over(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_server.url, "bus-strange") as store:
        heard: list[bytes] = []
        store.bus.subscribe("t", heard.append)
        store.bus.subscribe("\ud800", heard.append)
        start = store.bus.position
        await store.execute("XADD", store.key("{bus}"), "*", "what", "this")
        await store.execute("XADD", store.key("{bus}"), "*", "t", b"\xff", "m", "", "n", "x")
        store.bus.publish("\ud800", b"1")
        store.bus.publish("t", b"2")
        await until(lambda: heard == [b"1", b"2"])
        assert [topic for _, topic, _ in await store.bus.since(start)] == ["\ud800", "t"]
        assert "Somebody else has written into" in caplog.text


async def test_a_key_that_somebody_else_took_is_told_and_the_bus_goes_on_without_it(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_server.url, "bus-taken") as store:
        heard: list[bytes] = []
        store.bus.subscribe("t", heard.append)
        await store.execute("DEL", store.key("{bus}"))
        await store.execute("SET", store.key("{bus}"), b"mine")
        store.bus.publish("t", b"1")
        await asyncio.sleep(0.1)
        assert await store.kv.put("k", b"v") is not None, "the rest of the store works"
        await store.execute("DEL", store.key("{bus}"))
        await until(lambda: heard == [b"1"])
        assert "The Bus can't publish, and tries again" in caplog.text


async def test_whoever_watches_is_told_how_long_everything_takes(redis_server: RedisServer) -> None:
    seen: list[tuple[str, bool]] = []

    def observe(operation: str, seconds: float, failed: bool) -> None:
        assert 0 <= seconds < LIMIT
        seen.append((operation, failed))

    async with opened(redis_server.url, "bus-watched") as store:
        store.observe = observe
        await store.kv.get("k")
        await store.log.append("s", b"1", keep=1)
        assert {("execute", False), ("run", False)} <= set(seen)
        await store.execute("SET", store.key("kv", "text"), b"x")
        with pytest.raises(StoreError):
            await store.execute("INCR", store.key("kv", "text"))
        assert ("execute", True) in seen
        store.bus.publish("t", b"1")
        await until(lambda: ("bus", False) in seen)
        store.observe = None
        count = len(seen)
        await store.kv.get("k")
        assert len(seen) == count
