"""Compiled tools: what they say of themselves, how they are called, what becomes of what they return."""

import asyncio
import base64
import functools
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from oracles import mcp_types_validate
from served import definition, make_mount, reply

from callboard import RegistrationError, Server, ToolError, audio, embed, image, link, text, types

PNG = b"\x89PNG\r\n"


def make_tool(fn: Callable[..., Any], **options: Any) -> Server:
    server = Server("desk")
    server.tool(**options)(fn) if options else server.tool(fn)
    return server


async def call(server: Server, name: str = "tool", **arguments: Any) -> dict[str, Any]:
    found = await reply(server, "tools/call", {"name": name, "arguments": arguments})
    mcp_types_validate("CallToolResult", {**found, "resultType": "complete"})
    return found


# Tools


def test_a_tool_says_of_itself_what_it_was_told() -> None:
    # TL-04, TL-05, TL-06, IC-01
    async def tool(city: str, days: int = 3) -> str:
        """Forecast for a city.

        Args:
            city: Name of the city.
        """
        return city

    server = make_tool(
        tool,
        name="fore.cast-1_A",
        title="Forecast",
        annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        icons=[types.Icon(src="https://x.example/i.png", mime_type="image/png")],
        meta={"com.example/cost": 3},
    )
    found = definition(server, "tools", "fore.cast-1_A", "Tool")
    assert found["title"] == "Forecast"
    assert found["description"] == "Forecast for a city."
    assert found["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
    assert found["icons"] == [{"src": "https://x.example/i.png", "mimeType": "image/png"}]
    assert found["_meta"] == {"com.example/cost": 3}
    assert found["inputSchema"]["type"] == "object"
    assert found["inputSchema"]["properties"]["city"] == {"type": "string", "description": "Name of the city."}
    assert found["inputSchema"]["required"] == ["city"]
    assert "outputSchema" not in found


def test_a_tool_without_arguments_takes_none() -> None:
    # TL-05
    async def tool() -> None: ...

    found = definition(make_tool(tool), "tools", "tool", "Tool")
    assert found["inputSchema"] == {"type": "object", "additionalProperties": False}
    assert found.keys() == {"name", "inputSchema"}


def test_a_given_description_wins_over_the_docstring() -> None:
    async def tool() -> None:
        """Docstring."""

    assert definition(make_tool(tool, description="Given."), "tools", "tool", "Tool")["description"] == "Given."


@pytest.mark.parametrize("name", ["a b", "a,b", "ü", "a/b", "x" * 129, "a\n"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    # TL-15
    async def tool() -> None: ...

    with pytest.raises(RegistrationError, match="name"):
        make_tool(tool, name=name)


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 128])
def test_other_names_are_fine(name: str) -> None:
    # TL-15
    async def tool() -> None: ...

    assert definition(make_tool(tool, name=name), "tools", name, "Tool")["name"] == name


def test_the_decorator_gives_the_function_back() -> None:
    server = Server("desk")

    def tool() -> str:
        return ""

    assert server.tool(tool) is tool
    assert server.tool(name="b")(tool) is tool
    assert server.prompt(tool) is tool
    assert server.resource("a://b")(tool) is tool
    assert server.complete("later", "x")(lambda value: [value]) is not None


class Crane:
    async def lift(self, crates: int) -> str:
        """Lift crates."""
        return f"lifted {crates}"


async def test_methods_partials_and_callables_are_functions_too() -> None:
    async def tool(a: str, b: str) -> str:
        return a + b

    server = Server("desk")
    server.add(Crane().lift)
    server.tool(name="half")(functools.partial(tool, b="!"))
    assert (await call(server, "lift", crates=2))["content"][0]["text"] == "lifted 2"
    assert (await call(server, "half", a="hi"))["content"][0]["text"] == "hi!"


# What a tool returns


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", [{"type": "text", "text": "text"}]),
        (text("a"), [{"type": "text", "text": "a"}]),
        (image(PNG, "image/png"), [{"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}]),
        (audio(b"RIFF", "audio/wav"), [{"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}]),
        (
            [text("a"), link("a://b", name="b"), embed("a://c", "text", mime_type="text/plain")],
            [
                {"type": "text", "text": "a"},
                {"type": "resource_link", "uri": "a://b", "name": "b"},
                {"type": "resource", "resource": {"uri": "a://c", "mimeType": "text/plain", "text": "text"}},
            ],
        ),
        (None, []),
    ],
)
async def test_content_goes_out_as_it_is(value: Any, content: list[Any]) -> None:
    # TL-11, TL-18
    async def tool() -> Any:
        return value

    found = await call(make_tool(tool))
    assert found["content"] == content
    assert not found.get("isError", False)


async def test_other_values_are_structured_and_text() -> None:
    # TL-08, TL-09, TL-10
    async def tool() -> dict[str, list[int]]:
        return {"a": [1, 2]}

    server = make_tool(tool)
    found = await call(server)
    assert found["structuredContent"] == {"a": [1, 2]}
    assert msgspec.json.decode(found["content"][0]["text"]) == {"a": [1, 2]}
    assert definition(server, "tools", "tool", "Tool")["outputSchema"]["type"] == "object"


async def test_null_is_a_value() -> None:
    # TL-09
    async def tool() -> int | None:
        return None

    found = await call(make_tool(tool))
    assert "structuredContent" in found
    assert found["structuredContent"] is None


# What a tool raises


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("No.", [{"type": "text", "text": "No."}]),
        (text("No."), [{"type": "text", "text": "No."}]),
        (["a", image(PNG, "image/png")], [{"type": "text", "text": "a"}, {"type": "image", "data": "iVBORw0K", "mimeType": "image/png"}]),
        ((), []),
        (5, [{"type": "text", "text": "5"}]),
    ],
)
async def test_its_own_failure_is_in_band(content: Any, blocks: list[Any]) -> None:
    # TL-12
    async def tool() -> str:
        raise ToolError(content)

    assert await call(make_tool(tool)) == {"content": blocks, "isError": True}


async def test_a_failure_may_carry_structure_that_is_not_the_results() -> None:
    # TL-12, A23
    async def tool() -> list[int]:
        raise ToolError("No.", structured={"code": 5})

    found = await call(make_tool(tool))
    assert (found["isError"], found["structuredContent"]) == (True, {"code": 5})


async def test_a_failure_in_a_task_group_is_still_its_own() -> None:
    # TL-12
    async def fail() -> None:
        raise ToolError("No.")

    async def tool() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return ""

    assert await call(make_tool(tool)) == {"content": [{"type": "text", "text": "No."}], "isError": True}


async def test_two_failures_at_once_are_no_answer_of_the_tool() -> None:
    async def tool() -> str:
        raise ExceptionGroup("both", [ToolError("a"), ToolError("b")])

    with pytest.raises(ExceptionGroup):
        await call(make_tool(tool))


async def test_faulty_arguments_are_in_band_all_at_once() -> None:
    # TL-13
    async def tool(a: int, b: str, c: bool = False) -> str:
        return ""

    server = make_tool(tool)
    found = await call(server, a="x", c=5, d=1)
    assert found["isError"] is True
    for name in ("a", "b", "c", "d"):
        assert f"- {name}:" in found["content"][0]["text"]


async def test_unknown_arguments_are_dropped_where_that_is_asked_for() -> None:
    server = Server("desk", strict_input=False)

    @server.tool
    async def tool(a: int) -> str:
        return str(a)

    assert (await call(server, a=1, z=2))["content"][0]["text"] == "1"


# Policy


async def test_a_timeout_cancels_the_work_and_answers_in_band() -> None:
    # CN-04, TL-12
    ended: list[str] = []

    async def tool() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return ""

    found = await call(make_tool(tool, timeout=0.01))
    assert found["isError"] is True
    assert "0.01 s" in found["content"][0]["text"]
    assert ended == ["cancelled"]


async def test_a_timeout_of_the_tools_own_is_no_timeout_of_the_policy() -> None:
    async def tool() -> str:
        raise TimeoutError("database")

    with pytest.raises(TimeoutError, match="database"):
        await call(make_tool(tool, timeout=5.0))


async def test_so_many_calls_run_at_once() -> None:
    running, most = 0, 0

    async def tool(n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return str(n)

    server = make_tool(tool, concurrency=2)
    found = await asyncio.gather(*(call(server, n=n) for n in range(6)))
    assert [each["content"][0]["text"] for each in found] == [str(n) for n in range(6)]
    assert most == 2


async def test_waiting_for_a_turn_counts_in_the_timeout_and_a_cancelled_wait_takes_no_turn() -> None:
    release = asyncio.Event()

    async def tool(n: int) -> str:
        if n == 0:
            await release.wait()
        return str(n)

    server = make_tool(tool, concurrency=1, timeout=0.05)
    first = asyncio.ensure_future(call(server, n=0))
    await asyncio.sleep(0)
    assert (await call(server, n=1))["isError"] is True
    release.set()
    await first
    assert (await call(server, n=2))["content"][0]["text"] == "2"


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_policy_that_lets_nothing_run_is_refused(concurrency: int) -> None:
    async def tool() -> None: ...

    with pytest.raises(RegistrationError, match="concurrency"):
        make_tool(tool, concurrency=concurrency)


# Raw schemas


async def test_a_raw_schema_is_what_validates_and_the_arguments_come_as_they_are() -> None:
    # TL-06, JS-01
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "number"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "b"}}},
        "then": {"required": ["n"]},
    }

    async def tool(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    server = make_tool(tool, input_schema=schema)
    assert definition(server, "tools", "tool", "Tool")["inputSchema"] == schema
    assert (await call(server, kind="b", n=5))["structuredContent"] == {"kind": "b", "n": 5}
    for arguments in ({}, {"kind": "c"}, {"kind": "b"}):
        assert (await call(server, **arguments))["isError"] is True


def test_a_raw_schema_goes_with_one_parameter() -> None:
    async def tool(a: int, b: int) -> None: ...

    with pytest.raises(RegistrationError, match="one parameter"):
        make_tool(tool, input_schema={"type": "object"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": ""}}},
        {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a b"}}},
        {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a\r\nb"}}},
        {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}},
        {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}}},
        {"type": "object", "allOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]},
    ],
)
def test_a_header_annotation_that_breaks_the_rules_is_refused(schema: dict[str, Any]) -> None:
    # HH-10, HH-11, HH-12, HH-13
    async def tool(arguments: dict[str, Any]) -> None: ...

    with pytest.raises(RegistrationError, match="x-mcp-header"):
        make_tool(tool, input_schema=schema)


def test_nested_properties_may_be_mirrored() -> None:
    # HH-10, HH-13
    async def tool(arguments: dict[str, Any]) -> None: ...

    schema = {
        "type": "object",
        "properties": {"where": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}},
    }
    (param,) = make_tool(tool, input_schema=schema).registry.tools["tool"].header_params
    assert (param.header, param.path) == (b"mcp-param-region", ("where", "region"))


async def test_a_thread_keeps_its_turn_until_it_returns() -> None:
    # A20, SA25: the call is free at once, but its function still runs, and may not be made for two at a time
    running, most = 0, 0
    lock, release, started = threading.Lock(), threading.Event(), threading.Event()

    def tool() -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        started.set()
        assert release.wait(10)
        with lock:
            running -= 1
        return "done"

    server = make_tool(tool, concurrency=1)
    mount = make_mount(server)
    first = asyncio.ensure_future(reply(server, "tools/call", {"name": "tool"}, mount=mount))
    assert await asyncio.get_running_loop().run_in_executor(None, started.wait, 10)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.ensure_future(reply(server, "tools/call", {"name": "tool"}, mount=mount))
    for _ in range(20):
        await asyncio.get_running_loop().run_in_executor(None, int)
    assert most == 1
    release.set()
    async with asyncio.timeout(5):
        assert (await second)["content"][0]["text"] == "done"
    assert most == 1
