"""CPU time of the calling process per `tools/call`: at most 1/3 of mcp's client over HTTP, 1/4 with 64 at once, over stdio and in memory."""

import sys

from benchmarks.client import cases, compare
from benchmarks.client_answers import LEGACY, MODERN
from benchmarks.harness import Bound, Options, Report, run_claim


def measure(options: Options) -> Report:
    """Both eras, every way."""
    rows = {}
    bounds = []
    for version in (MODERN, LEGACY):
        for case in cases(version):
            row = rows[case.name] = compare(case, options)
            bounds.append(Bound(case.name, row["ratio"], case.limit))
            print(f"{case.name}: {row['ratio']:.3f}", file=sys.stderr, flush=True)
    return Report(rows, bounds)


if __name__ == "__main__":
    run_claim(measure)
