"""A connection to a server as `callboard.run` serves it, without a socket."""

import asyncio
import contextvars
import re
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from benchmarks.traffic import Exchange, wire_bytes
from callboard import Context, Server, asgi
from callboard.transport.asgi import App
from callboard.transport.http_protocol import make_protocol
from callboard.transport.http_server import make_front
from callboard.transport.slow_clients import Sweep
from callboard.transport.whole_call import WholeCall

PORT = 8000
mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nobody")


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", PORT)})
        self.data = b""
        self.closing = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Line:
    """A connection to an application as `callboard.run` serves it."""

    def __init__(self, app: App, *, stock: bool = False, peer: str = "127.0.0.1", beside: Any = None) -> None:
        made = make_protocol(app, Sweep(), max_connections=10) if beside is None else type(beside.protocol)
        assert made is not None
        front = make_front(app, "127.0.0.1")
        settings = uvicorn.Config(front, access_log=False, ws="none", proxy_headers=False, interface="asgi3", log_config=None)
        settings.load()
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"now")]
        kind: Any = httptools_impl.HttpToolsProtocol if stock else made
        self.protocol = kind(settings, self.state, {}, asyncio.get_running_loop())
        self.kept: list[Line] = []  # its requests may wait for what never comes: until the loop ends, not until the collector runs
        if beside is not None:
            beside.kept.append(self)
        self.pipe = Pipe()
        self.pipe._extra["peername"] = (peer, 50000)  # type: ignore[attr-defined] # asyncio's
        self.protocol.connection_made(self.pipe)

    async def say(self, data: bytes) -> bytes:
        """What comes back for some bytes, once nothing goes on any more."""
        self.pipe.data = b""
        self.protocol.data_received(data)
        await asyncio.sleep(0.3)
        return self.pipe.data

    async def warm(self, data: bytes) -> None:
        """Send a request so often that its head is known."""
        for _ in range(2):
            await self.say(data)
        assert await self.is_whole(data)

    async def is_whole(self, data: bytes) -> bool:
        """Whether a request is answered past the parser."""
        self.pipe.data = b""
        self.protocol.data_received(data)
        whole = type(self.protocol.cycle) is WholeCall
        await asyncio.sleep(0.3)
        return whole


class Stage:
    """A server, and what its tools met."""

    def __init__(self, **options: Any) -> None:
        server = Server("stage")
        self.ended: list[str] = []
        self.go = asyncio.Event()

        @server.tool
        async def echo(text: str) -> str:
            return text

        @server.tool
        async def leave_mark(text: str) -> str:
            before = mark.get()
            mark.set(text)
            return before

        @server.tool
        async def fail(text: str) -> str:
            raise SystemExit(text)

        @server.tool
        async def wait(text: str) -> str:
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            self.ended.append("done")
            return text

        @server.tool
        async def tell(text: str, ctx: Context) -> str:
            await ctx.progress(1)
            await asyncio.sleep(0.2)
            return text

        @server.tool
        async def tasks(text: str) -> str:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0.01))
            return text

        self.app = asgi(server, **options)


def request(exchange: Exchange, *lines: bytes, verb: str = "POST") -> bytes:
    """An exchange on the wire, with more lines in its head."""
    data = wire_bytes(exchange, PORT, method=verb)
    return data.replace(b"\r\n", b"".join([b"\r\n", *(line + b"\r\n" for line in lines)]), 1)


async def third_answer(line: Line, data: bytes, *, stock: bool) -> bytes:
    """How a request is answered the third time it is sent: past the parser, but for stock uvicorn; error ids are left out."""
    before = line.state.total_requests
    for _ in range(2):
        await line.say(data)
        await asyncio.sleep(1)
    line.pipe.data = b""
    line.protocol.data_received(data)
    assert (type(line.protocol.cycle) is WholeCall) is not stock
    await asyncio.sleep(1)
    assert not line.state.tasks
    assert line.state.total_requests == before + 3
    assert not line.pipe.closing
    return re.sub(rb"[0-9a-f]{8,}", b"", line.pipe.data)
