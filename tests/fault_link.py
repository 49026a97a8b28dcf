"""One request on its way through the proxy of tests/fault_proxy.py, and ways to answer it."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

__all__ = ["PIECE", "STREAM", "TICK", "Answer", "Ask", "Fault", "Link", "Traffic", "reset"]

STREAM = "text/event-stream"
# Seconds between two pieces of what never ends: often enough that a client that waits for silence waits for ever.
TICK = 0.02
# Bytes of a piece of what is meant to be too large.
PIECE = 64 * 1024


class Ask(NamedTuple):
    """A request, as the proxy sees it.

    Attributes:
        number: How many came before it.
        verb: HTTP method.
        method: JSON-RPC method; empty where there is none.
        request_id: JSON-RPC id; None where there is none.
    """

    number: int
    verb: str
    method: str
    request_id: Any


class Fault(NamedTuple):
    """What happens to a request.

    Attributes:
        kind: A name out of `FAULTS`.
        share: Where in the answer it strikes, from 0 to 1.
        pause: Seconds: between the bytes of what is slow, and before what is delayed.
        harsh: Whether a connection that is cut ends by a reset rather than in good order.
    """

    kind: str
    share: float = 0.5
    pause: float = 0.0
    harsh: bool = False


class Answer(NamedTuple):
    """An answer of the server's, whole.

    Attributes:
        head: Its head, with the empty line.
        body: Its body as it was on the wire, chunks and all.
    """

    head: bytes
    body: bytes


class Traffic:
    """What goes through a proxy.

    Attributes:
        upstream: Host and port of the server.
        url: Where clients reach it through the proxy.
        asks: Every request so far.
        numbers: Numbers them.
        written: How many bytes clients were sent.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.url = ""
        self.numbers: Iterator[int] = count()
        self.written = 0
        self.asks: list[Ask] = []


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, by a reset rather than in good order."""
    with suppress(OSError):  # it has ended already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Link:
    """A request on its connection, and ways to answer it.

    Attributes:
        ask: The request.
        fault: What it meets.
    """

    def __init__(self, traffic: Traffic, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._traffic = traffic
        self._reader = reader
        self._writer = writer
        self._ahead = b""
        self._head = b""
        self._body = b""
        self.ask = Ask(0, "", "", None)
        self.fault = Fault("")

    async def read(self) -> None:
        """Read the next request."""
        while (end := self._ahead.find(b"\r\n\r\n") + 4) < 4:
            await self._read_more()
        self._head, self._ahead = self._ahead[:end], self._ahead[end:]
        first, *lines = self._head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._ahead) < length:
            await self._read_more()
        self._body, self._ahead = self._ahead[:length], self._ahead[length:]
        try:
            message = json.loads(self._body or b"{}")
        except ValueError:
            message = {}
        self.ask = Ask(next(self._traffic.numbers), first.split()[0], message.get("method", ""), message.get("id"))
        self._traffic.asks.append(self.ask)

    async def _read_more(self) -> None:
        piece = await self._reader.read(PIECE)
        if not piece:
            raise EOFError
        self._ahead += piece

    async def write(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises:
            ConnectionError: The client has gone.
        """
        self._writer.write(data)
        self._traffic.written += len(data)
        await self._writer.drain()
        if self._writer.is_closing():
            raise ConnectionResetError

    async def respond(self, body: bytes, status: int = 200, content_type: str = "application/json", *headers: str) -> None:
        """Send a whole answer."""
        lines = [f"HTTP/1.1 {status} Fault", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers]
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def begin(self, content_type: str = STREAM, *headers: str) -> None:
        """Send the head of an answer in chunks."""
        lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", "Transfer-Encoding: chunked", *headers]
        await self.write("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        """Send a chunk."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def message(self, **fields: Any) -> bytes:
        """A JSON-RPC message; an answer to the request unless `fields` say otherwise."""
        return json.dumps({"jsonrpc": "2.0", "id": self.ask.request_id, **fields}).encode()

    async def gone(self) -> None:
        """Wait until the client closes the connection; what it still says is kept for the next request."""
        with suppress(EOFError):
            while True:
                await self._read_more()

    async def hold(self, work: Awaitable[None] | None = None) -> None:
        """Work until the client closes the connection, then stop."""
        leaving = asyncio.create_task(self.gone())
        tasks = {leaving} if work is None else {leaving, asyncio.ensure_future(work)}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks - {leaving}:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if leaving.done() and not leaving.cancelled():
            raise ConnectionResetError

    def close(self) -> None:
        """End the connection, as the fault wants it: by a reset, or in good order."""
        if self.fault.harsh:
            reset(self._writer)
        self._writer.close()

    def half_close(self) -> None:
        """Say no more, and go on listening."""
        self._writer.write_eof()

    @asynccontextmanager
    async def forward(self) -> AsyncIterator[tuple[bytes, asyncio.StreamReader]]:
        """Hand the request to the server; gives the head of its answer, and its body to be read."""
        reader, writer = await asyncio.open_connection(*self._traffic.upstream)
        try:
            line, _, rest = self._head.partition(b"\r\n")
            writer.write(line + b"\r\nConnection: close\r\n" + rest + self._body)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            yield b"\r\n".join(lines), reader
        finally:
            writer.transport.abort()  # a request that was broken off is cancelled by that

    async def fetch(self) -> Answer:
        """The server's answer, whole; of a stream that goes on, what it says within a tick."""
        async with self.forward() as (head, reader):
            body = bytearray()
            endless = self.ask.verb == "GET"
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK if endless else None):
                    while piece := await reader.read(PIECE):
                        body += piece
            return Answer(head, bytes(body))

    @property
    def url(self) -> str:
        """Where the request came to."""
        return self._traffic.url

    async def relay(self) -> None:
        """Let the request pass, and its answer as it comes."""

        async def pump() -> None:
            async with self.forward() as (head, reader):
                await self.write(head)
                while piece := await reader.read(PIECE):
                    await self.write(piece)

        await self.hold(pump())
