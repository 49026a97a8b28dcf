"""Compiled components: what they say of themselves, how they are called, what becomes of what they return."""

import asyncio
import base64
import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from oracles import mcp_types_validate, schema_dir, validate
from served import refusal, reply

from callboard import NotFound, Reason, RegistrationError, Server, ToolError, audio, embed, image, link, text, types
from callboard.core.outcome import CacheHint

PNG = b"\x89PNG\r\n"


def definition(server: Server, kind: str, key: str, model: str) -> dict[str, Any]:
    """A definition as the wire has it, valid by the oracles."""
    found: dict[str, Any] = msgspec.json.decode(getattr(server.registry, kind)[key].definition)
    mcp_types_validate(model, found)
    if schema_dir() is not None:
        validate(model, found)
    return found


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
    # TL-04, TL-05, TL-06, IC-01, MT-15, MT-20
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


@pytest.mark.parametrize("name", ["", "a b", "a,b", "ü", "a/b", "x" * 129, "a\n"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    # TL-15
    async def tool() -> None: ...

    if name:
        with pytest.raises(RegistrationError, match="name"):
            make_tool(tool, name=name)
    else:
        assert make_tool(tool, name=name or None).registry.tools.keys() == {"tool"}


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
    assert server.complete("tool", "x")(lambda value: [value]) is not None


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
    # TL-11, TL-18, TL-19
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


# Prompts


def test_a_prompt_says_of_itself_what_it_was_told() -> None:
    # PM-03, IC-01
    server = Server("desk")

    @server.prompt(title="Pack", icons=[types.Icon(src="https://x.example/i.png")], meta={"com.example/a": 1})
    def pack(city: str, days: int = 3) -> str:
        """Pack for a city.

        Args:
            city: Where to.
        """
        return city

    found = definition(server, "prompts", "pack", "Prompt")
    assert found["arguments"] == [{"name": "city", "description": "Where to.", "required": True}, {"name": "days"}]
    assert (found["title"], found["description"], found["_meta"]) == ("Pack", "Pack for a city.", {"com.example/a": 1})


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [("user", "text")]),
        (["a", "b"], [("user", "text"), ("user", "text")]),
        (image(PNG, "image/png"), [("user", "image")]),
        (("a", embed("a://b", b"\x00")), [("user", "text"), ("user", "resource")]),
        ([types.PromptMessage(role="assistant", content=text("x")), "y"], [("assistant", "text"), ("user", "text")]),
        ([], []),
    ],
)
async def test_a_prompt_gives_messages(value: Any, messages: list[tuple[str, str]]) -> None:
    # PM-03, PM-05
    server = Server("desk")

    @server.prompt
    async def pack() -> Any:
        return value

    found = await reply(server, "prompts/get", {"name": "pack"})
    mcp_types_validate("GetPromptResult", {**found, "resultType": "complete"})
    assert [(message["role"], message["content"]["type"]) for message in found["messages"]] == messages


@pytest.mark.parametrize("value", [None, 5, {"a": 1}, [1]])
async def test_what_is_no_message_is_an_error(value: Any) -> None:
    server = Server("desk")

    @server.prompt
    async def pack() -> Any:
        return value

    with pytest.raises(TypeError, match="prompt returns"):
        await reply(server, "prompts/get", {"name": "pack"})


# Resources and templates


def test_a_resource_says_of_itself_what_it_was_told() -> None:
    # RS-03, IC-01
    server = Server("desk")

    @server.resource(
        "file:///a.md",
        name="a.md",
        title="A",
        mime_type="text/markdown",
        size=12,
        annotations=types.Annotations(audience=["user"], priority=0.5),
        icons=[types.Icon(src="https://x.example/i.png")],
        meta={"com.example/a": 1},
    )
    def read() -> str:
        """The first file."""
        return "# A"

    assert definition(server, "resources", "file:///a.md", "Resource") == {
        "uri": "file:///a.md",
        "name": "a.md",
        "title": "A",
        "description": "The first file.",
        "mimeType": "text/markdown",
        "size": 12,
        "annotations": {"audience": ["user"], "priority": 0.5},
        "icons": [{"src": "https://x.example/i.png"}],
        "_meta": {"com.example/a": 1},
    }


def test_a_template_says_of_itself_what_it_was_told() -> None:
    # RS-03
    server = Server("desk")

    @server.resource("a://{x}", mime_type="text/plain")
    def read(x: str) -> str:
        return x

    assert definition(server, "templates", "a://{x}", "ResourceTemplate") == {
        "uriTemplate": "a://{x}",
        "name": "read",
        "mimeType": "text/plain",
    }


@pytest.mark.parametrize(
    ("value", "contents"),
    [
        ("text", [{"text": "text", "mimeType": "text/plain"}]),
        ("", [{"text": "", "mimeType": "text/plain"}]),
        (b"\x00\xff", [{"blob": "AP8=", "mimeType": "application/octet-stream"}]),
        (bytearray(b""), [{"blob": "", "mimeType": "application/octet-stream"}]),
        ({"a": 1}, [{"text": '{"a":1}', "mimeType": "application/json"}]),
        ([], [{"text": "[]", "mimeType": "application/json"}]),
        ([1, "a"], [{"text": '[1,"a"]', "mimeType": "application/json"}]),
        (5, [{"text": "5", "mimeType": "application/json"}]),
    ],
)
async def test_a_resource_gives_contents(value: Any, contents: list[dict[str, Any]]) -> None:
    # RS-04, RS-08
    server = Server("desk")

    @server.resource("a://b")
    async def read() -> Any:
        return value

    found = await reply(server, "resources/read", {"uri": "a://b"})
    assert found["contents"] == [{"uri": "a://b", **content} for content in contents]


async def test_several_contents_may_be_given_in_the_protocols_words() -> None:
    # RS-04
    server = Server("desk")

    @server.resource("a://dir")
    async def read() -> list[types.ResourceContents]:
        return [types.ResourceContents(uri="a://dir/1", text="1"), types.ResourceContents(uri="a://dir/2", blob="AA==")]

    found = await reply(server, "resources/read", {"uri": "a://dir"})
    assert found["contents"] == [{"uri": "a://dir/1", "text": "1"}, {"uri": "a://dir/2", "blob": "AA=="}]


async def test_no_contents_are_an_error() -> None:
    # RS-05: never an empty `contents`
    server = Server("desk")

    @server.resource("a://b")
    async def read() -> None: ...

    with pytest.raises(TypeError, match="NotFound"):
        await reply(server, "resources/read", {"uri": "a://b"})


async def test_a_resource_may_say_that_it_is_gone() -> None:
    # RS-05
    server = Server("desk")

    @server.resource("a://{x}")
    async def read(x: str) -> str:
        raise NotFound if x == "1" else NotFound("a://other")

    first, second = await refusal(server, "resources/read", {"uri": "a://1"}), await refusal(server, "resources/read", {"uri": "a://2"})
    assert (first.reason, first.data) == (Reason.RESOURCE_NOT_FOUND, {"uri": "a://1"})
    assert second.data == {"uri": "a://other"}


async def test_the_mime_type_of_a_resource_is_that_of_its_contents() -> None:
    server = Server("desk")

    @server.resource("a://b", mime_type="text/csv")
    def read() -> str:
        return "a,b"

    assert (await reply(server, "resources/read", {"uri": "a://b"}))["contents"][0]["mimeType"] == "text/csv"


@pytest.mark.parametrize(
    ("template", "uri", "value"),
    [
        ("search://{q}", "search://hello%20world", "hello world"),
        ("search://{q}", "search://caf%C3%A9", "café"),
        ("search://{q}", "search://a+b", "a+b"),
        ("search://{q}", "search://%2541", "%41"),
        ("file:///{+q}", "file:///a/b/c", "a/b/c"),
        ("d://{n}", "d://5", 5),
    ],
)
async def test_a_templates_values_are_decoded_once(template: str, uri: str, value: Any) -> None:
    # A46, A47
    server = Server("desk")
    kind = type(value)

    async def read(**values: Any) -> str:
        return ""

    name = "n" if kind is int else "q"

    async def takes_q(q: str) -> Any:
        return [q]

    async def takes_n(n: int) -> Any:
        return [n]

    server.resource(template)(takes_n if name == "n" else takes_q)
    found = await reply(server, "resources/read", {"uri": uri})
    assert msgspec.json.decode(found["contents"][0]["text"]) == [value]


@pytest.mark.parametrize(
    "uri",
    [
        "file:///..%2f..%2fetc%2fpasswd",
        "file:///%2e%2e/x",
        "file:///%5c..%5cx",
        "file:///C:%5cx",
        "file:///a%00b",
        "file:////host/x",
        "file:///a/../b",
        "file:///..",
    ],
)
async def test_a_value_that_leads_out_is_refused_before_the_function(uri: str) -> None:
    # SA32, RS-08, PM-07
    server, ran = Server("desk"), []

    @server.resource("file:///{+path}")
    async def read(path: str) -> str:
        ran.append(path)
        return path

    fail = await refusal(server, "resources/read", {"uri": uri})
    assert fail.reason in {Reason.INVALID_PARAMS, Reason.RESOURCE_NOT_FOUND}
    assert ran == []


@pytest.mark.parametrize(
    ("uri", "culprit"),
    [("a://b", "x"), ("a://{y}", "y"), ("a://{x}/{x}", None), ("a://{", "{"), ("a://{x!}", "x!"), ("a://{x}{+x}", None)],
)
def test_a_uri_that_does_not_fit_its_function_is_refused(uri: str, culprit: str | None) -> None:
    server = Server("desk")

    def read(x: str) -> str:
        return x

    if culprit is None:
        try:
            server.resource(uri)(read)
        except RegistrationError as error:
            assert "read() at" in str(error)
    else:
        with pytest.raises(RegistrationError) as caught:
            server.resource(uri)(read)
        assert culprit in str(caught.value)
        assert "read() at" in str(caught.value)


@pytest.mark.parametrize("hint", [CacheHint(5000, "public"), None])
async def test_a_resource_has_its_own_caching_hint_or_the_servers(hint: CacheHint | None) -> None:
    # CA-01
    from served import ask

    server = Server("desk", cache=CacheHint(7, "private"))

    @server.resource("a://b", cache=hint)
    def read() -> str:
        return ""

    outcome: Any = await ask(server, "resources/read", {"uri": "a://b"})
    assert outcome.cache == (hint or CacheHint(7, "private"))


# Completions


async def complete(server: Server, value: str = "", arguments: dict[str, str] | None = None) -> dict[str, Any]:
    params: dict[str, Any] = {"ref": {"type": "ref/prompt", "name": "pack"}, "argument": {"name": "city", "value": value}}
    if arguments is not None:
        params["context"] = {"arguments": arguments}
    found = await reply(server, "completion/complete", params)
    mcp_types_validate("CompleteResult", {**found, "resultType": "complete"})
    completion: dict[str, Any] = found["completion"]
    return completion


def make_completed(fn: Callable[..., Any], **options: Any) -> Server:
    server = Server("desk", **options)

    @server.prompt
    def pack(city: str) -> str:
        return city

    server.complete("pack", "city")(fn)
    return server


@pytest.mark.parametrize(("found", "total", "more"), [(0, 0, False), (99, 99, False), (100, 100, False), (101, 101, True), (5000, 5000, True)])
async def test_a_completion_gives_a_hundred_at_most(found: int, total: int, more: bool) -> None:
    # CP-03
    completion = await complete(make_completed(lambda value: [str(n) for n in range(found)]))
    assert completion["values"] == [str(n) for n in range(min(found, 100))]
    assert (completion["total"], completion["hasMore"]) == (total, more)


async def test_the_cap_can_be_lower() -> None:
    # CP-03
    completion = await complete(make_completed(lambda value: ["a", "b", "c"], completion_cap=2))
    assert (completion["values"], completion["hasMore"]) == (["a", "b"], True)
    for cap in (0, 101):
        with pytest.raises(RegistrationError, match="completion_cap"):
            Server("desk", completion_cap=cap)


async def test_a_completion_sees_the_other_arguments() -> None:
    # CP-02
    server = make_completed(lambda value, arguments: [f"{value} {sorted(arguments.items())}"])
    assert (await complete(server, "a", {"country": "no"}))["values"] == ["a [('country', 'no')]"]
    assert (await complete(server, "a"))["values"] == ["a []"]


@pytest.mark.parametrize("found", [None, (), iter(["a"]), {"a": 1}])
async def test_what_a_completion_gives_may_be_any_iterable(found: Any) -> None:
    completion = await complete(make_completed(lambda value: found))
    assert completion["values"] in ([], ["a"])


@pytest.mark.parametrize("found", ["oslo", [1, 2], [None], 5])
async def test_what_is_no_list_of_texts_is_an_error(found: Any) -> None:
    # CP-03: it must not reach the wire
    with pytest.raises(TypeError, match="completion"):
        await complete(make_completed(lambda value: found))


@pytest.mark.parametrize("fn", [lambda: [], lambda a, b, c: []])
def test_a_completion_takes_the_text_and_the_others(fn: Callable[..., Any]) -> None:
    with pytest.raises(RegistrationError, match="completion takes"):
        make_completed(fn)
