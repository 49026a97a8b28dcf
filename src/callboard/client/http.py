"""Requests over Streamable HTTP: a POST each, answered by one JSON body or by a stream of events (HM-05, HM-08).

How a request is given up depends on it: one that is `told` of sends `notifications/cancelled` (2025, HL-07); of any other, closing the
response is the whole message (2026, CN-01), and it happens by itself when the task that reads it is cancelled. A broken stream is taken up
again only where the request says so (HM-14, HL-19).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping

from callboard.client.auth import Auth
from callboard.client.channel import Channel
from callboard.client.connection import Incoming, OnNote, Outgoing, Receiver
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InvalidAnswer, Origin
from callboard.client.http_answer import HttpAnswers
from callboard.client.http_pool import CONNECT_TIMEOUT, HttpPool, challenges_of, check_headers, refusal
from callboard.wire.jsonrpc import encode_notification

__all__ = ["HttpConnection", "check_headers"]

logger = logging.getLogger("callboard.client")

# Seconds for a server to hear that a request was given up, and that the session ends.
NOTICE = 2.0
FAREWELL = 2.0
_VISIBLE = re.compile(r"[\x21-\x7e]+")


class _Wait:
    """A task inside the connection, so that closing can cut it short; like `asyncio.Timeout`, in a tenth of its time."""

    __slots__ = ("_before", "_task", "cut", "responded")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self.cut = False
        self.responded = False

    def end(self) -> None:
        """Cut it short, unless it is the very task that does this."""
        if self._task is not asyncio.current_task():
            self.cut = True
            self._task.cancel()

    def take_back(self) -> bool:
        """Take the cut back; whether a `CancelledError` was no more than that."""
        if not self.cut:
            return False
        self.cut = False
        return self._task.uncancel() <= self._before


class HttpConnection:
    """A connection to one endpoint.

    Args:
        url: The endpoint, for example `http://127.0.0.1:8000/mcp`.
        max_message: Most bytes of one message from the server.
        headers: What every request carries besides the protocol's own headers.
        auth: Who holds the credentials; None for nobody.
        connect_timeout: Seconds for a connection to come about; None for no limit.
    """

    mirrors = True

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
        self._max_message = max_message
        self._origin = Origin("")
        self._receiver: Receiver | None = None
        self._answers: HttpAnswers | None = None
        self._channel: Channel | None = None
        self._session: Mapping[str, str] = {}
        self._waits: set[_Wait] = set()
        self._notices: set[asyncio.Task[None]] = set()
        self._closing = False
        self._gone = asyncio.Event()

    async def open(self, origin: Origin, receiver: Receiver) -> None:
        """Get ready; nothing is sent."""
        self._origin, self._receiver = origin, receiver
        self._answers = HttpAnswers(self._pool, self._max_message, receiver)
        await self._pool.open(origin)
        self._closing = False
        self._gone.clear()

    async def exchange(self, request: Outgoing, on_note: OnNote) -> Incoming:
        """POST a request and read its answer; giving up closes the response, and tells the server where it is to be told."""
        wait = self._begin_wait(request.origin)
        try:
            return await self._ask(request, on_note, wait)
        except asyncio.CancelledError:
            if wait.take_back():
                raise _closed(request.origin) from None
            self._give_up(request)  # it may be on its way
            raise
        except BaseException as error:
            if _may_be_at_work(error, request.origin, responded=wait.responded):
                self._give_up(request)
            raise
        finally:
            self._waits.discard(wait)
            wait.take_back()

    async def send(self, message: bytes, headers: Mapping[str, str], origin: Origin) -> None:
        """POST a notification or a response; any 2xx will do (HL-04)."""
        wait = self._begin_wait(origin)
        try:
            await self._send(message, headers, origin)
        except asyncio.CancelledError:
            if wait.take_back():
                raise _closed(origin) from None
            raise
        finally:
            self._waits.discard(wait)
            wait.take_back()

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Open the session's channel, for at most half a second; it goes on opening by itself."""
        former, self._channel = self._channel, None
        if former is not None:
            await former.stop()
        if self._closing or self._receiver is None:
            return
        self._session = dict(headers)
        self._channel = Channel(self._pool, self._session, self._max_message, self._origin, self._receiver)
        await self._channel.start()

    async def close(self) -> None:
        """Fail what waits, end the session (HL-25), close all connections."""
        if self._closing:
            await self._gone.wait()
            return
        self._closing = True
        try:
            for wait in self._waits:
                wait.end()
            if self._channel is not None:
                await self._channel.stop()
            if self._notices:
                await asyncio.wait(self._notices)
            await self._end_session()
        finally:
            self._channel, self._session = None, {}
            try:
                await self._pool.close()
            finally:
                self._gone.set()

    def _begin_wait(self, origin: Origin) -> _Wait:
        if self._closing:
            raise ConnectionFailed("the client was closed before the request was sent", origin, sent=False)
        wait = _Wait()
        self._waits.add(wait)
        return wait

    async def _ask(self, request: Outgoing, on_note: OnNote, wait: _Wait) -> Incoming:
        response = await self._pool.post(request.body, request.headers, request.origin)
        wait.responded = True
        async with response:
            assert self._answers is not None
            answer = await self._answers.read(response, request, on_note)
            session = response.headers.get("Mcp-Session-Id")
            if session is not None and not _VISIBLE.fullmatch(session):
                raise InvalidAnswer("the server names a session with other characters than visible ASCII (HL-20)", request.origin)
            return Incoming(answer, response.status, session, challenges_of(response))

    async def _send(self, message: bytes, headers: Mapping[str, str], origin: Origin) -> None:
        response = await self._pool.post_patiently(message, headers, origin)
        async with response:
            if response.status < 300:
                await self._pool.drain(response)
                return
            raise refusal(response, await self._pool.snippet(response), origin)

    def _give_up(self, request: Outgoing) -> None:
        """Tell the server, in the background (HL-07)."""
        if request.told and not self._closing:
            task = asyncio.create_task(self._send_notice(request), name=f"callboard client cancels {request.origin.request_id}")
            self._notices.add(task)
            task.add_done_callback(self._notices.discard)

    async def _send_notice(self, request: Outgoing) -> None:
        body = encode_notification("notifications/cancelled", {"requestId": request.origin.request_id})
        try:
            async with asyncio.timeout(NOTICE):
                await self._send(body, request.headers, request.origin)
        except (ClientError, TimeoutError) as error:
            logger.debug("the server was not told of a cancellation: %s", error)

    async def _end_session(self) -> None:
        if not any(name.lower() == "mcp-session-id" for name in self._session):
            return
        try:
            async with asyncio.timeout(FAREWELL):
                await self._pool.delete(self._session, self._origin)
        except (ClientError, TimeoutError) as error:
            logger.debug("the server was not told that the session ends: %s", error)


def _closed(origin: Origin) -> ClientError:
    return ConnectionFailed("the client was closed before the answer came", origin)


def _may_be_at_work(error: BaseException, origin: Origin, *, responded: bool) -> bool:
    """Whether a server may still be at work for a request that ended with an error.

    Args:
        error: What it was.
        origin: The request.
        responded: Whether the head of a response had come.
    """
    if not responded:
        return isinstance(error, ConnectionFailed) and error.sent
    # A callback of the request's may have raised about a request of another client.
    is_own = isinstance(error, ClientError) and (error.target, error.request_id) == (origin.target, origin.request_id)
    return not (is_own and isinstance(error, HttpError | InvalidAnswer))
