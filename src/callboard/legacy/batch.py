"""Batches, which only 2025-03-26 has (JR-18): several messages in one body, the responses in one array."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec

from callboard.core.era import Headers
from callboard.core.exchange import Exchange
from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor
from callboard.wire.jsonrpc import Batch, Message, RawNotification, RawRequest, RawResponse, decode

__all__ = ["MAX_BATCH", "answer_batch"]

_Pending: TypeAlias = tuple[Exchange, "asyncio.Future[None]"]
# Messages in one body.
MAX_BATCH = 100
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def answer_batch(
    actor: Actor, batch: Batch, *, headers: Headers | None = None, principal: str | None = None, scope_state: Any = None
) -> bytes | Fail:
    """Serve every message of a batch; its requests run side by side, their notes are left out.

    Args:
        actor: The session.
        batch: The body.
        headers: HTTP headers.
        principal: Who asks.
        scope_state: ASGI state of the request.

    Returns:
        The array of responses in the order of their requests; empty when nothing is to be answered.
    """
    if not actor.codec.features.batching:
        return Fail(Reason.INVALID_REQUEST, f"The body must be one message: protocol {actor.codec.version} has no batches.")
    items = _decode_items(batch.body)
    if len(items) > MAX_BATCH:
        return Fail(Reason.INVALID_REQUEST, f"A batch has at most {MAX_BATCH} messages.")
    start = partial(actor.start, headers=headers, principal=principal, scope_state=scope_state)
    messages = [decode(bytes(item)) for item in items]
    if any(actor.home.endpoint.era.claims(message, None) for message in messages):
        return Fail(Reason.INVALID_REQUEST, "A request with an envelope of its own in _meta can't be part of a batch: send it alone.")
    answers = [_take(actor, message, start) for message in messages]
    responses = []
    for answer in answers:
        if isinstance(answer, bytes):
            responses.append(answer)
        elif answer is not None:
            exchange, over = answer
            await over
            if (write := exchange.take()) is not None:
                responses += write.notes
    return b"[" + b",".join(responses) + b"]" if responses else b""


def _take(actor: Actor, message: Message, start: Callable[[RawRequest, Exchange], object]) -> bytes | _Pending | None:
    """Begin with one message; what answers it, or will, or None when nothing does."""
    if isinstance(message, RawRequest):
        over: asyncio.Future[None] = actor.home.loop.create_future()
        exchange = Exchange(partial(_resolve, over), streams=False)
        start(message, exchange)
        return exchange, over
    if isinstance(message, RawNotification):
        actor.notice(message)
    elif isinstance(message, RawResponse):
        actor.respond(message)
    elif isinstance(message, Batch):
        return actor.codec.render_fail(None, Fail(Reason.INVALID_REQUEST, "A batch holds messages, not batches."))[1]
    elif message.answerable:
        return actor.codec.render_fail(message.id, message.fail)[1]
    return None


def _resolve(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
