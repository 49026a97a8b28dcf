"""Layers around every request, whatever the transport: one measures, one finds out who asks."""

import asyncio
from time import perf_counter

from callboard import Client, Context, Fail, Request, Server, Service
from callboard.client.errors import ServerError
from callboard.core.outcome import Outcome

TOKENS = {"s3cret": "ada"}
took: list[tuple[str, float]] = []


def timing(service: Service) -> Service:
    async def timed(request: Request, ctx: Context) -> Outcome:
        began = perf_counter()
        try:
            return await service(request, ctx)
        finally:
            took.append((request.method, perf_counter() - began))

    return timed


def identify(service: Service) -> Service:
    """Over HTTP the token would come from `ctx.headers`; `_meta` works everywhere."""

    async def identified(request: Request, ctx: Context) -> Outcome:
        user = TOKENS.get(ctx.meta.get("example.com/token", ""))
        if user is None and request.method == "tools/call":
            return Fail.custom(4001, "Send a token that is known.")
        ctx.locals["user"] = user
        return await service(request, ctx)

    return identified


server = Server("private", version="1.0.0", middleware=[timing, identify])


@server.tool
async def who_am_i(ctx: Context) -> str:
    """Who is asking."""
    return str(ctx.locals["user"])


async def main() -> None:
    async with Client(server) as client:
        assert len(await client.list_tools()) == 1
        code = 0
        try:
            await client.call_tool("who_am_i")
        except ServerError as error:
            code = error.code
        assert code == 4001, "strangers are not served"
        done = await client.request("tools/call", {"name": "who_am_i", "_meta": {"example.com/token": "s3cret"}})
        assert done["content"] == [{"type": "text", "text": "ada"}]
    assert [method for method, _ in took] == ["tools/list", "tools/call", "tools/call"]
    assert all(seconds < 1 for _, seconds in took)
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
