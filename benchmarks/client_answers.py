"""What the bare responders of the client's benchmark answer, in either era: constants with the id put in. Standard library only."""

from __future__ import annotations

import json
from typing import Any

MODERN, LEGACY = "2026-07-28", "2025-11-25"

_INFO = {"name": "responder", "version": "1.0.0"}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_SAID = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
_TOOLS = [{"name": "aecho", "description": "Say the text again.", "inputSchema": _TEXT, "outputSchema": _SAID}]
_STRUCTURED = '{"result":"hello world"}'
_CALLED = {"content": [{"type": "text", "text": _STRUCTURED}], "structuredContent": json.loads(_STRUCTURED), "isError": False}
_STAMP = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": _INFO}}
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}

RESULTS: dict[str, dict[str, dict[str, Any]]] = {
    MODERN: {
        "server/discover": {"supportedVersions": [MODERN, LEGACY], "capabilities": _CAPABILITIES, **_UNCACHED, **_STAMP},
        "tools/list": {"tools": _TOOLS, **_UNCACHED, **_STAMP},
        "tools/call": _CALLED | _STAMP,
    },
    LEGACY: {
        "initialize": {"protocolVersion": LEGACY, "capabilities": _CAPABILITIES, "serverInfo": _INFO},
        "tools/list": {"tools": _TOOLS},
        "tools/call": _CALLED,
    },
}
"""Version to method to result."""
ENCODED = {
    version: {method: b',"result":' + json.dumps(result, separators=(",", ":")).encode() + b"}" for method, result in results.items()}
    for version, results in RESULTS.items()
}
"""Version to method to what follows the id in the response."""


def respond(line: bytes) -> bytes:
    """The response to an encoded message, without a line end; empty for a notification."""
    message = json.loads(line)
    if "id" not in message:
        return b""
    version = MODERN if "io.modelcontextprotocol/protocolVersion" in message.get("params", {}).get("_meta", {}) else LEGACY
    rest = ENCODED[version].get(message["method"])
    if rest is None:
        rest = b',"error":{"code":-32601,"message":"there is no such method here"}}'
    return b'{"jsonrpc":"2.0","id":%d' % message["id"] + rest
