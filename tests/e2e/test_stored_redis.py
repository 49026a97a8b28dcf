"""Sessions that workers share in a real Redis: what every store of sessions must do, and what is a Redis's own."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Final

import pytest
from hypothesis import given, settings
from redis_server import Proxy, RedisServer, require_program
from session_cases import CASES, Case
from session_cases import KEEP as WHOLE
from session_fleet import RedisFleet, a_record
from session_histories import KEEP, Act, histories, walk
from session_lives import Lives

from callboard.errors import StoreError
from callboard.legacy.stored import Answer, Event, Record, Resumed
from callboard.legacy.stored_redis import RedisSessions
from callboard.stores.redis import RedisStore

HISTORIES: Final = int(os.environ.get("HISTORIES", "30"))
# Of the cases those that need no other time than the real one.
IN_A_CLUSTER: Final = {"news_are_events_once", "one_ends_it", "one_reader_at_a_time", "there_are_never_more_than_there_may_be"}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all tests."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis that writes nothing down."""
    require_program()
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def fleet(server: RedisServer, runner: asyncio.Runner) -> Iterator[RedisFleet]:
    """Three workers that keep few events."""
    fleet = runner.run(RedisFleet(server.url, KEEP).open())
    yield fleet
    runner.run(fleet.close())


@pytest.fixture(scope="module")
def whole_fleet(server: RedisServer, runner: asyncio.Runner) -> Iterator[RedisFleet]:
    """Three workers that keep as many events as servers do by default."""
    fleet = runner.run(RedisFleet(server.url, WHOLE).open())
    yield fleet
    runner.run(fleet.close())


@pytest.fixture
def on(runner: asyncio.Runner, whole_fleet: RedisFleet) -> Callable[[Case], None]:
    """Runs something on a fleet that knows no session."""

    async def start(work: Case) -> None:
        await whole_fleet.clear()
        await work(whole_fleet)

    return lambda work: runner.run(start(work))


def test_a_store_in_a_redis_is_the_model(fleet: RedisFleet, runner: asyncio.Runner) -> None:
    """Turns in order, no state lost and none of a ticket that was evicted, events without hole or double, one end."""
    numbers = count()

    @settings(max_examples=HISTORIES)
    @given(histories)
    def check(history: list[Act]) -> None:
        runner.run(walk(fleet, history, f"s{next(numbers)}"))

    check()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_in_a_redis(case: Case, on: Callable[[Case], None]) -> None:
    on(case)


@pytest.mark.parametrize("seed", range(4))
def test_workers_die_and_nothing_is_lost_in_a_redis(seed: int, on: Callable[[Case], None]) -> None:
    on(lambda fleet: Lives(fleet, seed, patience=0.1).run())


def test_the_scripts_work_in_a_cluster(runner: asyncio.Runner) -> None:
    """One node that has all slots refuses a script whose keys are not of one slot as well as many nodes do."""
    require_program()

    async def run(url: str) -> None:
        for case in CASES:
            if case.__name__ in IN_A_CLUSTER:
                fleet = await RedisFleet(url, WHOLE).open()
                try:
                    await case(fleet)
                finally:
                    await fleet.close()

    with RedisServer(cluster_enabled="yes") as node:
        if b"OK" not in node.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383"):
            pytest.skip("This Redis is older than 7.")
        for _ in range(1000):
            if b"cluster_state:ok" in node.cli("CLUSTER", "INFO"):
                break
        runner.run(run(f"redis+cluster://127.0.0.1:{node.port}"))


def redis_only(work: Callable[[RedisFleet], Awaitable[None]]) -> Case:
    """Something that needs to know that it is a Redis."""

    async def run(fleet: object) -> None:
        assert isinstance(fleet, RedisFleet)
        await work(fleet)

    return run


def test_nothing_stays_where_no_worker_does(on: Callable[[Case], None]) -> None:
    """All workers die: sessions go by themselves a minute after their time, and the next worker finds their places."""

    async def work(fleet: RedisFleet) -> None:
        one, two, _ = fleet.workers
        for number in range(5):
            sid = f"s{number}"
            await one.open(sid, a_record("ann"), b"state", ttl=60, total=5, per_owner=5)
            await one.enter(sid, f"{one.worker}:1")
            await one.append(sid, "c1", 1, [b"note"], worker=one.worker, last=False)
            await one.take_reader(sid, f"{one.worker}:2")
        await fleet.pass_time(121)
        assert not await fleet.stores[1].execute("KEYS", fleet.stores[1].key("session:*"))
        assert await two.count() == 5
        assert await two.due() == []
        assert await two.count() == 0
        await two.open("s0", a_record("ann"), None, ttl=60, total=5, per_owner=1)
        await two.end("s0")
        assert not await fleet.stores[1].execute("KEYS", fleet.stores[1].key("session*")), "not a key is left"

    on(redis_only(work))


def test_key_names_do_not_have_the_ids(on: Callable[[Case], None]) -> None:
    async def work(fleet: RedisFleet) -> None:
        await fleet.workers[0].open("very-secret", a_record("ann"), b"state", ttl=60, total=5, per_owner=5)
        keys = await fleet.stores[0].execute("KEYS", fleet.stores[0].key("session*"))
        assert len(keys) == 3
        assert not any(b"very-secret" in key or b"ann" in key for key in keys)

    on(redis_only(work))


def test_an_idle_session_costs_little(on: Callable[[Case], None]) -> None:
    """Less than 1.5 KB beside what its client said when it opened it, its share of the index included."""

    async def work(fleet: RedisFleet) -> None:
        one, store = fleet.workers[0], fleet.stores[0]
        opening = b"{%s}" % (b"x" * 1000)
        for number in range(100):
            sid = f"{number:043}"
            await one.open(
                sid, Record(f"user-{number}", "2025-11-25", opening, initialized=True), b"s" * 30, ttl=60, total=100, per_owner=1
            )
            await one.enter(sid, f"{one.worker}:1")
            await one.leave(sid, f"{one.worker}:1", b"s" * 30)
        keys = await store.execute("KEYS", store.key("session*"))
        sizes = [await store.execute("MEMORY", "USAGE", key, "SAMPLES", 0, key=key) for key in keys]
        assert sum(sizes) / 100 < 1000 + 1500

    on(redis_only(work))


def test_who_lost_the_answer_may_ask_again(server: RedisServer, runner: asyncio.Runner) -> None:
    """A partition between what was done and its answer: what was kept is kept once, and who asks again learns of it."""

    async def run(proxy: Proxy) -> None:
        store = RedisStore(proxy.url, timeout=0.5)
        store.name("partition")
        await store.open()
        one = RedisSessions(store, keep=WHOLE)
        await one.open("s", a_record(), b"0", ttl=60, total=10, per_owner=1)
        ticket = f"{one.worker}:1"
        await one.enter("s", ticket)
        proxy.stall(answers_alone=True)
        with pytest.raises(StoreError):
            await one.leave("s", ticket, b"1", Answer("c1", b"one"))
        proxy.drop()
        proxy.restore()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await one.leave("s", ticket, b"1", Answer("c1", b"one"))
                    break
                except StoreError:
                    await asyncio.sleep(0.05)
        assert await one.state("s") == b"1"
        assert await one.follow("s", "c1", 0, one.worker) == Resumed([Event("c1", 1, b"one", last=True)], 1, None, over=True)
        await one.end("s")
        await store.close()

    with Proxy(server.port) as proxy:
        runner.run(run(proxy))
