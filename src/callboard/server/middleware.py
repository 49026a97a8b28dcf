"""Middleware is Service to Service: telemetry, limits and users' code are the same kind of thing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from callboard.core.era import Request
from callboard.core.outcome import Outcome
from callboard.server.context import Context

__all__ = ["Layer", "Service", "compose"]

Service: TypeAlias = Callable[[Request, Context], Awaitable[Outcome]]
Layer: TypeAlias = Callable[[Service], Service]


def compose(service: Service, layers: Sequence[Layer]) -> Service:
    """Wrap a service in layers, the first one outermost. Done once, when the server is mounted."""
    for layer in reversed(layers):
        service = layer(service)
    return service
