"""Server CPU per `tools/list` of a hundred tools in one page: at most 1.3 times the conforming floor, which keeps the list encoded."""

from benchmarks.contenders import callboard, real_floor
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import request


def measure(options: Options) -> Report:
    """Compare the two."""
    exchange = request("tools/list")
    with serving([callboard(), real_floor(options.floors)], tools=100) as processes:
        rows = compare({name: (process, exchange) for name, process in processes.items()}, options)
    return Report(rows, [Bound("CPU per list, Callboard / conforming floor", ratio(rows, "callboard", "real"), 1.3)])


if __name__ == "__main__":
    run_claim(measure)
