"""stdio: the client starts the server as a child process, as editors and desktop apps do. Run with `serve` this file is that server."""

import asyncio
import os
import sys

import callboard
from callboard import Client, Server, text

server = Server("child", version="1.0.0")


@server.tool
async def pid() -> int:
    """Process id of the server."""
    print("printing is harmless: standard output belongs to the protocol, this ends up on standard error")
    return os.getpid()


@server.tool
async def shout(words: str) -> str:
    """Say it louder."""
    return words.upper()


async def main() -> None:
    async with Client([sys.executable, __file__, "serve"]) as client:
        found = await client.discover()
        assert found.supported_versions[0] == "2026-07-28"
        assert (await client.call_tool("pid")).structured_content != os.getpid()

        # Requests run side by side; each answer finds its way.
        words = ["one", "two", "three"]
        done = await asyncio.gather(*(client.call_tool("shout", {"words": word}) for word in words))
        assert [result.content for result in done] == [[text(word.upper())] for word in words]
    print("OK")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        callboard.run(server, transport="stdio")
    else:
        asyncio.run(main())
