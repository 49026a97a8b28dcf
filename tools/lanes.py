"""A plugin of pytest that collects once and forks a process for each file of tests, several at once.

To import and collect costs seconds; a process of its own for each file keeps files apart all the same: what one of them leaves behind
(threads, caches, registered types) no other sees, and one that hangs or dies takes no other with it. The reports go to the process that
collected, whose one summary speaks of all.

A few tests that fail are run once more, alone, when all else is over: much here waits for real clocks, on machines that others use as well.
What passes then is told of as unsteady, with how it failed: it is to be mended, and holds up no change of something else.
"""

import atexit
import binascii
import os
import pickle
import selectors
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby, zip_longest
from typing import Any, Final

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter

CHUNK: Final = 1 << 16
FEW: Final = 5  # tests that may fail by chance; where more do, it is none


class Lanes:
    """Runs files side by side.

    Args:
        count: Files at once.
        first: Names of files that take longest, in the order of their start; the others follow by size.
        alone: Whether a test has to run while no other does; these come last.
    """

    def __init__(self, count: int, first: Sequence[str] = (), alone: Callable[[pytest.Item], bool] = lambda _: False) -> None:
        self._count = count
        self._order = {name: number for number, name in enumerate(first)}
        self._alone = alone
        self._failed: dict[pytest.Item, pytest.TestReport] = {}
        self._unsteady: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what was collected; pytest's own loop does where nothing is to be run."""
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001 - one folder for all
        alone = {item for item in session.items if self._alone(item)}
        self._run(session, self._files(item for item in session.items if item not in alone), self._count)
        self._run(session, self._files(item for item in session.items if item in alone), 1)
        self._run_again(session)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    def _files(self, items: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
        return sorted((list(those) for _, those in groupby(items, lambda item: item.path)), key=self._key)

    def _key(self, items: list[pytest.Item]) -> tuple[int, int]:
        path = items[0].path
        return self._order.get(path.name, len(self._order)), -path.stat().st_size

    def _run(self, session: pytest.Session, files: Iterable[list[pytest.Item]], count: int) -> None:
        waiting = deque(files)
        running = selectors.PollSelector()  # not epoll: its kernel side would go on in forks, which hold the pipes of their elders
        try:
            while waiting or running.get_map():
                while waiting and len(running.get_map()) < count and not session.shouldfail:
                    child = Child(session, waiting.popleft(), None if session.config.option.maxfail else self._failed)
                    running.register(child.pipe, selectors.EVENT_READ, child)
                if session.shouldfail:
                    return
                for key, _ in running.select():
                    if not key.data.hear():
                        running.unregister(key.fileobj)
                        key.data.end()
        finally:
            for key in list(running.get_map().values()):
                key.data.kill()
            running.close()

    def _run_again(self, session: pytest.Session) -> None:
        if len(self._failed) > FEW:
            for report in self._failed.values():
                session.config.hook.pytest_runtest_logreport(report=report)
            return
        for item, report in self._failed.items():
            child = Child(session, [item])
            while child.hear():
                pass
            child.end()
            if not child.failed:
                self._unsteady.append(report)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Tell of what failed only once."""
        for report in self._unsteady:
            terminalreporter.section(f"UNSTEADY: {report.nodeid} failed, then passed alone", sep="!")
            terminalreporter.line(report.longreprtext)


class Child:
    """A process that runs one file.

    Args:
        session: What collected it.
        items: Its tests.
        held: Where tests that fail go in place of being told of; None where they are told of.

    Attributes:
        pipe: What it tells comes here.
        failed: Whether a test has failed and was told of.
    """

    def __init__(self, session: pytest.Session, items: list[pytest.Item], held: dict[pytest.Item, pytest.TestReport] | None = None) -> None:
        self._held, self.failed = held, False
        self.pipe, writing = os.pipe()
        self._config, self._items, self._now = session.config, items, items[0]
        self._left, self._is_over = b"", False
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.pipe)
            run_here(session, items, writing)
        os.close(writing)

    def hear(self) -> bool:
        """Take what it has told; False when it has ended."""
        chunk = os.read(self.pipe, CHUNK)
        if not chunk:
            return False
        *lines, self._left = (self._left + chunk).split(b"\n")
        for line in lines:
            self._take(pickle.loads(binascii.a2b_base64(line)))
        return True

    def kill(self) -> None:
        """End it by force."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)

    def _take(self, told: dict[str, Any]) -> None:
        if "began" in told:
            self._now = self._items[told["began"]]
        elif "report" in told:
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=told["report"])
            if report.failed and self._held is not None:
                self._held.setdefault(self._now, report)
            else:
                self._tell(report)
        elif told["over"]:
            self._fail(f"after the last test of {self._now.path.name}:\n{told['over']}")
        self._is_over = self._is_over or "over" in told

    def end(self) -> None:
        """Take note of its end."""
        os.close(self.pipe)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if not self._is_over or status:
            self._fail(f"its process ended with status {status} before the tests of {self._now.path.name} were over")

    def _fail(self, why: str) -> None:
        self._tell(pytest.TestReport(self._now.nodeid, self._now.location, {}, "failed", why, "call"))

    def _tell(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed
        self._config.hook.pytest_runtest_logreport(report=report)


class Teller:
    """Tells the process that collected.

    Args:
        config: Pytest's.
        pipe: Where to.
    """

    def __init__(self, config: pytest.Config, pipe: int) -> None:
        self._config, self._pipe = config, pipe

    def tell(self, **fact: Any) -> None:
        """Tell one thing."""
        left = memoryview(binascii.b2a_base64(pickle.dumps(fact)))  # a line; in JSON, tuples would come back as lists
        while left:
            left = left[os.write(self._pipe, left) :]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell of a test."""
        self.tell(report=self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def run_here(session: pytest.Session, items: list[pytest.Item], pipe: int) -> None:
    """Run tests in this process, a fork, and end it."""
    status = 1
    # What the process that collected does when it ends is not to happen here, so this never returns; what is begun here is ended here.
    atexit._clear()  # noqa: SLF001 - as multiprocessing does it
    with suppress(BaseException):
        status = run_items(session, items, Teller(session.config, pipe))
    with suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001
    os._exit(status)


def run_items(session: pytest.Session, items: list[pytest.Item], teller: Teller) -> int:
    """Run tests and tell of each; gives the exit status."""
    config = session.config
    manager = config.pluginmanager
    capture, terminal = manager.getplugin("capturemanager"), manager.getplugin("terminalreporter")
    assert isinstance(capture, CaptureManager)
    assert isinstance(terminal, TerminalReporter)
    # Others write into the files of the process that collected, too.
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    manager.unregister(terminal)
    manager.register(teller)
    for number, (item, following) in enumerate(zip_longest(items, items[1:])):
        teller.tell(began=number)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            break
    over = ""
    try:
        config._ensure_unconfigure()  # noqa: SLF001 - what only shows at the end, like an exception that nobody saw
    except Exception:  # noqa: BLE001 - whatever it is, it is told
        over = traceback.format_exc()
    teller.tell(over=over)
    return 0
