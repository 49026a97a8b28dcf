"""A server that is a child process: spawn it, pass lines, and be sure that it ends.

The child leads its own process group, so that whatever it starts ends with it. Shutdown is a ladder (SD-07): end of input, wait, SIGTERM,
wait, SIGKILL. The stream ends when the child closes its stdout or exits, whichever comes first: a grandchild that holds the pipe open
can't keep a request waiting.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer, Origin, ProcessExited

__all__ = ["ChildStream"]

STDIN, STDOUT, STDERR = 0, 1, 2
# Bytes of stderr that are kept: enough for a traceback.
STDERR_TAIL = 8 * 1024
# Seconds: for each rung of the ladder; for the pipes to run dry after the exit; for the exit after stdin or stdout closed.
GRACE = 2.0
DRAIN = 0.2
LAST_WORDS = 0.5
# Lines that are passed on before others get their turn.
BURST = 100
# Bytes read at once: what a pipe holds. For more, malloc asks the kernel each time, which costs more than all else about reading.
CHUNK = 64 * 1024


class _Outlet:
    """A child's stdout, read in place of its transport: asyncio's takes two turns of the loop and 256 KiB of memory for each piece.

    Args:
        transport: The transport, which keeps the pipe and tells of its end.
        take: Gets what is read.

    Raises:
        LookupError: The pipe is the event loop's own affair (uvloop).
        NotImplementedError: The event loop can't watch pipes (Windows).
    """

    def __init__(self, transport: asyncio.ReadTransport, take: Callable[[bytes], None]) -> None:
        pipe = transport.get_extra_info("pipe")
        if pipe is None or transport.is_closing():
            raise LookupError
        self._transport = transport
        self._take = take
        self._fd: int = pipe.fileno()
        self._loop = asyncio.get_running_loop()
        self._reading = False
        transport.pause_reading()
        try:
            self.resume_reading()
        except NotImplementedError:
            transport.resume_reading()
            raise

    def is_reading(self) -> bool:
        """Whether more is wanted. Once the transport is closed, the descriptor may be another file's."""
        return self._reading and not self._transport.is_closing()

    def pause_reading(self) -> None:
        """Let the child wait."""
        if self.is_reading():
            self._loop.remove_reader(self._fd)
        self._reading = False

    def resume_reading(self) -> None:
        """Read on."""
        if not self._reading and not self._transport.is_closing():
            self._loop.add_reader(self._fd, self._read)
            self._reading = True

    def close(self) -> None:
        """Stop for good; what is in the pipe is lost."""
        self.pause_reading()
        self._transport.close()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()


class ChildStream(asyncio.SubprocessProtocol):
    """Lines to and from a child process.

    Args:
        command: Program and arguments.
        max_message: Most bytes of one line from the child.
        env: Variables of the child on top of this process's own; None for none.
        cwd: Folder it runs in; None for this process's own.
        grace: Seconds to wait on each rung of the shutdown ladder.
    """

    _on_line: Callable[[bytes], None]
    _on_end: Callable[[], None]

    def __init__(
        self,
        command: Sequence[str],
        *,
        max_message: int,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        grace: float = GRACE,
    ) -> None:
        self._command = list(command)
        self._env = env
        self._cwd = cwd
        self._max_message = max_message
        self._grace = grace
        self._transport: asyncio.SubprocessTransport | None = None
        self._outlet: _Outlet | None = None
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._stderr = bytearray()
        self._open_pipes = {STDOUT, STDERR}
        self._overlong = False
        self._busy = False
        self._ending = False
        self._ended = False
        self._writable = asyncio.Event()
        self._exited = asyncio.Event()
        self._guard: asyncio.Task[None] | None = None

    async def open(self, origin: Origin, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Start the child; blank lines of it are passed over.

        Raises:
            ConnectionFailed: There is no such program, or it may not be run.
        """
        self._on_line, self._on_end = take, end
        loop = asyncio.get_running_loop()
        self._writable.set()
        env = None if self._env is None else {**os.environ, **self._env}
        try:
            await loop.subprocess_exec(lambda: self, *self._command, start_new_session=True, env=env, cwd=self._cwd)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConnectionFailed(f"can't start {shlex.join(self._command)}: {reason}; check the command and PATH", origin) from error
        self._guard = loop.create_task(self._guard_child(), name=f"callboard client guard of {origin.target}")
        assert self._transport is not None
        stdout = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(STDOUT))
        with suppress(LookupError, NotImplementedError):
            self._outlet = _Outlet(stdout, partial(self.pipe_data_received, STDOUT))
            if self._busy:  # it has written much before we came to this: it has to wait all the same
                self._outlet.pause_reading()

    async def send(self, line: bytes) -> None:
        """Write one line; waits while the child is slow to read."""
        stdin = self._stdin()
        if stdin is None or stdin.is_closing() or self._ended:
            raise EOFError
        stdin.write(line + b"\n")
        if not self._writable.is_set():
            await self._writable.wait()

    @property
    def last_words(self) -> str:
        """The end of what the child wrote to stderr."""
        return self._stderr.decode(errors="replace")

    def explain(self, origin: Origin) -> ClientError:
        """Say how the child ended, with its last words."""
        if self._overlong:
            return InvalidAnswer(f"the server sent a line of more than {self._max_message} bytes; raise max_message=", origin)
        if self._transport is None:
            return ConnectionFailed("the server process could not be started", origin, sent=False)
        returncode = self._transport.get_returncode()
        if returncode is None:
            return ConnectionFailed("the server process closed its pipes, though it still runs", origin)
        return ProcessExited(returncode, self._stderr.decode(errors="replace"), origin)

    async def aclose(self) -> None:
        """Go down the ladder until the child is gone; no later than three times `grace`."""
        transport = self._transport
        if transport is None:
            return
        try:
            stdin = self._stdin()
            if stdin is not None:
                stdin.close()
            for number in (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
                if number is not None:
                    self._signal(number)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._exited.wait(), self._grace)
                    break
        finally:
            # Also when the wait above was cancelled: whatever is left of the group goes too.
            self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
            self._end()
            transport.close()
            if self._guard is not None:
                self._guard.cancel()

    async def _guard_child(self) -> None:
        """End the child if the loop ends and nobody has closed us: `asyncio.run` cancels what is left, and this with it."""
        try:
            await self._exited.wait()
        except asyncio.CancelledError:
            self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), LAST_WORDS)  # reaped, while there is a loop to hear of it
            if self._transport is not None:
                self._transport.close()
            raise

    def _stdin(self) -> asyncio.WriteTransport | None:
        if self._transport is None:
            return None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(STDIN))

    def _stdout(self) -> asyncio.ReadTransport | _Outlet:
        if self._outlet is not None:
            return self._outlet
        assert self._transport is not None
        return cast("asyncio.ReadTransport", self._transport.get_pipe_transport(STDOUT))

    def _signal(self, number: int) -> None:
        assert self._transport is not None
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._transport.get_pid(), number)
            else:
                self._transport.send_signal(number)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._writable.set()
            self._on_end()

    def _end_when_dry(self) -> None:
        if self._busy:
            self._ending = True  # not yet: there may be more in the pipe
        else:
            self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop has spawned the child."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Bytes of stdout make lines, those of stderr are kept for an obituary (SD-03)."""
        if fd == STDERR:
            self._stderr += data
            del self._stderr[:-STDERR_TAIL]
            return
        *complete, rest = data.split(b"\n")
        for piece in complete:
            line = piece
            if self._partial:
                line = b"".join((*self._partial, piece))
                self._partial.clear()
                self._partial_size = 0
            if line.strip():
                self._lines.append(line)
        if rest:
            self._partial.append(rest)
            self._partial_size += len(rest)
        if self._partial_size > self._max_message:
            self._overlong = True
            self._partial.clear()
            self._stdout().close()
        if not self._busy:
            self._pass_on()
        if self._overlong:
            self._end_when_dry()

    def _pass_on(self) -> None:
        """Pass lines on; when there are many, others get their turn in between, and the child has to wait."""
        for _ in range(min(BURST, len(self._lines))):
            line = self._lines.popleft()
            if not self._ended:
                self._on_line(line)
        if self._lines:
            if not self._busy:
                self._busy = True
                self._stdout().pause_reading()
            asyncio.get_running_loop().call_soon(self._pass_on)
        elif self._busy:
            self._busy = False
            self._stdout().resume_reading()
            if self._ending:
                asyncio.get_running_loop().call_later(DRAIN, self._end_when_dry)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The child closed a pipe."""
        del exc
        self._open_pipes.discard(fd)
        if fd != STDERR and not self._exited.is_set():
            asyncio.get_running_loop().call_later(LAST_WORDS, self._end_when_dry)
        elif not self._open_pipes and self._exited.is_set():
            self._end_when_dry()

    def process_exited(self) -> None:
        """The child is gone, and reaped."""
        self._exited.set()
        if self._open_pipes:
            asyncio.get_running_loop().call_later(DRAIN, self._end_when_dry)
        else:
            self._end_when_dry()

    def pause_writing(self) -> None:
        """The child reads more slowly than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The child has caught up."""
        self._writable.set()
