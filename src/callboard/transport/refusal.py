"""How an HTTP request is refused: what is said, what the log hears of it, and what becomes of a body that still comes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason
from callboard.logs import report
from callboard.server.journal import Journal, note_refusal
from callboard.transport.stream import JSON_HEADERS, Receive, Scope, Send
from callboard.wire.jsonrpc import RequestId

__all__ = ["LINGER_BYTES", "SHUTTING_DOWN", "note", "refuse_unread", "refuse_work", "report_client", "wait_headers"]

LINGER_BYTES = 16 * 1024 * 1024
"""How much more of a body that is refused for its size is read and thrown away."""
# For how long.
LINGER_SECONDS = 2.0
SHUTTING_DOWN = Fail(Reason.OVERLOADED, "The server is shutting down.")
"""Why nothing new is begun while what runs is brought to its end."""
# What the log calls a refusal.
_EVENTS = {
    Reason.HOST: "host",
    Reason.ORIGIN: "origin",
    Reason.REMOTE_PEER: "peer",
    Reason.BODY_TOO_LARGE: "size",
    Reason.HEADERS_TOO_LARGE: "size",
    Reason.RATE: "rate",
}
_CLOSE = (b"connection", b"close")
_Headers = list[tuple[bytes, bytes]]


def wait_headers(fail: Fail) -> _Headers:
    """When to try again, where it was too much."""
    seconds = fail.data["retryAfter"] if fail.reason is Reason.RATE else 1 if fail.reason is Reason.OVERLOADED else 0
    return [(b"retry-after", b"%d" % seconds)] if seconds else []


def note(scope: Scope, fail: Fail) -> None:
    """Have the log say that somebody was refused for what they are, or send."""
    if (event := _EVENTS.get(fail.reason)) is not None:
        report_client(event, scope, fail.text)


def report_client(event: str, scope: Scope, reason: str) -> None:
    """Have the log say what was refused, and to whom.

    Args:
        event: A key of `callboard.logs.EVENTS`.
        scope: ASGI scope of the request.
        reason: Why.
    """
    client = scope.get("client")
    report(event, peer=None if client is None else str(client[0]), reason=reason)


def _closing(scope: Scope) -> _Headers:
    """Ask for the connection's end where the protocol has a header for it (HTTP/2 and later forbid it)."""
    return [_CLOSE] if scope.get("http_version", "1.1").startswith("1") else []


async def refuse_work(scope: Scope, send: Send, request_id: RequestId | None, extra: _Headers, journal: Journal) -> None:
    """Refuse what would have to begin now that the server ends, and the connection with it: the next one may lead to another process.

    Args:
        scope: ASGI scope.
        send: ASGI send; not past it, since the HTTP server has to see that the connection ends.
        request_id: What is refused; None where it has no id.
        extra: Headers of every answer.
        journal: The server's.
    """
    note_refusal(journal, None, SHUTTING_DOWN, headers=())
    status, body = render_fail(request_id, SHUTTING_DOWN)
    headers = [*extra, *wait_headers(SHUTTING_DOWN), *_closing(scope), (b"content-length", b"%d" % len(body)), *JSON_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse_unread(scope: Scope, receive: Receive, send: Send, fail: Fail, extra: _Headers, journal: Journal) -> None:
    """Refuse a request whose body may still be coming, and throw away a bounded rest of it.

    Ending at once would reset the connection before a client that still writes has read why, and some servers lose what else is on it.
    """
    note(scope, fail)
    note_refusal(journal, scope["method"], fail, headers=scope["headers"])
    status, answer = render_fail(None, fail)
    extra = [*extra, *wait_headers(fail)]
    too_large = _closing(scope) if fail.reason is Reason.BODY_TOO_LARGE else []
    headers = [*extra, *too_large, (b"content-length", b"%d" % len(answer)), *JSON_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer, "more_body": True})
    left, more = LINGER_BYTES, True
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while more and left > 0:
                received = await receive()
                left -= len(received.get("body", b""))
                more = received["type"] == "http.request" and received.get("more_body", False)
    await send({"type": "http.response.body", "body": b""})
