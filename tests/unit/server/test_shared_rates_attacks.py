"""Rates in a store whose clock is set, callers with odd names, and costs beyond measure."""

import asyncio
import math
import time

import pytest
from redis_server import needs_redis, redis_server  # noqa: F401 - the fixture
from unit.server.test_shared_rates import make, new_name, stores  # noqa: F401 - the fixture

from callboard.stores.redis import RedisStore

DAY = 86_400.0


@needs_redis
async def test_a_clock_that_is_set_back_locks_nobody_out(stores: list[RedisStore]) -> None:  # noqa: F811
    buckets = make(stores, new_name(), 3, 60.0)[0]
    now = time.time()
    for _ in range(3):
        assert await buckets.take("ann", now=now) == 0
    assert 0 < await buckets.take("ann", now=now - DAY) <= 20.001
    assert await buckets.take("ann", now=now - DAY + 61) == 0, "what it says holds by the new clock, too"
    assert await buckets.take("bob", now=now + 365 * DAY) == 0
    assert await buckets.take("bob", now=now) <= 20.001


@needs_redis
@pytest.mark.parametrize("who", ["", "-", "+", "a\x00b", "\r\n", "{x}", "\ud800", "x" * 100_000, "203.0.113.7", "+203.0.113.7"])
async def test_odd_names_have_buckets_of_their_own(stores: list[RedisStore], who: str) -> None:  # noqa: F811
    buckets = make(stores, new_name(), 1, 60.0)[0]
    assert await buckets.take(who) == 0
    assert await buckets.take(who) > 0
    for other in (None, who + " ", f"+{who}", "@" + who):
        assert await buckets.take(other) == 0, "nobody else pays for it"


@needs_redis
@pytest.mark.parametrize("calls", [10**9, 2**63, 10**300])
async def test_a_cost_beyond_measure_is_a_full_bucket(stores: list[RedisStore], calls: int) -> None:  # noqa: F811
    buckets = make(stores, new_name(), 5, 1.0)[0]
    assert await buckets.take("ann", calls=calls) == 0
    wait = await buckets.take("ann", calls=calls)
    assert math.isfinite(wait)
    assert 0 < wait <= 1.001


@needs_redis
async def test_who_leaves_while_the_store_is_asked_harms_nobody(stores: list[RedisStore]) -> None:  # noqa: F811
    buckets = make(stores, new_name(), 100, 60.0)[0]
    calls = [asyncio.ensure_future(buckets.take(f"c{number}", now=time.time() + number)) for number in range(200)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended[::2]] == [asyncio.CancelledError] * 100
    assert ended[1::2] == [0] * 100
