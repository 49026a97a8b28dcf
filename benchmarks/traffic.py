"""The benchmark's client: requests, and plain blocking connections to send them on. Standard library only.

Requests are of the current protocol; those of the 2025 protocols are in `legacy_traffic`.
"""

from __future__ import annotations

import json
import socket
import struct
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple

VERSION = "2026-07-28"
PATH = "/mcp"
# Methods whose name parameter the Mcp-Name header mirrors, and which parameter that is.
NAMED = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
TIMEOUT = 30.0


class Exchange(NamedTuple):
    """One HTTP request.

    Attributes:
        headers: Without Host, Content-Length and Mcp-Session-Id.
        body: Its body.
        sessions: Ids of the sessions that take turns sending it; none for a request outside sessions.
    """

    headers: dict[str, str]
    body: bytes
    sessions: tuple[str, ...] = ()


def encode(message: dict[str, Any]) -> bytes:
    """A message as JSON, without a line end."""
    return json.dumps(message, separators=(",", ":")).encode()


def line(method: str, params: dict[str, Any] | None = None, *, request_id: int | str = 1, token: str | None = None) -> bytes:
    """A request as JSON, without a line end; with a token it asks for progress."""
    meta = META if token is None else {**META, "progressToken": token}
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**(params or {}), "_meta": meta}})


def request(method: str, params: dict[str, Any] | None = None, *, request_id: int | str = 1, token: str | None = None) -> Exchange:
    """A request as an HTTP exchange, mirrored headers included."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
    }
    if method in NAMED:
        headers["Mcp-Name"] = (params or {})[NAMED[method]]
    return Exchange(headers, line(method, params, request_id=request_id, token=token))


def call(tool: str, arguments: dict[str, Any], *, request_id: int | str = 1, token: str | None = None) -> Exchange:
    """A `tools/call`."""
    return request("tools/call", {"name": tool, "arguments": arguments}, request_id=request_id, token=token)


def wire_bytes(exchange: Exchange, port: int, *, method: str = "POST", session: str = "") -> bytes:
    """An exchange as it goes over the socket, in one session or in none."""
    headers = {**exchange.headers, "Mcp-Session-Id": session} if session else exchange.headers
    head = [f"{method} {PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*head, f"Content-Length: {len(exchange.body)}", "", ""]).encode() + exchange.body


def open_connection(port: int) -> HTTPConnection:
    """A connection that stays open between requests."""
    return HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)


def send(connection: HTTPConnection, exchange: Exchange, method: str = "POST") -> tuple[HTTPResponse, bytes]:
    """Send a request, in the first of its sessions, and read the whole answer."""
    headers = {**exchange.headers, "Mcp-Session-Id": exchange.sessions[0]} if exchange.sessions else exchange.headers
    connection.request(method, PATH, exchange.body, headers)
    response = connection.getresponse()
    return response, response.read()


def ask(connection: HTTPConnection, exchange: Exchange) -> dict[str, Any]:
    """Send a request and return its result, the last message of the answer.

    Raises:
        RuntimeError: The answer is not a result.
    """
    response, body = send(connection, exchange)
    streamed = response.headers.get("content-type", "").startswith("text/event-stream")
    text = body.rpartition(b"data:")[2] if streamed else body
    answer = json.loads(text) if text else {}
    if response.status != 200 or "result" not in answer:
        raise RuntimeError(f"{response.status} {body[:500]!r}")
    return dict(answer["result"])


def ask_tool(connection: HTTPConnection, tool: str, **arguments: Any) -> Any:
    """Structured content of a tool's answer."""
    return ask(connection, call(tool, arguments))["structuredContent"]


class Listener:
    """One open `subscriptions/listen` stream for list_changed of the tools.

    Attributes:
        socket: Its socket; past the acknowledgement nothing has been read from it.
    """

    def __init__(self, port: int, number: int) -> None:
        self._connection = open_connection(port)
        wanted = {"notifications": {"toolsListChanged": True}}
        exchange = request("subscriptions/listen", wanted, request_id=f"listener-{number}")
        self._connection.request("POST", PATH, exchange.body, exchange.headers)
        self.socket: socket.socket = self._connection.sock
        self._response: HTTPResponse = self._connection.getresponse()
        self._await_acknowledgement()

    def _await_acknowledgement(self) -> None:
        media_type = self._response.headers.get("content-type", "")
        if self._response.status != 200 or not media_type.startswith("text/event-stream"):
            raise RuntimeError(f"listen: {self._response.status} {self._response.read(500)!r}")
        while b"acknowledged" not in self._response.readline():
            pass
        while self._response.readline().strip():  # what is left of the event
            pass

    def close(self) -> None:
        """End the stream in good order."""
        self._response.close()
        self._connection.close()

    def kill(self) -> None:
        """End the stream the way a dying client does: with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()
