"""Every option of a tool's policy, in every mode in which a tool can be written, for clients of both eras, and as tasks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import pytest
from asgi_driver import JSON, Client, make_meta
from legacy_driver import Legacy
from rounds import Rounds, accept
from virtual_time import virtual_time

from callboard import CacheHint, Context, Server, ToolError, asgi
from callboard.auth.principal import Principal
from callboard.server.task_table import MemoryTasks
from callboard.types import Icon, ToolAnnotations

TASKS = "io.modelcontextprotocol/tasks"


class Desk:
    """What the tool of a server does.

    Attributes:
        running: Calls that run now, and the most that ever did.
        calls: How often it has begun.
    """

    def __init__(self) -> None:
        self.running = self.most = self.calls = 0

    async def work(self, seconds: float = 0) -> str:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return "done"


DESK: Desk


async def work(seconds: float = 0) -> str:
    """Work."""
    return await DESK.work(seconds)


class Work:
    """Work."""

    async def execute(self, seconds: float = 0) -> str:
        return await DESK.work(seconds)


def as_class(options: Mapping[str, Any]) -> type:
    """The tool as a class, with options as its attributes; what a module would define."""
    members = {name: staticmethod(value) if inspect.isfunction(value) else value for name, value in options.items()}
    made = type("Work", (Work,), {"__doc__": Work.__doc__, **members})
    made.__qualname__ = "Work"
    return made


class Build(Protocol):
    """Makes a server with the tool."""

    def __call__(self, options: Mapping[str, Any], /) -> Server: ...


def by_function(options: Mapping[str, Any]) -> Server:
    server = Server("desk", tasks=MemoryTasks(), cache=CacheHint(9_000, "public"))
    server.tool(work, **options)
    return server


def by_class(options: Mapping[str, Any]) -> Server:
    server = Server("desk", tasks=MemoryTasks(), cache=CacheHint(9_000, "public"))
    server.add(as_class(options))
    return server


def by_provider(options: Mapping[str, Any]) -> Server:
    server = Server("desk", tasks=MemoryTasks(), cache=CacheHint(9_000, "public"))
    given = as_class(options)
    server.provide(lambda ctx: [given])
    return server


def mounted(build: Build) -> Build:
    def mount(options: Mapping[str, Any]) -> Server:
        server = Server("hall", tasks=MemoryTasks())
        server.mount("desk", build(options))
        return server

    return mount


MODES: dict[str, tuple[Build, str]] = {
    "function": (by_function, "work"),
    "class": (by_class, "work"),
    "provider": (by_provider, "work"),
    "mounted": (mounted(by_function), "desk_work"),
    "mounted twice": (mounted(mounted(by_class)), "desk_desk_work"),
    "mounted provider": (mounted(by_provider), "desk_work"),
}
each_mode = pytest.mark.parametrize("mode", MODES)


class Stage:
    """The tool in one mode, and clients of it.

    Attributes:
        server: The server.
        name: Name of the tool there.
        app: The server as an application.
    """

    def __init__(self, mode: str, **options: Any) -> None:
        global DESK  # noqa: PLW0603 - what a provider gives is defined in a module
        DESK = Desk()
        build, self.name = MODES[mode]
        self.server = build(options)
        self.app = asgi(self.server, principal=lambda scope: scope["state"].get("principal"))

    def client(self, principal: str | None = None) -> Client:
        return Client(self.app, state={"principal": principal})

    async def call(self, arguments: JSON | None = None, principal: str | None = None) -> Any:
        return await self.client(principal).call(self.name, arguments or {})

    async def entry(self, principal: str | None = None) -> JSON:
        """The tool in the list."""
        answer = await self.client(principal).request("tools/list")
        (entry,) = answer.result["tools"]
        found: JSON = entry
        return found


@each_mode
async def test_without_options_it_works(mode: str) -> None:
    stage = Stage(mode)
    assert (await stage.call()).text == "done"
    assert (await stage.entry())["name"] == stage.name


@each_mode
@virtual_time
async def test_timeout(mode: str) -> None:
    stage = Stage(mode, timeout=2)
    answer = await stage.call({"seconds": 5})
    assert answer.result["isError"]
    assert answer.text == "work was stopped: it took longer than 2 s."
    assert (await stage.call({"seconds": 1})).text == "done"
    assert DESK.running == 0


@each_mode
@virtual_time
async def test_concurrency(mode: str) -> None:
    stage = Stage(mode, concurrency=2)
    answers = await asyncio.gather(*(stage.call({"seconds": 1}) for _ in range(5)))
    assert [answer.text for answer in answers] == ["done"] * 5
    assert DESK.most == 2


@each_mode
@virtual_time
async def test_rate(mode: str) -> None:
    # SA27
    stage = Stage(mode, rate="2/min")
    for who in ("ada", None, Principal("bob", {"x"})):
        assert [(await stage.call(principal=who)).status for _ in range(2)] == [200, 200]
        refused = await stage.call(principal=who)
        assert (refused.status, refused.headers["retry-after"]) == (429, "30")
        assert refused.error == {"code": 429, "message": "Too many calls: try again in 30 s.", "data": {"retryAfter": 30}}
    assert DESK.calls == 6
    await asyncio.sleep(30)
    assert [(await stage.call(principal="ada")).status for _ in range(2)] == [200, 429]


@each_mode
@virtual_time
async def test_rate_for_2025_clients(mode: str) -> None:
    # SA27
    stage = Stage(mode, rate=(1, 10))
    session = await Legacy(stage.app).connect()
    assert (await session.call(stage.name, {})).status == 200
    refused = await session.call(stage.name, {})
    assert (refused.status, refused.headers["retry-after"], refused.error["code"]) == (429, "10", 429)


@each_mode
async def test_scopes(mode: str) -> None:
    stage = Stage(mode, scopes={"files:write", "files:read"})
    for who in (None, "ada", Principal("ada"), Principal("ada", {"files:read"})):
        refused = await stage.call({"wrong": 1}, who)
        assert refused.status == 403
        assert refused.error == {
            "code": 403,
            "message": "This needs the scope files:read files:write, which was not granted.",
            "data": {"requiredScopes": ["files:read", "files:write"]},
        }
    assert (await stage.call(principal=Principal("ada", {"files:read", "files:write", "more"}))).text == "done"
    assert (await stage.entry())["name"] == stage.name, "what may not be called may be seen: that is what visible= is for"
    session = await Legacy(stage.app).connect()
    assert (await session.call(stage.name, {})).error["code"] == 403


async def test_who_may_not_call_uses_up_no_rate() -> None:
    stage = Stage("function", scopes=["x"], rate=(1, 60))
    assert (await stage.call(principal=Principal("ada"))).status == 403
    assert [(await stage.call(principal=Principal("ada", {"x"}))).status for _ in range(2)] == [200, 429]


@each_mode
@pytest.mark.parametrize("is_async", [False, True])
async def test_visible(mode: str, is_async: bool) -> None:
    # A48, SA21
    def visible(ctx: Context) -> bool:
        return ctx.principal == "ada"

    async def visible_later(ctx: Context) -> bool:
        await asyncio.sleep(0)
        return ctx.principal == "ada"

    stage = Stage(mode, visible=visible_later if is_async else visible)
    assert (await stage.entry("ada"))["name"] == stage.name
    assert (await stage.client("bob").request("tools/list")).result["tools"] == []
    assert (await stage.call(principal="ada")).text == "done"
    hidden = await stage.call({"seconds": "x"}, "bob")
    unknown = await stage.client("bob").call("x" * len(stage.name), {"seconds": "x"})
    assert (hidden.status, hidden.headers) == (unknown.status, unknown.headers)
    assert hidden.body == unknown.body.replace(b"x" * len(stage.name), stage.name.encode())
    assert DESK.calls == 1


@each_mode
@pytest.mark.parametrize(("hint", "expected"), [(CacheHint(5_000, "public"), 5_000), (CacheHint(60_000, "public"), None)])
async def test_cache(mode: str, hint: CacheHint, expected: int | None) -> None:
    # B27
    stage = Stage(mode, cache=hint)
    listed = (await stage.client().request("tools/list")).result
    assert listed["ttlMs"] == (expected or 60_000)
    assert listed["cacheScope"] == ("private" if "provider" in mode else "public")


@each_mode
async def test_what_its_entry_says(mode: str) -> None:
    said = {"title": "Work", "meta": {"x": 1}, "icons": [Icon(src="https://example.com/x.png")]}
    entry = await Stage(mode, idempotent=True, annotations=ToolAnnotations(open_world_hint=False), **said).entry()
    assert (entry["title"], entry["_meta"], entry["icons"]) == ("Work", {"x": 1}, [{"src": "https://example.com/x.png"}])
    assert entry["annotations"] == {"openWorldHint": False, "idempotentHint": True}
    assert entry["description"] == "Work."


# As tasks


async def as_task(stage: Stage, arguments: JSON, principal: str | None = None) -> JSON:
    """Call the tool as a task, and wait for its end."""
    meta = make_meta({"extensions": {TASKS: {}}})
    client = stage.client(principal)
    answer = await client.call(stage.name, arguments, meta=meta)
    assert answer.result["resultType"] == "task", answer.result
    while True:
        task = (await client.request("tasks/get", {"taskId": answer.result["taskId"]}, meta=meta)).result
        if task["status"] not in {"working", "input_required"}:
            found: JSON = task
            return found
        await asyncio.sleep(1)


@each_mode
@virtual_time
async def test_as_a_task_it_is_limited_too(mode: str) -> None:
    stage = Stage(mode, task="always", timeout=5, concurrency=1)
    tasks = await asyncio.gather(*(as_task(stage, {"seconds": 2}) for _ in range(2)))
    assert [task["result"]["content"][0]["text"] for task in tasks] == ["done", "done"]
    assert DESK.most == 1
    late = await as_task(stage, {"seconds": 9})
    assert "took longer than 5 s" in late["result"]["content"][0]["text"]


@each_mode
@virtual_time
async def test_what_is_refused_never_becomes_a_task(mode: str) -> None:
    stage = Stage(mode, task="always", rate=(1, 60), scopes={"x"}, visible=lambda ctx: ctx.principal != "eve")
    meta = make_meta({"extensions": {TASKS: {}}})
    ada = Principal("ada", {"x"})
    assert (await as_task(stage, {}, ada))["status"] == "completed"
    statuses = [(await stage.client(who).call(stage.name, {}, meta=meta)).status for who in (ada, "bob", "eve")]
    assert statuses == [429, 403, 400]
    assert DESK.calls == 1


# Resources, prompts, completion

Ask = Callable[[Client], Awaitable[Any]]


def make_others(**options: Any) -> Server:
    server = Server("desk")
    server.resource("a://x", **options)(lambda: "x")
    server.resource("b://{x}", **options)(lambda x: x)
    server.prompt(lambda x: x, name="ask", **options)
    server.complete("ask", "x")(lambda text: [text])
    server.complete("b://{x}", "x")(lambda text: [text])

    class Docs:
        prefix = "docs://"
        templates = ("docs://{x}",)

        def read(self, uri: str) -> str:
            return uri

    made: Any = Docs()
    for name, value in options.items():
        setattr(made, name, value)
    server.add(made)
    return server


OTHERS: dict[str, Ask] = {
    "resource": lambda client: client.request("resources/read", {"uri": "a://x"}),
    "template": lambda client: client.request("resources/read", {"uri": "b://x"}),
    "repository": lambda client: client.request("resources/read", {"uri": "docs://x"}),
    "repository elsewhere": lambda client: client.request("resources/read", {"uri": "docs://x/y"}),
}
PROMPTS: dict[str, Callable[[str], Ask]] = {
    "prompt": lambda prefix: lambda client: client.request("prompts/get", {"name": f"{prefix}ask", "arguments": {"x": "1"}}),
    "completion of a prompt": lambda prefix: (
        lambda client: client.request(
            "completion/complete", {"ref": {"type": "ref/prompt", "name": f"{prefix}ask"}, "argument": {"name": "x", "value": "1"}}
        )
    ),
    "completion of a template": lambda _prefix: (
        lambda client: client.request(
            "completion/complete", {"ref": {"type": "ref/resource", "uri": "b://{x}"}, "argument": {"name": "x", "value": "1"}}
        )
    ),
}


def all_others(prefix: str) -> dict[str, Ask]:
    return {**OTHERS, **{name: make(prefix) for name, make in PROMPTS.items()}}


@pytest.mark.parametrize("what", all_others(""))
@pytest.mark.parametrize("prefix", ["", "m_"])
async def test_scopes_of_resources_and_prompts(prefix: str, what: str) -> None:
    server = make_others(scopes={"x"})
    if prefix:
        hall = Server("hall")
        hall.mount("m", server)
        server = hall
    app = asgi(server, principal=lambda scope: scope["state"].get("principal"))
    refused = await all_others(prefix)[what](Client(app))
    assert (refused.status, refused.error["data"]) == (403, {"requiredScopes": ["x"]})
    assert (await all_others(prefix)[what](Client(app, state={"principal": Principal("ada", "x" and {"x"})}))).status == 200


@pytest.mark.parametrize("what", [name for name in all_others("") if not name.startswith("completion")])
@pytest.mark.parametrize("prefix", ["", "m_"])
async def test_rates_of_resources_and_prompts(prefix: str, what: str) -> None:
    # SA27
    server = make_others(rate="1/h")
    if prefix:
        hall = Server("hall")
        hall.mount("m", server)
        server = hall
    client = Client(asgi(server))
    assert [(await all_others(prefix)[what](client)).status for _ in range(2)] == [200, 429]


async def test_a_failure_of_its_own_is_no_refusal() -> None:
    server = Server("desk")

    @server.tool(rate="5/s", scopes=())
    def fail() -> str:
        raise ToolError("no")

    assert (await Client(asgi(server)).call("fail", {})).text == "no"


@virtual_time
async def test_rate_counts_a_call_once_whatever_its_rounds() -> None:
    server = Server("s")

    @server.tool(rate="1/min")
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("One?", str)).value + (await ctx.elicit("Two?", str)).value

    client = Rounds(asgi(server), lambda _key, _request: accept(value="x"))
    assert (await client.call("ask")).text == "xx"
    again = await client.once("tools/call", {"name": "ask", "arguments": {}, "requestState": client.states[-1]})
    assert again.status == 429, "a round that is sent again is a call"
