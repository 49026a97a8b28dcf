"""Pure dispatch: a request to an outcome. Knows no transport and holds no state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from itertools import chain
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from callboard.core.era import Request
from callboard.core.headers import compare_params
from callboard.core.outcome import CacheHint, NeedInput, Outcome, Reply
from callboard.errors import AskError, Fail, NotFound, Reason
from callboard.server.catalogue import find, find_readable, list_page, unknown_prompt, unknown_tool
from callboard.server.component import Completer, Component, Prompt, Repository, Resource, Template, Tool
from callboard.server.context import Context
from callboard.server.extension import Serve
from callboard.server.policy import settle
from callboard.server.registry import Kind, Registry
from callboard.server.rounds import advance, is_settled, resume
from callboard.server.state import Turn
from callboard.server.subscriptions import Hub
from callboard.server.tasks import TaskExtension
from callboard.server.tool import answer_in_band
from callboard.wire import v2026_07_28 as v
from callboard.wire.methods import ListenParams
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
    tasks: TaskExtension | None

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
    if capability and capability not in server.offered and context.within is None:
        return Fail(Reason.METHOD_NOT_FOUND, f"Method not found: this server has no {capability}.")
    serve, params = request.row.serve or server.serving[request.method], request.params
    if not request.row.asks or context.within is not None:  # what a mounted server asks, the one that it is mounted on answers for
        return await serve(server, params, request, context)
    if (params.request_state is not UNSET or params.input_responses is not UNSET) and context.asks is None:
        fail = await resume(context)
        if fail is not None:
            return fail
    outcome: Outcome | None
    while True:
        try:
            outcome = await serve(server, params, request, context)
        except (asyncio.CancelledError, Exception) as error:
            if not is_settled(context, error):
                raise
            outcome = None
        if context.asks is not None or type(outcome) is NeedInput:
            outcome = await _advance(context, outcome)
        if outcome is not None:
            return outcome


async def _advance(ctx: Context, outcome: Outcome | None) -> Outcome | None:
    """See `advance`; a client that does not answer what a tool asks by hand fails it in band, as where the function waits itself."""
    try:
        return await advance(ctx, outcome)
    except AskError as error:
        if ctx.method != "tools/call":
            raise
        return answer_in_band(error)


async def _discover(server: Served, _params: v.RequestParams, _request: Request, ctx: Context) -> Outcome:
    value: dict[str, Any] = {
        "supportedVersions": list(ctx.mount.versions),
        "capabilities": server.capabilities(listens=ctx.mount.listens, logs=ctx.mount.logs),
    }
    instructions = server.instructions if ctx.mount.instructions is None else ctx.mount.instructions
    if instructions is not None:
        value["instructions"] = instructions
    return Reply(value, server.cache)


def _lister(kind: Kind) -> Serve:
    async def serve(server: Served, params: v.PaginatedRequestParams, _request: Request, ctx: Context) -> Outcome:
        registry = server.registry
        cursor = None if params.cursor is UNSET else params.cursor
        if kind in registry.varying:
            return Reply(*await list_page(registry, kind, cursor, ctx))
        return Reply(registry.page(kind, cursor), registry.hints[kind])

    return serve


async def _call_tool(server: Served, params: v.CallToolRequestParams, request: Request, ctx: Context) -> Outcome:
    tool = server.registry.tools.get(params.name)
    if tool is None or tool.visible is not None:
        found = await find(server.registry, "tools", params.name, ctx)
        if found is None:
            return unknown_tool(params.name)
        tool = found[0]
    if tool.gate is not None and (held := tool.gate.admit(ctx)) is not None and (fail := await settle(held)) is not None:
        return fail
    arguments = params.arguments
    raw = arguments if isinstance(arguments, msgspec.Raw) else None
    if raw is not None and (memoryview(raw)[0] != _BRACE or len(raw) > ctx.mount.limits.max_arguments):
        return _refuse_arguments(raw, ctx.mount.limits.max_arguments)
    if tool.header_params and request.headers is not None and request.envelope.version == LATEST:
        given = _as_object(raw)
        if given is not None and (culprit := compare_params(tool.header_params, request.headers, given)):
            return Fail(Reason.HEADER_MISMATCH, f"A header and the arguments differ: {culprit}.")
    if server.tasks is not None and ctx.within is None and (tool.policy.task != "never" or request.envelope.task is not None):
        return await server.tasks.call(tool, raw, ctx)
    return await tool.call(raw, ctx)


def _refuse_arguments(raw: msgspec.Raw, most: int) -> Fail:
    if memoryview(raw)[0] != _BRACE:
        return Fail(Reason.INVALID_PARAMS, "params.arguments must be an object.")
    return Fail(Reason.INVALID_PARAMS, f"params.arguments has {len(raw)} bytes, more than the {most} of one call (max_arguments).")


def _as_object(raw: msgspec.Raw | None) -> dict[str, Any] | None:
    if raw is None:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return None  # binding says what is wrong


async def _read_resource(server: Served, params: v.ReadResourceRequestParams, _request: Request, ctx: Context) -> Outcome:
    uri = params.uri
    readable: Resource | Template | Repository | None = server.registry.resources.get(uri)
    values: dict[str, Any] | None = None
    is_everybodys = readable is not None and readable.visible is None
    if readable is None or readable.visible is not None:
        found = await find_readable(server.registry, uri, ctx)
        if found is None:
            return NotFound(uri)
        is_everybodys = readable is None and found[0].visible is None and not server.registry.providers
        readable, values = found
    if readable.gate is not None:
        if (held := readable.gate.admit(ctx)) is not None and (fail := await settle(held)) is not None:
            return fail
        is_everybodys &= not readable.gate.scopes
    reply = await (readable.read(uri, values or {}, ctx) if isinstance(readable, Template) else readable.read(uri, ctx))
    if isinstance(reply, Reply):
        reply.cache = _hint_reading(reply.cache or server.cache, ctx, is_everybodys=is_everybodys)
    return reply


def _hint_reading(hint: CacheHint, ctx: Context, *, is_everybodys: bool) -> CacheHint:
    """How long, and for whom, a client may keep what it read."""
    if ctx.asks is not None:  # MR-16: what a client was asked for is for this once
        return CacheHint()
    return hint if is_everybodys else CacheHint(hint.ttl_ms, "private")  # CA-03: shared caches know nothing of who may read


async def _get_prompt(server: Served, params: v.GetPromptRequestParams, _request: Request, ctx: Context) -> Outcome:
    prompt = server.registry.prompts.get(params.name)
    if prompt is None or prompt.visible is not None:
        found = await find(server.registry, "prompts", params.name, ctx)
        if found is None:
            return unknown_prompt(params.name)
        prompt = found[0]
    if prompt.gate is not None and (held := prompt.gate.admit(ctx)) is not None and (fail := await settle(held)) is not None:
        return fail
    return await prompt.get({} if params.arguments is UNSET else params.arguments, ctx)


async def _complete(server: Served, params: v.CompleteRequestParams, _request: Request, ctx: Context) -> Outcome:
    argument = params.argument.name
    is_prompt = isinstance(params.ref, v.PromptReference)
    owner = params.ref.name if isinstance(params.ref, v.PromptReference) else params.ref.uri
    found = await find(server.registry, "prompts" if is_prompt else "templates", owner, ctx)
    if found is None and not is_prompt:
        found = await find(server.registry, "resources", owner, ctx)
    if found is None:
        return Fail(Reason.INVALID_PARAMS, "params.ref: there is no such prompt or resource template.")
    part: Prompt | Template | Resource
    part, home = found
    if part.gate is not None and (fail := part.gate.refuse(ctx)) is not None:
        return fail
    known = part.arguments if isinstance(part, Prompt) else part.uri_template.variables if isinstance(part, Template) else ()
    if argument not in known:
        return Fail(Reason.INVALID_PARAMS, f"params.argument.name: it has no argument of this name; it has {', '.join(known) or 'none'}.")
    completer = home.completers.get((owner, argument))
    if completer is None:
        return Reply({"completion": {"values": [], "total": 0, "hasMore": False}})
    given = params.context.arguments if isinstance(params.context, msgspec.Struct) else UNSET
    return await completer.complete(params.argument.value, {} if given is UNSET else given, ctx, server.completion_cap)


def find_turn(registry: Registry, request: Request) -> Turn:
    """When a request of a session with state runs; at once when there is no such component.

    Where one that takes the state may be hidden, all that its callers can't tell from it wait as it does: else the time that it takes to be
    told "unknown" would tell that there is one (SA21).
    """
    look_up = _COMPONENT.get(request.method)
    if look_up is None:
        return Turn.NOW
    component = look_up(registry, request.params)
    turn = Turn.NOW
    if component is not None and component.state is not None:
        turn = Turn.SNAPSHOT if isinstance(component, Tool) and component.snapshot else Turn.IN_TURN
    certain = component is not None and not isinstance(component, Completer) and component.visible is None
    if not certain and _hides_state(registry, request.method):
        return {Turn.NOW: Turn.WAIT, Turn.SNAPSHOT: Turn.LATE}.get(turn, turn)
    return turn


def _hides_state(registry: Registry, method: str) -> bool:
    """Whether something that takes the state in turn may be hidden among what a method asks for."""
    if method == "completion/complete":
        owners = [
            registry.prompts.get(each.owner) or registry.templates.get(each.owner) for each in registry.completers.values() if each.state
        ]
        return any(owner is not None and owner.visible is not None for owner in owners)
    return any(
        component.visible is not None and component.state is not None and not (isinstance(component, Tool) and component.snapshot)
        for kind in _KINDS[method]
        for component in registry.shelf(kind).values()
    )


def _find_readable(registry: Registry, params: v.ReadResourceRequestParams) -> Component | None:
    """What is read, for all that is known without its caller: of those that may be it one that takes the state, if any does."""
    uri = params.uri
    resource = registry.resources.get(uri)
    templates = (template for template, _ in registry.find_templates(uri))
    found: Resource | Template | Repository | None = None
    each: Iterator[Resource | Template | Repository] = chain(filter(None, [resource]), templates, registry.find_repositories(uri))
    for found in each:
        if found.state is not None or found.visible is None:
            break
    return found


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
# What they look among.
_KINDS: dict[str, tuple[Kind, ...]] = {
    "tools/call": ("tools",),
    "resources/read": ("resources", "templates"),
    "prompts/get": ("prompts",),
}


async def _listen(server: Served, params: ListenParams, _request: Request, ctx: Context) -> Outcome:
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
