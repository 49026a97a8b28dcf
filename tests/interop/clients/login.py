"""Logs in with an official Python client, steps up, renews, and prints what it saw, one JSON object a line.

    python login.py URL MODE WHO

MODE is `legacy` or `modern`. WHO is `register`, or the URL of a metadata document to be known by. It runs in an environment of its own that
holds PyPI's `mcp`, 1.x or 2.x, and nothing of ours. The server is that of login_stage.py; login.mjs does the same with the official npm clients.
"""
# ruff: noqa: T201 - the printed lines are what this program is for

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module, metadata
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio

FIRST = metadata.version("mcp").startswith("1.")  # the first generation of that package

# Not imported by name: the project's own environment, which the checkers look at, doesn't hold them.
mcp: Any = import_module("mcp")
oauth: Any = import_module("mcp.client.auth")
shared: Any = import_module("mcp.shared.auth")
streamable: Any = import_module("mcp.client.streamable_http")
http: Any = import_module("httpx" if FIRST else "httpx2")

REDIRECT = "http://127.0.0.1:8123/callback"
PATIENCE = 60.0  # seconds for all


class Person:
    """What the client knows of its logins, and in place of a browser whoever agrees at once.

    Attributes:
        pages: Scopes that each page asked for.
    """

    def __init__(self) -> None:
        self.pages: list[str] = []
        self.tokens: Any = None
        self.client: Any = None
        self.back: dict[str, list[str]] = {}

    async def get_tokens(self) -> Any:
        """As the storage of tokens."""
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        """As the storage of tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        """As the storage of registrations."""
        return self.client

    async def set_client_info(self, client: Any) -> None:
        """As the storage of registrations."""
        self.client = client

    async def visit(self, page: str) -> None:
        """As the browser."""
        self.pages.append(parse_qs(urlsplit(page).query)["scope"][0])
        async with http.AsyncClient(follow_redirects=False) as browser:
            response = await browser.get(page)
        self.back = parse_qs(urlsplit(response.headers["location"]).query)

    async def come_back(self) -> Any:
        """As what listens where the browser is sent."""
        code, state, iss = (self.back[name][0] for name in ("code", "state", "iss"))
        return (code, state) if FIRST else oauth.AuthorizationCodeResult(code=code, state=state, iss=iss)


@asynccontextmanager
async def connected(url: str, mode: str, auth: Any) -> AsyncIterator[Any]:
    """A session with the server."""
    async with http.AsyncClient(auth=auth, timeout=PATIENCE) as web:
        transport = streamable.streamable_http_client(url, http_client=web)
        if FIRST:
            async with transport as (read, write, _), mcp.ClientSession(read, write) as session:
                await session.initialize()
                yield session
        else:
            async with mcp.Client(transport, mode="2026-07-28" if mode == "modern" else "legacy") as client:
                yield client


async def use(session: Any, person: Person, auth: Any) -> None:
    """Calls every tool and prints what it saw."""

    async def call(name: str, **arguments: Any) -> Any:
        result = await session.call_tool(name, arguments)
        return json.loads(result.content[0].text)

    def say(step: str, **facts: Any) -> None:
        print(json.dumps({"step": step, **facts}), flush=True)

    async def age() -> None:
        await call("age")
        auth.context.token_expiry_time = 1.0  # it renews tokens by its clock, which nobody outside can put on; on a 401 it logs in anew

    say("login", seen=await call("whoami"), pages=[*person.pages])
    say("step-up", written=await call("write", text="bread"), seen=await call("whoami"), pages=[*person.pages])
    await age()
    say("renewed", seen=await call("whoami"))
    await call("rotate")
    say("last key", seen=await call("whoami"))
    await age()
    say("new key", seen=await call("whoami"), written=await call("write", text="milk"), pages=[*person.pages])


async def main(url: str, mode: str, who: str) -> None:
    """One login and what comes of it."""
    person = Person()
    wanted = shared.OAuthClientMetadata(
        client_name="callboard-login",
        redirect_uris=[REDIRECT],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method="none",
    )
    auth = oauth.OAuthClientProvider(
        server_url=url,
        client_metadata=wanted,
        storage=person,
        redirect_handler=person.visit,
        callback_handler=person.come_back,
        client_metadata_url=None if who == "register" else who,
    )
    with anyio.fail_after(PATIENCE):
        async with connected(url, mode, auth) as session:
            await use(session, person, auth)
    print(json.dumps({"step": "end"}), flush=True)


anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
