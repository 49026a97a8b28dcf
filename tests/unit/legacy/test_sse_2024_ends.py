"""HTTP+SSE: what its clients may cost, and how a stream and its session end together."""

import asyncio
import gc
import json

import pytest
from legacy_driver import Legacy
from shop import TOPIC, Shop
from unit.legacy.sse_client import SseClient, connected, make_app, read_events, text, texts
from virtual_time import now, settle, virtual_time

from callboard import Context
from callboard.core.exchange import HARD_CAP, SOFT_CAP, Exchange
from callboard.legacy.actor import Actor
from callboard.legacy.sse_stream import LAST_WORDS, LIFETIME, MAX_CALLS, MAX_UNREAD, SseStream
from callboard.limits import Limits

MIB = 1024 * 1024


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_the_driver_reads_events() -> None:
    assert list(read_events(b": x\n\nevent: message\ndata: 1\n\n")) == [("message", "1")]


# Caps


@virtual_time
async def test_so_many_streams_and_no_more(shop: Shop) -> None:
    app = make_app(shop, limits=Limits(max_sse_connections=2))
    clients = [SseClient(app) for _ in range(2)]
    for client in clients:
        await client.open()
    refused = SseClient(app).get()
    await refused.ended()
    assert refused.sent[0]["status"] == 503
    assert dict(refused.sent[0]["headers"])[b"retry-after"]
    assert "max_sse_connections" in json.loads(refused.body)["error"]["message"]
    await clients[0].leave()
    async with connected(app) as another:
        assert await another.call("echo", text="in") == "in"
    await clients[1].leave()


@virtual_time
async def test_sessions_count_among_the_others(shop: Shop) -> None:
    app = make_app(shop, limits=Limits(max_sessions=1))
    client = SseClient(app)
    await client.open()
    await Legacy(app).connect()
    assert "max_sessions" in (await client.initialize())["error"]["message"]
    await client.leave()


@virtual_time
async def test_so_many_calls_of_one_stream_and_no_more(shop: Shop) -> None:
    async with connected(make_app(shop)) as client:
        for _ in range(MAX_CALLS):
            await client.begin_call("nap", {"seconds": 10})
        assert (await client.request("ping"))["error"]["code"] == -32603
        assert texts([await client.message() for _ in range(MAX_CALLS)]) == ["rested"] * MAX_CALLS
        assert (await client.request("ping"))["result"] == {}


@virtual_time
async def test_a_silent_stream_is_kept_alive(shop: Shop) -> None:
    """HM-13."""
    async with connected(make_app(shop, keep_alive=15)) as client:
        for _ in range(3):
            began = now()
            before = client.stream.comments
            await client.stream.until(lambda before=before: client.stream.comments > before)
            assert now() - began <= 15
        assert await client.untaken() == []


@virtual_time
async def test_a_session_lives_as_long_as_its_stream(shop: Shop) -> None:
    """No idle time ends it, with calls before or without."""
    async with connected(make_app(shop, session_ttl=5)) as client:
        await asyncio.sleep(100)
        assert await client.call("add") == "1"
        await asyncio.sleep(1000)
        assert await client.call("add") == "2"
    await settle()
    assert shop.over == [("closed", 2)]


@virtual_time
async def test_a_stream_ends_after_its_time_and_its_calls_are_told(shop: Shop) -> None:
    client = SseClient(make_app(shop, request_timeout=100_000))
    began = now()
    await client.connect()
    await client.begin_call("nap", {"seconds": 2 * LIFETIME, "name": "long"})
    message = await client.message()
    assert "Session ended" in message["error"]["message"]
    await client.stream.ended()
    assert now() - began == pytest.approx(LIFETIME, abs=1)
    assert not client.stream.sent[-1]["more_body"]
    await settle()
    assert (shop.over, shop.stopped) == ([("expired", 0)], ["long"])


@virtual_time
async def test_a_stream_without_a_session_ends_after_its_time_too(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    await client.open()
    began = now()
    await client.stream.ended()
    assert now() - began == pytest.approx(LIFETIME, abs=1)


@virtual_time
async def test_a_client_that_does_not_read_does_not_outlive_its_time(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    began = now()
    await client.connect()
    client.stream.gate.clear()
    for _ in range(3):
        await client.begin_call("echo", {"text": "x" * MIB})
    await client.stream.ended()
    assert now() - began <= LIFETIME + 2 * LAST_WORDS + 1
    assert shop.over == [("expired", 0)]


# A client that does not read


@virtual_time
async def test_what_is_not_read_waits_and_all_of_it_comes_in_order(shop: Shop) -> None:
    """Answers are never lost, however large, and the notes of a call come before its answer."""
    async with connected(make_app(shop)) as client:
        client.stream.gate.clear()
        for number in range(8):
            await client.begin_call("echo", {"text": f"{number}{'x' * MIB}"})
        await client.begin_call("count", {"to": 100}, token=1)
        await settle()
        client.stream.gate.set()
        said = texts([await client.message() for _ in range(8)])
        assert [(each[0], len(each)) for each in said] == [(str(number), MIB + 1) for number in range(8)]
        *notes, answer = texts([await client.message() for _ in range(201)])
        assert answer == "counted"
        assert notes == [number for number in range(1, 101) for _ in "pl"]


@virtual_time
async def test_a_talkative_tool_and_a_client_that_does_not_read_cost_bounded_memory(shop: Shop) -> None:
    """Progress coalesces and logs are dropped, in the exchange of the call."""

    @shop.server.tool
    async def babble(ctx: Context) -> str:
        for number in range(20_000):
            ctx.progress(number)
            ctx.log("info", "x" * 1000)
            if number % 100 == 0:
                await asyncio.sleep(0)
        return "phew"

    async with connected(make_app(shop)) as client:
        client.stream.gate.clear()
        await client.begin_call("babble", token=1)
        await settle()
        client.stream.gate.set()
        while text(message := await client.message()) != "phew":
            pass
        assert len(client.stream.body) < 4 * SOFT_CAP
        assert "result" in message


@virtual_time
async def test_a_call_that_says_more_than_its_client_reads_is_stopped_and_told_so(shop: Shop) -> None:
    """What neither coalesces nor may be dropped: questions."""

    @shop.server.tool
    async def nag(ctx: Context) -> str:
        assert ctx.session is not None
        asking = [ctx.session.ask("roots/list", {"why": "x" * SOFT_CAP}, exchange=ctx.exchange) for _ in range(2 * HARD_CAP // SOFT_CAP)]
        try:
            await asyncio.gather(*asking, return_exceptions=True)
        except asyncio.CancelledError:
            shop.stopped.append("nag")
            raise
        return "enough"

    async with connected(make_app(shop)) as client:
        client.stream.gate.clear()
        await client.begin_call("echo", {"text": "x" * 2 * SOFT_CAP})
        await settle()
        await client.begin_call("echo", {"text": "x" * 2 * SOFT_CAP})
        request_id = await client.begin_call("nag")
        await settle()
        assert shop.stopped == ["nag"]
        client.stream.gate.set()
        while (message := await client.message()).get("id") != request_id:
            pass
        assert "waited unread" in message["error"]["message"]


@virtual_time
async def test_answers_that_a_client_does_not_read_are_bounded_in_bytes_too(shop: Shop) -> None:
    """A07: a small request can have a large answer, and answers are never dropped."""

    @shop.server.resource("shop://atlas")
    async def atlas() -> str:
        return "x" * MIB

    async with connected(make_app(shop)) as client:
        client.stream.gate.clear()
        fits = MAX_UNREAD // MIB
        for _ in range(fits + 4):
            await client.begin("resources/read", {"uri": "shop://atlas"})
            await settle()
        client.stream.gate.set()
        answers = [await client.message() for _ in range(fits + 4)]
        refused = [answer["error"]["code"] for answer in answers if "error" in answer]
        assert refused == [-32603] * len(refused)
        assert 1 <= len(refused) <= 4
        assert (await client.request("ping"))["result"] == {}


@virtual_time
async def test_pushes_to_a_client_that_does_not_read_end_its_stream(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(shop)
    client = SseClient(app)
    await client.connect()
    client.stream.gate.clear()
    for _ in range(2 * HARD_CAP // 100_000 + 10):
        shop.server.broadcast(TOPIC, {"method": "notifications/message", "params": {"level": "info", "data": "x" * 100_000}})
        await settle()
    await client.stream.ended()
    assert sum(len(event.get("body", b"")) for event in client.stream.sent) < 2 * HARD_CAP
    assert "does not read" in caplog.text
    await settle()
    assert shop.over == [("closed", 0)]
    async with connected(app) as another:
        assert await another.call("echo", text="on") == "on"


@virtual_time
async def test_a_flood_of_requests_from_a_client_that_does_not_read_ends_its_stream(shop: Shop) -> None:
    client = SseClient(make_app(shop))
    await client.connect()
    client.stream.gate.clear()
    statuses: list[int] = []
    while 404 not in statuses:
        message = {"jsonrpc": "2.0", "id": f"{len(statuses):01000d}", "method": "ping"}
        statuses.append((await client.post(message)).status)
        assert len(statuses) * 1000 < 2 * HARD_CAP
    assert statuses.count(202) == len(statuses) - 1
    await client.stream.ended()


# Ends


@virtual_time
async def test_a_client_that_leaves_ends_its_session_and_cancels_its_calls(shop: Shop) -> None:
    """Whatever `cancel_on_disconnect` says: nobody can come back for the answers."""
    async with connected(make_app(shop, cancel_on_disconnect="never")) as client:
        assert await client.call("add") == "1"
        await client.begin_call("nap", {"seconds": 1000, "name": "a"})
        await client.begin_call("add_slowly", {"seconds": 1000, "name": "b"})
        await settle()
    await settle()
    assert (shop.over, sorted(shop.stopped)) == ([("closed", 1)], ["a", "b"])


@virtual_time
async def test_a_connection_that_breaks_ends_the_session(shop: Shop) -> None:
    """ASGI: send raises when the client is gone."""
    client = SseClient(make_app(shop))
    await client.connect()
    client.stream.severed = True
    await client.begin_call("echo", {"text": "x"})
    await client.stream.ended()
    await settle()
    assert shop.over == [("closed", 0)]


@virtual_time
async def test_a_task_that_is_cancelled_ends_the_session(shop: Shop) -> None:
    """Servers cancel the task of a stream that is reset (h2)."""
    client = SseClient(make_app(shop))
    await client.connect()
    await client.begin_call("nap", {"seconds": 1000, "name": "long"})
    await settle()
    client.stream.gate.clear()
    await client.begin_call("echo", {"text": "x"})
    await settle()
    client.stream.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.stream.ended()
    await settle()
    assert (shop.over, shop.stopped) == ([("closed", 0)], ["long"])
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_a_draining_server_ends_a_stream_when_its_calls_are_answered(shop: Shop) -> None:
    app = make_app(shop)
    idle, bare, busy = SseClient(app), SseClient(app), SseClient(app)
    await idle.connect()
    await bare.open()
    await busy.connect()
    await busy.begin_call("nap", {"seconds": 3})
    await settle()
    beside = (await Legacy(app).connect()).start_listening()
    await settle()
    app.endpoint.drain()
    assert (await beside.end()).status == 200
    await idle.stream.ended()
    await bare.stream.ended()
    assert (await busy.request("ping"))["error"]["code"] == -32603
    refused = SseClient(app).get()
    await refused.ended()
    assert refused.sent[0]["status"] == 503
    assert text(await busy.message()) == "rested"
    await busy.stream.ended()
    await app.endpoint.close()
    assert shop.over == [("shutdown", 0)] * 3


@virtual_time
async def test_what_a_client_has_yet_to_read_is_written_before_a_draining_server_ends_its_stream(shop: Shop) -> None:
    @shop.server.tool
    async def recite(ctx: Context) -> str:
        for line in "cd":
            ctx.log("info", line * (SOFT_CAP - 100))
        return "end"

    app = make_app(shop)
    client = SseClient(app)
    await client.connect()
    client.stream.gate.clear()
    for letter in "ab":
        await client.begin_call("echo", {"text": letter * 2 * SOFT_CAP})
        await settle()
    await client.begin_call("recite")
    await settle()
    client.stream.gate.set()
    client.stream.gate.clear()  # the client reads the first answer
    await settle()
    app.endpoint.drain()
    await settle()
    client.stream.gate.set()
    assert [said[0] for said in texts([await client.message() for _ in range(5)])] == ["a", "b", "c", "d", "e"]
    await client.stream.ended()


@virtual_time
async def test_a_client_that_does_not_read_the_end_does_not_hold_the_server_up(shop: Shop) -> None:
    app = make_app(shop)
    client = SseClient(app)
    await client.connect()
    client.stream.gate.clear()
    began = now()
    await app.endpoint.close()
    await client.stream.ended()
    assert now() - began <= LAST_WORDS + 1


@virtual_time
async def test_a_server_that_closes_ends_every_stream(shop: Shop) -> None:
    app = make_app(shop)
    client = SseClient(app)
    await client.connect()
    await client.begin_call("nap", {"seconds": 1000, "name": "long"})
    await settle()
    await app.endpoint.close()
    assert "Session ended" in (await client.message())["error"]["message"]
    await client.stream.ended()
    assert (shop.over, shop.stopped) == ([("shutdown", 0)], ["long"])


@virtual_time
async def test_a_session_that_is_deleted_takes_its_stream_along(shop: Shop) -> None:
    """Its id is no secret of this transport: functions see it, and its owner may use it at the endpoint too."""
    app = make_app(shop)
    client = SseClient(app)
    await client.connect()
    session = Legacy(app).sessionless()
    session.id = json.loads(await client.call("who"))["session"]
    assert (await session.call("add")).text == "1"
    assert (await session.delete()).status == 204
    await client.stream.ended()
    assert shop.over == [("deleted", 1)]


@virtual_time
async def test_nothing_is_left_of_a_stream_that_has_ended(shop: Shop) -> None:
    """Neither tasks nor timers, and nothing that waits for the garbage collector."""
    app = make_app(shop)
    gc.collect()
    gc.disable()
    of_other_tests = {id(thing) for thing in gc.get_objects() if isinstance(thing, SseStream | Exchange | Actor)}
    try:
        for _ in range(3):
            async with connected(app) as client:
                await client.begin_call("nap", {"seconds": 1000})
                assert await client.call("echo", text="x") == "x"
                await client.begin_call("count", {"to": 3}, token=1)
                assert texts([await client.message() for _ in range(7)])[-1] == "counted"
            del client
        await settle()
        await settle()
        known = [thing for thing in gc.get_objects() if isinstance(thing, SseStream | Exchange | Actor)]
        left = [type(thing).__name__ for thing in known if id(thing) not in of_other_tests]
    finally:
        gc.enable()
    assert left == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(shop.over) == 3
