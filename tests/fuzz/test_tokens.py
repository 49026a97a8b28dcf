"""Tokens changed at random: nothing but the very token is taken, nothing is raised, and PyJWT refuses nothing that is taken."""

import random
import string
import time
from typing import Any

import jwt as pyjwt
import pytest
from minting import AUDIENCE, ISSUER, NOW, claims, header, jwk, mint, pem, private_key

from callboard.auth.jwt import JWT
from callboard.auth.verifier import Grant, Refusal

KEY = private_key("P-256")
LETTERS = string.ascii_letters + string.digits + "-_.=+/ é\0\n"


def changed(token: str, chance: random.Random) -> str:
    """The token with one thing different."""
    here, there = sorted((chance.randrange(len(token)), chance.randrange(len(token))))
    match chance.randrange(6):
        case 0:
            return token[:here] + chance.choice(LETTERS) + token[here + 1 :]
        case 1:
            return token[:here] + chance.choice(LETTERS) + token[here:]
        case 2:
            return token[:here] + token[here + 1 :]
        case 3:
            return token[:here] + token[there:]
        case 4:
            return token[:there] + token[here:]
        case _:
            pieces = token.split(".")
            chance.shuffle(pieces)
            return ".".join(pieces)


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_but_the_very_token_is_taken(seed: int) -> None:
    chance = random.Random(seed)
    tokens = JWT(ISSUER, AUDIENCE, keys=jwk(KEY), clock=lambda: NOW)
    token = mint()
    for _ in range(1000):
        sent = changed(token, chance)
        if chance.random() < 0.3:
            sent = changed(sent, chance)
        if sent != token:
            found = await tokens.verify(sent)
            assert isinstance(found, Refusal), sent
            assert found.kind == "invalid"
            assert found.detail.isascii()


VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    10**400,
    "",
    "x",
    ISSUER,
    AUDIENCE,
    [],
    [AUDIENCE],
    [AUDIENCE, 7],
    {},
    {"a": [1]},
    "1900000000",
    1_900_000_000,
]


@pytest.mark.parametrize("seed", range(5))
async def test_what_is_taken_is_taken_by_pyjwt_too(seed: int) -> None:
    """Another reader of the same rules; it takes more, which is why it is not asked alone."""
    chance = random.Random(seed)
    now = int(time.time())
    tokens = JWT(ISSUER, AUDIENCE, keys=jwk(KEY))
    options: Any = {"require": ["exp", "iss", "aud"]}
    taken = 0
    for _ in range(400):
        made = claims(exp=now + 600, iat=now)
        for name in chance.sample(sorted({*made, "nbf", "jti", "scp", "client_id", "nonce", "cnf"}), chance.randrange(3)):
            made[name] = chance.choice(VALUES)
        head = header(
            **{chance.choice(["typ", "kid", "cty", "crit", "b64", "jwk"]): chance.choice(VALUES)} if chance.random() < 0.3 else {}
        )
        token = mint(head=head, body=made)
        if isinstance(await tokens.verify(token), Grant):
            taken += 1
            pyjwt.decode(token, pem(KEY), ["ES256"], options | {"verify_jti": False}, audience=AUDIENCE, issuer=ISSUER, leeway=30)
    assert 50 < taken < 350
