"""A server that takes every HTTP method on a bare socket and answers each with a coroutine of the test's own, and a connection to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from callboard.client.auth import Challenge, Fetch
from callboard.client.connection import Incoming, Outgoing
from callboard.client.errors import Origin
from callboard.client.http import HttpConnection
from callboard.wire.jsonrpc import RawNotification, RawRequest, encode_request

SESSION = {"Mcp-Session-Id": "s-1", "MCP-Protocol-Version": "2025-11-25"}
"""Headers of every message of a session."""


def self_signed(folder: Path) -> Path:
    """A file with a key and a certificate for 127.0.0.1 that it signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "self-signed.pem"
    encryption = serialization.NoEncryption()
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


class Heard:
    """An HTTP request as it came, and ways to answer it.

    Attributes:
        at: When it came, by the loop's clock.
    """

    def __init__(
        self,
        method: str,
        path: str,
        headers: list[tuple[str, str]],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.method = method
        self.path = path
        self.pairs = headers
        self.headers = dict(headers)
        self.body = body
        self.reader = reader
        self.writer = writer
        self.at = asyncio.get_running_loop().time()

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> Any:
        return self.message["id"]

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, content_type: str | None = "application/json", **extra: str) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in extra.items())]
        if content_type is not None:
            lines.append(f"Content-Type: {content_type}")
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def plain(self, status: int, body: bytes = b"", content_type: str | None = "text/plain", **extra: str) -> None:
        await self.head(status, content_type, Content_Length=str(len(body)), **extra)
        await self.raw(body)

    async def json(self, value: Any, **extra: str) -> None:
        await self.plain(200, json.dumps(value).encode(), "application/json", **extra)

    async def result(self, **extra: str) -> None:
        await self.json({"jsonrpc": "2.0", "id": self.id, "result": {"ok": True}}, **extra)

    async def stream(self, **extra: str) -> None:
        await self.head(200, "text/event-stream", Transfer_Encoding="chunked", **extra)

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, message: Any = None, *, id: str | None = None, retry: int | None = None, event: str | None = None) -> None:  # noqa: A002
        fields = [("retry", retry), ("event", event), ("id", id)]
        text = "".join(f"{name}: {value}\n" for name, value in fields if value is not None)
        data = "" if message is None else message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message})
        await self.chunk(f"{text}data: {data}\n\n".encode())

    async def answer(self, request_id: Any, **options: Any) -> None:
        await self.event({"id": request_id, "result": {"ok": True}}, **options)

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def abort(self) -> None:
        self.writer.transport.abort()

    async def gone(self) -> bool:
        """Wait until the client has closed the connection."""
        return await self.reader.read(1) == b""


Answer = Callable[[Heard], Awaitable[None]]


class WirePeer:
    """The server.

    Attributes:
        heard: Every request so far.
        connections: How many connections were made.
    """

    def __init__(self, answer: Answer, *, ssl: SSLContext | None = None, port: int = 0) -> None:
        self.answer = answer
        self.ssl = ssl
        self.port = port
        self.heard: list[Heard] = []
        self.connections = 0
        self._arrival = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http{'s' if self.ssl else ''}://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        await self.hang_up()
        await self._server.wait_closed()

    async def hang_up(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving, timeout=0.01)  # most end with their connection
            for task in self._serving:
                task.cancel()
            await asyncio.sleep(0)

    def of(self, *methods: str) -> list[Heard]:
        """The requests of those methods, of HTTP or JSON-RPC."""
        return [heard for heard in self.heard if heard.method in methods or (heard.body and heard.message.get("method") in methods)]

    async def until(self, method: str, count: int = 1) -> list[Heard]:
        """Wait for that many requests of a method."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.of(method)) >= count)
        return self.of(method)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").split("\r\n")[:-2]
                headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
                method, path, _ = first.split(" ")
                body = await reader.readexactly(int(dict(headers).get("content-length", "0")))
                heard = Heard(method, path, headers, body, reader, writer)
                async with self._arrival:
                    self.heard.append(heard)
                    self._arrival.notify_all()
                await self.answer(heard)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the end of the connection, or of the test
        finally:
            self._serving.discard(task)
            self._writers.discard(writer)
            writer.close()


class Inbox:
    """Takes what no request waits for.

    Attributes:
        notes: Methods of the notifications so far.
        requests: The requests so far.
        losses: How the way they come by ended, each time.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.requests: list[RawRequest] = []
        self.losses: list[str] = []
        self.arrival = asyncio.Event()

    def take_note(self, note: RawNotification) -> None:
        self.notes.append(note.method)
        self.arrival.set()

    def take_request(self, request: RawRequest) -> None:
        self.requests.append(request)
        self.arrival.set()

    def lose(self, text: str) -> None:
        self.losses.append(text)


class Keys:
    """Credentials that a test hands out: the first is refused, and each answer to a challenge gives the next.

    Attributes:
        challenges: The challenges so far.
        learned: Headers of the answers so far.
    """

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)
        self.challenges: list[Challenge] = []
        self.learned: list[Mapping[str, str]] = []
        self.fetch: Fetch | None = None
        self.url = ""

    def bind(self, url: str, fetch: Fetch) -> None:
        self.url, self.fetch = url, fetch

    async def headers(self, http_method: str, url: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.keys[0]}", "DPoP": f"{http_method} {url}"}

    async def answer(self, challenge: Challenge) -> bool:
        self.challenges.append(challenge)
        if len(self.keys) == 1:
            return False
        del self.keys[0]
        return True

    def learn(self, headers: Mapping[str, str]) -> None:
        self.learned.append(headers)


def ask(peer: WirePeer, request_id: int = 1, *, headers: Mapping[str, str] = SESSION, told: bool = True, resumed: bool = False) -> Outgoing:
    """A request to the peer."""
    origin = Origin(peer.url, "tools/call", request_id)
    body = encode_request(request_id, "tools/call", {"name": "t"})
    return Outgoing(origin, body, headers, told=told, resumed=resumed)


async def no_note(note: RawNotification) -> None:
    raise AssertionError(f"nobody expects {note.method}")


class Line:
    """A connection to a peer.

    Attributes:
        inbox: Where things arrive that no request waits for.
    """

    def __init__(self, peer: WirePeer, connection: HttpConnection) -> None:
        self.peer = peer
        self.connection = connection
        self.inbox = Inbox()
        self.notes: list[str] = []

    async def note(self, note: RawNotification) -> None:
        self.notes.append(note.method)

    async def exchange(self, request_id: int = 1, **options: Any) -> Incoming:
        return await self.connection.exchange(ask(self.peer, request_id, **options), self.note)


@asynccontextmanager
async def line_to(answer: Answer, *, ssl: SSLContext | None = None, **options: Any) -> AsyncIterator[Line]:
    """A peer with that answer, and an open connection to it."""
    async with WirePeer(answer, ssl=ssl) as peer:
        connection = HttpConnection(peer.url, **{"max_message": 2**20, "headers": {}, **options})
        line = Line(peer, connection)
        await connection.open(Origin(peer.url), line.inbox)
        try:
            yield line
        finally:
            await connection.close()
