"""Who asks, as a transport establishes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

__all__ = ["Principal"]


class Principal(str):
    """Who asks, and what they were granted: what `asgi(principal=...)` may return in place of a plain str, which has no scopes.

    Args:
        subject: Identifies them. Sessions, tasks and rate limits belong to it; scopes don't count there.
        scopes: What they may do, as `scopes=` of a tool, resource or prompt asks for it.

    Raises:
        TypeError: `scopes` is one str, of which nobody can tell how many scopes it is.

    Attributes:
        scopes: As given.
    """

    __slots__ = ("scopes",)

    scopes: frozenset[str]

    def __new__(cls, subject: str, scopes: Iterable[str] = ()) -> Self:
        """Make one."""
        if isinstance(scopes, str):
            raise TypeError(f"Principal: scopes is a list of str, not {scopes!r}; write scopes={scopes.split()!r}.")
        made = super().__new__(cls, subject)
        made.scopes = frozenset(scopes)
        return made
