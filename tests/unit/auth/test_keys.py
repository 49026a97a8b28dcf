"""Keys: which of a set are used, and which fits a token."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt_oracle import unpadded
from minting import jwk, jwks, pem, private_key

from callboard.auth.keys import ALGORITHMS, KeyRing, given_keys, read_keys
from callboard.errors import RegistrationError

EC, RSA, ED = private_key("P-256"), private_key("RSA"), private_key("Ed25519")
ALL = frozenset(ALGORITHMS)


def read(*keys: Any) -> KeyRing:
    return read_keys(jwks(*keys), ALL)


@pytest.mark.parametrize("kind", ["RSA", "RSA3072", "P-256", "P-384", "P-521", "Ed25519", "Ed448"])
def test_kinds_that_are_used(kind: str) -> None:
    ring = read(jwk(private_key(kind), use="sig", key_ops=["verify"], x5c=["!"], unknown={"a": 1}))
    assert len(ring.keys) == 1
    assert not ring.passed_over
    for algorithm, kinds in ALGORITHMS.items():
        assert (algorithm in ring.keys[0].algorithms) == (kind.removesuffix("3072") in kinds), "a key serves its own kind alone"


def _weak_exponent(exponent: int) -> dict[str, Any]:
    return jwk(RSA) | {"e": unpadded(exponent.to_bytes((exponent.bit_length() + 7) // 8, "big"))}


UNFIT: list[tuple[Any, str]] = [
    (jwk(EC, use="enc"), "another use"),
    (jwk(EC, use=None), "another use"),
    (jwk(EC, use=["sig"]), "another use"),
    (jwk(EC, key_ops=["sign"]), "key_ops"),
    (jwk(EC, key_ops="verify"), "key_ops"),
    (jwk(EC) | {"d": "AA"}, "private"),
    (jwk(RSA) | {"p": "AA"}, "private"),
    (jwk(b"x" * 32), "kty"),
    (jwk(EC) | {"k": "AA"}, "private"),
    (jwk(private_key("RSA1024")), "1024 bits"),
    (_weak_exponent(1), "exponent"),
    (_weak_exponent(2**16), "exponent"),
    (_weak_exponent(2**33 + 1), "exponent"),
    (jwk(RSA) | {"n": "_" * 4000}, "bits"),
    (jwk(RSA) | {"n": ""}, "base64url"),
    (jwk(RSA) | {"n": jwk(RSA)["n"] + "="}, "base64url"),
    (jwk(RSA) | {"n": 7}, "base64url"),
    ({"kty": "RSA", "e": "AQAB"}, "base64url"),
    (jwk(private_key("secp256k1")), "crv"),
    (jwk(EC) | {"crv": "P-384"}, "is none"),
    (jwk(EC) | {"crv": "Ed25519"}, "crv"),
    (jwk(EC) | {"crv": 7}, "crv"),
    (jwk(EC) | {"y": jwk(EC)["x"]}, "is none"),
    (jwk(EC) | {"x": "AA"}, "is none"),
    (jwk(ED) | {"x": "AA"}, "is none"),
    (jwk(ED) | {"crv": "X25519"}, "crv"),
    (jwk(EC, alg="RS256"), "another algorithm"),
    (jwk(RSA, alg="RSA-OAEP"), "another algorithm"),
    (jwk(EC, alg=["ES256"]), "another algorithm"),
    (jwk(EC) | {"kid": 7}, "kid"),
    (jwk(EC, kid="k" * 513), "kid"),
    (jwk(EC) | {"kty": "ec"}, "kty"),
    (jwk(EC) | {"kty": ["EC"]}, "kty"),
    ({}, "kty"),
    ("EC", "no JSON object"),
    (None, "no JSON object"),
]


@pytest.mark.parametrize(("unfit", "told"), UNFIT)
def test_one_that_cant_be_used_is_passed_over_and_named(unfit: Any, told: str) -> None:
    ring = read(unfit, jwk(EC, "good"))
    assert [key.kid for key in ring.keys] == ["good"]
    assert len(ring.passed_over) == 1
    assert told in ring.passed_over[0]


def test_one_that_is_given_and_cant_be_used_is_an_error() -> None:
    for unfit, _ in UNFIT[:8]:
        if unfit["kty"] != "oct":
            with pytest.raises(RegistrationError):
                given_keys(unfit, ALL)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{", b'{"keys":{}}', b'{"keys":null}', b'{"key":[]}', b'{"keys":[],"keys":[]}', b'{"keys":[NaN]}', b"\xef\xbb\xbf{}",
        b'{"keys":' + b"[" * 100_000, b'{"keys":["\\ud800"]}', '{"keys":[]}'.encode("utf-16"), b"<html>", json.dumps({"keys": [{}] * 101}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_set(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|JWK"):
        read_keys(body, ALL)


def test_which_fits_a_token() -> None:
    """A token that names a key is checked with that; where nobody could say which, with none."""
    ring = read(jwk(EC, "a"), jwk(RSA, "b"), jwk(ED, None))
    assert [key.kid for key in ring.fit("a", "ES256")] == ["a"]
    assert [key.kid for key in ring.fit("b", "PS512")] == ["b"]
    assert ring.fit("b", "ES256") == (), "the key named is of another kind"
    assert ring.fit("c", "ES256") == ()
    assert ring.fit("a", "HS256") == ()
    assert [key.kid for key in ring.fit(None, "ES256")] == ["a"], "the only one of its kind"
    assert [key.kid for key in ring.fit("c", "EdDSA")] == [None], "a key without a name may be the one that is named"
    two = read(jwk(EC, "a"), jwk(private_key("P-256", 1), "b"), jwk(ED, None), jwk(private_key("Ed25519", 1), None))
    assert two.fit(None, "ES256") == two.fit(None, "EdDSA") == two.fit("c", "EdDSA") == ()


def test_one_name_for_several_keys_is_tried_a_few_times() -> None:
    ring = read(*(jwk(private_key("P-256", number), "same") for number in range(6)))
    assert len(ring.fit("same", "ES256")) == 3


def test_what_is_gone() -> None:
    one, other = read(jwk(EC, "a"), jwk(RSA, "b")), read(jwk(EC, "a"))
    assert other.lacks(one)
    assert not one.lacks(other)
    assert read(jwk(private_key("P-256", 1), "a")).lacks(other), "another key of the same name"
    assert read(jwk(EC, "a", alg="ES256")).lacks(read(jwk(RSA, "a")))


def test_given_in_many_forms() -> None:
    for given in (jwk(EC), {"keys": [jwk(EC)]}, pem(EC), pem(EC).decode(), [pem(EC)], (jwk(EC),)):
        assert len(given_keys(given, ALL).fit("k1", "ES256")) == 1
    big = rsa.generate_private_key(65537, 2048)
    assert len(given_keys([pem(EC), pem(big), {"kty": "oct", "k": unpadded(b"x" * 32)}], ALL | {"HS256"}).keys) == 3


def test_a_repr_holds_no_material() -> None:
    ring = given_keys({"kty": "oct", "k": unpadded(b"hunter2" * 6)}, ["HS256"])
    assert "hunter2" not in repr(ring)
