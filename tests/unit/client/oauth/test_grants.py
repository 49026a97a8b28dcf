"""Machines get tokens: what they ask, what they never send, and how long a token serves. The servers are strict (`authorization_server`)."""

import asyncio
import base64
from typing import Any

import pytest
from authorization_server import AuthorizationServer
from machines import ID, KEYS, SECRET, asked, bound, credentials, make_wire, pem
from oauth_wire import page
from recording_app import Answer, Recorded

from callboard.client.auth import Challenge
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.grants import MAX_STEPS, ClientCredentials

# Client credentials


async def test_a_secret_goes_by_http_basic() -> None:
    """CC-01, CC-02, AC-05: nothing of it is in the form, and the resource is named."""
    wire = make_wire()
    assert await wire.call(credentials(wire)) == 200
    (request,) = wire.authorization.sent("token")
    assert request.form == {"grant_type": "client_credentials", "resource": wire.protected.url}
    assert base64.b64decode(request.headers["authorization"].split()[1]) == b"desk%3A1+%C3%A9:s3cr3t%3A%25%2F%2B+%C3%BC"
    assert [request.kind for request in wire.protected.requests] == ["mcp", "prm", "mcp"]
    assert not wire.authorization.sent("register", "authorize")  # CC-03


async def test_a_secret_goes_in_the_form_where_that_is_the_way() -> None:
    """AC-17."""
    wire = make_wire("client_secret_post")
    assert await wire.call(credentials(wire)) == 200
    assert asked(wire)[0]["client_secret"] == SECRET
    assert "authorization" not in wire.authorization.sent("token")[0].headers


@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_key_signs_an_assertion(algorithm: str) -> None:
    """CC-01: the server checks iss, sub, aud, exp, iat and jti; client_id is left out."""
    wire = make_wire("private_key_jwt")
    wire.authorization.clients[ID].key = KEYS[algorithm].public_key()
    auth = bound(wire, ClientCredentials(ID, private_key=pem(KEYS[algorithm]), algorithm=algorithm, clock=wire.clock))
    assert await wire.call(auth) == 200
    wire.authorization.end_tokens()
    assert await wire.call(auth) == 200  # each assertion is another: a jti is good once
    assert [set(form) for form in asked(wire)] == [{"grant_type", "resource", "client_assertion_type", "client_assertion"}] * 2


async def test_a_key_that_the_server_does_not_take() -> None:
    wire = make_wire("private_key_jwt")
    wire.authorization.metadata_changes["token_endpoint_auth_signing_alg_values_supported"] = ["PS256"]
    auth = bound(wire, ClientCredentials(ID, private_key=pem(KEYS["ES256"]), clock=wire.clock))
    with pytest.raises(AuthorizationFailed, match="PS256; the key signs with ES256"):
        await wire.call(auth)
    assert not asked(wire)


async def test_a_way_of_authentication_that_the_client_has_not() -> None:
    wire = make_wire("private_key_jwt")
    with pytest.raises(AuthorizationFailed, match="private_key_jwt"):
        await wire.call(credentials(wire))
    assert not asked(wire)


@pytest.mark.parametrize(
    ("given", "challenged", "listed", "expected"),
    [
        ((), None, None, None),
        ((), None, ["mcp:read", "mcp:basic"], "mcp:read mcp:basic"),
        ((), "mcp:write", ["mcp:read"], "mcp:write"),
        (["mcp:read"], "mcp:write mcp:read", ["mcp:basic"], "mcp:read mcp:write"),
        ("mcp:read mcp:basic", None, ["mcp:write"], "mcp:read mcp:basic"),
    ],
)
async def test_which_scopes_are_asked_for(given: Any, challenged: str | None, listed: list[str] | None, expected: str | None) -> None:
    """AC-13."""
    wire = make_wire(challenge_scope=challenged, prm_changes={"scopes_supported": listed})
    assert await wire.call(credentials(wire, scopes=given)) == 200
    assert asked(wire)[0].get("scope") == expected


@pytest.mark.parametrize("resource", ["https://desk.example", "https://desk.example/", "https://DESK.example/mcp/"])
async def test_the_resource_is_the_very_text_of_the_metadata(resource: str) -> None:
    """AC-05."""
    wire = make_wire(prm_changes={"resource": resource})
    wire.authorization.resources = {resource}
    with pytest.raises(AuthorizationFailed, match="has just given"):  # this server takes tokens for its own name alone
        await wire.call(credentials(wire))
    assert asked(wire)[0]["resource"] == resource


async def test_a_resource_of_somebody_else() -> None:
    """AC-06."""
    wire = make_wire(prm_changes={"resource": "https://evil.example/mcp"})
    with pytest.raises(AuthorizationFailed, match=r"evil\.example"):
        await wire.call(credentials(wire))
    assert not wire.authorization.requests


# One token, for how long


async def test_one_token_serves_all_requests_until_it_ends() -> None:
    wire = make_wire()
    wire.authorization.lifetime = 100
    auth = credentials(wire)
    for _ in range(5):
        assert await wire.call(auth) == 200
    assert len(asked(wire)) == 1
    wire.now += 95  # within a tenth of its life before the end
    for _ in range(5):
        assert await wire.call(auth) == 200
    assert len(asked(wire)) == 2
    assert len(wire.protected.sent("prm")) == 1  # the servers are known
    assert len(wire.protected.accepted) == len(wire.protected.sent("mcp")) - 1  # no request was wasted


async def test_a_token_without_an_end_is_used_until_it_is_refused() -> None:
    wire = make_wire()
    wire.authorization.lifetime = None
    auth = credentials(wire)
    await wire.call(auth)
    wire.now += 3000
    await wire.call(auth)
    assert len(asked(wire)) == 1
    wire.now += 1000
    assert await wire.call(auth) == 200
    assert len(asked(wire)) == 2
    assert len(wire.protected.sent("prm")) == 2  # after a refusal everything is looked up anew


async def test_a_token_that_can_not_be_renewed_is_used_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    wire = make_wire()
    wire.authorization.lifetime = 100
    auth = credentials(wire)
    await wire.call(auth)
    wire.authorization.faults["token"] = page(503, b"later")
    wire.now += 91
    for _ in range(5):
        assert await wire.call(auth) == 200
    assert len(asked(wire)) == 2  # a server that is down is not asked for each request
    assert "could not be renewed" in caplog.text
    wire.now += 10
    with pytest.raises(AuthorizationFailed, match="HTTP 503"):
        await wire.call(auth)
    wire.authorization.faults.clear()
    assert await wire.call(auth) == 200
    assert SECRET not in caplog.text


async def test_a_refused_token_is_replaced_once() -> None:
    wire = make_wire()
    auth = credentials(wire)
    await wire.call(auth)
    for _ in range(3):
        wire.authorization.end_tokens()
        assert await wire.call(auth) == 200
    assert len(asked(wire)) == 4


async def test_a_fresh_token_that_is_refused_is_the_end() -> None:
    wire = make_wire()
    auth = credentials(wire)
    wire.protected.authorization = AuthorizationServer()  # it trusts another one than it names
    wire.protected.prm_changes["authorization_servers"] = [wire.authorization.issuer]
    for count in (1, 2):
        with pytest.raises(AuthorizationFailed, match=r"refuses the token that https://as\.example has just given \(invalid_token\)"):
            await wire.call(auth)
        assert len(asked(wire)) <= count
    assert len(wire.protected.sent("mcp")) <= 4


async def test_many_requests_ask_once() -> None:
    wire = make_wire()
    auth = credentials(wire)
    for _ in range(3):
        assert await asyncio.gather(*(wire.call(auth) for _ in range(20))) == [200] * 20
        wire.now += 4000
    assert len(asked(wire)) == 3
    wire.authorization.end_tokens()
    await asyncio.gather(*(wire.call(auth) for _ in range(20)))
    assert len(asked(wire)) == 4


async def test_whoever_asked_may_be_cancelled() -> None:
    wire = make_wire()
    auth = credentials(wire)
    wire.authorization.faults["token"] = [Answer(200, delay=60)]
    came, kind = asyncio.Event(), wire.authorization.kind

    def watch(request: Recorded) -> str:
        if kind(request) == "token":
            came.set()
        return kind(request)

    wire.authorization.kind = watch  # type: ignore[method-assign]
    first = asyncio.create_task(wire.call(auth))
    second = asyncio.create_task(wire.call(auth))
    async with asyncio.timeout(5):
        await came.wait()
    wire.authorization.faults.clear()
    first.cancel()
    assert await second == 200
    assert len(asked(wire)) == 2


async def test_the_credentials_stay_with_their_endpoint() -> None:
    """AC-01, AC-12."""
    wire = make_wire()
    auth = credentials(wire)
    await wire.call(auth)
    assert set(await auth.headers("POST", "https://DESK.example:443/other")) == {"Authorization"}
    for url in ("https://desk.example:8443/mcp", "http://desk.example/mcp", "https://desk.example.evil/mcp"):
        assert await auth.headers("POST", url) == {}
    with pytest.raises(ValueError, match="an object of its own"):
        auth.bind("https://other.example/mcp", wire.fetch)


def test_the_same_credentials_in_one_loop_after_the_other() -> None:
    wire = make_wire()
    auth = ClientCredentials(ID, SECRET, clock=wire.clock)

    async def run() -> list[int]:
        auth.bind(wire.protected.url, wire.fetch)
        wire.authorization.end_tokens()
        return await asyncio.gather(*(wire.call(auth) for _ in range(5)))

    assert asyncio.run(run()) == asyncio.run(run()) == [200] * 5


# More scopes


async def test_wider_scopes_are_added_to_the_old_ones() -> None:
    """AC-14, CC-03."""
    wire = make_wire(challenge_scope="mcp:basic", needs={"tools/call": frozenset({"mcp:write"}), "*": frozenset({"mcp:basic"})})
    auth = credentials(wire)
    assert await wire.call(auth, "tools/list") == 200
    assert await wire.call(auth) == 200
    assert [form["scope"] for form in asked(wire)] == ["mcp:basic", "mcp:basic mcp:write"]
    assert await wire.call(auth, "tools/list") == 200
    wire.authorization.end_tokens()
    assert await wire.call(auth) == 200
    assert len(asked(wire)) == 3


async def test_scopes_that_do_not_help_are_asked_for_once() -> None:
    """AC-14."""
    wire = make_wire(refuse=True, needs={"*": frozenset({"mcp:write"})})
    auth = credentials(wire)
    with pytest.raises(AuthorizationFailed, match=r"wants scope mcp:write, which https://as\.example was asked for; it gave mcp:write"):
        await wire.call(auth)
    assert len(asked(wire)) == 2  # without, and with
    with pytest.raises(AuthorizationFailed):
        await wire.call(auth)
    assert len(asked(wire)) == 2


async def test_a_server_that_is_never_content() -> None:
    """AC-14."""
    wire = make_wire()
    auth = credentials(wire)
    wire.authorization.scopes = frozenset(f"s{number}" for number in range(99))
    await wire.call(auth)
    token = (await auth.headers("POST", wire.protected.url))["Authorization"]

    async def widen(number: int) -> None:
        nonlocal token
        challenge = Challenge(
            403,
            "POST",
            wire.protected.url,
            (("www-authenticate", f'Bearer error="insufficient_scope", scope="s{number}"'),),
            {"Authorization": token},
        )
        assert await auth.answer(challenge)
        token = (await auth.headers("POST", wire.protected.url))["Authorization"]

    for number in range(MAX_STEPS):
        await widen(number)
    with pytest.raises(AuthorizationFailed, match="never content"):
        await widen(50)
    assert len(asked(wire)) == MAX_STEPS + 1


async def test_scopes_that_can_not_be_had_leave_the_token_that_there_is() -> None:
    wire = make_wire(needs={"tools/call": frozenset({"root"})})
    auth = credentials(wire)
    assert await wire.call(auth, "tools/list") == 200
    for _ in range(2):
        with pytest.raises(AuthorizationFailed, match="invalid_scope"):
            await wire.call(auth)
    assert await wire.call(auth, "tools/list") == 200


@pytest.mark.parametrize(
    "challenge", [(), (("www-authenticate", 'Bearer error="invalid_token"'),), (("www-authenticate", "Basic realm=x"),)]
)
async def test_other_refusals_are_no_matter_of_tokens(challenge: tuple[tuple[str, str], ...]) -> None:
    """AR-05."""
    wire = make_wire()
    auth = credentials(wire)
    assert not await auth.answer(Challenge(403, "POST", wire.protected.url, challenge))
    assert not wire.authorization.requests


async def test_a_refusal_that_names_no_scope() -> None:
    wire = make_wire()
    auth = credentials(wire)
    headers = (("www-authenticate", 'Bearer error="insufficient_scope", error_description="pay \x07first"'),)
    with pytest.raises(AuthorizationFailed, match=r"does not say which would: pay \?first; give scopes="):
        await auth.answer(Challenge(403, "POST", wire.protected.url, headers))


# Whose credentials


async def test_another_authorization_server_gets_nothing() -> None:
    """AC-12."""
    wire = make_wire()
    other = AuthorizationServer(auth_methods=("client_secret_basic",))
    wire.add(other, "https://other.example")
    auth = credentials(wire)
    await wire.call(auth)
    wire.protected.authorization = other
    with pytest.raises(AuthorizationFailed, match=r"https://as\.example.*https://other\.example"):
        await wire.call(auth)
    assert not other.sent("token")


async def test_the_issuer_that_the_user_named_is_the_only_one() -> None:
    """AC-12."""
    wire = make_wire()
    with pytest.raises(AuthorizationFailed, match=r"right\.example"):
        await wire.call(credentials(wire, issuer="https://right.example"))
    assert not asked(wire)
    assert await wire.call(credentials(wire, issuer=wire.authorization.issuer)) == 200


async def test_metadata_of_another_issuer() -> None:
    """AC-04."""
    wire = make_wire()
    wire.authorization.metadata_changes["issuer"] = "https://attacker.example"
    with pytest.raises(AuthorizationFailed, match=r"attacker\.example"):
        await wire.call(credentials(wire))
    assert not asked(wire)


@pytest.mark.parametrize("places", [("oauth",), ("oidc",), ("oidc-appended",)])
async def test_where_metadata_may_be(places: tuple[str, ...]) -> None:
    """AC-03."""
    wire = make_wire()
    wire.authorization.issuer_path, wire.authorization.places = "/oauth2/api/v1", places
    assert await wire.call(credentials(wire)) == 200
    assert wire.authorization.sent("token")[0].path == "/oauth2/api/v1/token"


@pytest.mark.parametrize("place", ["path", "root", "custom"])
@pytest.mark.parametrize("announce", [True, False])
async def test_where_the_resource_is_described(place: str, announce: bool) -> None:
    """AC-02, A30."""
    wire = make_wire(place=place, announce=announce)
    if place == "custom" and not announce:
        with pytest.raises(AuthorizationFailed):
            await wire.call(credentials(wire))
        return
    assert await wire.call(credentials(wire)) == 200
    assert len(wire.protected.sent("prm")) == (1 if announce or place == "path" else 2)
