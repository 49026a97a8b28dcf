"""Middleware is Service to Service: telemetry, limits and users' code are the same kind of thing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from callboard.core.era import Request
from callboard.core.outcome import Outcome
from callboard.errors import RegistrationError
from callboard.server.context import Context

__all__ = ["Layer", "Service", "compose"]

Service: TypeAlias = Callable[[Request, Context], Awaitable[Outcome]]
Layer: TypeAlias = Callable[[Service], Service]


def compose(service: Service, layers: Sequence[Layer]) -> Service:
    """Wrap a service in layers, the first one outermost. Done once, when the server is made.

    Raises:
        RegistrationError: A layer is none.
    """
    made: Any = service
    for layer in reversed(list[Any](layers)):
        made = layer(made) if callable(layer) else None
        if not callable(made):
            raise RegistrationError(
                f"middleware: {layer!r} is no layer; a layer takes a service and returns one: async def (request, context) -> Outcome."
            )
    composed: Service = made
    return composed
