"""A handler that streams: a job beside it, messages from outside, and what happens when the client goes away."""

import asyncio
from typing import Any

from callboard import Client, Handler, ToolError
from callboard.handler import Channel, Crashed, Finished, Published, Stream


class Kitchen(Handler[Any]):
    """Cooks while it hears what is called out in the house."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.began = asyncio.Event()

    def list_tools(self, ctx: Channel, state: Any) -> list[dict[str, Any]]:
        return [{"name": "cook", "inputSchema": {"type": "object", "properties": {"dish": {"type": "string"}}}}]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: Any) -> Any:
        dish = arguments["dish"]
        ctx.subscribe("house")
        ctx.spawn(self.cook(dish, ctx), tag=dish)
        self.began.set()
        return Stream({"dish": dish, "heard": 0})

    async def handle_message(self, message: Any, channel: Channel, state: Any) -> Any:
        match message:
            case Finished(dish, minutes):
                return f"{dish}: {minutes} minutes, {state['heard']} calls heard"
            case Crashed(dish, error):
                return ToolError(f"The {dish} is burnt: {error}")
            case Published(_, "fire!"):
                return ToolError("Everybody out.")
        return Stream({**state, "heard": state["heard"] + 1})

    async def handle_close(self, channel: Channel, state: Any) -> None:
        channel.unsubscribe("house")  # the library would see to it; your own subscriptions are yours to end, here
        self.left.append(state["dish"])

    async def cook(self, dish: str, channel: Channel) -> int:
        if dish == "toast":
            raise RuntimeError("the cat")
        for minute in range(1, 4):
            await asyncio.sleep(0.01 if dish == "soup" else 60)
            channel.progress(minute, 3, f"minute {minute}")
        return 3


async def main() -> None:
    kitchen = Kitchen()
    seen: list[float] = []
    async with Client(kitchen) as client:

        async def cook(dish: str) -> str:
            result = await client.call_tool("cook", {"dish": dish}, on_progress=lambda done, *_: seen.append(done))
            return getattr(result.content[0], "text", "")

        async def begin(dish: str) -> asyncio.Task[str]:
            kitchen.began.clear()
            cooking = asyncio.create_task(cook(dish))
            await kitchen.began.wait()
            return cooking

        assert await cook("soup") == "soup: 3 minutes, 0 calls heard"
        assert seen == [1, 2, 3]
        assert await cook("toast") == "The toast is burnt: the cat"
        roast = await begin("roast")
        for call in ("dinner?", "fire!"):
            kitchen.server.publish("house", call)
        assert await roast == "Everybody out."
        assert kitchen.left == []  # each had a last word of its own

        (await begin("stew")).cancel()
    assert kitchen.left == ["stew"]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
