"""Server CPU per `tools/call` of an async tool with telemetry on: at most 1.3 times the same call without.

On is what a server in production has: metrics for Prometheus, traces of OpenTelemetry of which 1 in 100 requests is sampled, and both. What
OpenTelemetry's own SDK takes to record a value of a histogram, or a span of every request, is shown beside that.
"""

from __future__ import annotations

from statistics import median

from benchmarks.contenders import Contender, callboard
from benchmarks.harness import Bound, Options, Report, Rows, compare, medians, ratio, run_claim, serving
from benchmarks.traffic import call

LIMIT = 1.3
BOUND = ("prometheus", "traces", "both")
SINKS = (*BOUND, "otel", "all")


def told(name: str) -> Contender:
    """This project, with sinks."""
    return callboard()._replace(name=name, environment={"BENCH_TELEMETRY": name})


def measure(options: Options) -> Report:
    """Compare all of them, sent the very same bytes; started anew for each round, for where a process's memory comes to lie is worth a tenth."""
    exchange = call("aecho", {"text": "hello world"})
    seen: list[Rows] = []
    for _ in range(options.rounds):
        with serving([callboard(), *map(told, SINKS)]) as processes:
            seen.append(compare({name: (process, exchange) for name, process in processes.items()}, options._replace(rounds=2)))
    found = {name: [ratio(rows, name, "callboard") for rows in seen] for name in SINKS}
    for name, ratios in found.items():
        print(f"{name}: {median(ratios):.3g} times, {min(ratios):.3g} to {max(ratios):.3g}")
    bounds = [Bound(f"CPU per call, {name} / without telemetry", median(found[name]), LIMIT) for name in BOUND]
    return Report({name: medians([rows[name] for rows in seen]) for name in seen[0]}, bounds)


if __name__ == "__main__":
    run_claim(measure)
