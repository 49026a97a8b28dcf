"""Server CPU per `tools/call` of an async tool with telemetry on: at most 1.3 times the same call without.

On is what a server in production has: metrics for Prometheus, traces of OpenTelemetry of which 1 in 100 requests is sampled, and both. What
OpenTelemetry's own SDK takes to record a value of a histogram, or a span of every request, is shown beside that.
"""

from __future__ import annotations

from benchmarks.contenders import Contender, callboard
from benchmarks.harness import Bound, Options, Report, compare, ratio, run_claim, serving
from benchmarks.traffic import call

LIMIT = 1.3


def told(name: str) -> Contender:
    """This project, with sinks."""
    return callboard()._replace(name=name, environment={"BENCH_TELEMETRY": name})


def measure(options: Options) -> Report:
    """Compare all of them, sent the very same bytes."""
    exchange = call("aecho", {"text": "hello world"})
    with serving([callboard(), *map(told, ("prometheus", "traces", "both", "otel", "all"))]) as processes:
        rows = compare({name: (process, exchange) for name, process in processes.items()}, options)
    bounds = [
        Bound(f"CPU per call, {name} / without telemetry", ratio(rows, name, "callboard"), LIMIT)
        for name in ("prometheus", "traces", "both")
    ]
    for name in ("otel", "all"):
        print(f"{name}: {ratio(rows, name, 'callboard'):.3g} times")
    return Report(rows, bounds)


if __name__ == "__main__":
    run_claim(measure)
