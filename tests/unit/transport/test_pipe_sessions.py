"""Clients of 2025 on a stream of lines: whose protocol it is, their session, and its end."""

import asyncio
import json
import logging
from typing import Any

import pytest
from legacy_driver import V03, V06, V11, VERSIONS
from shop import TOPIC, Cart, Shop
from unit.transport import lines
from unit.transport.old_lines import call_params, make, old_client
from unit.transport.stage import Stage
from virtual_time import settle, virtual_time

from callboard import Context, Server, types
from callboard.transport.pipe import MAX_CALLS

MIB = 1024 * 1024


@pytest.fixture
def shop() -> Shop:
    return Shop()


# Whose protocol it is


@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_each_version_is_served_in_a_session_of_its_own(shop: Shop, version: str) -> None:
    # LC-06, SD-01, VN-07, VN-08, VN-20
    async with old_client(shop.server, version) as client:
        assert [await client.call("add") for _ in range(3)] == ["1", "2", "3"]
        answer = await client.request("tools/call", call_params("who", {}))
        assert answer["result"].get("structuredContent", {}).get("version") == (None if version == V03 else version)
        assert (await client.request("ping"))["result"] == {}
    async with old_client(shop.server, version) as another:
        assert await another.call("add") == "1"


@virtual_time
async def test_an_unknown_version_is_answered_with_the_newest_of_2025(shop: Shop) -> None:
    # LC-13, VN-10, VN-20
    for asked in ("2024-11-05", "2026-07-28", "2031-01-01"):
        async with old_client(shop.server, None) as client:
            assert (await client.initialize(asked))["result"]["protocolVersion"] == V11


@virtual_time
async def test_only_what_is_served_is_agreed_on(shop: Shop) -> None:
    # VN-20
    async with old_client(shop.server, None, versions=[V06, V03]) as client:
        assert (await client.initialize(V11))["result"]["protocolVersion"] == V06
    async with old_client(shop.server, V03, versions=[V06, V03]) as client:
        assert await client.call("echo", text="x") == "x"


@virtual_time
async def test_a_probe_fixes_nothing(shop: Shop) -> None:
    """VN-13, VN-14: clients ask `server/discover` first, and may open a session all the same."""
    async with old_client(shop.server, None) as client:
        for request_id in range(3):
            client.reader.methods[int, request_id] = "server/discover"
        client.pipe.feed(lines.request(0, "server/discover"))
        client.pipe.feed(lines.request(1, "server/discover"))
        assert (await client.reader.answer(1))["result"]["supportedVersions"] == ["2026-07-28", V11, V06, V03]
        await client.connect()
        assert await client.call("add") == "1"
        client.pipe.feed(lines.request(2, "server/discover"))
        assert "result" in await client.reader.answer(2)
        assert await client.call("add") == "2"


@virtual_time
async def test_a_client_that_began_with_the_current_protocol_opens_no_session(shop: Shop) -> None:
    """The first request fixes the protocol of a pipe."""
    async with old_client(shop.server, None) as client:
        client.reader.methods[int, 1] = "tools/call"
        client.pipe.feed(lines.call(1, "crash"))
        assert (await client.reader.answer(1))["error"]["code"] == -32603
        refused = await client.initialize()
        assert refused["error"]["code"] == -32600
        assert "2026-07-28" in refused["error"]["message"]
        client.pipe.feed(lines.call(2, "crash"))
        assert (await client.reader.answer(2))["error"]["code"] == -32603
    assert shop.over == []


@virtual_time
async def test_in_a_session_a_request_of_the_current_protocol_is_refused(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        client.pipe.feed(lines.call(1, "add"))
        error = (await client.reader.answer(1))["error"]
        assert (error["code"], "initialize" in error["message"]) == (-32600, True)
        assert await client.call("add") == "1"


@virtual_time
async def test_without_a_session_nothing_of_2025_is_served(shop: Shop) -> None:
    """And the client may open one after that."""
    async with old_client(shop.server, None) as client:
        for method in ("tools/list", "ping", "logging/setLevel"):
            assert (await client.request(method, {}))["error"]["code"] == -32602
        assert (await client.request("tools/call", call_params("echo", {"text": "x"})))["error"]["code"] == -32602
        assert shop.ran == []
        await client.connect()
        assert await client.call("echo", text="x") == "x"


# The beginning


@virtual_time
async def test_what_comes_with_the_initialize_is_served_in_its_session_in_order(shop: Shop) -> None:
    # LC-02: a client may send all at once
    async with old_client(shop.server, None) as client:
        client.ask("initialize", {"protocolVersion": V11, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}, request_id=0)
        client.notify("notifications/initialized")
        for number in (1, 2, 3):
            client.begin("add", request_id=number)
        client.begin("nap", request_id=4, seconds=100)
        client.cancel(4)
        client.begin("add", request_id=5)
        await client.reader.answer(5)
        assert [message["id"] for message in client.reader.messages] == [0, 1, 2, 3, 5]
        assert lines.text_of(client.reader.messages[-1]) == "4"


@virtual_time
async def test_two_initializes_at_once_open_one_session(shop: Shop) -> None:
    async with old_client(shop.server, None) as client:
        params = {"protocolVersion": V11, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
        first, second = client.ask("initialize", params), client.ask("initialize", params)
        assert "result" in await client.reader.answer(first)
        assert (await client.reader.answer(second))["error"]["code"] == -32600
        assert await client.call("add") == "1"
    assert shop.over == [("closed", 1)]


@virtual_time
async def test_a_session_can_not_be_initialized_again(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        await client.call("add")
        assert (await client.initialize())["error"]["code"] == -32600
        assert await client.call("add") == "2"


@pytest.mark.parametrize("params", [{"capabilities": 5}, {"protocolVersion": 5}, {"clientInfo": []}])
@virtual_time
async def test_an_initialize_that_can_not_be_read_is_refused_and_may_be_sent_again(shop: Shop, params: dict[str, Any]) -> None:
    async with old_client(shop.server, None) as client:
        assert (await client.initialize(**params))["error"]["code"] == -32602
        assert shop.over == []
        await client.connect()
        assert await client.call("add") == "1"


@virtual_time
async def test_a_state_that_can_not_begin_is_no_session(caplog: pytest.LogCaptureFixture) -> None:
    fails = [True]

    def begin(_hello: Any) -> Cart:
        if fails:
            raise ValueError("password=hunter2")
        return Cart()

    async with old_client(Shop(state=begin).server, None) as client:
        caplog.set_level(logging.ERROR)
        error = (await client.initialize())["error"]
        assert (error["code"], "hunter2" in str(error)) == (-32603, False)
        assert "hunter2" in caplog.text
        fails.clear()
        await client.connect()
        assert await client.call("add") == "1"


# Lines


@pytest.mark.parametrize(
    ("line", "code"), [(b"GET / HTTP/1.1", -32700), (b'{"jsonrpc":"2.0","id":null,"method":"x"}', -32600), (b"5", -32600)]
)
@pytest.mark.parametrize("version", VERSIONS)
@virtual_time
async def test_what_is_no_message_is_answered_in_the_sessions_words(shop: Shop, version: str, line: bytes, code: int) -> None:
    # A37, SA38, JR-09: only 2025-11-25 lets an id be left out
    async with old_client(shop.server, version) as client:
        before = len(client.reader.messages)
        client.pipe.feed(line)
        await settle()
        (answer,) = client.reader.messages[before:]
        assert answer["error"]["code"] == code
        assert ("id" in answer, answer.get("id")) == (version != V11, None)
        assert await client.call("echo", text="x") == "x"


@virtual_time
async def test_what_needs_no_answer_gets_none(shop: Shop) -> None:
    # JR-06, JR-12, CN-06
    async with old_client(shop.server) as client:
        before = len(client.reader.messages)
        client.notify("notifications/roots/list_changed")
        client.notify("notifications/nothing", {"a": 1})
        client.notify("notifications/cancelled", {"requestId": {}})
        client.cancel(77)
        client.say({"jsonrpc": "2.0", "id": 77, "result": {}})
        client.say({"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "no"}})
        await settle()
        assert len(client.reader.messages) == before


@virtual_time
async def test_an_id_comes_back_as_it_was(shop: Shop) -> None:
    # A25, JR-02
    async with old_client(shop.server) as client:
        for request_id in ("1", 1, "", 0, -1, 2**53 + 1):
            assert await client.call("echo", request_id=request_id, text="x") == "x"


@virtual_time
async def test_an_id_in_flight_is_taken(shop: Shop) -> None:
    # SA24, A25
    async with old_client(shop.server) as client:
        client.begin("nap", request_id=7, seconds=1)
        client.begin("echo", request_id=7, text="second")
        client.begin("echo", request_id="7", text="another id")
        assert lines.text_of(await client.reader.answer("7")) == "another id"
        (refusal,) = client.reader.of(7)
        assert refusal["error"]["code"] == -32600
        client.reader.messages.clear()
        assert lines.text_of(await client.reader.answer(7)) == "rested"
        client.reader.messages.clear()
        assert await client.call("echo", request_id=7, text="free again") == "free again"


@virtual_time
async def test_so_many_requests_and_no_more(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        for number in range(MAX_CALLS):
            client.begin("nap", request_id=number, seconds=1)
        assert (await client.request("ping", request_id="one more"))["error"]["code"] == -32603
        await client.reader.answer(MAX_CALLS - 1)
        assert (await client.request("ping", request_id="again"))["result"] == {}


# State


@virtual_time
async def test_calls_that_take_state_run_one_after_the_other_and_others_at_once(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        slow = [client.begin("add_slowly", seconds=1) for _ in range(3)]
        assert await client.call("echo", text="at once") == "at once"
        assert [lines.text_of(await client.reader.answer(each)) for each in slow] == ["1", "2", "3"]
        assert shop.most == 1


@virtual_time
async def test_a_cancelled_call_has_no_answer_and_leaves_no_state(shop: Shop) -> None:
    # CN-04
    async with old_client(shop.server) as client:
        running = client.begin("add_slowly", seconds=10, name="running")
        queued = client.begin("add_slowly", seconds=10, name="queued")
        last = client.begin("add")
        await settle()
        client.cancel(queued)
        client.cancel(running)
        assert lines.text_of(await client.reader.answer(last)) == "1"
        assert (shop.ran, shop.stopped) == (["running"], ["running"])
        assert [client.reader.of(each) for each in (running, queued)] == [[], []]
        assert await client.call("add", request_id=running) == "2"


@virtual_time
async def test_a_call_may_take_as_long_as_it_takes(shop: Shop) -> None:
    """Who holds the other end of a pipe has a limit of its own, and can cancel."""
    async with old_client(shop.server) as client:
        slow, queued = client.begin("add_slowly", seconds=86_400), client.begin("add")
        await asyncio.sleep(86_399)
        assert (client.reader.of(slow), client.reader.of(queued)) == ([], [])
        await asyncio.sleep(2)
        assert [lines.text_of(await client.reader.answer(each)) for each in (slow, queued)] == ["1", "2"]


# What the server says


@virtual_time
async def test_progress_and_logs_come_before_the_result(shop: Shop) -> None:
    # PR-03, LG-03
    async with old_client(shop.server) as client:
        await client.reader.answer(client.begin("count", token="t", to=3, seconds=1))
        assert [note["progress"] for note in client.reader.notes("notifications/progress")] == [1, 2, 3]
        assert [note["data"] for note in client.reader.notes("notifications/message")] == [1, 2, 3]
        assert "result" in client.reader.messages[-1]


@virtual_time
async def test_progress_does_not_wait_for_the_result(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        client.begin("report", token="t", seconds=1000)
        await client.reader.until(lambda message: message.get("method") == "notifications/progress")


@virtual_time
async def test_logs_are_those_of_the_level_that_was_set(shop: Shop) -> None:
    # LG-03, LG-05
    async with old_client(shop.server) as client:
        await client.call("levels")
        assert client.reader.notes("notifications/message")[0]["level"] == "info"
        client.reader.messages.clear()
        assert (await client.request("logging/setLevel", {"level": "critical"}))["result"] == {}
        await client.call("levels")
        assert [note["level"] for note in client.reader.notes("notifications/message")] == ["critical", "alert", "emergency"]


@virtual_time
async def test_pushes_arrive_by_themselves(shop: Shop) -> None:
    server = shop.server
    async with old_client(server) as client:
        session_id = (await client.request("tools/call", call_params("who", {})))["result"]["structuredContent"]["session"]
        uri = {"uri": "shop://prices"}
        server.resource_updated("shop://prices")
        assert (await client.request("resources/subscribe", uri))["result"] == {}
        client.reader.messages.clear()
        server.broadcast(TOPIC, types.ToolListChangedNotification())
        server.broadcast("other", types.PromptListChangedNotification())
        server.resource_updated("shop://prices")
        server.log(session_id, "warning", "low")
        server.log("somebody", "warning", "high")
        await settle()
        assert [message["method"].removeprefix("notifications/") for message in client.reader.messages] == [
            "tools/list_changed",
            "resources/updated",
            "message",
        ]
        assert (await client.request("resources/unsubscribe", uri))["result"] == {}
        client.reader.messages.clear()
        server.resource_updated("shop://prices")
        await settle()
        assert client.reader.messages == []


@virtual_time
async def test_changes_of_lists_are_told_without_being_asked_for(shop: Shop) -> None:
    # SB-15
    async with old_client(shop.server) as client:
        client.reader.messages.clear()
        shop.server.add(wave)
        await settle()
        assert [message["method"] for message in client.reader.messages] == ["notifications/tools/list_changed"]
        assert await client.call("wave") == "hello"


async def wave() -> str:
    return "hello"


@virtual_time
async def test_calls_of_a_client_that_reads_nothing_cost_bounded_memory() -> None:
    """While nobody reads, progress replaces waiting progress and logs are dropped; the last progress and the result are not."""
    stage = Stage()
    async with old_client(stage.server) as client:
        client.reader.stop()
        await client.call("echo", text="fills the pipe")
        request_id = client.begin("chatter", token="t", notes=2000, size=2000)
        await stage.started.get()
        client.reader.go_on()
        stage.go.set()
        assert lines.text_of(await client.reader.answer(request_id)) == "done"
        assert client.reader.notes("notifications/progress")[-1]["progress"] == 2000
        assert sum(len(json.dumps(message)) for message in client.reader.messages) < MIB, "of 8 MB that the tool said"


@virtual_time
async def test_pushes_to_a_client_that_reads_nothing_cost_bounded_memory(shop: Shop) -> None:
    """What is in the last change is all that counts of changes; of logs, as many as fit."""
    async with old_client(shop.server) as client:
        session_id = (await client.request("tools/call", call_params("who", {})))["result"]["structuredContent"]["session"]
        await client.request("resources/subscribe", {"uri": "shop://prices"})
        client.reader.stop()
        await client.call("echo", text="fills the pipe")
        for _ in range(200):
            shop.server.log(session_id, "warning", "x" * (MIB // 4))
            shop.server.resource_updated("shop://prices")
            await settle()
        client.reader.go_on()
        assert await client.call("echo", text="x") == "x"
        assert client.reader.notes("notifications/resources/updated")
        assert sum(len(json.dumps(message)) for message in client.reader.messages) < 16 * MIB, "of 50 MB that the server said"


# What the server asks


@virtual_time
async def test_a_question_is_answered_on_the_same_pipe() -> None:
    server = Server("asker")

    @server.tool
    async def roots(ctx: Context) -> str:
        session: Any = ctx.session
        return str((await session.ask("roots/list", {}))["roots"][0]["uri"])

    async with old_client(server) as client:
        first, second = client.begin("roots"), client.begin("roots")
        await settle()
        asked = [message for message in client.reader.messages if message.get("method") == "roots/list"]
        assert len({(type(message["id"]), message["id"]) for message in asked}) == 2
        for message, uri in zip(reversed(asked), ("file:///b", "file:///a"), strict=True):
            client.say({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": [{"uri": uri}]}})
        answers = [lines.text_of(await client.reader.answer(each)) for each in (first, second)]
        assert answers == ["file:///a", "file:///b"]


# Batches


@virtual_time
async def test_a_batch_is_answered_by_one_line(shop: Shop) -> None:
    # JR-18
    async with old_client(shop.server, V03) as client:
        client.say(
            [
                make("tools/call", call_params("add", {}), 1),
                {"jsonrpc": "2.0", "method": "notifications/nothing"},
                make("tools/call", call_params("add", {}), "2"),
                make("nothing", None, 3),
            ]
        )
        batch: Any = await client.reader.until(lambda message: isinstance(message, list))
        assert [answer["id"] for answer in batch] == [1, "2", 3]
        assert [lines.text_of(answer) for answer in batch[:2]] == ["1", "2"]
        assert batch[2]["error"]["code"] == -32601


@virtual_time
async def test_a_batch_that_needs_no_answer_gets_none(shop: Shop) -> None:
    # JR-18, JR-19
    async with old_client(shop.server, V03) as client:
        before = len(client.reader.messages)
        client.say([{"jsonrpc": "2.0", "method": "notifications/nothing"}])
        await settle()
        assert len(client.reader.messages) == before


@pytest.mark.parametrize("version", [None, V06, V11])
@virtual_time
async def test_elsewhere_there_are_no_batches(shop: Shop, version: str | None) -> None:
    # JR-20
    async with old_client(shop.server, version) as client:
        before = len(client.reader.messages)
        client.say([make("tools/call", call_params("add", {}), 1)])
        await settle()
        (refusal,) = client.reader.messages[before:]
        assert refusal["error"]["code"] == -32600
    assert all(count == 0 for _, count in shop.over)


# The end


@virtual_time
async def test_the_end_of_the_pipe_ends_the_session_once(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        await client.call("add")
        client.begin("add_slowly", seconds=1000, name="running")
        client.begin("add_slowly", seconds=1000, name="queued")
        await settle()
    assert shop.over == [("closed", 1)]
    assert (shop.ran, shop.stopped) == (["running"], ["running"])


@virtual_time
async def test_the_end_of_input_lets_requests_finish(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        calls = [client.begin("add_slowly", seconds=10), client.begin("add_slowly", seconds=10)]
        await settle()
        assert await client.pipe.drain(30) == 0
        assert [lines.text_of(await client.reader.answer(each)) for each in calls] == ["1", "2"]
    assert shop.over == [("closed", 2)]


@virtual_time
async def test_whoever_is_late_is_cancelled(shop: Shop) -> None:
    async with old_client(shop.server) as client:
        late = client.begin("add_slowly", seconds=100, name="late")
        await settle()
        assert await client.pipe.drain(30) == 1
        await settle()
        assert shop.stopped == ["late"]
        assert client.reader.of(late) == []


@virtual_time
async def test_an_idle_session_lasts_as_long_as_its_pipe(shop: Shop) -> None:
    """Who holds the other end is there, whatever it says."""
    async with old_client(shop.server) as client:
        await client.call("add")
        await asyncio.sleep(86_400)
        assert await client.call("add") == "2"


@virtual_time
async def test_sessions_leave_nothing_behind(shop: Shop) -> None:
    before = asyncio.all_tasks()
    for _ in range(100):
        async with old_client(shop.server) as client:
            client.begin("nap", seconds=10)
            await client.call("add")
    await settle()
    assert asyncio.all_tasks() == before
    assert shop.over == [("closed", 1)] * 100
