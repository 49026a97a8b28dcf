"""A user's function, ready to be called with what it is injected with, and the facts that its component states about itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec import UNSET

from callboard.core.outcome import Reply
from callboard.errors import RegistrationError
from callboard.server.context import Context
from callboard.server.depends import compile_injections, injection_key
from callboard.server.signature import Signature, read
from callboard.server.state import StateKind
from callboard.server.workers import current_task
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import encode

__all__ = ["CONTENT_BLOCKS", "Callee", "FactFields", "Facts", "Run", "make_definition", "open_reply", "read_facts"]

D = TypeVar("D", v.Tool, v.Prompt, v.Resource, v.ResourceTemplate, v.Implementation)
Run: TypeAlias = Callable[[dict[str, Any], Context], Awaitable[Any]]
CONTENT_BLOCKS = (v.TextContent, v.ImageContent, v.AudioContent, v.EmbeddedResource, v.ResourceLink)


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """What every component may say about itself.

    Attributes:
        name: Programmatic name; the function's by default.
        title: Name for people.
        description: What it does, for models; the docstring by default.
        icons: Pictures of it.
        meta: `_meta` of its definition.
    """

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: Sequence[v.Icon] = ()
    meta: Mapping[str, Any] | None = None

    def fields(self, signature: Signature | None = None) -> dict[str, Any]:
        """As fields of a definition; what has another type is left as it is, for `make_definition` to say so."""
        said = None if signature is None else signature.doc.description
        icons = list(self.icons) if isinstance(self.icons, Sequence) else self.icons
        meta = dict(self.meta) if isinstance(self.meta, Mapping) else self.meta
        return {
            "title": UNSET if self.title is None else self.title,
            "description": (said if self.description is None else self.description) or UNSET,
            "icons": UNSET if icons == [] else icons,
            "meta": UNSET if meta is None else meta,
        }


class FactFields(TypedDict, total=False):
    """The fields of `Facts` as keyword arguments."""

    name: str | None
    title: str | None
    description: str | None
    icons: Sequence[v.Icon]
    meta: Mapping[str, Any] | None


class Callee:
    """A user's function with what it is injected with, ready to be called.

    Args:
        fn: The function.
        state: The server's state, which parameters of its type get; None without.

    Attributes:
        state: As given, where the function or one of its `Depends` takes it; else None.
    """

    __slots__ = ("_call", "_injector", "_is_async", "call", "signature", "state")

    def __init__(self, fn: Callable[..., Any], state: StateKind | None = None) -> None:
        self.signature = read(fn, injected=partial(injection_key, state=state))
        self._call = self.signature.call
        self._is_async = self.signature.is_async
        self._injector = compile_injections(self.signature.injections, partial(_provider_injections, state=state))
        self.state = state if self._injector.takes_state else None
        self.call: Run = self._call_with_providers if self._injector.providers else self._call_with_context
        if self._is_async and not self.signature.injections:
            self.call = self._call_plainly

    def _call_plainly(self, kwargs: dict[str, Any], _ctx: Context) -> Awaitable[Any]:
        awaitable: Awaitable[Any] = self._call(**kwargs)
        return awaitable

    async def _call_with_context(self, kwargs: dict[str, Any], ctx: Context) -> Any:
        for name in self._injector.context:
            kwargs[name] = ctx
        for name in self._injector.state:
            kwargs[name] = ctx.state
        outer = ctx.task
        try:
            if self._is_async:
                ctx.task = current_task(ctx.mount.workers.loop)
                return await self._call(**kwargs)
            return await ctx.on_thread(self._call, kwargs)
        finally:
            ctx.task, outer = outer, None  # a task holds its error, that its frames: neither they nor the Context may hold the task

    async def _call_with_providers(self, kwargs: dict[str, Any], ctx: Context) -> Any:
        outer, ctx.task = ctx.task, current_task(ctx.mount.workers.loop)  # a dependency may ask the client too
        try:
            async with AsyncExitStack() as stack:
                await self._injector.fill(kwargs, ctx, {}, stack)
                return await self._call_with_context(kwargs, ctx)
        finally:
            ctx.task, outer = outer, None


def _provider_injections(provider: Callable[..., Any], *, state: StateKind | None) -> dict[str, Any]:
    signature = read(provider, injected=partial(injection_key, state=state), may_yield=True)
    if unfilled := [parameter.name for parameter in signature.parameters if parameter.required]:
        raise RegistrationError(
            f"{signature.label}: a dependency gets only a Context, the server's state and other Depends; {', '.join(unfilled)} has no default to fall back on."
        )
    return dict(signature.injections)


def open_reply(reply: Reply, ctx: Context, *, takes_state: bool, source: str) -> Any:
    """Take a `Reply` that a function returned: the value in it, and the state that it leaves.

    Args:
        reply: What was returned.
        ctx: The call's.
        takes_state: Whether the function takes the state.
        source: Its name and place.

    Raises:
        TypeError: It leaves a state without having taken one.
    """
    if reply.state is not UNSET:
        if not takes_state:
            raise TypeError(
                f"{source}: Reply(state=...) replaces the state that the function was given; declare a parameter for the state."
            )
        ctx.state = reply.state
    if reply.stop_reason is not None:
        ctx.stop_reason = reply.stop_reason
    return reply.value


def read_facts(where: str, fields: Mapping[str, Any], others: Iterable[str]) -> Facts:
    """Take the keyword arguments of a decorator that are none of the others that it has.

    Raises:
        RegistrationError: One of them is unknown; the text lists those there are.
    """
    if unknown := sorted(fields.keys() - FactFields.__annotations__.keys()):
        known = ", ".join([*FactFields.__annotations__, *sorted(others)])
        raise RegistrationError(f"{where} takes no {unknown[0]!r}; it takes {known}.")
    return Facts(**fields)


def make_definition(kind: type[D], where: str, **fields: Any) -> tuple[D, bytes]:
    """Make and encode what a list says of a component, so that nothing in it can spoil that list for every client.

    Args:
        kind: Type of the definition.
        where: Name and place of the component.
        **fields: Its fields.

    Raises:
        RegistrationError: A field has a type that the protocol doesn't have there.
    """
    definition = kind(**fields)
    try:
        encoded = encode(definition)
        msgspec.json.decode(encoded, type=kind)
    except (TypeError, ValueError, RecursionError) as error:
        raise RegistrationError(
            f"{where}: its definition can't be sent ({error}). Texts are str, icons a list of types.Icon, "
            "annotations a types.ToolAnnotations or types.Annotations, meta a mapping."
        ) from None
    return definition, encoded
