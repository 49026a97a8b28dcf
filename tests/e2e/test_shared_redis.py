"""Sessions that several workers serve: the same scenarios over a real Redis."""

import re
from collections.abc import Callable

import pytest
from redis_server import RedisServer, redis_server
from shared_sessions import SCENARIOS, Fleet, Scenario, at, principal_of

from callboard.stores.redis import RedisStore

__all__ = ["redis_server"]


def names(run: Callable[..., object]) -> str:
    """What a scenario is called."""
    return getattr(run, "__name__", "scenario")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=names)
async def test_over_redis(scenario: Scenario, redis_server: RedisServer) -> None:
    # A01
    fleet = Fleet([RedisStore(redis_server.url) for _ in range(2)], principal=principal_of)
    try:
        await scenario(fleet)
    finally:
        await fleet.close()


def trips(server: RedisServer) -> int:
    """Scripts that the Redis has run: what sessions ask of it are nothing but scripts, whose commands are counted beside."""
    stats = re.findall(rb"cmdstat_(?:evalsha|eval):calls=(\d+)", server.cli("INFO", "commandstats"))
    return sum(map(int, stats))


@pytest.mark.parametrize(
    ("tool", "accept", "most"),
    [
        ("add", "application/json, text/event-stream", 2),
        ("add", "text/event-stream", 2),  # the answer is an event: it is kept with the state
        ("peek", "application/json, text/event-stream", 0),
    ],
)
async def test_a_call_makes_two_round_trips_at_most(tool: str, accept: str, most: int, redis_server: RedisServer) -> None:
    fleet = Fleet([RedisStore(redis_server.url) for _ in range(2)])
    try:
        session = await fleet.connect()
        for number in (0, 1):  # each worker sees it for the first time
            await session.call("peek", **at(number))
        redis_server.cli("CONFIG", "RESETSTAT")
        many = 40
        for item in range(many):
            answer = await session.call(tool, {"item": item} if tool == "add" else None, accept=accept)
            assert "result" in answer.message
        idle = 4  # what workers say of themselves meanwhile
        assert trips(redis_server) <= most * many + idle, redis_server.cli("INFO", "commandstats").decode()
    finally:
        await fleet.close()
