"""Options made per session: a factory looks at the request that opens it, and what it made stays, whatever later requests say."""

import asyncio
import logging
import socket
from typing import Any

import aiohttp
import uvicorn

import callboard
from callboard import Caller, Client, Context, Server
from callboard.client.errors import ServerError

TENANTS = {"k-acme": "acme", "k-umbrella": "umbrella"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}
server = Server("tenants", version="1.0.0")


def bind(caller: Caller) -> dict[str, str]:
    """Called once for a session of 2025, once for each request of the current protocol."""
    assert caller.headers is not None
    return {"tenant": TENANTS[caller.headers["x-key"]]}  # a KeyError is HTTP 500: the client learns nothing, the log everything


@server.tool
async def whose(ctx: Context) -> str:
    """Whose data this is."""
    tenant: str = ctx.options["tenant"]
    return tenant


async def main() -> None:
    logging.getLogger("callboard").addHandler(logging.NullHandler())  # what the factory raises
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        web = uvicorn.Server(uvicorn.Config(callboard.asgi(server, options=bind), log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        async with aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:

            async def post(method: str, params: dict[str, Any], **headers: str) -> tuple[int, str | None, Any]:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                async with http.post(url, json=body, headers=named) as response:
                    return response.status, response.headers.get("Mcp-Session-Id"), await response.json()

            status, session_id, _ = await post("initialize", HELLO, X_Key="k-acme")
            assert status == 200
            assert session_id is not None
            _, _, said = await post("tools/call", {"name": "whose"}, Mcp_Session_Id=session_id, X_Key="k-umbrella")
            assert said["result"]["content"] == [{"type": "text", "text": "acme"}], "bound when the session began"

            status, session_id, said = await post("initialize", HELLO, X_Key="guessed")
            assert (status, session_id, said["error"]["code"]) == (500, None, -32603)

        # The current protocol has no sessions: each request is bound by its own headers.
        async with Client(url, headers={"X-Key": "k-umbrella"}) as client:
            assert "umbrella" in str((await client.call_tool("whose")).content)
        code = 0
        try:
            async with Client(url, headers={"X-Key": "guessed"}) as client:
                await client.call_tool("whose")
        except ServerError as error:
            code = error.code
        assert code == -32603, "strangers are not served"
        web.should_exit = True
        await serving
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
