"""Signed tokens of every algorithm and every kind of wrong, made with `cryptography` alone: what PyJWT would refuse to make is wanted too."""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from jwt_oracle import public_pem, unpadded

ISSUER = "https://login.example.com"
AUDIENCE = "https://mcp.example.com/mcp"
NOW = 1_800_000_000.0
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey | bytes
_HASHES: dict[str, hashes.HashAlgorithm] = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
_CURVES: dict[str, ec.EllipticCurve] = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
    "secp256k1": ec.SECP256K1(),
}
KINDS = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
}  # fmt: skip


@cache
def private_key(kind: str, number: int = 0) -> Any:
    """A key of a kind; another one for another number."""
    if kind.startswith("RSA"):
        return rsa.generate_private_key(public_exponent=65537, key_size=int(kind[3:] or 2048))
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    if kind == "Ed448":
        return ed448.Ed448PrivateKey.generate()
    return ec.generate_private_key(_CURVES[kind])


def _number(value: int, size: int | None = None) -> str:
    return unpadded(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def jwk(key: Any, kid: str | None = "k1", **more: Any) -> dict[str, Any]:
    """The public part of a key as a JWK."""
    made: dict[str, Any] = {} if kid is None else {"kid": kid}
    if isinstance(key, bytes):
        made |= {"kty": "oct", "k": unpadded(key)}
    elif isinstance(key, rsa.RSAPrivateKey):
        public = key.public_key().public_numbers()
        made |= {"kty": "RSA", "n": _number(public.n), "e": _number(public.e)}
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        point, size = key.public_key().public_numbers(), (key.key_size + 7) // 8
        curve = next(name for name, curve in _CURVES.items() if curve.name == key.curve.name)
        made |= {"kty": "EC", "crv": curve, "x": _number(point.x, size), "y": _number(point.y, size)}
    else:
        curve = "Ed25519" if isinstance(key, ed25519.Ed25519PrivateKey) else "Ed448"
        made |= {"kty": "OKP", "crv": curve, "x": unpadded(key.public_key().public_bytes_raw())}
    return made | more


def jwks(*keys: Mapping[str, Any]) -> bytes:
    """A JWK set."""
    return json.dumps({"keys": list(keys)}).encode()


def pem(key: Any) -> bytes:
    """A public key as PEM."""
    return public_pem(key.public_key())


def signature(algorithm: str, key: Any, signed: bytes) -> bytes:
    """A signature, by the rules of RFC 7518 section 3."""
    if algorithm == "EdDSA":
        return bytes(key.sign(signed))
    hashed = _HASHES[algorithm[2:]]
    if algorithm.startswith("HS"):
        return hmac.digest(key, signed, getattr(hashlib, hashed.name))
    if algorithm.startswith("RS"):
        return bytes(key.sign(signed, padding.PKCS1v15(), hashed))
    if algorithm.startswith("PS"):
        return bytes(key.sign(signed, padding.PSS(padding.MGF1(hashed), hashed.digest_size), hashed))
    size = (key.key_size + 7) // 8
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashed)))
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of a good token; a change to `...` leaves one out."""
    made = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "exp": int(NOW) + 600,
        "iat": int(NOW) - 5,
        "scope": "files:read files:write",
        **changes,
    }
    return {name: value for name, value in made.items() if value is not ...}


def header(**changes: Any) -> dict[str, Any]:
    """The header of a good token."""
    made = {"alg": "ES256", "kid": "k1", "typ": "at+jwt", **changes}
    return {name: value for name, value in made.items() if value is not ...}


def mint(
    key: Any = None,
    head: Mapping[str, Any] | bytes | None = None,
    body: Mapping[str, Any] | bytes | None = None,
    *,
    sign: Callable[[bytes], bytes] | None = None,
    **changes: Any,
) -> str:
    """A token.

    Args:
        key: Whose signature it has; the P-256 key of this module by default.
        head: Its header, or the bytes of it.
        body: Its claims, or the bytes of them.
        sign: Signs, in place of the key and of what the header says.
        **changes: Claims that differ from those of a good token.
    """
    head = header() if head is None else head
    body = claims(**changes) if body is None else body
    texts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (head, body)]
    signed = b".".join(unpadded(text).encode() for text in texts)
    if sign is None:
        assert not isinstance(head, bytes)
        algorithm = head["alg"]
        sign = lambda data: signature(algorithm, private_key("P-256") if key is None else key, data)  # noqa: E731 - needs both
    return f"{signed.decode()}.{unpadded(sign(signed))}"


def raw(inner: bytes) -> str:
    """A token whose claims are written by hand."""
    rest = b"" if b'"sub"' in inner else b',"sub":"ann"'
    rest += b"" if b'"iss"' in inner else b',"iss":"%s"' % ISSUER.encode()
    return mint(body=b'{"aud":"%s"%s,%s}' % (AUDIENCE.encode(), rest, inner))
