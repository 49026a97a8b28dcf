"""Answers that stream: progress, logs, keep-alive, cancellation, slow readers."""

import asyncio
from typing import Any

import pytest
from asgi_driver import Client, make_meta
from desk import Desk
from virtual_time import now, virtual_time

from callboard import Context, Server, asgi


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(asgi(desk.server))


@pytest.mark.parametrize("token", ["p9", 9, "", 0, "é"])
async def test_progress_comes_on_the_stream_of_its_request_before_the_result(client: Client, token: Any) -> None:
    # A13, PR-01, PR-02, PR-03, PR-05, HM-08, HM-09, HM-11, HM-12, HM-14, MT-10
    answer = await client.call("count", {"to": 5}, meta=make_meta(progressToken=token))
    assert answer.is_stream
    assert answer.headers["x-accel-buffering"] == "no"
    assert [note["params"] for note in answer.notes] == [
        {"progressToken": token, "progress": n, "total": 5, "message": f"step {n}"} for n in range(1, 6)
    ]
    assert answer.text == "counted"


@pytest.mark.parametrize(("level", "count"), [("debug", 5), ("info", 3), ("warning", 0)])
async def test_logs_come_at_or_above_the_level_that_was_asked_for(client: Client, level: str, count: int) -> None:
    # LG-01, LG-03
    answer = await client.call("count", {"to": 5}, meta=make_meta(logLevel=level))
    assert [note["method"] for note in answer.notes] == ["notifications/message"] * count
    assert answer.is_stream == (count > 0)
    assert answer.text == "counted"


async def test_without_being_asked_nothing_streams(client: Client) -> None:
    # LG-01, PR-02, PR-04, HM-08
    answer = await client.call("count", {"to": 5})
    assert not answer.is_stream
    assert answer.text == "counted"


async def test_an_error_after_the_stream_has_begun_is_its_last_message(client: Client) -> None:
    # HM-11, HM-19, SA35
    answer = await client.call("fail_late", meta=make_meta(progressToken=1))
    assert (answer.status, answer.is_stream, len(answer.notes)) == (200, True, 1)
    assert answer.error["code"] == -32603
    assert b"hunter2" not in answer.body


async def test_streams_carry_nothing_of_each_other(client: Client) -> None:
    # A10, JR-23, HM-09, HM-16
    answers = await asyncio.gather(
        *(client.call("count", {"to": n + 1}, request_id=1, meta=make_meta(progressToken=f"t{n}")) for n in range(20))
    )
    for n, answer in enumerate(answers):
        assert [note["params"]["progressToken"] for note in answer.notes] == [f"t{n}"] * (n + 1)


# Clients that go away


@virtual_time
async def test_closing_the_stream_cancels_the_call(desk: Desk, client: Client) -> None:
    # SA25, HM-15, CN-04, PR-04
    async with client.open("tools/call", {"name": "hang"}, meta=make_meta(progressToken=1)) as stream:
        await stream.message()
        started = now()
        stream.disconnect()
        await stream.gone()
        assert now() == started, "at once"
        assert desk.ended == ["cancelled"]
        sent = len(stream.sent)
        await asyncio.sleep(0)
        assert len(stream.sent) == sent


@virtual_time
async def test_closing_before_anything_came_cancels_the_call_too(desk: Desk, client: Client) -> None:
    # SA25, HM-15
    async with client.open("tools/call", {"name": "hang"}) as stream:
        async with asyncio.timeout(5):
            await desk.started.wait()
        started = now()
        stream.disconnect()
        await stream.gone()
        assert now() - started < 0.5
        assert b"".join(message.get("body", b"") for message in stream.sent) == b""
    assert desk.ended == ["cancelled"]


async def test_a_thread_can_not_be_cancelled_but_its_request_is_free_at_once(desk: Desk, client: Client) -> None:
    # SA25, A20
    async with client.open("tools/call", {"name": "block"}) as stream:
        async with asyncio.timeout(5):
            await desk.started.wait()
        stream.disconnect()
        await stream.gone()
    mount = client.app.endpoint.mount  # type: ignore[attr-defined]
    assert mount.workers.busy == 1
    desk.release.set()
    async with asyncio.timeout(5):
        while mount.workers.busy:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_however_answer_and_departure_race_there_is_one_end_at_most(client: Client) -> None:
    # A11, CN-06
    for turns in range(60):
        async with client.open("tools/call", {"name": "count", "arguments": {"to": 3}}, meta=make_meta(progressToken=1)) as stream:
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            stream.disconnect()
            await stream.gone()
            assert stream.body.count(b'"result"') <= 1


async def test_nothing_is_left_of_those_who_left(desk: Desk, client: Client) -> None:
    # SA25, CN-04
    before = asyncio.all_tasks()
    for _ in range(20):
        desk.started.clear()
        async with client.open("tools/call", {"name": "hang"}, meta=make_meta(progressToken=1)) as stream:
            await stream.message()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert client.app._pulse._streams == {}  # type: ignore[attr-defined]


# Slow readers and floods


def make_flood() -> tuple[Server, asyncio.Event]:
    """A server whose tool sends as fast as it can, and the event that it is done."""
    server, done = Server("flood"), asyncio.Event()

    @server.tool
    async def flood(count: int, ctx: Context) -> str:
        for number in range(count):
            ctx.progress(number)
            ctx.log("info", "x" * 50)
            if number % 1000 == 0:
                await asyncio.sleep(0)
        done.set()
        return "done"

    return server, done


async def test_a_flood_reaches_a_reader_that_keeps_up() -> None:
    # SA26
    client = Client(asgi(make_flood()[0]))
    answer = await client.call("flood", {"count": 500}, meta=make_meta(progressToken=1, logLevel="info"))
    assert answer.text == "done"
    assert [note["params"]["progress"] for note in answer.notes if "progress" in note["params"]] == list(range(500))


@virtual_time
async def test_a_flood_to_a_reader_that_stops_is_bounded_and_the_result_arrives() -> None:
    # SA26, SA10
    server, done = make_flood()
    message = {"name": "flood", "arguments": {"count": 100_000}}
    async with Client(asgi(server)).open("tools/call", message, meta=make_meta(progressToken=1, logLevel="info")) as stream:
        stream.gate.clear()
        async with asyncio.timeout(10):
            await done.wait()
        stream.gate.set()
        answer = await stream.end()
    assert answer.text == "done"
    assert len(answer.body) < 2_000_000
    assert [note["params"]["progress"] for note in answer.notes if "progress" in note["params"]][-1] == 99_999


# Keep-alive


async def test_a_silent_stream_is_kept_alive(desk: Desk) -> None:
    # HM-13, A16
    client = Client(asgi(desk.server, keep_alive=0.02))
    async with client.open("tools/call", {"name": "hang"}, meta=make_meta(progressToken=1)) as stream:
        await stream.message()
        for _ in range(2):
            await stream.comment()


async def test_keep_alive_can_be_off(desk: Desk) -> None:
    app = asgi(desk.server, keep_alive=None)
    async with Client(app).open("tools/call", {"name": "hang"}, meta=make_meta(progressToken=1)) as stream:
        await stream.message()
        assert app._pulse._beating is None


# Many


async def test_a_thousand_calls_leave_nothing_behind(client: Client) -> None:
    # A09, A07
    before = asyncio.all_tasks()
    for n in range(100):
        assert (await client.call("echo", {"text": str(n)})).text == str(n)
    answers = await asyncio.gather(*(client.call("count", {"to": 2}, meta=make_meta(progressToken=n)) for n in range(200)))
    assert all(answer.text == "counted" for answer in answers)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert client.app._pulse._streams == {}  # type: ignore[attr-defined]
