"""Callboard's client against mcp's: CPU time of the process that calls, per call.

Each client lives in a process of its own (`client_work.py`) and calls the same server, in turns (A B A B ...) of half a second; what a turn
of one costs is set against the turn of the other right after it. The server is somebody else's process and does not count; in memory it
does, so there each client also calls the least that can answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.client_answers import MODERN
from benchmarks.client_work import Target
from benchmarks.contenders import HERE, LOAD_CORE, Contender, Process, callboard, environment, on_core
from benchmarks.environments import ROOT, interpreter
from benchmarks.harness import Options

__all__ = ["CLIENTS", "Case", "Worker", "bare", "cases", "compare", "open_target", "working"]

CLIENTS = ("callboard", "mcp")
STOP_TIMEOUT = 20.0
# Of a turn: part of the seconds that were asked for; and as many turns more, so that it takes as long in all.
PART = 6
WARM_UP = 256


class Case(NamedTuple):
    """What is measured.

    Attributes:
        name: What tables call it.
        kind: As in `Target`.
        version: Protocol version.
        at_once: Calls in flight.
        limit: What Callboard's client may cost at most, in costs of mcp's.
        server: Who answers.
        mode: `BENCH_MODE` of the server.
    """

    name: str
    kind: str
    version: str
    at_once: int
    limit: float
    server: Contender | None = None
    mode: str = "session-json"


def bare() -> Contender:
    """The least that a server can be."""
    return Contender("bare", (sys.executable, str(HERE / "peers" / "client_responder.py")))


def cases(version: str) -> Iterator[Case]:
    """All that is measured in one era."""
    era = "2026" if version == MODERN else "2025"
    for server in (callboard(), bare()):
        end = f"{server.name} server, {era}"
        yield Case(f"HTTP, one at a time, {end}", "http", version, 1, 1 / 3, server)
        yield Case(f"HTTP, 64 at once, {end}", "http", version, 64, 1 / 4, server)
        yield Case(f"HTTP, answered by an event stream, {end}", "http", version, 1, 1 / 3, server, "session-sse")
        yield Case(f"stdio, one at a time, {end}", "stdio", version, 1, 1 / 4, server)
        yield Case(f"stdio, 64 at once, {end}", "stdio", version, 64, 1 / 4, server)
    # mcp's client hands the current protocol's messages to a server in its process as Python objects: nothing is encoded there.
    for kind, end, limit in (("memory", "each with its own server", 1 / 4), ("bare", "client alone", 1 / 2)):
        yield Case(f"in memory, one at a time, {end}, {era}", kind, version, 1, limit)
        yield Case(f"in memory, 64 at once, {end}, {era}", kind, version, 64, limit)


class Worker:
    """A process with a client in it.

    Args:
        client: One of `CLIENTS`.
        target: What it is connected to.

    Raises:
        RuntimeError: It can't connect.
    """

    def __init__(self, client: str, target: Target) -> None:
        self._name = f"{client}'s client"
        python = sys.executable if client == "callboard" else interpreter("v-mcp")
        command = (
            python,
            str(HERE / "peers" / f"client_{client}.py"),
            json.dumps(target._asdict() | {"environment": dict(target.environment)}),
        )
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long-lived as the process
        with on_core(LOAD_CORE):
            self._process = subprocess.Popen(
                command,
                env=environment(Contender(client, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                cwd=ROOT,
            )
        self._hear()

    def call(self, calls: int, at_once: int) -> dict[str, float]:
        """Make calls.

        Returns:
            `cpu_us`, CPU time of the process per call, and `wall_us`.
        """
        return self._order({"calls": calls, "at_once": at_once})

    def census(self) -> dict[str, float]:
        """What the process holds: `rss_kb`, `objects`, `garbage` that waited for the collector, `tasks`, `descriptors`."""
        return self._order({})

    def close(self) -> None:
        """Disconnect and end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)
        self._process.stdout.close()

    def _order(self, order: dict[str, int]) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            self._log.seek(0)
            raise RuntimeError(f"{self._name} has ended:\n{self._log.read().decode(errors='replace')[-2000:]}")
        answer: dict[str, float] = json.loads(line)
        return answer


@contextmanager
def open_target(case: Case) -> Iterator[Target]:
    """Start what a case calls."""
    if case.server is None:
        yield Target(case.kind, case.version)
    elif case.kind == "stdio":
        own = environment(case.server, BENCH_STDIO="1")
        yield Target(case.kind, case.version, command=case.server.command, environment=own)
    else:
        process = Process(case.server, BENCH_MODE=case.mode)
        try:
            yield Target(case.kind, case.version, f"http://127.0.0.1:{process.port}/mcp")
        finally:
            process.stop()


@contextmanager
def working(clients: Sequence[str], target: Target) -> Iterator[list[Worker]]:
    """Processes of clients on one target, each warmed up."""
    with ExitStack() as stack:
        workers = []
        for client in clients:
            workers.append(Worker(client, target))
            stack.callback(workers[-1].close)
        yield workers


def compare(case: Case, options: Options) -> dict[str, float]:
    """Let both clients call in turns.

    Returns:
        `callboard_us` and `mcp_us`, medians of CPU time per call; `ratio`, the median of the turns' ratios, and `from` and `to`, between
        which half of them lie.
    """
    with open_target(case) as target, working(CLIENTS, target) as workers:
        calls = []
        for worker in workers:
            worker.call(WARM_UP, case.at_once)
            seen = worker.call(WARM_UP, case.at_once)
            calls.append(max(1, round(options.seconds / PART / seen["wall_us"] * 1e6 / case.at_once)) * case.at_once)
        costs = [
            [worker.call(number, case.at_once)["cpu_us"] for worker, number in zip(workers, calls, strict=True)]
            for _ in range(options.rounds * PART)
        ]
    ratios = [ours / theirs for ours, theirs in costs]
    quarter, middle, three_quarters = quantiles(ratios, n=4)
    ours, theirs = (median(column) for column in zip(*costs, strict=True))
    return {"callboard_us": ours, "mcp_us": theirs, "ratio": middle, "from": quarter, "to": three_quarters}
