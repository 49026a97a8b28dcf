"""What goes to a token endpoint and what comes back."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.client.oauth.plans import ISSUER, JSON, PLACE, World, document, form, server

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.token import Registration, TokenRefused, Tokens, authentication_method, refresh, request_token

URL = f"{ISSUER}/token"
GRANTED = {"access_token": "t0k", "token_type": "Bearer"}
PUBLIC = Registration("me")
SECRET = Registration("id:with %", "s3cret/+ ü")


def asked(registration: Registration | None = PUBLIC, sign: Any = None, **changes: Any) -> HttpRequest:
    world = World({URL: document(GRANTED)})
    world.walk(request_token(PLACE, server(**changes), registration, {"grant_type": "x", "resource": "https://r"}, sign=sign))
    (request,) = world.asked
    return request


def answered(value: Any, status: int = 200) -> Tokens:
    answer = value if isinstance(value, HttpResponse) else document(value, status)
    return World({URL: answer}).walk(request_token(PLACE, server(), PUBLIC, {"code": "the-code"}))


# how the client shows who it is (AC-17)


def test_a_public_client_names_itself() -> None:
    request = asked()
    assert form(request) == {"grant_type": "x", "resource": "https://r", "client_id": "me"}
    assert "Authorization" not in request.headers
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_basic_encodes_id_and_secret_first() -> None:  # AC-17
    request = asked(SECRET, token_endpoint_auth_methods_supported=["client_secret_basic"])
    user = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
    assert user == "id%3Awith+%25:s3cret%2F%2B+%C3%BC"
    assert form(request).keys() == {"grant_type", "resource"}


def test_post_puts_both_into_the_form() -> None:  # AC-17
    request = asked(SECRET, token_endpoint_auth_methods_supported=["client_secret_post"])
    assert form(request) == {"grant_type": "x", "resource": "https://r", "client_id": "id:with %", "client_secret": "s3cret/+ ü"}
    assert "Authorization" not in request.headers


def test_a_signed_assertion_stands_in_for_both() -> None:
    request = asked(PUBLIC, lambda found: f"signed for {found.issuer}", token_endpoint_auth_methods_supported=["private_key_jwt"])
    sent = form(request)
    assert sent["client_assertion"] == f"signed for {ISSUER}"
    assert sent["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assert "client_id" not in sent


def test_nobody_names_itself_when_the_grant_does() -> None:
    assert form(asked(None, token_endpoint_auth_methods_supported=["client_secret_basic"])).keys() == {"grant_type", "resource"}


@pytest.mark.parametrize(
    ("offered", "registration", "signs", "method"),
    [
        (None, PUBLIC, False, "none"),
        (None, SECRET, False, "client_secret_basic"),
        (["client_secret_post", "client_secret_basic"], SECRET, False, "client_secret_basic"),
        (["client_secret_post"], SECRET, False, "client_secret_post"),
        (["none"], SECRET, False, "none"),
        (["client_secret_basic"], PUBLIC, False, ""),
        (["tls_client_auth"], SECRET, False, ""),
        (["private_key_jwt", "none"], PUBLIC, True, "private_key_jwt"),
        (None, PUBLIC, True, "private_key_jwt"),
        (["client_secret_basic", "client_secret_post"], Registration("a", "b", "client_secret_post"), False, "client_secret_post"),
        (["client_secret_basic"], Registration("a", "b", "client_secret_post"), False, "client_secret_basic"),
    ],
)
def test_the_method_follows_the_metadata(offered: Any, registration: Registration, *, signs: bool, method: str) -> None:  # AC-17
    found = server(token_endpoint_auth_methods_supported=offered)
    assert authentication_method(found, registration, signs=signs) == method


def test_no_common_method_is_an_error_that_names_them() -> None:
    with pytest.raises(AuthorizationFailed, match="tls_client_auth"):
        asked(SECRET, token_endpoint_auth_methods_supported=["tls_client_auth"])


# what comes back


def test_a_whole_answer() -> None:
    tokens = answered({"access_token": "a.b", "token_type": "bearer", "expires_in": 60, "scope": "x y", "refresh_token": "r"})
    assert tokens == Tokens("a.b", "Bearer", 60.0, ("x", "y"), "r")
    assert answered(GRANTED) == Tokens("t0k")  # AC-15: no refresh token is nothing special
    assert answered({**GRANTED, "refresh_token": None, "scope": None, "expires_in": None}) == Tokens("t0k")


@pytest.mark.parametrize(
    ("given_life", "life"),
    [
        (1, 1.0),
        ("3600", 3600.0),
        (0, None),
        (-5, None),
        (True, None),
        ("soon", None),
        (10**400, None),
        ({}, None),
        (1e300, 10 * 365 * 86400),
    ],
)
def test_lifetimes(given_life: Any, life: float | None) -> None:
    assert answered({**GRANTED, "expires_in": given_life}).expires_in == life


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {**GRANTED, "access_token": ""},
        {**GRANTED, "access_token": 5},
        {**GRANTED, "access_token": "a\r\nX-Evil: 1"},
        {**GRANTED, "access_token": "a b"},
        {**GRANTED, "access_token": "ü"},
        {"access_token": "t"},
        {**GRANTED, "token_type": "mac"},
        {**GRANTED, "token_type": 1},
        {**GRANTED, "refresh_token": 1},
        {**GRANTED, "scope": ["a"]},
        [],
        HttpResponse(200, JSON, b"access_token=t&token_type=bearer"),
        HttpResponse(200, JSON, b""),
        HttpResponse(200, JSON, b"[" * 100_000),
    ],
)
def test_answers_that_are_none(broken: Any) -> None:
    with pytest.raises(AuthorizationFailed, match="the answer of the token endpoint"):
        answered(broken)


def test_a_refusal_says_why() -> None:
    with pytest.raises(TokenRefused) as caught:
        answered({"error": "invalid_grant", "error_description": "the code\x1b[31m is old"}, 400)
    assert caught.value.error == "invalid_grant"
    assert "invalid_grant: the code?[31m is old" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HttpResponse(502, {}, b"<html>bad gateway"), "HTTP 502"),
        (document({"error": 5, "error_description": 6}, 400), "HTTP 400"),
        (document({"error": "bad\ncode"}, 400), "HTTP 400"),
        (HttpResponse(302, {"location": "https://evil.example"}), "HTTP 302"),
    ],
)
def test_refusals_that_do_not_say_why(answer: HttpResponse, words: str) -> None:
    with pytest.raises(TokenRefused, match=words):
        answered(answer)


def test_no_error_and_no_repr_shows_a_secret() -> None:
    registration = Registration("me", "the-secret", "client_secret_post")
    found = server(token_endpoint_auth_methods_supported=["client_secret_post"])
    echo = document({"error": "x", "error_description": "you sent the-secret and the-code and ver1fier"}, 400)
    plan = request_token(PLACE, found, registration, {"code": "the-code", "code_verifier": "ver1fier"})
    with pytest.raises(TokenRefused) as caught:
        World({URL: echo}).walk(plan)
    assert "you sent *** and *** and ***" in str(caught.value)
    assert "secret" not in repr(registration)
    assert "t0k" not in repr(Tokens("t0k", refresh_token="t0k"))


# renewing


def test_renewing_keeps_what_the_answer_leaves_out() -> None:  # AC-05, AC-15
    held = Tokens("old", "Bearer", 60, ("a",), "r1")
    world = World({URL: [document(GRANTED), document({**GRANTED, "refresh_token": "r2", "scope": "b"})]})
    first = world.walk(refresh(PLACE, server(), PUBLIC, held, resource="https://r"))
    assert first == Tokens("t0k", "Bearer", None, ("a",), "r1")
    second = world.walk(refresh(PLACE, server(), PUBLIC, first, resource="https://r"))
    assert second == Tokens("t0k", "Bearer", None, ("b",), "r2")
    assert form(world.asked[0]) == {"grant_type": "refresh_token", "refresh_token": "r1", "resource": "https://r", "client_id": "me"}


# DPoP (EX-06)


def test_a_nonce_is_taken_up_once() -> None:  # EX-06
    nonces: list[str] = []

    def prove(method: str, url: str, nonce: str) -> str:
        assert (method, url) == ("POST", URL)
        nonces.append(nonce)
        return f"proof with {nonce}"

    wanted = HttpResponse(400, {**JSON, "dpop-nonce": "n1"}, json.dumps({"error": "use_dpop_nonce"}).encode())
    world = World({URL: [wanted, document({**GRANTED, "token_type": "DPoP"})]})
    assert world.walk(request_token(PLACE, server(), PUBLIC, {}, prove=prove)).token_type == "DPoP"
    assert nonces == ["", "n1"]
    assert [request.headers["DPoP"] for request in world.asked] == ["proof with ", "proof with n1"]
    with pytest.raises(TokenRefused, match="use_dpop_nonce"):
        World({URL: [wanted, wanted]}).walk(request_token(PLACE, server(), PUBLIC, {}, prove=prove))
    with pytest.raises(TokenRefused):
        World({URL: wanted}).walk(request_token(PLACE, server(), PUBLIC, {}))


JSON_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([1]), st.just({"a": 1}))


@given(st.dictionaries(st.sampled_from(["access_token", "token_type", "expires_in", "scope", "refresh_token", "error"]), JSON_VALUES))
def test_no_answer_is_too_strange(value: dict[str, Any]) -> None:
    for status in (200, 400):
        try:
            tokens = answered(value, status)
        except AuthorizationFailed:
            continue
        assert tokens.access_token.isascii()
