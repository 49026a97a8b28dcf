"""One server of a group: opened when it is needed, and when that failed, again after a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from callboard.client.config import ConfigError, ServerSpec
from callboard.client.errors import ClientError, Origin
from callboard.client.peer import Peer

__all__ = ["Member"]

logger = logging.getLogger("callboard.client")

FIRST_COOLDOWN: Final = 5.0
"""Seconds after a failure in which nobody waits for another one."""
MOST_COOLDOWN: Final = 60.0
"""The most; each is twice the one before."""

MOMENT: Final = 1.0
"""Seconds that a listing waits for a server that has failed before."""


class Member:
    """A server and the way it is doing.

    Args:
        spec: Which it is.
        make: Makes a peer for it, not yet open.

    Raises:
        ConfigError: No peer can be made of what the configuration says.

    Attributes:
        name: As configured.
        prefix: What its names begin with, before a `_`.
        timeout: Seconds without a word that its requests may take; None for the client's own.
        failure: Why it can't be used; None while it can, or was not tried.
    """

    def __init__(self, spec: ServerSpec, make: Callable[[ServerSpec], Peer]) -> None:
        self.name = spec.name
        self.prefix = spec.prefix
        self.timeout = spec.timeout
        self.failure: ClientError | None = None
        self._spec = spec
        self._make = make
        try:
            self._next: Peer | None = make(spec)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"server {spec.name!r}: {error}") from error
        self._peer: Peer | None = None
        self._attempt: asyncio.Task[Peer] | None = None
        self._cooldown = FIRST_COOLDOWN
        self._not_before = 0.0
        self._closed = False

    @property
    def ready(self) -> Peer | None:
        """The server, if it is open."""
        return self._peer

    def full(self, name: str) -> str:
        """One of its names, as the group has it (TL-16)."""
        return f"{self.prefix}_{name}"

    def own(self, name: str) -> str | None:
        """A name of the group, as the server has it; None when it is none of its names."""
        start = f"{self.prefix}_"
        return name[len(start) :] if name.startswith(start) and len(name) > len(start) else None

    async def open(self) -> Peer:
        """The server, opened if it is not. Who is cancelled meanwhile leaves others who wait for it alone.

        Raises:
            ClientError: It can't be opened; or could not a short while ago, and that was not tried again.
        """
        if self._peer is not None:
            return self._peer
        if self._attempt is None:
            if self._closed or (self.failure is not None and asyncio.get_running_loop().time() < self._not_before):
                raise self.failure.with_traceback(None) if self.failure else ClientError("the client was closed", Origin(self.name))
            self._attempt = asyncio.create_task(self._try(), name=f"callboard client opens {self.name}")
        return await asyncio.shield(self._attempt)

    async def open_soon(self) -> Peer:
        """The same; one that has failed before is given a moment alone, and goes on being opened after that.

        Raises:
            ClientError: It is not open.
        """
        if self.failure is None:
            return await self.open()
        failure = self.failure
        try:
            async with asyncio.timeout(MOMENT):
                return await self.open()
        except TimeoutError as error:
            raise failure.with_traceback(None) from error

    async def close(self) -> None:
        """Close it, within bounded time."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
        if self._peer is not None:
            await self._peer.close()

    async def _try(self) -> Peer:
        peer, self._next = self._next or self._make(self._spec), None
        try:
            await peer.open()
        except ClientError as error:
            self.failure = error
            self._not_before = asyncio.get_running_loop().time() + self._cooldown
            self._cooldown = min(2 * self._cooldown, MOST_COOLDOWN)
            logger.warning("Server %r is left out: %s", self.name, error)
            raise
        else:
            self._peer, self.failure, self._cooldown = peer, None, FIRST_COOLDOWN
            return peer
        finally:
            if self._attempt is not None:
                self._attempt.add_done_callback(_look_at)
            self._attempt = None


def _look_at(attempt: asyncio.Task[Peer]) -> None:
    """Perhaps nobody waits for it any more; then its failure is known all the same."""
    if not attempt.cancelled():
        attempt.exception()
