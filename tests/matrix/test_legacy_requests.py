"""What clients of 2025 send and are answered, version by version: envelopes, errors, lists, completions, results."""

import json
import time
from typing import Any

import pytest
from desk import Desk
from legacy_driver import V03, V06, V11, VERSIONS, Answer, Legacy, Session
from shop import Shop
from virtual_time import virtual_time

from callboard import Context, NeedInput, Outcome, RegistrationError, Request, Server, Service, asgi, types

NAN = float("nan")


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def opened(server: Server, version: str = V11, **options: Any) -> Session:
    """A session at a server."""
    return await Legacy(asgi(server, **options), version).connect()


async def post(session: Session, body: bytes, **headers: str | None) -> Answer:
    """Post any bytes."""
    return await session.send("POST", body, session.headers(**headers)).end()


# Envelopes


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping"',
        b"",
        b"{",
        b"nonsense",
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff\xfe"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        b"[" * 20_000 + b"]" * 20_000,
        b"[" * 1_000_000,
    ],
    ids=["truncated", "empty", "brace", "text", "utf-8", "nan", "deep", "deeper"],
)
@virtual_time
async def test_what_is_no_json_is_a_parse_error_and_the_session_goes_on(shop: Shop, version: str, body: bytes) -> None:
    """SA01, SA02, SA05: 400, -32700, id null or none, in no time."""
    session = await opened(shop.server, version)
    began = time.process_time()
    answer = await post(session, body)
    assert time.process_time() - began < 0.2
    assert (answer.status, answer.error["code"], answer.message.get("id")) == (400, -32700, None)
    assert (await session.call("add")).text == "1"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("request_id", [None, 1.5, 2.5, True, False, [], {}, [1], {"a": 1}])
@virtual_time
async def test_an_id_that_is_none_is_refused_not_taken_for_a_notification(shop: Shop, version: str, request_id: Any) -> None:
    """Scenario 32; SA03."""
    session = await opened(shop.server, version)
    message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}
    answer = await session.post(message)
    assert (answer.status, answer.error["code"], answer.message.get("id")) == (400, -32600, None)
    assert shop.ran == []


@pytest.mark.parametrize("request_id", ["1", 1, "01", "é", "", 0, -1, 2**53, "x" * 200, "\u2028"])
@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_an_id_comes_back_as_it_was(shop: Shop, request_id: Any, token: str | None) -> None:
    """A25: in JSON, in streams, in errors."""
    session = await opened(shop.server)
    for tool, arguments in (("count", {"to": 1}), ("nothing", {})):
        answer = await session.call(tool, arguments, request_id=request_id, token=token)
        assert answer.message["id"] == request_id
        assert type(answer.message["id"]) is type(request_id)


@pytest.mark.parametrize(
    "message",
    [
        5,
        "x",
        {},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {"id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": 5},
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]},
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": "x"},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": "x"}},
    ],
    ids=json.dumps,
)
@virtual_time
async def test_what_is_no_message_is_refused(shop: Shop, message: Any) -> None:
    # SA04, JR-01
    session = await opened(shop.server)
    answer = await post(session, json.dumps(message).encode())
    assert answer.status in {200, 400}
    assert answer.error["code"] in {-32600, -32602}
    assert (await session.request("ping")).result == {}


@virtual_time
async def test_half_a_surrogate_pair_reaches_no_function_and_is_sent_to_nobody(shop: Shop) -> None:
    """SA06."""
    session = await opened(shop.server)
    body = json.dumps(session.make_call("echo", {"text": "TEXT"}, request_id=7)).replace("TEXT", r"\ud800").encode()
    answer = await post(session, body)
    assert (answer.message["id"], answer.error["code"]) == (7, -32602)
    assert shop.ran == []


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", None])
@virtual_time
async def test_a_body_of_another_type_is_not_read(shop: Shop, content_type: str | None) -> None:
    """SA14."""
    session = await opened(shop.server)
    answer = await session.call("echo", {"text": "x"}, content_type=content_type)
    assert answer.status == 415
    assert shop.ran == []


# Methods


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "method", ["foo/bar", "", "tools", "rpc.discover", "server/discover", "subscriptions/listen", "notifications/initialized"]
)
@virtual_time
async def test_an_unknown_method_is_answered(shop: Shop, version: str, method: str) -> None:
    """A59, SA20: 200 and -32601; methods of the current protocol are unknown too."""
    session = await opened(shop.server, version)
    answer = await session.request(method, request_id="m")
    assert (answer.status, answer.message["id"], answer.error["code"]) == (200, "m", -32601)


@virtual_time
async def test_what_a_server_has_not_does_not_exist() -> None:
    """Capability gate."""
    server = Server("tools only")

    @server.tool
    async def tool() -> str:
        return "x"

    session = await opened(server)
    for method, params in (
        ("resources/subscribe", {"uri": "a://b"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}}),
    ):
        assert (await session.request(method, params)).error["code"] == -32601


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_pings_are_answered_at_once(shop: Shop, version: str) -> None:
    # LC-08
    session = await opened(shop.server, version)
    for params in (None, {}, {"_meta": {"a/b": 1}}):
        assert (await session.request("ping", params)).result == {}


@pytest.mark.parametrize(
    "method", ["notifications/initialized", "notifications/roots/list_changed", "notifications/progress", "notifications/message", "x/y"]
)
@virtual_time
async def test_notifications_are_accepted(shop: Shop, method: str) -> None:
    """JR-12, HL-04: known or not, more than once."""
    session = await opened(shop.server)
    for params in (None, {}, {"progressToken": 1, "progress": 1}):
        answer = await session.notify(method, params)
        assert (answer.status, answer.body) == (202, b"")


@virtual_time
async def test_an_answer_to_nothing_is_refused(shop: Shop) -> None:
    """JR-07."""
    session = await opened(shop.server)
    answers: list[dict[str, Any]] = [{"result": {}}, {"error": {"code": -1, "message": "x"}}]
    for message in answers:
        answer = await session.post({"jsonrpc": "2.0", "id": "server-1", **message})
        assert (answer.status, answer.error["code"]) == (400, -32600)
        assert answer.message.get("id") is None


# Tools, resources, prompts


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_faulty_arguments_are_a_result_for_the_model(shop: Shop, version: str) -> None:
    session = await opened(shop.server, version)
    answer = await session.call("echo", {"text": 5})
    assert (answer.status, answer.result["isError"]) == (200, True)
    assert "structuredContent" not in answer.result
    assert (await session.request("tools/call", {"name": "echo", "arguments": [1]})).error["code"] == -32602
    assert (await session.request("tools/call", {"arguments": {}})).error["code"] == -32602


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_what_is_unknown_has_the_codes_of_2025(shop: Shop, version: str) -> None:
    """SA21: a tool and a prompt -32602, a resource -32002."""
    session = await opened(shop.server, version)
    assert (await session.call("nothing")).error["code"] == -32602
    assert (await session.request("prompts/get", {"name": "nothing"})).error["code"] == -32602
    assert (await session.request("resources/read", {"uri": "shop://nothing"})).error["code"] == -32002


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_a_crash_tells_nothing(shop: Shop, version: str) -> None:
    """SA35."""
    session = await opened(shop.server, version)
    answer = await session.call("crash")
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert b"hunter2" not in answer.body
    assert b"ValueError" not in answer.body


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize("value", ["surrogate", "nan", "cycle", "object"])
@virtual_time
async def test_what_can_not_be_sent_is_that_calls_error(version: str, token: str | None, value: str) -> None:
    """Scenario 25; SA07: buffered and streaming, and the connection is not dropped."""
    server = Server("odd")
    cycle: list[Any] = []
    cycle.append(cycle)
    values: dict[str, Any] = {"surrogate": "\ud800", "nan": NAN, "cycle": cycle, "object": object()}

    @server.tool
    async def say(ctx: Any = None) -> Any:
        return {"value": values[value]}

    session = await opened(server, version)
    answer = await session.call("say", token=token)
    if value == "nan" and "result" in answer.message:
        assert answer.result["content"]
        return
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert (await session.request("ping")).result == {}


@pytest.mark.parametrize(("version", "structured"), [(V03, None), (V06, {"result": [1, 2]}), (V11, {"result": [1, 2]})])
@virtual_time
async def test_structured_content_is_what_the_version_can_say(version: str, structured: Any) -> None:
    """None in 2025-03-26, objects until 2025-11-25; the schema says what is sent."""
    server = Server("lists")

    @server.tool
    async def numbers() -> list[int]:
        return [1, 2]

    @server.tool
    async def point() -> dict[str, int]:
        return {"x": 1}

    session = await opened(server, version)
    answer = await session.call("numbers")
    assert answer.result.get("structuredContent") == structured
    assert json.loads(answer.text) == [1, 2]
    point_answer = await session.call("point")
    assert point_answer.result.get("structuredContent") == (None if structured is None else {"x": 1})
    tools = {tool["name"]: tool for tool in (await session.request("tools/list")).result["tools"]}
    if structured is None:
        assert "outputSchema" not in tools["numbers"]
        return
    for tool in tools.values():
        assert tool["outputSchema"]["type"] == "object"
    assert tools["numbers"]["outputSchema"]["properties"]["result"]["type"] == "array"
    assert tools["numbers"]["outputSchema"]["required"] == ["result"]


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_a_server_with_something_of_everything_is_readable_in_every_version(version: str) -> None:
    """The oracles judge each message (`legacy_driver.judge`); nothing of the current protocol is in it."""
    session = await opened(Desk().server, version)
    requests: list[tuple[str, dict[str, Any] | None]] = [
        ("tools/list", None),
        ("resources/list", None),
        ("resources/templates/list", None),
        ("prompts/list", None),
        ("resources/read", {"uri": "desk://rules"}),
        ("resources/read", {"uri": "desk://note/7"}),
        ("resources/read", {"uri": "file:///a/b"}),
        ("prompts/get", {"name": "greet", "arguments": {"who": "Ada"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "A"}}),
        ("logging/setLevel", {"level": "debug"}),
    ]
    for method, params in requests:
        assert (await session.request(method, params)).result is not None, method
    for tool in (await session.request("tools/list")).result["tools"]:
        if tool["name"] not in {"hang", "block"} and not tool["inputSchema"].get("required"):
            answer = await session.call(tool["name"], {}, token=tool["name"])
            assert answer.status == 200, tool["name"]


@pytest.mark.parametrize(("version", "kind"), [(V03, "text"), (V06, "resource_link"), (V11, "resource_link")])
@virtual_time
async def test_links_become_text_where_there_are_none(version: str, kind: str) -> None:
    # TL-18
    server = Server("links")

    @server.tool
    async def where() -> types.ResourceLink:
        return types.link("a://b", name="b")

    session = await opened(server, version)
    (block,) = (await session.call("where")).result["content"]
    assert block["type"] == kind
    assert "a://b" in json.dumps(block)


# Pages and completions


def make_long(amount: int, page_size: int = 50) -> Server:
    """A server with so many tools, prompts and resources."""
    server = Server("long", page_size=page_size)
    for number in range(amount):

        async def tool() -> str:
            return "x"

        server.tool(name=f"t{number:03}")(tool)
        server.prompt(name=f"p{number:03}")(tool)
        server.resource(f"r://{number:03}", name=f"r{number:03}")(tool)
    return server


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("method", "key"), [("tools/list", "tools"), ("prompts/list", "prompts"), ("resources/list", "resources")])
@virtual_time
async def test_long_lists_come_in_pages(version: str, method: str, key: str) -> None:
    """Scenario 26: 50, 50, 20, no cursor on the last; in declared order."""
    session = await opened(make_long(120), version)
    sizes, found, cursor = [], [], None
    while True:
        result = (await session.request(method, None if cursor is None else {"cursor": cursor})).result
        sizes.append(len(result[key]))
        found += [item["name"] for item in result[key]]
        if (cursor := result.get("nextCursor")) is None:
            break
    assert sizes == [50, 50, 20]
    assert "nextCursor" not in result
    assert len(set(found)) == 120
    assert found == sorted(found)


@virtual_time
async def test_a_list_that_fits_exactly_has_no_cursor() -> None:
    """Scenario 26."""
    session = await opened(make_long(50))
    result = (await session.request("tools/list")).result
    assert (len(result["tools"]), "nextCursor" in result) == (50, False)


@pytest.mark.parametrize("cursor", ["garbage", 5, -1, "LTE=", {}, None, "x" * 10_000, "\x00"])
@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list"])
@virtual_time
async def test_a_cursor_that_was_never_given_is_refused(cursor: Any, method: str) -> None:
    """Scenario 27."""
    session = await opened(make_long(60))
    answer = await session.request(method, {"cursor": cursor})
    if cursor is None:
        assert answer.status in {200, 400}
    else:
        assert (answer.status, answer.error["code"]) == (200, -32602)


@virtual_time
async def test_a_page_past_the_end_is_empty() -> None:
    """Scenario 27: lists may have become shorter since the cursor was given."""
    server = make_long(60)
    session = await opened(server)
    cursor = (await session.request("tools/list")).result["nextCursor"]
    for number in range(20):
        server.remove("tools", f"t{number:03}")
    result = (await session.request("tools/list", {"cursor": cursor})).result
    assert (result["tools"], "nextCursor" in result) == ([], False)


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_asking_for_input_is_an_error_that_names_the_version(version: str) -> None:
    """Scenario 45: until it is bridged for clients of 2025."""

    def asking(inner: Service) -> Service:
        async def serve(request: Request, ctx: Context) -> Outcome:
            return NeedInput({"x": {"method": "roots/list"}}, "state") if request.method == "tools/call" else await inner(request, ctx)

        return serve

    server = Server("asks", middleware=[asking])

    @server.tool
    async def ask() -> str:
        return "never"

    answer = await (await opened(server, version)).call("ask")
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert version in answer.error["message"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("amount", "shown", "more"), [(100, 100, False), (101, 100, True), (0, 0, False)])
@virtual_time
async def test_a_completion_has_a_hundred_values_at_most(version: str, amount: int, shown: int, more: bool) -> None:
    """Scenario 28."""
    server = Server("many")

    @server.prompt
    async def pick(name: str) -> str:
        return name

    @server.complete("pick", "name")
    async def names(value: str) -> list[str]:
        return [str(number) for number in range(amount)]

    session = await opened(server, version)
    ref = {"type": "ref/prompt", "name": "pick"}
    completion = (await session.request("completion/complete", {"ref": ref, "argument": {"name": "name", "value": ""}})).result[
        "completion"
    ]
    assert len(completion["values"]) == shown
    assert completion.get("hasMore", False) is more


@virtual_time
async def test_a_name_that_is_taken_is_refused_when_it_is_registered() -> None:
    """Scenario 49: and the server serves what it had."""
    server = Server("twice")

    async def tool() -> str:
        return "first"

    server.tool(name="one")(tool)
    with pytest.raises(RegistrationError, match="one"):
        server.tool(name="one")(tool)
    session = await opened(server)
    assert [item["name"] for item in (await session.request("tools/list")).result["tools"]] == ["one"]
    assert (await session.call("one")).text == "first"


@virtual_time
async def test_a_request_that_names_the_current_protocol_is_a_current_one(shop: Shop) -> None:
    """The body tells, whatever the session header says."""
    session = await opened(shop.server)
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": meta}}
    exchange = session.send("POST", json.dumps(message).encode(), session.headers(mcp_protocol_version="2026-07-28", mcp_method="ping"))
    answer = await exchange.end()
    assert (answer.status, answer.error["code"]) == (404, -32601)
