"""An event loop whose clock jumps to the next timer when nothing else can happen: minutes pass in microseconds, always in the same order.

    @virtual_time
    async def test_a_day_passes() -> None:
        await asyncio.sleep(86_400)

Rules:
    1. The clock stands still while anything is ready to run, and while a thread is at work: then the wait is real.
    2. A thread that waits (for a lock, an event, a queue, a future) is not at work: only a timer or the test can set it going again.
    3. Where nothing is ready, no thread works and no timer is set, the test could only hang: it fails at once.
    4. What a callback or a task raised and nobody saw fails the test.
"""

import asyncio
import selectors
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from functools import wraps
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple, Unpack

from callboard.server.workers import Workers

__all__ = ["VirtualLoop", "now", "run", "settle", "virtual_time"]

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
START: Final = 1_000.0  # what the clock shows first: a time of 0 would hide a forgotten start
MOMENT: Final = 1e-6  # seconds that pass when a test lets everything settle
BOUND: Final = 20.0  # real seconds that threads may work while nothing else happens


class _Selector(selectors.DefaultSelector):
    """Waits by turning the loop's clock.

    Attributes:
        loop: Whose clock.
    """

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; if nothing is, the clock goes on by `timeout`."""
        found = super().select(0)
        since = time.monotonic()
        while not found and (timeout is None or timeout > 0):
            working = self.loop.threads_at_work()
            found = super().select(0.001 if working else 0)  # a thread may have called the loop just before it came to rest
            if found or not working:
                break
            if time.monotonic() - since > BOUND:
                raise RuntimeError(f"A thread has worked for {BOUND:g} seconds.")
        if not found:
            self.loop.pass_time(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; see the module.

    Attributes:
        unseen: What was raised where nobody looks (rule 4).
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.unseen: list[dict[str, Any]] = []
        self._now = START
        self._lent = 0
        self._others = set(threading.enumerate())
        super().__init__(selector)
        self.set_exception_handler(lambda _, context: self.unseen.append(context))

    def time(self) -> float:
        """Seconds of this loop's own clock."""
        return self._now

    def pass_time(self, seconds: float | None) -> None:
        """Let time pass, to the next timer and no further.

        Raises:
            RuntimeError: There is no timer (rule 3).
        """
        if seconds is None:
            waiting = [repr(task) for task in asyncio.all_tasks(self)]
            raise RuntimeError("Everything waits for what can't come:\n  " + "\n  ".join(waiting))
        self._now += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Call a function on a thread of an executor; it is at work until it has returned and the loop has what it returned."""
        loan = _Loan()

        def lent() -> T:
            loan.begun = True
            try:
                return func(*args)
            finally:
                self.call_soon_threadsafe(self._take_back, loan)

        self._lent += 1
        future = super().run_in_executor(executor, lent)
        future.add_done_callback(lambda _: self._take_back(loan))
        return future

    def _take_back(self, loan: "_Loan") -> None:
        loan.halves += 1
        if loan.halves == 2 or not loan.begun:  # one that was cancelled in time never begins
            self._lent -= 1

    def threads_at_work(self) -> bool:
        """Whether a thread can go on by itself (rule 2)."""
        loop_thread, frames = threading.current_thread(), sys._current_frames()
        owed, resting = self._lent, 0
        pools: dict[int, Workers] = {}
        for thread in threading.enumerate():
            if thread in self._others or thread is loop_thread or thread.ident is None or thread.ident not in frames:
                continue
            stack = list(_outward(frames[thread.ident]))
            pool = next((found for frame in stack if (found := _pool(frame)) is not None), None)
            if pool is not None:
                pools[id(pool)] = pool
            elif not any(frame.f_code.co_name == "_worker" and "concurrent" in frame.f_code.co_filename for frame in stack):
                owed += 1
            resting += _rests(stack[0])
        owed += sum(min(pool.busy, pool.max_threads) for pool in pools.values() if pool.loop is self)
        return owed > resting


class _Loan:
    """A function on a thread of an executor.

    Attributes:
        begun: Whether it has begun.
        halves: Which of two things have happened: that it returned, and that the loop heard of it.
    """

    def __init__(self) -> None:
        self.begun = False
        self.halves = 0


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _pool(frame: FrameType) -> Workers | None:
    """Our own pool whose thread this is."""
    owner = frame.f_locals.get("self") if frame.f_code is Workers._work.__code__ else None
    return owner if isinstance(owner, Workers) else None


def _rests(frame: FrameType) -> bool:
    """Whether a thread waits in `threading.Condition.wait` (events, futures and most queues do) and has not been notified."""
    if frame.f_code is not threading.Condition.wait.__code__:
        return False
    seen = frame.f_locals
    return seen.get("waiter") in seen["self"]._waiters


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Let everything happen that needs no time; on virtual time only."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)
    await asyncio.sleep(MOMENT)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a loop of its own.

    Raises:
        AssertionError: Something raised what nobody saw.
    """
    loops: list[VirtualLoop] = []

    def make_loop() -> AbstractEventLoop:
        loops.append(VirtualLoop())
        return loops[0]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        result = runner.run(main())
    assert not loops[0].unseen, f"nobody saw this: {loops[0].unseen}"
    return result


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on virtual time; its fixtures must not be async."""

    @wraps(test)
    def on_virtual_time(*args: P.args, **kwargs: P.kwargs) -> None:
        run(lambda: test(*args, **kwargs))

    return on_virtual_time
