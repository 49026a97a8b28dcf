"""The sessions of one endpoint: how they begin, whose they are, what they are told, and how all end."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from legacy_driver import V03, V06, V11, VERSIONS
from shop import TOPIC, Cart, Shop
from unit.legacy.lobby import Ask, Lobby, Wire, lobby, make, make_call, result, text
from virtual_time import now, run, settle, virtual_time

from callboard import Server
from callboard.compose import endpoint
from callboard.core.exchange import SOFT_CAP, Exchange
from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor
from callboard.legacy.codec import Opening
from callboard.legacy.http import Legacy
from callboard.legacy.table import _REMEMBERED, FAREWELL, MAX_ID, MAX_OPENING, Table
from callboard.limits import Limits
from callboard.server.mount import Caller
from callboard.server.pushes import PUSHES
from callboard.server.subscriptions import CHANGES
from callboard.stores.memory import MemoryBus
from callboard.transport.stream import nobody

CHANGED = {"method": "notifications/tools/list_changed"}


def heard(actor: Actor) -> list[Any]:
    """Method, and what it is about, of each message that waits for a session."""
    found = actor.machine.replay(actor.machine.route(), 0)
    messages = [json.loads(line.removeprefix("data: ")) for line in found.decode().splitlines() if line.startswith("data: ")]
    return [(message["method"].removeprefix("notifications/"), message.get("params", {}).get("uri")) for message in messages]


def refused(opened: Any, reason: Reason) -> str:
    assert isinstance(opened, Fail)
    assert opened.reason is reason
    return str(opened)


def settled(place: Lobby) -> None:
    """Nothing has begun of a session that could not."""
    assert place.is_empty


# ------------------------------------------------------------------------------------------------------------------- how one begins


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_a_session_begins_with_the_version_that_was_asked_for(version: str) -> None:
    async with lobby(Shop().server) as place:
        opened = await place.try_open(version)
        assert not isinstance(opened, Fail)
        actor, answer = opened
        assert (actor.codec.version, answer["protocolVersion"]) == (version, version)
        assert place.table.find(actor.id, None) is actor
        assert actor.envelope.log_level == "info"


@virtual_time
async def test_past_the_limit_nobody_gets_a_session_until_one_has_ended() -> None:
    async with lobby(Shop().server, limits=Limits(max_sessions=2)) as place:
        first = await place.open()
        await place.open()
        assert "max_sessions" in refused(await place.try_open(), Reason.OVERLOADED)
        first.end("deleted")
        await place.open()
        refused(await place.try_open(), Reason.OVERLOADED)


@virtual_time
async def test_while_options_are_made_others_may_take_the_last_place() -> None:
    async def options(caller: Caller) -> dict[str, Any]:
        await asyncio.sleep(1)
        return {}

    async with lobby(Shop().server, options=options, limits=Limits(max_sessions=1)) as place:
        opened = await asyncio.gather(*(place.try_open() for _ in range(3)))
        assert [isinstance(each, Fail) for each in opened] == [False, True, True]
        assert len(place.table.sessions) == 1


@virtual_time
async def test_a_server_that_shuts_down_opens_no_session_even_one_that_had_begun_to() -> None:
    async def options(caller: Caller) -> dict[str, Any]:
        await asyncio.sleep(1)
        return {}

    shop = Shop()
    async with lobby(shop.server, options=options) as place:
        late = asyncio.create_task(place.try_open())
        await settle()
        place.endpoint.drain()
        refused(await late, Reason.OVERLOADED)
        refused(await place.try_open(), Reason.OVERLOADED)
        settled(place)
    assert shop.over == []


@pytest.mark.parametrize("made", [None, 1, ["a"], ValueError("password"), SystemExit(3)])
@virtual_time
async def test_options_that_can_not_be_made_open_no_session(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    def options(caller: Caller) -> Any:
        if isinstance(made, BaseException):
            raise made
        return made

    async with lobby(Shop().server, options=options) as place:
        assert "password" not in refused(await place.try_open(), Reason.OPTIONS)
        assert "options=" in caplog.text
        settled(place)


@virtual_time
async def test_options_are_made_once_for_a_session() -> None:
    made: list[str | None] = []

    def options(caller: Caller) -> dict[str, Any]:
        made.append(caller.principal)
        return {"for": caller.principal}

    async with lobby(Shop().server, options=options) as place:
        actor = await place.open(principal="ann")
        for _ in range(3):
            answer = await result(actor, make_call("who", 1))
            assert answer["structuredContent"]["options"] == {"for": "ann"}
        assert made == ["ann"]


@pytest.mark.parametrize("fault", [ValueError("password=hunter2"), SystemExit(3), KeyError()])
@pytest.mark.parametrize("where", ["state", "channels", "session_id"])
@virtual_time
async def test_what_an_author_s_functions_raise_opens_no_session(
    where: str, fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def begin() -> Cart:
        raise fault

    def channels(cart: Cart) -> list[str]:
        raise fault

    def session_id() -> str:
        raise fault

    given: dict[str, Any] = {"state": begin} if where == "state" else {"channels": channels} if where == "channels" else {}
    rules: dict[str, Any] = {"session_id": session_id} if where == "session_id" else {}
    async with lobby(Shop(**given).server, **rules) as place:
        assert "password" not in refused(await place.try_open(), Reason.INTERNAL)
        assert "initialize" in caplog.text
        settled(place)


@pytest.mark.parametrize("made", ["", " ", "a b", "a\n", "ä", "\x7f", "x" * (MAX_ID + 1), None, 5, b"id"])
@virtual_time
async def test_an_id_that_no_header_can_carry_opens_no_session(made: Any) -> None:
    """HL-20."""
    async with lobby(Shop().server, session_id=lambda: made) as place:
        refused(await place.try_open(), Reason.INTERNAL)
        settled(place)


@virtual_time
async def test_an_id_that_is_taken_opens_no_second_session() -> None:
    async with lobby(Shop().server, session_id=lambda: "~!x") as place:
        actor = await place.open()
        refused(await place.try_open(), Reason.INTERNAL)
        assert place.table.find("~!x", None) is actor
        actor.end("deleted")
        assert (await place.open()).id == "~!x"


@pytest.mark.parametrize(("topics", "expected"), [(["a", "b", "a"], {"topic:a", "topic:b"}), ([], set()), (None, set())])
@virtual_time
async def test_a_session_hears_the_topics_of_its_server(topics: Iterable[str] | None, expected: set[str]) -> None:
    async with lobby(Shop(channels=topics).server) as place:
        actor = await place.open()
        assert (actor.topics or set()) == place.table.topics.keys() == expected


@virtual_time
async def test_topics_may_depend_on_the_state_that_a_session_begins_with() -> None:
    def begin(hello: Any) -> Cart:
        return Cart(items=[hello.session_id])

    async with lobby(Shop(state=begin, channels=lambda cart: cart.items).server) as place:
        actor = await place.open()
        assert actor.topics == {f"topic:{actor.id}"}


# ------------------------------------------------------------------------------------------------------------------- what it costs


@virtual_time
async def test_clients_that_say_the_same_share_what_they_said() -> None:
    async with lobby(Shop().server) as place:
        first, second, other = await place.open(), await place.open(), await place.open(V06)
        assert first.opening is second.opening
        assert first.opening is not other.opening


@virtual_time
async def test_what_is_remembered_of_openings_is_bounded() -> None:
    async with lobby(Shop().server) as place:
        for number in range(3 * _REMEMBERED):
            read = place.table.read(msgspec.Raw(b'{"protocolVersion": "2025-11-25", "n": %d}' % number))
            assert isinstance(read, Opening)
        assert len(place.table._openings) <= _REMEMBERED


@virtual_time
async def test_a_client_that_says_very_much_of_itself_is_refused() -> None:
    async with lobby(Shop().server) as place:
        said = json.dumps({"protocolVersion": V11, "capabilities": {"x": "y" * MAX_OPENING}}).encode()
        assert str(MAX_OPENING) in refused(place.table.read(msgspec.Raw(said)), Reason.INVALID_PARAMS)
        refused(place.table.read(msgspec.Raw(b'{"capabilities": 5}')), Reason.INVALID_PARAMS)
        assert place.table._openings == {}


@virtual_time
async def test_an_opening_without_params_is_read_too() -> None:
    async with lobby(Shop().server) as place:
        read = place.table.read(None)
        assert isinstance(read, Opening)
        assert read.version == V11


@virtual_time
async def test_an_idle_session_has_no_task_and_all_of_them_one_timer() -> None:
    async with lobby(Shop().server) as place:
        before = len(asyncio.all_tasks())
        for _ in range(100):
            await place.open()
        timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert (len(asyncio.all_tasks()), len(timers)) == (before, 1)


# ------------------------------------------------------------------------------------------------------------------- whose it is


@pytest.mark.parametrize("asker", [None, "bob", "Ann", ""])
@virtual_time
async def test_a_session_is_found_by_nobody_but_its_owner(asker: str | None) -> None:
    """SA23."""
    async with lobby(Shop().server) as place:
        actor = await place.open(principal="ann")
        assert place.table.find(actor.id, "ann") is actor
        assert place.table.find(actor.id, asker) is None
        assert place.table.find("unknown", "ann") is None


@virtual_time
async def test_a_session_that_has_ended_is_found_by_nobody() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open()
        actor.end("deleted")
        assert place.table.find(actor.id, None) is None


# -------------------------------------------------------------------------------------------------------------- what they are told


@virtual_time
async def test_a_broadcast_goes_to_those_who_hear_its_topic() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        shop.server.broadcast("other", CHANGED)
        assert heard(actor) == []
        shop.server.broadcast(TOPIC, CHANGED)
        assert heard(actor) == [("tools/list_changed", None)]


@virtual_time
async def test_a_notification_goes_to_one_session() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        first, second = await place.open(), await place.open()
        shop.server.notify(first.id, CHANGED)
        shop.server.notify("unknown", CHANGED)
        assert (heard(first), heard(second)) == ([("tools/list_changed", None)], [])


@virtual_time
async def test_a_log_message_goes_by_the_level_of_its_session() -> None:
    """LG-03."""
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        shop.server.log(actor.id, "debug", "no")
        shop.server.log(actor.id, "info", "yes")
        await result(actor, make("logging/setLevel", {"level": "error"}))
        shop.server.log(actor.id, "warning", "no")
        assert heard(actor) == [("message", None)]


@virtual_time
async def test_of_a_pipe_that_nobody_reads_log_messages_are_the_first_to_be_lost() -> None:
    shop, channel = Shop(), Exchange(nobody)
    async with lobby(shop.server) as place:
        actor = await place.open(channel=channel)
        for _ in range(3):
            shop.server.log(actor.id, "info", "x" * SOFT_CAP)
            shop.server.notify(actor.id, CHANGED)
        write = channel.take()
        assert write is not None
        assert [json.loads(note)["method"] for note in write.notes] == ["notifications/message", CHANGED["method"]]
        assert channel.dropped == 2


@virtual_time
async def test_a_change_of_a_resource_goes_to_those_who_asked_for_it() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        await result(actor, make("resources/subscribe", {"uri": "shop://prices"}))
        shop.server.resource_updated("shop://cart")
        shop.server.resource_updated("shop://prices")
        await result(actor, make("resources/unsubscribe", {"uri": "shop://prices"}))
        shop.server.resource_updated("shop://prices")
        assert heard(actor) == [("resources/updated", "shop://prices")]


@virtual_time
async def test_a_topic_that_is_named_like_a_resource_is_another() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        await result(actor, make("resources/subscribe", {"uri": TOPIC}))
        shop.server.resource_updated(TOPIC)
        shop.server.broadcast(TOPIC, CHANGED)
        assert heard(actor) == [("resources/updated", TOPIC), ("tools/list_changed", None)]


@virtual_time
async def test_a_change_of_a_list_goes_to_every_session() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actors = [await place.open(version) for version in (V03, V11)]
        shop.server.tool(name="fresh")(lambda: "x")
        assert [heard(actor) for actor in actors] == [[("tools/list_changed", None)]] * 2


@virtual_time
async def test_what_is_said_on_another_thread_comes_in_the_loop_s_own() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        await asyncio.to_thread(shop.server.notify, actor.id, CHANGED)
        await settle()
        assert heard(actor) == [("tools/list_changed", None)]


def test_what_is_said_when_the_loop_is_closed_is_nobody_s(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    unclosed: list[Lobby] = []

    async def main() -> str:
        place = lobby(shop.server)
        unclosed.append(await place.__aenter__())
        return (await unclosed[0].open()).id

    session_id = run(main)
    with caplog.at_level(logging.DEBUG, "callboard"):
        speaker = threading.Thread(target=shop.server.notify, args=(session_id, CHANGED))
        speaker.start()
        speaker.join()
    assert "closed" in caplog.text


@virtual_time
async def test_a_pipe_is_told_at_once() -> None:
    shop, channel = Shop(), Exchange(nobody)
    async with lobby(shop.server) as place:
        actor = await place.open(channel=channel)
        shop.server.broadcast(TOPIC, CHANGED)
        write = channel.take()
        assert write is not None
        assert [json.loads(note)["method"] for note in write.notes] == [CHANGED["method"]]
        assert actor.machine.find("g0-1") is None


# --------------------------------------------------------------------------------------------------------------- how all of them end


@virtual_time
async def test_all_sessions_end_together_and_each_once() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actors = [await place.open() for _ in range(3)]
        await text(actors[0], "add")
        asks = [Ask(actor, make_call("add_slowly", 1, seconds=9)) for actor in actors]
        wire = Wire()
        wire.listen(actors[0])
        await settle()
        await place.table.close("shutdown")
        assert shop.over == [("shutdown", 1), ("shutdown", 0), ("shutdown", 0)]
        await wire.end()
        assert wire.complete
        for ask in asks:
            answer = await ask.end()
            assert answer is not None
            assert "error" in answer
        settled(place)
        shop.server.broadcast(TOPIC, CHANGED)
        await place.table.close("shutdown")
        bus = shop.server.bus
        assert isinstance(bus, MemoryBus)
        assert not bus._topics.find(PUSHES)
        assert place.table.idle._timer is None
    assert len(shop.over) == 3


@virtual_time
async def test_the_end_of_all_is_bounded() -> None:
    async def terminate(reason: str, cart: Cart) -> None:
        await asyncio.sleep(1000)

    async with lobby(Shop(terminate=terminate).server) as place:
        await place.open()
        began = now()
        await place.table.close("shutdown")
        assert now() - began == pytest.approx(FAREWELL)


@virtual_time
async def test_before_the_server_ends_sessions_at_rest_do_and_the_others_lose_their_streams() -> None:
    channel, call = Wire(), Wire()
    async with lobby(Shop().server) as place:
        actor, resting = await place.open(), await place.open()
        channel.listen(actor)
        call.post(actor, make_call("report", 1, token=1, seconds=1))
        await settle()
        place.table.drain()
        assert (actor.machine.ended, resting.machine.ended) == (False, True)
        await channel.end()
        assert channel.complete
        assert not call.complete
        await call.end()
        assert call.messages[-1]["result"]
        assert await text(actor, "add") == "1"


def test_an_endpoint_that_is_served_on_another_loop_hears_nothing_for_the_first() -> None:
    """Nobody closed it there."""
    shop = Shop()
    made = endpoint(shop.server)
    older = made.older
    assert isinstance(older, Legacy)

    async def main() -> Table:
        mount = await made.open()
        table = older.table(mount)
        assert isinstance(table, Table)
        assert older.table(mount) is table
        return table

    first, second = run(main), run(main)
    assert first is not second
    bus = shop.server.bus
    assert isinstance(bus, MemoryBus)
    assert len(bus._topics.find(PUSHES)) == len(bus._topics.find(CHANGES)) == 1


@virtual_time
async def test_sessions_know_no_server_without_state() -> None:
    async with lobby(Server("plain")) as place:
        actor = await place.open()
        assert actor.machine.state is None
        assert actor.hello.session_id == actor.id
