"""What a token says, checked: its three parts, its header, its claims. All of it before a key is fetched or a signature computed.

Rules (RFC 7515, RFC 7519, RFC 8725, RFC 9068):
    1. A token is three parts of base64url without padding; header and claims are JSON objects that all readers read alike.
    2. `alg` is one that is wanted; `crit` and `b64` are refused, since no extension is understood here; `jku`, `jwk`, `x5u`, `x5c` are never looked at.
    3. `typ` is one of those wanted, in any case, with or without `application/`.
    4. `iss` is the issuer by plain comparison; `aud` is the audience or holds it.
    5. `exp` is there; `exp`, `nbf`, `iat` are finite numbers, and the time is right, give or take `leeway`.
    6. A token that is no access token is refused where that shows: ID tokens, refresh tokens and logout tokens of servers that sign all alike. So
       is one that is bound to a key of its client's (`cnf`): sent as a bearer token, it may be stolen (RFC 9449 section 7.1).

Refusals say which rule, and hold nothing of the token; their notes, for the server's log, hold whom it is for.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from callboard.auth.json_object import read_object
from callboard.errors import RegistrationError

__all__ = [
    "Compact",
    "Expectation",
    "TokenError",
    "check_audience",
    "check_claims",
    "check_expiry",
    "check_use",
    "read_audience",
    "read_compact",
    "read_names",
    "read_scopes",
    "read_subject",
    "told_issuer",
]

MAX_KID = 512
MAX_SUBJECT = 1024
# What a note shows of an `aud`: characters and names.
MAX_SHOWN, MAX_SHOWN_NAMES = 200, 5
# Claims that ID tokens and logout tokens have, and access tokens have not.
_FOREIGN = ("at_hash", "c_hash", "s_hash", "nonce", "events")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
# Names of claims, which refusals and identities hold: printable ASCII that ends neither.
_NAME = re.compile(r"[!$-<>-\[\]-~]+")
_STANDARD = str.maketrans("-_", "+/")
# RFC 6749 section 3.3: what a scope is made of.
_SCOPE = re.compile(r"[!#-\[\]-~]*")


class TokenError(Exception):
    """A token is refused.

    Args:
        text: One sentence for the client; it holds nothing of the token.
        note: What the server's own log may know besides; printable, and no secret.

    Attributes:
        note: As given.
    """

    def __init__(self, text: str, note: str = "") -> None:
        super().__init__(text)
        self.note = note


class Compact(NamedTuple):
    """A token as it came.

    Attributes:
        algorithm: `alg` of its header.
        kid: The key that it names; None where it names none.
        typ: Its type in lower case, without `application/`; None where it has none.
        claims: What it says.
        signed: The bytes that the signature is of.
        signature: The signature.
    """

    algorithm: str
    kid: str | None
    typ: str | None
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


class Expectation(NamedTuple):
    """What a token must say.

    Attributes:
        issuer: Who made it.
        audience: Names of whom it is for; one is enough.
        types: Types it may have; None for without one.
        required: Claims that must be there.
        leeway: Seconds by which clocks may differ.
    """

    issuer: str
    audience: frozenset[str]
    types: frozenset[str | None]
    required: tuple[str, ...]
    leeway: float


def read_compact(token: str, algorithms: frozenset[str]) -> Compact:
    """Take a token apart (rules 1 and 2).

    Raises:
        TokenError: It is none.
    """
    pieces = token.split(".", 4)
    if len(pieces) != 3:
        raise TokenError("The access token is no signed JWT: it has not three parts.")
    header = _read_part(pieces[0], "header")
    algorithm, kid, typ = header.get("alg"), header.get("kid"), header.get("typ")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenError("The access token is signed with an algorithm that is not accepted here.")
    if "crit" in header or "b64" in header:
        raise TokenError("The header of the access token asks for an extension that is not understood here.")
    if "kid" in header and (not isinstance(kid, str) or len(kid) > MAX_KID):
        raise TokenError("The header of the access token has a kid that is no string, or too long.")
    if "typ" in header:
        if not isinstance(typ, str):
            raise TokenError("The header of the access token has a typ that is no string.")
        typ = typ.lower().removeprefix("application/")
    claims = _read_part(pieces[1], "payload")
    return Compact(algorithm, kid, typ, claims, f"{pieces[0]}.{pieces[1]}".encode("ascii"), _decode(pieces[2], "signature"))


def check_claims(token: Compact, expected: Expectation, now: float) -> float:
    """Check what a token says (rules 3 to 6).

    Args:
        token: The token.
        expected: What it must say.
        now: Unix time.

    Returns:
        Unix time at which it ends.

    Raises:
        TokenError: It says something else.
    """
    claims = token.claims
    if token.typ not in expected.types:
        raise TokenError("The token is of a type that is no access token.")
    if claims.get("iss") != expected.issuer:
        raise TokenError("The access token is from another issuer.")
    check_audience(claims, expected.audience, required=True)
    until = check_expiry(claims, expected.leeway, now)
    for name in expected.required:
        if claims.get(name) is None:
            raise TokenError(f"The access token lacks the claim {name}.")
    check_use(claims, certain=token.typ == "at+jwt")
    return until


def check_audience(claims: Mapping[str, Any], audience: frozenset[str], *, required: bool) -> None:
    """Rule 4: who a token is for (AR-08).

    Args:
        claims: What it says.
        audience: Names of whom it must be for.
        required: Whether it must say so.

    Raises:
        TokenError: It is for others.
    """
    aud = claims.get("aud")
    if aud is None and not required:
        return
    names = aud if isinstance(aud, list) else [aud]
    if not all(isinstance(name, str) for name in names) or audience.isdisjoint(names):
        raise TokenError("The access token is for another audience.", _describe_audience(names, audience))


def _describe_audience(names: list[Any], audience: frozenset[str]) -> str:
    """For the operator, whose commonest mistake is a resource= with another host, port or slash."""
    said = ", ".join(ascii(name[:MAX_SHOWN]) for name in names[:MAX_SHOWN_NAMES] if isinstance(name, str)) or "no name"
    cut = said[:MAX_SHOWN] + ("..." if len(said) > MAX_SHOWN or len(names) > MAX_SHOWN_NAMES else "")
    return f"its aud is {cut}; expected is {' or '.join(ascii(name) for name in sorted(audience))}"


def check_expiry(claims: Mapping[str, Any], leeway: float, now: float, *, required: bool = True) -> float:
    """Rule 5: when a token holds.

    Returns:
        Unix time at which it ends; infinite where it doesn't say and needn't.

    Raises:
        TokenError: It does not hold now.
    """
    until = _read_time(claims, "exp")
    if until is None and required:
        raise TokenError("The access token has no exp, so it would hold for ever.")
    if until is not None and until + leeway <= now:
        raise TokenError("The access token has expired.")
    for name in ("nbf", "iat"):
        since = _read_time(claims, name)
        if since is not None and since - leeway > now:
            raise TokenError(f"The access token does not hold yet ({name}).")
    return math.inf if until is None else until


def read_subject(claims: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, str]:
    """Who a token is for.

    Args:
        claims: What it says.
        names: Claims that may say it, the first that is there.

    Returns:
        The claim and what it says.

    Raises:
        TokenError: None is there, or it is no text of at most 1024 printable characters.
    """
    for name in names:
        value = claims.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or not 0 < len(value) <= MAX_SUBJECT or not value.isprintable():
            raise TokenError(f"The claim {name} of the access token is no name.")
        return name, value
    raise TokenError(f"The access token does not say whose it is ({', '.join(names)}).")


def told_issuer(token: str) -> str | None:
    """Who made a token, by what it says itself; None where it is no JWT, or doesn't say. Nothing is checked.

    Args:
        token: A token of any form.
    """
    pieces = token.split(".", 3)
    if len(pieces) != 3:
        return None
    try:
        issuer = _read_part(pieces[1], "payload").get("iss")
    except TokenError:
        return None
    return issuer if isinstance(issuer, str) else None


def read_names(names: Any, option: str) -> tuple[str, ...]:
    """Names of claims or algorithms, as an author gives them.

    Args:
        names: One, or several.
        option: What they are called.

    Raises:
        RegistrationError: They are none.
    """
    listed: tuple[Any, ...] = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Iterable) else (None,)
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in listed):
        raise RegistrationError(f"{option}: a name, or a list of names, not {names!r}.")
    return listed


def read_audience(audience: Any, option: str) -> frozenset[str]:
    """Whom tokens must be for, as an author gives it.

    Args:
        audience: One name, or several.
        option: What it is called.

    Raises:
        RegistrationError: It is none.
    """
    listed = (audience,) if isinstance(audience, str) else tuple(audience) if isinstance(audience, Iterable) else ()
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise RegistrationError(f"{option}: whom tokens must be for, a str or several, not {audience!r}.")
    return frozenset(listed)


def read_scopes(claims: Mapping[str, Any], names: tuple[str, ...]) -> frozenset[str]:
    """What a token allows: strings with blanks between scopes, or lists.

    Args:
        claims: What it says.
        names: Claims that may say it; all that are there count.

    Raises:
        TokenError: One can't be read.
    """
    scopes: set[str] = set()
    for name in names:
        value = claims.get(name)
        if value is None:
            continue
        found = value.split(" ") if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(scope, str) and _SCOPE.fullmatch(scope) for scope in found):
            raise TokenError(f"The claim {name} of the access token holds no scopes.")
        scopes.update(filter(None, found))
    return frozenset(scopes)


def check_use(claims: Mapping[str, Any], *, certain: bool = False) -> None:
    """Rule 6.

    Args:
        claims: What a token says.
        certain: Its type says that it is an access token, whatever else it says.

    Raises:
        TokenError: It is another kind of token, or one that holds only together with a key.
    """
    if claims.get("cnf") is not None:
        raise TokenError("The access token is bound to a key, and nothing proves here that its sender has it.")
    if certain:
        return
    foreign = any(name in claims for name in _FOREIGN)
    use = claims.get("token_use", "access")  # Cognito
    kind = claims.get("typ", "Bearer")  # Keycloak
    if foreign or use != "access" or not isinstance(kind, str) or kind.lower() not in {"bearer", "jwt", "at+jwt"}:
        raise TokenError("The token is no access token, but one of another kind.")


def _read_time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"The claim {name} of the access token is no number.")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise TokenError(f"The claim {name} of the access token is no time.")
    return seconds


def _read_part(text: str, name: str) -> dict[str, Any]:
    try:
        return read_object(_decode(text, name))
    except ValueError as error:
        raise TokenError(f"The {name} of the access token is {error}.") from None


def _decode(text: str, name: str) -> bytes:
    """Bytes of a part; there is one way to write them (RFC 7515 section 2), so that no other token is the same one."""
    if _BASE64URL.fullmatch(text) and len(text) % 4 != 1:
        standard = text.translate(_STANDARD)
        raw = binascii.a2b_base64(standard + "=" * (-len(text) % 4))
        rest = len(raw) % 3
        if not rest or binascii.b2a_base64(raw[-rest:], newline=False).decode().rstrip("=") == standard[-rest - 1 :]:
            return raw
    raise TokenError(f"The {name} of the access token is no base64url.")
