"""Calls leave nothing behind: no task, no descriptor, no object, no garbage, no memory.

After 10,000 in sequence, 1,000 at a time, and 1,000 sessions of 2025 clients with eight calls each.
"""

import selectors
import socket
import time
from itertools import pairwise

from benchmarks import legacy_traffic
from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, run_claim, serving
from benchmarks.traffic import TIMEOUT, ask, ask_tool, call, open_connection, wire_bytes

SEQUENTIAL, CONCURRENT, SESSIONS = 10_000, 1_000, 1_000
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


def live_in_sessions(process: Process) -> None:
    """Open sessions, call in each: an async tool, one that suspends, one on a thread, one that streams; end them."""
    connection = open_connection(process.port)
    text = {"text": "hello world"}
    for _ in range(SESSIONS):
        session = (legacy_traffic.open_session(connection),)
        exchanges = [legacy_traffic.call(tool, text, sessions=session) for tool in ("aecho", "pause", "echo")]
        exchanges.append(legacy_traffic.call("slow", {"n": 3}, sessions=session, token="t"))
        for exchange in exchanges * 2:
            ask(connection, exchange)
        legacy_traffic.close_session(connection, session[0])
    connection.close()


def growth(after: Row, before: Row) -> Row:
    """What there is more of."""
    return {measure: after[measure] - before[measure] for measure in after}


def measure(_options: Options) -> Report:
    """Count before and after; the first turn of each warms up."""
    with serving([callboard()], mode="session-json") as processes:
        process = processes["callboard"]
        works = {
            "10,000 in sequence": call_in_sequence,
            "1,000 at once": call_at_once,
            "1,000 sessions": live_in_sessions,
        }
        for work in works.values():
            work(process)
        rows = {"warm": census(process)}
        for text, work in works.items():
            work(process)
            rows[f"after {text}"] = census(process)
    bounds: list[Bound] = []
    for text, (before, after) in zip(works, pairwise(rows.values()), strict=True):
        more = growth(after, before)
        bounds += [
            Bound(f"tasks left by {text}", more["tasks"], 0),
            Bound(f"descriptors left by {text}", more["descriptors"], 0),
            Bound(f"objects left by {text}", more["objects"], SLACK),
            Bound(f"objects that {text} left to the garbage collector", after["garbage"], SLACK),
        ]
        if works[text] is not call_at_once:
            bounds.append(Bound(f"KB of memory left by {text}", more["rss_kb"], SLACK_KB))
    return Report(rows, bounds)


if __name__ == "__main__":
    run_claim(measure)
