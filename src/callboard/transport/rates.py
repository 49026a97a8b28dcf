"""Rates over HTTP: of an address, before anything is known of who asks; of messages, by principal, or by address where nobody knows."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from callboard.errors import Fail, Reason, StoreError
from callboard.server.limits import Limits, Rate, read_rate
from callboard.server.policy import settle
from callboard.server.rates import Buckets
from callboard.server.shared_rates import SharedBuckets
from callboard.stores.scripted import can_count
from callboard.wire.jsonrpc import Batch, Message, RawNotification, RawRequest, RawResponse, decode

__all__ = ["Held", "Rates", "locate", "settle"]

Held: TypeAlias = Fail | Awaitable[Fail | None] | None
"""Why something is refused; None when it is fine; where processes count together what gives either, see `settle`."""

# Addresses whose network is remembered; a client that makes up new ones costs no more than these.
_REMEMBERED = 4096
# Messages of a batch that are counted: with more it is refused.
_MAX_BATCH = 100
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Counter:
    """One rate, counted by this process or by all."""

    def __init__(self, option: str, rate: Rate) -> None:
        self.option = option
        self._rate = read_rate(rate, option)
        self.local = Buckets(*self._rate)
        self._shared: SharedBuckets | None = None

    def share(self, store: Any, clock: Callable[[], float]) -> SharedBuckets:
        """The buckets of all processes."""
        if self._shared is None or self._shared.store is not store:
            self._shared = SharedBuckets(store, self.option, *self._rate, clock)
        return self._shared


class Rates:
    """The rates of one application.

    Args:
        limits: Its limits.
        clock: Gives seconds, and never goes back.
        server: The server, with the store that it may share with other processes, which then count together; None to count alone.

    Attributes:
        by_address: Whether requests are counted.
        by_message: Whether messages are.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic, *, server: Any = None) -> None:
        self._clock = clock
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._address = None if limits.address_rate is None else _Counter("address_rate", limits.address_rate)
        self._message = None if limits.message_rate is None else _Counter("message_rate", limits.message_rate)
        self._free = frozenset(limits.uncounted_methods)
        self._places: dict[str, tuple[str, str]] = {}
        self.by_address = self._address is not None
        self.by_message = self._message is not None

    def refuse_address(self, client: Any) -> Held:
        """Count an HTTP request.

        Args:
            client: ASGI's: address and port of the peer, behind a proxy that is trusted those that it says; None where there are none.

        Returns:
            Why it is refused, with the seconds after which to try again; None when it is fine; what gives either, see `Held`.
        """
        if self._address is None:
            return None
        key, network = self._locate(client)
        whose = "requests of this address"
        if self._server is None or not self._server.store.shared:
            return _refuse(self._address.local.take(key, self._clock(), network=network), whose, "address_rate")
        return self._take(self._address, key, network, 1, whose)

    def refuse_message(self, principal: str | None, client: Any, message: Message) -> Held:
        """Count a message.

        Args:
            principal: Who asks; None where nobody knows.
            client: See `refuse_address`.
            message: What the body holds.

        Returns:
            See `refuse_address`.
        """
        calls = 0 if self._message is None else self._count(message)
        if not calls or self._message is None:
            return None
        # A principal that is called like an address must not share its count.
        key, network = (f"@{principal}", None) if principal is not None else self._locate(client)
        whose = "messages of this address" if principal is None else "messages of yours"
        if self._server is None or not self._server.store.shared:
            return _refuse(self._message.local.take(key, self._clock(), network=network, calls=calls), whose, "message_rate")
        return self._take(self._message, key, network, calls, whose)

    def _take(self, counter: _Counter, key: str, network: str | None, calls: int, whose: str) -> Held:
        store = self._server.store
        if can_count(store):
            return self._take_shared(counter.share(store, self._clock), counter.option, key, network, calls, whose)
        return _refuse(counter.local.take(key, self._clock(), network=network, calls=calls), whose, counter.option)

    async def _take_shared(self, shared: SharedBuckets, option: str, key: str, network: str | None, calls: int, whose: str) -> Fail | None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the first request comes before the endpoint is open
            self._loop = loop
            with suppress(StoreError):  # who counts says so
                await self._server.store.open()
        return _refuse(await shared.take(key, network=network, calls=calls), whose, option)

    def _count(self, message: Message) -> int:
        """How many calls a message is: each in a batch is one, else batches would be the way around."""
        if isinstance(message, Batch):
            return sum(self._count(decode(bytes(item))) for item in _decode_items(message.body)[:_MAX_BATCH])
        if isinstance(message, RawResponse):
            return 0
        if isinstance(message, RawNotification):
            return int(message.method == "notifications/cancelled" and message.method not in self._free)
        return int(not isinstance(message, RawRequest) or message.method not in self._free)

    def _locate(self, client: Any) -> tuple[str, str]:
        host = "" if client is None else str(client[0])
        try:
            return self._places[host]
        except KeyError:
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            found = self._places[host] = locate(host)
            return found


def locate(host: str) -> tuple[str, str]:
    """Whose an address is: as far as one subscriber can choose among addresses, they are one.

    Args:
        host: An IP address; whatever else is its own.

    Returns:
        What is counted: an IPv4 address, an IPv6 network of /64. And the network around it: /24, /48.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host, host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            number = int(address)
            return f"{number >> 64:x}/64", f"{number >> 80:x}/48"
        address = address.ipv4_mapped
    text = str(address)
    return text, text.rpartition(".")[0]


def _refuse(wait: float, what: str, option: str) -> Fail | None:
    if wait <= 0:
        return None
    seconds = max(1, math.ceil(wait))
    return Fail(Reason.RATE, f"Too many {what} ({option}): try again in {seconds} s.", {"retryAfter": seconds})
