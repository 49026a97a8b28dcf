"""Uses a server as clients of 2025 do, through the official Python client, and prints what it saw, one JSON object a line.

    python legacy_client.py http URL            everything; URL is that of breaking_proxy.py before the server
    python legacy_client.py stdio COMMAND ...   everything that a pipe can carry
    python legacy_client.py sse URL             the same over HTTP+SSE, the transport of 2024-11-05

It runs in an environment of its own that holds PyPI's `mcp`, either 1.x or 2.x in its legacy mode, and nothing of ours.
legacy_client.mjs does the same with the official npm client of that time; test_legacy_clients.py holds all to the same facts.
"""
# ruff: noqa: T201 - the printed lines are what this program is for

import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module, metadata
from typing import Any

import anyio

FIRST = metadata.version("mcp").startswith("1.")  # the first generation of that package

# Not imported by name: the project's own environment, which the checkers look at, doesn't hold them.
mcp: Any = import_module("mcp")
kinds: Any = import_module("mcp.types" if FIRST else "mcp_types")
http: Any = import_module("httpx" if FIRST else "httpx2")
streamable: Any = import_module("mcp.client.streamable_http")
stdio: Any = import_module("mcp.client.stdio")
sse: Any = import_module("mcp.client.sse")
Refusal: Any = mcp.McpError if FIRST else mcp.MCPError

PATIENCE = 30.0  # seconds for any one step
ROLE = "stage://cast/{role}"


def say(step: str, **facts: Any) -> None:
    """Prints what a step showed."""
    print(json.dumps({"step": step, **facts}), flush=True)


def plain(model: Any) -> Any:
    """A pydantic model as JSON, in the protocol's own names."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class Wire:
    """What the HTTP client beneath saw.

    Attributes:
        session: The session's id.
        media: Tool or method -> media type of its answer.
    """

    def __init__(self) -> None:
        self.session = ""
        self.media: dict[str, str] = {}

    async def see(self, response: Any) -> None:
        """Takes an answer's head."""
        self.session = response.headers.get("mcp-session-id") or self.session
        if response.request.method == "POST":
            sent = json.loads(response.request.content)
            name = (sent.get("params") or {}).get("name") or sent["method"]
            self.media[name] = response.headers.get("content-type", "")


class Seat:
    """A connection to the server.

    Attributes:
        session: The official client's session.
        hello: The answer to `initialize`.
        wire: What the HTTP client beneath saw; nothing over stdio.
        heard: Every notification that arrived, but progress: method and params.
        complaints: What the client complained of.
    """

    def __init__(self) -> None:
        self.session: Any = None
        self.hello: Any = None
        self.wire = Wire()
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.complaints: list[str] = []
        self._news = anyio.Event()

    async def hear(self, message: Any) -> None:
        """Takes what the client passes on."""
        if isinstance(message, Exception):
            self.complaints.append(repr(message))
            return
        note = getattr(message, "root", message)
        if note.method != "notifications/progress":
            self.heard.append((note.method, plain(note).get("params", {})))
        self._news.set()
        self._news = anyio.Event()

    async def hears(self, method: str, **params: Any) -> dict[str, Any]:
        """Waits for a notification that holds these params; gives all of them."""
        while True:
            for heard, found in self.heard:
                if heard == method and params.items() <= found.items():
                    return found
            await self._news.wait()

    async def call(self, tool: str, **arguments: Any) -> str:
        """The text that a tool answers with."""
        (block,) = plain(await self.session.call_tool(tool, arguments))["content"]
        return str(block["text"])


@asynccontextmanager
async def seat() -> AsyncIterator[Seat]:
    """Connects to the server that the command line names."""
    taken = Seat()
    kind, *rest = sys.argv[1:]
    if kind != "http":
        way = sse.sse_client(*rest) if kind == "sse" else stdio.stdio_client(mcp.StdioServerParameters(command=rest[0], args=rest[1:]))
        async with opened(way, taken):
            yield taken
        return
    async with (
        http.AsyncClient(event_hooks={"response": [taken.wire.see]}, timeout=PATIENCE) as client,
        opened(streamable.streamable_http_client(rest[0], http_client=client), taken),
    ):
        yield taken


@asynccontextmanager
async def opened(way: Any, taken: Seat) -> AsyncIterator[None]:
    """Shakes hands over a transport, in the manner of the package's generation."""
    if FIRST:
        async with way as streams, mcp.ClientSession(*streams[:2], message_handler=taken.hear) as taken.session:
            taken.hello = await taken.session.initialize()
            yield
    else:
        async with mcp.Client(way, mode="legacy", message_handler=taken.hear) as client:
            taken.session = client.session
            taken.hello = taken.session.initialize_result
            yield


async def refusal(call: Awaitable[Any]) -> dict[str, Any]:
    """Code, text and data of the protocol error that a call must end in."""
    try:
        await call
    except Refusal as raised:
        return {"code": raised.error.code, "message": raised.error.message, "data": raised.error.data}
    return {"code": None}


async def hello(at: Seat) -> None:
    say("hello", **plain(at.hello))
    say("ping", result=plain(await at.session.send_ping()))


async def all_tools(at: Seat) -> list[Any]:
    """The tools of every page."""
    page = await at.session.list_tools()
    tools = plain(page)["tools"]
    while cursor := plain(page).get("nextCursor"):
        page = await at.session.list_tools(params=kinds.PaginatedRequestParams(cursor=cursor))
        tools += plain(page)["tools"]
    return list(tools)


async def lists(at: Seat) -> None:
    tools = await all_tools(at)
    say("tools", names=[tool["name"] for tool in tools], first=tools[0])
    say("resources", uris=[entry["uri"] for entry in plain(await at.session.list_resources())["resources"]])
    say("templates", uris=[entry["uriTemplate"] for entry in plain(await at.session.list_resource_templates())["resourceTemplates"]])
    say("prompts", prompts=plain(await at.session.list_prompts())["prompts"])


async def calls(at: Seat) -> None:
    say("call", result=plain(await at.session.call_tool("add", {"a": 2, "b": 3})))
    notes: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        notes.append([progress, total, message])

    result = await at.session.call_tool("count", {"to": 3}, progress_callback=note)
    say("progress", notes=notes, text=plain(result)["content"][0]["text"])
    say("header", text=await at.call("seat", row="Süd"))
    numbers: dict[int, Any] = {}

    async def double(number: int) -> None:
        numbers[number] = plain(await at.session.call_tool("double", {"number": number}))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(double, number)
    say("concurrent", answers=[numbers[number]["content"][0]["text"] for number in range(20)], one=numbers[4])


async def state(at: Seat) -> None:
    """Twenty calls at once that each add one to what the session remembers."""
    counts: list[int] = []

    async def count() -> None:
        counts.append(int(await at.call("tally")))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(count)
    say("state", counts=sorted(counts), after=int(await at.call("tally")))


async def reads(at: Seat) -> None:
    for step, uri in (("read", "stage://tickets"), ("read_binary", "stage://poster"), ("read_template", "stage://cast/hamlet")):
        say(step, contents=plain(await at.session.read_resource(uri))["contents"])
    say("prompt", messages=plain(await at.session.get_prompt("review", {"play": "Hamlet"}))["messages"])
    done = await at.session.complete(kinds.PromptReference(type="ref/prompt", name="review"), {"name": "play", "value": "H"})
    say("complete", values=done.completion.values)
    role = kinds.ResourceTemplateReference(type="ref/resource", uri=ROLE)
    done = await at.session.complete(role, {"name": "role", "value": "g"})
    say("complete_template", values=done.completion.values)


async def errors(at: Seat) -> None:
    say("unknown_tool", **await refusal(at.session.call_tool("no_such_tool", {})))
    say("unknown_prompt", **await refusal(at.session.get_prompt("no_such_prompt", {})))
    say("missing_resource", **await refusal(at.session.read_resource("stage://cast/ghost")))
    say("bad_argument", result=plain(await at.session.call_tool("add", {"a": "two"})))
    say("tool_error", result=plain(await at.session.call_tool("refuse", {})))
    say("crash", **await refusal(at.session.call_tool("crash", {})))


async def cancel(at: Seat) -> None:
    running = anyio.Event()
    scope = anyio.CancelScope()

    async def started(progress: float, total: float | None, message: str | None) -> None:
        running.set()

    async def hold() -> None:
        with scope:
            await at.session.call_tool("hold", {"name": "python"}, progress_callback=started)

    async with anyio.create_task_group() as group:
        number = getattr(at.session, "_request_id", None)
        group.start_soon(hold)
        await running.wait()
        began = time.monotonic()
        if FIRST:  # which tells the server nothing when a call is abandoned
            params = kinds.CancelledNotificationParams(requestId=number)
            note = kinds.CancelledNotification(method="notifications/cancelled", params=params)
            await at.session.send_notification(kinds.ClientNotification(note))
        scope.cancel()
        say("cancel", name=await at.call("released"), seconds=time.monotonic() - began)


async def logs(at: Seat) -> None:
    await at.call("log", line="by default")
    await at.session.set_logging_level("error")
    await at.call("log", line="errors only")
    lines = [[note["level"], note["data"], note["logger"]] for method, note in at.heard if method == "notifications/message"]
    say("logs", lines=lines)
    await at.session.set_logging_level("info")


async def pushes(at: Seat) -> None:
    """What the server says on its own account: over HTTP it arrives on the stream of a GET."""
    await at.session.subscribe_resource("stage://tickets")
    await at.call("announce", name="encore")
    await at.hears("notifications/tools/list_changed")
    listed = "encore" in [tool["name"] for tool in await all_tools(at)]
    await at.call("sell")
    updated = await at.hears("notifications/resources/updated")
    await at.call("whisper", line="psst")
    whispered = await at.hears("notifications/message", data="psst")
    await at.call("shout", line="to all")
    shouted = await at.hears("notifications/message", data="to all")
    await at.session.unsubscribe_resource("stage://tickets")
    await at.call("sell")
    await at.call("whisper", line="no more")
    await at.hears("notifications/message", data="no more")
    updates = [method for method, _ in at.heard].count("notifications/resources/updated")
    say("pushes", listed=listed, updated=updated, whispered=whispered, shouted=shouted, updates=updates)


async def reconnect(at: Seat) -> None:
    """Cuts the GET's connection, and what is said meanwhile must arrive all the same."""
    await at.call("whisper", line="before")
    await at.hears("notifications/message", data="before")
    async with http.AsyncClient() as client:
        cut = (await client.post(sys.argv[2].replace("/mcp", "/cut"))).json()
        await at.call("whisper", line="meanwhile")
        await at.hears("notifications/message", data="meanwhile")
        await at.call("whisper", line="after")
        await at.hears("notifications/message", data="after")
        seen = (await client.post(sys.argv[2].replace("/mcp", "/seen"))).json()
    lines = [note["data"] for method, note in at.heard if method == "notifications/message"]
    say("reconnect", cut=cut["cut"], lines=lines[lines.index("before") :], resumed=bool(seen["resumed"]))


async def polling(at: Seat) -> None:
    """A call whose stream the server closes before it answers."""
    notes: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        notes.append(message)

    result = await at.session.call_tool("interval", {}, progress_callback=note)
    say("polling", notes=notes, text=plain(result)["content"][0]["text"])


async def farewells(at: Seat, former: Seat) -> None:
    """How a session ends: its client leaves, or somebody else ends it and the client starts again."""
    say("departed", **json.loads(await at.call("departed")))
    async with http.AsyncClient() as client:
        ended = await client.delete(sys.argv[2], headers={"mcp-session-id": at.wire.session})
        again = await client.delete(sys.argv[2], headers={"mcp-session-id": former.wire.session})
    say("deleted", status=ended.status_code, again=again.status_code, lost=await refusal(at.session.send_ping()))


STEPS: tuple[Callable[[Seat], Awaitable[None]], ...] = (hello, lists, calls, state, reads, errors, cancel, logs, pushes)
HTTP_STEPS: tuple[Callable[[Seat], Awaitable[None]], ...] = (reconnect, polling)


async def everything() -> None:
    over_http = sys.argv[1] == "http"
    async with seat() as first:
        for step in STEPS + HTTP_STEPS * over_http:
            with anyio.fail_after(PATIENCE):
                await step(first)
        leaving = time.monotonic()
    say("left", seconds=time.monotonic() - leaving, complaints=first.complaints)
    if not over_http:
        return
    say("media", **first.wire.media)
    with anyio.fail_after(PATIENCE):
        async with seat() as second:
            await farewells(second, first)
        async with seat() as third:
            say("again", fresh=third.wire.session != second.wire.session, tally=int(await third.call("tally")))


async def main() -> None:
    await everything()
    say("end")


anyio.run(main)
