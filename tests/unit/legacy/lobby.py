"""Sessions without HTTP: a server, the table of its sessions, and clients that speak to an actor, or over a wire of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from legacy_driver import V11, Frame, read_frames

from callboard import Server
from callboard.compose import endpoint
from callboard.core.exchange import Exchange, State
from callboard.errors import Fail
from callboard.legacy.actor import Actor, Work
from callboard.legacy.http import Legacy
from callboard.legacy.table import Table
from callboard.limits import Limits
from callboard.server.mount import Caller
from callboard.transport.endpoint import Endpoint, HttpCall
from callboard.transport.stream import Pulse
from callboard.wire.jsonrpc import Message, RawRequest, decode

JSON = dict[str, Any]


def read(message: Any) -> Message:
    """A message as a transport reads it."""
    return decode(json.dumps(message).encode())


def make(method: str, params: Any = None, request_id: Any = 1) -> RawRequest:
    """A request as a transport reads it."""
    message = read({"jsonrpc": "2.0", "id": request_id, "method": method, **({} if params is None else {"params": params})})
    assert isinstance(message, RawRequest)
    return message


def make_call(tool: str, request_id: Any = 1, *, token: Any = None, **arguments: Any) -> RawRequest:
    """A call of a tool."""
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return make("tools/call", {"name": tool, "arguments": arguments, **meta}, request_id)


class Lobby:
    """The sessions of a server on the running event loop.

    Attributes:
        endpoint: The server, as transports see it.
        table: Its sessions.
    """

    def __init__(self, made: Endpoint, table: Table) -> None:
        self.endpoint = made
        self.table = table

    async def open(self, version: str = V11, *, principal: str | None = None, channel: Exchange | None = None, **params: Any) -> Actor:
        """Open a session."""
        opened = await self.try_open(version, principal=principal, channel=channel, **params)
        assert not isinstance(opened, Fail), opened
        return opened[0]

    async def try_open(
        self, version: str = V11, *, principal: str | None = None, channel: Exchange | None = None, **params: Any
    ) -> tuple[Actor, JSON] | Fail:
        """Open a session, and whatever comes of it is fine."""
        said = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}, **params}
        opening = self.table.read(msgspec.Raw(json.dumps(said).encode()))
        assert not isinstance(opening, Fail), opening
        return await self.table.open(opening, Caller(None, principal), channel)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of any session."""
        table = self.table
        return not (table.sessions or table.topics or table._leaving or len(table.slow) or len(table.deadlines) or len(table.idle))


@asynccontextmanager
async def lobby(
    server: Server, *, options: Any = None, logs: bool = True, limits: Limits | None = None, **rules: Any
) -> AsyncIterator[Lobby]:
    """Serve a server to clients of 2025; whatever they leave open is closed."""
    made = endpoint(server, options=options, logs=logs, limits=limits, sessions=rules)
    mount = await made.open()
    assert isinstance(made.older, Legacy)
    yield Lobby(made, made.older.table(mount))
    await made.close()


class Ask:
    """A request of a client that has no connection, but takes what is said when it is said.

    Attributes:
        exchange: The request's way out.
        work: The call; None when it was refused.
        said: The messages that came.
        status: HTTP status; 0 for none yet.
    """

    def __init__(self, actor: Actor, message: RawRequest, *, streams: bool = True) -> None:
        self.said: list[JSON] = []
        self.status = 0
        self._over = asyncio.Event()
        self.exchange = Exchange(self._take, streams=streams)
        self.work: Work | None = actor.start(message, self.exchange, headers=None, principal=None, scope_state=None)

    def _take(self) -> None:
        if (write := self.exchange.take()) is not None:
            self.status = self.status or write.status
            self.said += map(json.loads, write.notes)
        if not self.exchange.open:
            self._over.set()

    async def end(self) -> JSON | None:
        """Wait until the request is over; its answer, or None when it has none."""
        async with asyncio.timeout(10_000):
            await self._over.wait()
        assert sum("method" not in message for message in self.said) <= 1, self.said
        return self.said[-1] if self.said and "method" not in self.said[-1] else None

    @property
    def cancelled(self) -> bool:
        """Whether it was given up without an answer."""
        return self.exchange.state is State.CANCELLED


async def result(actor: Actor, message: RawRequest) -> JSON:
    """Send a request and wait for its result."""
    answer = await Ask(actor, message).end()
    assert answer is not None
    assert "result" in answer, answer
    found: JSON = answer["result"]
    return found


async def text(actor: Actor, tool: str, request_id: Any = 99, **arguments: Any) -> str:
    """Call a tool and wait for the only text of its result."""
    (block,) = (await result(actor, make_call(tool, request_id, **arguments)))["content"]
    found: str = block["text"]
    return found


async def error(actor: Actor, message: RawRequest) -> JSON:
    """Send a request and wait for its error."""
    answer = await Ask(actor, message).end()
    assert answer is not None
    assert "error" in answer, answer
    found: JSON = answer["error"]
    return found


def edge(actor: Actor) -> Legacy:
    """What serves the session's HTTP requests."""
    older = actor.home.endpoint.older
    assert isinstance(older, Legacy)
    return older


class Wire:
    """One HTTP connection as an application sees it.

    Attributes:
        sent: What the application has sent.
        gate: Cleared: the client reads nothing, so `send` waits.
        fault: What `send` raises; None while the connection is fine.
        gone: Set when the client has gone.
    """

    def __init__(self) -> None:
        self.sent: list[JSON] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: BaseException | None = None
        self.gone = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def receive(self) -> JSON:
        """ASGI receive, after the request's body."""
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        """ASGI send, held to the order of ASGI."""
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        assert not self.complete, f"{event} after the end"
        assert bool(self.sent) == (event["type"] == "http.response.body"), f"{event} after {self.sent}"
        self.sent.append(event)

    def post(self, actor: Actor, message: RawRequest, *, streams: bool = True, streams_only: bool = False) -> None:
        """Send a request in a session."""
        http = self._call(actor, message, {}, streams=streams, streams_only=streams_only)
        self.task = asyncio.create_task(edge(actor)._serve_message(http, actor))

    def listen(self, actor: Actor, after: str | None = None) -> None:
        """Open a GET stream, or come back for what came after an event."""
        headers = {b"mcp-session-id": actor.id.encode(), **({} if after is None else {b"last-event-id": after.encode()})}
        self.task = asyncio.create_task(edge(actor)._serve_stream(self._call(actor, None, headers)))

    def _call(
        self,
        actor: Actor,
        message: RawRequest | None,
        headers: dict[bytes, bytes],
        *,
        streams: bool = True,
        streams_only: bool = False,
    ) -> HttpCall:
        return HttpCall(
            actor.home.mount,
            {"method": "GET"},
            self.receive,
            self.send,
            Pulse(None),
            headers,
            [],
            actor.owner,
            message,
            streams=streams,
            streams_only=streams_only,
        )

    async def end(self) -> None:
        """Wait until the application is done."""
        assert self.task is not None
        async with asyncio.timeout(10_000):
            await self.task

    @property
    def complete(self) -> bool:
        """Whether the response is whole."""
        return len(self.sent) > 1 and not self.sent[-1].get("more_body")

    @property
    def status(self) -> int:
        """HTTP status; 0 for none yet."""
        found: int = self.sent[0]["status"] if self.sent else 0
        return found

    @property
    def body(self) -> bytes:
        """What has come of the body."""
        return b"".join(event["body"] for event in self.sent[1:])

    @property
    def frames(self) -> list[Frame]:
        """The events that have come."""
        return list(read_frames(self.body))

    @property
    def ids(self) -> list[str | None]:
        """Their ids."""
        return [frame.event_id for frame in self.frames]

    @property
    def messages(self) -> list[JSON]:
        """The messages that have come."""
        return [frame.message for frame in self.frames if frame.message is not None]


def is_a_request_s(thing: object) -> bool:
    """The virtual clock leaves frames behind, because it looks at those of all threads."""
    kind = type(thing)
    return kind.__module__.partition(".")[0] in {"callboard", "asyncio", "_asyncio"} or kind.__name__ in {"coroutine", "traceback"}
