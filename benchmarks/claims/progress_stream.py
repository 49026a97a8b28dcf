"""One call that reports progress 20,000 times on one stream: at least three times the conforming floor's notifications per second."""

import socket
import time

from benchmarks import legacy_traffic, traffic
from benchmarks.contenders import Process, callboard, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, medians, open_sessions, ratio, run_claim, serving
from benchmarks.traffic import TIMEOUT, Exchange, wire_bytes

NOTES = 20_000
STEPS = {"n": NOTES}
TOKEN = "t"
NOTE = b"notifications/progress"
END = b"\r\n0\r\n\r\n"


def listen(process: Process, exchange: Exchange) -> dict[str, float]:
    """Read one stream to its end.

    Raises:
        RuntimeError: It lacks some notes.
    """
    session = exchange.sessions[0] if exchange.sessions else ""
    before = process.cpu_seconds()
    with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as peer:
        begin = time.perf_counter()
        peer.sendall(wire_bytes(exchange, process.port, session=session))
        seen, tail, reads = 0, b"", 0
        while data := peer.recv(1 << 18):
            tail += data
            reads += 1
            seen += tail.count(NOTE)
            if tail.endswith(END):
                break
            tail = tail[1 - len(NOTE) :]
        taken = time.perf_counter() - begin
    if seen != NOTES:
        raise RuntimeError(f"{process.name}: {seen} of {NOTES} notifications")
    return {"notes_s": seen / taken, "note_us": taken / seen * 1e6, "cpu_us": (process.cpu_seconds() - before) / seen * 1e6, "reads": reads}


def measure(options: Options) -> Report:
    """Compare them on the current protocol, for 2025 clients without sessions, and in one session; the first round does not count."""
    contenders = [callboard(), real_floor(options.floors), mcp_high()]
    targets: dict[str, tuple[Process, Exchange]] = {}
    with serving(contenders, mode="stateless-sse") as stateless, serving(contenders, mode="session-sse") as stateful:
        for name, process in stateless.items():
            targets[name] = process, legacy_traffic.call("slow", STEPS, token=TOKEN)
            targets[f"{name}, current"] = process, traffic.call("slow", STEPS, token=TOKEN)
        for name, process in stateful.items():
            targets[f"{name}, session"] = process, legacy_traffic.call("slow", STEPS, sessions=open_sessions(process, 1), token=TOKEN)
        rounds = [{name: listen(*target) for name, target in targets.items()} for _ in range(options.rounds + 1)][1:]
    rows = {name: medians([seen[name] for seen in rounds]) for name in targets}
    return Report(
        rows,
        [
            Bound(
                f"time per notification, {text}, Callboard / conforming floor",
                ratio(rows, f"callboard{kind}", f"real{kind}", "note_us"),
                1 / 3,
            )
            for kind, text in ((", current", "current protocol"), ("", "2025 client"), (", session", "2025 session"))
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
