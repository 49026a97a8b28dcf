"""Random attacks on the streams of sessions that several workers serve: clients that move, a store that fails, messages that are lost."""

import asyncio
import random
from typing import Any

import pytest
from shared_faults import make_flaky, make_fleet, warm_up
from shared_sessions import CHANGED, Fleet, at, stream_of, value
from virtual_time import virtual_time


def note(number: int) -> dict[str, Any]:
    """One that is told from the others."""
    return {"method": "notifications/message", "params": {"level": "info", "data": number}}


def lose_messages(table: Any, chance: random.Random) -> None:
    """Lose what other workers say to this one, for a while; then it knows that it has."""
    inner = table.stored.inner
    inner._hearer = lambda _: None

    def mend() -> None:
        inner._hearer = table._take
        inner.epoch += 1

    asyncio.get_running_loop().call_later(chance.random(), mend)


async def follow(fleet: Fleet, session: Any, chance: random.Random, want: int, seen: list[tuple[int, Any]], first: str | None) -> None:
    """Read a stream as a good client does, at one worker and another, until so many messages have come or it ends."""
    last = first
    while len(seen) < want:
        stream = session.start_listening(last, **at(chance.randrange(len(fleet.apps))))
        if await stream.head() != 200:
            await stream.gone()
            assert stream.sent[0]["status"] == 503, stream.sent
            await asyncio.sleep(0.3)
            continue
        patience = chance.choice([0.05, 0.5, 3.0])
        while len(seen) < want:
            try:
                frame = await asyncio.wait_for(stream.frame(), patience)
            except (TimeoutError, AssertionError):
                break
            last = frame.event_id or last
            if frame.message is not None:
                seen.append((int((frame.event_id or "").rpartition("-")[2]), frame.message))
        await stream.drop()


def upset(fleet: Fleet, flakies: list[Any], chance: random.Random) -> None:
    """Have something go wrong, or nothing any more."""
    for number, flaky in enumerate(flakies):
        flaky.before, flaky.after = ({name for name in METHODS if chance.random() < 0.1} for _ in range(2))
        if chance.random() < 0.1 and flaky.inner._hearer is not None:
            lose_messages(fleet.table(number), chance)


METHODS = ("find", "append", "take_reader", "leave_reader", "follow", "reader", "touch")


@virtual_time
async def test_news_come_once_and_in_order_whatever_fails() -> None:
    # HL-16, HL-17, HL-18
    for seed in range(10):
        chance = random.Random(seed)
        fleet = make_fleet(3)
        session = await fleet.connect()
        await warm_up(fleet, session)
        flakies = [make_flaky(fleet, number) for number in range(3)]
        seen: list[tuple[int, Any]] = []
        reading = asyncio.ensure_future(follow(fleet, session, chance, 60, seen, None))
        await asyncio.sleep(0.1)
        for number in range(60):
            fleet.servers[chance.randrange(3)].broadcast("news", note(number))
            upset(fleet, flakies, chance)
            await asyncio.sleep(chance.choice([0, 0.01, 0.3]))
        for flaky in flakies:
            flaky.before, flaky.after = set(), set()
        await asyncio.wait_for(reading, 300)
        assert [message["params"]["data"] for _, message in seen] == list(range(60)), seed
        assert [number for number, _ in seen] == list(range(1, 61)), seed
        await fleet.close()


@virtual_time
async def test_the_stream_of_a_call_comes_once_and_in_order_whatever_fails() -> None:
    # HL-17
    for seed in range(10):
        chance = random.Random(seed)
        fleet = make_fleet(3, cancel_on_disconnect="never")
        session = await fleet.connect()
        await warm_up(fleet, session)
        flakies = [make_flaky(fleet, number) for number in range(3)]
        call = session.begin("held", {"item": 1}, token=1, **at(0))
        primed, begun = await call.frame(), await call.frame()
        assert begun.event_id is not None
        await call.drop()
        seen: list[tuple[int, Any]] = []
        reading = asyncio.ensure_future(
            follow(fleet, session, chance, 2, seen, primed.event_id if chance.random() < 0.5 else begun.event_id)
        )
        for _ in range(20):
            upset(fleet, flakies, chance)
            await asyncio.sleep(chance.choice([0, 0.01, 0.3]))
        for flaky in flakies:
            flaky.before, flaky.after = set(), set()
        fleet.open_gate(1)
        await asyncio.wait_for(reading, 300)
        assert [number for number, _ in seen] in ([1, 2], [2, 3]), (seed, seen)
        if seen[-1][0] == 3:
            assert seen[-1][1]["result"], seed
        assert value(await session.call("add", {"item": 2}, **at(1)))[1:] == [1, 2]
        await fleet.close()


@virtual_time
async def test_a_reader_that_does_not_read_costs_bounded_memory_and_loses_nothing_that_is_kept() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    large = {"method": "notifications/message", "params": {"level": "info", "data": "x" * 100_000}}
    slow = session.start_listening(**at(1))
    last = (await slow.frame()).event_id
    slow.gate.clear()
    for _ in range(100):
        fleet.servers[0].broadcast("news", large)
        await asyncio.sleep(0.01)
    assert session.id is not None
    reader = next(iter(fleet.table(1).sessions[session.id].readers.values()), None)
    assert reader is None or reader.exchange.size < 8_000_000
    async with session.listen(last, **at(0)) as stream:
        frames = [frame for frame in [await stream.frame() for _ in range(8)] if frame.message is not None]
        numbers = [int((frame.event_id or "").rpartition("-")[2]) for frame in frames]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        fleet.servers[0].broadcast("news", CHANGED)
        while (await stream.message())["method"] != CHANGED["method"]:
            pass
    slow.gate.set()
    await slow.gone()
    await fleet.close()


@pytest.mark.parametrize("worker", [0, 1])
@virtual_time
async def test_the_last_words_of_a_call_come_though_the_store_was_away(worker: int) -> None:
    # HL-17
    fleet = make_fleet(2, cancel_on_disconnect="never")
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 0)
    call = session.begin("free", {"item": 1}, token=1, **at(0))
    begun = (await call.frame(), await call.frame())[1]
    await call.drop()
    flaky.before = {"append"}
    fleet.open_gate(1)
    await asyncio.sleep(0.2)
    waiting = session.start_listening(begun.event_id, **at(worker))
    assert await waiting.head() == 200
    await asyncio.sleep(3)
    flaky.before = set()
    events = await asyncio.wait_for(stream_of(waiting), 60)
    assert events[-1][1]["result"]["structuredContent"] == {"result": 0}
    again = session.start_listening(begun.event_id, **at(1 - worker))
    assert await stream_of(again) == events
    await fleet.close()


@virtual_time
async def test_a_client_that_goes_when_its_answer_is_there_leaves_nothing() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    for _ in range(5):
        for turns in range(12):
            call = session.begin("add", {"item": 1}, accept="text/event-stream", **at(0))
            for _ in range(turns):
                await asyncio.sleep(0)
            await call.drop()
    assert session.id is not None
    await asyncio.sleep(1)
    actor = fleet.table(0).sessions[session.id]
    assert (actor._answered, actor._savings, actor.machine._tracks or {}) == (set(), {}, {})
    await fleet.close()


@virtual_time
async def test_a_connection_that_is_cancelled_while_the_store_is_slow_loses_no_event() -> None:
    # HL-17
    for taken in (False, True):
        fleet = make_fleet(2, cancel_on_disconnect="never")
        session = await fleet.connect()
        await warm_up(fleet, session)
        flaky = make_flaky(fleet, 0)
        call = session.begin("free", {"item": 1}, token=1, **at(0))
        begun = (await call.frame(), await call.frame())[1]
        pause = flaky.pauses["append"] = asyncio.Event()
        inner, flaky.inner = flaky.inner, flaky.inner if taken else Absent(flaky.inner)
        fleet.open_gate(1)
        await asyncio.sleep(0.2)
        flaky.pauses, flaky.inner = {}, inner
        call.task.cancel()
        await asyncio.wait({call.task})
        pause.set()
        for worker in (0, 1):
            events = await asyncio.wait_for(stream_of(session.start_listening(begun.event_id, **at(worker))), 60)
            assert [int((event_id or "").rpartition("-")[2]) for event_id, _ in events] == [2, 3]
            assert events[-1][1]["result"]["structuredContent"] == {"result": 0}
        actor = fleet.table(0).sessions[session.id or ""]
        assert (actor._savings, actor.machine.calls) == ({}, {})
        await fleet.close()


class Absent:
    """A store that takes no events."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, *_: Any, **__: Any) -> bool:
        """Nothing happens."""
        return True
