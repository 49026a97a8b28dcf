"""What every store must do, run against each implementation. A new one joins by a row in `STORES`; nothing else changes."""

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from redis_server import needs_redis
from store_kinds import STORES, AnyStore, Kind

from callboard.stores.base import Bus, Event, EventLog
from callboard.stores.memory import MemoryEventLog
from callboard.stores.redis import RedisStore

HOUR = 3600.0  # what time passes by in tests: too long for the real one to matter
LIMIT = 10.0  # seconds until a message must have arrived
T = TypeVar("T")


@pytest.fixture(params=[pytest.param(name, marks=needs_redis if name == "redis" else ()) for name in STORES])
async def kind(request: pytest.FixtureRequest) -> AsyncIterator[Kind]:
    async with STORES[request.param]() as made:
        yield made


@pytest.fixture
def store(kind: Kind) -> AnyStore:
    return kind.store


# -------------------------------------------------------------------------------------------------------------------------- Kv


async def test_what_was_put_is_there(store: AnyStore) -> None:
    version = await store.kv.put("k", b"\x00v\xff")
    entry = await store.kv.get("k")
    assert entry is not None
    assert entry.value == b"\x00v\xff"
    assert entry.version == version
    assert await store.kv.get("another") is None


async def test_every_put_has_a_new_version(store: AnyStore) -> None:
    versions = [await store.kv.put("k", b"v") for _ in range(5)]
    assert len(set(versions)) == 5


async def test_expecting_a_version_writes_only_at_that_version(store: AnyStore) -> None:
    first = await store.kv.put("k", b"1", expect=0)
    assert first is not None
    assert await store.kv.put("k", b"no", expect=0) is None
    second = await store.kv.put("k", b"2", expect=first)
    assert second is not None
    assert await store.kv.put("k", b"no", expect=first) is None
    entry = await store.kv.get("k")
    assert entry is not None
    assert entry == (b"2", second)


async def test_a_version_of_a_former_life_fits_no_more(kind: Kind, store: AnyStore) -> None:
    """A key that was deleted or has expired and came back must not be taken for the one that was read before."""
    for end in ("delete", "expire"):
        old = await store.kv.put("k", b"1", ttl=5000.0)
        if end == "delete":
            assert await store.kv.delete("k")
        else:
            await kind.pass_time(5000.0)
        assert await store.kv.put("k", b"2", expect=0) is not None
        assert await store.kv.put("k", b"no", expect=old) is None
        assert await store.kv.delete("k")


async def test_a_deleted_key_is_absent(store: AnyStore) -> None:
    await store.kv.put("k", b"v")
    assert await store.kv.delete("k") is True
    assert await store.kv.get("k") is None
    assert await store.kv.delete("k") is False


async def test_a_key_whose_time_is_up_is_absent(kind: Kind, store: AnyStore) -> None:
    await store.kv.put("k", b"v", ttl=5000.0)
    await store.kv.put("gone", b"v", ttl=5000.0)
    await kind.pass_time(4900.0)
    assert await store.kv.get("k") is not None
    await kind.pass_time(100.0)
    assert await store.kv.get("k") is None
    assert await store.kv.delete("gone") is False
    assert await store.kv.put("k", b"v", expect=0) is not None


async def test_a_new_put_sets_a_new_time(kind: Kind, store: AnyStore) -> None:
    await store.kv.put("extended", b"v", ttl=5000.0)
    await store.kv.put("for ever", b"v", ttl=5000.0)
    await kind.pass_time(4000.0)
    await store.kv.put("extended", b"v", ttl=5000.0)
    await store.kv.put("for ever", b"v")
    await kind.pass_time(4000.0)
    assert await store.kv.get("extended") is not None
    await kind.pass_time(1_000_000.0)
    assert await store.kv.get("extended") is None
    assert await store.kv.get("for ever") is not None


async def test_a_time_may_be_very_long_or_very_short(kind: Kind, store: AnyStore) -> None:
    for key, ttl in (("inf", float("inf")), ("1e18", 1e18), ("short", 1e-6)):
        assert await store.kv.put(key, b"v", ttl=ttl) is not None
    await kind.pass_time(1.0)
    assert await store.kv.get("inf") is not None
    assert await store.kv.get("1e18") is not None
    await asyncio.sleep(0.005)
    assert await store.kv.get("short") is None


async def test_of_many_that_expect_the_same_version_one_wins(store: AnyStore) -> None:
    version = await store.kv.put("k", b"start")
    results = await asyncio.gather(*(store.kv.put("k", b"%d" % number, expect=version) for number in range(50)))
    (winner,) = [number for number, result in enumerate(results) if result is not None]
    entry = await store.kv.get("k")
    assert entry is not None
    assert entry.value == b"%d" % winner


class KvWalk(RuleBasedStateMachine):
    """Any order of operations on a few keys, against a dict that knows when each entry ends."""

    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.kind = self.make()
        self.store = self.kind.store
        self.now = 0.0
        self.entries: dict[str, tuple[bytes, int, float | None]] = {}
        self.used: set[tuple[str, int]] = set()

    def make(self) -> Kind:
        """An empty store."""
        raise NotImplementedError

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(step, LIMIT))

    def live(self, key: str) -> tuple[bytes, int, float | None] | None:
        entry = self.entries.get(key)
        return entry if entry is not None and (entry[2] is None or self.now < entry[2]) else None

    @rule(
        target=versions,
        key=st.sampled_from("abc"),
        value=st.binary(max_size=4),
        expect=st.none() | st.just(0) | versions,
        ttl=st.none() | st.integers(1, 4),
    )
    def put(self, key: str, value: bytes, expect: int | None, ttl: int | None) -> int:
        found = self.live(key)
        fits = expect is None or expect == (0 if found is None else found[1])
        version = self.run(self.store.kv.put(key, value, expect=expect, ttl=None if ttl is None else ttl * HOUR))
        assert (version is not None) == fits
        if version is None:
            return 0
        assert (key, version) not in self.used, "versions are never reused for one key"
        self.used.add((key, version))
        self.entries[key] = (value, version, None if ttl is None else self.now + ttl)
        return version

    @rule(key=st.sampled_from("abc"))
    def delete(self, key: str) -> None:
        assert self.run(self.store.kv.delete(key)) == (self.live(key) is not None)
        self.entries.pop(key, None)

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.run(self.kind.pass_time(seconds * HOUR))
        self.now += seconds

    @invariant()
    def same_contents(self) -> None:
        for key in "abc":
            entry, expected = self.run(self.store.kv.get(key)), self.live(key)
            assert entry == (None if expected is None else expected[:2])

    def teardown(self) -> None:
        self.loop.close()


# --------------------------------------------------------------------------------------------------------------------- EventLog


PLANS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=30)


async def play_log(log: EventLog, plan: list[tuple[str, int]], after: int) -> None:
    """Append by a plan of streams and of how much is kept, and see that what is read is what should be left."""
    expected: dict[str, list[Event]] = {"a": [], "b": []}
    counts = {"a": 0, "b": 0}
    for stream in expected:
        await log.drop(stream)
    for stream, keep in plan:
        counts[stream] += 1
        data = f"{stream}{counts[stream]}".encode()
        assert await log.append(stream, data, keep=keep) == counts[stream]
        expected[stream] = [*expected[stream], Event(counts[stream], data)][-keep:]
    for stream, events in expected.items():
        assert await log.read(stream, 0) == events
        assert await log.read(stream, after) == [event for event in events if event.id > after]


@settings(deadline=None)
@given(plan=PLANS, after=st.integers(0, 31))
def test_a_log_keeps_the_newest_events_under_ids_that_count_on(plan: list[tuple[str, int]], after: int) -> None:
    asyncio.run(play_log(MemoryEventLog(), plan, after))


async def test_logs_of_every_store_do_so(store: AnyStore) -> None:
    chance = random.Random(7)
    for _ in range(20):
        plan = [(chance.choice("ab"), chance.randint(1, 4)) for _ in range(chance.randint(0, 30))]
        await play_log(store.log, plan, chance.randint(0, 31))


async def test_a_log_without_events_is_empty(store: AnyStore) -> None:
    assert await store.log.read("nowhere", 0) == []
    await store.log.drop("nowhere")


async def test_a_dropped_stream_is_forgotten(store: AnyStore) -> None:
    await store.log.append("s", b"1", keep=10)
    await store.log.append("t", b"1", keep=10)
    await store.log.drop("s")
    assert await store.log.read("s", 0) == []
    assert [event.data for event in await store.log.read("t", 0)] == [b"1"]


async def test_ids_go_on_when_nothing_is_kept(store: AnyStore) -> None:
    assert await store.log.append("s", b"1", keep=0) == 1
    assert await store.log.read("s", 0) == []
    assert await store.log.append("s", b"2", keep=1) == 2


# --------------------------------------------------------------------------------------------------------------------------- Bus


class Ear:
    """Somebody who listens: keeps what comes, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    def __call__(self, message: bytes) -> None:
        self.heard.append(message)

    async def wait_for(self, count: int) -> list[bytes]:
        """What was heard, once so much has been."""
        try:
            async with asyncio.timeout(LIMIT):
                while len(self.heard) < count:  # noqa: ASYNC110 - it comes from any thread
                    await asyncio.sleep(0.001)
        except TimeoutError:
            pytest.fail(f"heard {self.heard}, waited for {count}")
        return list(self.heard)


async def test_every_subscriber_of_a_topic_hears_every_message_once_and_in_order(store: AnyStore) -> None:
    ears = [Ear(), Ear()]
    stranger, end = Ear(), Ear()
    for ear in ears:
        store.bus.subscribe("t", ear)
    store.bus.subscribe("other", stranger)
    messages = [b"%d" % number for number in range(100)]
    for message in messages:
        store.bus.publish("t", message)
    store.bus.subscribe("end", end)
    store.bus.publish("end", b".")
    await end.wait_for(1)
    assert [await ear.wait_for(100) for ear in ears] == [messages, messages]
    assert stranger.heard == []


async def test_nothing_is_kept_for_those_who_come_later(store: AnyStore) -> None:
    ear, early = Ear(), Ear()
    store.bus.subscribe("t", early)
    store.bus.publish("t", b"early")
    await early.wait_for(1)
    store.bus.subscribe("t", ear)
    store.bus.publish("t", b"now")
    assert await ear.wait_for(1) == [b"now"]


async def test_whoever_leaves_hears_no_more(store: AnyStore) -> None:
    leaving, staying = Ear(), Ear()
    leave = store.bus.subscribe("t", leaving)
    store.bus.subscribe("t", staying)
    store.bus.publish("t", b"1")
    await leaving.wait_for(1)
    leave()
    leave()
    store.bus.publish("t", b"2")
    await staying.wait_for(2)
    assert leaving.heard == [b"1"]


async def test_one_who_subscribed_twice_leaves_once(store: AnyStore) -> None:
    ear = Ear()
    leave = store.bus.subscribe("t", ear)
    store.bus.subscribe("t", ear)
    leave()
    leave()
    store.bus.publish("t", b"1")
    assert await ear.wait_for(1) == [b"1"]


async def test_a_subscriber_that_raises_harms_nobody(store: AnyStore, caplog: pytest.LogCaptureFixture) -> None:
    def explode(message: bytes) -> None:
        raise ValueError(message)

    ear = Ear()
    store.bus.subscribe("t", explode)
    store.bus.subscribe("t", ear)
    with caplog.at_level(logging.ERROR):
        store.bus.publish("t", b"1")
        store.bus.publish("t", b"2")
        assert await ear.wait_for(2) == [b"1", b"2"]
    assert "ValueError" in caplog.text, "and is not silent"


async def test_a_subscriber_may_leave_or_come_while_it_hears(store: AnyStore) -> None:
    late, end = Ear(), Ear()

    def once(_message: bytes) -> None:
        leave()
        store.bus.subscribe("t", late)

    leave = store.bus.subscribe("t", once)
    store.bus.subscribe("t", end)
    store.bus.publish("t", b"1")
    await end.wait_for(1)
    store.bus.publish("t", b"2")
    assert await late.wait_for(1) == [b"2"]
    await end.wait_for(2)


def publishers(bus: Bus, count: int, messages: int) -> Iterator[threading.Thread]:
    """Threads that publish at the same time."""
    for publisher in range(count):

        def publish(own: int = publisher) -> None:
            for number in range(messages):
                bus.publish("t", b"%d:%d" % (own, number))

        yield threading.Thread(target=publish)


async def test_any_thread_may_publish_and_its_order_stays(store: AnyStore) -> None:
    ear = Ear()
    store.bus.subscribe("t", ear)
    threads = list(publishers(store.bus, 4, 200))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    heard = [tuple(map(int, message.split(b":"))) for message in await ear.wait_for(800)]
    for publisher in range(4):
        assert [number for own, number in heard if own == publisher] == list(range(200))


async def test_subscribing_from_many_threads_loses_nobody(store: AnyStore) -> None:
    ears = [Ear() for _ in range(200)]
    threads = [threading.Thread(target=store.bus.subscribe, args=("t", ear)) for ear in ears]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    store.bus.publish("t", b"1")
    for ear in ears:
        assert await ear.wait_for(1) == [b"1"]


async def test_messages_have_positions_and_can_be_asked_for(kind: Kind) -> None:
    """SESSIONS: what a stream that is taken up again has missed is found by the position up to which it was told."""
    bus, other = kind.store.bus, kind.twin.bus
    ear, seen = Ear(), []
    other.subscribe("t", lambda _message: seen.append(other.position))
    other.subscribe("end", ear)
    start = bus.position
    assert await bus.since("") == []
    assert await bus.since(start) == []
    for number in range(5):
        bus.publish("t", b"%d" % number)
    bus.publish("end", b".")
    await ear.wait_for(1)
    after = await other.since(start)
    assert [(topic, message) for _, topic, message in after] == [*(("t", b"%d" % number) for number in range(5)), ("end", b".")]
    assert [position for position, *_ in after][:5] == seen, "within deliver, position is that of the message"
    assert other.position == after[-1][0]
    assert await other.since(seen[2]) == after[3:]
    assert await other.since(other.position) == []
    assert sorted(seen, key=lambda position: tuple(map(int, position.split("-")))) == seen


# ----------------------------------------------------------------------------------------------------------- several processes


async def test_one_process_sees_what_another_wrote(kind: Kind) -> None:
    version = await kind.store.kv.put("k", b"1", expect=0)
    assert version is not None
    assert await kind.twin.kv.get("k") == (b"1", version)
    assert await kind.twin.kv.put("k", b"2", expect=0) is None
    assert await kind.twin.kv.put("k", b"2", expect=version) is not None
    assert await kind.store.kv.put("k", b"3", expect=version) is None
    assert await kind.store.log.append("s", b"1", keep=5) == 1
    assert await kind.twin.log.append("s", b"2", keep=5) == 2
    assert await kind.store.log.read("s", 0) == [Event(1, b"1"), Event(2, b"2")]


async def test_a_message_reaches_the_worker_it_is_for(kind: Kind) -> None:
    here, there = Ear(), Ear()
    kind.store.direct, kind.twin.direct = here, there
    kind.store.tell(kind.twin.worker, b"for you")
    kind.store.tell("nobody", b"for nobody")
    kind.store.tell("all", b"for all")
    assert await there.wait_for(2) == [b"for you", b"for all"]
    assert await here.wait_for(1) == [b"for all"]
    assert kind.store.worker != kind.twin.worker
    assert kind.store.hears
    assert kind.store.epoch == 0


async def test_a_message_that_can_not_be_handled_harms_none_after_it(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    heard = Ear()

    def hear(message: bytes) -> None:
        heard(message)
        if message == b"1":
            raise ValueError(message)

    kind.twin.direct = hear
    with caplog.at_level(logging.ERROR):
        kind.store.tell(kind.twin.worker, b"1")
        kind.store.tell(kind.twin.worker, b"2")
        assert await heard.wait_for(2) == [b"1", b"2"]
    assert "could not be handled" in caplog.text


async def test_a_worker_lives_until_it_is_closed(kind: Kind) -> None:
    assert await kind.store.alive(kind.twin.worker)
    assert await kind.store.alive(kind.store.worker)
    worker = kind.twin.worker
    await kind.twin.close()
    await kind.twin.close()
    if isinstance(kind.store, RedisStore):  # nobody is called dead by one who has only just come back itself
        assert await kind.store.alive(worker)
        kind.store.patience = 0.0
    assert not await kind.store.alive(worker)
    await kind.twin.open()
    assert await kind.store.alive(kind.twin.worker)


async def test_a_store_answers_until_it_is_closed(kind: Kind) -> None:
    await kind.store.check()
    await kind.store.open()
    await kind.store.close()
    await kind.store.open()
    await kind.store.check()


def walk_over(name: str) -> type[KvWalk]:
    """The walk over one kind of store."""

    class Walk(KvWalk):
        def __init__(self) -> None:
            self.stack = AsyncExitStack()
            super().__init__()

        def make(self) -> Kind:
            return self.run(self.stack.enter_async_context(STORES[name]()))

        def teardown(self) -> None:
            self.run(self.stack.aclose())
            super().teardown()

    return Walk


TestMemoryKvWalk = walk_over("memory").TestCase
TestMemoryKvWalk.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestRedisKvWalk = needs_redis(walk_over("redis").TestCase)
TestRedisKvWalk.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)
