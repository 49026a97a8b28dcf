"""Streams of a handler, whatever comes into the mailbox and however they end: every message once and in order, one end, nothing left."""

import asyncio
from typing import Any

from asgi_driver import Client, Exchange
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import run, settle

from callboard import asgi
from callboard.errors import Fail
from callboard.handler import Channel, Crashed, Finished, Handler, Published, Stop, Stream

WORDS = {"result": "done", "fail": Fail.custom(1, "no"), "stop": Stop("enough"), "crash": None}
# What a test does: messages of every kind, last words of the handler, ends from outside.
STEPS = st.lists(st.sampled_from(["send", "job", "broken job", "publish", "wait"]), max_size=8)
ENDS = st.sampled_from([*WORDS, "close", "close inside", "disconnect", "cancel task"])


class Diary(Handler[Any]):
    """Writes down what it hears, and ends when it is told to."""

    capabilities = {"tools": {}}  # noqa: RUF012 - as an author writes it

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.heard: list[Any] = []
        self.closed: list[bool] = []
        self.left = 0

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        self.channel = ctx
        ctx.subscribe("news")
        ctx.spawn(self.never_end(), "forever")
        return Stream(0)

    async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
        assert state == len(self.heard)
        self.heard.append(message)
        if message == "close inside":
            channel.close()
        elif message == "crash":
            raise ValueError("hunter2")
        elif isinstance(message, str) and message in WORDS:
            return WORDS[message]
        return Stream(state + 1)

    async def handle_close(self, channel: Channel, state: Any) -> None:
        await asyncio.sleep(0)
        self.closed.append(channel.closed and not channel.send("late"))

    async def never_end(self) -> None:
        self.left += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.left -= 1


async def fail() -> None:
    raise ValueError("broken")


def act(diary: Diary, channel: Channel, number: int, step: str) -> list[Any]:
    """Do one thing; what must be heard of it, in this place."""
    if step == "send":
        assert channel.send(number)
        return [number]
    if step == "publish":
        diary.server.publish("news", number)
        return [Published("news", number)]
    assert channel.spawn(asyncio.sleep(0, number) if step == "job" else fail(), number)
    return []


def end_stream(channel: Channel, stream: Exchange, end: str) -> None:
    """End it, in one of all ways."""
    if end in {*WORDS, "close inside"}:
        assert channel.send(end)
    elif end == "close":
        channel.close()
    elif end == "disconnect":
        stream.disconnect()
    else:
        stream.task.cancel()


def judge(diary: Diary, channel: Channel, steps: list[str], sent: list[Any], *, patient: bool) -> None:
    """What was heard: everything in order, and the end of each job once."""
    plain = [message for message in diary.heard if isinstance(message, int | Published)]
    assert plain == sent[: len(plain)], "in order, none left out"
    ends = [message for message in diary.heard if isinstance(message, Finished | Crashed)]
    assert len(ends) == len({message.tag for message in ends})
    assert all(isinstance(message, Finished) == (steps[message.tag] == "job") for message in ends)
    if patient:
        assert (len(plain), len(ends)) == (len(sent), sum("job" in step for step in steps))
    assert diary.left == 0
    assert not any([channel.send(1), channel.subscribe("news"), channel.unsubscribe("news"), channel.start_stream()])
    assert channel.closed


async def play(steps: list[str], end: str, *, patient: bool) -> None:
    diary = Diary()
    async with Client(asgi(diary)).open("tools/call", {"name": "write"}) as stream:
        assert await stream.head() == 200
        channel = diary.channel
        assert channel is not None
        sent: list[Any] = []
        for number, step in enumerate(steps):
            if step == "wait":
                await settle()
            else:
                sent += act(diary, channel, number, step)
        if patient:
            await settle()
        end_stream(channel, stream, end)
        await asyncio.wait([stream.task])
        judge(diary, channel, steps, sent, patient=patient)
        assert diary.closed == ([] if end in WORDS else [True])
    await settle()
    if end not in {"disconnect", "cancel task"}:
        assert not stream.sent[-1].get("more_body"), "the client has its answer"


@given(STEPS, ENDS, st.booleans())
def test_a_stream_has_one_end(steps: list[str], end: str, patient: bool) -> None:
    async def main() -> None:
        await play(steps, end, patient=patient)

    run(main)
