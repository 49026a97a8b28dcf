"""Listen streams: who gets what, in what order, and how many there may be."""

import asyncio
import json
import threading
from typing import Any

import pytest
from oracles import mcp_types_notification, mcp_types_result
from served import make_context, make_lifted, make_mount, taken

from callboard import Context, Fail, Reason, Reply, Server
from callboard.core.exchange import HARD_CAP
from callboard.core.modern import Modern
from callboard.limits import Limits
from callboard.server.mount import Mount
from callboard.server.subscriptions import Hub
from callboard.stores.memory import MemoryBus, MemoryStore
from callboard.wire.methods import ListenFilter

ID = "io.modelcontextprotocol/subscriptionId"
ALL = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
ACK = "notifications/subscriptions/acknowledged"


def make_server(**options: Any) -> Server:
    """A server with something of every kind."""
    server = Server("desk", **options)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.prompt
    def greet() -> str:
        return "hello"

    @server.resource("a://rules")
    def rules() -> str:
        return ""

    @server.resource("a://bay/{n}")
    def bay(n: str) -> str:
        return n

    return server


class Listener:
    """A listen stream that nobody writes.

    Attributes:
        ctx: Its context.
        task: What serves it.
    """

    def __init__(
        self, server: Server, wanted: dict[str, Any], *, mount: Mount | None = None, request_id: int | str = 1, principal: str | None = None
    ) -> None:
        request = make_lifted("subscriptions/listen", {"notifications": wanted}, request_id=request_id)
        self.ctx: Context = make_context(mount or make_mount(server), request, principal=principal)
        filters = request.params.notifications
        assert isinstance(filters, ListenFilter)
        self.task = asyncio.ensure_future(server.hub.listen(self.ctx, filters))

    def notes(self) -> list[dict[str, Any]]:
        """What it got since last time, each valid."""
        notes = taken(self.ctx)
        for note in notes:
            mcp_types_notification(note["method"], note["params"])
        return notes

    def heard(self) -> list[str]:
        """Methods, or URIs of updates, since last time."""
        return [note["params"].get("uri", note["method"]) for note in self.notes() if note["method"] != ACK]

    async def reply(self) -> dict[str, Any]:
        """Its closing result as it goes out."""
        async with asyncio.timeout(5):
            outcome = await self.task
        assert isinstance(outcome, Reply)
        status, body = Modern(None).render(self.ctx.request_id, outcome, self.ctx.request)
        assert status == 200
        result: dict[str, Any] = json.loads(body)["result"]
        mcp_types_result("subscriptions/listen", result)
        return result

    async def stop(self) -> None:
        """End it as a client that goes away does."""
        self.task.cancel()
        await asyncio.wait([self.task])


async def listen(server: Server, wanted: dict[str, Any], **more: Any) -> Listener:
    listener = Listener(server, wanted, **more)
    await asyncio.sleep(0)
    return listener


# The acknowledgement


@pytest.mark.parametrize("request_id", [1, "1", 0, "é"])
async def test_the_acknowledgement_comes_first_and_names_its_subscription(request_id: int | str) -> None:
    # SB-03, SB-05, MT-08
    server = make_server()
    listener = await listen(server, {"toolsListChanged": True}, request_id=request_id)
    server.remove("tools", "echo")
    ack, note = listener.notes()
    assert ack == {
        "jsonrpc": "2.0",
        "method": ACK,
        "params": {"notifications": {"toolsListChanged": True}, "_meta": {ID: request_id}},
    }
    assert note == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": {ID: request_id}}}
    await listener.stop()


@pytest.mark.parametrize(
    ("wanted", "granted"),
    [
        ({}, {}),
        (ALL, ALL),
        ({"toolsListChanged": False}, {}),
        ({"promptsListChanged": True}, {"promptsListChanged": True}),
        ({"resourceSubscriptions": ["a://rules"]}, {"resourceSubscriptions": ["a://rules"]}),
        ({"resourceSubscriptions": ["a://bay/3", "a://bay/{n}"]}, {"resourceSubscriptions": ["a://bay/3", "a://bay/{n}"]}),
        ({"resourceSubscriptions": ["b://unknown", "a://rules", "a://rules"]}, {"resourceSubscriptions": ["a://rules"]}),
        ({"resourceSubscriptions": []}, {"resourceSubscriptions": []}),
        ({"toolsListChanged": True, "taskIds": ["t"], "unknownChanged": True}, {"toolsListChanged": True}),
    ],
)
async def test_what_is_acknowledged_was_asked_for_and_can_be_served(wanted: dict[str, Any], granted: dict[str, Any]) -> None:
    # SB-03, SB-04, SB-12
    listener = await listen(make_server(), wanted)
    (ack,) = listener.notes()
    assert ack["params"]["notifications"] == granted
    await listener.stop()


async def test_what_is_not_advertised_is_not_acknowledged() -> None:
    # SB-04, A19
    server = Server("desk")

    @server.tool
    async def echo() -> str:
        return ""

    listener = await listen(server, {**ALL, "resourceSubscriptions": ["a://rules"]})
    (ack,) = listener.notes()
    assert ack["params"]["notifications"] == {"toolsListChanged": True}
    await listener.stop()


async def test_declared_capabilities_rule() -> None:
    # SB-04, SB-12
    server = make_server(
        capabilities={"tools": {"listChanged": True}, "prompts": {}, "resources": {"listChanged": False, "subscribe": True}}
    )
    listener = await listen(server, {**ALL, "resourceSubscriptions": ["a://rules"]})
    (ack,) = listener.notes()
    assert ack["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["a://rules"]}
    await listener.stop()


# Who gets what


async def test_each_gets_what_it_asked_for_and_nothing_else() -> None:
    # SB-02, SB-05, SB-11
    server = make_server()
    mount = make_mount(server)
    wants: dict[str, dict[str, Any]] = {
        "none": {},
        "tools": {"toolsListChanged": True},
        "prompts": {"promptsListChanged": True},
        "resources": {"resourcesListChanged": True},
        "rules": {"resourceSubscriptions": ["a://rules"]},
        "bay 3": {"resourceSubscriptions": ["a://bay/3"]},
        "bays": {"resourceSubscriptions": ["a://bay/{n}"]},
        "all": {**ALL, "resourceSubscriptions": ["a://rules", "a://bay/{n}"]},
    }
    listeners = {name: await listen(server, wanted, mount=mount, request_id=name) for name, wanted in wants.items()}
    server.remove("tools", "echo")
    server.remove("prompts", "greet")
    server.remove("templates", "a://bay/{n}")
    server.resource_updated("a://rules")
    server.resource_updated("a://bay/3")
    server.resource_updated("a://bay/4")
    server.resource_updated("b://x")
    lists = {kind: f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")}
    assert {name: listener.heard() for name, listener in listeners.items()} == {
        "none": [],
        "tools": [lists["tools"]],
        "prompts": [lists["prompts"]],
        "resources": [lists["resources"]],
        "rules": ["a://rules"],
        "bay 3": ["a://bay/3"],
        "bays": ["a://bay/3", "a://bay/4"],
        "all": [*lists.values(), "a://rules", "a://bay/3", "a://bay/4"],
    }
    for listener in listeners.values():
        await listener.stop()


async def test_a_uri_is_data_on_the_wire() -> None:
    server = make_server()
    uri = 'a://bay/"},\\\n\u2028é'
    listener = await listen(server, {"resourceSubscriptions": ["a://bay/{n}", uri]})
    server.hub.publish("resources", uri)
    notes = [note for note in listener.notes() if note["method"] != ACK]
    assert [note["params"]["uri"] for note in notes] == [uri]
    await listener.stop()


async def test_changes_may_come_from_any_thread() -> None:
    server = make_server()
    listener = await listen(server, {"toolsListChanged": True, "resourceSubscriptions": ["a://rules"]})
    listener.notes()

    def change() -> None:
        server.remove("tools", "echo")
        server.resource_updated("a://rules")

    thread = threading.Thread(target=change)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    await asyncio.sleep(0)
    assert listener.heard() == ["notifications/tools/list_changed", "a://rules"]
    await listener.stop()


async def test_nothing_is_kept_for_those_who_come_later() -> None:
    # SB-10
    server = make_server()
    server.remove("tools", "echo")
    listener = await listen(server, ALL)
    assert listener.heard() == []
    await listener.stop()


async def test_several_servers_on_one_bus_hear_of_each_other() -> None:
    # DESIGN.md, section 7: every worker's change reaches every listener
    store = MemoryStore()
    here, there = make_server(store=store), make_server(store=store)
    listener = await listen(here, {"toolsListChanged": True})
    listener.notes()
    there.remove("tools", "echo")
    assert listener.heard() == ["notifications/tools/list_changed"]
    await listener.stop()


# The end


@pytest.mark.parametrize("request_id", [7, "7"])
async def test_the_server_ends_it_with_a_result(request_id: int | str) -> None:
    # SB-09, SB-05
    server = make_server()
    listener = await listen(server, ALL, request_id=request_id)
    server.hub.close()
    result = await listener.reply()
    assert result["resultType"] == "complete"
    assert result["_meta"][ID] == request_id
    assert len(server.hub) == 0


async def test_its_lifetime_is_bounded() -> None:
    # SB-09
    server = make_server()
    listener = await listen(server, ALL, mount=make_mount(server, limits=Limits(listen_lifetime=0.01)))
    assert (await listener.reply())["resultType"] == "complete"


async def test_an_endless_lifetime_is_one_too() -> None:
    server = make_server()
    listener = await listen(server, ALL, mount=make_mount(server, limits=Limits(listen_lifetime=float("inf"))))
    assert len(server.hub) == 1
    await listener.stop()
    assert len(server.hub) == 0


# Admission


async def test_there_are_so_many_and_no_more() -> None:
    # SB-06, A19
    server = make_server()
    mount = make_mount(server, limits=Limits(max_listens=2))
    first, second = await listen(server, ALL, mount=mount), await listen(server, ALL, mount=mount)
    third = await listen(server, ALL, mount=mount)
    with pytest.raises(Fail, match="max_listens") as caught:
        await third.task
    assert caught.value.reason is Reason.OVERLOADED
    assert third.notes() == []
    await first.stop()
    fourth = await listen(server, ALL, mount=mount)
    assert len(fourth.notes()) == 1
    for listener in (second, fourth):
        await listener.stop()
    assert len(server.hub) == 0


async def test_a_principal_has_its_own_cap() -> None:
    server = make_server()
    mount = make_mount(server, limits=Limits(max_listens=10, max_listens_per_principal=2))
    anns = [await listen(server, ALL, mount=mount, principal="ann") for _ in range(3)]
    with pytest.raises(Fail, match="max_listens_per_principal"):
        await anns[2].task
    bob = await listen(server, ALL, mount=mount, principal="bob")
    nobodies = [await listen(server, ALL, mount=mount) for _ in range(4)]
    assert len(server.hub) == 7
    await anns[0].stop()
    again = await listen(server, ALL, mount=mount, principal="ann")
    assert len(again.notes()) == 1
    for listener in (anns[1], bob, again, *nobodies):
        await listener.stop()
    assert len(server.hub) == 0
    assert not server.hub._places.per_principal


@pytest.mark.parametrize("death", ["cancel", "close", "lifetime", "overflow"])
async def test_a_place_is_given_back_however_a_stream_dies(death: str) -> None:
    # SB-06
    server = make_server()
    mount = make_mount(server, limits=Limits(max_listens=1, listen_lifetime=0.01 if death == "lifetime" else 60))
    for _ in range(3):
        listener = await listen(server, {"resourceSubscriptions": ["a://bay/{n}"]}, mount=mount, principal="ann")
        assert len(server.hub) == 1
        if death == "cancel":
            await listener.stop()
        elif death == "close":
            server.hub.close()
            await listener.reply()
        elif death == "overflow":
            for number in range(HARD_CAP // 1000):
                server.resource_updated(f"a://bay/{number}{'x' * 1000}")
            assert listener.ctx.exchange.overflowed
            await listener.stop()  # the transport's part
        else:
            await listener.reply()
        assert len(server.hub) == 0


async def test_who_is_refused_takes_no_place() -> None:
    server = make_server()
    request = make_lifted("subscriptions/listen", {"notifications": ALL})
    ctx = make_context(make_mount(server), request, streams=False)
    with pytest.raises(Fail) as caught:
        await server.hub.listen(ctx, request.params.notifications)
    assert caught.value.reason is Reason.NOT_ACCEPTABLE
    assert len(server.hub) == 0


@pytest.mark.parametrize("streams", [True, False])
async def test_where_nothing_can_be_delivered_there_is_no_such_method(streams: bool) -> None:
    # A19, SB-12, EC-10
    server = make_server()
    request = make_lifted("subscriptions/listen", {"notifications": ALL})
    ctx = make_context(make_mount(server, listens=False), request, streams=streams)
    with pytest.raises(Fail) as caught:
        await server.hub.listen(ctx, request.params.notifications)
    assert caught.value.reason is Reason.METHOD_NOT_FOUND


# Slow and dead listeners


async def test_a_slow_listener_costs_bounded_memory() -> None:
    # SA26: notices that say the same replace each other
    server = make_server()
    listener = await listen(server, {**ALL, "resourceSubscriptions": ["a://bay/{n}"]})
    for number in range(20_000):
        server.hub.publish("tools")
        server.resource_updated(f"a://bay/{number % 100}")
    assert listener.ctx.exchange.open
    assert listener.ctx.exchange._size < HARD_CAP / 4
    assert "a://bay/99" in listener.heard()
    await listener.stop()


def test_a_listener_of_a_loop_that_has_gone_harms_nobody() -> None:
    # A32: a test client makes a loop per request
    server = make_server()
    abandoned = asyncio.new_event_loop()
    dead = abandoned.run_until_complete(make_listener(server))
    abandoned.close()

    async def main() -> None:
        listener = await listen(server, {"toolsListChanged": True})
        server.remove("tools", "echo")
        assert listener.heard() == ["notifications/tools/list_changed"]
        server.hub.close()
        await listener.reply()

    asyncio.run(main())
    dead.task._log_destroy_pending = False  # type: ignore[attr-defined] # pending for ever, as it must be here


async def make_listener(server: Server) -> Listener:
    return await listen(server, {"toolsListChanged": True})


async def test_a_thousand_come_and_go() -> None:
    server = make_server()
    mount = make_mount(server)
    listeners = [await listen(server, {"toolsListChanged": True}, mount=mount, request_id=number) for number in range(1000)]
    server.remove("tools", "echo")
    assert all(listener.heard() == ["notifications/tools/list_changed"] for listener in listeners)
    for listener in listeners:
        listener.task.cancel()
    await asyncio.wait([listener.task for listener in listeners])
    assert len(server.hub) == 0


def test_a_hub_without_listeners_publishes_to_nobody() -> None:
    hub = Hub(MemoryBus())
    hub.publish("tools")
    hub.close()
    assert len(hub) == 0
