"""The session of a 2025 client on a stream of lines: stdio, or memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from callboard.core.exchange import Exchange
from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor
from callboard.legacy.batch import answer_batch
from callboard.wire.jsonrpc import Batch, RawNotification, RawRequest, RawResponse, RequestId

__all__ = ["MAX_BATCHES", "PipeClient"]

# Batches in flight on one pipe.
MAX_BATCHES = 40


class PipeClient:
    """One session, and the pipe that it has for itself.

    Args:
        actor: The session.
        say: Takes encoded messages to write.
    """

    def __init__(self, actor: Actor, say: Callable[[list[bytes]], None]) -> None:
        self._actor = actor
        self._say = say
        self._batches: set[asyncio.Task[None]] = set()

    def start(self, message: RawRequest, exchange: Exchange) -> None:
        """Serve a request; its exchange is woken when it is over."""
        self._actor.start(message, exchange, headers=None, principal=self._actor.owner, scope_state=None)

    def notice(self, message: RawNotification) -> None:
        """Take a notification."""
        self._actor.notice(message)

    def respond(self, message: RawResponse) -> None:
        """Take the answer to a request of ours; any other has no addressee (JR-06)."""
        self._actor.respond(message)

    def refuse(self, request_id: RequestId | None, fail: Fail) -> bytes:
        """Encode an error in the words of its protocol."""
        return self._actor.codec.render_fail(request_id, fail)[1]

    def give_up(self, request_id: RequestId, fail: Fail | None) -> None:
        """Stop a request; with an error where there is one, else without an answer."""
        self._actor.cancel(request_id)
        if fail is not None:
            self._say([self.refuse(request_id, fail)])

    def take_batch(self, batch: Batch) -> None:
        """Serve several messages in one line; what answers them is one line too."""
        if len(self._batches) >= MAX_BATCHES:
            self._say([self.refuse(None, Fail(Reason.OVERLOADED, f"{MAX_BATCHES} batches are in flight already: try again later."))])
            return
        task = self._actor.home.loop.create_task(self._answer_batch(batch))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def close(self) -> None:
        """The client is gone."""
        for task in list(self._batches):
            task.cancel()
        if (ending := self._actor.end("closed")) is not None:
            await ending

    async def _answer_batch(self, batch: Batch) -> None:
        answer = await answer_batch(self._actor, batch, principal=self._actor.owner)
        if isinstance(answer, Fail):
            answer = self.refuse(None, answer)
        if answer:
            self._say([answer])
