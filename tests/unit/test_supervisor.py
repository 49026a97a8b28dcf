"""When the next worker is started. That workers come, go and are replaced is shown in tests/e2e/test_workers.py."""

import os
import socket
import subprocess
import sys
from types import ModuleType

import pytest

import callboard
from callboard import Server
from callboard.errors import RegistrationError
from callboard.supervisor import FIRST_WAIT, LONG_LIFE, LONGEST_WAIT, delay_after
from callboard.transport.worker_link import VARIABLE, WorkerLink, describe_link

LONG, SHORT = LONG_LIFE + 1, 0.1


@pytest.mark.parametrize(
    ("lives", "seconds"),
    [
        ([], 0.0),
        ([LONG], 0.0),
        ([SHORT], FIRST_WAIT),
        ([SHORT, LONG], 0.0),
        ([LONG, SHORT], FIRST_WAIT),
        ([SHORT, SHORT], FIRST_WAIT * 2),
        ([SHORT] * 4, FIRST_WAIT * 8),
        ([SHORT] * 100, LONGEST_WAIT),
    ],
)
def test_who_dies_young_is_replaced_later_and_later(lives: list[float], seconds: float) -> None:
    assert delay_after(lives) == seconds


def test_a_process_without_the_variable_is_no_worker() -> None:
    assert WorkerLink.take({}) is None


@pytest.mark.parametrize("said", ["-1:3:4", "1", "yes", ""])
def test_what_was_meant_for_another_process_is_passed_over_and_gone(said: str) -> None:
    environment = {VARIABLE: said}
    assert WorkerLink.take(environment) is None
    assert VARIABLE not in environment


def test_workers_start_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose child calls `callboard.run(workers=)`: each worker's child would start workers, and so on for ever."""
    monkeypatch.setenv(VARIABLE, "-1:3:4")
    with pytest.raises(RegistrationError, match="not in one of multiprocessing"):
        callboard.run(Server("s"), workers=2, port=0, sessions="off")


@pytest.mark.parametrize(
    ("words", "file", "text"),
    [
        ([], "<stdin>", "has to be in a file"),
        ([], None, "has to be in a file"),
        (["-c", "x", "--multiprocessing-fork"], "p.py", "own process"),
    ],
)
def test_what_nobody_can_start_anew(words: list[str], file: str | None, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    if file is not None:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *words])
    with pytest.raises(RegistrationError, match=text):
        callboard.run(Server("s"), workers=2, port=0, sessions="off")


CHILD = """
import sys, threading
from callboard.transport.worker_link import WorkerLink
link = WorkerLink.take()
link.tell(f"has {len(link.sockets)}")
if len(sys.argv) > 1:
    heard = threading.Event()
    link.listen(lambda word: (link.tell(f"heard {word}"), heard.set()), 60)
    heard.wait(30)
else:
    threading.Event().wait(30)
"""


@pytest.mark.parametrize("listens", [True, False])
def test_a_worker_hears_its_supervisor_and_ends_with_it(listens: bool) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        numbers = [theirs.fileno(), listening.fileno()]
        environment = {**os.environ, VARIABLE: describe_link(numbers[0], numbers[1:])}
        with subprocess.Popen([sys.executable, "-c", CHILD, *["x"] * listens], env=environment, pass_fds=numbers) as child:
            theirs.close()
            assert ours.recv(100) == b"has 1\n"
            if listens:
                ours.send(b"retire\n")
                assert ours.recv(100) == b"heard retire\n"
                assert child.wait(30) == 0
            else:
                ours.close()  # as when the supervisor is killed, before the worker serves
                assert child.wait(30) == 1
