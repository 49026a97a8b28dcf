"""What a worker does for the sessions that it remembers: as much as goes on in them, however many there are, on a virtual clock."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import msgspec
import pytest
from legacy_driver import Session
from shared_faults import make_fleet, warm_up
from shared_sessions import CHANGED, Fleet, at, value
from virtual_time import virtual_time

from callboard.legacy.codec import Opening
from callboard.legacy.shared_table import SharedTable
from callboard.limits import Limits
from callboard.server.mount import Caller
from callboard.server.subscriptions import CHANGES, Change

MANY = 20_000
TTL = 30.0


async def steps(act: Callable[[], Awaitable[object]]) -> int:
    """How many instructions of our own it takes."""
    taken = 0

    def note(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal taken
        if "/callboard/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        await act()
    finally:
        sys.settrace(before)
    return taken


async def remember(table: SharedTable, sessions: int) -> None:
    """Have a worker remember sessions that nobody uses."""
    opening = table.read(None)
    assert isinstance(opening, Opening)
    for _ in range(sessions):
        assert not isinstance(await table.open(opening, Caller(None, None)), Exception)


async def listening(fleet: Fleet, number: int = 1) -> list[Any]:
    """Sessions of the first worker, each with a GET stream there."""
    streams = []
    for _ in range(number):
        session = await fleet.connect()
        streams.append(session.start_listening(**at(0)))
        await streams[-1].frame()
    await asyncio.sleep(3)
    return streams


@virtual_time
async def test_a_look_around_takes_as_long_with_many_idle_sessions() -> None:
    fleet = make_fleet(ttl=1e6, limits=Limits(max_sessions=2 * MANY))
    streams = await listening(fleet)
    table = fleet.table(0)
    table._keeper.cancel()
    change = msgspec.json.encode(Change("tools"))

    async def tell() -> None:
        table._tell("1", CHANGES, change)

    await tell()
    await asyncio.sleep(0.1)
    await table._look_around()
    look, told = await steps(table._look_around), await steps(tell)
    assert look > 100
    assert told > 100
    await remember(table, MANY)
    await asyncio.sleep(0.1)
    assert await steps(table._look_around) == look
    assert await steps(tell) == told
    assert len(table.sessions) == MANY + 1
    for stream in streams:
        await stream.drop()
    table.sessions.clear()  # to end them takes its time
    await fleet.close()


@virtual_time
async def test_a_look_around_takes_as_much_longer_as_there_are_streams() -> None:
    fleet = make_fleet(ttl=1e6)
    taken, streams = list[int](), list[Any]()
    for _ in range(3):
        streams += await listening(fleet, 10)
        taken.append(await steps(fleet.table(0)._look_around))
    assert taken[2] - taken[1] == taken[1] - taken[0] > 0
    for stream in streams:
        await stream.drop()
    await fleet.close()


@virtual_time
async def test_what_goes_on_in_a_session_is_looked_after_until_it_has_ended() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    table = fleet.table(0)
    held = session.begin("held", {"item": 1}, **at(0))
    await fleet.until(lambda: fleet.begun)
    async with session.listen(**at(0)) as stream:
        await stream.frame()
        fleet.open_gate(1)
        await held.end()
        await asyncio.sleep(5)
        assert [actor.id for actor in table.busy] == [session.id]
    await asyncio.sleep(2)
    assert not table.busy
    for _ in range(3):
        await session.call("peek", **at(0))
    await session.delete(**at(1))
    await asyncio.sleep(2)
    assert not table.busy
    await fleet.close()


async def begin_call(session: Session, _fleet: Fleet) -> None:
    """A call whose client waits for it."""
    session.begin("held", {"item": 1}, token=1, **at(0))


async def begin_batch(session: Session, _fleet: Fleet) -> None:
    """A call in a batch, which hangs on no connection."""
    session.start([session.make_call("held", {"item": 1})], **at(0))


async def begin_lost(session: Session, fleet: Fleet) -> None:
    """A call whose client is gone."""
    held = session.begin("held", {"item": 1}, token=1, **at(0))
    await fleet.until(lambda: fleet.begun)
    await held.drop()


async def begin_late(session: Session, fleet: Fleet) -> None:
    """A call that waits for the one before it, which another worker runs."""
    session.begin("held", {"item": 2}, **at(1))
    await fleet.until(lambda: fleet.begun)
    session.begin("held", {"item": 1}, **at(0))
    await asyncio.sleep(3 * TTL)
    fleet.open_gate(2)


LONG = 1e6
CALLS = [(begin, seconds) for seconds in (5.0, LONG) for begin in (begin_call, begin_batch, begin_lost)] + [(begin_late, LONG)]


@pytest.mark.parametrize(("begin", "seconds"), CALLS, ids=[f"{begin.__name__}, {seconds:g} s" for begin, seconds in CALLS])
@virtual_time
async def test_a_session_lives_as_long_as_a_call_in_it(begin: Callable[[Session, Fleet], Awaitable[None]], seconds: float) -> None:
    """Also where its caller was told that it takes too long."""
    fleet = make_fleet(ttl=TTL, request_timeout=seconds, cancel_on_disconnect="never")
    session = await fleet.connect("2025-03-26")
    await begin(session, fleet)
    await fleet.until(lambda: (0, 1) in fleet.begun)
    await asyncio.sleep(10 * TTL)
    assert fleet.ends == []
    fleet.open_gate(1)
    await asyncio.sleep(1)
    await session.call("add", {"item": 3}, **at(1))
    await asyncio.sleep(2 * TTL)
    assert [(end.reason, end.items[-2:]) for end in fleet.ends] == [("expired", [1, 3])]
    await fleet.close()


@virtual_time
async def test_a_session_lives_as_long_as_its_client_reads_an_answer() -> None:
    fleet = make_fleet(ttl=TTL)
    session = await fleet.connect()
    slow = session.begin("add", {"item": 1}, **at(0))
    slow.gate.clear()
    await asyncio.sleep(10 * TTL)
    assert not fleet.table(0).sessions[str(session.id)].machine.calls
    assert fleet.ends == []
    slow.gate.set()
    assert value(await slow.end()) == [0, 1]
    await asyncio.sleep(2 * TTL)
    assert [end.reason for end in fleet.ends] == ["expired"]
    await fleet.close()


@virtual_time
async def test_a_worker_forgets_a_session_whose_calls_go_elsewhere() -> None:
    fleet = make_fleet(3, ttl=TTL)
    session = await fleet.connect()
    for number in range(3):
        await session.call("peek", **at(number))
    sleeping = 0.0
    while sleeping < TTL - 2:
        await asyncio.sleep(4)
        sleeping += 4
        assert all(session.id in fleet.table(number).sessions for number in range(3))
        await session.call("peek", **at(1))
    await asyncio.sleep(3)
    assert [session.id in fleet.table(number).sessions for number in range(3)] == [False, True, False]
    assert fleet.ends == []
    await fleet.close()


@virtual_time
async def test_after_messages_were_missed_only_what_goes_on_is_looked_up() -> None:
    fleet = make_fleet()
    idle, session = await fleet.connect(), await fleet.connect()
    for each in (idle, session):
        await warm_up(fleet, each)
    async with session.listen(**at(0)) as stream:
        await stream.frame()
        store = fleet.table(0).stored
        store.epoch += 1  # type: ignore[misc]
        await asyncio.sleep(2)
        sessions = fleet.table(0).sessions
        assert [sessions[str(each.id)].stale for each in (session, idle)] == [False, True]
        fleet.servers[1].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]
    await fleet.close()
