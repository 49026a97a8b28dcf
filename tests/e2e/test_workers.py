"""`callboard run --workers`: several processes behind one port, as those who run them see it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e.drain_crowd import Line, call, listen, modern
from e2e.serving import free_port, process, wait_until_listening

LIMIT = 60.0
RUN = [sys.executable, "-m", "callboard", "run"]


class Fleet(NamedTuple):
    """A supervisor that runs.

    Attributes:
        started: Its process.
        port: Where its workers listen.
        health: Where it tells of them.
        log: What it and they have said.
    """

    started: "subprocess.Popen[bytes]"
    port: int
    health: int
    log: Path

    async def who(self) -> int:
        """A worker: the one that takes the next connection."""
        line = await Line.ask(self.port, "POST", *modern("tools/call", name="who", arguments={}))
        return int((await line.answer())["result"]["structuredContent"])

    async def workers(self, many: int, besides: frozenset[int] = frozenset()) -> frozenset[int]:
        """So many workers, asked until they have all answered: others than those that were there before."""
        found: set[int] = set()
        while len(found) < many:
            with suppress(OSError, asyncio.IncompleteReadError, KeyError):  # between two processes, and from one that ends
                found |= set(await asyncio.gather(*(self.who() for _ in range(8)))) - besides
        return frozenset(found)

    async def ready(self) -> tuple[int, dict[str, Any]]:
        """What the supervisor says of its workers."""
        line = await Line.ask(self.health, "GET", {}, path="/readyz")
        return await line.head(), await line.answer()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    port, health, log = free_port(), free_port(), tmp_path_factory.mktemp("fleet") / "log"
    words = ["drain_program.py:alone", "--port", str(port), "--workers", "2", "--health-port", str(health), "--grace", "20"]
    with process([*RUN, *words], log) as started:
        wait_until_listening(started, port, log)
        yield Fleet(started, port, health, log)


async def until(condition: Callable[[], bool], text: str) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)
    assert condition(), text


def lives(process_id: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False


async def test_all_workers_take_connections(fleet: Fleet) -> None:
    async with asyncio.timeout(LIMIT):
        assert len(await fleet.workers(2)) == 2
        assert await fleet.ready() == (200, {"status": "ok"})


async def test_a_worker_that_dies_is_replaced(fleet: Fleet) -> None:
    async with asyncio.timeout(LIMIT):
        before = await fleet.workers(2)
        (fallen, *_) = before
        os.kill(fallen, signal.SIGKILL)
        after = await fleet.workers(1, before)
        assert fallen not in await fleet.workers(2)
        assert len(after - before) == 1
    assert f"Worker {fallen} has ended (signal 9)" in fleet.log.read_text()


async def test_a_reload_replaces_one_after_the_other_and_fails_no_call(fleet: Fleet) -> None:
    """What runs ends, streams get their end, and whoever comes meanwhile is served."""
    async with asyncio.timeout(LIMIT):
        before = await fleet.workers(2)
        streams = [await listen(fleet.port) for _ in range(8)]
        running = [await call(fleet.port, 1.0) for _ in range(8)]
        fleet.started.send_signal(signal.SIGHUP)
        served: list[int] = []
        while not set(served) - before or len(set(served[-40:]) - before) < 2:
            served.append(await fleet.who())  # an error would be raised
            assert (await fleet.ready())[0] == 200
        assert [(await line.answer())["result"]["content"][0]["text"] for line in running] == ["lingered"] * 8
        ends = [await line.rest() for line in streams]
        assert all(heard.is_whole and "result" in heard.messages[-1] for heard in ends)
    await until(lambda: not any(map(lives, before)), "the old workers stay")
    await until(lambda: "All 2 workers have been replaced." in fleet.log.read_text(), "nobody says that it is done")


async def test_told_to_stop_it_leaves_nobody_behind(fleet: Fleet) -> None:
    """The last test of this fleet. # SA39"""
    async with asyncio.timeout(LIMIT):
        workers = await fleet.workers(2)
        running = [await call(fleet.port, 1.0) for _ in range(4)]
        await asyncio.sleep(0.3)  # until they have arrived
        for each in (*workers, fleet.started.pid):
            os.kill(each, signal.SIGTERM)  # as systemd does with KillMode=control-group: workers are told twice, and take their time
        answers = [(await line.rest()).messages[0] for line in running]
        assert [answer["result"]["content"][0]["text"] for answer in answers] == ["lingered"] * 4
    await until(lambda: fleet.started.poll() is not None, "the supervisor does not end")
    assert fleet.started.returncode == 0
    assert not any(map(lives, workers))
    assert "Traceback" not in fleet.log.read_text()


async def test_workers_of_a_supervisor_that_was_killed_end(tmp_path: Path) -> None:
    port, health, log = free_port(), free_port(), tmp_path / "log"
    with process([*RUN, "drain_program.py:alone", "--port", str(port), "--workers", "1", "--grace", "0.5"], log) as started:
        wait_until_listening(started, port, log)
        async with asyncio.timeout(LIMIT):
            workers = await Fleet(started, port, health, log).workers(1)
            running = await call(port, 60)
            await asyncio.sleep(0.3)  # until it has arrived
            started.kill()
            heard = await running.rest()
        assert heard.messages[0]["error"]["message"] == "The server is shutting down."
        await until(lambda: not any(map(lives, workers)), "workers stay behind")


def test_what_can_never_serve_is_said_once(tmp_path: Path) -> None:
    """The first worker loads the program, and is the one who says so; tests/e2e/test_supervisor_crises.py has other ways."""
    (tmp_path / "prog.py").write_text("from callboard import Server\nserver = Server('s')\n")
    words = [*RUN, "prog.py", "--workers", "2", "--port", str(free_port())]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (ran.returncode, ran.stderr.count("needs a store that all workers share")) == (2, 1), ran.stderr


@pytest.mark.parametrize("command", [[*RUN, "prog.py:app", "--workers", "2", "--port", "{port}"], [sys.executable, "prog.py", "{port}"]])
async def test_what_each_worker_would_say_is_said_once(tmp_path: Path, command: list[str]) -> None:
    """Once more after a reload, by the first of the new ones: their program may be another one."""
    (tmp_path / "prog.py").write_text(
        "import sys\nimport callboard\nfrom callboard import Server\nfrom callboard.telemetry import Prometheus\n"
        "server = Server('s', telemetry=Prometheus(path='/metrics'))\n"
        "if __name__ == '__main__':\n    callboard.run(server, workers=2, sessions='off', port=int(sys.argv[1]), access_log='text')\n"
        "app = callboard.asgi(server, sessions='off')\n"
    )
    port, log = free_port(), tmp_path / "log"
    with process([word.format(port=port) for word in command], log, cwd=tmp_path) as started:
        await until(lambda: log.read_text().count("serves MCP at") == 2, "they don't come up")
        assert log.read_text().count("Prometheus(path='/metrics') shows the numbers of one of 2 workers") == 1
        assert log.read_text().count("2 workers share no store") == 1
        started.send_signal(signal.SIGHUP)
        await until(lambda: "All 2 workers have been replaced." in log.read_text(), "nobody says that it is done")
        assert log.read_text().count("Prometheus(path='/metrics') shows the numbers of one of 2 workers") == 2
        started.send_signal(signal.SIGTERM)
        assert started.wait(LIMIT) == 0
    assert log.read_text().count("Told to stop: 2 workers drain, and get 30 s for what runs.") == 1
    assert log.read_text().count("All 2 workers have ended, after ") == 1


def test_a_program_starts_workers_of_its_own(tmp_path: Path) -> None:
    """`callboard.run(server, workers=1)` starts the program anew, wherever it has gone since, over a Unix socket that is gone afterwards."""
    path = tmp_path / "mcp.sock"
    (tmp_path / "prog.py").write_text(
        "import os\nimport callboard\nfrom callboard import Server\nserver = Server('s')\n"
        "os.chdir('/')\nos.close(0)\n"  # whose place no socket may take
        f"if __name__ == '__main__':\n    callboard.run(server, workers=1, sessions='off', uds={str(path)!r}, uds_mode=0o600)\n"
    )
    log = tmp_path / "log"
    with process([sys.executable, "prog.py"], log, cwd=tmp_path) as started:
        deadline = time.monotonic() + LIMIT
        while "serves MCP at" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(path))
            asking.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert asking.recv(4096).endswith(b'{"status":"ok"}')
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 0
    assert not path.exists()
    assert "Traceback" not in log.read_text()


async def test_a_reload_for_development_ends_streams_and_tells_calls(tmp_path: Path) -> None:
    """A55, SB-09: with `--reload` nobody is left waiting on a process that is gone."""
    program, port, log = tmp_path / "prog.py", free_port(), tmp_path / "log"
    source = (Path(__file__).parent / "drain_program.py").read_text()
    program.write_text(source)
    with process([*RUN, "prog.py:server", "--port", str(port), "--reload"], log, cwd=tmp_path) as started:
        wait_until_listening(started, port, log)
        async with asyncio.timeout(LIMIT):
            fleet = Fleet(started, port, port, log)
            before = await fleet.who()
            stream, running = await listen(port), await call(port, 60)
            await asyncio.sleep(0.3)  # until it has arrived
            program.write_text(source + "\n")
            heard = await stream.rest()
            assert heard.is_whole
            assert "result" in heard.messages[-1]
            assert (await running.rest()).messages[0]["error"]["message"] == "The server is shutting down."
            assert await fleet.workers(1, frozenset({before}))
