"""Tokens that are JWTs: which are taken, for whom, and what is refused before anything dear is done."""

import sys
import time
from types import MappingProxyType
from typing import Any

import jwt as pyjwt
import pytest
from jwt_oracle import unpadded
from minting import AUDIENCE, ISSUER, KINDS, NOW, claims, header, jwk, jwks, mint, pem, private_key, raw
from virtual_time import now, virtual_time

from callboard.auth.jwt import JWT
from callboard.auth.outbound import Answer, Ask
from callboard.auth.verifier import Grant, Refusal
from callboard.errors import RegistrationError

EC = private_key("P-256")
SECRET = bytes(range(64))


def verifier(keys: Any = None, **options: Any) -> JWT:
    """For the default key, at NOW."""
    return JWT(ISSUER, AUDIENCE, keys=jwk(EC) if keys is None else keys, clock=lambda: NOW, **options)


async def granted(token: str, **options: Any) -> Grant:
    found = await verifier(**options).verify(token)
    assert isinstance(found, Grant), found
    return found


async def refused(token: str, **options: Any) -> str:
    found = await verifier(**options).verify(token)
    assert isinstance(found, Refusal), found
    assert found.kind == "invalid"
    assert found.detail.isascii()
    assert '"' not in found.detail
    return found.detail


async def test_a_good_token() -> None:
    """AR-08: issuer, audience, times and signature are right."""
    found = await granted(mint(roles=["admin"]))
    assert found.principal == f"{ISSUER}#sub=ann"
    assert found.principal.subject == "ann"
    assert found.principal.scopes == {"files:read", "files:write"}
    assert found.principal.claims["roles"] == ["admin"]
    assert isinstance(found.principal.claims, MappingProxyType)
    assert found.until == NOW + 60


async def test_a_grant_ends_with_its_token() -> None:
    assert (await granted(mint(exp=int(NOW) + 7))).until == NOW + 7
    assert (await granted(mint(exp=NOW + 7.5))).until == NOW + 7.5
    assert (await granted(mint(exp=NOW - 29))).until == NOW - 29, "within the leeway it is checked each time"


@pytest.mark.parametrize("algorithm", KINDS)
@pytest.mark.parametrize("form", ["jwk", "pem"])
async def test_every_algorithm(algorithm: str, form: str) -> None:
    key = private_key(KINDS[algorithm])
    keys = jwk(key) if form == "jwk" else pem(key)
    token = mint(key, header(alg=algorithm))
    assert isinstance(await granted(token, keys=keys), Grant)
    broken = mint(key, header(alg=algorithm), sub="bob").rpartition(".")[0] + "." + token.rpartition(".")[2]
    assert "signature" in await refused(broken, keys=keys)
    assert (
        "algorithm" in await refused(token, keys=keys, algorithms=[algorithm.replace("256", "384") if "256" in algorithm else "RS256"])
        if (form == "jwk" and algorithm.startswith(("RS", "PS")) and "256" in algorithm)
        else True
    )


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_secrets_that_are_given(algorithm: str) -> None:
    assert await granted(mint(SECRET, header(alg=algorithm)), keys=jwk(SECRET))
    assert "signature" in await refused(mint(SECRET[::-1], header(alg=algorithm)), keys=jwk(SECRET))


async def test_a_key_pinned_to_an_algorithm_serves_no_other() -> None:
    """RFC 8725 section 3.1."""
    key = private_key("RSA")
    assert await granted(mint(key, header(alg="RS256")), keys=jwk(key, alg="RS256"))
    for other in ("RS384", "PS256"):
        assert "does not have" in await refused(mint(key, header(alg=other)), keys=jwk(key, alg="RS256"))


async def test_what_only_looks_like_an_attack() -> None:
    for token in (
        mint(head=header(typ="JWT")),
        mint(head=header(typ=...)),
        mint(head=header(typ="application/AT+jwt")),
        mint(head=header(jku="https://x.example", x5t="y", unknown={"a": 1})),
        mint(aud=["https://other.example", AUDIENCE]),
        mint(nonce="n"),
        mint(head=header(typ="JWT"), typ="Bearer", token_use="access"),
        mint(cnf=None),
        mint(iat=...),
        mint(nbf=int(NOW) + 30, iat=int(NOW) + 30),
        mint(exp=int(NOW) - 29),
        mint(sub="Åsa Öberg 🙂"),
        raw(b'"exp":%d,"x":"\\ud83d\\ude42"' % (NOW + 600)),
        mint(scope=""),
        mint(scope=...),
    ):
        await granted(token)


def _chopped(token: str) -> list[str]:
    head, body, tail = token.split(".")
    return [
        "", ".", "..", "...", "a.b.c", "Bearer", head, f"{head}.{body}", f"{token}.", f".{token}", f"{token}.{tail}", f"{head}..{tail}", f".{body}.{tail}",
        f"{head}=.{body}.{tail}", f"{head}.{body}==.{tail}", f"{token}=", f" {token}", f"{token}\n", f"{head}.{body}+.{tail}", f"{head}.{body}/.{tail}",
        f"{head}.{body}é.{tail}", f"{head}.{body}\ud800.{tail}", f"{head}.{body}\0.{tail}", f"{head}.{body}.{tail[:-1]}",
        f"{head}.{body}.{tail[:-1]}{chr(ord(tail[-1]) + 1)}", token.replace(".", "。"), f"{head}.{unpadded(b'[]')}.{tail}", f"{unpadded(b'[]')}.{body}.{tail}",
        f"{head}.{unpadded(b'null')}.{tail}", f"{head}.{unpadded(bytes([0xEF, 0xBB, 0xBF]) + b'{}')}.{tail}", f"{head}.{unpadded(b'{}x')}.{tail}",
        f"{head}.{unpadded('{}'.encode('utf-16'))}.{tail}", f"{head}.{unpadded(b'{' + bytes([0xFF]) + b'}')}.{tail}", f"{head}.{unpadded(token.encode())}.{tail}",
        f"{head}.{unpadded(b'[' * 9000)}.{tail}", f"{unpadded(b'{a:' * 3000)}.{body}.{tail}", "é" * 100, "." * 10_000, "a" * 16_385, f"{token}{'A' * 1_000_000}",
        "eyJhbGciOiJub25lIn0.e30.",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(39))
async def test_what_is_no_token(number: int) -> None:
    """SA29: garbage, in all lengths and alphabets."""
    wrong = _chopped(mint())[number]
    assert await refused(wrong)


async def test_nested_tokens_and_encrypted_ones_are_refused() -> None:
    inner = mint()
    assert await refused(mint(head=header(cty="JWT"), body=inner.encode()))
    assert await refused("a.b.c.d.e")


async def test_length_is_checked_first() -> None:
    token = mint(x="y" * 20_000)
    assert "longer than 16384" in await refused(token)
    assert await granted(token, max_length=40_000)


@pytest.mark.parametrize(
    ("changes", "identity", "scopes"),
    [
        ({"sub": "x"}, "sub=x", {"files:read", "files:write"}),
        ({"sub": ..., "client_id": "x"}, "client_id=x", {"files:read", "files:write"}),
        ({"sub": None, "client_id": "x"}, "client_id=x", {"files:read", "files:write"}),
        ({"scope": ["a", "b"], "scp": "c  d"}, "sub=ann", {"a", "b", "c", "d"}),
        ({"scope": ..., "scp": ["c"]}, "sub=ann", {"c"}),
        ({"scope": " "}, "sub=ann", set()),
    ],
)
async def test_who_and_what(changes: dict[str, Any], identity: str, scopes: set[str]) -> None:
    found = (await granted(mint(**changes))).principal
    assert found == f"{ISSUER}#{identity}"
    assert found.scopes == scopes


async def test_claims_by_option() -> None:
    token = mint(email="ann@example.com", permissions=["p"], tenant="t")
    options: dict[str, Any] = {"subject": "email", "scopes": "permissions", "required_claims": ["tenant"]}
    found = (await granted(token, **options)).principal
    assert found == f"{ISSUER}#email=ann@example.com"
    assert found.scopes == {"p"}
    assert "lacks the claim tenant" in await refused(mint(email="x"), **options)
    assert "does not say whose" in await refused(mint(tenant="t"), **options)


async def test_the_audience_is_the_resource_of_the_application() -> None:
    """AR-08: a token for another server is refused."""
    tokens = JWT(ISSUER, keys=jwk(EC), clock=lambda: NOW)
    assert isinstance(await tokens.verify(mint()), Refusal), "before anybody said who it is for, it is for nobody"
    assert isinstance(await tokens.verify(mint(aud="")), Refusal)
    with pytest.raises(RegistrationError, match="resource="):
        tokens.bind(None)
    tokens.bind(AUDIENCE)
    tokens.bind(AUDIENCE)
    assert isinstance(await tokens.verify(mint()), Grant)
    with pytest.raises(RegistrationError, match="make a JWT for each"):
        tokens.bind("https://other.example.com/mcp")
    named = JWT(ISSUER, ["a", "b"], keys=jwk(EC), clock=lambda: NOW)
    named.bind(None)
    named.bind("https://other.example.com/mcp")
    assert isinstance(await named.verify(mint(aud="b")), Grant)
    assert isinstance(await named.verify(mint(aud="https://other.example.com/mcp")), Refusal)


async def test_keys_that_are_given_are_all_there_is() -> None:
    """A wrong signature sends nobody out for others."""

    async def send(ask: Ask) -> Answer:
        raise AssertionError(ask)

    for keys in (pem(EC), jwk(EC, None)):
        assert "signature" in await refused(mint(private_key("P-256", 1)), keys=keys, send=send)
        assert "signature" in await refused(mint(private_key("P-256", 1), header(kid=...)), keys=keys, send=send)


@virtual_time
async def test_a_key_without_a_name_may_be_replaced() -> None:
    """Nothing in the token could tell: it is looked for when a signature is wrong, once per cooldown."""
    old, new = private_key("P-256"), private_key("P-256", 1)
    held, asked = [old], []

    async def send(ask: Ask) -> Answer:
        asked.append(ask)
        return Answer(200, jwks(jwk(held[0], None)))

    tokens = JWT(ISSUER, AUDIENCE, jwks_uri=f"{ISSUER}/jwks", send=send, clock=lambda: NOW, ticks=now)
    assert isinstance(await tokens.verify(mint(old, header(kid=...))), Grant)
    held[0] = new
    renewed = mint(new, header(kid=...))
    assert tokens.generation == 0
    assert isinstance(await tokens.verify(renewed), Grant)
    assert tokens.generation == 1, "what the old key granted holds no more"
    held[0] = old
    assert isinstance(await tokens.verify(mint(old, header(kid=...))), Refusal)
    held[0] = new
    found = await tokens.verify(mint(old, header(kid=...)))
    assert isinstance(found, Refusal)
    assert found.kind == "invalid"
    assert len(asked) == 2


async def test_whoever_is_granted_would_be_granted_by_pyjwt_too() -> None:
    """Another reader of the same rules agrees; that it grants more is why it is not ours."""
    options: Any = {"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True}
    begun = time.time()
    for changes in ({}, {"aud": [AUDIENCE, "x"]}, {"nbf": int(begun) - 1}, {"scope": ["a"]}):
        token = mint(body=claims(**{"exp": int(begun) + 60, "iat": int(begun), **changes}))
        assert isinstance(await JWT(ISSUER, AUDIENCE, keys=jwk(EC)).verify(token), Grant)
        pyjwt.decode(token, pem(EC), ["ES256"], options, audience=AUDIENCE, issuer=ISSUER)
    laxer = mint(exp=str(int(begun) + 60), iat=int(begun))
    pyjwt.decode(laxer, pem(EC), ["ES256"], options, audience=AUDIENCE, issuer=ISSUER)
    assert isinstance(await JWT(ISSUER, AUDIENCE, keys=jwk(EC)).verify(laxer), Refusal)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"issuer": ""}, "issuer"),
        ({"issuer": None}, "issuer"),
        ({"issuer": "https://x.example#a"}, "issuer"),
        ({"issuer": "https://x.example/ a"}, "issuer"),
        ({"issuer": "http://login.example.com"}, "https://"),
        ({"issuer": "login.example.com"}, "neither https nor http"),
        ({"issuer": "https://user:hunter2@login.example.com"}, "user name"),
        ({"issuer": "https://login.example.com?key=hunter2"}, "query"),
        ({"issuer": "https://169.254.1"}, "usual form"),
        ({"jwks_uri": "http://login.example.com/jwks?hunter2"}, "https://"),
        ({"jwks_uri": "file:///x"}, "neither https nor http"),
        ({"jwks_uri": "https://a:hunter2@x.example/jwks"}, "user name"),
        ({"jwks_uri": 7}, "jwks_uri"),
        ({"jwks_uri": "https://x.example", "keys": jwk(EC)}, "one of the two"),
        ({"algorithms": ["none"]}, "none of"),
        ({"algorithms": ["HS256"]}, "never fetched"),
        ({"algorithms": ["RS256", "HS512"], "jwks_uri": "https://x.example"}, "never fetched"),
        ({"algorithms": []}, "empty"),
        ({"algorithms": "ES999"}, "none of"),
        ({"leeway": -1}, "leeway"),
        ({"leeway": 301}, "leeway"),
        ({"leeway": "30"}, "leeway"),
        ({"max_length": 10}, "max_length"),
        ({"subject": []}, "subject"),
        ({"subject": ["a=b"]}, "subject"),
        ({"audience": []}, "audience"),
        ({"audience": ""}, "audience"),
        ({"audience": [7]}, "audience"),
        ({"audience": 7}, "audience"),
        ({"algorithms": 7}, "algorithms"),
        ({"scopes": [7]}, "scopes"),
        ({"required_claims": ["a b"]}, "required_claims"),
        ({"subject": 7}, "subject"),
        ({"subject": "sub#"}, "subject"),
        ({"types": "JWT"}, "types"),
        ({"types": [7]}, "types"),
        ({"types": []}, "types"),
        ({"types": 7}, "types"),
        ({"leeway": True}, "leeway"),
        ({"leeway": float("nan")}, "leeway"),
        ({"keys": []}, "there is none"),
        ({"keys": b"hunter2" * 9}, "oct"),
        ({"keys": b" " + pem(EC)[5:]}, "oct"),
        ({"keys": pem(EC).replace(b"M", b"!")}, "no public key"),
        ({"keys": {"kty": "oct", "k": unpadded(b"hunter2")}}, "too short"),
        ({"keys": jwk(SECRET, use="enc")}, "another use"),
        ({"keys": jwk(SECRET[:32], alg="HS512")}, "serves"),
        ({"keys": jwk(EC) | {"d": "hunter2"}}, "private"),
        ({"keys": jwk(private_key("RSA1024"))}, "1024 bits"),
        ({"keys": pem(private_key("RSA1024"))}, "1024 bits"),
        ({"keys": [jwk(EC), jwk(private_key("secp256k1"))]}, "number 2"),
        ({"keys": pem(private_key("secp256k1"))}, "another algorithm"),
        ({"keys": jwk(private_key("RSA")), "algorithms": ["ES256"]}, "another algorithm"),
    ],
)
def test_options_that_cant_work(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RegistrationError, match=told) as caught:
        JWT(**{"issuer": ISSUER, **options})
    assert "hunter2" not in str(caught.value)


def test_what_is_missing_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(RegistrationError, match=r'pip install "callboard\[auth\]"'):
        JWT(ISSUER)


def test_a_private_key_is_not_taken() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = EC.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(RegistrationError, match="private key") as caught:
        JWT(ISSUER, keys=private)
    assert private.decode().split("\n")[1] not in str(caught.value)


def test_what_it_says_of_itself() -> None:
    tokens = JWT(ISSUER, keys=jwk(SECRET))
    assert tokens.issuers == (ISSUER,)
    assert JWT("accounts", keys=jwk(EC)).issuers == (), "no URL that a client could log in at"
    assert unpadded(SECRET) not in repr(vars(tokens))
    assert repr(SECRET) not in repr(vars(tokens))
    assert JWT("http://localhost:9000").issuers == ("http://localhost:9000",)
    assert JWT("http://as.internal:9000", insecure=True).issuers
    assert claims()["iss"] == ISSUER
