"""Attacks on sessions that several workers keep in a real Redis: what is left of them, a Redis that is full, keys that are somebody else's."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from legacy_driver import Legacy, Session
from redis_server import RedisServer, redis_server
from shared_sessions import CHANGED, Fleet, at, value

from callboard.stores.redis import RedisStore

__all__ = ["redis_server"]


@pytest.fixture
async def fleet(redis_server: RedisServer) -> AsyncIterator[Fleet]:
    """Three workers."""
    redis_server.cli("FLUSHALL")
    made = Fleet([RedisStore(redis_server.url) for _ in range(3)])
    try:
        yield made
    finally:
        await made.close()


def keys(server: RedisServer) -> set[str]:
    """All keys that have to do with sessions."""
    found = server.cli("KEYS", "*").decode().split()
    return {key for key in found if "session" in key}


async def test_nothing_is_left_in_the_redis_of_sessions_that_have_ended(fleet: Fleet, redis_server: RedisServer) -> None:
    # A05
    sessions = [await fleet.connect() for _ in range(8)]
    for session in sessions:
        await session.call("add", {"item": 1}, token=1)
        await session.request("resources/subscribe", {"uri": "desk://a"})
        await session.begin("add", {"item": 2}, token=1).drop()
        await session.listen().__aenter__()
    fleet.servers[0].broadcast("news", CHANGED)
    waiting = [session.begin("held", {"item": number}, token=1) for number, session in enumerate(sessions)]
    await fleet.until(lambda: len(fleet.begun) == len(sessions))
    assert len(keys(redis_server)) >= len(sessions)
    for session in sessions:
        assert (await session.delete()).status == 204
    for exchange in waiting:
        await exchange.end()
    await asyncio.sleep(1)
    assert keys(redis_server) == set()


async def test_a_full_redis_is_said_and_got_over(fleet: Fleet, redis_server: RedisServer) -> None:
    """A script that has written goes on, so that sessions there are may go on, too; what they keep is right in any case."""
    session = await fleet.connect()
    kept = list(range(3))
    for number in kept:
        assert value(await session.call("add", {"item": number}, **at(number)))[0] == number
    redis_server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        for number in range(3, 9):
            answer = await session.call("add", {"item": number}, token=1, **at(number % 3))
            kept += [number] if "result" in answer.message else []
            assert "result" in answer.message or answer.status == 503, answer.body
        assert (await session.get()).status == 503
        refused = await Legacy(fleet.app).try_initialize()
        assert (refused.status, "store" in refused.message["error"]["message"]) == (503, True)
    finally:
        redis_server.cli("CONFIG", "SET", "maxmemory", "0")
    for number in range(3):
        kept.append(10 + number)
        assert value(await session.call("add", {"item": 10 + number}, **at(number)))[1:] == kept
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        fleet.servers[0].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]


async def test_a_session_whose_key_is_something_else_is_an_error_and_no_crash(fleet: Fleet, redis_server: RedisServer) -> None:
    session, other = await fleet.connect(), await fleet.connect()
    for number in range(3):
        await session.call("peek", **at(number))
    (key, *_) = [found for found in keys(redis_server) if "{index}" not in found]
    redis_server.cli("DEL", key)
    redis_server.cli("SET", key, "mine")
    statuses = []
    for each in (session, other):
        called, deleted = await each.call("add", {"item": 1}, **at(0)), await each.delete(**at(2))
        statuses.append([called.status, deleted.status])
    assert [200, 204] in statuses
    (odd,) = [each for each in statuses if each != [200, 204]]
    assert set(odd) <= {404, 503}, odd
    redis_server.cli("DEL", key)


async def test_hostile_names_reach_nothing(fleet: Fleet) -> None:
    # SA23
    session = await fleet.connect()
    await session.call("add", {"item": 1}, token=1)
    for named in ("{index}", "*", "x" * 4_000, "é", "a b", "..", "{", "%00", "sessions:{index}:due", f"{session.id}!"):
        stranger = Session(Legacy(fleet.app), named, session.version)
        assert (await stranger.request("ping")).status in {400, 404}, named
        assert (await stranger.delete()).status in {400, 404}, named
    for event_id in ("g0 -1", "!-1", "c-1", "-0", "g0-1-1", "e-1", "r-1", "q-0", "%s-1", "x" * 8_000 + "-1", "\\219-1", "g0!-1"):
        assert (await session.get(event_id)).status == 400, event_id
    assert value(await session.call("add", {"item": 2}))[1:] == [1, 2]
