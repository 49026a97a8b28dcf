"""HTTP+SSE, the transport of 2024-11-05: where it is, whose it is, and what flows over it."""

import asyncio
import json
import logging
from typing import Any

import pytest
from asgi_driver import make_meta
from legacy_driver import V03, V06, V11, VERSIONS, Legacy
from shop import TOPIC, Shop
from unit.legacy.sse_client import V24, SseClient, Stream, connected, make_app, text, texts
from virtual_time import settle, virtual_time

from callboard import Context, RegistrationError, Server, asgi, types
from callboard.limits import Limits

MIB = 1024 * 1024


@pytest.fixture
def shop() -> Shop:
    return Shop()


# Options


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sse_path": "sse events"}, "a path like '/sse'"),
        ({"sse_path": "/"}, "a path like '/sse'"),
        ({"sse_path": 7}, "a path like '/sse'"),
        ({"sse_path": "/sse?x=1"}, "a path like '/sse'"),
        ({"sse_path": "/mcp"}, "would hide the endpoint"),
        ({"sse_path": "/api", "path": "/api/mcp"}, "would hide the endpoint"),
        ({"sse_path": "/mcp/"}, "sse_path '/mcp/' would hide the endpoint at '/mcp'"),
        ({"sse_path": "/healthz"}, "sse_path '/healthz' needs all that is under it, and '/healthz' is taken"),
        ({"sse_path": "readyz/"}, "sse_path '/readyz' needs all that is under it, and '/readyz' is taken"),
        (
            {"sse_path": "/sse", "health": ("/live", "/sse/messages")},
            "sse_path '/sse' needs all that is under it, and '/sse/messages' is taken",
        ),
        ({"sse_path": "/sse", "json_only": True}, "json_only=True rules out"),
        ({"sse_path": "/sse", "sessions": "off"}, 'sessions="off" rules out'),
        ({"sse_path": "/sse", "versions": ["2026-07-28"]}, "none of those is served"),
        ({"sse_path": "/sse", "max_sse_connections": 5}, "one of the limits"),
    ],
)
def test_options_that_can_not_work_are_refused(shop: Shop, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RegistrationError, match=complaint):
        asgi(shop.server, **options)


class Page:
    """A sink with a page."""

    async def page(self, scope: Any, receive: Any, send: Any) -> None:
        """Nobody asks for it."""

    def __init__(self, path: str) -> None:
        self.pages = {path: self.page}

    def take(self, event: object) -> None:
        """Pass it over."""


def test_a_page_of_a_sink_is_not_where_streams_are() -> None:
    server = Server("s", telemetry=Page("/metrics"))
    with pytest.raises(RegistrationError, match="sse_path '/metrics' needs all that is under it, and '/metrics' is taken"):
        asgi(server, sse_path="/metrics")
    for apart in ("/metrics/sse", "/metric", "/healthz/sse"):
        assert asgi(server, sse_path=apart).sse_path == apart
    assert asgi(server, sse_path="/healthz", health=None).sse_path == "/healthz"


@virtual_time
async def test_it_is_off_by_default(shop: Shop) -> None:
    """HL-28."""
    stream = SseClient(asgi(shop.server)).get()
    await stream.ended()
    assert stream.sent[0]["status"] == 404


# The stream and its URI


@virtual_time
async def test_the_first_event_says_where_to_post(shop: Shop) -> None:
    """HL-27."""
    client = SseClient(make_app(shop))
    await client.open()
    head = dict(client.stream.sent[0]["headers"])
    assert head[b"content-type"] == b"text/event-stream"
    assert head[b"cache-control"] == b"no-store, no-transform"
    path, _, session_id = client.uri.partition("?session_id=")
    assert path == "/sse/messages"
    assert len(session_id) == 32
    other = SseClient(client.app)
    await other.open()
    assert other.uri != client.uri
    await client.leave()
    await other.leave()


@pytest.mark.parametrize(
    ("root", "path", "uri"),
    [
        ("", "/sse", "/sse/messages"),
        ("", "/sse/", "/sse/messages"),
        ("/tools", "/tools/sse", "/tools/sse/messages"),  # as Starlette and uvicorn have it
        ("/tools", "/sse", "/tools/sse/messages"),  # as older ASGI has it
        ("/a b/ä", "/a b/ä/sse", "/a%20b/%C3%A4/sse/messages"),
        ("//evil.example", "//evil.example/sse", "/evil.example/sse/messages"),
        ("/a\r\ndata: x", "/a\r\ndata: x/sse", "/a%0D%0Adata%3A%20x/sse/messages"),
    ],
)
@virtual_time
async def test_the_uri_is_the_one_that_the_client_sees_and_never_of_another_host(shop: Shop, root: str, path: str, uri: str) -> None:
    client = SseClient(make_app(shop), root=root, path=path)
    await client.open()
    assert client.uri.partition("?")[0] == uri
    await client.leave()


@virtual_time
async def test_a_session_works_where_the_application_is_mounted(shop: Shop) -> None:
    async with connected(make_app(shop), root="/tools", path="/tools/sse") as client:
        assert await client.call("echo", text="hi") == "hi"


@virtual_time
async def test_the_host_that_was_asked_for_is_not_in_the_uri(shop: Shop) -> None:
    client = SseClient(make_app(shop, hosts=["*"]), headers={"host": "evil.example"})
    await client.open()
    assert "evil" not in client.stream.body.decode()
    await client.leave()


# What is refused


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"accept": "application/json"}, 406),
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"x_long": "x" * 20_000}, 431),
    ],
)
@virtual_time
async def test_a_stream_is_refused_as_any_request_is(shop: Shop, headers: dict[str, str], status: int) -> None:
    """HL-27, HM-02."""
    stream = SseClient(make_app(shop)).get(**headers)
    await stream.ended()
    assert stream.sent[0]["status"] == status
    assert json.loads(stream.body)["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content_type": "text/plain"}, b"{}", 415),
        ({"content_type": None}, b"{}", 415),
        ({"content_encoding": "gzip"}, b"{}", 415),
        ({"host": "evil.example"}, b"{}", 421),
        ({"origin": "https://evil.example"}, b"{}", 403),
        ({}, b" " * (4 * MIB + 1), 413),
        ({"content_length": "99999999"}, b"{}", 413),
    ],
)
@virtual_time
async def test_a_post_is_refused_as_any_request_is(shop: Shop, headers: dict[str, str | None], body: bytes, status: int) -> None:
    async with connected(make_app(shop)) as client:
        answer = await client.send("POST", body, **headers)
        assert (answer.status, "message" in answer.error) == (status, True)
        assert await client.untaken() == []
        assert await client.call("echo", text="still here") == "still here"


@virtual_time
async def test_clients_of_other_machines_are_refused(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    scope = {**client.scope("GET", "/sse", {"accept": "text/event-stream"}), "client": ("192.0.2.7", 5000)}
    stream = Stream(client.app, scope)
    await stream.ended()
    assert stream.sent[0]["status"] == 403


@pytest.mark.parametrize(
    "target",
    ["/sse/messages", "/sse/messages?session_id=", "/sse/messages?session_id=0", "/sse/messages?x=1", "/sse/messages?" + "a=1&" * 50],
)
@virtual_time
async def test_a_post_to_an_unknown_stream_is_404(shop: Shop, target: str) -> None:
    async with connected(make_app(shop)) as client:
        answer = await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, target)
        assert answer.status == 404
        assert "open one with GET /sse" in answer.error["message"]
        assert await client.untaken() == []


@virtual_time
async def test_a_stream_that_has_ended_is_unknown(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    await client.connect()
    await client.leave()
    assert (await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status == 404


@pytest.mark.parametrize(
    ("verb", "target", "allow"),
    [("POST", "/sse", "GET"), ("DELETE", "/sse", "GET"), ("GET", "/sse/messages", "POST"), ("PUT", "/sse", "GET")],
)
@virtual_time
async def test_other_methods_are_405(shop: Shop, verb: str, target: str, allow: str) -> None:
    """HL-26: a client of 2025 tries `initialize` by POST first, and takes a 405 for this transport."""
    answer = await SseClient(make_app(shop)).send(verb, b"{}", target)
    assert (answer.status, answer.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("target", ["/sse/other", "/sses", "/sse/messages/more"])
@virtual_time
async def test_other_paths_are_404(shop: Shop, target: str) -> None:
    assert (await SseClient(make_app(shop)).send("POST", b"{}", target)).status == 404


@virtual_time
async def test_web_pages_that_may_call_get_their_preflight(shop: Shop) -> None:
    client = SseClient(make_app(shop, cors=True, origins=["https://app.example.com"]), headers={"origin": "https://app.example.com"})
    answer = await client.send("OPTIONS", b"", "/sse/messages", access_control_request_headers="content-type")
    assert answer.status == 204
    assert "POST" in answer.headers["access-control-allow-methods"]
    await client.open()
    assert dict(client.stream.sent[0]["headers"])[b"access-control-allow-origin"] == b"https://app.example.com"
    await client.leave()


# Messages


@pytest.mark.parametrize("version", [*VERSIONS, V24])
@virtual_time
async def test_each_version_is_served_in_a_session_of_its_own(shop: Shop, version: str) -> None:
    """VN-20; 2024-11-05 is there for clients that speak nothing else."""
    app = make_app(shop)
    async with connected(app, version) as client:
        assert client.opening["serverInfo"]["name"] == "shop"
        assert [await client.call("add") for _ in range(3)] == ["1", "2", "3"]
        who = (await client.request("tools/call", {"name": "who"}))["result"]
        assert json.loads(who["content"][0]["text"])["version"] == version
        assert ("structuredContent" in who) == (version in {V06, V11})
        assert (await client.request("ping"))["result"] == {}
        assert len((await client.request("tools/list"))["result"]["tools"]) > 5
        assert (await client.request("resources/read", {"uri": "shop://prices"}))["result"]["contents"][0]["text"] == "1.50"
        assert (await client.request("prompts/get", {"name": "advertise"}))["result"]["messages"]
        reference = {"type": "ref/prompt", "name": "advertise"}
        done = await client.request("completion/complete", {"ref": reference, "argument": {"name": "tone", "value": "k"}})
        assert done["result"]["completion"]["values"]
    async with connected(app, version) as another:
        assert await another.call("add") == "1"


@virtual_time
async def test_an_unknown_version_is_answered_with_the_newest(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    await client.open()
    assert (await client.initialize("2024-10-07"))["result"]["protocolVersion"] == V11
    await client.leave()


@virtual_time
async def test_only_this_transport_has_2024(shop: Shop) -> None:
    session = await Legacy(make_app(shop), V11).initialize(params={"protocolVersion": V24})
    assert session.version == V11


@pytest.mark.parametrize("version", [V03, V24])
@virtual_time
async def test_audio_is_an_embedded_resource_where_there_is_no_audio(version: str) -> None:
    server = Server("studio")
    sound, annotations = types.audio(b"abc", "audio/wav"), types.Annotations(priority=0.5)
    sound.annotations = annotations

    @server.tool
    async def play() -> list[Any]:
        return [types.text('a "audio" b'), sound]

    @server.prompt
    async def listen() -> list[types.PromptMessage]:
        return [types.user(sound), types.assistant("Nice.")]

    async with connected(asgi(server, sse_path="/sse"), version) as client:
        played = (await client.request("tools/call", {"name": "play"}))["result"]["content"]
        (message, answer) = (await client.request("prompts/get", {"name": "listen"}))["result"]["messages"]
    if version == V24:
        resource = {"uri": "urn:mcp:audio", "mimeType": "audio/wav", "blob": "YWJj"}
        expected: Any = {"type": "resource", "annotations": {"priority": 0.5}, "resource": resource}
    else:
        expected = {"type": "audio", "annotations": {"priority": 0.5}, "mimeType": "audio/wav", "data": "YWJj"}
    assert played == [{"type": "text", "text": 'a "audio" b'}, expected]
    assert (message, answer["content"]) == ({"role": "user", "content": expected}, {"type": "text", "text": "Nice."})


@virtual_time
async def test_progress_and_logs_come_before_the_result(shop: Shop) -> None:
    async with connected(make_app(shop)) as client:
        await client.begin_call("count", {"to": 2}, token="t")
        assert texts([await client.message() for _ in range(5)]) == [1, 1, 2, 2, "counted"]


@virtual_time
async def test_calls_run_side_by_side_and_state_keeps_its_order(shop: Shop) -> None:
    async with connected(make_app(shop)) as client:
        await client.begin_call("nap", {"seconds": 5})
        for _ in range(3):
            await client.begin_call("add_slowly", {"seconds": 1})
        assert texts([await client.message() for _ in range(4)]) == ["1", "2", "3", "rested"]
        assert shop.most == 1


@virtual_time
async def test_what_is_not_readable_is_400_and_said_on_the_stream_where_it_has_an_id(shop: Shop) -> None:
    async with connected(make_app(shop), V06) as client:
        broken = await client.send("POST", b"{")
        assert (broken.status, broken.error["code"]) == (400, -32700)
        assert await client.untaken() == []
        named = await client.send("POST", b'{"jsonrpc":"2.0","id":7,"method":5}')
        assert (named.status, named.error["code"]) == (400, -32600)
        assert [(message["id"], message["error"]["code"]) for message in await client.untaken()] == [(7, -32600)]
        assert await client.call("echo", text="on") == "on"


@virtual_time
async def test_what_fails_is_said_on_the_stream_alone(shop: Shop) -> None:
    """Rule 3: the official Python client sends nothing any more after a POST that was not accepted."""
    async with connected(make_app(shop)) as client:
        assert (await client.request("tools/call", {"name": "nothing"}))["error"]["code"] == -32602
        assert (await client.request("no/such"))["error"]["code"] == -32601
        assert (await client.request("initialize", {}))["error"]["code"] == -32600
        await client.begin_call("nap", {"seconds": 1}, request_id="same")
        assert (await client.request("ping", request_id="same"))["error"]["code"] == -32600
        assert text(await client.message()) == "rested"


@virtual_time
async def test_before_initialize_nothing_is_served(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    await client.open()
    assert (await client.notify("notifications/initialized")).status == 202
    assert (await client.post({"jsonrpc": "2.0", "id": 3, "result": {}})).status == 202
    for message in ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, [{"jsonrpc": "2.0", "id": 1, "method": "ping"}]):
        assert (await client.post(message)).status == 202
        assert text(await client.message()) == -32600
    assert (await client.initialize())["result"]["protocolVersion"] == V11
    await client.leave()


@virtual_time
async def test_the_handshake_may_be_demanded(shop: Shop) -> None:
    client = SseClient(make_app(shop, handshake="strict"))
    await client.open()
    await client.initialize()
    assert (await client.request("tools/list"))["error"]["code"] == -32600
    await client.notify("notifications/initialized")
    assert "result" in await client.request("tools/list")
    await client.leave()


@virtual_time
async def test_a_client_that_tries_the_current_protocol_first_falls_back(shop: Shop) -> None:
    """HL-28, VN-17: -32601 is what a server of 2025 says to `server/discover`."""
    client = SseClient(make_app(shop))
    await client.open()
    for _ in range(2):
        answer = await client.request("server/discover", {"_meta": make_meta()})
        assert answer["error"]["code"] == -32601
        assert "2026-07-28" in answer["error"]["message"]
    await client.initialize()
    answer = await client.request("tools/call", {"name": "echo", "arguments": {"text": "x"}, "_meta": make_meta()})
    assert answer["error"]["code"] == -32601
    assert shop.ran == []
    await client.leave()


@virtual_time
async def test_a_batch_is_answered_in_one_message_where_there_are_batches(shop: Shop) -> None:
    """JR-18."""
    echo = {"name": "echo", "arguments": {"text": "x"}}
    batch = [{"jsonrpc": "2.0", "id": "a", "method": "ping"}, {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": echo}]
    async with connected(make_app(shop), V03) as client:
        client._methods.update({(str, "a"): "ping", (str, "b"): "tools/call"})
        assert (await client.post(batch)).status == 202
        first, second = await client.message()
        assert (first["id"], first["result"], second["id"], text(second)) == ("a", {}, "b", "x")
        assert (await client.post([{"jsonrpc": "2.0", "method": "notifications/x"}])).status == 202
        assert await client.untaken() == []
    for version in (V24, V11):
        async with connected(make_app(shop), version) as client:
            assert (await client.post(batch)).status == 202
            assert text(await client.message()) == -32600


@virtual_time
async def test_a_cancelled_call_is_never_answered(shop: Shop) -> None:
    """CN-04."""
    async with connected(make_app(shop)) as client:
        request_id = await client.begin_call("nap", {"seconds": 100, "name": "long"})
        await settle()
        await client.notify("notifications/cancelled", {"requestId": request_id})
        assert await client.call("echo", text="next") == "next"
        await asyncio.sleep(200)
        assert await client.untaken() == []
    assert shop.stopped == ["long"]


@virtual_time
async def test_a_call_that_takes_too_long_is_told_so(shop: Shop) -> None:
    async with connected(make_app(shop, request_timeout=10)) as client:
        await client.begin_call("nap", {"seconds": 100})
        message = await client.message()
        assert "timed out" in message["error"]["message"]


@virtual_time
async def test_what_the_server_says_of_its_own_accord_comes_on_the_stream(shop: Shop) -> None:
    async with connected(make_app(shop)) as client:
        shop.server.broadcast(TOPIC, {"method": "notifications/message", "params": {"level": "info", "data": "to all"}})
        assert text(await client.message()) == "to all"
        await client.request("resources/subscribe", {"uri": "shop://prices"})
        shop.server.resource_updated("shop://prices")
        assert (await client.message())["params"] == {"uri": "shop://prices"}


@virtual_time
async def test_the_client_can_be_asked(shop: Shop) -> None:
    """A call's question goes out on the stream, and the answer comes by POST."""

    @shop.server.tool
    async def roots(ctx: Context) -> int:
        assert ctx.session is not None
        found = await ctx.session.ask("roots/list", {}, exchange=ctx.exchange, timeout=5)
        return len(found["roots"])

    async with connected(make_app(shop)) as client:
        await client.begin_call("roots")
        question = await client.message()
        assert question["method"] == "roots/list"
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "file:///a"}]}}
        assert (await client.post(answer)).status == 202
        assert text(await client.message()) == "1"
        assert (await client.post(answer)).status == 202  # nobody's, and passed over (JR-06)
        assert await client.untaken() == []


# Whose it is


@virtual_time
async def test_a_stream_belongs_to_the_principal_that_opened_it(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """SA23, A26: somebody else's stream and an unknown one are the same."""
    app = make_app(shop, principal=lambda scope: scope["state"].get("user"))
    async with connected(app, state={"user": "ada"}) as ada:
        assert json.loads(await ada.call("who"))["principal"] == "ada"
        for user in ("eve", None):
            stranger = SseClient(app, state={"user": user})
            answer = await stranger.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, ada.uri)
            unknown = await stranger.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, "/sse/messages?session_id=none")
            assert (answer.status, answer.body) == (404, unknown.body)
        assert await ada.untaken() == []
    assert "by somebody who does not own it" in caplog.text
    assert ada.uri.partition("=")[2] not in caplog.text


@virtual_time
async def test_functions_see_each_request_with_its_own_headers(shop: Shop) -> None:
    async with connected(make_app(shop), headers={"x-token": "first"}, state={"user": "ada"}) as client:
        assert json.loads(await client.call("who"))["token"] == "first"
        client.headers["x-token"] = "second"
        client.state = {"user": "eve"}
        seen = json.loads(await client.call("who"))
        assert (seen["token"], seen["scope"]) == ("second", "eve")


@virtual_time
async def test_options_are_made_once_of_the_request_that_initializes(shop: Shop) -> None:
    made: list[Any] = []

    def options(caller: Any) -> dict[str, Any]:
        made.append(caller)
        return {"tenant": caller.headers["x-tenant"]}

    async with connected(make_app(shop, options=options), headers={"x-tenant": "north"}) as client:
        client.headers["x-tenant"] = "south"
        assert json.loads(await client.call("who"))["options"] == {"tenant": "north"}
    assert len(made) == 1


@virtual_time
async def test_what_goes_wrong_at_initialize_leaves_the_stream_open_for_another_try(shop: Shop) -> None:
    tries: list[None] = []

    async def options(_: Any) -> dict[str, Any]:
        tries.append(None)
        await asyncio.sleep(1)
        if len(tries) == 1:
            raise ValueError("password=hunter2")
        return {}

    client = SseClient(make_app(shop, options=options))
    await client.open()
    answer = await client.initialize()
    assert (answer["error"]["code"], "hunter2" in str(answer)) == (-32603, False)
    assert "result" in await client.initialize()
    await client.leave()


@virtual_time
async def test_two_initializes_at_once_open_one_session(shop: Shop) -> None:
    async def options(_: Any) -> dict[str, Any]:
        await asyncio.sleep(1)
        return {}

    client = SseClient(make_app(shop, options=options))
    await client.open()
    first = asyncio.create_task(client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}))
    await settle()
    assert (await client.post({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": {}})).status == 202
    assert (await first).status == 202
    assert [(m["id"], "error" in m) for m in await client.untaken()] == [(2, True), (1, False)]
    await client.leave()
    await settle()
    assert shop.over == [("closed", 0)]


@virtual_time
async def test_a_client_that_leaves_during_initialize_leaves_no_session(shop: Shop) -> None:
    async def options(_: Any) -> dict[str, Any]:
        await asyncio.sleep(1)
        return {}

    client = SseClient(make_app(shop, options=options, limits=Limits(max_sessions=1)))
    await client.open()
    post = asyncio.create_task(client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}))
    await settle()
    await client.leave()
    assert (await post).status == 202
    await settle()
    assert shop.over == [("closed", 0)]
    async with connected(client.app):  # the one session is free again
        pass


@virtual_time
async def test_calls_beside_the_stream_are_served_as_ever(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    session = await Legacy(make_app(shop)).connect()
    assert (await session.call("echo", {"text": "x"})).text == "x"
    assert not caplog.records
