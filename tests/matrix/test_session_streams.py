"""Event streams of a session: which message is on which, what ids are for, what can be had again, and what a slow reader costs."""

import asyncio
from typing import Any

import pytest
from asgi_driver import Client
from legacy_driver import V03, V06, V11, VERSIONS, Answer, Legacy, Session, ends, read_frames
from shop import TOPIC, Shop
from virtual_time import now, settle, virtual_time

from callboard import Context, Server, asgi
from callboard.limits import Limits

JSON_ONLY = "application/json"
STREAM_ONLY = "text/event-stream"


@pytest.fixture
def shop() -> Shop:
    return Shop()


def push(shop: Shop, *numbers: int) -> None:
    """Tell every session something, once for each number."""
    for number in numbers:
        shop.server.broadcast(TOPIC, {"method": "notifications/resources/updated", "params": {"uri": f"shop://{number}"}})


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    """What `push` has told."""
    return [int(message["params"]["uri"].removeprefix("shop://")) for message in messages]


async def resumed(session: Session, after: str | None) -> list[dict[str, Any]]:
    """What a GET brings that names the last event its client has seen."""
    async with session.listen(after) as stream:
        await settle()
        return stream.untaken


# The channel


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_get_opens_a_stream_and_pushes_arrive_on_it(shop: Shop, version: str) -> None:
    # HL-08, HL-13, HL-14, HL-17
    session = await Legacy(asgi(shop.server), version).connect()
    async with session.listen() as stream:
        headers = dict(stream.sent[0]["headers"])
        assert headers[b"content-type"] == b"text/event-stream"
        assert headers[b"x-accel-buffering"] == b"no"
        assert b"no-" in headers[b"cache-control"]
        if version == V11:
            primer = await stream.frame()
            assert primer.message is None
            assert primer.event_id
        push(shop, 1, 2, 3)
        frames = [await stream.frame() for _ in range(3)]
        assert numbers([frame.message for frame in frames if frame.message]) == [1, 2, 3]
        ids = [frame.event_id for frame in frames]
        assert len({*ids, stream.sent[1].get("id")} - {None}) == 3


@virtual_time
async def test_a_stream_begins_at_once(shop: Shop) -> None:
    """A16: a proxy or a client that waits for the head must not wait for the first event."""
    for version in VERSIONS:
        session = await Legacy(asgi(shop.server), version).connect()
        began = now()
        async with session.listen():
            assert now() == began


@pytest.mark.parametrize("accept", [JSON_ONLY, "text/html", "application/json;q=1, text/event-stream;q=0"])
@virtual_time
async def test_a_get_that_does_not_take_event_streams_is_refused(shop: Shop, accept: str) -> None:
    # HL-13
    session = await Legacy(asgi(shop.server)).connect()
    answer = await session.get(accept=accept)
    assert (answer.status, answer.error["code"]) == (406, -32600)


@virtual_time
async def test_each_message_is_on_exactly_one_of_several_streams(shop: Shop) -> None:
    """HL-16."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as first, session.listen() as second, session.listen() as third:
        push(shop, *range(20))
        await settle()
        found = numbers([*first.untaken, *second.untaken, *third.untaken])
        assert sorted(found) == list(range(20))
        ids = [frame.event_id for stream in (first, second, third) for frame in read_frames(stream.body)]
        assert len(set(ids)) == len(ids)


@virtual_time
async def test_when_one_stream_goes_the_next_takes_over(shop: Shop) -> None:
    """Nothing is sent into a stream that is gone."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as second:
        async with session.listen() as first:
            push(shop, 1)
            await settle()
            assert sorted(numbers([*first.untaken, *second.untaken])) == [1]
        await settle()
        seen = len(second.untaken)
        push(shop, 2)
        await settle()
        assert numbers(second.untaken[seen:]) == [2]


@virtual_time
async def test_answers_and_notes_of_calls_stay_off_the_channel(shop: Shop) -> None:
    # HL-15, HM-16
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        assert len((await session.call("count", {"to": 3}, token="t")).notes) == 6
        await session.call("add")
        await session.call("count", {"to": 3}, token="t", accept=JSON_ONLY)
        await settle()
        assert stream.untaken == []


@virtual_time
async def test_single_stream_refuses_a_second_and_accepts_it_once_the_first_is_gone(shop: Shop) -> None:
    """Scenario 23, compatible."""
    session = await Legacy(asgi(shop.server, single_stream=True)).connect()
    async with session.listen():
        answer = await session.get()
        assert (answer.status, answer.error["code"]) == (409, -32600)
    for _ in range(3):
        async with session.listen() as stream:
            push(shop, 7)
            assert numbers([await stream.message()]) == [7]
            stream.disconnect()
        await stream.gone()


@virtual_time
async def test_a_second_stream_is_accepted_by_default(shop: Shop) -> None:
    """Scenario 23."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen(), session.listen() as second:
        assert not second.ended


# Replay


@virtual_time
async def test_what_came_while_nobody_listened_can_be_had_with_the_last_id(shop: Shop) -> None:
    """Scenario 20, with ids as received."""
    for version in VERSIONS:
        session = await Legacy(asgi(shop.server), version).connect()
        async with session.listen() as stream:
            push(shop, 1)
            assert numbers([await stream.message()]) == [1]
        push(shop, 2, 3)
        await settle()
        assert numbers(await resumed(session, stream.last_id)) == [2, 3]
        assert numbers(await resumed(session, stream.last_id)) == [2, 3], "and again, for a client that lost them once more"


@virtual_time
async def test_the_priming_event_is_where_a_client_can_resume_that_has_seen_nothing(shop: Shop) -> None:
    """Scenario 20; HL-08."""
    session = await Legacy(asgi(shop.server), V11).connect()
    async with session.listen() as stream:
        primer = await stream.frame()
    push(shop, 1, 2, 3)
    await settle()
    assert numbers(await resumed(session, primer.event_id)) == [1, 2, 3]


@virtual_time
async def test_after_a_replay_the_stream_goes_on_live_with_ids_that_go_on(shop: Shop) -> None:
    # HL-17, HL-18
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 1, 2)
        await stream.take(2)
        seen = [frame.event_id for frame in read_frames(stream.body)]
    push(shop, 3)
    async with session.listen(stream.last_id) as again:
        assert numbers(await again.take(1)) == [3]
        push(shop, 4)
        assert numbers(await again.take(1)) == [4]
        ids = [frame.event_id for frame in read_frames(again.body) if frame.message]
        assert len(set(ids) | set(seen)) == len(ids) + len(seen)
    assert await resumed(session, again.last_id) == []


@virtual_time
async def test_of_more_than_the_buffer_holds_the_newest_can_be_had(shop: Shop) -> None:
    """Scenario 21: 300 events, a buffer of 256."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 1)
        await stream.message()
    push(shop, *range(2, 301))
    await settle()
    assert numbers(await resumed(session, stream.last_id)) == list(range(45, 301))


@virtual_time
async def test_the_buffer_is_as_large_as_it_is_told_to_be(shop: Shop) -> None:
    """Scenario 21."""
    session = await Legacy(asgi(shop.server, limits=Limits(session_buffer=3))).connect()
    async with session.listen() as stream:
        push(shop, 1)
        await stream.message()
    push(shop, *range(2, 11))
    await settle()
    assert numbers(await resumed(session, stream.last_id)) == [8, 9, 10]


@virtual_time
async def test_a_fresh_stream_brings_nothing_old(shop: Shop) -> None:
    """Only who names an event gets what followed it."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 1)
        await stream.message()
    push(shop, 2)
    await settle()
    assert await resumed(session, None) == []


@pytest.mark.parametrize(
    "junk", ["abc", "g0-999", "g7-0", "c1-1", "-1", "g0-", "g0--1", "g0-1e1", "1", "g0-01", "x" * 3000, "g0-" + "9" * 400, ""]
)
@virtual_time
async def test_an_id_that_was_never_given_is_refused(shop: Shop, junk: str) -> None:
    """Scenario 22; the issue: unknown id 400."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as stream:
        push(shop, 1)
        await stream.message()
    answer = await session.get(junk)
    assert (answer.status, answer.error["code"]) == (400, -32600)
    assert (await session.request("ping")).result == {}


@virtual_time
async def test_what_one_session_was_told_can_not_be_had_in_another(shop: Shop) -> None:
    """A10, HL-18."""
    app = asgi(shop.server)
    first, second = await Legacy(app).connect(), await Legacy(app).connect()
    async with first.listen() as stream:
        for number in range(5):
            shop.server.notify(str(first.id), {"method": "notifications/resources/updated", "params": {"uri": f"shop://{number}"}})
        await stream.take(5)
        first_id = next(frame.event_id for frame in read_frames(stream.body) if frame.message)
    answer = second.start_listening(first_id)
    await settle()
    assert answer.sent[0]["status"] == 400 or answer.untaken == []
    answer.disconnect()
    await answer.gone()


# Answers that stream


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_an_answer_that_streams_has_notes_first_and_its_response_last(shop: Shop, version: str) -> None:
    # HL-05, HL-06, HL-08, HL-12, PR-05, A13
    session = await Legacy(asgi(shop.server), version).connect()
    answer = await session.call("count", {"to": 3}, token="t", request_id=5)
    assert [note["method"] for note in answer.notes] == ["notifications/progress", "notifications/message"] * 3
    assert (answer.message["id"], answer.text) == (5, "counted")
    if version == V11:
        assert answer.frames[0].event_id
        assert answer.frames[0].message is None
    ids = [frame.event_id for frame in answer.frames if frame.event_id is not None]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("token", "accept", "streams"),
    [("t", None, True), ("t", JSON_ONLY, False), (None, STREAM_ONLY, True), ("t", STREAM_ONLY, True), ("t", "*/*", True)],
)
@virtual_time
async def test_what_a_client_accepts_decides_how_an_answer_travels(
    shop: Shop, token: str | None, accept: str | None, streams: bool
) -> None:
    """Scenario 30: progress that can't travel is dropped, the answer is the same."""
    session = await Legacy(asgi(shop.server)).connect()
    session.client.headers = {} if accept is None else {"accept": accept}
    answer = await session.call("count", {"to": 3}, token=token)
    assert (answer.is_stream, answer.text) == (streams, "counted")
    if not streams:
        assert answer.notes == []


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_an_answer_that_says_nothing_on_the_way_is_json(shop: Shop, version: str) -> None:
    session = await Legacy(asgi(shop.server), version).connect()
    answer = await session.call("echo", {"text": "x"}, token="t")
    assert (answer.is_stream, answer.text) == (False, "x")


@virtual_time
async def test_an_unknown_tool_is_refused_whether_or_not_progress_was_asked_for(shop: Shop) -> None:
    """Scenario 31; an answer is a stream only when something comes before it, or the client takes nothing else."""
    session = await Legacy(asgi(shop.server)).connect()
    plain = await session.call("nothing", token="t")
    assert (plain.status, plain.is_stream, plain.error["code"]) == (200, False, -32602)
    streamed = await session.call("nothing", token="t", accept=STREAM_ONLY)
    assert (streamed.status, streamed.is_stream, streamed.error["code"]) == (200, True, -32602)


@virtual_time
async def test_streams_of_calls_carry_nothing_of_each_other(shop: Shop) -> None:
    """A10: within one session, and two sessions with the same ids."""
    app = asgi(shop.server)
    sessions = [await Legacy(app).connect() for _ in range(2)]
    calls = [
        session.begin("count", {"to": 5, "seconds": 0.1}, request_id=number, token=f"{index}-{number}")
        for index, session in enumerate(sessions)
        for number in range(10)
    ]
    for call, answer in zip(calls, await ends(calls), strict=True):
        index, number = divmod(calls.index(call), 10)
        tokens = {note["params"]["progressToken"] for note in answer.notes if "progressToken" in note["params"]}
        assert tokens == {f"{index}-{number}"}
        assert answer.message["id"] == number


@virtual_time
async def test_frames_of_one_turn_of_the_loop_leave_in_one_send(shop: Shop) -> None:
    # DESIGN section 6
    server = Server("burst")

    @server.tool
    async def burst(ctx: Context) -> str:
        for number in range(10):
            ctx.progress(number)
        return "done"

    session = await Legacy(asgi(server)).connect()
    call = session.begin("burst", token="t")
    answer = await call.end()
    assert len(answer.notes) == 10
    assert len([event for event in call.sent if event.get("body")]) <= 2


# Polling: the server hangs up, the client comes back


def make_poller() -> Server:
    """A server whose tool hangs up in the middle."""
    server = Server("poller")

    @server.tool
    async def work(seconds: float, ctx: Context, times: int = 1) -> str:
        for number in range(times):
            ctx.progress(number * 2)
            ctx.disconnect(retry=0.25)
            await asyncio.sleep(seconds)
            ctx.progress(number * 2 + 1)
        return "worked"

    return server


@virtual_time
async def test_a_server_may_hang_up_and_the_rest_is_fetched(shop: Shop) -> None:
    """HL-09, HL-10, HL-19: it says when to come back, and the work goes on."""
    session = await Legacy(asgi(make_poller()), V11).connect()
    first = await session.call("work", {"seconds": 10}, request_id=1, token="t")
    assert [frame.retry for frame in first.frames if frame.retry is not None] == [250]
    assert first.frames[-1].retry == 250 or first.frames[-2].retry == 250
    assert [message["params"]["progress"] for message in first.messages] == [0]
    last = [frame.event_id for frame in first.frames if frame.event_id][-1]
    await asyncio.sleep(0.25)
    answer = await session.get(last)
    assert [message["params"]["progress"] for message in answer.notes] == [1]
    assert (answer.message["id"], answer.text) == (1, "worked")


@virtual_time
async def test_what_is_over_can_be_fetched_and_the_stream_ends(shop: Shop) -> None:
    """HL-12, HL-18: of that stream only."""
    session = await Legacy(asgi(make_poller(), cancel_on_disconnect="never"), V11).connect()
    first = await session.call("work", {"seconds": 1}, request_id=1, token="t")
    await session.call("work", {"seconds": 1}, request_id=2, token="other")
    await asyncio.sleep(2)
    began = now()
    answer = await session.get([frame.event_id for frame in first.frames if frame.event_id][-1])
    assert now() == began
    assert {message["params"]["progressToken"] for message in answer.notes} == {"t"}
    assert (answer.message["id"], answer.text) == (1, "worked")
    again = await session.get(first.frames[0].event_id)
    assert [message["params"]["progress"] for message in again.notes] == [0, 1]


@virtual_time
async def test_a_client_may_poll_many_times(shop: Shop) -> None:
    # HL-10
    session = await Legacy(asgi(make_poller()), V11).connect()
    answer = await session.call("work", {"seconds": 3, "times": 4}, request_id=1, token="t")
    messages, polls = list(answer.messages), 0
    while not messages or "result" not in messages[-1]:
        polls += 1
        last = [frame.event_id for frame in answer.frames if frame.event_id][-1]
        answer = await session.get(last)
        messages += answer.messages
    assert [message["params"]["progress"] for message in messages[:-1]] == list(range(8))
    assert polls >= 4


@pytest.mark.parametrize("version", [V03, V06])
@virtual_time
async def test_clients_that_do_not_know_of_it_are_not_hung_up_on(shop: Shop, version: str) -> None:
    # HL-11
    session = await Legacy(asgi(make_poller()), version).connect()
    answer = await session.call("work", {"seconds": 1}, token="t")
    assert [frame.retry for frame in answer.frames] == [None] * len(answer.frames)
    assert answer.text == "worked"


@virtual_time
async def test_hanging_up_means_nothing_where_there_is_no_stream(shop: Shop) -> None:
    session = await Legacy(asgi(make_poller()), V11).connect()
    assert (await session.call("work", {"seconds": 1}, accept=JSON_ONLY)).text == "worked"
    off = Legacy(asgi(make_poller(), sessions="off"), V11).sessionless()
    assert (await off.call("work", {"seconds": 1}, token="t")).text == "worked"


@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_hanging_up_may_be_awaited_whoever_calls(shop: Shop, token: str | None) -> None:
    @shop.server.tool
    async def leave(ctx: Context) -> str:
        await ctx.disconnect()
        return "left"

    app = asgi(shop.server)
    assert (await Client(app).call("leave")).text == "left"
    assert (await Legacy(asgi(shop.server, sessions="off"), V11).sessionless().call("leave")).text == "left"
    for version in VERSIONS:
        session = await Legacy(app, version).connect()
        answer = await session.call("leave", token=token)
        if not answer.messages:
            answer = await session.get(answer.frames[-1].event_id)
        assert answer.text == "left"


@pytest.mark.parametrize("retry", [-1, "soon", float("inf"), float("nan")])
@virtual_time
async def test_a_wrong_time_to_come_back_is_an_error_of_that_call(shop: Shop, retry: Any, caplog: pytest.LogCaptureFixture) -> None:
    @shop.server.tool
    async def leave(ctx: Context) -> str:
        ctx.progress(1)
        ctx.disconnect(retry=retry)
        return "left"

    app = asgi(shop.server)
    session = await Legacy(app, V11).connect()
    for answer in (await session.call("leave", token="t"), await Client(app).call("leave")):
        assert answer.messages[-1]["error"]["code"] == -32603
    causes = [str(record.exc_info[1]) for record in caplog.records if record.exc_info is not None]
    assert [cause.startswith("ctx.disconnect: retry is a number of seconds") for cause in causes] == [True, True]
    assert (await session.call("echo", {"text": "on"})).text == "on"


@virtual_time
async def test_a_stream_can_be_taken_over_from_a_connection_that_is_dead_but_open(shop: Shop) -> None:
    """Half-open connections are common; the client that comes back has the stream."""
    session = await Legacy(asgi(shop.server, cancel_on_disconnect="never"), V11).connect()
    async with session.open("report", {"seconds": 2}, request_id=1) as dead:
        await dead.message()
        dead.gate.clear()
        async with session.listen(dead.last_id) as stream:
            messages = await stream.take(2)
            assert messages[0]["params"]["progress"] == 2
            assert messages[1]["result"]["content"][0]["text"] == "reported"
            answer = await stream.end()
            assert len(answer.messages) == 2
        dead.gate.set()


@virtual_time
async def test_without_a_buffer_there_are_no_ids_and_nothing_to_come_back_for(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, limits=Limits(session_buffer=0)), V11).connect()
    answer = await session.call("count", {"to": 2}, token="t")
    assert [frame.event_id for frame in answer.frames] == [None] * len(answer.frames)
    async with session.listen() as stream:
        push(shop, 1)
        frame = await stream.frame()
        assert (frame.event_id, numbers([frame.message or {}])) == (None, [1])
    assert (await session.get("g0-1")).status == 400


# Silence, and readers that don't read


@virtual_time
async def test_silent_streams_are_kept_alive(shop: Shop) -> None:
    """A16: no more than 15 seconds apart by default, on every kind of stream; comments have no id and are in no replay."""
    session = await Legacy(asgi(shop.server)).connect()
    async with session.listen() as channel, session.open("report", {"seconds": 100}) as stream:
        await stream.message()
        for _ in range(4):
            before = (channel.comments, stream.comments)
            await asyncio.sleep(30.1)
            assert (channel.comments - before[0], stream.comments - before[1]) >= (1, 1)
        frames = list(read_frames(channel.body))
        assert [frame.message for frame in frames] == [None] * len(frames)
        assert len(frames) == 1
    assert (await Legacy(asgi(shop.server)).connect()) is not None


@pytest.mark.parametrize("seconds", [0.5, 2])
@virtual_time
async def test_how_often_is_a_setting(shop: Shop, seconds: float) -> None:
    session = await Legacy(asgi(shop.server, keep_alive=seconds)).connect()
    async with session.listen() as channel:
        await asyncio.sleep(seconds * 10)
        assert 9 <= channel.comments <= 20


@virtual_time
async def test_keep_alive_can_be_off(shop: Shop) -> None:
    session = await Legacy(asgi(shop.server, keep_alive=None)).connect()
    async with session.listen() as channel:
        await asyncio.sleep(1000)
        assert channel.comments == 0


@virtual_time
async def test_a_channel_whose_reader_stops_costs_bounded_memory_and_never_the_session(shop: Shop) -> None:
    """Scenario 50, SA10."""
    session = await Legacy(asgi(shop.server)).connect()
    text = "x" * 1000
    async with session.listen() as channel:
        push(shop, 1)
        await channel.message()
        channel.gate.clear()
        for number in range(20_000):
            shop.server.notify(str(session.id), {"method": "notifications/message", "params": {"level": "info", "data": f"{number}{text}"}})
            if number % 1000 == 0:
                await settle()
        await settle()
        assert (await session.call("add")).text == "1"
        channel.gate.set()
        await settle()
        assert len(channel.body) < 8_000_000
    push(shop, 2)
    async with session.listen() as fresh:
        push(shop, 3)
        assert numbers([await fresh.message()])[-1] == 3


@virtual_time
async def test_a_flood_to_a_reader_that_stops_is_bounded_and_the_result_arrives() -> None:
    """SA26, scenario 50."""
    server, done = Server("flood"), asyncio.Event()

    @server.tool
    async def flood(ctx: Context) -> str:
        for number in range(100_000):
            ctx.progress(number)
            ctx.log("info", "x" * 50)
            if number % 1000 == 0:
                await asyncio.sleep(0)
        done.set()
        return "done"

    session = await Legacy(asgi(server)).connect()
    call = session.begin("flood", token="t")
    await call.head()
    call.gate.clear()
    await done.wait()
    call.gate.set()
    answer: Answer = await call.end()
    assert answer.text == "done"
    assert len(answer.body) < 4_000_000
    assert [note["params"]["progress"] for note in answer.notes if "progress" in note["params"]][-1] == 99_999
