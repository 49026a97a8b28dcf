"""Uses a server through the official Python client and prints what it saw, one JSON object a line.

    python client.py http URL               everything
    python client.py stdio COMMAND ...      everything
    python client.py farewell URL           how a listen stream ends that the server closes
    python client.py outdated URL           what a client of 2025 is told where only the current protocol is spoken

It runs in an environment of its own that holds PyPI's `mcp` and nothing of ours. client.mjs does the same with the official npm client;
test_real_clients.py holds both to the same facts.
"""
# ruff: noqa: T201 - the printed lines are what this program is for

import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import anyio
from mcp_types import PromptReference, ResourceTemplateReference

mcp: Any = import_module("mcp")  # not imported by name: the project's own environment, which the checkers look at, doesn't hold it
Client = Any

MODERN = "2026-07-28"
PATIENCE = 30.0  # seconds for any one step


def say(step: str, **facts: Any) -> None:
    """Prints what a step showed."""
    print(json.dumps({"step": step, **facts}), flush=True)


def plain(model: Any) -> Any:
    """A pydantic model as JSON, in the protocol's own names."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def refusal(call: Awaitable[Any]) -> dict[str, Any]:
    """Code, text and data of the protocol error that a call must end in."""
    try:
        await call
    except (mcp.MCPError, ExceptionGroup) as raised:
        error: Any = raised
        while isinstance(error, ExceptionGroup):
            (error,) = error.exceptions
        return {"code": error.code, "message": error.message, "data": error.data}
    return {"code": None}


async def discover(client: Client) -> None:
    info = client.server_info
    say(
        "discover",
        version=client.protocol_version,
        server=None if info is None else plain(info),
        instructions=client.instructions,
        capabilities=plain(client.server_capabilities),
    )


async def all_tools(client: Client) -> list[Any]:
    """The tools of every page."""
    page = await client.list_tools(cache_mode="refresh")
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


async def lists(client: Client) -> None:
    tools = await all_tools(client)
    say("tools", names=[tool.name for tool in tools], first=plain(tools[0]))
    say("resources", uris=[str(resource.uri) for resource in (await client.list_resources()).resources])
    templates = (await client.list_resource_templates()).resource_templates
    say("templates", uris=[template.uri_template for template in templates])
    say("prompts", prompts=[plain(prompt) for prompt in (await client.list_prompts()).prompts])


async def calls(client: Client) -> None:
    say("call", result=plain(await client.call_tool("add", {"a": 2, "b": 3})))
    notes: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        notes.append([progress, total, message])

    result = await client.call_tool("count", {"to": 3}, progress_callback=note)
    say("progress", notes=notes, text=plain(result)["content"][0]["text"])
    say("header", text=plain(await client.call_tool("seat", {"row": "Süd"}))["content"][0]["text"])
    numbers: dict[int, Any] = {}

    async def double(number: int) -> None:
        numbers[number] = plain(await client.call_tool("double", {"number": number}))["structuredContent"]

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(double, number)
    say("concurrent", answers=[numbers[number] for number in range(20)])


async def reads(client: Client) -> None:
    say("read", contents=[plain(item) for item in (await client.read_resource("stage://tickets")).contents])
    say("read_binary", contents=[plain(item) for item in (await client.read_resource("stage://poster")).contents])
    say("read_template", contents=[plain(item) for item in (await client.read_resource("stage://cast/hamlet")).contents])
    prompt = await client.get_prompt("review", {"play": "Hamlet"})
    say("prompt", messages=[plain(message) for message in prompt.messages])
    done = await client.complete(PromptReference(name="review"), {"name": "play", "value": "H"})
    say("complete", values=done.completion.values)
    done = await client.complete(ResourceTemplateReference(uri="stage://cast/{role}"), {"name": "role", "value": "g"})
    say("complete_template", values=done.completion.values)


async def errors(client: Client) -> None:
    say("unknown_tool", **await refusal(client.call_tool("no_such_tool", {})))
    say("unknown_prompt", **await refusal(client.get_prompt("no_such_prompt", {})))
    say("missing_resource", **await refusal(client.read_resource("stage://cast/ghost")))
    say("bad_argument", result=plain(await client.call_tool("add", {"a": "two"})))
    say("tool_error", result=plain(await client.call_tool("refuse", {})))
    say("crash", **await refusal(client.call_tool("crash", {})))


async def cancel(client: Client) -> None:
    running = anyio.Event()
    scope = anyio.CancelScope()

    async def started(progress: float, total: float | None, message: str | None) -> None:
        running.set()

    async def hold() -> None:
        with scope:
            await client.call_tool("hold", {"name": "python"}, progress_callback=started)

    async with anyio.create_task_group() as group:
        group.start_soon(hold)
        await running.wait()
        began = time.monotonic()
        scope.cancel()
        result = await client.call_tool("released", {})
        say("cancel", name=plain(result)["content"][0]["text"], seconds=time.monotonic() - began)


async def listen(client: Client) -> None:
    async with client.listen(tools_list_changed=True, resource_subscriptions=["stage://tickets"]) as stream:
        await client.call_tool("announce", {"name": "encore"})
        first = type(await anext(stream)).__name__
        names = [tool.name for tool in await all_tools(client)]
        await client.call_tool("sell", {})
        second = await anext(stream)
        uri = getattr(second, "uri", None)
        say("listen", honored=plain(stream.honored), first=first, second=type(second).__name__, uri=uri, listed="encore" in names)


STEPS: tuple[Callable[[Client], Awaitable[None]], ...] = (discover, lists, calls, reads, errors, cancel, listen)


def target() -> Any:
    """The server that the command line names."""
    kind, *rest = sys.argv[1:]
    return rest[0] if kind != "stdio" else mcp.StdioServerParameters(command=rest[0], args=rest[1:])


async def farewell() -> None:
    async with mcp.Client(target(), mode="auto") as client, client.listen(tools_list_changed=True) as stream:
        with anyio.fail_after(PATIENCE):
            events = [event async for event in stream]  # raises SubscriptionLost unless the server said goodbye
        say("farewell", events=len(events), end="graceful")


async def legacy() -> None:
    with anyio.fail_after(PATIENCE):
        async with mcp.Client(target(), mode="legacy") as client:
            say("legacy", version=client.protocol_version, result=plain(await client.call_tool("add", {"a": 2, "b": 2})))


async def outdated() -> None:
    async def connect() -> None:
        async with mcp.Client(target(), mode="legacy"):
            pass

    with anyio.fail_after(PATIENCE):
        say("outdated", **await refusal(connect()))


async def everything() -> None:
    lines: list[Any] = []

    async def logged(message: Any) -> None:
        lines.append([message.level, message.data, message.logger])

    # First as applications do it: ask the server what it speaks; then held to the version without asking.
    async with mcp.Client(target(), mode="auto", logging_callback=logged) as client:
        for step in STEPS:
            with anyio.fail_after(PATIENCE):
                await step(client)
        await client.call_tool("log", {"line": "unasked"})
        say("no_logs", lines=lines)
        leaving = time.monotonic()
    say("left", seconds=time.monotonic() - leaving)
    async with mcp.Client(target(), mode=MODERN, logging_callback=logged, log_level="info") as client:
        with anyio.fail_after(PATIENCE):
            say("pinned", version=client.protocol_version, result=plain(await client.call_tool("add", {"a": 1, "b": 1})))
            await client.call_tool("log", {"line": "asked"})
            say("logs", lines=lines)
    await legacy()


async def main() -> None:
    await {"farewell": farewell, "outdated": outdated}.get(sys.argv[1], everything)()
    say("end")


anyio.run(main)
