"""Connections of a session that break, race, or are open and dead: nothing is lost that can be kept, and nothing is left."""

import asyncio
import gc
import time
import weakref
from contextlib import suppress
from typing import Any

import pytest
from legacy_driver import V03, V06, V11, VERSIONS, Legacy, Session, ends
from shop import TOPIC, Shop
from virtual_time import now, settle, virtual_time

from callboard import Context, Server, asgi
from callboard.limits import Limits


@pytest.fixture
def shop() -> Shop:
    return Shop()


def push(shop: Shop, *numbers: int, text: str = "") -> None:
    """Tell every session something, once for each number."""
    for number in numbers:
        shop.server.broadcast(TOPIC, {"method": "notifications/message", "params": {"level": "info", "data": [number, text]}})


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    """What `push` has told."""
    return [message["params"]["data"][0] for message in messages]


async def resumed(session: Session, after: str | None) -> list[dict[str, Any]]:
    """What a GET brings that names the last event its client has seen."""
    async with session.listen(after) as stream:
        await settle()
        return stream.untaken


# Channels


@virtual_time
async def test_what_waits_for_a_channel_that_is_open_and_dead_is_had_by_whoever_comes_back(shop: Shop) -> None:
    """HL-18: half-open connections are common; what was said into one is not lost."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as dead:
        push(shop, 1)
        assert numbers([await dead.message()]) == [1]
        dead.gate.clear()
        push(shop, 2)
        await settle()
        push(shop, 3, 4)
        await settle()
        async with session.listen(dead.last_id) as stream:
            assert numbers(await stream.take(3)) == [2, 3, 4]
            push(shop, 5)
            assert numbers(await stream.take(1)) == [5]
            await settle()
            assert stream.untaken == []


@virtual_time
async def test_a_broken_channel_loses_nothing(shop: Shop) -> None:
    """ASGI: send raises when the client is gone; what it was to carry is kept for replay."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 1)
        await stream.message()
        stream.severed = True
        push(shop, 2, 3)
        await stream.gone()
    push(shop, 4)
    await settle()
    assert numbers(await resumed(session, stream.last_id)) == [2, 3, 4]


@virtual_time
async def test_a_channel_whose_task_is_cancelled_holds_its_session_no_longer(shop: Shop) -> None:
    """Servers cancel the task of a stream that is reset (h2)."""
    session = await Legacy(asgi(shop.server, session_ttl=10)).connect()
    exchange = session.start_listening()
    await exchange.head()
    push(shop, 1)
    await exchange.message()
    exchange.task.cancel()
    await asyncio.wait([exchange.task])
    push(shop, 2)
    await settle()
    assert numbers(await resumed(session, exchange.last_id)) == [2]
    await asyncio.sleep(11)
    assert shop.over == [("expired", 0)]


@virtual_time
async def test_a_client_may_reconnect_for_ever(shop: Shop) -> None:
    """A07: nothing of a stream stays; each message is had once."""
    session = await Legacy(asgi(shop.server, single_stream=True)).connect()
    tasks = asyncio.all_tasks()
    found, after = [], None
    for number in range(300):
        push(shop, number)
        async with session.listen(after) as stream:
            if after is None:
                push(shop, number)
            found += numbers(await stream.take(1))
            after = stream.last_id
    assert found == list(range(300))
    assert asyncio.all_tasks() == tasks


@virtual_time
async def test_one_session_can_not_open_any_amount_of_streams(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server)).connect()
    streams = [session.start_listening() for _ in range(200)]
    statuses = [await stream.head() for stream in streams]
    assert statuses.count(200) >= 2
    assert set(statuses) == {200, 409}
    push(shop, 1)
    await settle()
    opened = [stream for stream, status in zip(streams, statuses, strict=True) if status == 200]
    assert sum(len(stream.untaken) for stream in opened) == 1
    for stream in opened:
        await stream.drop()
    await ends([stream for stream, status in zip(streams, statuses, strict=True) if status != 200])
    async with session.listen():
        pass


@virtual_time
async def test_the_buffer_is_bounded_in_bytes_too(shop: Shop) -> None:
    """A07: 256 events of 100 KB each are not kept; the newest is."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 0)
        await stream.message()
    push(shop, *range(1, 257), text="x" * 100_000)
    await settle()
    async with session.listen(stream.last_id) as again:
        await settle()
        found = numbers(again.untaken)
        assert found[-1] == 256
        assert found == list(range(found[0], 257))
        assert len(again.body) < 4_000_000


# Calls


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_a_call_whose_stream_breaks_goes_on_where_a_connection_is_not_the_call(shop: Shop, version: str) -> None:
    """HL-07, HL-18: `never`; what the broken connection was to carry can be fetched."""
    session = await Legacy(asgi(shop.server, cancel_on_disconnect="never"), version).connect()
    async with session.open("count", {"to": 3, "seconds": 1}, request_id=1) as stream:
        await stream.take(2)
        stream.severed = True
        await stream.gone()
    await asyncio.sleep(5)
    rest = await session.get(stream.last_id)
    assert [note["params"]["progress"] for note in rest.notes if "progress" in note["params"]] == [2, 3]
    assert (rest.message["id"], rest.text) == (1, "counted")


@virtual_time
async def test_a_call_whose_stream_breaks_is_cancelled_by_default(shop: Shop) -> None:
    """Scenario 15: however the server learns of it."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.open("count", {"to": 500, "seconds": 0.1}, request_id=1) as stream:
        await stream.message()
        stream.severed = True
        await stream.gone()
        began = now()
    assert (await session.request("ping", request_id=1)).result == {}, "its id is free"
    assert now() - began < 1
    assert (await session.request("ping")).result == {}


@virtual_time
async def test_a_call_whose_task_of_the_server_is_cancelled_goes_on_and_its_state_is_kept(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, session_ttl=10)).connect()
    call = session.begin("add_slowly", {"seconds": 2})
    await settle()
    call.task.cancel()
    await asyncio.wait([call.task])
    assert (await session.call("look")).text == "1"
    await asyncio.sleep(11)
    assert shop.over == [("expired", 1)]


@virtual_time
async def test_a_stream_of_a_cancelled_call_can_not_be_had_again(shop: Shop) -> None:
    """Official clients come back for a stream that ended without a response, and do so for ever while they are let in."""
    session = await Legacy(asgi(shop.server), V11).connect()
    async with session.open("report", {"seconds": 5}, request_id=1) as stream:
        await stream.message()
        await session.cancel(1)
        await stream.end()
    assert (await session.get(stream.last_id)).status == 400


@virtual_time
async def test_a_caller_that_timed_out_hears_nothing_more(shop: Shop) -> None:
    """It has its answer; what the work says later is said to nobody."""
    server = Server("late")

    @server.tool
    async def late(ctx: Context) -> str:
        await asyncio.sleep(10)
        ctx.progress(1)
        await asyncio.sleep(1)
        return "late"

    session = await Legacy(asgi(server, request_timeout=1)).connect()
    async with session.listen() as channel:
        answer = await session.call("late", token="t", request_id=1)
        assert (answer.is_stream, answer.error["code"]) == (False, -32603)
        await asyncio.sleep(20)
        assert channel.untaken == []
    assert (await session.request("ping", request_id=1)).result == {}


@virtual_time
async def test_an_id_is_in_use_until_its_work_is_over(shop: Shop) -> None:
    """SA24: also after its caller has timed out, else a cancellation could mean either."""
    session = await Legacy(asgi(shop.server, request_timeout=1)).connect()
    assert (await session.call("nap", {"seconds": 3}, request_id=1)).error["code"] == -32603
    assert (await session.request("ping", request_id=1)).error["code"] == -32600
    await asyncio.sleep(3)
    assert (await session.request("ping", request_id=1)).result == {}


@virtual_time
async def test_work_whose_caller_has_timed_out_can_still_be_cancelled(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, request_timeout=1)).connect()
    await session.call("add_slowly", {"seconds": 30, "name": "it"}, request_id=1)
    assert (await session.cancel(1)).status == 202
    began = now()
    assert (await session.call("look")).text == "0"
    assert now() - began < 0.01
    assert shop.stopped == ["it"]


@pytest.mark.parametrize("size", [10, 3_000_000])
@virtual_time
async def test_a_large_result_that_was_lost_can_be_fetched(size: int) -> None:
    """SA07: bounded as the buffer is, its newest event can be had whatever its size; and what looks like the end of an event is none."""
    server, text = Server("large"), "\r\n\n\u2028\u0085é\ndata: x"

    @server.tool
    async def large(ctx: Context) -> str:
        ctx.progress(1)
        await asyncio.sleep(1)
        return text + "x" * size

    session = await Legacy(asgi(server, cancel_on_disconnect="never"), V11).connect()
    async with session.open("large", request_id=1) as stream:
        await stream.message()
        stream.severed = True
        await stream.gone()
    answer = await session.get(stream.last_id)
    assert answer.text == text + "x" * size
    assert (await session.call("large", token="t")).text == text + "x" * size


# Functions that misbehave


def make_stubborn(stopped: list[str]) -> Server:
    """A server whose tools don't end as they are told to."""
    shop = Shop()

    @shop.server.tool
    async def stubborn(seconds: float) -> str:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            stopped.append("asked")
            await asyncio.sleep(seconds)
        stopped.append("done")
        return "after all"

    @shop.server.tool
    async def give_up() -> str:
        raise asyncio.CancelledError

    @shop.server.tool
    async def leave() -> str:
        raise SystemExit(3)

    @shop.server.tool
    async def fork() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(5))
            group.create_task(_fail())
        return "never"

    return shop.server


async def _fail() -> None:
    raise ValueError("password=hunter2")


@virtual_time
async def test_a_function_that_will_not_be_cancelled_holds_nobody_up(shop: Shop) -> None:
    """Scenario 16: the end of its session comes all the same."""
    stopped: list[str] = []
    session = await Legacy(asgi(make_stubborn(stopped))).connect()
    call = session.begin("stubborn", {"seconds": 20}, request_id=1)
    await settle()
    began = now()
    await session.cancel(1)
    answer = await call.end()
    assert (answer.status, answer.body, now() - began < 0.01) == (202, b"", True)
    assert (await session.call("add")).text == "1"
    assert (await session.delete()).status == 204
    assert now() - began < 5
    await asyncio.sleep(30)
    assert stopped == ["asked", "done"]


@pytest.mark.parametrize("tool", ["give_up", "leave", "fork"])
@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_whatever_a_function_raises_is_its_own_failure(tool: str, token: str | None) -> None:
    """Scenario 17; SA35."""
    session = await Legacy(asgi(make_stubborn([]))).connect()
    slow = session.begin("add_slowly", {"seconds": 1})
    answer = await session.call(tool, token=token)
    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert b"hunter2" not in answer.body
    assert (await slow.end()).text == "1"
    assert (await session.call("add")).text == "2"


@virtual_time
async def test_a_function_on_a_thread_may_report_hang_up_and_wait(shop: Shop) -> None:
    """A20, HL-09: `ctx` from a thread."""
    server = Server("threads")

    @server.tool
    def work(ctx: Context) -> str:
        ctx.progress(1)
        ctx.disconnect(retry=0.1)
        ctx.wait(asyncio.sleep(5))
        ctx.progress(2)
        time.sleep(0.01)
        return "worked"

    session = await Legacy(asgi(server), V11).connect()
    first = await session.call("work", token="t", request_id=1)
    assert [message["params"]["progress"] for message in first.messages] == [1]
    rest = await session.get([frame.event_id for frame in first.frames if frame.event_id][-1])
    assert [message["params"]["progress"] for message in rest.notes] == [2]
    assert rest.text == "worked"


@pytest.mark.parametrize(("around", "taken"), [(" ", True), ("\t", True), ("\xa0", False), ("\x85", False), ("\x1f", False)])
@virtual_time
async def test_only_blanks_and_tabs_around_an_id_are_none_of_it(shop: Shop, around: str, *, taken: bool) -> None:
    """HL-18, HL-22: other letters make it another id, which nobody was given."""
    session = await Legacy(asgi(shop.server), V11).connect()
    async with session.listen() as stream:
        after = (await stream.frame()).event_id
    exchange = session.start_listening(f"{around}{after}{around}")
    assert await exchange.head() == (200 if taken else 400)
    await exchange.drop()
    assert (await session.call("echo", {"text": "a"}, mcp_session_id=f"{around}{session.id}")).status == (200 if taken else 404)
    assert (await session.call("echo", {"text": "a"}, mcp_protocol_version=f"{V11}{around}")).status == (200 if taken else 400)


@virtual_time
async def test_pushes_race_streams_that_come_and_go_and_none_is_had_twice_or_lost(shop: Shop) -> None:
    """HL-16, HL-17, HL-18: a client that always names its last event gets every event once."""
    session = await Legacy(asgi(shop.server)).connect()
    found: list[int] = []
    after: str | None = None
    async with session.listen() as stream:
        after = (await stream.frame()).event_id
    sent = 0
    for turn in range(120):
        exchange = session.start_listening(after)
        for step in range(turn % 9):
            push(shop, sent)
            sent += 1
            for _ in range(step % 4):
                await asyncio.sleep(0)
        await exchange.head()
        exchange.disconnect()
        push(shop, sent)
        sent += 1
        await exchange.gone()
        while exchange.untaken:
            found += numbers([await exchange.message()])
        after = exchange.last_id or after
    await settle()
    found += numbers(await resumed(session, after))
    assert found == list(range(sent))


# What adversaries found: each was a bug once


@virtual_time
async def test_an_old_connection_that_dies_takes_no_new_call_of_the_same_id_along(shop: Shop) -> None:
    """Ids may be used again once a call is over, also while the last words of the old one are still on their way."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.open("count", {"to": 1, "seconds": 0.5}, request_id=1) as old:
        await old.message()
        old.gate.clear()
        await asyncio.sleep(1)
        call = session.begin("nap", {"seconds": 5}, request_id=1)
        await asyncio.sleep(1)
        await old.drop()
        assert (await call.end()).text == "rested"


@virtual_time
async def test_a_client_may_come_back_while_its_result_is_on_its_way_to_a_dead_connection(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server), V11).connect()
    async with session.open("count", {"to": 1, "seconds": 1}, request_id=1) as dead:
        await dead.take(2)
        dead.gate.clear()
        await asyncio.sleep(2)
        answer = await session.get(dead.last_id)
        assert (answer.message["id"], answer.text) == (1, "counted")


@pytest.mark.parametrize("kind", ["call", "channel"])
@virtual_time
async def test_of_two_that_come_back_at_once_one_has_the_stream_and_the_other_a_whole_response(shop: Shop, kind: str) -> None:
    session = await Legacy(asgi(shop.server, cancel_on_disconnect="never"), V11).connect()
    first = session.begin("report", {"seconds": 5}, request_id=1, token="t") if kind == "call" else session.start_listening()
    await first.frame()
    push(shop, 1)
    await settle()
    streams = [session.start_listening(first.last_id) for _ in range(3)]
    await settle()
    ended = [stream for stream in (first, *streams) if stream.ended]
    assert len(ended) == 3
    await ends(ended)
    (last,) = (stream for stream in streams if not stream.ended)
    assert len(last.untaken) == 1
    await last.drop()


@virtual_time
async def test_a_stream_that_could_have_no_ids_can_not_be_named(shop: Shop) -> None:
    for version, buffer in ((V11, 0), (V03, 256), (V06, 256)):
        session = await Legacy(asgi(shop.server, limits=Limits(session_buffer=buffer)), version).connect()
        async with session.listen() as stream:
            assert (await session.get("g0-0")).status == 400
            push(shop, 1)
            assert numbers(await stream.take(1)) == [1]


@virtual_time
async def test_a_single_stream_can_be_taken_over_by_who_names_its_last_event(shop: Shop) -> None:
    """It stays one stream; the dead connection may not be noticed for minutes."""
    session = await Legacy(asgi(shop.server, single_stream=True)).connect()
    async with session.listen() as dead:
        push(shop, 1)
        await dead.message()
        dead.gate.clear()
        push(shop, 2)
        async with session.listen(dead.last_id) as stream:
            assert numbers(await stream.take(1)) == [2]
            assert (await session.get()).status == 409


@virtual_time
async def test_a_stream_that_is_still_being_written_holds_its_session(shop: Shop) -> None:
    """Scenario 12."""
    session = await Legacy(asgi(shop.server, session_ttl=10)).connect()
    async with session.open("count", {"to": 1, "seconds": 1}, request_id=1) as slow:
        await slow.message()
        slow.gate.clear()
        await asyncio.sleep(30)
        assert shop.over == []
        slow.gate.set()
        assert (await slow.end()).text == "counted"
    await asyncio.sleep(11)
    assert shop.over == [("expired", 0)]


@virtual_time
async def test_a_server_whose_send_raises_anything_when_the_client_is_gone_is_understood(shop: Shop) -> None:
    """Some raise no OSError."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 1)
        await stream.message()
        stream.severed = RuntimeError("the connection is closed")
        push(shop, 2)
        await stream.gone()
    assert numbers(await resumed(session, stream.last_id)) == [2]
    call = session.begin("count", {"to": 3, "seconds": 1}, token="t", request_id=1)
    await call.message()
    call.severed = RuntimeError("the connection is closed")
    await call.gone()
    assert (await session.request("ping", request_id=1)).result == {}


@virtual_time
async def test_a_session_that_ended_is_kept_by_nobody(shop: Shop) -> None:
    """A05: whatever its calls, hooks and connections were up to; told by what is bound to it."""

    class Bound(dict[str, Any]):
        pass

    bound: list[weakref.ref[Bound]] = []

    def bind(caller: Any) -> Bound:
        made = Bound()
        bound.append(weakref.ref(made))
        return made

    async def subscribe(uri: str, ctx: Context) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5)

    server = Shop(subscribe=subscribe).server
    app = asgi(server, options=bind)
    for number in range(4):
        session = await Legacy(app).connect()
        calls = [
            session.begin("report", {"seconds": 5}, token="t"),
            session.begin("add_slowly", {"seconds": 5}),
            session.start(session.make("resources/subscribe", {"uri": "shop://prices"}, request_id="s")),
        ]
        async with session.listen() as stream, session.listen(await _first_id(stream)):
            await asyncio.sleep(1)
            if number % 2:
                await session.cancel("s")
            await session.delete()
            await ends(calls)
    await asyncio.sleep(20)
    gc.collect()
    assert [ref() for ref in bound] == [None] * 4


async def _first_id(stream: Any) -> str:
    event_id = (await stream.frame()).event_id
    assert event_id is not None
    return str(event_id)


@virtual_time
async def test_calls_that_end_before_their_time_leave_no_work_to_the_garbage_collector(shop: Shop) -> None:
    """A cycle for each would keep its request until the collector comes."""
    session = await Legacy(asgi(shop.server)).connect()

    async def garbage(rounds: int) -> int:
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                call = session.begin("nap", {"seconds": 5}, request_id="n")
                await settle()
                await session.cancel("n")
                await call.end()
            return gc.collect()
        finally:
            gc.enable()

    await garbage(5)
    few, many = await garbage(10), await garbage(60)
    assert many - few < 500
