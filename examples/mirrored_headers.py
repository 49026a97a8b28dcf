"""Arguments that travel as HTTP headers too, so that a proxy can route by them without reading the body."""

import asyncio
import socket
from typing import Annotated

import aiohttp
import uvicorn
from msgspec import Meta

import callboard
from callboard import Client, Context, Server

server = Server("database", version="1.0.0")


@server.tool
async def query(
    sql: str,
    region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})],
    ctx: Context,
) -> str:
    """Query the database of a region."""
    assert ctx.headers is not None
    return f"{sql} in {region}; header: {ctx.headers['mcp-param-region']}"


async def send_raw(url: str, *, header: str, argument: str) -> tuple[int, int]:
    """Send a call whose header may contradict its body; HTTP status and error code."""
    version = "2026-07-28"
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "query",
        "Mcp-Param-Region": header,
    }
    meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": "query", "arguments": {"sql": "SELECT 1", "region": argument}, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        return response.status, (await response.json()).get("error", {}).get("code", 0)


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        web = uvicorn.Server(uvicorn.Config(callboard.asgi(server), log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))

        async with Client(url) as client:
            (tool,) = await client.list_tools()  # tells the client which arguments to mirror
            assert tool.input_schema["properties"]["region"]["x-mcp-header"] == "Region"
            done = await client.call_tool("query", {"sql": "SELECT 1", "region": "eu-west"})
            assert "SELECT 1 in eu-west; header: eu-west" in str(done.content)
            # What fits into no header travels encoded.
            done = await client.call_tool("query", {"sql": "SELECT 1", "region": "Nørrebro"})
            assert "in Nørrebro; header: =?base64?" in str(done.content)

        # A proxy that routed by the header must not be fooled: the server compares.
        assert await send_raw(url, header="eu-west", argument="eu-west") == (200, 0)
        assert await send_raw(url, header="eu-west", argument="us-east") == (400, -32020)

        web.should_exit = True
        await serving
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
