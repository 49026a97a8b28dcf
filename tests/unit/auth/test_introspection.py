"""Tokens about which the authorization server is asked."""

import asyncio
import base64
import json
import logging
from typing import Any
from urllib.parse import parse_qs

import pytest
from minting import AUDIENCE, ISSUER, NOW, mint
from virtual_time import now, settle, virtual_time

from callboard.auth import introspection
from callboard.auth.introspection import Introspection
from callboard.auth.outbound import Answer, Ask, OutboundError
from callboard.auth.verifier import Grant, Refusal
from callboard.errors import RegistrationError

ENDPOINT = "https://login.example.com/introspect"
SECRET = "hunter2:%&+ é"


def good(**changes: Any) -> dict[str, Any]:
    made = {
        "active": True,
        "sub": "ann",
        "aud": AUDIENCE,
        "exp": int(NOW) + 600,
        "scope": "files:read files:write",
        "client_id": "app",
        **changes,
    }
    return {name: value for name, value in made.items() if value is not ...}


class Endpoint:
    """Answers what it is told to.

    Attributes:
        answer: A status, a body, an object, or what is raised; or a list of these, one for each question.
        delay: Seconds that an answer takes.
        asked: Tokens, in order.
        most: Questions at once.
    """

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.delay = 0.0
        self.asked: list[str] = []
        self.most = self._now = 0

    async def send(self, ask: Ask) -> Answer:
        assert (ask.url, ask.method) == (ENDPOINT, "POST")
        form = parse_qs((ask.body or b"").decode(), strict_parsing=True)
        assert form["token_type_hint"] == ["access_token"]
        self.asked += form["token"]
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self._now -= 1
        answer = self.answer.pop(0) if isinstance(self.answer, list) else self.answer
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Answer(answer, b"{}")
        return Answer(200, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def asker(endpoint: Endpoint, **options: Any) -> Introspection:
    clock = options.pop("clock", lambda: NOW)
    return Introspection(ENDPOINT, "mcp", SECRET, ISSUER, **{"audience": AUDIENCE, **options}, send=endpoint.send, clock=clock, ticks=now)


async def judged(answer: Any, **options: Any) -> Grant | Refusal:
    return await asker(Endpoint(answer), **options).verify("token")


@virtual_time
async def test_a_good_token() -> None:
    """AR-08: it is active, and for this server."""
    found = await judged(good(realm="x"))
    assert isinstance(found, Grant)
    assert found.principal == f"{ISSUER}#sub=ann"
    assert found.principal.scopes == {"files:read", "files:write"}
    assert found.principal.claims["realm"] == "x"
    assert found.until == NOW + 10
    assert (await judged(good(exp=NOW + 3)))[1] == NOW + 3
    assert (await judged(good(exp=...)))[1] == NOW + 10
    assert (await judged(good(), remember=0))[1] == NOW
    assert isinstance(await judged(good(aud=["x", AUDIENCE], iss=ISSUER, token_type="bearer", nbf=0, iat=int(NOW))), Grant)
    assert isinstance(await judged(good(aud=...), require_audience=False), Grant)


@virtual_time
async def test_whom_a_token_is_for_is_a_note_for_the_log() -> None:
    refused = await judged(good(aud="https://other.example"))
    assert isinstance(refused, Refusal)
    assert refused.detail == "The access token is for another audience."
    assert refused.note == f"its aud is 'https://other.example'; expected is '{AUDIENCE}'"


@virtual_time
async def test_who_asks_and_how() -> None:
    seen: list[Ask] = []

    async def send(ask: Ask) -> Answer:
        seen.append(ask)
        return Answer(200, b'{"active":false}')

    await Introspection(ENDPOINT, "m:cp", SECRET, ISSUER, send=send).verify("a+b/c=&token=x")
    assert parse_qs((seen[0].body or b"").decode()) == {"token": ["a+b/c=&token=x"], "token_type_hint": ["access_token"]}
    scheme, _, value = seen[0].headers["Authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(value) == b"m%3Acp:hunter2%3A%25%26%2B+%C3%A9"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"active": False}, "not active"),
    ({"active": False, "sub": "ann"}, "not active"),
    (good(aud="https://other.example.com"), "audience"),
    (good(aud=...), "audience"),
    (good(aud=[]), "audience"),
    (good(aud={AUDIENCE: 1}), "audience"),
    (good(iss="https://other.example.com"), "issuer"),
    (good(iss=None), "issuer"),
    (good(exp=int(NOW) - 31), "expired"),
    (good(exp=str(int(NOW) + 5)), "no number"),
    (good(exp=True), "no number"),
    (good(nbf=int(NOW) + 31), "not hold yet"),
    (good(sub=..., client_id=...), "whose it is"),
    (good(sub=7), "no name"),
    (good(sub="a\nb"), "no name"),
    (good(scope=7), "no scopes"),
    (good(token_type="DPoP"), "no bearer"),
    (good(token_type="refresh_token"), "no bearer"),
    (good(token_type=7), "no bearer"),
    (good(typ="Refresh"), "another kind"),
    (good(cnf={"jkt": "x"}), "bound to a key"),
    (good(nonce="x"), "another kind"),
]


@pytest.mark.parametrize(("answer", "told"), WRONG)
def test_what_is_refused(answer: dict[str, Any], told: str) -> None:
    """SA29, SA30."""

    @virtual_time
    async def refuse() -> None:
        found = await judged(answer)
        assert isinstance(found, Refusal)
        assert found.kind == "invalid"
        assert told in found.detail

    refuse()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({}, "without active"),
        ({"active": "true"}, "neither true nor false"),
        ({"active": 1}, "neither true nor false"),
        ({"active": None}, "neither true nor false"),
        ([], "no JSON object"),
        (b"", "no JSON"),
        (b"<html>", "no JSON"),
        (b'{"active":false,"active":true}', "twice"),
        (b'{"active":true,"sub":"\\ud800"}', "no JSON"),
        (401, "client_id or client_secret is wrong"),
        (403, "must not ask"),
        (302, "status 302"),
        (500, "status 500"),
        (204, "status 204"),
        (OutboundError("can't be reached: x"), "can't be reached"),
        (ZeroDivisionError("hunter2"), "ZeroDivisionError"),
        (TimeoutError(), "within 5 seconds"),
    ],
)
def test_what_is_no_answer_lets_nobody_in_and_is_told_once(answer: Any, told: str, caplog: pytest.LogCaptureFixture) -> None:
    @virtual_time
    async def ask() -> None:
        endpoint = Endpoint([answer] * 20)
        tokens = asker(endpoint)
        for number in range(20):
            found = await tokens.verify(f"hunter2-{number}")
            assert isinstance(found, Refusal)
            assert found.kind == "unavailable"
        assert len(endpoint.asked) == 20, "one token that upsets the server is no reason not to ask about another"

    with caplog.at_level(logging.WARNING, "callboard"):
        ask()
    assert len(caplog.records) == 1
    assert told in caplog.text
    assert "hunter2" not in caplog.text


@virtual_time
async def test_one_question_about_a_token() -> None:
    endpoint = Endpoint(good())
    endpoint.delay = 1
    tokens = asker(endpoint)
    waiting = [asyncio.ensure_future(tokens.verify("token")) for _ in range(100)]
    await settle()
    waiting[0].cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(one, Grant) for one in found) == 99
    assert endpoint.asked == ["token"]


@virtual_time
async def test_so_many_questions_at_once() -> None:
    endpoint = Endpoint(good())
    endpoint.delay = 1
    tokens = asker(endpoint)
    begun = now()
    waiting = [asyncio.ensure_future(tokens.verify(f"token {number}")) for number in range(100)]
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert len(done) == 68, "who can't be asked about is told so at once"
    found = await asyncio.gather(*waiting)
    assert now() - begun == pytest.approx(1)
    assert [isinstance(one, Grant) for one in found] == [True] * 32 + [False] * 68
    assert all(one.kind == "unavailable" for one in found if isinstance(one, Refusal))
    assert endpoint.most == 32
    assert isinstance(await tokens.verify("another"), Grant), "places are given back"


@virtual_time
async def test_an_endpoint_that_never_answers() -> None:
    endpoint = Endpoint(good())
    endpoint.delay = 3600
    tokens = asker(endpoint)
    begun = now()
    found = await asyncio.gather(*(tokens.verify(f"token {number}") for number in range(1000)))
    assert all(isinstance(one, Refusal) and one.kind == "unavailable" for one in found)
    assert now() - begun < 5.1
    endpoint.delay = 0
    assert isinstance(await tokens.verify("token"), Grant)


@virtual_time
async def test_that_a_token_is_not_active_is_remembered() -> None:
    endpoint = Endpoint({"active": False})
    tokens = asker(endpoint, remember=10)
    for _ in range(100):
        assert isinstance(await tokens.verify("token"), Refusal)
    assert endpoint.asked == ["token"]
    await asyncio.sleep(10)
    endpoint.answer = good()
    assert isinstance(await tokens.verify("token"), Grant)


@virtual_time
async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspection, "MAX_REFUSED", 5)
    endpoint = Endpoint({"active": False})
    tokens = asker(endpoint)
    for number in range(20):
        await tokens.verify(f"secret-{number}")
    assert len(tokens._refused) == 5
    assert "secret" not in repr(vars(tokens))
    await tokens.verify("secret-19")
    assert len(endpoint.asked) == 20


@virtual_time
async def test_a_connection_that_ended_unseen_is_no_failure() -> None:
    broken = OutboundError("broke off")
    broken.broken = True
    assert isinstance(await judged([broken, good()]), Grant)
    assert isinstance(await judged([broken, broken, good()]), Refusal)
    assert isinstance(await judged([OutboundError("can't be reached"), good()]), Refusal)


@virtual_time
async def test_tokens_of_others_are_not_shown_around() -> None:
    """SA31: an authorization server that is shown a token of another one could use it."""
    endpoint = Endpoint(good())
    tokens = asker(endpoint)
    assert await tokens.verify(mint(iss="https://other.example.com")) == Refusal("invalid", "The access token is from another issuer.")
    assert not endpoint.asked
    for own in (mint(), mint(iss=...), mint(iss=7), "a.b.c", "opaque", "....", f"{mint()}.x"):
        assert isinstance(await tokens.verify(own), Grant)
    assert len(endpoint.asked) == 7


@virtual_time
async def test_long_tokens_are_not_asked_about() -> None:
    endpoint = Endpoint(good())
    assert isinstance(await asker(endpoint).verify("x" * 16_385), Refusal)
    assert not endpoint.asked
    assert isinstance(await asker(endpoint).verify("\ud800é\0"), Grant), "what a token is made of is the server's affair"


@virtual_time
async def test_what_is_on_its_way_ends_with_close() -> None:
    endpoint = Endpoint(good())
    endpoint.delay = 4
    tokens = asker(endpoint)
    waiting = asyncio.ensure_future(tokens.verify("token"))
    await settle()
    await tokens.close()
    found = await waiting
    assert isinstance(found, Refusal)
    assert found.kind == "unavailable"


def test_who_tokens_are_for() -> None:
    tokens = Introspection(ENDPOINT, "mcp", SECRET, ISSUER)
    with pytest.raises(RegistrationError, match="resource="):
        tokens.bind(None)
    tokens.bind(AUDIENCE)
    tokens.bind(AUDIENCE)
    with pytest.raises(RegistrationError, match="make one for each"):
        tokens.bind("https://other.example.com")
    asker(Endpoint(0)).bind(None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endpoint": "http://login.example.com/introspect?hunter2"}, "https://"),
        ({"endpoint": "https://mcp:hunter2@login.example.com"}, "user name"),
        ({"endpoint": None}, "endpoint"),
        ({"client_id": ""}, "client_id"),
        ({"client_secret": ""}, "client_secret"),
        ({"client_secret": b"hunter2"}, "client_secret"),
        ({"issuer": "login"}, "issuer"),
        ({"remember": 301}, "remember"),
        ({"remember": True}, "remember"),
        ({"leeway": -1}, "leeway"),
        ({"audience": []}, "audience"),
        ({"audience": 7}, "audience"),
        ({"subject": ()}, "subject"),
        ({"subject": "a=b"}, "subject"),
        ({"scopes": 7}, "scopes"),
    ],
)
def test_options_that_cant_work(options: dict[str, Any], told: str) -> None:
    given = {"endpoint": ENDPOINT, "client_id": "mcp", "client_secret": "hunter2", "issuer": ISSUER, **options}
    with pytest.raises(RegistrationError, match=told) as caught:
        Introspection(**given)
    assert "hunter2" not in str(caught.value)


def test_what_it_says_of_itself() -> None:
    tokens = Introspection(ENDPOINT, "mcp", SECRET, ISSUER)
    tokens.bind(AUDIENCE)
    assert "hunter2" not in repr(tokens)
    assert tokens.facts() == {"endpoint": ENDPOINT, "issuer": ISSUER, "audience": [AUDIENCE], "remember": 10.0, "leeway": 30.0}
    assert tokens.issuers == (ISSUER,)
