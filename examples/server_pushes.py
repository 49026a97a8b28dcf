"""What a server says unasked: broadcasts, messages to one session, changed resources, logs; and what a client missed, replayed."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import uvicorn

import callboard
from callboard import Context, Server, types

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}
server = Server("news", version="1.0.0", channels=["headlines"])


@server.resource("news://today")
def today() -> str:
    """What is new today."""
    return "A lamp was sold."


@server.tool
async def remind(text: str, ctx: Context) -> None:
    """Remind this very client later: its session's id is all it takes, from any thread."""
    assert ctx.session_id is not None
    server.log(ctx.session_id, "info", text)


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Events of a stream that carry a message: id and message."""
    event_id = ""
    async for line in response.content:
        name, _, value = line.decode().strip().partition(": ")
        event_id = value if name == "id" else event_id
        if name == "data":
            yield event_id, json.loads(value)


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        web = uvicorn.Server(uvicorn.Config(callboard.asgi(server), log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        async with asyncio.timeout(20), aiohttp.ClientSession(headers={"Accept": "application/json, text/event-stream"}) as http:
            session: dict[str, str] = {}

            async def post(method: str, **params: Any) -> None:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                async with http.post(url, json=body, headers=session) as response:
                    assert "result" in await response.json()
                    session.setdefault("Mcp-Session-Id", response.headers.get("Mcp-Session-Id", ""))

            await post("initialize", **HELLO)
            await post("resources/subscribe", uri="news://today")
            async with http.get(url, headers=session) as response:
                events = read_events(response)
                server.broadcast("headlines", {"method": "notifications/message", "params": {"level": "info", "data": "extra, extra"}})
                assert (await anext(events))[1]["params"]["data"] == "extra, extra"
                server.resource_updated("news://today")
                last_id, note = await anext(events)
                assert note == {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "news://today"}}

            # The connection is gone. What comes now waits for the client to return with the id of the last event it saw.
            await post("tools/call", name="remind", arguments={"text": "buy a lamp"})
            server.notify(session["Mcp-Session-Id"], types.ToolListChangedNotification())
            async with http.get(url, headers={**session, "Last-Event-ID": last_id}) as response:
                missed = read_events(response)
                assert (await anext(missed))[1]["params"] == {"level": "info", "data": "buy a lamp"}
                assert (await anext(missed))[1]["method"] == "notifications/tools/list_changed"
        web.should_exit = True
        await serving
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
