"""Resources: a function that gives contents, at one URI or at all that fit a template."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from msgspec import UNSET

from callboard.core.outcome import CacheHint, NeedInput, Outcome, Reply
from callboard.core.traversal import check_traversal
from callboard.core.uri import UriTemplate
from callboard.errors import Fail, NotFound, Reason, RegistrationError
from callboard.server.callee import Callee, FactFields, Facts, make_definition, open_reply
from callboard.server.context import Context
from callboard.server.policy import AccessFields, Gate, Policy, Visible, make_gate
from callboard.server.shape import encode_value
from callboard.server.state import StateKind
from callboard.server.strings import StringArguments
from callboard.wire import v2026_07_28 as v

__all__ = ["RESOURCE", "Readable", "Resource", "ResourceFields", "Template"]

_CONTENTS = (v.ResourceContents, v.TextResourceContents, v.BlobResourceContents)


class ResourceFields(FactFields, AccessFields, total=False):
    """The options of a resource as keyword arguments."""

    mime_type: str | None
    size: int | None
    annotations: v.Annotations | None
    cache: CacheHint | None


RESOURCE = frozenset({"mime_type", "size", "annotations", "cache"})
"""Options that only resources have."""


class Readable:
    """What all that is read by URI shares: a function that gives contents.

    Args:
        callee: The function.
        key: What it is known by.
        mime_type: Of what it gives, where that does not say so.
        cache: How long clients may keep it; None for the server's `cache`.
        policy: Who may read it.

    Raises:
        RegistrationError: An option can't work.

    Attributes:
        key: As given.
        source: Name and place of the function.
        state: The state that it takes; None when it takes none.
        cache: As given.
        definition: Its entry in a list, encoded.
        gate: What lets reads through; None where everybody may read.
        visible: Says for each request whether it is there; None where it always is.
        listing: How long clients may keep its entry in a list; None for the server's `cache`.
    """

    __slots__ = ("_call", "_mime_type", "cache", "definition", "gate", "key", "listing", "source", "state", "visible")

    def __init__(self, callee: Callee, key: str, mime_type: str | None, cache: CacheHint | None, policy: Policy) -> None:
        self._call = callee.call
        self._mime_type = mime_type
        self.key = key
        self.source = callee.signature.label
        self.state = callee.state
        policy.check(self.source)
        if cache is not None and not isinstance(cache, CacheHint):
            raise RegistrationError(f"{self.source}: cache must be a CacheHint, like CacheHint(ttl_ms=60_000), not {cache!r}.")
        if not isinstance(mime_type, str | None):
            raise RegistrationError(f'{self.source}: mime_type is a text like "text/markdown", not {mime_type!r}.')
        self.cache = cache
        self.gate: Gate | None = make_gate(policy, self.source, f"resources:{self.key}")
        self.visible: Visible | None = policy.visible
        self.listing: CacheHint | None = None
        self.definition = b""

    async def _contents(self, uri: str, kwargs: dict[str, Any], ctx: Context) -> Outcome:
        try:
            value = await self._call(kwargs, ctx)
        except NotFound as error:
            if error.data is None:
                raise NotFound(uri) from error
            raise
        if type(value) is NeedInput:
            return value
        cache = self.cache
        if isinstance(value, Reply):
            cache = value.cache or cache
            value = open_reply(value, ctx, takes_state=self.state is not None, source=self.source)
        if isinstance(value, v.ReadResourceResult):
            value = value.contents
        items = value if isinstance(value, list | tuple) and value and all(isinstance(item, _CONTENTS) for item in value) else [value]
        return Reply({"contents": [_content(uri, item, self._mime_type) for item in items]}, cache)


def _content(uri: str, value: Any, mime_type: str | None) -> Any:
    if isinstance(value, v.EmbeddedResource):
        return value.resource
    if isinstance(value, v.ImageContent | v.AudioContent):
        return v.ResourceContents(uri=uri, blob=value.data, mime_type=value.mime_type)
    if isinstance(value, _CONTENTS):
        return value
    if isinstance(value, str):
        return v.ResourceContents(uri=uri, text=value, mime_type=mime_type or "text/plain")
    if isinstance(value, bytes | bytearray | memoryview):
        return v.ResourceContents(uri=uri, blob=base64.b64encode(value).decode(), mime_type=mime_type or "application/octet-stream")
    if value is None:
        raise TypeError("A resource function returned None: return its contents, or raise NotFound().")
    return v.ResourceContents(uri=uri, text=encode_value(value).decode(), mime_type=mime_type or "application/json")


class Resource(Readable):
    """A resource at one URI.

    Attributes:
        key: Its URI.
        state: The state that it takes; None when it takes none.
        definition: Its entry in `resources/list`, encoded.
    """

    kind: ClassVar[Literal["resources"]] = "resources"
    __slots__ = ()

    def __init__(
        self,
        fn: Callable[..., Any],
        uri: str,
        *,
        facts: Facts = Facts(),
        mime_type: str | None = None,
        size: int | None = None,
        annotations: v.Annotations | None = None,
        cache: CacheHint | None = None,
        policy: Policy = Policy(),
        state: StateKind | None = None,
    ) -> None:
        callee = Callee(fn, state)
        signature = callee.signature
        super().__init__(callee, uri, mime_type, cache, policy)
        if unfilled := [parameter.name for parameter in signature.parameters if parameter.required]:
            raise RegistrationError(
                f"{self.source}: the URI {uri!r} has no variable for {', '.join(unfilled)}; write it as {{{unfilled[0]}}} in the URI."
            )
        _, self.definition = make_definition(
            v.Resource,
            self.source,
            uri=uri,
            name=facts.name or signature.name,
            mime_type=mime_type or UNSET,
            size=UNSET if size is None else size,
            annotations=annotations or UNSET,
            **facts.fields(signature),
        )

    async def read(self, uri: str, ctx: Context) -> Outcome:
        """Give the contents."""
        return await self._contents(uri, {}, ctx)


class Template(Readable):
    """Resources at all URIs that fit a template.

    Attributes:
        key: The URI template.
        state: The state that it takes; None when it takes none.
        definition: Its entry in `resources/templates/list`, encoded.
        uri_template: The compiled template.
    """

    kind: ClassVar[Literal["templates"]] = "templates"
    __slots__ = ("_bind", "uri_template")

    def __init__(
        self,
        fn: Callable[..., Any],
        uri: str,
        *,
        facts: Facts = Facts(),
        mime_type: str | None = None,
        annotations: v.Annotations | None = None,
        cache: CacheHint | None = None,
        policy: Policy = Policy(),
        state: StateKind | None = None,
    ) -> None:
        callee = Callee(fn, state)
        signature = callee.signature
        super().__init__(callee, uri, mime_type, cache, policy)
        try:
            self.uri_template = UriTemplate(uri)
        except ValueError as error:
            raise RegistrationError(f"{self.source}: {error}") from None
        names = {parameter.name: parameter for parameter in signature.parameters}
        if missing := [name for name in self.uri_template.variables if name not in names]:
            raise RegistrationError(
                f"{self.source}: the URI template {uri!r} has {{{missing[0]}}}, but the function has no parameter of that name."
            )
        if unfilled := [name for name, p in names.items() if p.required and name not in self.uri_template.variables]:
            raise RegistrationError(
                f"{self.source}: nothing fills {unfilled[0]!r}: put {{{unfilled[0]}}} into {uri!r} or give it a default."
            )
        self._bind = StringArguments(signature, strict=True).bind
        _, self.definition = make_definition(
            v.ResourceTemplate,
            self.source,
            uri_template=uri,
            name=facts.name or signature.name,
            mime_type=mime_type or UNSET,
            annotations=annotations or UNSET,
            **facts.fields(signature),
        )

    async def read(self, uri: str, values: Mapping[str, Any], ctx: Context) -> Outcome:
        """Give the contents at one URI.

        Raises:
            Fail: A value would lead out of where it belongs (RS-08), or is of the wrong type.
        """
        if unsafe := check_traversal(values):
            raise Fail(Reason.INVALID_PARAMS, f"The URI's {unsafe} leads out of where it belongs.", {"uri": uri})
        return await self._contents(uri, self._bind(values), ctx)
