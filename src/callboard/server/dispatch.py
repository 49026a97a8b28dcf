"""Pure dispatch: a request to an outcome. Knows no transport and holds no state."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from callboard.core.era import Request
from callboard.core.headers import compare_params
from callboard.core.outcome import CacheHint, Outcome, Reply
from callboard.errors import Fail, NotFound, Reason
from callboard.server.component import Component, Tool
from callboard.server.context import Context
from callboard.server.extension import Serve
from callboard.server.registry import Kind, Registry
from callboard.server.state import Turn
from callboard.server.subscriptions import Hub
from callboard.wire import v2026_07_28 as v
from callboard.wire.versions import LATEST

__all__ = ["SERVE", "dispatch", "find_turn"]

_BRACE = ord("{")


class Served(Protocol):
    """What dispatch needs of a server."""

    instructions: str | None
    cache: CacheHint
    completion_cap: int
    registry: Registry
    hub: Hub
    offered: Container[str]
    serving: dict[str, Serve]

    def capabilities(self, *, listens: bool, logs: bool = True) -> dict[str, Any]:
        """What `server/discover` advertises."""
        ...


async def dispatch(server: Served, request: Request, context: Context) -> Outcome:
    """Serve one request.

    Args:
        server: The `Server`.
        request: The request, lifted by its era.
        context: What its functions see.

    Returns:
        The outcome. What user code raises comes through; the caller guards.
    """
    capability = request.row.capability
    if capability and capability not in server.offered:
        return Fail(Reason.METHOD_NOT_FOUND, f"Method not found: this server has no {capability}.")
    return await server.serving[request.method](server, request.params, request, context)


async def _discover(server: Served, _params: v.RequestParams, _request: Request, ctx: Context) -> Outcome:
    value: dict[str, Any] = {
        "supportedVersions": list(ctx.mount.versions),
        "capabilities": server.capabilities(listens=ctx.mount.listen_limits is not None, logs=ctx.mount.logs),
    }
    instructions = server.instructions if ctx.mount.instructions is None else ctx.mount.instructions
    if instructions is not None:
        value["instructions"] = instructions
    return Reply(value, server.cache)


def _lister(kind: Kind) -> Serve:
    async def serve(server: Served, params: v.PaginatedRequestParams, _request: Request, _ctx: Context) -> Outcome:
        return Reply(server.registry.page(kind, None if params.cursor is UNSET else params.cursor), server.cache)

    return serve


async def _call_tool(server: Served, params: v.CallToolRequestParams, request: Request, ctx: Context) -> Outcome:
    tool = server.registry.tools.get(params.name)
    if tool is None:
        return Fail(Reason.UNKNOWN_TOOL, f"Unknown tool {params.name[:100]!r}.", {"name": params.name})
    arguments = params.arguments
    raw = arguments if isinstance(arguments, msgspec.Raw) else None
    if raw is not None and memoryview(raw)[0] != _BRACE:
        return Fail(Reason.INVALID_PARAMS, "params.arguments must be an object.")
    if tool.header_params and request.headers is not None and request.envelope.version == LATEST:
        given = _as_object(raw)
        if given is not None and (culprit := compare_params(tool.header_params, request.headers, given)):
            return Fail(Reason.HEADER_MISMATCH, f"A header and the arguments differ: {culprit}.")
    return await tool.call(raw, ctx)


def _as_object(raw: msgspec.Raw | None) -> dict[str, Any] | None:
    if raw is None:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return None  # binding says what is wrong


async def _read_resource(server: Served, params: v.ReadResourceRequestParams, _request: Request, ctx: Context) -> Outcome:
    uri = params.uri
    resource = server.registry.resources.get(uri)
    if resource is not None:
        reply = await resource.read(uri, ctx)
    elif (found := server.registry.find_template(uri)) is not None:
        reply = await found[0].read(uri, found[1], ctx)
    else:
        return NotFound(uri)
    reply.cache = reply.cache or server.cache
    return reply


async def _get_prompt(server: Served, params: v.GetPromptRequestParams, _request: Request, ctx: Context) -> Outcome:
    prompt = server.registry.prompts.get(params.name)
    if prompt is None:
        return Fail(Reason.UNKNOWN_PROMPT, f"Unknown prompt {params.name[:100]!r}.", {"name": params.name})
    return await prompt.get({} if params.arguments is UNSET else params.arguments, ctx)


async def _complete(server: Served, params: v.CompleteRequestParams, _request: Request, ctx: Context) -> Outcome:
    registry = server.registry
    argument = params.argument.name
    if isinstance(params.ref, v.PromptReference):
        owner = params.ref.name
        prompt = registry.prompts.get(owner)
        known = None if prompt is None else prompt.arguments
    else:
        owner = params.ref.uri
        template = registry.templates.get(owner)
        known = () if owner in registry.resources else None if template is None else template.uri_template.variables
    if known is None:
        return Fail(Reason.INVALID_PARAMS, "params.ref: there is no such prompt or resource template.")
    if argument not in known:
        return Fail(Reason.INVALID_PARAMS, f"params.argument.name: it has no argument of this name; it has {', '.join(known) or 'none'}.")
    completer = registry.completers.get((owner, argument))
    if completer is None:
        return Reply({"completion": {"values": [], "total": 0, "hasMore": False}})
    given = params.context.arguments if isinstance(params.context, msgspec.Struct) else UNSET
    return await completer.complete(params.argument.value, {} if given is UNSET else given, ctx, server.completion_cap)


def find_turn(registry: Registry, request: Request) -> Turn:
    """When a request of a session with state runs; at once when there is no such component."""
    find = _COMPONENT.get(request.method)
    component = None if find is None else find(registry, request.params)
    if component is None or component.state is None:
        return Turn.NOW
    return Turn.SNAPSHOT if isinstance(component, Tool) and component.snapshot else Turn.IN_TURN


def _find_readable(registry: Registry, params: v.ReadResourceRequestParams) -> Component | None:
    found = registry.resources.get(params.uri) or registry.find_template(params.uri)
    return found[0] if isinstance(found, tuple) else found


def _find_completer(registry: Registry, params: v.CompleteRequestParams) -> Component | None:
    owner = params.ref.name if isinstance(params.ref, v.PromptReference) else params.ref.uri
    return registry.completers.get((owner, params.argument.name))


# Methods that run the author's functions, and how the function is found.
_COMPONENT: dict[str, Callable[[Registry, Any], Component | None]] = {
    "tools/call": lambda registry, params: registry.tools.get(params.name),
    "resources/read": _find_readable,
    "prompts/get": lambda registry, params: registry.prompts.get(params.name),
    "completion/complete": _find_completer,
}


async def _listen(server: Served, params: v.SubscriptionsListenRequestParams, _request: Request, ctx: Context) -> Outcome:
    return await server.hub.listen(ctx, params.notifications)


SERVE: dict[str, Serve] = {
    "server/discover": _discover,
    "tools/list": _lister("tools"),
    "tools/call": _call_tool,
    "resources/list": _lister("resources"),
    "resources/templates/list": _lister("templates"),
    "resources/read": _read_resource,
    "prompts/list": _lister("prompts"),
    "prompts/get": _get_prompt,
    "completion/complete": _complete,
    "subscriptions/listen": _listen,
}
