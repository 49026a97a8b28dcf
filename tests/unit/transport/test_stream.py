"""The asyncio shell around one exchange: who writes when, keep-alive, a client that goes away."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from asgi_driver import BOUND, Event, read_events

from callboard.core.exchange import HARD_CAP, SOFT_CAP
from callboard.transport.stream import Pulse, Stream
from callboard.wire.jsonrpc import encode_notification, encode_result

END = encode_result(1, {"resultType": "complete"})
Work = Callable[[Stream], Coroutine[Any, Any, None]]


def note(number: int) -> bytes:
    return encode_notification("notifications/progress", {"progressToken": 1, "progress": number})


class Wire:
    """An ASGI server's side: takes one event at a time, and only with a permit.

    Attributes:
        sent: What it took.
        permits: How many more it takes at once; more block.
        broken: Whether it raises as a server does whose client has gone.
    """

    def __init__(self, permits: int = 1000) -> None:
        self.sent: list[Event] = []
        self.permits = asyncio.Semaphore(permits)
        self.broken = False
        self.gone = asyncio.Event()
        self.blocked = asyncio.Event()
        self._sending = False

    async def receive(self) -> Event:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        assert not self._sending, "two writers at once"
        assert not self.complete, f"sent after the end: {event}"
        self._sending = True
        try:
            if self.permits.locked():
                self.blocked.set()
            await self.permits.acquire()
            if self.broken:
                raise OSError("the client has gone")
            self.sent.append(event)
        finally:
            self._sending = False

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body", False)

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.sent)

    @property
    def comments(self) -> int:
        """How many keep-alive comments were sent."""
        return sum(line.startswith(b":") for line in self.body.split(b"\n"))

    @property
    def numbers(self) -> list[int]:
        """The progress values that were sent, 0 for the result."""
        return [message.get("params", {}).get("progress", 0) for message in read_events(self.body)]


def make_stream(wire: Wire, pulse: Pulse | None = None, *, streams: bool = True, streams_only: bool = False) -> Stream:
    loop = asyncio.get_running_loop()
    return Stream(loop, wire.receive, wire.send, pulse or Pulse(None), [], streams=streams, streams_only=streams_only)


async def run(work: Work, wire: Wire, **options: Any) -> Stream:
    stream = make_stream(wire, **options)
    async with asyncio.timeout(BOUND):
        await stream.run(work(stream))
    return stream


async def turn(times: int = 5) -> None:
    """Let everything run that can."""
    for _ in range(times):
        await asyncio.sleep(0)


async def within(waiting: Awaitable[Any]) -> Any:
    async with asyncio.timeout(BOUND):
        return await waiting


# One writer, in order


async def test_an_answer_without_emissions_is_plain_json() -> None:
    # HM-08
    async def work(stream: Stream) -> None:
        stream.exchange.finish(404, b"{}")

    wire = Wire()
    await run(work, wire)
    head, body = wire.sent
    assert head["status"] == 404
    assert dict(head["headers"]) == {
        b"content-length": b"2",
        b"content-type": b"application/json",
        b"x-content-type-options": b"nosniff",
        b"cache-control": b"no-store",
    }
    assert body["body"] == b"{}"


async def test_the_first_emission_makes_it_a_stream() -> None:
    # HM-08, HM-09, HM-11, HM-12, HM-14
    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await asyncio.sleep(0)
        stream.exchange.finish(404, END)

    wire = Wire()
    await run(work, wire)
    assert wire.sent[0]["status"] == 200
    assert dict(wire.sent[0]["headers"]) == {
        b"content-type": b"text/event-stream",
        b"x-content-type-options": b"nosniff",
        b"cache-control": b"no-store, no-transform",
        b"x-accel-buffering": b"no",
    }
    assert wire.numbers == [1, 0]
    assert wire.complete


async def test_what_is_emitted_in_one_turn_leaves_in_one_send() -> None:
    async def work(stream: Stream) -> None:
        for number in range(1, 6):
            stream.exchange.emit(note(number))
        await turn()
        stream.exchange.emit(note(6))
        stream.exchange.finish(200, END)

    wire = Wire()
    await run(work, wire)
    assert wire.numbers == [1, 2, 3, 4, 5, 6, 0]
    assert len(wire.sent) == 3  # head, five notes, the rest


async def test_where_streams_are_not_taken_emissions_are_dropped() -> None:
    # HM-08
    async def work(stream: Stream) -> None:
        assert not stream.exchange.emit(note(1))
        await asyncio.sleep(0)
        stream.exchange.finish(200, END)

    wire = Wire()
    await run(work, wire, streams=False)
    assert wire.body == END


@pytest.mark.parametrize(("status", "streaming"), [(200, True), (400, False)])
async def test_where_only_streams_are_taken_a_good_answer_is_one(status: int, streaming: bool) -> None:
    # HM-08
    async def work(stream: Stream) -> None:
        stream.exchange.finish(status, END)

    wire = Wire()
    await run(work, wire, streams_only=True)
    assert wire.sent[0]["status"] == status
    assert wire.body.startswith(b"data: ") == streaming


async def test_an_overload_says_when_to_come_back() -> None:
    async def work(stream: Stream) -> None:
        stream.exchange.finish(503, END)

    wire = Wire()
    await run(work, wire)
    assert (b"retry-after", b"1") in wire.sent[0]["headers"]


@pytest.mark.parametrize("permits", range(7))
async def test_a_reader_that_stops_anywhere_loses_nothing_and_no_order(permits: int) -> None:
    go = asyncio.Event()

    async def work(stream: Stream) -> None:
        for number in range(1, 5):
            stream.exchange.emit(note(number))
            await turn()
        stream.exchange.finish(200, END)
        go.set()

    wire = Wire(permits)
    task = asyncio.create_task(run(work, wire))
    await within(go.wait())
    for _ in range(20):
        wire.permits.release()
        await turn()
    await within(task)
    assert wire.numbers == [1, 2, 3, 4, 0]


# Keep-alive


async def test_a_silent_stream_gets_comments() -> None:
    # HM-13, A16
    go = asyncio.Event()

    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await go.wait()
        stream.exchange.finish(200, END)

    wire = Wire()
    stream = make_stream(wire)
    task = asyncio.create_task(stream.run(work(stream)))
    await turn()
    stream.beat()  # the first beat after a message finds no silence yet
    await turn()
    assert wire.comments == 0
    stream.beat()
    stream.beat()
    await turn()
    assert wire.comments == 1
    stream.exchange.emit(note(2))
    await turn()
    stream.beat()
    await turn()
    assert wire.comments == 1  # a message ends the silence
    go.set()
    await within(task)
    assert wire.numbers == [1, 2, 0]


async def test_a_comment_that_waits_for_its_reader_keeps_the_order() -> None:
    go, emitted = asyncio.Event(), asyncio.Event()

    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await go.wait()
        stream.exchange.emit(note(2))
        emitted.set()
        await turn()
        stream.exchange.emit(note(3))
        await turn()
        stream.exchange.finish(200, END)

    wire = Wire(2)
    stream = make_stream(wire)
    task = asyncio.create_task(stream.run(work(stream)))
    await turn()
    stream.beat()
    stream.beat()
    await within(wire.blocked.wait())  # the comment waits
    go.set()
    await within(emitted.wait())
    for _ in range(10):
        wire.permits.release()
        await turn()
    await within(task)
    assert wire.numbers == [1, 2, 3, 0]


async def test_no_comment_comes_while_the_final_answer_waits_for_its_reader() -> None:
    # a comment would be sent after the end
    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await turn()
        stream.exchange.finish(200, END)

    wire = Wire(2)
    stream = make_stream(wire)
    task = asyncio.create_task(stream.run(work(stream)))
    await within(wire.blocked.wait())
    for _ in range(4):
        stream.beat()
        await turn()
    for _ in range(5):
        wire.permits.release()
    await within(task)
    await turn()
    assert wire.numbers == [1, 0]
    assert wire.complete


async def test_the_pulse_beats_while_there_are_streams_and_forgets_them() -> None:
    # HM-13: one timer for all
    pulse = Pulse(0.01)
    stop = asyncio.Event()

    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await stop.wait()
        stream.exchange.finish(200, END)

    wires = [Wire() for _ in range(3)]
    tasks = [asyncio.create_task(run(work, wire, pulse=pulse)) for wire in wires]

    async def all_commented() -> None:
        while not all(wire.comments for wire in wires):  # noqa: ASYNC110 - the pulse tells nobody
            await asyncio.sleep(0)

    await within(all_commented())
    stop.set()
    for task in tasks:
        await within(task)
    assert pulse._streams == {}


async def test_a_call_that_never_waits_leaves_nothing_in_the_pulse() -> None:
    pulse = Pulse(0.01)

    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        stream.exchange.finish(200, END)

    wire = Wire()
    await run(work, wire, pulse=pulse)
    assert wire.numbers == [1, 0]
    assert pulse._streams == {}


def test_the_pulse_goes_on_in_the_next_loop() -> None:
    """Test clients make a loop per request; the timer of one that has gone must not be waited for."""
    pulse = Pulse(0.005)

    async def visit() -> None:
        stop = asyncio.Event()

        async def work(stream: Stream) -> None:
            stream.exchange.emit(note(1))
            await stop.wait()
            stream.exchange.finish(200, END)

        wire = Wire()
        task = asyncio.create_task(run(work, wire, pulse=pulse))

        async def commented() -> None:
            while not wire.comments:  # noqa: ASYNC110 - the pulse tells nobody
                await asyncio.sleep(0)

        await within(commented())
        stop.set()
        await within(task)

    for _ in range(2):
        asyncio.run(visit())


# Clients that go away


async def test_a_client_that_goes_away_cancels_its_request() -> None:
    # HM-15, CN-04, SA25
    ended: list[str] = []

    async def work(stream: Stream) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            stream.exchange.emit(note(1))
            stream.exchange.finish(200, END)
            raise

    wire = Wire()
    stream = make_stream(wire)
    task = asyncio.create_task(stream.run(work(stream)))
    wire.gone.set()
    await within(task)
    assert ended == ["cancelled"]
    assert [message.get("body", b"") for message in wire.sent] == [b"", b""]  # no message (HM-15): a bare 499 for middleware in front
    assert task.cancelling() == 0


async def test_work_that_swallows_its_cancellation_leaves_no_trace_of_it() -> None:
    # CN-06: what comes after in this task, a middleware say, is not cancelled
    async def work(stream: Stream) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stream.exchange.finish(200, END)

    async def request() -> int:
        wire.gone.set()
        await run(work, wire)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    wire = Wire()
    assert await within(asyncio.create_task(request())) == 0


async def test_a_client_that_goes_away_frees_a_writer_that_waits_for_it() -> None:
    # HM-15
    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await asyncio.Event().wait()

    wire = Wire(0)
    stream = make_stream(wire)
    task = asyncio.create_task(stream.run(work(stream)))
    await within(wire.blocked.wait())
    wire.gone.set()
    await within(task)
    assert wire.sent == []


async def test_a_send_that_fails_is_a_client_that_has_gone() -> None:
    # HM-15
    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await asyncio.Event().wait()

    wire = Wire()
    wire.broken = True
    stream = await run(work, wire)
    assert not stream.exchange.open


async def test_who_else_cancels_the_task_is_heard() -> None:
    started = asyncio.Event()

    async def work(stream: Stream) -> None:
        started.set()
        await asyncio.Event().wait()

    stream = make_stream(Wire())
    task = asyncio.create_task(stream.run(work(stream)))
    await within(started.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)


async def test_who_else_cancels_while_the_final_answer_waits_is_heard_too() -> None:
    async def work(stream: Stream) -> None:
        await turn()
        stream.exchange.finish(200, END)

    wire = Wire(0)
    stream = make_stream(wire)
    task = asyncio.create_task(stream.run(work(stream)))
    await within(wire.blocked.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)


async def test_an_answer_and_a_departure_at_once_are_no_error() -> None:
    # CN-06
    for turns in range(8):
        wire = Wire()

        async def work(stream: Stream, turns: int = turns) -> None:
            stream.exchange.emit(note(1))
            await turn(turns)
            stream.exchange.finish(200, END)

        stream = make_stream(wire)
        task = asyncio.create_task(stream.run(work(stream)))
        await turn(3)
        stream._give_up()
        await within(task)
        assert wire.body.count(b'"result":') <= 1


async def test_a_reader_that_never_reads_costs_bounded_memory() -> None:
    # SA26
    async def work(stream: Stream) -> None:
        chunk = encode_notification("notifications/resources/updated", {"uri": "x" * 10_000})
        for number in range(10 * HARD_CAP // len(chunk)):
            stream.exchange.emit(chunk, key=str(number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        await asyncio.Event().wait()

    wire = Wire(0)
    stream = await run(work, wire)
    assert stream.exchange.overflowed
    assert not stream.exchange.open
    assert stream.exchange._size <= SOFT_CAP


def streams() -> int:
    gc.collect()
    return sum(isinstance(thing, Stream) for thing in gc.get_objects())


async def test_nothing_is_left_behind() -> None:
    before, alive = asyncio.all_tasks(), streams()

    async def work(stream: Stream) -> None:
        stream.exchange.emit(note(1))
        await turn()
        stream.exchange.finish(200, END)

    for _ in range(50):
        await run(work, Wire(), pulse=Pulse(15))
    await turn()
    assert asyncio.all_tasks() == before
    assert streams() == alive
