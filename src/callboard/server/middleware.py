"""Middleware is Service to Service: telemetry, limits and users' code are the same kind of thing."""

from __future__ import annotations

import inspect
from asyncio import current_task
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from callboard.core.era import Request
from callboard.core.outcome import Outcome
from callboard.errors import RegistrationError
from callboard.server.context import Context

__all__ = ["Layer", "Service", "compose"]

_NO_LAYER = "middleware: %r is no layer; a layer is a plain function that takes a service and returns one, an async def (request, context) -> Outcome."

Service: TypeAlias = Callable[[Request, Context], Awaitable[Outcome]]
Layer: TypeAlias = Callable[[Service], Service]


def compose(service: Service, layers: Sequence[Layer]) -> Service:
    """Wrap a service in layers, the first one outermost. Done once, when the server is made.

    Raises:
        RegistrationError: A layer is none.
    """
    given: Any = layers
    if not isinstance(given, Sequence):
        raise RegistrationError(f"middleware must be a list of layers, not {given!r}.")
    made: Any = service
    for layer in reversed(given):
        try:
            made = layer(made)
        except TypeError as error:
            raise RegistrationError(f"{_NO_LAYER % (layer,)} ({error})") from None
        if not callable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise RegistrationError(_NO_LAYER % (layer,))
    return _task_of(cast("Service", made)) if given else service


def _task_of(layers: Service) -> Service:
    """Let the call know the task that its layers run in: they may ask the client too."""

    async def serve(request: Request, ctx: Context) -> Outcome:
        outer, ctx.task = ctx.task, current_task()
        try:
            return await layers(request, ctx)
        finally:
            ctx.task, outer = outer, None  # a task holds its error, that its frames: neither they nor the Context may hold the task

    return serve
