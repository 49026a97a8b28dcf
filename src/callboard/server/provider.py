"""Providers: functions that give a server more components, for each request anew."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.classes import compile_parts
from callboard.server.component import Completer, Component, Tool
from callboard.server.context import Context
from callboard.server.registry import Registry
from callboard.server.signature import accepts
from callboard.server.state import StateKind
from callboard.server.workers import is_imposed

__all__ = ["FunctionProvider"]

_log = logging.getLogger("callboard")
# Functions and classes of which a provider remembers what was made; past that the one it has not given for longest is forgotten.
_REMEMBERED = 1000


class FunctionProvider:
    """A provider: its function takes the Context and gives functions, components or classes of them.

    Args:
        fn: The function: plain, which runs on a thread, or async, or an async generator function.
        cache: How long clients may keep lists, where no component says less.
        strict: Whether arguments that its components don't take are faults.
        state: The server's state, which they can't take: whose turn it is must be known before they are asked for.

    Raises:
        RegistrationError: `fn` can't be called with a Context.

    Attributes:
        source: Name and place of the function.
    """

    def __init__(self, fn: Callable[..., Any], *, cache: Any, strict: bool, state: StateKind | None) -> None:
        if not callable(fn):
            raise RegistrationError(f"server.provide takes a function of the Context, not {fn!r}.")
        code = getattr(inspect.unwrap(fn), "__code__", None)
        self.source = f"{getattr(fn, '__name__', type(fn).__name__)}()" + (f" at {code.co_filename}:{code.co_firstlineno}" if code else "")
        if not accepts(fn, None):
            raise RegistrationError(f"{self.source}: a provider is called with one argument, the Context; let it take that.")
        self._fn = fn
        self._cache = cache
        self._strict = strict
        self._state = state
        self._made: dict[Any, list[Component]] = {}

    async def open(self, ctx: Context) -> Registry:
        """What it gives for a request; nothing when it fails: the log has the traceback."""
        parts: list[Component] = []
        registry = Registry(cache=self._cache)
        try:
            for given in await self._ask(ctx):
                parts += self._compile(given)
            registry.add(*parts)
        except BaseException as error:  # the rest of the server is not harmed
            if is_imposed(error) or (isinstance(error, Fail) and error.reason is Reason.OVERLOADED):
                raise  # no thread was free: what it gives is unknown, which is not the same as nothing
            _log.exception("The provider %s failed, so that its components are absent.", self.source)
        return registry

    async def _ask(self, ctx: Context) -> list[Any]:
        fn = self._fn
        if inspect.iscoroutinefunction(fn):
            found = await fn(ctx)
        elif inspect.isasyncgenfunction(fn):
            found = fn(ctx)
        else:
            found = await ctx.mount.workers.run(_collect, {"fn": fn, "ctx": ctx}, principal=ctx.principal)
            found = await found if inspect.isawaitable(found) else found
        if isinstance(found, AsyncIterable):
            return [given async for given in found]
        return [] if found is None else list(found)

    def _compile(self, given: Any) -> list[Component]:
        # What is made anew for each request must not be kept for ever; what a module defines is always the same.
        is_lasting = _is_lasting(given)
        if is_lasting and (known := self._made.pop(given, None)) is not None:
            self._made[given] = known
            return known
        parts = compile_parts(given, where=self.source, strict=self._strict, state=self._state)
        for part in parts:
            if part.state is not None:
                raise RegistrationError(f"{part.source}: what a provider gives can't take the state of sessions; add it to the server.")
            if not is_lasting and part is not given and _counts(part):
                raise RegistrationError(
                    f"{part.source}: its calls can't be counted, for it is made anew for each request; "
                    "give its class, defined in a module, or add it to the server with visible=."
                )
        if is_lasting:
            self._made[given] = parts
            if len(self._made) > _REMEMBERED:
                del self._made[next(iter(self._made))]
        return parts


def _is_lasting(given: Any) -> bool:
    """Whether a module defines it, as far as can be seen."""
    if isinstance(given, type):
        return "<locals>" not in given.__qualname__
    if not inspect.isfunction(given):
        return False
    # A wrapper that is made for a request has the name of the lasting function in it.
    found: Any = sys.modules.get(given.__module__)
    for name in given.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is given


def _counts(part: Component) -> bool:
    """Whether its policy remembers calls."""
    if isinstance(part, Completer):
        return False
    return (part.gate is not None and part.gate.counts) or (isinstance(part, Tool) and part.policy.concurrency is not None)


def _collect(fn: Callable[..., Any], ctx: Context) -> Any:
    """Call a plain function, and go through what it gives where it may block."""
    found = fn(ctx)
    return list(found) if isinstance(found, Iterable) else found
