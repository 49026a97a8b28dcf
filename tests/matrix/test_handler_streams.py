"""A handler that streams: its mailbox, jobs, topics, and how a stream ends."""

import asyncio
import json
import threading
from typing import Any

import pytest
from asgi_driver import Client, make_meta, make_request
from handlers import Jobs
from legacy_driver import Legacy
from virtual_time import settle, virtual_time

from callboard import asgi
from callboard.compose import endpoint
from callboard.handler import MAX_MAILBOX, Channel, Crashed, Finished, Handler, Stream
from callboard.transport.memory import connect
from callboard.wire.jsonrpc import encode

FIXED = "The server ended this request without a result."


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def client(jobs: Jobs) -> Client:
    return Client(asgi(jobs))


# Jobs, messages, topics


@virtual_time
async def test_a_job_reports_progress_and_its_end_is_a_message() -> None:
    jobs = Jobs()
    answer = await Client(asgi(jobs)).call("work", meta=make_meta(progressToken="t"))
    assert answer.is_stream
    assert [note["params"]["progress"] for note in answer.notes] == [1, 2, 3]
    assert answer.text == "done: 3"
    assert jobs.heard == [Finished("work", 3)]
    assert jobs.closed == []  # scenario 38


@virtual_time
async def test_a_job_that_crashes_is_a_message() -> None:
    jobs = Jobs()
    answer = await Client(asgi(jobs)).call("crash")
    assert (answer.result["isError"], answer.text) == (True, "crashed: no paper")
    (message,) = jobs.heard
    assert isinstance(message, Crashed)
    assert isinstance(message.error, ValueError)


@virtual_time
async def test_messages_come_in_order_those_before_the_stream_too() -> None:
    jobs = Jobs()
    answer = await Client(asgi(jobs)).call("mail")
    assert answer.text == "3 letters"
    assert jobs.heard == [0, 1, 2]


@virtual_time
async def test_messages_come_from_other_threads() -> None:
    jobs = Jobs()
    async with Client(asgi(jobs)).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        (channel,) = jobs.channels_seen
        sent: list[bool] = []
        thread = threading.Thread(target=lambda: sent.extend(channel.send(message) for message in (0, 1, 2)))
        thread.start()
        assert (await stream.message())["result"]["content"][0]["text"] == "3 letters"
        thread.join()
    assert sent == [True, True, True]
    assert jobs.heard == [0, 1, 2]


@virtual_time
async def test_what_is_published_to_a_topic_is_a_message() -> None:
    jobs = Jobs()
    async with Client(asgi(jobs)).open("tools/call", {"name": "news"}) as stream:
        assert await stream.head() == 200
        jobs.server.publish("olds", {"n": 9})
        for n in range(3):
            jobs.server.publish("news", {"n": n})
        assert [(await stream.message())["params"]["data"] for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert (await stream.message())["result"]["content"][0]["text"] == "2"
    (channel,) = jobs.channels_seen
    assert not channel.unsubscribe("news"), "the request's end is the subscription's"


@pytest.mark.parametrize(("topic", "message"), [(5, "x"), ("news", object())])
def test_what_can_not_be_published_is_refused(jobs: Jobs, topic: Any, message: Any) -> None:
    with pytest.raises(TypeError, match="publish"):
        jobs.server.publish(topic, message)


@virtual_time
async def test_a_full_mailbox_refuses() -> None:
    taken: list[bool] = []

    class Slow(Jobs):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
            taken.extend(ctx.send("x") for _ in range(MAX_MAILBOX + 1))
            ctx.spawn(asyncio.sleep(0, "slept"), "sleep")
            await asyncio.sleep(1)  # the end of a job is never refused
            return Stream(0)

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            return f"{state} letters" if message == Finished("sleep", "slept") else Stream(state + 1)

    answer = await Client(asgi(Slow())).call("any")
    assert (taken.count(True), taken[-1]) == (MAX_MAILBOX, False)
    assert answer.text == f"{MAX_MAILBOX} letters"


@virtual_time
async def test_what_a_full_mailbox_loses_of_a_topic_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Jobs):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
            ctx.subscribe("news")
            for number in range(MAX_MAILBOX + 5):
                self.server.publish("news", number)
            ctx.spawn(asyncio.sleep(0), "end")
            return Stream(0)

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            return str(state) if isinstance(message, Finished) else Stream(state + 1)

    assert (await Client(asgi(Slow())).call("any")).text == str(MAX_MAILBOX)
    assert caplog.text.count("are dropped") == 1


@pytest.mark.parametrize("end", ["cancel", "close"])
@pytest.mark.parametrize("old", [False, True])
@virtual_time
async def test_a_stream_over_a_pipe_is_closed_too(end: str, *, old: bool) -> None:
    # CN-04
    jobs = Jobs()
    connection = await connect(endpoint(jobs))
    call = make_request("tools/call", {"name": "work", "arguments": {"steps": 100}}, request_id=2, meta=make_meta(progressToken="t"))
    if old:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        await connection.send(encode({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}))
        await connection.receive()
        call["params"]["_meta"] = {"progressToken": "t"}
    await connection.send(encode(call))
    assert json.loads(await connection.receive())["params"]["progress"] == 1
    if end == "cancel":
        await connection.send(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}))
        await settle()
    await connection.aclose()
    assert jobs.closed == [(True, [False, False, False, False], 0)]
    assert jobs.jobs_ended == ["cancelled"]


@virtual_time
async def test_returning_a_stream_opens_it_at_once() -> None:
    # HM-08: so that keep-alives flow
    jobs = Jobs()
    async with Client(asgi(jobs, keep_alive=10)).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        await asyncio.sleep(30)
        assert stream.comments > 1
        jobs.channels_seen[0].send("end")
        assert (await stream.message())["result"]["content"][0]["text"] == "the end"


@virtual_time
async def test_a_stream_can_be_started_without_a_mailbox() -> None:
    answer = await Client(asgi(Jobs())).call("start")
    assert (answer.is_stream, answer.text) == (True, "started")


@virtual_time
async def test_a_client_that_takes_no_stream_gets_the_same_result_as_json() -> None:
    answer = await Client(asgi(Jobs(), json_only=True)).call("work", accept="application/json")
    assert (answer.is_stream, answer.text) == (False, "done: 3")


# Ends


@virtual_time
async def test_a_client_that_goes_away_closes_the_stream() -> None:
    """Scenario 37."""
    jobs = Jobs()
    async with Client(asgi(jobs)).open("tools/call", {"name": "work", "arguments": {"steps": 100}}) as stream:
        assert await stream.head() == 200
        stream.disconnect()
        await stream.gone()
    assert jobs.closed == [(True, [False, False, False, False], 0)]
    assert jobs.jobs_ended == ["cancelled"]
    assert jobs.channels_seen[0].closed


@pytest.mark.parametrize("end", ["cancel", "delete", "disconnect"])
@virtual_time
async def test_a_stream_in_a_session_is_closed_by_whatever_ends_it(end: str) -> None:
    jobs = Jobs()
    session = await Legacy(asgi(jobs)).connect()
    async with session.open("work", {"steps": 100}, request_id=7) as stream:
        await stream.message()
        if end == "cancel":
            await session.cancel(7)
        elif end == "delete":
            await session.delete()
        else:
            stream.disconnect()
        await settle()
        await stream.gone()
    assert jobs.closed == [(True, [False, False, False, False], 0)]
    assert jobs.jobs_ended == ["cancelled"]


@virtual_time
async def test_the_end_of_the_server_closes_streams() -> None:
    jobs = Jobs()
    app = asgi(jobs)
    async with Client(app).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        app.endpoint.drain()
        stream.task.cancel()
        assert (await stream.message())["error"]["code"] == -32603
    assert [closed for closed, _, _ in jobs.closed] == [True]


@virtual_time
async def test_a_caller_who_is_freed_ends_a_stream_that_it_can_not_read() -> None:
    """Else the stream would hold the session's turn for ever."""
    jobs = Jobs()
    session = await Legacy(asgi(jobs, request_timeout=5)).connect()
    answer = await session.call("wait", accept="application/json")
    assert (answer.error["code"], "request_timeout" in answer.error["message"]) == (-32603, True)
    assert (await session.call("start")).text == "started"
    assert [closed for closed, _, _ in jobs.closed] == [True]


@pytest.mark.parametrize("message", ["close", "close and reply"])
@virtual_time
async def test_a_handler_closes_its_own_stream(message: str) -> None:
    jobs = Jobs()
    async with Client(asgi(jobs)).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        jobs.channels_seen[0].send(message)
        assert (await stream.message())["error"] == {"code": -32603, "message": FIXED}
    assert jobs.closed == [(True, [False, False, False, False], 0)]


@virtual_time
async def test_close_from_outside_of_a_callback_ends_the_stream() -> None:
    jobs = Jobs()
    async with Client(asgi(jobs)).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        thread = threading.Thread(target=jobs.channels_seen[0].close)
        thread.start()
        assert (await stream.message())["error"] == {"code": -32603, "message": FIXED}
        thread.join()
    assert len(jobs.closed) == 1


@virtual_time
async def test_close_before_the_stream_ends_the_request() -> None:
    jobs = Jobs()
    answer = await Client(asgi(jobs)).call("close")
    assert answer.error == {"code": -32603, "message": FIXED}
    assert len(jobs.closed) == 1


@pytest.mark.parametrize(("message", "expected"), [("stop", FIXED), ("raise", None), ("none", None), ("end", "the end")])
@virtual_time
async def test_a_last_word_of_its_own_is_no_close(message: str, expected: str | None) -> None:
    """Scenario 38, of results, Stop, crashes and returns that make no sense."""
    jobs = Jobs()
    async with Client(asgi(jobs)).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        jobs.channels_seen[0].send(message)
        answer = await stream.message()
        if "error" in answer:
            assert answer["error"]["code"] == -32603
            assert expected is None or answer["error"]["message"] == expected
            assert "hunter2" not in answer["error"]["message"]
        else:
            assert answer["result"]["content"][0]["text"] == expected
    assert jobs.closed == []


@virtual_time
async def test_a_cancelled_callback_is_followed_by_handle_close() -> None:
    class Slow(Jobs):
        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            await asyncio.sleep(1000)

    jobs = Slow()
    async with Client(asgi(jobs)).open("tools/call", {"name": "mail"}) as stream:
        assert await stream.head() == 200
        stream.disconnect()
        await stream.gone()
    assert len(jobs.closed) == 1


@virtual_time
async def test_a_handle_close_that_hangs_or_crashes_harms_nobody() -> None:
    class Stuck(Jobs):
        async def handle_close(self, channel: Channel, state: Any) -> None:
            await Jobs.handle_close(self, channel, state)
            if state == 0:
                await asyncio.sleep(1000)

    jobs = Stuck()
    async with Client(asgi(jobs)).open("tools/call", {"name": "wait"}) as stream:
        assert await stream.head() == 200
        jobs.channels_seen[0].send("close")
        assert (await stream.message())["error"]["code"] == -32603


@virtual_time
async def test_before_it_streams_a_request_has_no_close() -> None:
    class Slow(Jobs):
        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
            ctx.start_stream()
            await asyncio.sleep(1000)

    jobs = Slow()
    async with Client(asgi(jobs)).open("tools/call", {"name": "any"}) as stream:
        assert await stream.head() == 200
        stream.disconnect()
        await stream.gone()
    assert jobs.closed == []


class Feed:
    """An author's own publisher, which knows nothing of channels."""

    def __init__(self) -> None:
        self.readers: list[Channel] = []

    def say(self, text: str) -> None:
        for reader in self.readers:
            reader.send(text)


@virtual_time
async def test_a_subscription_of_the_author_ends_in_handle_close() -> None:
    feed = Feed()

    class Reader(Handler[Any]):
        capabilities = {"tools": {}}  # noqa: RUF012 - as an author writes it

        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
            feed.readers.append(ctx)
            return Stream()

        async def handle_message(self, message: str, channel: Channel, state: Any) -> Any:
            channel.log("info", message)
            return Stream()

        async def handle_close(self, channel: Channel, state: Any) -> None:
            feed.readers.remove(channel)

    async with Client(asgi(Reader)).open("tools/call", {"name": "read"}, meta=make_meta(logLevel="info")) as stream:
        assert await stream.head() == 200
        feed.say("hear, hear")
        assert (await stream.message())["params"]["data"] == "hear, hear"
        assert len(feed.readers) == 1
        stream.disconnect()
        await stream.gone()
    assert feed.readers == []


@virtual_time
async def test_a_stream_in_a_session_keeps_the_state_it_ends_with() -> None:
    class Sum(Jobs):
        def init(self, hello: Any) -> int:
            return 0

        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
            if name == "look":
                return str(state)
            for number in (1, 2, 3):
                ctx.send(number)
            return Stream(state)

        async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
            return Stream(state + message) if message < 3 else str(state + message)

    session = await Legacy(asgi(Sum())).connect()
    assert (await session.call("add")).text == "6"
    assert (await session.call("look")).text == "3", "what the last Stream said"


@virtual_time
async def test_a_stream_without_handle_message_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Handler[Any]):
        capabilities = {"tools": {}}  # noqa: RUF012 - as an author writes it

        async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
            return Stream()

    assert (await Client(asgi(Silent)).call("any")).error["code"] == -32603
    assert "no handle_message" in caplog.text
