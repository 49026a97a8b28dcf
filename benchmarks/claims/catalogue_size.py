"""A `tools/call` costs the same with one thousand tools more: within a tenth."""

from benchmarks.contenders import Process, callboard
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import Exchange, call


def measure(options: Options) -> Report:
    """Compare Callboard with itself."""
    exchange = call("aecho", {"text": "hello world"})
    targets: dict[str, tuple[Process, Exchange]] = {}
    with serving([callboard()]) as few, serving([callboard()], tools=1000) as many:
        targets["few tools"] = few["callboard"], exchange
        targets["1,000 tools more"] = many["callboard"], exchange
        rows = compare(targets, options)
    return Report(rows, [Bound("CPU per call, with 1,000 tools more / without", ratio(rows, "1,000 tools more", "few tools"), 1.1)])


if __name__ == "__main__":
    run_claim(measure)
