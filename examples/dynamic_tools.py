"""Components come and go while the server runs; clients that listen hear of it."""

import asyncio

from callboard import Client, Server, text
from callboard.client.changes import Change
from callboard.client.subscription import Subscription
from callboard.types import ResourceUpdatedNotification, ToolListChangedNotification

server = Server("plugins", version="1.0.0")
status = "idle"


async def shout(words: str) -> str:
    """Say it louder."""
    return words.upper()


@server.tool
async def load() -> str:
    """Load the plugin."""
    server.add(shout)
    return "loaded"


@server.tool
async def unload() -> str:
    """Unload the plugin."""
    server.remove("tools", "shout")
    return "unloaded"


@server.resource("plugins://status")
def read_status() -> str:
    """What is going on."""
    return status


async def heard(changes: Subscription) -> Change:
    async with asyncio.timeout(1):
        return await anext(changes)


async def main() -> None:
    global status  # noqa: PLW0603
    async with Client(server) as client, client.listen(tools=True, uris=["plugins://status"]) as changes:
        await client.call_tool("load")
        assert isinstance(await heard(changes), ToolListChangedNotification)
        assert [tool.name for tool in await client.list_tools()] == ["load", "unload", "shout"]
        assert (await client.call_tool("shout", {"words": "hey"})).content == [text("HEY")]

        await client.call_tool("unload")
        assert isinstance(await heard(changes), ToolListChangedNotification)
        assert [tool.name for tool in await client.list_tools()] == ["load", "unload"]

        # That a resource has other contents now is the author's to say.
        status = "busy"
        server.resource_updated("plugins://status")
        change = await heard(changes)
        assert isinstance(change, ResourceUpdatedNotification)
        assert change.params.uri == "plugins://status"
        (contents,) = (await client.read_resource("plugins://status")).contents
        assert contents.text == "busy"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
