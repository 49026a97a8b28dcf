"""A server without any transport: `dispatch`, the functions below it, and what it says of its components."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from asgi_driver import make_meta, make_request
from oracles import mcp_types_validate, schema_dir, validate

from callboard import Context, Fail, Reply, Request, Server, dispatch
from callboard.core.exchange import Exchange
from callboard.core.modern import Modern
from callboard.core.outcome import Outcome
from callboard.server.mount import Mount
from callboard.server.workers import Workers
from callboard.wire.jsonrpc import RawRequest, decode
from callboard.wire.versions import LATEST


def make_mount(server: Server | None = None, **options: Any) -> Mount:
    """A mount on the running loop."""
    workers = Workers(asyncio.get_running_loop())
    return Mount(
        server or Server("desk"),
        workers,
        values=options.pop("values", {}),
        versions=(LATEST,),
        **options,
    )


def make_lifted(
    method: str = "tools/call",
    params: Mapping[str, Any] | None = None,
    *,
    request_id: int | str = 1,
    meta: Mapping[str, Any] | None = None,
    headers: Mapping[bytes, bytes] | None = None,
) -> Request:
    """A request as dispatch gets it."""
    given = {"name": "x"} if params is None and method == "tools/call" else params
    message = decode(json.dumps(make_request(method, given, request_id=request_id, meta=meta or make_meta())).encode())
    assert isinstance(message, RawRequest)
    request = Modern(None).lift(message, None)
    assert isinstance(request, Request), request
    request.headers = headers
    return request


def make_context(
    mount: Mount | None = None,
    request: Request | None = None,
    *,
    streams: bool = True,
    principal: str | None = None,
    scope_state: Any = None,
) -> Context:
    """A context whose exchange nobody writes."""
    exchange = Exchange(lambda: None, streams=streams)
    return Context(mount or make_mount(), request or make_lifted(), exchange, principal, scope_state)


def taken(ctx: Context) -> list[dict[str, Any]]:
    """What was emitted since last time."""
    write = ctx.exchange.take()
    return [] if write is None else [json.loads(note) for note in write.notes]


async def ask(server: Server, method: str, params: Mapping[str, Any] | None = None, *, mount: Mount | None = None, **more: Any) -> Outcome:
    """What a server makes of a request."""
    request = make_lifted(method, params or {}, **more)
    return await dispatch(server, request, make_context(mount or make_mount(server), request))


async def reply(server: Server, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The result's fields as the wire has them, without what the era adds."""
    outcome = await ask(server, method, params, **more)
    assert isinstance(outcome, Reply), outcome
    _, body = Modern(None).render(1, outcome, None)
    result: dict[str, Any] = json.loads(body)["result"]
    del result["resultType"]
    return result


async def refusal(server: Server, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Fail:
    """The failure, returned or raised."""
    try:
        outcome = await ask(server, method, params, **more)
    except Fail as fail:
        return fail
    assert isinstance(outcome, Fail), outcome
    return outcome


def definition(server: Server, kind: str, key: str, model: str) -> dict[str, Any]:
    """A definition as the wire has it, valid by the oracles."""
    found: dict[str, Any] = msgspec.json.decode(getattr(server.registry, kind)[key].definition)
    mcp_types_validate(model, found)
    if schema_dir() is not None:
        validate(model, found)
    return found
