"""Drives an ASGI application in process, as clients of 2025 see it over HTTP: sessions, event streams, replay.

    session = await Legacy(asgi(server)).connect()
    answer = await session.call("echo", {"text": "hi"})
    async with session.listen() as stream:
        note = await stream.message()

Every JSON-RPC message that comes back is held against the independent oracles of the session's version before a test sees it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, NamedTuple

import asgi_driver
from asgi_driver import BOUND, JSON, META_PREFIX, Application, Event
from mcp_types import JSONRPCMessage
from mcp_types import methods as mcp_methods
from oracles import faults, mcp_types_notification, mcp_types_result, mcp_types_validate, schema_dir
from pydantic import TypeAdapter
from virtual_time import VirtualLoop

V03, V06, V11 = VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
RESULTS: Final = {
    **{method: name for method, name in asgi_driver.RESULTS.items() if method not in {"server/discover", "subscriptions/listen"}},
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "logging/setLevel": "EmptyResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "tasks/get": "GetTaskResult",
    "tasks/cancel": "CancelTaskResult",
    "tasks/list": "ListTasksResult",
    "tasks/result": "CallToolResult",  # what became a task
}
RELATED: Final = "io.modelcontextprotocol/related-task"
MODERN_KEYS: Final = {"resultType", "ttlMs", "cacheScope"}  # no version of 2025 has them in a result
Methods = dict[tuple[type, Any], str]
_read_message: Final[Any] = TypeAdapter(JSONRPCMessage).validate_python


def bound() -> float:
    """Seconds that a test waits for anything: virtual ones cost nothing, and servers have limits of minutes."""
    return 10_000.0 if isinstance(asyncio.get_running_loop(), VirtualLoop) else BOUND


class Frame(NamedTuple):
    """One event of a stream.

    Attributes:
        event_id: Its id; None without one.
        retry: Milliseconds after which the client is told to come back; None when it is not told.
        message: Its JSON-RPC message; None when it carries none.
    """

    event_id: str | None
    retry: int | None
    message: JSON | None


def read_frames(body: bytes) -> Iterator[Frame]:
    """Whole events of an event stream; comments are skipped, and anything that no client of 2025 knows is an error."""
    for event in body.split(b"\n\n")[:-1]:
        event_id, retry, data = None, None, list[str]()
        for line in event.decode("utf-8").split("\n"):
            name, _, value = line.partition(": ") if ": " in line else line.partition(":")
            if name == "id":
                event_id = value
            elif name == "retry":
                retry = int(value)
            elif name == "data":
                data.append(value)
            else:
                assert name in {"", "event"}, f"unexpected line on the stream: {line!r}"
                assert name == "" or value == "message", f"clients listen to events of the type message only: {line!r}"
        if (event_id, retry, data) != (None, None, []):
            yield Frame(event_id, retry, json.loads("\n".join(data)) if any(data) else None)


def judge(message: JSON, version: str, methods: Methods) -> None:
    """Demand that a server's message is one of that version, by every oracle at hand.

    Args:
        message: The message.
        version: The protocol version.
        methods: Method of each request that the client has sent, by type and value of its id.

    Raises:
        AssertionError: A JSON Schema objects, or the message says what only the current protocol says.
        pydantic.ValidationError: `mcp_types` objects.
    """
    unread = "error" in message and message.get("id") is None  # no version's schema has `"id": null`; JSON-RPC demands it
    if not unread:
        _read_message(message, by_name=False)
    found: list[str] = []
    if "method" in message:
        definition = "ServerRequest" if "id" in message else "ServerNotification"
        if definition == "ServerRequest":
            mcp_methods.parse_server_request(message["method"], version, message.get("params"))
        elif message["method"] == "notifications/tasks/status":
            mcp_types_validate("TaskStatusNotification", message)
        else:
            mcp_types_notification(message["method"], message.get("params"), version)
        found += [] if schema_dir() is None else faults(definition, message, version)
    elif "result" in message:
        method = methods[type(message["id"]), message["id"]]
        definition = "CreateTaskResult" if method == "tools/call" and "task" in message["result"] else RESULTS[method]
        if definition.endswith("TaskResult") or method.startswith("tasks/"):
            mcp_types_validate(definition, message["result"])
        else:
            mcp_types_result(method, message["result"], version)
        found += [] if schema_dir() is None else faults(definition, message["result"], version)
        found += [f"the result has {key}" for key in MODERN_KEYS & message["result"].keys()]
    if not unread and schema_dir() is not None:
        found += faults("JSONRPCMessage", message, version)
    found += [f"a message of {version} has {key}" for key in _reserved(message)]
    assert not found, f"{message}: {'; '.join(found)}"


def _reserved(value: Any) -> Iterator[str]:
    """Keys that belong to the current protocol's `_meta`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "_meta" and isinstance(inner, dict):
                yield from (name for name in inner if name.startswith(META_PREFIX) and name != RELATED)
            yield from _reserved(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _reserved(inner)


class Answer(asgi_driver.Answer):
    """A whole HTTP response.

    Attributes:
        frames: The events in it, when it is an event stream.
    """

    def __init__(self, sent: list[Event], version: str, methods: Methods) -> None:
        assert sent, "the application sent nothing"
        assert sent[0]["type"] == "http.response.start"
        assert all(event["type"] == "http.response.body" for event in sent[1:])
        assert not sent[-1].get("more_body"), "the application left its response open"
        self.status = sent[0]["status"]
        raw: list[tuple[bytes, bytes]] = list(sent[0]["headers"])
        self.headers = {name.decode("ascii"): value.decode("ascii") for name, value in raw}
        assert len(self.headers) == len(raw), f"a response header is there twice: {raw}"
        self.body = b"".join(event.get("body", b"") for event in sent[1:])
        self.frames: list[Frame] = []
        self.is_batch = False
        if self.is_stream:
            assert self.body.endswith(b"\n\n") or not self.body, "the stream ends within an event"
            self.frames = list(read_frames(self.body))
            self.messages = [frame.message for frame in self.frames if frame.message is not None]
        else:
            length = None if self.status == 204 else str(len(self.body))  # RFC 9110 section 8.6
            assert self.headers.get("content-length") == length
            content = json.loads(self.body) if self.body else []
            self.is_batch = bool(self.body) and isinstance(content, list)
            self.messages = content if isinstance(content, list) else [content]
        for message in self.messages:
            judge(message, version, methods)

    @property
    def by_id(self) -> dict[Any, JSON]:
        """Answers of a batch by id."""
        found = {message["id"]: message for message in self.messages}
        assert len(found) == len(self.messages), f"an id is answered twice: {self.messages}"
        return found

    @property
    def is_empty(self) -> bool:
        """Whether there is no JSON-RPC message in it."""
        return not self.messages


class Exchange(asgi_driver.Exchange):
    """One request that a test steps through.

    Attributes:
        last_id: Id of the last event that was taken.
        severed: Whether the connection is broken, or what sending raises then: it fails from now on, and nobody says that the client is gone.
    """

    def __init__(self, app: Application, scope: Event, body: bytes, version: str, methods: Methods) -> None:
        self._version = version
        self._methods = methods
        self.last_id: str | None = None
        self.severed: Exception | bool = False
        super().__init__(app, scope, body, None)

    async def send(self, event: Event) -> None:
        """ASGI send; what is sent to a client that has gone is lost.

        Raises:
            Exception: The connection is broken.
        """
        await self.gate.wait()
        if self.severed:
            raise self.severed if isinstance(self.severed, Exception) else OSError("the connection is broken")
        if not self._gone.is_set():
            await super().send(event)

    async def until(self, ready: Callable[[], Any]) -> None:
        """Wait until something is true of what was sent."""
        async with asyncio.timeout(bound()):
            while not ready():
                self._news.clear()
                assert not self.task.done(), f"the response ended first: {self.sent}"
                await self._news.wait()

    async def gone(self) -> None:
        """Wait until the application is done with a client that went away."""
        async with asyncio.timeout(bound()):
            await self.task

    async def frame(self) -> Frame:
        """Wait for the next event of the stream."""
        await self.until(lambda: len(list(read_frames(self.body))) > self._taken)
        found = list(read_frames(self.body))[self._taken]
        self._taken += 1
        if found.event_id is not None:
            self.last_id = found.event_id
        if found.message is not None:
            judge(found.message, self._version, self._methods)
        return found

    async def message(self) -> JSON:
        """Wait for the next JSON-RPC message of the stream."""
        while (message := (await self.frame()).message) is None:
            pass
        return message

    async def take(self, amount: int) -> list[JSON]:
        """Wait for the next so many messages."""
        return [await self.message() for _ in range(amount)]

    @property
    def untaken(self) -> list[JSON]:
        """Messages that have come and that the test has not taken."""
        return [frame.message for frame in list(read_frames(self.body))[self._taken :] if frame.message is not None]

    @property
    def ended(self) -> bool:
        """Whether the response is complete."""
        return bool(self.sent) and self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body")

    async def end(self) -> Answer:
        """Wait until the application is done."""
        await self.gone()
        return Answer(self.sent, self._version, self._methods)

    async def drop(self) -> None:
        """Go away, and wait until the application is done."""
        self.disconnect()
        self.gate.set()
        await self.gone()


class Legacy:
    """A client of 2025.

    Args:
        app: The application.
        version: The version that it asks for, and speaks without a session.
        path: Path of the endpoint.
        peer: Address that the application sees.
        state: ASGI `scope["state"]`; read for each request.
        headers: Sent with every request.
    """

    def __init__(
        self,
        app: Application,
        version: str = V11,
        *,
        path: str = "/mcp",
        peer: tuple[str, int] | None = ("127.0.0.1", 50_000),
        state: JSON | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.app = app
        self.version = version
        self.state: JSON = {} if state is None else state
        self.headers = dict(headers or {})
        self._scopes = asgi_driver.Client(app, path=path, peer=peer, state=self.state)

    def scope(self, verb: str, headers: Mapping[str, str], path: str | None = None) -> Event:
        """An ASGI scope as a server builds it."""
        self._scopes.state = self.state
        return self._scopes.scope(verb, [(name.encode(), value.encode("latin-1")) for name, value in headers.items()], path)

    def sessionless(self) -> "Session":
        """What posts without a session, from the first request on."""
        return Session(self, None, self.version)

    async def try_initialize(
        self,
        *,
        request_id: Any = 0,
        capabilities: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        **headers: str | None,
    ) -> Answer:
        """Send `initialize`, and whatever comes is fine; `params` replaces its params, or some."""
        client_info = {"name": "tester", "version": "1"}
        full = {"protocolVersion": self.version, "capabilities": dict(capabilities or {}), "clientInfo": client_info, **(params or {})}
        message = {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": full}
        return await Session(self, session_id, V03).post(message, **headers)

    async def initialize(self, **more: Any) -> "Session":
        """Open a session, without saying `notifications/initialized`."""
        answer = await self.try_initialize(**more)
        assert answer.status == 200, answer.body
        session = Session(self, answer.headers.get("mcp-session-id"), answer.result["protocolVersion"])
        session.opening = answer.result
        return session

    async def connect(self, **more: Any) -> "Session":
        """Open a session as a good client does."""
        session = await self.initialize(**more)
        assert (await session.notify("notifications/initialized")).status == 202
        return session


class Session:
    """What a client does with one session.

    Attributes:
        id: The session's id; None without a session.
        version: The negotiated version.
        opening: Result of `initialize`.
    """

    def __init__(self, client: Legacy, session_id: str | None, version: str) -> None:
        self.client = client
        self.id = session_id
        self.version = version
        self.opening: JSON = {}
        self._ids = count(1001)  # apart from those that tests choose
        self._methods: Methods = {}

    def headers(self, **changed: str | None) -> dict[str, str]:
        """Headers of a request; `changed` replaces them (underscores are dashes), None takes one out."""
        headers = {
            "host": "127.0.0.1:8000",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **({} if self.version == V03 else {"mcp-protocol-version": self.version}),
            **({} if self.id is None else {"mcp-session-id": self.id}),
            **self.client.headers,
        }
        for key, value in changed.items():
            headers.pop(key.replace("_", "-"), None)
            if value is not None:
                headers[key.replace("_", "-")] = value
        return headers

    def send(
        self, verb: str, body: bytes, headers: Mapping[str, str], *, path: str | None = None, methods: Methods | None = None
    ) -> Exchange:
        """Begin any HTTP request; `methods` are those of the requests in its body, else those of all that were sent before."""
        known = self._methods if methods is None else methods
        return Exchange(self.client.app, self.client.scope(verb, headers, path), body, self.version, known)

    def start(self, message: Any, **headers: str | None) -> Exchange:
        """Begin to post a message, or a batch."""
        methods: Methods = {}
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and "method" in each and isinstance(each.get("id"), str | int):
                methods[type(each["id"]), each["id"]] = each["method"]
        self._methods.update(methods)
        return self.send("POST", json.dumps(message).encode(), self.headers(**headers), methods=methods)

    async def post(self, message: Any, **headers: str | None) -> Answer:
        """Post a message, or a batch."""
        return await self.start(message, **headers).end()

    def make(self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None, token: Any = None) -> JSON:
        """A request; `token` asks for progress. Without `request_id` it has the next id."""
        message: JSON = {"jsonrpc": "2.0", "id": next(self._ids) if request_id is None else request_id, "method": method}
        given = dict(params or {}) if token is None else {**(params or {}), "_meta": {"progressToken": token}}
        return {**message, "params": given} if given else message

    def make_call(self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> JSON:
        """A call of a tool."""
        return self.make("tools/call", {"name": tool} if arguments is None else {"name": tool, "arguments": dict(arguments)}, **more)

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None, token: Any = None, **headers: str | None
    ) -> Answer:
        """Send a request and wait for all that comes of it."""
        return await self.post(self.make(method, params, request_id=request_id, token=token), **headers)

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, request_id: Any = None, token: Any = None, **headers: str | None
    ) -> Answer:
        """Call a tool and wait for all that comes of it."""
        return await self.post(self.make_call(tool, arguments, request_id=request_id, token=token), **headers)

    def begin(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, request_id: Any = None, token: Any = None, **headers: str | None
    ) -> Exchange:
        """Begin to call a tool, and wait for nothing."""
        return self.start(self.make_call(tool, arguments, request_id=request_id, token=token), **headers)

    @asynccontextmanager
    async def open(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, request_id: Any = None, token: Any = 1, **headers: str | None
    ) -> AsyncIterator[Exchange]:
        """Call a tool and step through its stream; the client goes away when the block is left."""
        exchange = self.begin(tool, arguments, request_id=request_id, token=token, **headers)
        async with _leaving(exchange):
            yield exchange

    @asynccontextmanager
    async def listen(self, after: str | None = None, **headers: str | None) -> AsyncIterator[Exchange]:
        """Open an event stream; `after` is the last event id that the client has seen."""
        exchange = self.start_listening(after, **headers)
        async with _leaving(exchange):
            assert await exchange.head() == 200, exchange.sent
            yield exchange

    def start_listening(self, after: str | None = None, **headers: str | None) -> Exchange:
        """Begin a GET and wait for nothing."""
        changed: dict[str, str | None] = {"content_type": None, "accept": "text/event-stream", "last_event_id": after, **headers}
        return self.send("GET", b"", self.headers(**changed))

    async def get(self, after: str | None = None, **headers: str | None) -> Answer:
        """Send a GET that is refused, or that ends by itself."""
        return await self.start_listening(after, **headers).end()

    async def delete(self, **headers: str | None) -> Answer:
        """End the session."""
        return await self.send("DELETE", b"", self.headers(content_type=None, **headers)).end()

    async def notify(self, method: str, params: Mapping[str, Any] | None = None, **headers: str | None) -> Answer:
        """Send a notification."""
        message: JSON = {"jsonrpc": "2.0", "method": method}
        return await self.post(message if params is None else {**message, "params": dict(params)}, **headers)

    async def cancel(self, request_id: Any, **headers: str | None) -> Answer:
        """Cancel a request."""
        return await self.notify("notifications/cancelled", {"requestId": request_id}, **headers)

    async def respond(self, request: Mapping[str, Any], result: Mapping[str, Any] | None = None, **more: Any) -> Answer:
        """Answer a request of the server; `error` instead of `result` refuses it."""
        return await self.post({"jsonrpc": "2.0", "id": request["id"], **({"result": dict(result or {})} if "error" not in more else more)})


@asynccontextmanager
async def _leaving(exchange: Exchange) -> AsyncIterator[None]:
    try:
        yield
    finally:
        exchange.gate.set()
        exchange.disconnect()
        await asyncio.wait([exchange.task], timeout=bound())
        assert exchange.task.done(), "the application goes on without its client"


async def ends(exchanges: Sequence[Exchange]) -> list[Answer]:
    """Answers of several requests that are under way."""
    return list(await asyncio.gather(*(exchange.end() for exchange in exchanges)))
