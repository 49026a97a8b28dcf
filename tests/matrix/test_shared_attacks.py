"""Attacks on sessions that several workers serve: what is lost, late, doubled or at once must leave no session stuck and no word untrue."""

import asyncio
import random
from typing import Any

from legacy_driver import Legacy, Session
from shared_faults import make_flaky, make_fleet, warm_up
from shared_sessions import CHANGED, Fleet, at, stream_of, value
from virtual_time import virtual_time

from callboard.legacy import shared_table
from callboard.legacy.shared import SharedActor
from callboard.legacy.shared_table import find_space
from callboard.stores.memory import MemoryStore


def copy_of(fleet: Fleet, session: Any, number: int) -> SharedActor:
    """What a worker has of a session."""
    actor: SharedActor = fleet.table(number).sessions[session.id]
    return actor


async def record_of(fleet: Fleet, session: Any) -> Any:
    """What the store has of a session."""
    found = await fleet.table(0).stored.find(session.id)
    assert found is not None
    return found.record


@virtual_time
async def test_what_two_workers_change_at_once_is_all_kept() -> None:
    fleet = make_fleet(3)
    session = await fleet.connect()
    await warm_up(fleet, session)
    answers = await asyncio.gather(
        session.request("resources/subscribe", {"uri": "desk://a"}, **at(0)),
        session.request("resources/subscribe", {"uri": "desk://b"}, **at(1)),
        session.request("logging/setLevel", {"level": "error"}, **at(2)),
        session.request("resources/subscribe", {"uri": "desk://c"}, **at(0)),
    )
    assert all("result" in answer.message for answer in answers)
    record = await record_of(fleet, session)
    assert set(record.topics) == {"topic:news", "uri:desk://a", "uri:desk://b", "uri:desk://c"}
    assert record.log_level == "error"
    await asyncio.gather(
        session.request("resources/unsubscribe", {"uri": "desk://a"}, **at(0)),
        session.request("resources/subscribe", {"uri": "desk://d"}, **at(1)),
        session.request("logging/setLevel", {"level": "debug"}, **at(2)),
    )
    record = await record_of(fleet, session)
    assert set(record.topics) == {"topic:news", "uri:desk://b", "uri:desk://c", "uri:desk://d"}
    assert record.log_level == "debug"
    await fleet.close()


@virtual_time
async def test_a_change_that_the_store_did_not_take_is_told_to_its_caller_and_nobody_else() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 0)
    flaky.before.add("change")
    setting = session.start(session.make("logging/setLevel", {"level": "error"}), **at(0))
    subscribing = session.start(session.make("resources/subscribe", {"uri": "desk://a"}), **at(0))
    answers = [await setting.end(), await subscribing.end()]
    assert [answer.status for answer in answers] == [503, 503]
    flaky.before.clear()
    assert (await session.call("shout", token=1, **at(0))).status == 200
    record = await record_of(fleet, session)
    assert (record.topics, record.log_level) == (("topic:news",), "info")
    shouted = await session.call("shout", token=1, **at(0))
    assert [note["params"]["data"] for note in shouted.notes] == ["quiet", "loud"]
    assert "result" in (await session.request("logging/setLevel", {"level": "error"}, **at(0))).message
    assert (await record_of(fleet, session)).log_level == "error"
    await fleet.close()


@virtual_time
async def test_a_session_that_ends_while_a_worker_looks_it_up_is_not_served() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await fleet.connect()
    flaky = make_flaky(fleet, 1) if _knows(fleet, 1) else None
    assert flaky is not None
    pause = flaky.pauses["find"] = asyncio.Event()
    if session.id in fleet.table(1).sessions:
        fleet.table(1).sessions[session.id].let_go()
    calling = session.begin("peek", **at(1))
    await asyncio.sleep(0.1)
    assert (await session.delete(**at(0))).status == 204
    await asyncio.sleep(0.1)
    flaky.pauses.clear()
    pause.set()
    await calling.end()
    assert (await session.call("peek", **at(1))).status == 404
    assert session.id not in fleet.table(1).sessions
    await fleet.close()


def _knows(fleet: Fleet, number: int) -> bool:
    return fleet.table(number) is not None


@virtual_time
async def test_a_record_that_changes_while_a_worker_looks_it_up_is_known() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    copy_of(fleet, session, 1).let_go()
    flaky = make_flaky(fleet, 1)
    pause = flaky.pauses["find"] = asyncio.Event()
    calling = session.begin("peek", **at(1))
    await asyncio.sleep(0.1)
    assert "result" in (await session.request("logging/setLevel", {"level": "error"}, **at(0))).message
    await asyncio.sleep(0.1)
    flaky.pauses.clear()
    pause.set()
    await calling.end()
    shouted = await session.call("shout", token=1, **at(1))
    assert [note["params"]["data"] for note in shouted.notes] == ["loud"]
    await fleet.close()


@virtual_time
async def test_a_call_that_is_cancelled_while_the_store_fails_it_gives_its_turn_back() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 0)
    pause = flaky.pauses["leave"] = asyncio.Event()
    flaky.after.add("leave")
    inner, flaky.inner = flaky.inner, _Deaf(flaky.inner)
    call = session.begin("add", {"item": 1}, request_id=5, token=1, **at(0))
    await asyncio.sleep(0.1)
    await session.cancel(5, **at(0))
    pause.set()
    await call.end()
    flaky.inner = inner
    flaky.after.clear()
    flaky.pauses.clear()
    assert value(await session.call("add", {"item": 2}, **at(1)))[0] == 1
    await fleet.close()


class _Deaf:
    """A store that takes no `leave`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def leave(self, *args: Any, **named: Any) -> bool:
        """Nothing happens."""
        return False


@virtual_time
async def test_a_turn_that_its_worker_does_not_know_of_is_given_back() -> None:
    """A command that was late in the network: its caller has been told that it failed, and has gone."""
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    stored = fleet.table(0).stored
    await stored.enter(session.id or "", f"{stored.worker}:999999")
    call = session.begin("add", {"item": 1}, **at(1))
    assert value(await call.end()) == [1, 1]
    await fleet.close()


@virtual_time
async def test_a_turn_of_a_session_that_its_worker_does_not_have_is_given_back() -> None:
    fleet = make_fleet(3)
    session = await fleet.connect()
    await fleet.connect()
    await fleet.connect()
    await warm_up(fleet, session)
    copy_of(fleet, session, 0).let_go()
    stored = fleet.table(0).stored
    await stored.enter(session.id or "", f"{stored.worker}:999999")
    assert value(await session.call("add", {"item": 1}, **at(1))) == [1, 1]
    await fleet.close()


@virtual_time
async def test_a_call_that_runs_long_keeps_its_turn() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    held = session.begin("held", {"item": 1}, token=1, **at(0))
    await fleet.until(lambda: fleet.begun)
    waits = session.begin("add", {"item": 2}, **at(1))
    here = session.begin("add", {"item": 3}, **at(0))
    await asyncio.sleep(30)
    assert not waits.task.done()
    assert not here.task.done()
    fleet.open_gate(1)
    assert value(await held.end()) == [0, 1]
    assert sorted([value(await waits.end())[1:], value(await here.end())[1:]], key=len)[1] in ([1, 2, 3], [1, 3, 2])
    await fleet.close()


@virtual_time
async def test_a_reader_that_the_store_took_and_nobody_has_is_taken_off() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 0)
    flaky.after.add("take_reader")
    assert (await session.get(**at(0))).status == 503
    flaky.after.clear()
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        fleet.servers[0].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]
    await fleet.close()


@virtual_time
async def test_a_reader_that_could_not_be_given_back_is_given_back_later() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 0)
    async with session.listen(**at(0)) as stream:
        await stream.frame()
        flaky.before.add("leave_reader")
    flaky.before.clear()
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        fleet.servers[0].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]
    await fleet.close()


@virtual_time
async def test_a_reader_hears_what_is_said_while_the_store_answers_it() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 0)
    pause = flaky.pauses["take_reader"] = asyncio.Event()
    listening = session.start_listening(**at(0))
    await asyncio.sleep(0.1)
    await fleet.table(1).stored.push(session.id or "", b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    await asyncio.sleep(0.1)
    flaky.pauses.clear()
    pause.set()
    assert (await listening.message())["method"] == CHANGED["method"]
    await listening.drop()
    await fleet.close()


@virtual_time
async def test_a_reader_whose_turn_comes_while_the_store_answers_it_is_the_reader() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    first = session.start_listening(**at(1))
    await first.frame()
    flaky = make_flaky(fleet, 0)
    pause = flaky.pauses["take_reader"] = asyncio.Event()
    second = session.start_listening(**at(0))
    await asyncio.sleep(0.1)
    await first.drop()
    await asyncio.sleep(0.1)
    flaky.pauses.clear()
    pause.set()
    await second.frame()
    await asyncio.sleep(3)
    fleet.servers[1].broadcast("news", CHANGED)
    assert (await second.message())["method"] == CHANGED["method"]
    await second.drop()
    await fleet.close()


@virtual_time
async def test_a_reader_that_missed_that_it_is_its_turn_finds_out() -> None:
    stores = [MemoryStore(shared=True)]
    stores.append(stores[0].twin())
    fleet = Fleet(stores)
    session = await fleet.connect()
    await warm_up(fleet, session)
    first = session.start_listening(**at(0))
    await first.frame()
    second = session.start_listening(**at(1))
    await second.frame()
    hearer, inner = fleet.table(1)._take, fleet.table(1).stored
    inner._hearer = lambda _: None  # type: ignore[attr-defined]
    await first.drop()
    await asyncio.sleep(0.1)
    inner._hearer = hearer  # type: ignore[attr-defined]
    inner.epoch += 1  # type: ignore[misc]
    await asyncio.sleep(3)
    fleet.servers[0].broadcast("news", CHANGED)
    assert (await second.message())["method"] == CHANGED["method"]
    await second.drop()
    await fleet.close()


@virtual_time
async def test_a_reader_that_missed_that_it_was_replaced_hangs_up() -> None:
    # HL-16
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    old = session.start_listening(**at(1))
    await old.frame()
    inner = fleet.table(1).stored
    inner._hearer, hearer = (lambda _: None), fleet.table(1)._take  # type: ignore[attr-defined]
    async with session.listen(after="g0-0", **at(0)) as stream:
        await stream.frame()
        await asyncio.sleep(0.1)
        inner._hearer = hearer  # type: ignore[attr-defined]
        inner.epoch += 1  # type: ignore[misc]
        await old.end()
        fleet.servers[0].broadcast("news", CHANGED)
        assert (await stream.message())["method"] == CHANGED["method"]
    assert await inner.reader(session.id or "") is None
    await fleet.close()


@virtual_time
async def test_what_was_missed_is_fetched_though_the_store_fails_at_first() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    flaky = make_flaky(fleet, 1)
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        inner = flaky.inner
        inner._hearer, hearer = (lambda _: None), fleet.table(1)._take
        await fleet.table(0).stored.push(session.id or "", b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        await asyncio.sleep(0.1)
        inner._hearer = hearer
        flaky.before.add("take_reader")
        inner.epoch += 1
        await asyncio.sleep(3)
        flaky.before.clear()
        assert (await stream.message())["method"] == CHANGED["method"]
    await fleet.close()


@virtual_time
async def test_a_stream_that_is_asked_for_twice_at_one_worker_is_on_the_newest_connection() -> None:
    # HL-16, HL-17
    fleet = make_fleet()
    session = await fleet.connect()
    exchange = session.begin("free", {"item": 1}, token=1, **at(0))
    begun = (await exchange.frame(), await exchange.frame())[1]
    first = session.start_listening(begun.event_id, **at(1))
    assert await first.head() == 200
    second = session.start_listening(begun.event_id, **at(1))
    assert await second.head() == 200
    await first.end()
    fleet.open_gate(1)
    events = await stream_of(second)
    assert events[-1][1]["result"]["structuredContent"] == {"result": 0}
    await exchange.end()
    await fleet.close()


@virtual_time
async def test_a_stream_that_comes_back_to_its_worker_is_closed_at_the_other() -> None:
    # HL-16
    fleet = make_fleet()
    session = await fleet.connect()
    exchange = session.begin("free", {"item": 1}, token=1, **at(0))
    begun = (await exchange.frame(), await exchange.frame())[1]
    there = session.start_listening(begun.event_id, **at(1))
    assert await there.head() == 200
    await exchange.end()
    back = session.start_listening(begun.event_id, **at(0))
    assert await back.head() == 200
    await there.end()
    fleet.open_gate(1)
    events = await stream_of(back)
    assert events[-1][1]["result"]["structuredContent"] == {"result": 0}
    await fleet.close()


@virtual_time
async def test_two_deletes_at_once_end_it_once() -> None:
    fleet = make_fleet()
    session = await fleet.connect()
    await warm_up(fleet, session)
    held = session.begin("held", {"item": 1}, **at(0))
    await fleet.until(lambda: fleet.begun)
    waits = [session.begin("add", {"item": number}, **at(number % 2)) for number in range(4)]
    await asyncio.sleep(0.05)
    answers = await asyncio.gather(session.delete(**at(0)), session.delete(**at(1)), session.delete(**at(0)))
    assert {answer.status for answer in answers} <= {204, 404}
    assert 204 in {answer.status for answer in answers}
    for exchange in [held, *waits]:
        assert "error" in (await exchange.end()).message
    assert [end.reason for end in fleet.ends] == ["deleted"]
    await fleet.close()


@virtual_time
async def test_nothing_is_left_of_sessions_that_have_ended() -> None:
    first = MemoryStore(shared=True)
    fleet = Fleet([first, first.twin()])
    sessions = [await fleet.connect() for _ in range(100)]
    for number, session in enumerate(sessions):
        await warm_up(fleet, session)
        await session.call("add", {"item": 1}, token=1)
        await session.request("resources/subscribe", {"uri": f"desk://{number}"})
        async with session.listen() as stream:
            await stream.frame()
        exchange = session.begin("add", {"item": 2}, token=1)
        await exchange.drop()
    for session in sessions:
        assert (await session.delete()).status == 204
    await asyncio.sleep(3)
    space = find_space(first)
    assert not space.entries
    assert space.places.taken == 0
    for number in range(2):
        table = fleet.table(number)
        assert not table.sessions
        assert {topic for topic, hearers in table.topics.items() if hearers} == set()
        assert not table._due
        assert not table._looks
        assert not table._leaving
        assert not len(table.slow)
        assert not len(table.deadlines)
        assert not len(table.idle)
    assert not [
        token for token in shared_table._in_use if token.split(":")[0] in {fleet.table(0).stored.worker, fleet.table(1).stored.worker}
    ]
    await fleet.close()


async def meddle(fleet: Fleet, session: Session, request_id: int, chance: random.Random) -> None:
    """Do something while a call runs, or nothing."""
    match chance.randrange(5):
        case 0:
            await asyncio.sleep(chance.choice([0, 0.001]))
            await session.cancel(request_id, **at(chance.randrange(3)))
        case 1:
            listening = session.start_listening(chance.choice([None, "g0-0"]), **at(chance.randrange(3)))
            await asyncio.sleep(0.01)
            await listening.drop()
        case 2:
            fleet.servers[0].broadcast("news", CHANGED)


@virtual_time
async def test_a_store_that_fails_now_and_then_leaves_no_session_stuck() -> None:
    for seed in range(12):
        chance = random.Random(seed)
        fleet = make_fleet(3)
        for app in range(3):
            await Legacy(fleet.apps[app]).connect()
        flakies = [make_flaky(fleet, number) for number in range(3)]
        session = await fleet.connect()
        kept: list[int] = []
        doubtful: list[int] = []
        for number in range(25):
            for flaky in flakies:
                flaky.before, flaky.after = ({name for name in METHODS if chance.random() < 0.12} for _ in range(2))
            exchange = session.begin(
                "add", {"item": number}, request_id=5_000 + number, token=chance.choice([None, 1]), **at(chance.randrange(3))
            )
            await meddle(fleet, session, 5_000 + number, chance)
            answer = await exchange.end()
            if answer.messages and "result" in answer.messages[-1]:
                kept.append(number)
            else:
                doubtful.append(number)
                assert answer.is_empty or answer.message["error"]["message"], answer.body
        for flaky in flakies:
            flaky.before, flaky.after = set(), set()
        await asyncio.sleep(5)
        items: list[int] = []
        for number in range(3):
            items = value(await asyncio.wait_for(session.call("add", {"item": 100 + number}, **at(number)), 60))[1:]
        assert items == sorted(items)
        assert set(kept) <= set(items), (seed, kept, items)
        assert set(items) - {100, 101, 102} <= set(kept) | set(doubtful)
        async with session.listen(**at(chance.randrange(3))) as stream:
            await stream.frame()
            fleet.servers[1].broadcast("news", CHANGED)
            await asyncio.wait_for(stream.message(), 60)
        for number in range(3):
            assert not [task for task in fleet.table(number)._leaving if not task.done()], seed
            assert not fleet.table(number).sessions[str(session.id)].machine.calls
            assert not fleet.table(number).sessions[str(session.id)]._pending
        await fleet.close()


METHODS = ("find", "enter", "leave", "append", "push", "take_reader", "leave_reader", "change", "head", "state", "follow")
