"""`OAuth`: one login for many requests, renewing, more scopes, keys."""

import asyncio
import logging
from typing import Any

import pytest
from unit.client.oauth.plans import ENDPOINT, ISSUER, REDIRECT, Answer, back, document, query, unreachable
from unit.client.oauth.town import AS_DOCUMENT, BASE, FORBIDDEN, PRM, TOKEN, Clock, Town, bound, refuse, token_of

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.flow import OAuth
from callboard.client.oauth.storage import MemoryStorage

# a login


async def test_a_login() -> None:  # AC-01, AC-05, AC-09, AC-13
    town = Town()
    oauth = bound(town)
    assert await oauth.headers("POST", ENDPOINT) == {}
    assert await refuse(oauth, challenge='Bearer scope="a b"')
    assert await oauth.headers("POST", ENDPOINT) == {"Authorization": "Bearer t1"}
    assert query(town.shown[0])["scope"] == "a b"
    assert query(town.shown[0])["resource"] == ENDPOINT
    assert town.at(TOKEN)[0]["resource"] == ENDPOINT
    assert town.at(TOKEN)[0]["client_id"] == "c1"


async def test_the_token_goes_to_this_server_alone() -> None:  # AC-01
    oauth = bound(Town())
    await refuse(oauth)
    for elsewhere in ("https://evil.example.com/mcp", "http://mcp.example.com/mcp", "https://mcp.example.com:444/mcp"):
        assert await oauth.headers("GET", elsewhere) == {}
    assert await oauth.headers("GET", f"{BASE}/messages") == {"Authorization": "Bearer t1"}


async def test_states_and_verifiers_are_random() -> None:  # AC-07, AC-16
    pages = []
    for _ in range(2):
        town = Town()
        await refuse(bound(town))
        pages.append(query(town.shown[0]))
    assert pages[0]["state"] != pages[1]["state"]
    assert pages[0]["code_challenge"] != pages[1]["code_challenge"]
    assert len(pages[0]["state"]) >= 32


async def test_one_login_for_many_requests() -> None:
    town = Town()
    oauth = bound(town)
    assert await asyncio.gather(*(refuse(oauth, sent={}) for _ in range(20))) == [True] * 20
    assert len(town.shown) == 1
    assert await refuse(oauth, sent={"Authorization": "Bearer old"})  # replaced meanwhile
    assert len(town.shown) == 1


async def test_many_requests_share_a_failure() -> None:
    town = Town(browse=lambda url: back(url, error="access_denied", code=None))
    oauth = bound(town)
    ends = await asyncio.gather(*(refuse(oauth, sent={}) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(end, AuthorizationFailed) and "access_denied" in str(end) for end in ends)
    assert len(town.shown) == 1
    town.browse = back
    assert await refuse(oauth)  # and the next request may try again


async def test_a_login_goes_on_while_anybody_waits_and_ends_with_the_last() -> None:
    started, go_on, ended = asyncio.Event(), asyncio.Event(), []

    async def browse(page: str) -> str:
        started.set()
        try:
            await go_on.wait()
        finally:
            ended.append(page)
        return back(page)

    town = Town()
    oauth = OAuth(browse=browse, redirect_uri=REDIRECT)
    oauth.bind(ENDPOINT, town.fetch)
    first, second = (asyncio.create_task(refuse(oauth, sent={})) for _ in range(2))
    await started.wait()
    first.cancel()
    await asyncio.wait({first})
    assert not ended
    second.cancel()
    await asyncio.wait({second})
    assert len(ended) == 1
    go_on.set()
    assert await refuse(oauth)
    assert len(ended) == 2


async def test_other_refusals_are_not_ours() -> None:  # AR-05
    town = Town()
    oauth = bound(town)
    assert not await refuse(oauth, FORBIDDEN, 'Bearer realm="x"')
    assert not await refuse(oauth, FORBIDDEN, "")
    assert not town.asked


async def test_every_failure_has_a_name() -> None:
    town = Town()
    town.pages[AS_DOCUMENT] = unreachable()
    with pytest.raises(AuthorizationFailed, match="can't be reached"):
        await refuse(bound(town))

    async def broken(page: str) -> str:
        raise OSError(page)

    with pytest.raises(AuthorizationFailed, match=r"could not be shown \(OSError\)") as caught:
        await refuse(bound(Town(), browse=broken))
    assert "state" not in str(caught.value)
    with pytest.raises(AuthorizationFailed, match="not bound"):
        await OAuth().headers("POST", ENDPOINT)


# more scopes


async def test_more_scopes_are_added_to_those_before() -> None:  # AC-14, AR-06
    town = Town()
    oauth = bound(town)
    await refuse(oauth, challenge='Bearer scope="basic"')
    assert await refuse(oauth, FORBIDDEN, 'Bearer error="insufficient_scope", scope="write"')
    assert [query(page)["scope"] for page in town.shown] == ["basic", "basic write"]
    assert await token_of(oauth) == "Bearer t2"
    assert town.registered == 1


async def test_scopes_that_were_asked_for_are_not_asked_for_again() -> None:  # AC-14
    town = Town()
    oauth = bound(town)
    await refuse(oauth, challenge='Bearer scope="admin"')
    with pytest.raises(AuthorizationFailed, match="wants scope admin"):
        await refuse(oauth, FORBIDDEN, 'Bearer error="insufficient_scope", scope="admin"')
    assert len(town.shown) == 1


async def test_a_server_that_is_never_content_gets_three_logins() -> None:  # AC-14
    town = Town()
    oauth = bound(town)
    await refuse(oauth, challenge='Bearer scope="s0"')
    for number in range(1, 3):
        assert await refuse(oauth, FORBIDDEN, f'Bearer error="insufficient_scope", scope="s{number}"')
    with pytest.raises(AuthorizationFailed, match="3 logins in a row"):
        await refuse(oauth, FORBIDDEN, 'Bearer error="insufficient_scope", scope="s3"')
    assert len(town.shown) == 3


async def test_scopes_without_names() -> None:  # AC-14
    oauth = bound(Town())
    await refuse(oauth)
    with pytest.raises(AuthorizationFailed, match="does not say which"):
        await refuse(oauth, FORBIDDEN, 'Bearer error="insufficient_scope"')


async def test_a_new_token_that_is_refused_is_the_end() -> None:
    town = Town()
    oauth = bound(town)
    await refuse(oauth)
    with pytest.raises(AuthorizationFailed, match=r"has just issued for it \(invalid_token: wrong audience\)$"):
        await refuse(oauth, challenge='Bearer error="invalid_token", error_description="wrong audience"')
    assert len(town.shown) == 1


async def test_tokens_that_end_at_once_open_no_page_after_page() -> None:  # AC-14
    town, clock = Town(), Clock()
    town.life = 1
    oauth = bound(town, clock=clock)
    await refuse(oauth)
    clock.now += 1
    with pytest.raises(AuthorizationFailed, match=r"has just issued .*; does it accept tokens for"):  # nothing else is known
        await refuse(oauth, challenge='Bearer error="invalid_token"')  # what it gives has been renewed meanwhile
    assert len(town.shown) == 1


async def test_a_browse_function_that_gives_nothing() -> None:
    async def browse(page: str) -> Any:
        del page

    with pytest.raises(AuthorizationFailed, match="gave no URL"):
        await refuse(bound(Town(), browse=browse))


# renewing


async def test_a_token_is_renewed_before_it_ends() -> None:  # A29
    town, clock = Town(), Clock()
    oauth = bound(town, clock=clock)
    await refuse(oauth)
    clock.now += 3569
    assert await token_of(oauth) == "Bearer t1"
    clock.now += 1
    assert await asyncio.gather(*(token_of(oauth) for _ in range(20))) == ["Bearer t2"] * 20
    assert town.at(TOKEN)[1] == {"grant_type": "refresh_token", "refresh_token": "r1", "resource": ENDPOINT, "client_id": "c1"}
    assert len(town.at(TOKEN)) == 2
    clock.now += 3570
    assert await token_of(oauth) == "Bearer t3"
    assert town.at(TOKEN)[2]["refresh_token"] == "r2"  # rotated
    assert len(town.shown) == 1


async def test_a_short_life_is_not_spent_on_renewing() -> None:
    town, clock = Town(), Clock()
    town.life = 20
    oauth = bound(town, clock=clock)
    await refuse(oauth)
    clock.now += 14
    assert await token_of(oauth) == "Bearer t1"
    clock.now += 1
    assert await token_of(oauth) == "Bearer t2"


async def test_a_refused_token_is_renewed_before_anybody_is_asked() -> None:
    town = Town()
    oauth = bound(town)
    await refuse(oauth)
    oauth.learn({})  # an answer that is no refusal: the token was taken
    assert await refuse(oauth, challenge='Bearer error="invalid_token"')
    assert await token_of(oauth) == "Bearer t2"
    oauth.learn({"www-authenticate": "Bearer"})
    assert len(town.shown) == 1
    assert await refuse(oauth, challenge='Bearer error="invalid_token"')  # a renewed token that is no good: somebody has to log in
    assert len(town.shown) == 2


async def test_without_a_refresh_token_somebody_logs_in_again() -> None:  # AC-15
    town, clock = Town(), Clock()
    town.pages[TOKEN] = document({"access_token": "t", "token_type": "Bearer", "expires_in": 60})
    oauth = bound(town, clock=clock)
    await refuse(oauth)
    clock.now += 61
    assert await token_of(oauth) == "Bearer t"
    town.pages[TOKEN] = document({"access_token": "u", "token_type": "Bearer"})
    assert await refuse(oauth)
    assert await token_of(oauth) == "Bearer u"
    assert len(town.shown) == 2


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_client", "unsupported_grant_type"])
async def test_a_void_refresh_token_ends_in_a_login(error: str) -> None:  # A29
    town, clock = Town(), Clock()
    oauth = bound(town, clock=clock)
    await refuse(oauth, challenge='Bearer scope="a"')
    clock.now += 4000
    town.pages[TOKEN] = document({"error": error}, 400)
    assert await token_of(oauth) == "Bearer t1"
    assert await token_of(oauth) == "Bearer t1"
    assert len(town.at(TOKEN)) == 2  # a void refresh token is shown once
    town.pages[TOKEN] = town.grant
    assert await refuse(oauth)
    assert await token_of(oauth) == "Bearer t2"
    assert query(town.shown[1])["scope"] == "a"
    assert town.registered == (2 if error == "invalid_client" else 1)


async def test_a_renewal_that_fails_is_not_tried_with_each_request(caplog: pytest.LogCaptureFixture) -> None:
    town, clock = Town(), Clock()
    oauth = bound(town, clock=clock)
    await refuse(oauth)
    clock.now += 3590
    town.pages[TOKEN] = HttpResponse(503)
    with caplog.at_level(logging.WARNING):
        assert [await token_of(oauth) for _ in range(5)] == ["Bearer t1"] * 5
    assert len(town.at(TOKEN)) == 2
    assert "HTTP 503" in caplog.text
    assert "r1" not in caplog.text
    with pytest.raises(AuthorizationFailed, match="HTTP 503"):
        await refuse(oauth)
    clock.now += 31
    town.pages[TOKEN] = town.grant
    assert await token_of(oauth) == "Bearer t2"


# DPoP (EX-06)


class Bound(Town):
    """Tokens are bound to keys."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(dpop_signing_alg_values_supported=["ES256"], **changes)

    def grant(self, request: HttpRequest) -> HttpResponse:
        """Give a token that is bound, if there is a proof."""
        if "DPoP" not in request.headers:
            return super().grant(request)
        self.given += 1
        return document({"access_token": f"t{self.given}", "token_type": "DPoP", "refresh_token": "r", "expires_in": 3600})


@pytest.mark.parametrize(
    ("option", "challenge", "scheme"),
    [(None, "Bearer", "Bearer"), (None, "DPoP", "DPoP"), (True, "Bearer", "DPoP"), (False, "DPoP", "Bearer")],
)
async def test_tokens_are_bound_to_a_key_when_somebody_wants_it(option: bool | None, challenge: str, scheme: str) -> None:  # EX-06
    town, storage, clock = Bound(), MemoryStorage(), Clock()
    oauth = bound(town, storage=storage, clock=clock, dpop=option)
    await refuse(oauth, challenge=challenge)
    headers = await oauth.headers("POST", ENDPOINT)
    assert headers["Authorization"] == f"{scheme} t1"
    assert ("DPoP" in headers) == ("dpop_jkt" in query(town.shown[0])) == (scheme == "DPoP")
    if scheme == "DPoP":
        assert headers["DPoP"] != (await oauth.headers("POST", ENDPOINT))["DPoP"]
        again = bound(town, storage=storage, clock=clock)
        clock.now += 4000
        assert await token_of(again) == "DPoP t2"  # the key was kept with the token


async def test_nonces_of_the_server() -> None:  # EX-06
    town = Bound()
    oauth = bound(town, dpop=True)
    await refuse(oauth)
    assert await refuse(oauth, challenge='DPoP error="use_dpop_nonce"', headers=[("dpop-nonce", "n1")])
    assert len(town.shown) == 1
    with pytest.raises(AuthorizationFailed, match="clock"):
        await refuse(oauth, challenge='DPoP error="invalid_dpop_proof", error_description="iat"')
    oauth.learn({"dpop-nonce": "n2"})
    assert "n2" not in repr(oauth)


async def test_what_does_not_fit_dpop_is_an_error() -> None:  # EX-06
    with pytest.raises(AuthorizationFailed, match="bound to no key"):
        await refuse(bound(Town(), dpop=True))
    town = Town()
    town.pages[PRM] = document({"resource": ENDPOINT, "authorization_servers": [ISSUER], "dpop_bound_access_tokens_required": True})
    with pytest.raises(AuthorizationFailed, match="does not say that it issues them"):
        await refuse(bound(town))
    with pytest.raises(AuthorizationFailed, match="dpop=False forbids it"):
        await refuse(bound(town, dpop=False))
    town = Town()
    town.pages[TOKEN] = document({"access_token": "t", "token_type": "DPoP"})
    with pytest.raises(AuthorizationFailed, match="none was named"):
        await refuse(bound(town))


# the object


@pytest.mark.parametrize(
    "options",
    [
        {"client_secret": "x"},
        {"client_metadata_url": "http://app.example.com/x"},
        {"application_type": "desktop"},
        {"scopes": "read write"},
        {"browse": object()},
        {"browse": object(), "redirect_uri": REDIRECT, "redirect": object()},
    ],
)
def test_options_that_contradict_each_other(options: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        OAuth(**options)


async def test_one_object_for_one_server(caplog: pytest.LogCaptureFixture) -> None:
    town = Town()
    oauth = bound(town)
    oauth.bind(f"{ENDPOINT}/", town.fetch)
    with pytest.raises(ValueError, match="make another one"):
        oauth.bind("https://other.example.com/mcp", town.fetch)
    assert repr(oauth) == f"OAuth({ENDPOINT}/)"
    OAuth().bind("http://mcp.internal/mcp", town.fetch)
    assert "plain http" in caplog.text


async def test_nothing_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    town = Town(browse=lambda url: back(url, code="c0de-secret"))
    town.pages[TOKEN] = document({"access_token": "t0k-secret", "token_type": "Bearer", "refresh_token": "r-secret", "expires_in": 1})
    oauth = bound(town, client_id="mine", client_secret="my-secret")
    with caplog.at_level(logging.DEBUG):
        await refuse(oauth)
        with pytest.raises(AuthorizationFailed) as caught:
            await refuse(oauth, challenge='Bearer error="invalid_token"')
    assert "secret" not in str(caught.value)
    assert "secret" not in caplog.text + repr(oauth) + repr(oauth._grant) + repr(oauth._identity)


async def test_a_server_of_2025_03_26() -> None:  # AA-04, AA-05
    town, clock, storage = Town(), Clock(), MemoryStorage()
    pages: dict[str, Answer | list[Answer]] = {f"{BASE}/token": town.grant, f"{BASE}/register": town.register}
    town.pages = {**pages}
    await refuse(bound(town, storage=storage, clock=clock))
    assert town.shown[0].startswith(f"{BASE}/authorize?")
    clock.now += 4000
    assert await token_of(bound(town, storage=storage, clock=clock)) == "Bearer t2"
