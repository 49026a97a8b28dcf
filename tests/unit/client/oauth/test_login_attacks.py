"""Logins in front of servers, browsers and storages that mean harm or are broken: each ends with a named error, soon, and nobody is asked twice."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from authorization_server import AuthorizationServer, Client
from jwt_oracle import Nonces
from oauth_wire import Wire, page

from callboard.client.auth import HttpRequest
from callboard.client.errors import AuthorizationFailed
from callboard.oauth import MemoryStorage, OAuth

BACK = "http://127.0.0.1:9/callback"


def login(wire: Wire, change: Callable[[str], Any] = lambda url: url, **options: Any) -> OAuth:
    """Somebody who says yes at once; `change` is what becomes of the URL on its way back."""

    async def browse(url: str) -> Any:
        return change((await wire.fetch(HttpRequest("GET", url))).headers["location"])

    auth = OAuth(browse=browse, redirect_uri=BACK, clock=wire.clock, **options)
    auth.bind(wire.protected.url, wire.fetch)
    return auth


def kinds(wire: Wire) -> list[str]:
    return [request.kind for request in wire.authorization.requests]


async def test_thirty_requests_and_one_login() -> None:
    wire = Wire()
    auth = login(wire)
    assert await asyncio.gather(*(wire.call(auth) for _ in range(30))) == [200] * 30
    assert kinds(wire) == ["metadata", "register", "authorize", "token"]
    wire.authorization.end_tokens()
    assert await asyncio.gather(*(wire.call(auth) for _ in range(30))) == [200] * 30
    assert kinds(wire)[4:] == ["metadata", "token"]  # renewed once


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda url: url.replace("state=", "state=x"), "another login"),
        (lambda url: url.replace("state=", "other="), "another login"),
        (lambda url: url + "&code=evil", "twice"),
        (lambda url: url + "&state=evil", "twice"),
        (lambda url: url.replace("127.0.0.1:9", "evil.example"), "not to the redirect URI"),
        (lambda url: url.replace("/callback", "/callback/../x"), "not to the redirect URI"),
        (lambda url: url.replace("code=", "kode="), "no code"),
        (lambda url: "https://[", "not to the redirect URI"),
        (lambda url: "", "not to the redirect URI"),
        (lambda url: None, "gave no URL"),
        (lambda url: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_what_comes_back_from_the_browser(change: Callable[[str], Any], says: str) -> None:
    """AC-08, AC-16: no token is asked for."""
    wire = Wire()
    with pytest.raises(AuthorizationFailed, match=says):
        await wire.call(login(wire, change))
    assert "token" not in kinds(wire)


TOKENS = [
    {"access_token": "a", "token_type": "Bearer"},
    {"access_token": "a", "token_type": "bearer", "expires_in": 0, "refresh_token": "r"},
    {"access_token": "a", "token_type": "bearer", "expires_in": -5, "refresh_token": "r"},
    {"access_token": "a", "token_type": "bearer", "expires_in": "1e999"},
    {"access_token": "x" * 100_000, "token_type": "bearer", "scope": "a " * 10_000},
    {"access_token": "a", "token_type": "DPoP"},
]


@pytest.mark.parametrize("answer", TOKENS, ids=range(len(TOKENS)))
async def test_tokens_that_the_server_refuses_are_the_end(answer: dict[str, Any]) -> None:
    """AC-14: one page, however often the token is renewed in between."""
    wire = Wire()
    wire.authorization.faults["token"] = page(200, json.dumps(answer).encode())
    auth = login(wire)
    for _ in range(3):
        with pytest.raises(AuthorizationFailed):
            await wire.call(auth)
    assert kinds(wire).count("authorize") == (3 if answer["token_type"] == "DPoP" else 1)  # that one was never taken by the client
    assert len(wire.protected.sent("mcp")) <= 6


async def test_scopes_of_several_requests_at_once_are_united() -> None:
    """AC-14."""
    wire = Wire(needs={"a": frozenset({"mcp:read"}), "b": frozenset({"mcp:write"}), "*": frozenset()})
    auth = login(wire)
    assert await asyncio.gather(*(wire.call(auth, method) for method in "abcabcabc")) == [200] * 9
    assert [request.query.get("scope") for request in wire.authorization.sent("authorize")][-1] in {
        "mcp:read mcp:write",
        "mcp:write mcp:read",
    }
    assert kinds(wire).count("authorize") == 3


async def test_a_server_that_has_forgotten_the_client() -> None:
    """A29: one login, with a registration made anew."""
    wire = Wire()
    auth = login(wire)
    await wire.call(auth)
    wire.authorization.clients.clear()
    wire.authorization.refresh_tokens.clear()
    wire.authorization.end_tokens()
    assert await wire.call(auth) == 200
    assert kinds(wire).count("register") == kinds(wire).count("authorize") == 2


async def test_a_server_in_trouble_does_not_cost_the_login() -> None:
    """A29: tokens are not wiped because a renewal failed."""
    wire = Wire(AuthorizationServer(lifetime=100))
    auth = login(wire)
    await wire.call(auth)
    wire.authorization.faults["token"] = page(500, b"")
    wire.now += 500
    with pytest.raises(AuthorizationFailed, match="HTTP 500"):
        await wire.call(auth)
    wire.authorization.faults.clear()
    assert await wire.call(auth) == 200
    assert kinds(wire).count("authorize") == 1


class Broken(MemoryStorage):
    """A storage whose errors quote what it was given."""

    async def save(self, key: str, value: dict[str, Any]) -> None:
        raise RuntimeError(f"SET {key} {json.dumps(value)}")


class Poisoned(MemoryStorage):
    """A storage that somebody else has written to."""

    async def load(self, key: str) -> dict[str, Any] | None:
        return {"issuer": 5, "tokens": {}, "client_id": []}


async def test_errors_of_a_storage_are_not_quoted() -> None:
    """AC-16."""
    wire = Wire()
    with pytest.raises(AuthorizationFailed, match=r"fails: RuntimeError$") as caught:
        await wire.call(login(wire, storage=Broken()))
    assert caught.value.__cause__ is None


async def test_what_a_storage_gives_is_checked() -> None:
    wire = Wire()
    assert await wire.call(login(wire, storage=Poisoned())) == 200


async def test_another_process_logs_in_meanwhile() -> None:
    """A31: whoever looked into the storage too early looks again before it shows a page."""
    wire, shared = Wire(), MemoryStorage()
    early, other = (login(wire, storage=shared) for _ in range(2))
    assert await early.headers("POST", wire.protected.url) == {}
    assert await wire.call(other) == 200
    assert await wire.call(early) == 200
    assert kinds(wire).count("authorize") == 1


async def test_a_secret_goes_to_one_authorization_server_alone() -> None:
    """AC-12."""
    wire, evil = Wire(), AuthorizationServer()
    wire.add(evil, "https://evil.example")
    wire.authorization.auth_methods = ("client_secret_basic",)
    wire.authorization.clients["known"] = Client("known", "s3cr3t", (BACK,), "client_secret_basic")
    auth = login(wire, client_id="known", client_secret="s3cr3t")
    assert await wire.call(auth) == 200
    wire.protected.authorization = evil
    with pytest.raises(AuthorizationFailed, match=r"evil\.example"):
        await wire.call(auth)
    assert not evil.requests


@pytest.mark.parametrize("uses", [0, 1])
async def test_bound_tokens_and_nonces_for_many(uses: int) -> None:
    """EX-06."""
    wire = Wire(AuthorizationServer(dpop="required", nonces=Nonces(uses)), nonces=Nonces(uses))
    auth = login(wire, dpop=True)
    assert await asyncio.gather(*(wire.call(auth) for _ in range(10))) == [200] * 10
    assert not [text for text in wire.protected.violations if "nonce" not in text]
