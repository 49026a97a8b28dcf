"""Finding the authorization server, step by step."""

import json
from typing import Any

import pytest
from unit.client.oauth.plans import ENDPOINT, ISSUER, JSON, PLACE, Answer, World, document, metadata, unreachable

from callboard.client.auth import HttpResponse
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.metadata import Discovery, discover, find_legacy_server, find_server
from callboard.client.oauth.urls import place_of

BASE = "https://mcp.example.com"
ROOT_PRM = f"{BASE}/.well-known/oauth-protected-resource"
PATH_PRM = f"{ROOT_PRM}/mcp"
AS_DOCUMENT = f"{ISSUER}/.well-known/oauth-authorization-server"
OIDC_DOCUMENT = f"{ISSUER}/.well-known/openid-configuration"
LEGACY = f"{BASE}/.well-known/oauth-authorization-server"
Pages = dict[str, Answer | list[Answer]]


def prm(resource: str = ENDPOINT, servers: Any = (ISSUER,), **more: Any) -> HttpResponse:
    return document({"resource": resource, "authorization_servers": None if servers is None else list(servers), **more})


def found(pages: Pages, announced: str = "", **options: Any) -> tuple[Discovery, World]:
    world = World(pages)
    return world.walk(discover(PLACE, announced, **options)), world


def refused(pages: Pages, announced: str = "", **options: Any) -> tuple[str, World]:
    world = World(pages)
    with pytest.raises(AuthorizationFailed) as caught:
        world.walk(discover(PLACE, announced, **options))
    assert caught.value.target == ENDPOINT
    return caught.value.text, world


# the protected resource


def test_the_announced_url_alone_is_asked() -> None:  # AC-02, A30
    custom = f"{BASE}/custom/prm.json"
    result, world = found({custom: prm(scopes_supported=["a", "b"]), AS_DOCUMENT: document(metadata())}, custom)
    assert world.urls == [custom, AS_DOCUMENT]
    assert result.resource == ENDPOINT
    assert result.scopes_supported == ("a", "b")
    assert result.server.token_endpoint == f"{ISSUER}/token"


def test_without_it_the_path_then_the_root() -> None:  # AC-02
    _, world = found({PATH_PRM: prm(), ROOT_PRM: prm(), AS_DOCUMENT: document(metadata())})
    assert world.urls == [PATH_PRM, AS_DOCUMENT]
    _, world = found({ROOT_PRM: prm(BASE), AS_DOCUMENT: document(metadata())})
    assert world.urls == [PATH_PRM, ROOT_PRM, AS_DOCUMENT]


def test_an_announced_url_that_fails_is_no_dead_end_but_a_sign_of_the_revision() -> None:  # A30
    custom = f"{BASE}/custom"
    _, world = found({PATH_PRM: prm(), AS_DOCUMENT: document(metadata())}, custom)
    assert world.urls == [custom, PATH_PRM, AS_DOCUMENT]
    text, world = refused({LEGACY: document(metadata(BASE))}, custom)
    assert custom in text
    assert LEGACY not in world.urls


def test_the_exact_text_of_the_metadata_names_the_resource() -> None:  # AC-05
    result, _ = found({PATH_PRM: prm("https://MCP.example.com/"), AS_DOCUMENT: document(metadata())})
    assert result.resource == "https://MCP.example.com/"


@pytest.mark.parametrize("resource", ["https://evil.example.com/mcp", f"{BASE}/other", "https://mcp.example.com:1/mcp", "", "x"])
def test_metadata_of_another_resource_are_refused(resource: str) -> None:  # AC-06
    text, world = refused({PATH_PRM: prm(resource), ROOT_PRM: prm(), AS_DOCUMENT: document(metadata())})
    assert "not this server" in text
    assert world.urls == [PATH_PRM]


@pytest.mark.parametrize(
    "announced", ["http://169.254.169.254/latest", "http://localhost/prm", "javascript:x", "https://10.0.0.1/", "http://x.example/"]
)
def test_a_challenge_leads_nowhere_dangerous(announced: str) -> None:  # SC-03
    text, world = refused({}, announced)
    assert "resource_metadata" in text
    assert not world.asked


@pytest.mark.parametrize(
    "broken",
    [
        HttpResponse(200, JSON, b"{"),
        HttpResponse(200, JSON, b"[]"),
        HttpResponse(200, JSON, b'{"resource": 1}'),
        HttpResponse(200, JSON, b"{}"),
        HttpResponse(200, JSON, b"[" * 100_000),
        HttpResponse(200, JSON, b"\xff{}"),
        HttpResponse(200, JSON, json.dumps({"resource": ENDPOINT, "authorization_servers": "x"}).encode()),
    ],
)
def test_a_broken_document_is_the_end(broken: HttpResponse) -> None:
    text, _ = refused({PATH_PRM: broken, AS_DOCUMENT: document(metadata())})
    assert "can't be read" in text


def test_a_page_for_everything_is_no_document() -> None:
    page = HttpResponse(200, {"content-type": "text/html"}, b"<html>")
    _, world = found({PATH_PRM: page, ROOT_PRM: prm(), AS_DOCUMENT: document(metadata())})
    assert world.urls == [PATH_PRM, ROOT_PRM, AS_DOCUMENT]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HttpResponse(503), "HTTP 503"),
        (unreachable(), "can't be reached"),
        (HttpResponse(200, JSON, b" " * (2**20 + 1)), "1 MiB"),
        (HttpResponse(302, {"location": "https://elsewhere.example/"}), "another site"),
        (HttpResponse(302, {"location": "/.well-known/oauth-protected-resource/mcp"}), "more than 3"),
        (HttpResponse(302, {"location": "https://["}), "no URL"),
    ],
)
def test_a_server_that_stumbles_is_not_taken_for_one_of_2025_03_26(answer: Answer, why: str) -> None:  # AA-05
    text, world = refused({PATH_PRM: answer, LEGACY: document(metadata(BASE))})
    assert why in text
    assert LEGACY not in world.urls


def test_redirects_within_the_origin_are_followed_and_each_is_checked() -> None:  # SC-03
    there = f"{BASE}/there"
    _, world = found({PATH_PRM: HttpResponse(307, {"location": "/there"}), there: prm(), AS_DOCUMENT: document(metadata())})
    assert world.urls == [PATH_PRM, there, AS_DOCUMENT]
    text, world = refused({PATH_PRM: HttpResponse(301, {"location": "http://127.0.0.1/"})})
    assert "redirect" in text
    assert world.urls == [PATH_PRM]


def test_the_protocol_version_goes_along() -> None:  # AA-05
    _, world = found({PATH_PRM: prm(), AS_DOCUMENT: document(metadata())}, protocol="2025-11-25")
    assert {request.headers["MCP-Protocol-Version"] for request in world.asked} == {"2025-11-25"}


# the authorization server


@pytest.mark.parametrize(
    ("issuer", "urls"),
    [
        ("https://as.example.com", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        ("https://as.example.com/", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]),
        (
            "https://as.example.com/tenant1",
            [
                "/.well-known/oauth-authorization-server/tenant1",
                "/.well-known/openid-configuration/tenant1",
                "/tenant1/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_where_metadata_are_looked_for(issuer: str, urls: list[str]) -> None:  # AC-03
    world = World({})
    with pytest.raises(AuthorizationFailed, match="has no metadata"):
        world.walk(find_server(PLACE, issuer))
    assert world.urls == [f"https://as.example.com{path}" for path in urls]
    for number, url in enumerate(world.urls):
        again = World({url: document(metadata(issuer))})
        assert again.walk(find_server(PLACE, issuer)).issuer == issuer
        assert again.urls == world.urls[: number + 1]


@pytest.mark.parametrize("said", ["https://attacker.example.com", f"{ISSUER}/", ISSUER.upper(), "https://as.example.com:443", ""])
def test_the_issuer_must_be_the_very_text(said: str) -> None:  # AC-04
    text, world = refused({PATH_PRM: prm(), AS_DOCUMENT: document(metadata() | {"issuer": said}), OIDC_DOCUMENT: document(metadata())})
    assert "the very same text" in text
    assert world.urls == [PATH_PRM, AS_DOCUMENT]


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
@pytest.mark.parametrize("url", ["javascript:alert(1)", "http://as.example.com/x", "https://127.0.0.1/x", "file:///x", "//x"])
def test_endpoints_are_checked(name: str, url: str) -> None:  # SC-03, SC-07
    text, _ = refused({PATH_PRM: prm(), AS_DOCUMENT: document(metadata(**{name: url}))})
    assert name in text


def test_a_server_needs_a_token_endpoint() -> None:
    text, _ = refused({PATH_PRM: prm(), AS_DOCUMENT: document(metadata(token_endpoint=None))})
    assert "token_endpoint" in text


@pytest.mark.parametrize("issuer", ["http://as.example.com", "https://10.0.0.1", "ftp://x", "https://as.example.com/?x=1", "x"])
def test_issuers_are_checked(issuer: str) -> None:  # SC-03
    _, world = refused({PATH_PRM: prm(servers=[issuer])})
    assert world.urls == [PATH_PRM]


def test_null_is_absent_and_other_types_are_an_error() -> None:
    result, _ = found({PATH_PRM: prm(scopes_supported=None), AS_DOCUMENT: document({**metadata(), "scopes_supported": None})})
    assert result.server.scopes_supported is None
    refused({PATH_PRM: prm(), AS_DOCUMENT: document(metadata(code_challenge_methods_supported="S256"))})


def test_a_document_can_not_call_itself_legacy() -> None:  # AC-07
    result, _ = found({PATH_PRM: prm(), AS_DOCUMENT: document(metadata(legacy=True))})
    assert not result.server.legacy


OTHER = "https://other.example.com"
OTHER_DOCUMENT = f"{OTHER}/.well-known/oauth-authorization-server"


def test_the_first_usable_of_several_servers() -> None:
    pages: Pages = {PATH_PRM: prm(servers=[OTHER, ISSUER]), AS_DOCUMENT: document(metadata()), OTHER_DOCUMENT: unreachable()}
    result, _ = found(pages)
    assert result.server.issuer == ISSUER
    text, _ = refused({PATH_PRM: prm(servers=[OTHER, ISSUER])})
    assert OTHER in text
    assert ISSUER in text


def test_a_server_with_credentials_goes_first() -> None:  # AC-12
    pages: Pages = {
        PATH_PRM: prm(servers=[OTHER, ISSUER]),
        AS_DOCUMENT: document(metadata()),
        OTHER_DOCUMENT: document(metadata(OTHER)),
    }
    assert found(pages)[0].server.issuer == OTHER
    result, world = found(pages, known=[ISSUER])
    assert result.server.issuer == ISSUER
    assert OTHER_DOCUMENT not in world.urls


def test_a_pinned_server_is_the_only_one() -> None:  # AC-12
    pages: Pages = {PATH_PRM: prm(servers=[OTHER, ISSUER]), AS_DOCUMENT: document(metadata())}
    assert found(pages, pinned=ISSUER)[0].server.issuer == ISSUER
    text, world = refused({PATH_PRM: prm(servers=[OTHER])}, pinned=ISSUER)
    assert "never" in text
    assert world.urls == [PATH_PRM]
    assert found({PATH_PRM: prm(servers=[f"{ISSUER}/"]), AS_DOCUMENT: document(metadata())}, pinned=ISSUER)[0].server.issuer == ISSUER
    assert found({AS_DOCUMENT: document(metadata())}, pinned=ISSUER)[0].server.issuer == ISSUER


@pytest.mark.parametrize("servers", [None, []])
def test_a_resource_without_servers(servers: Any) -> None:  # AR-02
    text, _ = refused({PATH_PRM: prm(servers=servers)})
    assert "issuer=" in text
    assert found({PATH_PRM: prm(servers=servers), AS_DOCUMENT: document(metadata())}, pinned=ISSUER)[0].server.issuer == ISSUER


def test_a_hundred_servers_are_not_all_tried() -> None:
    _, world = refused({PATH_PRM: prm(servers=[f"https://as{number}.example.com" for number in range(100)])})
    assert len(world.asked) == 1 + 5 * 2


# 2025-03-26


def test_a_server_without_any_metadata_has_the_default_paths() -> None:  # AA-04, AA-05
    result, world = found({})
    assert world.urls == [PATH_PRM, ROOT_PRM, LEGACY]
    assert result.resource == ENDPOINT
    assert result.server.authorization_endpoint == f"{BASE}/authorize"
    assert result.server.token_endpoint == f"{BASE}/token"
    assert result.server.registration_endpoint == f"{BASE}/register"
    assert result.server.issuer == BASE
    assert result.server.legacy


def test_metadata_at_the_servers_root() -> None:  # AA-05
    inner = metadata(BASE, authorization_endpoint=f"{BASE}/oauth/authorize")
    result, _ = found({LEGACY: document(inner)})
    assert result.server.authorization_endpoint == f"{BASE}/oauth/authorize"
    assert result.server.issuer == BASE


def test_metadata_at_the_root_may_name_other_hosts_only_as_that_very_issuer() -> None:  # AC-04
    elsewhere = {"authorization_endpoint": "https://login.example.com/authorize", "token_endpoint": "https://login.example.com/token"}
    assert found({LEGACY: document(metadata(BASE, **elsewhere))})[0].server.token_endpoint == "https://login.example.com/token"
    text, _ = refused({LEGACY: document(metadata("https://login.example.com", **elsewhere))})
    assert "no protected resource metadata" in text


def test_an_issuer_that_was_not_checked_is_not_believed() -> None:  # AC-04, AC-08
    endpoints = {name: f"{BASE}/oauth/{name}" for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint")}
    result, _ = found({LEGACY: document(metadata("https://honest.example.com", **endpoints))})
    assert result.server.issuer == BASE  # so no code of the honest server's goes to this token endpoint
    assert result.server.legacy


def test_a_root_that_stumbles_is_no_root_without_metadata() -> None:
    for answer in (HttpResponse(500), unreachable(), HttpResponse(200, JSON, b"{")):
        with pytest.raises(AuthorizationFailed):
            World({LEGACY: answer}).walk(find_legacy_server(PLACE))


def test_a_server_at_the_root_of_its_origin() -> None:
    world = World({})
    result = world.walk(discover(place_of("https://mcp.example.com")))
    assert world.urls == [ROOT_PRM, LEGACY]
    assert result.resource == "https://mcp.example.com"
