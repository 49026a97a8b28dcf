"""Inside a Starlette application: one route, or a mount; its lifespan ends what Callboard began."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import callboard
from callboard import Client, Context, Server

events: list[str] = []


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[dict[str, str]]:
    events.append(f"open {server.name}")
    yield {"greeting": "hello"}
    events.append(f"close {server.name}")


server = Server("board", version="1.0.0", lifespan=lifespan)


@server.tool
async def greet(ctx: Context) -> str:
    """Greet, in the words of the server's lifespan."""
    return str(ctx.locals["greeting"])


async def home(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("the rest of the site")


mcp, agents = callboard.asgi(server), callboard.asgi(server)


@asynccontextmanager
async def end_with_site(_site: Starlette) -> AsyncIterator[None]:
    yield  # nothing to begin: the first request does
    await mcp.aclose()
    await agents.aclose()


app = Starlette(routes=[Route("/", home), Route("/mcp", mcp), Mount("/agents", agents)], lifespan=end_with_site)


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        site = f"http://127.0.0.1:{listener.getsockname()[1]}"
        web = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))

        for path in ("/mcp", "/agents/mcp", "/agents/mcp/"):
            async with Client(site + path) as client:
                assert "hello" in str((await client.call_tool("greet")).content)
        async with aiohttp.ClientSession() as session, session.get(site) as response:
            assert await response.text() == "the rest of the site"

        web.should_exit = True
        await serving
    assert events == ["open board", "close board"], "once for both"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
