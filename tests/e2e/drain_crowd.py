"""Many clients of one server, on raw sockets, and what each of them gets to read until its connection ends."""

import asyncio
import json
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

HOST = "127.0.0.1"
MODERN, LEGACY = "2026-07-28", "2025-06-18"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
TURN = 100  # connections that are opened at once


class Heard(NamedTuple):
    """What came over one connection.

    Attributes:
        status: HTTP status.
        headers: Headers by lower-case name.
        body: The body as it came, chunks and all.
        at: When the connection had ended, in seconds of the monotonic clock.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its end, and was not cut."""
        if "content-length" in self.headers:
            return len(self.body) == int(self.headers["content-length"])
        return self.body.endswith(b"0\r\n\r\n")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The JSON-RPC messages in it."""
        lines = self.body.split(b"\r\n") if "content-length" not in self.headers else [self.body]
        pieces = [line.strip() for whole in lines for line in whole.split(b"\n")]
        return [json.loads(piece.removeprefix(b"data:")) for piece in pieces if piece.removeprefix(b"data:").strip()[:1] == b"{"]


class Line:
    """A connection on which one request has been sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self._body = b""

    @classmethod
    async def ask(cls, port: int, verb: str, headers: Mapping[str, str], body: bytes = b"", *, path: str = "/mcp") -> "Line":
        line = cls(*await asyncio.open_connection(HOST, port))
        lines = [f"{verb} {path} HTTP/1.1", f"host: {HOST}:{port}", *(f"{name}: {value}" for name, value in headers.items())]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        line._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return line

    async def head(self) -> int:
        """Read the status and the headers."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in head[1:] if each)}
        return self.status

    async def first_event(self) -> None:
        """Read until something has come on a stream."""
        while b"\n\n" not in self._body and b"data:" not in self._body:
            piece = await self._reader.read(4096)
            assert piece, "the stream ended before it began"
            self._body += piece

    async def rest(self) -> Heard:
        """Read until the answer is whole, or the server ends the connection."""
        heard = Heard(self.status, self.headers, self._body, time.monotonic())
        try:
            if not self.status:
                await self.head()
            while not (heard := Heard(self.status, self.headers, self._body, time.monotonic())).is_whole:
                if not (piece := await self._reader.read(65536)):
                    break
                self._body += piece
        except (OSError, EOFError):
            pass
        self._writer.close()
        return heard

    async def answer(self) -> dict[str, Any]:
        """Read one JSON answer, and hang up."""
        try:
            if not self.status:
                await self.head()
            body = await self._reader.readexactly(int(self.headers["content-length"]))
        finally:
            self._writer.close()
        return dict(json.loads(body)) if body else {}


def modern(method: str, **params: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request of the current protocol."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    message = {"jsonrpc": "2.0", "id": "x", "method": method, "params": {**params, "_meta": META}}
    return headers, json.dumps(message).encode()


def in_session(session: str, method: str, **params: Any) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request in a session of 2025."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": LEGACY, "mcp-session-id": session}
    return headers, json.dumps({"jsonrpc": "2.0", "id": "x", "method": method, "params": params}).encode()


async def open_session(port: int) -> str:
    """The id of a new session."""
    opening = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "crowd", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening}).encode()
    line = await Line.ask(port, "POST", {"accept": "application/json, text/event-stream"}, body)
    await line.answer()
    return line.headers["mcp-session-id"]


async def call(port: int, seconds: float, session: str | None = None) -> Line:
    """A call that runs."""
    arguments = {"name": "linger", "arguments": {"seconds": seconds}}
    return await Line.ask(
        port, "POST", *(modern("tools/call", **arguments) if session is None else in_session(session, "tools/call", **arguments))
    )


async def listen(port: int) -> Line:
    """A listen stream that has begun."""
    line = await Line.ask(port, "POST", *modern("subscriptions/listen", notifications={"toolsListChanged": True}))
    assert await line.head() == 200
    await line.first_event()
    return line


async def channel(port: int) -> Line:
    """A GET stream of a session of its own."""
    headers = {"accept": "text/event-stream", "mcp-protocol-version": LEGACY, "mcp-session-id": await open_session(port)}
    line = await Line.ask(port, "GET", headers)
    assert await line.head() == 200
    return line


class Crowd(NamedTuple):
    """Who is there.

    Attributes:
        listening: Listen streams.
        channels: GET streams.
        opened_in: Seconds that it took to open them all: how fast this machine is just now.
    """

    listening: list[Line]
    channels: list[Line]
    opened_in: float


async def gather_crowd(port: int, *, listeners: int, channels: int) -> Crowd:
    """Open streams, some at a time."""
    began = time.monotonic()
    listening: list[Line] = []
    while len(listening) < listeners:
        listening += await asyncio.gather(*(listen(port) for _ in range(min(TURN, listeners - len(listening)))))
    found = await asyncio.gather(*(channel(port) for _ in range(channels)))
    return Crowd(listening, list(found), time.monotonic() - began)


def check_streams(listening: list[Heard], channels: list[Heard]) -> None:
    """Every stream had its end: a listen stream a result, and none was cut (SB-09)."""
    cut = [heard for heard in (*listening, *channels) if not heard.is_whole]
    assert not cut, f"{len(cut)} streams were cut: {cut[0]}"
    without = [heard for heard in listening if "result" not in heard.messages[-1]]
    assert not without, f"{len(without)} listen streams ended without a result: {without[0]}"


@contextmanager
def many_descriptors() -> Iterator[None]:
    """As many open files as this process may have, for as long as the block runs: what it starts has them, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
