"""A call that changes its session's state, kept in a Redis: at most 2 round trips to it; and what it costs beside one kept in memory."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from benchmarks.contenders import callboard
from benchmarks.harness import Bound, Options, Report, compare, open_sessions, ratio, run_claim, serving
from benchmarks.legacy_traffic import call
from benchmarks.traffic import ask, open_connection

# Sessions that take turns: so many that none is asked twice at once.
MANY = 256
TRIPS = 2
START_TIMEOUT = 20.0


class Redis:
    """A Redis of its own.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, *words: str) -> bytes:
        """What it answers."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_TIMEOUT) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\nQUIT\r\n")
            answer = b""
            while data := connection.recv(65_536):
                answer += data
        return answer

    def scripts(self) -> int:
        """How many scripts it has run: each call's round trips are these."""
        return sum(map(int, re.findall(rb"cmdstat_(?:evalsha|eval):calls=(\d+)", self.ask("INFO", "commandstats"))))


@contextmanager
def serve_redis(program: str) -> Iterator[Redis]:
    """A Redis on a free port that writes nothing down."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        redis = Redis(probe.getsockname()[1])
    with TemporaryDirectory() as folder:
        command = [program, "--port", str(redis.port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + START_TIMEOUT
            while time.monotonic() < until:
                try:
                    redis.ask("PING")
                    break
                except OSError:
                    time.sleep(0.05)
            yield redis
        finally:
            process.kill()
            process.wait()


def count_trips(redis: Redis, port: int, sessions: tuple[str, ...]) -> float:
    """Round trips of one call, over many."""
    connection = open_connection(port)
    before = redis.scripts()
    for _ in range(MANY):
        ask(connection, call("visit", {}, sessions=sessions))
    connection.close()
    return (redis.scripts() - before) / MANY


def measure(options: Options) -> Report:
    """Compare the two, by sessions that take turns."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        print("no redis-server on PATH: nothing to measure", file=sys.stderr)
        return Report({}, [])
    with serve_redis(program) as redis:
        shared = callboard()._replace(name="redis", environment={"BENCH_STORE": f"redis://127.0.0.1:{redis.port}/0", "BENCH_STATE": "1"})
        own = callboard()._replace(name="memory", environment={"BENCH_STATE": "1"})
        with serving([own, shared], mode="session-json") as processes:
            sessions = {name: open_sessions(process, MANY) for name, process in processes.items()}
            trips = count_trips(redis, processes["redis"].port, sessions["redis"])
            targets = {name: (process, call("visit", {}, sessions=sessions[name])) for name, process in processes.items()}
            rows = compare(targets, options)
    print(f"a call over Redis takes {ratio(rows, 'redis', 'memory'):.3g} times the CPU of one in memory")
    return Report(rows, [Bound("round trips to Redis per call", trips, TRIPS + 0.05)])


if __name__ == "__main__":
    run_claim(measure)
