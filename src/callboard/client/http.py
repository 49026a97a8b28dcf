"""Requests over Streamable HTTP: a POST each, answered by one JSON body or by a stream of events (HM-05, HM-08).

Closing the response is how a request is cancelled (CN-01), and it happens by itself when the task that reads it is cancelled. A broken
stream is never resumed (HM-14). Connections are pooled; each request in flight has one of its own. Redirects are not followed: the
arguments of a call go to the server that was named.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from callboard.client.connection import Incoming, OnNote, Outgoing, means_answer
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InvalidAnswer, Origin
from callboard.core.sse import Event, SseDecoder, SseLimitError
from callboard.wire.jsonrpc import Malformed, RawNotification, RawResponse, decode
from callboard.wire.versions import LATEST

__all__ = ["HttpConnection", "check_headers"]

logger = logging.getLogger("callboard.client")

# aiohttp.ClientResponse; the package loads when the first connection opens.
Response: TypeAlias = Any

HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",  # loopback and JSON: not worth the time, and no bomb to defuse
    "Content-Type": "application/json",
    "MCP-Protocol-Version": LATEST,
}
# Besides HEADERS and Mcp-*: what frames a message on its connection.
FRAMING = frozenset({"connection", "content-length", "transfer-encoding"})
_OWN = FRAMING | {name.lower() for name in HEADERS}
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_ONE_LINE = re.compile(r"[\t\x20-\x7e]*")
# What an error shows of a body that is no JSON-RPC, in characters.
SNIPPET = 200
# aiohttp wants larger bodies as a file.
FILE_SIZE = 2**20
# Seconds for a stream to end after its answer (HM-11), so that its connection can be used again.
LINGER = 0.1
HINTS = {
    401: " (the server wants authorization: give it a header)",
    403: " (the server refuses this client)",
    404: " (is the path right? it is often /mcp)",
    405: " (no MCP endpoint takes POST there; is the path right?)",
}


def check_headers(headers: Mapping[str, str]) -> None:
    """Check headers of a user's own. No error shows a value: it may be a secret.

    Raises:
        ValueError: A name is none or is the protocol's own, or a value is not one line of printable ASCII.
    """
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"headers: {name!r} is no name of a header: letters, digits and dashes make one")
        if name.lower() in _OWN or name.lower().startswith("mcp-"):
            raise ValueError(f"headers: {name} is written by the client, as the protocol wants it; leave it out")
        if not _ONE_LINE.fullmatch(value):
            raise ValueError(f"headers: the value of {name} must be one line of printable ASCII; it holds a line end or another character")


class HttpConnection:
    """A connection to one endpoint.

    Args:
        url: The endpoint, for example `http://127.0.0.1:8000/mcp`.
        max_message: Most bytes of one message from the server.
        headers: What every request carries besides the protocol's own headers.
    """

    mirrors = True

    last_words = ""

    def __init__(self, url: str, *, max_message: int, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {**headers, **HEADERS}
        self._max_message = max_message
        self._session: Any = None

    async def open(self, origin: Origin) -> None:
        """Make the pool; nothing is sent."""
        del origin
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # the client has one clock for all transports
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
        )

    async def exchange(self, request: Outgoing, on_note: OnNote) -> Incoming:
        """POST a request and read its answer; cancelling closes the response."""
        import aiohttp

        if self._session.closed:
            raise _closed(request.origin)
        body = request.body if len(request.body) < FILE_SIZE else io.BytesIO(request.body)
        try:
            async with self._session.post(self._url, data=body, headers=request.headers, allow_redirects=False) as response:
                if response.content_type.lower() == "text/event-stream" and response.ok:
                    return await self._read_stream(response, request.origin, on_note)
                return await self._read_body(response, request.origin)
        except aiohttp.ClientError as error:
            raise (_closed(request.origin) if self._session.closed else _explain(error, request.origin)) from error

    async def close(self) -> None:
        """Close the pool; what waits fails."""
        if self._session is not None:
            await self._session.close()

    async def _read_stream(self, response: Response, origin: Origin, on_note: OnNote) -> Incoming:
        decoder = SseDecoder(self._max_message)
        async for chunk in response.content.iter_any():
            for event in self._events(decoder, chunk, origin):
                if not event.data:
                    continue
                message = decode(event.data)
                if isinstance(message, RawNotification):
                    await on_note(message)
                elif isinstance(message, RawResponse) and _answers(message, origin):
                    await _finish(response)
                    return Incoming(message, response.status)
                elif isinstance(message, Malformed) and means_answer(event.data):
                    raise InvalidAnswer(f"the answer can't be read: {message.fail.text}", origin)
                else:
                    logger.warning("ignored an event that is neither a notification nor the answer: %.200r", event.data)
        raise ConnectionFailed("the event stream ended before the answer came; the request is lost and may be sent again", origin)

    def _events(self, decoder: SseDecoder, chunk: bytes, origin: Origin) -> Iterator[Event]:
        try:
            yield from decoder.feed(chunk)
        except SseLimitError as error:
            yield from error.events  # what came whole before it still counts, the answer above all
            raise self._too_large(origin) from error

    async def _read_body(self, response: Response, origin: Origin) -> Incoming:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_message:
                raise self._too_large(origin)
        message = decode(bytes(body))
        if isinstance(message, RawResponse):
            if _answers(message, origin):
                return Incoming(message, response.status)
            raise InvalidAnswer(f"the server answered another request (id {message.id!r} instead of {origin.request_id!r})", origin)
        if response.ok and response.content_type.lower() == "application/json":
            fault = f"{message.fail.text} It begins: " if isinstance(message, Malformed) else ""
            raise InvalidAnswer(f"HTTP {response.status} with JSON that is no JSON-RPC response: {fault}{_snippet(body)}", origin)
        hint = HINTS.get(response.status, "")
        if location := response.headers.get("Location"):
            hint = f" (redirects are not followed; use {location} as the target if you trust it)"
        elif response.ok:
            hint = f" with {response.content_type}, which is no MCP answer; is the path right?"
        raise HttpError(response.status, _snippet(body), origin, hint=hint)

    def _too_large(self, origin: Origin) -> ClientError:
        return InvalidAnswer(f"the server sent a message of more than {self._max_message} bytes; raise max_message=", origin)


def _answers(message: RawResponse, origin: Origin) -> bool:
    """Whether a response is this request's: its id, or an error about a request whose id the server could not read (JR-09)."""
    return message.id == origin.request_id or (message.id is None and message.error is not None)


async def _finish(response: Response) -> None:
    """Read to the end of a stream whose answer has come."""
    try:
        async with asyncio.timeout(LINGER):
            while not response.content.at_eof():
                await response.content.readany()
    except Exception:  # the answer is here: how the connection ends can't matter any more
        logger.debug("the event stream did not end after its answer", exc_info=True)


def _snippet(body: bytearray) -> str:
    text = " ".join(body[: 20 * SNIPPET].decode(errors="replace").split())
    return text if len(text) <= SNIPPET else text[:SNIPPET] + "..."


def _closed(origin: Origin) -> ClientError:
    return ConnectionFailed("the client was closed before the answer came", origin)


def _explain(error: Exception, origin: Origin) -> ClientError:
    """Say what an error of aiohttp means for the request."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, ssl.SSLError):
            fault = getattr(error.os_error, "verify_message", "") or str(error.os_error.reason).replace("_", " ").lower()
            return ConnectionFailed(
                f"can't connect over TLS: {fault}; does the server speak https there, with a certificate for it?", origin
            )
        number = error.os_error.errno
        reason = os.strerror(number) if number is not None and number > 0 else str(error.os_error)
        return ConnectionFailed(f"can't connect: {reason}; is the server running there?", origin)
    if isinstance(error, aiohttp.InvalidURL):
        return ConnectionFailed("this is no URL that can be called", origin)
    if isinstance(error, aiohttp.ClientResponseError):
        return InvalidAnswer(f"the answer is not HTTP: {error.message}", origin)
    return ConnectionFailed("the connection broke before the answer came; the request is lost and may be sent again", origin)
