"""A line for each HTTP request, whatever became of it: `callboard.access`. What was asked for by MCP is in `callboard.requests`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any

from callboard.logs import MAX_FIELD, clean, write
from callboard.transport.stream import Receive, Scope, Send

__all__ = ["log_access"]

_log = logging.getLogger("callboard.access")


def log_access(app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Put the log before an application. Neither query nor headers but the user agent stand in it: they may hold secrets (SA09).

    Args:
        app: The application.
    """

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        began, status, size = perf_counter(), 0, 0

        async def count(message: MutableMapping[str, Any]) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, count)
        finally:
            _write(scope, status, size, perf_counter() - began)

    return logged


def _write(scope: Scope, status: int, size: int, seconds: float) -> None:
    client = scope.get("client")
    agent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"user-agent"), None)
    method, path = clean(scope["method"], MAX_FIELD), clean(scope["path"], MAX_FIELD)
    fields = {
        "method": method,
        "path": path,
        "status": status or None,  # None: nobody was there any more to be answered
        "duration_ms": round(seconds * 1000, 2),
        "bytes_out": size,
        "peer": None if client is None else clean(str(client[0]), MAX_FIELD),  # a proxy may pass anything on
        "agent": None if agent is None else clean(agent, MAX_FIELD),
        "http": scope.get("http_version"),
    }
    write(_log, logging.INFO, method, fields)
