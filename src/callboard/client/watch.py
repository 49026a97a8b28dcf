"""What `on_change` hears: one stream of changes in the background, for the lists and for the resources that were subscribed to."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from callboard.client.changes import Change
from callboard.client.errors import ClientError
from callboard.client.subscription import Subscription
from callboard.wire import v2026_07_28 as v

__all__ = ["OnChange", "Watch"]

logger = logging.getLogger("callboard.client")

FAREWELL = 2.0
"""Seconds for a callback to end when the client closes."""

OnChange: TypeAlias = Callable[[Change], Awaitable[None] | None]
"""Takes a change: `types.ToolListChangedNotification` and the like, or `types.ResourceUpdatedNotification`, whose `params.uri` names the
resource. May be async."""


class Watch:
    """See the module.

    Args:
        listen: Makes a subscription.
        on_change: Hears of each change, one after the other.
        target: The server, for the log.
    """

    def __init__(self, listen: Callable[..., Subscription], on_change: OnChange, target: str) -> None:
        self._listen = listen
        self._on_change = on_change
        self._target = target
        self._lists: dict[str, bool] = {}
        self._uris: dict[str, None] = {}
        self._stream: Subscription | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        self._closed = False

    async def open(self, offers: v.ServerCapabilities) -> None:
        """Listen to the lists that the server tells of.

        Args:
            offers: What it has declared.
        """
        kinds = {"tools": offers.tools, "prompts": offers.prompts, "resources": offers.resources}
        self._lists = {name: True for name, offer in kinds.items() if getattr(offer or None, "list_changed", False)}
        if self._lists:
            await self._restart(self._uris)

    async def add(self, uri: str) -> None:
        """Hear of a resource, too.

        Raises:
            ClientError: The server does not tell of it; all else is as it was.
        """
        async with self._changing:
            if uri not in self._uris:
                await self._restart({**self._uris, uri: None})

    async def remove(self, uri: str) -> None:
        """Hear of a resource no more; harmless if it was not heard of."""
        async with self._changing:
            if uri in self._uris:
                await self._restart({each: None for each in self._uris if each != uri})

    async def close(self) -> None:
        """Hear of nothing any more; what is being added meanwhile is not."""
        self._closed = True
        if self._stream is not None:
            await self._stream.close()
        pumps = [pump for pump in self._pumps if pump is not asyncio.current_task()]  # a callback that closes the client
        for pump in pumps:
            pump.cancel()
        if pumps:
            await asyncio.wait(pumps, timeout=FAREWELL)

    async def _restart(self, uris: dict[str, None]) -> None:
        """Open the new stream before the old one ends, so that nothing is missed in between."""
        before = self._stream
        stream: Subscription | None = None
        if uris or self._lists:
            stream = self._listen(**self._lists, uris=list(uris))
            await stream.__aenter__()
            if self._closed:
                await stream.close()
                raise ClientError("the client was closed", stream.origin)
            granted = stream.granted
            if missing := [uri for uri in uris if granted is None or uri not in (granted.resource_subscriptions or ())]:
                await stream.close()
                raise ClientError(f"the server does not tell of updates of {missing[0]}", stream.origin)
        self._stream, self._uris = stream, uris
        if stream is not None:
            pump = asyncio.create_task(self._carry(stream, tuple(self._pumps)), name=f"callboard client changes of {self._target}")
            self._pumps.append(pump)
            pump.add_done_callback(self._pumps.remove)
        if before is not None:
            await before.close()

    async def _carry(self, stream: Subscription, before: tuple[asyncio.Task[None], ...]) -> None:
        """Tell of what a stream brings, after all that the streams before it brought."""
        if before:
            await asyncio.wait(before)
        try:
            async for change in stream:
                try:
                    done: Any = self._on_change(change)
                    if inspect.isawaitable(done):
                        await done
                except Exception:
                    logger.exception("%s: on_change failed", self._target)
        except ClientError as error:
            logger.warning("changes are told no more: %.300r", str(error))
