"""Servers as processes of their own, on free loopback ports."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STARTUP = 20.0  # seconds until a server must listen


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 that nobody uses right now."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Starts a program.

    The kernel of some virtual machines fails an exec now and then with EFAULT, whatever the program (26 of 1,320 tests failed so once, in
    one burst; most runs have none): nothing has happened then, and it is tried again.
    """
    for pause in (0.05, 0.5, 2.0):
        try:
            return subprocess.Popen(command, **options)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
        time.sleep(pause)
    return subprocess.Popen(command, **options)


@contextmanager
def process(command: Sequence[str], log: Path, *, cwd: Path = HERE) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a program; ends it, and what it started, when the block is left."""
    with log.open("wb") as output:
        started = spawn(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
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


@contextmanager
def program(script: str, log: Path, *options: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Runs a server program of this folder, `python SCRIPT PORT [OPTIONS]`, on a free port; gives both.

    Args:
        script: Its file's name.
        log: What it prints goes there.
        *options: Its other words.
    """
    port = free_port()
    with process([sys.executable, str(HERE / script), str(port), *options], log) as started:
        wait_until_listening(started, port, log)
        yield started, port
