"""A handler in every form and on every transport: whole requests, method by method, lists in pages, notifications, methods of 2025."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import Client as HttpClient
from handlers import Counter, Jobs
from legacy_driver import Legacy
from virtual_time import settle, virtual_time

from callboard import Client, NotFound, asgi, types
from callboard.compose import endpoint
from callboard.errors import Fail, RegistrationError
from callboard.handler import Channel, Handler, Notification, Reply
from callboard.transport.memory import connect
from callboard.wire.jsonrpc import encode

RECIPES = ["soup", "pie", "tart"]


class Kitchen(Handler[Any]):
    """Method by method, in wire maps and in types."""

    name = "kitchen"
    page_size = 2

    def list_tools(self, ctx: Channel, state: Any) -> list[Any]:
        schema = {"type": "object", "properties": {"dish": {"type": "string", "x-mcp-header": "Dish"}}}
        cook = {"name": "cook", "inputSchema": schema, "output_schema": {"type": "array"}}
        return [cook, types.Tool(name="taste", input_schema={"type": "object"}), {"name": "burn", "title": "Burn it"}]

    def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        if name == "cook":
            return {"structured_content": [arguments["dish"], "salt"]}
        if name == "taste":
            return [{"type": "image", "data": "aGk=", "mime_type": "image/png"}, types.text("good"), "more"]
        return {"content": "burnt", "is_error": True, "_meta": {"smoke": True}}

    async def list_resources(self, ctx: Channel, state: Any) -> Any:
        return [{"uri": f"recipe://{name}", "name": name, "mime_type": "text/plain"} for name in RECIPES]

    async def list_resource_templates(self, ctx: Channel, state: Any) -> Any:
        return [{"uri_template": "recipe://{name}", "name": "recipe"}]

    async def read_resource(self, uri: str, ctx: Channel, state: Any) -> Any:
        name = uri.removeprefix("recipe://")
        if name == "pie":
            return [{"text": "flour", "mime_type": "text/plain"}, b"\0"]
        if name == "gone":
            raise NotFound(uri)
        return f"how to make {name}" if name in RECIPES else None

    def list_prompts(self, ctx: Channel, state: Any) -> Any:
        return [{"name": "plan", "arguments": [{"name": "day", "required": True}]}, types.Prompt(name="shop")]

    def get_prompt(self, name: str, arguments: dict[str, str], ctx: Channel, state: Any) -> Any:
        if name == "shop":
            return {"messages": [{"role": "assistant", "content": "milk"}], "description": "a list"}
        return f"Plan {arguments['day']}."

    def complete(self, ref: Any, argument: Any, ctx: Channel, state: Any) -> Any:
        return [f"{argument.value}{number}" for number in range(int(argument.value or 3))]


class Whole(Handler[int]):
    """Whole requests."""

    capabilities = {"tools": {"listChanged": True}, "prompts": {}}  # noqa: RUF012 - as an author writes it

    async def handle_request(self, request: Any, channel: Channel, state: int) -> Any:
        match request.method:
            case "tools/list":
                return types.ListToolsResult(tools=[types.Tool(name="add", input_schema={"type": "object"})])
            case "tools/call" if request.params.name == "add":
                total = state + request.params.arguments.get("amount", 1)
                return Reply(f"{total}", state=total)
            case "prompts/list":
                return []
        return Fail.custom(1, f"no {request.method}")


class Pages(Handler[Any]):
    """Pages by itself."""

    def __init__(self) -> None:
        self.cursors: list[Any] = []

    def list_tools(self, ctx: Channel, state: Any, params: Mapping[str, Any]) -> Any:
        self.cursors.append(params.get("cursor"))
        at = int(params.get("cursor") or 0)
        page: dict[str, Any] = {"tools": [{"name": f"t{at}"}]}
        return page if at == 2 else {**page, "next_cursor": str(at + 1)}

    def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        return name


async def gather(client: HttpClient, method: str, key: str) -> list[list[str]]:
    """Names on all pages of a list."""
    pages, cursor = [], None
    while True:
        answer = await client.request(method, {} if cursor is None else {"cursor": cursor})
        pages.append([item["name"] for item in answer.result[key]])
        cursor = answer.result.get("nextCursor")
        if cursor is None:
            return pages


# Method by method


@virtual_time
async def test_full_lists_are_paged_by_the_library() -> None:
    # PG-01, PG-05, TL-04
    client = HttpClient(asgi(Kitchen))
    assert await gather(client, "tools/list", "tools") == [["cook", "taste"], ["burn"]]
    assert await gather(client, "resources/list", "resources") == [["soup", "pie"], ["tart"]]
    assert await gather(client, "resources/templates/list", "resourceTemplates") == [["recipe"]]
    assert await gather(client, "prompts/list", "prompts") == [["plan", "shop"]]
    assert (await client.request("tools/list", {"cursor": "nonsense"})).error["code"] == -32602


@virtual_time
async def test_a_list_with_params_pages_by_itself() -> None:
    pages = Pages()
    client = HttpClient(asgi(pages))
    assert await gather(client, "tools/list", "tools") == [["t0"], ["t1"], ["t2"]]
    assert pages.cursors == [None, "1", "2"]
    assert (await client.call("t9")).text == "t9", "nobody can know whether there is one"


@virtual_time
async def test_results_may_be_wire_maps_types_and_plain_values() -> None:
    # TL-10, RS-04
    client = HttpClient(asgi(Kitchen))
    cooked = await client.call("cook", {"dish": "soup"}, mcp_param_dish="soup")
    assert cooked.result["structuredContent"] == ["soup", "salt"]
    assert (cooked.text, cooked.result["isError"]) == ('["soup","salt"]', False)
    tasted = (await client.call("taste")).result["content"]
    assert tasted == [
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "text", "text": "good"},
        {"type": "text", "text": "more"},
    ]
    burnt = (await client.call("burn")).result
    assert (burnt["content"], burnt["isError"], burnt["_meta"]["smoke"]) == ([{"type": "text", "text": "burnt"}], True, True)
    soup = (await client.request("resources/read", {"uri": "recipe://soup"})).result
    assert soup["contents"] == [{"uri": "recipe://soup", "text": "how to make soup"}]
    pie = (await client.request("resources/read", {"uri": "recipe://pie"})).result
    assert pie["contents"] == [
        {"uri": "recipe://pie", "text": "flour", "mimeType": "text/plain"},
        {"uri": "recipe://pie", "blob": "AA=="},
    ]
    plan = (await client.request("prompts/get", {"name": "plan", "arguments": {"day": "Monday"}})).result
    assert plan["messages"] == [{"role": "user", "content": {"type": "text", "text": "Plan Monday."}}]
    shop = (await client.request("prompts/get", {"name": "shop"})).result
    assert (shop["messages"][0]["role"], shop["description"]) == ("assistant", "a list")


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "fry"}, -32602),
        ("prompts/get", {"name": "fry"}, -32602),
        ("prompts/get", {"name": "plan"}, -32602),
        ("tools/call", {"name": "taste", "arguments": [1]}, -32602),
        ("resources/read", {"uri": "recipe://none"}, -32602),
        ("resources/read", {"uri": "recipe://gone"}, -32602),
    ],
)
@virtual_time
async def test_what_is_not_there_is_refused(method: str, params: dict[str, Any], code: int) -> None:
    # PM-04, RS-05, RS-09, DIFFS B4, B5, B9
    app = asgi(Kitchen)
    assert (await HttpClient(app).request(method, params)).error["code"] == code
    session = await Legacy(app).connect()
    assert (await session.request(method, params)).error["code"] == (-32002 if method == "resources/read" else code)


@virtual_time
async def test_a_header_that_differs_from_its_argument_is_refused() -> None:
    # HH-19
    client = HttpClient(asgi(Kitchen))
    assert (await client.call("cook", {"dish": "soup"}, mcp_param_dish="pie")).error["code"] == -32020
    assert (await client.call("cook", {"dish": "soup"})).error["code"] == -32020


@pytest.mark.parametrize(("value", "count", "more"), [("0", 0, False), ("100", 100, False), ("101", 100, True)])
@virtual_time
async def test_completions_are_bounded(value: str, count: int, *, more: bool) -> None:
    """Scenario 28."""
    # CP-03
    params = {"ref": {"type": "ref/prompt", "name": "plan"}, "argument": {"name": "day", "value": value}}
    answer = await HttpClient(asgi(Kitchen)).request("completion/complete", params)
    completion = answer.result["completion"]
    assert (len(completion["values"]), completion["hasMore"], completion["total"]) == (count, more, int(value))


@virtual_time
async def test_a_session_sees_the_same() -> None:
    session = await Legacy(asgi(Kitchen)).connect()
    assert [tool["name"] for tool in (await session.request("tools/list")).result["tools"]] == ["cook", "taste"]
    cooked = await session.call("cook", {"dish": "soup"})
    assert cooked.result["structuredContent"] == {"result": ["soup", "salt"]}
    assert (await session.request("resources/read", {"uri": "recipe://soup"})).result["contents"][0]["text"] == "how to make soup"


# Whole requests


@virtual_time
async def test_a_handler_may_answer_whole_requests() -> None:
    app = asgi(Whole)
    client, session = HttpClient(app), await Legacy(app).connect()
    assert [tool["name"] for tool in (await client.request("tools/list")).result["tools"]] == ["add"]
    assert (await client.call("add", {"amount": 5})).text == "5"
    assert (await client.call("sub")).error["code"] == 1
    assert (await client.request("prompts/list")).result["prompts"] == []
    assert (await client.request("resources/list")).error["code"] == -32601
    assert [(await session.call("add", {"amount": 5})).text for _ in range(2)] == ["5", "10"]


def test_a_handler_of_whole_requests_says_what_it_offers() -> None:
    class Silent(Handler[Any]):
        async def handle_request(self, request: Any, channel: Channel, state: Any) -> Any:
            return {}

    with pytest.raises(RegistrationError, match="capabilities"):
        asgi(Silent)


@virtual_time
async def test_capabilities_are_what_the_callbacks_say_and_can_be_delivered() -> None:
    # EC-10, MT-18
    full = (await HttpClient(asgi(Kitchen)).request("server/discover")).result["capabilities"]
    assert full == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
    }
    bare = (await HttpClient(asgi(Kitchen, json_only=True)).request("server/discover", accept="application/json")).result
    assert bare["capabilities"] == {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
    some = HttpClient(asgi(Pages()))
    assert (await some.request("prompts/list")).error["code"] == -32601
    assert (await some.request("completion/complete", _REF)).error["code"] == -32601


_REF = {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "y", "value": ""}}


@virtual_time
async def test_a_handler_tells_clients_that_listen_of_changes() -> None:
    # SB-03
    kitchen = Kitchen()
    async with HttpClient(asgi(kitchen)).listen(toolsListChanged=True, resourceSubscriptions=["recipe://soup"]) as stream:
        granted = (await stream.message())["params"]["notifications"]
        assert granted == {"toolsListChanged": True, "resourceSubscriptions": ["recipe://soup"]}
        kitchen.server.changed("tools")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
        kitchen.server.resource_updated("recipe://soup")
        assert (await stream.message())["params"]["uri"] == "recipe://soup"
    with pytest.raises(ValueError, match="kind"):
        kitchen.server.changed("templates")  # type: ignore[arg-type] # what an author may get wrong


# Notifications, and what only 2025 has


class Hearing(Counter):
    """Hears notifications."""

    def __init__(self) -> None:
        super().__init__(7)
        self.heard: list[tuple[Notification, Channel, int]] = []

    async def handle_notification(self, notification: Notification, channel: Channel, state: int) -> None:
        self.heard.append((notification, channel, state))
        if notification.params.get("crash"):
            raise ValueError("hunter2")


@virtual_time
async def test_notifications_are_heard_after_they_were_accepted(caplog: pytest.LogCaptureFixture) -> None:
    # HM-07, DIFFS A5
    hearing = Hearing()
    app = asgi(hearing, options=lambda caller: {"user": (caller.headers or {})["x-user"]})
    client, session = HttpClient(app), await Legacy(app, headers={"x-user": "ada"}).connect()
    await session.call("bump")
    told = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": {"crash": True}}
    accepted = [await client.post(told, x_user="eve"), await session.post(told)]
    assert [(answer.status, answer.body) for answer in accepted] == [(202, b"")] * 2
    await settle()
    heard = [entry for entry in hearing.heard if entry[0].method == told["method"]]
    assert [(channel.session_id, channel.options, state) for _, channel, state in heard] == [
        (None, {"user": "eve"}, 7),
        (session.id, {"user": "ada"}, 8),
    ]
    assert caplog.text.count("handle_notification failed") == 2
    assert not any([heard[0][1].notify("notifications/x"), heard[0][1].send("x"), heard[1][1].start_stream()])


@virtual_time
async def test_notifications_are_heard_without_sessions_and_over_pipes() -> None:
    hearing = Hearing()
    app = asgi(hearing, sessions="off")
    await Legacy(app).sessionless().notify("notifications/roots/list_changed")
    connection = await connect(endpoint(hearing))
    await connection.send(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}))
    await settle()
    await connection.aclose()
    assert [entry[0].method for entry in hearing.heard] == ["notifications/roots/list_changed", "notifications/cancelled"]


@virtual_time
async def test_the_end_of_the_server_ends_what_hears() -> None:
    ended: list[str] = []

    class Slow(Hearing):
        async def handle_notification(self, notification: Notification, channel: Channel, state: int) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ended.append(notification.method)

    app = asgi(Slow())
    await HttpClient(app).post({"jsonrpc": "2.0", "method": "notifications/x"})
    await settle()
    await app.endpoint.close()
    assert ended == ["notifications/x"]


class Old(Counter):
    """What only 2025 clients ask for."""

    def __init__(self) -> None:
        super().__init__(3)
        self.asked: list[tuple[str, str, int]] = []

    capabilities = {"tools": {}, "resources": {"subscribe": True}}  # noqa: RUF012 - as an author writes it

    def channels(self, state: int) -> list[str]:
        return [f"room-{state}"]

    async def set_log_level(self, level: str, ctx: Channel, state: int) -> None:
        self.asked.append(("level", level, state))

    def subscribe(self, uri: str, ctx: Channel, state: int) -> None:
        self.asked.append(("subscribe", uri, state))
        if uri.startswith("secret:"):
            raise Fail.custom(4, "Not for you.")

    def unsubscribe(self, uri: str, ctx: Channel, state: int) -> None:
        self.asked.append(("unsubscribe", uri, state))


@virtual_time
async def test_methods_of_2025_have_callbacks() -> None:
    # LG-05, RS-09
    old = Old()
    app = asgi(old)
    session = await Legacy(app).connect()
    await session.call("bump")
    running = session.begin("slow")
    assert (await session.request("logging/setLevel", {"level": "error"})).result == {}
    assert (await session.request("resources/subscribe", {"uri": "a:b"})).result == {}
    assert (await session.request("resources/subscribe", {"uri": "secret:b"})).error["code"] == 4
    assert (await session.request("resources/unsubscribe", {"uri": "a:b"})).result == {}
    assert not running.ended, "none of them waits for a turn"
    await running.end()
    assert old.asked == [("level", "error", 4), ("subscribe", "a:b", 4), ("subscribe", "secret:b", 4), ("unsubscribe", "a:b", 4)]
    alone = Legacy(asgi(old, sessions="off")).sessionless()
    assert (await alone.request("logging/setLevel", {"level": "error"})).result == {}
    assert old.asked[-1] == ("level", "error", 3)


@virtual_time
async def test_a_session_hears_its_topics() -> None:
    old = Old()
    session = await Legacy(asgi(old)).connect()
    async with session.listen() as stream:
        old.server.broadcast("room-3", {"method": "notifications/resources/list_changed"})
        assert (await stream.message())["method"] == "notifications/resources/list_changed"


# Transports


def text_of(result: types.CallToolResult) -> str:
    """Text of the only block of a result."""
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def make_counter() -> Counter:
    """A factory."""
    return Counter()


@pytest.mark.parametrize("served", [Counter(), Counter, make_counter], ids=["object", "class", "factory"])
async def test_a_handler_in_memory(served: Any) -> None:
    async with Client(served) as client:
        assert [tool.name for tool in await client.list_tools()][:2] == ["bump", "look"]
        assert [text_of(await client.call_tool("bump")) for _ in range(2)] == ["1", "1"]


async def test_a_handler_streams_in_memory() -> None:
    async with Client(Jobs()) as client:
        assert text_of(await client.call_tool("work", {"steps": 0})) == "done: 0"


async def test_a_2025_client_in_memory_has_a_session() -> None:
    counter = Counter()
    connection = await connect(endpoint(counter))

    async def ask(request_id: int, method: str, params: Any) -> Any:
        await connection.send(encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
        return json.loads(await connection.receive())

    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    assert (await ask(1, "initialize", hello))["result"]["serverInfo"]["name"] == "counter"
    texts = [(await ask(number, "tools/call", {"name": "bump"}))["result"]["content"][0]["text"] for number in (2, 3)]
    assert texts == ["1", "2"]
    await connection.aclose()
    assert counter.over == [("closed", 2)]


PROGRAM = """
from callboard import Handler, run
from callboard.handler import Reply

class Adder(Handler[int]):
    def list_tools(self, ctx, state):
        return [{"name": "add"}]

    async def call_tool(self, name, arguments, ctx, state):
        return Reply(str(state + arguments["amount"]), state=state + arguments["amount"])

if __name__ == "__main__":
    run(Adder, transport="stdio")
"""


@pytest.mark.parametrize("way", ["run", "cli"])
async def test_a_handler_over_stdio(tmp_path: Path, way: str) -> None:
    program = tmp_path / "adder.py"
    program.write_text(PROGRAM)
    target: Any = [sys.executable, str(program)] if way == "run" else program
    async with Client(target) as client:
        assert text_of(await client.call_tool("add", {"amount": 4})) == "4"


@pytest.mark.parametrize("wrong", [5, "x", Handler, lambda: 5, lambda x: x, object])
def test_what_can_not_be_served_is_refused(wrong: Any) -> None:
    with pytest.raises(RegistrationError, match=r"callboard\.Handler|arguments"):
        asgi(wrong)
