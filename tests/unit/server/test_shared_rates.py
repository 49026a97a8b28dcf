"""Buckets in a store: what all processes count together is what one would count alone."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis_server import RedisServer, needs_redis, redis_server  # noqa: F401 - the fixture

from callboard.server.rates import Buckets
from callboard.server.shared_rates import SharedBuckets
from callboard.stores.redis import RedisStore

pytestmark = needs_redis
TICK = 1 / 1024  # seconds, which doubles and microseconds both keep well apart
WHO = ["ada", "bob", None, "@ada", "-"]


@dataclass
class Take:
    """Some calls.

    Attributes:
        after: Ticks since those before.
        who: Whose.
        calls: How many.
        worker: Which process counts them.
    """

    after: int
    who: str | None
    calls: int
    worker: int


takes = st.builds(Take, st.integers(0, 2000) | st.just(0), st.sampled_from(WHO), st.integers(1, 7), st.integers(0, 1))


@pytest.fixture
async def stores(redis_server: RedisServer) -> AsyncIterator[list[RedisStore]]:  # noqa: F811
    """What two processes have of one server."""
    made = [RedisStore(redis_server.url, prefix="rates") for _ in range(2)]
    for store in made:
        store.name("counts")
        await store.open()
    yield made
    for store in made:
        await store.close()


def make(stores: list[RedisStore], name: str, calls: int, seconds: float, **options: int) -> list[SharedBuckets]:
    """The buckets of one rate in each process."""
    return [SharedBuckets(store, name, calls, seconds, time.monotonic, **options) for store in stores]


names = iter(range(1_000_000))


def new_name() -> str:
    """Of a rate that no other test counts."""
    return f"{time.time_ns()} {next(names)}"


def test_the_same_history_comes_to_the_same(redis_server: RedisServer) -> None:  # noqa: F811
    """A property: shared by two processes they give the verdicts of `Buckets`, and the same waits."""
    with asyncio.Runner() as runner:
        made = [RedisStore(redis_server.url, prefix="history") for _ in range(2)]

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(history=st.lists(takes, min_size=1, max_size=25), calls=st.integers(1, 6), seconds=st.sampled_from([0.5, 1.0, 3.0, 7.5]))
        def check(history: list[Take], calls: int, seconds: float) -> None:
            runner.run(compare(made, history, calls, seconds))

        for store in made:
            runner.run(store.open())
        try:
            check()
        finally:
            for store in made:
                runner.run(store.close())


async def compare(made: list[RedisStore], history: list[Take], calls: int, seconds: float) -> None:
    """Let both count, at the same times."""
    alone, together = Buckets(calls, seconds), make(made, new_name(), calls, seconds)
    now = 1_796_000_000.0
    for take in history:
        now += take.after * TICK
        expected = alone.take(take.who, now, calls=take.calls)
        wait = await together[take.worker].take(take.who, calls=take.calls, now=now)
        assert (wait == 0) == (expected == 0), (take, wait, expected)
        assert wait == pytest.approx(expected, abs=1e-5)


async def test_processes_count_together_by_the_clock_of_the_store(stores: list[RedisStore]) -> None:
    one, other = make(stores, new_name(), 3, 300)
    assert [await buckets.take("ada") for buckets in (one, other, one)] == [0, 0, 0]
    waits = [await buckets.take("ada") for buckets in (other, one, other)]
    assert all(95 < wait <= 100 for wait in waits)
    assert all(later <= earlier for earlier, later in pairwise(waits))
    assert await one.take("bob") == 0


async def test_many_at_once_get_no_more_than_the_rate(stores: list[RedisStore]) -> None:
    both = make(stores, new_name(), 10, 600)
    waits = await asyncio.gather(*(both[number % 2].take("ada") for number in range(100)))
    assert waits.count(0) == 10


async def test_who_waits_as_long_as_was_said_gets_through(stores: list[RedisStore]) -> None:
    one, other = make(stores, new_name(), 1, 0.4)
    assert await one.take("ada") == 0
    for buckets in (one, other):
        wait = await buckets.take("ada")
        assert 0 < wait <= 0.4
        await asyncio.sleep(wait)
        assert await buckets.take("ada") == 0


async def test_a_flood_of_who_was_refused_does_not_reach_the_store(stores: list[RedisStore], redis_server: RedisServer) -> None:  # noqa: F811
    # SA27
    one, _ = make(stores, new_name(), 1, 600)
    assert await one.take("ada") == 0
    assert await one.take("ada") > 590
    before = count_scripts(redis_server)
    waits = [await one.take("ada") for _ in range(50)]
    assert all(590 < wait <= 600 for wait in waits)
    assert count_scripts(redis_server) - before <= 2, "only the sign of life of the stores"
    assert await one.take("bob") == 0, "nobody else is refused"


def count_scripts(server: RedisServer) -> int:
    """Scripts that a Redis has run."""
    said = server.cli("INFO", "commandstats").decode()
    lines = [line for line in said.splitlines() if line.startswith(("cmdstat_eval:", "cmdstat_evalsha:"))]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


async def test_one_who_asked_for_many_may_have_one(stores: list[RedisStore]) -> None:
    one, _ = make(stores, new_name(), 4, 400)
    assert await one.take("ada", calls=3) == 0
    assert await one.take("ada", calls=2) > 90
    assert await one.take("ada") == 0, "what was refused took nothing, and one was there"


async def test_a_round_that_was_counted_is_free_once(stores: list[RedisStore]) -> None:
    # SA27: a state that is sent again, to another process too, is a call
    one, other = make(stores, new_name(), 1, 600)
    assert await one.take("ada") == 0
    assert await other.take("ada", mark="chain.1") == 0
    assert await one.take("ada", mark="chain.1") > 0
    assert await other.take("ada", mark="chain.2") == 0
    assert await one.take("ada", mark="chain.3") == 0, "though this process knows that she has to wait with others"


async def test_made_up_callers_get_no_new_buckets(stores: list[RedisStore], redis_server: RedisServer) -> None:  # noqa: F811
    """Whoever comes when there is no room shares with their network; who was there keeps their count."""
    # SA27
    name = new_name()
    one, other = make(stores, name, 1, 600, room=3)
    assert await one.take("ada", network="home") == 0
    let = [await other.take(f"made up {number}", network="home") == 0 for number in range(200)]
    assert sum(let) == 3, "two have room, the others share one"
    assert await other.take("ada", network="home") > 0
    keys = redis_server.cli("--scan", "--pattern", "rates:counts:{rate:*").split()
    assert all(int(redis_server.cli("PTTL", key.decode())) != -1 for key in keys), "nothing stays for ever"


async def test_another_rate_begins_anew(stores: list[RedisStore]) -> None:
    name = new_name()
    (slow, _), (fast, _) = make(stores, name, 1, 600), make(stores, name, 2, 600)
    assert await slow.take("ada") == 0
    assert await fast.take("ada") == 0


async def test_what_is_kept_names_nobody(stores: list[RedisStore], redis_server: RedisServer) -> None:  # noqa: F811
    one, _ = make(stores, new_name(), 1, 600)
    await one.take("ada.lovelace@example.com")
    for key in redis_server.cli("--scan", "--pattern", "rates:counts:*").split():
        assert b"ada.lovelace" not in key + redis_server.cli("ZRANGE", key.decode(), "0", "-1")


async def test_without_the_store_each_process_counts_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        store = RedisStore(server.url, timeout=0.3)
        store.name("alone")
        await store.open()
        (one,) = make([store], new_name(), 2, 600)
        assert await one.take("ada") == 0
        server.kill()
        assert await one.take("ada") == 0
        assert await one.take("ada") > 0, "it knows what was counted before"
        assert await one.take("bob") == 0
        assert caplog.text.count("each process counts the calls of a rate for itself") == 1
        server.start()
        async with asyncio.timeout(20):
            while not count_scripts(server):
                await asyncio.sleep(0.05)
                await one.take("carol")
        assert "The shared store answers again." in caplog.text
        await store.close()


async def test_nobody_waits_for_a_store_that_has_just_kept_somebody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer() as server:
        store = RedisStore(server.url, timeout=0.3)
        store.name("silent")
        await store.open()
        (one,) = make([store], new_name(), 100, 600)
        assert await one.take("ada") == 0
        server.pause()
        first = [asyncio.create_task(one.take(f"who {number}")) for number in range(5)]
        assert await asyncio.gather(*first) == [0] * 5
        asked = []
        run = store.run

        async def count(*args: Any) -> Any:
            asked.append(args)
            return await run(*args)

        monkeypatch.setattr(store, "run", count)
        assert [await one.take("ada") for _ in range(50)] == [0] * 50
        assert len(asked) < 10, "one in a second tries"
        server.resume()
        await store.close()
