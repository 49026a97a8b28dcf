"""Work that outlasts the patience of proxies: the server hangs up, the client comes back for the rest."""

import asyncio
import json
import socket
from typing import Any

import aiohttp
import uvicorn

import callboard
from callboard import Context, Server

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}
server = Server("kitchen", version="1.0.0")
served = asyncio.Event()


@server.tool
async def roast(ctx: Context) -> str:
    """Roast something, which takes long."""
    ctx.progress(1, 2, "in the oven")
    ctx.disconnect(retry=0.2)  # no connection has to last until it is done
    await served.wait()  # the work goes on
    return "crisp"


def read_stream(text: str) -> tuple[list[dict[str, Any]], str, float]:
    """Messages of an event stream, the id of its last event, and seconds until the client is to come back."""
    lines = [line.partition(": ") for line in text.splitlines()]
    messages = [json.loads(value) for name, _, value in lines if name == "data" and value]
    retry = [int(value) / 1000 for name, _, value in lines if name == "retry"]
    return messages, [value for name, _, value in lines if name == "id"][-1], retry[-1] if retry else 0


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        web = uvicorn.Server(uvicorn.Config(callboard.asgi(server), log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        async with asyncio.timeout(20), aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:
            async with http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}) as response:
                session = {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": response.headers["Mcp-Session-Id"]}

            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "roast", "_meta": {"progressToken": "p"}}}
            async with http.post(url, json=call, headers=session) as response:
                messages, last_id, retry = read_stream(await response.text())  # the response ends before the call does
            assert [message["method"] for message in messages] == ["notifications/progress"]
            assert retry == 0.2

            served.set()
            await asyncio.sleep(retry)
            async with http.get(url, headers={**session, "Last-Event-ID": last_id}) as response:
                messages, _, _ = read_stream(await response.text())
            assert [message["result"]["content"][0]["text"] for message in messages] == ["crisp"]
        web.should_exit = True
        await serving
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
