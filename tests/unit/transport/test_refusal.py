"""What a server that is about to end takes, and what it refuses."""

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

import callboard
from callboard import Server
from callboard.transport.asgi import App

VERSION = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}


def make_app() -> App:
    """A server that ends before long."""
    server = Server("s")

    @server.tool
    async def echo(text: str) -> str:
        return text

    return callboard.asgi(server)


async def post(app: App, message: dict[str, Any], *, version: str = "1.1") -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body."""
    body = json.dumps(message).encode()
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-protocol-version", VERSION.encode()),
        (b"mcp-method", message["method"].encode()),
    ]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(part: MutableMapping[str, Any]) -> None:
        sent.append(part)

    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "http_version": version, "client": ("127.0.0.1", 1)}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(part.get("body", b"") for part in sent)


LIST = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": META}}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "_meta": META}}


@pytest.mark.parametrize(("version", "closes"), [("1.1", True), ("2", False)])
async def test_what_would_have_to_begin_is_refused_and_what_runs_is_spoken_to(version: str, closes: bool) -> None:
    """SA39: 503, when to come again, and the end of the connection where the protocol has a word for it (HTTP/2 has not)."""
    app = make_app()
    assert (await post(app, LIST))[0] == 200
    app.drain()
    app.drain()
    status, headers, body = await post(app, LIST, version=version)
    assert (status, headers[b"retry-after"], b"connection" in headers) == (503, b"1", closes)
    assert json.loads(body)["id"] == 7
    assert (await post(app, CANCEL, version=version))[0] == 202
    await app.aclose()


async def test_the_next_request_after_the_end_begins_anew() -> None:
    app = make_app()
    assert (await post(app, LIST))[0] == 200
    app.drain()
    await app.aclose()
    assert (await post(app, LIST))[0] == 200
    await app.aclose()
