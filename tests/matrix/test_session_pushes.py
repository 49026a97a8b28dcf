"""What a server says of its own accord: to a topic, to one session, of its lists and resources, into a log."""

import asyncio
import logging
import threading
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import V03, VERSIONS, Exchange, Legacy, read_frames
from shop import TOPIC, Cart, Shop
from virtual_time import run, settle, virtual_time

from callboard import Fail, Reason, Server, asgi, types

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
UPDATED = "notifications/resources/updated"


@pytest.fixture
def shop() -> Shop:
    return Shop()


def note(uri: str = "shop://prices") -> dict[str, Any]:
    """A notification as an author writes it."""
    return {"method": UPDATED, "params": {"uri": uri}}


async def heard(stream: Exchange) -> list[Any]:
    """What has come on a stream since it was read last: URIs, log data, or methods."""
    await settle()
    messages = await stream.take(len(stream.untaken))
    return [message.get("params", {}).get("uri", message.get("params", {}).get("data", message["method"])) for message in messages]


# Topics and single sessions


@virtual_time
async def test_a_broadcast_reaches_the_sessions_whose_channels_name_its_topic() -> None:
    """Channels may depend on the state that the session begins with."""

    def begin(hello: Any) -> Cart:
        return Cart(items=[hello.params["room"]])

    shop = Shop(state=begin, channels=lambda cart: [*cart.items, "all"])
    app = asgi(shop.server)
    red, blue = [await Legacy(app).connect(params={"room": room}) for room in ("red", "blue")]
    async with red.listen() as red_stream, blue.listen() as blue_stream:
        for topic in ("red", "blue", "all", "nobody"):
            shop.server.broadcast(topic, note(topic))
        assert await heard(red_stream) == ["red", "all"]
        assert await heard(blue_stream) == ["blue", "all"]


@virtual_time
async def test_without_channels_a_session_hears_no_topic() -> None:
    shop = Shop(channels=None)
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        shop.server.broadcast(TOPIC, note())
        shop.server.notify(str(session.id), note("for me"))
        assert await heard(stream) == ["for me"]


@virtual_time
async def test_one_session_can_be_told_something(shop: Shop) -> None:
    """By the id that `ctx.session_id` has; unknown ids are nobody."""
    app = asgi(shop.server)
    first, second = await Legacy(app).connect(), await Legacy(app).connect()
    first_id = (await first.call("who")).result["structuredContent"]["session"]
    async with first.listen() as first_stream, second.listen() as second_stream:
        shop.server.notify(first_id, note("first"))
        shop.server.notify("nobody", note("nobody"))
        shop.server.notify("", note("nobody"))
        assert await heard(first_stream) == ["first"]
        assert await heard(second_stream) == []
        await second.delete()
        shop.server.notify(str(second.id), note("gone"))
        assert await heard(first_stream) == []


@pytest.mark.parametrize(
    "notification",
    [
        types.ResourceUpdatedNotification(params=types.ResourceUpdatedNotificationParams(uri="a://b")),
        types.ToolListChangedNotification(),
        {"method": "notifications/tools/list_changed"},
        {"method": "notifications/message", "params": {"level": "info", "data": [1]}},
    ],
    ids=lambda value: type(value).__name__,
)
@virtual_time
async def test_a_notification_is_a_struct_or_a_map(shop: Shop, notification: Any) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        shop.server.broadcast(TOPIC, notification)
        message = await stream.message()
        assert message["method"].startswith("notifications/")
        assert "id" not in message


@virtual_time
async def test_pushes_may_come_from_any_thread_and_keep_their_order(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()

    def work() -> None:
        for number in range(50):
            shop.server.broadcast(TOPIC, note(f"{threading.current_thread().name}-{number}"))

    async with session.listen() as stream:
        threads = [threading.Thread(target=work, name=name, daemon=True) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        found = await heard(stream)
        for name in ("a", "b", "c"):
            assert [uri for uri in found if uri.startswith(name)] == [f"{name}-{number}" for number in range(50)]


@virtual_time
async def test_without_sessions_or_before_anything_is_served_a_push_is_nothing(shop: Shop) -> None:
    shop.server.broadcast(TOPIC, note())
    shop.server.notify("x", note())
    shop.server.log("x", "info", "y")
    session = Legacy(asgi(shop.server, sessions="off")).sessionless()
    shop.server.broadcast(TOPIC, note())
    assert (await session.call("echo", {"text": "x"})).text == "x"


@virtual_time
async def test_current_clients_hear_nothing_of_pushes(shop: Shop) -> None:
    app = asgi(shop.server)
    await Legacy(app).connect()
    async with Client(app).listen(1, toolsListChanged=True, resourceSubscriptions=["shop://prices"]) as stream:
        await stream.message()
        shop.server.broadcast(TOPIC, note())
        shop.server.broadcast(TOPIC, {"method": "notifications/tools/list_changed"})
        await settle()
        assert stream.body.count(b"data: ") == 1


@pytest.mark.parametrize("junk", ["\ud800", object(), {(1, 2): 3}, float("nan"), b"\xff", [1, {"a": object()}]], ids=repr)
@virtual_time
async def test_what_can_not_be_sent_is_logged_and_costs_nothing_else(shop: Shop, junk: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario 24: no event id is used up, and the session lives."""
    session = await Legacy(asgi(shop.server)).connect()

    async def ids_around(say: Any) -> tuple[list[str], list[Any]]:
        async with session.listen() as stream:
            shop.server.notify(str(session.id), note("before"))
            say()
            shop.server.notify(str(session.id), note("after"))
            await settle()
            frames = [frame for frame in read_frames(stream.body) if frame.message]
            return [str(frame.event_id) for frame in frames], await heard(stream)

    def say_junk() -> None:
        shop.server.broadcast(TOPIC, {"method": "notifications/message", "params": {"level": "info", "data": junk}})
        shop.server.notify(str(session.id), {"method": "notifications/message", "params": {"level": "info", "data": junk}})
        shop.server.log(str(session.id), "error", junk)

    plain, told = await ids_around(lambda: None)
    assert told == ["before", "after"]
    if isinstance(junk, float | bytes):
        return  # what the encoder can say after all is the next test's
    ids, told = await ids_around(say_junk)
    assert told == ["before", "after"]
    assert [record for record in caplog.records if record.name.startswith("callboard")]
    step = int(plain[1].rpartition("-")[2]) - int(plain[0].rpartition("-")[2])
    assert int(ids[1].rpartition("-")[2]) - int(ids[0].rpartition("-")[2]) == step


@pytest.mark.parametrize(
    "call",
    [
        lambda server: server.broadcast(TOPIC, {"params": {}}),
        lambda server: server.broadcast(TOPIC, "notifications/x"),
        lambda server: server.broadcast(TOPIC, None),
        lambda server: server.broadcast(5, note()),
        lambda server: server.notify(None, note()),
        lambda server: server.notify("x", {"method": 5}),
        lambda server: server.log("x", "loud", "y"),
        lambda server: server.log("x", "INFO", "y"),
    ],
)
@virtual_time
async def test_what_is_no_notification_is_its_callers_mistake(shop: Shop, call: Any) -> None:
    """An unknown level is a caller bug."""
    await Legacy(asgi(shop.server)).connect()
    with pytest.raises((TypeError, ValueError)):
        call(shop.server)


@virtual_time
async def test_a_server_under_two_endpoints_reaches_the_sessions_of_both(shop: Shop) -> None:
    sessions = [await Legacy(asgi(shop.server)).connect() for _ in range(2)]
    async with sessions[0].listen() as first, sessions[1].listen() as second:
        shop.server.broadcast(TOPIC, note("both"))
        shop.server.notify(str(sessions[1].id), note("second"))
        assert await heard(first) == ["both"]
        assert await heard(second) == ["both", "second"]


def test_a_server_outlives_its_event_loops(shop: Shop) -> None:
    """Sessions belong to the loop that served them; pushes wherever and whenever harm nothing."""
    app = asgi(shop.server)

    async def serve() -> str:
        session = await Legacy(app).connect()
        assert (await session.call("add")).text == "1"
        async with session.listen() as stream:
            shop.server.broadcast(TOPIC, note())
            assert await heard(stream) == ["shop://prices"]
        return str(session.id)

    first = run(serve)
    shop.server.broadcast(TOPIC, note())
    shop.server.notify(first, note())
    shop.server.log(first, "info", "x")
    shop.server.resource_updated("shop://prices")
    assert run(serve) != first


# Lists and resources


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_changed_lists_are_told_to_every_session(shop: Shop, version: str) -> None:
    """Promised, so kept."""
    app = asgi(shop.server)
    session, other = await Legacy(app, version).connect(), await Legacy(app).connect()
    assert session.opening["capabilities"]["tools"] == {"listChanged": True}
    async with session.listen() as stream, other.listen() as second:
        shop.server.tool(_extra)
        shop.server.remove("prompts", "advertise")
        shop.server.remove("resources", "shop://prices")
        expected = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
        assert sorted(await heard(stream)) == sorted(expected)
        assert sorted(await heard(second)) == sorted(expected)
    assert "_extra" in [tool["name"] for tool in (await session.request("tools/list")).result["tools"]]


async def _extra() -> str:
    return "extra"


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_an_update_is_told_to_those_who_subscribed(shop: Shop, version: str) -> None:
    """Idempotent both ways."""
    app = asgi(shop.server)
    session, other = await Legacy(app, version).connect(), await Legacy(app).connect()
    assert session.opening["capabilities"]["resources"]["subscribe"] is True
    async with session.listen() as stream, other.listen() as second:
        for _ in range(2):
            assert (await session.request("resources/subscribe", {"uri": "shop://prices"})).result == {}
        shop.server.resource_updated("shop://prices")
        shop.server.resource_updated("shop://cart")
        assert await heard(stream) == ["shop://prices"]
        assert await heard(second) == []
        for _ in range(2):
            assert (await session.request("resources/unsubscribe", {"uri": "shop://prices"})).result == {}
        shop.server.resource_updated("shop://prices")
        assert await heard(stream) == []


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
@pytest.mark.parametrize("params", [{}, None, {"uri": 5}, {"uri": None}, {"uri": ["shop://prices"]}])
@virtual_time
async def test_a_subscription_without_a_uri_is_refused(shop: Shop, method: str, params: dict[str, Any] | None) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    assert (await session.request(method, params)).error["code"] == -32602


@virtual_time
async def test_a_subscription_where_none_is_offered_does_not_exist() -> None:
    server = Server("plain", capabilities={"resources": {}, "tools": {}})

    @server.resource("a://b")
    async def page() -> str:
        return "x"

    session = await Legacy(asgi(server)).connect()
    assert "subscribe" not in session.opening["capabilities"]["resources"]
    assert (await session.request("resources/subscribe", {"uri": "a://b"})).error["code"] == -32601


@virtual_time
async def test_one_session_can_not_subscribe_to_any_amount(shop: Shop) -> None:
    """A07: what a client can make a session keep is bounded."""
    session = await Legacy(asgi(shop.server)).connect()
    statuses = [
        "error" in (await session.request("resources/subscribe", {"uri": f"shop://shelf/{number}"})).message for number in range(1_500)
    ]
    assert any(statuses)
    assert not any(statuses[:500])
    assert (await session.request("resources/unsubscribe", {"uri": "shop://shelf/1"})).result == {}
    assert (await session.request("resources/subscribe", {"uri": "shop://prices"})).result == {}


# Logs


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_a_log_reaches_its_session_from_the_level_on_that_it_asked_for(shop: Shop, version: str) -> None:
    """Scenario 29: info until a client says otherwise."""
    session = await Legacy(asgi(shop.server), version).connect()
    assert session.opening["capabilities"]["logging"] == {}

    def say() -> None:
        for level in LEVELS:
            shop.server.log(str(session.id), level, level, "till")

    async with session.listen() as stream:
        say()
        assert await heard(stream) == list(LEVELS[1:])
        for level in LEVELS:
            assert (await session.request("logging/setLevel", {"level": level})).result == {}
            say()
            assert await heard(stream) == list(LEVELS[LEVELS.index(level) :])
    message = next(frame.message for frame in read_frames(stream.body) if frame.message)
    assert message["params"] == {"level": "info", "logger": "till", "data": "info"}


@virtual_time
async def test_scenario_29_to_the_letter(shop: Shop) -> None:
    """Scenario 29."""
    session = await Legacy(asgi(shop.server)).connect()
    await session.request("logging/setLevel", {"level": "warning"})
    async with session.listen() as stream:
        shop.server.log(str(session.id), "info", "not this")
        shop.server.log(str(session.id), "error", "this")
        assert await heard(stream) == ["this"]


@virtual_time
async def test_each_session_has_its_own_level_and_its_calls_have_it_too(shop: Shop) -> None:
    # LG-05; the level is read when the log is written, also within a call that runs
    app = asgi(shop.server)
    first, second = await Legacy(app).connect(), await Legacy(app, V03).connect()
    await first.request("logging/setLevel", {"level": "alert"})
    for session, expected in ((first, ["alert", "emergency"]), (second, list(LEVELS[1:]))):
        answer = await session.call("levels")
        assert [message["params"]["data"] for message in answer.notes] == expected
        assert answer.text == "said"


@virtual_time
async def test_a_new_level_holds_from_now_on_also_for_calls_that_run(shop: Shop) -> None:
    # LG-05
    session = await Legacy(asgi(shop.server)).connect()
    async with session.open("count", {"to": 6, "seconds": 1}, token=None) as stream:
        await asyncio.sleep(2.5)
        assert (await session.request("logging/setLevel", {"level": "error"})).result == {}
        answer = await stream.end()
        assert [note["params"]["data"] for note in answer.notes] == [1, 2, 3]


@pytest.mark.parametrize("params", [{}, None, {"level": "loud"}, {"level": "INFO"}, {"level": 3}, {"level": None}])
@virtual_time
async def test_a_level_that_is_none_is_refused_and_the_old_one_stays(shop: Shop, params: dict[str, Any] | None) -> None:
    """LG-05."""
    session = await Legacy(asgi(shop.server)).connect()
    await session.request("logging/setLevel", {"level": "error"})
    answer = await session.request("logging/setLevel", params)
    assert answer.error["code"] == -32602
    assert "emergency" in answer.error["message"]
    async with session.listen() as stream:
        shop.server.log(str(session.id), "warning", "no")
        shop.server.log(str(session.id), "error", "yes")
        assert await heard(stream) == ["yes"]


# Hooks


@pytest.mark.parametrize("is_async", [True, False])
@virtual_time
async def test_hooks_hear_what_a_client_asks_for_and_may_refuse(is_async: bool) -> None:
    asked: list[tuple[str, str, Any]] = []

    def note_down(kind: str, value: str, ctx: Any) -> None:
        asked.append((kind, value, ctx.session_id))
        if value in {"debug", "shop://secret"}:
            raise Fail(Reason.INVALID_PARAMS, "Not that.")

    def make(kind: str) -> Any:
        async def later(value: str, ctx: Any) -> None:
            await asyncio.sleep(0)
            note_down(kind, value, ctx)

        def now(value: str, ctx: Any) -> None:
            note_down(kind, value, ctx)

        return later if is_async else now

    shop = Shop(set_log_level=make("level"), subscribe=make("subscribe"), unsubscribe=make("unsubscribe"))
    session = await Legacy(asgi(shop.server)).connect()
    assert (await session.request("logging/setLevel", {"level": "error"})).result == {}
    assert (await session.request("resources/subscribe", {"uri": "shop://prices"})).result == {}
    assert (await session.request("resources/unsubscribe", {"uri": "shop://prices"})).result == {}
    assert asked == [
        ("level", "error", session.id),
        ("subscribe", "shop://prices", session.id),
        ("unsubscribe", "shop://prices", session.id),
    ]
    for method, params in (("logging/setLevel", {"level": "debug"}), ("resources/subscribe", {"uri": "shop://secret"})):
        answer = await session.request(method, params)
        assert (answer.error["code"], answer.error["message"]) == (-32602, "Not that.")
    async with session.listen() as stream:
        shop.server.log(str(session.id), "info", "no")
        shop.server.resource_updated("shop://secret")
        assert await heard(stream) == []


@virtual_time
async def test_a_hook_that_crashes_is_that_requests_error(caplog: pytest.LogCaptureFixture) -> None:
    def crash(*_: Any) -> None:
        raise ValueError("password=hunter2")

    shop = Shop(set_log_level=crash, subscribe=crash, unsubscribe=crash)
    session = await Legacy(asgi(shop.server)).connect()
    caplog.set_level(logging.ERROR)
    requests = [("logging/setLevel", {"level": "info"}), ("resources/subscribe", {"uri": "a"}), ("resources/unsubscribe", {"uri": "a"})]
    for method, params in requests:
        answer = await session.request(method, params)
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert b"hunter2" not in answer.body
    assert len(caplog.records) >= 3
    assert (await session.call("echo", {"text": "x"})).text == "x"
