"""A server that wants a login, an authorization server that agrees to everything, and a client that needs neither told."""

import asyncio
import json
import socket
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
import uvicorn

from callboard import Client, Server, asgi, oauth

server = Server("theatre", version="1.0.0")
mcp = asgi(server)
steps: list[str] = []  # what was asked of the authorization server


@server.tool
def rehearse(scene: str) -> str:
    """Rehearse a scene."""
    return f"{scene}, once more"


def answer(here: str, path: str, query: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The documents and the three endpoints of an authorization server (a real one has users, and checks everything)."""
    if path.startswith("/.well-known/oauth-protected-resource"):
        return 200, {"resource": f"{here}/mcp", "authorization_servers": [here], "scopes_supported": ["play"]}, {}
    if path == "/.well-known/oauth-authorization-server":
        endpoints = {f"{name}_endpoint": f"{here}/{name}" for name in ("authorization", "token", "registration")}
        return 200, {"issuer": here, "code_challenge_methods_supported": ["S256"], **endpoints}, {}
    if path == "/mcp":
        return 401, {}, {"www-authenticate": f'Bearer resource_metadata="{here}/.well-known/oauth-protected-resource/mcp"'}
    steps.append(path)
    if path == "/registration":
        return 201, {"client_id": "our-client"}, {}
    if path == "/authorization":  # here somebody would log in
        asked = dict(parse_qsl(query))
        assert (asked["resource"], asked["scope"]) == (f"{here}/mcp", "play")
        back = urlencode({"code": "good-once", "state": asked["state"], "iss": here})
        return 302, {}, {"location": f"{asked['redirect_uri']}?{back}"}
    return 200, {"access_token": f"token-{len(steps)}", "token_type": "Bearer"}, {}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Everything at one address: /mcp for those who have a token, the authorization server for all."""
    headers = dict(scope.get("headers", ()))
    if scope["type"] == "lifespan" or (scope["path"] == "/mcp" and headers.get(b"authorization", b"").startswith(b"Bearer token-")):
        await mcp(scope, receive, send)
        return
    here = f"http://{headers[b'host'].decode()}"
    status, value, more = answer(here, scope["path"], scope["query_string"].decode())
    fields = [(name.encode(), text.encode()) for name, text in {"content-type": "application/json", **more}.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


async def visit(page: str) -> str:
    """In place of a browser and a person: where the page sends them. `OAuth()` without this opens the system's browser."""
    async with aiohttp.ClientSession() as session, session.get(page, allow_redirects=False) as response:
        return response.headers["location"]


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        storage = oauth.MemoryStorage()  # FileStorage("~/.config/my-app/tokens") outlives the program
        for _ in range(2):  # the second client finds the token in the storage
            login = oauth.OAuth(storage=storage, browse=visit, redirect_uri="http://127.0.0.1:8123/callback")
            async with Client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", auth=login) as client:
                assert "Act I, once more" in str((await client.call_tool("rehearse", {"scene": "Act I"})).content)
        web.should_exit = True
        await serving
    assert steps == ["/registration", "/authorization", "/token"]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
