"""The channel of a 2025 session on HTTP: a stream of events that the client GETs, for what the server says unasked (HL-13).

Servers may do without one, end it when it has been idle, and drop it at any time. So it is quiet about its failures, and it is opened
anew for as long as the session lives.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress

from callboard.client.connection import Receiver
from callboard.client.errors import AuthorizationFailed, ClientError, HttpError, InvalidAnswer, Origin
from callboard.client.http_events import EventSource, members
from callboard.client.http_pool import HttpPool, Response
from callboard.wire.jsonrpc import RawNotification, RawRequest

__all__ = ["Channel"]

logger = logging.getLogger("callboard.client")

# Seconds to wait for the head of the first response, so that what the server says right away is not missed.
HEAD_START = 0.5
# Seconds between two tries, at least and at most; a channel that lived longer than the latter was a good one.
SHORTEST = 0.1
LONGEST = 30.0
# Most that chance adds to a wait, so that the clients of a server that comes back don't all call at once.
SPREAD = 0.25
# Answers to the first GET that say no more than "not now".
NOT_NOW = frozenset({408, 425, 429})
# Later ones that end the channel: the session is gone (the next request finds out, HL-23), or there is no channel any more.
FINAL = frozenset({404, 405, 410, 501})


class Channel:
    """The channel of one session.

    Args:
        pool: The way to the endpoint.
        headers: What each of the session's messages carries.
        limit: Most bytes of one event.
        origin: Names the server in the log.
        receiver: Takes what comes.
    """

    def __init__(self, pool: HttpPool, headers: Mapping[str, str], limit: int, origin: Origin, receiver: Receiver) -> None:
        self._source = EventSource(pool, headers, limit, origin)
        self._origin = origin
        self._receiver = receiver
        self._settled = asyncio.Event()
        self._opened = False
        self._since: float | None = None
        self._strange = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open it, and wait a moment for it to be there; whether it will be is not known then."""
        self._task = asyncio.create_task(self._run(), name=f"callboard client channel of {self._origin.target}")
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START):
                await self._settled.wait()

    async def stop(self) -> None:
        """Close it, within a turn of the loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._stay()
        except AuthorizationFailed as error:
            logger.warning("%s: what the server says unasked is not heard: %s", self._origin.target, error.text)
        except Exception:
            logger.exception("%s: what the server says unasked is not heard any more", self._origin.target)
        finally:
            self._settled.set()

    async def _stay(self) -> None:
        """Open it, again and again."""
        wait = 0.0
        while True:
            seen = self._source.seen
            self._since = None
            try:
                await self._hear()
            except AuthorizationFailed:
                raise
            except ClientError as error:
                if self._is_final(error):
                    logger.debug("no channel: %s", error)
                    if self._opened:
                        self._receiver.lose(f"the stream of the session has ended: {error.text}")
                    return
                logger.debug("the channel broke: %s", error)
            retry = max(self._source.retry, SHORTEST)
            if not wait or self._source.seen > seen or self._has_lived():
                wait = retry
            else:
                wait = max(min(2 * wait * random.uniform(1, 1 + SPREAD), LONGEST), retry)  # noqa: S311 - no secret
            await asyncio.sleep(wait)

    async def _hear(self) -> None:
        """Open it once, and hand on what comes until it ends."""
        response = await self._source.open()
        self._opened = True
        self._since = asyncio.get_running_loop().time()
        self._settled.set()
        async with response:
            await self._hand_on(response)
        logger.debug("the channel ended %s", self._source.position)

    def _has_lived(self) -> bool:
        return self._since is not None and asyncio.get_running_loop().time() - self._since > LONGEST

    async def _hand_on(self, response: Response) -> None:
        while (events := await self._source.read(response)) is not None:
            for event in events:
                if event.data and event.event == "message":
                    self._take(event.data)

    def _take(self, data: bytes) -> None:
        for message in members(data):
            if isinstance(message, RawNotification):
                self._receiver.take_note(message)
            elif isinstance(message, RawRequest):
                self._receiver.take_request(message)
            else:  # answers come where the request was sent, or where its stream is taken up again (HL-15)
                self._strange += 1
                level = logging.WARNING if self._strange == 1 else logging.DEBUG
                logger.log(level, "%s: ignored an event that nothing waits for: %.200r", self._origin.target, data)

    def _is_final(self, error: ClientError) -> bool:
        if isinstance(error, InvalidAnswer):
            logger.log(logging.DEBUG if self._strange else logging.WARNING, "%s", error)
            self._strange += 1
        if not isinstance(error, HttpError):
            return False
        if error.status in FINAL:
            return True
        return not self._opened and error.status < 500 and error.status not in NOT_NOW
