"""Where all comes in that no request of the client's waits for: notifications of a session as a whole, and requests of the server's.

Notifications are handed on in their order by one task at a time, so that a slow callback delays the next ones and nothing else. Requests are
answered at once, each by a task of its own (JR-07).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec

from callboard.client.changes import CHANGES, read_change
from callboard.client.errors import ClientError, ConnectionFailed, Origin
from callboard.errors import REASONS, Reason
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification, RawRequest, RequestId, encode_error

__all__ = ["Event", "Post"]

logger = logging.getLogger("callboard.client")

MAX_WAITING = 10_000
"""Notifications that may wait for a slow callback; past it the oldest are lost, with a warning."""
MAX_REQUESTS = 1_000
"""Requests of the server's that may wait for their answers at once; as many again are refused, and what is past that is dropped."""
SHOWN = 300
"""Characters of a server's words that the log shows."""
FAREWELL = 2.0
"""Seconds for callbacks to end when the client closes."""
_OVERLOADED = REASONS[Reason.OVERLOADED].code

Event = RawNotification | ClientError
"""What a listener hears: a change, or that the session is lost."""


class Post:
    """See the module.

    Args:
        target: The server, for the log.
        hand_on: Gives a notification to whoever wants it: progress and logs.
        answer: Makes the response to a request.
        send: Sends it.
        on_change: Hears of each change, before all others do.

    Attributes:
        doubted: Whether the way to the server broke, and it is not known yet whether the session lives.
    """

    def __init__(
        self,
        target: str,
        hand_on: Callable[[RawNotification], Awaitable[None]],
        answer: Callable[[RawRequest], Awaitable[bytes]],
        send: Callable[[bytes], Awaitable[None]],
        on_change: Callable[[RawNotification], None],
    ) -> None:
        self._target = target
        self._hand_on = hand_on
        self._answer = answer
        self._send = send
        self._on_change = on_change
        self._waiting: deque[RawNotification] = deque()
        self._courier: asyncio.Task[None] | None = None
        self._answering: dict[RequestId, asyncio.Task[None]] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        self._early: list[RawRequest] = []
        self._takes_requests: bool | None = None
        self._listeners: set[Callable[[Event], None]] = set()
        self._lost = 0
        self._strange = 0
        self.doubted = False

    def hold(self) -> None:
        """The way is being opened: keep requests until it is open."""
        self._takes_requests = None

    def settle(self, *, takes_requests: bool) -> None:
        """The way is open.

        Args:
            takes_requests: Whether its protocol has requests of servers (JR-05, JR-06).
        """
        self._takes_requests, self.doubted = takes_requests, False
        early, self._early = self._early, []
        for request in early:
            self.take_request(request)

    def take_note(self, note: RawNotification) -> None:
        """Take a notification of the session's."""
        if note.method in CHANGES:
            self._tell(note)
        elif note.method == "notifications/cancelled":
            self._stop_answering(note)
        else:
            if len(self._waiting) == MAX_WAITING:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(note)
            if self._courier is None:
                self._courier = asyncio.create_task(self._carry(), name=f"callboard client notes of {self._target}")

    def take_request(self, request: RawRequest) -> None:
        """Take a request of the server's."""
        if self._takes_requests is None and len(self._early) < MAX_REQUESTS:
            self._early.append(request)
        elif not self._takes_requests:
            self._complain(f"ignored the request {request.method[:SHOWN]!r}: servers of its protocol ask nothing (JR-05)")
        elif len(self._at_work) >= 2 * MAX_REQUESTS:
            self._complain(f"dropped the request {request.method[:SHOWN]!r}: {2 * MAX_REQUESTS} wait for an answer already")
        else:
            work = self._guard(request, refused=len(self._at_work) >= MAX_REQUESTS)
            task = asyncio.create_task(work, name="callboard client answer")
            self._answering[request.id] = task
            self._at_work.add(task)
            task.add_done_callback(lambda done: self._forget(request.id, done))

    @contextmanager
    def listening(self, listener: Callable[[Event], None]) -> Iterator[None]:
        """Have a listener hear of all changes, and of the loss of the session."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def lose(self, text: str) -> None:
        """The session is gone, or the way to it: listeners must begin anew."""
        self.doubted = True
        for listener in tuple(self._listeners):
            listener(ConnectionFailed(text, Origin(self._target)))

    async def close(self) -> None:
        """End what is at work, within a turn of the loop."""
        tasks = [*self._at_work, *([self._courier] if self._courier is not None else [])]
        tasks = [task for task in tasks if task is not asyncio.current_task()]  # a callback that closes the client
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL)

    def _tell(self, note: RawNotification) -> None:
        try:
            read_change(note)
        except msgspec.DecodeError as error:
            self._complain(f"dropped a notification: {note.method}: {str(error)[:SHOWN]!r}")
            return
        self._on_change(note)
        for listener in tuple(self._listeners):
            listener(note)

    def _stop_answering(self, note: RawNotification) -> None:
        """CN-04: the server does not wait any more."""
        try:
            named = msgspec.json.decode(note.params or b"{}", type=v.CancelledNotificationParams)
        except msgspec.DecodeError:
            return  # CN-06
        if task := self._answering.get(named.request_id):
            task.cancel()

    def _complain(self, text: str) -> None:
        """Once as a warning: a server may do it a thousand times a second."""
        self._strange += 1
        logger.log(logging.WARNING if self._strange == 1 else logging.DEBUG, "%s: %s", self._target, text)

    def _forget(self, request_id: RequestId, done: asyncio.Task[None]) -> None:
        self._at_work.discard(done)
        if self._answering.get(request_id) is done:
            del self._answering[request_id]

    async def _guard(self, request: RawRequest, *, refused: bool) -> None:
        try:
            if refused:
                await self._send(encode_error(request.id, _OVERLOADED, f"{MAX_REQUESTS} requests wait for an answer already."))
            else:
                await self._send(await self._answer(request))
        except ClientError as error:
            self._complain(f"an answer did not arrive: {str(error)[:SHOWN]!r}")

    async def _carry(self) -> None:
        try:
            while self._waiting:
                note = self._waiting.popleft()
                try:
                    await self._hand_on(note)
                except Exception:
                    logger.exception("%s: a callback failed with %s", self._target, note.method)
            if self._lost:
                logger.warning("%s: %d notifications were lost, because a callback is slower than the server", self._target, self._lost)
                self._lost = 0
        finally:
            self._courier = None
