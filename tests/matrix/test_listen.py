"""`subscriptions/listen` over HTTP."""

import asyncio
import json
import time
from typing import Any

import pytest
from asgi_driver import META_PREFIX, Client, make_headers, make_meta, make_request
from desk import Desk

from callboard import Context, Outcome, Request, Server, Service, asgi
from callboard.limits import Limits
from callboard.stores.memory import MemoryStore
from callboard.stores.topics import LOST

ID = f"{META_PREFIX}subscriptionId"
ACK = "notifications/subscriptions/acknowledged"


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(asgi(desk.server))


@pytest.mark.parametrize("request_id", [20, "20", 0, "é"])
async def test_a_stream_opens_with_its_acknowledgement_and_brings_changes(desk: Desk, client: Client, request_id: Any) -> None:
    # SB-02, SB-03, SB-05, SB-06, SB-11, SB-12, MT-08, HM-12
    async with client.listen(request_id, toolsListChanged=True, resourceSubscriptions=["desk://rules", "desk://note/{name}"]) as stream:
        assert await stream.head() == 200
        headers = dict(stream.sent[0]["headers"])
        assert (headers[b"content-type"], headers[b"x-accel-buffering"]) == (b"text/event-stream", b"no")
        ack = await stream.message()
        assert ack["method"] == ACK
        assert ack["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": ["desk://rules", "desk://note/{name}"],
        }
        desk.server.remove("prompts", "greet")
        desk.server.remove("tools", "echo")
        desk.server.resource_updated("desk://rules")
        desk.server.resource_updated("desk://note/7")
        desk.server.resource_updated("file:///x")
        notes = [await stream.message() for _ in range(3)]
        assert [note["method"] for note in notes] == ["notifications/tools/list_changed", *["notifications/resources/updated"] * 2]
        assert [note["params"].get("uri") for note in notes] == [None, "desk://rules", "desk://note/7"]
        for note in (ack, *notes):
            assert note["params"]["_meta"] == {ID: request_id}
            assert type(note["params"]["_meta"][ID]) is type(request_id)


async def test_nothing_of_a_request_comes_on_a_listen_stream(client: Client) -> None:
    # HM-16, LG-01, PR-05, SB-02, MT-08
    everything = make_meta(progressToken="mine", logLevel="debug")
    wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
    async with client.open("subscriptions/listen", {"notifications": wanted}, meta=everything) as stream:
        await stream.message()
        answer = await client.call("count", {"to": 3}, meta=make_meta(progressToken="mine", logLevel="debug"))
        assert len(answer.notes) == 6
        assert all(ID not in note["params"].get("_meta", {}) for note in answer.notes)
        await asyncio.sleep(0)
        assert stream.body.count(b"data: ") == 1


async def test_a_change_is_told_and_the_list_has_it(desk: Desk, client: Client) -> None:
    # SB-11
    async with client.listen(toolsListChanged=True) as stream:
        await stream.message()
        desk.server.tool(name="late")(lambda: "x")
        await stream.message()
        tools = (await client.request("tools/list")).result["tools"]
        assert tools[-1]["name"] == "late"


async def test_where_changes_were_lost_streams_end_so_that_clients_begin_anew(
    desk: Desk, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    # SB-09
    async with client.listen("l1", toolsListChanged=True) as stream:
        await stream.message()
        desk.server.bus.publish(LOST, b"")
        assert (await stream.end()).result["resultType"] == "complete"
    assert "has not heard of changes" in caplog.text


async def test_a_server_that_ends_a_stream_says_so(desk: Desk, client: Client) -> None:
    # SB-09, SB-05, CN-03, HM-11, MT-08
    async with client.listen("l1", toolsListChanged=True) as stream:
        await stream.message()
        desk.server.hub.close()
        answer = await stream.end()
        assert answer.result["_meta"][ID] == "l1"
        assert answer.result["resultType"] == "complete"
        assert not [message for message in answer.messages if message.get("method") == "notifications/cancelled"]


async def test_a_streams_lifetime_ends_it_in_good_order(desk: Desk) -> None:
    # SB-09
    async with Client(asgi(desk.server, limits=Limits(listen_lifetime=0.02))).listen(toolsListChanged=True) as stream:
        assert (await stream.end()).result["resultType"] == "complete"


async def test_the_place_of_a_client_that_goes_away_is_free_at_once(desk: Desk) -> None:
    # SB-06, SB-08
    client = Client(asgi(desk.server, limits=Limits(max_listens=1)))
    for _ in range(3):
        async with client.listen(toolsListChanged=True) as stream:
            await stream.message()
            refused = await client.request("subscriptions/listen", {"notifications": {}})
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "max_listens" in refused.error["message"]
            stream.disconnect()
            await stream.gone()
        assert len(desk.server.hub) == 0


async def test_a_principal_has_so_many_streams(desk: Desk) -> None:
    app = asgi(desk.server, limits=Limits(max_listens_per_principal=1), principal=lambda scope: dict(scope["headers"])[b"x-user"].decode())
    client = Client(app)
    wanted: dict[str, Any] = {"notifications": {}}
    async with client.open("subscriptions/listen", wanted, x_user="ann") as stream:
        await stream.message()
        refused = await client.request("subscriptions/listen", wanted, x_user="ann")
        assert (refused.status, "per_principal" in refused.error["message"]) == (503, True)
        async with client.open("subscriptions/listen", wanted, x_user="bob") as other:
            await other.message()


async def test_a_silent_stream_is_kept_alive(desk: Desk) -> None:
    # HM-13, A16
    async with Client(asgi(desk.server, keep_alive=0.02)).listen(toolsListChanged=True) as stream:
        await stream.message()
        for _ in range(3):
            await stream.comment()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": [1]}},
    ],
)
async def test_a_filter_that_is_none_is_refused(client: Client, params: dict[str, Any]) -> None:
    # SB-01
    answer = await client.request("subscriptions/listen", params)
    assert (answer.status, answer.error["code"]) == (400, -32602)


async def test_a_stream_names_so_many_resources(client: Client) -> None:
    # SB-04, SA10: each is matched against every template, and kept
    uris = [f"desk://note/{number}" for number in range(50_000)]
    async with client.listen(resourceSubscriptions=uris) as stream:
        started = time.process_time()
        if await stream.head() == 200:
            ack = await stream.message()
            assert len(ack["params"]["notifications"]["resourceSubscriptions"]) <= 10_000
        else:
            assert (await stream.end()).error["code"] == -32602
        assert time.process_time() - started < 0.5
    async with client.listen(resourceSubscriptions=uris[:500]) as stream:
        ack = await stream.message()
        assert ack["params"]["notifications"]["resourceSubscriptions"] == uris[:500]


async def test_a_client_that_takes_no_stream_can_not_listen(client: Client) -> None:
    # SB-06
    answer = await client.request("subscriptions/listen", {"notifications": {}}, accept="application/json")
    assert answer.status == 406


async def test_a_server_that_can_not_publish_offers_nothing_to_listen_to(desk: Desk) -> None:
    # A19, SB-12, EC-10
    for app in (asgi(desk.server, limits=Limits(max_listens=0)), asgi(desk.server, json_only=True)):
        client = Client(app)
        capabilities = (await client.request("server/discover")).result["capabilities"]
        assert capabilities["tools"] == capabilities["prompts"] == capabilities["resources"] == {}
        answer = await client.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        assert (answer.status, answer.error["code"]) == (404, -32601)


async def test_a_listener_that_does_not_read_is_given_up_in_bounded_memory(desk: Desk, client: Client) -> None:
    # SA26, SA10
    async with client.listen(resourceSubscriptions=["file:///{+path}"]) as stream:
        await stream.message()
        stream.gate.clear()
        for number in range(20_000):
            desk.server.resource_updated(f"file:///{number}/{'x' * 400}")
            if number % 1000 == 0:
                await asyncio.sleep(0)
        await stream.gone()
        assert len(desk.server.hub) == 0


async def test_a_hundred_listeners_all_hear(desk: Desk, client: Client) -> None:
    # SB-11
    message = make_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    streams = [client.start(json.dumps(message).encode(), make_headers(message), method="subscriptions/listen") for _ in range(100)]
    for stream in streams:
        await stream.message()
    assert len(desk.server.hub) == 100
    desk.server.remove("tools", "echo")
    for stream in streams:
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
    for stream in streams:
        stream.disconnect()
    for stream in streams:
        await stream.gone()
    assert len(desk.server.hub) == 0


async def test_two_servers_in_one_process_hear_nothing_of_each_other() -> None:
    # A10
    first, second = Server("first"), Server("second")
    for server in (first, second):
        server.tool(name="x")(lambda: "")
    async with Client(asgi(first)).listen(toolsListChanged=True) as stream:
        await stream.message()
        second.remove("tools", "x")
        first.remove("tools", "x")
        await stream.message()
        assert stream.body.count(b"list_changed") == 1


async def test_an_author_says_that_a_list_has_changed() -> None:
    # SB-11, A10
    store, shown = MemoryStore(), {"yes"}
    hall, shop, other = Server("hall", store=store), Server("shop"), Server("hall", store=store)
    shop.tool(lambda: "x", name="maybe", visible=lambda ctx: "yes" in shown)
    for server in (hall, other):
        server.mount("shop", shop)
    client = Client(asgi(hall))
    async with (
        client.listen(toolsListChanged=True) as stream,
        Client(asgi(other)).listen(toolsListChanged=True) as beside,
    ):
        for each in (stream, beside):
            await each.message()
        assert [tool["name"] for tool in (await client.request("tools/list")).result["tools"]] == ["shop_maybe"]
        shown.clear()
        shop.list_changed("prompts")
        shop.list_changed("tools")
        for each in (stream, beside):
            assert (await each.message())["method"] == "notifications/tools/list_changed"
        assert (await client.request("tools/list")).result["tools"] == []
    with pytest.raises(ValueError, match=r"the lists are tools, prompts, resources, not 'templates'"):
        shop.list_changed("templates")  # type: ignore[arg-type] # a wrong one


async def test_what_changes_before_the_acknowledgement_comes_after_it() -> None:
    # SB-03, scenario 40: the stream has been asked for, and a layer changes the list before it is served, and while it is
    def busy(inner: Service) -> Service:
        async def serve(request: Request, ctx: Context) -> Outcome:
            if request.method == "subscriptions/listen":
                server.tool(lambda: "x", name="before")
                asyncio.get_running_loop().call_soon(lambda: server.tool(lambda: "y", name="during"))
            return await inner(request, ctx)

        return serve

    server = Server("s", middleware=[busy])
    server.tool(lambda: "z", name="first")
    async with Client(asgi(server)).listen(toolsListChanged=True) as stream:
        assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
        assert (await stream.message())["method"] == "notifications/tools/list_changed"
