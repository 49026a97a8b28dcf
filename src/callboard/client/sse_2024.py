"""Lines over the HTTP transport of 2024-11-05 (HL-27).

All that the server says comes on one stream of events; what the client says goes by POST to an address that the first event names.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from callboard.client.auth import Auth
from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer, Origin
from callboard.client.http_events import EventSource
from callboard.client.http_pool import CONNECT_TIMEOUT, HttpPool, Response, refusal
from callboard.core.sse import Event

__all__ = ["SseStream"]

logger = logging.getLogger("callboard.client")


class SseStream:
    """A stream of lines to a server of 2024-11-05.

    Args:
        url: Its event stream, for example `http://127.0.0.1:8000/sse`.
        max_message: Most bytes of one message from the server.
        headers: What every request carries besides the protocol's own headers.
        auth: Who holds the credentials; None for nobody.
        connect_timeout: Seconds for a connection to come about, and again for the event that names the endpoint; None for no limit.
    """

    last_words = ""

    def __init__(
        self,
        url: str,
        *,
        max_message: int,
        headers: Mapping[str, str],
        auth: Auth | None = None,
        connect_timeout: float | None = CONNECT_TIMEOUT,
    ) -> None:
        self._pool = HttpPool(url, headers=headers, auth=auth, connect_timeout=connect_timeout)
        self._limit = max_message
        self._patience = connect_timeout
        self._origin = Origin("")
        self._source: EventSource | None = None
        self._response: Response = None
        self._endpoint: Any = None
        self._events: deque[Event] = deque()
        self._failure: ClientError | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ended = False
        self._closed = False

    async def open(self, origin: Origin, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """GET the stream, wait for its first event, and go on reading.

        Raises:
            HttpError: There is no such stream.
            InvalidAnswer: The first event names no endpoint, or one of another origin.
            ConnectionFailed: The server can't be reached, or no event comes.
        """
        self._origin = origin
        await self._pool.open(origin)
        self._source = EventSource(self._pool, {}, self._limit, origin)
        try:
            self._response = await self._source.open(head_timeout=self._patience)
            self._endpoint = self._read_endpoint(await self._first())
        except BaseException:
            await self.aclose()
            raise
        self._reader = asyncio.create_task(self._read(take, end), name=f"callboard client reader of {origin.target}")

    async def send(self, line: bytes) -> None:
        """POST one message.

        Raises:
            EOFError: The stream has ended, so that no answer could come.
            ClientError: The server did not take it.
        """
        if self._ended:
            raise EOFError
        async with await self._pool.post_patiently(line, {}, self._origin, self._endpoint) as response:
            if response.status >= 300:
                raise refusal(response, await self._pool.snippet(response), self._origin)
            await self._pool.drain(response)

    def explain(self, origin: Origin) -> ClientError:
        """Say why the stream ended."""
        if self._closed or self._failure is None:
            return ConnectionFailed("the client was closed before the answer came", origin)
        if isinstance(self._failure, InvalidAnswer):
            return InvalidAnswer(self._failure.text, origin)
        return ConnectionFailed(self._failure.text, origin)

    async def aclose(self) -> None:
        """End the stream."""
        self._closed = self._ended = True
        try:
            await self._pool.close()
        finally:
            if self._response is not None:
                self._response.close()
            if self._reader is not None:
                self._reader.cancel()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def _read(self, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        try:
            while True:
                event = await self._next()
                if event.event != "message":
                    logger.debug("ignored an event of type %.100r", event.event)
                elif event.data:
                    take(event.data)
        except EOFError:
            pass
        finally:
            end()

    async def _next(self) -> Event:
        assert self._source is not None
        while not self._events:
            if self._ended:
                raise EOFError
            try:
                events = await self._source.read(self._response)
                if events is None:
                    text = f"the event stream ended {self._source.position}; the server is gone, or has ended the session"
                    raise ConnectionFailed(text, self._origin)
            except ClientError as error:
                self._failure = error
                self._ended = True
                raise EOFError from error
            self._events.extend(events)
        return self._events.popleft()

    async def _first(self) -> Event:
        try:
            async with asyncio.timeout(self._patience):
                return await self._next()
        except TimeoutError as error:
            text = f"no event came within {self._patience:g} s; does a server of 2024-11-05 serve this URL?"
            raise ConnectionFailed(text, self._origin, sent=False) from error
        except EOFError as error:
            raise self.explain(self._origin) from error

    def _read_endpoint(self, first: Event) -> Any:
        if first.event != "endpoint":
            raise InvalidAnswer(f"the stream begins with an event of type {first.event[:100]!r} instead of 'endpoint'", self._origin)
        reference = first.data.decode(errors="replace").strip()
        if not reference:
            raise InvalidAnswer("the first event names no endpoint", self._origin)
        return self._pool.resolve(reference, self._origin)
