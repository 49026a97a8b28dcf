"""The demo authorization server of examples/: each rule, over sockets; tokens are read by other libraries than the one that signs them."""

import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import jwt as pyjwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from login_stage import CIMD, GRANTS, REDIRECT, Clock, Program, authorizing

from examples.authorization_server import ACCESS_LIFE, CODE_LIFE, AuthorizationServer, fetch_document

NOTES, OTHER = "http://127.0.0.1:8000/mcp", "http://127.0.0.1:8001/mcp"


@pytest.fixture
async def demo() -> AsyncIterator[AuthorizationServer]:
    async with authorizing([NOTES, OTHER]) as server:
        yield server


@pytest.fixture
async def program(demo: AuthorizationServer) -> Program:
    made = Program(demo.issuer, NOTES)
    await made.register()
    return made


def put_on(demo: AuthorizationServer, seconds: float) -> None:
    """Time goes by at the server."""
    assert isinstance(demo.clock, Clock)
    demo.clock.ahead += seconds


async def read(demo: AuthorizationServer, token: str, audience: str = NOTES) -> dict[str, Any]:
    """Claims of an access token, verified as an MCP server would."""
    keys = pyjwt.PyJWKSet.from_dict((await Program(demo.issuer, "").send("GET", "/jwks.json")).json)
    key = next(key for key in keys.keys if key.key_id == pyjwt.get_unverified_header(token)["kid"])
    claims: dict[str, Any] = pyjwt.decode(token, key, algorithms=["ES256"], audience=audience, issuer=demo.issuer)
    return claims


async def test_metadata(demo: AuthorizationServer) -> None:
    """RFC 8414, 9207, and the client id metadata documents of MCP: AC-03, AC-04, AC-07, AC-08, AC-09."""
    document = (await Program(demo.issuer, "").send("GET", "/.well-known/oauth-authorization-server")).json
    assert document["issuer"] == demo.issuer
    assert document["code_challenge_methods_supported"] == ["S256"]
    assert document["authorization_response_iss_parameter_supported"]
    assert document["client_id_metadata_document_supported"]
    assert {name for name in document if name.endswith("_endpoint")} == {
        f"{name}_endpoint" for name in ("authorization", "token", "registration", "revocation", "introspection")
    }


async def test_an_access_token_is_for_one_server_and_anybody_can_verify_it(demo: AuthorizationServer, program: Program) -> None:
    """RFC 9068 and 8707: AR-08."""
    tokens = await program.log_in("notes:write notes:read")
    claims = await read(demo, tokens["access_token"])
    assert pyjwt.get_unverified_header(tokens["access_token"])["typ"] == "at+jwt"
    assert (claims["sub"], claims["client_id"], claims["scope"]) == ("ada", program.client_id, "notes:read notes:write")
    assert claims["exp"] - claims["iat"] == ACCESS_LIFE == tokens["expires_in"]
    with pytest.raises(pyjwt.InvalidAudienceError):
        await read(demo, tokens["access_token"], OTHER)


async def test_keys_rotate_and_tokens_live_on_until_a_key_is_revoked(demo: AuthorizationServer, program: Program) -> None:
    old = (await program.log_in())["access_token"]
    demo.rotate()
    new = (await program.log_in())["access_token"]
    assert pyjwt.get_unverified_header(old)["kid"] != pyjwt.get_unverified_header(new)["kid"]
    assert (await read(demo, old))["sub"] == (await read(demo, new))["sub"] == "ada"
    demo.rotate(revoke=True)
    published = (await program.send("GET", "/jwks.json")).json["keys"]
    assert len(published) == 1
    assert "d" not in published[0]  # the private part
    put_on(demo, 100_000)
    await program.log_in()
    assert len((await program.send("GET", "/jwks.json")).json["keys"]) == 2  # it was time


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "é" * 43}, "invalid_request"),
        ({"resource": None}, "invalid_target"),
        ({"resource": "http://127.0.0.1:8000/mcp/"}, "invalid_target"),
        ({"scope": "notes:read root"}, "invalid_scope"),
    ],
)
async def test_what_is_asked_wrongly_goes_back_with_an_error(program: Program, changes: dict[str, str | None], error: str) -> None:
    """RFC 6749 4.1.2.1, RFC 7636, RFC 8707: AC-05, AC-07. Errors carry state and `iss` too (RFC 9207: AC-08)."""
    back = (await program.authorize(**changes)).back
    assert (back["error"], back["state"], back["iss"]) == (error, "a-state-of-the-test", program.issuer)
    assert "code" not in back


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_uri": f"{REDIRECT}/"},
        {"redirect_uri": "http://127.0.0.1:8124/callback"},
        {"redirect_uri": "https://evil.example/callback"},
        {"redirect_uri": None},
        {"client_id": "nobody"},
        {"client_id": None},
        {"client_id": "https://127.0.0.1/client.json"},
        {"client_id": "https://app.example.com/../client.json"},
        {"client_id": "https://elsewhere.example.com/client.json"},
    ],
)
async def test_nobody_is_sent_where_no_client_is(program: Program, changes: dict[str, str | None]) -> None:
    """RFC 9700, 2.1: letter for letter. AC-10, AC-16."""
    answer = await program.authorize(**changes)
    assert answer.status == 400
    assert "location" not in answer.headers


async def test_parameters_that_come_twice_or_empty(program: Program) -> None:
    """RFC 6749, 3.1."""
    assert (await program.send("GET", f"{program.page()}&scope=notes:write")).status == 400
    back = (await program.authorize(state="", scope="")).back
    assert "code" in back
    assert "state" not in back


async def test_a_code_is_good_once_and_for_a_minute(demo: AuthorizationServer, program: Program) -> None:
    """RFC 6749, 4.1.2: a code that comes twice ends what came of it."""
    code = (await program.authorize()).back["code"]
    tokens = (await program.exchange(code)).json
    assert (await program.exchange(code)).error == (400, "invalid_grant")
    assert (await program.token("refresh_token", refresh_token=tokens["refresh_token"])).error == (400, "invalid_grant")
    late = (await program.authorize()).back["code"]
    put_on(demo, CODE_LIFE)
    assert (await program.exchange(late)).error == (400, "invalid_grant")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"code_verifier": "x" * 43}, "invalid_grant"),
        ({"code_verifier": ""}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:1/callback"}, "invalid_grant"),
        ({"resource": OTHER}, "invalid_target"),
    ],
)
async def test_a_code_is_for_who_asked_for_it(program: Program, changes: dict[str, str], error: str) -> None:
    """RFC 7636, RFC 8707. One try: the right verifier comes too late after a wrong one."""
    code = (await program.authorize()).back["code"]
    assert (await program.exchange(code, **changes)).error == (400, error)
    assert (await program.exchange(code)).error == (400, "invalid_grant")


async def test_a_verifier_that_could_be_guessed(demo: AuthorizationServer) -> None:
    """RFC 7636, 4.1: 43 characters at least."""
    program = Program(demo.issuer, NOTES, verifier="x" * 42)
    await program.register()
    assert (await program.exchange((await program.authorize()).back["code"])).error == (400, "invalid_grant")


async def test_a_code_is_not_for_another_client(demo: AuthorizationServer, program: Program) -> None:
    other = Program(demo.issuer, NOTES, verifier=program.verifier)
    await other.register()
    assert (await other.exchange((await program.authorize()).back["code"])).error == (400, "invalid_grant")


async def test_refresh_tokens_rotate_and_one_that_comes_again_ends_the_login(demo: AuthorizationServer, program: Program) -> None:
    """RFC 9700, 4.14.2: AC-15."""
    first = (await program.log_in("notes:read notes:write"))["refresh_token"]
    fewer = await program.token("refresh_token", refresh_token=first, scope="notes:read")
    second = fewer.json["refresh_token"]
    assert (await read(demo, fewer.json["access_token"]))["scope"] == "notes:read"
    all_again = (await program.token("refresh_token", refresh_token=second, resource=NOTES)).json
    assert (await read(demo, all_again["access_token"]))["scope"] == "notes:read notes:write"
    third = all_again["refresh_token"]
    assert (await program.token("refresh_token", refresh_token=third, scope="notes:admin")).error == (400, "invalid_scope")
    assert (await program.token("refresh_token", refresh_token=third, resource=OTHER)).error == (400, "invalid_target")
    assert (await program.token("refresh_token", refresh_token=first)).error == (400, "invalid_grant")
    assert (await program.token("refresh_token", refresh_token=third)).error == (400, "invalid_grant")


async def test_a_refresh_token_is_not_for_more_nor_for_another_client(demo: AuthorizationServer, program: Program) -> None:
    token = (await program.log_in())["refresh_token"]
    assert (await program.token("refresh_token", refresh_token=token, scope="notes:write")).error == (400, "invalid_scope")
    other = Program(demo.issuer, NOTES)
    await other.register()
    assert (await other.token("refresh_token", refresh_token=token)).error == (400, "invalid_grant")
    assert (await program.token("refresh_token", refresh_token=token)).status == 200


@pytest.mark.parametrize("way", ["client_secret_basic", "client_secret_post"])
async def test_a_client_with_a_secret(demo: AuthorizationServer, way: str) -> None:
    """RFC 6749, 2.3: in the way it registered, and no other. AC-17."""
    program = Program(demo.issuer, NOTES)
    await program.register(token_endpoint_auth_method=way)
    secret, form = program.secret, {"code_verifier": program.verifier, "redirect_uri": REDIRECT, "resource": NOTES}

    async def attempt(basic: str | None, post: str) -> tuple[int, Any]:
        program.secret = post
        pair = None if basic is None else (program.client_id, basic)
        code = (await program.authorize()).back["code"]
        answer = await program.token("authorization_code", basic=pair, code=code, **form)
        return answer.status, answer.json.get("error")

    basically = way == "client_secret_basic"
    refused = (401, "invalid_client")
    assert await attempt(secret if basically else None, "" if basically else secret) == (200, None)
    assert await attempt(None if basically else secret, secret if basically else "") == refused
    assert await attempt("wrong" if basically else None, "" if basically else "wrong") == refused
    assert await attempt(None, "") == refused


@pytest.mark.parametrize("value", ["Basic", "Basic !", "Basic " + base64.b64encode(b"\xff:x").decode(), "Basic Og==", "Bearer x"])
async def test_broken_credentials(program: Program, value: str) -> None:
    answer = await program.send("POST", "/token", data={"grant_type": "refresh_token"}, headers={"authorization": value})
    assert answer.error in {(400, "invalid_request"), (401, "invalid_client")}


async def test_a_machine_asks_for_itself(demo: AuthorizationServer, program: Program) -> None:
    """RFC 6749, 4.4, and 9068, 5: nobody who registers by themselves may."""
    secret = demo.add_machine("robot")
    answer = await program.token("client_credentials", basic=("robot", secret), resource=NOTES, scope="notes:read")
    assert (await read(demo, answer.json["access_token"]))["sub"] == "robot"
    assert "refresh_token" not in answer.json
    assert answer.headers["cache-control"] == "no-store"
    assert (await program.token("client_credentials", basic=("robot", "x"), resource=NOTES)).error == (401, "invalid_client")
    two = await program.token("client_credentials", basic=("robot", secret), client_id=program.client_id, resource=NOTES)
    assert two.error == (400, "invalid_request")
    assert (await program.authorize(client_id="robot")).status == 400  # it has no users
    assert (await program.token("client_credentials", basic=("robot", secret))).error == (400, "invalid_target")
    assert (await program.token("client_credentials", resource=NOTES)).error == (400, "unauthorized_client")
    assert (await program.token("password")).error == (400, "unsupported_grant_type")
    assert (await program.register(grant_types=["client_credentials"])).error == (400, "invalid_client_metadata")
    registered = await program.register(grant_types=["authorization_code", "client_credentials"])
    assert registered.json["grant_types"] == ["authorization_code"]
    assert "refresh_token" not in await program.log_in()
    assert (await program.token("client_credentials", resource=NOTES)).error == (400, "unauthorized_client")
    with pytest.raises(ValueError, match="look like a user"):
        demo.add_machine("ada")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"redirect_uris": ["http://evil.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [f"{REDIRECT}#x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [f"{REDIRECT}\r\nx: y"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://127.0.0.1@evil.example/"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://somebody@app.example/"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://["]}, "invalid_redirect_uri"),
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": [7]}, "invalid_redirect_uri"),
        ({"redirect_uris": "x"}, "invalid_redirect_uri"),
        ({"client_name": "\ud800"}, "invalid_client_metadata"),
        ({"client_name": ["x"]}, "invalid_client_metadata"),
        ({"token_endpoint_auth_method": "private_key_jwt"}, "invalid_client_metadata"),
        ({"token_endpoint_auth_method": []}, "invalid_client_metadata"),
        ({"grant_types": [{}]}, "invalid_client_metadata"),
    ],
)
async def test_who_may_not_register(program: Program, changes: dict[str, Any], error: str) -> None:
    """RFC 7591, 3.2.2: AC-11."""
    assert (await program.register(**changes)).error == (400, error)


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 60_000, b"\xff", b"nul", b"[" * 70_000])
async def test_what_is_no_registration(program: Program, body: bytes) -> None:
    answer = await program.send("POST", "/register", data=body, headers={"content-type": "application/json"})
    assert answer.status == (413 if len(body) > 65_536 else 400)


async def test_a_client_by_its_document(demo: AuthorizationServer) -> None:
    """Client id metadata documents: AC-09, AC-10."""
    tokens = await Program(demo.issuer, NOTES, CIMD).log_in()
    assert (await read(demo, tokens["access_token"]))["client_id"] == CIMD


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": f"{CIMD}?"},
        {"client_secret": "x"},
        {"token_endpoint_auth_method": "client_secret_basic"},
        {"redirect_uris": ["http://evil.example/"]},
    ],
)
async def test_a_document_that_is_not_right(changes: dict[str, Any]) -> None:
    async def fetch(url: str) -> bytes:
        return json.dumps({"client_id": url, "redirect_uris": [REDIRECT], "grant_types": GRANTS, **changes}).encode()

    async with authorizing([NOTES], fetch=fetch) as demo:
        assert (await Program(demo.issuer, NOTES, CIMD).authorize()).status == 400


async def test_ids_that_nobody_looks_for() -> None:
    """AC-10, and no way to make the server knock on doors: a fault in the URL is seen before it is asked for."""
    fetched: list[str] = []

    async def fetch(url: str) -> bytes:
        fetched.append(url)
        raise OSError("nothing there")

    paths = ("", "/", "/../client.json", "/a/./client.json", "/client.json#x", "/a b", "/\u00e9", f"/{'x' * 500}")
    hosts = ("127.0.0.1", "2130706433", "0x7f.1", "[::1]", "localhost", "a@app.example.com", "app.example.com@a", "")
    wrong = [f"https://app.example.com{path}" for path in paths] + [f"https://{host}/client.json" for host in hosts]
    async with authorizing([NOTES], fetch=fetch) as demo:
        for url in (*wrong, CIMD.replace("https", "http"), f"{CIMD}\n"):
            assert (await Program(demo.issuer, NOTES, url).authorize()).status == 400
        assert not fetched
        assert (await Program(demo.issuer, NOTES, CIMD).authorize()).status == 400
        assert fetched == [CIMD]


async def test_somebody_agrees_on_the_page() -> None:
    """The page says what it is, shows what is asked for as text, can't be framed, and its ticket is good once."""
    async with authorizing([NOTES], auto_consent=False) as demo:
        program = Program(demo.issuer, NOTES)
        await program.register(client_name="<script>alert(1)</script>")
        page = await program.authorize()
        assert "DEMO ONLY: no passwords" in page.text
        assert "notes:read" in page.text
        assert "<script>" not in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        (ticket,) = re.findall(r'name="ticket" value="([^"]+)"', page.text)
        (spoiled,) = re.findall(r'name="ticket" value="([^"]+)"', (await program.authorize()).text)
        assert (await program.send("POST", "/authorize", data={"ticket": spoiled, "user": "root", "answer": "yes"})).status == 400
        said = {"ticket": ticket, "user": "ben", "answer": "yes"}
        back = (await program.send("POST", "/authorize", data=said)).back
        assert (await program.send("POST", "/authorize", data=said)).status == 400
        assert back["iss"] == demo.issuer
        assert (await read(demo, (await program.exchange(back["code"])).json["access_token"]))["sub"] == "ben"
        (ticket,) = re.findall(r'name="ticket" value="([^"]+)"', (await program.authorize()).text)
        denied = (await program.send("POST", "/authorize", data={"ticket": ticket, "user": "ben", "answer": "no"})).back
        assert (denied["error"], denied["iss"]) == ("access_denied", demo.issuer)


async def test_a_name_that_leads_here_reads_no_page(program: Program) -> None:
    """DNS rebinding: HH-12."""
    assert (await program.send("GET", program.page(), headers={"host": "evil.example"})).status == 400


async def test_revocation_and_introspection(demo: AuthorizationServer, program: Program) -> None:
    """RFC 7009 and 7662; an MCP server learns of its own tokens alone."""
    notes, other = demo.add_machine("notes", serves=NOTES), demo.add_machine("other", serves=OTHER)

    async def ask(name: str, secret: str, token: str) -> dict[str, Any]:
        word = base64.b64encode(f"{name}:{secret}".encode()).decode()
        return (await program.send("POST", "/introspect", data={"token": token}, headers={"authorization": f"Basic {word}"})).json

    tokens = await program.log_in()
    found = await ask("notes", notes, tokens["access_token"])
    assert (found["active"], found["sub"], found["aud"], found["scope"]) == (True, "ada", NOTES, "notes:read")
    assert await ask("other", other, tokens["access_token"]) == {"active": False}
    assert await ask("notes", notes, "no token") == {"active": False}
    put_on(demo, ACCESS_LIFE)
    assert await ask("notes", notes, tokens["access_token"]) == {"active": False}
    tokens = (await program.token("refresh_token", refresh_token=tokens["refresh_token"])).json
    nobody = {"token": tokens["access_token"], "client_id": program.client_id}
    assert (await program.send("POST", "/introspect", data=nobody)).error == (403, "unauthorized_client")
    stranger = Program(demo.issuer, NOTES)
    await stranger.register()
    for client_id in (stranger.client_id, program.client_id):
        form = {"token": tokens["refresh_token"], "client_id": client_id}
        assert (await program.send("POST", "/revoke", data=form)).status == 200
        assert (await ask("notes", notes, tokens["access_token"]))["active"] is (client_id == stranger.client_id)
    assert (await program.token("refresh_token", refresh_token=tokens["refresh_token"])).error == (400, "invalid_grant")


async def test_tables_have_a_bound(demo: AuthorizationServer, program: Program) -> None:
    demo.registered.most = demo.codes.most = 3
    for _ in range(5):
        await program.register()
        await program.authorize()
    assert (len(demo.registered.rows), len(demo.codes.rows)) == (3, 3)


def test_it_serves_this_machine_alone() -> None:
    with pytest.raises(ValueError, match="loopback"):
        AuthorizationServer("https://login.example.com", [], [])


async def test_documents_are_had_carefully() -> None:
    """No redirects, no more than 5 KiB, JSON alone, and no address inside (SSRF)."""
    answers = {
        "/good": web.json_response({"a": 1}),
        "/big": web.json_response({"a": "x" * 6_000}),
        "/moved": web.json_response({"a": 1}, status=302, headers={"location": "/good"}),
        "/gone": web.json_response({"a": 1}, status=404),
        "/page": web.Response(text="{}", content_type="text/html"),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        return answers[request.path]

    application = web.Application()
    application.router.add_get("/{name}", answer)
    async with TestServer(application) as server:
        assert json.loads(await fetch_document(str(server.make_url("/good")), aiohttp.TCPConnector())) == {"a": 1}
        for path in ("/big", "/moved", "/gone", "/page"):
            with pytest.raises(OSError, match=r"too long|status"):
                await fetch_document(str(server.make_url(path)), aiohttp.TCPConnector())
        with pytest.raises(aiohttp.ClientConnectorDNSError) as caught:
            await fetch_document(f"http://localhost:{server.port}/good")
        assert "not a public address" in repr(caught.value.__cause__)
