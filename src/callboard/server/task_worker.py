"""Runs the tasks of `DocketTasks`, in a process of its own: pydocket hands them out, this module runs them, the records say how they stand.

From its call to its end a task goes:

    list in Redis ── intake ──> pydocket ── one worker ──> claimed in its record ── run ──> its end, in its record

Each step may happen twice, or be left half done by a process that dies; the claim is what counts:
    1. Who runs a task is in its record, by compare-and-set. What has ended, or runs elsewhere, is not begun.
    2. pydocket hands out again what a worker had that gives no sign of life. Such a task is begun again where its tool is idempotent, up to
       `MOST_LOST` times; else it has failed, and says why.
    3. A worker that is to end takes nothing new, and waits for what runs. What takes longer goes back where it may be begun again; else it
       has failed, and says why.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from callboard.core.outcome import Outcome
from callboard.errors import Fail, Reason, RegistrationError, StoreError
from callboard.server.asking import Asks
from callboard.server.catalogue import find
from callboard.server.context import Context
from callboard.server.mount import Mount
from callboard.server.task_contract import Runnable, tell_time
from callboard.server.task_ledger import LOST, Kept, UnreadableError
from callboard.server.task_queue import INBOX, DocketTasks, put_in
from callboard.server.task_record import Record, Work, restore, write_down
from callboard.server.task_shared import Keeper, RecordedTasks
from callboard.server.task_table import Job, MemoryTasks
from callboard.server.task_work import begin_context, recall, remember

__all__ = ["STOPPED", "TaskWorker", "docket_url", "require_docket"]

T = TypeVar("T")
STOPPED = "The worker that ran this task was stopped, and its tool is not idempotent, so that it was not begun again."
_AGAIN = "Begun again: the worker that ran it is gone."
_BACK = "Waits to be begun again: the worker that ran it was stopped."
# Times that a task is begun again after its worker died: it may be what kills them.
MOST_LOST = 5
# Ids that are taken from the list at once, and seconds between two looks at it where nobody tells.
BATCH = 64
LOOK = 1.0
# Seconds that ends get to be written down when the worker ends.
WRITING = 5.0
# What servers put on the list: the digest of an id, and how often the task was begun.
_ENTRY = re.compile(rb"[0-9a-f]{32} [0-9]{1,9}").fullmatch
_log = logging.getLogger("callboard")


class RecordedAsks(Asks):
    """What a call asks and remembers, written down so that it is known when the call is begun again.

    Attributes:
        keeper: Of its task's record.
    """

    __slots__ = ("keeper",)
    keeper: Keeper

    async def ask(self, method: str, params: dict[str, Any], key: str | None, read: Callable[[dict[str, Any]], T]) -> T:
        """See `Asks.ask`; the answer is in the record before the function goes on."""
        answer = await super().ask(method, params, key, read)
        await self.keeper.save()
        return answer

    async def once(self, key: str, function: Callable[[], Any]) -> Any:
        """See `Context.once`; the value is in the record before the function goes on."""
        is_known = key in self.log.memory.saved
        value = await super().once(key, function)
        if not is_known:
            await self.keeper.save()
        return value


class _Missing:
    """A tool that this program does not have."""

    def __init__(self, key: str) -> None:
        self.key = key

    async def call(self, raw: msgspec.Raw | None, ctx: Context) -> Outcome:  # noqa: ARG002 - as of a tool
        """Fail."""
        return Fail(Reason.UNKNOWN_TOOL, f"The worker's program has no tool {self.key[:100]!r}: servers and workers run the same program.")


class Running(NamedTuple):
    """A task that runs here."""

    job: Job
    keeper: Keeper


class TaskWorker:
    """Runs tasks until it is to end.

    Args:
        mount: Where they run.
        tasks: What has taken them.
        concurrency: How many run at once.
        grace: Seconds that they may go on when the worker is to end.
    """

    def __init__(self, mount: Mount, tasks: DocketTasks, *, concurrency: int = 10, grace: float = 30.0) -> None:
        self._mount = mount
        self._tasks = tasks
        self._concurrency = concurrency
        self._grace = grace
        self._recorded: RecordedTasks = tasks.recorded
        self._local = MemoryTasks(ttl=tasks.ttl, max_age=tasks.max_age, poll=tasks.poll)
        self._local.mirror = self
        self._running: dict[str, Running] = {}
        self._come = asyncio.Event()
        self._ending = asyncio.Event()
        self._settled: set[str] = set()

    async def serve(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Run tasks.

        Args:
            stop: Is set when the worker is to end.
            ready: Called once it takes tasks.

        Raises:
            StoreError: The Redis can't be reached, to begin with.
        """
        from docket import Docket, Worker

        store: Any = (await self._tasks.ready()).ledger.store
        # What pydocket knows of a task is of no use once it is over: the record says it all.
        async with Docket(
            name=store.key("docket"), url=docket_url(self._tasks.url or store.url), execution_ttl=timedelta(minutes=1)
        ) as docket:

            async def callboard_task(entry: str) -> None:
                await self._perform(entry.partition(" ")[0])

            docket.register(callboard_task)
            leave = store.bus.subscribe(INBOX, partial(self._hear, asyncio.get_running_loop()))
            worker = Worker(
                docket,
                name=store.worker,
                concurrency=self._concurrency,
                redelivery_timeout=timedelta(seconds=self._tasks.redelivery),
                reconnection_delay=timedelta(seconds=1),
                schedule_automatic_tasks=False,
            )
            try:
                async with worker:
                    ready()
                    await self._work(worker, partial(self._take_in, docket, callboard_task, store), stop)
            finally:
                leave()

    def changed(self, job: Job) -> None:
        """See `Mirror.changed`."""
        running = None if job.task is None else self._running.get(job.task.id)
        if running is not None and running.job is job:
            running.keeper.change()

    def dropped(self, job: Job) -> None:
        """See `Mirror.dropped`: the record stays."""

    # Taking tasks, and giving them back

    async def _work(self, worker: Any, take_in: Callable[[], Any], stop: asyncio.Event) -> None:
        intake, running = asyncio.ensure_future(take_in()), asyncio.ensure_future(worker.run_forever())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([running, stopping, intake], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ending.set()
            for each in (stopping, intake, running):
                each.cancel()
            await asyncio.wait([stopping, intake])
            _, late = await asyncio.wait([running], timeout=self._grace)
            if late:
                await self._give_up()
                await asyncio.wait([running])
        for ended in (running, intake):
            if not ended.cancelled() and (error := ended.exception()) is not None:
                raise error

    async def _take_in(self, docket: Any, function: Any, store: Any) -> None:
        """Hand to pydocket what servers have put on the list. What several workers hand over at once it takes once."""
        away = False
        while True:
            self._come.clear()
            try:
                entries = await store.execute("LRANGE", store.key(INBOX), 0, BATCH - 1)
                if away:
                    away = False
                    _log.info("Tasks are taken in again.")
                for entry in entries:
                    if _ENTRY(entry):
                        await docket.add(function, key=entry.decode())(entry.decode())
                    else:
                        _log.error("An entry of the list of tasks, %.100r, is no task: who else writes into this Redis?", entry[:100])
                    await store.execute("LREM", store.key(INBOX), 1, entry)
            except (StoreError, OSError, _redis_error()) as error:
                if not away:  # once, however often it is tried again
                    _log.warning("Tasks can't be taken in, until this is over: %s", error)
                away, entries = True, []
            if not entries:
                await _wait_for(self._come, LOOK)

    def _hear(self, loop: asyncio.AbstractEventLoop, _message: bytes) -> None:
        loop.call_soon_threadsafe(self._come.set)

    async def _give_up(self) -> None:
        """Stop what still runs: the time to end is over."""
        running = list(self._running.values())
        _log.warning("%d tasks did not end in time: those that may be begun again go back, the others have failed.", len(running))
        stops = [asyncio.ensure_future(self._stop(each)) for each in running]
        _, late = await asyncio.wait(stops, timeout=WRITING) if stops else (None, ())
        for stop in late:
            stop.cancel()
        runs = [each.keeper.run for each in running if not each.keeper.run.done()]
        if runs:
            _, late = await asyncio.wait(runs, timeout=WRITING)
            for run in late:
                run.cancel()

    async def _stop(self, running: Running) -> None:
        job, keeper = running
        work = keeper.record.work
        if work is None or not work.idempotent or job.task is None or job.task.over:
            self._local.end(job, Fail(Reason.INTERNAL, STOPPED))
            return
        await keeper.save()
        keeper.run.cancel()
        self._local.let_go(job)
        worker = self._recorded.ledger.worker

        def give_back(record: Record) -> bool:
            if record.over or record.worker != worker:
                return False
            _set_back(record, "", _BACK)
            return True

        try:
            back = await self._recorded.ledger.change(keeper.record.id, give_back)
            if back is not None:
                await put_in(self._recorded.ledger.store, back)
            self._settled.add(keeper.record.id)
        except StoreError as error:
            _log.warning("A task can't be given back, so that it is handed out again once this worker is taken for dead: %s", error)

    # One task

    async def _perform(self, name: str) -> None:
        """Run a task until what became of it is written down: then pydocket is done with it.

        Raises:
            CancelledError: The worker ends before that.
        """
        kept = await self._claim(name)
        if kept is None:
            return
        try:
            running = await self._begin(kept)
        except Exception as error:  # noqa: BLE001 - such as a record of a newer version of ours, or a provider that fails
            await self._recorded.ledger.refuse(kept.record, self._mount.server.crash("The beginning of a task", error))
            return
        self._running[kept.record.id] = running
        try:
            await asyncio.wait([running.keeper.run])
        finally:
            del self._running[kept.record.id]
            if running.job.task is not None:
                self._local.let_go(running.job)
        if not running.keeper.record.over and kept.record.id not in self._settled:
            raise asyncio.CancelledError  # nothing of what became of it is written down: pydocket is to hand it out again

    async def _claim(self, name: str) -> Kept | None:
        """Write into a task's record that it runs here; None where it must not."""
        while True:
            try:
                kept = await self._recorded.ledger.find_named(name)
                if kept is None or kept.record.over or kept.record.work is None:
                    return None
                if kept.record.worker and not await self._is_free(kept.record):
                    await self._pause()
                    continue
                claimed = await self._take(kept.record, kept.record.work, kept.version)
            except UnreadableError as error:
                _log.error("A task is not begun: %s", error)
                return None
            except StoreError as error:
                _log.warning("A task can't be begun now: %s", error)
                await self._pause()
                continue
            if claimed is not None:
                return claimed

    async def _pause(self) -> None:
        """Wait before a task is looked at again.

        Raises:
            CancelledError: The worker ends: what is cancelled and not done pydocket hands out again.
        """
        if await _wait_for(self._ending, LOOK):
            raise asyncio.CancelledError

    async def _is_free(self, record: Record) -> bool:
        """Whether the worker that runs a task does so no more."""
        ledger = self._recorded.ledger
        return record.id not in self._running if record.worker == ledger.worker else await ledger.is_gone(record.worker)

    async def _take(self, record: Record, work: Work, version: int) -> Kept | None:
        """Take a task on, or write down why it is not begun again; None where it has to be looked at anew."""
        ledger = self._recorded.ledger
        is_lost = record.worker != ""
        if is_lost and not work.idempotent:
            await ledger.refuse(record, Fail(Reason.INTERNAL, LOST))
            return None
        if is_lost and work.lost >= MOST_LOST:
            text = f"The worker that ran this task died, {work.lost + 1} times now: it is not begun again."
            await ledger.refuse(record, Fail(Reason.INTERNAL, text))
            return None
        if record.created[0] + self._tasks.max_age < tell_time().seconds:
            await ledger.look(record.id)
            return None
        work.begun += 1
        work.lost += is_lost
        _set_back(record, ledger.worker, _AGAIN if is_lost else "")
        written = await ledger.put(record, version)
        return None if written is None else Kept(record, written)

    async def _begin(self, kept: Kept) -> Running:
        record, work = kept.record, kept.record.work
        assert work is not None
        ctx = begin_context(self._mount, record, work)
        ctx.asks = asks = RecordedAsks(self._mount.server, ctx.request, ctx.exchange, None, ctx.principal, recall(work))
        raw = None if work.arguments is None else msgspec.Raw(work.arguments)
        job = self._local.take_on(ctx, await self._find(work.tool, ctx), raw, restore(record))
        asks.keeper = keeper = self._recorded.keep(self._local, job, record, kept.version)
        keeper.memory = partial(_remember, asks)
        return Running(job, keeper)

    async def _find(self, name: str, ctx: Context) -> Runnable:
        """The tool; who may see and call it was asked where the call came in."""
        registry = self._mount.server.registry
        tool: Runnable | None = registry.tools.get(name)
        if tool is None:
            found = await find(registry, "tools", name, ctx)
            tool = None if found is None else found[0]
        return _Missing(name) if tool is None else tool


def _remember(asks: Asks) -> bytes | None:
    memory = asks.log.memory
    return remember(memory) if memory.answers or memory.saved else None


def _set_back(record: Record, worker: str, message: str) -> None:
    """Make a record one of a task that is about to be begun, by this worker or whoever takes it."""
    task, now = restore(record), tell_time()
    for key in list(task.pending):
        task.withdraw(key, now)
    task.say(message, now)
    record.worker, record.answers = worker, {}
    write_down(task, record)


async def _wait_for(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _redis_error() -> type[Exception]:
    from redis.exceptions import RedisError

    return RedisError


def docket_url(url: str) -> str:
    """A store's URL as pydocket spells it: it knows no `valkey`."""
    scheme, colon, rest = url.partition(":")
    return f"{scheme.replace('valkeys', 'rediss').replace('valkey', 'redis')}{colon}{rest}"


def require_docket() -> None:
    """See that pydocket is there, and load it: that takes seconds, in which nothing else should wait.

    Raises:
        RegistrationError: It is not installed.
    """
    try:
        import docket  # noqa: F401 - only whether it is there
    except ImportError:
        raise RegistrationError("Workers of DocketTasks run on pydocket, which is not installed: pip install 'callboard[tasks]'.") from None
