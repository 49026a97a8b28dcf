"""Server CPU per `tools/call` of an async tool: at most 0.95 times the conforming floor, 1/5 of mcp, 1/14 of fastmcp."""

from benchmarks.contenders import callboard, callboard_plain, fastmcp, mcp_high, real_floor
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import call


def measure(options: Options) -> Report:
    """Compare all; what `callboard.run` gains over uvicorn as it is stands beside."""
    exchange = call("aecho", {"text": "hello world"})
    with serving([callboard(), callboard_plain(), real_floor(options.floors), mcp_high(), fastmcp()]) as processes:
        rows = compare({name: (process, exchange) for name, process in processes.items()}, options)
    return Report(
        rows,
        [
            Bound("CPU per call, Callboard / conforming floor", ratio(rows, "callboard", "real"), 0.95),
            Bound("CPU per call, Callboard / mcp", ratio(rows, "callboard", "mcp-high"), 1 / 5),
            Bound("CPU per call, Callboard / fastmcp", ratio(rows, "callboard", "fastmcp"), 1 / 14),
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
