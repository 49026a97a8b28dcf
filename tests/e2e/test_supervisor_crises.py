"""A supervisor whose workers hang, die or can't be started at the worst moment. They are small programs that only say how they are."""

import asyncio
import ctypes
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from callboard.supervisor import Supervisor

LIMIT = 30.0
# What a worker is, as `WorkerLink` has it; how it behaves depends on the words of its order of birth, in a file.
WORKER = """
import os, signal, socket, sys, time
folder = sys.argv[1]
ways = open(f"{folder}/ways").read().split()
born = len(os.listdir(f"{folder}/born"))
open(f"{folder}/born/{os.getpid()}", "w").close()
way = ways[min(born, len(ways) - 1)]
if way.startswith("refuses"):
    sys.exit(int(way[7:]))
line = socket.socket(fileno=int(os.environ["CALLBOARD_WORKER"].split(":")[1]))
line.send(b"loaded\\n")
if way == "fails":
    sys.exit(3)
if way == "never":
    time.sleep(60)
line.send(b"ok\\n")
word = b"draining\\n" if "drains" in way else b"ok\\n"
if "stays" in way:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "parent" in way and not (child := os.fork()):
    time.sleep(60)
if "parent" in way:
    open(f"{folder}/child", "w").write(str(child))
line.settimeout(0.2)
while True:
    if "hangs" in way:
        time.sleep(60)
    try:
        if line.recv(100) in {b"", b"retire\\n"} and "stays" not in way:
            os._exit(0)
    except TimeoutError:
        line.send(word)
"""


class Scene(NamedTuple):
    """A supervisor that runs in this process.

    Attributes:
        folder: Where its workers leave their marks.
        running: Ends with its exit code.
    """

    folder: Path
    running: "asyncio.Task[int]"

    @property
    def born(self) -> list[int]:
        """Its workers that have begun, dead ones too."""
        return [int(path.name) for path in (self.folder / "born").iterdir()]

    @property
    def alive(self) -> list[int]:
        """Those that live."""
        return [each for each in self.born if lives(each)]


def lives(process_id: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


@asynccontextmanager
async def play(
    folder: Path, ways: str, caplog: pytest.LogCaptureFixture, *, workers: int = 1, hang: int = 60, adopts: bool = False
) -> AsyncIterator[Scene]:
    """Runs a supervisor, whose workers behave as the words say, one for each birth; nobody is left afterwards."""
    caplog.set_level("INFO", logger="callboard")
    (folder / "born").mkdir()
    (folder / "ways").write_text(ways)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-I", "-S", "-c", WORKER, str(folder)]
        made = Supervisor(command, [listening], workers=workers, grace=0.1, probes=[], hang=hang, adopts=adopts)
        scene = Scene(folder, asyncio.create_task(made.run()))
        try:
            await until(lambda: len(scene.born) >= workers)
            await asyncio.sleep(0.1)  # until its word has come
            yield scene
        finally:
            if not scene.running.done():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(LIMIT):
                await scene.running
            assert not scene.alive


@pytest.mark.parametrize(("ways", "code", "births", "said"), [("refuses2", 2, 1, 0), ("refuses1", 1, 1, 1), ("fails", 1, 3, 1)])
async def test_workers_that_never_come_up(
    ways: str, code: int, births: int, said: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who can't load the program has said why, and is the only one; who loads it and fails later gets three tries."""
    async with play(tmp_path, ways, caplog) as scene:
        async with asyncio.timeout(LIMIT):
            assert await scene.running == code
        assert len(scene.born) == births
        assert caplog.text.count("No worker came up") == said
    assert "have ended" not in caplog.text, "what is wrong is the last word"


async def test_a_program_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with asyncio.timeout(LIMIT):
            assert await Supervisor(["./no such program"], [listening], workers=2, grace=0.1, probes=[]).run() == 1
    assert caplog.text.count("A worker can't be started: No such file or directory.") == 3


async def test_a_worker_that_hangs_is_killed_with_what_it_started_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with play(tmp_path, "hangs,parent well", caplog, hang=2) as scene:
        (hung,) = scene.born
        await until(lambda: len(scene.born) == 2)
        assert not lives(hung)
        assert not lives(int((tmp_path / "child").read_text()))
        assert f"Worker {hung} has hung for 2 seconds: it is killed." in caplog.text
        await asyncio.sleep(2.5)  # who says something lives on
        assert len(scene.alive) == 1


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans below this process become its children, as if it were the first of a container."""
    prctl, set_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_subreaper, 1)
    yield
    prctl(set_subreaper, 0)


async def test_what_a_worker_that_was_killed_has_started_does_not_keep_the_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with adopting():
        async with play(tmp_path, "parent well", caplog, adopts=True) as scene:
            await until((tmp_path / "child").exists)
            os.kill(scene.born[0], signal.SIGKILL)
            await until(lambda: len(scene.born) == 2)
            # Nor is it left a zombie, where the supervisor is the first process of a container.
            await until(lambda: not Path("/proc", (tmp_path / "child").read_text()).exists())


async def test_a_second_signal_does_not_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Workers that would end in their own time, or never, are killed."""
    async with play(tmp_path, "stays", caplog, workers=2) as scene:
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert len(scene.alive) == 2
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(LIMIT):
            assert await scene.running == 0
        assert time.monotonic() - began < 4  # the grace and its patience would be more
    said = [record.getMessage() for record in caplog.records if record.name == "callboard"]
    assert said[:2] == ["Told to stop: 2 workers drain, and get 0.1 s for what runs.", "Told to stop again: all workers are killed."]
    assert said[2].startswith("All 2 workers have ended, after ")
    assert len(said) == 3


async def test_the_end_does_not_wait_for_a_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with play(tmp_path, "well never", caplog) as scene:
        for _ in range(5):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.02)
        await until(lambda: len(scene.alive) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(LIMIT):
            assert await scene.running == 0


async def test_who_takes_over_and_dies_is_replaced_while_the_old_one_drains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with play(tmp_path, "stays well", caplog) as scene:
        (old,) = scene.born
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "takes over from" in caplog.text)
        (fresh,) = set(scene.born) - {old}
        os.kill(fresh, signal.SIGKILL)
        await until(lambda: len(scene.born) == 3)
        assert lives(old)


async def test_who_is_told_to_end_by_an_operator_is_replaced_while_it_drains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with play(tmp_path, "drains,stays well", caplog) as scene:
        await until(lambda: len(scene.alive) == 2)
        await until(lambda: "has been told to end: another one is started." in caplog.text)


@contextmanager
def few_descriptors() -> Iterator[None]:
    """No more open files than there are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    with suppress(OSError):
        while True:
            taken.append(os.dup(0))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for each in taken:
        os.close(each)


async def test_a_reload_that_can_t_start_a_worker_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with play(tmp_path, "well", caplog) as scene:
        with few_descriptors():
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "the reload ends here, and those that serve go on" in caplog.text)
        assert len(scene.alive) == 1
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "All 1 workers have been replaced." in caplog.text)
