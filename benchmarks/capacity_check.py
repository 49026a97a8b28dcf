"""The simulation held to a real run: two workers on one core, a Redis on another, clients that call one after the other.

    python -m benchmarks.capacity_check

Each number of clients is measured and foretold in turns. What the simulation is given: prices in floors (benchmarks/costs.json), what a call on the
raw floor cost in the same turn, and how much of its core that got; nothing of the run that it foretells.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import load
from benchmarks.capacity import COSTS, make_service, read_costs
from benchmarks.claims.shared_session import serve_redis
from benchmarks.contenders import LOAD_CORE, Process, callboard, on_core, raw_floor
from benchmarks.costs import CONNECTIONS, HELLO
from benchmarks.fleet_simulation import Service, Simulation
from benchmarks.harness import RESULTS, open_sessions, prepare_machine
from benchmarks.legacy_traffic import call
from benchmarks.meters import cpu_seconds
from benchmarks.traffic import call as modern_call

CLIENTS = (2, 8, 32)
SESSIONS = 128
WORKERS = 2


class Turn(NamedTuple):
    """What one turn of clients saw, and what was foretold of it.

    Attributes:
        clients: How many.
        calls_s, foretold_s: Calls per second.
        p50_ms, foretold_ms: Median time of a call.
        cpu_us, foretold_us: CPU of the workers for a call.
    """

    clients: int
    calls_s: float
    foretold_s: float
    p50_ms: float
    foretold_ms: float
    cpu_us: float
    foretold_us: float


def take_floor(floor: Process, seconds: float) -> tuple[float, float]:
    """Microseconds of a call on the raw floor, and the share of its core that it got while it had always something to do."""
    before, begin = cpu_seconds(floor.pid), time.monotonic()
    seen = load.run(floor.port, modern_call("aecho", HELLO), connections=CONNECTIONS, seconds=seconds)
    used = cpu_seconds(floor.pid) - before
    return used / seen.requests * 1e6, min(1.0, used / (time.monotonic() - begin))


def foretell(service: Service, share: float, clients: int) -> tuple[float, float, float]:
    """Calls per second, the median time of one in milliseconds, and CPU of the workers for it in microseconds."""
    stretched = service._replace(
        worker_busy=service.worker_busy / share,
        worker_alone=service.worker_alone / share,
        redis=service.redis / share,
        network=20e-6 / share,
    )
    seen = Simulation(stretched, WORKERS, cores=1).run(5.0, connections=clients)
    return seen.served / seen.seconds, seen.p50 * 1e3, seen.worker * seen.seconds * share / seen.served * 1e6


def take_turn(workers: list[Process], sessions: tuple[str, ...], clients: int, seconds: float) -> tuple[float, float, float]:
    """Calls per second, median milliseconds, and CPU of the workers for a call in microseconds."""
    half = len(sessions) // WORKERS
    before = sum(cpu_seconds(worker.pid) for worker in workers)
    with ThreadPoolExecutor(WORKERS) as pool:
        loads = list(
            pool.map(
                lambda number: load.run(
                    workers[number].port,
                    call("visit", {}, sessions=sessions[number * half :][:half]),
                    connections=clients // WORKERS,
                    seconds=seconds,
                ),
                range(WORKERS),
            )
        )
    if any(seen.failed for seen in loads):
        raise RuntimeError(f"{sum(seen.failed for seen in loads)} calls failed")
    many = sum(seen.requests for seen in loads)
    used = sum(cpu_seconds(worker.pid) for worker in workers) - before
    return sum(seen.requests / seen.seconds for seen in loads), median(seen.p50_ms for seen in loads), used / many * 1e6


def compare(rounds: int, seconds: float, prices: Path) -> list[Turn]:
    """All turns."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        sys.exit("There is no redis-server on PATH.")
    turns: list[Turn] = []
    with serve_redis(program) as redis:
        shared = callboard()._replace(environment={"BENCH_STORE": f"redis://127.0.0.1:{redis.port}/0", "BENCH_STATE": "1"})
        processes = [Process(raw_floor())]
        try:
            processes += [Process(shared, BENCH_MODE="session-json") for _ in range(WORKERS)]
            floor, *workers = processes
            sessions = open_sessions(workers[0], SESSIONS)
            for number in range(rounds + 1):
                for clients in CLIENTS:
                    floor_us, share = take_floor(floor, seconds)
                    calls_s, p50_ms, cpu_us = take_turn(workers, sessions, clients, seconds)
                    service = make_service(read_costs(prices, floor_us), 0.0)
                    foretold_s, foretold_ms, foretold_us = foretell(service, share, clients)
                    if number:
                        turns.append(Turn(clients, calls_s, foretold_s, p50_ms, foretold_ms, cpu_us, foretold_us))
        finally:
            for process in processes:
                process.stop()
    return turns


def show(turns: list[Turn]) -> str:
    """Measured by foretold, medians and the range over the rounds."""
    lines = [
        "| clients | calls/s measured | foretold | measured / foretold | p50 ms measured | foretold | CPU of a call, measured / foretold |",
        "|---|---|---|---|---|---|---|",
    ]
    for clients in CLIENTS:
        of = [turn for turn in turns if turn.clients == clients]
        ratios = sorted(turn.calls_s / turn.foretold_s for turn in of)
        price = median(turn.cpu_us / turn.foretold_us for turn in of)
        lines.append(
            f"| {clients} | {median(turn.calls_s for turn in of):,.0f} | {median(turn.foretold_s for turn in of):,.0f}"
            f" | {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {median(turn.p50_ms for turn in of):.1f}"
            f" | {median(turn.foretold_ms for turn in of):.1f} | {price:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, foretell, print."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each number of clients (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (2)")
    parser.add_argument("--costs", type=Path, default=COSTS, help="prices (benchmarks/costs.json)")
    given = parser.parse_args()
    prepare_machine()
    with on_core(LOAD_CORE):
        turns = compare(given.rounds, given.seconds, given.costs)
    print(show(turns))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "capacity_check.json").write_text(json.dumps([turn._asdict() for turn in turns], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
