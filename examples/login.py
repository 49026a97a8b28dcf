"""A client logs in, and again for more when a tool needs more. It starts both servers; with a URL it logs in there, in a browser."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp

from callboard import Client, oauth

HERE = Path(__file__).parent
pages: list[str] = []  # that a browser was sent to


async def visit(page: str) -> str:
    """In place of a browser and a person: where the page sends them."""
    pages.append(page)
    async with aiohttp.ClientSession() as session, session.get(page, allow_redirects=False) as response:
        return response.headers["location"]


async def look(client: Client) -> list[str]:
    """Who the server takes us for, and what we may do there."""
    seen: list[str] = (await client.call_tool("whoami")).data
    return seen


async def main(url: str) -> None:
    storage = oauth.MemoryStorage()  # FileStorage("~/.config/my-app/tokens") outlives the program
    login = oauth.OAuth(storage=storage, browse=visit, redirect_uri="http://127.0.0.1:8123/callback")
    async with Client(url, auth=login) as client:
        assert await look(client) == ["ada", "notes:read"]  # nothing was told beforehand: the 401 says where to log in
        assert (await client.call_tool("write", {"text": "Buy bread"})).data == 1  # 403: one more login, for both scopes
        assert await look(client) == ["ada", "notes:read", "notes:write"]
    async with Client(url, auth=oauth.OAuth(storage=storage)) as client:  # the next one has the token from the storage
        assert (await client.call_tool("read")).data == ["Buy bread"]
    assert [parse_qs(urlsplit(page).query)["scope"] for page in pages] == [["notes:read"], ["notes:read notes:write"]]


async def until_it_listens(port: int) -> None:
    while True:
        try:
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
        except OSError:
            await asyncio.sleep(0.02)
        else:
            return


async def with_servers() -> None:
    """Both servers on free ports, as processes of their own, as long as `main` takes."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ours, theirs = one.getsockname()[1], other.getsockname()[1]
    url, issuer = f"http://127.0.0.1:{ours}/mcp", f"http://127.0.0.1:{theirs}"
    authorization = [f"{HERE}/authorization_server.py", "--port", str(theirs), "--resource", url, "--auto-consent"]
    protected = [f"{HERE}/protected.py", "--port", str(ours), "--issuer", issuer]
    running = [subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) for command in (authorization, protected)]  # noqa: ASYNC220, S603
    try:
        await asyncio.wait_for(asyncio.gather(until_it_listens(ours), until_it_listens(theirs)), 20)
        await main(url)
    finally:
        for child in running:
            child.terminate()
            child.wait()


async def in_the_browser(url: str) -> None:
    async with Client(url, auth=oauth.OAuth()) as client:
        print(await look(client))


if __name__ == "__main__":
    asyncio.run(in_the_browser(sys.argv[1]) if sys.argv[1:] else with_servers())
    print("OK")
