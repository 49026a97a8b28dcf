"""Two workers of `callboard run` with a Redis of their own for the conformance suite, and which of them served what.

What the suite asks goes to the workers in turns (`turns.mjs`). That it did is read from their own log: they write down each request that is no
notification, and `fleet_program.py` adds who they are.
"""

import json
import re
import subprocess
import sys
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from redis_server import RedisServer

__all__ = ["WORKERS", "check_turns", "fleet", "read_turns"]

HERE = Path(__file__).resolve().parent
WORKERS = 2
STARTUP = 40.0  # seconds until all of them must serve
GRACE = 2.0  # seconds that calls get at the end
ENDING = 20.0  # seconds until all of them must have ended


@contextmanager
def fleet(log: Path) -> Iterator[str]:
    """Starts the workers on a free loopback port; gives their URL once all of them serve, and ends them in good order."""
    options = {"--port": 0, "--workers": WORKERS, "--log-format": "json", "--grace": GRACE}
    with RedisServer() as redis, log.open("wb") as output:
        words = [str(word) for option in {**options, "--store": redis.url}.items() for word in option]
        process = subprocess.Popen(
            [sys.executable, "-m", "callboard", "run", str(HERE / "fleet_program.py"), *words],
            cwd=HERE.parent,  # where `conformance` is a package
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield _find_url(process, log)
            process.terminate()
            if code := process.wait(ENDING):
                sys.exit(f"the fleet ended with {code}:\n{log.read_text(errors='replace')[-4000:]}")
        finally:
            process.kill()  # its workers end by themselves then
            process.wait(ENDING)


def _find_url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + STARTUP
    while process.poll() is None and time.monotonic() < deadline:
        said = log.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"http://127\.0\.0\.1:\d+/mcp", said)
        if found is not None and said.count("Application startup complete") >= WORKERS:
            return found[0]
        time.sleep(0.05)
    sys.exit(f"{WORKERS} workers did not serve within {STARTUP:.0f} s:\n{log.read_text(errors='replace')}")


def read_turns(log: str, starts: Mapping[str, float]) -> dict[str, Counter[int]]:
    """Who served what.

    Args:
        log: What the workers have written.
        starts: Scenario -> when it began, in seconds of the clock, in this order.

    Returns:
        Scenario -> worker -> how many of its requests. A stream belongs to the scenario that opened it, whenever it ended.
    """
    turns = {name: Counter[int]() for name in starts}
    names, times = list(starts), list(starts.values())
    for line in log.splitlines():
        facts: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        if facts.get("logger") != "callboard.requests" or facts.get("tool") == "which_worker":
            continue
        began = datetime.fromisoformat(facts["time"]).timestamp() - facts.get("duration_ms", 0.0) / 1000
        if place := bisect(times, began):
            turns[names[place - 1]][facts["worker"]] += 1
    return turns


def check_turns(turns: Mapping[str, Counter[int]]) -> list[dict[str, str]]:
    """Checks, in the suite's form, that all workers served: one for each scenario that made several requests."""
    checks = []
    for name, taken in turns.items():
        if taken.total() >= WORKERS:
            text = f"{taken.total()} requests were served by {', '.join(f'worker {worker}' for worker in taken)} alone"
            checks.append({"id": name, "status": "SUCCESS" if len(taken) == WORKERS else "FAILURE", "description": text})
    return checks
