"""Batches: 2025-03-26 has them, nothing after it."""

import asyncio
from typing import Any

import pytest
from legacy_driver import V03, V06, V11, Answer, Legacy, Session
from shop import Shop
from virtual_time import now, settle, virtual_time

from callboard import asgi
from callboard.limits import Limits


@pytest.fixture
def shop() -> Shop:
    return Shop()


NOTIFICATION = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}


async def opened(shop: Shop, **options: Any) -> Session:
    """A session of the version that has batches."""
    return await Legacy(asgi(shop.server, **options), V03).connect()


def is_refused(answer: Answer) -> bool:
    """Whether it was refused as a whole."""
    return (answer.status, answer.error["code"], answer.message.get("id")) == (400, -32600, None)


@virtual_time
async def test_every_request_of_a_batch_has_its_answer_in_one_array(shop: Shop) -> None:
    """HL-03, JR-18, SA04."""
    session = await opened(shop)
    batch = [
        session.make("ping", request_id="p"),
        session.make_call("echo", {"text": "x"}, request_id=2),
        session.make("x/y", request_id=3),
    ]
    answer = await session.post([*batch, NOTIFICATION])
    assert (answer.status, answer.is_batch) == (200, True)
    assert answer.by_id["p"]["result"] == {}
    assert answer.by_id[2]["result"]["content"][0]["text"] == "x"
    assert answer.by_id[3]["error"]["code"] == -32601
    assert len(answer.messages) == 3


@virtual_time
async def test_a_batch_of_one_is_answered_by_an_array_of_one(shop: Shop) -> None:
    session = await opened(shop)
    answer = await session.post([session.make("ping", request_id=1)])
    assert answer.is_batch
    assert answer.by_id[1]["result"] == {}


@virtual_time
async def test_a_batch_that_needs_no_answer_gets_none(shop: Shop) -> None:
    """HL-03, HL-04."""
    session = await opened(shop)
    answer = await session.post([NOTIFICATION, NOTIFICATION])
    assert (answer.status, answer.body) == (202, b"")


@virtual_time
async def test_its_calls_take_their_turns_in_its_order(shop: Shop) -> None:
    """Scenario 1 and 7, in a batch."""
    session = await opened(shop)
    answer = await session.post([session.make_call("add_slowly", {"seconds": 1, "name": str(n)}, request_id=n) for n in (1, 2, 3)])
    assert [answer.by_id[n]["result"]["content"][0]["text"] for n in (1, 2, 3)] == ["1", "2", "3"]
    assert shop.ran == ["1", "2", "3"]


@virtual_time
async def test_its_calls_that_take_no_state_run_side_by_side(shop: Shop) -> None:
    session = await opened(shop)
    began = now()
    answer = await session.post([session.make_call("nap", {"seconds": 1}, request_id=n) for n in range(20)])
    assert len(answer.messages) == 20
    assert now() - began == pytest.approx(1)


@virtual_time
async def test_progress_in_a_batch_spoils_nothing(shop: Shop) -> None:
    session = await opened(shop)
    answer = await session.post([session.make_call("count", {"to": 3}, request_id=n, token=n) for n in (1, 2)])
    finals = [message for message in answer.messages if "id" in message]
    assert sorted(message["id"] for message in finals) == [1, 2]


@virtual_time
async def test_one_that_fails_leaves_the_others_alone(shop: Shop) -> None:
    session = await opened(shop)
    tools = ["add", "crash", "add_and_refuse", "nothing", "add"]
    answer = await session.post([session.make_call(tool, request_id=n) for n, tool in enumerate(tools)])
    assert [answer.by_id[n].get("error", {}).get("code") for n in range(5)] == [None, -32603, None, -32602, None]
    assert answer.by_id[4]["result"]["content"][0]["text"] == "3"


@virtual_time
async def test_what_is_no_message_is_an_error_without_disturbing_the_rest(shop: Shop) -> None:
    """JSON-RPC 2.0: an answer for each that is none, with the id where it can be read."""
    session = await opened(shop)
    answer = await session.post([1, {"jsonrpc": "2.0", "id": 7}, [], session.make("ping", request_id=1)])
    assert (answer.status, answer.is_batch) == (200, True)
    assert [message["result"] for message in answer.messages if "result" in message] == [{}]
    errors = [message for message in answer.messages if "error" in message]
    assert [error["error"]["code"] for error in errors] == [-32600] * 3
    assert sorted(str(error.get("id")) for error in errors) == ["7", "None", "None"]


@virtual_time
async def test_ids_in_a_batch_are_taken_while_they_are_in_flight(shop: Shop) -> None:
    """SA24."""
    session = await opened(shop)
    answer = await session.post([session.make_call("nap", {"seconds": 1}, request_id=1), session.make("ping", request_id=1)])
    assert len(answer.messages) == 2
    assert [message["id"] for message in answer.messages] == [1, 1]
    assert sorted("error" in message for message in answer.messages) == [False, True]


@virtual_time
async def test_one_that_is_cancelled_has_no_answer_among_the_others(shop: Shop) -> None:
    """Scenario 13; CN-04."""
    session = await opened(shop)
    exchange = session.start([session.make_call("nap", {"seconds": 5}, request_id=n) for n in (1, 2)])
    await settle()
    assert (await session.cancel(1)).status == 202
    answer = await exchange.end()
    assert [message["id"] for message in answer.messages] == [2]


@virtual_time
async def test_a_batch_whose_calls_are_all_cancelled_ends_without_an_answer(shop: Shop) -> None:
    session = await opened(shop)
    exchange = session.start([session.make_call("nap", {"seconds": 5}, request_id=n) for n in (1, 2)])
    await settle()
    assert (await session.post([_cancellation(1), _cancellation(2)])).status == 202
    answer = await exchange.end()
    assert (answer.status, answer.body) == (202, b"")


def _cancellation(request_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}


@virtual_time
async def test_a_batch_has_the_time_limit_of_its_requests(shop: Shop) -> None:
    """Scenarios 9 and 10."""
    session = await opened(shop, request_timeout=1)
    began = now()
    calls = [session.make_call("add_slowly", {"seconds": 1.5}, request_id=n) for n in (1, 2)]
    answer = await session.post([*calls, session.make("ping", request_id=3)])
    assert now() - began == pytest.approx(1)
    assert [answer.by_id[n].get("error", {}).get("code") for n in (1, 2, 3)] == [-32603, -32603, None]
    await asyncio.sleep(5)
    assert (await session.call("look")).text == "1"


@virtual_time
async def test_delete_answers_a_batch_that_waits(shop: Shop) -> None:
    """Scenario 16."""
    session = await opened(shop)
    exchange = session.start([session.make_call("nap", {"seconds": 50}, request_id=n) for n in (1, 2)])
    await settle()
    assert (await session.delete()).status == 204
    answer = await exchange.end()
    assert [message["error"]["code"] for message in answer.messages] == [-32603, -32603]


@virtual_time
async def test_initialize_has_no_place_in_a_batch(shop: Shop) -> None:
    """JR-19: no session comes of it, with or without one that is there."""
    session = await opened(shop, limits=Limits(max_sessions=2))
    message = session.make(
        "initialize", {"protocolVersion": V03, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}, request_id=1
    )
    inside = await session.post([message, session.make("ping", request_id=2)])
    refused = [message for message in inside.messages if "error" in message]
    assert [message["error"]["code"] for message in refused] == [-32600]
    outside = await session.client.sessionless().post([message])
    assert outside.status == 400
    assert "mcp-session-id" not in inside.headers.keys() | outside.headers.keys()
    await session.client.connect()


@virtual_time
async def test_an_empty_batch_is_refused(shop: Shop) -> None:
    """SA04."""
    session = await opened(shop)
    assert is_refused(await session.post([]))


@virtual_time
async def test_a_batch_is_bounded(shop: Shop) -> None:
    session = await opened(shop)
    answer = await session.post([session.make("ping", request_id=n) for n in range(5000)])
    assert answer.status in {200, 400}
    if answer.status == 400:
        assert is_refused(answer)
    assert (await session.request("ping")).result == {}


@pytest.mark.parametrize("version", [V06, V11])
@pytest.mark.parametrize("empty", [True, False])
@virtual_time
async def test_later_versions_have_no_batches(shop: Shop, version: str, empty: bool) -> None:
    """JR-20, SA04."""
    session = await Legacy(asgi(shop.server), version).connect()
    answer = await session.post([] if empty else [session.make_call("add", request_id=1), NOTIFICATION])
    assert is_refused(answer)
    assert (await session.call("look")).text == "0"


@virtual_time
async def test_a_batch_without_a_session_is_refused(shop: Shop) -> None:
    session = Legacy(asgi(shop.server), V03).sessionless()
    assert is_refused(await session.post([session.make("ping", request_id=1)]))
    dead = Session(session.client, "b9f3c51d7a0e", V03)
    answer = await dead.post([session.make("ping", request_id=1)])
    assert (answer.status, answer.error["code"]) == (404, -32600)
