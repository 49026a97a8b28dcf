"""The buckets of one rate in a store that all processes of a server share: `Buckets`, in one round trip, by the store's clock.

Where the store does not answer, each process counts for itself: a rate protects what is behind it, and is no reason to refuse everybody.
Whoever is refused is refused again without a question to the store until it has been said that there is a call: a flood stays here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from callboard.errors import StoreError
from callboard.server.rates import Buckets
from callboard.stores.outage import Outage
from callboard.stores.scripted import Script, Scripted

__all__ = ["PARTS", "ROOM", "SLOTS", "SharedBuckets"]

PARTS = 64
"""Sorted sets that the buckets of one rate are spread over, so that a cluster can spread them over its nodes."""

ROOM = 4_096
"""Buckets of one part that are not full; who comes then shares one of `SLOTS` further ones."""

SLOTS = 64

# Callers of whom this process remembers that they have to wait.
_REMEMBERED = 10_000

# A bucket is the microsecond at which it will be full, see `Buckets`. Times of this size have a quarter of a microsecond in a double; one is
# let pass for that, and what `Buckets` lets pass. A bucket that is emptier than empty was filled before the clock was set back, or a replica with
# another clock took over: nobody waits for longer than it takes to fill an empty one. What is counted already, by its mark, is free the first time.
_TAKE = Script("""
local now, span, need = tonumber(ARGV[5]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if KEYS[3] and redis.call('SET', KEYS[3], '', 'NX', 'PX', ARGV[7]) then return 0 end
local full = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '')
local shared = false
if not full then
  full = now
  if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[6]) then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[6]) then
      shared = true
      full = tonumber(redis.call('HGET', KEYS[2], ARGV[2]) or '') or now
    end
  end
end
local slack = 1 + span * 1e-9
local is_ahead = full > now + span + slack
full = math.min(math.max(full, now), now + span + slack)
local wait = full + need - now - span
local refused = wait > slack
if not refused then full = full + need end
if is_ahead or not refused then
  local kept = string.format('%.17g', full)
  local key = KEYS[1]
  if shared then
    key = KEYS[2]
    redis.call('HSET', key, ARGV[2], kept)
  else
    redis.call('ZADD', key, kept, ARGV[1])
  end
  redis.call('PEXPIRE', key, string.format('%d', math.min(math.ceil(span / 1000) + 1000, 1e12)))
end
if refused then return math.ceil(wait) end
return 0
""")


class SharedBuckets:
    """The buckets of one rate.

    Args:
        store: Where they are.
        name: What the rate is called in every process.
        calls: Calls that may be made at once.
        seconds: Time in which an empty bucket fills up.
        clock: Gives seconds of this process, and never goes back.
        room: See `ROOM`.
    """

    __slots__ = ("_again", "_clock", "_local", "_name", "_outage", "_room", "_span", "_step", "store")

    def __init__(self, store: Scripted, name: str, calls: int, seconds: float, clock: Callable[[], float], room: int = ROOM) -> None:
        self.store = store
        # With another rate the same numbers would say something else.
        self._name = _digest(f"{calls}/{seconds!r} {name}")
        self._local = Buckets(calls, seconds)
        self._span = seconds * 1e6
        self._step = self._span / calls
        self._clock = clock
        self._room = room
        self._again: dict[str, float] = {}
        self._outage = Outage("Until it does, each process counts the calls of a rate for itself.", clock)

    async def take(
        self,
        key: str | None,
        *,
        network: str | None = None,
        calls: int = 1,
        mark: str | None = None,
        mark_ttl: float = 3600.0,
        now: float | None = None,
    ) -> float:
        """Take calls out of a bucket, all or none.

        Args:
            key: Whose bucket; None is one of its own.
            network: With whom a caller shares a bucket where there are too many; the key by default.
            calls: How many; more than a bucket holds count as what it holds.
            mark: What was counted already is called so, and free the first time that it is seen; None for what was not.
            mark_ttl: Seconds for which that is remembered.
            now: Seconds; the store's own clock by default.

        Returns:
            Seconds until there are so many; 0 when they were taken.
        """
        here = self._clock()
        bucket = _digest("-" if key is None else f"+{key}")
        if mark is None and (left := self._again.get(bucket, here) - here) > 0:
            return left
        if not self._outage.asks():
            return self._local.take(key, here, network=network, calls=calls)
        need = min(calls * self._step, self._span)
        slot = _digest("-" if key is None and network is None else f"+{key if network is None else network}")
        # Who shares must meet, whatever their keys are.
        part = int(slot[:8], 16) % PARTS
        tag = f"{{rate:{self._name}:{part}}}"
        keys: tuple[str, ...] = (self.store.key(tag, "own"), self.store.key(tag, "shared"))
        if mark is not None:
            keys += (self.store.key(tag, "mark", mark),)
        clock = "" if now is None else round(now * 1e6)
        args = (bucket, int(slot[8:16], 16) % SLOTS, self._span, need, clock, self._room, round(mark_ttl * 1000))
        try:
            wait: float = await self.store.run(_TAKE, keys, args) / 1e6
        except StoreError as error:
            self._outage.failed(error)
            return self._local.take(key, here, network=network, calls=calls)
        self._outage.worked()
        if wait <= 0:
            self._local.take(key, here, network=network, calls=calls)  # so that it knows them when it has to count alone
        elif now is None:
            self._remember(bucket, here + wait - (need - self._step) / 1e6, here)
        return wait

    def _remember(self, bucket: str, until: float, here: float) -> None:
        """Nobody can have a single call before `until`: whatever else is taken makes it later."""
        if until <= here:
            return
        if len(self._again) >= _REMEMBERED:
            self._again.clear()
        self._again[bucket] = until


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
