"""Tokens that attackers send: each is refused, and for the reason it was made for."""

import hashlib
import hmac
import json
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from minting import AUDIENCE, ISSUER, NOW, header, jwk, mint, pem, private_key, raw

from callboard.auth.guard import Denial, Guard
from callboard.auth.jwt import JWT
from callboard.auth.outbound import Answer, Ask
from callboard.auth.verifier import Grant, Refusal

EC = private_key("P-256")


def _as_secret(data: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.digest(data, signed, hashlib.sha256)


RSA = private_key("RSA")
STRANGER = private_key("P-256", 1)
# What is sent, and words of the answer -> the token.
ATTACKS: dict[tuple[str, str], Callable[[], str]] = {
    ("none", "not accepted"): lambda: mint(None, header(alg="none"), sign=lambda _: b""),
    ("None", "not accepted"): lambda: mint(None, header(alg="None"), sign=lambda _: b"x"),
    ("no signature", "no base64url"): lambda: mint().rpartition(".")[0] + ".",
    ("the public key as secret (PEM)", "its issuer does not have"): lambda: mint(None, header(alg="HS256"), sign=_as_secret(pem(RSA))),
    ("the public key as secret (JWK)", "its issuer does not have"): lambda: mint(None, header(alg="HS256"), sign=_as_secret(json.dumps(jwk(RSA)).encode())),
    ("an empty secret", "its issuer does not have"): lambda: mint(None, header(alg="HS256"), sign=_as_secret(b"")),
    ("a key of the attacker's", "signature of the access token is wrong"): lambda: mint(STRANGER),
    ("a key of the attacker's, embedded", "signature of the access token is wrong"): lambda: mint(STRANGER, header(jwk=jwk(STRANGER))),
    ("a key of the attacker's by URL", "signature of the access token is wrong"): lambda: mint(STRANGER, header(jku="https://attacker.example/jwks", x5u="https://attacker.example/x")),
    ("a certificate of the attacker's", "signature of the access token is wrong"): lambda: mint(STRANGER, header(x5c=["MII="])),
    ("another kid", "its issuer does not have"): lambda: mint(STRANGER, header(kid="k2")),
    ("kid as a path", "its issuer does not have"): lambda: mint(None, header(kid="../../dev/null"), sign=lambda _: b"x" * 64),
    ("kid as a query", "its issuer does not have"): lambda: mint(None, header(kid="k1' UNION SELECT 'x"), sign=lambda _: b"x" * 64),
    ("kid a number", "kid that is no"): lambda: mint(head=header(kid=1)),
    ("kid null", "kid that is no"): lambda: mint(head=header(kid=None)),
    ("type null", "typ that is no"): lambda: mint(head=header(typ=None)),
    ("kid a list", "kid that is no"): lambda: mint(head=header(kid=["k1"])),
    ("kid endless", "kid that is no"): lambda: mint(head=header(kid="k" * 600)),
    ("alg a list", "not accepted"): lambda: mint(head=header(alg=["ES256"]), sign=lambda _: b"x" * 64),
    ("alg missing", "not accepted"): lambda: mint(head=header(alg=...), sign=lambda _: b"x" * 64),
    ("alg of another kind", "its issuer does not have"): lambda: mint(RSA, header(alg="RS256")),
    ("alg of another curve", "its issuer does not have"): lambda: mint(private_key("P-384"), header(alg="ES384")),
    ("secp256k1", "not accepted"): lambda: mint(None, header(alg="ES256K"), sign=lambda _: b"x" * 64),
    ("a zero signature", "signature of the access token is wrong"): lambda: mint(sign=lambda _: bytes(64)),
    ("a signature of another length", "signature of the access token is wrong"): lambda: mint(sign=lambda _: b"x" * 63),
    ("a DER signature", "signature of the access token is wrong"): lambda: mint(sign=lambda data: EC.sign(data, ec.ECDSA(hashes.SHA256()))),
    ("crit", "extension"): lambda: mint(head=header(crit=["exp"], exp=1)),
    ("crit b64", "extension"): lambda: mint(head=header(crit=["b64"], b64=False)),
    ("b64", "extension"): lambda: mint(head=header(b64=False)),
    ("b64 true", "extension"): lambda: mint(head=header(crit=["b64"], b64=True)),
    ("crit empty", "extension"): lambda: mint(head=header(crit=[])),
    ("type of a proof", "of a type that"): lambda: mint(head=header(typ="dpop+jwt")),
    ("type of a logout token", "of a type that"): lambda: mint(head=header(typ="logout+jwt")),
    ("type of an ID token", "of a type that"): lambda: mint(head=header(typ="id_token+jwt")),
    ("type a number", "typ that is no"): lambda: mint(head=header(typ=1)),
    ("an ID token (nonce)", "of another kind"): lambda: mint(head=header(typ="JWT"), nonce="n"),
    ("an ID token (at_hash)", "of another kind"): lambda: mint(head=header(typ=...), at_hash="h"),
    ("an ID token of Keycloak", "of another kind"): lambda: mint(head=header(typ="JWT"), typ="ID"),
    ("a refresh token of Keycloak", "of another kind"): lambda: mint(head=header(typ="JWT"), typ="Refresh"),
    ("an ID token of Cognito", "of another kind"): lambda: mint(head=header(typ=...), token_use="id"),
    ("a logout token", "of another kind"): lambda: mint(head=header(typ="JWT"), events={}),
    ("bound to a key", "bound to a key"): lambda: mint(cnf={"jkt": "x" * 43}),
    ("bound to a certificate", "bound to a key"): lambda: mint(head=header(typ="JWT"), cnf={"x5t#S256": "x" * 43}),
    ("expired", "has expired"): lambda: mint(exp=int(NOW) - 31),
    ("expired long ago", "has expired"): lambda: mint(exp=-(10**300)),
    ("no exp", "has no exp"): lambda: mint(exp=...),
    ("exp null", "is no number"): lambda: mint(exp=None),
    ("exp a text", "is no number"): lambda: mint(exp=str(int(NOW) + 600)),
    ("exp true", "is no number"): lambda: mint(exp=True),
    ("exp a list", "is no number"): lambda: mint(exp=[int(NOW) + 600]),
    ("exp beyond floats", "is no time"): lambda: mint(exp=10**400),
    ("exp infinite", "is no time"): lambda: raw(b'"exp":1e999'),
    ("exp Infinity", "number that JSON has not"): lambda: raw(b'"exp":Infinity'),
    ("exp NaN", "number that JSON has not"): lambda: raw(b'"exp":NaN'),
    ("exp of 5000 digits", "no JSON that"): lambda: raw(b'"exp":1' + b"0" * 5000),
    ("exp twice", "key twice"): lambda: raw(b'"exp":1,"exp":%d' % (NOW + 600)),
    ("iss twice", "key twice"): lambda: raw(b'"exp":%d,"iss":"https://attacker.example","iss":"%s"' % (NOW + 600, ISSUER.encode())),
    ("an inner key twice", "key twice"): lambda: raw(b'"exp":%d,"x":{"a":1,"a":2}' % (NOW + 600)),
    ("not yet", "not hold yet"): lambda: mint(nbf=int(NOW) + 31),
    ("nbf a text", "is no number"): lambda: mint(nbf="0"),
    ("nbf false", "is no number"): lambda: mint(nbf=False),
    ("nbf null", "is no number"): lambda: mint(nbf=None),
    ("made in the future", "not hold yet"): lambda: mint(iat=int(NOW) + 31),
    ("iat a text", "is no number"): lambda: mint(iat="now"),
    ("another audience", "another audience"): lambda: mint(aud="https://other.example.com/mcp"),
    ("another audience, nearly", "another audience"): lambda: mint(aud=f"{AUDIENCE}/"),
    ("audience in other letters", "another audience"): lambda: mint(aud=AUDIENCE.upper()),
    ("other audiences", "another audience"): lambda: mint(aud=["https://a.example", "https://b.example"]),
    ("no audience", "another audience"): lambda: mint(aud=...),
    ("audience null", "another audience"): lambda: mint(aud=None),
    ("audience empty", "another audience"): lambda: mint(aud=[]),
    ("audience an object", "another audience"): lambda: mint(aud={AUDIENCE: 1}),
    ("audience with a number", "another audience"): lambda: mint(aud=[AUDIENCE, 1]),
    ("audience nested", "another audience"): lambda: mint(aud=[[AUDIENCE]]),
    ("another issuer", "another issuer"): lambda: mint(iss="https://attacker.example"),
    ("issuer, nearly", "another issuer"): lambda: mint(iss=f"{ISSUER}/"),
    ("issuer a list", "another issuer"): lambda: mint(iss=[ISSUER]),
    ("issuer an object", "another issuer"): lambda: mint(iss={"a": ISSUER}),
    ("no issuer", "another issuer"): lambda: mint(iss=...),
    ("nobody's", "whose it is"): lambda: mint(sub=...),
    ("sub empty", "is no name"): lambda: mint(sub=""),
    ("sub a number", "is no name"): lambda: mint(sub=7),
    ("sub an object", "is no name"): lambda: mint(sub={"x": 1}),
    ("sub with a line break", "is no name"): lambda: mint(sub="ann\nroot"),
    ("sub with a NUL", "is no name"): lambda: mint(sub="ann\0"),
    ("sub with half a pair", "no JSON that"): lambda: raw(b'"exp":%d,"sub":"\\ud800"' % (NOW + 600)),
    ("a claim with half a pair", "no JSON that"): lambda: raw(b'"exp":%d,"x":["\\uDC00"]' % (NOW + 600)),
    ("sub endless", "is no name"): lambda: mint(sub="a" * 2000),
    ("sub a number, client_id fine", "is no name"): lambda: mint(sub=7, client_id="app"),
    ("scope a number", "holds no scopes"): lambda: mint(scope=7),
    ("scope an object", "holds no scopes"): lambda: mint(scope={"files": True}),
    ("scope with numbers", "holds no scopes"): lambda: mint(scope=["a", 1]),
    ("scope with a quote", "holds no scopes"): lambda: mint(scope='a "b'),
    ("scope with a line break", "holds no scopes"): lambda: mint(scope="a\nb"),
    ("scp with a tab", "holds no scopes"): lambda: mint(scp=["a\tb"]),
}  # fmt: skip


def verifier() -> JWT:
    """Takes tokens with the key k1 (P-256) or k9 (RSA)."""
    return JWT(ISSUER, AUDIENCE, keys=[jwk(EC), jwk(RSA, kid="k9")], clock=lambda: NOW)


@pytest.mark.parametrize(("name", "told"), ATTACKS)
async def test_attacks(name: str, told: str) -> None:
    """SA29, SA30: all are answered with 401, and nothing of them is told."""
    token = ATTACKS[name, told]()
    found = await verifier().verify(token)
    assert isinstance(found, Refusal)
    assert found.kind == "invalid"
    assert told in found.detail
    assert not any(len(piece) > 8 and piece in found.detail for piece in token.split("."))
    for shown in ("attacker", "dev/null", "UNION", "dpop", "other.example", "root"):
        assert shown not in found.detail


@pytest.mark.parametrize(
    ("aud", "shown"),
    [
        (f"{AUDIENCE}/", f"'{AUDIENCE}/'"),
        (["https://a.example", 1, "\x1b[1m\n\u202e"], r"'https://a.example', '\x1b[1m\n\u202e'"),
        ("a" * 10_000, f"'{'a' * 199}..."),
        (["b"] * 1_000, "'b', 'b', 'b', 'b', 'b'..."),
        (..., "no name"),
        ({AUDIENCE: 1}, "no name"),
    ],
)
async def test_the_log_may_know_whom_a_token_is_for(aud: object, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    """SA30: printable and cut, in the log at DEBUG alone; the client is told as before."""
    caplog.set_level("DEBUG", "callboard")
    guard = Guard([verifier()], resource=AUDIENCE)
    denied = await guard.admit({}, {b"authorization": b"Bearer " + mint(aud=aud).encode()})
    assert isinstance(denied, Denial)
    assert denied.fail.text == "The access token is for another audience."
    assert not [value for _, value in denied.headers if b"its aud" in value]
    [record] = caplog.records
    expected = f"auth= <JWT of {ISSUER}> refused a credential: its aud is {shown}; expected is '{AUDIENCE}'"
    assert (record.levelname, record.getMessage()) == ("DEBUG", expected)


async def test_what_they_are_made_of_is_taken() -> None:
    assert isinstance(await verifier().verify(mint()), Grant)
    assert isinstance(await verifier().verify(raw(b'"exp":%d' % (NOW + 600))), Grant)
    assert isinstance(await verifier().verify(mint(RSA, header(alg="PS256", kid="k9"))), Grant)


async def test_nothing_is_fetched_for_what_is_refused_anyway() -> None:
    asked: list[str] = []

    async def send(ask: Ask) -> Answer:
        asked.append(ask.url)
        return Answer(404, b"")

    tokens = JWT(ISSUER, AUDIENCE, send=send, clock=lambda: NOW)
    for (name, told), make in ATTACKS.items():
        if told not in {"signature of the access token is wrong", "its issuer does not have"}:
            found = await tokens.verify(make())
            assert isinstance(found, Refusal)
            assert found.kind == "invalid", name
    assert not asked
    good = await tokens.verify(mint())
    assert isinstance(good, Refusal)
    assert good.kind == "unavailable"
    assert asked == [f"{ISSUER}/.well-known/oauth-authorization-server", f"{ISSUER}/.well-known/openid-configuration"]
    await tokens.close()
