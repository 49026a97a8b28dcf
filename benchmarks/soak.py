"""A soak: mixed load with aborts for minutes or hours, after which nothing may be left of it.

    python -m benchmarks.soak --minutes 30                # callboard run --workers 2 --store redis://, a Redis of its own
    python -m benchmarks.soak --minutes 30 --memory       # one process, no store
    python -m benchmarks.soak --minutes 0.4 --cycle 10    # a look

Load and rests take turns. In a rest nothing runs, and idle sessions have had their time: what is there then, in memory, tasks, descriptors and
keys of Redis, must not grow from rest to rest. The first third of the rests is for warming up (caches fill, pools open). Prints each rest and
a verdict; the exit status is 0 when it holds.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.soak_load import Client, Crowd

SERVER = Path(__file__).with_name("soak_server.py")
TTL = 3  # seconds that an idle session lives
STARTUP = 30.0
FEWEST = 6  # rests from which memory can be judged
MEMORY_GROWTH = 0.03  # of the resident memory, over the rests that are judged: "about 0"
ALLOWED = {"tasks": 4, "descriptors": 8, "keys": 8}  # more in the last third of the rests than in the one before


class Rest(NamedTuple):
    """What is there while nothing runs.

    Attributes:
        seconds: Since the start.
        memory: Resident bytes of all workers.
        objects: That the garbage collectors know.
        tasks: Of all event loops.
        descriptors: Open in all workers.
        keys: In Redis; 0 without.
        stored: Bytes that Redis uses.
        scenarios: That clients have carried out.
    """

    seconds: float
    memory: int
    objects: int
    tasks: int
    descriptors: int
    keys: int
    stored: int
    scenarios: int


class Verdict(NamedTuple):
    """What came of it.

    Attributes:
        holds: Whether nothing grows, and nothing went wrong.
        lines: In words.
    """

    holds: bool
    lines: list[str]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By how much the second number grows for each one of the first: least squares."""
    if len({first for first, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression([first for first, _ in points], [second for _, second in points]).slope


def judge(rests: Sequence[Rest], faults: int) -> Verdict:
    """Look for growth.

    Args:
        rests: All, in order; the first third is passed over.
        faults: What clients saw that must not be.
    """
    judged = list(rests[len(rests) // 3 :])
    half = len(judged) // 2
    holds, lines = faults == 0, [f"faults: {faults}"]
    for name, most in ALLOWED.items():
        before, after = (max((getattr(rest, name) for rest in part), default=0) for part in (judged[:half], judged[half:]))
        grown = after - before if half else 0
        holds &= grown <= most
        per_hour = 3600 * slope([(rest.seconds, getattr(rest, name)) for rest in judged])
        lines.append(f"{name}: at most {before}, then {after} ({per_hour:+.2f} an hour){'' if grown <= most else '  GROWS'}")
    per_second = slope([(rest.seconds, rest.memory) for rest in judged])
    span = judged[-1].seconds - judged[0].seconds if judged else 0.0
    share = per_second * span / statistics.fmean(rest.memory for rest in judged) if judged else 0.0
    words = f"memory: {per_second * 3600 / 2**20:+.2f} MiB an hour, {share:+.2%} in {span:.0f} s"
    if len(rests) < FEWEST:
        lines.append(f"{words} (too few rests to judge: {len(rests)})")
    else:
        holds &= share <= MEMORY_GROWTH
        lines.append(f"{words}{'' if share <= MEMORY_GROWTH else '  GROWS'}")
    return Verdict(holds, lines)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Store:
    """A Redis of its own.

    Args:
        folder: For its files.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            sys.exit("There is no redis-server on PATH: install one, or give --memory.")
        self.port = free_port()
        words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--dir", str(folder)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)

    @property
    def url(self) -> str:
        """For `--store`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def ask(self, *words: str) -> str:
        """What Redis answers to a command, its first line."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as wire:
                wire.sendall((" ".join(words) + "\r\n").encode())
                return wire.recv(65536).decode()
        except OSError:
            return ""

    def measure(self) -> tuple[int, int]:
        """Keys, and bytes that are used."""
        keys = self.ask("DBSIZE").strip().lstrip(":")
        used = [line for line in self.ask("INFO", "memory").splitlines() if line.startswith("used_memory:")]
        return int(keys or 0), int(used[0].partition(":")[2]) if used else 0


class Fleet:
    """`callboard run`.

    Args:
        folder: For its log.
        store: Its Redis; None for one process without.
        workers: How many.
    """

    def __init__(self, folder: Path, store: Store | None, workers: int) -> None:
        self.port, health = free_port(), free_port()
        self._many = ["--workers", str(workers), "--store", store.url] if store else []
        words = [sys.executable, "-m", "callboard", "run", str(SERVER), "--port", str(self.port), "--health-port", str(health), *self._many]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            environment = {**os.environ, "SOAK_TTL": str(TTL)}
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self._wait(f"http://127.0.0.1:{health}/readyz", store)

    def _wait(self, url: str, store: Store | None) -> None:
        deadline = time.monotonic() + STARTUP
        while True:
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"It does not get ready ({error}; Redis {store and store.ask('PING')!r}):\n{self.log.read_text()[-2000:]}")
                time.sleep(0.1)

    @property
    def url(self) -> str:
        """Of the endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def workers(self) -> list[int]:
        """Process ids of all that serve."""
        if not self._many:
            return [self.process.pid]
        return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]


async def ask_vitals(url: str, pids: set[int]) -> dict[int, dict[str, int]]:
    """What lives in each worker: asked over new connections until all have answered."""
    found: dict[int, dict[str, int]] = {}
    for _ in range(200):
        async with aiohttp.ClientSession() as session:
            client = Client(session, url, None)  # type: ignore[arg-type]  # it chooses nothing
            headers, body = client.call("vitals")
            async with session.post(url, headers=headers, data=body) as response:
                said = json.loads(await response.read())["result"]["structuredContent"]
        found[said["pid"]] = said
        if set(found) >= pids:
            break
    return found


def measure(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and its open descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def look(fleet: Fleet, store: Store | None, began: float, scenarios: int) -> Rest:
    """What is there now."""
    pids = set(fleet.workers())
    vitals = await ask_vitals(fleet.url, pids)
    await asyncio.sleep(0.2)  # the connections that asked are gone
    memory, descriptors = (sum(figures) for figures in zip(*map(measure, pids), strict=True))
    tasks, objects = (sum(said[name] for said in vitals.values()) for name in ("tasks", "objects"))
    keys, stored = store.measure() if store else (0, 0)
    return Rest(time.monotonic() - began, memory, objects, tasks, descriptors, keys, stored, scenarios)


async def soak(fleet: Fleet, store: Store | None, *, seconds: float, cycle: float, actors: int) -> Verdict:
    """Load and rests in turn.

    Args:
        fleet: The server.
        store: Its Redis.
        seconds: For how long.
        cycle: Seconds of one load and one rest.
        actors: Clients at once.
    """
    began, rest = time.monotonic(), TTL + 3.0
    crowd, rests = Crowd(fleet.url), []
    while (left := seconds - (time.monotonic() - began)) > rest:
        await crowd.run(actors, min(cycle, left) - rest)
        await asyncio.sleep(rest)
        found = await look(fleet, store, began, crowd.done.total())
        rests.append(found)
        print(
            f"{found.seconds:7.0f} s  {found.scenarios:9,d} scenarios  {found.memory / 2**20:8.2f} MiB  {found.objects:9,d} objects  "
            f"{found.tasks:4d} tasks  {found.descriptors:4d} descriptors  {found.keys:5d} keys  {found.stored / 2**20:6.2f} MiB in Redis",
            flush=True,
        )
    for text, count in crowd.faults.most_common(20):
        print(f"fault, {count} times: {text}")
    print(f"scenarios: {dict(crowd.done)}; refused for a moment (503): {crowd.refused}")
    return judge(rests, crowd.faults.total())


@contextmanager
def ended(*processes: "subprocess.Popen[bytes] | None") -> Iterator[None]:
    """Ends processes, by their ids, when the block is left."""
    try:
        yield
    finally:
        for process in processes:
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


def main() -> None:
    """Run it; the exit status says whether nothing grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--actors", type=int, default=24, help="clients at once")
    parser.add_argument("--cycle", type=float, default=40.0, help="seconds of one load and one rest")
    parser.add_argument("--memory", action="store_true", help="one process, without a store")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = None if chosen.memory else Store(Path(folder))
        with ended(store.process if store else None):
            fleet = Fleet(Path(folder), store, chosen.workers)
            with ended(fleet.process):
                verdict = asyncio.run(soak(fleet, store, seconds=chosen.minutes * 60, cycle=chosen.cycle, actors=chosen.actors))
            printed = fleet.log.read_text(encoding="utf-8", errors="replace")
        troubles = [line for line in printed.splitlines() if " ERROR " in line or "Traceback" in line or "never retrieved" in line]
    print("\n".join([*verdict.lines, f"exit code of callboard run: {fleet.process.returncode}", *troubles[:10]]))
    holds = verdict.holds and fleet.process.returncode == 0 and not troubles
    print("PASS" if holds else "FAIL")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
