"""Resident memory of a process that serves HTTP, after some work: at most two thirds of mcp's."""

from benchmarks import load
from benchmarks.contenders import callboard, fastmcp, mcp_high, raw_floor
from benchmarks.harness import CONNECTIONS, Bound, Options, Report, ratio, run_claim, serving
from benchmarks.traffic import call, request


def measure(options: Options) -> Report:
    """Weigh each after calls and lists."""
    work = [call("aecho", {"text": "hello world"}), call("search", {"query": "q"}), request("tools/list")]
    with serving([callboard(), mcp_high(), fastmcp(), raw_floor(options.floors)]) as processes:
        for process in processes.values():
            for exchange in work:
                load.run(process.port, exchange, connections=CONNECTIONS, seconds=1)
        rows = {name: {"rss_mb": process.rss_kb() / 1024} for name, process in processes.items()}
    return Report(rows, [Bound("resident memory, Callboard / mcp", ratio(rows, "callboard", "mcp-high", "rss_mb"), 2 / 3)])


if __name__ == "__main__":
    run_claim(measure)
