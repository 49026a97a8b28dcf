"""Servers mounted on others: their components under a prefix, served by themselves.

The parent has a stand-in for each component of the child, under its own name. What is asked of a stand-in goes through the child's service,
so its middleware, its options and its lifespan's values hold for it. Lists are the parent's: they are made of the stand-ins.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw

from callboard.core.outcome import CacheHint, Outcome
from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.catalogue import ask_provider, unknown_prompt, unknown_tool
from callboard.server.component import Completer, Component, Prompt, Repository, Resource, Template, Tool, check_tool_name
from callboard.server.context import Context
from callboard.server.fleet import join
from callboard.server.lifespan import Lifespan
from callboard.server.middleware import Service
from callboard.server.policy import Guarded, Visible, sees
from callboard.server.registry import Provider, Registry
from callboard.stores.base import Store
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import encode

__all__ = ["Mounted"]

_log = logging.getLogger("callboard")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]+")


class Mountable(Protocol):
    """What mounting needs of a server.

    Attributes:
        cache: How long clients may keep its lists and resources.
        registry: Its components.
        service: What serves its requests.
        lifespan: What is entered before.
        store: What it keeps, and what carries its messages.
    """

    cache: CacheHint
    registry: Registry
    service: Service
    lifespan: Lifespan
    store: Store

    @property
    def name(self) -> str:
        """Programmatic name."""
        ...


class Mounted:
    """A server under a prefix.

    Args:
        prefix: What the names of its tools and prompts begin with, before a `_`.
        server: The server.

    Raises:
        RegistrationError: `prefix` can't begin the name of a tool.

    Attributes:
        prefix: As given.
        server: As given.
    """

    def __init__(self, prefix: str, server: Mountable) -> None:
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise RegistrationError(f"server.mount: a prefix is made of A-Z a-z 0-9 _ - . and comes first, not {prefix!r}.")
        self.prefix = prefix
        self.server = server
        self._entered: dict[asyncio.AbstractEventLoop, Mapping[str, Any] | None] = {}

    # Its lifespan

    async def enter(self) -> Mapping[str, Any] | None:
        """What its lifespan yielded; None when it failed: then it is tried again when the parent starts again, and the rest works."""
        loop = asyncio.get_running_loop()
        if loop in self._entered:
            return self._entered[loop]
        values: Mapping[str, Any] | None = None
        try:
            await self.server.store.open()
            await join(self.server)
            values = await self.server.lifespan.enter()
        except (Exception, SystemExit):  # noqa: BLE001 - user code; the rest of the server is not harmed
            _log.exception("The lifespan of %r, mounted as %r, failed: its components answer with an error.", self.server.name, self.prefix)
        if loop in self._entered:  # another request was faster
            if values is not None:
                await self.server.lifespan.leave()
            return self._entered[loop]
        self._entered = {known: entered for known, entered in self._entered.items() if not known.is_closed()}
        self._entered[loop] = values
        return values

    async def leave(self) -> None:
        """The parent ends."""
        values = self._entered.pop(asyncio.get_running_loop(), None)
        if values is None:
            return
        try:
            await self.server.lifespan.leave()
            if not self.server.lifespan.in_use:
                await self.server.store.close()
        except (Exception, SystemExit):  # noqa: BLE001 - user code; the parent's own end is still to come
            _log.exception("The lifespan of %r, mounted as %r, failed on its way out.", self.server.name, self.prefix)

    # Its requests

    async def serve(self, ctx: Context, **changed: Any) -> Outcome:
        """Have it serve a request.

        Args:
            ctx: The request's.
            **changed: Parameters that are others there.
        """
        values = await self.enter()
        if values is None:
            return Fail(Reason.INTERNAL, f"The mounted server {self.server.name} is not available.")
        outer = ctx.within
        ctx.enter(self.server, values)
        params = msgspec.structs.replace(ctx.request.params, **changed)
        try:
            return await self.server.service(msgspec.structs.replace(ctx.request, params=params), ctx)
        finally:
            ctx.within = outer  # a layer of the parent may go on, and serve the request again

    async def look(self, ctx: Context) -> Context:
        """The Context for what is asked of it on the way to others: its predicates, providers and lists."""
        return ctx.inside(self.server, await self.enter() or {})

    # Its components

    def adopt(self, component: Component) -> Component:
        """The component as the parent has it."""
        if isinstance(component, Tool):
            return _Tool(self, component)
        if isinstance(component, Prompt):
            return _Prompt(self, component)
        if isinstance(component, Template):
            return _Template(self, component)
        if isinstance(component, Resource):
            return _Resource(self, component)
        if isinstance(component, Repository):
            return _Repository(self, component)
        return _Completer(self, component)

    def sponsor(self, provider: Provider) -> Provider:
        """The provider as the parent has it."""
        return _Provider(self, provider)

    def rename(self, key: str) -> str:
        """What a tool or a prompt of this name is known by."""
        return f"{self.prefix}_{key}"

    def stand_in(self, made: Any, inner: Any, *names: str) -> None:
        """Make a component stand in for another one.

        Args:
            made: The component, empty.
            inner: The other one.
            *names: Attributes of its kind that are the same.
        """
        for name in ("key", "definition", "gate", "state", *names):
            setattr(made, name, getattr(inner, name))
        made.source = self.place(inner.source)
        made.visible = self._visible(inner)
        made.listing = inner.listing or self.server.cache

    def place(self, source: str) -> str:
        """Name and place of something of it."""
        return f"{source}, mounted as {self.prefix!r}"

    def _visible(self, inner: Guarded) -> Visible | None:
        return None if inner.visible is None else partial(self._sees, inner)

    async def _sees(self, inner: Guarded, ctx: Context) -> bool:
        return await sees(inner, await self.look(ctx))


def _named(definition: bytes, name: str) -> bytes:
    fields = msgspec.json.decode(definition)
    return encode({**fields, "name": name})


def _is_fail(outcome: Outcome, reason: Reason) -> bool:
    """Whether the child does not know what the parent found: it may know more of the caller."""
    return isinstance(outcome, Fail) and outcome.reason is reason


class _Tool(Tool):
    __slots__ = ("inner", "mounted")

    def __init__(self, mounted: Mounted, inner: Tool) -> None:
        self.mounted, self.inner = mounted, inner
        mounted.stand_in(self, inner, "header_params", "policy", "snapshot")
        self.key = mounted.rename(inner.key)
        check_tool_name(self.key, self.source)
        self.definition = _named(inner.definition, self.key)

    async def call(self, raw: Raw | None, ctx: Context) -> Outcome:
        outcome = await self.mounted.serve(ctx, name=self.inner.key, arguments=UNSET if raw is None else raw)
        return unknown_tool(self.key) if _is_fail(outcome, Reason.UNKNOWN_TOOL) else outcome


class _Prompt(Prompt):
    __slots__ = ("inner", "mounted")

    def __init__(self, mounted: Mounted, inner: Prompt) -> None:
        self.mounted, self.inner = mounted, inner
        mounted.stand_in(self, inner, "arguments")
        self.key = mounted.rename(inner.key)
        self.definition = _named(inner.definition, self.key)

    async def get(self, arguments: Mapping[str, str], ctx: Context) -> Outcome:
        outcome = await self.mounted.serve(ctx, name=self.inner.key, arguments=dict(arguments))
        return unknown_prompt(self.key) if _is_fail(outcome, Reason.UNKNOWN_PROMPT) else outcome


class _Resource(Resource):
    __slots__ = ("inner", "mounted")

    def __init__(self, mounted: Mounted, inner: Resource) -> None:
        self.mounted, self.inner = mounted, inner
        mounted.stand_in(self, inner, "cache")

    async def read(self, uri: str, ctx: Context) -> Outcome:
        return await self.mounted.serve(ctx, uri=uri)


class _Template(Template):
    __slots__ = ("inner", "mounted")

    def __init__(self, mounted: Mounted, inner: Template) -> None:
        self.mounted, self.inner = mounted, inner
        mounted.stand_in(self, inner, "cache", "uri_template")

    async def read(self, uri: str, values: Mapping[str, Any], ctx: Context) -> Outcome:  # noqa: ARG002 - the child finds them again
        return await self.mounted.serve(ctx, uri=uri)


class _Repository(Repository):
    __slots__ = ("inner", "mounted")

    def __init__(self, mounted: Mounted, inner: Repository) -> None:
        self.mounted, self.inner = mounted, inner
        mounted.stand_in(self, inner, "cache", "is_listed", "is_paged")

    async def page(self, cursor: str | None, ctx: Context) -> tuple[Sequence[bytes], str | None]:
        return await self.inner.page(cursor, await self.mounted.look(ctx))

    async def read(self, uri: str, ctx: Context) -> Outcome:
        return await self.mounted.serve(ctx, uri=uri)


class _Completer(Completer):
    __slots__ = ("inner", "mounted")

    def __init__(self, mounted: Mounted, inner: Completer) -> None:
        self.mounted, self.inner = mounted, inner
        self.source = mounted.place(inner.source)
        self.state = inner.state
        self.argument = inner.argument
        # A template has a variable, and so a brace; the name of a prompt has none.
        self.owner = inner.owner if "{" in inner.owner else mounted.rename(inner.owner)

    async def complete(self, text: str, arguments: Mapping[str, str], ctx: Context, cap: int) -> Outcome:  # noqa: ARG002 - the child's own
        owner = self.inner.owner
        return await self.mounted.serve(
            ctx,
            ref=v.ResourceTemplateReference(uri=owner) if "{" in owner else v.PromptReference(name=owner),
            argument=v.CompletionArgument(name=self.argument, value=text),
            context=v.CompletionContext(arguments=dict(arguments)),
        )


class _Provider:
    def __init__(self, mounted: Mounted, inner: Provider) -> None:
        self.mounted, self.inner = mounted, inner
        self.source = mounted.place(inner.source)

    async def open(self, ctx: Context) -> Registry:
        server = self.mounted.server
        registry = Registry(cache=server.cache)
        if await self.mounted.enter() is not None:
            given = await ask_provider(self.inner, await self.mounted.look(ctx))
            try:
                registry.add(*[self.mounted.adopt(component) for component in given])
            except RegistrationError:
                _log.exception("What the provider %s gives can't be mounted, so that it is absent.", self.source)
        return registry
