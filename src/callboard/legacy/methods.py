"""What a session itself serves: the methods of 2025 that the current protocol has no other word for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from callboard.core.era import Envelope, Headers, Request
from callboard.core.outcome import Outcome, Reply
from callboard.errors import Fail, Reason
from callboard.legacy.codec import LevelParams, UriParams, read_level, read_uri
from callboard.server.catalogue import hides
from callboard.server.context import Context
from callboard.server.workers import Workers
from callboard.wire.jsonrpc import RawRequest
from callboard.wire.methods import Method

__all__ = ["OWN", "Subscriber", "call_hook", "lift_own", "run_hook", "serve_own"]


class Subscriber(Protocol):
    """What these methods do to a session."""

    def set_level(self, level: str) -> None:
        """Log from this level on."""
        ...

    def subscribe(self, uri: str) -> None:
        """Hear of changes of a resource."""
        ...

    def unsubscribe(self, uri: str) -> None:
        """Stop that."""
        ...


def _read_nothing(_params: msgspec.Raw | None) -> None:
    """A ping has no parameters that matter."""


OWN: dict[str, Method] = {
    "ping": Method(type(None), _read_nothing, b"ping"),
    "logging/setLevel": Method(LevelParams, read_level, b"logging/setLevel", capability="logging"),
    "resources/subscribe": Method(UriParams, read_uri, b"resources/subscribe", capability="resources"),
    "resources/unsubscribe": Method(UriParams, read_uri, b"resources/unsubscribe", capability="resources"),
}


def lift_own(message: RawRequest, headers: Headers | None, envelope: Envelope) -> Request | Fail:
    """Read a request of one of these methods, or say why not."""
    row = OWN[message.method]
    params = row.decode(message.params)
    if isinstance(params, Fail):
        return params
    return Request(message.id, message.method, params, row, envelope, headers)


async def serve_own(request: Request, ctx: Context) -> Outcome:
    """Serve one, the hooks of the server included; without a session it is accepted and has no effect."""
    subscriber: Any = ctx.session
    hooks = ctx.server.hooks
    method, params = request.method, request.params
    if method == "ping":
        return Reply({})
    capabilities = ctx.server.capabilities(listens=True, logs=ctx.mount.logs)
    offered = capabilities.get(request.row.capability)
    if offered is None or (method != "logging/setLevel" and not offered.get("subscribe")):
        return Fail(Reason.METHOD_NOT_FOUND, f"Method not found: this server has no {request.row.capability} to serve it with.")
    if method == "logging/setLevel":
        await call_hook(ctx, hooks.set_log_level, params.level)
        if subscriber is not None:
            subscriber.set_level(params.level)
    elif method == "resources/subscribe":
        await call_hook(ctx, hooks.subscribe, params.uri)
        if subscriber is not None and not await hides(ctx.server.registry, params.uri, ctx):
            subscriber.subscribe(params.uri)
    else:
        await call_hook(ctx, hooks.unsubscribe, params.uri)
        if subscriber is not None:
            subscriber.unsubscribe(params.uri)
    return Reply({})


async def call_hook(ctx: Context, hook: Callable[..., Any] | None, argument: str) -> None:
    """Call a hook where there is one; a plain function runs on a thread, like every `def` function."""
    if hook is None:
        return
    await run_hook(ctx.mount.workers, partial(hook, argument, ctx))


async def run_hook(workers: Workers, hook: Callable[[], Any], *, bounded: bool = True) -> None:
    """Run a hook of the server: what is no coroutine function on a thread, and what that gives is awaited where it can be.

    Args:
        workers: The threads.
        hook: The hook with its arguments.
        bounded: Whether the bound on calls that wait for a thread counts.
    """
    if inspect.iscoroutinefunction(hook):
        await hook()
    elif inspect.isawaitable(value := await workers.run(hook, {}, bounded=bounded)):
        await value
