"""Who the client is: given, a document, or registered."""

import json
from typing import Any

import pytest
from unit.client.oauth.plans import ISSUER, PLACE, REDIRECT, World, document, server

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.registration import Identity, application_type, check_document_url, find_registration, is_current
from callboard.client.oauth.token import Registration

URL = f"{ISSUER}/register"
LOCALHOST = "http://localhost:4000/callback"
NOBODY = Identity()
CIMD = "https://app.example.com/client.json"


def body(request: HttpRequest) -> dict[str, Any]:
    found = json.loads(request.body)
    assert isinstance(found, dict)
    return found


def registered(
    *answers: HttpResponse, uris: tuple[str, ...] = (REDIRECT,), identity: Identity = NOBODY, **changes: Any
) -> tuple[Any, World]:
    world = World({URL: list(answers)})
    return world.walk(find_registration(PLACE, server(**changes), identity, uris)), world


def refused(error: str) -> HttpResponse:
    return document({"error": error, "error_description": "not so"}, 400)


DONE = document({"client_id": "new"}, 201)


# the order (AC-09)


def test_a_given_client_comes_first() -> None:  # AC-09, AC-18
    identity = Identity("mine", "secret", ISSUER, CIMD)
    found, world = registered(identity=identity, client_id_metadata_document_supported=True)
    assert (found.client_id, found.client_secret, found.source) == ("mine", "secret", "given")
    assert not world.asked


def test_then_the_document() -> None:  # AC-09, AC-10
    found, world = registered(identity=Identity(document=CIMD), client_id_metadata_document_supported=True)
    assert (found.client_id, found.client_secret, found.method, found.source) == (CIMD, "", "none", "document")
    assert not world.asked


def test_then_registration() -> None:  # AC-09, DP-02
    found, world = registered(DONE, identity=Identity(document=CIMD))
    assert (found.client_id, found.redirect_uris, found.source) == ("new", (REDIRECT,), "registered")
    assert world.urls == [URL]


def test_then_the_user() -> None:  # AC-09
    with pytest.raises(AuthorizationFailed, match=r"client_id .* or a client_metadata_url"):
        registered(registration_endpoint=None)


@pytest.mark.parametrize("issuer", ["https://other.example.com", f"{ISSUER}.evil.example", "http://as.example.com"])
def test_a_client_of_another_server_is_not_shown_here(issuer: str) -> None:  # AC-12
    with pytest.raises(AuthorizationFailed, match="never shown there") as caught:
        registered(identity=Identity("mine", "the-secret", issuer))
    assert "the-secret" not in str(caught.value)


# what a registration says


def test_what_is_registered() -> None:  # AC-11, AC-15, AC-16
    _, world = registered(DONE, identity=Identity(name="My app"))
    assert body(world.asked[0]) == {
        "client_name": "My app",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "native",
    }
    assert world.asked[0].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("http://127.0.0.1:1/callback", "native"),
        ("http://localhost/callback", "native"),
        ("http://[::1]:8/x", "native"),
        ("com.example.app:/callback", "native"),
        ("https://app.example.com/callback", "web"),
    ],
)
def test_kinds_of_applications(uri: str, kind: str) -> None:  # AC-11
    assert application_type(uri) == kind
    _, world = registered(DONE, uris=(uri,))
    assert body(world.asked[0])["application_type"] == kind
    _, world = registered(DONE, uris=(uri,), identity=Identity(kind="web"))
    assert body(world.asked[0])["application_type"] == "web"


@pytest.mark.parametrize(
    ("offered", "method"),
    [
        (None, "none"),
        (["client_secret_basic", "none"], "none"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["client_secret_post"], "client_secret_post"),
        (["private_key_jwt"], "none"),
    ],
)
def test_the_method_is_one_that_the_server_knows(offered: Any, method: str) -> None:  # AC-17
    _, world = registered(DONE, token_endpoint_auth_methods_supported=offered)
    assert body(world.asked[0])["token_endpoint_auth_method"] == method


# refusals (AC-11)


def test_a_refused_redirect_uri_has_other_names() -> None:  # AC-11
    found, world = registered(refused("invalid_redirect_uri"), DONE, uris=(REDIRECT, LOCALHOST))
    assert [body(request)["redirect_uris"] for request in world.asked] == [[REDIRECT], [LOCALHOST]]
    assert found.redirect_uris == (LOCALHOST,)


def test_then_it_is_another_kind_of_application() -> None:  # AC-11
    found, world = registered(*[refused("invalid_redirect_uri")] * 2, DONE, uris=(REDIRECT, LOCALHOST))
    assert [(body(request)["redirect_uris"][0], body(request)["application_type"]) for request in world.asked] == [
        (REDIRECT, "native"),
        (LOCALHOST, "native"),
        (REDIRECT, "web"),
    ]
    assert found.redirect_uris == (REDIRECT,)


def test_a_server_that_does_not_know_application_types() -> None:  # AC-11
    _, world = registered(refused("invalid_client_metadata"), DONE, uris=(REDIRECT, LOCALHOST))
    assert [body(request).get("application_type") for request in world.asked] == ["native", None]


def test_it_ends_and_says_how_to_go_on() -> None:  # AC-11
    world = World({URL: refused("invalid_redirect_uri")})
    with pytest.raises(AuthorizationFailed, match=r"invalid_redirect_uri: not so; give OAuth a client_id"):
        world.walk(find_registration(PLACE, server(), Identity(), (REDIRECT, LOCALHOST)))
    assert len(world.asked) == 4
    world = World({URL: HttpResponse(403, {}, b"<html>no")})
    with pytest.raises(AuthorizationFailed, match="HTTP 403"):
        world.walk(find_registration(PLACE, server(), Identity(), (REDIRECT, LOCALHOST)))
    assert len(world.asked) == 1


# answers


@pytest.mark.parametrize(
    ("said", "method", "secret"),
    [
        ({"token_endpoint_auth_method": "client_secret_post", "client_secret": "s"}, "client_secret_post", "s"),
        ({"client_secret": "s"}, "", "s"),  # asked for none and got a secret: what the metadata say decides
        ({}, "none", ""),
        ({"client_secret": None}, "none", ""),
    ],
)
def test_the_server_may_decide_otherwise(said: dict[str, Any], method: str, secret: str) -> None:  # AC-17
    found, _ = registered(document({"client_id": "new", **said}, 201))
    assert (found.method, found.client_secret) == (method, secret)


@pytest.mark.parametrize("answer", [{}, {"client_id": 5}, {"client_id": ""}, {"client_id": "a\nb"}, {"client_id": "ü"}, [], "x"])
def test_answers_that_are_none(answer: Any) -> None:
    with pytest.raises(AuthorizationFailed, match="the answer of"):
        registered(document(answer, 201))


def test_a_secret_may_end() -> None:
    found, _ = registered(document({"client_id": "new", "client_secret": "s", "client_secret_expires_at": 100}))
    assert is_current(found, REDIRECT, 99)
    assert not is_current(found, REDIRECT, 100)
    found, _ = registered(document({"client_id": "new", "client_secret": "s", "client_secret_expires_at": 0}))
    assert is_current(found, REDIRECT, 1e12)


def test_a_registration_holds_for_its_redirect_uri() -> None:  # AC-16
    kept = Registration("new", redirect_uris=(REDIRECT,))
    assert is_current(kept, REDIRECT, 0)
    assert is_current(kept, "", 0)
    assert not is_current(kept, "http://127.0.0.1:4001/callback", 0)


@pytest.mark.parametrize(
    "url", ["http://app.example.com/c.json", "https://app.example.com", "https://app.example.com/", "https:///c", "c", "https://a/c#f"]
)
def test_what_is_no_document(url: str) -> None:  # AC-10
    with pytest.raises(ValueError, match="AC-10"):
        check_document_url(url)


def test_no_repr_shows_the_secret() -> None:
    assert "s3" not in repr(Identity("a", "s3"))
    check_document_url(CIMD)
