"""Tasks whose records every process sees; those of `MemoryTasks` among them: they run where they were called, and are everybody's to ask for.

A task that runs here has a `Keeper`, which writes down what happens to it, and takes in what others have written: its end, and answers. What
runs elsewhere is followed, for as long as somebody here wants to hear of it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from callboard.core.outcome import Deferred, Outcome
from callboard.core.task import Task
from callboard.errors import StoreError
from callboard.server.context import Context
from callboard.server.mount import Mount
from callboard.server.task_contract import Runnable, tell_time
from callboard.server.task_ledger import TOPIC, Kept, Ledger, UnreadableError, digest
from callboard.server.task_record import Record, give_answers, restore, take_answers, write_down, write_record
from callboard.server.task_table import CANCELLED, GRACE, Job, MemoryTasks
from callboard.stores.topics import LOST

__all__ = ["Keeper", "RecordedTasks", "SharedTasks"]

# Seconds after which is looked again, in case that nobody told of a change, or could.
RECHECK = 10.0
FOLLOW = 5.0
# Seconds that a message waits for the next one to take its place: what a task says of itself changes faster than anybody reads.
PACE = 0.05
# Seconds until a store that failed is tried again.
RETRY = 0.5
# Seconds before its time is up that a record is left to end by itself.
SLACK = 1.0
# Ends that their owners are known to have seen; past that the oldest is forgotten, and noted once more.
MAX_SEEN = 10_000
_log = logging.getLogger("callboard")


class Follow:
    """Tells of one task, wherever it runs, until it has ended.

    Args:
        ledger: Where its record is.
        task_id: The task.
        over: Called with it when nothing more comes.

    Attributes:
        name: The task's digest.
        tells: Who is told.
    """

    def __init__(self, ledger: Ledger, task_id: str, over: Callable[[Follow], None]) -> None:
        self._ledger = ledger
        self._id = task_id
        self._over = over
        self.name = digest(task_id)
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.tells: list[Callable[[Task], None]] = []
        self._run = self._loop.create_task(self._follow())

    def hear(self) -> None:
        """The record has changed; from any thread."""
        _on(self._loop, self._woken.set)

    def leave(self, tell: Callable[[Task], None]) -> None:
        """Tell one less; from any thread."""
        if tell in self.tells:
            self.tells.remove(tell)
        if not self.tells:
            self.end()

    def end(self) -> None:
        """Tell nobody any more; from any thread."""
        self._over(self)
        _on(self._loop, self._run.cancel)

    async def _follow(self) -> None:
        seen = 0
        try:
            while True:
                self._woken.clear()
                try:
                    kept = await self._ledger.look(self._id)
                except StoreError as error:
                    _log.debug("A task can't be followed: %s", error)
                else:
                    if kept is None:
                        return
                    # Who begins to follow has just seen how it stands; only what they can't miss is said once more.
                    if kept.version != seen and (seen or kept.record.status != "working"):
                        self._tell(restore(kept.record))
                    if kept.record.over:
                        return
                    seen = kept.version
                await _wait(self._woken, self._ledger.doubt or FOLLOW)
        finally:
            self._over(self)

    def _tell(self, task: Task) -> None:
        for tell in list(self.tells):
            tell(task)


class Keeper:
    """Keeps the record of a task that runs here; on the loop that it runs in.

    Args:
        tasks: What runs it.
        ledger: Where the record is.
        job: The task.
        record: Its record as it was written.
        version: The record's.

    Attributes:
        record: As it was written, or read, last.
        memory: Gives what is to be remembered of the call, beside the task; None for nothing.
    """

    def __init__(self, tasks: MemoryTasks, ledger: Ledger, job: Job, record: Record, version: int) -> None:
        assert job.task is not None
        self._tasks = tasks
        self._ledger = ledger
        self._job = job
        self._task = job.task
        self.record = record
        self._version = version
        self.memory: Callable[[], bytes | None] | None = None
        self._loop = job.mount.workers.loop
        self._woken = asyncio.Event()
        self._is_changed = True  # it may have, while the record was written
        self._is_stale = False
        self._is_lost = False  # by the store, so that it has to be written though nothing has changed
        self._saves: list[asyncio.Future[None]] = []
        self.origin = secrets.token_hex(8)
        self.run = self._loop.create_task(self._keep())

    def change(self) -> None:
        """The task has changed here."""
        self._is_changed = True
        self._woken.set()

    def hear(self) -> None:
        """The record was changed elsewhere; from any thread."""
        _on(self._loop, self._hear)

    async def save(self) -> None:
        """Wait until what is remembered now is written down, or the task is over."""
        if self.run.done():
            return
        saved: asyncio.Future[None] = self._loop.create_future()
        self._saves.append(saved)
        self.change()
        await saved

    def _hear(self) -> None:
        self._is_stale = True
        self._woken.set()

    async def _keep(self) -> None:
        told = False
        try:
            while True:
                try:
                    if await self._step():
                        break
                    told = False
                except StoreError as error:
                    _log.log(logging.DEBUG if told else logging.WARNING, "The record of a task can't be written: %s", error)
                    told = self._is_changed = self._is_stale = True
                    await asyncio.sleep(RETRY)
        finally:
            self._settle(len(self._saves))
        await self._ledger.mark(self.record)

    async def _step(self) -> bool:
        """Read and write as needed; whether that was the end."""
        if not (self._is_stale or self._is_changed):
            await self._rest()
        if self._is_stale and not await self._read():
            return True
        if self._is_changed:
            await self._write()
        return self.record.over

    async def _rest(self) -> None:
        if not await _wait(self._woken, RECHECK):
            self._is_stale = True
        elif self._is_quiet():
            await asyncio.sleep(PACE)
        self._woken.clear()

    def _is_quiet(self) -> bool:
        """Whether all that is new is what the task says of itself."""
        if self._is_stale or self._saves or self._task.status != self.record.status:
            return False
        return self._task.pending.keys() == self.record.pending.keys()

    async def _read(self) -> bool:
        """Take in what others have written; whether the task is still ours."""
        self._is_stale = False
        try:
            kept = await self._ledger.find(self.record.id)
        except UnreadableError as error:
            _log.error("%s It is written anew by the process that runs the task.", error)
            self._version = error.version
            self._is_changed = self._is_lost = True
            return True
        if kept is None:
            if await self._ledger.is_dropped(self.record.id):
                self._tasks.let_go(self._job)
                return False
            self._version = 0
            self._is_changed = self._is_lost = True
            return True
        record, self._version = kept
        if record.over:
            self.record = record
            if not self._task.over:
                self._tasks.end(self._job, restore(record).fail)
            return False
        if record.worker != self.record.worker:
            self._tasks.let_go(self._job)
            return False
        self.record = record
        if record.answers:
            self._is_changed = True
            self._tasks.give_answers(self._job, take_answers(record))
        return True

    async def _write(self) -> None:
        self._is_changed = False
        record = msgspec.structs.replace(self.record, answers={})
        write_down(self._task, record)
        if record.work is not None and self.memory is not None:
            record.work = msgspec.structs.replace(record.work, memory=self.memory())
        saves = len(self._saves)
        if self._is_lost or write_record(record) != write_record(self.record):
            version = await self._ledger.put(record, self._version, self.origin)
            if version is None:
                self._is_changed = self._is_stale = True
                return
            self.record, self._version, self._is_lost = record, version, False
        self._settle(saves)

    def _settle(self, saves: int) -> None:
        settled, self._saves = self._saves[:saves], self._saves[saves:]
        for saved in settled:
            if not saved.done():
                saved.set_result(None)


class RecordedTasks:
    """What can be done to a task by its record, wherever it runs; see `Tasks`.

    Args:
        ledger: Where the records are.
        ended: Called with the digest of each task that ends, wherever that is; None for nobody.

    Attributes:
        ledger: As given.
        keepers: Of the tasks that run here, by digest.
    """

    def __init__(self, ledger: Ledger, ended: Callable[[str], None] | None = None) -> None:
        self.ledger = ledger
        self._ended = ended
        self.keepers: dict[str, Keeper] = {}
        self._follows: dict[str, Follow] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        bus = ledger.store.bus
        self._leaves = [bus.subscribe(TOPIC, self._hear), bus.subscribe(LOST, self._miss)]

    def leave_bus(self) -> None:
        """Hear of no changes any more."""
        for leave in self._leaves:
            leave()

    async def find(self, task_id: str, owner: str | None) -> Task | None:
        """See `Tasks.find`."""
        kept = await self.ledger.look(task_id)
        if kept is None or kept.record.owner != owner:
            return None
        if kept.record.over and owner is not None and task_id not in self._seen:
            self._seen[task_id] = None
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)
            await self.ledger.mark(kept.record, read=True)
        return restore(kept.record)

    async def answer(self, task_id: str, owner: str | None, responses: Mapping[str, Any]) -> None:
        """See `Tasks.answer`."""

        def answer(record: Record) -> bool:
            return record.owner == owner and give_answers(record, restore(record), responses, tell_time())

        await self.ledger.change(task_id, answer)

    async def cancel(self, task_id: str, owner: str | None) -> bool:
        """See `Tasks.cancel`."""

        def cancel(record: Record) -> bool:
            task = restore(record)
            if record.owner != owner or not task.cancel(CANCELLED, tell_time()):
                return False
            record.answers = {}
            write_down(task, record)
            return True

        cancelled = await self.ledger.change(task_id, cancel)
        if cancelled is not None:
            await self.ledger.mark(cancelled)
        return cancelled is not None

    async def page(self, owner: str | None, after: int, size: int) -> tuple[list[Task], int | None]:
        """See `Tasks.page`."""
        if owner is None:
            return [], None
        rows = [row for row in await self.ledger.index.rows(owner) if row.number > after]
        found = await asyncio.gather(*(self._look(row.id) for row in rows[:size]))
        tasks = [restore(kept.record) for kept in found if kept is not None]
        return tasks, rows[size - 1].number if len(rows) > size else None

    async def _look(self, task_id: str) -> Kept | None:
        """A record, where it can be read: one that can't is no reason to show nobody the others."""
        try:
            return await self.ledger.look(task_id)
        except UnreadableError as error:
            _log.error("%s", error)
            return None

    def watch(self, task_id: str, tell: Callable[[Task], None]) -> Callable[[], None]:
        """See `Tasks.watch`; on the event loop only."""
        name = digest(task_id)
        follow = self._follows.get(name)
        if follow is None:
            follow = self._follows[name] = Follow(self.ledger, task_id, self._end_follow)
        follow.tells.append(tell)
        return partial(follow.leave, tell)

    def keep(self, tasks: MemoryTasks, job: Job, record: Record, version: int) -> Keeper:
        """Keep the record of a task that runs here from now on.

        Args:
            tasks: What runs it.
            job: The task.
            record: Its record as it was written.
            version: The record's.
        """
        name = digest(record.id)
        keeper = self.keepers[name] = Keeper(tasks, self.ledger, job, record, version)
        keeper.run.add_done_callback(lambda _: self.keepers.pop(name) if self.keepers.get(name) is keeper else None)
        return keeper

    def leave_all(self) -> None:
        """Tell nobody of anything any more."""
        for follow in list(self._follows.values()):
            follow.end()

    def _end_follow(self, follow: Follow) -> None:
        if self._follows.get(follow.name) is follow:
            del self._follows[follow.name]

    def _miss(self, _message: bytes) -> None:
        """Messages were lost: whatever is kept or followed may have changed."""
        for keeper in list(self.keepers.values()):
            keeper.hear()
        for follow in list(self._follows.values()):
            follow.hear()

    def _hear(self, message: bytes) -> None:
        name, by, status = message.decode().split(" ")
        keeper, follow = self.keepers.get(name), self._follows.get(name)
        if keeper is not None and keeper.origin != by:
            keeper.hear()
        if follow is not None:
            follow.hear()
        if status and self._ended is not None:
            self._ended(name)


class SharedTasks(RecordedTasks):
    """Tasks that run in this process, with records that all processes see. See `Tasks`.

    How many there may be: of one principal in all processes, by the index; in all in each process, of those that it runs, or has run.

    Args:
        local: What runs them.
        ledger: Where the records are.
    """

    def __init__(self, local: MemoryTasks, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.local = local
        local.mirror = self
        self._tidying: set[asyncio.Task[None]] = set()

    async def start(self, ctx: Context, tool: Runnable, raw: msgspec.Raw | None, *, always: bool) -> Outcome:
        """See `Tasks.start`."""
        if ctx.principal is not None:
            await self.ledger.make_room(str(ctx.principal), ctx.mount.limits.max_tasks_per_principal)
        outcome = await self.local.start(ctx, tool, raw, always=always)
        if isinstance(outcome, Deferred):
            job = self.local.job(outcome.value["taskId"])
            if job is not None and job.task is not None:
                await self._record(job, job.task)
        return outcome

    async def find(self, task_id: str, owner: str | None) -> Task | None:
        """See `Tasks.find`."""
        found = await super().find(task_id, owner)
        job = self.local.job(task_id)
        if job is None or job.owner != owner or job.task is None:
            return found
        if found is not None and found.over:
            job.read = True  # so that it may make room for another one
            return found
        if job.task.over or (found is None and await self.ledger.is_dropped(task_id)):
            return found  # what it came to is told once it can't be lost any more
        return job.task

    def changed(self, job: Job) -> None:
        """See `Mirror.changed`."""
        keeper = None if job.task is None else self.keepers.get(digest(job.task.id))
        if keeper is not None:
            keeper.change()

    def dropped(self, job: Job) -> None:
        """See `Mirror.dropped`: to make room; what is past its time goes by itself."""
        task = job.task
        if task is None or task.expires is None or task.expires <= tell_time().seconds + SLACK:
            return
        _on(job.mount.workers.loop, self._tidy, task.id, job.owner)

    async def close(self, mount: Mount) -> None:
        """Write down how the tasks of a mount have ended, which is about to close."""
        runs = [keeper.run for keeper in self.keepers.values() if keeper.run.get_loop() is mount.workers.loop]
        if runs:
            _, late = await asyncio.wait(runs, timeout=2 * GRACE)
            for run in late:
                run.cancel()
        await asyncio.gather(*self._tidying, return_exceptions=True)
        await self.ledger.settle()

    async def _record(self, job: Job, task: Task) -> None:
        """Write down that there is a task; where that can't be, there is none."""
        owner = None if job.owner is None else str(job.owner)
        now = tell_time()
        record = Record(id=task.id, owner=owner, worker=self.ledger.worker, created=now, updated=now, ttl=task.ttl, poll=task.poll)
        write_down(task, record)
        job.mount.closing.setdefault(self, partial(self.close, job.mount))
        try:
            version = await self.ledger.put(record, 0)
            if owner is not None:
                await self.ledger.index.add(owner, task.id)
        except BaseException:
            self.local.let_go(job)
            self._tidy(task.id, owner)
            raise
        if version is None:
            raise RuntimeError("A task has the id of another one.")
        self.keep(self.local, job, record, version)

    def _tidy(self, task_id: str, owner: str | None) -> None:
        tidying = asyncio.get_running_loop().create_task(self._forget(task_id, owner))
        self._tidying.add(tidying)
        tidying.add_done_callback(self._tidying.discard)

    async def _forget(self, task_id: str, owner: str | None) -> None:
        try:
            await self.ledger.drop(task_id, owner)
        except StoreError as error:
            _log.debug("A task is kept for longer than it need be: %s", error)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, for so long; whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _on(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        _log.debug("An event loop is gone, and the tasks that ran in it.")
