"""Which tasks of an owner there are, over all processes: one key for each owner, changed by compare-and-set.

It is what lists are made of, and what counts how many a principal has. A row is made once the task is recorded; it says when the task ended,
and whether its owner knows. Tasks that run where they were called are begun before they have a row, so that two processes that look at the same
moment may both find room: there can be a few too many. Callers without a principal have no index: nothing is listed for them, and each process
counts its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256

import msgspec

from callboard.errors import Fail, Reason, StoreError
from callboard.server.task_contract import tell_time
from callboard.stores.base import Kv

__all__ = ["Index", "Row", "full"]

# Times that a change is tried: each time somebody else's came through, so that it ends.
TRIES = 100
_log = logging.getLogger("callboard")


class Row(msgspec.Struct, array_like=True):
    """One task.

    Attributes:
        number: Its place among all of its owner's; a cursor.
        id: Its id.
        until: Unix time at which it is dropped, at the latest.
        ended: Whether it has ended.
        read: Whether its owner has seen how.
    """

    number: int
    id: str
    until: float
    ended: bool = False
    read: bool = False


class _Page(msgspec.Struct, array_like=True):
    last: int = 0
    rows: list[Row] = []


_decode = msgspec.msgpack.Decoder(_Page).decode
_encode = msgspec.msgpack.Encoder().encode


class Index:
    """The tasks of each owner.

    Args:
        kv: Where it is kept.
        longest: Seconds that a task is kept at most, from its creation.
    """

    def __init__(self, kv: Kv, longest: float) -> None:
        self._kv = kv
        self._longest = longest

    async def rows(self, owner: str) -> list[Row]:
        """Tasks of an owner in the order they were created.

        Raises:
            StoreError: The store can't be reached.
        """
        page, _ = await self._read(owner)
        return page.rows

    async def add(self, owner: str, task_id: str, most: int | None = None) -> bool:
        """A task was created; whether it has a row: not where there are as many as may be.

        Args:
            owner: Whose it is.
            task_id: The task.
            most: How many there may be; None for any number.

        Raises:
            StoreError: The store can't be reached.
        """

        def add(page: _Page) -> bool:
            if most is not None and len(page.rows) >= most:
                return False
            page.last += 1
            page.rows.append(Row(page.last, task_id, tell_time().seconds + self._longest))
            return True

        return await self._change(owner, add)

    async def mark(self, owner: str, task_id: str, *, until: float, read: bool = False) -> None:
        """A task has ended; or its owner has seen that.

        Raises:
            StoreError: The store can't be reached.
        """

        def mark(page: _Page) -> bool:
            for row in page.rows:
                if row.id == task_id and (not row.ended or read > row.read):
                    row.until, row.ended, row.read = until, True, row.read or read
                    return True
            return False

        await self._change(owner, mark)

    async def remove(self, owner: str, *task_ids: str) -> None:
        """Tasks are not kept any more.

        Raises:
            StoreError: The store can't be reached.
        """

        def remove(page: _Page) -> bool:
            kept = [row for row in page.rows if row.id not in task_ids]
            is_less, page.rows = len(kept) < len(page.rows), kept
            return is_less

        await self._change(owner, remove)

    async def _read(self, owner: str) -> tuple[_Page, int]:
        entry = await self._kv.get(_key(owner))
        if entry is None:
            return _Page(), 0
        try:
            page = _decode(entry.value)
        except (msgspec.MsgspecError, RecursionError):
            _log.error("The index of one principal's tasks can't be read: it begins anew, and lists none of those before.")
            return _Page(), entry.version
        now = tell_time().seconds
        page.rows = [row for row in page.rows if row.until > now]
        return page, entry.version

    async def _change(self, owner: str, change: Callable[[_Page], bool]) -> bool:
        """Change a page; whether there was anything to change."""
        for _ in range(TRIES):
            page, version = await self._read(owner)
            if not change(page):
                return False
            if await self._kv.put(_key(owner), _encode(page), expect=version, ttl=self._longest) is not None:
                return True
        raise StoreError("The index of one principal's tasks is changed by too many at once.")


def full(most: int) -> Fail:
    """What a call comes to that would be a task too many of its principal."""
    return Fail(Reason.OVERLOADED, f"You have {most} tasks already (max_tasks_per_principal): wait until one has ended.")


def _key(owner: str) -> str:
    return f"callboard:tasks-of:{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
