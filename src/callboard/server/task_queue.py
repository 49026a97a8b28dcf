"""Tasks that workers of their own run: what a serving process does for them. It needs a Redis, and nothing of pydocket.

A call becomes a task at once: its record is written, and the digest of its id is put on a list in Redis. From there workers take it into pydocket (see
`task_worker`), which sees to it that one of them runs it, and another one where that one dies. All else is done to the record.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from callboard.core.outcome import Deferred, Outcome
from callboard.core.task import Task
from callboard.errors import RegistrationError, StoreError
from callboard.server.context import Context
from callboard.server.places import Places
from callboard.server.task_contract import Home, Runnable, tell_time
from callboard.server.task_ledger import Ledger, digest
from callboard.server.task_record import Record, write_down
from callboard.server.task_shared import RecordedTasks
from callboard.server.task_table import pick_ttl
from callboard.server.task_work import write_work
from callboard.stores.redis import RedisStore

__all__ = ["INBOX", "DocketTasks", "put_in"]

_log = logging.getLogger("callboard")
INBOX = "task-inbox"
"""Name of the list, and of the Bus topic that says that something has come."""


class DocketTasks:
    """Tasks that run in processes of their own, `callboard worker program.py`, on pydocket over a Redis. See `Tasks`.

    What a client sees is what it sees of `MemoryTasks`, but that a call of a tool that may be a task always is one. A worker that dies
    leaves its tasks to the others: those of tools that are `idempotent=True` are begun again, five times at most; others have failed.

    Args:
        url: A Redis of their own; the server's store by default, which must be a Redis then.
        ttl: Seconds that a task is kept after its end, at most: a 2025 client may ask for less.
        max_age: Seconds that a task may take, from its creation; then it has failed.
        poll: Seconds that a client is told to wait between two looks at a task.
        redelivery: Seconds without a sign of life of a worker after which pydocket gives what it had to another one.

    Raises:
        RegistrationError: An option can't work.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        ttl: float = 3600.0,
        max_age: float = 24 * 3600.0,
        poll: float = 1.0,
        redelivery: float = 10.0,
    ) -> None:
        for name, value in (("ttl", ttl), ("max_age", max_age), ("poll", poll), ("redelivery", redelivery)):
            if type(value) not in {int, float} or not 0 < value < 1e9:
                raise RegistrationError(f"DocketTasks: {name} is a number of seconds above 0, not {value!r}.")
        self.url = url
        self.ttl = ttl
        self.max_age = max_age
        self.poll = poll
        self.redelivery = redelivery
        self._own = None if url is None else RedisStore(url)
        self._recorded: RecordedTasks | None = None
        self._places = Places("tasks", "max_tasks", _keep_all)
        self._held: dict[str, tuple[str | None, asyncio.TimerHandle]] = {}

    def belong_to(self, home: Home) -> None:
        """Use a server's store, unless they have one of their own; before anything is served.

        Raises:
            RegistrationError: It is no Redis.
        """
        store: Any = home.store
        if self._own is not None:
            if self._recorded is not None:
                return
            store = self._own
            store.name(home.name)
        if self._recorded is None:
            home.lifespan.dependents.append(self)
        if not hasattr(store, "execute"):
            text = "DocketTasks runs tasks over a Redis: Server(store='redis://...'), callboard run --store redis://..., or DocketTasks('redis://...')."
            raise RegistrationError(text)
        if self._recorded is not None:
            self._recorded.leave_bus()
        self._recorded = RecordedTasks(Ledger(store, ttl=self.ttl, max_age=self.max_age), self._end)

    async def enter(self) -> None:
        """The server begins."""
        if self._own is not None:
            await self._own.open()

    async def leave(self) -> None:
        """The server ends."""
        if self._recorded is not None:
            self._recorded.leave_all()
            await self._recorded.ledger.settle()
        if self._own is not None:
            await self._own.close()

    @property
    def recorded(self) -> RecordedTasks:
        """What is done to tasks by their records.

        Raises:
            RegistrationError: They belong to no server yet.
        """
        if self._recorded is None:
            raise RegistrationError("DocketTasks: give them to a server, Server(tasks=DocketTasks()).")
        return self._recorded

    async def ready(self) -> RecordedTasks:
        """The same, once their own store is open, where they have one.

        Raises:
            StoreError: It can't be reached.
        """
        if self._own is not None:
            await self._own.open()
        return self.recorded

    async def start(self, ctx: Context, tool: Runnable, raw: msgspec.Raw | None, *, always: bool) -> Outcome:  # noqa: ARG002 - all are tasks
        """See `Tasks.start`."""
        recorded, limits = await self.ready(), ctx.mount.limits
        owner = None if ctx.principal is None else str(ctx.principal)
        if owner is not None:
            await recorded.ledger.make_room(owner, limits.max_tasks_per_principal)
        held = self._places.take(owner, limits.max_tasks, sys.maxsize, recorded.ledger.store)
        if held is not None:
            await held
        try:
            task = await self._hand_over(recorded.ledger, ctx, tool, raw, limits.max_tasks_per_principal)
        except BaseException:
            self._places.give_back(owner)
            raise
        name = digest(task.id)
        # In time its place is free, too, should nobody tell of its end.
        self._held[name] = owner, asyncio.get_running_loop().call_later(self.max_age + self.ttl, self._free, name)
        return Deferred(task.render(task.updated))

    async def find(self, task_id: str, owner: str | None) -> Task | None:
        """See `Tasks.find`."""
        return await (await self.ready()).find(task_id, owner)

    async def answer(self, task_id: str, owner: str | None, responses: Mapping[str, Any]) -> None:
        """See `Tasks.answer`."""
        await (await self.ready()).answer(task_id, owner, responses)

    async def cancel(self, task_id: str, owner: str | None) -> bool:
        """See `Tasks.cancel`."""
        return await (await self.ready()).cancel(task_id, owner)

    async def page(self, owner: str | None, after: int, size: int) -> tuple[list[Task], int | None]:
        """See `Tasks.page`."""
        return await (await self.ready()).page(owner, after, size)

    def watch(self, task_id: str, tell: Callable[[Task], None]) -> Callable[[], None]:
        """See `Tasks.watch`."""
        return self.recorded.watch(task_id, tell)

    async def _hand_over(self, ledger: Ledger, ctx: Context, tool: Runnable, raw: msgspec.Raw | None, most: int) -> Task:
        """Record a call as a task, one of so many of its principal, and put it where workers look."""
        requested, policy = ctx.request.envelope.task, getattr(tool, "policy", None)
        now = tell_time()
        task_id = f"{secrets.token_hex(4)}-{int(now.seconds):08x}-{secrets.token_hex(16)}"
        task = Task(task_id, now, ttl=pick_ttl(None if requested is None else requested.get("ttl"), self.ttl), poll=self.poll)
        owner = None if ctx.principal is None else str(ctx.principal)
        work = write_work(ctx, tool, raw, idempotent=bool(policy is not None and policy.idempotent))
        record = Record(id=task_id, owner=owner, created=now, updated=now, ttl=task.ttl, poll=task.poll, work=work)
        write_down(task, record)
        try:
            await ledger.put(record, 0)
            if owner is not None:
                await ledger.enter(owner, task_id, most)
            await put_in(ledger.store, record)
        except BaseException:
            try:
                await ledger.drop(task_id, owner)
            except StoreError as error:
                _log.debug("A task that was never begun is kept for a while: %s", error)
            raise
        return task

    def _end(self, name: str) -> None:
        """A task has ended: its place is free when it is not kept any more."""
        if name in self._held:
            owner, timer = self._held[name]
            timer.cancel()
            self._held[name] = owner, asyncio.get_running_loop().call_later(self.ttl, self._free, name)

    def _free(self, name: str) -> None:
        if name in self._held:
            owner, timer = self._held.pop(name)
            timer.cancel()
            self._places.give_back(owner)


async def put_in(store: Any, record: Record) -> None:
    """Put a task where workers look.

    Args:
        store: The Redis.
        record: The task.

    Raises:
        StoreError: It can't be reached.
    """
    begun = 0 if record.work is None else record.work.begun
    await store.execute("RPUSH", store.key(INBOX), f"{digest(record.id)} {begun}")
    store.bus.publish(INBOX, b"")


def _keep_all(principal: str | None, *, is_full: bool) -> None:
    """A task keeps its place until its time is up."""
