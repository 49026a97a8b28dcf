"""Handlers that tests serve: a counter threaded by returned state, and a job that streams."""

import asyncio
from typing import Any

from callboard.errors import Fail, Reason, ToolError
from callboard.handler import Channel, Crashed, Finished, Handler, Hello, Published, Reply, Stop, Stream
from callboard.types import Tool


class Counter(Handler[Any]):
    """Counts in every session; its state is a plain int, kept by reference.

    Attributes:
        hellos: How clients have introduced themselves.
        over: Reason and last count of each session that has ended.
        ran: What calls saw when they began, in order.
        running: How many calls of `slow` run now, and the most that ever did.
    """

    name = "counter"
    version = "1.0"
    instructions = "Count."

    def __init__(self, begin: Any = 0) -> None:
        self.begin = begin
        self.hellos: list[Hello] = []
        self.over: list[tuple[str, Any]] = []
        self.ran: list[Any] = []
        self.running = self.most = 0

    async def init(self, hello: Hello) -> Any:
        self.hellos.append(hello)
        if isinstance(self.begin, Exception):
            raise self.begin
        return self.begin

    def list_tools(self, ctx: Channel, state: int) -> list[Any]:
        names = ("fail", "refuse", "crash", "nonsense", "slow", "stop", "say", "quit")
        bump = {"name": "bump", "description": "Count one more.", "input_schema": {"type": "object"}}
        return [bump, Tool(name="look", input_schema={"type": "object"}), *({"name": name} for name in names)]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: int) -> Any:
        self.ran.append(state)
        if name == "slow":
            return await self._count_slowly(state, arguments.get("seconds", 2))
        return getattr(self, f"_{name}")(state)

    def _bump(self, state: int) -> Any:
        return Reply(str(state + 1), state=state + 1)

    def _look(self, state: int) -> str:
        return str(state)

    def _fail(self, state: int) -> Any:
        return Reply(ToolError("Out of numbers."), state=state + 1)

    def _refuse(self, state: int) -> Any:
        return Reply(Fail(Reason.INVALID_PARAMS, "Not today."), state=state + 1)

    def _crash(self, state: int) -> Any:
        raise ValueError(f"password=hunter2 {state}")

    def _nonsense(self, state: int) -> Any:
        return Reply({"content": [{"type": "text", "text": "\ud800"}]}, state=state + 1)

    def _stop(self, state: int) -> Any:
        return Stop("secret reason")

    def _say(self, state: int) -> Any:
        return Reply("bye", state=state + 1, stop_reason="said bye")

    def _quit(self, state: int) -> Any:
        return {"neither": "content nor structuredContent"}

    async def _count_slowly(self, state: int, seconds: float) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return Reply(str(state + 1), state=state + 1)

    async def terminate(self, reason: str, state: Any) -> None:
        self.over.append((reason, state))


class Jobs(Handler[Any]):
    """Streams what its mailbox brings.

    Attributes:
        closed: For each `handle_close`: whether the channel was closed, what sending gave, and the state.
        channels_seen: Channels of its requests.
        heard: Messages that came, in order.
        jobs_ended: How its jobs ended.
    """

    capabilities = {"tools": {}}  # noqa: RUF012 - as an author writes it

    def __init__(self) -> None:
        self.closed: list[tuple[bool, Any, Any]] = []
        self.channels_seen: list[Channel] = []
        self.heard: list[Any] = []
        self.jobs_ended: list[str] = []

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        self.channels_seen.append(ctx)
        if name == "work":
            ctx.spawn(self._work(ctx, arguments.get("steps", 3)), "work")
        elif name == "crash":
            ctx.spawn(self._crash(), "crash")
        elif name == "news":
            ctx.subscribe("news")
        elif name == "mail":
            for number in range(3):
                ctx.send(number)
        elif name == "close":
            ctx.close()
        elif name == "start":
            ctx.start_stream()
            return "started"
        return Stream(0)

    async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
        self.heard.append(message)
        match message:
            case Finished("work", value):
                return f"done: {value}"
            case Crashed("crash", error):
                return ToolError(f"crashed: {error}")
            case Published("news", news):
                channel.notify("notifications/message", {"level": "info", "data": news})
                return str(news["n"]) if news["n"] >= 2 else Stream(state + 1)
            case str():
                return self._do(message, channel, state)
            case 2:
                return f"{state + 1} letters"
        return Stream(state + 1)

    def _do(self, message: str, channel: Channel, state: Any) -> Any:
        if message.startswith("close"):
            channel.close()
        if message == "raise":
            raise ValueError("hunter2")
        words = {"close": Stream(state), "close and reply": "too late", "stop": Stop("enough"), "none": None, "end": "the end"}
        return words[message]

    async def handle_close(self, channel: Channel, state: Any) -> None:
        sent = [channel.send("x"), bool(channel.progress(1)), channel.notify("notifications/message"), channel.start_stream()]
        self.closed.append((channel.closed, sent, state))

    async def _work(self, ctx: Channel, steps: int) -> int:
        try:
            for step in range(1, steps + 1):
                ctx.progress(step, steps)
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            self.jobs_ended.append("cancelled")
            raise
        self.jobs_ended.append("finished")
        return steps

    async def _crash(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("no paper")
