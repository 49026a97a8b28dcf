"""What `OAuth` keeps: other processes, other servers, two replicas."""

import re
from typing import Any

import pytest
from unit.client.oauth.plans import ENDPOINT, ISSUER, back, document, form, metadata, query
from unit.client.oauth.town import PRM, TOKEN, Clock, Town, bound, refuse, token_of

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.flow import OAuth
from callboard.client.oauth.storage import MemoryStorage

# what is kept


async def test_a_new_process_discovers_before_it_renews() -> None:  # A29
    storage, clock, issuer = MemoryStorage(), Clock(), f"{ISSUER}/oauth2/api/v1"
    town = Town()
    town.pages[PRM] = document({"resource": ENDPOINT, "authorization_servers": [issuer]})
    where = f"{ISSUER}/.well-known/oauth-authorization-server/oauth2/api/v1"
    town.pages |= {where: document(metadata(issuer)), f"{issuer}/token": town.grant, f"{issuer}/register": town.register}
    await refuse(bound(town, storage=storage, clock=clock))
    clock.now += 4000
    town.asked.clear()
    again = bound(town, storage=storage, clock=clock)
    assert await token_of(again) == "Bearer t2"
    assert town.urls == [where, f"{issuer}/token"]
    assert len(town.shown) == 1
    third = bound(town, storage=storage, clock=clock)
    assert await token_of(third) == "Bearer t2"


async def test_another_process_has_renewed() -> None:  # A31
    storage, clock = MemoryStorage(), Clock()
    town = Town()
    one, two = (bound(town, storage=storage, clock=clock) for _ in range(2))
    await refuse(one)
    assert await token_of(two) == "Bearer t1"
    clock.now += 3580
    assert await token_of(one) == "Bearer t2"
    town.pages[TOKEN] = document({"error": "invalid_grant"}, 400)
    assert await token_of(two) == "Bearer t2"
    town.pages[TOKEN] = town.grant
    one.learn({})
    assert await refuse(one)
    assert await refuse(two, challenge='Bearer error="invalid_token"')
    assert await token_of(one) == await token_of(two) == "Bearer t3"


async def test_a_process_that_loses_the_race_takes_the_winners_token() -> None:  # A31
    storage, clock = MemoryStorage(), Clock()
    town = Town()
    one, two = (bound(town, storage=storage, clock=clock) for _ in range(2))
    await refuse(one)
    await token_of(two)
    clock.now += 3580

    def race(request: HttpRequest) -> HttpResponse:
        assert form(request)["refresh_token"] == "r1"
        return document({"error": "invalid_grant"}, 400)

    async def slow(request: HttpRequest) -> HttpResponse:
        if request.url == TOKEN:
            town.pages[TOKEN] = town.grant
            assert await token_of(one) == "Bearer t2"
            town.pages[TOKEN] = race
        return await town.fetch(request)

    two.bind(ENDPOINT, slow)
    assert await token_of(two) == "Bearer t2"


async def test_another_authorization_server_gets_nothing_of_the_first() -> None:  # AC-12
    storage, town = MemoryStorage(), Town()
    oauth = bound(town, storage=storage)
    await refuse(oauth, challenge='Bearer scope="a"')
    other = "https://new.example.com"
    town.found(other)
    town.asked.clear()
    assert await refuse(oauth, challenge='Bearer error="invalid_token"')
    sent = [request for request in town.asked if request.url.startswith(other)]
    assert [request.url for request in sent if request.method == "POST"] == [f"{other}/register", f"{other}/token"]
    # As a value, and not by chance within a random one.
    assert not any(re.search(rb"[=\"](?:c1|r1|t1)(?:[&\"]|$)", request.body) for request in sent)
    assert "scope" not in query(town.shown[1])
    assert await token_of(oauth) == "Bearer t2"
    town.found(ISSUER)
    assert await refuse(oauth)
    assert town.registered == 2  # the first registration still stands


@pytest.mark.parametrize("pinned", [True, False])
async def test_a_given_client_belongs_to_one_server(pinned: bool) -> None:  # AC-12, AC-18
    town = Town(token_endpoint_auth_methods_supported=["client_secret_post"])
    storage = MemoryStorage()
    given: dict[str, Any] = {"client_id": "mine", "client_secret": "the-secret", "storage": storage}
    oauth = bound(town, **given, **({"issuer": ISSUER} if pinned else {}))
    await refuse(oauth)
    assert town.at(TOKEN)[0]["client_secret"] == "the-secret"
    assert not town.registered
    assert "the-secret" not in str(storage.__dict__)
    town.found("https://new.example.com")
    town.asked.clear()
    for again in (oauth, bound(town, **given)):
        with pytest.raises(AuthorizationFailed, match="never shown elsewhere"):
            await refuse(again, challenge='Bearer error="invalid_token"')
    assert town.urls == [PRM, PRM]


async def test_kept_tokens_are_the_clients_own() -> None:  # AC-12
    town, storage = Town(), MemoryStorage()
    await refuse(bound(town, storage=storage, client_id="one"))
    assert await token_of(bound(town, storage=storage, client_id="one")) == "Bearer t1"
    assert await token_of(bound(town, storage=storage, client_id="two")) == ""
    assert await token_of(bound(town, storage=storage, client_id="one", issuer="https://other.example.com")) == ""


async def test_a_registration_is_kept_while_its_redirect_uri_holds() -> None:  # AC-11, AC-12
    town, storage = Town(), MemoryStorage()
    await refuse(bound(town, storage=storage))
    await bound(town, storage=storage).forget()
    await refuse(bound(town, storage=storage))
    assert town.registered == 1
    await bound(town, storage=storage).forget()
    await refuse(bound(town, storage=storage, redirect_uri="http://127.0.0.1:9/other"))
    assert town.registered == 2


async def test_a_document_goes_before_an_old_registration() -> None:  # AC-09
    town, storage = Town(), MemoryStorage()
    await refuse(bound(town, storage=storage))
    town.found(ISSUER, client_id_metadata_document_supported=True)
    document_url = "https://app.example.com/client.json"
    await refuse(bound(town, storage=storage, client_metadata_url=document_url))
    assert query(town.shown[1])["client_id"] == document_url
    assert town.registered == 1


async def test_a_registration_that_the_server_has_forgotten_is_made_anew() -> None:
    town, storage = Town(), MemoryStorage()
    await refuse(bound(town, storage=storage))
    again = bound(town, storage=storage)
    await again.forget()
    town.pages[TOKEN] = [document({"error": "invalid_client"}, 401), document({"access_token": "t", "token_type": "Bearer"})]
    assert await refuse(again)
    assert [query(page)["client_id"] for page in town.shown] == ["c1", "c1", "c2"]


async def test_a_login_elsewhere_is_found_before_anybody_is_asked() -> None:  # A31
    town, storage = Town(), MemoryStorage()
    one, two = (bound(town, storage=storage) for _ in range(2))
    assert await token_of(two) == ""  # it has looked, and there was nothing
    await refuse(one)
    assert await refuse(two)
    assert await token_of(two) == "Bearer t1"
    assert len(town.shown) == 1


class Broken(MemoryStorage):
    """Full."""

    async def save(self, key: str, value: dict[str, Any]) -> None:
        raise OSError("no space left")


async def test_a_storage_that_fails_is_an_error_with_a_name() -> None:
    with pytest.raises(AuthorizationFailed, match="the storage of tokens fails: OSError"):
        await refuse(bound(Town(), storage=Broken()))


async def test_a_storage_with_nonsense_is_as_good_as_empty() -> None:
    town, storage = Town(), MemoryStorage()
    await refuse(bound(town, storage=storage))
    for key in (f"tokens {ISSUER} {ENDPOINT}", f"client {ISSUER}"):
        assert await storage.load(key)
        await storage.save(key, {"tokens": 5})
    again = bound(town, storage=storage)
    assert await token_of(again) == ""
    assert await refuse(again)


# two halves (A31)


async def test_a_login_begins_on_one_replica_and_ends_on_another() -> None:  # A31
    storage, town, clock = MemoryStorage(), Town(), Clock()
    callback = "https://app.example.com/callback"
    one, two, three = (OAuth(storage=storage, redirect_uri=callback, clock=clock) for _ in range(3))
    for replica in (one, two, three):
        replica.bind(ENDPOINT, town.fetch)
    page = await one.begin(ENDPOINT)
    assert query(page)["redirect_uri"] == callback
    await two.finish(back(page))
    assert await token_of(two) == "Bearer t1"
    assert await token_of(three) == "Bearer t1"
    with pytest.raises(AuthorizationFailed, match="second time"):
        await three.finish(back(page))
    late = await one.begin(ENDPOINT)
    clock.now += 601
    with pytest.raises(AuthorizationFailed, match="too late"):
        await two.finish(back(late))
    stranger = OAuth(redirect_uri=callback)
    stranger.bind(ENDPOINT, town.fetch)
    with pytest.raises(AuthorizationFailed, match=r"OAuth\.begin"):
        await refuse(stranger)


@pytest.mark.parametrize("changes", [{"iss": "https://evil.example.com"}, {"state": "other"}, {"state": None}, {"error": "access_denied"}])
async def test_the_second_half_checks_all_that_the_first_wrote_down(changes: dict[str, str | None]) -> None:  # A31, AC-08, AC-16
    storage, town = MemoryStorage(), Town()
    oauth = OAuth(storage=storage, redirect_uri="https://app.example.com/callback")
    oauth.bind(ENDPOINT, town.fetch)
    page = await oauth.begin(ENDPOINT)
    with pytest.raises(AuthorizationFailed):
        await oauth.finish(back(page, **changes))
    assert not town.at(TOKEN)


async def test_a_given_secret_waits_in_no_storage() -> None:
    storage, town = MemoryStorage(), Town(token_endpoint_auth_methods_supported=["client_secret_post"])
    oauth = OAuth(client_id="mine", client_secret="the-secret", storage=storage, redirect_uri="https://app.example.com/callback")
    oauth.bind(ENDPOINT, town.fetch)
    page = await oauth.begin(ENDPOINT)
    assert "the-secret" not in str(storage.__dict__)
    await oauth.finish(back(page))
    assert town.at(TOKEN)[0]["client_secret"] == "the-secret"
