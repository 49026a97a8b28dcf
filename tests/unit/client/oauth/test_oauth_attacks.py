"""What a second round of attacks found: servers that storm, leak and stall, renewals that are cut short, storages that are spoilt."""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from unit.client.oauth.plans import ENDPOINT, ISSUER, PLACE, REDIRECT, back, document, form
from unit.client.oauth.town import AS_DOCUMENT, PRM, TOKEN, UNAUTHORIZED, Clock, Town, bound, refuse, token_of

from callboard import Client
from callboard.client.auth import Challenge, HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed, ClientError, ConnectionFailed, Origin
from callboard.client.http_pool import HttpPool
from callboard.client.oauth import flow
from callboard.client.oauth.challenge import demand_of
from callboard.client.oauth.names import Resolver, fetch_alone
from callboard.client.oauth.urls import place_of
from callboard.oauth import ClientCredentials, EnterpriseManaged, MemoryStorage, OAuth

LATER = 3590.0
HEAD_END = b"\r\n\r\n"


# a whole client in front of a server that is one handler


class Hostile:
    """An HTTP server that answers each request by a path's answer: status, headers, JSON."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str, Any]] = {}
        self.asked: list[str] = []
        self.origin = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        head = await reader.readuntil(HEAD_END)
        path = head.split(b" ")[1].decode().partition("?")[0]
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
        await reader.readexactly(length)
        self.asked.append(path)
        status, headers, value = self.pages.get(path, (404, "", None))
        body = json.dumps(value).encode()
        lines = (
            f"HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(lines.encode() + body)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def hostile() -> AsyncIterator[Hostile]:
    site = Hostile()
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        site.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        site.pages["/register"] = (201, "", {"client_id": "c"})
        site.pages["/token"] = (200, "", {"access_token": "t-of-the-hostile", "token_type": "Bearer"})
        yield site


async def agree(page: str) -> str:
    return back(page)


async def test_refusals_without_a_challenge_are_no_sign_that_the_token_was_taken() -> None:
    """AC-14: a server that answers 401 and no more to everything gets one login, not three for each request, for ever."""
    async with hostile() as site:
        site.pages["/mcp"] = (401, "", {"error": "no"})
        auth = OAuth(browse=agree, redirect_uri=REDIRECT)
        for _ in range(3):
            with pytest.raises(AuthorizationFailed, match="has just issued"):
                async with Client(f"{site.origin}/mcp", auth=auth, versions="2026-07-28", timeout=10) as client:
                    await client.list_tools()
        assert site.asked.count("/token") == 1


async def test_a_machine_is_not_made_to_knock_for_ever() -> None:
    """CC-01: the same for those who have a secret."""
    async with hostile() as site:
        site.pages["/mcp"] = (401, "", {"error": "no"})
        auth = ClientCredentials("me", "s3cr3t-s3cr3t")
        for _ in range(3):
            with pytest.raises(AuthorizationFailed, match="has just given"):
                async with Client(f"{site.origin}/mcp", auth=auth, versions="2026-07-28", timeout=10) as client:
                    await client.list_tools()
        assert site.asked.count("/token") == 1


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_closing_a_client_ends_a_login(version: str) -> None:
    """Nobody waits for five minutes for a client that is closed, and nothing is left."""
    began, given_up = asyncio.Event(), asyncio.Event()

    async def browse(page: str) -> str:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            given_up.set()
        return page

    async with hostile() as site:
        site.pages["/mcp"] = (401, "", None)
        client = Client(f"{site.origin}/mcp", auth=OAuth(browse=browse, redirect_uri=REDIRECT), versions=version, timeout=10)

        async def work() -> None:
            async with client:
                await client.list_tools()

        task = asyncio.create_task(work())
        await began.wait()
        await client.close()
        async with asyncio.timeout(2):
            with pytest.raises(ConnectionFailed, match="closed during the login"):
                await task
        assert given_up.is_set()


async def test_a_page_that_is_given_up_is_an_error_for_all_who_wait() -> None:
    """A `CancelledError` of the page's own is no cancellation of those who wait for it."""

    async def browse(page: str) -> str:
        await asyncio.sleep(0)
        raise asyncio.CancelledError(page[:5])

    oauth = OAuth(browse=browse, redirect_uri=REDIRECT)
    oauth.bind(ENDPOINT, Town().fetch)
    found = await asyncio.gather(*(refuse(oauth, sent={}) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, AuthorizationFailed) and "given up" in error.text for error in found)


# renewing


class Slow:
    """A way to the authorization server on which its answers take a while."""

    def __init__(self, town: Town, seconds: float = 0.05) -> None:
        self.town, self.seconds = town, seconds

    async def fetch(self, request: HttpRequest) -> HttpResponse:
        """Send at once, give the answer later."""
        answer = await self.town.fetch(request)
        await asyncio.sleep(self.seconds)
        return answer


async def test_a_renewal_outlives_the_request_that_began_it() -> None:
    """A29: the answer that holds the next refresh token is not thrown away when somebody's time is up."""
    town, clock, storage = Town(), Clock(), MemoryStorage()
    oauth = bound(town, clock=clock, storage=storage)
    await refuse(oauth)
    clock.now += LATER
    oauth.bind(ENDPOINT, Slow(town).fetch)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await oauth.headers("POST", ENDPOINT)
    assert await token_of(oauth) == "Bearer t2"  # it waits for the one under way
    assert [sent["refresh_token"] for sent in town.at(TOKEN)[1:]] == ["r1"]
    assert await token_of(bound(town, clock=clock, storage=storage)) == "Bearer t2"


def used_once(town: Town) -> None:
    """Refresh tokens are good once."""
    used = set[str]()

    def grant(request: HttpRequest) -> HttpResponse:
        token = form(request).get("refresh_token", "")
        if token in used:
            return document({"error": "invalid_grant"}, 400)
        used.add(token)
        return town.grant(request)

    town.pages[TOKEN] = grant


@pytest.mark.parametrize("ahead", [True, False])
async def test_the_loser_of_a_race_waits_for_the_winner_to_save(ahead: bool) -> None:
    """A29, A31: two processes renew at once; nobody has to log in because the winner's answer was still on its way."""
    town, clock, storage = Town(), Clock(), MemoryStorage()
    one, other = (bound(town, clock=clock, storage=storage) for _ in range(2))
    await refuse(one)
    one.learn({})  # the server takes it
    sent = await other.headers("POST", ENDPOINT)
    used_once(town)
    one.bind(ENDPOINT, Slow(town, 0.15).fetch)
    if ahead:
        clock.now += LATER
        assert {*await asyncio.gather(token_of(one), token_of(other))} == {"Bearer t2"}
    else:
        assert all(await asyncio.gather(refuse(one, sent=sent), refuse(other, sent=sent)))
    assert len(town.shown) == 1
    assert await token_of(other) == "Bearer t2"


async def test_a_clock_that_is_set_back_costs_no_login() -> None:
    """A31: what another process has renewed is taken, though it seems older."""
    town, clock, storage = Town(), Clock(), MemoryStorage()
    one, other = (bound(town, clock=clock, storage=storage) for _ in range(2))
    await refuse(one)
    one.learn({})  # the server takes it
    assert await token_of(other) == "Bearer t1"
    used_once(town)
    clock.now -= 5000
    assert await refuse(one)
    assert await refuse(other)
    assert len(town.shown) == 1
    assert await token_of(other) == await token_of(one) == "Bearer t2"


# what is shown


SECRET = "s3cr3t-token-of-somebody"


def test_what_carries_credentials_shows_none() -> None:
    """AC-16."""
    sent = {"Authorization": f"Bearer {SECRET}"}
    for shown in (
        HttpRequest("POST", f"{TOKEN}?x={SECRET}", sent, SECRET.encode()),
        HttpResponse(200, {"x": SECRET}, SECRET.encode()),
        Challenge(UNAUTHORIZED, "POST", f"{ENDPOINT}?key={SECRET}", (("x", SECRET),), sent),
    ):
        assert SECRET not in repr(shown)


@pytest.mark.parametrize("error", ["invalid_token", SECRET])
async def test_a_server_that_quotes_the_token(error: str) -> None:
    """AC-16: its words are shown without it."""
    town = Town()
    town.pages[TOKEN] = document({"access_token": SECRET, "token_type": "Bearer"})
    oauth = bound(town)
    await refuse(oauth)
    with pytest.raises(AuthorizationFailed) as caught:
        await refuse(oauth, challenge=f'Bearer error="{error}", error_description="the token {SECRET} is bad"')
    assert SECRET not in str(caught.value)
    assert "the token *** is bad" in str(caught.value)
    assert demand_of([("www-authenticate", 'Bearer error="a"')], sent={"Authorization": "Bearer a"}).error == "a"


@pytest.mark.parametrize("said", ["error", "error_description"])
async def test_a_token_endpoint_that_quotes_the_secret(said: str) -> None:
    """CC-01."""
    town = Town(token_endpoint_auth_methods_supported=["client_secret_basic"])
    quoted = base64.b64encode(f"me:{SECRET}".encode()).decode()
    for text in (SECRET, quoted):
        town.pages[TOKEN] = document({"error": "x", said: text.rstrip("=") if said == "error" else text}, 400)
        machine = ClientCredentials("me", SECRET, clock=Clock())
        machine.bind(ENDPOINT, town.fetch)
        with pytest.raises(AuthorizationFailed) as caught:
            await machine.answer(Challenge(UNAUTHORIZED, "POST", ENDPOINT))
        assert SECRET not in str(caught.value)
        assert said == "error" or quoted not in str(caught.value)


async def test_errors_of_the_http_library_are_left_out() -> None:
    """AC-16: they hold the request's headers, and a web application's logins have the client's secret there."""

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD_END)
        writer.write(b"garbage\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
        with pytest.raises(ConnectionFailed, match=r"no answer \(") as caught:
            await fetch_alone(HttpRequest("POST", url, {"Authorization": f"Basic {SECRET}"}, b"x"))
        assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize("came", [f"http://evil.example/#access_token={SECRET}", f"http://evil.example/?code={SECRET}"])
async def test_what_came_back_elsewhere_is_not_quoted(came: str) -> None:
    """AC-16."""
    oauth = bound(Town(browse=lambda _: came))
    with pytest.raises(AuthorizationFailed, match=r"evil\.example") as caught:
        await refuse(oauth)
    assert SECRET not in str(caught.value)
    with pytest.raises(AuthorizationFailed) as caught:
        await oauth.finish(came)
    assert SECRET not in str(caught.value)


async def test_a_state_that_is_no_text() -> None:
    """AC-08: what no UTF-8 can hold is another login's, and no other error."""
    oauth = bound(Town(browse=lambda page: back(page, state="x").replace("state=x", "state=\udcff")))
    with pytest.raises(AuthorizationFailed, match="another login"):
        await refuse(oauth)


# where somebody is sent


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1./t",
        "https://169.254.169.254./t",
        "https://[::127.0.0.1]/t",
        "https://[::ffff:0:127.0.0.1]/t",
        "https://[fec0::1]/t",
        "https://[64:ff9b:1::7f00:1]/t",
        "https://[5f00::1]/t",
        "https://8.8.8.8%2eevil.example/t",
        "https://[::ffff:8.8.8.8]evil.example/t",
        "https://[2606:4700::1]x:1/t",
    ],
)
async def test_private_addresses_in_disguise(url: str) -> None:
    """SC-03."""
    with pytest.raises(AuthorizationFailed):
        PLACE.check(url, "it")
    town = Town(token_endpoint=url)
    with pytest.raises(AuthorizationFailed):
        await refuse(bound(town))
    assert not town.shown
    assert url not in town.urls


def test_public_addresses_pass() -> None:
    for url in ("https://[2606:4700:4700::1111]/t", "https://[2606:4700:4700::1111]:8443/t", "https://8.8.8.8/t", "https://8.8.8.8.:1/t"):
        assert PLACE.check(url, "it") == url


@pytest.mark.parametrize("host", ["127.0.0.1%2eevil.example", "127.0.0.1%40evil.example", "[::1]evil.example"])
def test_plain_http_goes_to_this_machine_alone(host: str) -> None:
    """SC-03, SC-07: a name that begins like a loopback address is none."""
    with pytest.raises(AuthorizationFailed):
        place_of("http://127.0.0.1:8000/mcp").check(f"http://{host}/token", "it")


async def test_an_identity_provider_in_ones_own_network() -> None:
    """EM-01: its user names it, so the MCP server's place on the internet is no reason to refuse it."""
    town, idp = Town(), "https://10.1.2.3"
    town.pages[f"{idp}/token"] = document({"access_token": "jag", "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag"})
    machine = EnterpriseManaged("me", "secret", subject_token="who", idp_client_id="i", idp_token_endpoint=f"{idp}/token", clock=Clock())
    machine.bind(ENDPOINT, town.fetch)
    assert await machine.answer(Challenge(UNAUTHORIZED, "POST", ENDPOINT))
    assert town.at(TOKEN)[0]["assertion"] == "jag"


async def test_one_key_for_one_authorization_server() -> None:
    """EX-06, AC-12: two that compare notes don't find the same client."""
    town = Town(dpop_signing_alg_values_supported=["ES256"])
    oauth = bound(town, dpop=True)
    for number, issuer in enumerate((ISSUER, ISSUER, "https://other.example.com")):
        town.found(issuer, dpop_signing_alg_values_supported=["ES256"])
        town.pages[f"{issuer}/token"] = document({"access_token": f"t{number}", "token_type": "DPoP"})
        oauth._in_a_row, oauth._unproven = 0, None  # as if an answer had come between
        assert await refuse(oauth, challenge='DPoP error="invalid_token"')
    keys = [page.partition("dpop_jkt=")[2].partition("&")[0] for page in town.shown]
    assert keys[0] == keys[1] != keys[2]


# documents and storages


async def test_a_list_of_scopes_without_end() -> None:
    """AC-13: no page has an address that no browser opens."""
    town = Town()
    town.pages[PRM] = document(
        {"resource": ENDPOINT, "authorization_servers": [ISSUER], "scopes_supported": [f"s{n}" for n in range(50_000)] + ['"', "a b"]}
    )
    assert await refuse(bound(town))
    assert len(town.shown[0]) < 4000
    town.pages[PRM] = document({"resource": ENDPOINT, "authorization_servers": [ISSUER], "scopes_supported": ["s" * 100_000]})
    with pytest.raises(AuthorizationFailed, match="too many scopes"):
        await refuse(bound(town))
    assert len(town.shown) == 1


async def test_documents_that_come_slowly_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login has an end, however many documents there are to wait for."""
    monkeypatch.setattr(flow, "DISCOVERY", 0.05)
    oauth = bound(Town())
    oauth.bind(ENDPOINT, Slow(Town(), 0.03).fetch)
    with pytest.raises(AuthorizationFailed, match=r"not found within 0\.05 s"):
        await refuse(oauth, sent={})


async def test_a_registration_that_needs_what_nobody_has() -> None:
    """AC-11: it is refused before somebody logs in for nothing, and not kept."""
    town, storage = Town(), MemoryStorage()
    town.pages[f"{ISSUER}/register"] = document({"client_id": "c", "token_endpoint_auth_method": "private_key_jwt"}, 201)
    with pytest.raises(AuthorizationFailed, match="private_key_jwt, which none can here"):
        await refuse(bound(town, storage=storage))
    assert not town.shown
    assert repr(storage) == "MemoryStorage(0 kept)"


async def test_a_key_that_was_spoilt_in_the_storage() -> None:
    """EX-06: somebody logs in again."""
    town, storage = Town(dpop_signing_alg_values_supported=["ES256"]), MemoryStorage()
    town.pages[TOKEN] = document({"access_token": "t", "token_type": "DPoP"})
    await refuse(bound(town, storage=storage, dpop=True))
    key = f"tokens {ISSUER} {ENDPOINT}"
    kept = await storage.load(key)
    assert kept is not None
    await storage.save(key, {**kept, "key": "-----BEGIN PRIVATE KEY-----"})
    oauth = bound(town, storage=storage, dpop=True)
    assert await oauth.headers("POST", ENDPOINT) == {}
    assert await refuse(oauth)
    assert len(town.shown) == 2


async def test_documents_that_are_deep() -> None:
    """Documents that no parser should follow end in a named error."""
    for body in (b"[" * 500_000, b'{"issuer":' * 100_000, b'{"issuer":"' + b"\xff" * 10 + b'"}', b'{"issuer":1e999999}'):
        town = Town()
        town.pages[AS_DOCUMENT] = HttpResponse(200, {"content-type": "application/json"}, body)
        with pytest.raises(ClientError, match="can't be read"):
            await refuse(bound(town))


# names


class Names:
    """What a resolver is asked, and gives."""

    def __init__(self, **found: list[str]) -> None:
        self.found = {name.replace("_", "."): addresses for name, addresses in found.items()}

    async def resolve(self, host: str, port: int, family: int) -> list[dict[str, Any]]:
        """Addresses of a name."""
        return [{"host": address, "port": port, "family": family} for address in self.found[host]]

    async def close(self) -> None:
        """Nothing is held."""


INSIDE = ["10.0.0.1"], ["127.0.0.1"], ["::1"], ["192.168.1.1", "fd00::1"], ["100.64.0.1"], ["::ffff:10.0.0.1"], ["fec0::1"]


@pytest.mark.parametrize("addresses", INSIDE)
async def test_names_that_lead_inside(addresses: list[str]) -> None:
    """SC-03: only for a server that is inside itself."""
    resolver = Resolver(ENDPOINT, Names(mcp_example_com=["8.8.8.8", "2606:4700::1"], as_example_com=addresses))
    with pytest.raises(OSError, match="private network"):
        await resolver.resolve("as.example.com")
    resolver = Resolver(ENDPOINT, Names(mcp_example_com=["10.9.9.9"], as_example_com=addresses))
    assert [entry["host"] for entry in await resolver.resolve("as.example.com", 443)] == addresses
    assert await resolver.resolve("mcp.example.com")


async def test_names_of_which_a_part_is_fit() -> None:
    """SC-03: what is unfit is left out, and a cloud's metadata service is fit for nobody."""
    names = Names(
        mcp_example_com=["10.9.9.9"], a=["10.0.0.1", "8.8.8.8"], b=["169.254.169.254", "10.0.0.1"], c=["169.254.169.254"], d=["0.0.0.0"]
    )
    resolver = Resolver(ENDPOINT, names)
    assert [entry["host"] for entry in await resolver.resolve("a")] == ["8.8.8.8"]
    assert [entry["host"] for entry in await resolver.resolve("b")] == ["10.0.0.1"]
    for host in "cd":
        with pytest.raises(OSError, match="no address that a server has"):
            await resolver.resolve(host)


@pytest.fixture
def rebound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server of the attacker's: all its names are this machine; that of the MCP server is on the internet."""
    ask = socket.getaddrinfo

    def answer(host: Any, port: Any, *args: Any, **kinds: Any) -> Any:
        known = {"mcp.example.com": "8.8.8.8", "inside.example.com": "127.0.0.1"}
        return ask(known.get(host, host), port, *args, **kinds)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.usefixtures("rebound")
async def test_connections_go_to_no_address_that_was_not_looked_at() -> None:
    """SC-03: DNS rebinding, in a client and without one."""
    async with hostile() as site:
        port = site.origin.rpartition(":")[2]
        pool = HttpPool(ENDPOINT, headers={})
        await pool.open(Origin(ENDPOINT))
        for fetch in (pool.fetch, fetch_alone):
            request = HttpRequest("GET", f"http://inside.example.com:{port}/x", led_by=ENDPOINT)
            with pytest.raises(ConnectionFailed, match="leads into a private network"):
                await fetch(request)
            assert not site.asked
            assert (await fetch(HttpRequest("GET", request.url))).status == 404  # whom the user has named
            assert site.asked.pop() == "/x"
        await pool.close()


async def test_who_is_named_by_the_user_may_be_inside() -> None:
    """SC-03: `led_by` is what the MCP server has brought up, and not what `issuer=` says, nor where that one leads."""
    town = Town(token_endpoint="https://tokens.example.com/token")
    town.pages["https://tokens.example.com/token"] = town.grant
    choices: list[dict[str, Any]] = [{}, {"issuer": ISSUER}]
    for options in choices:
        town.asked.clear()
        for oauth in (bound(town, **options), ClientCredentials("me", "secret", clock=Clock(), **options)):
            oauth.bind(ENDPOINT, town.fetch)
            await oauth.answer(Challenge(UNAUTHORIZED, "POST", ENDPOINT))
        led = {request.url: request.led_by for request in town.asked}
        assert led.pop(PRM) == ""
        assert len(led) == 3
        assert set(led.values()) == ({""} if options else {ENDPOINT})


# keys in the endpoint's URL


async def test_keys_in_the_query_of_an_endpoint_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """AC-16: as the rest of the client, errors, logs and `repr` show their names alone."""
    url = f"{ENDPOINT}?{SECRET}&key={SECRET}"
    town = Town()
    told: list[str] = []
    for page in (document({"resource": "https://other.example.com"}), document({"resource": 5}), document({}, 500)):
        town.pages[f"{PRM}?{SECRET}&key={SECRET}"] = page
        for auth in (bound(town, url), ClientCredentials("me", "secret", clock=Clock())):
            auth.bind(url, town.fetch)
            with pytest.raises(AuthorizationFailed) as caught:
                await auth.answer(Challenge(UNAUTHORIZED, "POST", url))
            with pytest.raises(ValueError, match=r"another one|an object of its own") as other:
                auth.bind(f"{url}&more=1", town.fetch)
            told += [str(caught.value), caught.value.target, repr(auth), str(other.value)]
    town.pages[f"{PRM}?{SECRET}&key={SECRET}"] = document({"resource": ENDPOINT, "authorization_servers": [ISSUER]})
    town.pages[TOKEN] = document({"error": "no"}, 400)
    with pytest.raises(AuthorizationFailed) as caught:
        await bound(town, url).answer(Challenge(UNAUTHORIZED, "POST", url))
    told += [str(caught.value), caught.value.target, caplog.text]
    assert f"{ENDPOINT}?***&key=***" in told[0]
    assert SECRET not in "".join(told)


async def test_a_redirect_uri_that_was_spoilt_in_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """AC-11: another port is taken."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    town, storage = Town(), MemoryStorage()
    await storage.save(f"client {ISSUER}", {"client_id": "x", "redirect_uris": ["http://127.0.0.1:99999/callback"], "source": "registered"})
    oauth = OAuth(storage=storage)
    oauth.bind(ENDPOINT, town.fetch)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await refuse(oauth, sent={})
    assert town.registered == 1
