"""What is true of a server of the current protocol whatever it is asked."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgi_driver import META_PREFIX, Client, make_meta
from desk import Desk
from legacy_driver import VERSIONS, Legacy

from callboard import Context, Server, asgi, embed, types
from callboard.limits import Limits
from callboard.wire.methods import METHODS


@pytest.fixture
def client() -> Client:
    return Client(asgi(Desk().server))


async def everything(client: Client) -> AsyncIterator[dict[str, Any]]:
    """Every message that a client of the desk is sent when it asks everything."""
    meta = make_meta({"sampling": {}, "elicitation": {}, "roots": {}}, progressToken="p", logLevel="debug")
    params: dict[str, dict[str, Any]] = {
        "resources/read": {"uri": "desk://rules"},
        "prompts/get": {"name": "greet", "arguments": {"who": "Ann"}},
        "completion/complete": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "a"}},
    }
    for method in METHODS.keys() - {"tools/call", "subscriptions/listen"}:
        for message in (await client.request(method, params.get(method), meta=meta)).messages:
            yield message
    for tool in ("echo", "forecast", "blocks", "who", "count", "fail_late", "refuse", "crash", "need_sampling", "nobody"):
        arguments = {"echo": {"text": "a"}, "forecast": {"city": "Oslo"}, "count": {"to": 3}}.get(tool, {})
        for message in (await client.call(tool, arguments, meta=meta)).messages:
            yield message
    async with client.open("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, meta=meta) as stream:
        yield await stream.message()


async def test_a_server_asks_nothing(client: Client) -> None:
    # JR-05, HM-10: whatever the client can do, no message is a request
    messages = [message async for message in everything(client)]
    assert [message for message in messages if "method" in message and "id" in message] == []
    assert {message["method"] for message in messages if "method" in message} == {
        "notifications/progress",
        "notifications/message",
        "notifications/subscriptions/acknowledged",
    }


LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
KEY = re.compile(rf"(?:{LABEL}(?:\.{LABEL})*/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")


def meta_keys(value: Any) -> Iterator[str]:
    """Keys of every `_meta` in a message."""
    if isinstance(value, list):
        for item in value:
            yield from meta_keys(item)
    elif isinstance(value, dict):
        yield from value.get("_meta", {})
        for item in value.values():
            yield from meta_keys(item)


async def test_a_server_s_own_keys_are_well_formed_and_the_specifications(client: Client) -> None:
    # MT-12, MT-13
    keys = {key async for message in everything(client) for key in meta_keys(message)}
    assert all(KEY.fullmatch(key) for key in keys)
    assert keys == {f"{META_PREFIX}serverInfo", f"{META_PREFIX}subscriptionId"}
    for wrong in ("a b/c", "1a/b", "a-/b", "a.-b/c", "-a", "a/b/c", "é/x"):
        assert not KEY.fullmatch(wrong)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_of_2025_is_sent_what_its_version_knows_and_no_key_of_the_servers_own(version: str) -> None:
    # LC-06, MT-14: each message is held against the session's version by the driver
    session = await Legacy(asgi(Desk().server), version).connect(capabilities={"sampling": {}, "roots": {}})
    params: dict[str, dict[str, Any]] = {
        "resources/read": {"uri": "desk://rules"},
        "resources/subscribe": {"uri": "desk://rules"},
        "resources/unsubscribe": {"uri": "desk://rules"},
        "prompts/get": {"name": "greet", "arguments": {"who": "Ann"}},
        "completion/complete": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "a"}},
        "logging/setLevel": {"level": "debug"},
    }
    arguments: dict[str, dict[str, Any]] = {"echo": {"text": "a"}, "forecast": {"city": "Oslo"}, "count": {"to": 3}}
    messages = [session.opening]
    for method in [*METHODS.keys() - {"server/discover", "tools/call", "subscriptions/listen"}, *params, "ping"]:
        answer = await session.request(method, params.get(method))
        assert "result" in answer.message, method
        messages += answer.messages
    for tool in ("echo", "forecast", "blocks", "who", "count", "fail_late", "refuse", "crash", "nobody"):
        messages += (await session.call(tool, arguments.get(tool), token="p")).messages
    assert {message["method"] for message in messages if "method" in message} == {"notifications/progress", "notifications/message"}
    assert [key for message in messages for key in meta_keys(message)] == []


async def test_related_requests_may_go_to_different_processes() -> None:
    # JR-24: what one has begun another goes on with, for all is in the request
    def make() -> Client:
        server = Server("desk", page_size=2)
        for number in range(5):
            server.tool(name=f"tool{number}")(lambda: "")
        return Client(asgi(server))

    found: list[str] = []
    params: dict[str, Any] = {}
    while True:
        result = (await make().request("tools/list", params)).result
        found += [tool["name"] for tool in result["tools"]]
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert found == [f"tool{number}" for number in range(5)]


async def test_a_tool_may_embed_resources_of_a_server_that_lists_none() -> None:
    # TL-19: what it will embed is known to its author alone, who declares it
    server = Server("desk", capabilities={"tools": {}, "resources": {}})

    @server.tool
    async def report() -> list[types.Content]:
        return [embed("desk://report", "fine")]

    client = Client(asgi(server))
    assert (await client.request("server/discover")).result["capabilities"]["resources"] == {}
    assert (await client.request("resources/list")).result["resources"] == []
    assert (await client.request("resources/templates/list")).result["resourceTemplates"] == []
    assert (await client.call("report")).result["content"][0]["resource"]["uri"] == "desk://report"


async def test_what_can_not_be_delivered_is_not_advertised_even_if_it_was_declared() -> None:
    # SB-12, A19, EC-10
    capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}}
    server = Server("desk", capabilities=capabilities)
    server.tool(name="x")(lambda: "")
    for app in (asgi(server, limits=Limits(max_listens=0)), asgi(server, json_only=True)):
        client = Client(app)
        advertised = (await client.request("server/discover")).result["capabilities"]
        assert (await client.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})).status == 404
        assert not advertised["tools"].get("listChanged")
        assert not advertised["resources"].get("listChanged")
        assert not advertised["resources"].get("subscribe")
    advertised = (await Client(asgi(server)).request("server/discover")).result["capabilities"]
    assert advertised.items() >= capabilities.items()


async def test_a_server_that_says_it_publishes_nothing_is_not_listened_to() -> None:
    # A19, EC-10: no stream is held open that can never carry anything
    server = Server("desk", capabilities={"tools": {}, "resources": {"listChanged": False}})
    server.tool(name="x")(lambda: "")
    wanted = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": ["a://b"]}
    async with Client(asgi(server)).open("subscriptions/listen", {"notifications": wanted}) as stream:
        async with asyncio.timeout(1):
            assert await stream.head() == 404
        assert (await stream.end()).error["code"] == -32601


async def test_a_server_that_logs_declares_it_whatever_else_was_declared() -> None:
    # LG-02
    server = Server("desk", capabilities={"tools": {}})

    @server.tool
    async def talk(ctx: Context) -> str:
        ctx.log("error", "fire")
        return "done"

    client = Client(asgi(server))
    advertised = (await client.request("server/discover")).result["capabilities"]
    answer = await client.call("talk", meta=make_meta(logLevel="debug"))
    assert answer.text == "done"
    assert answer.notes == [] or "logging" in advertised


def test_silence_is_shorter_than_the_idle_timers_of_proxies() -> None:
    # A16, HM-13: a comment at least every 15 s unless somebody says otherwise
    assert 0 < inspect.signature(asgi).parameters["keep_alive"].default <= 15


@pytest.mark.parametrize("declared", [None, {"tools": {}, "logging": {}}])
async def test_where_no_log_can_be_delivered_none_is_promised(declared: dict[str, Any] | None) -> None:
    # A19, LG-02, MT-18
    server = Server("desk", capabilities=declared)
    server.tool(name="x")(lambda: "")
    for app, promised in ((asgi(server), True), (asgi(server, limits=Limits(max_listens=0)), True), (asgi(server, json_only=True), False)):
        advertised = (await Client(app).request("server/discover")).result["capabilities"]
        assert ("logging" in advertised) is promised
