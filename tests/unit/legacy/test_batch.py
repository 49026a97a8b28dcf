"""Several messages in one body, as a session answers them."""

import asyncio
import json
from typing import Any

import pytest
from legacy_driver import V03, V06, V11
from shop import Shop
from unit.legacy.lobby import Ask, lobby, make_call, read, text
from virtual_time import now, settle, virtual_time

from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor
from callboard.legacy.batch import MAX_BATCH, answer_batch
from callboard.wire.jsonrpc import Batch

ROOTS = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}


def batch(*messages: Any) -> Batch:
    found = read(list(messages))
    assert isinstance(found, Batch)
    return found


def request(method: str, request_id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def tool(name: str, request_id: Any = 1, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", request_id, name=name, arguments=arguments)


async def answers(actor: Actor, *messages: Any) -> list[Any]:
    """Responses, in order."""
    answer = await answer_batch(actor, batch(*messages))
    assert isinstance(answer, bytes)
    found: list[Any] = json.loads(answer) if answer else []
    return found


@virtual_time
async def test_responses_stand_in_the_order_of_their_requests_whichever_is_ready_first() -> None:
    """JR-18."""
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        began = now()
        found = await answers(actor, tool("nap", "slow", seconds=2), ROOTS, tool("nap", 2, seconds=1), request("ping", 3))
        assert [response["id"] for response in found] == ["slow", 2, 3]
        assert now() - began == pytest.approx(2)
        assert actor.machine.idle


@virtual_time
async def test_calls_that_take_the_state_have_their_turns_in_its_order() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        found = await answers(actor, *(tool("add_slowly", number, seconds=1) for number in range(3)))
        assert [response["result"]["content"][0]["text"] for response in found] == ["1", "2", "3"]


@virtual_time
async def test_what_needs_no_answer_gets_none() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        assert await answer_batch(actor, batch(ROOTS, {"jsonrpc": "2.0", "id": 9, "result": {}})) == b""


@virtual_time
async def test_what_is_no_message_is_answered_where_it_stands() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        found = await answers(
            actor, 5, request("ping", 1), [request("ping", 2)], {"jsonrpc": "2.0", "id": 3, "method": 7}, request("x/y", 4)
        )
        assert [(response["id"], response.get("error", {}).get("code")) for response in found] == [
            (None, -32600),
            (1, None),
            (None, -32600),
            (3, -32600),
            (4, -32601),
        ]


@virtual_time
async def test_an_id_counts_in_its_batch_and_outside_of_it() -> None:
    """SA24."""
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        Ask(actor, make_call("nap", 1, seconds=1))
        found = await answers(
            actor, tool("echo", 1, text="x"), tool("echo", 2, text="x"), tool("echo", 2, text="y"), tool("echo", "2", text="z")
        )
        assert [response.get("error", {}).get("code") for response in found] == [-32600, None, -32600, None]


@virtual_time
async def test_notes_of_a_batch_are_left_out() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        found = await answers(
            actor, {**tool("count", 1, to=3), "params": {"name": "count", "arguments": {"to": 3}, "_meta": {"progressToken": 1}}}
        )
        assert [response["result"]["content"][0]["text"] for response in found] == ["counted"]
        assert actor.machine.find("c1-1") is None


@virtual_time
async def test_a_request_of_a_batch_can_be_cancelled() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        answering = asyncio.create_task(answers(actor, tool("nap", 1, seconds=1), tool("nap", 2, seconds=1)))
        await settle()
        actor.cancel(1)
        assert [response["id"] for response in await answering] == [2]


@virtual_time
async def test_a_batch_may_cancel_what_came_before_it_in_the_same_batch() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        actor = await place.open(V03)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert [response["id"] for response in await answers(actor, tool("add_slowly", 1, seconds=9), cancel, request("ping", 2))] == [2]
        assert shop.ran == []


@pytest.mark.parametrize("reason", ["timeout", "end"])
@virtual_time
async def test_a_batch_is_answered_however_its_calls_end(reason: str) -> None:
    async with lobby(Shop().server, request_timeout=2) as place:
        actor = await place.open(V03)
        answering = asyncio.create_task(answers(actor, *(tool("add_slowly", number, seconds=9) for number in range(3))))
        await settle()
        if reason == "end":
            actor.end("deleted")
        assert [response["error"]["code"] for response in await answering] == [-32603] * 3


@virtual_time
async def test_whoever_stops_waiting_for_a_batch_leaves_its_calls_alone() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        answering = asyncio.create_task(answers(actor, tool("add_slowly", 1, seconds=1)))
        await settle()
        answering.cancel()
        await asyncio.wait({answering})
        assert await text(actor, "look") == "1"
        assert actor.machine.idle


@pytest.mark.parametrize("version", [V06, V11])
@virtual_time
async def test_other_versions_have_no_batches(version: str) -> None:
    async with lobby(Shop().server) as place:
        found = await answer_batch(await place.open(version), batch(request("ping")))
        assert isinstance(found, Fail)
        assert found.reason is Reason.INVALID_REQUEST
        assert version in str(found)


@virtual_time
async def test_a_batch_has_so_many_messages_and_no_more() -> None:
    async with lobby(Shop().server) as place:
        actor = await place.open(V03)
        assert len(await answers(actor, *(request("ping", number) for number in range(MAX_BATCH)))) == MAX_BATCH
        found = await answer_batch(actor, batch(*(request("ping", number) for number in range(MAX_BATCH + 1))))
        assert isinstance(found, Fail)
        assert str(MAX_BATCH) in str(found)
        assert actor.machine.idle, "then nothing of it is served"


@virtual_time
async def test_a_batch_is_no_place_for_the_current_protocol() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
        found = await answer_batch(await place.open(V03), batch(tool("echo", 1, text="x"), request("tools/list", 2, _meta=meta)))
        assert isinstance(found, Fail)
        assert shop.ran == []
