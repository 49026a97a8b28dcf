"""`Depends(fn)`: what a function needs and the caller doesn't give.

Per call and cached within the call; a generator's part after its `yield` runs when the call is over, in reverse order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from callboard.errors import RegistrationError
from callboard.server.context import Context

__all__ = ["Depends", "Injector", "compile_injections", "injection_key"]


class Depends:
    """Default value of a parameter that another function provides: `db: Db = Depends(open_db)`.

    Args:
        provider: A function, coroutine function, or (async) generator function; it may take a `Context` and further `Depends`.
        use_cache: Whether one value serves the whole call.
    """

    __slots__ = ("provider", "use_cache")

    def __init__(self, provider: Callable[..., Any], *, use_cache: bool = True) -> None:
        self.provider = provider
        self.use_cache = use_cache


def injection_key(annotation: Any, default: Any) -> Hashable | None:
    """What a parameter is injected with; None when the caller gives it."""
    if isinstance(default, Depends):
        return default
    return Context if annotation is Context else None


class _Provider:
    """A compiled `Depends`."""

    __slots__ = ("enter", "fn", "key", "needs", "use_cache")

    def __init__(self, depends: Depends, needs: Injector) -> None:
        fn = depends.provider
        self.fn = fn
        self.key = fn
        self.use_cache = depends.use_cache
        self.needs = needs
        self.enter: Callable[..., Any] | None = None
        if inspect.isasyncgenfunction(fn):
            self.enter = asynccontextmanager(fn)
        elif inspect.isgeneratorfunction(fn):
            self.enter = contextmanager(fn)

    async def provide(self, ctx: Context, cache: dict[Any, Any], stack: AsyncExitStack) -> Any:
        if self.use_cache and self.key in cache:
            return cache[self.key]
        kwargs: dict[str, Any] = {}
        await self.needs.fill(kwargs, ctx, cache, stack)
        if self.enter is None:
            value = self.fn(**kwargs)
            if inspect.isawaitable(value):
                value = await value
        else:
            manager = self.enter(**kwargs)
            value = await stack.enter_async_context(manager) if hasattr(manager, "__aenter__") else stack.enter_context(manager)
        if self.use_cache:
            cache[self.key] = value
        return value


class Injector:
    """The injected parameters of one function.

    Attributes:
        context: Names of the parameters that get the Context.
        providers: Parameter name to provider; where there are any, `fill` needs an exit stack.
    """

    __slots__ = ("context", "providers")

    def __init__(self, context: tuple[str, ...], providers: dict[str, _Provider]) -> None:
        self.context = context
        self.providers = providers

    async def fill(self, kwargs: dict[str, Any], ctx: Context, cache: dict[Any, Any], stack: AsyncExitStack) -> None:
        """Put every injected value into `kwargs`."""
        for name in self.context:
            kwargs[name] = ctx
        for name, provider in self.providers.items():
            kwargs[name] = await provider.provide(ctx, cache, stack)


def compile_injections(
    injections: dict[str, Any], read: Callable[[Callable[..., Any]], dict[str, Any]], *, path: tuple[Any, ...] = ()
) -> Injector:
    """Compile the injected parameters of a function, sub-dependencies included.

    Args:
        injections: Parameter name to `injection_key`.
        read: Gives the injections of a provider function, all of whose parameters must be injected.
        path: Providers on the way here.

    Raises:
        RegistrationError: Providers depend on each other in a circle.
    """
    context = tuple(name for name, key in injections.items() if key is Context)
    providers: dict[str, _Provider] = {}
    for name, key in injections.items():
        if not isinstance(key, Depends):
            continue
        if key.provider in path:
            circle = " -> ".join(getattr(fn, "__qualname__", repr(fn)) for fn in (*path, key.provider))
            raise RegistrationError(f"Depends goes in a circle: {circle}.")
        needs = compile_injections(read(key.provider), read, path=(*path, key.provider))
        providers[name] = _Provider(key, needs)
    return Injector(context, providers)
