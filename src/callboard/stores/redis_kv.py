"""Keys and values, and logs of events, in a Redis."""

from __future__ import annotations

import os
from typing import Any, Protocol

from callboard.errors import StoreError
from callboard.stores.base import Entry, Event
from callboard.stores.redis_script import Script

__all__ = ["Commands", "RedisEventLog", "RedisKv"]

_WIDTH = 8  # bytes of a version, before the value
_LONGEST = 1e9  # seconds: some 30 years, which Redis can count to
_PUT = Script(
    """
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 0 end
if ARGV[3] == '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""
)
_APPEND = Script(
    """
local id = redis.call('INCR', KEYS[2])
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], string.format('%.0f-0', id), 'd', ARGV[1])
return id
"""
)


class Commands(Protocol):
    """What a Redis is asked through: see `RedisStore`."""

    async def execute(self, *command: Any, key: str | None = None) -> Any:
        """Send a command."""
        ...

    async def run(self, script: Script, keys: tuple[str, ...], args: tuple[str | bytes | int | float, ...]) -> Any:
        """Run a script."""
        ...

    def key(self, *parts: str) -> str:
        """The whole name of a key."""
        ...


class RedisKv:
    """`Kv` in a Redis: one string for each key, a version of 8 random bytes before the value.

    Args:
        commands: Where the Redis is asked.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    async def get(self, key: str) -> Entry | None:
        """Read a key; None when absent or expired.

        Raises:
            StoreError: No answer in time, or what is there was not written by `put`.
        """
        name = self._commands.key("kv", key)
        found = await self._commands.execute("GET", name)
        if found is None:
            return None
        if len(found) < _WIDTH:  # it would never be at the version that it seems to have, and who tries again would try for ever
            raise StoreError(f"Somebody else has written into {name}: it has no version. Delete that key.")
        return Entry(found[_WIDTH:], int.from_bytes(found[:_WIDTH], "big"))

    async def put(self, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None) -> int | None:
        """Write a key; None when `expect` did not hold.

        Raises:
            StoreError: No answer in time. Where the connection was lost in between, it may have been written all the same.
        """
        name = self._commands.key("kv", key)
        fresh = b"\x01" + os.urandom(_WIDTH - 1)  # never used before, and never 0, which stands for an absent key
        stored = fresh + value
        life = "" if ttl is None else max(1, round(min(ttl, _LONGEST) * 1000))
        if expect is None or expect == 0:
            absent = ("NX",) if expect == 0 else ()
            limit = ("PX", life) if life else ()
            done = await self._commands.execute("SET", name, stored, *limit, *absent)
        else:
            if not 0 < expect < 1 << 8 * _WIDTH:
                return None
            done = await self._commands.run(_PUT, (name,), (expect.to_bytes(_WIDTH, "big"), stored, life))
        return int.from_bytes(fresh, "big") if done else None

    async def delete(self, key: str) -> bool:
        """Remove a key; whether it was there.

        Raises:
            StoreError: No answer in time.
        """
        return bool(await self._commands.execute("DEL", self._commands.key("kv", key)))


class RedisEventLog:
    """`EventLog` in a Redis: one stream for each, and a count that outlives its events.

    Args:
        commands: Where the Redis is asked.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def _keys(self, stream: str) -> tuple[str, str]:
        events = self._commands.key("log", "{" + stream + "}")
        return events, events + ":count"

    async def append(self, stream: str, data: bytes, *, keep: int) -> int:
        """Add an event and let all but the newest `keep` fall off; the event's id.

        Raises:
            StoreError: No answer in time.
        """
        added: int = await self._commands.run(_APPEND, self._keys(stream), (data, keep))
        return added

    async def read(self, stream: str, after: int) -> list[Event]:
        """Events with an id above `after` that are still there, oldest first.

        Raises:
            StoreError: No answer in time.
        """
        rows = await self._commands.execute("XRANGE", self._keys(stream)[0], f"{max(0, after + 1)}-0", "+")
        return [Event(int(id_[: id_.index(b"-")]), fields[1]) for id_, fields in rows]

    async def drop(self, stream: str) -> None:
        """Forget a stream.

        Raises:
            StoreError: No answer in time.
        """
        await self._commands.execute("DEL", *self._keys(stream))
