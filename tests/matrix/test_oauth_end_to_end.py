"""OAuth over real sockets: Callboard's client, Callboard's server, and an authorization server between them that takes nothing but the right."""

import asyncio
import contextlib
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from authorization_server import AuthorizationServer
from authorization_server import Client as Known
from jwt_oracle import Nonces, sign
from machines import ID, IDP_SECRET, KEYS, PLATFORM, SECRET, pem
from oauth_wire import page
from protected_server import ProtectedServer, guarded
from recording_app import Answer, serving

from callboard import Client, types
from callboard.client import http_pool
from callboard.client.errors import AuthorizationFailed, ClientError
from callboard.oauth import ClientCredentials, EnterpriseManaged, FileStorage, MemoryStorage, OAuth, RedirectReceiver, WorkloadIdentity

VERSIONS = ["2026-07-28", "2025-11-25"]
DOCUMENT = "https://app.example/client.json"
BACK = "https://app.example/back"


def browser(url: str) -> bool:
    """A browser whose user says yes: it follows redirects, as one does."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(url, timeout=10).close()
    return True


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Stays where it is."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        """Not followed."""


async def visit(url: str) -> str:
    """Where a browser would be sent back to."""

    def work() -> str:
        try:
            urllib.request.build_opener(NoRedirect).open(url, timeout=10).close()
        except urllib.error.HTTPError as answer:
            with answer:
                return str(answer.headers["location"])
        raise AssertionError("no redirect")

    return await asyncio.to_thread(work)


async def play(protected: ProtectedServer, auth: Any, *, version: str = VERSIONS[0], calls: int = 1) -> None:
    """A client that lists the tools and calls one."""
    async with Client(protected.url, auth=auth, versions=version, timeout=15) as client:
        assert [tool.name for tool in await client.list_tools()] == ["test-tool"]
        for result in await asyncio.gather(*(client.call_tool("test-tool") for _ in range(calls))):
            assert result.content == [types.TextContent(text="the play goes on")]


def login(**options: Any) -> OAuth:
    return OAuth(redirect=RedirectReceiver(open_page=browser), **options)


def with_client(method: str = "client_secret_basic", **options: Any) -> AuthorizationServer:
    server = AuthorizationServer(auth_methods=(method,), dcr=False, **options)
    key = KEYS["ES256"].public_key() if method == "private_key_jwt" else None
    server.clients[ID] = Known(ID, SECRET if key is None else None, method=method, key=key)
    return server


def steps(protected: ProtectedServer, authorization: AuthorizationServer) -> list[str]:
    """What came to the authorization server, in order."""
    assert not [text for text in protected.violations if "URL" in text]
    return [request.kind for request in authorization.requests]


# People


@pytest.mark.parametrize("version", VERSIONS)
async def test_somebody_logs_in(version: str) -> None:
    """AC-02 to AC-11, AC-16: discovery, registration, browser, redirect to this machine, token, calls."""
    async with guarded() as (authorization, protected):
        await play(protected, login(), version=version, calls=5)
        assert steps(protected, authorization) == ["metadata", "register", "authorize", "token"]
        assert not authorization.violations
        assert authorization.sent("register")[0].json["application_type"] == "native"
        wanted = {authorization.sent("authorize")[0].query["resource"], authorization.sent("token")[0].form["resource"]}
        assert wanted == {protected.url}
        assert all("access_token" not in request.query for request in protected.requests)


async def test_a_client_with_a_metadata_document() -> None:
    """AC-09, AC-10."""
    cimd = {DOCUMENT: {"client_id": DOCUMENT, "client_name": "App", "redirect_uris": ["http://127.0.0.1/callback"]}}
    async with guarded(AuthorizationServer(cimd=cimd)) as (authorization, protected):
        await play(protected, login(client_metadata_url=DOCUMENT))
        assert steps(protected, authorization) == ["metadata", "authorize", "token"]
        assert authorization.sent("authorize")[0].query["client_id"] == DOCUMENT


async def test_many_requests_make_one_login() -> None:
    async with guarded() as (authorization, protected):
        auth = login()
        async with Client(protected.url, auth=auth, versions=VERSIONS[0]) as client:
            await asyncio.gather(*(client.call_tool("test-tool") for _ in range(30)))
        assert len(authorization.sent("authorize")) == len(authorization.sent("token")) == 1


async def test_a_redirect_uri_that_is_refused_at_registration() -> None:
    """AC-11: some servers know localhost alone."""
    async with guarded(AuthorizationServer(redirect_allowed=lambda uri: "localhost" in uri)) as (authorization, protected):
        async with RedirectReceiver() as probe:
            if len(probe.redirect_uris) == 1:
                pytest.skip("localhost can't be offered here")
        await play(protected, login())
        assert authorization.sent("authorize")[0].query["redirect_uri"].startswith("http://localhost:")


async def test_more_scopes_are_asked_for_when_they_are_needed() -> None:
    """AC-13, AC-14."""
    needs = {"tools/call": frozenset({"mcp:write"}), "*": frozenset({"mcp:basic"})}
    async with guarded(challenge_scope="mcp:basic", needs=needs) as (authorization, protected):
        await play(protected, login())
        assert [request.query["scope"] for request in authorization.sent("authorize")] == ["mcp:basic", "mcp:basic mcp:write"]
        assert len(authorization.sent("register")) == 1


async def test_a_server_that_is_never_content() -> None:
    """AC-14: at most three logins."""
    async with guarded(refuse=True, needs={"*": frozenset({"mcp:write"})}) as (authorization, protected):
        with pytest.raises(AuthorizationFailed, match="mcp:write"):
            await play(protected, login())
        assert 1 <= len(authorization.sent("authorize")) <= 3


async def test_somebody_says_no() -> None:
    async with guarded(AuthorizationServer(deny="access_denied")) as (authorization, protected):
        with pytest.raises(AuthorizationFailed, match="access_denied"):
            await play(protected, login())
        assert not authorization.sent("token")


@pytest.mark.parametrize("mode", ["missing", "https://evil.example", "slash"])
async def test_an_answer_of_another_issuer(mode: str) -> None:
    """AC-08."""
    async with guarded() as (authorization, protected):
        authorization.iss = f"{authorization.issuer}/" if mode == "slash" else mode
        with pytest.raises(AuthorizationFailed):
            await play(protected, login())
        assert authorization.sent("authorize")
        assert not authorization.sent("token")


async def test_the_server_moves_to_another_authorization_server() -> None:
    """AC-12: nothing of the old one's is shown to the new one."""
    old, new = AuthorizationServer(), AuthorizationServer()
    async with guarded(old) as (_, protected), serving(new):
        new.resources.add(protected.url)
        auth = login()
        await play(protected, auth)
        protected.authorization = new
        await play(protected, auth)
        secrets = {*old.tokens, *old.refresh_tokens, *old.clients}
        seen = "".join(f"{request.query}{request.form}{request.body!r}{request.headers}" for request in new.requests)
        assert new.sent("register")
        assert not [secret for secret in secrets if secret in seen]


async def test_the_refresh_token_renews(tmp_path: Path) -> None:
    """AC-15: without a browser, over and over, with rotating refresh tokens."""
    async with guarded() as (authorization, protected):
        authorization.lifetime = 100
        late = 0.0
        authorization.clock = lambda: time.time() + late
        auth = login(storage=FileStorage(tmp_path / "tokens"), clock=authorization.clock)
        for _ in range(4):
            await play(protected, auth)
            late += 200
        assert len(authorization.sent("authorize")) == 1
        assert [request.form["grant_type"] for request in authorization.sent("token")] == ["authorization_code"] + ["refresh_token"] * 3
        assert not authorization.violations


async def test_a_fresh_process_finds_the_refresh_endpoint(tmp_path: Path) -> None:
    """A29: discovery first, then the endpoint that is advertised there, not a guess at the origin; the registration is kept."""
    server = AuthorizationServer(issuer_path="/oauth2/api/v1", endpoint_path="/oauth2/api/v1/endpoints", lifetime=100)
    async with guarded(server) as (authorization, protected):
        await play(protected, login(storage=FileStorage(tmp_path)))
        authorization.requests.clear()
        protected.requests.clear()
        authorization.clock = lambda: time.time() + 5000
        await play(
            protected, login(storage=FileStorage(tmp_path), clock=authorization.clock)
        )  # a new object: nothing but the files is known
        assert [request.kind for request in authorization.requests] == ["metadata", "token"]
        (renewal,) = authorization.sent("token")
        assert renewal.path == "/oauth2/api/v1/endpoints/token"
        assert renewal.form["grant_type"] == "refresh_token"
        assert not authorization.violations
        authorization.requests.clear()
        await play(protected, login(storage=FileStorage(tmp_path), clock=authorization.clock))  # the rotated token was kept
        assert authorization.requests == []


async def test_two_replicas_of_a_web_application(tmp_path: Path) -> None:
    """A31: the login begins on one and ends on the other; both use the token."""
    async with guarded() as (authorization, protected):
        shared = MemoryStorage()
        one, two, three = (OAuth(redirect_uri=BACK, storage=shared) for _ in range(3))
        back = await visit(await one.begin(protected.url))
        await two.finish(back)
        with pytest.raises(AuthorizationFailed, match="no login waits"):
            await one.finish(back)  # a code is good once
        for replica in (one, two, three):
            await play(protected, replica)
        assert len(authorization.sent("token")) == 1
        assert authorization.sent("register")[0].json["application_type"] == "web"


async def test_two_replicas_renew_without_ending_each_other(tmp_path: Path) -> None:
    """A31: a refresh token that comes twice would end all tokens; the second replica takes what the first one got."""
    async with guarded(AuthorizationServer(lifetime=100)) as (authorization, protected):
        late = 0.0
        authorization.clock = lambda: time.time() + late
        shared = FileStorage(tmp_path)
        one, two = (login(storage=shared, clock=authorization.clock) for _ in range(2))
        await play(protected, one)
        await play(protected, two)
        for _ in range(3):
            late += 200
            await play(protected, one)
            await play(protected, two)
        assert len(authorization.sent("authorize")) == 1
        assert [request.form["grant_type"] for request in authorization.sent("token")] == ["authorization_code"] + ["refresh_token"] * 3
        assert not authorization.violations


@pytest.mark.parametrize("place", ["custom", "path", "root"])
async def test_the_challenge_says_where_the_metadata_are(place: str) -> None:
    """A30, AC-02."""
    async with guarded(place=place) as (_, protected):
        await play(protected, login())
        assert len({request.path for request in protected.sent("prm")}) == 1


@pytest.mark.parametrize("uses", [0, 1])
async def test_a_login_whose_tokens_are_bound_to_a_key(uses: int, tmp_path: Path) -> None:
    """EX-06: with nonces that change after each use, and the key kept for the next process."""
    server = AuthorizationServer(dpop="required", nonces=Nonces(uses))
    async with guarded(server, nonces=Nonces(uses), prm_changes={"dpop_bound_access_tokens_required": True}) as (authorization, protected):
        for _ in range(2):
            await play(protected, login(storage=FileStorage(tmp_path)))
        assert len(authorization.sent("authorize")) == 1
        assert {request.headers["authorization"].split()[0] for request in protected.accepted} == {"DPoP"}


# Machines


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "private_key_jwt"])
async def test_a_machine_with_its_own_credentials(method: str, version: str) -> None:
    """CC-01, CC-02."""
    async with guarded(with_client(method)) as (authorization, protected):
        key = pem(KEYS["ES256"]) if method == "private_key_jwt" else None
        await play(protected, ClientCredentials(ID, None if key else SECRET, private_key=key), version=version, calls=20)
        assert steps(protected, authorization) == ["metadata", "token"]
        assert not authorization.violations


async def test_a_machine_with_bound_tokens() -> None:
    """EX-06."""
    server = with_client(dpop="required", nonces=Nonces(1))
    async with guarded(server, nonces=Nonces(), prm_changes={"dpop_bound_access_tokens_required": True}) as (authorization, protected):
        await play(protected, ClientCredentials(ID, SECRET), calls=20)
        assert len(authorization.sent("token")) == 2


async def test_an_organisation_vouches() -> None:
    """EM-01, EM-02."""
    idp = AuthorizationServer(auth_methods=("client_secret_basic",))
    idp.clients["idp-desk"] = Known("idp-desk", IDP_SECRET, method="client_secret_basic")
    async with guarded(with_client()) as (authorization, protected), serving(idp):
        authorization.trusted[idp.issuer] = idp.public_key

        async def subject() -> str:
            return idp.identity_token("idp-desk")

        auth = EnterpriseManaged(
            ID, SECRET, subject_token=subject, idp_client_id="idp-desk", idp_client_secret=IDP_SECRET, idp_issuer=idp.issuer
        )
        await play(protected, auth)
        assert [request.kind for request in idp.requests] == ["metadata", "token"]
        assert steps(protected, authorization) == ["metadata", "token"]


async def test_a_platform_vouches() -> None:
    """EX-07."""
    async with guarded(with_client()) as (authorization, protected):
        authorization.trusted["https://platform.example"] = PLATFORM.public_key()

        async def assertion(audience: str) -> str:
            now = int(time.time())
            claims = {
                "iss": "https://platform.example",
                "sub": "job",
                "aud": audience,
                "iat": now,
                "exp": now + 60,
                "jti": str(time.time_ns()),
            }
            return sign({"typ": "JWT", "alg": "ES256"}, claims, PLATFORM)

        await play(protected, WorkloadIdentity(assertion))
        assert "authorization" not in authorization.sent("token")[0].headers


# Faults


@contextlib.asynccontextmanager
async def failing(auth: Any, protected: ProtectedServer, says: str) -> AsyncIterator[None]:
    """A client that fails with a named error that holds no secret, and leaves nothing behind."""
    with pytest.raises(ClientError, match=says) as caught:
        await play(protected, auth)
    error: BaseException | None = caught.value
    assert isinstance(error, AuthorizationFailed)
    while error is not None:
        assert "s3cr3t" not in f"{error}{error!r}{error.args}"
        error = error.__cause__ or error.__context__
    yield
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if "/callboard/client/" in repr(task)]
    assert left == []


HUGE = b'{"access_token": "' + b"x" * 2**21 + b'", "token_type": "Bearer"}'


@pytest.mark.parametrize(
    ("kind", "answer", "says"),
    [
        ("token", page(500, b"oops", "text/plain"), "HTTP 500"),
        ("token", page(200, b"<html>", "text/html"), "no JSON object"),
        ("token", page(200, HUGE), "useless"),
        ("token", page(302, b"", location="http://127.0.0.1:1/"), "HTTP 302"),
        ("token", [Answer(200, delay=3)], "no answer within"),
        ("metadata", page(200, b"\x00" * 2**21), "useless"),
        ("metadata", [Answer(200, delay=3)], "no answer within"),
        ("metadata", page(200, b'{"issuer": 1}'), "can't be read"),
        ("metadata", page(302, b"", location="file:///etc/passwd"), "neither https nor http"),
    ],
)
async def test_an_authorization_server_that_fails(kind: str, answer: list[Answer], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SC-03: whatever comes, the call ends with a named error."""
    monkeypatch.setattr(http_pool, "FETCH_TIMEOUT", 0.2)
    async with guarded(with_client()) as (authorization, protected):
        authorization.faults[kind] = answer
        async with failing(ClientCredentials(ID, SECRET), protected, says):
            assert len(protected.sent("mcp")) == 1


async def test_an_authorization_server_that_is_down() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with guarded(with_client(), prm_changes={"authorization_servers": [down]}) as (_, protected):
        for auth in (ClientCredentials(ID, SECRET), login()):
            async with failing(auth, protected, "can't be reached"):
                pass


async def test_a_login_that_nobody_ends() -> None:
    async with guarded() as (authorization, protected):
        auth = OAuth(redirect=RedirectReceiver(open_page=lambda url: True, timeout=0.2))
        async with failing(auth, protected, "nobody came back"):
            assert not authorization.sent("token")
