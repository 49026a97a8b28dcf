"""Clients of a soak: what each does is short, often broken off, and checked where it is not.

An actor does one scenario after another until it is told to stop. Whatever comes back that must not is a fault, with a text.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

VERSION, LEGACY = "2026-07-28", "2025-11-25"
META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}
ACCEPTED = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
PATIENCE = 30.0  # seconds for one answer


class FaultError(Exception):
    """An answer that must not be."""


def demand(holds: bool, what: Any) -> None:  # noqa: FBT001 - as of an assertion
    """Raises:
    FaultError: It does not hold.
    """
    if not holds:
        raise FaultError(str(what)[:500])


class Crowd:
    """All clients.

    Args:
        url: Of the endpoint.
        seed: Of what they choose.

    Attributes:
        done: Scenarios that were carried out, by name.
        refused: Answers 503, which a server may give.
        faults: What went wrong, by text.
    """

    def __init__(self, url: str, seed: int = 1) -> None:
        self.url = url
        self.done: Counter[str] = Counter()
        self.refused = 0
        self.faults: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._going = asyncio.Event()

    async def run(self, actors: int, seconds: float) -> None:
        """Lets so many actors act for so long, and waits until each has ended its scenario."""
        self._going.set()
        async with asyncio.TaskGroup() as group:
            for _ in range(actors):
                group.create_task(self._act())
            await asyncio.sleep(seconds)
            self._going.clear()

    async def _act(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
            client = Client(session, self.url, self._random)
            names, weights = zip(*SCENARIOS.items(), strict=True)
            while self._going.is_set():
                (scenario,) = self._random.choices(names, [weight for weight, _ in weights])
                try:
                    await SCENARIOS[scenario][1](client)
                except RefusedError:
                    self.refused += 1
                    await asyncio.sleep(0.2)
                except (FaultError, aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                    self.faults[f"{scenario}: {type(error).__name__} {getattr(error, 'errno', '')}: {str(error)[:200]}"] += 1
                else:
                    self.done[scenario] += 1
                await asyncio.sleep(self._random.random() * 0.02)


class RefusedError(Exception):
    """503: the server may do that."""


class Client:
    """One client.

    Args:
        session: Its connections.
        url: Of the endpoint.
        chance: Of what it chooses.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
        self._session = session
        self._url = url
        self.chance = chance

    @asynccontextmanager
    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> AsyncIterator[aiohttp.ClientResponse]:
        """A request, broken off when the block is left before its end: with a reset, or in good order."""
        async with self._session.request(method, self._url, headers=headers, data=body or None) as response:
            if response.status == 503:
                raise RefusedError
            try:
                yield response
            finally:
                connection = response.connection
                if connection is not None and connection.transport is not None and self.chance.random() < 0.5:
                    connection.transport.abort()
                response.close()

    def call(self, tool: str, *, token: bool = False, **arguments: Any) -> tuple[dict[str, str], bytes]:
        """Headers and body of a call of the current protocol."""
        meta = {**META, **({"progressToken": 1} if token else {})}
        return self.message("tools/call", {"name": tool, "arguments": arguments, "_meta": meta}, name=tool)

    def message(self, method: str, params: Mapping[str, Any], *, name: str | None = None) -> tuple[dict[str, str], bytes]:
        """Headers and body of a request of the current protocol."""
        headers = {**ACCEPTED, "mcp-protocol-version": VERSION, "mcp-method": method, **({"mcp-name": name} if name else {})}
        return headers, json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()

    async def ask(self, tool: str, **arguments: Any) -> str:
        """The text that a tool answers with."""
        headers, body = self.call(tool, **arguments)
        async with self._session.post(self._url, headers=headers, data=body) as response:
            return await read_text(response)


async def read_text(response: aiohttp.ClientResponse) -> str:
    """The text of a tool's result."""
    if response.status == 503:
        raise RefusedError
    received = await response.text()
    demand(response.status == 200, f"{response.status} {received}")
    if response.content_type == "text/event-stream":
        received = [line[6:] for line in received.splitlines() if line.startswith("data: ") and len(line) > 6][-1]
    message = json.loads(received)
    demand("result" in message, received)
    return str(message["result"]["content"][0]["text"])


async def next_event(response: aiohttp.ClientResponse) -> tuple[str, str]:
    """Id and data of the next event that says something."""
    last = ""
    while line := (await response.content.readline()).decode():
        if line.startswith("id: "):
            last = line[4:].strip()
        elif line.startswith("data: ") and len(line.strip()) > 5:
            return last, line[6:]
    raise FaultError("a stream ended")


async def echo(client: Client) -> None:
    """A plain call, small mostly."""
    text = "x" * int(2 ** (client.chance.random() * 15))
    demand(await client.ask("echo", text=text) == text, "another echo")


async def block(client: Client) -> None:
    """A call that runs in a thread."""
    demand(await client.ask("block", text="aa") == str(2 * ord("a")), "another sum")


async def climb(client: Client) -> None:
    """A call that streams."""
    headers, body = client.call("climb", token=True, steps=5, pause=0.01)
    async with client.request("POST", headers, body) as response:
        demand(await read_text(response) == "5 steps", "another result")


async def leave(client: Client) -> None:
    """A stream that is broken off."""
    headers, body = client.call("hold", token=True)
    async with client.request("POST", headers, body) as response:
        demand(response.status == 200, response.status)
        await next_event(response)


async def vanish(client: Client) -> None:
    """A call that is broken off before it has answered a byte."""
    headers, body = client.call("hold", silent=True)
    try:
        async with asyncio.timeout(0.02 + client.chance.random() * 0.05), client.request("POST", headers, body):
            raise FaultError("hold answered at once")
    except TimeoutError:
        pass


async def listen(client: Client) -> None:
    """A listen stream that hears of a change, or not, and is left."""
    wanted = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["soak://number"]}, "_meta": META}
    headers, body = client.message("subscriptions/listen", wanted)
    async with client.request("POST", headers, body) as response:
        demand(response.status == 200, response.status)
        demand("acknowledged" in (await next_event(response))[1], "no acknowledgement")
        if client.chance.random() < 0.3:
            await client.ask("shout", line="listen")
            demand("resources/updated" in (await next_event(response))[1], "another change")
        else:
            await asyncio.sleep(client.chance.random() * 2)


async def err(client: Client) -> None:
    """Requests that are refused."""
    headers, body = client.call("echo", text="x")
    legacy = {**ACCEPTED, "mcp-protocol-version": LEGACY, "mcp-session-id": "no-such-session"}
    for given, sent, status in (
        (headers, body[:-1], 400),
        ({**headers, "mcp-name": "other"}, body, 400),
        (legacy, b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', 404),
        ({**headers, "x-large": "x" * 17_000}, body, 431),
    ):
        async with client.request("POST", given, sent) as response:
            await response.read()
            demand(response.status == status, f"{response.status} in place of {status}")


class Visit:
    """A session of a 2025 client.

    Args:
        client: Whose.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._id = ""

    def _headers(self, **more: str) -> dict[str, str]:
        return {**ACCEPTED, "mcp-protocol-version": LEGACY, **({"mcp-session-id": self._id} if self._id else {}), **more}

    async def send(self, method: str, params: Mapping[str, Any], number: int | None = 1) -> str:
        """The text of an answer."""
        message = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        async with self._client.request("POST", self._headers(), json.dumps(message).encode()) as response:
            demand(response.status in {200, 202}, f"{method}: {response.status} {await response.text()}")
            self._id = response.headers.get("mcp-session-id", self._id)
            return await response.text()

    async def begin(self) -> None:
        """Opens it."""
        await self.send("initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}})
        demand(bool(self._id), "no session")
        await self.send("notifications/initialized", {}, None)

    async def tally(self, expected: int) -> None:
        """Counts, and holds the count to what it must be, whichever worker it meets."""
        answer = await self.send("tools/call", {"name": "tally", "arguments": {}})
        found = json.loads(answer.rpartition("data: ")[2] if "data: " in answer else answer)["result"]["content"][0]["text"]
        demand(found == str(expected), f"tally {found} in place of {expected}")

    def stream(self, last: str = "") -> Any:
        """Its stream, from after an event."""
        return self._client.request("GET", self._headers(accept="text/event-stream", **({"last-event-id": last} if last else {})))

    async def end(self) -> None:
        """Deletes it."""
        async with self._client.request("DELETE", self._headers()) as response:
            demand(response.status == 204, f"DELETE: {response.status}")


async def visit(client: Client) -> None:
    """A session: state, a stream that breaks and is taken up, an end in good order, or none."""
    session = Visit(client)
    await session.begin()
    for number in range(1, 4):
        await session.tally(number)
    if client.chance.random() < 0.5:
        async with session.stream() as response:
            demand(response.status == 200, f"GET: {response.status}")
            await client.ask("shout", line="first")
            last, _ = await next_event(response)
        await client.ask("shout", line="second")
        async with session.stream(last) as response:
            demand(response.status == 200, f"GET again: {response.status}")
            demand("notifications/" in (await next_event(response))[1], "nothing is replayed")
    await session.tally(4)
    if client.chance.random() < 0.8:
        await session.end()


SCENARIOS: dict[str, tuple[int, Callable[[Client], Awaitable[None]]]] = {
    "echo": (40, echo),
    "block": (5, block),
    "climb": (15, climb),
    "leave": (10, leave),
    "vanish": (5, vanish),
    "listen": (5, listen),
    "err": (5, err),
    "visit": (15, visit),
}
"""What clients do, and how often."""
