"""One request through an ASGI application without a server or a socket: what it answers, and how many Python functions that takes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import Any

from benchmarks import legacy_traffic
from benchmarks.traffic import PATH, Exchange

Event = MutableMapping[str, Any]
App = Callable[[Event, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]]
WARM_UP = 20


async def send_once(app: App, exchange: Exchange) -> tuple[int, bytes]:
    """Status and body of the answer to one request."""
    head, *rest = await send(app, exchange)
    return head["status"], b"".join(event.get("body", b"") for event in rest)


async def open_session(app: App) -> str:
    """Open a session of a 2025 client; its id."""
    head, *_ = await send(app, legacy_traffic.initialize())
    session: str = dict(head["headers"])[b"mcp-session-id"].decode()
    await send(app, legacy_traffic.initialized(session))
    return session


async def send(app: App, exchange: Exchange) -> list[Event]:
    """What the application sends in answer to one request, in the first of its sessions."""
    headers = [(name.lower().encode(), value.encode()) for name, value in exchange.headers.items()]
    if exchange.sessions:
        headers.append((b"mcp-session-id", exchange.sessions[0].encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-length", str(len(exchange.body)).encode()), *headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    incoming: list[Event] = [{"type": "http.request", "body": exchange.body, "more_body": False}]
    outgoing: list[Event] = []
    hung_up = asyncio.Event()

    async def receive() -> Event:
        if incoming:
            return incoming.pop()
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def put(event: Event) -> None:
        outgoing.append(event)

    await app(scope, receive, put)
    return outgoing


async def python_calls(app: App, exchange: Exchange) -> list[str]:
    """Names of the Python functions that one request enters, in order; those of the client's side and of the loop's included.

    A coroutine counts each time it is resumed. The list does not vary from run to run: the application is warmed up first.
    """
    for _ in range(WARM_UP):
        status, body = await send_once(app, exchange)
        if status != 200:
            raise RuntimeError(f"{status} {body!r}")
    entered: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered.append(f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno} {frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        await send(app, exchange)
    finally:
        sys.setprofile(None)
    return entered[1:]  # the first is send itself
