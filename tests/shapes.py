"""A server with every shape of asking its client, and a client's answers."""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from asgi_driver import JSON
from rounds import accept, sampled

from callboard import Context, Depends, Fail, Server, ToolError
from callboard.types import Root


@dataclass
class Region:
    """Where to deploy.

    Attributes:
        region: Where.
        count: How many.
    """

    region: Literal["eu", "us"]
    count: int = 1


def respond(_key: str, request: JSON) -> JSON:
    """Answers whatever is asked, forms with what their fields are called."""
    if request["method"] == "sampling/createMessage":
        return sampled("four")
    if request["method"] == "roots/list":
        return {"roots": [{"uri": "file:///a"}]}
    properties = request["params"].get("requestedSchema", {}).get("properties", {})
    content = {name: "eu" if "enum" in schema else "text" for name, schema in properties.items() if schema["type"] == "string"}
    return {"action": "accept"} if request["params"]["mode"] == "url" else accept(**content)


async def find_region(ctx: Context) -> str:
    """A dependency that asks."""
    return (await ctx.elicit("Which?", Region)).value.region


def find_name(ctx: Context) -> str:
    """A dependency that asks, on a thread."""
    return ctx.wait(ctx.elicit("Name?", str)).value


class Shapes:
    """A server with every shape of asking.

    Attributes:
        log: What its functions did, in order.
    """

    def __init__(self, **options: Any) -> None:
        self.log: list[str] = []
        self.server = Server("shapes", **options)
        for name in [name for name in dir(self) if name.startswith("tool_")]:
            self.server.tool(getattr(self, name), name=name.removeprefix("tool_"))

    async def tool_plain(self, ctx: Context) -> str:
        answer = await ctx.elicit("Which?", Region)
        return f"{answer.value.region} {answer.value.count}"

    async def tool_guarded(self, ctx: Context) -> str:
        try:
            answer = await ctx.elicit("Which?", Region)
        except Exception as error:  # noqa: BLE001 - what must not take a suspension for a failure
            self.log.append(f"swallowed {error!r}")
            return "swallowed"
        finally:
            self.log.append("closed")
        return answer.value.region

    async def tool_stubborn(self, ctx: Context) -> str:
        try:
            return (await ctx.elicit("Which?", Region)).value.region
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "swallowed"

    async def tool_together(self, ctx: Context) -> str:
        async def later() -> str:
            await asyncio.sleep(0)
            return (await ctx.elicit("Then?", str)).value

        first, second = await asyncio.gather(ctx.elicit("Which?", Region), later(), return_exceptions=True)
        assert not isinstance(first, BaseException), first
        return f"{first.value.region} {second}"

    async def tool_after_io(self, ctx: Context) -> str:
        async def slow() -> str:
            self.log.append("io")
            for _ in range(10):
                await asyncio.sleep(0)
            return (await ctx.elicit("Slow?", str)).value

        first, second = await asyncio.gather(ctx.elicit("Which?", Region), slow())
        return f"{first.value.region} {second}"

    async def tool_after_once(self, ctx: Context) -> str:
        async def fetch() -> str:
            self.log.append("fetch")
            for _ in range(10):
                await asyncio.sleep(0)
            return "fetched"

        async def slow() -> str:
            found = await ctx.once("fetch", fetch)
            return found + (await ctx.elicit("Slow?", str)).value

        first, second = await asyncio.gather(ctx.elicit("Which?", Region), slow())
        return f"{first.value.region} {second}"

    async def tool_grouped(self, ctx: Context) -> str:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            a = group.create_task(ctx.elicit("A?", str))
            b = group.create_task(ctx.elicit("B?", str))
            c = group.create_task(ctx.sample("2 + 2?", max_tokens=5))
        return f"{a.result().value} {b.result().value} {c.result().text}"

    async def tool_timed(self, ctx: Context) -> str:
        try:
            answer = await asyncio.wait_for(ctx.elicit("Which?", Region), 0.001)
        except TimeoutError:
            return "timed out"
        return answer.value.region

    async def tool_looped(self, ctx: Context, times: int = 3) -> str:
        said = [(await ctx.elicit("More?", str)).value for _ in range(times)]
        return " ".join(said)

    async def tool_endless(self, ctx: Context) -> str:
        while True:
            await ctx.elicit("More?", str)

    async def tool_twice(self, ctx: Context) -> str:
        await asyncio.gather(ctx.elicit("Same?", str), ctx.elicit("Same?", str), return_exceptions=True)
        return "swallowed"

    async def tool_keyed(self, ctx: Context) -> str:
        a, b = await asyncio.gather(ctx.elicit("Same?", str, key="a"), ctx.elicit("Same?", str, key="b"))
        return f"{a.value} {b.value}"

    async def tool_one_key(self, ctx: Context) -> str:
        while True:
            await ctx.elicit("More?", str, key="more")

    async def tool_everything(self, ctx: Context) -> str:
        roots, opened = await asyncio.gather(ctx.roots(), ctx.elicit_url("Pay", "https://pay.example/7"))
        assert opened.value is None
        return f"{[root.uri for root in roots if isinstance(root, Root)]} {opened.action}"

    async def tool_counted(self, ctx: Context) -> str:
        def bump() -> int:
            self.log.append("bump")
            return len(self.log)

        number = await ctx.once("number", bump)
        first = await ctx.elicit("First?", str)
        second = await ctx.elicit("Second?", str)
        assert await ctx.once("number", bump) == number
        return f"{number} {first.value} {second.value} {ctx.chain_id}"

    def tool_threaded(self, ctx: Context) -> str:
        try:
            answer = ctx.wait(ctx.elicit("Which?", Region))
        except Exception:  # noqa: BLE001 - likewise
            self.log.append("swallowed")
            return "swallowed"
        return answer.value.region

    async def tool_depending(self, region: str = Depends(find_region), name: str = Depends(find_name)) -> str:
        return f"{region} {name}"

    async def tool_abandoned(self, ctx: Context) -> str:
        asking = asyncio.ensure_future(ctx.elicit("Which?", Region))
        await asyncio.sleep(0)
        self.log.append(str(asking.done()))
        return "done without it"

    async def tool_fallback(self, ctx: Context) -> str:
        try:
            return (await ctx.elicit("Which?", Region)).value.region
        except Fail as fail:
            return f"{fail.reason.name} {fail.data}"

    async def tool_with_failure(self, ctx: Context) -> str:
        async def fail() -> None:
            raise ToolError("broken")

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("Which?", Region))
            group.create_task(fail())
        return "never"
