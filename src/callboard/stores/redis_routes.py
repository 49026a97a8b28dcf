"""Which connection a key's commands go to: the only one, or that of the cluster's node whose slot it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from callboard.errors import StoreError
from callboard.stores.redis_dial import Address, Dialer, Outage, Wire, pack
from callboard.stores.redis_link import Link

__all__ = ["Routes"]

# Times that one command may be sent to another node, and seconds before it is tried again where a slot is between nodes.
_REDIRECTIONS = 6
_PAUSE = 0.05


class Routes:
    """Commands to where their key is.

    Args:
        dialer: Makes connections.
        outage: Is told when one is lost.
        timeout: Seconds that a command may take.
        up: Called whenever a connection is there.
    """

    def __init__(self, dialer: Dialer, outage: Outage, *, timeout: float, up: Callable[[], None]) -> None:
        self._dialer = dialer
        self._outage = outage
        self._timeout = timeout
        self._up = up
        self._links: dict[Address | None, Link] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._learning: asyncio.Task[None] | None = None
        self._cluster = dialer.place.kind == "cluster"

    async def open(self) -> None:
        """Have a first connection.

        Raises:
            StoreError: There is none in time, or the Redis does not want us.
        """
        if self._cluster:
            await self._learn()
        await self._find(None).ready()

    async def close(self) -> None:
        """Close all connections."""
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait({self._learning})
            self._learning = None
        links = list(self._links.values())
        self._links.clear()
        self._slots.clear()
        await asyncio.gather(*(link.stop() for link in links))

    def since(self) -> float | None:
        """When the youngest connection was made, by the loop's clock; None while one is missing."""
        times = [link.since for link in self._links.values()]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

    async def dial(self, key: str) -> Wire:
        """A connection of its own to where a key is, found out anew.

        Args:
            key: Its name.
        """
        if not self._cluster:
            return await self._dialer.dial()
        try:
            await self._learn()
        except StoreError as error:
            raise ConnectionError(str(error)) from None
        return await self._dialer.dial(self._address(key))

    async def send(self, packed: bytes, key: str | bytes | None) -> Any:
        """Send a command and wait for its reply.

        Args:
            packed: The command.
            key: A key that it is about; None where any node may answer.

        Raises:
            StoreError: No reply in time, or none any more.
            redis.exceptions.ResponseError: The Redis refuses it.
        """
        if not self._cluster:
            return await self._find(None).send(packed)
        from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

        link, until = self._find(key), asyncio.get_running_loop().time() + self._timeout
        for _ in range(_REDIRECTIONS):
            try:
                return await link.send(packed)
            except AskError as error:  # MovedError is one, too: neither was done
                address = (str(error.host) or self._dialer.place.nodes[0][0], int(error.port))
                link = self._to(address)
                if isinstance(error, MovedError):
                    self._relearn()
                else:
                    link.send(pack(("ASKING",))).add_done_callback(_ignore)
            except (ClusterDownError, TryAgainError) as error:
                if asyncio.get_running_loop().time() > until:
                    raise self._dialer.refuse(error) from error
                await asyncio.sleep(_PAUSE)
                self._relearn()
                link = self._find(key)
        raise StoreError(f"The store {self._dialer.place.shown} sends a command from node to node.")

    def post(self, packed: bytes) -> None:
        """Send a command that any node may do, and whose reply is of no interest."""
        self._find(None).send(packed).add_done_callback(_ignore)

    def cut(self) -> None:
        """Take all connections for lost: they lead to servers that are not in charge any more."""
        for link in self._links.values():
            link.cut("it is a replica now")

    def _find(self, key: str | bytes | None) -> Link:
        return self._to(self._address(key) if self._cluster else None)

    def _to(self, address: Address | None) -> Link:
        link = self._links.get(address)
        if link is None:
            link = Link(self._dialer, lambda: self._connect(address), self._outage, timeout=self._timeout, up=self._up)
            self._links[address] = link
        return link

    async def _connect(self, address: Address | None) -> Wire:
        try:
            return await self._dialer.dial(address)
        except self._dialer.failures:
            if self._cluster:
                self._relearn()
            raise

    def _address(self, key: str | bytes | None) -> Address:
        from redis.crc import key_slot

        slot = 0 if key is None else key_slot(key if isinstance(key, bytes) else key.encode())
        for first, last, address in self._slots:
            if first <= slot <= last:
                return address
        return self._slots[0][2] if self._slots else self._dialer.place.nodes[0]

    def _relearn(self) -> None:
        if self._learning is None or self._learning.done():
            self._learning = asyncio.get_running_loop().create_task(self._learn_quietly())

    async def _learn_quietly(self) -> None:
        with suppress(StoreError):  # whoever needs it finds out
            await self._learn()
        await asyncio.sleep(_PAUSE)  # the next one who is sent elsewhere does not ask at once

    async def _learn(self) -> None:
        known = [*dict.fromkeys([*(address for _, _, address in self._slots), *self._dialer.place.nodes])]
        reason = "it has no slots"
        for address in known:
            try:
                rows = await self._dialer.ask(address, "CLUSTER", "SLOTS")
            except self._dialer.failures as error:
                reason = self._dialer.explain(error)
                continue
            if rows:
                self._slots = sorted((row[0], row[1], (row[2][0].decode() or address[0], row[2][1])) for row in rows)
                await self._drop_strangers()
                return
        raise StoreError(f"The store {self._dialer.place.shown} can't be reached: {reason}.")

    async def _drop_strangers(self) -> None:
        """Nodes that have no slots any more need no connection, which might be tried for ever."""
        serving = {address for _, _, address in self._slots}
        strangers = [address for address in self._links if address not in serving]
        links = [self._links.pop(address) for address in strangers]
        await asyncio.gather(*(link.stop() for link in links))


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
