"""What every claim's script shares: options, servers that take turns, medians, a verdict.

Method: server on one core, load and driver on another. All servers of a claim start, then take turns (A B C A B C ...), so that a busy
moment of the machine meets them all; the table shows medians over the rounds. CPU time per request of the server's process tree is the
measure of cost: it stays put where requests per second follow the neighbours' mood.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import load
from benchmarks.contenders import FLOORS, LOAD_CORE, Contender, Process, on_core
from benchmarks.environments import ROOT
from benchmarks.legacy_traffic import open_session
from benchmarks.traffic import Exchange, ask, open_connection

RESULTS = ROOT / "results"
CONNECTIONS = 16
# More than connections: a request in a session where one of its id is still in flight is refused.
SESSIONS = 64
FAVOURED = "-15"  # nice value of our own scheduler group, where root may ask for it


class Options(NamedTuple):
    """How long to measure.

    Attributes:
        rounds: Turns of each server.
        seconds: Length of a turn.
        floors: Folder of the floor servers.
    """

    rounds: int
    seconds: float
    floors: Path


class Bound(NamedTuple):
    """A claim as a number.

    Attributes:
        text: What is claimed.
        value: What was measured.
        limit: What it may be at most.
    """

    text: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the claim stands."""
        return self.value <= self.limit


Rows = dict[str, dict[str, float]]


class Report(NamedTuple):
    """What a script found.

    Attributes:
        rows: Server to measures.
        bounds: The claims.
    """

    rows: Rows
    bounds: Sequence[Bound]


def run_claim(measure: Callable[[Options], Report]) -> None:
    """Run one claim's script: read the options, measure, print, keep the result, exit 1 where a claim fails."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn (3)")
    parser.add_argument("--quick", action="store_true", help="one turn of one second: a smoke test, not a measurement")
    parser.add_argument("--floors", type=Path, default=FLOORS, help="folder of other floor servers (benchmarks/floors)")
    given = parser.parse_args()
    options = Options(1, 1.0, given.floors) if given.quick else Options(given.rounds, given.seconds, given.floors)
    prepare_machine()
    with on_core(LOAD_CORE):
        report = measure(options)
    print(table(name, report.rows))
    for bound in report.bounds:
        print(f"{'PASS' if bound.holds else 'FAIL'}  {bound.text}: {bound.value:.3g}, at most {bound.limit:.3g}")
    keep(name, report, options)
    sys.exit(not all(bound.holds for bound in report.bounds))


def prepare_machine() -> None:
    """Raise the limit of open files, and ask the scheduler for a group of our own before everybody else's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    group = Path("/proc/self/autogroup")
    if os.getsid(0) == os.getpid() and os.access(group, os.W_OK):
        try:
            group.write_text(FAVOURED, encoding="ascii")
        except OSError:
            print("not root: other programs' work shows in the numbers", file=sys.stderr)


@contextmanager
def serving(contenders: Iterable[Contender], *, tools: int = 0, mode: str = "stateless-json", **more: str) -> Iterator[dict[str, Process]]:
    """Start servers, and stop them in the end.

    Args:
        contenders: Which.
        tools: How many filler tools to add to the catalogue.
        mode: How 2025 clients are served: `stateless-json`, `stateless-sse`, `session-json` or `session-sse`.
        more: Further environment variables.
    """
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        for contender in contenders:
            process = processes[contender.name] = Process(contender, BENCH_TOOLS=str(tools), BENCH_MODE=mode, **more)
            stack.callback(process.stop)
        yield processes


def compare(targets: dict[str, tuple[Process, Exchange]], options: Options, *, connections: int = CONNECTIONS) -> Rows:
    """Load servers in turns.

    Args:
        targets: Name of a row to server and request.
        options: How long.
        connections: Requests in flight.

    Returns:
        Medians by row: `cpu_us` (server CPU per request), `requests_s`, `p50_ms`, `p99_ms`, `busy` (share of its core that the server
        used; where it stays well below 1 the load generator was the limit).

    Raises:
        RuntimeError: A request failed.
    """
    for process, exchange in targets.values():
        check(process, exchange)
    loads = {
        name: (process, partial(load.run, process.port, exchange, connections=connections)) for name, (process, exchange) in targets.items()
    }
    rows = take_turns(loads, options)
    for process, exchange in targets.values():
        check(process, exchange)
    return rows


def take_turns(targets: Mapping[str, tuple[Process, Callable[..., load.Load]]], options: Options) -> Rows:
    """Load servers in turns, each in its own way.

    Args:
        targets: Name of a row to server and what loads it, given `seconds`.
        options: How long.

    Returns:
        As `compare` does.

    Raises:
        RuntimeError: A request failed.
    """
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
    for _, run in targets.values():
        run(seconds=1)
    for _ in range(options.rounds):
        for name, (process, run) in targets.items():
            before = process.cpu_seconds()
            seen = run(seconds=options.seconds)
            used = process.cpu_seconds() - before
            if seen.failed:
                raise RuntimeError(f"{name}: {seen.failed} of {seen.requests} requests failed")
            runs[name].append(
                {
                    "cpu_us": used / seen.requests * 1e6,
                    "requests_s": seen.requests / seen.seconds,
                    "p50_ms": seen.p50_ms,
                    "p99_ms": seen.p99_ms,
                    "busy": used / seen.seconds,
                }
            )
    return {name: medians(kept) for name, kept in runs.items()}


def open_sessions(process: Process, count: int = SESSIONS) -> tuple[str, ...]:
    """Ids of new sessions of a 2025 client."""
    connection = open_connection(process.port)
    sessions = tuple(open_session(connection) for _ in range(count))
    connection.close()
    return sessions


def check(process: Process, exchange: Exchange) -> None:
    """Make sure that a server answers a request with a result that is no error.

    Raises:
        RuntimeError: It does not.
    """
    connection = open_connection(process.port)
    result = ask(connection, exchange)
    connection.close()
    if result.get("isError"):
        raise RuntimeError(f"{process.name} answers {result}")


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each measure over the runs."""
    return {measure: median(run[measure] for run in runs) for measure in runs[0]}


def ratio(rows: Rows, ours: str, theirs: str, measure: str = "cpu_us") -> float:
    """How many times theirs ours is."""
    return rows[ours][measure] / rows[theirs][measure]


def table(title: str, rows: Rows) -> str:
    """Rows as a Markdown table."""
    measures = list(dict.fromkeys(measure for row in rows.values() for measure in row))
    lines = [f"\n### {title}", "| | " + " | ".join(measures) + " |", "|---" * (len(measures) + 1) + "|"]
    for name, row in rows.items():
        cells = (f"{row[measure]:,.4g}" if measure in row else "" for measure in measures)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def keep(name: str, report: Report, options: Options) -> None:
    """Write a result to results/, which git ignores."""
    RESULTS.mkdir(exist_ok=True)
    content = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": platform.python_version(),
        "floors": str(options.floors.name),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rows": report.rows,
        "bounds": [{**bound._asdict(), "holds": bound.holds} for bound in report.bounds],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
