"""A server mounted on another one, with its own middleware and lifespan, and tools that are there for some requests only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from callboard import Client, Context, Outcome, Request, Server, Service


def timed(service: Service) -> Service:
    """Middleware of the mounted server: it sees the names that its own tools have."""

    async def layer(request: Request, ctx: Context) -> Outcome:
        seen.append(f"{ctx.server.name}: {request.params.name}")
        return await service(request, ctx)

    return layer


@asynccontextmanager
async def open_stock(_server: Server) -> AsyncIterator[dict[str, Any]]:
    seen.append("opened")
    yield {"stock": {"tea": 3}}
    seen.append("closed")


seen: list[str] = []
shop = Server("shop", version="1.0.0", middleware=[timed], lifespan=open_stock)


@shop.tool
async def take(item: str, ctx: Context) -> int:
    """Take one of something; how many are left."""
    ctx.locals["stock"][item] -= 1
    left: int = ctx.locals["stock"][item]
    return left


mall = Server("mall", version="1.0.0")
mall.mount("shop", shop)


def reorder() -> str:
    """Order more."""
    return "ordered"


@shop.provide
async def when_low(ctx: Context) -> AsyncIterator[Any]:
    """Asked with each request. Over HTTP it may depend on who asks: `ctx.principal`, `ctx.scopes`."""
    if ctx.locals["stock"]["tea"] < 3:
        yield reorder


async def main() -> None:
    async with Client(mall) as client:
        assert [tool.name for tool in await client.list_tools()] == ["shop_take"]
        assert (await client.call_tool("shop_take", {"item": "tea"})).structured_content == 2
        assert seen == ["opened", "shop: take"]

        assert [tool.name for tool in await client.list_tools()] == ["shop_take", "shop_reorder"], "now there is more"
        assert not (await client.call_tool("shop_reorder")).is_error

        shop.tool(reorder, name="later")
        assert not (await client.call_tool("shop_later")).is_error, "what the mounted server gets is there at once"
    assert seen[-1] == "closed"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
