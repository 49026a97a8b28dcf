"""What runs the cache of keys: one fetch for all who wait, discovery, time limits, the log."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from minting import ISSUER, jwk, jwks, private_key
from virtual_time import now, settle, virtual_time

from callboard.auth.jwks import KeySet, well_known
from callboard.auth.keys import ALGORITHMS, KeyRing
from callboard.auth.outbound import Answer, Ask, OutboundError, fault_of_found
from callboard.auth.verifier import Refusal
from callboard.core.urls import shown

JWKS = "https://login.example.com/jwks"
ALL = frozenset(ALGORITHMS)
GOOD = jwks(jwk(private_key("P-256"), "a"))


class Host:
    """Answers what its table says, after a while.

    Attributes:
        table: URL -> body, status, or what is raised.
        delay: Seconds that an answer takes.
        asked: URLs, in order.
    """

    def __init__(self, **table: Any) -> None:
        self.table: dict[str, Any] = {JWKS: GOOD} | table
        self.delay = 0.0
        self.asked: list[str] = []

    async def send(self, ask: Ask) -> Answer:
        self.asked.append(ask.url)
        assert ask.method == "GET"
        await asyncio.sleep(self.delay)
        found = self.table.get(ask.url, 404)
        if isinstance(found, Exception):
            raise found
        return Answer(found, b"") if isinstance(found, int) else Answer(200, found)


def key_set(host: Host, url: str | None = JWKS, issuer: str = ISSUER, **options: Any) -> KeySet:
    return KeySet(issuer, url, ALL, send=host.send, clock=now, **options)


@virtual_time
async def test_one_fetch_for_all_who_come() -> None:
    host = Host()
    host.delay = 1
    keys = key_set(host)
    found = await asyncio.gather(*(keys.find("a", "ES256") for _ in range(1000)))
    assert all(isinstance(ring, KeyRing) for ring in found)
    assert host.asked == [JWKS]


@virtual_time
async def test_who_stops_waiting_does_not_stop_the_fetch() -> None:
    host = Host()
    host.delay = 1
    keys = key_set(host)
    waiting = [asyncio.ensure_future(keys.find("a", "ES256")) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    waiting[1].cancel()
    assert isinstance(await waiting[2], KeyRing)
    assert host.asked == [JWKS]


@virtual_time
async def test_a_storm_of_names() -> None:
    """10,000 names that nobody has, over five minutes, with a host that never answers: one fetch per cooldown, everybody answered in 6 s."""
    host = Host()
    host.delay = 3600
    keys = key_set(host)
    waits: list[float] = []

    async def one(number: int) -> None:
        await asyncio.sleep(number * 0.03)
        begun = now()
        found = await keys.find(f"kid {number}", "ES256")
        waits.append(now() - begun)
        assert isinstance(found, Refusal)
        assert found.kind == "unavailable"
        assert 1 <= found.retry_after <= 30

    await asyncio.gather(*(one(number) for number in range(10_000)))
    assert max(waits) < 6
    assert 300 / 35 - 1 <= len(host.asked) <= 300 / 35 + 1
    host.delay = 0
    await asyncio.sleep(30)
    assert isinstance(await keys.find("a", "ES256"), KeyRing), "and then it recovers"


@virtual_time
async def test_a_storm_does_not_touch_who_has_a_known_key() -> None:
    host = Host()
    keys = key_set(host)
    assert isinstance(await keys.find("a", "ES256"), KeyRing)
    host.delay = 3600
    await asyncio.sleep(31)
    unknown = asyncio.ensure_future(keys.find("x", "ES256"))
    await settle()
    begun = now()
    assert isinstance(await keys.find("a", "ES256"), KeyRing)
    assert now() == begun
    refused = await unknown
    assert isinstance(refused, Refusal)
    assert now() - begun <= 5.01
    await asyncio.sleep(7200)
    begun = now()
    assert isinstance(await keys.find("a", "ES256"), KeyRing), "old keys stay in use while the host is down"
    assert now() == begun, "and nobody waits for it"


@virtual_time
async def test_rotation() -> None:
    losses: list[float] = []
    host = Host()
    keys = key_set(host, on_loss=lambda: losses.append(now()))
    assert isinstance(await keys.find("a", "ES256"), KeyRing)
    host.table[JWKS] = jwks(jwk(private_key("P-256"), "a"), jwk(private_key("P-256", 1), "b"))
    assert isinstance(await keys.find("b", "ES256"), KeyRing), "the first unknown key after a fetch that was due is asked for at once"
    host.table[JWKS] = jwks(jwk(private_key("P-256"), "a"), jwk(private_key("P-256", 1), "b"), jwk(private_key("P-256", 2), "c"))
    await asyncio.sleep(1)
    assert isinstance(await keys.find("c", "ES256"), Refusal), "within the cooldown nobody asks, and nobody can tell"
    await asyncio.sleep(29)
    assert isinstance(await keys.find("c", "ES256"), KeyRing)
    assert not losses
    host.table[JWKS] = jwks(jwk(private_key("P-256", 1), "b"))
    await asyncio.sleep(3600)
    assert isinstance(await keys.find("b", "ES256"), KeyRing)
    assert len(losses) == 1
    assert await keys.find("a", "ES256") is None


@virtual_time
async def test_keys_are_fetched_anew_before_anybody_waits() -> None:
    host = Host()
    keys = key_set(host)
    await keys.find("a", "ES256")
    host.delay = 4
    longest = 0.0
    for _ in range(24 * 60):
        await asyncio.sleep(60)
        begun = now()
        assert isinstance(await keys.find("a", "ES256"), KeyRing)
        longest = max(longest, now() - begun)
    assert longest == 0
    assert 24 <= len(host.asked) <= 28


@virtual_time
async def test_a_day_without_the_host_closes() -> None:
    host = Host()
    keys = key_set(host)
    await keys.find("a", "ES256")
    host.table[JWKS] = 503
    served = 0.0
    for _ in range(26 * 60):
        await asyncio.sleep(60)
        found = await keys.find("a", "ES256")
        if isinstance(found, KeyRing):
            served += 60
        else:
            assert isinstance(found, Refusal)
            assert found.kind == "unavailable"
    assert 86_280 <= served <= 86_400
    host.table[JWKS] = GOOD
    await asyncio.sleep(60)
    assert isinstance(await keys.find("a", "ES256"), KeyRing)


METADATA = "https://login.example.com/.well-known/oauth-authorization-server"
OPENID = "https://login.example.com/.well-known/openid-configuration"


def metadata(issuer: str = ISSUER, **more: Any) -> bytes:
    return json.dumps({"issuer": issuer, "jwks_uri": JWKS, **more}).encode()


@virtual_time
async def test_discovery() -> None:
    """AC-03: RFC 8414 first, then OpenID Connect."""
    for table, asked in (
        ({METADATA: metadata()}, [METADATA, JWKS]),
        ({OPENID: metadata()}, [METADATA, OPENID, JWKS]),
        ({METADATA: b"<html>", OPENID: metadata()}, [METADATA, OPENID, JWKS]),
        ({METADATA: metadata("https://other.example.com"), OPENID: metadata()}, [METADATA, OPENID, JWKS]),
    ):
        host = Host(**table)
        assert isinstance(await key_set(host, None).find("a", "ES256"), KeyRing)
        assert host.asked == asked


def test_where_metadata_is() -> None:
    assert well_known("https://as.example/") == (
        "https://as.example/.well-known/oauth-authorization-server",
        "https://as.example/.well-known/openid-configuration",
    )
    assert well_known("https://as.example:8443/realms/a") == (
        "https://as.example:8443/.well-known/oauth-authorization-server/realms/a",
        "https://as.example:8443/.well-known/openid-configuration/realms/a",
        "https://as.example:8443/realms/a/.well-known/openid-configuration",
    )


FAILURES: list[tuple[dict[str, Any], str | None, str]] = [
    ({JWKS: 500}, JWKS, "answered with status 500"),
    ({JWKS: 302}, JWKS, "redirect"),
    ({JWKS: 404}, JWKS, "not found there"),
    ({JWKS: b"<html>"}, JWKS, "no JSON"),
    ({JWKS: b"{}"}, JWKS, "no JWK set"),
    ({JWKS: OutboundError("can't be reached: Connection refused")}, JWKS, "Connection refused"),
    ({JWKS: ZeroDivisionError("hunter2")}, JWKS, "raised ZeroDivisionError"),
    ({}, None, "none at its well-known places"),
    ({METADATA: metadata("https://other.example.com")}, None, "another issuer"),
    ({METADATA: metadata(f"{ISSUER}/")}, None, "another issuer"),
    ({METADATA: b"[]", OPENID: b'{"issuer":"x","issuer":"y"}'}, None, "no metadata"),
    ({METADATA: 302}, None, "redirect"),
    ({METADATA: metadata(jwks_uri=None)}, None, "is no string"),
    ({METADATA: metadata(jwks_uri="http://login.example.com/jwks")}, None, "is http"),
    ({METADATA: metadata(jwks_uri="https://127.0.0.1/jwks")}, None, "private network"),
    ({METADATA: metadata(jwks_uri="https://169.254.169.254/latest/meta-data")}, None, "no authorization server"),
    ({METADATA: metadata(jwks_uri="file:///etc/passwd")}, None, "neither https nor http"),
    ({METADATA: metadata(jwks_uri="https://u:hunter2@login.example.com/jwks")}, None, "user name"),
    ({METADATA: metadata(), JWKS: 404}, None, "holds no key set"),
    ({METADATA: metadata(), JWKS: b"!"}, None, "names https://login.example.com/jwks, which gave no JSON"),
]


@pytest.mark.parametrize(("table", "url", "told"), FAILURES)
def test_why_keys_cant_be_fetched_is_logged_once(
    table: dict[str, Any], url: str | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SA37 of a server: where a document leads."""

    @virtual_time
    async def fetch() -> None:
        host = Host(**table)
        keys = key_set(host, url)
        for _ in range(20):
            found = await keys.find("a", "ES256")
            assert isinstance(found, Refusal)
            assert found.kind == "unavailable"
            await asyncio.sleep(1)
        assert len(host.asked) == len(set(host.asked)) <= 3

    with caplog.at_level(logging.WARNING, "callboard"):
        fetch()
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert told in text
    assert "hunter2" not in text
    assert "\n" not in text


def test_the_log_says_which_keys_stay_in_use(caplog: pytest.LogCaptureFixture) -> None:
    @virtual_time
    async def lose() -> None:
        host = Host()
        keys = key_set(host)
        await keys.find("a", "ES256")
        host.table[JWKS] = 500
        await asyncio.sleep(4000)
        assert isinstance(await keys.find("a", "ES256"), KeyRing)
        await asyncio.sleep(31)
        assert isinstance(await keys.find("a", "ES256"), KeyRing)
        await settle()
        host.table[JWKS] = jwks(jwk(private_key("RSA1024"), "a"))
        await asyncio.sleep(31)
        assert isinstance(await keys.find("a", "ES256"), KeyRing)
        await settle()
        assert await keys.find("a", "ES256") is None

    with caplog.at_level(logging.WARNING, "callboard"):
        lose()
    assert [record.getMessage().rpartition("; ")[2] for record in caplog.records] == [
        "keys that are 4000 seconds old stay in use",
        "keys that are 4031 seconds old stay in use",
        "every token of it is refused",
        "every token of it is refused",
    ]
    assert "1024 bits" in caplog.text


@virtual_time
async def test_secrets_of_a_url_are_not_logged() -> None:
    assert shown("https://ann:hunter2@x.example/jwks?key=hunter2#hunter2") == "https://x.example/jwks"
    assert shown("https://x.example/\n\x1b[31mé?q") == "https://x.example/??[31m?"
    assert shown("ann:hunter2@x") == "x"
    assert "hunter2" not in repr(Ask("https://x.example?hunter2", "POST", {"Authorization": "hunter2"}, b"hunter2"))


@pytest.mark.parametrize(
    ("url", "home", "fine"),
    [
        ("https://keys.example.com/jwks", ISSUER, True),
        ("http://127.0.0.1:9/jwks", "http://localhost:9", True),
        ("http://localhost/jwks", ISSUER, False),
        ("https://localhost/jwks", ISSUER, False),
        ("https://10.0.0.7/jwks", ISSUER, False),
        ("https://10.0.0.7/jwks", "https://10.0.0.1", True),
        ("https://[::1]/jwks", ISSUER, False),
        ("https://[::ffff:10.0.0.1]/jwks", ISSUER, False),
        ("https://[2002:7f00:1::]/jwks", ISSUER, False),
        ("https://[64:ff9b::a00:1]/jwks", ISSUER, False),
        ("https://[64:ff9b::a9fe:a9fe]/jwks", "https://10.0.0.1", False),
        ("https://[::1]evil.example/jwks", "https://[::1]", False),
        ("https://login.example.com/a/%2E%2e/jwks", ISSUER, False),
        ("https://[fe80::1]/jwks", "https://[::1]", False),
        ("https://0.0.0.0/jwks", "http://localhost", False),
        ("https://0x7f000001/jwks", ISSUER, False),
        ("https://2130706433/jwks", ISSUER, False),
        ("https://127.1/jwks", ISSUER, False),
        ("https://login.example.com\\@evil.example/jwks", ISSUER, False),
        ("https://login.example.com/jwks#x", ISSUER, False),
        ("https://login.example.com:0/jwks", ISSUER, False),
        ("https://login.example.com:99999/jwks", ISSUER, False),
        ("https:///jwks", ISSUER, False),
        ("https://a b/jwks", ISSUER, False),
        ("javascript:alert(1)", ISSUER, False),
        ("https://x.example/" + "a" * 2048, ISSUER, False),
        (7, ISSUER, False),
    ],
)
def test_where_a_document_may_lead(url: Any, home: str, fine: bool) -> None:
    assert (fault_of_found(url, home) == "") is fine


@virtual_time
async def test_what_is_on_its_way_ends_with_close() -> None:
    host = Host()
    host.delay = 4
    keys = key_set(host)
    waiting = asyncio.ensure_future(keys.find("a", "ES256"))
    await settle()
    begun = now()
    await keys.close()
    found = await waiting
    assert isinstance(found, Refusal)
    assert found.kind == "unavailable"
    assert now() == begun
    await keys.close()
    host.delay = 0
    assert isinstance(await keys.find("a", "ES256"), KeyRing), "closed is not broken"


def test_one_event_loop_after_another() -> None:
    host = Host()
    keys = KeySet(ISSUER, JWKS, ALL, send=host.send)
    host.delay = 30
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(keys.find("a", "ES256"), 0.01))
    host.delay = 0
    for _ in range(3):
        assert isinstance(asyncio.run(_find(keys)), KeyRing)


async def _find(keys: KeySet) -> Any:
    return await keys.find("a", "ES256")


def test_a_host_that_answers_with_what_it_likes() -> None:
    """Every body that fuzzing makes of a good set either gives keys or a failure; nothing is raised."""
    import random

    chance = random.Random(7)
    mutate: list[Callable[[bytearray], object]] = [
        lambda body: body.__setitem__(chance.randrange(len(body)), chance.randrange(256)),
        lambda body: body.__delitem__(slice(chance.randrange(len(body)), None)),
        lambda body: body.extend(body[: chance.randrange(len(body))]),
        lambda body: body.insert(chance.randrange(len(body)), chance.choice(b'{}[],:"\\0')),
    ]

    @virtual_time
    async def all_of_them() -> None:
        for _ in range(300):
            body = bytearray(GOOD)
            for _ in range(chance.randrange(1, 4)):
                if body:
                    chance.choice(mutate)(body)
            assert isinstance(await key_set(Host(**{JWKS: bytes(body)})).find("a", "ES256"), KeyRing | Refusal | None)

    all_of_them()
