"""Sessions of 2025 clients and their state: each has a cart of its own. Driven over HTTP with bare requests, as such a client does."""

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn

import callboard
from callboard import Server, ToolError

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)


ended: list[tuple[str, int]] = []
server = Server("shop", version="1.0.0", state=Cart, terminate=lambda reason, cart: ended.append((reason, len(cart.items))))


@server.tool
async def put(item: str, cart: Cart) -> list[str]:
    """Put something into the cart. Calls of one session that take it run one after the other."""
    cart.items.append(item)
    if item == "nothing":
        raise ToolError("You can't buy nothing.")  # an answer: what the call did to the cart stays
    if item == "bug":
        raise RuntimeError  # no answer: the cart is as it was before the call
    return cart.items


async def main() -> None:
    logging.getLogger("callboard").addHandler(logging.NullHandler())  # the bug's traceback
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        web = uvicorn.Server(uvicorn.Config(callboard.asgi(server), log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        async with aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:

            async def open_session() -> dict[str, str]:
                async with http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}) as response:
                    assert (await response.json())["result"]["protocolVersion"] == "2025-11-25"
                    return {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": response.headers["Mcp-Session-Id"]}

            async def call_put(session: dict[str, str], item: str) -> Any:
                params = {"name": "put", "arguments": {"item": item}}
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
                async with http.post(url, json=body, headers=session) as response:
                    return await response.json()

            ada, bob = await open_session(), await open_session()
            assert (await call_put(ada, "lamp"))["result"]["structuredContent"] == {"result": ["lamp"]}  # only objects, in 2025
            assert (await call_put(bob, "chair"))["result"]["structuredContent"] == {"result": ["chair"]}
            assert (await call_put(ada, "nothing"))["result"]["isError"]
            assert (await call_put(ada, "bug"))["error"]["code"] == -32603
            assert (await call_put(ada, "table"))["result"]["structuredContent"] == {"result": ["lamp", "nothing", "table"]}

            async with http.delete(url, headers=ada) as response:
                assert response.status == 204
            assert ended == [("deleted", 3)]
        web.should_exit = True
        await serving
    assert ended == [("deleted", 3), ("shutdown", 1)], "every session ends once"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
