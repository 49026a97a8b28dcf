"""What the client sends: envelope, headers, bodies, and what it refuses to send. The peer is nobody's framework."""

import asyncio
from typing import Any

import pytest
from oracles import mcp_types_request, shared_schema, validate
from unit.client.peers import SERVER_INFO, Asked, HttpPeer, http_client, result, text_result

from callboard import Server, types
from callboard.client.client import Client
from callboard.client.errors import ClientError, InvalidRequest, ServerError
from callboard.wire.versions import LATEST


async def ok(asked: Asked) -> None:
    await asked.result(text_result())


async def test_a_user_s_headers_go_out_with_every_request() -> None:
    async with http_client(ok, headers={"Authorization": "Bearer s3cret", "X-Tenant": "a\tb", "Host": "board.example"}) as (client, peer):
        await client.call_tool("one")
        await client.call_tool("two")
    assert len(peer.asked) == 2
    for asked in peer.asked:
        assert asked.headers["authorization"] == "Bearer s3cret"
        assert asked.headers["x-tenant"] == "a\tb"
        assert asked.headers["host"] == "board.example"
        assert asked.headers["content-type"] == "application/json"
        assert asked.headers["mcp-method"] == "tools/call"


async def test_a_login_in_the_url_is_used_and_never_shown() -> None:
    async def refuse(asked: Asked) -> None:
        await asked.error(-32000, "no", status=403)

    async with HttpPeer(refuse) as peer, Client(peer.url.replace("http://", "http://ada:s3cret@"), versions=LATEST) as client:
        with pytest.raises(ServerError) as caught:
            await client.discover()
        assert peer.asked[0].headers["authorization"] == "Basic YWRhOnMzY3JldA=="
    assert client.target == peer.url.replace("http://", "http://***@")
    assert "s3cret" not in f"{caught.value!s} {caught.value!r} {caught.value.__dict__}"


REQUESTS: list[tuple[str, str, Any, dict[str, Any]]] = [
    (
        "server/discover",
        "DiscoverRequest",
        lambda c: c.discover(),
        result(supportedVersions=[], capabilities={}, ttlMs=0, cacheScope="public"),
    ),
    ("tools/list", "ListToolsRequest", lambda c: c.list_tools(), result(tools=[], ttlMs=0, cacheScope="public")),
    ("resources/list", "ListResourcesRequest", lambda c: c.list_resources(), result(resources=[], ttlMs=0, cacheScope="public")),
    (
        "resources/templates/list",
        "ListResourceTemplatesRequest",
        lambda c: c.list_resource_templates(),
        result(resourceTemplates=[], ttlMs=0, cacheScope="public"),
    ),
    ("prompts/list", "ListPromptsRequest", lambda c: c.list_prompts(), result(prompts=[], ttlMs=0, cacheScope="public")),
    ("tools/call", "CallToolRequest", lambda c: c.call_tool("t", {"a": [1, None, "é"]}, on_progress=lambda *_: None), text_result()),
    ("resources/read", "ReadResourceRequest", lambda c: c.read_resource("a://b"), result(contents=[], ttlMs=0, cacheScope="public")),
    ("prompts/get", "GetPromptRequest", lambda c: c.get_prompt("p", {"a": "b"}), result(messages=[])),
    (
        "completion/complete",
        "CompleteRequest",
        lambda c: c.complete(types.PromptReference(name="p"), "a", "b", arguments={"c": "d"}),
        result(completion={"values": []}),
    ),
]


@shared_schema
@pytest.mark.parametrize(("method", "definition", "send", "answer"), REQUESTS, ids=[row[0] for row in REQUESTS])
async def test_requests_are_what_the_protocol_says(method: str, definition: str, send: Any, answer: dict[str, Any]) -> None:
    async def reply(asked: Asked) -> None:
        await asked.result(answer)

    async with http_client(reply, on_log=print) as (client, peer):
        await send(client)
    (asked,) = peer.asked
    assert asked.method == method
    validate(definition, asked.message)
    mcp_types_request(method, asked.params)


async def test_results_are_structs_of_the_protocol() -> None:
    async def reply(asked: Asked) -> None:
        await asked.result(text_result("hi") | {"structuredContent": [1], "isError": True})

    async with http_client(reply) as (client, _):
        found = await client.call_tool("t")
    assert found.content == [types.TextContent(text="hi")]
    assert found.structured_content == [1]
    assert found.is_error is True
    assert found.meta == SERVER_INFO


async def test_a_raw_request_merges_its_own_meta_and_gets_plain_json() -> None:
    async def reply(asked: Asked) -> None:
        await asked.result({"resultType": "task", "taskId": "7"})

    async with http_client(reply) as (client, peer):
        found = await client.request("x/y", {"_meta": {"traceparent": "00-1"}, "z": 1})
    assert found == {"resultType": "task", "taskId": "7"}
    assert peer.asked[0].params["_meta"]["traceparent"] == "00-1"
    assert peer.asked[0].params["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert peer.asked[0].headers["mcp-method"] == "x/y"
    assert "mcp-name" not in peer.asked[0].headers


async def test_a_raw_request_may_be_wrong() -> None:
    async def reply(asked: Asked) -> None:
        await asked.error(-32602, "params.name is missing")

    async with http_client(reply) as (client, _):
        for params in ({}, {"name": None, "_meta": None}, {"name": 7, "arguments": []}):
            with pytest.raises(ServerError, match="missing"):
                await client.request("tools/call", params)


async def test_arguments_that_are_no_json_are_refused_before_they_are_sent() -> None:
    async with http_client(ok) as (client, peer):
        with pytest.raises(InvalidRequest, match="JSON"):
            await client.call_tool("t", {"a": object()})
        with pytest.raises(InvalidRequest, match="JSON"):
            await client.call_tool("t", {"a": "\ud800"})
    assert not peer.asked


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"a": float("nan")}, "arguments.a is nan"),
        ({"a": None, "b": {"c": [1.5, (float("inf"),)]}}, "arguments.b.c[1][0] is inf"),
        ({"point": types.ProgressNotificationParams(progress_token=1, progress=float("-inf"))}, "arguments.point.progress is -inf"),
    ],
)
async def test_a_number_that_json_does_not_have_is_refused_before_it_is_sent(arguments: dict[str, Any], culprit: str) -> None:
    async with http_client(ok) as (client, peer):
        with pytest.raises(ValueError, match="no number for") as caught:
            await client.call_tool("t", arguments)
        assert isinstance(caught.value, InvalidRequest)
        assert caught.value.text.startswith(f"{culprit}, ")
        assert caught.value.subject == "t"
        await client.call_tool("t", {"a": None, "b": "null", "c": 1e308})
    assert len(peer.asked) == 1


async def test_arguments_that_are_form_fields_must_be_strings() -> None:
    wrong: Any = {"city": "Oslo", "days": 5}
    five: Any = 5
    async with http_client(ok) as (client, peer):
        for ask, subject, name in (
            (client.get_prompt("trip", wrong), "trip", "days"),
            (client.complete(types.PromptReference(name="trip"), "city", "O", arguments=wrong), "trip", "days"),
            (client.complete(types.ResourceTemplateReference(uri="a://{b}"), "b", five), "a://{b}", "b"),
        ):
            with pytest.raises(InvalidRequest, match=f"argument '{name}' must be a string, not int") as caught:
                await ask
            assert caught.value.subject == subject
    assert not peer.asked


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeout": "x"}, TypeError, "timeout= is a number of seconds, or None for no limit, not str"),
        ({"timeout": True}, TypeError, "not bool"),
        ({"total_timeout": 0}, ValueError, "total_timeout= must be more than 0 seconds, not 0"),
        ({"connect_timeout": -1}, ValueError, "connect_timeout= must be more than 0"),
        ({"timeout": float("nan")}, ValueError, "more than 0"),
        ({"auth": "token"}, TypeError, r'a token goes into headers=\{"Authorization": "Bearer \.\.\."\}'),
        ({"auth": object()}, TypeError, "object has not"),
        ({"auth": {}}, TypeError, "a mapping of names is for several servers"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Client("http://127.0.0.1:9/mcp", **options)


async def test_what_is_asked_the_wrong_way_is_refused_before_it_is_sent() -> None:
    async with http_client(ok) as (client, peer):
        with pytest.raises(InvalidRequest, match="arguments are a mapping of parameters to values, not list"):
            await client.call_tool("t", ["x"])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match=r"ref is a types\.PromptReference"):
            await client.complete("greet", "who", "an")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="tasks=True"):
            await client.start_tool("t")
        with pytest.raises(TypeError, match="takes True for the lists to hear of, not list"):
            client.listen(resources=["test://a"])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout= must be more than 0"):
            await client.call_tool("t", timeout=0)
        assert not peer.asked
        assert repr(client) == f"<Client of {peer.url}>"


def test_a_client_works_in_the_event_loop_that_opened_it() -> None:
    client = Client(Server("s", version="1"))
    asyncio.run(open_it(client))
    with pytest.raises(ClientError, match="another event loop"):
        asyncio.run(use_it(client))
    with pytest.raises(ClientError, match="another event loop"):
        asyncio.run(client.close())


async def open_it(client: Client) -> None:
    await client.__aenter__()


async def use_it(client: Client) -> None:
    await client.list_tools()
