"""Drives an ASGI application in process, as a client of the current protocol sees it over HTTP.

client = Client(asgi(server))
answer = await client.call("echo", {"text": "hi"})
async with client.open("subscriptions/listen", {"notifications": {}}) as stream:
    note = await stream.message()

Every JSON-RPC message that comes back is held against the independent oracles before a test sees it.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final

from oracles import TASKS, faults, mcp_types_notification, mcp_types_result, mcp_types_validate, schema_dir

JSON = dict[str, Any]
Event = MutableMapping[str, Any]
Application = Callable[[Event, Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]]

LATEST: Final = "2026-07-28"
BOUND: Final = 10.0  # seconds that a test waits for anything
MIRRORED: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
# What the extension for tasks brings.
TASK_RESULTS: Final = {"tasks/get": "GetTaskResult", "tasks/update": "UpdateTaskResult", "tasks/cancel": "CancelTaskResult"}
RESULTS: Final = {
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "resources/read": "ReadResourceResult",
    "prompts/list": "ListPromptsResult",
    "prompts/get": "GetPromptResult",
    "completion/complete": "CompleteResult",
    "subscriptions/listen": "SubscriptionsListenResult",
}
META_PREFIX: Final = "io.modelcontextprotocol/"


def make_meta(capabilities: Mapping[str, Any] | None = None, **extra: Any) -> JSON:
    """`_meta` of a request: the two required keys, and `extra` (names of the protocol's own keys without their prefix)."""
    keys = {"progressToken", "traceparent", "tracestate", "baggage"}
    meta: JSON = {f"{META_PREFIX}protocolVersion": LATEST, f"{META_PREFIX}clientCapabilities": dict(capabilities or {})}
    return {**meta, **{key if key in keys or "/" in key else META_PREFIX + key: value for key, value in extra.items()}}


def make_request(
    method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = 1, meta: Mapping[str, Any] | None = None
) -> JSON:
    """A request of the current protocol."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**(params or {}), "_meta": dict(meta or make_meta())}}


def header_value(text: str) -> str:
    """A text as a mirrored header carries it (HH-16)."""
    plain = text.isascii() and text.isprintable() and text == text.strip()
    return text if plain else f"=?base64?{b64encode(text.encode()).decode()}?="


def make_headers(message: Mapping[str, Any], **changed: str | None) -> dict[str, str]:
    """Headers that belong to a message; `changed` replaces them (underscores are dashes), None takes one out."""
    params = message.get("params", {})
    method = message.get("method", "")
    headers: dict[str, str] = {
        "host": "127.0.0.1:8000",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": LATEST,
        "mcp-method": method,
    }
    if method in MIRRORED and isinstance(name := params.get(MIRRORED[method]), str):
        headers["mcp-name"] = header_value(name)
    for key, value in changed.items():
        headers.pop(key.replace("_", "-"), None)
        if value is not None:
            headers[key.replace("_", "-")] = value
    return headers


def judge(message: JSON, method: str | None) -> None:
    """Demand that a server's message is one, by every oracle at hand.

    Raises:
        AssertionError: A JSON Schema objects.
        pydantic.ValidationError: `mcp_types` objects.
    """
    if "error" not in message or "id" in message:  # `mcp_types` knows no error without an id; the JSON Schema does (JR-09)
        mcp_types_validate("JSONRPCMessage", message)
    definition = "JSONRPCMessage"
    if (of_tasks := _task_definition(message, method)) is not None:
        part = message if "method" in message else message["result"]
        found = [] if schema_dir() is None else faults(of_tasks, part, TASKS)
        assert not found, f"{message}: {'; '.join(found)}"
        return
    if "method" in message:
        assert "id" not in message, f"the current protocol has no requests of servers (JR-05): {message}"
        mcp_types_notification(message["method"], message.get("params"))
        definition = "JSONRPCNotification"
    elif "error" in message:
        definition = "JSONRPCErrorResponse"
    elif method in RESULTS:
        mcp_types_result(method, message["result"])
        definition = "JSONRPCResultResponse"
    if schema_dir() is None:
        return
    found = faults(definition, message)
    if definition == "JSONRPCResultResponse" and method is not None and message["result"]["resultType"] == "complete":
        found += faults(RESULTS[method], message["result"])
    if definition == "JSONRPCNotification":
        found += faults("ServerNotification", message)
    assert not found, f"{message}: {'; '.join(found)}"


def _task_definition(message: JSON, method: str | None) -> str | None:
    """What a message about a task is by the schema of the extension; None for all others."""
    if "method" in message:
        return "TaskStatusNotification" if message["method"] == "notifications/tasks" else None
    result = message.get("result", {})
    if result.get("resultType") == "task":
        assert method == "tools/call", "only a call of a tool may be answered with a task (TX-04)"
        return "CreateTaskResult"
    return TASK_RESULTS.get(method or "") if result else None


def read_events(body: bytes) -> Iterator[JSON]:
    """JSON-RPC messages of an event stream; comments are skipped, anything but `data` is an error (HM-14)."""
    for event in body.split(b"\n\n"):
        for line in event.split(b"\n"):
            if not line or line.startswith(b":"):
                continue
            assert line.startswith(b"data: "), f"unexpected line on the stream: {line!r}"
            yield json.loads(line.removeprefix(b"data: "))


class Answer:
    """A whole HTTP response.

    Attributes:
        status: HTTP status.
        headers: By lower-case name.
        body: All of it.
        messages: The JSON-RPC messages in it, in order.
    """

    def __init__(self, sent: list[Event], method: str | None) -> None:
        assert sent, "the application sent nothing"
        assert sent[0]["type"] == "http.response.start"
        assert all(event["type"] == "http.response.body" for event in sent[1:])
        assert not sent[-1].get("more_body"), "the application left its response open"
        self.status: int = sent[0]["status"]
        raw: list[tuple[bytes, bytes]] = list(sent[0]["headers"])
        self.headers = {name.decode("ascii"): value.decode("ascii") for name, value in raw}
        assert len(self.headers) == len(raw), f"a response header is there twice: {raw}"
        self.body = b"".join(event.get("body", b"") for event in sent[1:])
        if self.is_stream:
            self.messages = list(read_events(self.body))
        else:
            length = None if self.status == 204 else str(len(self.body))  # RFC 9110 section 8.6
            assert self.headers.get("content-length") == length
            self.messages = [json.loads(self.body)] if self.body else []
        for message in self.messages:
            judge(message, method)

    @property
    def is_stream(self) -> bool:
        """Whether it is an event stream."""
        return self.headers.get("content-type") == "text/event-stream"

    @property
    def message(self) -> JSON:
        """Its last message."""
        return self.messages[-1]

    @property
    def result(self) -> JSON:
        """Result of its last message."""
        assert "result" in self.message, self.message
        found: JSON = self.message["result"]
        return found

    @property
    def error(self) -> JSON:
        """Error of its last message."""
        assert "error" in self.message, self.message
        found: JSON = self.message["error"]
        return found

    @property
    def notes(self) -> list[JSON]:
        """Its messages before the last."""
        return self.messages[:-1]

    @property
    def text(self) -> str:
        """Text of the only content block of a tool's result."""
        (block,) = self.result["content"]
        text: str = block["text"]
        return text


class Exchange:
    """One request that a test steps through.

    Attributes:
        sent: What the application has sent so far.
        gate: Cleared: the client reads nothing, so `send` waits.
        task: The application's.
    """

    def __init__(self, app: Application, scope: Event, body: bytes, method: str | None) -> None:
        self.sent: list[Event] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._received = [{"type": "http.request", "body": body, "more_body": False}]
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self._taken = 0
        self._method = method
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: Application, scope: Event) -> None:
        try:
            await app(scope, self.receive, self.send)
        finally:
            self._news.set()

    async def receive(self) -> Event:
        """ASGI receive."""
        if self._received:
            return self._received.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """ASGI send; like a server's, it waits before it takes anything."""
        await self.gate.wait()
        if self.sent and self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body"):
            raise RuntimeError(f"Unexpected ASGI message {event['type']!r} sent, after response already completed.")
        self.sent.append(event)
        self._news.set()

    def disconnect(self) -> None:
        """The client goes away."""
        self._gone.set()

    @property
    def body(self) -> bytes:
        """What has come of the body so far."""
        return b"".join(event.get("body", b"") for event in self.sent[1:])

    @property
    def comments(self) -> int:
        """How many keep-alive comments have come so far."""
        return sum(line.startswith(b":") for line in self.body.split(b"\n"))

    async def until(self, ready: Callable[[], Any]) -> None:
        """Wait until something is true of what was sent."""
        async with asyncio.timeout(BOUND):
            while not ready():
                self._news.clear()
                assert not self.task.done(), f"the response ended first: {self.sent}"
                await self._news.wait()

    async def head(self) -> int:
        """Wait for the status."""
        await self.until(lambda: self.sent)
        status: int = self.sent[0]["status"]
        return status

    async def message(self) -> JSON:
        """Wait for the next JSON-RPC message of the stream."""
        await self.until(lambda: len(list(read_events(self.body))) > self._taken)
        found = list(read_events(self.body))[self._taken]
        self._taken += 1
        judge(found, self._method)
        return found

    async def comment(self) -> None:
        """Wait for the next keep-alive."""
        before = self.comments
        await self.until(lambda: self.comments > before)

    async def end(self) -> Answer:
        """Wait until the application is done."""
        async with asyncio.timeout(BOUND):
            await self.task
        return Answer(self.sent, self._method)

    async def gone(self) -> None:
        """Wait until the application is done with a client that went away."""
        async with asyncio.timeout(BOUND):
            await self.task


class Client:
    """A client of one application.

    Args:
        app: The application.
        path: Path of its endpoint.
        peer: Address that it sees.
        state: ASGI `scope["state"]`.
    """

    def __init__(
        self, app: Application, *, path: str = "/mcp", peer: tuple[str, int] | None = ("127.0.0.1", 50_000), state: JSON | None = None
    ) -> None:
        self.app = app
        self.path = path
        self.peer = peer
        self.state: JSON = {} if state is None else state

    def scope(self, method: str, headers: list[tuple[bytes, bytes]], path: str | None = None) -> Event:
        """An ASGI scope as a server builds it."""
        where = self.path if path is None else path
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": where,
            "raw_path": where.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": self.peer,
            "server": ("127.0.0.1", 8000),
            "state": dict(self.state),
        }

    def start(
        self,
        body: bytes,
        headers: Mapping[str, str] | list[tuple[bytes, bytes]],
        *,
        verb: str = "POST",
        path: str | None = None,
        method: str | None = None,
    ) -> Exchange:
        """Begin a request."""
        raw = headers if isinstance(headers, list) else [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return Exchange(self.app, self.scope(verb, raw, path), body, method)

    async def send(
        self,
        body: bytes,
        headers: Mapping[str, str] | list[tuple[bytes, bytes]],
        *,
        verb: str = "POST",
        path: str | None = None,
        method: str | None = None,
    ) -> Answer:
        """Send any bytes with any headers."""
        return await self.start(body, headers, verb=verb, path=path, method=method).end()

    async def post(self, message: JSON, *, path: str | None = None, **headers: str | None) -> Answer:
        """Post a message with the headers that belong to it."""
        method = message.get("method")
        return await self.send(json.dumps(message).encode(), make_headers(message, **headers), path=path, method=method)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        request_id: Any = 1,
        meta: Mapping[str, Any] | None = None,
        **headers: str | None,
    ) -> Answer:
        """Send a request of the current protocol."""
        return await self.post(make_request(method, params, request_id=request_id, meta=meta), **headers)

    async def call(
        self, tool: str, arguments: Any = None, *, request_id: Any = 1, meta: Mapping[str, Any] | None = None, **headers: str | None
    ) -> Answer:
        """Call a tool."""
        params = {"name": tool} if arguments is None else {"name": tool, "arguments": arguments}
        return await self.request("tools/call", params, request_id=request_id, meta=meta, **headers)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        request_id: Any = 1,
        meta: Mapping[str, Any] | None = None,
        **headers: str | None,
    ) -> AsyncIterator[Exchange]:
        """Send a request and step through its response; the client goes away when the block is left."""
        message = make_request(method, params, request_id=request_id, meta=meta)
        exchange = self.start(json.dumps(message).encode(), make_headers(message, **headers), method=method)
        try:
            yield exchange
        finally:
            exchange.gate.set()
            exchange.disconnect()
            await asyncio.wait([exchange.task], timeout=BOUND)
            assert exchange.task.done(), "the application goes on without its client"

    def listen(self, request_id: Any = 1, **wanted: Any) -> Any:
        """Open a listen stream; `wanted` is the filter."""
        return self.open("subscriptions/listen", {"notifications": wanted}, request_id=request_id)
