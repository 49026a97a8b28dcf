"""Answers what the server of asks_program.py asks, through the official Python client, and prints what came of it, one JSON object a line.

    python asks.py URL COMMAND ...

Over HTTP and over stdio; PyPI's `mcp` 2.x in both its modes. It runs in an environment of its own that holds `mcp` and nothing of ours.
asks.mjs does the same with the official npm clients.
"""
# ruff: noqa: T201 - the printed lines are what this program is for

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module, metadata
from typing import Any, Literal

import anyio
import pydantic

FIRST = metadata.version("mcp").startswith("1.")  # the first generation of that package

# Not imported by name: the project's own environment, which the checkers look at, doesn't hold them.
mcp: Any = import_module("mcp")
kinds: Any = import_module("mcp.types" if FIRST else "mcp_types")
stdio: Any = import_module("mcp.client.stdio")
streamable: Any = import_module("mcp.client.streamable_http")

PATIENCE = 30.0  # seconds for all calls over one connection
PAUSE = 0.02  # seconds between two looks at a task
TASKS = "io.modelcontextprotocol/tasks"


def text(result: Any) -> str:
    """The text that a tool answered with."""
    (block,) = result.content
    return str(block.text)


class Person:
    """Who answers.

    Attributes:
        asked: What was asked.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def fill_in(self, _: Any, params: Any) -> Any:
        """Fills in a form."""
        self.asked.append(params.message)
        fields = getattr(params, "requested_schema", None) or params.requestedSchema
        content = {"kind": "tea", "sugar": 2} if "kind" in fields["properties"] else {"value": True}
        return kinds.ElicitResult(action="accept", content=content)

    async def speak(self, _: Any, params: Any) -> Any:
        """Speaks as a model does."""
        (message,) = params.messages
        self.asked.append(message.content.text)
        return kinds.CreateMessageResult(role="assistant", model="poet", content=kinds.TextContent(type="text", text="sun"))


async def use(session: Any, person: Person, name: str, later: Any) -> None:
    """Calls every tool and prints what it saw."""
    with anyio.fail_after(PATIENCE):
        seen = {
            "choose": text(await session.call_tool("choose", {})),
            "rhyme": text(await session.call_tool("rhyme", {"word": "fun"})),
            "order": text(await session.call_tool("order", {"buyer": f"{metadata.version('mcp')} {name}"})),
            "later": None if later is None else text(await later(session)),
        }
    print(json.dumps({"step": name, **seen, "asked": person.asked}), flush=True)


async def legacy_later(session: Any) -> Any:
    """Calls a tool as a task of 2025-11-25: what it asks comes while its result is waited for. Only mcp 1.x can."""
    created = await session.experimental.call_tool_as_task("choose_later", {})
    return await session.experimental.get_task_result(created.task.taskId, kinds.CallToolResult)


async def modern_later(client: Any) -> Any:
    """Calls a tool as a task of the current protocol's extension."""
    return await client.call_tool("choose_later", {})


def tasks_extension(person: Person) -> Any:
    """The tasks extension, as an application adds it to mcp 2.x, which knows none itself."""
    extension: Any = import_module("mcp.client.extension")

    class Created(kinds.Result):  # type: ignore[misc]
        result_type: Literal["task"] = pydantic.Field(alias="resultType")
        task_id: str = pydantic.Field(alias="taskId")

    class State(kinds.Result):  # type: ignore[misc]
        status: str
        input_requests: dict[str, Any] = pydantic.Field(alias="inputRequests", default={})
        result: Any = None

    class Look(kinds.Request[dict[str, Any], str]):  # type: ignore[misc]
        name_param = "taskId"

    async def resolve(created: Any, context: Any) -> Any:
        about = {"taskId": created.task_id}
        while True:
            state = await context.session.send_request(Look(method="tasks/get", params=about), State)
            if state.status == "completed":
                return kinds.CallToolResult.model_validate(state.result)
            assert state.status in {"working", "input_required"}, state
            responses = {
                key: (await person.fill_in(None, kinds.ElicitRequestFormParams.model_validate(ask["params"]))).model_dump(
                    mode="json", by_alias=True, exclude_none=True
                )
                for key, ask in state.input_requests.items()
            }
            if responses:
                update = Look(method="tasks/update", params={**about, "inputResponses": responses})
                await context.session.send_request(update, kinds.EmptyResult)
            await anyio.sleep(PAUSE)

    class Tasks(extension.ClientExtension):  # type: ignore[misc]
        identifier = TASKS

        def claims(self) -> Any:
            return [extension.ResultClaim(result_type="task", model=Created, resolve=resolve)]

    return Tasks()


def way(kind: str) -> Any:
    """A transport to the server that the command line names."""
    url, command, *arguments = sys.argv[1:]
    if kind == "http":
        return streamable.streamable_http_client(url)
    return stdio.stdio_client(mcp.StdioServerParameters(command=command, args=arguments))


@asynccontextmanager
async def connected(kind: str, mode: str, person: Person) -> AsyncIterator[Any]:
    """A session over a transport, in the manner of the package's generation."""
    callbacks = {"elicitation_callback": person.fill_in, "sampling_callback": person.speak}
    if FIRST:
        async with way(kind) as streams, mcp.ClientSession(*streams[:2], **callbacks) as session:
            await session.initialize()
            yield session
        return
    extensions = [tasks_extension(person)] if mode == "modern" else []
    pinned = "legacy" if mode == "legacy" else "2026-07-28"
    async with mcp.Client(way(kind), mode=pinned, extensions=extensions, **callbacks) as client:
        yield client.session if mode == "legacy" else client


async def main() -> None:
    ways = {"legacy": legacy_later if FIRST else None} | ({} if FIRST else {"modern": modern_later})
    for mode, later in ways.items():
        for kind in ("http", "stdio"):
            person = Person()
            async with connected(kind, mode, person) as session:
                await use(session, person, f"{kind} {mode}", later)
    print(json.dumps({"step": "end"}), flush=True)


anyio.run(main)
