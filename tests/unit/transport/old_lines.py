"""A client of 2025 on a stream of lines."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from legacy_driver import V11, Methods, judge
from unit.transport import lines
from unit.transport.lines import Json, Reader
from unit.transport.stage import serving

from callboard import Server
from callboard.transport.pipe import Pipe


class OldReader(Reader):
    """Holds every message against the oracles of the session's version; a batch is a list among the messages.

    Attributes:
        version: The session's version.
        methods: Method of each request that was sent, by type and value of its id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.version = V11
        self.methods: Methods = {}

    def read(self, line: bytes) -> Json:
        """Read one line."""
        assert b"\n" not in line, "SD-01: no line end within a message"
        found: Any = json.loads(line)
        for message in found if isinstance(found, list) else [found]:
            key = type(message.get("id")), message.get("id")
            if self.methods.get(key) == "server/discover":
                lines.read(line, {message["id"]: "server/discover"})
            else:
                judge(message, self.version, self.methods)
        return found  # type: ignore[no-any-return]


class OldClient:
    """A client of 2025 on a pipe.

    Attributes:
        pipe: The server's side.
        reader: What came back.
        session_id: The session's id, as the server's functions see it.
    """

    def __init__(self, pipe: Pipe, reader: OldReader) -> None:
        self.pipe = pipe
        self.reader = reader
        self._ids = count(1001)  # apart from those that tests choose

    def say(self, message: Any) -> None:
        """Send a message, or a batch."""
        for each in message if isinstance(message, list) else [message]:
            if isinstance(each, dict) and "method" in each and isinstance(each.get("id"), str | int):
                self.reader.methods[type(each["id"]), each["id"]] = each["method"]
        self.pipe.feed(json.dumps(message).encode())

    def ask(self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None) -> Any:
        """Send a request and wait for nothing; its id."""
        message = make(method, params, next(self._ids) if request_id is None else request_id)
        self.say(message)
        return message["id"]

    def begin(self, tool: str, /, *, request_id: Any = None, token: Any = None, **arguments: Any) -> Any:
        """Call a tool and wait for nothing; the request's id."""
        return self.ask("tools/call", call_params(tool, arguments, token), request_id=request_id)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        message: Json = {"jsonrpc": "2.0", "method": method}
        self.say(message if params is None else {**message, "params": dict(params)})

    def cancel(self, request_id: Any) -> None:
        """Cancel a request."""
        self.notify("notifications/cancelled", {"requestId": request_id})

    async def request(self, method: str, params: Mapping[str, Any] | None = None, *, request_id: Any = None) -> Json:
        """Send a request and wait for its answer."""
        return await self.reader.answer(self.ask(method, params, request_id=request_id))

    async def call(self, tool: str, /, **more: Any) -> str:
        """Call a tool; the text of its answer."""
        return lines.text_of(await self.reader.answer(self.begin(tool, **more)))

    async def initialize(self, version: str = V11, **params: Any) -> Json:
        """Ask for a session; the answer."""
        client_info = {"name": "tester", "version": "1"}
        answer = await self.request("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": client_info, **params})
        if "result" in answer:
            self.reader.version = answer["result"]["protocolVersion"]
        return answer

    async def connect(self, version: str = V11) -> None:
        """Open a session as a good client does."""
        assert (await self.initialize(version))["result"]["protocolVersion"] == version
        self.notify("notifications/initialized")


def make(method: str, params: Mapping[str, Any] | None, request_id: Any) -> Json:
    """A request without an envelope of its own."""
    message: Json = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": dict(params)}


def call_params(tool: str, arguments: Mapping[str, Any], token: Any = None) -> Json:
    """Params of a `tools/call`; `token` asks for progress."""
    params: Json = {"name": tool, "arguments": dict(arguments)}
    return params if token is None else {**params, "_meta": {"progressToken": token}}


@asynccontextmanager
async def old_client(server: Server, version: str | None = V11, **options: Any) -> AsyncIterator[OldClient]:
    """A client on a pipe to a server, with a session of a version, or none yet; all is over when the block is left."""
    reader = OldReader()
    async with serving(server, reader=reader, **options) as (pipe, _):
        client = OldClient(pipe, reader)
        if version is not None:
            await client.connect(version)
        yield client
