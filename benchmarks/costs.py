"""Measure what `benchmarks.capacity` reckons with: CPU, memory and bytes of each kind of work, for a worker and for its Redis.

    python -m benchmarks.costs                 # writes benchmarks/costs.json, takes some minutes
    python -m benchmarks.costs --rounds 1 --seconds 1 --to /tmp/costs.json

CPU is told in microseconds and in floors: a floor is what one call costs on the raw floor (benchmarks/floors), asked in turns with all others, so
that a busy machine, or another one, changes the microseconds and hardly the floors. Linux only (/proc). Needs redis-server on PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import copies, load
from benchmarks.claims import session_cycle
from benchmarks.claims.shared_session import Redis, serve_redis
from benchmarks.contenders import LOAD_CORE, Contender, Process, callboard, on_core, raw_floor
from benchmarks.environments import ROOT
from benchmarks.harness import open_sessions, prepare_machine
from benchmarks.legacy_traffic import HEADERS, call, initialize, initialized
from benchmarks.link_costs import publish, weigh_readers, weigh_tls
from benchmarks.meters import Meters, ask_numbers, cpu_seconds, spread
from benchmarks.traffic import TIMEOUT, Exchange, Listener, ask, open_connection, wire_bytes
from benchmarks.traffic import call as modern_call
from callboard.legacy.stored_scripts import LOOK, RELEASE, TAKE_PLACE
from callboard.stores.redis import RedisStore, Script

COSTS = Path(__file__).with_name("costs.json")
CONNECTIONS = 16
SESSIONS = 256
PARTS = ("streams", "idle", "index", "bus", "tls", "bytes", "requests")  # memory first: what was freed is not seen when it is taken again
IDLE = 8_000  # idle sessions that are weighed; a server takes 10,000 unless told
STREAMS = 500
CHANGES = 10
MESSAGES = 5_000
PACED = 200  # messages of the Bus, one every few milliseconds
QUIET = 8.0  # seconds of nothing, to see what that costs
STREAM_ONLY = {"Accept": "text/event-stream"}
HELLO = {"text": "hello world"}

INDEX = 1_000_000  # sessions in the index that is looked at
PLACES = 5_000
FILL = Script("""
for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do redis.call('ZADD', KEYS[1], 1e13 + i, string.format('%022x someone', i)) end
""")

Run = Callable[..., load.Load]


class Work(NamedTuple):
    """One kind of request.

    Attributes:
        process: Who answers.
        run: What asks, given `seconds`.
    """

    process: Process
    run: Run


def take_turns(works: dict[str, Work], meters: Meters, rounds: int, seconds: float) -> dict[str, Any]:
    """CPU of each kind of request, in turns; the first, `floor`, is what the others are told in.

    Raises:
        RuntimeError: A request failed.
    """
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            before = meters.read(work.process)
            seen = work.run(seconds=seconds)
            if seen.failed:
                raise RuntimeError(f"{name}: {seen.failed} of {seen.requests} requests failed")
            after = meters.read(work.process)
            if number:  # the first turn warms up
                runs[name].append({what: (after[what] - before[what]) / seen.requests for what in after})
        print(f"round {number} of {rounds}", file=sys.stderr)
    floor = [run["worker"] for run in runs["floor"]]
    return {
        name: {
            "worker_us": spread([run["worker"] * 1e6 for run in kept]),
            "redis_us": spread([run["redis"] * 1e6 for run in kept]),
            "worker_floors": spread([run["worker"] / ground for run, ground in zip(kept, floor, strict=True)]),
            "redis_floors": spread([run["redis"] / ground for run, ground in zip(kept, floor, strict=True)]),
            **{what: round(median(run[what] for run in kept), 2) for what in ("scripts", "redis_in", "redis_out")},
        }
        for name, kept in runs.items()
    }


def list_works(floor: Process, memory: Process, shared: Process, sessions: dict[str, tuple[str, ...]]) -> dict[str, Work]:
    """Every kind of request there is a price for."""
    modern = modern_call("aecho", HELLO)

    def asking(process: Process, exchange: Exchange, connections: int = CONNECTIONS) -> Work:
        return Work(process, partial(load.run, process.port, exchange, connections=connections))

    works = {
        "floor": asking(floor, modern),
        "modern": asking(memory, modern),
        "modern streamed": asking(memory, modern._replace(headers={**modern.headers, **STREAM_ONLY})),
    }
    for kind, process in (("memory", memory), ("redis", shared)):
        turns = sessions[kind]
        plain, visit = call("aecho", HELLO, sessions=turns), call("visit", {}, sessions=turns)
        progress = call("slow", {"n": 10}, sessions=turns, token="t")
        works |= {
            f"session, {kind}": asking(process, plain),
            f"state, {kind}": asking(process, visit),
            f"state, {kind}, one at a time": asking(process, visit, 1),
            f"streamed, {kind}": asking(process, plain._replace(headers={**plain.headers, **STREAM_ONLY})),
            f"ten events, {kind}": asking(process, progress),
            f"life of a session, {kind}": Work(process, partial(live, process)),
        }
    return works


def live(process: Process, *, seconds: float) -> load.Load:
    """Whole sessions; a request of the count is a session: initialize, initialized, one call, DELETE."""
    seen = session_cycle.run(process, seconds=seconds)
    return seen._replace(requests=seen.requests // 4)


def count_bytes(process: Process, exchange: Exchange) -> dict[str, int]:
    """Bytes of one request and its answer on the wire, without TLS and TCP."""
    request = wire_bytes(exchange, process.port, session=exchange.sessions[0] if exchange.sessions else "")
    with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as peer:
        peer.sendall(request)
        answer = b""
        while b"}}" not in answer[answer.find(b"\r\n\r\n") :]:
            answer += peer.recv(65_536)
    return {"request": len(request), "answer": len(answer)}


def rss_bytes(process: Process) -> int:
    """Resident memory, once it is quiet."""
    time.sleep(1.0)
    return process.rss_kb() * 1024


def open_many(process: Process, many: int) -> tuple[str, ...]:
    """Sessions, opened on several connections at once."""
    left, ids = [many], list[str]()

    def say() -> load.Script:
        while True:
            if left[0] <= 0:
                answer = yield wire_bytes(modern_call("aecho", HELLO), process.port)
                continue
            left[0] -= 1
            answer = yield wire_bytes(initialize(), process.port)
            found = session_cycle.SESSION_ID.search(answer)
            if found is None:
                raise RuntimeError(f"no session: {answer!r}")
            ids.append(found[1].decode())
            yield wire_bytes(initialized(), process.port, session=ids[-1])

    while left[0] > 0:  # what is under way at the end of a turn is opened, and not counted
        load.run_sockets(process.port, say, 8, 1.0)
    return tuple(ids)


def visit_all(process: Process, sessions: tuple[str, ...]) -> None:
    """One call in each session, sixteen at once."""

    def visit(mine: tuple[str, ...]) -> None:
        with socket.create_connection(("127.0.0.1", process.port), TIMEOUT) as peer:
            for session in mine:
                peer.sendall(wire_bytes(call("aecho", HELLO), process.port, session=session))
                if not peer.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("A call in a session of another worker failed.")

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(visit, (sessions[number::CONNECTIONS] for number in range(CONNECTIONS))))


def watch_quiet(process: Process, meters: Meters) -> dict[str, float]:
    """CPU per second while nothing is asked, in microseconds."""
    before = meters.read(process)
    time.sleep(QUIET)
    after = meters.read(process)
    return {what: (after[what] - before[what]) / QUIET * 1e6 for what in ("worker", "redis")}


def broadcast(teller: Process, hearer: Process, meters: Meters) -> dict[str, float]:
    """CPU in microseconds of one list_changed, told by one worker and heard by another."""
    connection = open_connection(teller.port)
    time.sleep(1.0)
    before = meters.read(hearer)
    begin = time.monotonic()
    for _ in range(CHANGES):
        ask(connection, modern_call("broadcast", {}))
        time.sleep(0.3)
    time.sleep(1.0)
    took = time.monotonic() - begin
    after = meters.read(hearer)
    connection.close()
    return {"took": took, **{what: (after[what] - before[what]) * 1e6 / CHANGES for what in ("worker", "redis", "scripts")}}


def weigh_sessions(first: Process, other: Process, meters: Meters) -> dict[str, Any]:
    """Idle sessions: what one takes in the Redis and in each worker that has served it."""
    empty, told = watch_quiet(other, meters), broadcast(first, other, meters)
    stored, one, two = ask_numbers(meters.redis, "memory")["used_memory"], rss_bytes(first), rss_bytes(other)
    sessions = open_many(first, IDLE)
    here = (rss_bytes(first) - one) / IDLE
    before = meters.read(other)
    visit_all(other, sessions)
    after = meters.read(other)
    copied = (rss_bytes(other) - two) / IDLE
    used = (ask_numbers(meters.redis, "memory")["used_memory"] - stored) / IDLE
    ended = asyncio.run(copies.measure(IDLE))
    key = meters.redis.ask("EVAL", "\"return redis.call('SCAN',0,'MATCH','*session:*','COUNT',1000)[2][1]\"", "0").split(b"\r\n")[1]
    usage = int(re.search(rb":(\d+)", meters.redis.ask("MEMORY", "USAGE", key.decode()))[1])  # type: ignore[index]
    return {
        "sessions": IDLE,
        "redis_bytes": used,
        "redis_key_bytes": usage,
        "opener_bytes": here,
        "copy_bytes": copied,
        "first_call_us": (after["worker"] - before["worker"]) / IDLE * 1e6,
        "first_call_redis_us": (after["redis"] - before["redis"]) / IDLE * 1e6,
        "quiet_us": empty["worker"],
        "quiet_redis_us": empty["redis"] / 2,  # two workers are there
        "forget_us": ended[copies.FORGOTTEN] + ended[copies.NEXT],
        "change_us": told["worker"] - empty["worker"] * told["took"] / CHANGES,
    }


def open_streams(process: Process, sessions: Sequence[str]) -> Iterator[socket.socket]:
    """GET streams, one in each session."""
    for session in sessions:
        peer = socket.create_connection(("127.0.0.1", process.port), TIMEOUT)
        peer.sendall(wire_bytes(Exchange({**HEADERS, **STREAM_ONLY}, b""), process.port, method="GET", session=session))
        head = peer.recv(65_536)
        if b" 200 " not in head[:20]:
            raise RuntimeError(f"GET: {head[:300]!r}")
        yield peer


def weigh_streams(first: Process, other: Process, meters: Meters, quiet: dict[str, float]) -> dict[str, Any]:
    """Open streams of both kinds: memory, and what an event for each costs."""
    found: dict[str, Any] = {"streams": STREAMS}
    sessions = open_sessions(first, STREAMS)
    kinds: dict[str, Callable[[], list[Any]]] = {
        "listen": lambda: [Listener(other.port, number) for number in range(STREAMS)],
        "get": lambda: list(open_streams(other, sessions)),
    }
    base, before = broadcast(first, other, meters), list[Any]()
    for kind, begin in kinds.items():
        weight = rss_bytes(other)
        peers = begin()
        found[f"{kind}_bytes"] = (rss_bytes(other) - weight) / STREAMS
        for peer in before:  # only now: what they took would be taken again, and not be seen
            peer.close()
        time.sleep(1.0)
        before = peers
        idle = watch_quiet(other, meters)
        told = broadcast(first, other, meters)
        more = {what: (idle[what] - quiet[what]) * told["took"] / CHANGES for what in ("worker", "redis")}
        found[f"{kind}_quiet_us"] = (idle["worker"] - quiet["worker"]) / STREAMS
        found[f"{kind}_event_us"] = (told["worker"] - base["worker"] - more["worker"]) / STREAMS
        found[f"{kind}_event_redis_us"] = (told["redis"] - base["redis"] - more["redis"]) / STREAMS
    for peer in before:
        peer.close()
    return found


async def use_index(url: str, meters: Meters) -> dict[str, float]:
    """The index of sessions with a million members: what a place in it takes, and a look at it."""
    store = RedisStore(url, timeout=60.0)
    store.name("index")
    await store.open()
    index = (store.key("sessions", "{index}", "due"), store.key("sessions", "{index}", "owners"))
    stored = ask_numbers(meters.redis, "memory")["used_memory"]
    for first in range(0, INDEX, INDEX // 100):
        await store.run(FILL, index, (first, INDEX // 100))
    found = {"members": float(INDEX), "bytes": (ask_numbers(meters.redis, "memory")["used_memory"] - stored) / INDEX}

    async def time_of(what: Callable[[int], Awaitable[object]]) -> float:
        before = cpu_seconds(meters.pid)
        for first in range(0, PLACES, 50):
            await asyncio.gather(*(what(number) for number in range(first, first + 50)))
        return (cpu_seconds(meters.pid) - before) / PLACES * 1e6

    found["place_us"] = await time_of(lambda number: store.run(TAKE_PLACE, index, (f"new{number} o", "o", 10**9, 10**9, 300_000)))
    found["place_us"] += await time_of(lambda number: store.run(RELEASE, index, (f"new{number} o", "o")))
    found["look_us"] = await time_of(lambda _: store.run(LOOK, index, (100,)))
    found["command_us"] = await time_of(lambda _: store.execute("GET", "k"))
    await store.execute("UNLINK", *index)
    await store.close()
    return found


class Stage:
    """Everybody who is measured, running.

    Args:
        redis: The Redis.
        start: Starts a server.
    """

    def __init__(self, redis: Redis, start: Callable[..., Process]) -> None:
        self.url = f"redis://127.0.0.1:{redis.port}/0"
        self.meters = Meters(redis)
        self.floor, self.memory = start(raw_floor()), start(callboard(), BENCH_STATE="1")
        self.shared, self.twin = (start(callboard(), BENCH_STATE="1", BENCH_STORE=self.url) for _ in range(2))

    def measure_idle(self) -> dict[str, Any]:
        """Idle sessions."""
        return weigh_sessions(self.shared, self.twin, self.meters)

    def measure_index(self) -> dict[str, Any]:
        """The index of all sessions."""
        return asyncio.run(use_index(self.url, self.meters))

    def measure_streams(self) -> dict[str, Any]:
        """Open streams."""
        return weigh_streams(self.shared, self.twin, self.meters, watch_quiet(self.twin, self.meters))

    def measure_bus(self) -> dict[str, Any]:
        """Messages that are told to every worker: many at once, and one at a time."""
        quiet = watch_quiet(self.twin, self.meters)
        fast = publish(self.url, MESSAGES, 0.0, self.twin, self.meters, quiet)
        slow = publish(self.url, PACED, 0.01, self.twin, self.meters, quiet)
        heard = weigh_readers(self.meters)
        return {**heard, "many_us": fast["worker"], "many_redis_us": fast["redis"], "one_us": slow["worker"], "one_redis_us": slow["redis"]}

    def measure_tls(self) -> dict[str, Any]:
        """Calls and connections with TLS."""
        return weigh_tls(self.memory, 3)

    def measure_bytes(self) -> dict[str, Any]:
        """What a request and its answer have."""
        sessions = open_sessions(self.shared, 1)
        examples = {"modern": modern_call("aecho", HELLO), "session": call("visit", {}, sessions=sessions)}
        return {name: count_bytes(self.shared, exchange) for name, exchange in examples.items()}

    def measure_requests(self, rounds: int, seconds: float) -> dict[str, Any]:
        """Requests of every kind."""
        sessions = {"memory": open_sessions(self.memory, SESSIONS), "redis": open_sessions(self.shared, SESSIONS)}
        return take_turns(list_works(self.floor, self.memory, self.shared, sessions), self.meters, rounds, seconds)


def measure(parts: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    """What was asked for.

    Args:
        parts: Of `PARTS`.
        rounds: Turns of each kind of request.
        seconds: Length of a turn.
    """
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        sys.exit("There is no redis-server on PATH.")
    found: dict[str, Any] = {}
    with ExitStack() as stack:

        def start(contender: Contender, **more: str) -> Process:
            process = Process(contender, BENCH_MODE="session-json", BENCH_TTL="3600", **more)
            stack.callback(process.stop)
            return process

        stage = Stage(stack.enter_context(serve_redis(program)), start)
        for part in parts:
            arguments = (rounds, seconds) if part == "requests" else ()
            found[part] = getattr(stage, f"measure_{part}")(*arguments)
            print(part, rounded(found[part]), file=sys.stderr)
    return found


def describe(rounds: int, seconds: float) -> dict[str, Any]:
    """When, with what and on what it was measured."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "rounds": rounds,
        "seconds": seconds,
    }


def rounded(value: Any) -> Any:
    """Four digits are more than is known."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Measure, and keep it."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind of request (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (2)")
    parser.add_argument("--to", type=Path, default=COSTS, help="file to write")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to measure; the file keeps the others ({','.join(PARTS)})")
    given = parser.parse_args()
    prepare_machine()
    about = describe(given.rounds, given.seconds)
    with on_core(LOAD_CORE):
        found = {"about": about, **measure(given.only.split(","), given.rounds, given.seconds)}
    if given.to.exists():
        found = {**json.loads(given.to.read_text(encoding="utf-8")), **found}
    given.to.write_text(json.dumps(rounded(found), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rounded(found), indent=1))


if __name__ == "__main__":
    main()
