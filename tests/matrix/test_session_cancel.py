"""How calls of a session end before their time: cancelled, deserted, deleted, killed."""

import asyncio
import logging
from typing import Any

import pytest
from legacy_driver import V03, V06, V11, VERSIONS, Answer, Exchange, Legacy, ends
from shop import Shop
from virtual_time import now, settle, virtual_time

from callboard import asgi

STREAMS = [pytest.param(V03, id="03"), pytest.param(V06, id="06"), pytest.param(V11, id="11")]


@pytest.fixture
def shop() -> Shop:
    return Shop()


def is_unanswered(answer: Answer) -> bool:
    """Whether a buffered call ended without a JSON-RPC message (CN-04): HTTP needs a status all the same."""
    return (answer.status, answer.body) == (202, b"")


# By notification


@pytest.mark.parametrize("tool", ["add_slowly", "nap"])
@virtual_time
async def test_a_running_call_that_is_cancelled_is_stopped_and_has_no_answer(shop: Shop, tool: str) -> None:
    """Scenario 13, running; CN-04."""
    session = await Legacy(asgi(shop.server)).connect()
    began = now()
    call = session.begin(tool, {"seconds": 5, "name": "it"}, request_id=1)
    await settle()
    assert (await session.cancel(1)).status == 202
    assert is_unanswered(await call.end())
    assert shop.stopped == ["it"]
    assert now() - began < 0.01
    assert (await session.call("look")).text == "0"


@virtual_time
async def test_what_a_cancelled_call_did_is_dropped_and_the_next_one_runs(shop: Shop) -> None:
    """Scenario 13, running: the next in the queue starts at once, on what was there before."""
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    began = now()
    first = session.begin("add_slowly", {"seconds": 5}, request_id=11)
    second = session.begin("add_slowly", {"seconds": 1}, request_id=12)
    await settle()
    await session.cancel(11)
    assert is_unanswered(await first.end())
    assert (await second.end()).text == "2"
    assert now() - began == pytest.approx(1)


@virtual_time
async def test_a_queued_call_that_is_cancelled_never_runs(shop: Shop) -> None:
    """Scenario 13, queued."""
    session = await Legacy(asgi(shop.server)).connect()
    first = session.begin("add_slowly", {"seconds": 1, "name": "first"}, request_id=1)
    second = session.begin("add_slowly", {"seconds": 1, "name": "second"}, request_id=2)
    third = session.begin("add_slowly", {"seconds": 1, "name": "third"}, request_id=3)
    await settle()
    assert (await session.cancel(2)).status == 202
    assert is_unanswered(await second.end())
    assert [answer.text for answer in await ends([first, third])] == ["1", "2"]
    assert (shop.ran, shop.stopped) == (["first", "third"], [])


@pytest.mark.parametrize("version", STREAMS)
@virtual_time
async def test_a_stream_whose_call_is_cancelled_ends_without_an_answer(shop: Shop, version: str) -> None:
    """Scenario 13, streaming."""
    session = await Legacy(asgi(shop.server), version).connect()
    async with session.open("report", {"seconds": 5}, request_id=1) as stream:
        await stream.message()
        assert (await session.cancel(1)).status == 202
        answer = await stream.end()
    assert (answer.status, [message["method"] for message in answer.messages]) == (200, ["notifications/progress"])
    assert shop.stopped == ["report"]


@pytest.mark.parametrize(
    "params",
    [
        {"requestId": 77},
        {"requestId": "1", "reason": "x"},
        {"requestId": 1.5},
        {"requestId": None},
        {"requestId": []},
        {"requestId": True},
        {},
        None,
        {"requestId": 10**30},
    ],
)
@virtual_time
async def test_a_cancellation_of_nothing_is_accepted_and_does_nothing(shop: Shop, params: dict[str, Any] | None) -> None:
    """Scenarios 13 and 14: unknown ids, ids of another type, and what is no id (`true` is not `1`, A25)."""
    session = await Legacy(asgi(shop.server)).connect()
    call = session.begin("nap", {"seconds": 1}, request_id=1)
    answer = await session.notify("notifications/cancelled", params)
    assert answer.status in {202, 400}
    if params is not None and type(params.get("requestId")) in {int, str}:
        assert answer.status == 202
    assert (await call.end()).text == "rested"
    assert shop.stopped == []


@virtual_time
async def test_a_text_and_a_number_are_two_ids(shop: Shop) -> None:
    """Scenario 14, both in flight at once; A25."""
    session = await Legacy(asgi(shop.server)).connect()
    number = session.begin("nap", {"seconds": 1, "name": "number"}, request_id=1)
    text = session.begin("nap", {"seconds": 1, "name": "text"}, request_id="1")
    await settle()
    await session.cancel("1")
    assert is_unanswered(await text.end())
    assert (await number.end()).message["id"] == 1
    assert shop.stopped == ["text"]


@pytest.mark.parametrize("turns", range(4))
@virtual_time
async def test_who_comes_back_for_a_call_as_it_is_cancelled_is_not_told_that_something_was_accepted(shop: Shop, turns: int) -> None:
    """HL-18: 202 answers a POST; a GET is a stream, or it is refused."""
    session = await Legacy(asgi(shop.server, cancel_on_disconnect="never"), V11).connect()
    async with session.open("report", {"seconds": 100}, request_id="c") as first:
        await first.message()
    back = session.start_listening(first.last_id)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert (await session.cancel("c")).status == 202
    answer = await back.end()
    assert (answer.status, answer.is_empty) in {(200, True), (400, True)}
    assert shop.stopped == ["report"]


@virtual_time
async def test_a_cancellation_of_what_is_over_does_nothing_and_the_id_can_be_used_again(shop: Shop) -> None:
    """Scenario 13; CN-06."""
    session = await Legacy(asgi(shop.server)).connect()
    for _ in range(3):
        assert (await session.call("echo", {"text": "x"}, request_id=1)).text == "x"
        assert (await session.cancel(1)).status == 202
    call = session.begin("nap", {"seconds": 5}, request_id=1)
    await session.cancel(1)
    await call.end()
    assert (await session.cancel(1)).status == 202
    assert (await session.call("echo", {"text": "x"}, request_id=1)).text == "x"


@virtual_time
async def test_a_session_can_not_cancel_what_another_one_does(shop: Shop) -> None:
    """A10."""
    app = asgi(shop.server)
    first, second = await Legacy(app).connect(), await Legacy(app).connect()
    call = first.begin("nap", {"seconds": 1}, request_id=1)
    await settle()
    assert (await second.cancel(1)).status == 202
    assert (await call.end()).text == "rested"


@virtual_time
async def test_a_function_that_does_not_end_when_it_is_cancelled_holds_nobody_up(shop: Shop) -> None:
    """The caller is free at once, and the next call waits only for the function itself."""
    session = await Legacy(asgi(shop.server)).connect()
    call = session.begin("hold", {}, request_id=1)
    await asyncio.sleep(1)
    began = now()
    await session.cancel(1)
    assert is_unanswered(await call.end())
    assert now() - began < 0.01
    assert (await session.call("echo", {"text": "x"})).text == "x"
    shop.release.set()
    assert (await session.call("add")).text == "1", "what the thread did after it was cancelled is dropped"


@pytest.mark.parametrize("turns", range(30))
@virtual_time
async def test_however_an_answer_and_its_cancellation_race_there_is_one_end(shop: Shop, turns: int) -> None:
    """A11, CN-06."""
    session = await Legacy(asgi(shop.server)).connect()
    call = session.begin("count", {"to": 3}, request_id=1, token="t")
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelling = asyncio.create_task(session.cancel(1))
    answer = await call.end()
    assert (await cancelling).status == 202
    assert [("result" in message or "error" in message) for message in answer.messages].count(True) <= 1
    assert (await session.call("echo", {"text": "x"}, request_id=1)).text == "x"


@pytest.mark.parametrize("tool", ["add_slowly", "nap"])
@virtual_time
async def test_where_it_is_asked_for_a_cancelled_call_is_answered(shop: Shop, tool: str) -> None:
    """`reply_on_cancel`, of a buffered call; a stream ends without an answer as ever."""
    session = await Legacy(asgi(shop.server, reply_on_cancel=True)).connect()
    call = session.begin(tool, {"seconds": 5}, request_id=1)
    queued = session.begin("add_slowly", {"seconds": 5}, request_id=2)
    await settle()
    await session.cancel(2)
    await session.cancel(1)
    for answer in await ends([call, queued]):
        assert (answer.status, answer.error["code"]) == (200, -32603)
        assert "cancelled" in answer.error["message"].lower()


# By leaving


async def leave(stream: Exchange) -> None:
    """The client goes away; the application must be done with it at once."""
    began = now()
    await stream.drop()
    assert now() - began < 1


@pytest.mark.parametrize("policy", [{}, {"cancel_on_disconnect": "streaming"}, {"cancel_on_disconnect": "always"}])
@virtual_time
async def test_leaving_a_stream_cancels_its_call(shop: Shop, policy: dict[str, Any]) -> None:
    """Scenario 15: within a second, and nothing is left; the default of DESIGN section 6."""
    session = await Legacy(asgi(shop.server, **policy)).connect()
    tasks = asyncio.all_tasks()
    async with session.open("report", {"seconds": 50}, request_id=1) as stream:
        await stream.message()
        await leave(stream)
        await asyncio.sleep(0.5)
        assert shop.stopped == ["report"]
    assert asyncio.all_tasks() == tasks
    assert (await session.call("echo", {"text": "x"}, request_id=1)).text == "x"


@virtual_time
async def test_where_a_connection_is_not_the_call_it_goes_on_and_its_answer_can_be_fetched(shop: Shop) -> None:
    """HL-07: `never`."""
    session = await Legacy(asgi(shop.server, cancel_on_disconnect="never"), V11).connect()
    async with session.open("report", {"seconds": 5}, request_id=1) as stream:
        await stream.message()
        await leave(stream)
        await asyncio.sleep(6)
        assert shop.stopped == []
        rest = await session.get(stream.last_id)
    assert [message["params"]["progress"] for message in rest.notes] == [2]
    assert (rest.message["id"], rest.text) == (1, "reported")


@pytest.mark.parametrize("policy", [{}, {"cancel_on_disconnect": "streaming"}, {"cancel_on_disconnect": "never"}])
@virtual_time
async def test_leaving_before_anything_came_does_not_cancel(shop: Shop, policy: dict[str, Any]) -> None:
    """Only streams are watched; the state of the work is kept."""
    session = await Legacy(asgi(shop.server, **policy)).connect()
    call = session.begin("add_slowly", {"seconds": 2})
    await asyncio.sleep(0.2)
    await leave(call)
    await asyncio.sleep(2)
    assert shop.stopped == []
    assert (await session.call("look")).text == "1"


@virtual_time
async def test_leaving_before_anything_came_cancels_where_it_always_does(shop: Shop) -> None:
    """The policy `always`."""
    session = await Legacy(asgi(shop.server, cancel_on_disconnect="always")).connect()
    call = session.begin("add_slowly", {"seconds": 20, "name": "it"})
    queued = session.begin("add_slowly", {"seconds": 20, "name": "queued"})
    await asyncio.sleep(0.2)
    await leave(queued)
    await leave(call)
    await asyncio.sleep(0.5)
    assert (shop.ran, shop.stopped) == (["it"], ["it"])
    assert (await session.call("look")).text == "0"


# By the end of the session


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_delete_answers_or_closes_all_that_waits(shop: Shop, version: str) -> None:
    """Scenario 16."""
    session = await Legacy(asgi(shop.server), version).connect()
    await session.call("add")
    running = session.begin("add_slowly", {"seconds": 50, "name": "running"}, request_id="r")
    queued = session.begin("add_slowly", {"seconds": 50, "name": "queued"}, request_id="q")
    napping = session.begin("nap", {"seconds": 50, "name": "napping"}, request_id="n")
    async with session.open("report", {"seconds": 50}) as stream, session.listen() as channel, session.listen() as second:
        await stream.message()
        began = now()
        assert (await session.delete()).status == 204
        for call, request_id in ((running, "r"), (queued, "q"), (napping, "n")):
            answer = await call.end()
            assert (answer.status, answer.message["id"], answer.error["code"]) == (200, request_id, -32603)
            assert "ended" in answer.error["message"].lower()
        assert [message["method"] for message in (await stream.end()).messages] == ["notifications/progress"]
        assert (await channel.end()).is_empty
        assert (await second.end()).is_empty
        assert now() - began < 0.01
    assert shop.over == [("deleted", 1)]
    assert sorted(shop.stopped) == ["napping", "report", "running"]
    assert (await session.request("ping")).status == 404
    await asyncio.sleep(100)
    assert shop.over == [("deleted", 1)]


@virtual_time
async def test_delete_and_call_at_once_is_one_or_the_other(shop: Shop) -> None:
    """Lookup race: a session that dies under a request is 404 or ended, never a crash; also one racing the set-up."""
    client = Legacy(asgi(shop.server))
    for turns in range(12):
        session = await client.connect()
        calls = [session.begin("add_slowly", {"seconds": 1}), session.begin("count", {"to": 3}, token="t"), session.start_listening()]
        for _ in range(turns):
            await asyncio.sleep(0)
        assert (await session.delete()).status == 204
        for answer in await ends(calls):
            assert answer.status in {200, 404}
    assert shop.over == [("deleted", 0)] * 12


@virtual_time
async def test_two_deletes_at_once_end_it_once(shop: Shop) -> None:
    """A08."""
    session = await Legacy(asgi(shop.server)).connect()
    answers = await asyncio.gather(*(session.delete() for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [204, 404, 404, 404, 404]
    assert shop.over == [("deleted", 0)]


# By violence


@pytest.mark.parametrize("token", [None, "t"])
@virtual_time
async def test_a_call_whose_task_is_killed_is_answered_and_the_session_goes_on(
    shop: Shop, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario 17, worker killed: whoever did it, the caller hears of it and the next call has its turn."""
    session = await Legacy(asgi(shop.server)).connect()
    caplog.set_level(logging.ERROR)
    others = asyncio.all_tasks()
    call = session.begin("report" if token else "add_slowly", {"seconds": 5}, token=token)
    following = session.begin("add_slowly", {"seconds": 0})
    await asyncio.sleep(0.5)
    for task in asyncio.all_tasks() - others - {call.task, following.task}:
        task.cancel()
    answers = await ends([call, following])
    assert answers[0].status == 200
    assert answers[0].error["code"] == -32603
    assert (await session.call("add")).text in {"1", "2"}


@virtual_time
async def test_the_id_of_a_call_in_flight_is_taken(shop: Shop) -> None:
    """SA24."""
    session = await Legacy(asgi(shop.server)).connect()
    call = session.begin("nap", {"seconds": 1}, request_id=1)
    queued = session.begin("add_slowly", {"seconds": 1, "name": "queued"}, request_id="q")
    await settle()
    for request_id in (1, "q"):
        answer = await session.call("echo", {"text": "x"}, request_id=request_id)
        assert (answer.status, answer.message["id"], answer.error["code"]) == (400, request_id, -32600)
    assert shop.ran == ["", "queued"]
    assert (await call.end()).text == "rested"
    assert (await queued.end()).text == "1"
    assert (await session.call("echo", {"text": "x"}, request_id=1)).text == "x"
