"""What every store must do, run against each implementation. A new one joins by a row in `STORES`; nothing else changes."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from callboard.stores.base import Bus, Event, EventLog, Kv
from callboard.stores.memory import MemoryBus, MemoryEventLog, MemoryKv

LIMIT = 10.0  # seconds until a message must have arrived
T = TypeVar("T")


class Clock:
    """Time that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Store:
    """One implementation of all three, empty, and the time it lives by.

    Attributes:
        advance: Lets so many seconds pass.
    """

    kv: Kv
    log: EventLog
    bus: Bus
    advance: Callable[[float], None]


def memory() -> Store:
    clock = Clock()

    def advance(seconds: float) -> None:
        clock.now += seconds

    return Store(MemoryKv(clock), MemoryEventLog(), MemoryBus(), advance)


STORES: dict[str, Callable[[], Store]] = {"memory": memory}
every_store = pytest.mark.parametrize("name", STORES)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param]()


# -------------------------------------------------------------------------------------------------------------------------- Kv


async def test_what_was_put_is_there(store: Store) -> None:
    version = await store.kv.put("k", b"\x00v\xff")
    entry = await store.kv.get("k")
    assert entry is not None
    assert entry.value == b"\x00v\xff"
    assert entry.version == version
    assert await store.kv.get("another") is None


async def test_every_put_has_a_new_version(store: Store) -> None:
    versions = [await store.kv.put("k", b"v") for _ in range(5)]
    assert len(set(versions)) == 5


async def test_expecting_a_version_writes_only_at_that_version(store: Store) -> None:
    first = await store.kv.put("k", b"1", expect=0)
    assert first is not None
    assert await store.kv.put("k", b"no", expect=0) is None
    second = await store.kv.put("k", b"2", expect=first)
    assert second is not None
    assert await store.kv.put("k", b"no", expect=first) is None
    entry = await store.kv.get("k")
    assert entry is not None
    assert entry == (b"2", second)


async def test_a_version_of_a_former_life_fits_no_more(store: Store) -> None:
    """A key that was deleted or has expired and came back must not be taken for the one that was read before."""
    for end in ("delete", "expire"):
        old = await store.kv.put("k", b"1", ttl=5.0)
        if end == "delete":
            assert await store.kv.delete("k")
        else:
            store.advance(5.0)
        assert await store.kv.put("k", b"2", expect=0) is not None
        assert await store.kv.put("k", b"no", expect=old) is None
        assert await store.kv.delete("k")


async def test_a_deleted_key_is_absent(store: Store) -> None:
    await store.kv.put("k", b"v")
    assert await store.kv.delete("k") is True
    assert await store.kv.get("k") is None
    assert await store.kv.delete("k") is False


async def test_a_key_whose_time_is_up_is_absent(store: Store) -> None:
    await store.kv.put("k", b"v", ttl=5.0)
    await store.kv.put("gone", b"v", ttl=5.0)
    store.advance(4.9)
    assert await store.kv.get("k") is not None
    store.advance(0.1)
    assert await store.kv.get("k") is None
    assert await store.kv.delete("gone") is False
    assert await store.kv.put("k", b"v", expect=0) is not None


async def test_a_new_put_sets_a_new_time(store: Store) -> None:
    await store.kv.put("extended", b"v", ttl=5.0)
    await store.kv.put("for ever", b"v", ttl=5.0)
    store.advance(4.0)
    await store.kv.put("extended", b"v", ttl=5.0)
    await store.kv.put("for ever", b"v")
    store.advance(4.0)
    assert await store.kv.get("extended") is not None
    store.advance(1_000_000.0)
    assert await store.kv.get("extended") is None
    assert await store.kv.get("for ever") is not None


async def test_of_many_that_expect_the_same_version_one_wins(store: Store) -> None:
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
        self.store = self.make()
        self.now = 0.0
        self.entries: dict[str, tuple[bytes, int, float | None]] = {}
        self.used: set[tuple[str, int]] = set()

    def make(self) -> Store:
        """An empty store."""
        raise NotImplementedError

    def run(self, step: Awaitable[T]) -> T:
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
        version = self.run(self.store.kv.put(key, value, expect=expect, ttl=ttl))
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
        self.store.advance(seconds)
        self.now += seconds

    @invariant()
    def same_contents(self) -> None:
        for key in "abc":
            entry, expected = self.run(self.store.kv.get(key)), self.live(key)
            assert entry == (None if expected is None else expected[:2])

    def teardown(self) -> None:
        self.loop.close()


# --------------------------------------------------------------------------------------------------------------------- EventLog


@every_store
@settings(deadline=None)
@given(plan=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=30), after=st.integers(0, 31))
def test_a_log_keeps_the_newest_events_under_ids_that_count_on(name: str, plan: list[tuple[str, int]], after: int) -> None:
    async def play() -> None:
        log = STORES[name]().log
        expected: dict[str, list[Event]] = {"a": [], "b": []}
        counts = {"a": 0, "b": 0}
        for stream, keep in plan:
            counts[stream] += 1
            data = f"{stream}{counts[stream]}".encode()
            assert await log.append(stream, data, keep=keep) == counts[stream]
            expected[stream] = [*expected[stream], Event(counts[stream], data)][-keep:]
        for stream, events in expected.items():
            assert await log.read(stream, 0) == events
            assert await log.read(stream, after) == [event for event in events if event.id > after]

    asyncio.run(play())


async def test_a_log_without_events_is_empty(store: Store) -> None:
    assert await store.log.read("nowhere", 0) == []
    await store.log.drop("nowhere")


async def test_a_dropped_stream_is_forgotten(store: Store) -> None:
    await store.log.append("s", b"1", keep=10)
    await store.log.append("t", b"1", keep=10)
    await store.log.drop("s")
    assert await store.log.read("s", 0) == []
    assert [event.data for event in await store.log.read("t", 0)] == [b"1"]


async def test_ids_go_on_when_nothing_is_kept(store: Store) -> None:
    assert await store.log.append("s", b"1", keep=0) == 1
    assert await store.log.read("s", 0) == []
    assert await store.log.append("s", b"2", keep=1) == 2


# --------------------------------------------------------------------------------------------------------------------------- Bus


class Ear:
    """Somebody who listens: keeps what comes, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._condition = threading.Condition()

    def __call__(self, message: bytes) -> None:
        with self._condition:
            self.heard.append(message)
            self._condition.notify_all()

    def wait_for(self, count: int) -> list[bytes]:
        """What was heard, once so much has been."""
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.heard) >= count, LIMIT), f"heard {self.heard}, waited for {count}"
            return list(self.heard)


def test_every_subscriber_of_a_topic_hears_every_message_once_and_in_order(store: Store) -> None:
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
    end.wait_for(1)
    assert [ear.wait_for(100) for ear in ears] == [messages, messages]
    assert stranger.heard == []


def test_nothing_is_kept_for_those_who_come_later(store: Store) -> None:
    store.bus.publish("t", b"early")
    ear = Ear()
    store.bus.subscribe("t", ear)
    store.bus.publish("t", b"now")
    assert ear.wait_for(1) == [b"now"]


def test_whoever_leaves_hears_no_more(store: Store) -> None:
    leaving, staying = Ear(), Ear()
    leave = store.bus.subscribe("t", leaving)
    store.bus.subscribe("t", staying)
    store.bus.publish("t", b"1")
    leaving.wait_for(1)
    leave()
    leave()
    store.bus.publish("t", b"2")
    staying.wait_for(2)
    assert leaving.heard == [b"1"]


def test_one_who_subscribed_twice_leaves_once(store: Store) -> None:
    ear = Ear()
    leave = store.bus.subscribe("t", ear)
    store.bus.subscribe("t", ear)
    leave()
    leave()
    store.bus.publish("t", b"1")
    assert ear.wait_for(1) == [b"1"]


def test_a_subscriber_that_raises_harms_nobody(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def explode(message: bytes) -> None:
        raise ValueError(message)

    ear = Ear()
    store.bus.subscribe("t", explode)
    store.bus.subscribe("t", ear)
    with caplog.at_level(logging.ERROR):
        store.bus.publish("t", b"1")
        store.bus.publish("t", b"2")
        assert ear.wait_for(2) == [b"1", b"2"]
    assert "ValueError" in caplog.text, "and is not silent"


def test_a_subscriber_may_leave_or_come_while_it_hears(store: Store) -> None:
    late, end = Ear(), Ear()

    def once(_message: bytes) -> None:
        leave()
        store.bus.subscribe("t", late)

    leave = store.bus.subscribe("t", once)
    store.bus.subscribe("t", end)
    store.bus.publish("t", b"1")
    end.wait_for(1)
    store.bus.publish("t", b"2")
    assert late.wait_for(1) == [b"2"]
    end.wait_for(2)


def publishers(bus: Bus, count: int, messages: int) -> Iterator[threading.Thread]:
    """Threads that publish at the same time."""
    for publisher in range(count):

        def publish(own: int = publisher) -> None:
            for number in range(messages):
                bus.publish("t", b"%d:%d" % (own, number))

        yield threading.Thread(target=publish)


def test_any_thread_may_publish_and_its_order_stays(store: Store) -> None:
    ear = Ear()
    store.bus.subscribe("t", ear)
    threads = list(publishers(store.bus, 4, 200))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    heard = [tuple(map(int, message.split(b":"))) for message in ear.wait_for(800)]
    for publisher in range(4):
        assert [number for own, number in heard if own == publisher] == list(range(200))


def test_subscribing_from_many_threads_loses_nobody(store: Store) -> None:
    ears = [Ear() for _ in range(200)]
    threads = [threading.Thread(target=store.bus.subscribe, args=("t", ear)) for ear in ears]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    store.bus.publish("t", b"1")
    for ear in ears:
        assert ear.wait_for(1) == [b"1"]


class MemoryKvWalk(KvWalk):
    """The walk over the memory store."""

    def make(self) -> Store:
        return memory()


MemoryKvWalk.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestMemoryKvWalk = MemoryKvWalk.TestCase
