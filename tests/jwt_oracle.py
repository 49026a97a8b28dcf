"""JSON web tokens as RFC 7515 and RFC 9449 say, made and read with `cryptography` alone: the measure for what the client makes."""

import base64
import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
PROOF_LIFE = 300.0  # EX-06: seconds that `iat` may be off


class TokenError(Exception):
    """What is wrong with a token."""


def unpadded(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def padded(text: str) -> bytes:
    """And back; characters outside the alphabet and padding are errors."""
    if not text.isascii() or not all(letter.isalnum() or letter in "-_" for letter in text):
        raise TokenError("no base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def sign(header: Mapping[str, Any], claims: Mapping[str, Any], key: ec.EllipticCurvePrivateKey) -> str:
    """A token signed with ES256."""
    signed = f"{unpadded(json.dumps(header).encode())}.{unpadded(json.dumps(claims).encode())}"
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{unpadded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims, unchecked."""
    pieces = token.split(".")
    if len(pieces) != 3:
        raise TokenError("not three parts")
    try:
        header, claims = json.loads(padded(pieces[0])), json.loads(padded(pieces[1]))
    except ValueError as error:
        raise TokenError("not JSON") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise TokenError("not objects")
    return header, claims


def verify(token: str, key: PublicKey | None, algorithms: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a token whose signature is right."""
    header, claims = parts(token)
    algorithm = header.get("alg")
    if algorithm not in algorithms:
        raise TokenError(f"algorithm {algorithm!r} is not one of {sorted(algorithms)}")
    signed, _, signature = token.rpartition(".")
    raw = padded(signature)
    try:
        if algorithm == "ES256" and isinstance(key, ec.EllipticCurvePublicKey) and len(raw) == 64:
            dss = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            key.verify(dss, signed.encode(), ec.ECDSA(hashes.SHA256()))
        elif algorithm == "RS256" and isinstance(key, rsa.RSAPublicKey):
            key.verify(raw, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        elif algorithm == "EdDSA" and isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(raw, signed.encode())
        else:
            raise TokenError("the key does not fit the algorithm")
    except InvalidSignature as error:
        raise TokenError("the signature is wrong") from error
    return header, claims


def times(claims: Mapping[str, Any], now: float, *, longest: float = 3600.0) -> None:
    """Checks `iat` and `exp`: whole seconds, not over, not for ever."""
    expires, issued = claims.get("exp"), claims.get("iat")
    if type(expires) is not int or type(issued) is not int:
        raise TokenError("exp and iat must be whole seconds")
    if expires <= now:
        raise TokenError("expired")
    if issued > now + 60 or expires - issued > longest:
        raise TokenError("made in the future, or too long good")


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """RFC 7638, of an EC key."""
    members = {name: jwk[name] for name in ("crv", "kty", "x", "y")}
    return unpadded(hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).digest())


def _ec_key(jwk: Mapping[str, Any]) -> ec.EllipticCurvePublicKey:
    if set(jwk) - {"kty", "crv", "x", "y", "kid", "use", "alg"} or jwk.get("kty") != "EC" or jwk.get("crv") != "P-256":
        raise TokenError("jwk must be a public EC key on P-256 and no more")
    x, y = padded(jwk["x"]), padded(jwk["y"])
    if len(x) != 32 or len(y) != 32:
        raise TokenError("coordinates have 32 bytes")
    return ec.EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), ec.SECP256R1()).public_key()


def prove(proof: str, method: str, url: str, now: float, *, seen: set[str], access_token: str | None = None) -> tuple[str, str | None]:
    """Checks a DPoP proof (RFC 9449, 4.3). Gives the key's thumbprint and the nonce."""
    header, _ = parts(proof)
    if header.get("typ") != "dpop+jwt" or not isinstance(header.get("jwk"), dict):
        raise TokenError("typ must be dpop+jwt, and jwk an object")
    _, claims = verify(proof, _ec_key(header["jwk"]), ["ES256"])
    wanted = urlsplit(url)._replace(query="", fragment="").geturl()
    if claims.get("htm") != method or claims.get("htu") != wanted:
        raise TokenError(f"for {claims.get('htm')} {claims.get('htu')}, not {method} {wanted}")
    if type(claims.get("iat")) is not int or abs(claims["iat"] - now) > PROOF_LIFE:
        raise TokenError("iat is off")
    token_id = claims.get("jti")
    if not isinstance(token_id, str) or len(token_id) < 16 or token_id in seen:
        raise TokenError("jti is short, or was here before")
    seen.add(token_id)
    hashed = None if access_token is None else unpadded(hashlib.sha256(access_token.encode()).digest())
    if claims.get("ath") != hashed:
        raise TokenError("ath does not fit the token")
    return thumbprint(header["jwk"]), claims.get("nonce")


class Nonces:
    """What a server hands out as `DPoP-Nonce`: good for so many proofs, then for none."""

    def __init__(self, uses: int = 0) -> None:
        self.uses = uses  # 0: without end
        self.renew()

    def renew(self) -> None:
        """The current one is over."""
        self.current = secrets.token_urlsafe(12)
        self._left = self.uses

    def take(self, nonce: str | None) -> bool:
        """Whether a proof with it is taken."""
        if nonce != self.current:
            return False
        if self.uses:
            self._left -= 1
            if not self._left:
                self.renew()
        return True


def public_pem(key: PublicKey) -> bytes:
    """A public key as PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
