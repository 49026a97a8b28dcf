"""What happens to a store when its Redis is restarted, killed, stopped, or cut off: nothing is done twice, nobody waits for ever, all is well again."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis_server import Proxy, RedisServer, needs_redis, require_program

from callboard.errors import StoreError
from callboard.stores.redis import RedisStore, Script

pytestmark = needs_redis
LIMIT = 20.0
COUNT = Script("return redis.call('INCR', KEYS[1])")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that these tests may end."""
    require_program()
    with RedisServer(appendonly="yes", appendfsync="always") as made:
        yield made


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


@asynccontextmanager
async def opened(url: str, name: str, patience: float = 1.0) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, timeout=patience)
    store.name(name)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - it is true in another process
            await asyncio.sleep(0.01)


async def recover(store: RedisStore) -> None:
    """Wait until a store answers and hears again."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await store.check()
            except StoreError:
                await asyncio.sleep(0.02)
            else:
                return


async def fails(work: Awaitable[object]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await work
    return caught.value


async def break_and_mend(kind: str, server: RedisServer, proxy: Proxy, within: Callable[[], Awaitable[None]]) -> None:
    """Have one kind of trouble, during which `within` happens."""
    trouble: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "restart": (server.stop, server.start),
        "kill": (server.kill, server.start),
        "stop": (server.pause, server.resume),
        "stall": (proxy.stall, proxy.restore),
        "cut": (proxy.cut, proxy.restore),
    }
    begin, end = trouble[kind]
    await asyncio.to_thread(begin)
    try:
        await within()
    finally:
        await asyncio.to_thread(end)


@pytest.mark.parametrize("kind", ["restart", "kill", "stop", "stall", "cut"])
async def test_trouble_is_told_in_time_and_ends_by_itself(
    kind: str, server: RedisServer, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 7, must show: Redis restarted with its AOF, and a partition of 5 s: no wrong answer, recovery without an operator."""
    async with opened(proxy.url, kind) as store, opened(server.url, kind) as other:
        heard: list[bytes] = []
        store.bus.subscribe("t", heard.append)
        version = await store.kv.put("k", b"before", ttl=1000)
        assert version is not None
        store.bus.publish("t", b"0")
        await until(lambda: heard == [b"0"])
        epoch = store.epoch

        async def meanwhile() -> None:
            error = await fails(store.kv.get("k"))
            assert f"127.0.0.1:{proxy.port}" in str(error)
            store.bus.publish("t", b"1")
            await asyncio.sleep(1.2)
            assert not store.hears or kind == "stop"
            began = asyncio.get_running_loop().time()
            results = await asyncio.gather(*(store.run(COUNT, (store.key("never"),)) for _ in range(50)), return_exceptions=True)
            assert all(isinstance(result, StoreError) for result in results)
            assert asyncio.get_running_loop().time() - began < LIMIT / 2

        with caplog.at_level(logging.INFO, "callboard.stores"):
            await break_and_mend(kind, server, proxy, meanwhile)
            await recover(store)
            await recover(other)
            other.bus.publish("t", b"2")
            await until(lambda: sorted(heard) == [b"0", b"1", b"2"])
        assert await store.kv.get("k") == (b"before", version)
        assert store.epoch > epoch
        assert await store.alive(other.worker)
        lines = [record.getMessage() for record in caplog.records if f":{proxy.port}/" in record.getMessage()]
        assert [line.count(" is gone: ") for line in lines] == [1, 0], lines
        assert " is back after " in lines[1]


async def test_what_may_have_been_done_is_never_sent_again(server: RedisServer, proxy: Proxy) -> None:
    """Whoever gets an answer got it from the one time that it was done; what had no answer was done once, or not at all."""
    async with opened(proxy.url, "once", patience=2.0) as store:
        answers: list[int] = []
        unknown = 0
        for number in range(12):
            if number % 3:
                await asyncio.to_thread(proxy.stall, answers_alone=number % 3 == 1)
            work = [asyncio.ensure_future(store.run(COUNT, (store.key("count"),))) for _ in range(20)]
            await asyncio.sleep(0.05)
            await asyncio.to_thread(proxy.drop)
            await asyncio.to_thread(proxy.restore)
            for result in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(result, int):
                    answers.append(result)
                else:
                    assert "whether it was done is not known" in str(result)
                    unknown += 1
            await recover(store)
        done = int(await store.execute("GET", store.key("count")))
        assert len(set(answers)) == len(answers)
        assert len(answers) < done < len(answers) + unknown, "of those without an answer some were done, and some not"


async def test_no_message_of_the_bus_is_lost_or_doubled_however_often_the_way_breaks(server: RedisServer, proxy: Proxy) -> None:
    async with opened(proxy.url, "bus") as store, opened(server.url, "bus") as other:
        here: list[int] = []
        there: list[int] = []
        store.bus.subscribe("t", lambda message: here.append(int(message)))
        other.bus.subscribe("t", lambda message: there.append(int(message)))
        count = 0
        for turn in range(9):
            for part in range(200):
                if part == 100 and turn:
                    await until(lambda: len(there) >= count)  # noqa: B023 - it is waited for here
                    await recover(store)
                    await asyncio.to_thread(proxy.stall, answers_alone=turn % 2 == 1)
                store.bus.publish("t", b"%d" % count)
                count += 1
            if turn:
                await asyncio.sleep(0.05)  # the batch is on its way now: done and not answered, or not done
                await asyncio.to_thread(proxy.drop)
                await asyncio.to_thread(proxy.restore)
        await until(lambda: len(here) >= count and len(there) >= count)
        await asyncio.sleep(0.1)
        assert here == there == list(range(count))


async def test_a_connection_that_is_dead_without_a_word_is_replaced(proxy: Proxy) -> None:
    """What a firewall does that forgets connections: no end ever comes."""
    async with opened(proxy.url, "dead", patience=0.5) as store:
        before, epoch = proxy.accepted, store.epoch
        await asyncio.to_thread(proxy.freeze)
        assert "did not answer within 0.5 s" in str(await fails(store.kv.get("k")))
        await recover(store)
        await until(lambda: proxy.accepted >= before + 3 and store.epoch > epoch)
        heard: list[bytes] = []
        store.bus.subscribe("t", heard.append)
        store.bus.publish("t", b"1")
        await until(lambda: heard == [b"1"])


async def test_scripts_that_the_redis_has_forgotten_are_given_to_it_again(server: RedisServer) -> None:
    async with opened(server.url, "scripts") as store:
        assert await store.run(COUNT, (store.key("n"),)) == 1
        await asyncio.to_thread(server.cli, "SCRIPT", "FLUSH")
        results = await asyncio.gather(*(store.run(COUNT, (store.key("n"),)) for _ in range(10)))
        assert sorted(results) == list(range(2, 12))


async def test_a_redis_without_room_refuses_by_name_and_is_used_again_when_there_is_some(server: RedisServer) -> None:
    async with opened(server.url, "full") as store:
        await asyncio.to_thread(server.cli, "CONFIG", "SET", "maxmemory", "1")
        try:
            assert "refuses a command" in str(await fails(store.kv.put("k", b"v")))
            assert "maxmemory" in str(await fails(store.log.append("s", b"v", keep=1)))
            assert await store.kv.get("k") is None
        finally:
            await asyncio.to_thread(server.cli, "CONFIG", "SET", "maxmemory", "0")
        assert await store.kv.put("k", b"v") is not None


async def test_a_redis_that_throws_sessions_away_is_warned_of(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in (("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")):
        await asyncio.to_thread(server.cli, "CONFIG", "SET", name, value)
    try:
        async with opened(server.url, "policy"):
            assert "Set it to noeviction" in caplog.text
    finally:
        for name, value in (("maxmemory", "0"), ("maxmemory-policy", "noeviction")):
            await asyncio.to_thread(server.cli, "CONFIG", "SET", name, value)


async def test_a_redis_that_is_not_there_is_told_at_once_when_it_is_opened() -> None:
    with Proxy(1) as nowhere:
        store = RedisStore(f"redis://user:geheim@127.0.0.1:{nowhere.port}/3", timeout=0.3)
        error = await fails(store.open())
        assert f"redis://127.0.0.1:{nowhere.port}/3" in str(error)
        assert "geheim" not in str(error) + repr(store)
        assert "is not open" in str(await fails(store.execute("PING")))
        await store.close()


def footprint() -> dict[str, int]:
    """What of this process a store could leave behind; the threads of `to_thread` are the loop's."""
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return {"descriptors": len(list(Path("/proc/self/fd").iterdir())), "threads": len(threads), "tasks": len(asyncio.all_tasks())}


async def test_closing_leaves_nothing_behind(server: RedisServer, proxy: Proxy) -> None:
    await asyncio.sleep(0)
    async with opened(server.url, "warm"):
        pass
    before = footprint()
    for _ in range(3):
        async with opened(server.url, "close") as store:
            store.bus.publish("t", b"1")
            store.tell("all", b"1")
            await store.kv.put("k", b"v")
        await asyncio.sleep(0)
    async with opened(proxy.url, "close") as store:  # and while it can't be reached
        await asyncio.to_thread(proxy.stall)
        waiting = asyncio.ensure_future(store.kv.get("k"))
        await asyncio.sleep(0.01)
    await fails(waiting)
    await asyncio.to_thread(proxy.restore)
    await asyncio.to_thread(proxy.drop)
    await until(lambda: all(count <= before[what] for what, count in footprint().items()))


async def test_nobody_waits_for_a_store_that_is_closed_meanwhile(server: RedisServer, proxy: Proxy) -> None:
    async with opened(proxy.url, "closing") as store:
        await asyncio.to_thread(proxy.stall)
        closing = asyncio.ensure_future(store.close())
        work = []
        async with asyncio.timeout(LIMIT):
            while not closing.done():
                work.append(asyncio.ensure_future(store.kv.get("k")))
                await asyncio.sleep(0.05)
            await asyncio.sleep(0)
            work.append(asyncio.ensure_future(store.kv.get("k")))
            results = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(result, StoreError) for result in results)
        await asyncio.to_thread(proxy.restore)


def test_what_is_published_before_it_closes_is_heard(server: RedisServer) -> None:
    """A process that opens its store, says something and ends: on an event loop of its own, and another one after that."""

    async def say(message: bytes) -> None:
        await store.open()
        store.bus.publish("t", message)
        await store.close()

    async def listen() -> list[tuple[str, str, bytes]]:
        async with opened(server.url, "brief") as other:
            return await other.bus.since("0-0")

    store = RedisStore(server.url)
    store.name("brief")
    for message in (b"1", b"2"):
        asyncio.run(say(message))
    assert [message for _, _, message in asyncio.run(listen())] == [b"1", b"2"]


def test_a_loop_that_ended_with_the_store_open_does_not_keep_the_next_one_from_it(server: RedisServer) -> None:
    store = RedisStore(server.url)
    store.name("loops")
    with asyncio.Runner() as runner:
        runner.run(store.open())
        assert runner.run(store.kv.put("k", b"1")) is not None
        runner.run(store.close())

    async def read() -> object:
        await store.open()
        found = await store.kv.get("k")
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, store.open())
        await store.close()
        return found

    assert asyncio.run(read()) is not None


async def test_a_stopped_worker_passes_for_dead_after_its_time(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(server.url, "beats") as store:
        store.patience = 0.0
        key = store.key("worker", "gone")
        await store.execute("SET", key, "1", "PX", 60)
        assert await store.alive("gone")
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 0.1)
        assert not await store.alive("gone")
        left = await store.execute("PTTL", store.key("worker", store.worker))
        assert 0 < left <= 5000
