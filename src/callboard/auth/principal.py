"""Who asks, as a transport establishes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Self

__all__ = ["LOCAL", "Principal", "seconds_left"]

# Seconds that a stream lives at least: verifiers allow for clocks that differ, and who comes back at once must not do so all the time.
LEAST = 30.0
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Principal(str):
    """Who asks, and what they were granted: what a verifier finds, and what `asgi(principal=...)` may return in place of a plain str.

    Args:
        identity: Tells them from everybody else. Sessions, tasks, caches and rates belong to it; scopes don't count there.
        scopes: What they may do, as `scopes=` of a tool, resource or prompt asks for it.
        subject: What their authorization server calls them; the identity by default.
        claims: What else is known of them, such as the claims of their token, for functions to decide by.

    Raises:
        TypeError: `identity` is no str: `None` of a claim that is missing would make one of many. Or `scopes` is one str, of which nobody can tell
            how many scopes it is; or `claims` is no mapping.

    Attributes:
        scopes: As given.
        subject: As given.
        claims: As given.
    """

    __slots__ = ("claims", "scopes", "subject")

    scopes: frozenset[str]
    subject: str
    claims: Mapping[str, Any]

    def __new__(
        cls, identity: str, scopes: Iterable[str] = (), *, subject: str | None = None, claims: Mapping[str, Any] = _NOTHING
    ) -> Self:
        """Make one."""
        if not isinstance(identity, str):
            raise TypeError(f"Principal: identity is a str that tells them from everybody else, not {type(identity).__name__}.")
        if not isinstance(claims, Mapping):
            raise TypeError(f"Principal: claims is a mapping, not {type(claims).__name__}.")
        if isinstance(scopes, str):
            raise TypeError(f"Principal: scopes is a list of str, not {scopes!r}; write scopes={scopes.split()!r}.")
        made = super().__new__(cls, identity)
        made.scopes = scopes if isinstance(scopes, frozenset) else frozenset(scopes)
        made.subject = identity if subject is None else subject
        made.claims = claims
        return made

    @property
    def expires(self) -> float | None:
        """Unix time at which their credential ends, as its claim `exp` says; None where it doesn't."""
        expires = self.claims.get("exp")
        return float(expires) if isinstance(expires, int | float) else None


def seconds_left(principal: str | None, now: float) -> float:
    """How long what a principal opened may stay open: no longer than their credential holds. Infinite where it says nothing of that.

    Args:
        principal: Whose it is.
        now: Unix time.
    """
    expires = principal.expires if isinstance(principal, Principal) else None
    return math.inf if expires is None else max(LEAST, expires - now)


class _Everything(frozenset[str]):
    """The scopes of whom nobody else could grant any."""

    __slots__ = ()

    def __contains__(self, scope: object) -> bool:
        return isinstance(scope, str)

    def issuperset(self, other: Iterable[object]) -> bool:
        return all(scope in self for scope in other)


LOCAL = Principal("local", _Everything())
"""Who is at the other end of stdin and stdout: whoever started this process. It runs with their rights and with credentials from their
environment, so that every scope is theirs (SD-11)."""
