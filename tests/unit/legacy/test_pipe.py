"""The session of a client on a stream of lines, as the transport of lines drives it."""

import asyncio
import json
from typing import Any

import pytest
from legacy_driver import V03, V11
from shop import Shop
from unit.legacy.lobby import Lobby, lobby, make, make_call, read
from virtual_time import settle, virtual_time

from callboard.core.exchange import Exchange
from callboard.errors import Fail, Reason
from callboard.legacy.pipe import MAX_BATCHES, PipeClient
from callboard.limits import Limits
from callboard.server.mount import Caller
from callboard.transport.stream import nobody
from callboard.wire.jsonrpc import Batch, RawNotification, RawResponse


class Line:
    """One end of a pipe.

    Attributes:
        said: What the session has said, apart from the answers to single requests.
        answers: What has been answered to single requests.
    """

    def __init__(self, place: Lobby, client: PipeClient) -> None:
        self.place = place
        self.client = client
        self.said: list[Any] = []
        self.answers: list[Any] = []

    def start(self, message: Any) -> Exchange:
        exchange = Exchange(nobody)

        def take() -> None:
            if (write := exchange.take()) is not None:
                self.answers += map(json.loads, write.notes)

        exchange.wake = take
        self.client.start(message, exchange)
        return exchange


async def connect(place: Lobby, version: str = V11, params: Any = None) -> tuple[Line | None, list[Any]]:
    """Open the session of a pipe, as its transport does; the line, and what was said."""
    said: list[Any] = []
    older: Any = place.endpoint.older
    message = make("initialize", {"protocolVersion": version} if params is None else params, "init")
    client = await older.connect(
        place.endpoint.mount, message, Caller(), lambda lines: said.extend(map(json.loads, lines)), Exchange(nobody)
    )
    if client is None:
        return None, said
    line = Line(place, client)
    line.said = said
    return line, said


def call_message(request_id: Any) -> dict[str, Any]:
    """A call of nine seconds."""
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": "nap", "arguments": {"seconds": 9}}}


async def connected(place: Lobby, version: str = V11) -> Line:
    line, _ = await connect(place, version)
    assert line is not None
    line.said.clear()
    return line


@virtual_time
async def test_its_initialize_is_answered_and_opens_a_session() -> None:
    async with lobby(Shop().server) as place:
        line, said = await connect(place)
        assert line is not None
        assert [(answer["id"], answer["result"]["protocolVersion"]) for answer in said] == [("init", V11)]
        assert len(place.table.sessions) == 1


@virtual_time
async def test_an_initialize_that_is_refused_is_answered_and_opens_none() -> None:
    async with lobby(Shop().server, limits=Limits(max_sessions=1)) as place:
        line, said = await connect(place, params={"capabilities": 5})
        assert line is None
        assert [(answer["id"], answer["error"]["code"]) for answer in said] == [("init", -32602)]
        await place.open()
        line, said = await connect(place)
        assert line is None
        assert [(answer["id"], answer["error"]["code"]) for answer in said] == [("init", -32603)]


@virtual_time
async def test_requests_are_answered_by_their_exchange() -> None:
    async with lobby(Shop().server) as place:
        line = await connected(place)
        line.start(make("ping", request_id=5))
        await settle()
        assert line.answers == [{"jsonrpc": "2.0", "id": 5, "result": {}}]
        assert line.said == []


@virtual_time
async def test_an_idle_session_has_no_end_and_a_slow_call_no_limit() -> None:
    async with lobby(Shop().server, session_ttl=1, request_timeout=1) as place:
        line = await connected(place)
        line.start(make_call("nap", 1, seconds=100))
        await asyncio.sleep(1000)
        line.start(make("ping", request_id=2))
        await settle()
        assert [("result" in answer, answer["id"]) for answer in line.answers] == [(True, 1), (True, 2)]
        assert (len(place.table.idle), len(place.table.slow), len(place.table.deadlines)) == (0, 0, 0)


@pytest.mark.parametrize("fail", [None, Fail(Reason.OVERLOADED, "Too much.")])
@virtual_time
async def test_a_request_that_is_given_up_has_an_error_where_there_is_one_and_no_answer_else(fail: Fail | None) -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        line = await connected(place)
        line.start(make_call("nap", 1, seconds=9, name="it"))
        await settle()
        line.client.give_up(1, fail)
        line.client.give_up("1", None)
        await settle()
        assert shop.stopped == ["it"]
        assert line.answers == []
        assert [(answer["id"], answer["error"]["message"]) for answer in line.said] == ([] if fail is None else [(1, "Too much.")])


@pytest.mark.parametrize(("version", "has_id"), [(V03, True), (V11, False)])
@virtual_time
async def test_errors_without_an_id_are_in_the_words_of_its_protocol(version: str, has_id: bool) -> None:
    """JR-09."""
    async with lobby(Shop().server) as place:
        line = await connected(place, version)
        found = json.loads(line.client.refuse(None, Fail(Reason.PARSE)))
        assert (found["error"]["code"], "id" in found) == (-32700, has_id)


@virtual_time
async def test_a_batch_is_answered_by_one_line_when_all_of_it_is_done() -> None:
    async with lobby(Shop().server) as place:
        line = await connected(place, V03)
        found = read([{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(3)])
        assert isinstance(found, Batch)
        line.client.take_batch(found)
        await settle()
        assert [[answer["id"] for answer in array] for array in line.said] == [[0, 1, 2]]


@virtual_time
async def test_elsewhere_a_batch_is_an_error_and_an_empty_answer_is_no_line() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    found = read([note])
    assert isinstance(found, Batch)
    async with lobby(Shop().server) as place:
        line = await connected(place, V11)
        line.client.take_batch(found)
        await settle()
        assert [answer["error"]["code"] for answer in line.said] == [-32600]
        line = await connected(place, V03)
        line.client.take_batch(found)
        await settle()
        assert line.said == []


@virtual_time
async def test_a_request_that_came_in_a_batch_can_be_given_up() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        line = await connected(place, V03)
        found = read([call_message(number) for number in range(2)])
        assert isinstance(found, Batch)
        line.client.take_batch(found)
        await settle()
        line.client.give_up(0, None)
        await asyncio.sleep(10)
        assert [[answer["id"] for answer in array] for array in line.said] == [[1]]


@virtual_time
async def test_so_many_batches_and_no_more() -> None:
    async with lobby(Shop().server) as place:
        line = await connected(place, V03)
        for number in range(MAX_BATCHES + 1):
            found = read([call_message(number)])
            assert isinstance(found, Batch)
            line.client.take_batch(found)
        await settle()
        assert [answer["error"]["code"] for answer in line.said] == [-32603]
        assert len(next(iter(place.table.sessions.values())).machine.calls) == MAX_BATCHES
        await asyncio.sleep(10)
        assert len(line.said) == 1 + MAX_BATCHES


@virtual_time
async def test_notifications_and_answers_reach_the_session() -> None:
    async with lobby(Shop().server, handshake="strict") as place:
        line = await connected(place)
        note, answer = read({"jsonrpc": "2.0", "method": "notifications/initialized"}), read({"jsonrpc": "2.0", "id": 9, "result": {}})
        assert isinstance(note, RawNotification)
        assert isinstance(answer, RawResponse)
        line.client.respond(answer)
        line.client.notice(note)
        line.start(make("tools/list"))
        await settle()
        assert line.answers[0]["result"]["tools"]


@virtual_time
async def test_with_its_client_everything_ends_once() -> None:
    shop = Shop()
    async with lobby(shop.server) as place:
        line = await connected(place, V03)
        before = asyncio.all_tasks()
        line.start(make_call("add_slowly", 1, seconds=9))
        found = read([call_message(2)])
        assert isinstance(found, Batch)
        line.client.take_batch(found)
        await settle()
        await line.client.close()
        await line.client.close()
        assert shop.over == [("closed", 0)]
        assert asyncio.all_tasks() == before
        assert place.is_empty
        assert [answer["error"]["message"] for answer in line.answers] == ["Session ended."]
