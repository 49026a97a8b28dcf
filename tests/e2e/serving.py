"""Servers as processes of their own, on free loopback ports."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "real_clients"
STARTUP = 20.0  # seconds until a server must listen


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 that nobody uses right now."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: Sequence[str], log: Path, *, cwd: Path = PEERS) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a program; ends it, and what it started, when the block is left."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield started
        finally:
            end(started)


def end(started: "subprocess.Popen[bytes]") -> None:
    """Ends a process that leads a session: first by request, then by force, with all that it started."""
    started.terminate()
    with suppress(subprocess.TimeoutExpired):
        started.wait(3)
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait(10)


def wait_until_listening(started: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Returns once a port takes connections.

    Raises:
        AssertionError: The process ended first, or time ran out; the text holds what it printed.
    """
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline and started.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            try:
                started.wait(0.02)  # a pause that the process's end cuts short
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise AssertionError(f"{started.args!r} does not listen on {port}:\n{log.read_text(errors='replace')}")
