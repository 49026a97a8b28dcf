"""A `tools/call` of the current protocol costs the same where 2025 clients are served too: within 5 %."""

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import VERSION, Exchange, call


def measure(options: Options) -> Report:
    """Compare Callboard with itself."""
    exchange = call("aecho", {"text": "hello world"})
    targets: dict[str, tuple[Process, Exchange]] = {}
    with serving([callboard()], BENCH_VERSIONS=VERSION) as one, serving([callboard()], mode="session-json") as all_versions:
        targets["current protocol alone"] = one["callboard"], exchange
        targets["with 2025 sessions"] = all_versions["callboard"], exchange
        rows = compare(targets, options)
    return Report(
        rows, [Bound("CPU per call, with 2025 sessions / without", ratio(rows, "with 2025 sessions", "current protocol alone"), 1.05)]
    )


if __name__ == "__main__":
    run_claim(measure)
