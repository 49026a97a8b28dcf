"""The floor: the least that an ASGI application can do and still answer the benchmark's requests.

`BENCH_REAL=1` adds what the protocol asks of every server for every request (`floors/duties.py`) and runs the tool in a task of its own,
so that it could be cancelled. Without it nothing is checked at all.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from benchmarks.floors.data import PORT, STREAMED
from benchmarks.floors.duties import VERSION, RefusalError, check_headers, close_session, read_legacy, read_strictly, refuse
from benchmarks.floors.tools import LISTENERS, Call, acknowledge, answer, frame, read_loosely, report

REAL = os.environ.get("BENCH_REAL") == "1"
JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    event = await receive()
    body: bytes = event.get("body", b"")
    while event.get("more_body"):
        event = await receive()
        body += event.get("body", b"")
    return body


async def respond(send: Send, status: int, body: bytes, session: str = "") -> None:
    """Send one JSON answer."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body))]
    if session:
        headers.append((b"mcp-session-id", session.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_as_stream(send: Send, body: bytes, session: str = "") -> None:
    """Send one answer as an event stream."""
    headers = [*STREAM_HEADERS, (b"mcp-session-id", session.encode())] if session else STREAM_HEADERS
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": frame(body)})


async def respond_with_progress(send: Send, call: Call) -> None:
    """Send each event of a slow call when it is there."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    for event in report(call):
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def hang_up(receive: Receive) -> None:
    """Return once the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def listen(call: Call, receive: Receive, send: Send) -> None:
    """Hold a listen stream open until the client goes."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    LISTENERS.add(queue.put_nowait)
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await send({"type": "http.response.body", "body": acknowledge(call), "more_body": True})

    async def pump() -> None:
        while True:
            await send({"type": "http.response.body", "body": await queue.get(), "more_body": True})

    pumping = asyncio.ensure_future(pump())
    try:
        await hang_up(receive)
    finally:
        pumping.cancel()
        LISTENERS.discard(queue.put_nowait)


async def pause_and_answer(call: Call, receive: Receive) -> bytes:
    """A tool that suspends once, while somebody watches for the client to hang up."""
    watching = asyncio.ensure_future(hang_up(receive))
    await asyncio.sleep(0)
    watching.cancel()
    return answer(call)


async def answer_in_task(call: Call) -> bytes:
    """The answer, for a task to compute."""
    return answer(call)


async def serve_checked(scope: Event, receive: Receive, send: Send) -> None:
    """Answer a request after all checks."""
    try:
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] == "DELETE":
            return await respond(send, close_session(fields), b"")
        version = check_headers(fields)
        body = await read_body(receive)
        call = read_strictly(body, fields, version) if version == VERSION else read_legacy(body, fields)
        if call.id is None:
            return await respond(send, 202, b"")
        if call.method == "subscriptions/listen":
            return await listen(call, receive, send)
        if call.name == "slow":
            return await respond_with_progress(send, call)
        body = await asyncio.ensure_future(answer_in_task(call))
    except RefusalError as refusal:
        return await respond(send, refusal.status, refuse(refusal))
    if STREAMED:
        return await respond_as_stream(send, body, call.session)
    return await respond(send, 200, body, call.session)


async def serve_unchecked(receive: Receive, send: Send) -> None:
    """Answer a request."""
    call = read_loosely(await read_body(receive))
    if call.method == "subscriptions/listen":
        return await listen(call, receive, send)
    body = await pause_and_answer(call, receive) if call.name == "pause" else answer(call)
    return await respond(send, 200, body)


async def app(scope: Event, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        while True:
            event = await receive()
            await send({"type": event["type"] + ".complete"})
            if event["type"] == "lifespan.shutdown":
                return
    elif REAL:
        await serve_checked(scope, receive, send)
    else:
        await serve_unchecked(receive, send)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, loop="uvloop", http="httptools", log_level="warning", access_log=False)
