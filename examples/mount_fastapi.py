"""Inside a FastAPI application, beside its own endpoints and sharing its state."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from starlette.routing import Route

import callboard
from callboard import Client, Context, Server

server = Server("orders", version="1.0.0")


class State(TypedDict):
    orders: dict[str, int]


@server.tool
async def order(item: str, ctx: Context) -> int:
    """Order one more; `ctx.scope_state` is the state of the application around."""
    orders: dict[str, int] = ctx.scope_state["orders"]
    orders[item] = orders.get(item, 0) + 1
    return orders[item]


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[State]:
    yield {"orders": {}}


app = FastAPI(lifespan=lifespan, routes=[Route("/mcp", callboard.asgi(server))])


@app.get("/orders")
async def orders(request: Request) -> dict[str, int]:
    placed: dict[str, int] = request.state.orders
    return placed


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        site = f"http://127.0.0.1:{listener.getsockname()[1]}"
        web = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))

        async with Client(f"{site}/mcp") as client:
            for count in (1, 2):
                assert (await client.call_tool("order", {"item": "lamp"})).structured_content == count
        async with aiohttp.ClientSession() as session, session.get(f"{site}/orders") as response:
            assert await response.json() == {"lamp": 2}

        web.should_exit = True
        await serving
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
