"""Records of tasks in a store that several processes share.

Rules:
    1. The record is the truth. Whoever changes it reads it, and writes it if nobody else has meanwhile (compare-and-set): who runs a task as
       well as who cancels or answers it, in whatever process. What has ended stays ended (TX-09), and is kept for its time, whoever dies.
    2. After a change everybody is told which record it was; what is lost on the way is found by looking again after a while.
    3. A task whose worker is gone has failed, unless it may be begun again: whoever looks writes that down, once. A worker is gone when
       it gives no sign of life, and none again `PATIENCE` seconds later: after an outage of the store itself all seem dead for a moment.
    4. Names of keys and what is told carry a digest: an id may be all that gives access to a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from callboard.errors import Fail, Reason, StoreError
from callboard.server.task_contract import tell_time
from callboard.server.task_index import Index, full
from callboard.server.task_record import Record, read_record, restore, write_down, write_record
from callboard.server.task_table import RESTARTED
from callboard.stores.base import Store

__all__ = ["LOST", "TOPIC", "Kept", "Ledger", "UnreadableError", "digest"]

TOPIC = "callboard.tasks"
"""The Bus topic that says which record has changed."""
LOST = "The worker that ran this task is gone, and its tool is not idempotent, so that it was not begun again."
# Seconds between the two looks after which a worker is gone, and for which that holds.
PATIENCE = 3.0
GONE_FOR = 3600.0
TRIES = 100
# Seconds that it is known of a record that it was dropped.
MARKED = 60.0
_log = logging.getLogger("callboard")


class UnreadableError(StoreError):
    """What is kept of a task is no record, or one that only another release can read.

    Args:
        name: Digest of the task's id.
        version: Of what is there.

    Attributes:
        version: As given.
    """

    def __init__(self, name: str, version: int) -> None:
        super().__init__(
            f"The record of the task with the digest {name} can't be read: was it written by another release, or something else?"
        )
        self.version = version


class Kept(NamedTuple):
    """A record, and its version."""

    record: Record
    version: int


class Ledger:
    """See the module.

    Args:
        store: Where records are kept.
        ttl: Seconds that a task is kept after its end, at most.
        max_age: Seconds that the work of a task may take.

    Attributes:
        store: As given.
        index: Which tasks each owner has.
    """

    def __init__(self, store: Store, *, ttl: float, max_age: float) -> None:
        self.store = store
        self.index = Index(store.kv, ttl + max_age)
        self._longest = ttl + max_age
        self._max_age = max_age
        self._gone: dict[str, float] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    @property
    def worker(self) -> str:
        """What this process is called; empty where the store gives no names."""
        return getattr(self.store, "worker", "")

    async def find(self, task_id: str) -> Kept | None:
        """A record as it is now; None where there is none.

        Raises:
            StoreError: The store can't be reached.
        """
        return await self.find_named(digest(task_id))

    async def find_named(self, name: str) -> Kept | None:
        """The same, by the digest of its id.

        Raises:
            StoreError: The store can't be reached; `UnreadableError` where what it has is no record.
        """
        entry = await self.store.kv.get(_key(name))
        if entry is None or not entry.value:
            return None
        try:
            return Kept(read_record(entry.value), entry.version)
        except (msgspec.MsgspecError, RecursionError):
            raise UnreadableError(name, entry.version) from None

    async def is_dropped(self, task_id: str) -> bool:
        """Whether a record that is not there was dropped, and not lost by the store.

        Raises:
            StoreError: The store can't be reached.
        """
        return await self.store.kv.get(_key(digest(task_id))) is not None

    async def look(self, task_id: str) -> Kept | None:
        """The same, once it is known whether anybody still runs it.

        Raises:
            StoreError: The store can't be reached.
        """
        kept = await self.find(task_id)
        if kept is None or kept.record.over:
            return kept
        fail = await self._see_lost(kept.record)
        if fail is None:
            return kept
        await self.refuse(kept.record, fail)
        return await self.find(task_id)

    async def put(self, record: Record, expect: int, by: str = "") -> int | None:
        """Write a record, and tell that; its version, None where somebody was faster.

        Args:
            record: The record.
            expect: Version that it must be at; 0 for a new one.
            by: Who need not be told.

        Raises:
            StoreError: The store can't be reached.
        """
        expires = record.expires
        ttl = self._longest if expires is None else max(expires - tell_time().seconds, 1.0)
        name = digest(record.id)
        version = await self.store.kv.put(_key(name), write_record(record), expect=expect, ttl=ttl)
        if version is not None:
            self.store.bus.publish(TOPIC, f"{name} {by} {'over' if record.over else ''}".encode())
        return version

    async def change(self, task_id: str, change: Callable[[Record], bool]) -> Record | None:
        """Change a record; None where there was none, or nothing to change.

        Args:
            task_id: The task.
            change: Changes a record, and says whether it has; called again where somebody was faster.

        Raises:
            StoreError: The store can't be reached.
        """
        for _ in range(TRIES):
            kept = await self.find(task_id)
            if kept is None or not change(kept.record):
                return None
            if await self.put(kept.record, kept.version) is not None:
                return kept.record
        raise StoreError("One task is changed by too many at once.")

    async def refuse(self, seen: Record, fail: Fail) -> None:
        """Make a task fail, unless somebody has taken it on since it was seen.

        Raises:
            StoreError: The store can't be reached.
        """

        def refuse(record: Record) -> bool:
            task = restore(record)
            if record.worker != seen.worker or not task.refuse(fail, tell_time()):
                return False
            record.answers = {}
            write_down(task, record)
            return True

        changed = await self.change(seen.id, refuse)
        if changed is not None:
            await self.mark(changed)

    async def mark(self, record: Record, *, read: bool = False) -> None:
        """Note in the index that a task has ended, and whether its owner has seen it; without effect while the store can't be reached."""
        if record.owner is None or record.expires is None:
            return
        try:
            await self.index.mark(record.owner, record.id, until=record.expires, read=read)
        except StoreError as error:
            _log.debug("The end of a task is not in the index: %s", error)

    async def drop(self, task_id: str, owner: str | None) -> None:
        """Forget a task; whoever runs it may not have heard yet that it has ended, and learns that it is not wanted.

        Raises:
            StoreError: The store can't be reached.
        """
        await self.store.kv.put(_key(digest(task_id)), b"", ttl=MARKED)
        if owner is not None:
            await self.index.remove(owner, task_id)

    async def make_room(self, owner: str, most: int) -> None:
        """See that an owner may have one more task. For it the oldest goes whose end they have seen.

        Raises:
            Fail: There is no room (OVERLOADED).
            StoreError: The store can't be reached.
        """
        rows = await self.index.rows(owner)
        if len(rows) < most:
            return
        for row in rows:
            if row.read:
                await self.drop(row.id, owner)
                return
        for row in rows:
            if not row.ended and await self._is_lost(row.id):
                await self.index.remove(owner, row.id)
                return
        raise full(most)

    async def enter(self, owner: str, task_id: str, most: int) -> None:
        """Put a task that is recorded into the index of its owner: of those that begin at once no more get in than may.

        Raises:
            Fail: There is no room (OVERLOADED).
            StoreError: The store can't be reached.
        """
        while not await self.index.add(owner, task_id, most):
            await self.make_room(owner, most)

    async def _is_lost(self, task_id: str) -> bool:
        try:
            return await self.look(task_id) is None
        except UnreadableError:
            return False  # another release may run it

    async def is_gone(self, worker: str) -> bool:
        """Whether a process is gone for good; see rule 3.

        Raises:
            StoreError: The store can't be reached.
        """
        alive: Any = getattr(self.store, "alive", None)
        if not worker or worker == self.worker or alive is None:
            return False
        if await alive(worker):
            self._gone.pop(worker, None)
            return False
        loop = asyncio.get_running_loop()
        since = self._gone.get(worker)
        if since is not None and loop.time() - since < GONE_FOR:
            return True
        if worker not in self._looking:
            self._looking[worker] = loop.create_task(self._look_again(worker, alive))
        return False

    @property
    def doubt(self) -> float | None:
        """Seconds after which more is known of who is alive; None where there is no doubt."""
        return PATIENCE + 0.5 if self._looking else None

    async def settle(self) -> None:
        """Look at nobody any more: the event loop ends."""
        for looking in list(self._looking.values()):
            looking.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)

    async def _look_again(self, worker: str, alive: Any) -> None:
        try:
            await asyncio.sleep(PATIENCE)
            if not await alive(worker):
                self._gone[worker] = asyncio.get_running_loop().time()
        except StoreError as error:
            _log.debug("Nobody can tell whether a worker is alive: %s", error)
        finally:
            self._looking.pop(worker, None)

    async def _see_lost(self, record: Record) -> Fail | None:
        """Why nothing will come of a task any more; None where something may."""
        work = record.work
        if work is not None and record.created[0] + self._max_age < tell_time().seconds:
            return Fail(Reason.TIMED_OUT, f"The task was stopped: it took longer than {self._max_age:g} s (max_age).")
        if (work is not None and work.idempotent) or not await self.is_gone(record.worker):
            return None
        return Fail(Reason.INTERNAL, RESTARTED if work is None else LOST)


def digest(task_id: str) -> str:
    """What a task is called where others might read it."""
    return sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _key(name: str) -> str:
    return f"callboard:task:{name}"
