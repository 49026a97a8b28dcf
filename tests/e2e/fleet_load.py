"""What clients of 2025 do to a fleet, and what must be true of every answer.

Rules:
    1. A call that is answered with a result has added its item; one that is answered with an error, or broke off, may have: once, and not later.
    2. A session's items are in the order of its calls.
    3. What was told and answered comes to every reader, once and in order; each reader goes on from the last id it has seen.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any, Self

import aiohttp

__all__ = ["Load"]

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
LIMIT = 30.0  # seconds for one request: the fleet must have answered, or said why not, by then


class Counting:
    """One session, whose items are known.

    Attributes:
        id: Its id.
        sure: Items that must be in its state.
        maybe: Those that may be.
        lost: Whether the server has said that there is no such session.
    """

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.sure: list[int] = []
        self.maybe: set[int] = set()
        self.lost = False
        self._numbers = count(1)

    def next(self) -> int:
        """The next item."""
        return next(self._numbers)

    def check(self, items: list[int]) -> None:
        """See that a state is right (rules 1 and 2)."""
        assert items == sorted(set(items)), f"out of order, or twice: {items}"
        missing = [item for item in self.sure if item not in items]
        strange = [item for item in items if item not in self.sure and item not in self.maybe]
        assert not missing, f"lost {missing} of {items}"
        assert not strange, f"never added: {strange} of {items}"


class Reader:
    """One GET stream, taken up again wherever it breaks.

    Attributes:
        heard: What it was told.
        opened: How often it was opened.
    """

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.opened = 0
        self.last_id: str | None = None


class Load:
    """Sessions, calls and readers at one endpoint.

    Attributes:
        errors: What went wrong, by name.
        workers: Process ids that have answered.
        calls: How many calls were answered with a result.
        told: Numbers that were told, and answered.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.errors: Counter[str] = Counter()
        self.workers: set[int] = set()
        self.calls = 0
        self.told: list[int] = []
        self.sessions: list[Counting] = []
        self.readers: list[Reader] = []
        self._http: Any = None
        self._numbers = count(1)

    async def __aenter__(self) -> Self:
        # Each request on a connection of its own: any worker may have it.
        connector = aiohttp.TCPConnector(limit=256, force_close=True)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=LIMIT))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def open(self, many: int) -> None:
        """Open so many sessions."""
        for _ in range(0, many, 50):
            self.sessions += await asyncio.gather(*(self._open() for _ in range(min(50, many - len(self.sessions)))))

    async def _open(self) -> Counting:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        async with self._http.post(self.url, json=message, headers=ACCEPT) as answer:
            assert answer.status == 200, await answer.text()
            return Counting(answer.headers["mcp-session-id"])

    async def _call(self, session: Counting, tool: str, arguments: dict[str, Any], request_id: int) -> Any:
        """The result of a call, or None where it ended otherwise, which is counted by name."""
        message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        try:
            async with self._http.post(self.url, json=message, headers={**ACCEPT, "mcp-session-id": session.id}) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.errors[type(error).__name__] += 1
            return None
        told = json.loads(body)
        if "result" in told:
            self.calls += 1
            return told["result"]["structuredContent"]["result"]
        session.lost |= answer.status == 404
        self.errors[f"{answer.status} {told['error']['message'][:60]}"] += 1
        return None

    async def add(self, session: Counting) -> None:
        """Add an item, and look at the answer."""
        item = session.next()
        session.maybe.add(item)
        found = await self._call(session, "add", {"item": item}, item)
        if found is not None:
            self.workers.add(found[0])
            session.sure.append(item)
            assert found[-1] == item
            session.check(found[1:])
        else:
            await asyncio.sleep(0.1)

    async def round(self, sessions: list[Counting]) -> None:
        """One call in each of some sessions, 32 at once."""
        lane = iter(sessions)
        await asyncio.gather(*(self._work(lane) for _ in range(32)))

    async def _work(self, lane: Iterator[Counting]) -> None:
        for session in lane:
            await self.add(session)

    async def keep_calling(self, until: asyncio.Event) -> None:
        """Rounds, until it is enough."""
        while not until.is_set():
            await self.round(self.sessions)

    async def keep_telling(self, until: asyncio.Event) -> None:
        """Tell all readers something, again and again."""
        session = self.sessions[0]
        while not until.is_set():
            number = next(self._numbers)
            if await self._call(session, "tell", {"number": number}, 1_000_000 + number) is not None:
                self.told.append(number)
            await asyncio.sleep(0.05)

    async def read(self, session: Counting, until: asyncio.Event) -> None:
        """Read a session's GET stream until everything has been heard."""
        reader = Reader()
        self.readers.append(reader)
        while not until.is_set():
            headers = {"accept": "text/event-stream", "mcp-session-id": session.id}
            if reader.last_id is not None:
                headers["last-event-id"] = reader.last_id
            try:
                reading = asyncio.ensure_future(self._read(reader, headers))
                stop = asyncio.ensure_future(until.wait())
                await asyncio.wait({reading, stop}, return_when=asyncio.FIRST_COMPLETED)
                for task in (reading, stop):
                    task.cancel()
                await asyncio.gather(reading, stop, return_exceptions=True)
                if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
                    raise error
            except (aiohttp.ClientError, OSError) as error:
                self.errors[f"stream: {type(error).__name__}"] += 1
            await asyncio.sleep(0.1)

    async def _read(self, reader: Reader, headers: dict[str, str]) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.get(self.url, headers=headers, timeout=timeout) as answer:
            if answer.status != 200:
                self.errors[f"stream: {answer.status}"] += 1
                return
            reader.opened += 1
            event_id: str | None = None
            async for line in answer.content:
                if line.startswith(b"id: "):
                    event_id = line[4:].strip().decode()
                elif line.startswith(b"data: {"):
                    reader.heard.append(json.loads(line[6:])["params"]["data"])
                elif not line.strip() and event_id is not None:
                    reader.last_id = event_id  # as the standard has it: with the whole event

    def check_readers(self) -> None:
        """See that each has heard all that was told (rule 3)."""
        for reader in self.readers:
            assert len(reader.heard) == len(set(reader.heard)), f"doubled: {[n for n, many in Counter(reader.heard).items() if many > 1]}"
            missing = sorted(set(self.told) - set(reader.heard))
            assert not missing, f"missed {missing} after {reader.opened} connections, last id {reader.last_id}"

    async def heard_all(self) -> bool:
        """Whether everything has come everywhere, as far as one can wait for it."""
        for _ in range(100):
            if all(set(self.told) <= set(reader.heard) for reader in self.readers):
                return True
            await asyncio.sleep(0.1)
        return False
