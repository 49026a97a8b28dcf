"""Drivers of credentials: the `Authorization` header, challenges, JSON web tokens. See `fuzz.drivers` for what a driver is."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fuzz.readers import Pairs, read_json

from callboard.auth.jwt import JWT
from callboard.auth.keys import ALGORITHMS, MAX_KEYS, read_keys
from callboard.auth.verifier import Grant, Refusal, read_bearer
from callboard.client.oauth.challenge import MAX_CHALLENGES, MAX_SCOPES, demand_of, parse

__all__ = ["run_bearer", "run_jwt"]

ISSUER: Final = "https://login.example.com"
AUDIENCE: Final = "https://mcp.example.com/mcp"
NOW: Final = 1_800_000_000.0
LEEWAY: Final = 30.0
_SECRET: Final = b"s" * 32
_PRIVATE: Final = Ed25519PrivateKey.from_private_bytes(b"p" * 32)


def run_bearer(data: bytes) -> None:
    """`auth.verifier.read_bearer` and the reader of `WWW-Authenticate`: RFC 6750 section 2.1, RFC 9110 section 11.6.1 (AR-05, AC-02, AC-13)."""
    told = read_bearer(data)
    scheme, blank, rest = data.partition(b" ")
    token = rest.strip(b" ")
    if scheme.lower() != b"bearer":
        assert told == Refusal("missing"), told
    elif blank and re.fullmatch(rb"[A-Za-z0-9._~+/-]+=*", token):
        assert told == token.decode(), told
    else:
        assert isinstance(told, Refusal), f"{told!r} is no token"
        assert told.kind == "malformed", told
        assert told.detail.isascii(), told
        assert len(token) < 8 or token.decode("latin-1") not in told.detail, f"it repeats the credential: {told}"
    header = data.decode("latin-1")
    assert len(parse(header)) <= MAX_CHALLENGES, header
    demand = demand_of([("www-authenticate", header), ("www-authenticate", "Bearer scope=a")], sent={"authorization": f"Bearer {header}"})
    assert len(demand.scopes) <= MAX_SCOPES, demand
    assert all(scope and " " not in scope and scope.isascii() for scope in demand.scopes), demand


def run_jwt(data: bytes) -> None:
    """`auth.jwt`: the first line is the header of a token, the rest its claims; it is signed well, so that what it says decides (AR-05, AR-08).

    What is granted, an independent reader would grant; what is changed after it was signed, or not signed, never is. The same bytes are read as a
    token of their own, and as a set of keys.
    """
    header, _, claims = data.partition(b"\n")
    signed = b".".join(map(_unpadded, (header, claims)))
    read = read_json(header)
    signature = _sign(signed, (read and read.object) or {})
    token = (signed + b"." + _unpadded(signature)).decode()
    told = _verify(token)
    if isinstance(told, Grant):
        _check_grant(told, header, claims)
        for other in _others(token, sum(data)):
            assert isinstance(_verify(other), Refusal), f"{other} is granted, which was not signed"
    assert isinstance(_verify(f"{signed.decode()}.{_unpadded(data).decode()}"), Refusal), "any signature will do"
    assert isinstance(_verify(data.decode("latin-1")), Refusal), data
    with suppress(ValueError):
        ring = read_keys(data, ALGORITHMS)
        assert len(ring.keys) <= MAX_KEYS, ring


def _unpadded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _sign(signed: bytes, header: dict[str, Any]) -> bytes:
    if header.get("alg") == "EdDSA":
        return _PRIVATE.sign(signed)
    return hmac.digest(_SECRET, signed, hashlib.sha256)


def _others(token: str, chance: int) -> Iterator[str]:
    """The token with one letter changed, in each of its parts."""
    for start, part in ((0, 0), (token.index(".") + 1, 1), (token.rindex(".") + 1, 2)):
        length = len(token.split(".")[part])
        at = start + chance % length
        yield token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
    yield token + "A"
    yield token[:-1]
    yield token.replace(".", "..", 1)


@cache
def _verifier() -> JWT:
    public = _PRIVATE.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    keys = [
        {"kty": "oct", "k": _unpadded(_SECRET).decode(), "kid": "s"},
        {"kty": "OKP", "crv": "Ed25519", "x": _unpadded(public).decode(), "kid": "p"},
    ]
    return JWT(ISSUER, AUDIENCE, keys=keys, leeway=LEEWAY, clock=lambda: NOW)


def _verify(token: str) -> Grant | Refusal:
    """What the verifier says; with keys at hand it waits for nothing."""
    try:
        _verifier().verify(token).send(None)
    except StopIteration as end:
        told = end.value
    else:
        raise AssertionError("it waits, though its keys are given")
    assert isinstance(told, Grant | Refusal), told
    if isinstance(told, Refusal):
        assert told.kind == "invalid", told
        assert told.detail, told
        assert told.detail.isascii(), told
        assert told.detail.isprintable(), told
        assert '"' not in told.detail, told
    return told


def _check_grant(grant: Grant, header: bytes, payload: bytes) -> None:
    """Hold what was granted against RFC 7519, RFC 8725 and RFC 9068."""
    heads, claims = _read_members(header), _read_members(payload)
    assert heads.get("alg") in {"HS256", "EdDSA"}, heads
    assert heads.get("kid") in {None, {"HS256": "s", "EdDSA": "p"}[heads["alg"]]}, heads
    assert not heads.keys() & {"crit", "b64"}, heads
    typ = heads.get("typ")
    assert typ is None or typ.lower().removeprefix("application/") in {"at+jwt", "jwt"}, heads
    assert claims["iss"] == ISSUER, claims
    audience = claims["aud"]
    assert AUDIENCE in (audience if isinstance(audience, list) else [audience]), claims
    assert type(claims["exp"]) in {int, float}, claims
    assert claims["exp"] + LEEWAY > NOW, claims
    assert all(type(claims[name]) in {int, float} and claims[name] - LEEWAY <= NOW for name in ("nbf", "iat") if name in claims), claims
    assert claims.get("cnf") is None, claims
    subject = claims["sub"] if claims.get("sub") is not None else claims["client_id"]
    assert isinstance(subject, str), claims
    assert subject.isprintable(), claims
    assert grant.principal.subject == subject, grant
    assert grant.principal.startswith(f"{ISSUER}#"), grant
    assert grant.principal.endswith(f"={subject}"), grant
    assert grant.until is not None, grant
    assert grant.until <= min(claims["exp"], NOW + 60), grant
    assert all(scope.isascii() and scope.isprintable() and " " not in scope for scope in grant.principal.scopes), grant


def _read_members(text: bytes) -> dict[str, Any]:
    """The members of an object, none of which is twice."""
    reading = read_json(text)
    assert reading is not None, f"no JSON, and granted: {text!r}"
    assert isinstance(reading.value, Pairs), f"no object, and granted: {text!r}"
    members = dict(reading.value)
    assert len(members) == len(reading.value), f"a member is twice: {text!r}"
    return members
