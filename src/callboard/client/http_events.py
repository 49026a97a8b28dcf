"""A stream of events that outlives its connections: what was read of it, where it ended, and how it is taken up again (HL-10, HL-19)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from callboard.client.errors import ConnectionFailed, HttpError, Origin
from callboard.client.http_pool import EVENT_STREAM, HttpPool, Response, media_type, refusal, too_large
from callboard.core.sse import Event, SseDecoder, SseLimitError
from callboard.wire.jsonrpc import Batch, Message, decode

__all__ = ["EventSource", "ResumedEvents", "members"]

# Seconds before a stream is taken up again: where the server did not say, and at most, whatever it says.
DEFAULT_RETRY = 1.0
MAX_RETRY = 60.0
# The shortest wait where nothing new comes, in seconds.
SHORTEST = 0.1
# GETs that may fail in a row before an answer is given up: for 10 s, where the server names no wait. One that restarts is back by then.
MAX_FAILURES = 5
# Refused connections after which a server whose connection broke is gone.
MAX_REFUSALS = 2
# Answers of a server, besides 5xx, that may differ next time.
NOT_NOW = frozenset({408, 425, 429})
# Characters of an event id that is sent back: servers accept 8 KiB of headers.
MAX_ID = 4096

_decode_members = msgspec.json.Decoder(list[msgspec.Raw]).decode


class EventSource:
    """Reads one stream, from as many responses as it takes.

    Args:
        pool: The way to the endpoint.
        headers: What a request for the rest of the stream carries.
        limit: Most bytes of one event.
        origin: Names the stream in errors.

    Attributes:
        origin: Names the stream in errors.
        seen: How many events have come, without data or with it.
    """

    def __init__(self, pool: HttpPool, headers: Mapping[str, str], limit: int, origin: Origin) -> None:
        self._pool = pool
        self._headers = headers
        self._limit = limit
        self.origin = origin
        self._decoder = SseDecoder(limit)
        self._overrun = False
        self.seen = 0

    @property
    def last_id(self) -> str:
        """Where to take the stream up again; empty where that can't be done."""
        found = self._decoder.last_event_id
        return found if len(found) <= MAX_ID else ""

    @property
    def closed(self) -> bool:
        """Whether the client was closed, so that there is no way to the rest."""
        return self._pool.closed

    @property
    def retry(self) -> float:
        """Seconds to wait before that: what the server said, if it did."""
        stated = self._decoder.retry
        return DEFAULT_RETRY if stated is None else min(stated / 1000, MAX_RETRY)

    async def read(self, response: Response) -> list[Event] | None:
        """Read the next events; waits for bytes, not for events.

        Returns:
            Events in their order, perhaps none; None at the end.

        Raises:
            ConnectionFailed: The connection broke.
            InvalidAnswer: An event is too large; what came whole before it was returned.
        """
        if self._overrun:
            raise too_large(self._limit, self.origin)
        chunk = await self._pool.read_some(response, self.origin, self.position)
        if not chunk:
            return None
        try:
            events = self._decoder.feed(chunk)
        except SseLimitError as error:
            self._overrun = True
            events = error.events
        self.seen += len(events)
        return events

    @property
    def position(self) -> str:
        """How far the stream has come, for an error."""
        return f"after {self.seen} event{'' if self.seen == 1 else 's'} of the stream"

    async def open(self, head_timeout: float | None = None) -> Response:
        """GET the stream, from where it ended if it has begun.

        Args:
            head_timeout: Seconds for the head of a response; None for no limit.

        Returns:
            A response that is a stream of events; whoever called closes it.

        Raises:
            HttpError: It is none.
            AuthorizationFailed: The server wants credentials that can't be had.
            ConnectionFailed: There is no response.
        """
        self._decoder.close()
        self._overrun = False
        headers = {**self._headers, "Last-Event-ID": self.last_id} if self.last_id else self._headers
        response = await self._pool.get_patiently(headers, self.origin, head_timeout=head_timeout)
        if response.status == 200 and media_type(response) == EVENT_STREAM:
            return response
        async with response:
            raise refusal(response, await self._pool.snippet(response), self.origin)


class ResumedEvents:
    """The events that lead up to an answer, from the response of its POST and from those that took up its stream.

    Args:
        source: Reads them.
        response: Of the POST; it stays its owner's to close.
        resumed: Whether the stream is taken up again when it ends or breaks too early, if an event had an id.
    """

    def __init__(self, source: EventSource, response: Response, *, resumed: bool) -> None:
        self._source = source
        self._first = response
        self._response = response
        self._resumed = resumed
        self._failures = 0
        self._mark = 0

    @property
    def response(self) -> Response:
        """The response that is being read."""
        return self._response

    async def next(self) -> list[Event]:
        """Read the next events, perhaps none.

        Raises:
            ConnectionFailed: There will be none, though the answer has not come.
            InvalidAnswer: An event is too large.
            AuthorizationFailed: The server wants credentials that can't be had.
        """
        source = self._source
        while True:
            try:
                events = await source.read(self._response)
            except ConnectionFailed as error:
                ended, broken = error, True
            else:
                if events is not None:
                    return events
                text = f"the event stream ended {source.position}, before the answer came; the request is lost and may be sent again"
                ended, broken = ConnectionFailed(text, source.origin), False
            if not self._resumed or not source.last_id or source.closed:
                raise ended
            await self._take_up(ended, broken=broken)

    def close(self) -> None:
        """Let go of the response that is being read, unless it is the POST's."""
        if self._response is not self._first:
            self._response.release()

    async def _take_up(self, ended: ConnectionFailed, *, broken: bool) -> None:
        """Open the stream again: when the server says, if it ended in good order (HL-10); at once, if it broke (A41)."""
        self.close()
        news = self._source.seen > self._mark
        if news:
            self._failures = 0
        elif broken:
            self._failures += 1
        refused = 0
        wait = SHORTEST if broken and news else self._source.retry if news else self._patience()
        while self._failures < MAX_FAILURES:
            await asyncio.sleep(wait)
            try:
                self._response = await self._source.open()
            except HttpError as error:
                if error.status < 500 and error.status not in NOT_NOW:
                    raise self._lost(error) from error
                ended = self._lost(error)
            except ConnectionFailed as error:
                ended = error
                refused += broken and not error.sent
                if refused == MAX_REFUSALS:
                    text = f"the event stream broke {self._source.position}, and the server is gone: {error.text}"
                    raise ConnectionFailed(text, self._source.origin) from error
            else:
                self._mark = self._source.seen
                return
            self._failures += 1
            wait = SHORTEST if refused else self._patience()
        raise ConnectionFailed(f"{ended.text} (tried to take up its stream {MAX_FAILURES} times)", self._source.origin) from ended

    def _patience(self) -> float:
        """Seconds to wait where nothing new has come."""
        return max(self._source.retry, SHORTEST) * (1 + self._failures / 2)

    def _lost(self, error: HttpError) -> ConnectionFailed:
        reasons = {404: "the session is gone", 405: "the server takes up no streams"}
        reason = reasons.get(error.status, "the server does not take it up again")
        text = f"the event stream ended {self._source.position}, before the answer came, and {reason}: {error.text}"
        return ConnectionFailed(text, self._source.origin)


def members(data: bytes) -> Iterator[Message]:
    """The messages of an event or a body: one, or those of an array (2025-03-26 servers may batch, HL-03)."""
    message = decode(data)
    if not isinstance(message, Batch):
        yield message
        return
    for member in _decode_members(message.body):
        yield decode(bytes(member))
