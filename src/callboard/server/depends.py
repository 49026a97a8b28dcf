"""`Depends(fn)`: what a function needs and the caller doesn't give.

Per call and cached within the call; a generator's part after its `yield` runs when the call is over, in reverse order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar, overload

from callboard.errors import RegistrationError
from callboard.server.context import Context
from callboard.server.state import StateKind
from callboard.server.workers import Workers

__all__ = ["Dependency", "Depends", "Injector", "compile_injections", "injection_key"]

T = TypeVar("T")
# Teardown that nobody awaits any more; the event loop itself holds tasks weakly.
_leaving: set[asyncio.Future[Any]] = set()


class Dependency:
    """What `Depends` leaves as a parameter's default.

    Args:
        provider: A function, coroutine function, or (async) generator function; it may take a `Context`, the state
            and further `Depends`.
        use_cache: Whether one value serves the whole call.
    """

    __slots__ = ("provider", "use_cache")

    def __init__(self, provider: Callable[..., Any], *, use_cache: bool = True) -> None:
        self.provider = provider
        self.use_cache = use_cache


@overload
def Depends(provider: Callable[..., AbstractAsyncContextManager[T]], /, *, use_cache: bool = True) -> T: ...
@overload
def Depends(provider: Callable[..., AbstractContextManager[T]], /, *, use_cache: bool = True) -> T: ...
@overload
def Depends(provider: Callable[..., AsyncIterator[T]], /, *, use_cache: bool = True) -> T: ...
@overload
def Depends(provider: Callable[..., Iterator[T]], /, *, use_cache: bool = True) -> T: ...
@overload
def Depends(provider: Callable[..., Awaitable[T]], /, *, use_cache: bool = True) -> T: ...
@overload
def Depends(provider: Callable[..., T], /, *, use_cache: bool = True) -> T: ...
def Depends(provider: Callable[..., Any], /, *, use_cache: bool = True) -> Any:  # noqa: N802 - reads as the marker it is
    """Let another function provide a parameter, as its default value.

    For example `def total(db: Db = Depends(open_db)) -> int`.

    Args:
        provider: A function, coroutine function, or (async) generator function, which yields the value once and cleans up after it;
            @contextmanager and @asynccontextmanager may stand on it.
            It may take a `Context`, the server's state and further `Depends`. `def` ones run on a thread, like every `def` function.
        use_cache: Whether one value serves the whole call.

    Raises:
        RegistrationError: `provider` can't be called.
    """
    if not callable(provider):
        raise RegistrationError(f"Depends takes a function, not {provider!r}: write Depends(fn), without calling it.")
    return Dependency(provider, use_cache=use_cache)


def injection_key(annotation: Any, default: Any, *, state: StateKind | None = None) -> Hashable | None:
    """What a parameter is injected with; None when the caller gives it.

    Args:
        annotation: Its plain type.
        default: Its default, or a mark in its `Annotated`.
        state: The server's state; its type is a key too.
    """
    if isinstance(default, Dependency):
        return default
    if default is Depends:
        raise RegistrationError("A parameter has Depends itself as its default: write Depends(fn).")
    if state is not None and annotation is state.key:
        return state
    return Context if annotation is Context else None


class _Provider:
    """A compiled `Depends`."""

    __slots__ = ("fn", "needs", "use_cache")

    def __init__(self, dependency: Dependency, needs: Injector) -> None:
        self.fn: Callable[..., Any] = dependency.provider
        self.use_cache = dependency.use_cache
        self.needs = needs

    async def provide(self, ctx: Context, cache: dict[Any, Any], stack: AsyncExitStack) -> Any:
        if self.use_cache and self.fn in cache:
            return cache[self.fn]
        kwargs: dict[str, Any] = {}
        await self.needs.fill(kwargs, ctx, cache, stack)
        value = await self._make(kwargs, ctx, stack)
        if self.use_cache:
            cache[self.fn] = value
        return value

    async def _make(self, kwargs: dict[str, Any], ctx: Context, stack: AsyncExitStack) -> Any:
        workers = ctx.mount.workers
        # A generator function counts as one, also where @contextmanager or @asynccontextmanager stands on it already.
        inner = inspect.unwrap(self.fn)
        if inspect.isasyncgenfunction(inner):
            make = asynccontextmanager(self.fn) if inspect.isasyncgenfunction(self.fn) else self.fn
            return await stack.enter_async_context(make(**kwargs))
        if inspect.isgeneratorfunction(inner):
            manager = (contextmanager(self.fn) if inspect.isgeneratorfunction(self.fn) else self.fn)(**kwargs)
            value = await _enter(workers, manager, ctx.principal)
            stack.push_async_exit(partial(_leave, workers, manager))
            return value
        if inspect.iscoroutinefunction(self.fn):
            return await self.fn(**kwargs)
        value = await ctx.on_thread(self.fn, kwargs)
        return await value if inspect.isawaitable(value) else value


async def _enter(workers: Workers, manager: AbstractContextManager[Any], principal: str | None) -> Any:
    entering = asyncio.ensure_future(workers.run(manager.__enter__, {}, principal=principal))
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        # The thread can't be stopped: what it opens is closed when it has.
        entering.add_done_callback(partial(_leave_later, workers, manager))
        raise


def _leave_later(workers: Workers, manager: AbstractContextManager[Any], entering: asyncio.Future[Any]) -> None:
    if not entering.cancelled() and entering.exception() is None:
        _start_leaving(workers, manager, None, None, None)


async def _leave(workers: Workers, manager: AbstractContextManager[Any], *error: Any) -> bool | None:
    # Whoever stops waiting: what was opened is closed.
    return await asyncio.shield(_start_leaving(workers, manager, *error))


def _start_leaving(workers: Workers, manager: AbstractContextManager[Any], *error: Any) -> asyncio.Future[bool | None]:
    leaving = asyncio.ensure_future(workers.run(partial(manager.__exit__, *error), {}, bounded=False))
    _leaving.add(leaving)
    leaving.add_done_callback(_leaving.discard)
    return leaving


class Injector:
    """The injected parameters of one function.

    Attributes:
        context: Names of the parameters that get the Context.
        state: Names of those that get the state.
        providers: Parameter name to provider; where there are any, `fill` needs an exit stack.
        takes_state: Whether the function or one of its providers gets the state.
    """

    __slots__ = ("context", "providers", "state", "takes_state")

    def __init__(self, context: tuple[str, ...], state: tuple[str, ...], providers: dict[str, _Provider]) -> None:
        self.context = context
        self.state = state
        self.providers = providers
        self.takes_state: bool = bool(state) or any(provider.needs.takes_state for provider in providers.values())

    async def fill(self, kwargs: dict[str, Any], ctx: Context, cache: dict[Any, Any], stack: AsyncExitStack) -> None:
        """Put every injected value into `kwargs`."""
        for name in self.context:
            kwargs[name] = ctx
        for name in self.state:
            kwargs[name] = ctx.state
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
    state = tuple(name for name, key in injections.items() if isinstance(key, StateKind))
    providers: dict[str, _Provider] = {}
    for name, key in injections.items():
        if not isinstance(key, Dependency):
            continue
        if key.provider in path:
            circle = " -> ".join(getattr(fn, "__qualname__", repr(fn)) for fn in (*path, key.provider))
            raise RegistrationError(f"Depends goes in a circle: {circle}.")
        needs = compile_injections(read(key.provider), read, path=(*path, key.provider))
        providers[name] = _Provider(key, needs)
    return Injector(context, state, providers)
