"""Cases of the field and of attackers that take a whole server to show (`tests/requirements/cases.json`)."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from asgi_driver import Client, make_headers, make_meta, make_request
from desk import Desk
from pydantic import BaseModel, Field, computed_field
from unit.transport.lines import call, request, text_of
from unit.transport.stage import serving

import callboard
from callboard import Context, Fail, Server, ToolError, asgi, types

NAN = float("nan")
SURROGATE = "\ud800"  # what os.fsdecode makes of a file name that is no UTF-8


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(asgi(desk.server))


# parse


async def test_half_a_surrogate_pair_is_refused_with_its_id_over_a_pipe_too(desk: Desk) -> None:
    # SA06
    async with serving(desk.server) as (pipe, reader):
        pipe.feed(call(3, "echo", text="TEXT").replace(b"TEXT", rb"\udcff"))
        assert (await reader.answer(3))["error"]["code"] == -32602
        assert desk.calls == []
        pipe.feed(call(4, "echo", text="on"))
        assert text_of(await reader.answer(4)) == "on"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(rb'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"\ud800"}}', id="notification"),
        pytest.param(rb'{"jsonrpc":"2.0","id":4,"result":{"a":"\ud800"}}', id="result"),
        pytest.param(rb'{"jsonrpc":"2.0","id":4,"error":{"code":1,"message":"\ud800"}}', id="error"),
    ],
)
async def test_what_is_never_answered_is_not_answered_for_half_a_surrogate_pair(desk: Desk, line: bytes) -> None:
    # JR-06, JR-12: an answer to a response could pass for one to a request of the client's with that id
    async with serving(desk.server) as (pipe, reader):
        pipe.feed(line)
        pipe.feed(call(9, "echo", text="on"))
        await reader.answer(9)
        assert [message["id"] for message in reader.messages if "id" in message] == [9]
        assert len(reader.messages) == 1


# argument


@pytest.mark.parametrize("number", ["1e999", "-1e400", "1" * 5000])
@pytest.mark.parametrize("headers", [True, False])
async def test_a_number_out_of_range_is_a_faulty_argument(number: str, headers: bool) -> None:
    # TL-13, HH-19: also of a tool that has mirrored parameters, whose headers say what the body says
    server, ran = Server("desk"), []
    annotation = {"x-mcp-header": "Region"} if headers else {}

    @server.tool(input_schema={"type": "object", "properties": {"region": {"type": "string", **annotation}, "n": {"type": "number"}}})
    async def stow(arguments: dict[str, Any]) -> str:
        ran.append(arguments)
        return ""

    message = make_request("tools/call", {"name": "stow", "arguments": {"region": "eu", "n": "NUMBER"}})
    sent = make_headers(message, mcp_param_region="eu" if headers else None)
    answer = await Client(asgi(server)).send(json.dumps(message).replace('"NUMBER"', number).encode(), sent, method="tools/call")
    assert ran == []
    assert answer.result["isError"] is True
    assert "region" not in answer.text


# encode


def make_odd() -> Server:
    """A server that says what JSON can't, in every place where an author may say something."""
    server = Server("odd")
    values: dict[str, Any] = {"surrogate": SURROGATE, "object": object(), "key": {(1, 2): 3}, "nested": {"a": [SURROGATE]}}

    @server.tool
    async def data_of_a_log(kind: str, ctx: Context) -> str:
        ctx.log("info", values[kind])
        return "ok"

    @server.tool
    async def name_of_a_logger(kind: str, ctx: Context) -> str:
        ctx.log("info", "x", SURROGATE)
        return "ok"

    @server.tool
    async def message_of_progress(kind: str, ctx: Context) -> str:
        ctx.progress(1, message=SURROGATE)
        return "ok"

    @server.tool
    async def structure_of_a_failure(kind: str) -> str:
        raise ToolError("x", structured=values[kind])

    @server.tool
    async def data_of_a_refusal(kind: str) -> str:
        raise Fail.custom(5, "x", values[kind])

    @server.tool
    async def content_block(kind: str) -> list[types.Content]:
        return [types.TextContent(text="x", meta={"a": values[kind]})]

    @server.resource("odd://{kind}")
    async def resource(kind: str) -> Any:
        return values[kind]

    @server.prompt
    async def prompt(kind: str) -> Any:
        return [types.user(types.TextContent(text=SURROGATE))]

    @server.complete("prompt", "kind")
    async def completion(value: str) -> list[str]:
        return [SURROGATE]

    return server


PLACES_OF_VALUES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("tools/call", {"name": tool})
        for tool in (
            "data_of_a_log",
            "name_of_a_logger",
            "message_of_progress",
            "structure_of_a_failure",
            "data_of_a_refusal",
            "content_block",
        )
    ),
    ("resources/read", {}),
    ("prompts/get", {"name": "prompt"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "prompt"}, "argument": {"name": "kind", "value": ""}}),
]


@pytest.mark.parametrize(("method", "params"), PLACES_OF_VALUES, ids=[params.get("name", method) for method, params in PLACES_OF_VALUES])
@pytest.mark.parametrize("kind", ["surrogate", "object", "key", "nested"])
async def test_wherever_it_is_said_what_can_not_be_sent_is_that_requests_error(method: str, params: dict[str, Any], kind: str) -> None:
    # SA07, JR-08
    more = {"uri": f"odd://{kind}"} if method == "resources/read" else {"arguments": {"kind": kind}} if "name" in params else {}
    odd = Client(asgi(make_odd()))
    started = time.process_time()
    answer, other = await asyncio.gather(
        odd.request(method, {**params, **more}, meta=make_meta(progressToken=1, logLevel="debug")), odd.request("tools/list", request_id=2)
    )
    assert time.process_time() - started < 1
    assert (answer.message["id"], answer.error["code"]) == (1, -32603)
    assert len(other.result["tools"]) == 6


# header


@pytest.mark.parametrize("name", ["mcp_method", "mcp_name", "mcp_protocol_version", "mcp_param_region"])
@pytest.mark.parametrize(
    "junk", ["\r\nx-evil: 1", "\nevil", "\revil", "\x00evil", "\x7fevil", "\x1b[31mevil", "\xe9vil", "évil".encode().decode("latin-1")]
)
async def test_what_no_header_may_hold_is_refused_and_shown_nowhere(
    desk: Desk, client: Client, caplog: pytest.LogCaptureFixture, name: str, junk: str
) -> None:
    # SA13, HH-06, HH-19: neither in a header of the response nor raw in a log
    caplog.set_level(logging.NOTSET)
    message = make_request("tools/call", {"name": "stow", "arguments": {"bay": 1, "region": "eu"}})
    headers = make_headers(message, mcp_param_region="eu")
    field = name.replace("_", "-")
    headers[field] += junk
    answer = await client.send(json.dumps(message).encode(), headers, method="tools/call")
    assert (answer.status, answer.error["code"], answer.message["id"]) == (400, -32020, 1)
    assert desk.calls == []
    assert all(value.isprintable() and "evil" not in value for value in answer.headers.values())
    assert junk not in caplog.text


async def test_headers_that_mean_nothing_here_are_shown_nowhere(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    # SA13, HM-21
    caplog.set_level(logging.NOTSET)
    answer = await client.call("echo", {"text": "a"}, mcp_session_id="evil\r\nx-evil: 1\x00\xe9", last_event_id="evil\x1b[31m")
    assert (answer.status, answer.text) == (200, "a")
    assert "evil" not in str(answer.headers)
    assert "evil" not in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"content_type": "text/plain"}, id="SA14 text"),
        pytest.param({"content_type": "text/plain; charset=application/json"}, id="SA14 text with a parameter"),
        pytest.param({"content_type": "application/x-www-form-urlencoded"}, id="SA14 form"),
        pytest.param({"content_type": "multipart/form-data; boundary=x"}, id="SA14 multipart"),
        pytest.param({"content_type": None}, id="SA14 nothing"),
        pytest.param({"origin": "https://evil.example"}, id="SA16"),
        pytest.param({"origin": "null"}, id="SA16 null"),
        pytest.param({"origin": "http://localhost:3000"}, id="SA16 another port"),
        pytest.param({"origin": "https://127.0.0.1.evil"}, id="SA16 look-alike"),
    ],
)
async def test_what_a_web_page_can_send_without_asking_runs_nothing(desk: Desk, client: Client, changed: dict[str, Any]) -> None:
    # SA14, SA16, HM-02
    answer = await client.call("echo", {"text": "a"}, **changed)
    assert answer.status == (403 if "origin" in changed else 415)
    assert answer.error["code"] == -32600
    assert "id" not in answer.message
    assert desk.calls == []


# uri


async def parts(a: str, b: str, c: str, d: str) -> str:
    return "read"


async def exploded(steps: list[str]) -> str:
    return "read"


async def halves(a: str, b: str) -> str:
    return "read"


@pytest.mark.parametrize(
    ("template", "uri", "fn"),
    [
        ("x://{a}/{b}-{c}.{d}", "x://a/" + "-." * 32_000, parts),
        ("x://a{/steps*}", "x://a" + "/%41" * 16_000, exploded),
        ("x://a{?steps*}", "x://a?steps=" + "&steps=%C3%A9" * 5_000, exploded),
        ("x://{+a}/-/{+b}", "x://a" + "/-" * 32_000 + "/b", halves),
    ],
)
async def test_64_kb_against_nested_and_exploded_templates_cost_little(template: str, uri: str, fn: Callable[..., Any]) -> None:
    # SA33: under 50 ms, the best of five
    server = Server("desk")
    server.resource(template)(fn)
    took = []
    async with serving(server) as (pipe, reader):
        for number in range(5):
            line = request(number, "resources/read", {"uri": uri})
            started = time.process_time()
            pipe.feed(line)
            await reader.answer(number)
            took.append(time.process_time() - started)
    assert min(took) < 0.05


# schema


class Reading(BaseModel):
    """Its names differ on the way in, in Python and on the way out."""

    inner: int = Field(validation_alias="inAlias", serialization_alias="outAlias")

    @computed_field(alias="total")
    def computed(self) -> int:
        return self.inner + 1


class Tree(BaseModel):
    """A model that holds itself."""

    value: int
    children: list["Tree"] = []


class Branch(msgspec.Struct):
    """A Struct that holds itself."""

    value: int
    children: list["Branch"] = []


def reading(value: Reading) -> Reading:
    return value


def tree(value: Tree) -> Tree:
    return Tree(value=value.value, children=[value])


def branch(value: Branch) -> Branch:
    return Branch(value.value, [value])


def branches(value: Branch) -> dict[str, Branch | None]:
    return {"one": value, "none": None}


@pytest.mark.parametrize(
    ("fn", "given", "expected"),
    [
        pytest.param(reading, {"inAlias": 1}, {"outAlias": 1, "total": 2}, id="A21"),
        pytest.param(tree, {"value": 1}, {"value": 1, "children": [{"value": 1, "children": []}]}, id="A22 pydantic"),
        pytest.param(branch, {"value": 1}, {"value": 1, "children": [{"value": 1, "children": []}]}, id="A22 msgspec"),
        pytest.param(branches, {"value": 1}, {"one": {"value": 1, "children": []}, "none": None}, id="A22 inside"),
    ],
)
async def test_what_is_returned_fits_the_schema_that_was_listed(fn: Callable[..., Any], given: dict[str, Any], expected: Any) -> None:
    # A21, A22, TL-08
    server = Server("desk")
    server.tool(fn)
    client = Client(asgi(server))
    (tool,) = (await client.request("tools/list")).result["tools"]
    assert tool["outputSchema"]["type"] == "object"
    jsonschema_rs.validate(tool["inputSchema"], {"value": given})
    answer = await client.call(fn.__name__, {"value": given})
    assert answer.result["structuredContent"] == expected
    jsonschema_rs.validate(tool["outputSchema"], answer.result["structuredContent"])
    assert json.loads(answer.text) == expected


async def test_an_error_with_a_structure_of_its_own_reaches_who_called() -> None:
    # A23: however it is said, and though the client knows the output schema
    server = Server("desk")

    @server.tool
    async def raised() -> list[int]:
        raise ToolError("No such day.", structured={"code": 5})

    @server.tool
    async def returned() -> list[int]:
        result: Any = types.CallToolResult(content=[types.TextContent(text="No such day.")], structured_content={"code": 5}, is_error=True)
        return result  # type: ignore[no-any-return] # what authors do

    async with callboard.Client(server) as client:
        listed = await client.list_tools()
        for tool in listed:
            assert isinstance(tool.output_schema, dict)
            assert tool.output_schema["type"] == "array"
            found = await client.call_tool(tool.name)
            assert found.is_error is True
            assert found.structured_content == {"code": 5}
            assert found.content == [types.TextContent(text="No such day.")]


# context


async def test_each_request_has_its_own_credentials() -> None:
    # A27: also where requests overlap
    server = Server("desk")
    gate = asyncio.Barrier(3)

    @server.tool
    async def token(ctx: Context) -> str:
        await gate.wait()
        assert ctx.headers is not None
        return ctx.headers["authorization"]

    client = Client(asgi(server))
    for turn in range(2):
        tokens = [f"Bearer {turn}{name}" for name in "abc"]
        answers = await asyncio.gather(*(client.call("token", authorization=each) for each in tokens))
        assert [answer.text for answer in answers] == tokens


# cancel


async def test_a_handler_that_takes_its_time_to_clean_up_says_nothing_more() -> None:
    # SA25, HM-15, PR-04
    server, cleaned = Server("desk"), asyncio.Event()

    @server.tool
    async def hold(ctx: Context) -> str:
        ctx.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            for number in range(2, 6):
                ctx.progress(number)
                ctx.log("error", "cleaning up")
                await asyncio.sleep(0)
            cleaned.set()
        return "never"

    meta = make_meta(progressToken=1, logLevel="debug")
    async with Client(asgi(server, keep_alive=0.01)).open("tools/call", {"name": "hold"}, meta=meta) as stream:
        await stream.message()
        stream.disconnect()
        async with asyncio.timeout(5):
            await cleaned.wait()
        await stream.gone()
        assert stream.body.count(b"data:") == 1
