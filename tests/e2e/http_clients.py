"""One small client per HTTP version: requests whose answers are read piece by piece, and which can be broken off.

aiohttp speaks HTTP/1.1, the `h2` and `aioquic` packages the other two; none of them knows anything of ours.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import aiohttp
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol, QuicStreamHandler
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived as H3Data
from aioquic.h3.events import HeadersReceived as H3Headers
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent
from aioquic.quic.events import StreamReset as QuicReset
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset

HOST = "127.0.0.1"
PATH = "/mcp"


class Head(NamedTuple):
    """How an answer begins.

    Attributes:
        status: HTTP status.
        headers: By name, in lower case.
    """

    status: int
    headers: dict[str, str]


class Answer(Protocol):
    """One answer, as it arrives."""

    async def head(self) -> Head:
        """Status and headers."""
        ...

    async def piece(self) -> bytes:
        """The next bytes; empty at the end, also when the server broke off."""
        ...


class HttpClient(Protocol):
    """A connection to a server on this machine."""

    def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AbstractAsyncContextManager[Answer]:
        """Sends a request. Leaving the block before the answer's end breaks that request off, and no other."""
        ...


Connect = Callable[[int, Path | None], AbstractAsyncContextManager[HttpClient]]
"""Connects to a port; with TLS when given the certificate to trust."""


async def whole(answer: Answer) -> bytes:
    """All bytes of an answer that are left."""
    pieces = []
    while piece := await answer.piece():
        pieces.append(piece)
    return b"".join(pieces)


class StreamEvent(NamedTuple):
    """One event of an event stream.

    Attributes:
        id: Its id; empty when it has none.
        data: What it says.
        retry: Milliseconds until the client should come back; empty when it doesn't say.
    """

    id: str
    data: str
    retry: str


async def events(answer: Answer) -> AsyncIterator[StreamEvent]:
    """The events of an event stream; comments are passed over."""
    pending = b""
    while piece := await answer.piece():
        *blocks, pending = (pending + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in blocks:
            lines = [line.decode() for line in block.split(b"\n")]
            fields = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith(":"))
            if fields:
                yield StreamEvent(fields.get("id", ""), fields.get("data", ""), fields.get("retry", ""))


async def frames(answer: Answer) -> AsyncIterator[str]:
    """What each event of an event stream says."""
    async for event in events(answer):
        yield event.data


class Http1Answer(NamedTuple):
    """An answer of aiohttp's."""

    response: aiohttp.ClientResponse

    async def head(self) -> Head:
        return Head(self.response.status, {name.lower(): value for name, value in self.response.headers.items()})

    async def piece(self) -> bytes:
        return await self.response.content.readany()


class Http1(NamedTuple):
    """HTTP/1.1, a connection per request in flight."""

    session: aiohttp.ClientSession
    url: str

    @asynccontextmanager
    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Answer]:
        response = await self.session.request(method, self.url, headers=headers, data=body or None)
        try:
            yield Http1Answer(response)
        finally:
            response.close()


@asynccontextmanager
async def http1(port: int, certificate: Path | None) -> AsyncIterator[HttpClient]:
    assert certificate is None, "HTTP/1.1 is tried without TLS"
    async with aiohttp.ClientSession() as session:
        yield Http1(session, f"http://{HOST}:{port}{PATH}")


class StreamAnswer:
    """An answer of a version that carries many streams on one connection, whose reader fills it."""

    def __init__(self) -> None:
        self.ended = False
        self._begun: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def head(self) -> Head:
        return await self._begun

    async def piece(self) -> bytes:
        return await self._pieces.get()

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Takes status and headers."""
        fields = {name.decode(): value.decode() for name, value in headers}
        self._begun.set_result(Head(int(fields.pop(":status")), fields))

    def feed(self, data: bytes) -> None:
        """Takes bytes."""
        if data:
            self._pieces.put_nowait(data)

    def end(self) -> None:
        """Ends the answer, for whatever reason."""
        self.ended = True
        self._pieces.put_nowait(b"")
        if not self._begun.done():
            self._begun.set_exception(ConnectionError("the server broke the request off"))


def pseudo(method: str, scheme: str, port: int, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """A request's headers in the form of HTTP/2 and 3."""
    first = {":method": method, ":scheme": scheme, ":authority": f"{HOST}:{port}", ":path": PATH}
    return [(name.encode(), value.encode()) for name, value in {**first, **headers}.items()]


class Http2:
    """HTTP/2, all requests on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scheme: str, port: int) -> None:
        self._reader, self._writer, self._scheme, self._port = reader, writer, scheme, port
        self._answers: dict[int, StreamAnswer] = {}
        self._state = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._state.initiate_connection()
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._state.data_to_send())

    async def pump(self) -> None:
        """Reads until the connection ends."""
        while data := await self._reader.read(65536):
            for event in self._state.receive_data(data):
                self._take(event)
            self._flush()
        for answer in self._answers.values():
            answer.end()

    def _take(self, event: Event) -> None:
        stream = getattr(event, "stream_id", None)
        answer = self._answers.get(stream) if stream else None
        if stream is None or answer is None:
            return
        if isinstance(event, ResponseReceived):
            answer.begin([(bytes(name), bytes(value)) for name, value in event.headers or []])
        elif isinstance(event, DataReceived):
            self._state.acknowledge_received_data(event.flow_controlled_length or 0, stream)
            answer.feed(event.data or b"")
        elif isinstance(event, StreamEnded | StreamReset):
            answer.end()

    @asynccontextmanager
    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Answer]:
        stream = self._state.get_next_available_stream_id()
        answer = self._answers[stream] = StreamAnswer()
        self._state.send_headers(stream, pseudo(method, self._scheme, self._port, headers), end_stream=not body)
        if body:
            self._state.send_data(stream, body, end_stream=True)
        self._flush()
        try:
            yield answer
        finally:
            if not answer.ended:
                self._state.reset_stream(stream, ErrorCodes.CANCEL)
                self._flush()
            del self._answers[stream]


@asynccontextmanager
async def http2(port: int, certificate: Path | None) -> AsyncIterator[HttpClient]:
    context = None
    if certificate is not None:
        context = ssl.create_default_context(cafile=str(certificate))
        context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    client = Http2(reader, writer, "https" if certificate else "http", port)
    pump = asyncio.create_task(client.pump())
    try:
        yield client
    finally:
        pump.cancel()
        with suppress(asyncio.CancelledError):
            await pump
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


class Http3(QuicConnectionProtocol):
    """HTTP/3, all requests on one connection."""

    def __init__(self, port: int, quic: QuicConnection, stream_handler: QuicStreamHandler | None = None) -> None:
        super().__init__(quic, stream_handler)
        self._port = port
        self._state = H3Connection(quic)
        self._answers: dict[int, StreamAnswer] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, QuicReset) and event.stream_id in self._answers:
            self._answers[event.stream_id].end()
        for heard in self._state.handle_event(event):
            if not isinstance(heard, H3Headers | H3Data) or heard.stream_id not in self._answers:
                continue
            answer = self._answers[heard.stream_id]
            if isinstance(heard, H3Headers):
                answer.begin(heard.headers)
            else:
                answer.feed(heard.data)
            if heard.stream_ended:
                answer.end()

    @asynccontextmanager
    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[Answer]:
        stream = self._quic.get_next_available_stream_id()
        answer = self._answers[stream] = StreamAnswer()
        self._state.send_headers(stream, pseudo(method, "https", self._port, headers), end_stream=not body)
        if body:
            self._state.send_data(stream, body, end_stream=True)
        self.transmit()
        try:
            yield answer
        finally:
            if not answer.ended:
                self._quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
                self.transmit()
            del self._answers[stream]


@asynccontextmanager
async def http3(port: int, certificate: Path | None) -> AsyncIterator[HttpClient]:
    assert certificate is not None, "HTTP/3 is always encrypted"
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, cafile=str(certificate))
    async with connect(HOST, port, configuration=configuration, create_protocol=partial(Http3, port)) as client:
        assert isinstance(client, Http3)
        yield client
