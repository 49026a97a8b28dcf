"""A login in the browser, on paper."""

import base64
import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.client.oauth.plans import ENDPOINT, ISSUER, PLACE, REDIRECT, World, back, document, form, query, server

from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.code_flow import Login, authorization_url, authorize, code_in, scopes_to_ask
from callboard.client.oauth.metadata import Discovery
from callboard.client.oauth.token import Registration, TokenRefused

VERIFIER = "v" * 43
TOKEN = document({"access_token": "t0k", "token_type": "Bearer"})


def login(scopes: tuple[str, ...] = (), thumbprint: str = "", **changes: Any) -> Login:
    return Login(server(**changes), Registration("me"), REDIRECT, ENDPOINT, scopes, "st4te", VERIFIER, thumbprint)


# the page


def test_what_the_page_is_told() -> None:  # AC-05, AC-07, AC-16
    url = authorization_url(PLACE, login(("a", "b")))
    assert url.startswith(f"{ISSUER}/authorize?")
    assert query(url) == {
        "response_type": "code",
        "client_id": "me",
        "redirect_uri": REDIRECT,
        "state": "st4te",
        "code_challenge": base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("="),
        "code_challenge_method": "S256",
        "resource": ENDPOINT,
        "scope": "a b",
    }


def test_no_scope_is_no_scope() -> None:  # AC-13
    assert "scope" not in query(authorization_url(PLACE, login()))


def test_a_query_of_the_endpoints_own_stays_and_says_nothing_of_ours() -> None:
    url = authorization_url(PLACE, login(authorization_endpoint=f"{ISSUER}/authorize?tenant=1&client_id=evil&resource=x"))
    assert query(url)["tenant"] == "1"
    assert query(url)["client_id"] == "me"
    assert url.count("client_id=") == 1
    assert url.count("resource=") == 1


def test_offline_access_needs_consent() -> None:  # AC-15
    assert query(authorization_url(PLACE, login(("a", "offline_access"))))["prompt"] == "consent"
    assert "prompt" not in query(authorization_url(PLACE, login(("a",))))


def test_the_code_is_bound_to_the_key() -> None:  # EX-06
    assert query(authorization_url(PLACE, login(thumbprint="jkt")))["dpop_jkt"] == "jkt"


@pytest.mark.parametrize("methods", [None, [], ["plain"], ["s256"]])
def test_no_login_without_s256(methods: Any) -> None:  # AC-07
    with pytest.raises(AuthorizationFailed, match="code_challenge_methods_supported"):
        authorization_url(PLACE, login(code_challenge_methods_supported=methods))


def test_servers_of_2025_03_26_did_not_have_to_say_so() -> None:  # AC-07, AA-05
    assert authorization_url(PLACE, login(code_challenge_methods_supported=None, legacy=True))
    with pytest.raises(AuthorizationFailed, match="S256"):
        authorization_url(PLACE, login(code_challenge_methods_supported=["plain"], legacy=True))


def test_a_page_must_be_one() -> None:  # SC-07
    with pytest.raises(AuthorizationFailed, match="nobody can log in"):
        authorization_url(PLACE, login(authorization_endpoint=None))
    for url in ("javascript:alert(1)", "file:///etc/passwd", "http://as.example.com/authorize"):
        with pytest.raises(AuthorizationFailed, match="authorization_endpoint"):
            authorization_url(PLACE, login(authorization_endpoint=url))


def test_a_short_verifier_is_a_mistake() -> None:  # AC-07
    with pytest.raises(ValueError, match="43"):
        authorization_url(PLACE, msgspec.structs.replace(login(), verifier="short"))


# scopes


@pytest.mark.parametrize(
    ("challenged", "supported", "wanted", "before", "scopes"),
    [
        (["mcp:basic"], ("x", "y"), (), (), ("mcp:basic",)),
        ([], ("x", "y"), (), (), ("x", "y")),
        ([], (), (), (), ()),
        (["c"], ("x",), ("w",), (), ("c", "w")),
        ([], ("x",), ("w",), (), ("w",)),
        (["c"], ("x",), (), ("b", "c"), ("b", "c")),
        (["c", "d"], (), (), ("b",), ("b", "c", "d")),
    ],
)
def test_scopes(challenged: Any, supported: Any, wanted: Any, before: Any, scopes: Any) -> None:  # AC-13, AC-14
    found = Discovery(ENDPOINT, supported, server())
    assert scopes_to_ask(found, challenged, wanted=wanted, before=before) == scopes


def test_offline_access_is_asked_for_where_it_is_known() -> None:  # AC-15
    knows = Discovery(ENDPOINT, ("a",), server(scopes_supported=["a", "offline_access"]))
    assert scopes_to_ask(knows, ["c"]) == ("c", "offline_access")
    assert scopes_to_ask(Discovery(ENDPOINT, ("a",), server(scopes_supported=["a"])), ["c"]) == ("c",)
    assert scopes_to_ask(msgspec.structs.replace(knows, scopes_supported=()), []) == ()


# the way back


def redirected(login_: Login, **more: str | None) -> str:
    return back(authorization_url(PLACE, login_), **more)


def refused(login_: Login, url: str) -> str:
    with pytest.raises(AuthorizationFailed) as caught:
        code_in(PLACE, login_, url)
    assert "c0de" not in str(caught.value)
    return caught.value.text


def test_a_code_comes_back() -> None:
    assert code_in(PLACE, login(), redirected(login())) == "c0de"
    assert code_in(PLACE, login(), redirected(login()).replace("127.0.0.1", "localhost")) == "c0de"


@pytest.mark.parametrize("state", ["", "other", "st4te ", "ST4TE", None])
def test_the_state_must_be_ours(state: str | None) -> None:  # AC-16
    assert "another login" in refused(login(), redirected(login(), state=state))


ISS: dict[str, Any] = {"authorization_response_iss_parameter_supported": True}


@pytest.mark.parametrize(
    ("advertised", "iss", "proceeds"),
    [
        (True, ISSUER, True),  # auth/iss-supported
        (False, None, True),  # auth/iss-not-advertised
        (True, None, False),  # auth/iss-supported-missing
        (True, "https://evil.example.com", False),  # auth/iss-wrong-issuer
        (False, "https://evil.example.com", False),  # auth/iss-unexpected
        (True, f"{ISSUER}/", False),  # auth/iss-normalized
        (False, ISSUER, True),
        (False, f"{ISSUER}:443", False),
        (False, ISSUER.upper(), False),
        (False, "", False),
    ],
)
@pytest.mark.parametrize("error", [None, "access_denied"])
def test_the_answer_must_be_this_servers(*, advertised: bool, iss: str | None, proceeds: bool, error: str | None) -> None:  # AC-08
    mine = login(**ISS) if advertised else login()
    url = redirected(mine, iss=iss, error=error, error_description=error and "words of the server", code=None if error else "c0de")
    if proceeds and not error:
        assert code_in(PLACE, mine, url) == "c0de"
    elif proceeds:
        assert refused(mine, url) == "the login failed: access_denied: words of the server"
    else:
        text = refused(mine, url)
        assert "words of the server" not in text
        assert "access_denied" not in text


def test_what_else_can_come_back() -> None:
    assert "holds no code" in refused(login(), redirected(login(), code=None))
    assert "holds no code" in refused(login(), redirected(login(), code=""))
    assert "twice" in refused(login(), redirected(login()) + "&code=other")
    assert "not to the redirect URI" in refused(login(), "https://as.example.com/login?state=st4te&code=c0de")
    assert "not to the redirect URI" in refused(login(), "")
    assert "without a name" in refused(login(), redirected(login(), error="<script>", code=None))


@given(st.text(max_size=200))
def test_no_redirect_is_too_strange(text: str) -> None:
    for url in (text, f"{REDIRECT}?{text}", f"{REDIRECT}?state=st4te&{text}"):
        try:
            code_in(PLACE, login(), url)
        except AuthorizationFailed:
            continue


# the whole way


def test_a_code_buys_a_token() -> None:  # AC-05, AC-07
    world = World({f"{ISSUER}/token": TOKEN})
    assert world.walk(authorize(PLACE, login(("a",)))).access_token == "t0k"
    assert form(world.asked[0]) == {
        "grant_type": "authorization_code",
        "code": "c0de",
        "redirect_uri": REDIRECT,
        "code_verifier": VERIFIER,
        "resource": ENDPOINT,
        "client_id": "me",
    }


@pytest.mark.parametrize("iss", [None, "https://evil.example.com", f"{ISSUER}/"])
def test_no_token_is_asked_for_with_an_answer_of_another_server(iss: str | None) -> None:  # AC-08
    world = World({f"{ISSUER}/token": TOKEN}, lambda url: back(url, iss=iss))
    with pytest.raises(AuthorizationFailed):
        world.walk(authorize(PLACE, login(**ISS)))
    assert len(world.shown) == 1
    assert not world.asked


def test_a_refused_code_says_why() -> None:
    world = World({f"{ISSUER}/token": document({"error": "invalid_grant", "error_description": "c0de is old"}, 400)})
    with pytest.raises(TokenRefused, match=r"invalid_grant: \*\*\* is old"):
        world.walk(authorize(PLACE, login()))


def test_no_repr_shows_a_secret() -> None:
    assert "st4te" not in repr(login())
    assert VERIFIER not in repr(login())


def test_a_login_survives_the_storage() -> None:  # A31
    mine = login(("a",), **ISS)
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(mine)), Login) == mine
