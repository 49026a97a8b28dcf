"""CPU of one command of the store in Redis, beside redis-py by itself: at most a quarter with 50 callers at once, less than it with one.

Both are asked in turns, over the same loopback, in this process; what the Redis itself takes is not counted.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.claims.shared_session import Redis, serve_redis
from benchmarks.harness import Bound, Options, Report, medians, ratio, run_claim
from callboard.stores.redis import RedisStore, Script

CALLERS = 50
COMMANDS = 4000  # in one turn
SOURCE = "return redis.call('GET', KEYS[1])"
ARGUMENT = b"x" * 200
Ask = Callable[[], Awaitable[object]]


async def take_turn(ask: Ask, callers: int) -> dict[str, float]:
    """CPU and time per command, in microseconds."""

    async def call() -> None:
        for _ in range(COMMANDS // callers):
            await ask()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return {"cpu_us": (time.process_time() - cpu) / COMMANDS * 1e6, "us": (time.perf_counter() - wall) / COMMANDS * 1e6}


async def compare(redis: Redis, rounds: int) -> dict[str, dict[str, float]]:
    """All of them, in turns."""
    from redis.asyncio import Redis as Client

    url = f"redis://127.0.0.1:{redis.port}/0"
    store, client = RedisStore(url, timeout=10.0), Client.from_url(url, protocol=2)
    await store.open()
    ours, theirs = Script(SOURCE), client.register_script(SOURCE)
    asked: dict[str, Ask] = {
        "store, script": lambda: store.run(ours, ("k",), (ARGUMENT,)),
        "redis-py, script": lambda: theirs(keys=["k"], args=[ARGUMENT]),
        "store, get": lambda: store.execute("GET", "k"),
        "redis-py, get": lambda: client.get("k"),
    }
    runs: dict[str, list[dict[str, float]]] = {f"{name}, {callers} at once": [] for callers in (1, CALLERS) for name in asked}
    for number in range(rounds + 1):
        for callers in (1, CALLERS):
            for name, ask in asked.items():
                taken = await take_turn(ask, callers)
                if number:  # the first one opens connections
                    runs[f"{name}, {callers} at once"].append(taken)
    await store.close()
    await client.aclose()
    return {name: medians(taken) for name, taken in runs.items()}


def measure(options: Options) -> Report:
    """Compare them with one caller and with many."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        sys.exit("There is no redis-server on PATH.")
    with serve_redis(program) as redis:
        rows = asyncio.run(compare(redis, options.rounds))
    return Report(
        rows,
        [
            Bound(
                f"CPU per {kind}, {callers} at once, store / redis-py",
                ratio(rows, f"store, {kind}, {callers} at once", f"redis-py, {kind}, {callers} at once"),
                limit,
            )
            for kind in ("script", "get")
            for callers, limit in ((1, 1.0), (CALLERS, 0.25))
        ],
    )


if __name__ == "__main__":
    run_claim(measure)
