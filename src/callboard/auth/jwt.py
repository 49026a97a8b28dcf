"""Access tokens that are signed JWTs (RFC 9068 and what came before it).

A token is checked from the cheap to the dear: length, form, header and claims (`claims.py`), then the key (`keys.py`, `jwks.py`), then one signature.
PyJWT makes the keys and checks the signature. It does not read the token: its reader takes times that are texts, keys that stand twice, and the
clock of the machine.

To check a signature takes 0.05 to 0.2 ms of the event loop for RSA up to 4096 bits, P-256 and Ed25519, and up to 1 ms for P-384, P-521, Ed448 and RSA
of 8192 bits; all the rest takes 0.1 ms. What was granted is remembered for a minute, so that this is no part of most requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from callboard.auth.claims import (
    Compact,
    Expectation,
    TokenError,
    check_claims,
    read_audience,
    read_compact,
    read_names,
    read_scopes,
    read_subject,
)
from callboard.auth.jwks import KeySet
from callboard.auth.keys import ALGORITHMS, SECRET_ALGORITHMS, Key, KeyRing, given_keys
from callboard.auth.outbound import Send, check_url
from callboard.auth.principal import Principal
from callboard.auth.verifier import Grant, Refusal, Verifier
from callboard.errors import RegistrationError

__all__ = ["JWT"]

MAX_LENGTH = 16_384
# Seconds for which a grant may be remembered: so long a key may still be trusted after the authorization server withdrew it.
REMEMBERED = 60.0
_WRONG = Refusal("invalid", "The signature of the access token is wrong.")
_STRANGE = Refusal("invalid", "The access token is signed with a key that its issuer does not have.")


class JWT(Verifier):
    """Access tokens that are JWTs, signed by an authorization server.

        auth=JWT("https://login.example.com")

    Args:
        issuer: The authorization server, exactly as `iss` of its tokens has it.
        audience: Who tokens must be for, as `aud` has it: one name or several. By default the `resource` of the application (AR-08).
        jwks_uri: Where the issuer's keys are. By default its metadata says it (RFC 8414, OpenID Connect).
        keys: The issuer's keys, where they are not fetched: a JWK, a JWK set, a public key as PEM, or a list of these.
        algorithms: Those that are accepted. By default all asymmetric ones; with secrets among `keys`, HS256, HS384 and HS512 as well. A key serves
            the algorithms of its own kind alone.
        leeway: Seconds by which clocks may differ, up to 300.
        subject: Claims that say whose a token is; the first that is there counts.
        scopes: Claims that say what it allows, a text with blanks between or a list; all that are there count.
        required_claims: Claims that must be there besides `iss`, `aud`, `exp` and the subject.
        types: What `typ` of its header may be; None for not there.
        max_length: Characters that a token may have.
        insecure: Let keys come over http from other machines, for tests within a closed network.
        send: Sends the requests for keys; by default aiohttp does.
        clock: Unix time.
        ticks: Seconds that never go back, for the age of keys.

    Raises:
        RegistrationError: An option can't work, or PyJWT is not installed.

    Attributes:
        generation: Counts the keys that were withdrawn.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Collection[str] | None = None,
        *,
        jwks_uri: str | None = None,
        keys: Any = None,
        algorithms: Collection[str] | None = None,
        leeway: float = 30.0,
        subject: str | Iterable[str] = ("sub", "client_id"),
        scopes: str | Iterable[str] = ("scope", "scp"),
        required_claims: str | Iterable[str] = (),
        types: Iterable[str | None] = ("at+jwt", "JWT", None),
        max_length: int = MAX_LENGTH,
        insecure: bool = False,
        send: Send | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signatures = _load_algorithms()
        self._issuer = _check_issuer(issuer, jwks_uri, keys, insecure=insecure)
        self._algorithms = _check_algorithms(algorithms, secret=keys is not None)
        self._subject = read_names(subject, "JWT: subject")
        if not self._subject:
            raise RegistrationError("JWT: subject names no claim that could say whose a token is.")
        self._scopes = read_names(scopes, "JWT: scopes")
        if isinstance(leeway, bool) or not isinstance(leeway, int | float) or not 0 <= leeway <= 300:
            raise RegistrationError(f"JWT: leeway is a number of seconds from 0 to 300, not {leeway!r}.")
        if not isinstance(max_length, int) or not 256 <= max_length <= 2**20:
            raise RegistrationError(f"JWT: max_length is a number of characters from 256 to {2**20}, not {max_length!r}.")
        self._max_length, self._clock = max_length, clock
        self._audience = None if audience is None else read_audience(audience, "JWT: audience")
        self._bound: str | None = None
        named = _check_types(types)
        self._expected = Expectation(
            issuer, self._audience or frozenset(), named, read_names(required_claims, "JWT: required_claims"), leeway
        )
        self._ring = None if keys is None else given_keys(keys, self._algorithms)
        self._keys = KeySet(issuer, jwks_uri, self._algorithms, insecure=insecure, send=send, clock=ticks, on_loss=self._lose)
        if urlsplit(issuer).scheme in {"https", "http"}:
            self.issuers = (issuer,)

    def __repr__(self) -> str:
        """Whose tokens."""
        return f"<JWT of {self._issuer}>"

    def facts(self) -> dict[str, Any]:
        """What tokens are held to."""
        served = self._algorithms if self._ring is None else frozenset[str]().union(*(key.algorithms for key in self._ring.keys))
        return {
            "issuer": self._issuer,
            "audience": sorted(self._expected.audience),
            "algorithms": sorted(served),
            "keys": self._keys.source if self._ring is None else "given",
            "leeway": self._expected.leeway,
        }

    def bind(self, resource: str | None) -> None:
        """Take the server's identifier for the audience, where none was given.

        Args:
            resource: The server's identifier.

        Raises:
            RegistrationError: It is needed, and missing or another one than before.
        """
        if self._audience is not None:
            return
        if resource is None:
            raise RegistrationError(
                f"{self!r} doesn't know who tokens must be for: give resource= to the application, or audience= to JWT."
            )
        if self._bound not in {None, resource}:
            raise RegistrationError(
                f"{self!r} is for {self._bound} already: tokens for one application are none for another, so make a JWT for each."
            )
        self._bound = resource
        self._expected = self._expected._replace(audience=frozenset({resource}))

    async def close(self) -> None:
        """End what is on its way."""
        await self._keys.close()

    async def verify(self, credential: str) -> Grant | Refusal:
        """Say whose a token is (AR-05, AR-08).

        Args:
            credential: The token.
        """
        if len(credential) > self._max_length:
            return Refusal("invalid", f"The access token is longer than {self._max_length} characters.")
        now = self._clock()
        try:
            token = read_compact(credential, self._algorithms)
            until = check_claims(token, self._expected, now)
            claim, subject = read_subject(token.claims, self._subject)
            scopes = read_scopes(token.claims, self._scopes)
        except TokenError as error:
            return Refusal("invalid", str(error), note=error.note)
        refusal = await self._check_signature(token)
        if refusal is not None:
            return refusal
        identity = f"{self._issuer}#{claim}={subject}"
        principal = Principal(identity, scopes, subject=subject, claims=MappingProxyType(token.claims))
        return Grant(principal, min(until, now + REMEMBERED))

    async def _check_signature(self, token: Compact) -> Refusal | None:
        ring = self._ring if self._ring is not None else await self._keys.find(token.kid, token.algorithm)
        if not isinstance(ring, KeyRing):
            return _STRANGE if ring is None else ring
        fitting = ring.fit(token.kid, token.algorithm)
        if not fitting:
            return _STRANGE
        if any(self._is_signed(token, key) for key in fitting):
            return None
        if self._ring is None and any(key.kid is None for key in fitting):
            # A key without a name may have been replaced by another: nothing in the token could tell.
            renewed = await self._keys.find(token.kid, token.algorithm, tried=ring)
            if isinstance(renewed, KeyRing) and any(self._is_signed(token, key) for key in renewed.fit(token.kid, token.algorithm)):
                return None
        return _WRONG

    def _is_signed(self, token: Compact, key: Key) -> bool:
        return bool(self._signatures[token.algorithm].verify(token.signed, key.material, token.signature))

    def _lose(self) -> None:
        self.generation += 1


def _load_algorithms() -> Mapping[str, Any]:
    """PyJWT's algorithms by name."""
    try:
        import jwt
    except ImportError:
        raise RegistrationError('JWT needs PyJWT, which is not installed: pip install "callboard[auth]".') from None
    signatures = jwt.PyJWS()
    return {name: signatures.get_algorithm_by_name(name) for name in (*ALGORITHMS, *SECRET_ALGORITHMS)}


def _check_issuer(issuer: Any, jwks_uri: Any, keys: Any, *, insecure: bool) -> str:
    if not isinstance(issuer, str) or not issuer or not issuer.isprintable() or "#" in issuer or " " in issuer:
        raise RegistrationError(f"JWT: issuer is the text that iss of the tokens has, such as 'https://login.example.com', not {issuer!r}.")
    if keys is not None and jwks_uri is not None:
        raise RegistrationError("JWT: keys= are given and jwks_uri= says where to fetch them; give one of the two.")
    if jwks_uri is not None:
        check_url(jwks_uri, "JWT: jwks_uri", insecure=insecure)
    elif keys is None:
        check_url(issuer, "JWT: issuer", insecure=insecure)
        if "?" in issuer:
            raise RegistrationError(
                f"JWT: issuer {issuer.partition('?')[0]!r} has a query, so it has no metadata; give jwks_uri= or keys=."
            )
    return issuer


def _check_types(types: Any) -> frozenset[str | None]:
    if isinstance(types, str) or not isinstance(types, Iterable):
        raise RegistrationError(f"JWT: types is a list of what typ may be, not {types!r}.")
    listed = tuple(types)
    if not listed or not all(name is None or isinstance(name, str) for name in listed):
        raise RegistrationError(f"JWT: types is a list of str, and of None for tokens without typ, not {types!r}.")
    return frozenset(None if name is None else name.lower().removeprefix("application/") for name in listed)


def _check_algorithms(algorithms: Collection[str] | None, *, secret: bool) -> frozenset[str]:
    known = {*ALGORITHMS, *SECRET_ALGORITHMS} if secret else {*ALGORITHMS}
    if algorithms is None:
        return frozenset(known)
    wanted = read_names(algorithms, "JWT: algorithms")
    for name in wanted:
        if name in SECRET_ALGORITHMS and not secret:
            raise RegistrationError(f"JWT: {name} works with a secret, which is never fetched; give it as keys=, or leave {name} out.")
        if name not in known:
            raise RegistrationError(f"JWT: algorithms: {name!r} is none of {', '.join(known)}.")
    if not wanted:
        raise RegistrationError("JWT: algorithms is empty, so no token could ever be right.")
    return frozenset(wanted)
