"""A thousand clients that send a byte a second, and two hundred that read nothing: p99 of a good client stays within twice an idle server's.

Two servers take turns, one of them bothered. Time-outs are the defaults (10 s for a head, 30 s for a body, 30 s for a reader); whoever is cut
off comes back, but for those that read nothing. In the end the bothered process must hold what it held before.
"""

import multiprocessing
import socket
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from statistics import median

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.traffic import call, open_connection, send, wire_bytes

SLOW, DEAF = 1000, 200
# Bytes of text, which comes back twice: more than the system takes off a server's hands for a reader that reads nothing.
BLOB = 1_700_000
NOTES, STREAMS = 20_000, 20
CALLS = 500
ROUNDS = 9
PATIENCE = 60.0
ROOM = 32.0  # MiB


def be_slow(port: int, ready: Event, over: Event) -> None:
    """The thousand and the two hundred."""
    body = wire_bytes(call("aecho", {"text": "x" * 3000}), port)
    starts = (b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", body[:-2500])
    deaf = [read_nothing(port, number) for number in range(DEAF)]
    slow = [begin(port, starts[number % 2]) for number in range(SLOW)]
    ready.set()
    number, began = 0, time.monotonic()
    while not over.wait(max(0.0, began + number / SLOW - time.monotonic())):
        peer = slow[number % SLOW]
        if is_answered(peer):
            peer.close()
            slow[number % SLOW] = begin(port, starts[number % 2])
        else:
            with suppress(OSError):
                peer.send(b"x")
        number += 1
    for peer in (*slow, *deaf):
        peer.close()


def is_answered(peer: socket.socket) -> bool:
    """Whether the server has said something, or is gone."""
    try:
        peer.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def begin(port: int, start: bytes) -> socket.socket:
    """A connection on which something has begun."""
    peer = socket.create_connection(("127.0.0.1", port), 30)
    with suppress(OSError):
        peer.sendall(start)
    return peer


def read_nothing(port: int, number: int) -> socket.socket:
    """A connection with an answer that nobody reads."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(60)
    peer.connect(("127.0.0.1", port))
    stream = number < STREAMS
    peer.sendall(wire_bytes(call("slow", {"n": NOTES}, token="t") if stream else call("aecho", {"text": "x" * BLOB}), port))
    return peer


def late(process: Process) -> float:
    """99th percentile of the time of a call, in milliseconds."""
    exchange, times = call("aecho", {"text": "hello world"}), []
    connection = open_connection(process.port)
    for _ in range(CALLS):
        began = time.perf_counter()
        send(connection, exchange)
        times.append((time.perf_counter() - began) * 1e3)
    connection.close()
    return sorted(times)[CALLS * 99 // 100]


def bother(bothered: Process, quiet: Process) -> tuple[list[float], list[float]]:
    """Measure both while one is bothered."""
    ready, over = multiprocessing.Event(), multiprocessing.Event()
    swarm = multiprocessing.Process(target=be_slow, args=(bothered.port, ready, over), daemon=True)
    swarm.start()
    try:
        if not ready.wait(PATIENCE):
            raise RuntimeError("the slow clients did not come")
        late(bothered)
        turns = [(late(bothered), late(quiet)) for _ in range(ROUNDS)]
    finally:
        over.set()
        swarm.join(PATIENCE)
    return [ours for ours, _ in turns], [theirs for _, theirs in turns]


def measure(_options: Options) -> Report:
    """Measure once."""
    bothered, quiet = callboard()._replace(name="bothered"), callboard()._replace(name="quiet")
    with serving([bothered, quiet]) as processes:
        ours, theirs = processes["bothered"], processes["quiet"]
        for process in (ours, theirs):
            late(process)
        descriptors, memory = ours.descriptors(), ours.rss_kb()
        busy, idle = bother(ours, theirs)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and (ours.descriptors() > descriptors or ours.rss_kb() - memory > ROOM * 1024):
            time.sleep(0.5)
        left, grown = ours.descriptors() - descriptors, (ours.rss_kb() - memory) / 1024
    ratios = [mine / other for mine, other in zip(busy, idle, strict=True)]
    return Report(
        {"bothered": {"p99_ms": median(busy)}, "quiet": {"p99_ms": median(idle)}},
        [
            Bound("p99, bothered / quiet", median(ratios), 2.0),
            Bound("descriptors left behind", left, 0),
            Bound("MiB left behind", grown, ROOM),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
