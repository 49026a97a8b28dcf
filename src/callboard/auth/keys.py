"""Keys that signatures of tokens are checked with: read from a JWK set or from what an author gives, and which of them fits a token.

Rules:
    1. A key serves the algorithms of its own kind alone, whatever a token's header says (RFC 8725 sections 3.1 and 3.2).
    2. Of a fetched set, these are passed over: kinds not listed here, `oct`, private keys, `use` other than `sig`, `key_ops` without `verify`, RSA
       below 2048 or above 8192 bits or with an exponent above 32 bits (checking those takes too long), members that are no base64url.
       Given by an author, each of them is an error.
    3. A token that names a key (`kid`) is checked with keys of that name; where a key has no name, with that, if it is the only one that fits.
       A token that names none is checked with the only key that fits. Where several fit, nobody guesses.
    4. Secrets (`oct`) are given as a JWK, never as bytes: else a damaged public key could become one, which everybody knows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from callboard.auth.json_object import read_object
from callboard.errors import RegistrationError

__all__ = ["ALGORITHMS", "SECRET_ALGORITHMS", "Key", "KeyRing", "given_keys", "read_keys"]

# Algorithm -> kinds of keys that it works with.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RS256": ("RSA",),
    "RS384": ("RSA",),
    "RS512": ("RSA",),
    "PS256": ("RSA",),
    "PS384": ("RSA",),
    "PS512": ("RSA",),
    "ES256": ("P-256",),
    "ES384": ("P-384",),
    "ES512": ("P-521",),
    "EdDSA": ("Ed25519", "Ed448"),
}
# Algorithm with a shared secret -> fewest bytes of that (RFC 7518 section 3.2).
SECRET_ALGORITHMS: Mapping[str, int] = {"HS256": 32, "HS384": 48, "HS512": 64}
# Members that make the public part of a key, by kty; and names in cryptography of the curves.
_MEMBERS = {"RSA": ("n", "e"), "EC": ("x", "y"), "OKP": ("x",)}
_CURVES = {"EC": ("P-256", "P-384", "P-521"), "OKP": ("Ed25519", "Ed448")}
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
MIN_RSA_BITS, MAX_RSA_BITS, MAX_EXPONENT_BITS = 2048, 8192, 32
# A set with more keys than this is refused, and a token is checked with no more than so many of the same name.
MAX_KEYS, MAX_TRIED = 100, 3
MAX_KID = 512


class Key(NamedTuple):
    """A key.

    Attributes:
        kid: Its name; None without one.
        algorithms: What it serves.
        material: What PyJWT's algorithms take.
        thumbprint: Tells it from every other key, and from the same with another name.
    """

    kid: str | None
    algorithms: frozenset[str]
    material: Any
    thumbprint: bytes

    def __repr__(self) -> str:
        """Without its material, which may be a secret."""
        return f"<Key {self.kid!r} for {', '.join(sorted(self.algorithms))}>"


class KeyRing(NamedTuple):
    """Keys in use.

    Attributes:
        keys: All of them.
        passed_over: For each key of the set that is not among them, why.
    """

    keys: tuple[Key, ...] = ()
    passed_over: tuple[str, ...] = ()

    def fit(self, kid: str | None, algorithm: str) -> tuple[Key, ...]:
        """The keys that a token may be checked with, at most MAX_TRIED (rule 3)."""
        fitting = [key for key in self.keys if algorithm in key.algorithms]
        if kid is not None:
            if named := [key for key in fitting if key.kid == kid]:
                return tuple(named[:MAX_TRIED])
            fitting = [key for key in fitting if key.kid is None]
        return tuple(fitting) if len(fitting) == 1 else ()

    def lacks(self, other: KeyRing) -> bool:
        """Whether a key of another ring is not here."""
        return not {key.thumbprint for key in other.keys} <= {key.thumbprint for key in self.keys}


class _UnfitError(ValueError):
    """A key can't be used; the text says why and holds nothing of it."""


def read_keys(body: bytes, algorithms: Collection[str]) -> KeyRing:
    """The keys of a JWK set that was fetched (rule 2).

    Args:
        body: The document.
        algorithms: What keys are wanted for.

    Raises:
        ValueError: It is no JWK set.
    """
    keys = read_object(body).get("keys")
    if not isinstance(keys, list):
        raise ValueError("no JWK set: it has no list of keys")  # noqa: TRY004 - bad data, not a bad argument
    if len(keys) > MAX_KEYS:
        raise ValueError(f"a JWK set of {len(keys)} keys, more than {MAX_KEYS}")
    usable: list[Key] = []
    unfit: list[str] = []
    for jwk in keys:
        try:
            usable.append(_read_public(jwk, algorithms))
        except _UnfitError as error:
            unfit.append(str(error))
    return KeyRing(tuple(usable), tuple(dict.fromkeys(unfit)))


def given_keys(given: Any, algorithms: Collection[str]) -> KeyRing:
    """The keys that an author gives.

    Args:
        given: A JWK, a JWK set, a public key as PEM, or a list of these.
        algorithms: What they are wanted for.

    Raises:
        RegistrationError: One of them can't be used. The text holds nothing of it.
    """
    if isinstance(given, Mapping) and "keys" in given:
        given = given["keys"]
    sources = list(given) if isinstance(given, list | tuple) else [given]
    keys = []
    for number, source in enumerate(sources, 1):
        try:
            keys.append(_read_given(source, algorithms))
        except _UnfitError as error:
            where = "keys" if len(sources) == 1 else f"keys: number {number}"
            raise RegistrationError(f"{where}: {error}.") from None
    if not keys:
        raise RegistrationError("keys: there is none, so no token could ever be right.")
    return KeyRing(tuple(keys))


def _read_given(source: Any, algorithms: Collection[str]) -> Key:
    if isinstance(source, Mapping):
        return _read_secret(source, algorithms) if source.get("kty") == "oct" else _read_public(source, algorithms)
    if isinstance(source, str):
        source = source.encode()
    if not isinstance(source, bytes) or not source.lstrip().startswith(b"-----BEGIN "):
        raise _UnfitError('a key is a JWK, or a public key as PEM; a secret is given as {"kty": "oct", "k": <base64url>}')
    if b"PRIVATE KEY" in source:
        raise _UnfitError("this is a private key, which only the authorization server may have; give the public one")
    return _read_pem(source, algorithms)


def _read_pem(source: bytes, algorithms: Collection[str]) -> Key:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(source)
    except (ValueError, UnsupportedAlgorithm):
        raise _UnfitError("this PEM is no public key (BEGIN PUBLIC KEY)") from None
    kind = "another kind"
    if isinstance(key, rsa.RSAPublicKey):
        kind = "RSA"
        _check_rsa(key.key_size, key.public_numbers().e)
    elif isinstance(key, ec.EllipticCurvePublicKey):
        kind = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}.get(key.curve.name, key.curve.name)
    elif isinstance(key, ed25519.Ed25519PublicKey):
        kind = "Ed25519"
    elif isinstance(key, ed448.Ed448PublicKey):
        kind = "Ed448"
    return Key(None, _served(kind, None, algorithms), key, hashlib.sha256(source).digest())


def _read_public(jwk: Any, algorithms: Collection[str]) -> Key:
    if not isinstance(jwk, Mapping):
        raise _UnfitError("a key is no JSON object")
    kid = _read_kid(jwk)
    kty = jwk.get("kty")
    if not isinstance(kty, str) or kty not in _MEMBERS:
        raise _UnfitError("a key has a kty that is none of RSA, EC and OKP")
    if not _PRIVATE.isdisjoint(jwk):
        raise _UnfitError("a key has private parts, which only the authorization server may have")
    _check_use(jwk)
    kind = kty
    if kty in _CURVES:
        kind = jwk.get("crv", "")
        if kind not in _CURVES[kty]:
            raise _UnfitError(f"a key of kty {kty} has a crv that is none of {', '.join(_CURVES[kty])}")
    served = _served(kind, jwk.get("alg"), algorithms)
    members = {name: _canonical(jwk.get(name)) for name in _MEMBERS[kty]}
    if kty == "RSA":
        modulus, exponent = (int.from_bytes(raw) for raw in members.values())
        _check_rsa(modulus.bit_length(), exponent)
    thumbprint = hashlib.sha256(repr((kid, kind, sorted(served), list(members.values()))).encode()).digest()
    return Key(kid, served, _make(kty, kind, {name: jwk[name] for name in members}), thumbprint)


def _make(kty: str, kind: str, members: dict[str, Any]) -> Any:
    """The key as cryptography has it; a point off its curve is an error there."""
    from jwt import PyJWS
    from jwt.exceptions import InvalidKeyError

    example = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[kty]
    try:
        return PyJWS().get_algorithm_by_name(example).from_jwk({"kty": kty, "crv": kind, **members})
    except (InvalidKeyError, ValueError):
        raise _UnfitError(f"a key of kty {kty} is none") from None


def _read_secret(jwk: Mapping[str, Any], algorithms: Collection[str]) -> Key:
    _check_use(jwk)
    secret = _canonical(jwk.get("k"))
    fits = frozenset(name for name, least in SECRET_ALGORITHMS.items() if len(secret) >= least)
    if not fits:
        raise _UnfitError(f"a secret of {len(secret)} bytes is too short; {SECRET_ALGORITHMS['HS256']} random bytes are the least")
    wanted = jwk.get("alg")
    served = fits & frozenset(algorithms) & ({wanted} if wanted is not None else fits)
    if not served:
        raise _UnfitError(f"a secret of {len(secret)} bytes serves {', '.join(sorted(fits))}, and none of these is wanted")
    return Key(_read_kid(jwk), served, secret, hashlib.sha256(secret).digest())


def _read_kid(jwk: Mapping[str, Any]) -> str | None:
    kid = jwk.get("kid")
    if kid is not None and (not isinstance(kid, str) or len(kid) > MAX_KID):
        raise _UnfitError(f"a key has a kid that is no string of at most {MAX_KID} characters")
    return kid


def _check_use(jwk: Mapping[str, Any]) -> None:
    if jwk.get("use", "sig") != "sig":
        raise _UnfitError("a key is for another use than signatures")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise _UnfitError("a key has key_ops without verify")


def _check_rsa(bits: int, exponent: int) -> None:
    if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
        raise _UnfitError(f"an RSA key has {bits} bits, and not {MIN_RSA_BITS} to {MAX_RSA_BITS}")
    if exponent < 3 or not exponent % 2 or exponent.bit_length() > MAX_EXPONENT_BITS:
        raise _UnfitError(f"an RSA key has an exponent that is even, below 3 or longer than {MAX_EXPONENT_BITS} bits")


def _served(kind: str, wanted: Any, algorithms: Collection[str]) -> frozenset[str]:
    """The algorithms that a key of this kind serves here (rule 1)."""
    fits = {name for name, kinds in ALGORITHMS.items() if kind in kinds}
    served = frozenset(fits & set(algorithms) & ({wanted} if isinstance(wanted, str) else fits if wanted is None else set()))
    if not served:
        raise _UnfitError(f"a key ({kind}) is for another algorithm than {', '.join(sorted(algorithms))}")
    return served


def _canonical(text: Any) -> bytes:
    """The bytes of a base64url text that is written as it has to be."""
    if not isinstance(text, str) or not _BASE64URL.fullmatch(text):
        raise _UnfitError("a key has a member that is no base64url")
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise _UnfitError("a key has a member that is no base64url") from None
    return raw
