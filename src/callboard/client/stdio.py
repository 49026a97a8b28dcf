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
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
# Lines that may wait to be received; past it the child has to wait, too.
MAX_LINES = 10_000


class ChildStream(asyncio.SubprocessProtocol):
    """Lines to and from a child process.

    Args:
        command: Program and arguments.
        max_message: Most bytes of one line from the child.
        env: Variables of the child on top of this process's own; None for none.
        cwd: Folder it runs in; None for this process's own.
        grace: Seconds to wait on each rung of the shutdown ladder.
    """

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
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._stderr = bytearray()
        self._open_pipes = {STDOUT, STDERR}
        self._overlong = False
        self._paused = False
        self._ending = False
        self._arrival = asyncio.Event()
        self._writable = asyncio.Event()
        self._exited = asyncio.Event()
        self._ended = asyncio.Event()

    async def open(self, origin: Origin) -> None:
        """Start the child.

        Raises:
            ConnectionFailed: There is no such program, or it may not be run.
        """
        loop = asyncio.get_running_loop()
        self._writable.set()
        env = None if self._env is None else {**os.environ, **self._env}
        try:
            await loop.subprocess_exec(lambda: self, *self._command, start_new_session=True, env=env, cwd=self._cwd)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConnectionFailed(f"can't start {shlex.join(self._command)}: {reason}; check the command and PATH", origin) from error

    async def send(self, line: bytes) -> None:
        """Write one line; waits while the child is slow to read."""
        stdin = self._stdin()
        if stdin is None or stdin.is_closing() or self._ended.is_set():
            raise EOFError
        stdin.write(line + b"\n")
        await self._writable.wait()

    async def receive(self) -> bytes:
        """Read one line; blank ones are passed over."""
        while not self._lines:
            if self._ended.is_set():
                raise EOFError
            self._arrival.clear()
            await self._arrival.wait()
        line = self._lines.popleft()
        if self._paused and not self._lines:
            self._paused = False
            self._stdout().resume_reading()
            if self._ending:
                asyncio.get_running_loop().call_later(DRAIN, self._end_when_dry)
        return line

    @property
    def last_words(self) -> str:
        """The end of what the child wrote to stderr."""
        return self._stderr.decode(errors="replace")

    def explain(self, origin: Origin) -> ClientError:
        """Say how the child ended, with its last words."""
        if self._overlong:
            return InvalidAnswer(f"the server sent a line of more than {self._max_message} bytes; raise max_message=", origin)
        returncode = self._transport.get_returncode() if self._transport is not None else None
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

    def _stdin(self) -> asyncio.WriteTransport | None:
        if self._transport is None:
            return None
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(STDIN))

    def _stdout(self) -> asyncio.ReadTransport:
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
        self._ended.set()
        self._arrival.set()
        self._writable.set()

    def _end_when_dry(self) -> None:
        if self._paused:
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
            line = b"".join((*self._partial, piece))
            self._partial.clear()
            self._partial_size = 0
            if line.strip():
                self._lines.append(line)
        if len(self._lines) > MAX_LINES and not self._paused:
            self._paused = True
            self._stdout().pause_reading()
        if rest:
            self._partial.append(rest)
            self._partial_size += len(rest)
        if self._partial_size > self._max_message:
            self._overlong = True
            self._partial.clear()
            self._stdout().close()
            self._end()
        self._arrival.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The child closed a pipe."""
        del exc
        self._open_pipes.discard(fd)
        if fd != STDERR and not self._exited.is_set():
            asyncio.get_running_loop().call_later(LAST_WORDS, self._end_when_dry)
        elif not self._open_pipes and self._exited.is_set():
            self._end()

    def process_exited(self) -> None:
        """The child is gone, and reaped."""
        self._exited.set()
        if self._open_pipes:
            asyncio.get_running_loop().call_later(DRAIN, self._end_when_dry)
        else:
            self._end()

    def pause_writing(self) -> None:
        """The child reads more slowly than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The child has caught up."""
        if not self._ended.is_set():
            self._writable.set()
