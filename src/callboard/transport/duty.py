"""What a serving process owes those who run it: it says how it is, hears that it is to end, and ends in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from socket import socket
from typing import Protocol

from callboard.transport.ending import Ending, HttpServer
from callboard.transport.endpoint import Endpoint
from callboard.transport.health import Health, serve_probes
from callboard.transport.worker_link import BEAT, LAST_RESORT, RETIRE, WorkerLink

__all__ = ["Duty", "Process"]

_log = logging.getLogger("callboard")
# Seconds that the end takes at most for whoever has been told twice.
HURRY = 1.0


class Process(HttpServer, Protocol):
    """What a `Duty` wants of a `uvicorn.Server`.

    Attributes:
        started: Whether it listens.
        force_exit: Whether it waits for nothing any more.
    """

    started: bool
    force_exit: bool


class Duty:
    """One process that serves.

    Args:
        endpoint: What it serves.
        grace: Seconds that running calls get once it is told to stop.
        probes: Sockets where its health is asked for; None for none.
        link: Line to its supervisor; None where there is none.
    """

    def __init__(self, endpoint: Endpoint, *, grace: float, probes: list[socket] | None, link: WorkerLink | None) -> None:
        self._endpoint = endpoint
        self._grace = grace
        self._probes = probes
        self._link = link
        self._health = Health(endpoint, opens=False)  # the HTTP server enters the lifespan
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: Ending | None = None
        self._telling: asyncio.Task[None] | None = None
        self._stopped = False
        self._over = threading.Event()

    async def begin(self, server: Process) -> None:
        """Take it up, on the event loop that will serve, before the lifespan is entered: who probes learns that it starts.

        Args:
            server: The HTTP server.
        """
        self._loop = asyncio.get_running_loop()
        self._ending = Ending(self._endpoint, server, self._grace)
        if self._probes:
            await serve_probes(self._probes, self._health.check)
        if self._link is not None:
            self._telling = self._loop.create_task(self._tell(self._link))
            self._link.listen(self._hear, self._grace)

    def started(self) -> None:
        """It serves now; whoever said that it should end before is obeyed."""
        if self._link is not None and self._telling is not None and self._loop is not None:
            self._telling.cancel()
            self._telling = self._loop.create_task(self._tell(self._link))

    def over(self) -> None:
        """It has come to its end."""
        self._over.set()

    def stop(self, server: Process) -> None:
        """Somebody wants the process to end: a signal, in the main thread. Whoever says so twice does not want to wait.

        Not so a worker's: systemd may tell it beside its supervisor, which knows who has been told twice, and kills it then.
        """
        if self._stopped:
            if self._link is None:
                server.force_exit = server.should_exit = True
                if not server.started:
                    os._exit(0)  # nothing has begun that could be ended in good order
                self._end_within(HURRY, 0, "Told to stop again: the process ends at once.")
            return
        self._stopped = True
        self._end_within(
            self._grace + LAST_RESORT, 1, "A call, a lifespan or a hook does not come to its end: the process ends all the same."
        )
        if self._loop is None or not server.started:
            server.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._end)

    def _end_within(self, seconds: float, code: int, text: str) -> None:
        """Have the process end, whatever hangs in it: code that passes over its cancellation, or never gives the event loop back."""

        def wait() -> None:
            if not self._over.wait(seconds):
                _log.log(logging.ERROR if code else logging.WARNING, text)
                os._exit(code)

        threading.Thread(target=wait, name="callboard-last-resort", daemon=True).start()

    def _hear(self, word: str) -> None:
        """Take a word of the supervisor's, in the line's thread."""
        if self._loop is None or self._loop.is_closed():
            return
        if word == RETIRE:
            self._loop.call_soon_threadsafe(self._retire)
        elif not word:
            _log.warning("The supervisor is gone: this worker ends, too.")
            self._loop.call_soon_threadsafe(self._end)

    def _retire(self) -> None:
        assert self._ending is not None
        self._ending.begin(replaced=True)

    def _end(self) -> None:
        assert self._ending is not None
        self._ending.begin()

    async def _tell(self, link: WorkerLink) -> None:
        """Say every second how it is; a process that hangs says nothing."""
        while True:
            link.tell(await self._health.check())
            await asyncio.sleep(BEAT)
