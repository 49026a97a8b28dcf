"""Tasks of this process: the asyncio shell around `core.task`, and the interface that an engine over several processes fills in later.

How a call becomes a task (TX-03, TX-07): its function runs in a task of the loop of its own from the start, since what has begun is never
moved. The request waits for `TURNS` turns of the loop. What the function asks before it has waited for anything else is asked in rounds,
as in any call. What is over by then is an ordinary answer, except where the tool always makes a task. Else the record is made, and from
then on asks go there; the request is answered with it, unless the function is over `SOON` after all and nobody needs to hear of a task.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from callboard.core.inputs import Ask
from callboard.core.outcome import Deferred, Outcome, Reply
from callboard.core.task import Moment, Result, Task
from callboard.errors import REASONS, Fail, NoAnswerError, Reason, RegistrationError
from callboard.server.context import Context
from callboard.server.limits import refuse_moved
from callboard.server.mount import Mount
from callboard.server.places import Places
from callboard.server.rounds import run_rounds
from callboard.server.task_contract import Runnable, Tasks, tell_time
from callboard.server.workers import is_imposed
from callboard.wire.jsonrpc import encode, encode_error

__all__ = ["CANCELLED", "RESTARTED", "Job", "MemoryTasks", "Mirror", "Runnable", "Tasks", "pick_ttl", "tell_time"]

T = TypeVar("T")
TURNS = 2
# Seconds that an answer with a task is held back: who is told of one waits a whole `poll` for what a `def` function does in no time.
SOON = 0.02
# Seconds that the functions of tasks get to end when the server does.
GRACE = 1.0
# A client of 2025 may ask for less time than it takes to fetch a result.
LEAST_TTL = 1.0
RESTARTED = "restarted: the process that ran this task is gone."
CANCELLED = "Its client cancelled it."
_ID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{8})-[0-9a-f]{32}")


class Mirror(Protocol):
    """Who keeps a second record of each task, for other processes; called on the loop that the task runs in."""

    def changed(self, job: Job) -> None:
        """A task has changed, or ended."""
        ...

    def dropped(self, job: Job) -> None:
        """A task is not kept any more."""
        ...


class Job:
    """A call that may become a task.

    Attributes:
        ctx: The call's; None once it has ended.
        owner: Whose it is.
        mount: Where it runs.
        run: The task of the loop that its function runs in.
        task: Its record; None as long as it may still be an ordinary call.
        outcome: What its function came to.
        said: Its last progress message; empty for none.
        stopped: Whether nobody wants it any more.
        held: Whether nobody knows of its record yet.
        read: Whether its owner has seen how it ended.
        number: Its place among all jobs.
        waiting: Who waits for an answer, by key.
        watchers: Who wants to know of its changes.
        timer: What ends it when it takes too long, or drops it when its time is up.
    """

    __slots__ = (
        "_table",
        "ctx",
        "held",
        "mount",
        "number",
        "outcome",
        "owner",
        "read",
        "run",
        "said",
        "stopped",
        "task",
        "timer",
        "waiting",
        "watchers",
    )

    def __init__(self, table: MemoryTasks, ctx: Context, owner: str | None) -> None:
        self._table = table
        self.ctx: Context | None = ctx
        self.owner = owner
        self.mount = ctx.mount
        self.run: asyncio.Task[None] | None = None
        self.task: Task | None = None
        self.outcome: Outcome | None = None
        self.said = ""
        self.stopped = False
        self.held = False
        self.read = False
        self.number = 0
        self.waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.watchers: list[Callable[[Task], None]] = []
        self.timer: asyncio.TimerHandle | None = None

    @property
    def begun(self) -> bool:
        """Whether the call has been answered with a task."""
        return self.task is not None

    @property
    def over(self) -> bool:
        """Whether what the function comes to doesn't count any more."""
        return self.stopped or (self.task is not None and self.task.over)

    def say(self, message: str) -> None:
        """Make a progress message the task's status message."""
        self.said = message
        if self.task is not None and self.task.say(message, tell_time()):
            self._table.changed(self)


class MemoryTasks:
    """Tasks in this process's memory, which run in this process.

    Results outlive connections, not the process: an id says which process made it, and of one that is gone its tasks have failed.

    Args:
        ttl: Seconds that a task is kept after its end, at most: a 2025 client may ask for less.
        max_age: Seconds that the work of a task may take; then it has failed.
        poll: Seconds that a client is told to wait between two looks at a task.
        **more: Nothing; how many tasks there may be is in the limits.

    Raises:
        RegistrationError: An option can't work.

    Attributes:
        ttl: As given.
        max_age: As given.
        poll: As given.
        mirror: Who keeps a second record of each task; None as long as this process is alone.
    """

    def __init__(
        self,
        *,
        ttl: float = 3600.0,
        max_age: float = 24 * 3600.0,
        poll: float = 1.0,
        **more: Any,
    ) -> None:
        refuse_moved(more)
        if more:
            raise RegistrationError(f"MemoryTasks takes no {min(more)!r}; its options are ttl, max_age and poll.")
        for name, value in (("ttl", ttl), ("max_age", max_age), ("poll", poll)):
            if type(value) not in {int, float} or not 0 < value < 1e9:
                raise RegistrationError(f"MemoryTasks: {name} is a number of seconds above 0, not {value!r}.")
        self.ttl = ttl
        self.max_age = max_age
        self.poll = poll
        self.mirror: Mirror | None = None
        self._boot = secrets.token_hex(4)
        self._began = tell_time()
        self._jobs: dict[str, Job] = {}
        self._places = Places("tasks", "max_tasks", self._make_room)
        self._count = 0
        self._kept = 0

    # What `Tasks` says

    async def start(self, ctx: Context, tool: Runnable, raw: msgspec.Raw | None, *, always: bool) -> Outcome:
        """See `Tasks.start`."""
        owner, requested = ctx.principal, ctx.request.envelope.task
        if requested is not None:
            _check_open(ctx.mount)
        await self._take_place(ctx)
        job = ctx.job = Job(self, ctx, owner)
        if requested is not None:
            self._open(job, requested.get("ttl"))
        job.run = ctx.task = job.mount.workers.loop.create_task(self._work(job, tool, raw))
        if requested is None and (outcome := await self._await_task(job, always=always)) is not None:
            self._dismiss(job)
            return outcome
        assert job.task is not None
        return Deferred(job.task.render(job.task.updated))

    async def _take_place(self, ctx: Context) -> None:
        """Take a place, in all processes that share the store; of one principal's there whoever keeps the second records knows."""
        limits, is_alone = ctx.mount.limits, self.mirror is None
        own = limits.max_tasks_per_principal if is_alone else sys.maxsize
        held = self._places.take(ctx.principal, limits.max_tasks, own, None if is_alone else ctx.mount.server.store)
        if held is not None:
            await held

    async def find(self, task_id: str, owner: str | None) -> Task | None:
        """See `Tasks.find`."""
        job = self._find(task_id, owner)
        if job is None:
            return self._recall(task_id)
        job.read = job.over
        return job.task

    async def answer(self, task_id: str, owner: str | None, responses: Mapping[str, Any]) -> None:
        """See `Tasks.answer`."""
        job = self._find(task_id, owner)
        if job is not None:
            await _at_home(job, partial(self._answer, job, responses))

    async def cancel(self, task_id: str, owner: str | None) -> bool:
        """See `Tasks.cancel`."""
        job = self._find(task_id, owner)
        return job is not None and await _at_home(job, partial(self._cancel, job))

    async def page(self, owner: str | None, after: int, size: int) -> tuple[list[Task], int | None]:
        """See `Tasks.page`."""
        self._sweep()
        found = [job for job in list(self._jobs.values()) if job.owner == owner and job.number > after]
        tasks = [job.task for job in found[:size] if job.task is not None]
        return tasks, found[size - 1].number if len(found) > size else None

    def watch(self, task_id: str, tell: Callable[[Task], None]) -> Callable[[], None]:
        """See `Tasks.watch`."""
        job = self._jobs.get(task_id)
        if job is None or job.over:
            return lambda: None  # nothing comes any more
        job.watchers.append(tell)

        def stop() -> None:
            if tell in job.watchers:
                job.watchers.remove(tell)

        return stop

    # What whoever keeps second records needs

    def job(self, task_id: str) -> Job | None:
        """The job of a task, whoever owns it."""
        return self._jobs.get(task_id)

    def take_on(self, ctx: Context, tool: Runnable, raw: msgspec.Raw | None, task: Task) -> Job:
        """Run a call that is a task already, as some other process has recorded it.

        Args:
            ctx: The call's.
            tool: What it calls.
            raw: Its arguments.
            task: Its record.
        """
        job = ctx.job = Job(self, ctx, ctx.principal)
        self._places.take(job.owner, sys.maxsize, sys.maxsize)
        self._register(job, task, max(task.created.seconds + self.max_age - tell_time().seconds, 0.0))
        job.run = ctx.task = job.mount.workers.loop.create_task(self._work(job, tool, raw))
        return job

    def let_go(self, job: Job) -> None:
        """Stop a job whose task goes on elsewhere, or is recorded and not kept here."""
        job.stopped = True
        if job.run is not None:
            job.run.cancel()
        self._dismiss(job)

    def end(self, job: Job, fail: Fail | None) -> None:
        """End a job as has been decided elsewhere: with an error, or cancelled."""
        if job.task is None:
            return
        if fail is None:
            self._cancel(job)
        else:
            self._refuse(job, fail)

    def give_answers(self, job: Job, responses: Mapping[str, Any]) -> None:
        """Give a job answers that have come elsewhere."""
        if job.task is not None:
            self._answer(job, responses)

    # From here to the end of a job, on its own event loop

    async def _await_task(self, job: Job, *, always: bool) -> Outcome | None:
        """Wait until a call is a task; or for what it comes to where it is none."""
        assert job.run is not None
        try:
            await _wait_a_little(job)
            if job.outcome is None and not job.run.done():
                self._open(job)
                if not always:
                    job.held = True
                    await asyncio.wait([job.run], timeout=SOON)
        except BaseException:
            job.stopped = True
            job.run.cancel()
            raise
        finally:
            job.held = False
            if job.stopped:
                self._dismiss(job)
        if job.run is not None and job.run.cancelled():
            return Fail(Reason.CANCELLED)
        outcome = job.outcome
        if outcome is not None and not (always and _is_of_the_function(outcome)):
            return outcome
        if job.task is None:
            self._open(job)
        if outcome is not None:
            self._finish(job, outcome)
        return None

    async def _work(self, job: Job, tool: Runnable, raw: msgspec.Raw | None) -> None:
        ctx = job.ctx
        assert ctx is not None
        outcome: Outcome
        try:
            outcome = await run_rounds(ctx, partial(tool.call, raw, ctx))
        except BaseException as error:
            if is_imposed(error) or (job.stopped and isinstance(error, asyncio.CancelledError)):
                if job.task is not None:  # and not by us: the event loop ends, or the function has cancelled itself
                    self._refuse(job, Fail(Reason.CANCELLED, "The work was cancelled."))
                raise
            outcome = ctx.mount.server.crash(f"tools/call {tool.key[:100]!a}", error)
        finally:
            ctx.task = None  # its traceback holds the Context
            if ctx.asks is not None:
                ctx.asks.task = None
        job.outcome = outcome
        if job.task is not None and not job.held:
            self._finish(job, outcome)
        del outcome  # an error that was raised holds this frame

    def _dismiss(self, job: Job) -> None:
        """The call is no task; nobody knows of its record, where there is one."""
        if job.task is None:
            self._places.give_back(job.owner)
        else:
            self._drop(job)
            self._abandon(job)
        job.ctx = job.run = job.task = None

    def _open(self, job: Job, requested_ttl: float | None = None) -> None:
        """Make the record: from now on the call is a task (TX-06)."""
        now = tell_time()
        task_id = f"{self._boot}-{int(now.seconds):08x}-{secrets.token_hex(16)}"
        task = Task(task_id, now, ttl=pick_ttl(requested_ttl, self.ttl), poll=self.poll)
        if job.said:
            task.say(job.said, now)
        self._register(job, task, self.max_age)

    def _register(self, job: Job, task: Task, seconds: float) -> None:
        """Keep a job by its record, and end it when it has taken so many seconds."""
        job.task = task
        self._count += 1
        job.number = self._count
        self._jobs[task.id] = job
        assert job.ctx is not None
        job.ctx.begin_asking().route = partial(self._ask, job)
        job.timer = job.mount.workers.loop.call_later(seconds, self._give_up, job)
        job.mount.closing.setdefault(self, partial(self.close, job.mount))

    async def _ask(self, job: Job, ask: Ask) -> dict[str, Any]:
        """Put an ask into the record and wait for its answer."""
        task = job.task
        key = None if task is None else task.ask(ask.key, ask.request, tell_time())
        if task is None or key is None:
            raise NoAnswerError("The task has ended.")
        answer = job.waiting[key] = job.mount.workers.loop.create_future()
        self.changed(job)
        try:
            result: dict[str, Any] = await answer
            return result
        finally:
            job.waiting.pop(key, None)
            if task.withdraw(key, tell_time()):
                self.changed(job)

    def _answer(self, job: Job, responses: Mapping[str, Any]) -> None:
        assert job.task is not None
        taken = job.task.answer(responses, tell_time())
        for key, response in taken.items():
            waiting = job.waiting.get(key)
            if waiting is None or waiting.done():
                continue
            if isinstance(response, Exception):
                waiting.set_exception(response)
            else:
                waiting.set_result(response)
        if taken:
            self.changed(job)

    def _cancel(self, job: Job) -> bool:
        assert job.task is not None
        cancelled = job.task.cancel(CANCELLED, tell_time())
        if cancelled:
            self._end(job)
        return cancelled

    def _give_up(self, job: Job) -> None:
        self._refuse(job, Fail(Reason.TIMED_OUT, f"The task was stopped: it took longer than {self.max_age:g} s (max_age)."))

    def _refuse(self, job: Job, fail: Fail) -> None:
        assert job.task is not None
        if job.task.refuse(fail, tell_time()):
            self._end(job)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        """Take what the function came to; encoded here, where it is still the call's own fault if it can't be."""
        assert job.task is not None
        if job.task.over:
            return
        try:
            end = _encode_end(outcome)
        except (TypeError, ValueError, RecursionError) as error:
            end = job.mount.server.crash("The result of a task", error)
        if isinstance(end, Result) and len(end.value) > job.mount.limits.max_result:
            end = job.mount.load.refuse_result(len(end.value))
        if isinstance(end, Fail):
            self._refuse(job, end)
        elif job.task.complete(end, tell_time()):
            self._end(job)
            self._kept += len(end.value)
            self._forget_to(job.mount.limits.max_kept)

    def _end(self, job: Job) -> None:
        """A task has ended: stop what still runs, and keep the record for a while."""
        task = job.task
        assert task is not None
        run, job.run, job.ctx = job.run, None, None
        loop = job.mount.workers.loop
        self._abandon(job)
        if not loop.is_closed():
            if run is not None and not run.done() and job.outcome is None:
                job.stopped = True
                run.cancel()
            job.timer = loop.call_later(task.ttl, self._drop, job)
        job.outcome = None
        self.changed(job)
        job.watchers.clear()

    @staticmethod
    def _abandon(job: Job) -> None:
        """Wait for nothing any more; who waits on a thread, or beside the function, would wait for ever."""
        if job.timer is not None:
            job.timer.cancel()
        if not job.mount.workers.loop.is_closed():
            for waiting in list(job.waiting.values()):
                waiting.cancel()

    def changed(self, job: Job) -> None:
        """Tell whoever wants to know."""
        if job.task is not None:
            if self.mirror is not None:
                self.mirror.changed(job)
            for tell in list(job.watchers):
                tell(job.task)

    def _drop(self, job: Job) -> None:
        if job.task is not None and self._jobs.pop(job.task.id, None) is not None:
            self._places.give_back(job.owner)
            self._kept -= _size(job)
            if self.mirror is not None:
                self.mirror.dropped(job)

    def _forget_to(self, most: int) -> None:
        """Drop the oldest results of whoever keeps most, until no more than so many bytes are kept."""
        while self._kept > most:
            kept: Counter[str | None] = Counter()
            for job in self._jobs.values():
                kept[job.owner] += _size(job)
            ((heaviest, _),) = kept.most_common(1)
            self._drop(next(job for job in self._jobs.values() if job.owner == heaviest and _size(job)))

    async def close(self, mount: Mount) -> None:
        """End the tasks of a mount, which is about to close."""
        jobs = [job for job in list(self._jobs.values()) if job.mount is mount]
        runs = [job.run for job in jobs if job.run is not None and not job.run.done()]
        for job in jobs:
            self._refuse(job, Fail(Reason.INTERNAL, RESTARTED))
        if runs:
            await asyncio.wait(runs, timeout=GRACE)

    # Who may have one, and which

    def _make_room(self, owner: str | None, *, is_full: bool) -> None:
        """Drop what is past its time, else the oldest that ended and whose owner knows: the caller's own, or anybody's where all are too many."""
        self._sweep()
        read = [job for job in list(self._jobs.values()) if job.read and (is_full or job.owner == owner)]
        if read:
            self._drop(min(read, key=lambda job: (job.owner != owner, job.number)))

    def _sweep(self) -> None:
        """Drop what is past its time, also where the event loop that would have done it is gone."""
        now = tell_time().seconds
        for job in list(self._jobs.values()):
            if job.task is not None and job.task.expires is not None and job.task.expires <= now:
                self._drop(job)

    def _find(self, task_id: str, owner: str | None) -> Job | None:
        job = self._jobs.get(task_id)
        if job is None or job.owner != owner:
            return None
        expires = None if job.task is None else job.task.expires
        return job if expires is None or expires > tell_time().seconds else None

    def _recall(self, task_id: str) -> Task | None:
        """What is known of a task that another process, since gone, has created: that it has failed."""
        named = _ID.fullmatch(task_id)
        if named is None or task_id.startswith(self._boot):
            return None
        created = int(named[1], 16)
        if not self._began.seconds - self.max_age - self.ttl < created <= self._began.seconds:
            return None
        text = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        task = Task(task_id, Moment(created, text), ttl=self.ttl, poll=self.poll)
        task.refuse(Fail(Reason.INTERNAL, RESTARTED), self._began)
        return task


def pick_ttl(requested: float | None, most: float) -> float:
    """Seconds that a task is kept after its end.

    Args:
        requested: Milliseconds that its client asks for; None for no wish.
        most: Seconds that it is kept at most.
    """
    return most if requested is None else min(max(requested, LEAST_TTL * 1000), most * 1000) / 1000


def _size(job: Job) -> int:
    """Bytes that are kept of what it came to."""
    return 0 if job.task is None or job.task.result is None else len(job.task.result.value)


async def _wait_a_little(job: Job) -> None:
    """Wait until it shows what a call comes to: an answer, a question, or work that takes time."""
    run, ctx = job.run, job.ctx
    assert run is not None
    assert ctx is not None
    for _ in range(TURNS):
        await asyncio.sleep(0)
    if not run.done() and ctx.asks is not None and (ctx.asks.log.pending or ctx.asks.suspended):
        await asyncio.wait([run])  # TX-07: it is asked in rounds, and there is no task yet
    if not run.done():
        _check_open(job.mount)


def _check_open(mount: Mount) -> None:
    """See that work that begins now would be ended with the server.

    Raises:
        Fail: The server ends already.
    """
    if mount.draining:
        raise Fail(Reason.OVERLOADED, "The server is shutting down.")


def _is_of_the_function(outcome: Outcome) -> bool:
    """Whether an outcome may be a task's: not where the client is to be asked, or the call was refused before it began."""
    if isinstance(outcome, Fail):
        rule = REASONS.get(outcome.reason)
        return rule is None or (rule.status in {200, 400} and outcome.reason is not Reason.MISSING_CAPABILITY)
    return isinstance(outcome, Reply)


def _encode_end(outcome: Outcome) -> Result | Fail:
    if isinstance(outcome, Reply):
        value = {**outcome.value, "resultType": "complete"}
        return Result(encode(value), is_error=value.get("isError") is True, wrap=outcome.wrap)
    if not isinstance(outcome, Fail):
        raise TypeError(f"A task can't come to {type(outcome).__name__}.")
    encode_error(0, 0, outcome.text, outcome.data)
    return outcome


async def _at_home(job: Job, call: Callable[[], T]) -> T:
    """Do something to a job on its own event loop, or wherever, once that is gone."""
    workers = job.mount.workers
    if workers.thread == threading.get_ident() or workers.loop.is_closed():
        return call()

    async def there() -> T:
        return call()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), workers.loop))
