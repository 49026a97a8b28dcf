"""The line-based peer: real servers, fed line by line, with a reader that can stop reading."""

import asyncio
import gc
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.transport.lines import LIMIT, call, cancel, listen, request, same, text_of
from unit.transport.stage import Stage, serving, within

from callboard import Context, Server
from callboard.limits import Limits
from callboard.transport.pipe import MAX_BACKLOG, MAX_CALLS

MIB = 1024 * 1024

# ---------------------------------------------------------------------------------------------------------------- malformed lines

MALFORMED: dict[str, tuple[bytes, int, Any]] = {
    "no version": (b'{"id":6,"method":"tools/list"}', -32600, 6),
    "garbage": (b"GET / HTTP/1.1", -32700, None),
    "truncated": (b'{"jsonrpc":"2.0","id":6,"meth', -32700, None),
    "bad UTF-8": (b'{"jsonrpc":"2.0","id":6,"method":"tools/list\xff"}', -32700, None),
    "lone surrogate in bytes": (b'{"jsonrpc":"2.0","id":6,"method":"\xed\xa0\x80"}', -32700, None),
    "NaN": (b'{"jsonrpc":"2.0","id":6,"method":"tools/list","params":{"x":NaN}}', -32700, None),
    "batch": (b"[" + request(1, "tools/list") + b"]", -32600, None),
    "empty batch": (b"[]", -32600, None),
    "a number": (b"42", -32600, None),
    "id null": (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600, None),
    "id a fraction": (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', -32600, None),
    "id an object": (b'{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}', -32600, None),
    "method no string": (b'{"jsonrpc":"2.0","id":"6","method":7}', -32600, "6"),
    "params an array": (b'{"jsonrpc":"2.0","id":6,"method":"tools/list","params":[]}', -32600, 6),
    "a key twice": (b'{"jsonrpc":"2.0","id":6,"id":7,"method":"tools/list"}', -32600, None),
    "two lines' worth": (request(1, "tools/list") + b" " + request(2, "tools/list"), -32700, None),
    "too deep": (b'{"jsonrpc":"2.0","id":6,"method":"a","params":{"x":' + b"[" * 200 + b"]" * 200 + b"}}", -32700, 6),
}


@pytest.mark.parametrize(("line", "code", "request_id"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_line_is_answered_and_the_next_call_works(line: bytes, code: int, request_id: Any) -> None:
    """A37, SA38, JR-09: with the id where it can be read, without one where it can't."""
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(line)
        (answer,) = reader.messages
        assert answer["error"]["code"] == code
        assert same(answer.get("id"), request_id)
        assert ("id" in answer) == (request_id is not None)
        pipe.feed(call(99, "echo", text="still here"))
        assert text_of(await reader.answer(99)) == "still here"


async def test_a_line_over_the_limit_is_refused_by_name() -> None:
    """SA38: the limit is named, and the next call works."""
    async with serving(Stage().server, limits=Limits(max_line=1000)) as (pipe, reader):
        pipe.feed(call(1, "echo", text="x" * 1000))
        (answer,) = reader.messages
        assert answer["error"]["code"] == -32600
        assert "1000 bytes" in answer["error"]["message"]
        pipe.feed(call(2, "echo", text="short"))
        assert text_of(await reader.answer(2)) == "short"


@pytest.mark.parametrize("blank", [b"", b" ", b"\r", b"\t \r"])
async def test_a_blank_line_is_no_message(blank: bytes) -> None:
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(blank)
        assert reader.messages == []


async def test_a_carriage_return_is_harmless() -> None:
    """A36."""
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(call(1, "echo", text="a\r\nb") + b"\r")
        assert text_of(await reader.answer(1)) == "a\r\nb"


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}',
        b'{"jsonrpc":"2.0","method":"notifications/whatever"}',
        b'{"jsonrpc":"2.0","method":"tools/list","params":{}}',
    ],
)
async def test_what_needs_no_answer_gets_none(line: bytes) -> None:
    """JR-06: a response has no addressee. JR-12: a notification is never answered, whatever its method."""
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(line)
        pipe.feed(call(2, "echo", text="on"))
        await reader.answer(2)
        assert len(reader.messages) == 1


# -------------------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("request_id", [1, "1", 0, -5, "", "é", 2**53 - 1])
async def test_an_id_comes_back_as_it_was(request_id: Any) -> None:
    """JR-02, A25."""
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(call(request_id, "echo", text="x"))
        assert text_of(await reader.answer(request_id)) == "x"


async def test_requests_run_side_by_side() -> None:
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "hold", name="slow"))
        await within(stage.started.get())
        pipe.feed(call(2, "echo", text="fast"))
        assert text_of(await reader.answer(2)) == "fast"
        assert reader.of(1) == []
        stage.go.set()
        assert text_of(await reader.answer(1)) == "slow"


async def test_an_unknown_method_is_answered() -> None:
    """A59."""
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(request(1, "foo/bar"))
        answer = await reader.answer(1)
        assert answer["error"]["code"] == -32601


async def test_a_client_of_2025_that_is_not_served_learns_which_versions_are() -> None:
    """VN-11: the refusal names them."""
    async with serving(Stage().server, versions=["2026-07-28"]) as (pipe, reader):
        handshake = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        pipe.feed(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": handshake}).encode())
        error = (await reader.answer(1))["error"]
        assert error["code"] == -32022
        assert error["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}


async def test_an_id_in_flight_is_taken() -> None:
    """SA24: the second request is refused, the first unaffected; JR-03: afterwards the id is free again."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(7, "hold", name="first"))
        await within(stage.started.get())
        pipe.feed(call(7, "echo", text="second"))
        pipe.feed(call("7", "echo", text="another id"))
        assert text_of(await reader.answer("7")) == "another id"
        (refusal,) = reader.of(7)
        assert refusal["error"]["code"] == -32600
        stage.go.set()
        await reader.until(lambda message: "result" in message and same(message["id"], 7))
        reader.messages.clear()
        pipe.feed(call(7, "echo", text="third"))
        assert text_of(await reader.answer(7)) == "third"


async def test_so_many_requests_and_no_more() -> None:
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        for number in range(MAX_CALLS):
            pipe.feed(call(number, "hold", name="h"))
        pipe.feed(call("over", "echo", text="x"))
        refusal = await reader.answer("over")
        assert refusal["error"]["code"] == -32603
        assert f"{MAX_CALLS} requests in flight" in refusal["error"]["message"]
        pipe.feed(cancel(0))
        pipe.feed(call("fits", "echo", text="x"))
        assert text_of(await reader.answer("fits")) == "x"


async def test_what_is_ready_at_once_leaves_at_once() -> None:
    async with serving(Stage().server) as (pipe, reader):
        for number in range(100):
            pipe.feed(call(number, "echo", text=str(number)))
        await reader.answer(99)
        assert [message["id"] for message in reader.messages] == list(range(100))
        assert reader.writes == [100]


async def test_calls_leave_nothing_behind() -> None:
    """Neither tasks nor work for the garbage collector, which would cost every later call."""
    async with serving(Stage().server) as (pipe, reader):
        for warm in (True, False):
            gc.collect()
            gc.disable()
            for number in range(1000):
                pipe.feed(call(number, "count", token="p", to=3, size=1))
            await reader.answer(999)
            reader.messages.clear()
            await asyncio.sleep(0)
            garbage = gc.collect()
            gc.enable()
            assert warm or garbage < 100
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(("tool", "code"), [("quit", -32603), ("abandon", -32603)])
async def test_no_tool_takes_the_server_down(tool: str, code: int, caplog: pytest.LogCaptureFixture) -> None:
    """A tool that exits, or cancels its own task, is that call's error."""
    caplog.set_level(logging.CRITICAL, "callboard")
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(call(1, tool))
        answer = await reader.answer(1)
        assert answer["error"]["code"] == code
        pipe.feed(call(1, "echo", text="on"))
        await reader.until(lambda message: "result" in message)


# --------------------------------------------------------------------------------------------------------------- notifications


async def test_progress_comes_in_order_and_before_the_result() -> None:
    """PR-02, PR-04."""
    async with serving(Stage().server) as (pipe, reader):
        pipe.feed(call(1, "count", token="p", to=5, size=3))
        await reader.answer(1)
        assert [message.get("id") for message in reader.messages] == [None] * 5 + [1]
        assert [note["progress"] for note in reader.notes("notifications/progress")] == [1, 2, 3, 4, 5]


async def test_progress_does_not_wait_for_the_result() -> None:
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "shout", token="p"))
        await reader.until(lambda message: message.get("method") == "notifications/progress")
        assert reader.of(1) == []
        stage.go.set()
        assert text_of(await reader.answer(1)) == "done"


async def test_each_request_gets_its_own_notes() -> None:
    """A10."""
    async with serving(Stage().server) as (pipe, reader):
        for number in range(10):
            pipe.feed(call(number, "count", token=f"t{number}", to=3, size=number))
        for number in range(10):
            assert len(text_of(await reader.answer(number))) == number
        tokens = [note["progressToken"] for note in reader.notes("notifications/progress")]
        assert sorted(tokens) == sorted(f"t{number}" for number in range(10) for _ in range(3))


async def test_a_large_result_after_progress_arrives() -> None:
    """A14."""
    async with serving(Stage().server) as (pipe, reader):
        reader.stop()
        pipe.feed(call(0, "echo", text="fills the pipe"))
        await reader.answer(0)
        pipe.feed(call(1, "count", token="p", to=3, size=2 * MIB))
        reader.go_on()
        assert len(text_of(await reader.answer(1))) == 2 * MIB
        assert len(reader.notes("notifications/progress")) == 3


async def test_a_slow_reader_costs_bounded_memory() -> None:
    """While nobody reads, progress replaces waiting progress and logs are dropped; the last progress and the result are not."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        reader.stop()
        pipe.feed(call(0, "echo", text="fills the pipe"))
        await reader.answer(0)
        pipe.feed(call(1, "chatter", token="p", level="debug", notes=2000, size=2000))
        await within(stage.started.get())
        reader.go_on()
        stage.go.set()
        assert text_of(await reader.answer(1)) == "done"
        progress = reader.notes("notifications/progress")
        assert progress[-1]["progress"] == 2000
        written = sum(len(json.dumps(message)) for message in reader.messages)
        assert written < MIB, "of 8 MB that the tool said"


async def test_there_is_one_write_at_a_time() -> None:
    """What comes to wait meanwhile leaves with the next one."""
    async with serving(Stage().server) as (pipe, reader):
        reader.stop()
        pipe.feed(b"fills the pipe")
        for number in range(3):
            pipe.feed(call(number, "count", token="p", to=1, size=1))
            for _ in range(5):
                await asyncio.sleep(0)
            pipe.feed(b"garbage")
        assert reader.writes == [1]
        reader.go_on()
        await reader.answer(2)
        assert reader.writes == [1, 9]


async def test_past_the_backlog_nothing_more_should_be_read() -> None:
    async with serving(Stage().server) as (pipe, reader):
        reader.stop()
        pipe.feed(call("first", "echo", text="fills the pipe"))
        await reader.answer("first")
        drained = asyncio.Event()
        size = 4 * MIB
        assert not pipe.congested
        for number in range(MAX_BACKLOG // size):
            pipe.feed(call(number, "large", size=size))
        for _ in range(10):
            await asyncio.sleep(0)
        assert pipe.congested
        pipe.when_drained(drained.set)
        assert not drained.is_set()
        reader.go_on()
        await within(drained.wait())
        assert not pipe.congested
        for number in range(MAX_BACKLOG // size):
            assert len(text_of(await reader.answer(number))) == size


# ----------------------------------------------------------------------------------------------------------------- cancellation


async def test_a_cancelled_request_stops_and_is_not_answered() -> None:
    """CN-04, SD-05; CN-06: what is not in flight can't be cancelled, and that is no error."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "hold", name="one"))
        await within(stage.started.get())
        for stranger in ("1", 2, "one"):
            pipe.feed(cancel(stranger))
        pipe.feed(call(2, "echo", text="x"))
        await reader.answer(2)
        assert stage.cancelled.empty(), 'JSON types are kept: "1" is not 1'
        pipe.feed(cancel(1))
        assert await within(stage.cancelled.get()) == "one"
        pipe.feed(cancel(1))
        pipe.feed(cancel(2))
        pipe.feed(call(1, "echo", text="the id is free"))
        assert text_of(await reader.answer(1)) == "the id is free"
        assert len(reader.messages) == 2


@pytest.mark.parametrize("params", [b"{}", b'{"requestId":null}', b'{"requestId":[1]}', b'{"requestId":1,"reason":7}'])
async def test_a_malformed_cancellation_is_ignored(params: bytes) -> None:
    """CN-06."""
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "hold", name="one"))
        await within(stage.started.get())
        pipe.feed(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":' + params + b"}")
        stage.go.set()
        assert text_of(await reader.answer(1)) == "one"
        assert len(reader.messages) == 1


async def test_a_tool_that_goes_on_after_its_cancellation_speaks_to_nobody() -> None:
    """It sees that nobody waits; what it still says or returns does not reach the request that has its id now."""
    stage = Stage()
    seen: list[bool] = []
    ended = asyncio.Event()

    @stage.server.tool
    async def stubborn(ctx: Context) -> str:
        try:
            await stage.go.wait()
        except asyncio.CancelledError:
            seen.append(ctx.cancelled)
            ctx.progress(1)
        ended.set()
        return "stubborn"

    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "stubborn", token="t"))
        await asyncio.sleep(0)
        pipe.feed(cancel(1))
        pipe.feed(call(1, "hold", name="new"))
        await within(ended.wait())
        assert seen == [True]
        assert await within(stage.started.get()) == "new"
        stage.go.set()
        assert text_of(await reader.answer(1)) == "new"
        assert len(reader.messages) == 1


async def test_a_request_cancelled_before_it_began_never_runs() -> None:
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "hold", name="one"))
        pipe.feed(cancel(1))
        pipe.feed(call(2, "echo", text="x"))
        await reader.answer(2)
        assert stage.started.empty()
        assert reader.of(1) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), min_size=1, max_size=20))
def test_however_cancellation_and_completion_race_there_is_one_terminal_message_at_most(plan: list[tuple[int, int]]) -> None:
    """A11: a call of so many turns, cancelled after so many."""

    async def race() -> None:
        async with serving(Stage().server) as (pipe, reader):
            for request_id, (length, after) in enumerate(plan):
                pipe.feed(call(request_id, "turns", count=length))
                for _ in range(after):
                    await asyncio.sleep(0)
                pipe.feed(cancel(request_id))
            pipe.feed(call("last", "echo", text="alive"))
            await reader.answer("last")
            for request_id in range(len(plan)):
                assert len(reader.of(request_id)) <= 1

    asyncio.run(race())


# ------------------------------------------------------------------------------------------------------------------- the end


async def test_the_end_of_input_lets_requests_finish() -> None:
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "hold", name="one"))
        pipe.feed(listen(2, toolsListChanged=True))
        await within(stage.started.get())
        asyncio.get_running_loop().call_soon(stage.go.set)
        assert await within(pipe.drain(LIMIT)) == 0
        assert text_of(await reader.answer(1)) == "one"
        assert len(stage.server.hub) == 1, "listen streams end with the endpoint"


async def test_whoever_is_late_is_cancelled() -> None:
    stage = Stage()
    async with serving(stage.server) as (pipe, reader):
        pipe.feed(call(1, "hold", name="one"))
        await within(stage.started.get())
        assert await within(pipe.drain(0.01)) == 1
        assert await within(stage.cancelled.get()) == "one"
        assert reader.of(1) == []


async def test_work_that_won_t_be_cancelled_does_not_hold_the_end_up() -> None:
    server = Server("stubborn")
    started, go = asyncio.Event(), asyncio.Event()

    @server.tool
    async def cling() -> str:
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with serving(server) as (pipe, reader):
        pipe.feed(call(1, "cling"))
        await within(started.wait())
        assert await within(pipe.drain(0)) == 1
        await within(pipe.close())
        go.set()
        await asyncio.sleep(0)
        assert reader.messages == []
