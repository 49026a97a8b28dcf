"""Bounded threads for `def` functions: a blocking function must not stop the event loop (field case A20).

A thread that a cancelled request left behind counts until its function returns; past the bound new work is refused at once. Threads are
daemons: a function that never returns can't keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from callboard.errors import Fail, Reason

__all__ = ["MAX_THREADS", "MAX_WAITING", "Workers", "is_imposed"]

T = TypeVar("T")
# Before 3.12 the table that `asyncio.current_task` looks into: there it is a Python function, which would show in every call.
current_task: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None] = (
    asyncio.current_task if sys.version_info >= (3, 12) else vars(asyncio.tasks)["_current_tasks"].get
)
MAX_THREADS = 40
MAX_WAITING = 1000
_Ticket: TypeAlias = list[tuple[asyncio.Future[Any], Callable[[], Any]]]


class Workers:
    """The threads of one event loop.

    Args:
        loop: The loop that results go back to.
        max_threads: How many functions run at once.
        max_waiting: How many more may wait for a thread; past that `run` raises `Fail(OVERLOADED)`.
    """

    __slots__ = ("_threads", "_tickets", "busy", "loop", "max_threads", "max_waiting", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_threads: int = MAX_THREADS, max_waiting: int = MAX_WAITING) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.max_threads = max_threads
        self.max_waiting = max_waiting
        self.busy = 0
        self._threads = 0
        self._tickets: SimpleQueue[_Ticket | None] = SimpleQueue()

    async def run(self, function: Callable[..., T], kwargs: dict[str, Any], *, bounded: bool = True) -> T:
        """Call `function(**kwargs)` on a thread, with this task's context variables.

        Args:
            function: The function.
            kwargs: Its arguments.
            bounded: Whether the bound on waiting calls counts; not for teardown, which must run.

        Raises:
            Fail: All threads are busy and too much waits already (OVERLOADED).
        """
        if bounded and self.busy >= self.max_threads + self.max_waiting:
            raise Fail(Reason.OVERLOADED, f"All {self.max_threads} threads are busy and {self.max_waiting} calls wait: try again later.")
        future: asyncio.Future[T] = self.loop.create_future()
        # Whoever takes the ticket decides: a thread to do the work, or its cancelled caller to drop it, so that nothing of it is kept.
        ticket: _Ticket = [(future, partial(copy_context().run, function, **kwargs))]
        self.busy += 1
        if self.busy > self._threads < self.max_threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"callboard-{self._threads}", daemon=True).start()
        self._tickets.put(ticket)
        try:
            return await future
        except asyncio.CancelledError:
            if _take(ticket) is not None:
                self.busy -= 1
            raise
        finally:
            del future  # it may hold an error, that its frames, and one of those is this

    def close(self) -> None:
        """Let idle threads end; busy ones end with their function."""
        for _ in range(self._threads):
            self._tickets.put(None)
        self._threads = 0

    def _work(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            taken = _take(ticket)
            if taken is None:
                continue
            future, work = taken
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - whatever ends the function is the caller's to see
                self._settle(future.set_exception, future, _carried(error))
            else:
                self._settle(future.set_result, future, value)
                del value
            del ticket, taken, future, work

    def _settle(self, setter: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
        def settle() -> None:
            self.busy -= 1
            if not future.done():
                setter(value)

        try:
            self.loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop has closed; nobody waits any more


def is_imposed(error: BaseException) -> bool:
    """Whether what ended an author's function is not its own doing, and goes on its way: somebody cancels this task, or the process ends."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def _take(ticket: _Ticket) -> tuple[asyncio.Future[Any], Callable[[], Any]] | None:
    try:
        return ticket.pop()
    except IndexError:
        return None


def _carried(error: BaseException) -> BaseException:
    """A future can't carry StopIteration, and a thread's SystemExit must not end the loop."""
    if isinstance(error, StopIteration | asyncio.CancelledError) or not isinstance(error, Exception):
        carried = RuntimeError(f"the function raised {type(error).__name__}")
        carried.__cause__ = error
        return carried
    return error
