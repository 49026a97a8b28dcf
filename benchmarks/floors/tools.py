"""The floor's catalogue and its answers, as plain as can be: look up, call, encode."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks.floors.data import FILLERS, filler, hits

SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "floor", "version": "1.0.0"}}


class Call(msgspec.Struct):
    """One request, read as far as its method needs.

    Attributes:
        id: JSON-RPC id; None for a notification.
        method: Protocol method.
        name: Name of the tool; empty for other methods.
        arguments: The tool's arguments: unread JSON, or the typed object.
        params: All parameters where the method needs more.
        token: Progress token.
        session: The session that this request has opened.
    """

    id: int | str | None
    method: str
    name: str = ""
    arguments: Any = None
    params: dict[str, Any] = {}
    token: int | str | None = None
    session: str = ""


class TextArguments(msgspec.Struct):
    text: str


class AddArguments(msgspec.Struct):
    a: int
    b: int


class SearchArguments(msgspec.Struct):
    query: str


class SlowArguments(msgspec.Struct):
    n: int


class NoArguments(msgspec.Struct):
    pass


class Hit(msgspec.Struct):
    id: int
    title: str
    url: str
    score: float
    tags: list[str]
    snippet: str


class SearchResult(msgspec.Struct):
    query: str
    total: int
    hits: list[Hit]


class _Loose(msgspec.Struct):
    id: int | str
    method: str
    params: dict[str, Any] = {}


encode = msgspec.json.Encoder().encode
_decode_loose = msgspec.json.Decoder(_Loose).decode

# Callables that take the bytes of an event, one per listen stream.
LISTENERS: set[Callable[[bytes], None]] = set()


def search(query: str) -> SearchResult:
    """The 4 KB answer."""
    found = hits(query)
    return SearchResult(query, len(found), [Hit(**hit) for hit in found])


def broadcast() -> str:
    """Tell every listener that the tool list changed."""
    note = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    for push in LISTENERS:
        push(note)
    return "ok"


# Tool name -> arguments type, function.
TOOLS: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Any]]] = {
    "echo": (TextArguments, lambda given: given.text),
    "aecho": (TextArguments, lambda given: given.text),
    "pause": (TextArguments, lambda given: given.text),
    "add": (AddArguments, lambda given: given.a + given.b),
    "length": (TextArguments, lambda given: len(given.text)),
    "search": (SearchArguments, lambda given: search(given.query)),
    "slow": (SlowArguments, lambda _given: "done"),
    "broadcast": (NoArguments, lambda _given: broadcast()),
}


def describe(name: str, text: str, arguments: type[msgspec.Struct] | Callable[..., Any]) -> dict[str, Any]:
    """A tool as `tools/list` shows it."""
    properties: dict[str, dict[str, Any]]
    if isinstance(arguments, type):
        properties = {field.name: {"type": "integer" if field.type is int else "string"} for field in msgspec.structs.fields(arguments)}
        required = list(properties)
    else:
        properties = {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        }
        required = ["query"]
    output = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": text, "inputSchema": schema, "outputSchema": output}


TOOL_LIST = [describe(name, f"The {name} tool.", arguments) for name, (arguments, _) in TOOLS.items()]
TOOL_LIST += [describe(*filler(number)) for number in range(FILLERS)]
LISTED = {"tools": TOOL_LIST, "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": SERVER_INFO}
CAPABILITIES = {"tools": {"listChanged": True}}
WELCOME = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "floor", "version": "1.0.0"}}
LISTED_BYTES = msgspec.Raw(encode(LISTED))  # a server may keep the encoded list until it changes


def read_loosely(body: bytes) -> Call:
    """A request, nothing of it checked."""
    message = _decode_loose(body)
    if message.method != "tools/call":
        return Call(message.id, message.method, params=message.params)
    name = message.params["name"]
    return Call(message.id, message.method, name, msgspec.convert(message.params["arguments"], TOOLS[name][0]), message.params)


def answer(call: Call) -> bytes:
    """The encoded response to a request."""
    result: Any
    if call.method == "tools/call":
        result = shape(TOOLS[call.name][1](call.arguments))
        result["resultType"] = "complete"
        result["_meta"] = SERVER_INFO
    elif call.method == "initialize":
        result = WELCOME
    else:
        result = LISTED_BYTES
    return encode({"jsonrpc": "2.0", "id": call.id, "result": result})


def shape(value: Any) -> dict[str, Any]:
    """The result of a tool call: structured content, and the same as text."""
    if isinstance(value, msgspec.Struct | dict):
        structured = encode(value)
        return {"content": [{"type": "text", "text": structured.decode()}], "structuredContent": msgspec.Raw(structured), "isError": False}
    text = value if isinstance(value, str) else str(value)
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"result": value}, "isError": False}


def report(call: Call) -> Iterator[bytes]:
    """Progress of the slow tool, and its answer, as events."""
    steps = call.arguments.n
    for step in range(steps):
        params = {"progressToken": call.token, "progress": step + 1, "total": steps, "message": "step"}
        yield event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    yield frame(answer(call))


def frame(message: bytes) -> bytes:
    """One encoded message of an event stream."""
    return b"event: message\ndata: " + message + b"\n\n"


def event(message: dict[str, Any]) -> bytes:
    """One message of an event stream."""
    return frame(encode(message))


def acknowledge(call: Call) -> bytes:
    """First event of a listen stream."""
    meta = {"io.modelcontextprotocol/subscriptionId": call.id}
    params = {"notifications": call.params.get("notifications"), "_meta": meta}
    return event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
