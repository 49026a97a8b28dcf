"""Pure dispatch: a request to an outcome."""

from typing import Any

import pytest
from asgi_driver import LATEST
from oracles import mcp_types_result
from served import ask, make_mount, refusal, reply

from callboard import Context, Depends, Fail, Reason, Reply, Server
from callboard.core.outcome import CacheHint
from callboard.server.dispatch import SERVE
from callboard.wire.methods import METHODS

GATED: dict[str, dict[str, Any]] = {
    "tools/list": {},
    "tools/call": {"name": "x"},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "a://x"},
    "prompts/list": {},
    "prompts/get": {"name": "x"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}},
}


def make_server(**options: Any) -> Server:
    server = Server("desk", version="2", **options)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.prompt
    def greet(who: str, tone: str = "kind", ctx: Context | None = None, extra: str = Depends(lambda: "")) -> str:
        return f"{who} {tone}"

    @server.resource("a://rules")
    def rules() -> str:
        return "rules"

    @server.resource("a://{x}")
    def read(x: str) -> str:
        return x

    @server.resource("a://{x}/{y}")
    def deep(x: str, y: str) -> str:
        return x + y

    @server.complete("greet", "who")
    def names(value: str) -> list[str]:
        return [value + "!"]

    return server


def test_every_method_of_the_table_is_served() -> None:
    assert SERVE.keys() == METHODS.keys()


# What a server offers


@pytest.mark.parametrize("method", GATED)
async def test_what_a_server_has_not_is_no_method(method: str) -> None:
    # EC-10, CP-04
    fail = await refusal(Server("bare"), method, GATED[method])
    assert fail.reason is Reason.METHOD_NOT_FOUND
    assert METHODS[method].capability in fail.text


async def test_declared_capabilities_decide_what_is_served() -> None:
    # EC-10
    server = make_server(capabilities={"tools": {}})
    assert isinstance(await ask(server, "tools/list"), Reply)
    assert (await refusal(server, "prompts/list")).reason is Reason.METHOD_NOT_FOUND


async def test_a_list_may_be_empty() -> None:
    # TL-02
    server = make_server()
    server.remove("tools", "echo")
    assert await reply(server, "tools/list") == {"tools": []}


async def test_discover_says_all_there_is_to_know() -> None:
    # VN-02, VN-03, MT-18, TL-01, RS-01, PM-01, CP-01, LG-02
    found = await reply(make_server(instructions="Be kind."), "server/discover")
    assert found == {
        "supportedVersions": [LATEST],
        "capabilities": {
            "logging": {},
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "completions": {},
        },
        "instructions": "Be kind.",
    }
    mcp_types_result("server/discover", {**found, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})


async def test_what_can_not_be_delivered_is_not_advertised() -> None:
    # A19
    server = make_server()
    found = await reply(server, "server/discover", mount=make_mount(server, listens=False))
    assert found["capabilities"] == {"logging": {}, "tools": {}, "prompts": {}, "resources": {}, "completions": {}}
    assert "instructions" not in found


@pytest.mark.parametrize(("own", "seen"), [(None, "Be kind."), ("Be brief.", "Be brief."), ("", "")])
async def test_a_mount_may_have_instructions_of_its_own(own: str | None, seen: str) -> None:
    server = make_server(instructions="Be kind.")
    found = await reply(server, "server/discover", mount=make_mount(server, instructions=own))
    assert found["instructions"] == seen


async def test_a_bare_server_advertises_nothing_it_has_not() -> None:
    # MT-18
    assert (await reply(Server("bare"), "server/discover"))["capabilities"] == {"logging": {}}


@pytest.mark.parametrize("method", ["server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list"])
async def test_the_servers_caching_hint_is_on_what_is_cacheable(method: str) -> None:
    # CA-01
    hint = CacheHint(60_000, "public")
    outcome = await ask(make_server(cache=hint), method)
    assert isinstance(outcome, Reply)
    assert outcome.cache == hint


async def test_all_pages_have_the_same_scope() -> None:
    # CA-02
    server = make_server(page_size=1, cache=CacheHint(5, "public"))
    server.tool(name="second")(lambda: "")
    first = await ask(server, "tools/list")
    assert isinstance(first, Reply)
    second = await ask(server, "tools/list", {"cursor": first.value["nextCursor"]})
    assert isinstance(second, Reply)
    assert "nextCursor" not in second.value
    assert first.cache == second.cache == CacheHint(5, "public")


# Names that nobody has


async def test_unknown_names_are_refused_with_the_name() -> None:
    # SA21, TL-13, PM-04, RS-05, EC-11
    server = make_server()
    tool = await refusal(server, "tools/call", {"name": "nobody", "arguments": {"a": 1}})
    assert (tool.reason, tool.data) == (Reason.UNKNOWN_TOOL, {"name": "nobody"})
    prompt = await refusal(server, "prompts/get", {"name": "nobody"})
    assert (prompt.reason, prompt.data) == (Reason.UNKNOWN_PROMPT, {"name": "nobody"})
    resource = await refusal(server, "resources/read", {"uri": "b://nowhere"})
    assert (resource.reason, resource.data) == (Reason.RESOURCE_NOT_FOUND, {"uri": "b://nowhere"})


async def test_a_static_uri_wins_over_templates_and_templates_come_in_order() -> None:
    # A46
    server = make_server()

    async def text_of(uri: str) -> str:
        text: str = (await reply(server, "resources/read", {"uri": uri}))["contents"][0]["text"]
        return text

    assert await text_of("a://rules") == "rules"
    assert await text_of("a://x") == "x"
    assert await text_of("a://x/y") == "xy"


@pytest.mark.parametrize("arguments", [[], "x", 5, None, True, ["text"]])
async def test_arguments_that_are_no_object_are_no_request(arguments: Any) -> None:
    # TL-13: a malformed CallToolRequest
    fail = await refusal(make_server(), "tools/call", {"name": "echo", "arguments": arguments})
    assert fail.reason is Reason.INVALID_PARAMS


async def test_a_task_param_is_ignored() -> None:
    # TL-23
    found = await reply(make_server(), "tools/call", {"name": "echo", "arguments": {"text": "a"}, "task": {"ttl": 1}})
    assert found["content"][0]["text"] == "a"


async def test_prompt_arguments_are_checked() -> None:
    # PM-04, PM-07
    server = make_server()
    for arguments, culprit in (({}, "who"), ({"who": "a", "mood": "b"}, "mood")):
        fail = await refusal(server, "prompts/get", {"name": "greet", "arguments": arguments})
        assert fail.reason is Reason.INVALID_PARAMS
        assert culprit in fail.text
    found = await reply(server, "prompts/get", {"name": "greet", "arguments": {"who": "ann", "tone": "curt"}})
    assert found["messages"][0]["content"]["text"] == "ann curt"


# Completion


@pytest.mark.parametrize(
    ("ref", "argument", "values"),
    [
        ({"type": "ref/prompt", "name": "greet"}, "who", ["a!"]),
        ({"type": "ref/prompt", "name": "greet"}, "tone", []),
        ({"type": "ref/resource", "uri": "a://{x}"}, "x", []),
    ],
)
async def test_what_has_no_completion_has_no_values(ref: dict[str, str], argument: str, values: list[str]) -> None:
    # CP-02, CP-03
    found = await reply(make_server(), "completion/complete", {"ref": ref, "argument": {"name": argument, "value": "a"}})
    assert found["completion"]["values"] == values


@pytest.mark.parametrize(
    ("ref", "argument"),
    [
        ({"type": "ref/prompt", "name": "nobody"}, "who"),
        ({"type": "ref/prompt", "name": "greet"}, "nothing"),
        ({"type": "ref/prompt", "name": "greet"}, "ctx"),
        ({"type": "ref/prompt", "name": "greet"}, "extra"),
        ({"type": "ref/resource", "uri": "b://{x}"}, "x"),
        ({"type": "ref/resource", "uri": "a://{x}"}, "z"),
        ({"type": "ref/resource", "uri": "a://rules"}, "x"),
    ],
)
async def test_a_bad_ref_or_argument_is_invalid(ref: dict[str, str], argument: str) -> None:
    # CP-04
    fail = await refusal(make_server(), "completion/complete", {"ref": ref, "argument": {"name": argument, "value": "a"}})
    assert fail.reason is Reason.INVALID_PARAMS


async def test_a_completion_outlives_its_prompt_unseen() -> None:
    # CP-04
    server = make_server()
    server.remove("prompts", "greet")
    params = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "a"}}
    assert (await refusal(server, "completion/complete", params)).reason is Reason.INVALID_PARAMS


# Headers that mirror arguments


HEADERED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "n": {"type": "integer", "x-mcp-header": "N"},
        "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
    },
}


@pytest.mark.parametrize(
    ("arguments", "headers", "fits"),
    [
        ({}, {}, True),
        ({"region": "eu"}, {b"mcp-param-region": b"eu"}, True),
        ({"region": "eu"}, {b"mcp-param-region": b" eu\t"}, True),
        ({"region": "eu"}, {}, False),
        ({"region": "eu"}, {b"mcp-param-region": b"us"}, False),
        ({"region": "eu"}, {b"mcp-param-region": b"EU"}, False),
        ({"region": None}, {}, True),
        ({}, {b"mcp-param-region": b"eu"}, False),
        ({"region": "Süd"}, {b"mcp-param-region": b"=?base64?U8O8ZA==?="}, True),
        ({"region": "Süd"}, {b"mcp-param-region": "Süd".encode()}, False),
        ({"region": "eu"}, {b"mcp-param-region": b"=?base64?ZXU?="}, False),
        ({"n": 42}, {b"mcp-param-n": b"42"}, True),
        ({"n": 42}, {b"mcp-param-n": b"42.0"}, True),
        ({"n": 42.0}, {b"mcp-param-n": b"42"}, True),
        ({"n": 42}, {b"mcp-param-n": b"43"}, False),
        ({"n": 2**53}, {b"mcp-param-n": b"9007199254740992"}, False),
        ({"deep": {"flag": True}}, {b"mcp-param-flag": b"true"}, True),
        ({"deep": {"flag": True}}, {b"mcp-param-flag": b"True"}, False),
        ({"deep": {"flag": True}}, {}, False),
        ({"deep": 5}, {}, True),
        ({"region": "eu"}, {b"mcp-param-region": b"eu", b"mcp-param-other": b"x"}, True),
        ({"region": "e\x00u"}, {b"mcp-param-region": b"e\x00u"}, False),
    ],
)
async def test_headers_mirror_arguments_or_nothing_runs(arguments: dict[str, Any], headers: dict[bytes, bytes], fits: bool) -> None:
    # HH-12, HH-18, HH-19, HH-20, SA13, EC-05
    server, ran = Server("desk"), []

    @server.tool(input_schema=HEADERED)
    async def stow(arguments: dict[str, Any]) -> str:
        ran.append(arguments)
        return ""

    outcome = await ask(server, "tools/call", {"name": "stow", "arguments": arguments}, headers=headers)
    if fits:
        assert isinstance(outcome, Reply)
    else:
        assert isinstance(outcome, Fail)
        assert outcome.reason is Reason.HEADER_MISMATCH
        assert ran == []


async def test_without_http_nothing_is_mirrored() -> None:
    # HM-23
    server = Server("desk")

    @server.tool(input_schema=HEADERED)
    async def stow(arguments: dict[str, Any]) -> str:
        return str(arguments["region"])

    found = await reply(server, "tools/call", {"name": "stow", "arguments": {"region": "eu"}})
    assert found["content"][0]["text"] == "eu"
