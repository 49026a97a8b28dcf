"""Extensions of the protocol: methods and settings that a server offers on top of the core (EX-01). Off until one is added (EX-03)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from callboard.core.era import Request
from callboard.core.outcome import Outcome
from callboard.server.context import Context
from callboard.wire.methods import Method

__all__ = ["Extension", "Serve", "declares"]

Serve: TypeAlias = Callable[[Any, Any, Request, Context], Awaitable[Outcome]]
"""Takes the server, the method's parameters, the request and its Context."""


class Extension(Protocol):
    """What `server.extend` takes.

    Attributes:
        id: Its identifier, with a prefix (EX-01).
    """

    id: str

    def settings(self) -> dict[str, Any]:
        """What the capabilities say of it; an empty dict for support without settings."""
        ...

    def methods(self) -> Mapping[str, tuple[Method, Serve]]:
        """Its methods: the row, and what serves it."""
        ...

    def components(self) -> Iterable[Any]:
        """What it adds to the components of the server that it is added to."""
        ...


def declares(ctx: Context, extension: str) -> bool:
    """Whether the client declared an extension on this very request (EX-02, TX-02)."""
    extensions = ctx.request.envelope.capabilities.get("extensions")
    return isinstance(extensions, Mapping) and isinstance(extensions.get(extension), Mapping)
