"""Requests over a stream of lines, one JSON-RPC message each: a child's pipes, a server in this process.

Every request has a mailbox that it empties in its own task; the stream fills it as messages come. Who a message is for:

- a response: the request of its id; one without an id (the server could not read it, JR-09) only when a single request waits;
- progress: the token, which is the request's id; a listen stream's notes: their subscription id (SD-04); a cancellation: its request id;
- what was meant as an answer and can't be read: the request of its id, else the only one that waits;
- a log names no request, so the oldest that waits hands it on: the client has one place for logs.

What belongs to no request goes to the receiver: the server's own requests, and notifications of a session as a whole. An answer after a
cancellation (CN-05) or to an unknown id is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import msgspec

from callboard.client.connection import Incoming, OnNote, Outgoing, Receiver, means_answer
from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer, Origin
from callboard.wire.jsonrpc import Malformed, RawNotification, RawRequest, RawResponse, RequestId, decode, encode_notification
from callboard.wire.versions import META_PROGRESS_TOKEN, META_SUBSCRIPTION_ID

__all__ = ["LineConnection", "LineStream"]

logger = logging.getLogger("callboard.client")

# Notes that may wait for one request whose callback is slow; past it the oldest are lost, the answer never is.
MAX_NOTES = 10_000
# Where most servers write the id of an answer, if the answer itself can't be read.
_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*[,}]')


class LineStream(Protocol):
    """Lines out, lines in."""

    async def open(self, origin: Origin, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Get ready.

        Args:
            origin: Names the server in errors.
            take: From now on called with each message as it comes, without its line end.
            end: Called once, when no more will come.

        Raises:
            ClientError: It can't be done.
        """
        ...

    async def send(self, line: bytes) -> None:
        """Write one message, without a line end. Raises `EOFError` when the other side is gone."""
        ...

    @property
    def last_words(self) -> str:
        """What the server has said beside the protocol; empty where that can't be heard."""
        ...

    def explain(self, origin: Origin) -> ClientError:
        """Say why the stream ended, for one of the requests that waited."""
        ...

    async def aclose(self) -> None:
        """End the stream within bounded time; twice is harmless."""
        ...


class _Meta(msgspec.Struct):
    subscription_id: RequestId | None = msgspec.field(name=META_SUBSCRIPTION_ID, default=None)


class _Address(msgspec.Struct):
    """Where a notification may say whose it is."""

    token: RequestId | None = msgspec.field(name=META_PROGRESS_TOKEN, default=None)
    request_id: RequestId | None = msgspec.field(name="requestId", default=None)
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


_decode_address = msgspec.json.Decoder(_Address).decode


class _Mailbox:
    """What has come for one request."""

    __slots__ = ("_arrival", "ended", "notes", "response")

    def __init__(self) -> None:
        self.ended = False
        self.notes: deque[RawNotification] | None = None
        self.response: RawResponse | Malformed | None = None
        self._arrival: asyncio.Future[None] | None = None

    def put(self, note: RawNotification) -> None:
        """A notification has come."""
        if self.notes is None:
            self.notes = deque(maxlen=MAX_NOTES)
        self.notes.append(note)
        self.ring()

    def ring(self) -> None:
        """Something has come, or nothing will."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """Done by the next `ring`."""
        self._arrival = found = asyncio.get_running_loop().create_future()
        return found


class LineConnection:
    """A connection over one stream of lines; see the module for its rules.

    Args:
        make_stream: Makes a stream, not yet open: one for each time the connection is opened.
    """

    mirrors = False

    def __init__(self, make_stream: Callable[[], LineStream]) -> None:
        self._make_stream = make_stream
        self._stream = make_stream()
        self._receiver: Receiver | None = None
        self._boxes: dict[RequestId, _Mailbox] = {}
        self._over = asyncio.Event()
        self._notices: set[asyncio.Task[None]] = set()
        self._origin = Origin("")
        self._used = False
        self._closed = False
        self._strange = 0

    @property
    def last_words(self) -> str:
        """What the server has said beside the protocol."""
        return self._stream.last_words

    async def open(self, origin: Origin, receiver: Receiver) -> None:
        """Open the stream and begin to read; after its end, or where that failed, open a new one (SD-08)."""
        if self._used and not self._closed:
            await self._stream.aclose()
            self._stream = self._make_stream()
            self._over.clear()
        self._used = True
        self._receiver, self._origin = receiver, origin
        try:
            await self._stream.open(origin, self._take, self._end)
        except BaseException:
            self._over.set()
            raise
        if self._closed:  # meanwhile, by another task
            await self._stream.aclose()
            raise self._failure(self._stream, origin, sent=False)

    async def exchange(self, request: Outgoing, on_note: OnNote) -> Incoming:
        """Send a request and wait for its answer; giving up sends `notifications/cancelled` (CN-01, SD-05), unless it is not to be told."""
        request_id = request.origin.request_id
        assert request_id is not None
        if self._over.is_set():
            raise self._failure(self._stream, request.origin, sent=False)
        stream, sent = self._stream, True
        box = self._boxes[request_id] = _Mailbox()
        try:
            try:
                await stream.send(request.body)
            except EOFError:
                sent = False
                await self._over.wait()
            while True:
                while box.notes:
                    await on_note(box.notes.popleft())
                if isinstance(box.response, Malformed):
                    raise InvalidAnswer(f"the answer can't be read: {box.response.fail.text}", request.origin)
                if box.response is not None:
                    return Incoming(box.response)
                if box.ended:
                    raise self._failure(stream, request.origin, sent=sent)
                await box.arrival()
        finally:
            del self._boxes[request_id]
            if box.response is None and request.told and not box.ended:
                self._send_cancel(request_id)

    async def send(self, message: bytes, headers: Mapping[str, str], origin: Origin) -> None:
        """Write a notification or a response."""
        del headers
        if self._over.is_set():
            raise self._failure(self._stream, origin, sent=False)
        try:
            await self._stream.send(message)
        except EOFError:
            raise self._failure(self._stream, origin) from None

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Nothing to do: a stream of lines carries whatever the server says, and ends with the session."""

    async def close(self) -> None:
        """End the stream; what waits fails."""
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            self._end()
            for task in self._notices:
                task.cancel()
        if self._notices:
            await asyncio.wait(self._notices)
        if self._strange > 1:
            logger.warning("ignored %d lines in all that were neither an answer nor a notification", self._strange)
            self._strange = 0

    def _failure(self, stream: LineStream, origin: Origin, *, sent: bool = True) -> ClientError:
        error = ConnectionFailed("the client was closed before the answer came", origin) if self._closed else stream.explain(origin)
        if not sent and not isinstance(error, ConnectionFailed):  # how it ended is not this request's affair
            error = ConnectionFailed(f"the connection has ended: {error.text}", origin)
        if isinstance(error, ConnectionFailed):
            error.sent = sent
        elif not sent:  # what an earlier answer broke is no fault of this request: another stream may carry it
            return ConnectionFailed(error.text, origin, sent=False)
        return error

    def _end(self) -> None:
        if self._receiver is not None and not self._closed and not self._over.is_set():
            self._receiver.lose(self._failure(self._stream, self._origin).text)
        self._over.set()
        for box in self._boxes.values():
            box.ended = True
            box.ring()

    def _take(self, line: bytes) -> None:
        message = decode(line)
        if isinstance(message, RawResponse):
            self._deliver(message, message.id)
        elif isinstance(message, Malformed) and means_answer(line):
            named = _ID.match(line) if message.id is None else None
            self._deliver(message, int(named[1]) if named else message.id)
        elif isinstance(message, RawNotification):
            box = self._addressee(message)
            if box is not None and box.response is None:
                box.put(message)
            elif self._receiver is not None:
                self._receiver.take_note(message)
        elif isinstance(message, RawRequest) and self._receiver is not None:
            self._receiver.take_request(message)
        else:
            self._strange += 1
            if self._strange == 1:
                logger.warning("ignored a line that is neither an answer nor a notification: %.200r", line)

    def _deliver(self, response: RawResponse | Malformed, request_id: RequestId | None) -> None:
        box = self._sole_box() if request_id is None else self._boxes.get(request_id)
        if box is not None and box.response is None:
            box.response = response
            box.ring()

    def _sole_box(self) -> _Mailbox | None:
        return next(iter(self._boxes.values())) if len(self._boxes) == 1 else None

    def _addressee(self, note: RawNotification) -> _Mailbox | None:
        if note.method == "notifications/message":
            return next(iter(self._boxes.values()), None)
        try:
            address = _decode_address(note.params or b"{}")
        except msgspec.DecodeError:
            return None
        key = address.meta.subscription_id if address.meta is not None else None
        if key is None:
            key = address.request_id if note.method == "notifications/cancelled" else address.token
        return None if key is None else self._boxes.get(key)

    def _send_cancel(self, request_id: RequestId) -> None:
        line = encode_notification("notifications/cancelled", {"requestId": request_id})
        task = asyncio.create_task(self._send_notice(line))
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _send_notice(self, line: bytes) -> None:
        with suppress(EOFError, ClientError):
            await self._stream.send(line)
