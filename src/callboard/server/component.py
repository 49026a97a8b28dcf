"""Compiled components: a function and all that can be known of it before the first call.

Everything that a request needs from a component is an attribute here: its converter, its definition as bytes, its header map.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET

from callboard.core.headers import HeaderParam, compile_param_map
from callboard.core.outcome import CacheHint, Reply
from callboard.core.uri import UriTemplate, check_traversal
from callboard.errors import Fail, NotFound, Reason, RegistrationError, ToolError
from callboard.server.context import Context
from callboard.server.depends import compile_injections, injection_key
from callboard.server.schema import ArgumentFaults, compile_arguments, compile_raw_schema
from callboard.server.shape import compile_result, encode_value
from callboard.server.signature import Signature, read
from callboard.server.strings import StringArguments
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import encode

__all__ = ["Completer", "Component", "FactFields", "Facts", "Policy", "Prompt", "Resource", "Template", "Tool"]

_CONTENT = (v.TextContent, v.ImageContent, v.AudioContent, v.EmbeddedResource, v.ResourceLink)
_CONTENTS = (v.ResourceContents, v.TextResourceContents, v.BlobResourceContents)
COMPLETION_CAP = 100


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

    def fields(self, signature: Signature) -> dict[str, Any]:
        """As fields of a definition."""
        description = self.description if self.description is not None else signature.doc.description
        return {
            "title": UNSET if self.title is None else self.title,
            "description": description or UNSET,
            "icons": list(self.icons) or UNSET,
            "meta": UNSET if self.meta is None else dict(self.meta),
        }


class FactFields(TypedDict, total=False):
    """The fields of `Facts` as keyword arguments."""

    name: str | None
    title: str | None
    description: str | None
    icons: Sequence[v.Icon]
    meta: Mapping[str, Any] | None


class Policy(msgspec.Struct, kw_only=True, frozen=True):
    """How a tool may be run.

    Attributes:
        timeout: Seconds after which its work is cancelled and the call answered in band; None for no limit.
        concurrency: How many calls of it run at once; more wait. None for no limit.
    """

    timeout: float | None = None
    concurrency: int | None = None


_Run: TypeAlias = Callable[[dict[str, Any], Context], Awaitable[Any]]


class _Callee:
    """A user's function with what it is injected with, ready to be called."""

    __slots__ = ("_call", "_injector", "_is_async", "call", "signature")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.signature = read(fn, injected=injection_key)
        self._call = self.signature.call
        self._is_async = self.signature.is_async
        self._injector = compile_injections(self.signature.injections, _provider_injections)
        self.call: _Run = self._call_with_providers if self._injector.providers else self._call_with_context
        if self._is_async and not self.signature.injections:
            self.call = self._call_plainly

    def _call_plainly(self, kwargs: dict[str, Any], _ctx: Context) -> Awaitable[Any]:
        awaitable: Awaitable[Any] = self._call(**kwargs)
        return awaitable

    async def _call_with_context(self, kwargs: dict[str, Any], ctx: Context) -> Any:
        for name in self._injector.context:
            kwargs[name] = ctx
        if self._is_async:
            return await self._call(**kwargs)
        return await ctx.mount.workers.run(self._call, kwargs)

    async def _call_with_providers(self, kwargs: dict[str, Any], ctx: Context) -> Any:
        async with AsyncExitStack() as stack:
            await self._injector.fill(kwargs, ctx, {}, stack)
            return await self._call_with_context(kwargs, ctx)


def _provider_injections(provider: Callable[..., Any]) -> dict[str, Any]:
    signature = read(provider, injected=injection_key, may_yield=True)
    if unfilled := [parameter.name for parameter in signature.parameters if parameter.required]:
        raise RegistrationError(
            f"{signature.label}: a dependency gets only a Context and other Depends; {', '.join(unfilled)} has no default to fall back on."
        )
    return dict(signature.injections)


class Tool:
    """A tool.

    Args:
        fn: The function.
        facts: What it says about itself.
        policy: How it may be run.
        annotations: Hints about its behaviour.
        input_schema: Raw JSON Schema of the arguments; then `fn` takes one parameter, the arguments as a dict.
        output_schema: Raw JSON Schema of the structured result.
        strict: Whether arguments that the function doesn't take are faults.

    Raises:
        RegistrationError: The function can't be a tool; the text says which part of it and what to do.

    Attributes:
        key: Its name.
        definition: Its entry in `tools/list`, encoded.
        header_params: Arguments that headers mirror (HH-09).
        source: Name and place of the function, for error texts.
    """

    kind: ClassVar[Literal["tools"]] = "tools"
    __slots__ = ("_arguments", "_raw_parameter", "_run", "_shape", "definition", "header_params", "key", "source")

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        facts: Facts = Facts(),
        policy: Policy = Policy(),
        annotations: v.ToolAnnotations | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        strict: bool = True,
    ) -> None:
        callee = _Callee(fn)
        signature = callee.signature
        self.key = facts.name or signature.name
        self.source = signature.label
        _check_tool_name(self.key, self.source)
        self._raw_parameter: str | None = None
        if input_schema is None:
            self._arguments = compile_arguments(signature, strict=strict)
        else:
            self._arguments = compile_raw_schema(dict(input_schema), label=self.source)
            self._raw_parameter = _sole_parameter(signature)
        raw_output = None if output_schema is None else dict(output_schema)
        result = compile_result(signature.returns, raw_output_schema=raw_output, label=self.source)
        self._shape = result.shape
        try:
            self.header_params: tuple[HeaderParam, ...] = compile_param_map(self._arguments.input_schema)
        except ValueError as error:
            raise RegistrationError(f"{self.source}: {error}") from None
        self._run: _Run = _limited(callee.call, policy, self.key)
        self.definition = encode(
            v.Tool(
                name=self.key,
                input_schema=self._arguments.input_schema,
                output_schema=UNSET if result.output_schema is None else result.output_schema,
                annotations=UNSET if annotations is None else annotations,
                **facts.fields(signature),
            )
        )

    async def call(self, raw: msgspec.Raw | None, ctx: Context) -> Reply:
        """Run the tool: bind, call, shape. What the tool says of its own failure, and faulty arguments, are results (TL-12, TL-13)."""
        try:
            kwargs = self._arguments.bind(raw)
            if self._raw_parameter is not None:
                kwargs = {self._raw_parameter: kwargs}
            content, structured = self._shape(await self._run(kwargs, ctx))
        except ArgumentFaults as faults:
            return Reply({"content": [v.TextContent(text=str(faults))], "isError": True})
        except ToolError as error:
            return _failure(error)
        except ExceptionGroup as group:
            sole = sole_error(group)
            if isinstance(sole, ToolError):
                return _failure(sole)
            raise
        if structured is None:
            return Reply({"content": content})
        return Reply({"content": content, "structuredContent": structured})


def sole_error(error: BaseException) -> BaseException:
    """The only exception inside nested groups, as a TaskGroup wraps it; the group itself when it holds several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _failure(error: ToolError) -> Reply:
    content = error.content
    blocks = list(content) if isinstance(content, list | tuple) else [content]
    value: dict[str, Any] = {
        "content": [block if isinstance(block, _CONTENT) else v.TextContent(text=str(block)) for block in blocks],
        "isError": True,
    }
    if error.structured is not None:
        value["structuredContent"] = msgspec.Raw(encode_value(error.structured))
    return Reply(value)


def _check_tool_name(name: str, source: str) -> None:
    """TL-15."""
    if not 1 <= len(name) <= 128 or not all(char.isascii() and (char.isalnum() or char in "_-.") for char in name):
        raise RegistrationError(f"{source}: {name!r} can't name a tool: use 1 to 128 of A-Z a-z 0-9 _ - . (pass name=...).")


def _sole_parameter(signature: Signature) -> str:
    if len(signature.parameters) != 1:
        raise RegistrationError(
            f"{signature.label}: with input_schema= the function takes exactly one parameter, the arguments as a dict (and a Context if it likes)."
        )
    return signature.parameters[0].name


def _limited(run: _Run, policy: Policy, name: str) -> _Run:
    """Wrap a tool's run in its policy, the wait for a turn inside the time limit."""
    if policy.timeout is not None and policy.timeout <= 0:
        raise RegistrationError(f"timeout must be more than 0 seconds, not {policy.timeout:g}: no call would ever end well.")
    if policy.concurrency is not None:
        run = _in_turn(run, policy.concurrency)
    if policy.timeout is not None:
        run = _timed(run, policy.timeout, name)
    return run


def _in_turn(run: _Run, concurrency: int) -> _Run:
    if concurrency < 1:
        raise RegistrationError(f"concurrency must be at least 1, not {concurrency}: no call would ever run.")
    turns: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    async def run_in_turn(kwargs: dict[str, Any], ctx: Context) -> Any:
        loop = ctx.mount.workers.loop
        if loop not in turns:
            turns.clear()
            turns[loop] = asyncio.Semaphore(concurrency)
        async with turns[loop]:
            return await run(kwargs, ctx)

    return run_in_turn


def _timed(run: _Run, seconds: float, name: str) -> _Run:
    async def run_timed(kwargs: dict[str, Any], ctx: Context) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await run(kwargs, ctx)
        except TimeoutError:
            if limit.expired():
                raise ToolError(f"{name} was stopped: it took longer than {seconds:g} s.") from None
            raise

    return run_timed


class Prompt:
    """A prompt: a function from string arguments to messages.

    Attributes:
        key: Its name.
        definition: Its entry in `prompts/list`, encoded.
        source: Name and place of the function.
        arguments: Names of its arguments.
    """

    kind: ClassVar[Literal["prompts"]] = "prompts"
    __slots__ = ("_bind", "_call", "_description", "arguments", "definition", "key", "source")

    def __init__(self, fn: Callable[..., Any], *, facts: Facts = Facts(), strict: bool = True) -> None:
        callee = _Callee(fn)
        signature = callee.signature
        self.key = facts.name or signature.name
        self.source = signature.label
        self._call = callee.call
        self._bind = StringArguments(signature, strict=strict).bind
        self.arguments = tuple(parameter.name for parameter in signature.parameters)
        arguments = [
            v.PromptArgument(name=p.name, required=True if p.required else UNSET, description=p.description or UNSET)
            for p in signature.parameters
        ]
        definition = v.Prompt(name=self.key, arguments=arguments or UNSET, **facts.fields(signature))
        self._description = definition.description
        self.definition = encode(definition)

    async def get(self, arguments: Mapping[str, str], ctx: Context) -> Reply:
        """Make the messages.

        Raises:
            Fail: Arguments are missing or wrong (INVALID_PARAMS).
        """
        value = await self._call(self._bind(arguments), ctx)
        reply: dict[str, Any] = {"messages": [_message(item) for item in (value if isinstance(value, list | tuple) else [value])]}
        if self._description is not UNSET:
            reply["description"] = self._description
        return Reply(reply)


def _message(item: Any) -> v.PromptMessage:
    if isinstance(item, v.PromptMessage):
        return item
    if isinstance(item, str):
        return v.PromptMessage(role="user", content=v.TextContent(text=item))
    if isinstance(item, _CONTENT):
        return v.PromptMessage(role="user", content=item)
    raise TypeError(f"A prompt returns str, content blocks, PromptMessage or a list of them, not {type(item).__name__}.")


class _Readable:
    """What resources and templates share: a function that gives contents."""

    __slots__ = ("_call", "_mime_type", "cache", "definition", "key", "source")

    def __init__(self, callee: _Callee, key: str, mime_type: str | None, cache: CacheHint | None) -> None:
        self._call = callee.call
        self._mime_type = mime_type
        self.key = key
        self.source = callee.signature.label
        self.cache = cache
        self.definition = b""

    async def _contents(self, uri: str, kwargs: dict[str, Any], ctx: Context) -> Reply:
        try:
            value = await self._call(kwargs, ctx)
        except NotFound as error:
            error.data = error.data or {"uri": uri}
            raise
        items = value if isinstance(value, list | tuple) and value and all(isinstance(item, _CONTENTS) for item in value) else [value]
        return Reply({"contents": [_content(uri, item, self._mime_type) for item in items]}, self.cache)


def _content(uri: str, value: Any, mime_type: str | None) -> Any:
    if isinstance(value, _CONTENTS):
        return value
    if isinstance(value, str):
        return v.ResourceContents(uri=uri, text=value, mime_type=mime_type or "text/plain")
    if isinstance(value, bytes | bytearray | memoryview):
        return v.ResourceContents(uri=uri, blob=base64.b64encode(value).decode(), mime_type=mime_type or "application/octet-stream")
    if value is None:
        raise TypeError("A resource function returned None: return its contents, or raise NotFound().")
    return v.ResourceContents(uri=uri, text=encode_value(value).decode(), mime_type=mime_type or "application/json")


class Resource(_Readable):
    """A resource at one URI.

    Attributes:
        key: Its URI.
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
    ) -> None:
        callee = _Callee(fn)
        signature = callee.signature
        super().__init__(callee, uri, mime_type, cache)
        if unfilled := [parameter.name for parameter in signature.parameters if parameter.required]:
            raise RegistrationError(
                f"{self.source}: the URI {uri!r} has no variable for {', '.join(unfilled)}; write it as {{{unfilled[0]}}} in the URI."
            )
        definition = v.Resource(
            uri=uri,
            name=facts.name or signature.name,
            mime_type=mime_type or UNSET,
            size=UNSET if size is None else size,
            annotations=annotations or UNSET,
            **facts.fields(signature),
        )
        self.definition = encode(definition)

    async def read(self, uri: str, ctx: Context) -> Reply:
        """Give the contents."""
        return await self._contents(uri, {}, ctx)


class Template(_Readable):
    """Resources at all URIs that fit a template.

    Attributes:
        key: The URI template.
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
    ) -> None:
        callee = _Callee(fn)
        signature = callee.signature
        super().__init__(callee, uri, mime_type, cache)
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
        definition = v.ResourceTemplate(
            uri_template=uri,
            name=facts.name or signature.name,
            mime_type=mime_type or UNSET,
            annotations=annotations or UNSET,
            **facts.fields(signature),
        )
        self.definition = encode(definition)

    async def read(self, uri: str, values: Mapping[str, Any], ctx: Context) -> Reply:
        """Give the contents at one URI.

        Raises:
            Fail: A value would lead out of where it belongs (RS-08), or is of the wrong type.
        """
        if unsafe := check_traversal(values):
            raise Fail(Reason.INVALID_PARAMS, f"The URI's {unsafe} leads out of where it belongs.", {"uri": uri})
        return await self._contents(uri, self._bind(values), ctx)


class Completer:
    """Suggests values for one argument of a prompt or one variable of a template.

    Attributes:
        owner: Name of the prompt, or the URI template.
        argument: Name of the argument.
        source: Name and place of the function.
    """

    __slots__ = ("_call", "_context", "_value", "argument", "owner", "source")

    def __init__(self, fn: Callable[..., Any], owner: str, argument: str) -> None:
        callee = _Callee(fn)
        names = [parameter.name for parameter in callee.signature.parameters]
        self.source = callee.signature.label
        if not names or len(names) > 2:
            raise RegistrationError(f"{self.source}: a completion takes the text so far, and optionally the other arguments as a dict.")
        self._value = names[0]
        self._context = names[1] if len(names) == 2 else None
        self._call = callee.call
        self.owner = owner
        self.argument = argument

    async def complete(self, text: str, arguments: Mapping[str, str], ctx: Context, cap: int) -> Reply:
        """Suggest values: the first `cap`, how many there are in all, and whether more exist (CP-03)."""
        kwargs: dict[str, Any] = {self._value: text}
        if self._context is not None:
            kwargs[self._context] = dict(arguments)
        found: Any = await self._call(kwargs, ctx)
        values: list[Any] = [] if found is None else list(found) if isinstance(found, Iterable) else [found]
        if isinstance(found, str) or not all(isinstance(value, str) for value in values[:cap]):
            raise TypeError(f"{self.source}: a completion returns a list of str.")
        return Reply({"completion": {"values": values[:cap], "total": len(values), "hasMore": len(values) > cap}})


Component: TypeAlias = Tool | Prompt | Resource | Template | Completer
