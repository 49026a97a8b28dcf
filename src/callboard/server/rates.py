"""So many calls in so long, for each of many callers, in bounded memory. Pure: the time is an argument.

A caller has a bucket of calls that may be made at once, which fills up again as time goes by. Of a bucket one number is kept: when it will be
full. One that is full again is as good as none, so that only those are forgotten: nobody gets a new bucket by making up names, and nobody
loses the count of theirs because somebody else does. Where `MAX_KEYS` buckets are not full, whoever else comes shares one of `SHARED`
further ones with whoever has the same `network`, and a few more.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["MAX_KEYS", "SHARED", "Buckets", "Pace"]

MAX_KEYS = 10_000
SHARED = 1_024
# Seconds between two searches for buckets that are full again.
_SEARCH = 1.0
# What is a call but for a rounding error is one: who waits as long as was said must not be turned away again.
_ROUNDING = 1e-9


class Buckets:
    """The buckets of one rate.

    Args:
        calls: Calls that may be made at once.
        seconds: Time in which an empty bucket fills up.
    """

    __slots__ = ("_full_at", "_searched", "_seconds", "_shared", "_step")

    def __init__(self, calls: int, seconds: float) -> None:
        self._seconds = seconds
        self._step = seconds / calls
        self._full_at: OrderedDict[str | None, float] = OrderedDict()
        self._shared: dict[int, float] = {}
        self._searched = float("-inf")

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._full_at) + len(self._shared)

    def take(self, key: str | None, now: float, *, network: str | None = None, calls: int = 1) -> float:
        """Take calls out of a bucket, all or none.

        Args:
            key: Whose bucket; None is one of its own.
            now: Seconds, on a clock that never goes back.
            network: With whom a caller shares a bucket where there are too many; the key by default.
            calls: How many; more than a bucket holds count as what it holds.

        Returns:
            Seconds until there are so many; 0 when they were taken.
        """
        own = self._full_at
        full_at = own.get(key)
        slot = -1
        if full_at is None:
            if len(own) >= MAX_KEYS and not self._make_room(now):
                slot = hash(key if network is None else network) % SHARED
                full_at = self._shared.get(slot, now)
            else:
                full_at = now
        need = min(calls * self._step, self._seconds)
        full_at = max(full_at, now) + need
        wait = full_at - now - self._seconds
        if wait > _ROUNDING * self._seconds:
            return wait
        if slot >= 0:
            self._shared[slot] = full_at
        else:
            own[key] = full_at
            own.move_to_end(key)
        return 0.0

    def _make_room(self, now: float) -> bool:
        """Forget buckets that are full again; whether there is room for one more."""
        own = self._full_at
        if next(iter(own.values())) <= now:
            own.popitem(last=False)
        elif now - self._searched >= _SEARCH:
            self._searched = now
            for key in [key for key, full_at in own.items() if full_at <= now]:
                del own[key]
        return len(own) < MAX_KEYS


class Pace:
    """One bucket.

    Args:
        calls: Calls that may be made at once.
        seconds: Time in which it fills up when it is empty.
    """

    __slots__ = ("_full_at", "_seconds", "_step")

    def __init__(self, calls: int, seconds: float) -> None:
        self._seconds = seconds
        self._step = seconds / calls
        self._full_at = float("-inf")

    def admit(self, now: float) -> bool:
        """Take a call, if there is one.

        Args:
            now: Seconds, on a clock that never goes back.
        """
        full_at = max(self._full_at, now) + self._step
        if full_at - now > self._seconds * (1 + _ROUNDING):
            return False
        self._full_at = full_at
        return True
