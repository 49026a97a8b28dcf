"""Clients that take their time, or are too many, against `callboard.run`: each costs little, and ends (SA10, SA26)."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from asgi_driver import make_meta
from e2e.raw_http import Wire, ask, make_call, state, until
from e2e.serving import program, spawn

SWARM = Path(__file__).with_name("slow_swarm.py")
TIMEOUTS = ("head_timeout=0.5", "body_timeout=0.5", "write_timeout=0.5")
PARSERS = ("httptools", "h11")
MIB = 1 << 20


@contextmanager
def serving(log: Path, *options: str) -> Iterator[int]:
    """The server on a free port."""
    with program("slow_server.py", log, *options) as (_, port):
        yield port


@pytest.fixture(scope="module", params=PARSERS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("slow") / "log"
    with serving(log, *TIMEOUTS, f"parser={request.param}") as port:
        yield port
    assert log.read_text() == "", "the server complained"


def alive(port: int) -> None:
    """Demand that the server serves."""
    assert ask(port, make_call("echo", {"text": "hi"}, port=port)).message["result"]["content"][0]["text"] == "hi"


def trickle(wire: Wire, piece: bytes, pause: float, seconds: float) -> None:
    """Send a piece now and then until the server answers or the time is over."""
    end = time.monotonic() + seconds
    wire.socket.settimeout(pause)
    while time.monotonic() < end:
        wire.send(piece)
        try:
            if wire.socket.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
    wire.socket.settimeout(10)


# Heads and bodies


@pytest.mark.parametrize("warm", [pytest.param(0, id="first"), pytest.param(4, id="after others")])
def test_a_head_that_trickles_in_is_timed_out(port: int, warm: int) -> None:
    # SA10: 408 with a JSON-RPC body, and close; also on a connection that has served
    with Wire(port) as wire:
        for _ in range(warm):
            wire.send(make_call("echo", {"text": "hi"}, port=port))
            assert wire.read().status == 200
        wire.send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        trickle(wire, b"x", 0.1, 5)
        answer = wire.read()
        assert (answer.status, answer.headers["connection"], answer.message["error"]["code"]) == (408, "close", -32600)
        assert "head_timeout" in answer.message["error"]["message"]
        assert "id" not in answer.message
        assert wire.ends()
    alive(port)


@pytest.mark.parametrize("warm", [pytest.param(0, id="first"), pytest.param(4, id="after others")])
@pytest.mark.parametrize("coding", ["length", "chunked"])
def test_a_body_that_trickles_in_is_timed_out(port: int, warm: int, coding: str) -> None:
    # SA10
    call = make_call("echo", {"text": "x" * 3000}, port=port)
    head, body = call.split(b"\r\n\r\n", 1)
    start, piece = call[:-2000], b"x"
    if coding == "chunked":
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        start, piece = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n5\r\n" + body[:5] + b"\r\n", b"1\r\n \r\n"
    with Wire(port) as wire:
        for _ in range(warm):
            wire.send(make_call("echo", {"text": "hi"}, port=port))
            assert wire.read().status == 200
        wire.send(start)
        trickle(wire, piece, 0.1, 5)
        answer = wire.read()
        assert (answer.status, answer.headers["connection"], answer.message["error"]["code"]) == (408, "close", -32600)
        assert "body_timeout" in answer.message["error"]["message"]
        assert wire.ends()
    alive(port)


def test_a_body_that_trickles_in_after_its_answer_is_cut_off(port: int) -> None:
    # SA10: the refusal is read, then the rest of the body keeps nobody waiting for ever
    call = make_call("echo", {"text": "x" * 3000}, port=port, content_type="text/plain")
    with Wire(port) as wire:
        wire.send(call[:-2000])
        status, headers = wire.head()
        assert status == 415
        wire.read_exactly(int(headers["content-length"]))
        deadline = time.monotonic() + 10
        try:
            while time.monotonic() < deadline:
                wire.send(b"x")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() < deadline


def test_a_large_body_over_a_slow_line_is_taken(port: int) -> None:
    # SA10: what keeps to the least rate is no attack, though it takes longer than the time-out
    call = make_call("echo", {"text": "x" * 100_000}, port=port)
    started = time.monotonic()
    with Wire(port) as wire:
        for at in range(0, len(call), 8000):
            wire.send(call[at : at + 8000])
            time.sleep(0.12)
        assert wire.read().status == 200
    assert time.monotonic() - started > 1.0


def test_a_connection_that_says_nothing_is_closed(port: int) -> None:
    # SA10
    with Wire(port) as wire:
        assert wire.ends()
    with Wire(port) as wire:
        wire.send(b"\r\n")  # the beginning of a head to one parser, nothing to the other
        while wire.socket.recv(65536):
            pass


def test_a_call_that_takes_longer_than_the_time_outs_is_served(port: int) -> None:
    with Wire(port) as wire:
        for _ in range(4):
            wire.send(make_call("linger", {"seconds": 1.2}, port=port))
            assert wire.read().status == 200
            time.sleep(0.05)


# Readers


def test_a_reader_that_takes_nothing_is_cut_off(port: int) -> None:
    # SA10, SA26
    before = state(port)
    wires = [Wire(port, receive_buffer=4096) for _ in range(4)]
    for wire in wires[:2]:
        wire.send(make_call("blob", {"size": 12 * MIB}, port=port))
    for wire in wires[2:]:
        wire.send(make_call("flood", {"count": 60_000}, port=port, meta=make_meta(progressToken="p")))
    until(port, lambda now: now["descriptors"] <= before["descriptors"] and now["tasks"] <= before["tasks"], 15)
    for wire in wires:
        wire.reset()


def test_a_reader_that_takes_a_little_now_and_then_gets_everything(port: int) -> None:
    with Wire(port, receive_buffer=4096) as wire:
        wire.send(make_call("blob", {"size": 8 * MIB}, port=port))
        wire.head()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            wire.socket.recv(65536)
            time.sleep(0.02)
        while not (more := wire.socket.recv(1 << 20)).endswith(b"}"):
            assert more, "cut off"


def test_what_waits_for_readers_is_bounded_in_all(tmp_path: Path) -> None:
    # SA10: whoever has not kept up longest makes room
    with serving(tmp_path / "log", "max_buffered=33554432", "write_timeout=60") as port:
        alive(port)
        before = state(port)
        wires = [Wire(port, receive_buffer=4096) for _ in range(12)]
        for wire in wires:
            wire.send(make_call("blob", {"size": 12 * MIB}, port=port))
            time.sleep(0.05)
        until(port, lambda now: now["descriptors"] - before["descriptors"] <= 6, 10)
        assert state(port)["resident"] - before["resident"] < 160 * MIB
        for wire in wires:
            wire.reset()
        until(port, lambda now: now["descriptors"] <= before["descriptors"], 5)


# Numbers


def test_connections_past_the_limit_are_told_to_come_back(tmp_path: Path) -> None:
    # SA10
    with serving(tmp_path / "log", "max_connections=20") as port:
        wires = [Wire(port) for _ in range(20)]
        with Wire(port) as late:
            answer = late.read()
            assert (answer.status, answer.headers["connection"], answer.headers["retry-after"]) == (503, "close", "1")
            assert "max_connections" in answer.message["error"]["message"]
            assert late.ends()
        wires.pop().reset()
        deadline = time.monotonic() + 5
        while True:
            try:
                alive(port)
                break
            except (AssertionError, EOFError, KeyError):
                assert time.monotonic() < deadline
        for wire in wires:
            wire.reset()


def measure(port: int, count: int = 200) -> float:
    """99th percentile of the time that a call takes, in seconds."""
    call = make_call("echo", {"text": "hi"}, port=port)
    times = []
    with Wire(port) as wire:
        for _ in range(count):
            started = time.perf_counter()
            wire.send(call)
            wire.read()
            times.append(time.perf_counter() - started)
    return sorted(times)[count * 99 // 100]


@contextmanager
def swarm(port: int, heads: int, bodies: int, readers: int) -> Iterator["subprocess.Popen[Any]"]:
    """Slow clients, from the time when all are there."""
    command = [sys.executable, str(SWARM), *map(str, (port, heads, bodies, readers))]
    paths = ":".join(str(path) for path in (SWARM.parents[1],))
    started = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": paths})
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield started
    finally:
        started.communicate(timeout=30)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell a process's memory")
def test_a_thousand_slow_clients_and_two_hundred_deaf_ones_stop_nobody(tmp_path: Path) -> None:
    """SA10, must show: p99 of a good client within twice that of a server that nobody bothers; afterwards the process is as it was.

    Both servers take turns, so that whatever else this machine does meets them alike. The benchmark of the same name has full time-outs.
    """
    limits = ("head_timeout=6", "body_timeout=6", "write_timeout=6")
    with serving(tmp_path / "log", *limits) as attacked, serving(tmp_path / "quiet", *limits) as quiet:
        with swarm(attacked, 20, 20, 20):
            alive(attacked)
        until(attacked, lambda now: now["descriptors"] < 30, 20)
        before = until(attacked, lambda now: now["descriptors"] < 30, 20)
        with swarm(attacked, 500, 500, 200):
            ratios: list[float] = []
            while len(ratios) < 5 or (median(ratios) > 2 and len(ratios) < 15):
                ratios.append(measure(attacked) / measure(quiet))
            assert median(ratios) <= 2, ratios
            # all of them are gone by the server's own doing
            until(attacked, lambda now: now["descriptors"] <= before["descriptors"] and now["tasks"] <= before["tasks"], 40)
            until(attacked, lambda now: now["resident"] - before["resident"] < 24 * MIB, 10)
