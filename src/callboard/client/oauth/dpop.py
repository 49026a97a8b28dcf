"""Signatures of a client's: proofs that it holds the key a token is bound to (DPoP, RFC 9449, EX-06), and assertions of who it is (RFC 7523).

A JWS in compact form is two base64url texts and a signature; `cryptography`, which Callboard needs anyway, makes the signature. No clock
here: times come in.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

__all__ = ["MAX_NONCE", "Nonces", "Prover", "Signer", "client_assertion", "http_target", "nonce_in"]

MAX_NONCE: Final = 1024
"""Characters of a nonce; a longer one is not kept."""

ASSERTION_LIFE: Final = 60
"""Seconds that a client assertion is good for: it is used at once."""

_NONCE = re.compile(rf"[\x21\x23-\x5b\x5d-\x7e]{{1,{MAX_NONCE}}}")  # RFC 9449, 8.1: NQCHAR
_MAX_ORIGINS = 16
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LEAST_RSA = 2048
_WAY_OUT = "make one with: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"

# A private key of `cryptography`, which loads with the first signature.
_Key: TypeAlias = Any


class Signer:
    """Signs JSON web tokens with a private key.

    Args:
        pem: The key as PEM, not encrypted: EC on P-256, RSA of 2048 bits or more, or Ed25519.
        algorithm: `ES256`, `RS256` or `EdDSA`; None takes the one that fits the key.

    Attributes:
        algorithm: The algorithm.

    Raises:
        ValueError: The text is no such key, or the algorithm does not fit. The text never repeats the key.
    """

    __slots__ = ("_key", "algorithm")

    def __init__(self, pem: str | bytes, algorithm: str | None = None) -> None:
        self._key = _load(pem)
        self.algorithm = _algorithm(self._key)
        if algorithm not in {None, self.algorithm}:
            raise ValueError(
                f"private key: it signs with {self.algorithm}, not with {algorithm!r}; take the other algorithm or another key"
            )

    def __repr__(self) -> str:
        return f"Signer({self.algorithm})"

    def sign(self, header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
        """Make a token.

        Args:
            header: Members of the header besides `alg`.
            claims: The payload.

        Returns:
            The token in compact form.
        """
        signed = f"{_encode({'alg': self.algorithm, **header})}.{_encode(claims)}"
        return f"{signed}.{_unpadded(_signature(self._key, self.algorithm, signed.encode()))}"


class Prover:
    """Proves that it holds the key that tokens are bound to (ES256).

    Args:
        pem: The key as PEM, as `pem` gave it; None makes a new one.

    Attributes:
        thumbprint: SHA-256 thumbprint of the public key (RFC 7638), as `cnf.jkt` and `dpop_jkt` have it.

    Raises:
        ValueError: The text is no EC key on P-256.
    """

    __slots__ = ("_header", "_signer", "thumbprint")

    def __init__(self, pem: str | bytes | None = None) -> None:
        self._signer = Signer(_new_key() if pem is None else pem, "ES256")
        numbers = self._signer._key.public_key().public_numbers()  # noqa: SLF001 - one module
        x, y = (_unpadded(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        jwk = {"crv": "P-256", "kty": "EC", "x": x, "y": y}  # in the order that the thumbprint wants
        self._header = {"typ": "dpop+jwt", "jwk": jwk}
        self.thumbprint = _unpadded(sha256(msgspec.json.encode(jwk)).digest())

    def __repr__(self) -> str:
        return f"Prover({self.thumbprint})"

    def pem(self) -> str:
        """The private key, to be kept with the tokens that are bound to it. A secret."""
        from cryptography.hazmat.primitives import serialization

        key = self._signer._key  # noqa: SLF001 - one module
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return str(key.private_bytes(encoding, form, serialization.NoEncryption()).decode())

    def proof(self, method: str, url: str, *, now: float, access_token: str | None = None, nonce: str | None = None) -> str:
        """Make a proof for one request; each is good once.

        Args:
            method: HTTP method of the request.
            url: Where it goes; query and fragment do not count.
            now: Unix time in seconds.
            access_token: The token that goes with it; None at a token endpoint.
            nonce: What the server wants to see in it; None for nothing.

        Returns:
            Value of the `DPoP` header.
        """
        claims: dict[str, Any] = {"jti": token_urlsafe(16), "htm": method, "htu": http_target(url), "iat": int(now)}
        if access_token is not None:
            claims["ath"] = _unpadded(sha256(access_token.encode()).digest())
        if nonce is not None:
            claims["nonce"] = nonce
        return self._signer.sign(self._header, claims)


class Nonces:
    """What servers want to see in the next proof; each origin has its own (RFC 9449, 8.2)."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Nonces({', '.join(self._known)})"

    def learn(self, url: str, headers: Mapping[str, str]) -> bool:
        """Keep the nonce of an answer.

        Args:
            url: Where the answer is from.
            headers: Its headers, names in lower case.

        Returns:
            Whether there was a nonce, and another one than before.
        """
        nonce = headers.get("dpop-nonce", "")
        if not _NONCE.fullmatch(nonce):
            return False
        origin = _origin(url)
        changed = self._known.pop(origin, None) != nonce
        if len(self._known) >= _MAX_ORIGINS:
            del self._known[next(iter(self._known))]
        self._known[origin] = nonce
        return changed

    def at(self, url: str) -> str | None:
        """The nonce for a request to a URL; None when its server named none."""
        return self._known.get(_origin(url))


def nonce_in(proof: str) -> str | None:
    """The nonce of a proof that a `Prover` made; None when it has none."""
    claims = msgspec.json.decode(urlsafe_b64decode(proof.split(".")[1] + "=="), type=dict[str, Any])
    return claims.get("nonce")


def client_assertion(signer: Signer, client_id: str, audience: str, *, now: float) -> str:
    """Say who a client is, signed with its key (CC-01); good once and for a minute.

    Args:
        signer: The client's key.
        client_id: Its id.
        audience: Issuer of the authorization server.
        now: Unix time in seconds.

    Returns:
        Value of `client_assertion`.
    """
    issued = int(now)
    claims = {"iss": client_id, "sub": client_id, "aud": audience, "iat": issued, "exp": issued + ASSERTION_LIFE, "jti": token_urlsafe(16)}
    return signer.sign({"typ": "JWT"}, claims)


def http_target(url: str) -> str:
    """A URL as a server sees it: no query, no fragment, no user, no port that goes without saying (RFC 9449, 4.2)."""
    parts = urlsplit(url)
    return f"{_origin(url)}{parts.path or '/'}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in {None, _DEFAULT_PORTS.get(parts.scheme)} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def _encode(value: Mapping[str, Any]) -> str:
    return _unpadded(msgspec.json.encode(value))


def _unpadded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _new_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _load(pem: str | bytes) -> _Key:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem.encode() if isinstance(pem, str) else pem, None)
    except TypeError:  # what the package says may quote the key, so nothing of it is shown
        raise ValueError("private key: it is encrypted; decrypt it first: openssl pkey -in key.pem") from None
    except (ValueError, UnsupportedAlgorithm, AttributeError):
        raise ValueError(f"private key: not a private key in PEM (it begins with -----BEGIN PRIVATE KEY-----); {_WAY_OUT}") from None


def _algorithm(key: _Key) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _LEAST_RSA:
        return "RS256"
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "EdDSA"
    raise ValueError(f"private key: EC on P-256, RSA of at least {_LEAST_RSA} bits or Ed25519 is needed; {_WAY_OUT}")


def _signature(key: _Key, algorithm: str, data: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    if algorithm == "ES256":
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")  # RFC 7518, 3.4
    made: bytes = key.sign(data, padding.PKCS1v15(), hashes.SHA256()) if algorithm == "RS256" else key.sign(data)
    return made
