"""Reading the body of an HTTP request: whole, bounded, and counted for as long as it is held."""

from __future__ import annotations

from callboard.errors import Fail, Reason
from callboard.server.places import Load
from callboard.transport.stream import Receive, take_whole

__all__ = ["read_body"]


async def read_body(receive: Receive, limit: int, load: Load) -> bytes | Fail | None:
    """Read the body of a request.

    Args:
        receive: ASGI receive.
        limit: The most bytes that it may have.
        load: Where its bytes are counted as they come; who gets them counts them out.

    Returns:
        The body; why it was not read to its end; None where the client has gone before that.
    """
    body, more = take_whole(receive), False
    if body is None:
        received = await receive()
        if received["type"] != "http.request":
            return None
        body, more = received.get("body", b""), bool(received.get("more_body"))
        if more:
            whole = await _read_rest(body, receive, limit, load)
            if not isinstance(whole, bytes):
                return whole
            body = whole
    if len(body) > limit:
        return Fail(Reason.BODY_TOO_LARGE, f"The body has more than {limit} bytes (max_body).")
    load.buffered += len(body)
    return body


async def _read_rest(body: bytes, receive: Receive, limit: int, load: Load) -> bytes | Fail | None:
    parts, size, more = [body], len(body), True
    load.buffered += size
    try:
        while more and size <= limit:
            if load.is_full:
                return load.refuse_bytes()
            received = await receive()
            if received["type"] != "http.request":
                return None
            part = received.get("body", b"")
            parts.append(part)
            size += len(part)
            load.buffered += len(part)
            more = bool(received.get("more_body"))
        return b"".join(parts)
    finally:
        load.buffered -= size
