"""Several workers, one Redis, no stickiness: what happens to sessions where workers die and the Redis goes away."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from e2e.fleet_load import Load
from e2e.serving import process
from redis_server import Proxy, RedisServer, require_program

PROGRAM = Path(__file__).parent / "fleet_program.py"
SESSIONS, READERS = 1_000, 40
LIMIT = 60.0


def children(pid: int) -> list[int]:
    """Processes that a process has started and that run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


class Fleet:
    """`callboard run` with workers.

    Attributes:
        pid: Of the supervisor.
        url: Of the endpoint.
    """

    def __init__(self, pid: int, url: str, log: Path) -> None:
        self.pid = pid
        self.url = url
        self.log = log

    def workers(self) -> list[int]:
        """Their process ids: those that say so in the log and still run."""
        return [pid for pid in children(self.pid) if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


@contextmanager
def serve(workers: int, store: str, folder: Path) -> Iterator[Fleet]:
    """A fleet that serves."""
    log = folder / "log"
    command = [sys.executable, "-m", "callboard", "run", str(PROGRAM), "--port", "0", "--workers", str(workers), "--store", store]
    with process([*command, "--grace", "5"], log) as started:
        until = time.monotonic() + LIMIT
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/mcp", log.read_text())):
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        while log.read_text().count("Application startup complete") < workers:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield Fleet(started.pid, found[0], log)


@asynccontextmanager
async def under_load(fleet: Fleet, sessions: int) -> AsyncIterator[Load]:
    """Calls and readers, until the block is left; then everything is checked."""
    over, heard = asyncio.Event(), asyncio.Event()
    async with Load(fleet.url) as load:
        await load.open(sessions)
        await load.round(load.sessions)
        assert load.calls == sessions
        reading = [asyncio.create_task(load.read(session, heard)) for session in load.sessions[1 : READERS + 1]]
        for _ in range(600):
            if sum(reader.opened for reader in load.readers) >= READERS:
                break
            await asyncio.sleep(0.05)
        working = [asyncio.create_task(load.keep_calling(over)), asyncio.create_task(load.keep_telling(over))]
        try:
            yield load
            over.set()
            await asyncio.gather(*working)
            before = sum(load.errors.values())
            await load.round(load.sessions)  # every session goes on
            assert sum(load.errors.values()) == before, load.errors
            await load.heard_all()
            load.check_readers()
            assert "TimeoutError" not in load.errors, load.errors
            assert not any(session.lost for session in load.sessions)
            assert len(load.told) >= 5
        finally:
            over.set()
            heard.set()
            for task in (*working, *reading):
                task.cancel()
            await asyncio.gather(*working, *reading, return_exceptions=True)


async def until_answers(load: Load, seconds: float = LIMIT) -> None:
    """Wait until calls are answered with results again."""
    end = time.monotonic() + seconds
    before = load.calls
    while load.calls < before + 50:
        assert time.monotonic() < end, load.errors
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("workers", [2, 4])
async def test_a_worker_dies_and_every_session_goes_on(workers: int, tmp_path: Path) -> None:
    # A01, SA40
    require_program()
    with RedisServer() as redis, serve(workers, redis.url, tmp_path) as fleet:
        async with under_load(fleet, SESSIONS) as load:
            assert len(load.workers) == workers
            victim = fleet.workers()[0]
            await asyncio.sleep(1.0)
            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(1.0)
            await until_answers(load)
            await asyncio.sleep(2.0)
        assert victim not in fleet.workers()
        assert set(load.errors) <= {"ServerDisconnectedError", "ClientOSError", "ClientConnectorError", "stream: ClientPayloadError"} | {
            name for name in load.errors if name.startswith("stream: ")
        }, load.errors


def restart(redis: RedisServer, _proxy: Proxy) -> None:
    """Redis ends and begins anew, with what it has written down."""
    redis.restart(kill=True)


def part(_redis: RedisServer, proxy: Proxy) -> None:
    """Nothing gets to Redis for five seconds, and nobody is told."""
    proxy.stall()
    time.sleep(5.0)
    proxy.restore()


@pytest.mark.parametrize("fault", [restart, part])
async def test_the_store_goes_and_comes_back(fault: Callable[[RedisServer, Proxy], None], tmp_path: Path) -> None:
    require_program()
    with (
        RedisServer(appendonly="yes", appendfsync="always") as redis,
        Proxy(redis.port) as proxy,
        serve(2, proxy.url, tmp_path) as fleet,
    ):
        async with under_load(fleet, SESSIONS // 5) as load:
            await asyncio.sleep(1.0)
            await asyncio.to_thread(fault, redis, proxy)
            await until_answers(load)
            await asyncio.sleep(1.0)
        assert all(name.startswith(("503 ", "stream: ", "200 The session's state")) for name in load.errors), load.errors
