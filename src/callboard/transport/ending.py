"""How a process that serves comes to its end: nothing new, a while for what runs, a last word for what is still there."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from callboard.transport.endpoint import Endpoint

__all__ = ["Ending", "HttpServer"]

_log = logging.getLogger("callboard")
# Seconds between two looks at what runs.
LOOK = 0.05
# Seconds that connections at rest get for one more request when others take over, before they are closed.
LAST_REQUEST = 0.5
# Seconds that calls get to be told that they took too long, and what is written gets to be read.
TELL, READ = 1.0, 5.0
_CUT = "%d connections are cut: a call does not end, or a client does not read what it was sent, or send what it has begun."
_CLOSE = (b"connection", b"close")


class HttpServer(Protocol):
    """What an `Ending` wants of a `uvicorn.Server`."""

    config: Any
    server_state: Any
    servers: list[Any]
    should_exit: bool


class Ending:
    """Brings a server to its end.

    Args:
        endpoint: What it serves.
        server: The HTTP server.
        grace: Seconds that running calls get.

    Attributes:
        begun: Whether it has begun.
    """

    def __init__(self, endpoint: Endpoint, server: HttpServer, grace: float) -> None:
        self._endpoint = endpoint
        self._server = server
        self._grace = grace
        self._task: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None
        self.begun = False

    def begin(self, *, replaced: bool = False) -> None:
        """Begin, on the event loop that serves; once more does nothing.

        Args:
            replaced: Whether another process serves already, from the same listening sockets: then no request need be refused.
        """
        if not self.begun:
            self.begun = True
            self._task = asyncio.get_running_loop().create_task(self._end(replaced=replaced))

    async def _end(self, *, replaced: bool) -> None:
        try:
            await self._bring_to_end(replaced=replaced)
        finally:
            self._server.should_exit = True

    async def _bring_to_end(self, *, replaced: bool) -> None:
        server, loop = self._server, asyncio.get_running_loop()
        deadline = loop.time() + self._grace
        self._keep_no_connection()
        if replaced:
            for listening in server.servers:
                listening.close()
            await asyncio.sleep(min(LAST_REQUEST, self._grace))
        self._endpoint.drain()
        while self._endpoint.load.in_flight and loop.time() < deadline:  # noqa: ASYNC110 - counting costs calls nothing, an event would
            await asyncio.sleep(LOOK)
        if left := self._endpoint.load.in_flight:
            _log.warning("%d calls did not end within %g seconds: they are told that the server ends.", left, self._grace)
            await self._tell_the_rest()
        reading = min(READ, max(0.0, deadline - loop.time()) + TELL)
        server.config.timeout_graceful_shutdown = reading + TELL
        self._cutting = loop.create_task(self._cut(reading))

    async def _cut(self, seconds: float) -> None:
        """After some time, cut the connections of clients that don't read; the HTTP server would call that an error (A40)."""
        await asyncio.sleep(seconds)
        self._abort(list(self._server.server_state.connections))

    def _abort(self, connections: list[Any]) -> None:
        if connections:
            _log.warning(_CUT, len(connections))
        for connection in connections:
            connection.transport.abort()

    def _keep_no_connection(self) -> None:
        """Have each connection end with its next answer: one that is kept would bring more work here."""
        state = self._server.server_state
        self._server.config.encoded_headers.append(_CLOSE)
        state.default_headers = [*state.default_headers, _CLOSE]
        for connection in list(state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                connection.shutdown()  # it ends with this answer; those at rest may have one more, which says why

    async def _tell_the_rest(self) -> None:
        """Calls of sessions first: their connections are tasks like the others, and would be cut."""
        await self._endpoint.give_up()
        if stuck := [each for each in self._server.server_state.connections if _is_stuck(each)]:
            self._abort(stuck)
            await asyncio.sleep(LOOK)  # those who serve them see it: cancelled they would be called failures (A40)
        tasks = [task for task in self._server.server_state.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=TELL)


def _is_stuck(connection: Any) -> bool:
    """Whether it waits for its client: for the rest of a request, or until it reads what is sent."""
    cycle = getattr(connection, "cycle", None)
    return cycle is not None and not cycle.response_complete and (cycle.more_body or connection.flow.write_paused)
