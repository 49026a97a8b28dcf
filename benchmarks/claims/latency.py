"""99th percentile of a `tools/call` at 16 connections: at most twice the conforming floor's."""

from benchmarks.contenders import callboard, real_floor
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import call


def measure(options: Options) -> Report:
    """Compare the two."""
    exchange = call("aecho", {"text": "hello world"})
    with serving([callboard(), real_floor(options.floors)]) as processes:
        rows = compare({name: (process, exchange) for name, process in processes.items()}, options)
    return Report(rows, [Bound("p99, Callboard / conforming floor", ratio(rows, "callboard", "real", "p99_ms"), 2.0)])


if __name__ == "__main__":
    run_claim(measure)
