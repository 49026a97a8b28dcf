"""Server CPU per `tools/call` of an async tool in a session of a 2025 client: at most 1.4 times the conforming floor, 1/6 of mcp."""

from benchmarks.contenders import callboard, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, compare, open_sessions, ratio, run_claim, serving
from benchmarks.legacy_traffic import call


def measure(options: Options) -> Report:
    """Compare them, by sessions that take turns."""
    with serving([callboard(), real_floor(options.floors), mcp_high()], mode="session-json") as processes:
        targets = {
            name: (process, call("aecho", {"text": "hello world"}, sessions=open_sessions(process))) for name, process in processes.items()
        }
        rows = compare(targets, options)
    return Report(
        rows,
        [
            Bound("CPU per call, Callboard / conforming floor", ratio(rows, "callboard", "real"), 1.4),
            Bound("CPU per call, Callboard / mcp", ratio(rows, "callboard", "mcp-high"), 1 / 6),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
