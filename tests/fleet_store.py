"""A store that several servers of one process share, as the workers of one program share a Redis."""

import asyncio
from typing import Any

from callboard.errors import StoreError
from callboard.stores.base import Bus, Entry, EventLog, Kv
from callboard.stores.memory import MemoryBus, MemoryEventLog, MemoryKv, MemoryStore


class FleetKv(MemoryKv):
    """Keys and values that may be out of reach.

    Attributes:
        is_down: Whether they are.
        reads: Times that a key was read.
    """

    def __init__(self) -> None:
        super().__init__(lambda: asyncio.get_running_loop().time())
        self.is_down = False
        self.reads = 0

    @property
    def keys(self) -> list[str]:
        """All that there are."""
        return list(self._entries)

    async def get(self, key: str) -> Entry | None:
        self.reads += 1
        if self.is_down:
            raise StoreError("The store can't be reached.")
        await asyncio.sleep(0)
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, expect: int | None = None, ttl: float | None = None) -> int | None:
        if self.is_down:
            raise StoreError("The store can't be reached.")
        await asyncio.sleep(0)
        return await super().put(key, value, expect=expect, ttl=ttl)


class Fleet:
    """What all members share.

    Attributes:
        kv: Keys and values.
        bus: Messages.
        dead: Members that give no sign of life.
        members: All of them by name.
        lists: Lists by key.
    """

    def __init__(self) -> None:
        self.kv = FleetKv()
        self.log = MemoryEventLog()
        self.bus = MemoryBus()
        self.dead: set[str] = set()
        self.members: dict[str, MemoryStore] = {}
        self.lists: dict[str, list[bytes]] = {}

    def member(self, worker: str) -> "Member":
        """The store as one process sees it."""
        return Member(self, worker)


class Member(MemoryStore):
    """`Store` of one member."""

    def __init__(self, fleet: Fleet, worker: str) -> None:
        super().__init__(shared=True)
        self.kv: Kv = fleet.kv
        self.log: EventLog = fleet.log
        self.bus: Bus = fleet.bus
        self._fleet = fleet
        self._enter(fleet.members)
        del fleet.members[self.worker]
        self.worker = worker
        fleet.members[worker] = self

    async def alive(self, worker: str) -> bool:
        """Whether a member gives signs of life."""
        if self._fleet.kv.is_down:
            raise StoreError("The store can't be reached.")
        return worker not in self._fleet.dead

    def key(self, *parts: str) -> str:
        """The whole name of a key."""
        return ":".join(parts)

    async def execute(self, name: str, key: str, *arguments: Any) -> Any:
        """What a Redis does with its lists, as far as tasks need it."""
        if self._fleet.kv.is_down:
            raise StoreError("The store can't be reached.")
        found = self._fleet.lists.setdefault(key, [])
        if name == "RPUSH":
            found.append(str(arguments[0]).encode())
        elif name == "LRANGE":
            return found[arguments[0] : arguments[1] + 1]
        elif name == "LREM" and (entry := arguments[1] if isinstance(arguments[1], bytes) else arguments[1].encode()) in found:
            found.remove(entry)
        return None
