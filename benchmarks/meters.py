"""What a Redis and the processes of workers have used so far: CPU, commands, bytes. Linux only (/proc)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from benchmarks.claims.shared_session import Redis
from benchmarks.contenders import Process


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads, to the nanosecond."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return used / 1e9


def ask_numbers(redis: Redis, section: str) -> dict[str, float]:
    """The numbers of one section of INFO."""
    found = re.findall(rb"(?m)^([a-z_]+):([0-9]+(?:\.[0-9]+)?)\r?$", redis.ask("INFO", section))
    return {name.decode(): float(value) for name, value in found}


class Meters:
    """What a Redis and a worker have used so far."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.pid = int(ask_numbers(redis, "server")["process_id"])

    def read(self, process: Process) -> dict[str, float]:
        """CPU in seconds, commands and bytes."""
        stats = ask_numbers(self.redis, "stats")
        return {
            "worker": cpu_seconds(process.pid),
            "redis": cpu_seconds(self.pid),
            "scripts": float(self.redis.scripts()),
            "redis_in": stats["total_net_input_bytes"],
            "redis_out": stats["total_net_output_bytes"],
        }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}
