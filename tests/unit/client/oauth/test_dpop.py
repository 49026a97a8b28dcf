"""Proofs and assertions, measured with another implementation."""

import string
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt_oracle import TokenError, parts, prove, times, verify

from callboard.client.oauth.dpop import MAX_NONCE, Nonces, Prover, Signer, client_assertion, http_target, nonce_in

NOW = 1_790_000_000.9
URL = "https://desk.example/mcp"


def pem(key: Any, password: bytes | None = None) -> bytes:
    kept = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kept))


RSA = rsa.generate_private_key(65537, 2048)
KEYS: dict[str, Any] = {"ES256": ec.generate_private_key(ec.SECP256R1()), "RS256": RSA, "EdDSA": ed25519.Ed25519PrivateKey.generate()}


def test_a_proof_is_what_the_standard_wants() -> None:
    """EX-06."""
    prover = Prover()
    for token, nonce in ((None, None), ("secret", None), (None, "n-1"), ("secret", "n-1")):
        seen: set[str] = set()
        proof = prover.proof("POST", URL + "?a=b#c", now=NOW, access_token=token, nonce=nonce)
        assert prove(proof, "POST", URL, NOW, seen=seen, access_token=token) == (prover.thumbprint, nonce)
        assert nonce_in(proof) == nonce
        with pytest.raises(TokenError, match="ath"):
            prove(prover.proof("POST", URL, now=NOW, access_token=token), "POST", URL, NOW, seen=seen, access_token="other")


def test_each_proof_is_another() -> None:
    """EX-06: a fresh proof for each request."""
    prover, seen = Prover(), set[str]()
    for _ in range(50):
        prove(prover.proof("POST", URL, now=NOW), "POST", URL, NOW, seen=seen)
    assert len(seen) == 50


def test_a_kept_key_makes_the_same_proofs() -> None:
    prover = Prover()
    again = Prover(prover.pem())
    assert again.thumbprint == prover.thumbprint
    assert prove(again.proof("GET", URL, now=NOW), "GET", URL, NOW, seen=set())[0] == prover.thumbprint
    assert Prover().thumbprint != prover.thumbprint


def test_the_private_key_does_not_get_out() -> None:
    prover = Prover()
    header, _ = parts(prover.proof("GET", URL, now=NOW))
    assert set(header["jwk"]) == {"kty", "crv", "x", "y"}
    assert "PRIVATE" not in repr(prover) + repr(Signer(prover.pem()))


@pytest.mark.parametrize("algorithm", KEYS)
def test_assertions(algorithm: str) -> None:
    """CC-01."""
    signer = Signer(pem(KEYS[algorithm]))
    assert Signer(pem(KEYS[algorithm]).decode(), algorithm).algorithm == signer.algorithm == algorithm
    header, claims = verify(client_assertion(signer, "desk é", "https://as.example/t1", now=NOW), KEYS[algorithm].public_key(), [algorithm])
    assert header["typ"] == "JWT"
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("desk é", "desk é", "https://as.example/t1")
    times(claims, NOW, longest=60)
    _, other = parts(client_assertion(signer, "desk é", "https://as.example/t1", now=NOW))
    assert other["jti"] != claims["jti"]
    with pytest.raises(ValueError, match="another key"):
        Signer(pem(KEYS[algorithm]), "none")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "openssl genpkey"),
        ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----", "not a private key in PEM"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (pem(ec.generate_private_key(ec.SECP256R1()), b"locked"), "decrypt it first"),
        (pem(dsa.generate_private_key(1024)), "P-256, RSA"),
        (pem(rsa.generate_private_key(65537, 1024)), "2048"),
    ],
)
def test_keys_that_are_none(bad: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Signer(bad)
    assert "c2VjcmV0" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_key_for_proofs_is_on_p256() -> None:
    with pytest.raises(ValueError, match="RS256"):
        Prover(pem(RSA))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://Desk.Example:443/mcp?x=1#y", "https://desk.example/mcp"),
        ("HTTPS://desk.example", "https://desk.example/"),
        ("http://127.0.0.1:8000/a/b", "http://127.0.0.1:8000/a/b"),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/mcp"),
        ("http://host:443/", "http://host:443/"),
        ("https://user:secret@host/mcp", "https://host/mcp"),
    ],
)
def test_targets(url: str, target: str) -> None:
    assert http_target(url) == target
    assert parts(Prover().proof("GET", url, now=NOW))[1]["htu"] == target


def test_each_origin_has_its_nonce() -> None:
    nonces = Nonces()
    assert nonces.at(URL) is None
    assert nonces.learn(URL, {"dpop-nonce": "one"})
    assert not nonces.learn(URL + "/other?x", {"dpop-nonce": "one"})
    assert nonces.learn("https://as.example/token", {"dpop-nonce": "two"})
    assert (nonces.at("https://desk.example:443/x"), nonces.at("https://as.example")) == ("one", "two")
    assert nonces.at("http://desk.example/x") is None
    assert not nonces.learn(URL, {})
    for number in range(100):
        nonces.learn(f"https://as{number}.example", {"dpop-nonce": "x"})
    assert nonces.at(URL) is None  # bounded


@pytest.mark.parametrize("nonce", ["", " ", 'a"b', "a\\b", "a b", "é", "x\r\ny", "x" * (MAX_NONCE + 1)])
def test_nonces_that_are_none(nonce: str) -> None:
    nonces = Nonces()
    assert not nonces.learn(URL, {"dpop-nonce": nonce})
    assert nonces.at(URL) is None


@given(st.text(string.printable, max_size=40), st.text(max_size=40), st.text(max_size=20))
def test_whatever_is_signed_can_be_read(method: str, token: str, nonce: str) -> None:
    proof = PROVER.proof(method, URL, now=NOW, access_token=token, nonce=nonce)
    assert prove(proof, method, URL, NOW, seen=set(), access_token=token) == (PROVER.thumbprint, nonce)


PROVER = Prover()
