"""Calls leave nothing behind: no task, no file descriptor, no memory, after 10,000 in sequence and 1,000 at the same time."""

import selectors
import socket
import time

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.traffic import TIMEOUT, ask, ask_tool, call, open_connection, wire_bytes

SEQUENTIAL, CONCURRENT = 10_000, 1_000
SETTLE = 0.5  # seconds for the server to notice closed connections
GROWTH_KB = 512  # what allocator and caches may take: less than 27 bytes for each of 20,000 calls
Census = dict[str, float]


def census(process: Process) -> Census:
    """What the server holds when it does nothing but answer this."""
    time.sleep(SETTLE)
    connection = open_connection(process.port)
    tasks = ask_tool(connection, "census")["tasks"]
    held = {"tasks": tasks, "descriptors": process.descriptors(), "rss_kb": process.rss_kb()}
    connection.close()
    return held


def call_in_sequence(process: Process) -> None:
    """Call an async tool, one that suspends and one on a thread, in turns."""
    connection = open_connection(process.port)
    exchanges = [call(tool, {"text": "hello world"}) for tool in ("aecho", "pause", "echo", "aecho")]
    for number in range(SEQUENTIAL):
        ask(connection, exchanges[number % len(exchanges)])
    connection.close()


def call_at_once(process: Process) -> None:
    """Have a thousand calls in flight: the tool waits until all of them are there."""
    outgoing = wire_bytes(call("meet", {"callers": CONCURRENT}), process.port)
    selector = selectors.DefaultSelector()
    for _ in range(CONCURRENT):
        peer = socket.create_connection(("127.0.0.1", process.port), TIMEOUT)
        peer.sendall(outgoing)
        selector.register(peer, selectors.EVENT_READ)
    while waiting := len(selector.get_map()):
        ready = selector.select(TIMEOUT)
        if not ready:
            raise RuntimeError(f"{waiting} of {CONCURRENT} concurrent calls were not answered")
        for key, _ in ready:
            answered = key.fileobj
            assert isinstance(answered, socket.socket)
            if not answered.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("a concurrent call failed")
            selector.unregister(answered)
            answered.close()
    selector.close()


def measure(_options: Options) -> Report:
    """Count before and after; the first turn of each warms up."""
    with serving([callboard()]) as processes:
        process = processes["callboard"]
        call_in_sequence(process)
        call_at_once(process)
        rows = {"warm": census(process)}
        for _ in range(2):
            call_in_sequence(process)
        rows["after 20,000 in sequence"] = census(process)
        call_at_once(process)
        rows["after 1,000 at once"] = census(process)
    warm, sequential, concurrent = rows.values()
    return Report(
        rows,
        [
            Bound("tasks left by 20,000 calls in sequence", sequential["tasks"] - warm["tasks"], 0),
            Bound("descriptors left by them", sequential["descriptors"] - warm["descriptors"], 0),
            Bound("KB of memory left by them", sequential["rss_kb"] - warm["rss_kb"], GROWTH_KB),
            Bound("tasks left by 1,000 calls at once", concurrent["tasks"] - warm["tasks"], 0),
            Bound("descriptors left by them", concurrent["descriptors"] - warm["descriptors"], 0),
            Bound("KB of memory left by them", concurrent["rss_kb"] - sequential["rss_kb"], GROWTH_KB),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
