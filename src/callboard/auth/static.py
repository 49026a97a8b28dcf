"""Secrets that are known beforehand: bearer tokens, and API keys in a header of their own.

Only SHA-256 digests are kept, and every one is compared with, in constant time, whichever matches: how long an answer takes says nothing of the secrets.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from callboard.auth.principal import Principal
from callboard.auth.verifier import Grant, Refusal, Scope, Verifier
from callboard.errors import RegistrationError

__all__ = ["ApiKeys", "BearerTokens"]

# What can be tried out by sending requests is no secret.
MIN_SECRET = 16
MAX_SECRET = 4096
# All are compared with each time; more belong into a database, with a Verifier of its own.
MAX_SECRETS = 1000
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_PRINTABLE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
# Headers that mean something else already.
_TAKEN = frozenset({
    "accept", "authorization", "connection", "content-length", "content-type", "cookie", "host", "last-event-id", "mcp-method", "mcp-name",
    "mcp-protocol-version", "mcp-session-id", "origin", "proxy-authorization", "transfer-encoding",
})  # fmt: skip


class _Secrets(Verifier):
    """Principals by the digest of their secret."""

    _noun: str
    _shape: re.Pattern[str]

    def __init__(self, secrets: Mapping[str, Principal | str], digests: Mapping[str, Principal | str]) -> None:
        name = type(self).__name__
        for given, option in ((secrets, f"the {self._noun}s"), (digests, "digests")):
            if not isinstance(given, Mapping):
                raise RegistrationError(f"{name}: {option} are a dict that says whose each is, not {type(given).__name__}.")
        known: dict[bytes, Principal] = {}
        for number, (secret, principal) in enumerate(secrets.items(), 1):
            where = f"{name}: {self._noun} number {number}"
            self._check(secret, where)
            _add(known, sha256(secret.encode("ascii")).digest(), principal, where)
        for number, (digest, principal) in enumerate(digests.items(), 1):
            where = f"{name}: digest number {number}"
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise RegistrationError(f"{where} is no SHA-256 in hexadecimal (64 digits).")
            _add(known, bytes.fromhex(digest), principal, where)
        if not known:
            raise RegistrationError(f"{name}: there is no {self._noun}, so nobody could ever get in.")
        if len(known) > MAX_SECRETS:
            text = f"{name}: {len(known)} {self._noun}s are more than {MAX_SECRETS}; for so many, write a Verifier that looks them up in a database."
            raise RegistrationError(text)
        self._known = tuple(known.items())

    def __repr__(self) -> str:
        """How many there are, and none of them."""
        return f"<{type(self).__name__} with {len(self._known)}>"

    def facts(self) -> dict[str, Any]:
        """How many secrets there are, and where they stand."""
        return {"secrets": len(self._known), "header": self.header.decode("ascii")}

    async def verify(self, credential: str) -> Grant | Refusal:
        """Compare with every secret."""
        given = sha256(credential.encode("utf-8", "surrogatepass")).digest()
        found: Principal | None = None
        for digest, principal in self._known:
            found = principal if hmac.compare_digest(digest, given) else found
        if found is None:
            return Refusal("invalid", f"The {self._noun} is not known.")
        return Grant(found, math.inf)

    def _check(self, secret: object, where: str) -> None:
        """Texts name a secret by its number: whose it is may be the secret, where an author has the two the wrong way round."""
        if not isinstance(secret, str):
            raise RegistrationError(f"{where} is {type(secret).__name__}, and not str.")
        if len(secret) < MIN_SECRET:
            advice = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes a good one"
            raise RegistrationError(f"{where} has {len(secret)} characters; the least are {MIN_SECRET}, and {advice}.")
        if len(secret) > MAX_SECRET or not self._shape.fullmatch(secret):
            raise RegistrationError(f"{where} can't be sent in a header: it is too long, or holds characters that may not stand there.")


def _add(known: dict[bytes, Principal], digest: bytes, principal: object, where: str) -> None:
    if not isinstance(principal, str) or not principal:
        raise RegistrationError(f"{where} is nobody's; say whose it is, with a Principal or what the caller is called.")
    if digest in known:
        raise RegistrationError(f"{where} is there twice.")
    known[digest] = principal if isinstance(principal, Principal) else Principal(principal)


class BearerTokens(_Secrets):
    """Bearer tokens that are known beforehand, sent as `Authorization: Bearer <token>`.

        auth=BearerTokens({os.environ["TOKEN"]: Principal("nightly-job", ["files:read"])})

    Args:
        tokens: Token -> whose it is. A token has at least 16 characters of those that RFC 6750 allows.
        digests: SHA-256 of a token in hexadecimal -> whose it is, so that no secret needs to stand in a configuration.

    Raises:
        RegistrationError: A token is too short, can't be sent, or is there twice. The text doesn't hold it.
    """

    _noun = "token"
    _shape = _TOKEN

    def __init__(
        self, tokens: Mapping[str, Principal | str] | None = None, *, digests: Mapping[str, Principal | str] | None = None
    ) -> None:
        super().__init__({} if tokens is None else tokens, {} if digests is None else digests)


class ApiKeys(_Secrets):
    """API keys that are known beforehand, sent in a header of their own.

    Args:
        keys: Key -> whose it is. A key has at least 16 characters, printable ASCII.
        header: The header's name.
        digests: SHA-256 of a key in hexadecimal -> whose it is.

    Raises:
        RegistrationError: A key is too short, can't be sent, or is there twice; the header is taken. The text doesn't hold the key.
    """

    _noun = "API key"
    _shape = _PRINTABLE

    def __init__(
        self,
        keys: Mapping[str, Principal | str] | None = None,
        *,
        header: str = "x-api-key",
        digests: Mapping[str, Principal | str] | None = None,
    ) -> None:
        super().__init__({} if keys is None else keys, {} if digests is None else digests)
        if not isinstance(header, str) or not _HEADER.fullmatch(header) or header.lower() in _TAKEN:
            raise RegistrationError(
                f"ApiKeys: header={header!r} can't carry a key: it is no header's name, or means something else already."
            )
        self.header = header.lower().encode("ascii")

    def find(self, headers: Mapping[bytes, bytes], scope: Scope) -> str | Refusal:  # noqa: ARG002 - the header is all
        """The header's value (AR-10)."""
        value = headers.get(self.header)
        if value is None:
            return Refusal("missing")
        key = value.strip(b" \t").decode("latin-1")
        if len(key) > MAX_SECRET or not _PRINTABLE.fullmatch(key):
            return Refusal("malformed", f"The header {self.header.decode('ascii')} holds no API key.")
        return key
