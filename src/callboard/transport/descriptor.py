"""File descriptors on an event loop: pipes, sockets, terminals, files, read and written without ever blocking it.

None of them is made non-blocking: that flag belongs to the open file, not to the descriptor, and would reach whoever shares it (a terminal's
shell, standard error). The loop or `poll` says that there is something to read or room to write, and so much is read or written as is then
certain not to block. Where that can't be asked (files on epoll, pipes on Windows) a daemon thread does the blocking call.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

__all__ = ["Sink", "Source", "ThreadSink", "open_sink"]

# Bytes of one read: what a pipe holds.
CHUNK = 64 * 1024


class Source:
    """Reads a descriptor.

    Args:
        fd: The descriptor.
        take: Called on the loop with every piece; with nothing at the end, once.
    """

    def __init__(self, fd: int, take: Callable[[bytes], None]) -> None:
        self._fd = fd
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._running = False
        self._go: threading.Semaphore | None = None

    def resume(self) -> None:
        """Read until told otherwise."""
        if self._running or not self._open:
            return
        self._running = True
        if self._go is not None:
            self._go.release()
            return
        try:
            self._loop.add_reader(self._fd, self._read_ready)
        except (NotImplementedError, PermissionError):
            self._go = threading.Semaphore(1)
            threading.Thread(target=self._read_blocking, args=(self._go,), name="callboard-read", daemon=True).start()

    def pause(self) -> None:
        """Leave what comes where it is."""
        if self._running and self._go is None:
            self._loop.remove_reader(self._fd)
        self._running = False

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, CHUNK)
        except OSError:  # a terminal or socket that broke has ended
            return b""

    def _read_ready(self) -> None:
        self._hand_over(self._read())

    def _read_blocking(self, go: threading.Semaphore) -> None:
        data = b"-"
        while data:
            go.acquire()
            data = self._read()
            try:
                self._loop.call_soon_threadsafe(self._hand_over, data)
            except RuntimeError:
                return  # the loop has closed

    def _hand_over(self, data: bytes) -> None:
        if not data:
            self.pause()
            self._open = False
        self._take(data)
        if self._go is not None and self._running:
            self._go.release()


class Sink:
    """Writes lines to a descriptor.

    Args:
        fd: The descriptor.
        lost: Called once when nobody reads any more; what is written from then on is dropped.
    """

    def __init__(self, fd: int, lost: Callable[[], None]) -> None:
        self._fd = fd
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def open(self) -> bool:
        """Whether somebody may read what is written."""
        return self._open and not any(event & (select.POLLERR | select.POLLHUP) for _, event in self._poll.poll(0))

    def write(self, lines: list[bytes]) -> Awaitable[None] | None:
        """Write messages, each as one line; something to await where that takes longer."""
        rest = self._write(memoryview(_join(lines)))
        return self._write_later(rest) if rest else None

    def _write(self, data: memoryview) -> memoryview:
        try:
            while data and self._open and self._poll.poll(0):
                data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]
        except OSError:
            self._open = False
            self._lost()
        return data if self._open else data[:0]

    async def _write_later(self, data: memoryview) -> None:
        while data:
            room = self._loop.create_future()
            self._loop.add_writer(self._fd, _settle, room)
            try:
                await room
            finally:
                self._loop.remove_writer(self._fd)
            data = self._write(data)


class ThreadSink:
    """`Sink` where there is no `poll`: a thread writes.

    Args:
        fd: The descriptor.
        lost: Called once when nobody reads any more; what is written from then on is dropped.
    """

    def __init__(self, fd: int, lost: Callable[[], None]) -> None:
        self._fd = fd
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        self.open = True
        threading.Thread(target=self._work, name="callboard-write", daemon=True).start()

    def write(self, lines: list[bytes]) -> Awaitable[None] | None:
        """Write messages, each as one line; something to await until that is done."""
        if not self.open:
            return None
        done = self._loop.create_future()
        self._jobs.put((_join(lines), done))
        return done

    def _work(self) -> None:
        while True:
            data, done = self._jobs.get()
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self._loop.call_soon_threadsafe(self._fail, done)
                return
            try:
                self._loop.call_soon_threadsafe(_settle, done)
            except RuntimeError:
                return  # the loop has closed

    def _fail(self, done: asyncio.Future[None]) -> None:
        self.open = False
        _settle(done)
        self._lost()


def open_sink(fd: int, lost: Callable[[], None]) -> Sink | ThreadSink:
    """The sink that this platform can have."""
    return Sink(fd, lost) if hasattr(select, "poll") else ThreadSink(fd, lost)


def _join(lines: list[bytes]) -> bytes:
    return b"\n".join((*lines, b""))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
