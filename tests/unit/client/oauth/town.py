"""An MCP server and an authorization server that agree to everything, for tests of `OAuth`; no network."""

import asyncio
from collections.abc import Callable
from typing import Any

from unit.client.oauth.plans import ENDPOINT, ISSUER, REDIRECT, World, back, document, form, metadata

from callboard.client.auth import Challenge, HttpRequest, HttpResponse
from callboard.client.oauth.flow import OAuth

BASE = "https://mcp.example.com"
PRM = f"{BASE}/.well-known/oauth-protected-resource/mcp"
AS_DOCUMENT = f"{ISSUER}/.well-known/oauth-authorization-server"
TOKEN = f"{ISSUER}/token"
UNAUTHORIZED = 401
FORBIDDEN = 403


class Clock:
    """What time it is."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Town(World):
    """An authorization server that agrees to everything, and gives the tokens t1, t2 ... with refresh tokens r1, r2 ..."""

    def __init__(self, issuer: str = ISSUER, browse: Callable[[str], str] = back, **document_changes: Any) -> None:
        super().__init__({}, browse)
        self.given = 0
        self.life: int | None = 3600
        self.registered = 0
        self.found(issuer, **document_changes)

    def found(self, issuer: str, **changes: Any) -> None:
        """Make an authorization server, which the MCP server names from now on."""
        self.pages[PRM] = document({"resource": ENDPOINT, "authorization_servers": [issuer]})
        self.pages[f"{issuer}/.well-known/oauth-authorization-server"] = document(metadata(issuer, **changes))
        self.pages[f"{issuer}/token"] = self.grant
        self.pages[f"{issuer}/register"] = self.register

    def grant(self, request: HttpRequest) -> HttpResponse:
        """Give a token."""
        del request
        self.given += 1
        token = {"access_token": f"t{self.given}", "token_type": "Bearer", "refresh_token": f"r{self.given}"}
        return document(token if self.life is None else {**token, "expires_in": self.life})

    def register(self, request: HttpRequest) -> HttpResponse:
        """Register a client."""
        del request
        self.registered += 1
        return document({"client_id": f"c{self.registered}"}, 201)

    def at(self, url: str) -> list[dict[str, str]]:
        """The forms that came to a URL."""
        return [form(request) for request in self.asked if request.url == url]


def bound(town: World, url: str = ENDPOINT, **options: Any) -> OAuth:
    async def browse(page: str) -> str:
        town.shown.append(page)
        await asyncio.sleep(0)
        return town.browse(page)

    where = {} if "redirect" in options else {"browse": browse, "redirect_uri": REDIRECT}
    oauth = OAuth(**{"clock": Clock(), **where, **options})
    oauth.bind(url, town.fetch)
    return oauth


async def refuse(oauth: OAuth, status: int = UNAUTHORIZED, challenge: str = "Bearer", headers: Any = (), sent: Any = None) -> bool:
    """The server refuses what the object gives now."""
    sent = await oauth.headers("POST", ENDPOINT) if sent is None else sent
    return await oauth.answer(Challenge(status, "POST", ENDPOINT, (("www-authenticate", challenge), *headers), sent))


async def token_of(oauth: OAuth) -> str:
    return (await oauth.headers("POST", ENDPOINT)).get("Authorization", "")
