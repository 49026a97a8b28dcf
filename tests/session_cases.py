"""What every `SessionStore` must do, one case at a time; `test_stored.py` runs them in memory, `test_stored_redis.py` on a real Redis."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace
from session_fleet import Fleet, a_record

from callboard.auth.principal import Principal
from callboard.errors import Fail, Reason
from callboard.legacy.session import MAX_KEPT
from callboard.legacy.stored import Answer, Entered, Event, Finished, Moved, Occurred, Read, Reading, Resumed, Turned, Yielded

__all__ = ["CASES", "KEEP", "Case"]

KEEP: Final = 256
ROOM: Final[dict[str, Any]] = {"ttl": 60, "total": 1000, "per_owner": 100}
Case = Callable[[Fleet], Awaitable[None]]
CASES: list[Case] = []


def case(function: Case) -> Case:
    """Have it run."""
    CASES.append(function)
    return function


@case
async def any_visible_character_may_be_in_an_id(fleet: Fleet) -> None:
    """HL-20; and a Redis has patterns, braces and quotes that mean something."""
    one, two, _ = fleet.workers
    visible = "".join(map(chr, range(0x21, 0x7F)))
    ids = [visible, *visible, "*", "{index}", "a{b}c", "x" * 1024, "s:*", "'\"\\", "../..", "${1}", "%d%s%1"]
    ids = list(dict.fromkeys(ids))
    for sid in ids:
        await one.open(sid, a_record(topics=(sid,)), sid.encode(), **ROOM)
    for sid in ids:
        found = await two.find(sid)
        assert found is not None
        assert found.record.topics == (sid,)
        assert await two.enter(sid, f"{two.worker}:1") == Entered(turn=True, state=sid.encode())
        await one.enter(sid, f"{one.worker}:2")
        assert await two.leave(sid, f"{two.worker}:1")
    await fleet.settle()
    assert fleet.heard[one.worker] == [Turned(sid, f"{one.worker}:2") for sid in ids]
    await fleet.pass_time(61)
    assert set(await two.due(1000)) == set(ids)
    for sid in ids:
        assert await one.end(sid, due=True) is not None
    assert await two.count() == 0


@case
async def of_two_that_open_one_id_one_gets_it(fleet: Fleet) -> None:
    one, two, three = fleet.workers
    owners = [None, "ann", "bob"]
    opened = await asyncio.gather(
        *(worker.open("s", a_record(owner), None, **ROOM) for worker, owner in zip(fleet.workers, owners, strict=True)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in opened].count(ValueError) == 2
    assert await one.count() == 1
    winner = owners[opened.index(None)]
    ended = await two.end("s")
    assert ended is not None
    assert ended.record.owner == winner
    assert await three.count() == 0
    await one.open("t", a_record("ann"), None, ttl=60, total=1, per_owner=1)  # nobody's place was lost
    await two.end("t")


@case
async def there_are_never_more_than_there_may_be(fleet: Fleet) -> None:
    """Limits hold for all workers together, and say so as one worker alone does."""

    async def open_many(prefix: str, owner: str | None, **room: Any) -> list[Any]:
        workers = fleet.workers * 8
        opened = (worker.open(f"{prefix}{at}", a_record(owner), None, ttl=60, **room) for at, worker in enumerate(workers))
        return [outcome for outcome in await asyncio.gather(*opened, return_exceptions=True) if outcome is not None]

    refused = await open_many("own", "ann", total=100, per_owner=5)
    assert len(refused) == 19
    assert await fleet.workers[0].count() == 5
    assert {str(fail) for fail in refused} == {
        "You have 5 sessions already (max_sessions_per_principal): wait until one has ended.",
    }
    refused = await open_many("all", None, total=15, per_owner=5)
    assert len(refused) == 14
    assert await fleet.workers[0].count() == 15
    assert all(isinstance(fail, Fail) and fail.reason is Reason.OVERLOADED for fail in refused)
    assert {str(fail) for fail in refused} == {"There are 15 sessions already (max_sessions): try again later."}


@case
async def owners_are_told_apart(fleet: Fleet) -> None:
    """Whatever they are called, and whatever kind of str they are. Nobody in particular has no bound of their own."""
    one, two, _ = fleet.workers
    owners = ["", " ", "a", "a ", "A", "ä", "\0", "a\nb", "x" * 10_000, "x" * 10_001, Principal("ann", ["read"])]
    for at, owner in enumerate(owners):
        await one.open(f"s{at}", a_record(owner), None, ttl=60, total=100, per_owner=1)
        with pytest.raises(Fail, match="per_principal"):
            await two.open(f"t{at}", a_record(owner), None, ttl=60, total=100, per_owner=1)
    for at in range(3):
        await one.open(f"n{at}", a_record(None), None, ttl=60, total=100, per_owner=1)
    for at, owner in enumerate(owners):
        ended = await two.end(f"s{at}")
        assert ended is not None
        assert ended.record.owner == owner
        assert type(ended.record.owner) is str
        await two.open(f"s{at}", a_record(owner), None, ttl=60, total=100, per_owner=1)


@case
async def a_record_may_be_large(fleet: Fleet) -> None:
    one, two, three = fleet.workers
    topics = tuple(f"uri:res://{number}/{'x' * 60}" for number in range(5_000))
    await one.open("s", a_record("ann"), b"\0\xff" * 500_000, **ROOM)
    found = await two.find("s")
    assert found is not None
    revisions = await asyncio.gather(
        *(worker.change("s", found.revision, replace(found.record, topics=(*topics, worker.worker))) for worker in (one, two, three))
    )
    assert Counter(revisions) == {None: 2, found.revision + 1: 1}, "of those who change one revision one is first"
    changed = await three.find("s")
    assert changed is not None
    assert changed.record.topics[:-1] == topics
    assert await three.state("s") == b"\0\xff" * 500_000


@case
async def turns_come_in_order_to_all_workers(fleet: Fleet) -> None:
    one = fleet.workers[0]
    await one.open("s", a_record(), b"", **ROOM)
    tickets = [f"{worker.worker}:{number}" for number in range(20) for worker in fleet.workers]
    stores = {worker.worker: worker for worker in fleet.workers}
    for ticket in tickets:
        await stores[ticket.partition(":")[0]].enter("s", ticket)
    done = b""
    for ticket in tickets:
        store = stores[ticket.partition(":")[0]]
        assert await store.enter("s", ticket) == Entered(turn=True, state=done)
        done += ticket.encode()
        assert await store.leave("s", ticket, done)
    await fleet.settle()
    for worker in fleet.workers:
        assert [told.ticket for told in fleet.heard[worker.worker] if isinstance(told, Turned)] == [
            ticket for ticket in tickets[1:] if ticket.startswith(worker.worker)
        ]


@case
async def only_so_many_wait(fleet: Fleet) -> None:
    one, two, _ = fleet.workers
    await one.open("s", a_record(), None, **ROOM)
    assert await one.enter("s", "a:1", max_pending=0) == Entered(turn=True, state=None)
    with pytest.raises(Fail) as refused:
        await two.enter("s", "b:1", max_pending=0)
    assert refused.value.reason is Reason.SESSION_OVERLOADED
    entered = await asyncio.gather(*(two.enter("s", f"b:{at}", max_pending=7) for at in range(20)), return_exceptions=True)
    assert entered.count(Entered(turn=False, state=None)) == 7
    assert await one.enter("s", "a:1", max_pending=0) == Entered(turn=True, state=None), "who is in is not refused"


@case
async def who_was_evicted_keeps_nothing(fleet: Fleet) -> None:
    """A worker that was taken for dead and is not: its state is old, and its answer would be a lie."""
    one, two, three = fleet.workers
    slow, quick = f"{one.worker}:1", f"{two.worker}:1"
    await one.open("s", a_record(), b"0", **ROOM)
    await one.enter("s", slow)
    await one.append("s", "c1", 1, [b"progress"], worker=one.worker, last=False)
    await two.enter("s", quick)
    await three.evict("s", quick)
    assert await three.head("s") == slow, "only the one whose turn it is can be taken off"
    await asyncio.gather(two.evict("s", slow), three.evict("s", slow))
    failed = await asyncio.gather(two.fail_track("s", "c1", b"lost"), three.fail_track("s", "c1", b"lost"))
    assert sorted(failed) == [False, True]
    assert not await one.append("s", "c1", 2, [b"more"], worker=one.worker, last=False)
    assert not await one.leave("s", slow, b"ghost", Answer("c1", b"ghost", 2))
    assert await two.enter("s", quick) == Entered(turn=True, state=b"0")
    assert not await one.leave("s", slow, b"ghost"), "not even when it asks again"
    assert await two.leave("s", quick, b"1")
    assert await three.state("s") == b"1"
    events = [Event("c1", 1, b"progress", last=False), Event("c1", 2, b"lost", last=True)]
    assert await three.follow("s", "c1", 0, three.worker) == Resumed(events, 2, None, over=True)


@case
async def an_answer_that_cannot_be_an_event_keeps_no_state(fleet: Fleet) -> None:
    one, two, _ = fleet.workers
    ticket = f"{one.worker}:1"
    await one.open("s", a_record(), b"0", **ROOM)
    await one.enter("s", ticket)
    await one.append("s", "c1", 1, [], worker=one.worker, last=False)
    assert await two.fail_track("s", "c1", b"lost")
    assert not await one.leave("s", ticket, b"ghost", Answer("c1", b"ghost"))
    assert await one.state("s") == b"0"
    assert await one.head("s") is None


@case
async def who_left_may_ask_again_whether_it_was_through(fleet: Fleet) -> None:
    one, two, _ = fleet.workers
    await one.open("s", a_record(), b"0", **ROOM)
    await one.enter("s", "a:1")
    for _ in range(3):
        assert await one.leave("s", "a:1", b"1", Answer("c1", b"one"))
    assert await one.state("s") == b"1"
    assert await two.follow("s", "c1", 0, two.worker) == Resumed([Event("c1", 1, b"one", last=True)], 1, None, over=True)
    await two.enter("s", "b:1")
    assert await one.leave("s", "a:1", b"1")
    assert await two.leave("s", "b:1", b"2")
    assert not await one.leave("s", "a:1", b"1")
    assert await one.state("s") == b"2"


@case
async def events_are_bounded(fleet: Fleet) -> None:
    """HL-18: the last 256 of all tracks, and a megabyte of them; the newest whatever its size."""
    one, two, _ = fleet.workers
    await one.open("s", a_record(), None, **ROOM)
    assert await one.append("s", "c1", 1, [b"%d" % number for number in range(1, 1001)], worker="w", last=False)
    for _ in range(4):
        await one.push("s", b"note")
    found = await two.follow("s", "c1", 0, two.worker)
    assert found is not None
    assert [event.number for event in found.events] == list(range(749, 1001))
    half = MAX_KEPT // 2
    assert await one.append("s", "c1", 1001, [b"x" * half, b"y" * half], worker="w", last=False)
    found = await two.follow("s", "c1", 0, two.worker)
    assert found is not None
    assert [event.number for event in found.events] == [1001, 1002]
    assert await two.push("s", b"z" * (MAX_KEPT + 1)) == 5
    assert await one.follow("s", "c1", 1002, one.worker) == Resumed([], 1002, "w", over=False)
    reading = await one.take_reader("s", "a:1", after=0)
    assert reading == Reading(turn=True, newest=5, events=[Event("g0", 5, b"z" * (MAX_KEPT + 1), last=False)])
    assert await one.append("s", "c1", 1003, [b"end"], worker="w", last=True)
    assert await two.follow("s", "c1", 0, two.worker) == Resumed([Event("c1", 1003, b"end", last=True)], 1003, None, over=True)
    assert await two.push("s", b"z" * MAX_KEPT) == 6
    assert await two.follow("s", "c1", 1003, two.worker) is None, "over and forgotten"


@case
async def events_that_are_sent_again_are_there_once(fleet: Fleet) -> None:
    one, two, _ = fleet.workers
    await one.open("s", a_record(), None, **ROOM)
    for _ in range(2):
        assert await one.append("s", "c1", 1, [b"1", b"2"], worker="w", last=False)
    assert await one.append("s", "c1", 2, [b"2", b"3"], worker="w", last=False)
    assert not await one.append("s", "c1", 5, [b"5"], worker="w", last=False), "4 is missing"
    assert not await one.append("s", "c1", 4, [b"4"], worker="other", last=False), "another's track"
    for _ in range(2):
        assert await one.append("s", "c1", 4, [b"4"], worker="w", last=True)
    assert not await one.append("s", "c1", 5, [b"5"], worker="w", last=True)
    found = await two.follow("s", "c1", 0, two.worker)
    assert found is not None
    assert [event.note for event in found.events] == [b"1", b"2", b"3", b"4"]
    assert await two.follow("s", "c1", 5, two.worker) is None
    assert await two.follow("s", "c2", 0, two.worker) is None
    assert await two.follow("t", "c1", 0, two.worker) is None


@case
async def who_follows_sees_every_event_once(fleet: Fleet) -> None:
    """HL-18: wherever in the stream a client comes back, what is replayed and what comes then are all there is."""
    one, two, three = fleet.workers
    await one.open("s", a_record(), None, **ROOM)
    await one.append("s", "c1", 1, [], worker=one.worker, last=False)

    async def run() -> None:
        for number in range(1, 101):
            assert await one.append("s", "c1", number, [b"%d" % number], worker=one.worker, last=number == 100)
            await asyncio.sleep(0)

    running = asyncio.create_task(run())
    for _ in range(10):
        await asyncio.sleep(0)
    found = await two.follow("s", "c1", 0, two.worker)
    assert found is not None
    assert found.worker == one.worker
    assert not found.over
    for _ in range(10):
        await asyncio.sleep(0)
    last = await three.follow("s", "c1", 0, three.worker)
    await running
    await fleet.settle()
    assert last is not None
    seen = last.events + [Event(*_fields(told)) for told in fleet.heard[three.worker] if isinstance(told, Occurred)]
    assert [event.number for event in seen] == list(range(1, 101))
    assert seen[-1].last
    assert fleet.heard[one.worker] == [Moved("s", "c1")]
    assert fleet.heard[two.worker][-1:] == [Moved("s", "c1")] or last.over
    before = found.events + [Event(*_fields(told)) for told in fleet.heard[two.worker] if isinstance(told, Occurred)]
    assert [event.number for event in before] == list(range(1, len(before) + 1))


@case
async def news_are_events_once(fleet: Fleet) -> None:
    """Every worker hears the Bus, and each pushes what it hears."""
    one, two, _ = fleet.workers
    await one.open("s", a_record(news="7-0"), None, **ROOM)
    assert await two.take_reader("s", f"{two.worker}:1") == Reading(turn=True, newest=0, events=[])
    positions = ["6-9", "7-0", "7-1", "8-0", "10-0", "10-2", "10-10", "1700000000000-3"]

    async def relay(at: int) -> list[int | None]:
        return [await fleet.workers[at].push("s", position.encode(), position) for position in positions]

    pushed = await asyncio.gather(*(relay(at) for at in range(3)))
    numbers = sorted(number for outcome in pushed for number in outcome if number is not None)
    assert numbers == [1, 2, 3, 4, 5, 6]
    await fleet.settle()
    told = [message for message in fleet.heard[two.worker] if isinstance(message, Occurred)]
    assert [(message.number, message.note.decode()) for message in told] == list(enumerate(positions[2:], 1))
    found = await one.find("s")
    assert found is not None
    assert found.record.news == positions[-1]
    assert await one.change("s", found.revision, replace(found.record, news="")) == found.revision + 1
    assert await one.push("s", b"old", "9-0") is None, "a change does not bring back old news"


@case
async def one_reader_at_a_time(fleet: Fleet) -> None:
    one, two, three = fleet.workers
    first, second, third = (f"{worker.worker}:1" for worker in fleet.workers)
    await one.open("s", a_record(), None, **ROOM)
    assert await one.push("s", b"one") == 1
    assert await one.take_reader("s", first) == Reading(turn=True, newest=1, events=[])
    assert await two.take_reader("s", second, after=0) == Reading(turn=False, newest=1, events=[])
    assert await three.take_reader("s", third, force=True, after=2) == Reading(turn=False, newest=1, events=[]), "no such event"
    assert await one.reader("s") == first
    assert await three.take_reader("s", third, force=True, after=0) == Reading(True, 1, [Event("g0", 1, b"one", last=False)])
    assert await three.take_reader("s", third, force=True) == Reading(turn=True, newest=1, events=[])
    assert await one.push("s", b"two") == 2
    await two.leave_reader("s", third)  # of a dead worker
    await two.leave_reader("s", third)
    assert await one.push("s", b"three") == 3
    await fleet.settle()
    assert fleet.heard[one.worker] == [Yielded("s", first)]
    assert fleet.heard[two.worker] == [Read("s", second, 2), Occurred("s", "g0", 3, b"three", last=False)]
    assert fleet.heard[three.worker] == [Occurred("s", "g0", 2, b"two", last=False)]


@case
async def one_ends_it(fleet: Fleet) -> None:
    one = fleet.workers[0]
    await one.open("s", a_record("ann"), b"last", **ROOM)
    await one.push("s", b"note", "5-0")
    ended = [outcome for outcome in await asyncio.gather(*(worker.end("s") for worker in fleet.workers * 4)) if outcome is not None]
    assert len(ended) == 1
    assert ended[0].state == b"last"
    assert ended[0].record == a_record("ann", news="5-0")
    await fleet.settle()
    assert all(heard == [Finished("s")] for heard in fleet.heard.values())
    assert await one.find("s") is None
    assert await one.count() == 0
    assert await one.enter("s", "a:1") is None
    assert await one.number("s") == 0
    assert await one.push("s", b"") is None
    assert await one.change("s", 1, a_record()) is None
    assert not await one.append("s", "c1", 1, [b""], worker="w", last=True)
    assert not await one.leave("s", "a:1", b"ghost")
    assert await one.take_reader("s", "a:1") is None
    assert await one.state("s") is None
    await one.touch(["s"])
    assert await one.find("s") is None, "none of this brings it back"


@case
async def time_is_up_once(fleet: Fleet) -> None:
    """A session that something happens in lives on; what nobody ends is named again."""
    one, two, three = fleet.workers
    for sid in ("touched", "found", "entered", "idle"):
        await one.open(sid, a_record("ann"), None, ttl=60, total=4, per_owner=4)
    await fleet.pass_time(50)
    await one.touch(["touched", "unknown"])
    await two.find("found")
    await three.enter("entered", "a:1")
    assert await one.due() == []
    await fleet.pass_time(15)
    assert await two.due() == ["idle"]
    assert await three.due() == []
    assert await one.end("found", due=True) is None
    await fleet.pass_time(6)
    assert await three.due() == ["idle"]
    ended = await asyncio.gather(*(worker.end("idle", due=True) for worker in fleet.workers))
    assert sorted(outcome is None for outcome in ended) == [False, True, True]
    await one.open("next", a_record("ann"), None, ttl=60, total=4, per_owner=4)
    await fleet.pass_time(58)
    assert set(await one.due()) == {"touched", "found", "entered"}
    await two.touch(["found"])
    assert await three.end("found", due=True) is None
    assert await three.end("touched", due=True) is not None


@case
async def numbers_are_unique(fleet: Fleet) -> None:
    one = fleet.workers[0]
    await one.open("s", a_record(), None, **ROOM)
    taken = await asyncio.gather(*(worker.number("s", 3) for worker in fleet.workers * 10))
    assert sorted(taken) == list(range(1, 91, 3))


def _fields(told: Occurred) -> tuple[str, int, bytes, bool]:
    return told.track, told.number, told.note, told.last
