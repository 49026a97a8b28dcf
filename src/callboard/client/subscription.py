"""Changes as a client's user hears of them: open a stream of them, iterate, leave it.

States: not entered, open, ended. A stream that breaks is opened anew, and so is one that the server ends in good order (CN-03, SB-09) after
it has been open for a while: nothing that happened in between is told (SB-10), so whatever was asked for is told of as changed. It ends by
leaving the `async with`, by a server that ends it at once or refuses it, and when it could not be opened anew for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import msgspec

from callboard.client.answer import read
from callboard.client.changes import ACKNOWLEDGED, CHANGES, Change, read_change, restate
from callboard.client.connection import OnNote
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InvalidAnswer, Origin, RequestTimeout, ServerError
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification

__all__ = ["Subscription"]

logger = logging.getLogger("callboard.client")

_EMPTY = msgspec.Raw(b"{}")
MAX_WAITING = 10_000
"""Changes that may wait for a slow reader."""
SHORT = 5.0
"""A stream that the server ends sooner, in seconds, is not wanted there: it is not opened anew."""
BRIEF = 5
"""So many in a row may end that soon all the same, once one has lasted: a server that replaces its workers ends a stream at each of them."""
FIRST_DELAY, MOST_DELAY = 0.1, 10.0
"""Seconds before the first attempt to open a stream anew, and the most; each is twice the one before, more or less (CA-08)."""
# HTTP statuses of a server that will be back.
_PASSING = frozenset({429, 500, 502, 503, 504})
# The same where the answer is a JSON-RPC error: then 500 is the server's last word.
_BUSY = frozenset({429, 503})
GIVEN_UP = 60.0
"""Seconds after which no further attempt is made."""


class Subscription:
    """Changes as they happen: `async with client.listen(tools=True) as changes: async for change in changes: ...`.

    Entering waits for the server's acknowledgement. See the module for when it ends.

    Args:
        run: Sends the request and hands notes on until the stream ends; the client makes it.
        wanted: What was asked for.
        origin: Names the request in errors.
        timeout: Seconds to wait for the acknowledgement; None for no limit.
        streams: The client's open streams, which it ends when it closes.

    Attributes:
        origin: Names the request in errors.
        granted: What the server agreed to send; None before the acknowledgement. It may be less than was asked (SB-04).
    """

    def __init__(
        self,
        run: Callable[[OnNote], Awaitable[Any]],
        wanted: v.SubscriptionFilter,
        origin: Origin,
        timeout: float | None,
        streams: set[Subscription],
    ) -> None:
        self._run = run
        self._wanted = wanted
        self.origin = origin
        self._timeout = timeout
        self._streams = streams
        self._waiting: deque[Change] = deque()
        self._arrival = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._ended = False
        self._acknowledged: float | None = None
        self._brief = 0
        self.granted: v.SubscriptionFilter | None = None

    async def __aenter__(self) -> Self:
        """Open the stream and wait for the acknowledgement.

        Raises:
            ClientError: The server refuses, grants nothing of what was asked, or can't be reached.
        """
        self._streams.add(self)
        self._task = asyncio.create_task(self._listen(), name=f"callboard subscription at {self.origin.target}")
        try:
            async with asyncio.timeout(self._timeout):
                while self.granted is None and not self._ended:
                    await self._arrived()
        except TimeoutError as error:
            await self.close()
            raise RequestTimeout(self._timeout or 0, self.origin) from error
        except BaseException:
            await self.close()
            raise
        if self.granted is None:
            raise self._failure or InvalidAnswer("the subscription ended before it was acknowledged", self.origin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """Wait for the next change.

        Raises:
            StopAsyncIteration: The stream has ended in good order.
            ClientError: It broke, and can't be opened anew.
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
        self.end(None)
        if self._task is not None:
            await asyncio.wait([self._task])

    def end(self, failure: ClientError | None) -> None:
        """End the stream at once; a reader gets what has come, and then that failure."""
        self._streams.discard(self)
        if self._task is not None and not self._task.done():
            self._failure = failure
            self._task.cancel()

    async def _arrived(self) -> None:
        self._arrival.clear()
        await self._arrival.wait()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        delay, lost_since = FIRST_DELAY, 0.0
        try:
            while True:
                self._acknowledged = None
                error = await self._hear()
                now = loop.time()
                if self._acknowledged is not None:
                    lost_since = now
                    if now - self._acknowledged > SHORT:  # else whoever breaks each stream would be asked ten times a second
                        delay = FIRST_DELAY
                if not self._opens_anew(error, now) or now - lost_since > GIVEN_UP:
                    self._failure = error
                    return
                logger.info("%s: the stream of changes has ended and is opened anew", self.origin.target)
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - so that clients do not come all at once
                delay = min(2 * delay, MOST_DELAY)
        finally:
            self._streams.discard(self)
            self._ended = True
            self._arrival.set()

    async def _hear(self) -> Exception | None:
        """Hear one stream to its end; gives what broke it."""
        try:
            await self._run(self._take)
        except _Ended:
            return None
        except Exception as error:  # noqa: BLE001 - the reader's to see
            return error
        return None

    def _opens_anew(self, error: Exception | None, now: float) -> bool:
        if self.granted is None:
            return False
        if error is None:
            lasted = self._acknowledged is not None and now - self._acknowledged > SHORT
            self._brief = BRIEF if lasted else self._brief - 1
            return self._brief >= 0
        return is_passing(error)

    async def _take(self, note: RawNotification) -> None:
        try:
            if note.method == ACKNOWLEDGED:
                said: v.SubscriptionsAcknowledgedNotificationParams = read(
                    v.SubscriptionsAcknowledgedNotificationParams, note.params or _EMPTY, self.origin
                )
                self._acknowledge(said.notifications)
            elif note.method in CHANGES:
                self._waiting.append(read_change(note))
            elif note.method == "notifications/cancelled":
                raise _Ended
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"{note.method} does not fit the protocol: {error}", self.origin) from error
        if len(self._waiting) > MAX_WAITING:
            raise ClientError(f"more than {MAX_WAITING} changes wait to be read: read faster, or list again and listen anew", self.origin)
        self._arrival.set()

    def _acknowledge(self, granted: v.SubscriptionFilter) -> None:
        """SB-07: compare what is granted with what was asked."""
        asked = [name for name in v.SubscriptionFilter.__struct_fields__ if getattr(self._wanted, name)]
        missing = [name for name in asked if not getattr(granted, name)]
        if asked and missing == asked:
            raise ClientError(f"the server tells of nothing that was asked for ({', '.join(asked)})", self.origin)
        if self.granted is not None:
            self._waiting += restate(granted)
        self.granted = granted
        self._acknowledged = asyncio.get_running_loop().time()
        if missing:
            logger.warning("%s does not send all that was asked: no %s", self.origin.target, ", ".join(missing))


def is_passing(error: Exception) -> bool:
    """Whether a server that gave no stream, or whose stream broke so, may be back."""
    if isinstance(error, ServerError):
        return error.status in _BUSY
    return isinstance(error, ConnectionFailed | RequestTimeout) or (isinstance(error, HttpError) and error.status in _PASSING)


class _Ended(Exception):  # noqa: N818
    """The server has ended the stream by `notifications/cancelled`."""
