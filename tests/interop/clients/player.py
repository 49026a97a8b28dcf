"""Uses everything servers through one of the Python clients and prints what it saw, one JSON object for each operation over each way.

    python player.py PEER JOB

PEER is a key of PEERS; JOB is a JSON object: `ways`, each with a `name`, the `version` to speak, a `url` or a `command`, and whether it is
`quiet`, so that no notification can come; and the values of ../cells.py by the names of operations. All ways are used at once. Of other
people's clients it runs in an environment of its own that holds nothing of ours. player.mjs does the same with the Node.js clients.
"""
# ruff: noqa: T201 - the printed lines are what this program is for

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

JSON = dict[str, Any]
Note = Callable[[float, float | None, str | None], Awaitable[None]]

MODERN = "2026-07-28"
LIMIT = 20.0  # seconds for any one operation

PEER: str = sys.argv[1]
JOB: JSON = json.loads(sys.argv[2])


class Person:
    """Who fills in forms.

    Attributes:
        asked: What was asked.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fill_in(self, message: str) -> JSON:
        """The answer to a form."""
        self.asked.append(message)
        return dict(JOB["elicitation"][1])


class Seat(Protocol):
    """A connection to a server, as every client has it. Results are what was on the wire."""

    version: str

    async def listed(self) -> JSON:
        """Names of tools, URIs of resources, names of prompts."""
        ...

    async def call(self, tool: str, arguments: JSON, note: Note | None = None) -> JSON:
        """The result of a tool."""
        ...

    async def read(self, uri: str) -> JSON:
        """What is in a resource."""
        ...

    async def prompt(self, name: str, arguments: JSON) -> JSON:
        """A prompt."""
        ...

    async def complete(self, prompt: str, argument: str, typed: str) -> list[str]:
        """How an argument of a prompt can go on."""
        ...

    async def abandon(self, call: "asyncio.Task[JSON]") -> None:
        """Gives up a call."""
        ...


def plain(model: Any) -> JSON:
    """A pydantic model as JSON, in the protocol's own names."""
    return dict(model.model_dump(mode="json", by_alias=True, exclude_none=True))


async def drop(call: "asyncio.Task[JSON]") -> None:
    """Cancels a call as applications do."""
    call.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await call


class SdkSeat:
    """PyPI's `mcp`: a `Client` of the second generation, a `ClientSession` of the first."""

    def __init__(self, peer: Any, kinds: Any, version: str, *, first: bool) -> None:
        self._peer = peer
        self._kinds = kinds
        self._first = first
        self._numbers: dict[str, int] = {}  # of the latest call of each tool
        self.version = version

    async def listed(self) -> JSON:
        tools, resources, prompts = await self._peer.list_tools(), await self._peer.list_resources(), await self._peer.list_prompts()
        return names(plain(tools)["tools"], plain(resources)["resources"], plain(prompts)["prompts"])

    async def call(self, tool: str, arguments: JSON, note: Note | None = None) -> JSON:
        if self._first:
            self._numbers[tool] = self._peer._request_id
        return plain(await self._peer.call_tool(tool, arguments, progress_callback=note))

    async def read(self, uri: str) -> JSON:
        return plain(await self._peer.read_resource(uri))

    async def prompt(self, name: str, arguments: JSON) -> JSON:
        return plain(await self._peer.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: str, typed: str) -> list[str]:
        ref = self._kinds.PromptReference(type="ref/prompt", name=prompt)
        return list((await self._peer.complete(ref, {"name": argument, "value": typed})).completion.values)

    async def abandon(self, call: "asyncio.Task[JSON]") -> None:
        if self._first:  # which tells the server nothing when a call is given up: who uses it has to
            params = self._kinds.CancelledNotificationParams(requestId=self._numbers[JOB["cancel"][0]])
            note = self._kinds.CancelledNotification(method="notifications/cancelled", params=params)
            await self._peer.send_notification(self._kinds.ClientNotification(note))
        await drop(call)


@asynccontextmanager
async def mcp1(way: JSON, person: Person) -> AsyncIterator[Seat]:
    """PyPI's `mcp` 1.x."""
    mcp, kinds = import_module("mcp"), import_module("mcp.types")

    async def fill_in(_: Any, params: Any) -> Any:
        return kinds.ElicitResult(action="accept", content=person.fill_in(params.message))

    if "url" in way:
        transport = import_module("mcp.client.streamable_http").streamable_http_client(way["url"])
    else:
        transport = import_module("mcp.client.stdio").stdio_client(spawned(mcp, way))
    async with transport as streams, mcp.ClientSession(*streams[:2], elicitation_callback=fill_in) as session:
        hello = await session.initialize()
        yield SdkSeat(session, kinds, hello.protocolVersion, first=True)


@asynccontextmanager
async def mcp2(way: JSON, person: Person) -> AsyncIterator[Seat]:
    """PyPI's `mcp` 2.x."""
    mcp, kinds = import_module("mcp"), import_module("mcp_types")

    async def fill_in(_: Any, params: Any) -> Any:
        return kinds.ElicitResult(action="accept", content=person.fill_in(params.message))

    target = way.get("url") or spawned(mcp, way)
    mode = "auto" if way["version"] == MODERN else "legacy"
    async with mcp.Client(target, mode=mode, elicitation_callback=fill_in) as client:
        yield SdkSeat(client, kinds, client.protocol_version, first=False)


def spawned(mcp: Any, way: JSON) -> Any:
    """A server that PyPI's `mcp` starts."""
    return mcp.StdioServerParameters(command=way["command"][0], args=way["command"][1:])


class FastSeat:
    """PyPI's `fastmcp`: lists are plain lists, results are its own."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.version = client.protocol_version

    async def listed(self) -> JSON:
        lists = [await self._client.list_tools(), await self._client.list_resources(), await self._client.list_prompts()]
        return names(*([plain(entry) for entry in entries] for entries in lists))

    async def call(self, tool: str, arguments: JSON, note: Note | None = None) -> JSON:
        result = await self._client.call_tool(tool, arguments, progress_handler=note, raise_on_error=False)
        content = [plain(block) for block in result.content]
        return {"content": content, "structuredContent": result.structured_content, "isError": result.is_error}

    async def read(self, uri: str) -> JSON:
        return {"contents": [plain(item) for item in await self._client.read_resource(uri)]}

    async def prompt(self, name: str, arguments: JSON) -> JSON:
        return plain(await self._client.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: str, typed: str) -> list[str]:
        ref = import_module("mcp_types").PromptReference(type="ref/prompt", name=prompt)
        return list((await self._client.complete(ref, {"name": argument, "value": typed})).values)

    async def abandon(self, call: "asyncio.Task[JSON]") -> None:
        await drop(call)


@asynccontextmanager
async def fastmcp(way: JSON, person: Person) -> AsyncIterator[Seat]:
    """PyPI's `fastmcp`."""
    package, transports = import_module("fastmcp"), import_module("fastmcp.client.transports")

    async def fill_in(message: str, *_: Any) -> Any:
        return person.fill_in(message)

    if "url" in way:
        target = transports.StreamableHttpTransport(way["url"])
    else:
        target = transports.StdioTransport(command=way["command"][0], args=way["command"][1:], keep_alive=False)
    mode = "auto" if way["version"] == MODERN else "legacy"
    async with package.Client(target, mode=mode, elicitation_handler=fill_in) as client:
        yield FastSeat(client)


class OurSeat:
    """Ours."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.version = client.version

    @staticmethod
    def _plain(struct: Any) -> Any:
        return import_module("msgspec").to_builtins(struct)

    async def listed(self) -> JSON:
        lists = [await self._client.list_tools(), await self._client.list_resources(), await self._client.list_prompts()]
        return names(*(self._plain(entries) for entries in lists))

    async def call(self, tool: str, arguments: JSON, note: Note | None = None) -> JSON:
        return dict(self._plain(await self._client.call_tool(tool, arguments, on_progress=note)))

    async def read(self, uri: str) -> JSON:
        return dict(self._plain(await self._client.read_resource(uri)))

    async def prompt(self, name: str, arguments: JSON) -> JSON:
        return dict(self._plain(await self._client.get_prompt(name, arguments)))

    async def complete(self, prompt: str, argument: str, typed: str) -> list[str]:
        ref = import_module("callboard.types").PromptReference(name=prompt)
        return list((await self._client.complete(ref, argument, typed)).values)

    async def abandon(self, call: "asyncio.Task[JSON]") -> None:
        await drop(call)


@asynccontextmanager
async def callboard(way: JSON, person: Person) -> AsyncIterator[Seat]:
    """Ours."""

    def fill_in(form: Any) -> JSON:
        return person.fill_in(form.message)

    target = way.get("url") or way["command"]
    async with import_module("callboard").Client(target, versions=way["version"], on_elicit=fill_in) as client:
        yield OurSeat(client)


PEERS: dict[str, Callable[[JSON, Person], AbstractAsyncContextManager[Seat]]] = {
    "callboard": callboard,
    "mcp-2.3.0": mcp2,
    "mcp-1.30": mcp1,
    "fastmcp-4.2.3": fastmcp,
}


def names(tools: list[JSON], resources: list[JSON], prompts: list[JSON]) -> JSON:
    """What lists are known by."""
    return {
        "tools": [tool["name"] for tool in tools],
        "resources": [resource["uri"] for resource in resources],
        "prompts": [prompt["name"] for prompt in prompts],
    }


def texts(result: JSON) -> list[str]:
    """The text blocks of a result."""
    return [block["text"] for block in result["content"]]


async def progress(at: Seat, person: Person, way: str) -> JSON:
    notes: list[Any] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        notes.append([done, total, message])

    tool, arguments, *_ = JOB["progress"]
    return {"text": texts(await at.call(tool, arguments, note)), "notes": notes}


async def structured(at: Seat, person: Person, way: str) -> JSON:
    return {"structured": (await at.call(*JOB["structured"][:2]))["structuredContent"]}


async def in_band(at: Seat, tool: str) -> JSON:
    """A call that is expected to fail."""
    result = await at.call(tool, {})
    return {"failed": result["isError"], "text": texts(result)}


async def resource(at: Seat, person: Person, way: str) -> JSON:
    contents = (await at.read(JOB["resource"][0]))["contents"]
    return {"contents": [[item["uri"], item["mimeType"], item["text"]] for item in contents]}


async def prompt(at: Seat, person: Person, way: str) -> JSON:
    messages = (await at.prompt(*JOB["prompt"][:2]))["messages"]
    return {"messages": [[message["role"], message["content"]["text"]] for message in messages]}


async def elicitation(at: Seat, person: Person, way: str) -> JSON:
    result = await at.call(JOB["elicitation"][0], {})
    return {"failed": result.get("isError", False), "asked": person.asked, "text": texts(result)}


async def cancel(at: Seat, person: Person, way: str) -> JSON:
    """Gives up a call that runs; both facts are the server's own."""
    hold, watch, held, released = JOB["cancel"]
    name = f"{PEER} {way}"
    call = asyncio.create_task(at.call(hold, {"name": name}))
    running = texts(await at.call(watch, {"name": name, "event": held}))
    given_up = time.monotonic()
    await at.abandon(call)
    stopped = await at.call(watch, {"name": name, "event": released})
    return {"running": running, "failed": stopped.get("isError", False), "stopped": texts(stopped), "seconds": time.monotonic() - given_up}


async def listed(at: Seat, person: Person, way: str) -> JSON:
    return {"version": at.version, **await at.listed()}


async def call(at: Seat, person: Person, way: str) -> JSON:
    return {"text": texts(await at.call(*JOB["call"][:2]))}


async def completion(at: Seat, person: Person, way: str) -> JSON:
    return {"values": await at.complete(JOB["prompt"][0], *JOB["completion"][:2])}


OPERATIONS: dict[str, Callable[[Seat, Person, str], Awaitable[JSON]]] = {
    "list": listed,
    "call": call,
    "structured": structured,
    "progress": progress,
    "tool_error": lambda at, *_: in_band(at, JOB["tool_error"][0]),
    "unknown_tool": lambda at, *_: in_band(at, JOB["unknown_tool"][0]),
    "resource": resource,
    "prompt": prompt,
    "completion": completion,
    "elicitation": elicitation,
    "cancel": cancel,
}


def failure(error: BaseException) -> JSON:
    """What an operation failed with: a protocol error's code where there is one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    code = getattr(error, "code", getattr(getattr(error, "error", None), "code", None))
    return {"error": f"{type(error).__name__}: {error}", "code": code}


async def play(way: JSON) -> None:
    """Uses a server in every way."""
    person = Person()
    try:
        async with PEERS[PEER](way, person) as at:
            for name, operation in OPERATIONS.items():
                try:
                    saw = await asyncio.wait_for(operation(at, person, way["name"]), LIMIT)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what was seen
                    saw = failure(error)
                print(json.dumps({"way": way["name"], "operation": name, "saw": saw}), flush=True)
    except Exception as error:  # noqa: BLE001
        print(json.dumps({"way": way["name"], "operation": "connection", "saw": failure(error)}), flush=True)


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        for way in JOB["ways"]:
            group.create_task(play(way))


asyncio.run(main())
