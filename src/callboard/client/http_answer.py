"""How a request's answer is read from its response: one JSON body, or a stream of events that ends with it (HM-08, HL-05)."""

from __future__ import annotations

import logging

from callboard.client.connection import OnNote, Outgoing, Receiver, means_answer
from callboard.client.errors import ClientError, InvalidAnswer, Origin
from callboard.client.http_events import EventSource, ResumedEvents, members
from callboard.client.http_pool import EVENT_STREAM, HttpPool, Response, media_type, refusal, shorten
from callboard.wire.jsonrpc import Batch, Malformed, Message, RawNotification, RawRequest, RawResponse, decode

__all__ = ["HttpAnswers"]

logger = logging.getLogger("callboard.client")


class HttpAnswers:
    """Reads the answers of one endpoint.

    Args:
        pool: Its connections.
        limit: Most bytes of one message.
        receiver: Takes requests of the server's that come before an answer.
    """

    def __init__(self, pool: HttpPool, limit: int, receiver: Receiver) -> None:
        self._pool = pool
        self._limit = limit
        self._receiver = receiver
        self._strange = 0

    async def read(self, response: Response, request: Outgoing, on_note: OnNote) -> RawResponse:
        """Read a response until the answer has come.

        Args:
            response: What came for the POST; it stays its owner's to close.
            request: What was asked.
            on_note: Gets the notifications before the answer.

        Raises:
            HttpError: It is no message.
            InvalidAnswer: It is no answer to this request.
            ConnectionFailed: It ended before the answer.
        """
        if response.status < 300 and media_type(response) == EVENT_STREAM:
            return await self._read_stream(response, request, on_note)
        body = await self._pool.read(response, self._limit, request.origin)
        message = decode(body)
        if isinstance(message, RawResponse) and (_answers(message, request.origin) or _refuses(response, message)):
            return message
        if isinstance(message, Batch) and (found := await self._take(message, body, request, on_note)) is not None:
            return found
        raise _miss(response, body, message, request.origin)

    async def _read_stream(self, response: Response, request: Outgoing, on_note: OnNote) -> RawResponse:
        source = EventSource(self._pool, request.headers, self._limit, request.origin)
        stream = ResumedEvents(source, response, resumed=request.resumed)
        try:
            while True:
                for event in await stream.next():
                    if not event.data or event.event != "message":
                        continue
                    found = await self._take(decode(event.data), event.data, request, on_note)
                    if found is not None:
                        await self._pool.drain(stream.response)
                        return found
        finally:
            stream.close()

    async def _take(self, message: Message, data: bytes, request: Outgoing, on_note: OnNote) -> RawResponse | None:
        """Hand on what is no answer."""
        if isinstance(message, RawNotification):
            await on_note(message)
        elif isinstance(message, RawRequest):
            self._receiver.take_request(message)
        elif isinstance(message, RawResponse) and _answers(message, request.origin):
            return message
        elif isinstance(message, Malformed) and means_answer(data):
            raise InvalidAnswer(f"the answer can't be read: {message.fail.text}", request.origin)
        elif isinstance(message, Batch):
            found = [await self._take(member, data, request, on_note) for member in members(data)]
            return next((answer for answer in found if answer is not None), None)
        else:
            self._strange += 1
            level = logging.WARNING if self._strange == 1 else logging.DEBUG
            logger.log(level, "ignored a message that is neither a notification nor the answer: %.200r", data)
        return None


def _answers(message: RawResponse, origin: Origin) -> bool:
    """Whether a response is this request's: its id, or an error about a request whose id the server could not read (JR-09)."""
    return message.id == origin.request_id or (message.id is None and message.error is not None)


def _refuses(response: Response, message: RawResponse) -> bool:
    """Whether an error is this request's by its HTTP status: servers of PyPI's mcp 1.x have one id for all that they refuse."""
    return response.status >= 400 and message.error is not None


def _miss(response: Response, body: bytes, message: Message, origin: Origin) -> ClientError:
    """The error that a response is which holds no answer."""
    if isinstance(message, RawResponse):
        return InvalidAnswer(f"the server answered another request (id {message.id!r} instead of {origin.request_id!r})", origin)
    if response.status in (202, 204) and not body:
        return InvalidAnswer(f"HTTP {response.status} without a body: the server took the request for a notification", origin)
    if response.status < 400 and media_type(response) == "application/json":
        fault = f"{message.fail.text} It begins: " if isinstance(message, Malformed) else ""
        return InvalidAnswer(f"HTTP {response.status} with JSON that is no JSON-RPC response: {fault}{shorten(body)}", origin)
    return refusal(response, shorten(body), origin)
