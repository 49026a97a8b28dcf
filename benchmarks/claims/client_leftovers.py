"""10,000 calls of a client leave nothing behind in its process: no task, no descriptor, no object, no memory, no garbage. Both eras."""

from benchmarks.client import Case, open_target, working
from benchmarks.client_answers import LEGACY, MODERN
from benchmarks.contenders import callboard
from benchmarks.harness import Bound, Options, Report, run_claim

CALLS = 10_000
SLACK = 50  # objects that caches may have come to hold
SLACK_KB = 512  # what malloc may have come to hold: less than 53 bytes a call


def measure(_options: Options) -> Report:
    """Count before and after; the first 2,000 calls warm up."""
    rows: dict[str, dict[str, float]] = {}
    bounds: list[Bound] = []
    for version in (MODERN, LEGACY):
        for kind in ("http", "stdio", "memory"):
            server = None if kind == "memory" else callboard()
            case = Case(f"{kind}, {version}", kind, version, 64, 0, server)
            with open_target(case) as target, working(["callboard"], target) as (worker,):
                for at_once in (1, case.at_once):
                    worker.call(1024, at_once)
                before = worker.census()
                for at_once in (1, case.at_once):
                    worker.call(CALLS // 2 // at_once * at_once, at_once)
                after = worker.census()
            rows[f"{case.name}, before"], rows[f"{case.name}, after"] = before, after
            for measure, slack in (("tasks", 0), ("descriptors", 0), ("objects", SLACK), ("rss_kb", SLACK_KB)):
                bounds.append(Bound(f"{measure} left by {CALLS} calls, {case.name}", after[measure] - before[measure], slack))
            bounds.append(Bound(f"objects that they left to the garbage collector, {case.name}", after["garbage"], SLACK))
    return Report(rows, bounds)


if __name__ == "__main__":
    run_claim(measure)
