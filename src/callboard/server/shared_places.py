"""Places that all processes of a server count together, in a store that they share.

Each process keeps one hash of what it holds, in all and by principal, which ends by itself unless it is renewed: places of a process that was
killed come back within `LEASE` seconds, and renewing costs one command, however many places there are. Taking one reads what the others hold,
in one round trip. Counts are written as they are, not as what they change by, so that one that got lost is mended by the next.

There are never more than there may be, but for processes that could not tell the store for longer than `LEASE`. There may seem to be fewer
for a moment: what is asked for counts as held until it is refused, and a process asks for no more at once than one principal may have.

Where the store does not answer, each process counts for itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from itertools import islice
from typing import Protocol

from callboard.errors import StoreError
from callboard.stores.outage import Outage
from callboard.stores.scripted import Script, Scripted

__all__ = ["LEASE", "RENEWED", "Counted", "SharedPlaces", "Verdict"]

LEASE = 10.0
"""Seconds after which the places of a process that is gone are free."""

RENEWED = 3.0
"""Seconds between two renewals."""

# Principals in one command.
_BATCH = 500
_ALL = "all"

# KEYS: who holds something until when; what this one holds. Times are the store's.
_TAKE = Script("""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local all, own = tonumber(ARGV[4]), tonumber(ARGV[5])
for _, holder in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if holder ~= ARGV[1] then
    local held = redis.call('HMGET', ARGV[8] .. holder, 'all', ARGV[3])
    all = all + (tonumber(held[1] or '') or 0)
    own = own + (tonumber(held[2] or '') or 0)
  end
end
local known = redis.call('EXISTS', KEYS[2])
if all > tonumber(ARGV[6]) then return {1, known} end
if ARGV[3] ~= '' and own > tonumber(ARGV[7]) then return {2, known} end
redis.call('HSET', KEYS[2], 'all', ARGV[4])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], ARGV[3], ARGV[5]) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%d', now + ARGV[2]), ARGV[1])
return {0, known}
""")
_KEEP = Script("""
local known = redis.call('EXISTS', KEYS[2])
for place = 3, #ARGV, 2 do
  if ARGV[place + 1] == '0' then
    redis.call('HDEL', KEYS[2], ARGV[place])
  else
    redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 1])
  end
end
if redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 1 then
  local time = redis.call('TIME')
  local until_ = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
  redis.call('ZADD', KEYS[1], string.format('%d', until_), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return known
""")


class Counted(Protocol):
    """What a process holds."""

    @property
    def taken(self) -> int:
        """In all."""
        ...

    @property
    def per_principal(self) -> Mapping[str, int]:
        """By whom."""
        ...


class Verdict(IntEnum):
    """What taking a place comes to.

    Attributes:
        FREE: It is there.
        FULL: There is none in all.
        OWN_FULL: The principal has all that one may have.
        UNKNOWN: It never came to that.
    """

    FREE = 0
    FULL = 1
    OWN_FULL = 2
    UNKNOWN = 3


class SharedPlaces:
    """What this process holds of one kind of place, told to the others.

    Args:
        store: Where it is told.
        kind: What they are called there.
        counted: What is held, the one that is being taken included.

    Attributes:
        store: As given.
    """

    def __init__(self, store: Scripted, kind: str, counted: Counted) -> None:
        self.store = store
        self._counted = counted
        self._holder = secrets.token_hex(8)
        self._holders = store.key(f"{{places:{kind}}}", "holders")
        self._prefix = store.key(f"{{places:{kind}}}", "of", "")
        self._lease = round(LEASE * 1000)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        # Whose counts are not told yet; whose were since the last renewal; whose are told once more, for messages may overtake each other.
        self._changed: set[str] = set()
        self._told: set[str] = set()
        self._again: set[str] = set()
        self._is_due = False
        self._outage = Outage("Until it does, each process counts its open streams for itself.")

    @property
    def is_through(self) -> bool:
        """Whether the others know all that there is to know."""
        return self._telling is None and not self._is_due and not self._changed

    async def confirm(self, principal: str | None, total: int, per_principal: int) -> Verdict:
        """Whether a place that this process has counted is there in all processes; on the event loop that renews it.

        Args:
            principal: Who takes it.
            total: How many there may be.
            per_principal: The same for one principal.

        Returns:
            `FREE`, also where the store does not answer, or why not.
        """
        self._live_on(asyncio.get_running_loop())
        if not self._outage.asks():
            self._note(principal)
            return Verdict.FREE
        field, own = ("", 0) if principal is None else (_digest(principal), self._counted.per_principal[principal])
        args = (self._holder, self._lease, field, self._counted.taken, own, total, per_principal, self._prefix)
        try:
            verdict, known = await self.store.run(_TAKE, (self._holders, self._prefix + self._holder), args)
        except StoreError as error:
            self._outage.failed(error)
            self._note(principal)
            return Verdict.FREE
        self._outage.worked()
        if not known and self._counted.taken > 1:
            self._tell_anew()
        if principal is not None:
            self._told.add(principal)
        return Verdict(verdict)

    def note(self, principal: str | None) -> None:
        """Tell the others that a place was given back, at the end of this turn of the loop; from any thread.

        Args:
            principal: Whose it was.
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is over: the lease ends by itself
                self._loop.call_soon_threadsafe(self._note, principal, True)

    def _note(self, principal: str | None, now: bool = False) -> None:  # noqa: FBT001, FBT002 - call_soon takes no names
        if principal is not None:
            self._changed.add(principal)
        self._is_due = self._is_due or now
        if now:
            self._begin()

    def _tell_anew(self) -> None:
        """Tell all that is held: the others have forgotten it."""
        self._changed.update(self._counted.per_principal)
        self._is_due = True
        self._begin()

    def _begin(self) -> None:
        if self._telling is None and self._loop is not None:
            self._telling = self._loop.create_task(self._tell(), name="callboard-places")

    def _live_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            self._loop, self._timer, self._telling = loop, None, None
        self._keep_on()

    def _keep_on(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(RENEWED, self._renew)

    def _renew(self) -> None:
        self._timer = None
        self._again |= self._told
        self._told.clear()
        if self._counted.taken or self._changed or self._again:
            self._keep_on()
            self._is_due = True
            self._begin()

    async def _tell(self) -> None:
        try:
            while self._is_due or self._changed or self._again:
                self._is_due = False
                known = await self._tell_some()
                if known is None:
                    return  # the next renewal tries again
                if not known and self._counted.taken:
                    self._changed.update(self._counted.per_principal)
        finally:
            self._telling = None

    async def _tell_some(self) -> bool | None:
        """Whether the others knew of this process; None where nobody could be told."""
        new = list(islice(self._changed, _BATCH))
        self._changed.difference_update(new)
        old = list(islice(self._again, _BATCH - len(new)))
        self._again.difference_update(old)
        counts = [
            (_ALL, self._counted.taken),
            *((_digest(principal), self._counted.per_principal.get(principal, 0)) for principal in (*new, *old)),
        ]
        args = (self._holder, self._lease, *(part for pair in counts for part in pair))
        try:
            known = await self.store.run(_KEEP, (self._holders, self._prefix + self._holder), args)
        except StoreError as error:
            self._outage.failed(error)
            self._changed.update(new, old)
            return None
        self._outage.worked()
        self._told.update(new)
        return bool(known)


def _digest(principal: str) -> str:
    """A principal, as a name of bounded size that is not `all`."""
    return hashlib.blake2b(principal.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
