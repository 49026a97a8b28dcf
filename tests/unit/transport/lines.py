"""Lines as a client of the current protocol writes them, and what comes back."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from oracles import mcp_types_notification, mcp_types_result, mcp_types_validate

LIMIT = 10.0  # seconds that a test waits for what must come
META: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

Json = dict[str, Any]


def request(request_id: Any, method: str, params: Mapping[str, Any] | None = None, **meta: Any) -> bytes:
    """A request with its envelope; `meta` goes into `_meta`."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**(params or {}), "_meta": {**META, **meta}}}
    return json.dumps(message).encode()


def call(request_id: Any, tool: str, /, *, token: Any = None, level: str | None = None, **arguments: Any) -> bytes:
    """A `tools/call`, with a progress token and a log level if there are any."""
    meta = {} if token is None else {"progressToken": token}
    if level is not None:
        meta["io.modelcontextprotocol/logLevel"] = level
    return request(request_id, "tools/call", {"name": tool, "arguments": arguments}, **meta)


def listen(request_id: Any, **wanted: Any) -> bytes:
    """A `subscriptions/listen`."""
    return request(request_id, "subscriptions/listen", {"notifications": wanted})


def cancel(request_id: Any) -> bytes:
    """A `notifications/cancelled`."""
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}).encode()


def text_of(message: Json) -> str:
    """The text of a tool's answer."""
    (block,) = message["result"]["content"]
    text: str = block["text"]
    return text


def read(line: bytes, methods: Mapping[Any, str] | None = None) -> Json:
    """Read one line of the server as strangers would: a single line, one message that the published models accept.

    Args:
        line: The line, without its end.
        methods: Method by request id, where results are to be judged by it.
    """
    assert b"\n" not in line, "SD-01: no line end within a message"
    assert b"\r" not in line, "A36: no carriage return"
    message: Json = json.loads(line)
    if "error" not in message or "id" in message:  # these models want an id that JR-09 leaves out
        mcp_types_validate("JSONRPCMessage", message)
    if "method" in message:
        mcp_types_notification(message["method"], message.get("params"))
    elif "result" in message and methods and message["id"] in methods:
        mcp_types_result(methods[message["id"]], message["result"])
    return message


class Reader:
    """A client that reads what a pipe writes, or for a while does not."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.writes: list[int] = []
        self._changed = asyncio.Event()
        self._blocked: asyncio.Event | None = None

    def write(self, lines: list[bytes]) -> Any:
        """What the pipe calls."""
        self.writes.append(len(lines))
        self.messages += map(self.read, lines)
        self._changed.set()
        return None if self._blocked is None else self._blocked.wait()

    def read(self, line: bytes) -> Json:
        """Read one line."""
        return read(line)

    def stop(self) -> None:
        """Read no more: the next write will not end."""
        self._blocked = asyncio.Event()

    def go_on(self) -> None:
        """Read again."""
        assert self._blocked is not None
        self._blocked.set()
        self._blocked = None

    async def until(self, wanted: Callable[[Json], bool]) -> Json:
        """The first message that is wanted, which may have come before."""
        async with asyncio.timeout(LIMIT):
            while True:
                for message in self.messages:
                    if wanted(message):
                        return message
                self._changed.clear()
                await self._changed.wait()

    async def answer(self, request_id: Any) -> Json:
        """The answer to a request, by id and the id's JSON type."""
        return await self.until(lambda message: same(message.get("id"), request_id) and "method" not in message)

    def of(self, request_id: Any) -> list[Json]:
        """Every terminal message of an id."""
        return [message for message in self.messages if same(message.get("id"), request_id)]

    def notes(self, method: str) -> list[Json]:
        """Params of every notification of a method."""
        return [message["params"] for message in self.messages if message.get("method") == method]


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1 is not "1", and not true."""
    return type(one) is type(other) and bool(one == other)
