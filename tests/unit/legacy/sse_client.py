"""Drives an ASGI application in process as clients of HTTP+SSE do.

    async with connected(app) as client:
        assert await client.call("echo", text="hi") == "hi"

Every message that comes back is held against the independent oracles of the version before a test sees it.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

import asgi_driver
from asgi_driver import JSON, Answer, Application, Event
from legacy_driver import V11, Methods, bound, judge
from oracles import mcp_types_result
from shop import Shop
from virtual_time import settle

from callboard import asgi
from callboard.transport.asgi import App

V24 = "2024-11-05"


class SseEvent(NamedTuple):
    """One event of a stream; comments are none."""

    name: str
    data: str


def read_events(body: bytes) -> Iterator[SseEvent]:
    """Whole events of an event stream."""
    for block in body.decode("utf-8").split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            assert fields.keys() == {"event", "data"}, f"an event has a name and one line of data: {block!r}"
            yield SseEvent(fields["event"], fields["data"])


class Stream(asgi_driver.Exchange):
    """The GET, which a test steps through.

    Attributes:
        severed: Whether the connection is broken: sending fails from now on, and nobody says that the client is gone.
    """

    def __init__(self, app: Application, scope: Event) -> None:
        self.severed = False
        super().__init__(app, scope, b"", None)
        self._read = 1  # of what was sent
        self._rest = b""
        self._untaken: deque[SseEvent] = deque()

    async def send(self, event: Event) -> None:
        """ASGI send.

        Raises:
            OSError: The connection is broken.
        """
        if self.severed:
            raise OSError("the connection is broken")
        await super().send(event)

    async def until(self, ready: Any) -> None:
        """Wait until something is true of what was sent."""
        async with asyncio.timeout(bound()):
            while not ready():
                self._news.clear()
                assert not self.task.done(), f"the response ended first: {self.sent}"
                await self._news.wait()

    async def event(self) -> SseEvent:
        """Wait for the next event."""
        await self.until(lambda: self.untaken)
        return self._untaken.popleft()

    @property
    def untaken(self) -> int:
        """How many events have come that the test has not taken."""
        while self._read < len(self.sent):
            self._rest += self.sent[self._read].get("body", b"")
            self._read += 1
            whole, _, self._rest = self._rest.rpartition(b"\n\n")
            self._untaken += read_events(whole + b"\n\n")
        return len(self._untaken)

    async def ended(self) -> None:
        """Wait until the application is done."""
        async with asyncio.timeout(bound()):
            await self.task


class SseClient:
    """A client of HTTP+SSE.

    Args:
        app: The application.
        version: The version that it asks for.
        root: Where the application is mounted.
        path: Path of its GET.
        state: ASGI `scope["state"]`.
        headers: Sent with every request.

    Attributes:
        stream: The GET, once `open` was called.
        uri: Where it POSTs.
        opening: Result of `initialize`.
    """

    def __init__(
        self,
        app: Application,
        version: str = V11,
        *,
        root: str = "",
        path: str = "/sse",
        state: JSON | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.app = app
        self.version = version
        self.root = root
        self.path = path
        self.state = {} if state is None else state
        self.headers = {"host": "127.0.0.1:8000", **(headers or {})}
        self.stream: Stream
        self.uri = ""
        self.opening: JSON = {}
        self._ids = count(1)
        self._methods: Methods = {}

    def scope(self, verb: str, target: str, headers: Mapping[str, str | None]) -> Event:
        """An ASGI scope as a server builds it."""
        path, _, query = target.partition("?")
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None]
        scope = asgi_driver.Client(self.app, state=self.state).scope(verb, raw, path)
        return {**scope, "query_string": query.encode(), "root_path": self.root}

    def get(self, path: str | None = None, **headers: str | None) -> Stream:
        """Begin a GET, and wait for nothing."""
        return Stream(self.app, self.scope("GET", path or self.path, {"accept": "text/event-stream", **headers}))

    async def open(self, **headers: str | None) -> None:
        """Open the stream, and learn where to POST."""
        self.stream = self.get(**headers)
        await self.stream.until(lambda: self.stream.sent)
        assert self.stream.sent[0]["status"] == 200, self.stream.sent
        name, self.uri = await self.stream.event()
        assert name == "endpoint"

    async def send(self, verb: str, body: bytes, target: str | None = None, **headers: str | None) -> Answer:
        """Send any request."""
        exchange = asgi_driver.Exchange(
            self.app, self.scope(verb, target or self.uri, {"content_type": "application/json", **headers}), body, None
        )
        async with asyncio.timeout(bound()):
            await exchange.task
        return Raw(exchange.sent)

    async def post(self, message: Any, target: str | None = None, **headers: str | None) -> Answer:
        """POST a message."""
        if isinstance(message, dict) and "id" in message and "method" in message:
            self._methods[type(message["id"]), message["id"]] = message["method"]
        return await self.send("POST", json.dumps(message).encode(), target, **headers)

    async def notify(self, method: str, params: JSON | None = None) -> Answer:
        """POST a notification."""
        message = {"jsonrpc": "2.0", "method": method}
        return await self.post(message if params is None else {**message, "params": params})

    async def begin(self, method: str, params: JSON | None = None, *, request_id: Any = None, token: Any = None) -> Any:
        """POST a request, and wait for no more than its acceptance; its id."""
        request_id = next(self._ids) if request_id is None else request_id
        params = params if token is None else {**(params or {}), "_meta": {"progressToken": token}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        answer = await self.post(message if params is None else {**message, "params": params})
        assert (answer.status, answer.body) == (202, b""), answer.body
        return request_id

    async def begin_call(self, tool: str, arguments: JSON | None = None, **more: Any) -> Any:
        """POST a call of a tool; its id."""
        return await self.begin("tools/call", {"name": tool, "arguments": arguments or {}}, **more)

    async def message(self) -> Any:
        """Wait for the next message."""
        name, data = await self.stream.event()
        assert name == "message"
        return self.read(data)

    def read(self, data: str) -> Any:
        """A message, held against the oracles."""
        found = json.loads(data)
        for each in found if isinstance(found, list) else [found]:
            if self.version != V24:
                judge(each, self.version, self._methods)
            elif "result" in each:
                mcp_types_result(self._methods[type(each["id"]), each["id"]], each["result"], V24)
        return found

    async def untaken(self) -> list[Any]:
        """All messages that come without any time passing."""
        await settle()
        return [await self.message() for _ in range(self.stream.untaken)]

    async def request(self, method: str, params: JSON | None = None, **more: Any) -> JSON:
        """Send a request and wait for the next message, which must answer it."""
        request_id = await self.begin(method, params, **more)
        found: JSON = await self.message()
        assert found.get("id") == request_id, found
        return found

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool that says nothing but one text."""
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        (block,) = answer["result"]["content"]
        return str(block["text"])

    async def initialize(self, asked: str | None = None) -> JSON:
        """Open the session."""
        params = {"protocolVersion": asked or self.version, "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}}
        return await self.request("initialize", params)

    async def connect(self) -> None:
        """Open stream and session as a good client does."""
        await self.open()
        self.opening = (await self.initialize())["result"]
        assert self.opening["protocolVersion"] == self.version
        assert (await self.notify("notifications/initialized")).status == 202

    async def leave(self) -> None:
        """Go away, and wait until the application is done."""
        self.stream.disconnect()
        self.stream.gate.set()
        await self.stream.ended()


class Raw(Answer):
    """A whole response, not judged: what refuses a request has no version."""

    def __init__(self, sent: list[Event]) -> None:
        assert [event["type"] for event in sent[:1]] == ["http.response.start"]
        assert not sent[-1].get("more_body"), "the application left its response open"
        self.status = sent[0]["status"]
        self.headers = {name.decode("ascii"): value.decode("ascii") for name, value in sent[0]["headers"]}
        self.body = b"".join(event.get("body", b"") for event in sent[1:])
        self.messages = [json.loads(self.body)] if self.body else []


@asynccontextmanager
async def connected(app: Application, version: str = V11, **options: Any) -> AsyncIterator[SseClient]:
    """A client with a session, which goes away when the block is left."""
    client = SseClient(app, version, **options)
    await client.connect()
    try:
        yield client
    finally:
        await client.leave()


def make_app(shop: Shop, **options: Any) -> App:
    """A shop that offers HTTP+SSE."""
    return asgi(shop.server, sse_path="/sse", **options)


def texts(messages: list[Any]) -> list[Any]:
    """What messages say: progress, the data of a log, the text of a result, the code of an error."""
    return [text(message) for message in messages]


def text(message: Any) -> Any:
    """What one message says."""
    if "error" in message:
        return message["error"]["code"]
    if "result" in message:
        return message["result"]["content"][0]["text"]
    params = message["params"]
    return params["progress"] if "progress" in params else params.get("data", message["method"])
