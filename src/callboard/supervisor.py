"""Several worker processes behind one address: started, watched, replaced one by one, and ended together.

All workers take connections from the same listening sockets, which this process made and they inherit. Sockets of their own with
`SO_REUSEPORT` would spread connections by a hash, to busy workers as to idle ones, and what waits in the queue of a worker that dies or is
replaced would be lost. From one queue whoever is idle takes the next, and what nobody has taken yet outlives them all.

Workers are programs started anew, not forks: a reload serves the new code, and no thread or connection of the parent is shared by accident.
This process loads nothing of the program, so it lives when the program can't.

Rules:
    1. The first worker is alone until it has loaded the program: what is wrong with it is said once, and what is doubtful by this one, and by the
       first of a reload. Its refusal is the supervisor's.
    2. While none has ever been ready, a few tries are made, then it ends with 1. Afterwards it never gives up: who dies is replaced, at
       once if it lived for long, else later and later, up to half a minute.
    3. A reload (SIGHUP) starts one worker, waits until it is ready, and retires one; then the next. A worker that does not get ready ends
       the reload, and those there go on.
    4. Told to stop (SIGTERM, SIGINT), all workers drain; whoever takes much longer than the grace is killed. Told twice, all are killed.
    5. A worker that was ready and whose event loop has not turned for a minute is killed, and replaced: nobody else would notice, and what it
       has taken would wait for ever.
    6. The line to each worker breaks with this process, however it dies: workers end by themselves then (`worker_link`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from callboard.transport.health import DRAINING, OK, serve_probes
from callboard.transport.worker_link import BEAT, LOADED, RETIRE, VARIABLE, describe_link

__all__ = ["Supervisor", "delay_after", "supervise"]

_log = logging.getLogger("callboard")
# Starts of workers until it is given up when none has ever been ready.
TRIES = 3
# Seconds that a worker must have lived to be replaced at once; the first wait otherwise, and the longest.
LONG_LIFE, FIRST_WAIT, LONGEST_WAIT = 10.0, 0.5, 30.0
# Seconds without a word after which a worker does not count as ready: its event loop hangs.
SILENCE = 5.0
# Seconds without a word after which a worker that has been ready is killed.
HANG = 60
# Seconds beyond the grace until a worker is killed.
PATIENCE = 5.0
# Seconds between two looks at the first worker, while it loads the program.
LOOK = 0.05
# Exit code of a command that was wrong.
_REFUSED = 2


def delay_after(lives: Sequence[float]) -> float:
    """Seconds until the next worker is started.

    Args:
        lives: How long those before it lived, in seconds, the latest last.
    """
    short = 0
    for life in reversed(lives):
        if life >= LONG_LIFE:
            break
        short += 1
    return 0.0 if not short else min(FIRST_WAIT * 2.0 ** (short - 1), LONGEST_WAIT)


class Worker:
    """A worker process.

    Attributes:
        process: The process.
        word: What it said last.
        heard: When, in seconds of the monotonic clock.
        born: When it was started.
        was_ready: Whether it has ever been ready.
        silent: How many beats in a row it has said nothing. Counted, not measured: whoever stops all of us and lets us go on kills nobody.
        news: Set whenever it has said something, or has ended.
        ended: Set when it has ended.
        left: Set when it has ended, takes nothing more, or has been replaced.
    """

    def __init__(self, command: Sequence[str], sockets: Sequence[socket.socket], *, speaks: bool) -> None:
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        numbers = [each.fileno() for each in sockets]
        environment = {**os.environ, VARIABLE: describe_link(theirs.fileno(), numbers, speaks=speaks)}
        self.word = ""
        self.heard = self.born = time.monotonic()
        self.was_ready = False
        self.silent = 0
        self.left = asyncio.Event()
        self.news = asyncio.Event()
        self.ended = asyncio.Event()
        with theirs, ExitStack() as started:
            started.callback(self._line.close)
            # In a session of its own: Ctrl-C in a terminal would reach it beside our SIGTERM, and two signals mean "at once".
            self.process = subprocess.Popen(  # noqa: S603 - the words of this very command line
                command,
                env=environment,
                pass_fds=[theirs.fileno(), *numbers],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            started.pop_all()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def __str__(self) -> str:
        return f"worker {self.process.pid}"

    @property
    def is_ready(self) -> bool:
        """Whether work can be sent to it."""
        return not self.ended.is_set() and self.word == OK and time.monotonic() - self.heard < SILENCE

    def tell(self, word: str) -> None:
        """Say something to it."""
        with suppress(OSError):
            self._line.send(word.encode() + b"\n")

    def send(self, number: int) -> None:
        """Send it a signal; it may have ended."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """End it, and what it has started, at once."""
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Note that it has ended; whether it has, just now."""
        if self.ended.is_set() or self.process.poll() is None:
            return False
        if self.process.returncode:
            # What it had started would keep the listening sockets, and the port with them.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.ended.set()
        self.left.set()
        self.news.set()
        self._reading.cancel()
        self._line.close()
        return True

    async def until(self, *words: str) -> bool:
        """Wait until it has said one of some words; False when it has ended without."""
        while not self.ended.is_set():
            if self.word in words:
                return True
            self.news.clear()
            await self.news.wait()
        return False

    async def _read(self) -> None:
        waiting = b""
        with suppress(OSError):
            while data := await asyncio.get_running_loop().sock_recv(self._line, 256):
                *lines, waiting = (waiting + data).split(b"\n")
                for line in lines:
                    self.word, self.heard, self.silent = line.decode(), time.monotonic(), 0
                    self.was_ready = self.was_ready or self.word == OK
                    if self.word == DRAINING:
                        self.left.set()
                    self.news.set()


class Supervisor:
    """Keeps a number of workers.

    Args:
        command: What starts one.
        sockets: What they listen on.
        workers: How many.
        grace: Seconds that running calls get when a worker ends.
        probes: Sockets where health is asked for.
        hang: Seconds without a word after which a worker that has been ready is killed.
        adopts: Whether children of others become ours when those die, so that nobody but us can take note of their end.
    """

    def __init__(
        self,
        command: Sequence[str],
        sockets: Sequence[socket.socket],
        *,
        workers: int,
        grace: float,
        probes: list[socket.socket],
        hang: int = HANG,
        adopts: bool = False,
    ) -> None:
        self._command = command
        self._sockets = sockets
        self._count = workers
        self._grace = grace
        self._probes = probes
        self._hang = hang
        self._adopts = adopts
        self._slots: list[Worker | None] = [None] * workers
        self._all: set[Worker] = set()
        self._lives: list[float] = []
        self._ever_ready = False
        self._stopping = asyncio.Event()
        self._reload: asyncio.Task[None] | None = None
        self._code = 0

    async def run(self) -> int:
        """Keep them until told to stop; the exit code."""
        loop = asyncio.get_running_loop()
        for number, told in (
            (signal.SIGTERM, self._stop), (signal.SIGINT, self._stop), (signal.SIGHUP, self._begin_reload), (signal.SIGCHLD, self._reap),
        ):  # fmt: skip
            loop.add_signal_handler(number, told)
        end_probes = await serve_probes(self._probes, self._check)
        keepers: list[asyncio.Task[None]] = []
        try:
            keepers = [loop.create_task(self._end_hanging()), loop.create_task(self._keep(0))]
            if await self._until_loaded():
                keepers += [loop.create_task(self._keep(slot)) for slot in range(1, self._count)]
            await self._stopping.wait()
            for task in [*keepers, *([self._reload] if self._reload else [])]:
                task.cancel()
            await self._end_all()
        finally:
            end_probes()
            for worker in self._all:
                worker.kill()
        return self._code

    async def _check(self) -> str:
        """What is answered to those who ask whether there is anybody to send work to."""
        if self._stopping.is_set():
            return DRAINING
        workers = [worker for worker in self._all if not worker.ended.is_set()]
        if any(worker.is_ready for worker in workers):
            return OK
        return next((worker.word for worker in workers if worker.word not in {"", LOADED, OK}), "starting")

    def _start(self, *, speaks: bool) -> Worker:
        worker = Worker(self._command, self._sockets, speaks=speaks)
        self._all.add(worker)
        return worker

    def _reap(self) -> None:
        for worker in list(self._all):
            if worker.reap():
                self._all.discard(worker)
        ours = {worker.process.pid for worker in self._all}
        with suppress(ChildProcessError):
            while self._adopts and (gone := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and gone.si_pid not in ours:
                os.waitpid(gone.si_pid, 0)

    async def _until_loaded(self) -> bool:
        """Wait until a worker has loaded the program; False when it is to end."""
        while not self._stopping.is_set():
            first = self._slots[0]
            if first is not None and first.word:
                return True
            await asyncio.sleep(LOOK)
        return False

    async def _end_hanging(self) -> None:
        """Kill whoever has been ready, and says nothing any more."""
        while True:
            await asyncio.sleep(BEAT)
            for worker in self._all:
                worker.silent += 1
                if worker.was_ready and worker.silent * BEAT == self._hang and not worker.ended.is_set():
                    _log.error("%s has hung for %d seconds: it is killed.", str(worker).capitalize(), self._hang)
                    worker.kill()

    async def _keep(self, slot: int) -> None:
        """See that there is a worker in a slot."""
        while not self._stopping.is_set():
            worker = self._slots[slot]
            if worker is None:
                try:
                    worker = self._slots[slot] = self._start(speaks=slot == 0 and not self._ever_ready and not self._lives)
                except OSError as error:
                    _log.error("A worker can't be started: %s.", error.strerror)
                    self._lives.append(0.0)
                    if not self._ever_ready and len(self._lives) >= TRIES:
                        self._code = 1
                        self._stopping.set()
                    await asyncio.sleep(delay_after(self._lives[-100:]))
                    continue
            await worker.left.wait()
            self._ever_ready = self._ever_ready or worker.was_ready or any(each.was_ready for each in self._all)
            if self._slots[slot] is not worker:
                continue  # it was replaced
            self._slots[slot] = None
            if worker.ended.is_set():
                await self._take_leave(worker)
            else:
                _log.info("%s has been told to end: another one is started.", str(worker).capitalize())

    async def _take_leave(self, worker: Worker) -> None:
        """A worker has ended that should not have: say so, and wait for as long as it takes until the next is worth a try."""
        code = worker.process.returncode
        self._lives.append(time.monotonic() - worker.born if worker.was_ready else 0.0)
        del self._lives[:-100]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if not self._ever_ready:
            failed = sum(1 for life in self._lives if not life)
            if not worker.word or failed >= TRIES:
                # Without a word it has not even loaded the program, and has said why: another would say the same.
                self._give_up(worker, code, how)
                return
        wait = delay_after(self._lives)
        _log.error("%s has ended (%s): another one is started%s.", str(worker).capitalize(), how, f" in {wait:g} s" if wait else "")
        await asyncio.sleep(wait)

    def _give_up(self, worker: Worker, code: int, how: str) -> None:
        self._code = _REFUSED if code == _REFUSED and not worker.word else 1
        if self._code != _REFUSED:
            _log.error("No worker came up: the last one has ended with %s. What is above says why; then start again.", how)
        self._stopping.set()

    def _begin_reload(self) -> None:
        if self._stopping.is_set():
            return
        if self._reload is not None and not self._reload.done():
            self._reload.cancel()
            _log.info("Told to reload again: it begins anew.")
        self._reload = asyncio.get_running_loop().create_task(self._replace_all())

    async def _replace_all(self) -> None:
        """Replace every worker by a new one, one after the other."""
        loop = asyncio.get_running_loop()
        for slot in range(self._count):
            try:
                fresh = self._start(speaks=slot == 0)
            except OSError as error:
                _log.error("A worker can't be started (%s): the reload ends here, and those that serve go on.", error.strerror)
                return
            try:
                is_ready = await fresh.until(OK)
            except asyncio.CancelledError:
                fresh.kill()
                raise
            if not is_ready:
                _log.error("%s did not get ready: the reload ends here, and those that serve go on.", str(fresh).capitalize())
                return
            old, self._slots[slot] = self._slots[slot], fresh
            self._ever_ready = True
            if old is not None:
                _log.info("%s takes over from %s.", str(fresh).capitalize(), old)
                old.left.set()
                old.tell(RETIRE)
                # Whoever says that the reload begins anew, or that all end, does not let a worker off that can't end.
                await asyncio.shield(loop.create_task(self._see_off([old])))
        _log.info("All %d workers have been replaced.", self._count)

    def _stop(self) -> None:
        if self._stopping.is_set():
            _log.warning("Told to stop again: all workers are killed.")
            for worker in self._all:
                worker.kill()
        else:
            _log.info("Told to stop: %d workers drain, and get %g s for what runs.", len(self._all), self._grace)
        self._stopping.set()

    async def _end_all(self) -> None:
        workers, began = list(self._all), time.monotonic()
        for worker in workers:
            worker.send(signal.SIGTERM)
        await self._see_off(workers)
        if not self._code:  # else what is above is the last word
            _log.info("All %d workers have ended, after %.1f s.", len(workers), time.monotonic() - began)

    async def _see_off(self, workers: list[Worker]) -> None:
        """Wait until some workers have ended, within bounded time."""
        try:
            async with asyncio.timeout(self._grace + PATIENCE):
                for worker in workers:
                    await worker.ended.wait()
        except TimeoutError:
            for worker in workers:
                if not worker.ended.is_set():
                    _log.error("%s does not come to an end: it is killed.", str(worker).capitalize())
                    worker.kill()
            for worker in workers:
                await worker.ended.wait()


def supervise(command: Sequence[str], sockets: Sequence[socket.socket], *, workers: int, grace: float, probes: list[socket.socket]) -> int:
    """Serve with several processes until told to stop; see `Supervisor`.

    Args:
        command: What starts one that finds its `WorkerLink`.
        sockets: What they listen on; listening already.
        workers: How many.
        grace: Seconds that running calls get when a worker ends.
        probes: Sockets where health is asked for; none for none.

    Returns:
        The exit code: 0 when it was told to stop; 1 when no worker ever came up; 2 when the program refuses to be served so.
    """

    async def live() -> int:
        is_first = os.getpid() == 1  # of a container, whose orphans are its children
        return await Supervisor(command, sockets, workers=workers, grace=grace, probes=probes, adopts=is_first).run()

    return asyncio.run(live())
