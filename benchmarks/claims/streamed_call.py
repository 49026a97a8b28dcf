"""Server CPU per `tools/call` of a 2025 client, answered as an event stream: at most 1.5 times the conforming floor, 1/15 of mcp.

Without a session at most 1.4 times the floor.
"""

from benchmarks.contenders import Process, callboard, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, compare, open_sessions, ratio, run_claim, serving
from benchmarks.legacy_traffic import call
from benchmarks.traffic import Exchange

TEXT = {"text": "hello world"}


def measure(options: Options) -> Report:
    """Compare them without sessions, and by sessions that take turns."""
    contenders = [callboard(), real_floor(options.floors), mcp_high()]
    targets: dict[str, tuple[Process, Exchange]] = {}
    with serving(contenders, mode="stateless-sse") as stateless, serving(contenders, mode="session-sse") as stateful:
        for name, process in stateless.items():
            targets[name] = process, call("aecho", TEXT)
        for name, process in stateful.items():
            targets[f"{name}, session"] = process, call("aecho", TEXT, sessions=open_sessions(process))
        rows = compare(targets, options)
    return Report(
        rows,
        [
            Bound("CPU per call, Callboard / conforming floor", ratio(rows, "callboard", "real"), 1.4),
            Bound("CPU per call, Callboard / mcp", ratio(rows, "callboard", "mcp-high"), 1 / 15),
            Bound("the same in a session, Callboard / conforming floor", ratio(rows, "callboard, session", "real, session"), 1.5),
            Bound("the same in a session, Callboard / mcp", ratio(rows, "callboard, session", "mcp-high, session"), 1 / 15),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
