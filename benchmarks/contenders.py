"""The servers that are compared, and their processes: where they run, what CPU time and memory they take. Linux only (/proc)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.environments import ROOT, interpreter

HERE = Path(__file__).resolve().parent
FLOORS = HERE / "floors"
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
SERVER_CORE, LOAD_CORE = 0, 1
START_TIMEOUT = 60.0
STOP_TIMEOUT = 5.0


class Contender(NamedTuple):
    """One server program.

    Attributes:
        name: What tables call it.
        command: How to start it.
        environment: Environment variables of its own.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}


def callboard() -> Contender:
    """This project."""
    return Contender("callboard", (sys.executable, str(HERE / "server.py")))


def callboard_plain() -> Contender:
    """This project's ASGI application on uvicorn as everybody has it."""
    return callboard()._replace(name="callboard, plain uvicorn", environment={"BENCH_PLAIN": "1"})


def mcp_high() -> Contender:
    """The official SDK's `MCPServer`."""
    return Contender("mcp-high", (interpreter("v-mcp"), str(HERE / "peers" / "mcp_high.py")))


def fastmcp() -> Contender:
    """The fastmcp framework."""
    quiet = {"FASTMCP_LOG_LEVEL": "WARNING", "FASTMCP_SHOW_SERVER_BANNER": "false"}
    return Contender("fastmcp", (interpreter("v-fastmcp"), str(HERE / "peers" / "fastmcp_high.py")), quiet)


def raw_floor(folder: Path = FLOORS) -> Contender:
    """The least that an ASGI application can do.

    Args:
        folder: Where `floor_asgi.py` lies; another project's floors serve as well.
    """
    return Contender("asgi", (sys.executable, str(folder / "floor_asgi.py")))


def real_floor(folder: Path = FLOORS) -> Contender:
    """The floor with every duty of a conforming server."""
    return Contender("real", (sys.executable, str(folder / "floor_asgi.py")), {"BENCH_REAL": "1"})


def environment(contender: Contender, **more: str) -> dict[str, str]:
    """Environment variables for a contender's process: few and the same for all.

    Args:
        contender: Whose.
        more: Further variables, such as `BENCH_MODE`; see `floors/data.py`.
    """
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}}
    own = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "BENCH_MODE": "stateless-json"}
    return {**kept, **own, **contender.environment, **more}


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """This process, and children started here, run on one core; without effect where there is no such core."""
    if core not in CORES:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Process:
    """A contender that serves HTTP.

    Args:
        contender: What to start.
        options: Environment variables beside its own.

    Attributes:
        port: Its port on 127.0.0.1.
        pid: Its process id.
    """

    def __init__(self, contender: Contender, **options: str) -> None:
        self.name = contender.name
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long-lived as the process
        with on_core(SERVER_CORE):
            self._process = subprocess.Popen(
                contender.command,
                env=environment(contender, PORT=str(self.port), **options),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=ROOT,
            )
        self.pid = self._process.pid
        self._await_start()

    def _await_start(self) -> None:
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        self.stop()
        self._log.seek(0)
        raise RuntimeError(f"{self.name} did not start:\n{self._log.read().decode(errors='replace')}")

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT)

    def cpu_seconds(self) -> float:
        """User and system time so far, children included."""
        return cpu_seconds(self.pid)

    def rss_kb(self) -> int:
        """Resident memory, children included."""
        return rss_kb(self.pid)

    def descriptors(self) -> int:
        """How many file descriptors the process holds."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in family(int(child)))]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all below it."""
    ticks = 0
    for member in family(pid):
        fields = Path(f"/proc/{member}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def rss_kb(pid: int) -> int:
    """Resident memory of a process and all below it, in KiB."""
    total = 0
    for member in family(pid):
        status = Path(f"/proc/{member}/status").read_text(encoding="latin-1")
        total += int(status.partition("VmRSS:")[2].split()[0])
    return total
