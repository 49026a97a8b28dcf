"""Calls leave nothing behind: no task, no descriptor, no object, no garbage, no memory, after 10,000 in sequence and 1,000 at a time."""

import selectors
import socket
import time

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.traffic import TIMEOUT, ask, ask_tool, call, open_connection, wire_bytes

SEQUENTIAL, CONCURRENT = 10_000, 1_000
SETTLE = 6.0  # uvicorn holds on to the remains of a connection for its keep-alive of 5 s
SLACK = 50  # objects that caches may have come to hold
SLACK_KB = 512  # what malloc may have come to hold: less than 53 bytes a call
Row = dict[str, float]


def census(process: Process) -> Row:
    """What the server holds when it does nothing but answer this."""
    time.sleep(SETTLE)
    connection = open_connection(process.port)
    held = {"rss_kb": process.rss_kb(), "descriptors": process.descriptors(), "tasks": ask_tool(connection, "census")["tasks"]}
    held |= ask_tool(connection, "sweep")
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


def growth(after: Row, before: Row) -> Row:
    """What there is more of."""
    return {measure: after[measure] - before[measure] for measure in after}


def measure(_options: Options) -> Report:
    """Count before and after; the first turn of each warms up."""
    with serving([callboard()]) as processes:
        process = processes["callboard"]
        call_in_sequence(process)
        call_at_once(process)
        warm = census(process)
        call_in_sequence(process)
        sequential = census(process)
        call_at_once(process)
        concurrent = census(process)
    bounds: list[Bound] = []
    for text, before, after in (("10,000 in sequence", warm, sequential), ("1,000 at once", sequential, concurrent)):
        more = growth(after, before)
        bounds += [
            Bound(f"tasks left by {text}", more["tasks"], 0),
            Bound(f"descriptors left by {text}", more["descriptors"], 0),
            Bound(f"objects left by {text}", more["objects"], SLACK),
            Bound(f"objects that {text} left to the garbage collector", after["garbage"], SLACK),
        ]
    bounds.append(Bound("KB of memory left by 10,000 in sequence", sequential["rss_kb"] - warm["rss_kb"], SLACK_KB))
    return Report({"warm": warm, "after 10,000 in sequence": sequential, "after 1,000 at once": concurrent}, bounds)


if __name__ == "__main__":
    run_claim(measure)
