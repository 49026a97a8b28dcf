"""The least that a server can be: it reads the id and the method, and answers with a constant. For the client's benchmark.

Environment: PORT, BENCH_STDIO and BENCH_MODE as in `floors/data.py`; in the modes `*-sse` an answer is an event stream.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from benchmarks.client_answers import respond
from benchmarks.floors.data import PORT, SESSIONS, STDIO, STREAMED

Event = MutableMapping[str, Any]
HEADERS = [(b"content-type", b"text/event-stream" if STREAMED else b"application/json")]
SESSION = [(b"mcp-session-id", b"the-one-session")] if SESSIONS else []


async def app(scope: Event, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        while True:
            event = await receive()
            await send({"type": event["type"] + ".complete"})
            if event["type"] == "lifespan.shutdown":
                return
    line = b""
    if scope["method"] != "POST":
        status, body = (200 if scope["method"] == "DELETE" else 405), b""
    else:
        event = await receive()
        line += event.get("body", b"")
        while event.get("more_body"):
            event = await receive()
            line += event.get("body", b"")
        body = respond(line)
        status = 200 if body else 202
    if body and STREAMED:
        headers, body = HEADERS, b"event: message\ndata: " + body + b"\n\n"
    else:
        headers = [*(HEADERS if body else []), (b"content-length", b"%d" % len(body))]
    opened = SESSION if b'"initialize"' in line else []
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *opened]})
    await send({"type": "http.response.body", "body": body})


def serve_stdio() -> None:
    """Answer lines until there are no more."""
    for line in sys.stdin.buffer:
        if answer := respond(line):
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    if STDIO:
        serve_stdio()
    else:
        import uvicorn

        uvicorn.run(app, host="127.0.0.1", port=PORT, loop="uvloop", http="httptools", log_level="warning", access_log=False)
