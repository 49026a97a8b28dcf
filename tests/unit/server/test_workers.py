"""Bounded threads for `def` functions."""

import asyncio
import gc
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from callboard.errors import Fail, Reason
from callboard.server.workers import Workers

VALUE: ContextVar[str] = ContextVar("value", default="none")


class Door:
    """A function that blocks its thread until it is let through.

    Attributes:
        inside: How many are in it now.
        ran: Arguments of those that got in.
    """

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self._open = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)

    def __call__(self, value: Any = None) -> Any:
        self.ran.append(value)
        self._entered.release()
        assert self._open.acquire(timeout=10)
        return value

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._open.release()

    async def entered(self, count: int = 1) -> None:
        for _ in range(count):
            assert await asyncio.get_running_loop().run_in_executor(None, lambda: self._entered.acquire(timeout=10))


def make_workers(threads: int = 2, waiting: int = 2) -> Workers:
    return Workers(asyncio.get_running_loop(), max_threads=threads, max_waiting=waiting)


def pool_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("callboard-")}


async def idle(workers: Workers) -> None:
    async with asyncio.timeout(5):
        while workers.busy:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_a_function_runs_on_a_thread_with_its_context() -> None:
    # A20
    VALUE.set("mine")
    workers = make_workers()
    assert await workers.run(lambda a: (a, VALUE.get(), threading.get_ident() != workers.thread), {"a": 1}) == (1, "mine", True)
    await idle(workers)
    workers.close()


async def test_threads_are_used_again() -> None:
    workers = make_workers(threads=5)
    threads = {await workers.run(threading.get_ident, {}) for _ in range(20)}
    assert len(threads) == 1
    workers.close()


async def test_so_many_run_so_many_wait_and_no_more() -> None:
    # SA40, A20
    workers, door = make_workers(threads=2, waiting=2), Door()
    running = [asyncio.create_task(workers.run(door, {"value": number})) for number in range(4)]
    await door.entered(2)
    with pytest.raises(Fail) as caught:
        await workers.run(door, {})
    assert caught.value.reason is Reason.OVERLOADED
    assert sorted(door.ran) == [0, 1]
    door.let(4)
    assert await asyncio.gather(*running) == [0, 1, 2, 3]
    await idle(workers)
    assert await workers.run(lambda: 5, {}) == 5
    workers.close()


async def test_the_loop_goes_on_while_threads_block() -> None:
    # A20
    workers, door = make_workers(threads=3), Door()
    running = [asyncio.create_task(workers.run(door, {})) for _ in range(3)]
    await door.entered(3)
    turns = 0
    for _ in range(100):
        await asyncio.sleep(0)
        turns += 1
    assert turns == 100
    door.let(3)
    await asyncio.gather(*running)
    workers.close()


async def test_a_cancelled_call_is_free_at_once_but_its_thread_counts_until_it_returns() -> None:
    # SA25
    workers, door = make_workers(threads=1, waiting=0), Door()
    task = asyncio.create_task(workers.run(door, {}))
    await door.entered()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers.busy == 1
    with pytest.raises(Fail):
        await workers.run(door, {})
    door.let()
    await idle(workers)
    assert await workers.run(lambda: "free", {}) == "free"
    workers.close()


async def test_what_still_waits_when_it_is_cancelled_never_runs() -> None:
    # CN-04, SA25
    workers, door = make_workers(threads=1, waiting=1), Door()
    first = asyncio.create_task(workers.run(door, {"value": "first"}))
    await door.entered()
    second = asyncio.create_task(workers.run(door, {"value": "second"}))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert workers.busy == 1  # its place is free again
    third = asyncio.create_task(workers.run(door, {"value": "third"}))
    door.let(3)
    assert [await first, await third] == ["first", "third"]
    assert door.ran == ["first", "third"]
    workers.close()


async def test_what_was_dropped_is_not_kept() -> None:
    """While all threads hang, calls that come and go must not pile up."""

    class Payload:
        pass

    workers, door = make_workers(threads=1, waiting=1), Door()
    first = asyncio.create_task(workers.run(door, {}))
    await door.entered()
    payload = Payload()
    kept = weakref.ref(payload)
    second = asyncio.create_task(workers.run(door, {"value": payload}))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    del payload, second
    await asyncio.sleep(0)  # the loop itself holds the exception until this step is over
    gc.collect()
    assert kept() is None
    door.let()
    await first
    workers.close()


@pytest.mark.parametrize("error", [ValueError("x"), Fail(Reason.INVALID_PARAMS), MemoryError()])
async def test_what_a_function_raises_is_its_callers(error: Exception) -> None:
    def fail() -> None:
        raise error

    workers = make_workers()
    with pytest.raises(type(error)) as caught:
        await workers.run(fail, {})
    assert caught.value is error
    await idle(workers)
    workers.close()


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, BaseException])
async def test_what_would_end_more_than_the_call_is_wrapped(kind: type[BaseException]) -> None:
    # One call's error, not the process's
    def fail() -> None:
        raise kind

    workers = make_workers()
    with pytest.raises(RuntimeError, match=kind.__name__) as caught:
        await workers.run(fail, {})
    assert isinstance(caught.value.__cause__, kind)
    await idle(workers)
    assert await workers.run(lambda: 1, {}) == 1
    workers.close()


async def test_closing_ends_the_threads() -> None:
    before = pool_threads()
    workers = make_workers(threads=3)
    door = Door()
    running = [asyncio.create_task(workers.run(door, {})) for _ in range(3)]
    await door.entered(3)
    threads = pool_threads() - before
    assert len(threads) == 3
    door.let(3)
    await asyncio.gather(*running)
    workers.close()
    for thread in threads:
        await asyncio.get_running_loop().run_in_executor(None, thread.join, 5)
        assert not thread.is_alive()


def test_a_function_that_outlives_the_loop_ends_quietly() -> None:
    # SA25, A35
    door = Door()
    before = pool_threads()

    async def main() -> threading.Thread:
        workers = make_workers(threads=1)
        task = asyncio.create_task(workers.run(door, {}))
        await door.entered()
        task.cancel()
        await asyncio.wait([task])
        workers.close()
        (thread,) = pool_threads() - before
        return thread

    thread = asyncio.run(main())
    assert thread.daemon
    door.let()
    thread.join(5)
    assert not thread.is_alive()


async def test_one_principal_leaves_threads_for_others() -> None:
    """SA40: who calls blocking functions without end gets three quarters of the threads, and half of those who may wait."""
    workers, door = make_workers(threads=4, waiting=4), Door()
    greedy = [asyncio.ensure_future(workers.run(door, {"value": number}, principal="greedy")) for number in range(5)]
    await door.entered(3)
    with pytest.raises(Fail, match="half of all that may") as caught:
        await workers.run(door, {}, principal="greedy")
    assert caught.value.reason is Reason.OVERLOADED
    assert await workers.run(lambda: "served", {}, principal="modest") == "served"
    assert await workers.run(lambda: "served", {}) == "served"
    door.let(5)
    assert await asyncio.gather(*greedy) == [0, 1, 2, 3, 4]
    await idle(workers)
    assert (workers._running, workers._running_of, workers._waiting) == (0, {}, {})
    workers.close()


async def test_those_who_wait_take_turns_by_principal() -> None:
    workers, door = make_workers(threads=1, waiting=10), Door()
    first = asyncio.ensure_future(workers.run(door, {"value": "first"}))
    await door.entered()
    calls = [asyncio.ensure_future(workers.run(door, {"value": (who, number)}, principal=who)) for who in "aaab" for number in "1"]
    later = asyncio.ensure_future(workers.run(door, {"value": "nobody"}))
    await asyncio.sleep(0)
    door.let(6)
    await asyncio.gather(first, later, *calls)
    assert door.ran == ["first", ("a", "1"), ("b", "1"), "nobody", ("a", "1"), ("a", "1")]
    await idle(workers)
    workers.close()


async def test_a_call_that_is_cancelled_while_it_waits_gives_its_place_back() -> None:
    workers, door = make_workers(threads=1, waiting=2), Door()
    first = asyncio.ensure_future(workers.run(door, {"value": "first"}, principal="a"))
    await door.entered()
    for _ in range(50):
        waiting = asyncio.ensure_future(workers.run(door, {"value": "never"}, principal="a"))
        await asyncio.sleep(0)
        assert (workers.busy, len(workers._waiting)) == (2, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert (workers.busy, len(workers._waiting)) == (1, 0)
    door.let()
    assert await first == "first"
    assert door.ran == ["first"]
    workers.close()
