"""Requests of the 2025 protocols, and sessions. Standard library only."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Any

from benchmarks.traffic import Exchange, encode, send

VERSION = "2025-11-25"
HELLO = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": VERSION}


def request(method: str, params: dict[str, Any], *, sessions: tuple[str, ...] = (), token: str | None = None) -> Exchange:
    """A request; with a token it asks for progress."""
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return Exchange({**HEADERS}, encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, **meta}}), sessions)


def call(tool: str, arguments: dict[str, Any], *, sessions: tuple[str, ...] = (), token: str | None = None) -> Exchange:
    """A `tools/call`."""
    return request("tools/call", {"name": tool, "arguments": arguments}, sessions=sessions, token=token)


def initialize() -> Exchange:
    """The request that opens a session."""
    return request("initialize", HELLO)


def initialized(session: str = "") -> Exchange:
    """The notification that follows it."""
    return Exchange(HEADERS, encode({"jsonrpc": "2.0", "method": "notifications/initialized"}), (session,) if session else ())


def open_session(connection: HTTPConnection) -> str:
    """Open a session; its id.

    Raises:
        RuntimeError: The server refuses.
    """
    response, body = send(connection, initialize())
    session = response.headers.get("mcp-session-id")
    if response.status != 200 or not session:
        raise RuntimeError(f"initialize: {response.status} {body[:500]!r}")
    response, body = send(connection, initialized(session))
    if response.status != 202:
        raise RuntimeError(f"notifications/initialized: {response.status} {body[:500]!r}")
    return session


def close_session(connection: HTTPConnection, session: str) -> None:
    """End a session.

    Raises:
        RuntimeError: The server refuses.
    """
    response, body = send(connection, Exchange(HEADERS, b"", (session,)), "DELETE")
    if response.status >= 300:
        raise RuntimeError(f"DELETE: {response.status} {body[:500]!r}")
