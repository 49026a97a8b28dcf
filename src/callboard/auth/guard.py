"""Stands before an HTTP endpoint: nobody gets in unless a verifier says who they are, with every request anew (AR-11).

What a verifier granted is remembered for as long as it allows, so that a call costs one look-up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from callboard.auth.metadata import check_resource, check_scopes, close_over, describe, make_challenge, metadata_paths, metadata_url
from callboard.auth.principal import Principal
from callboard.auth.verifier import Grant, Refusal, Scope, Verifier
from callboard.errors import Fail, Reason, RegistrationError

__all__ = ["Denial", "Guard"]

_log = logging.getLogger("callboard")
# Grants of one header that are remembered; one past that takes the place of the oldest.
MAX_GRANTS = 10_000
# Later than anybody means: it was counted in milliseconds, which have been more since 2008.
MAX_TIME = 1.2e12
# Requests whose credentials are being verified, and seconds that one may take: who sends them may be gone long before, and sends others.
MAX_ASKED = 4_096
PATIENCE = 30.0
_BUSY = Refusal("unavailable", "Too many credentials are being verified.")
_LATE = Refusal("unavailable", "The credential could not be verified in time.")
_MISSING = Refusal("missing")
# Which of several refusals says most.
_WEIGHT = {"missing": 0, "malformed": 1, "invalid": 2, "unavailable": 3}
_REASON = {
    "missing": Reason.UNAUTHORIZED,
    "malformed": Reason.BAD_CREDENTIAL,
    "invalid": Reason.UNAUTHORIZED,
    "unavailable": Reason.AUTH_UNAVAILABLE,
}
_ERROR = {"malformed": "invalid_request", "invalid": "invalid_token"}


class Denial(NamedTuple):
    """Why a request does not get in.

    Attributes:
        fail: What the client is told.
        headers: Headers that go with it.
        kind: The refusal's kind, or `scope`.
    """

    fail: Fail
    headers: list[tuple[bytes, bytes]]
    kind: str


class _Known(NamedTuple):
    principal: Principal
    until: float
    verifier: Verifier
    generation: int


class Guard:
    """Verifiers before an endpoint.

    Args:
        verifiers: Asked in order; the first that grants decides.
        resource: The server's identifier; needed where a verifier has authorization servers.
        scopes: What every request needs.
        implies: Scope -> the narrower ones that it stands for.
        name: What the server is called, for its metadata.
        clock: Unix time.

    Raises:
        RegistrationError: An option can't work.

    Attributes:
        resource: As given.
        scopes: As given.
        headers: Names of the headers that carry credentials.
        issuers: Authorization servers of all verifiers.
        verifiers: As given.
        culprit: The option that it comes from, for the log.
    """

    culprit = "auth="

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        *,
        resource: str | None = None,
        scopes: Collection[str] = (),
        implies: Mapping[str, Collection[str]] | None = None,
        name: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not verifiers or not all(isinstance(verifier, Verifier) for verifier in verifiers):
            given = ", ".join(type(verifier).__name__ for verifier in verifiers[:3]) or "an empty list"
            raise RegistrationError(f"auth is a Verifier, like those of callboard.auth, or a list of them, not {given}.")
        if resource is not None:
            check_resource(resource)
        self.verifiers = tuple(verifiers)
        self.resource = resource
        self.scopes = check_scopes(scopes, "scopes")
        self.issuers = tuple(dict.fromkeys(issuer for verifier in verifiers for issuer in verifier.issuers))
        if self.issuers and resource is None:
            text = "resource= is needed with auth=: the URL of the endpoint as clients know it, like 'https://mcp.example.com/mcp'; tokens must be meant for it."
            raise RegistrationError(text)
        if implies is not None and not isinstance(implies, Mapping):
            raise RegistrationError(f'implies is a dict, like {{"files": ["files:read"]}}, not {type(implies).__name__}.')
        for broad, narrow in (implies or {}).items():
            check_scopes([broad], "implies")
            check_scopes(narrow, f"implies[{broad!r}]")
        self._implied = close_over(implies or {})
        self._document = describe(resource, self.issuers, self.scopes, name) if resource is not None and self.issuers else None
        self._where = "" if resource is None or self._document is None else metadata_url(resource)
        self.headers = tuple(dict.fromkeys(verifier.header for verifier in verifiers))
        # Where there is no authorization server, clients learn at least what is looked for (RFC 9110 section 11.6.1).
        self._scheme = "Bearer"
        self._told: dict[str, str] = {}
        if b"authorization" not in self.headers:
            self._scheme, self._told = "ApiKey", {"header": self.headers[0].decode("ascii")}
        self._clock = clock
        self._asked = 0
        # For each header what its values were granted. The keys are the credentials: they are in memory with each request anyway, a digest would
        # cost more than all else here.
        self._known: dict[bytes, OrderedDict[bytes, _Known]] = {name: OrderedDict() for name in self.headers}
        for verifier in verifiers:
            verifier.bind(resource)

    @property
    def documents(self) -> dict[str, bytes]:
        """Path -> what is to be served there, to everybody; empty where there is no authorization server."""
        if self.resource is None or self._document is None:
            return {}
        return dict.fromkeys(metadata_paths(self.resource), self._document)

    def recall(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Who sends a request, where that is remembered; with several credentials it is for `admit` to say which of them decides."""
        found: Principal | None = None
        for name, granted in self._known.items():
            value = headers.get(name)
            if value is None:
                continue
            known = granted.get(value)
            if found is not None or known is None or known.until <= self._clock() or known.generation != known.verifier.generation:
                return None
            found = known.principal
        return found

    async def admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Principal | Denial:
        """Find out who sends a request.

        Args:
            scope: Its ASGI scope.
            headers: Its headers by lower-case name.

        Raises:
            Exception: What a verifier of the author's own raised, or that it gave something that is no verdict.
        """
        worst = _MISSING
        for verifier in self.verifiers:
            found = verifier.find(headers, scope)
            generation = verifier.generation
            verdict = await self._ask(verifier, found)
            if isinstance(verdict, Grant):
                value = headers.get(verifier.header, b"")
                return self._let_in(verdict, verifier, generation, value if _is_in(found, value) else b"")
            if verdict.note:
                _log.debug("%s %r refused a credential: %s", self.culprit, verifier, verdict.note)
            if _WEIGHT[verdict.kind] > _WEIGHT[worst.kind]:
                worst = verdict
        return self._refuse(worst)

    def challenge(self, needed: Collection[str]) -> bytes:
        """What a client is told that lacks scopes (AR-06): all that its operation needs, those of every request included.

        Args:
            needed: What the operation needs.
        """
        scope = " ".join(sorted({*self.scopes, *needed}))
        return make_challenge(
            self._scheme,
            **self._told,
            error="insufficient_scope",
            scope=scope,
            resource_metadata=self._where,
            error_description="A scope that this needs was not granted.",
        )

    def strip(self, headers: MutableMapping[bytes, bytes]) -> None:
        """Take credentials out of a request's headers, before a function sees them and passes them on (AR-08)."""
        for name in self.headers:
            headers.pop(name, None)

    async def close(self) -> None:
        """Give back what the verifiers took."""
        for verifier in self.verifiers:
            await verifier.close()

    async def _ask(self, verifier: Verifier, found: object) -> Grant | Refusal:
        if isinstance(found, Refusal):
            return found
        if not isinstance(found, str):
            raise TypeError(f"{verifier!r}: find gave {type(found).__name__}; it gives the credential, a str, or a Refusal.")
        if self._asked >= MAX_ASKED:
            return _BUSY
        self._asked += 1
        limit = asyncio.timeout(PATIENCE)
        try:
            async with limit:
                return _check(await verifier.verify(found), verifier)
        except TimeoutError:
            if not limit.expired():
                raise
            _log.warning("%s %r took longer than %g s to verify a credential.", self.culprit, verifier, PATIENCE)
            return _LATE
        finally:
            self._asked -= 1

    def _let_in(self, grant: Grant, verifier: Verifier, generation: int, value: bytes) -> Principal | Denial:
        principal = self._widen(grant.principal)
        if not self.scopes <= principal.scopes:
            text = f"This server needs the scope {' '.join(sorted(self.scopes))}, which was not granted."
            fail = Fail(Reason.SCOPE, text, {"requiredScopes": sorted(self.scopes)})
            return Denial(fail, [(b"www-authenticate", self.challenge(()))], "scope")
        if grant.until is not None and value:  # an empty one would be that of everybody who sends none
            granted = self._known[verifier.header]
            granted.pop(value, None)
            self._make_room(granted)
            granted[value] = _Known(principal, grant.until, verifier, generation)
        return principal

    def _make_room(self, granted: OrderedDict[bytes, _Known]) -> None:
        """Forget the oldest while they don't hold any more, or are too many: most callers come with a new token every few minutes."""
        now = self._clock()
        while granted and (len(granted) >= MAX_GRANTS or next(iter(granted.values())).until <= now):
            granted.popitem(last=False)

    def _widen(self, principal: Principal) -> Principal:
        """The same with all that their scopes stand for (AR-07)."""
        broad = principal.scopes & self._implied.keys()
        if not broad:
            return principal
        scopes = principal.scopes.union(*(self._implied[scope] for scope in broad))
        return Principal(str(principal), scopes, subject=principal.subject, claims=principal.claims)

    def _refuse(self, refusal: Refusal) -> Denial:
        fail = Fail(_REASON[refusal.kind], refusal.detail or None)
        if refusal.kind == "unavailable":
            return Denial(fail, [(b"retry-after", b"%d" % max(1, refusal.retry_after))], refusal.kind)
        told: dict[str, str] = {
            **self._told,
            "error": _ERROR.get(refusal.kind, ""),
            "error_description": refusal.detail,
            "resource_metadata": self._where,
            "scope": " ".join(sorted(self.scopes)),  # AR-04
        }
        return Denial(fail, [(b"www-authenticate", make_challenge(self._scheme, **told))], refusal.kind)


def _check(verdict: object, verifier: Verifier) -> Grant | Refusal:
    """What a verifier said, as far as it is a verdict.

    Raises:
        TypeError: It is none: let in by mistake would be somebody that nobody else is told from.
    """
    if isinstance(verdict, Refusal):
        return verdict
    if not isinstance(verdict, Grant):
        raise TypeError(f"{verifier!r}: verify gave {type(verdict).__name__}, and neither a Grant nor a Refusal.")
    principal, until = verdict
    if not isinstance(principal, Principal) or not principal:
        raise TypeError(f"{verifier!r}: whom verify let in is no Principal with an identity, but {type(principal).__name__}.")
    if until is not None and (
        isinstance(until, bool) or not isinstance(until, int | float) or not (until <= MAX_TIME or until == math.inf)
    ):
        raise TypeError(f"{verifier!r}: until is Unix time, in seconds, or None; what verify gave is not.")
    return verdict


def _is_in(found: object, value: bytes) -> bool:
    """Whether a header holds the very credential that a verifier found: one that it found elsewhere can't be told by this header again."""
    try:
        return isinstance(found, str) and bool(found) and found.encode("latin-1") in value
    except UnicodeEncodeError:
        return False
