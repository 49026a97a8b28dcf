"""Logins over real connections: our client, a strict authorization server, a protected MCP server, a browser that follows redirects."""

import asyncio
import threading
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from authorization_server import AuthorizationServer
from protected_server import ProtectedServer, guarded

from callboard import Client, oauth
from callboard.client.errors import AuthorizationFailed

REDIRECT = "http://127.0.0.1:8123/callback"
Servers = tuple[AuthorizationServer, ProtectedServer]


async def visit(url: str) -> str:
    """A browser whose user agrees at once; nothing listens where it is sent."""
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as response:
        assert response.status in {302, 303}, await response.text()
        return response.headers["Location"]


def open_browser(url: str) -> bool:
    """The same as the system's browser would do it: it comes back to the loopback port."""
    with urllib.request.urlopen(url, timeout=10) as response:
        assert response.status == 200
    return True


def headless(**options: Any) -> oauth.OAuth:
    return oauth.OAuth(**{"browse": visit, "redirect_uri": REDIRECT, **options})


async def call(protected: ProtectedServer, auth: oauth.OAuth, times: int = 1, **options: Any) -> None:
    async with Client(protected.url, auth=auth, timeout=10, **options) as client:
        for _ in range(times):
            assert not (await client.call_tool("test-tool", {})).is_error


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    async with guarded() as (authorization, protected):
        yield authorization, protected
        assert not [request.repeated for request in authorization.requests if request.repeated]


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_browser_logs_in_and_comes_back(servers: Servers, version: str) -> None:
    """AC-01, AC-02, AC-05, AC-07, AC-08, AC-09, AC-11, AC-16: the server refuses what breaks them."""
    authorization, protected = servers
    receiver = oauth.RedirectReceiver(open_page=open_browser, timeout=10)
    await call(protected, oauth.OAuth(redirect=receiver), times=3, versions=version)
    assert not authorization.violations
    assert len(authorization.sent("authorize")) == len(authorization.sent("token")) == 1


async def test_many_clients_calls_need_one_login(servers: Servers) -> None:
    authorization, protected = servers
    async with Client(protected.url, auth=headless(), timeout=10) as client:
        await asyncio.gather(*(client.call_tool("test-tool", {}) for _ in range(20)))
    assert len(authorization.sent("authorize")) == 1


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_every_way_to_authenticate(servers: Servers, method: str) -> None:  # AC-17
    authorization, protected = servers
    authorization.auth_methods = (method,)
    auth = headless()
    await call(protected, auth)
    authorization.end_tokens()
    await call(protected, auth)
    assert not authorization.violations


@pytest.mark.parametrize("places", [("oauth",), ("oidc",), ("oidc-appended",)])
@pytest.mark.parametrize("prm", ["path", "root", "custom"])
async def test_everywhere_that_metadata_may_be(servers: Servers, places: tuple[str, ...], prm: str) -> None:  # AC-02, AC-03, A30
    authorization, protected = servers
    authorization.issuer_path, authorization.places = "/tenant1", places
    protected.place = prm
    await call(protected, headless())
    assert not authorization.violations


async def test_tokens_outlive_the_process_and_rotate(servers: Servers, tmp_path: Path) -> None:
    """A29, AC-12, AC-15: a refresh token that comes twice would end them all."""
    authorization, protected = servers
    authorization.endpoint_path = "/oauth2/api/v1"
    for _ in range(3):
        await call(protected, headless(storage=oauth.FileStorage(tmp_path / "tokens")))
        authorization.end_tokens()
    assert [request.form["grant_type"] for request in authorization.sent("token")] == [
        "authorization_code",
        "refresh_token",
        "refresh_token",
    ]
    assert len(authorization.sent("register")) == 1
    assert not authorization.violations


async def test_more_scopes_for_one_tool(servers: Servers) -> None:  # AC-13, AC-14, AR-06
    authorization, protected = servers
    protected.challenge_scope = "mcp:basic"
    protected.needs = {"tools/call": frozenset({"mcp:write"})}
    await call(protected, headless(), times=2)
    asked = [set(request.query["scope"].split()) for request in authorization.sent("authorize")]
    assert asked == [{"mcp:basic"}, {"mcp:basic", "mcp:write"}]


async def test_a_server_that_is_never_content(servers: Servers) -> None:  # AC-14
    authorization, protected = servers
    authorization.scopes |= {"mcp:admin"}
    protected.refuse = True
    with pytest.raises(AuthorizationFailed, match="scope mcp:admin"):
        await call(protected, headless())
    assert 1 <= len(authorization.sent("authorize")) <= 3


@pytest.mark.parametrize("iss", ["missing", "https://evil.example.com"])
async def test_an_answer_of_another_server_buys_nothing(servers: Servers, iss: str) -> None:  # AC-08
    authorization, protected = servers
    authorization.iss = iss
    with pytest.raises(AuthorizationFailed):
        await call(protected, headless())
    assert authorization.sent("authorize")
    assert not authorization.sent("token")


async def test_a_server_that_takes_localhost_alone(servers: Servers) -> None:  # AC-11
    authorization, protected = servers
    authorization.redirect_allowed = lambda uri: "localhost" in uri
    receiver = oauth.RedirectReceiver(open_page=open_browser, timeout=10)
    async with receiver:
        both = len(receiver.redirect_uris) == 2
    if both:
        await call(protected, oauth.OAuth(redirect=receiver))
    authorization.redirect_allowed = lambda uri: False
    with pytest.raises(AuthorizationFailed, match="invalid_redirect_uri"):
        await call(protected, headless())


async def test_a_server_that_knows_no_application_types(servers: Servers) -> None:  # AC-11
    authorization, protected = servers
    authorization.application_types = ()
    await call(protected, headless())


async def test_a_user_who_says_no(servers: Servers) -> None:
    authorization, protected = servers
    authorization.deny = "access_denied"
    with pytest.raises(AuthorizationFailed, match="access_denied"):
        await call(protected, headless())
    assert len(authorization.sent("authorize")) == 1


async def test_keys_and_nonces(servers: Servers) -> None:  # EX-06
    authorization, protected = servers
    authorization.dpop = "required"
    await call(protected, headless(dpop=True), times=3)
    assert protected.accepted
    assert all(request.headers["authorization"].startswith("DPoP ") for request in protected.accepted)


async def test_two_replicas(servers: Servers, tmp_path: Path) -> None:  # A31
    _, protected = servers
    callback = "https://app.example.com/callback"
    one, two = (oauth.OAuth(storage=oauth.FileStorage(tmp_path / "shared"), redirect_uri=callback) for _ in range(2))
    await two.finish(await visit(await one.begin(protected.url)))
    await call(protected, two)
    await call(protected, oauth.OAuth(storage=oauth.FileStorage(tmp_path / "shared"), redirect_uri=callback))


async def test_nothing_is_left_when_a_login_is_given_up(servers: Servers) -> None:
    _, protected = servers
    opened = threading.Event()

    def show(url: str) -> bool:
        del url
        opened.set()
        return True

    receiver = oauth.RedirectReceiver(open_page=show, timeout=10)
    task = asyncio.create_task(call(protected, oauth.OAuth(redirect=receiver)))
    await asyncio.to_thread(opened.wait, 10)
    before = asyncio.all_tasks()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert task in before
    assert repr(receiver) == "RedirectReceiver(closed)"
