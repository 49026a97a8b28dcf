"""Any history of a handler's streams: each ends once, `handle_close` runs where it should and only there, and nothing is left of any."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgi_driver import JSON, Client, make_meta
from errands import KNOWING
from hypothesis import given, settings
from hypothesis import strategies as st
from legacy_driver import Exchange, Legacy
from rounds import accept
from virtual_time import run, settle

from callboard import Handler, asgi
from callboard.errors import Fail, Reason, ToolError
from callboard.handler import Channel, Reply, Stop, Stream

LAST: dict[str, Any] = {
    "result": "done",
    "reply": Reply("done", state=7),
    "stop": Stop("enough"),
    "fail": Fail(Reason.INVALID_PARAMS, "No."),
    "tool error": ToolError("No."),
    "nothing": None,
}
STEPS = [
    "sleep",
    "job",
    "crash",
    "send",
    "send",
    "send",
    "close",
    "ask",
    "ask",
    "job that asks",
    "hear",
    "publish",
    "notify",
    "thread",
    "raise",
    *LAST,
]
ENDS = ["wait", "leave", "cancel", "delete", "shutdown"]


class Scripted(Handler[Any]):
    """Its callbacks do what a script says, one batch of steps each, and go on where it says nothing.

    Attributes:
        closed: What each `handle_close` saw.
        over: Reasons of ended sessions.
        jobs: Jobs that run.
        shut: Whether it closed the channel itself.
        said: Whether it gave a last word of its own.
    """

    def __init__(self, script: list[list[str]]) -> None:
        self._script = script
        self._asked = 0
        self.closed: list[tuple[bool, bool]] = []
        self.over: list[str] = []
        self.jobs = 0
        self.shut = self.said = False

    def list_tools(self, ctx: Channel, state: Any) -> list[JSON]:
        return [{"name": "go"}]

    async def call_tool(self, name: str, arguments: JSON, ctx: Channel, state: Any) -> Any:
        self._batches = iter(self._script)
        self._asked = 0
        self.shut = self.said = False
        return await self._play(ctx, next(self._batches, []))

    async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
        return await self._play(channel, next(self._batches, []))

    async def handle_close(self, channel: Channel, state: Any) -> None:
        self.closed.append((channel.closed, channel.send("late")))
        await asyncio.sleep(0.5)

    async def terminate(self, reason: str, state: Any) -> None:
        self.over.append(reason)

    async def _play(self, channel: Channel, steps: list[str]) -> Any:
        for step in steps:
            if step in LAST or step == "raise":
                self.said = True
                if step == "raise":
                    raise ValueError(step)
                return LAST[step]
            await self._do(channel, step)
        return Stream(len(steps))

    async def _do(self, channel: Channel, step: str) -> None:
        if step == "sleep":
            await asyncio.sleep(2)
        elif step == "ask":
            await self._ask(channel)
        elif step == "thread":
            await asyncio.to_thread(channel.send, step)
        else:
            self._act(channel)[step]()

    def _act(self, channel: Channel) -> dict[str, Callable[[], Any]]:
        return {
            "job": lambda: channel.spawn(self._work()),
            "crash": lambda: channel.spawn(self._crash()),
            "job that asks": lambda: channel.spawn(self._ask(channel)),
            "send": lambda: channel.send("send"),
            "close": lambda: self._close(channel),
            "hear": lambda: channel.subscribe("news"),
            "publish": lambda: self.server.publish("news", "publish"),
            "notify": lambda: channel.notify("notifications/message", {"level": "info", "data": "notify"}),
        }

    def _close(self, channel: Channel) -> None:
        self.shut = True
        channel.close()

    async def _work(self) -> None:
        self.jobs += 1
        try:
            await asyncio.sleep(3)
        finally:
            self.jobs -= 1

    async def _crash(self) -> None:
        raise ValueError("crash")

    async def _ask(self, channel: Channel) -> str:
        self._asked += 1
        return (await channel.elicit(f"Question {self._asked}?", str)).value


async def play(handler: Scripted, end: str, seconds: float) -> None:
    """One call on the current protocol; rounds are answered."""
    app = asgi(handler)
    client, meta = Client(app), make_meta(KNOWING)
    params: JSON = {"name": "go", "arguments": {}}
    while params:
        async with client.open("tools/call", params, meta=meta) as exchange:
            await asyncio.sleep(seconds)
            if end == "shutdown":
                await app.aclose()
            result = (await exchange.end()).message.get("result", {}) if exchange.task.done() else {}
        asked = result.get("inputRequests", {})
        assert not (asked and handler.closed and not handler.shut), "a question is no close"
        more = {"requestState": result.get("requestState"), "inputResponses": {key: accept(value="x") for key in asked}}
        params = {**params, **more} if asked and end == "wait" else {}
    await app.aclose()


async def play_in_session(handler: Scripted, end: str, seconds: float, token: int | None) -> None:
    """One call in a session; what it asks is answered."""
    app = asgi(handler)
    session = await Legacy(app).connect(capabilities={"elicitation": {}})
    exchange: Exchange = session.begin("go", {}, request_id=1, token=token)

    async def answer() -> None:
        while True:
            message = await exchange.message()
            if message.get("method") == "elicitation/create":
                await session.respond(message, accept(value="x"))

    answering = asyncio.create_task(answer())
    await asyncio.sleep(seconds)
    if end == "leave":
        exchange.disconnect()
    elif end == "cancel":
        await session.cancel(1)
    elif end == "delete":
        await session.delete()
    elif end == "shutdown":
        await app.aclose()
    await asyncio.sleep(10)
    exchange.disconnect()
    answering.cancel()
    await asyncio.wait([answering])
    await app.aclose()
    assert len(handler.over) == 1


@contextmanager
def quiet() -> Iterator[None]:
    """Crashes are in the script, so nobody needs to read of them."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(STEPS), max_size=4), max_size=5),
    st.sampled_from(ENDS),
    st.sampled_from([0.0, 1.0, 2.5, 20.0]),
    st.sampled_from(["current", "session", "streaming"]),
)
def test_any_history_of_a_stream_ends_once_with_nothing_left(script: list[list[str]], end: str, seconds: float, where: str) -> None:
    # CN-04, MR-01
    async def main() -> None:
        handler = Scripted(script)
        if where == "current":
            await play(handler, end, seconds)
        else:
            await play_in_session(handler, end, seconds, 1 if where == "streaming" else None)
        await asyncio.sleep(10)
        await settle()
        assert len(handler.closed) <= 1
        assert all(closed and not sent for closed, sent in handler.closed)
        assert not (handler.said and handler.closed and not handler.shut), "a last word of its own is no close"
        assert handler.jobs == 0
        assert not [topic for topic in handler.server.bus._topics._topics if "news" in topic]  # type: ignore[attr-defined]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with quiet():
        run(main)
