"""What a worker process and its supervisor have between them: the listening sockets, and a line on which each says how it is.

A worker says `loaded` (the program is there, and can be served), then every second how it is: `ok`, `starting`, `draining`, `store`. The
supervisor says `retire`. When the line breaks the supervisor is dead, however it died, and no worker stays behind.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress

__all__ = ["BEAT", "LAST_RESORT", "LOADED", "RETIRE", "VARIABLE", "WorkerLink", "describe_link"]

VARIABLE = "CALLBOARD_WORKER"
"""The environment variable by which a process knows that it is a worker."""
BEAT = 1.0
"""Seconds between two words of a worker."""
LOADED, RETIRE = "loaded", "retire"
LAST_RESORT = 5.0
"""Seconds beyond the grace until a process that has been told to end does so, whatever it does."""


def describe_link(line: int, sockets: Sequence[int], *, speaks: bool = False) -> str:
    """The value of `VARIABLE`.

    Args:
        line: Descriptor of the worker's end of the line.
        sockets: Descriptors of the listening sockets.
        speaks: Whether it is the one worker that says what all of them would.
    """
    return f"{os.getpid()}:{line}:{','.join(map(str, sockets))}:{speaks:d}"


class WorkerLink:
    """The worker's end.

    Args:
        line: Its socket.
        sockets: The listening sockets.
        speaks: Whether this worker says what all of them would.

    Attributes:
        sockets: As given.
        speaks: As given.
    """

    def __init__(self, line: socket.socket, sockets: list[socket.socket], *, speaks: bool) -> None:
        self._line = line
        self.sockets = sockets
        self.speaks = speaks
        self._grace = 0.0
        self._told: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._missed: list[str] = []
        threading.Thread(target=self._hear, name="callboard-supervisor", daemon=True).start()

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> WorkerLink | None:
        """The link of this process; None where it is no worker. Taken once: what this process starts is no worker of that supervisor.

        Args:
            environ: The environment.
        """
        said = environ.pop(VARIABLE, None)
        if said is None:
            return None
        parent, _, descriptors = said.partition(":")
        if parent != str(os.getppid()):
            return None  # it was meant for whoever started us
        line, sockets, speaks = descriptors.split(":")
        numbers = [int(number) for number in sockets.split(",")]
        for number in (int(line), *numbers):
            os.set_inheritable(number, False)
        return cls(socket.socket(fileno=int(line)), [socket.socket(fileno=number) for number in numbers], speaks=speaks == "1")

    def tell(self, word: str) -> None:
        """Say how this process is; nobody waits until it is heard."""
        with suppress(OSError):
            self._line.send(word.encode() + b"\n", getattr(socket, "MSG_DONTWAIT", 0))

    def listen(self, told: Callable[[str], None], grace: float) -> None:
        """Have somebody hear what the supervisor says.

        Args:
            told: Called in a thread of its own with `retire`, or with "" when the supervisor is gone.
            grace: Seconds that this process may take to end then.
        """
        with self._lock:
            self._told, self._grace = told, grace
            missed, self._missed = self._missed, []
        for word in missed:
            told(word)

    def _say(self, word: str) -> bool:
        """Pass a word on; whether somebody takes it now."""
        with self._lock:
            told = self._told
            if told is None:
                self._missed.append(word)
                return False
        told(word)
        return True

    def _hear(self) -> None:
        waiting = b""
        while data := self._receive():
            *words, waiting = (waiting + data).split(b"\n")
            for word in words:
                self._say(word.decode())
        if self._say(""):
            time.sleep(self._grace + LAST_RESORT)
        os._exit(1)  # it has not begun to serve, or does not come to an end

    def _receive(self) -> bytes:
        try:
            return self._line.recv(256)
        except OSError:
            return b""
