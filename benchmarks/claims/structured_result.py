"""Server CPU per call of a tool that returns 4 KB of structured content and the same as text: at most 1.4 times the conforming floor."""

from benchmarks.contenders import callboard, real_floor
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import call


def measure(options: Options) -> Report:
    """Compare the two."""
    exchange = call("search", {"query": "q"})
    with serving([callboard(), real_floor(options.floors)]) as processes:
        rows = compare({name: (process, exchange) for name, process in processes.items()}, options)
    return Report(rows, [Bound("CPU per call, Callboard / conforming floor", ratio(rows, "callboard", "real"), 1.4)])


if __name__ == "__main__":
    run_claim(measure)
