"""Requests over a stream of lines, one JSON-RPC message each: a child's pipes, a server in this process.

One task reads; every request has a mailbox that it empties in its own task. Who a message is for:

- a response: the request of its id; one without an id (the server could not read it, JR-09) only when a single request waits;
- progress: the token, which is the request's id; a listen stream's notes: their subscription id (SD-04); a cancellation: its request id;
- what was meant as an answer and can't be read: the request of its id, else the only one that waits;
- a log names no request, so the oldest that waits hands it on: the client has one place for logs.

What belongs to nobody is dropped: an answer after a cancellation (CN-05), an unknown id. A request of the server is never answered (JR-06).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from contextlib import suppress
from typing import Protocol

import msgspec

from callboard.client.connection import Incoming, OnNote, Outgoing, means_answer
from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer, Origin
from callboard.wire.jsonrpc import Malformed, RawNotification, RawResponse, RequestId, decode, encode_notification
from callboard.wire.versions import META_PROGRESS_TOKEN, META_SUBSCRIPTION_ID

__all__ = ["LineConnection", "LineStream"]

logger = logging.getLogger("callboard.client")

# Notes that may wait for one request whose callback is slow; past it the oldest are lost, the answer never is.
MAX_NOTES = 10_000
# Lines that are read before others get their turn.
BURST = 100
# Where most servers write the id of an answer, if the answer itself can't be read.
_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*[,}]')


class LineStream(Protocol):
    """Lines out, lines in."""

    async def open(self, origin: Origin) -> None:
        """Get ready; raises a `ClientError` when it can't be done."""
        ...

    async def send(self, line: bytes) -> None:
        """Write one message, without a line end. Raises `EOFError` when the other side is gone."""
        ...

    async def receive(self) -> bytes:
        """Read one message. Raises `EOFError` at the end."""
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

    __slots__ = ("arrival", "notes", "response")

    def __init__(self) -> None:
        self.notes: deque[RawNotification] = deque(maxlen=MAX_NOTES)
        self.response: RawResponse | Malformed | None = None
        self.arrival = asyncio.Event()


class LineConnection:
    """A connection over one stream of lines; see the module for its rules.

    Args:
        stream: The stream, not yet open.
    """

    mirrors = False

    def __init__(self, stream: LineStream) -> None:
        self._stream = stream
        self._boxes: dict[RequestId, _Mailbox] = {}
        self._reader: asyncio.Task[None] | None = None
        self._notices: set[asyncio.Task[None]] = set()
        self._ended = False
        self._closed = False
        self._strange = 0

    @property
    def last_words(self) -> str:
        """What the server has said beside the protocol."""
        return self._stream.last_words

    async def open(self, origin: Origin) -> None:
        """Open the stream and begin to read."""
        await self._stream.open(origin)
        self._reader = asyncio.create_task(self._read(), name=f"callboard client reader of {origin.target}")

    async def exchange(self, request: Outgoing, on_note: OnNote) -> Incoming:
        """Send a request and wait for its answer; cancelling sends `notifications/cancelled` (CN-01, SD-05)."""
        request_id = request.origin.request_id
        assert request_id is not None
        box = self._boxes[request_id] = _Mailbox()
        try:
            if self._ended:
                raise self._failure(request.origin)
            try:
                await self._stream.send(request.body)
            except EOFError:
                await self._wait_for_end()
            while not self._ended or box.notes or box.response is not None:
                box.arrival.clear()
                while box.notes:
                    await on_note(box.notes.popleft())
                if isinstance(box.response, Malformed):
                    raise InvalidAnswer(f"the answer can't be read: {box.response.fail.text}", request.origin)
                if box.response is not None:
                    return Incoming(box.response)
                if not self._ended:
                    await box.arrival.wait()
            raise self._failure(request.origin)
        finally:
            del self._boxes[request_id]
            if box.response is None and not self._ended:
                self._send_cancel(request_id)

    async def close(self) -> None:
        """End the stream; what waits fails."""
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            self._end()
            tasks = [task for task in (self._reader, *self._notices) if task is not None]
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._strange > 1:
            logger.warning("ignored %d lines in all that were neither an answer nor a notification", self._strange)
            self._strange = 0

    def _failure(self, origin: Origin) -> ClientError:
        return ConnectionFailed("the client was closed before the answer came", origin) if self._closed else self._stream.explain(origin)

    async def _wait_for_end(self) -> None:
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def _end(self) -> None:
        self._ended = True
        for box in self._boxes.values():
            box.arrival.set()

    async def _read(self) -> None:
        try:
            while True:
                for _ in range(BURST):
                    self._take(await self._stream.receive())
                await asyncio.sleep(0)  # lines that are there already are received without a pause
        except EOFError:
            pass
        finally:
            self._end()

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
                box.notes.append(message)
                box.arrival.set()
        else:
            self._strange += 1
            if self._strange == 1:
                logger.warning("ignored a line that is neither an answer nor a notification: %.200r", line)

    def _deliver(self, response: RawResponse | Malformed, request_id: RequestId | None) -> None:
        box = self._sole_box() if request_id is None else self._boxes.get(request_id)
        if box is not None and box.response is None:
            box.response = response
            box.arrival.set()

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
        with suppress(EOFError):
            await self._stream.send(line)
