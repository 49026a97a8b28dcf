"""Load: one request, or one short conversation, over and over on a number of connections.

wrk (Debian and Homebrew have it) sends single requests when it is there; the rest comes from sockets of our own. These are Python and
slower than the fastest servers here; what servers are judged by, CPU time per request, does not mind.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from benchmarks.traffic import PATH, TIMEOUT, Exchange, wire_bytes

SCRIPT = Path(__file__).with_name("load.lua")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
BODILESS = (b"HTTP/1.1 202", b"HTTP/1.1 204")
LAST_CHUNK = b"0\r\n\r\n"

# What one connection says: it yields a request and is sent the whole answer.
Script = Generator[bytes, bytes, None]


class Load(NamedTuple):
    """What a run of load saw.

    Attributes:
        requests: Answers received.
        seconds: How long it took.
        p50_ms: Median time from sending to the whole answer.
        p99_ms: The same, 99th percentile.
        failed: Answers other than 2xx, connections refused, broken or timed out.
    """

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int


def run(port: int, exchange: Exchange, *, connections: int, seconds: float) -> Load:
    """Send one request over and over.

    Args:
        port: Port on 127.0.0.1.
        exchange: The request.
        connections: How many requests are in flight, one per connection.
        seconds: For how long; wrk takes whole ones.
    """
    wrk = shutil.which("wrk")
    if wrk:
        return run_wrk(wrk, port, exchange, connections, max(1, round(seconds)))
    said = repeat(exchange, port)  # one for all: a session is not to be asked the same by two of them at once
    return run_sockets(port, lambda: said, connections, seconds)


def run_wrk(wrk: str, port: int, exchange: Exchange, connections: int, seconds: int) -> Load:
    """Load from wrk."""
    with tempfile.TemporaryDirectory() as folder:
        body, headers, sessions = Path(folder, "body"), Path(folder, "headers"), Path(folder, "sessions")
        body.write_bytes(exchange.body)
        headers.write_text("".join(f"{name}: {value}\n" for name, value in exchange.headers.items()), encoding="latin-1")
        sessions.write_text("".join(f"{session}\n" for session in exchange.sessions), encoding="ascii")
        ran = subprocess.run(
            [wrk, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(SCRIPT), f"http://127.0.0.1:{port}{PATH}"],
            env={**os.environ, "LOAD_BODY": str(body), "LOAD_HEADERS": str(headers), "LOAD_SESSIONS": str(sessions)},
            capture_output=True,
            text=True,
            check=True,
        )
    return Load(**json.loads(ran.stdout.partition("SUMMARY ")[2].splitlines()[0]))


def repeat(exchange: Exchange, port: int) -> Script:
    """The script of one request over and over, by its sessions in turn."""
    turns = cycle([wire_bytes(exchange, port, session=session) for session in exchange.sessions or ("",)])
    while True:
        yield next(turns)


class _Answer:
    """One answer on its way in."""

    __slots__ = ("_awaited", "_buffer", "_chunked")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._awaited = 0
        self._chunked = False

    def feed(self, data: bytes) -> bytes | None:
        """The answer, now complete; None while some of it is missing."""
        buffer = self._buffer
        buffer += data
        if not self._awaited:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            length = CONTENT_LENGTH.search(buffer, 0, end)
            self._chunked = length is None and not buffer.startswith(BODILESS)
            self._awaited = end + 4 + (0 if length is None else int(length[1]))
        if len(buffer) < self._awaited or (self._chunked and not buffer.endswith(LAST_CHUNK)):
            return None
        answer = bytes(buffer)  # nothing follows it: the next request has not been sent
        buffer.clear()
        self._awaited = 0
        return answer


def run_sockets(port: int, script: Callable[[], Script], connections: int, seconds: float) -> Load:
    """Load from non-blocking sockets in this process.

    Args:
        port: Port on 127.0.0.1.
        script: Makes what one connection says.
        connections: How many there are.
        seconds: For how long.

    Raises:
        RuntimeError: The server closed a connection.
    """
    latencies: list[float] = []
    failed = 0
    poll = select.epoll()
    peers: dict[int, tuple[socket.socket, _Answer, Script]] = {}
    sent_at: dict[int, float] = {}
    for _ in range(connections):
        peer = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peers[peer.fileno()] = (peer, _Answer(), script())
        poll.register(peer.fileno(), select.EPOLLIN)
    start = time.perf_counter()
    for descriptor, (peer, _, said) in peers.items():
        sent_at[descriptor] = time.perf_counter()
        peer.sendall(next(said))
    end = start + seconds
    while (now := time.perf_counter()) < end:
        for descriptor, _ in poll.poll(TIMEOUT):
            peer, incoming, said = peers[descriptor]
            data = peer.recv(1 << 18)
            if not data:
                raise RuntimeError("the server closed a connection under load")
            answer = incoming.feed(data)
            if answer is None:
                continue
            now = time.perf_counter()
            latencies.append(now - sent_at[descriptor])
            failed += not answer.startswith(b"HTTP/1.1 2")
            sent_at[descriptor] = now
            peer.sendall(said.send(answer))
    for peer, _, _ in peers.values():
        peer.close()
    poll.close()
    latencies.sort()
    middle, late = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    return Load(len(latencies), now - start, middle * 1e3, late * 1e3, failed)
