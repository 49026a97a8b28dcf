"""A `subscriptions/listen` stream, as its user sees it: open it, iterate, leave it.

States: not entered, open, ended. It ends by the server's closing result, by its `notifications/cancelled` (a server may send either,
both or neither, CN-03, SB-09), by a failure, or by leaving the `async with`. What arrived before the end is still handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from callboard.client.connection import OnNote
from callboard.client.errors import ClientError, InvalidAnswer, Origin, RequestTimeout
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification, encode

__all__ = ["Change", "Subscription"]

logger = logging.getLogger("callboard.client")

Change: TypeAlias = (
    v.ToolListChangedNotification | v.PromptListChangedNotification | v.ResourceListChangedNotification | v.ResourceUpdatedNotification
)
"""What a subscription hands out; `params.uri` of the last names the resource."""

_decode_change = msgspec.json.Decoder(Change).decode
_decode_ack = msgspec.json.Decoder(v.SubscriptionsAcknowledgedNotificationParams).decode
_CHANGES = frozenset(
    f"notifications/{name}" for name in ("tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated")
)
_ACK = "notifications/subscriptions/acknowledged"
# Changes that may wait for a slow reader.
MAX_WAITING = 10_000


class Subscription:
    """Changes as they happen: `async with client.listen(tools=True) as changes: async for change in changes: ...`.

    Entering waits for the server's acknowledgement. The iteration ends when the server closes the stream in good order; nothing missed in
    between is replayed (SB-10), so list again after a new start.

    Args:
        run: Sends the request and hands notes on until the stream ends; the client makes it.
        wanted: What was asked for.
        origin: Names the request in errors.
        timeout: Seconds to wait for the acknowledgement; None for no limit.

    Attributes:
        granted: What the server agreed to send; None before the acknowledgement. It may be less than was asked (SB-04).
    """

    def __init__(
        self, run: Callable[[OnNote], Awaitable[Any]], wanted: v.SubscriptionFilter, origin: Origin, timeout: float | None
    ) -> None:
        self._run = run
        self._wanted = wanted
        self._origin = origin
        self._timeout = timeout
        self._waiting: deque[Change] = deque()
        self._arrival = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self.granted: v.SubscriptionFilter | None = None

    async def __aenter__(self) -> Self:
        """Open the stream and wait for the acknowledgement.

        Raises:
            ClientError: The server refuses, grants nothing of what was asked, or can't be reached.
        """
        self._task = asyncio.create_task(self._listen(), name=f"callboard subscription at {self._origin.target}")
        try:
            async with asyncio.timeout(self._timeout):
                while self.granted is None and not self._ended:
                    await self._arrived()
        except TimeoutError as error:
            await self.close()
            raise RequestTimeout(self._timeout or 0, self._origin) from error
        except BaseException:
            await self.close()
            raise
        if self.granted is None:
            raise self._failure or InvalidAnswer("the subscription ended before it was acknowledged", self._origin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """Wait for the next change.

        Raises:
            StopAsyncIteration: The stream has ended in good order.
            ConnectionFailed: It broke (SB-10): open a new one.
        """
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            await self._arrived()
        return self._waiting.popleft()

    async def close(self) -> None:
        """Leave the stream; harmless when it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _arrived(self) -> None:
        self._arrival.clear()
        await self._arrival.wait()

    async def _listen(self) -> None:
        try:
            await self._run(self._take)
        except _Ended:
            pass
        except (Exception, asyncio.CancelledError) as error:
            # A cancelled stream has nothing to complain of; anything else is the reader's to see.
            self._failure = None if isinstance(error, asyncio.CancelledError) else error
            if self._failure is None:
                raise
        finally:
            self._ended = True
            self._arrival.set()

    async def _take(self, note: RawNotification) -> None:
        try:
            if note.method == _ACK:
                self._acknowledge(_decode_ack(note.params or b"{}").notifications)
            elif note.method in _CHANGES:
                # Only the envelope's two keys: the tag picks the type.
                self._waiting.append(_decode_change(encode({"method": note.method, "params": note.params or {}})))
            elif note.method == "notifications/cancelled":
                raise _Ended
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"{note.method} does not fit the protocol: {error}", self._origin) from error
        if len(self._waiting) > MAX_WAITING:
            raise ClientError(f"more than {MAX_WAITING} changes wait to be read: read faster, or list again and listen anew", self._origin)
        self._arrival.set()

    def _acknowledge(self, granted: v.SubscriptionFilter) -> None:
        """SB-07: compare what is granted with what was asked."""
        asked = [name for name in v.SubscriptionFilter.__struct_fields__ if getattr(self._wanted, name)]
        missing = [name for name in asked if not getattr(granted, name)]
        if asked and missing == asked:
            raise ClientError(f"the server tells of nothing that was asked for ({', '.join(asked)})", self._origin)
        self.granted = granted
        if missing:
            logger.warning("%s does not send all that was asked: no %s", self._origin.target, ", ".join(missing))


class _Ended(Exception):  # noqa: N818
    """The server has ended the stream by `notifications/cancelled`."""
