"""Servers that are not ours, bare enough to misbehave on purpose: one speaks HTTP on a socket, one is a script on pipes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from callboard.client.client import Client
from callboard.wire.versions import LATEST

SERVER_INFO = {"io.modelcontextprotocol/serverInfo": {"name": "peer", "version": "1"}}


def result(**fields: Any) -> dict[str, Any]:
    """A complete result."""
    return {"resultType": "complete", "_meta": SERVER_INFO, **fields}


def text_result(text: str = "ok") -> dict[str, Any]:
    return result(content=[{"type": "text", "text": text}])


class Asked:
    """A request as it came, and ways to answer it."""

    def __init__(self, headers: dict[str, str], body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.headers = headers
        self.body = body
        self.message: dict[str, Any] = json.loads(body)
        self.method: str = self.message["method"]
        self.params: dict[str, Any] = self.message["params"]
        self.reader = reader
        self.writer = writer

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def body_answer(self, status: int, body: bytes, content_type: str = "application/json", *extra: str) -> None:
        head = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *extra]
        await self.raw("\r\n".join([*head, "", ""]).encode() + body)

    async def json(self, value: Any, status: int = 200) -> None:
        await self.body_answer(status, json.dumps({"jsonrpc": "2.0", "id": self.message["id"], **value}).encode())

    async def result(self, value: dict[str, Any]) -> None:
        await self.json({"result": value})

    async def error(self, code: int, message: str, data: Any = None, status: int = 400) -> None:
        await self.json({"error": {"code": code, "message": message, "data": data}}, status)

    async def stream(self) -> None:
        await self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, **message: Any) -> None:
        await self.chunk(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def gone(self) -> bool:
        """Wait until the client has closed the connection."""
        return await self.reader.read(1) == b""


class HttpPeer:
    """Answers each POST with a coroutine of the test's own.

    Attributes:
        asked: Every request so far.
        connections: How many connections were made.
    """

    def __init__(self, answer: Callable[[Asked], Awaitable[None]], *, ssl: SSLContext | None = None) -> None:
        self.answer = answer
        self.ssl = ssl
        self.asked: list[Asked] = []
        self.connections = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.ssl)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        await self._server.wait_closed()

    def stop(self) -> None:
        """Die as a killed server does: every connection breaks."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")[1:-2]
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                asked = Asked(headers, await reader.readexactly(int(headers["content-length"])), reader, writer)
                self.asked.append(asked)
                await self.answer(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


@asynccontextmanager
async def http_client(answer: Callable[[Asked], Awaitable[None]], **options: Any) -> AsyncIterator[tuple[Client, HttpPeer]]:
    """A peer with that answer, and a client of it that asks nothing before it is told to: it speaks the current version alone."""
    async with HttpPeer(answer) as peer, Client(peer.url, **{"versions": LATEST, **options}) as client:
        yield client, peer


SCRIPT = """
import json, os, signal, sys, time
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def answer(message, **fields):
    send(id=message["id"], result={"resultType": "complete", **fields})
def text(message, words):
    answer(message, content=[{"type": "text", "text": words}])
def note(method, **params):
    send(method="notifications/" + method, params=params)
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message["params"]
    if method == "server/discover":
        answer(message, supportedVersions=["2026-07-28"], capabilities={}, ttlMs=0, cacheScope="public")
        continue
"""


def script(body: str, *, before: str = "") -> list[str]:
    """Command of a peer on pipes. `body` runs for each message but `server/discover`; `before` runs first of all."""
    return [sys.executable, "-c", before + SCRIPT + "".join(f"    {line}\n" for line in body.strip("\n").splitlines())]
