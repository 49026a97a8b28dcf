"""The demo authorization server of examples/, running in a test: on a port of its own, with a clock that a test can put on.

async with authorizing(resources) as demo: ...
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import uvicorn

from callboard import Context, Server, asgi
from callboard.auth import JWT, Principal, Verifier
from examples.authorization_server import ACCESS_LIFE, AuthorizationServer

REDIRECT = "http://127.0.0.1:8123/callback"
SCOPES = ("notes:read", "notes:write")
CIMD = "https://app.example.com/client.json"


@dataclass
class Clock:
    """Real time, and what a test put on top."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@contextlib.asynccontextmanager
async def listening(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    """Serves an ASGI application in this loop, on a socket that listens."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


def address(listener: socket.socket) -> str:
    """Origin of a socket."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def only_ours(url: str) -> bytes:
    """A metadata document of a client, at one URL of a web that has no other."""
    if url != CIMD:
        raise OSError("nothing there")
    return json.dumps({"client_id": CIMD, "client_name": "Ours", "redirect_uris": [REDIRECT], "grant_types": GRANTS}).encode()


GRANTS = ["authorization_code", "refresh_token"]


@contextlib.asynccontextmanager
async def authorizing(resources: Iterable[str], scopes: Iterable[str] = SCOPES, **options: Any) -> AsyncIterator[AuthorizationServer]:
    """Runs the server; its clock is a `Clock`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        chosen = {"auto_consent": True, "fetch": only_ours, "clock": Clock(), **options}
        server = AuthorizationServer(address(listener), resources, scopes, **chosen)
        async with listening(server.app, listener):
            yield server


@dataclass
class Answer:
    """What an endpoint said."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.text)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json["error"]

    @property
    def back(self) -> dict[str, str]:
        """What the browser is sent back with."""
        assert self.status == 303, self.text
        return dict(parse_qsl(urlsplit(self.headers["location"]).query, keep_blank_values=True))


@dataclass
class Program:
    """A client of OAuth that a test makes take each step, right or wrong."""

    issuer: str
    resource: str
    client_id: str = ""
    secret: str = ""
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.issuer + path, allow_redirects=False, **options) as response,
        ):
            return Answer(response.status, {name.lower(): value for name, value in response.headers.items()}, await response.text())

    async def register(self, **changes: Any) -> Answer:
        wanted = {"redirect_uris": [REDIRECT], "grant_types": GRANTS, "token_endpoint_auth_method": "none", "client_name": "a test"}
        answer = await self.send("POST", "/register", json=wanted | changes)
        if answer.status == 201:
            self.client_id, self.secret = answer.json["client_id"], answer.json.get("client_secret", "")
        return answer

    def page(self, **changes: str | None) -> str:
        """Path and query of the login page."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()
        asked: dict[str, str | None] = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": REDIRECT,
            "state": "a-state-of-the-test",
            "scope": "notes:read",
            "resource": self.resource,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return "/authorize?" + urlencode({name: value for name, value in (asked | changes).items() if value is not None})

    async def authorize(self, **changes: str | None) -> Answer:
        return await self.send("GET", self.page(**changes))

    async def token(self, grant: str, basic: tuple[str, str] | None = None, **form: str) -> Answer:
        headers = {}
        if basic is None:
            form = {"client_id": self.client_id, **({"client_secret": self.secret} if self.secret else {}), **form}
        else:
            headers["authorization"] = "Basic " + base64.b64encode(":".join(basic).encode()).decode()
        return await self.send("POST", "/token", data={"grant_type": grant, **form}, headers=headers)

    async def exchange(self, code: str, **changes: str) -> Answer:
        form = {"code": code, "code_verifier": self.verifier, "redirect_uri": REDIRECT, "resource": self.resource}
        return await self.token("authorization_code", None, **(form | changes))

    async def log_in(self, scope: str = "notes:read") -> dict[str, Any]:
        """Tokens of a login where all goes well."""
        if not self.client_id:
            assert (await self.register()).status == 201
        answer = await self.exchange((await self.authorize(scope=scope)).back["code"])
        assert answer.status == 200, answer.text
        return answer.json


@dataclass
class Stage:
    """An MCP server and the authorization server that it trusts.

    Attributes:
        clock: What time it is for both.
        ticks: How old the MCP server takes keys to be.
        url: The MCP server.
        other: The URL of another MCP server that the authorization server issues tokens for, too.
        pages: Where browsers were sent, as queries.
    """

    authorization: AuthorizationServer
    verifier: Verifier
    clock: Clock
    ticks: Clock
    url: str
    other: str
    pages: list[dict[str, str]] = field(default_factory=list)

    def program(self, resource: str = "") -> Program:
        """A client that makes its steps by hand."""
        return Program(self.authorization.issuer, resource or self.url)

    def age(self, keys: float = ACCESS_LIFE + 60) -> None:
        """Every access token that was issued until now is over.

        Args:
            keys: Seconds that go by for the server's keys.
        """
        self.clock.ahead += ACCESS_LIFE + 60
        self.ticks.ahead += keys
        self.verifier.generation += 1  # the server remembers nothing, either

    async def visit(self, page: str) -> str:
        """In place of a browser and a person who agrees."""
        self.pages.append(dict(parse_qsl(urlsplit(page).query)))
        async with aiohttp.ClientSession() as session, session.get(page, allow_redirects=False) as response:
            return response.headers["location"]


def play_server(stage: Stage) -> Server:
    """Tools that need little, one that needs more, and what makes time go by and keys change."""
    server = Server("notes")
    written: list[str] = []

    @server.tool
    def whoami(ctx: Context) -> list[str]:
        assert isinstance(ctx.principal, Principal)
        return [ctx.principal.subject, *sorted(ctx.scopes)]

    @server.tool(scopes={"notes:write"})
    def write(text: str) -> int:
        written.append(text)
        return len(written)

    @server.tool
    def age() -> bool:
        stage.age()
        return True

    @server.tool
    def rotate() -> bool:
        stage.authorization.rotate()
        return True

    return server


@contextlib.asynccontextmanager
async def staged(verify: Callable[[AuthorizationServer, str], Verifier] | None = None, **options: Any) -> AsyncIterator[Stage]:
    """Runs both on ports of their own; options are of the authorization server.

    Args:
        verify: Makes what verifies tokens for a URL; by default they are verified as JWTs, by the clocks of the stage.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url, clock, ticks = f"{address(listener)}/mcp", Clock(), Clock()
        other = url.replace("/mcp", "/other")
        async with authorizing([url, other], clock=clock, **options) as authorization:
            verifier = verify(authorization, url) if verify else JWT(issuer=authorization.issuer, clock=clock, ticks=ticks)
            stage = Stage(authorization, verifier, clock, ticks, url, other)
            app = asgi(
                play_server(stage),
                auth=verifier,
                resource=url,
                scopes={"notes:read"},
                implies={"notes:write": {"notes:read"}},
            )
            async with listening(app, listener):
                yield stage
