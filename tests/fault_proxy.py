"""A proxy that misbehaves on purpose: it stands between a client and any HTTP server on this machine, and every request may meet a fault.

    async with FaultProxy(upstream, lambda ask: Fault("cut_body") if ask.method == "tools/call" else None) as proxy:
        client = Client(proxy.url)

What strikes is decided by the test for each request, from a number, an HTTP method and a JSON-RPC method: nothing here is left to chance.
`FAULTS` (tests/faults.py) names every kind, and what it does.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from fault_link import Ask, Fault, Link, Traffic, reset
from faults import FAULTS

__all__ = ["FAULTS", "Ask", "Fault", "FaultProxy", "Script"]

Script = Callable[[Ask], Fault | None]
"""Says what a request meets; None lets it pass."""


class FaultProxy(Traffic):
    """The proxy; see the module.

    Args:
        upstream: URL of the server.
        script: What each request meets.

    Attributes:
        script: The same; it may be changed on the way.
        struck: Every fault so far, with the request that met it.
        open_connections: How many connections of clients are open.
    """

    def __init__(self, upstream: str, script: Script = lambda _: None) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        super().__init__((parts.hostname, parts.port))
        self.script = script
        self.path = parts.path
        self.port = 0
        self.struck: list[tuple[Ask, Fault]] = []
        self._tasks: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.vanish()

    async def listen(self) -> None:
        """Take connections; after `vanish`, on the same port again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{self.path}"

    async def vanish(self) -> None:
        """Go as a machine does that is switched off: every connection is reset, and new ones are refused."""
        if self._server is not None:
            self._server.close()
        for task, writer in list(self._tasks.items()):
            reset(writer)
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        link = Link(self, reader, writer)
        try:
            while not writer.is_closing():
                await link.read()
                fault = self.script(link.ask)
                if fault is None:
                    await link.relay()
                    continue
                link.fault = fault
                self.struck.append((link.ask, fault))
                await FAULTS[fault.kind](link)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            writer.transport.abort()  # also when the test is over: nobody waits for this task's end
        finally:
            del self._tasks[task]
            writer.close()
