"""The shell of a session: tasks, deadlines, what is asked of the client, and the end."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import pytest
from shop import TOPIC, Cart, Shop
from unit.legacy.lobby import Ask, error, lobby, make, make_call, read, result, text
from virtual_time import now, settle, virtual_time

from callboard import Context, Server
from callboard.legacy.actor import SETTLE, Actor
from callboard.legacy.session import Phase
from callboard.server.subscriptions import MAX_RESOURCES
from callboard.wire.jsonrpc import RawNotification


def cancel(actor: Actor, request_id: Any) -> None:
    """What a client sends who wants no answer any more."""
    notice(actor, "notifications/cancelled", {"requestId": request_id})


def notice(actor: Actor, method: str, params: Any = None) -> None:
    message = read({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})
    assert isinstance(message, RawNotification)
    actor.notice(message)


# ------------------------------------------------------------------------------------------------------------------- cancellation


@virtual_time
async def test_a_call_that_is_cancelled_before_its_first_step_never_runs() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        first, second = (
            Ask(actor, make_call("add_slowly", 1, seconds=1, name="a")),
            Ask(actor, make_call("add_slowly", 2, seconds=1, name="b")),
        )
        cancel(actor, 1)
        assert await first.end() is None
        answer = await second.end()
        assert answer is not None
        assert answer["result"]["content"][0]["text"] == "1"
        assert shop.ran == ["b"]


@virtual_time
async def test_a_whole_queue_can_be_cancelled_in_one_turn() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        asks = [Ask(actor, make_call("add_slowly", number, seconds=1, name=str(number))) for number in range(5)]
        for number in range(5):
            cancel(actor, number)
        assert [await ask.end() for ask in asks] == [None] * 5
        await settle()
        assert shop.ran == []
        assert await text(actor, "add") == "1"


@virtual_time
async def test_a_call_that_swallows_its_cancellation_has_its_turn_until_it_ends_and_leaves_nothing() -> None:
    server = Server("stubborn", state=Cart)
    log: list[str] = []

    @server.tool
    async def cling(cart: Cart) -> int:
        cart.count += 100
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            log.append("ended")
        return cart.count

    @server.tool
    async def add(cart: Cart) -> int:
        log.append("next")
        cart.count += 1
        return cart.count

    async with lobby(server) as place:
        actor = await place.open()
        first = Ask(actor, make_call("cling", 1))
        await settle()
        began = now()
        cancel(actor, 1)
        assert await first.end() is None
        assert now() == began, "whoever cancelled it does not wait for it"
        assert await text(actor, "add") == "1"
        assert log == ["ended", "next"]
        assert now() - began == pytest.approx(5)


@virtual_time
async def test_a_function_on_a_thread_goes_on_but_its_state_is_dropped() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        first = Ask(actor, make_call("hold", 1))
        await settle()
        cancel(actor, 1)
        assert await first.end() is None
        assert await text(actor, "add") == "1"
        shop.release.set()
        await settle()
        assert await text(actor, "look") == "1"


@pytest.mark.parametrize(
    "params", [None, {}, {"requestId": None}, {"requestId": 1.0}, {"requestId": True}, {"requestId": "1"}, {"requestId": [1]}]
)
@virtual_time
async def test_what_is_no_cancellation_of_it_leaves_a_call_alone(params: Any) -> None:
    """A25, CN-06."""
    async with lobby(Shop().server) as place:
        actor = await place.open()
        ask = Ask(actor, make_call("nap", 1, seconds=1))
        notice(actor, "notifications/cancelled", params)
        notice(actor, "notifications/anything", params)
        answer = await ask.end()
        assert answer is not None
        assert "result" in answer


@virtual_time
async def test_a_cancelled_call_is_answered_where_that_is_asked_for() -> None:
    async with lobby(Shop().server, reply_on_cancel=True) as place:
        actor = await place.open()
        running, queued = Ask(actor, make_call("add_slowly", 1, seconds=9)), Ask(actor, make_call("add_slowly", 2, seconds=9))
        await settle()
        cancel(actor, 2)
        cancel(actor, 1)
        cancel(actor, 1)
        answers = [await running.end(), await queued.end()]
        assert [answer and (answer["id"], answer["error"]["code"]) for answer in answers] == [(1, -32603), (2, -32603)]


# ---------------------------------------------------------------------------------------------------------------------- deadlines


@virtual_time
async def test_what_takes_too_long_is_answered_and_keeps_its_state_all_the_same() -> None:
    """What waits is dropped."""
    shop = Shop()
    async with lobby(shop.server, request_timeout=2) as place:
        actor = await place.open()
        began = now()
        running = Ask(actor, make_call("add_slowly", 1, seconds=5, name="running"))
        queued = Ask(actor, make_call("add_slowly", 2, seconds=5, name="queued"))
        for ask in (running, queued):
            answer = await ask.end()
            assert answer is not None
            assert answer["error"]["code"] == -32603
            assert "request_timeout" in answer["error"]["message"]
        assert now() - began == pytest.approx(2)
        await asyncio.sleep(2)
        assert await text(actor, "look") == "1"
        assert now() - began == pytest.approx(5)
        assert shop.ran == ["running"]


@pytest.mark.parametrize("limit", [0.01, 0.05, 0.06])
@virtual_time
async def test_a_short_limit_is_kept_too(limit: float) -> None:
    async with lobby(Shop().server, request_timeout=limit) as place:
        actor = await place.open()
        began = now()
        assert (await error(actor, make_call("nap", 1, seconds=5)))["code"] == -32603
        assert now() - began == pytest.approx(limit, abs=0.002)


@virtual_time
async def test_a_call_whose_caller_has_had_bytes_may_take_its_time() -> None:
    async with lobby(Shop().server, request_timeout=2) as place:
        actor = await place.open()
        ask = Ask(actor, make_call("report", 1, token=1, seconds=50))
        answer = await ask.end()
        assert answer is not None
        assert answer["result"]["content"][0]["text"] == "reported"


@virtual_time
async def test_an_idle_session_ends_once_and_one_in_which_something_happens_does_not() -> None:
    shop = Shop()
    async with lobby(shop.server, session_ttl=10) as place:
        idle, busy = await place.open(), await place.open()
        ask = Ask(busy, make_call("add_slowly", 1, seconds=25))
        await asyncio.sleep(11)
        assert idle.machine.ended
        assert not busy.machine.ended
        await ask.end()
        await asyncio.sleep(9.9)
        assert await text(busy, "look") == "1"
        await asyncio.sleep(10.1)
        assert busy.machine.ended
        assert shop.over == [("expired", 0), ("expired", 1)]
        assert place.is_empty


@pytest.mark.parametrize("way", ["cancel", "expire", "refuse", "crash"])
@virtual_time
async def test_the_time_of_a_session_begins_anew_whatever_way_its_last_call_ended(way: str) -> None:
    async with lobby(Shop().server, session_ttl=10, request_timeout=4) as place:
        actor = await place.open()
        await asyncio.sleep(8)
        if way == "crash":
            Ask(actor, make_call("crash", 1))
        elif way == "refuse":
            assert (await result(actor, make_call("add_and_refuse", 1)))["isError"]
        else:
            Ask(actor, make_call("nap", 1, seconds=4.5))
            await asyncio.sleep(1)
            if way == "cancel":
                cancel(actor, 1)
            else:
                await asyncio.sleep(3.5)
        await asyncio.sleep(9.9)
        assert not actor.machine.ended
        await asyncio.sleep(0.2)
        assert actor.machine.ended
        assert place.is_empty


# ------------------------------------------------------------------------------------------------------------------------ the end


@virtual_time
async def test_the_end_answers_every_caller_and_runs_the_hook_once() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        await text(actor, "add")
        asks = [Ask(actor, make_call("add_slowly", number, seconds=9)) for number in range(3)] + [
            Ask(actor, make_call("nap", 5, seconds=9))
        ]
        unborn = Ask(actor, make_call("nap", 6, seconds=9, name="unborn"))
        await asyncio.sleep(0)
        ending = actor.end("deleted")
        assert actor.end("expired") is None
        answers = [await ask.end() for ask in [*asks, unborn]]
        assert [answer and answer["error"]["message"] for answer in answers] == ["Session ended."] * 5
        assert ending is not None
        await ending
        assert shop.over == [("deleted", 1)]
        assert (await error(actor, make_call("add", 9)))["message"] == "Session ended."
        assert place.is_empty


@virtual_time
async def test_the_hook_sees_what_the_last_call_left() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        await text(actor, "add", amount=5)
        Ask(actor, make_call("add_slowly", 1, seconds=9))
        await settle()
        actor.end("deleted")
        await settle()
        assert shop.over == [("deleted", 5)]


@virtual_time
async def test_a_call_that_will_not_end_does_not_hold_the_end_up() -> None:
    shop = Shop()
    stop = asyncio.Event()

    @shop.server.tool
    async def cling() -> str:
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await stop.wait()
        return "at last"

    async with lobby(shop.server) as place:
        actor = await place.open()
        ask = Ask(actor, make_call("cling", 1))
        await settle()
        began = now()
        ending = actor.end("deleted")
        assert ending is not None
        await ending
        assert now() - began == pytest.approx(SETTLE)
        assert shop.over == [("deleted", 0)]
        answer = await ask.end()
        assert answer is not None
        assert "error" in answer
        stop.set()
        await settle()
        assert not actor.machine.calls
        assert place.is_empty


@pytest.mark.parametrize("fault", [ValueError("password=hunter2"), SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["async", "def"])
@virtual_time
async def test_a_hook_that_fails_is_logged_and_stops_nothing(kind: str, fault: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    async def terminate_async(reason: str, cart: Cart) -> None:
        raise fault

    def terminate(reason: str, cart: Cart) -> None:
        raise fault

    async with lobby(Shop(terminate=terminate_async if kind == "async" else terminate).server) as place:
        actor = await place.open()
        with caplog.at_level(logging.ERROR):
            ending = actor.end("deleted")
            assert ending is not None
            await asyncio.wait({ending})
            assert ending.cancelled() or ending.exception() is None
        assert isinstance(fault, asyncio.CancelledError) or "terminate" in caplog.text
        assert place.is_empty


@virtual_time
async def test_a_call_that_cancels_its_own_task_is_answered_and_the_next_one_runs() -> None:
    shop = Shop()

    @shop.server.tool
    async def give_up(cart: Cart) -> str:
        task = asyncio.current_task()
        assert task is not None
        cart.count += 1
        task.cancel()
        await asyncio.sleep(1)
        return "never"

    async with lobby(shop.server) as place:
        actor = await place.open()
        first, second = Ask(actor, make_call("give_up", 1)), Ask(actor, make_call("add", 2))
        answers = [await first.end(), await second.end()]
        assert answers[0] is not None
        assert answers[0]["error"]["code"] == -32603
        assert answers[1] is not None
        assert answers[1]["result"]["content"][0]["text"] == "1"


@virtual_time
async def test_what_a_call_on_a_snapshot_does_to_it_is_nobody_s_concern() -> None:
    """It may leave what could not be kept."""
    shop = Shop()

    @shop.server.tool(snapshot=True)
    async def spoil(cart: Cart) -> str:
        cart.count = object()  # type: ignore[assignment] # on purpose
        return "spoilt"

    async with lobby(shop.server) as place:
        actor = await place.open()
        assert await text(actor, "spoil") == "spoilt"
        assert await text(actor, "add") == "1"


@virtual_time
async def test_a_server_without_a_hook_has_nothing_to_wait_for() -> None:
    async with lobby(Server("plain")) as place:
        actor = await place.open()
        assert actor.end("deleted") is None
        assert place.is_empty


@virtual_time
async def test_a_session_that_ended_during_a_subscription_hears_nothing() -> None:
    """Its hook may swallow the cancellation."""

    async def subscribe(uri: str, ctx: Context) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5)

    async with lobby(Shop(subscribe=subscribe).server) as place:
        actor = await place.open()
        ask = Ask(actor, make("resources/subscribe", {"uri": "shop://prices"}))
        await settle()
        actor.end("deleted")
        await ask.end()
        await settle()
        assert place.is_empty


# --------------------------------------------------------------------------------------------------------- what the server says


@virtual_time
async def test_what_is_said_while_nobody_reads_waits_for_a_replay() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open()
        actor.push(b"1")
        actor.push(b"2")
        found = actor.machine.find("g0-1")
        assert found is not None
        assert actor.machine.replay(*found) == b"id: g0-2\ndata: 2\n\n"


@virtual_time
async def test_nothing_is_kept_where_there_are_no_streams_or_no_session_any_more() -> None:
    async with lobby(Shop().server, json_only=True) as place:
        actor = await place.open()
        actor.push(b"1")
        assert actor.machine.find("g0-1") is None
    async with lobby(Shop().server) as place:
        actor = await place.open()
        actor.end("deleted")
        actor.push(b"1")
        assert actor.machine.find("g0-1") is None


@virtual_time
async def test_log_messages_below_the_level_of_a_session_are_not_for_it() -> None:
    """LG-03."""
    async with lobby(Shop().server) as place:
        actor = await place.open()
        assert [level for level in ("debug", "info", "notice", "emergency", None) if actor.wants(level)] == [
            "info",
            "notice",
            "emergency",
            None,
        ]
        actor.set_level("error")
        assert [level for level in ("debug", "info", "warning", "error", "alert", None) if actor.wants(level)] == ["error", "alert", None]


@virtual_time
async def test_a_session_hears_of_so_many_resources_and_no_more() -> None:
    async with lobby(Shop(channels=None).server) as place:
        actor = await place.open()
        for number in range(MAX_RESOURCES):
            await result(actor, make("resources/subscribe", {"uri": f"shop://{number}"}))
        assert str(MAX_RESOURCES) in (await error(actor, make("resources/subscribe", {"uri": "shop://more"})))["message"]
        await result(actor, make("resources/subscribe", {"uri": "shop://1"}))
        await result(actor, make("resources/unsubscribe", {"uri": "shop://1"}))
        await result(actor, make("resources/unsubscribe", {"uri": "shop://never"}))
        await result(actor, make("resources/subscribe", {"uri": "shop://more"}))
        assert len(place.table.topics) == MAX_RESOURCES


@virtual_time
async def test_a_uri_is_no_topic() -> None:
    """A client subscribes to resources, not to what the server tells others."""
    async with lobby(Shop().server) as place:
        actor = await place.open()
        await result(actor, make("resources/unsubscribe", {"uri": TOPIC}))
        assert actor.topics == {f"topic:{TOPIC}"}


# --------------------------------------------------------------------------------------------------------------------- handshake


@virtual_time
async def test_a_strict_session_serves_nothing_but_a_ping_until_it_is_initialized() -> None:
    async with lobby(Shop().server, handshake="strict") as place:
        actor = await place.open()
        assert await result(actor, make("ping")) == {}
        assert "notifications/initialized" in (await error(actor, make("tools/list")))["message"]
        notice(actor, "notifications/initialized")
        assert (await result(actor, make("tools/list")))["tools"]


@virtual_time
async def test_a_session_opens_once() -> None:
    async with lobby(Shop().server) as place:
        assert (await error(await place.open(), make("initialize", {})))["code"] == -32600


@virtual_time
async def test_a_duplicate_id_is_refused_and_the_first_call_goes_on() -> None:
    """SA24."""
    async with lobby(Shop().server) as place:
        actor = await place.open()
        first = Ask(actor, make_call("nap", 1, seconds=1))
        second, other = Ask(actor, make_call("nap", 1, seconds=1)), Ask(actor, make_call("nap", "1", seconds=1))
        assert second.work is None
        assert (second.status, second.said[0]["error"]["code"]) == (400, -32600)
        answers = [await first.end(), await other.end()]
        assert [answer and answer["id"] for answer in answers] == [1, "1"]


@virtual_time
async def test_a_call_in_flight_is_in_one_phase_or_another_and_none_is_left() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open()
        asks = [Ask(actor, make_call("add_slowly", number, seconds=1)) for number in range(3)]
        works = [ask.work for ask in asks]
        assert [work and work.phase for work in works] == [Phase.RUNNING, Phase.QUEUED, Phase.QUEUED]
        for ask in asks:
            await ask.end()
        assert [work and (work.phase, work.task, work.track) for work in works] == [(Phase.OVER, None, None)] * 3
        assert actor.machine.calls == {}
