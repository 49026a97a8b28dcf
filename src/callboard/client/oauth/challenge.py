"""`WWW-Authenticate` as servers write it: several challenges in a header, several headers, and whatever hostile ones come up with.

Reading is linear in the header's length and never fails: what can't be read is left out (RFC 9110, section 11.6.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

__all__ = ["MIN_SECRET", "Demand", "Parameters", "demand_of", "parse", "scopes_in"]

# A header beyond is cut off; more challenges or scopes than these are ignored.
MAX_HEADER = 16_384
MAX_CHALLENGES = 32
MAX_SCOPES = 200
# Characters; a shorter token is no secret, and taking it out of texts would spoil them.
MIN_SECRET = 8
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")
_TOKEN68 = re.compile(r"([A-Za-z0-9\-._~+/]++=*+)[ \t]*+(?:,|$)")
_EQUALS = re.compile(r"[ \t]*+=[ \t]*+")
_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_GAP = re.compile(r"[ \t,]*+")
_SPACES = re.compile(r"[ \t]++")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class Parameters(msgspec.Struct, frozen=True):
    """One challenge.

    Attributes:
        scheme: Its scheme in lower case.
        values: Its parameters, names in lower case; of a name that comes twice, the first.
        token68: What came in place of parameters; empty without.
    """

    scheme: str
    values: dict[str, str] = {}
    token68: str = ""


class Demand(msgspec.Struct, frozen=True):
    """What a refusal asks of OAuth, from all its Bearer and DPoP challenges; each field is the first one given.

    Attributes:
        schemes: Schemes of all challenges, in lower case.
        resource_metadata: URL of the protected resource's metadata; empty without.
        scopes: Scopes that the request needs.
        error: For example `invalid_token`, `insufficient_scope` or `use_dpop_nonce`; empty without.
        description: The server's words on it; empty without.
    """

    schemes: tuple[str, ...] = ()
    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""
    description: str = ""


def demand_of(headers: Iterable[tuple[str, str]], *, sent: Mapping[str, str] = {}) -> Demand:
    """Read the challenges of a refusal (AC-02, AC-13).

    Args:
        headers: Headers of the answer, names in lower case.
        sent: Credentials that the request carried: where the server quotes them, they are left out of what is shown.
    """
    secrets = [secret for value in sent.values() if len(secret := value.rpartition(" ")[2]) >= MIN_SECRET]

    challenges = [challenge for name, value in headers if name == "www-authenticate" for challenge in parse(value)][:MAX_CHALLENGES]
    ours = [challenge.values for challenge in challenges if challenge.scheme in {"bearer", "dpop"}]

    def first(name: str) -> str:
        return next((values[name] for values in ours if values.get(name)), "")

    return Demand(
        tuple(challenge.scheme for challenge in challenges),
        first("resource_metadata"),
        scopes_in(first("scope")),
        "" if any(secret in first("error") for secret in secrets) else first("error"),
        _without(secrets, first("error_description")),
    )


def _without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def scopes_in(text: str) -> tuple[str, ...]:
    """Scopes of a space-separated list, each once, in order; what is no scope is left out (RFC 6749, section 3.3)."""
    return tuple(dict.fromkeys(scope for scope in text.split() if _SCOPE.fullmatch(scope)))[:MAX_SCOPES]


def parse(header: str) -> list[Parameters]:
    """Read the challenges of one header, at most 32 of them."""
    text = header[:MAX_HEADER]
    found: list[Parameters] = []
    at = _next_word(text, 0)
    while at < len(text) and len(found) <= MAX_CHALLENGES:
        at = _next_word(text, _read_word(text, at, found))
    return found[:MAX_CHALLENGES]


def _read_word(text: str, at: int, found: list[Parameters]) -> int:
    """Read the parameter or the scheme that begins at a place; give the place after it."""
    token = _TOKEN.match(text, at)
    if token is None:
        return _next_comma(text, at)
    equals = _EQUALS.match(text, token.end())
    if equals is None:
        return _read_scheme(text, token, found)
    quoted = _QUOTED.match(text, equals.end())
    value = quoted or _TOKEN.match(text, equals.end())
    if value is None:
        return _next_comma(text, equals.end())
    if found:
        found[-1].values.setdefault(token[0].lower(), _ESCAPE.sub(r"\1", quoted[1]) if quoted else value[0])
    return value.end()


def _read_scheme(text: str, scheme: re.Match[str], found: list[Parameters]) -> int:
    """Begin a challenge, with its token68 if one follows."""
    spaces = _SPACES.match(text, scheme.end())
    blob = _TOKEN68.match(text, spaces.end()) if spaces else None
    found.append(Parameters(scheme[0].lower(), {}, blob[1] if blob else ""))
    return blob.end(1) if blob else scheme.end()


def _next_word(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at


def _next_comma(text: str, at: int) -> int:
    comma = text.find(",", at)
    return len(text) if comma < 0 else comma
