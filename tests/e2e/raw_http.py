"""HTTP/1.1 by hand, for what no well-behaved client sends."""

import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from asgi_driver import make_headers, make_request, read_events

TIMEOUT = 10.0


class Response:
    """A response that has been read whole.

    Attributes:
        status: HTTP status.
        headers: By lower-case name.
        body: Decoded body.
    """

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def message(self) -> dict[str, Any]:
        """Its last JSON-RPC message."""
        if self.headers.get("content-type") == "text/event-stream":
            return list(read_events(self.body))[-1]
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def structured(self) -> Any:
        """`structuredContent` of a tool's result."""
        return self.message["result"]["structuredContent"]


class Wire:
    """One TCP connection to a server on this machine."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.port = port
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(("127.0.0.1", port))
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def reset(self) -> None:
        """Cut the connection with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to and including a mark.

        Raises:
            EOFError: The server closed first.
        """
        while mark not in self._buffer:
            if not self._more():
                raise EOFError(self._buffer)
        found, _, self._buffer = self._buffer.partition(mark)
        return found + mark

    def read_exactly(self, count: int) -> bytes:
        """So many bytes."""
        while len(self._buffer) < count:
            if not self._more():
                raise EOFError(self._buffer)
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response."""
        first, *lines = self.read_until(b"\r\n\r\n").decode("latin-1").strip().split("\r\n")
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        size = int(self.read_until(b"\r\n"), 16)
        data = self.read_exactly(size)
        self.read_exactly(2)
        return data

    def read(self) -> Response:
        """The next response, whole."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := self.chunk():
                body += chunk
        else:
            body = self.read_exactly(int(headers.get("content-length", "0")))
        return Response(status, headers, body)

    def ends(self) -> bool:
        """Whether the server closes the connection, having sent nothing more."""
        while self._more():
            pass
        return not self._buffer


def make_head(length: int | None, headers: Mapping[str, str], *, verb: str = "POST", path: str = "/mcp") -> bytes:
    """A request's head."""
    lines = [f"{verb} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def make_post(method: str, params: Mapping[str, Any] | None = None, *, port: int, **more: Any) -> bytes:
    """A whole request of the current protocol; `more` goes to `make_request`, or are headers."""
    known = {key: more.pop(key) for key in ("request_id", "meta") if key in more}
    message = make_request(method, params, **known)
    body = json.dumps(message).encode()
    return make_head(len(body), make_headers(message, host=f"127.0.0.1:{port}", **more)) + body


def make_call(tool: str, arguments: Mapping[str, Any] | None = None, *, port: int, **more: Any) -> bytes:
    """A whole `tools/call`."""
    return make_post("tools/call", {"name": tool, "arguments": dict(arguments or {})}, port=port, **more)


def ask(port: int, request: bytes) -> Response:
    """Send a request over a connection of its own."""
    with Wire(port) as wire:
        wire.send(request)
        return wire.read()


def state(port: int) -> dict[str, Any]:
    """What goes on in the desk's process."""
    found: dict[str, Any] = ask(port, make_call("state", port=port)).structured
    return found


def until(port: int, ready: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    """The process's state once something is true of it.

    Raises:
        AssertionError: It does not become true in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = state(port)
        if ready(found):
            return found
        assert time.monotonic() < deadline, found
