"""Bounded threads for `def` functions: a blocking function must not stop the event loop (field case A20).

A thread that a cancelled request left behind counts until its function returns; past the bound new work is refused at once. Threads are
daemons: a function that never returns can't keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from callboard.errors import Fail, Reason

__all__ = ["MAX_THREADS", "MAX_WAITING", "Workers", "fair_share", "is_imposed"]

T = TypeVar("T")
# Before 3.12 the table that `asyncio.current_task` looks into: there it is a Python function, which would show in every call.
current_task: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None] = (
    asyncio.current_task if sys.version_info >= (3, 12) else vars(asyncio.tasks)["_current_tasks"].get
)
MAX_THREADS = 40
MAX_WAITING = 1000


def fair_share(threads: int) -> int:
    """How many threads one principal may have by default, of so many: three quarters, rounded up."""
    return -(-threads * 3 // 4)


class _Ticket:
    """A call that wants a thread. Whoever takes it decides: a thread to do the work, or its cancelled caller to drop it."""

    __slots__ = ("_taken", "principal", "waits")

    def __init__(self, future: asyncio.Future[Any], work: Callable[[], Any], principal: str | None) -> None:
        self._taken = [(future, work)]
        self.principal = principal
        self.waits = False

    def take(self) -> tuple[asyncio.Future[Any], Callable[[], Any]] | None:
        """The call, for the first who comes; from any thread."""
        try:
            return self._taken.pop()
        except IndexError:
            return None


class Workers:
    """The threads of one event loop. Where calls wait, their principals take turns.

    Args:
        loop: The loop that results go back to.
        max_threads: How many functions run at once.
        max_waiting: How many more may wait for a thread; past that `run` raises `Fail(OVERLOADED)`. One principal may have half of them.
        per_principal: How many functions of one principal run at once; None for three quarters of all.

    Attributes:
        busy: How many run or wait.
    """

    __slots__ = (
        "_running", "_running_of", "_threads", "_tickets", "_waiting",
        "busy", "loop", "max_threads", "max_waiting", "per_principal", "thread",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        max_threads: int = MAX_THREADS,
        max_waiting: int = MAX_WAITING,
        per_principal: int | None = None,
    ) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.max_threads = max_threads
        self.max_waiting = max_waiting
        self.per_principal = fair_share(max_threads) if per_principal is None else per_principal
        self.busy = 0
        self._running = 0
        self._running_of: dict[str, int] = {}
        self._waiting: OrderedDict[str | None, deque[_Ticket]] = OrderedDict()
        self._threads = 0
        self._tickets: SimpleQueue[_Ticket | None] = SimpleQueue()

    @property
    def running(self) -> int:
        """Functions that run on a thread."""
        return self._running

    @property
    def waiting(self) -> int:
        """Functions that wait for one."""
        return self.busy - self._running

    async def run(self, function: Callable[..., T], kwargs: dict[str, Any], *, bounded: bool = True, principal: str | None = None) -> T:
        """Call `function(**kwargs)` on a thread, with this task's context variables.

        Args:
            function: The function.
            kwargs: Its arguments.
            bounded: Whether the bound on waiting calls counts; not for teardown, which must run.
            principal: For whom; None where nobody knows.

        Raises:
            Fail: All threads are busy and too much waits already (OVERLOADED).
        """
        if bounded:
            self._check_room(principal)
        future: asyncio.Future[T] = self.loop.create_future()
        # A cancelled caller takes what it brought out of the ticket, so that nothing of it is kept.
        ticket = _Ticket(future, partial(copy_context().run, function, **kwargs), principal)
        self.busy += 1
        if self._has_thread(principal):
            self._start(ticket)
        else:
            ticket.waits = True
            self._waiting.setdefault(principal, deque()).append(ticket)
        try:
            return await future
        except asyncio.CancelledError:
            if ticket.take() is not None:
                self._withdraw(ticket)
            raise
        finally:
            del future  # it may hold an error, that its frames, and one of those is this

    def close(self) -> None:
        """Let idle threads end; busy ones end with their function."""
        for _ in range(self._threads):
            self._tickets.put(None)
        self._threads = 0

    def _check_room(self, principal: str | None) -> None:
        """See that a call may wait, where it has to.

        Raises:
            Fail: It may not.
        """
        if self.busy >= self.max_threads + self.max_waiting:
            text = f"All {self.max_threads} threads are busy and {self.max_waiting} calls wait (threads, thread_queue): try again later."
            raise Fail(Reason.OVERLOADED, text)
        share = (self.max_waiting + 1) // 2
        if principal is not None and len(self._waiting.get(principal, ())) >= share and not self._has_thread(principal):
            text = f"{share} calls of yours wait for a thread, half of all that may (thread_queue): try again later."
            raise Fail(Reason.OVERLOADED, text)

    def _has_thread(self, principal: str | None) -> bool:
        return self._running < self.max_threads and (principal is None or self._running_of.get(principal, 0) < self.per_principal)

    def _start(self, ticket: _Ticket) -> None:
        ticket.waits = False
        principal = ticket.principal
        self._running += 1
        if principal is not None:
            self._running_of[principal] = self._running_of.get(principal, 0) + 1
        if self._running > self._threads < self.max_threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"callboard-{self._threads}", daemon=True).start()
        self._tickets.put(ticket)

    def _withdraw(self, ticket: _Ticket) -> None:
        """A call was cancelled before a thread took it."""
        if not ticket.waits:
            self._end(ticket.principal)
            return
        self.busy -= 1
        queue = self._waiting[ticket.principal]
        queue.remove(ticket)
        if not queue:
            del self._waiting[ticket.principal]

    def _end(self, principal: str | None) -> None:
        """A call that had a thread is over: the next one has it, of the principal who has waited longest for a turn."""
        self.busy -= 1
        self._running -= 1
        if principal is not None:
            self._running_of[principal] -= 1
            if not self._running_of[principal]:
                del self._running_of[principal]
        for following in self._waiting:
            if self._has_thread(following):
                break
        else:
            return
        queue = self._waiting[following]
        ticket = queue.popleft()
        self._waiting.move_to_end(following)
        if not queue:
            del self._waiting[following]
        self._start(ticket)

    def _work(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            taken = ticket.take()
            if taken is None:
                continue
            future, work = taken
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - whatever ends the function is the caller's to see
                self._settle(future.set_exception, future, _carried(error), ticket.principal)
            else:
                self._settle(future.set_result, future, value, ticket.principal)
                del value
            del ticket, taken, future, work

    def _settle(self, setter: Callable[[Any], None], future: asyncio.Future[Any], value: Any, principal: str | None) -> None:
        def settle() -> None:
            self._end(principal)
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


def _carried(error: BaseException) -> BaseException:
    """A future can't carry StopIteration, and a thread's SystemExit must not end the loop."""
    if isinstance(error, StopIteration | asyncio.CancelledError) or not isinstance(error, Exception):
        carried = RuntimeError(f"the function raised {type(error).__name__}")
        carried.__cause__ = error
        return carried
    return error
