"""Bearer tokens and API keys that are known beforehand."""

import hashlib
import hmac
import math
import secrets
from typing import Any

import pytest

from callboard.auth.principal import Principal
from callboard.auth.static import ApiKeys, BearerTokens
from callboard.auth.verifier import Grant, Refusal
from callboard.errors import RegistrationError

TOKEN, OTHER = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
ANN = Principal("ann", ["files:read"])


async def test_a_token_is_whose_it_is() -> None:
    tokens = BearerTokens({TOKEN: ANN, OTHER: "bob"})
    found = await tokens.verify(TOKEN)
    assert found == Grant(ANN, math.inf)
    assert isinstance(found, Grant)
    assert found.principal.scopes == {"files:read"}
    other = await tokens.verify(OTHER)
    assert isinstance(other, Grant)
    assert (other.principal, other.principal.scopes, type(other.principal)) == ("bob", frozenset(), Principal)


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.swapcase(), "é" * 40, "\ud800", "x" * 1_000_000])
async def test_any_other_is_refused(wrong: str) -> None:
    """SA29: a token that is none."""
    refused = await BearerTokens({TOKEN: ANN}).verify(wrong)
    assert refused == Refusal("invalid", "The token is not known.")


async def test_a_digest_will_do_in_place_of_a_token() -> None:
    tokens = BearerTokens(digests={hashlib.sha256(TOKEN.encode()).hexdigest().upper(): "ann"})
    assert isinstance(await tokens.verify(TOKEN), Grant)
    assert isinstance(await tokens.verify(hashlib.sha256(TOKEN.encode()).hexdigest()), Refusal), "a digest that leaks is no token"


async def test_every_secret_is_compared_with_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    known = {secrets.token_urlsafe(32): f"user {number}" for number in range(50)}
    tokens = BearerTokens(known)
    monkeypatch.setattr(hmac, "compare_digest", _Counting(compared, hmac.compare_digest))
    for token in [*list(known)[:2], list(known)[-1], "no" * 20]:
        compared.clear()
        await tokens.verify(token)
        assert len(compared) == 50


class _Counting:
    def __init__(self, seen: list[int], compare: Any) -> None:
        self._seen, self._compare = seen, compare

    def __call__(self, one: bytes, other: bytes) -> bool:
        assert len(one) == len(other) == 32
        self._seen.append(1)
        return bool(self._compare(one, other))


@pytest.mark.parametrize("kind", [BearerTokens, ApiKeys])
@pytest.mark.parametrize(
    "known",
    [
        {"": "ann"}, {"hunter2": "ann"}, {"x" * 15: "ann"}, {"hunter2 " * 3 + "\n": "ann"}, {"hunter2é" * 4: "ann"}, {"hunter2" * 999: "ann"},
        {b"hunter2" * 4: "ann"}, {7: "ann"}, {None: "ann"}, {"hunter2" * 4: ""}, {"hunter2" * 4: None}, {"hunter2" * 4: ["ann"]},
        {"ann": "hunter2" * 4}, {}, ["hunter2" * 4], "hunter2" * 4,
    ],
)  # fmt: skip
def test_what_can_be_no_secret_is_refused_without_being_shown(kind: type[BearerTokens | ApiKeys], known: Any) -> None:
    with pytest.raises(RegistrationError) as caught:
        kind(known)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, "a" * 63, "a" * 65, 7, None, hashlib.sha256(b"x").digest()])
def test_what_can_be_no_digest_is_refused(digest: Any) -> None:
    with pytest.raises(RegistrationError):
        BearerTokens(digests={digest: "ann"})


def test_a_secret_is_there_once() -> None:
    with pytest.raises(RegistrationError, match="twice"):
        BearerTokens({TOKEN: "ann"}, digests={hashlib.sha256(TOKEN.encode()).hexdigest(): "bob"})


def test_more_than_can_be_compared_with_are_refused() -> None:
    with pytest.raises(RegistrationError, match="1000"):
        BearerTokens({f"{number:032}": "ann" for number in range(1001)})


def test_a_repr_holds_no_secret() -> None:
    for held in (BearerTokens({TOKEN: "ann"}), ApiKeys({TOKEN: "ann"})):
        assert TOKEN not in repr(held)
        assert TOKEN not in repr(vars(held))


def test_where_a_token_stands() -> None:
    """AR-10: in its header alone."""
    tokens = BearerTokens({TOKEN: "ann"})
    assert tokens.find({b"authorization": f"bEaReR {TOKEN}".encode()}, {}) == TOKEN
    query = {"query_string": f"access_token={TOKEN}".encode()}
    assert tokens.find({}, query) == Refusal("missing")
    assert tokens.find({b"x-api-key": TOKEN.encode()}, query) == Refusal("missing")


def test_where_an_api_key_stands() -> None:
    keys = ApiKeys({TOKEN: "ann"}, header="X-Door-Key")
    assert keys.header == b"x-door-key"
    assert keys.find({b"x-door-key": TOKEN.encode()}, {}) == TOKEN
    assert keys.find({b"authorization": f"Bearer {TOKEN}".encode()}, {"query_string": f"x-door-key={TOKEN}".encode()}) == Refusal("missing")


@pytest.mark.parametrize("value", [b"", b" ", b"a\nb", b"\xff\xfe", b"x" * 4097])
def test_a_header_that_holds_no_key_is_malformed(value: bytes) -> None:
    found = ApiKeys({TOKEN: "ann"}).find({b"x-api-key": value}, {})
    assert isinstance(found, Refusal)
    assert found.kind == "malformed"


@pytest.mark.parametrize("header", ["", "x key", "x:key", "authorization", "Cookie", "host", "é", "x\r\ny", 7, None])
def test_a_header_that_can_carry_no_key_is_refused(header: Any) -> None:
    with pytest.raises(RegistrationError):
        ApiKeys({TOKEN: "ann"}, header=header)
