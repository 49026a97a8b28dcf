"""A call as another process can run it: what of its Context goes into the record, and the Context that is made of that.

What belongs to a connection stays behind: HTTP headers (they may have a credential), the ASGI scope, the session, what layers of the
middleware have put into `ctx.locals`. What a function may rely on goes along: who called and what they were granted, what the client
declared, `_meta`, bound options, the id of the call, a snapshot of the session's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from callboard.auth.principal import LOCAL, Principal
from callboard.core.era import Envelope, Request
from callboard.core.exchange import Exchange
from callboard.core.inputs import Memory
from callboard.errors import RegistrationError
from callboard.server.context import Context
from callboard.server.mount import Mount
from callboard.server.task_contract import Runnable
from callboard.server.task_record import Record, Who, Work
from callboard.wire import v2026_07_28 as v
from callboard.wire.methods import METHODS

__all__ = ["begin_context", "recall", "remember", "write_work"]

_METHOD = "tools/call"
_encode = msgspec.json.Encoder().encode
_decode_memory = msgspec.json.Decoder(Memory).decode


def write_work(ctx: Context, tool: Runnable, raw: msgspec.Raw | None, *, idempotent: bool) -> Work:
    """What another process needs to run a call.

    Args:
        ctx: The call's.
        tool: What it calls.
        raw: Its arguments.
        idempotent: Whether it may be begun again.

    Raises:
        RegistrationError: The bound options have no JSON form, or the session's state is none that can be kept.
    """
    envelope = ctx.request.envelope
    return Work(
        tool=tool.key,
        version=envelope.version,
        capabilities=_encode(envelope.capabilities),
        chain=ctx.chain_id,
        arguments=None if raw is None else bytes(raw),
        client=None if envelope.client_info is None else _encode(envelope.client_info),
        meta=None if envelope.meta is None else bytes(envelope.meta),
        who=None if ctx.principal is None else _introduce(ctx.principal),
        options=_write_options(ctx.options),
        state=_snapshot(ctx, tool),
        idempotent=idempotent,
        max_result=ctx.mount.limits.max_result,
    )


def begin_context(mount: Mount, record: Record, work: Work) -> Context:
    """The Context of a call that came in elsewhere.

    Args:
        mount: Where it runs.
        record: The task that it is.
        work: The call.
    """
    envelope = Envelope(
        work.version,
        msgspec.json.decode(work.capabilities),
        client_info=None if work.client is None else msgspec.json.decode(work.client, type=v.Implementation),
        meta=None if work.meta is None else msgspec.Raw(work.meta),
        traced=work.meta is not None and b"traceparent" in work.meta,
    )
    params = v.CallToolRequestParams(name=work.tool, arguments=UNSET)
    if work.arguments is not None:
        params.arguments = msgspec.Raw(work.arguments)  # as the eras leave it: binding reads it
    request = Request(record.id, _METHOD, params, METHODS[_METHOD], envelope)
    ctx: Context = mount.server.context_type(mount, request, Exchange(_nobody, streams=False), _recognize(work.who))
    if work.options is not None:
        ctx.options = msgspec.json.decode(work.options)
    if work.state is not None:
        ctx.give_state(mount.server.state.draft(work.state))
    return ctx


def remember(memory: Memory) -> bytes:
    """The bytes of what is remembered of a call."""
    return _encode(memory)


def recall(work: Work) -> Memory:
    """What is remembered of a call: what it was answered, and what `ctx.once` has made, when it was begun before."""
    return Memory(work.chain) if work.memory is None else _decode_memory(work.memory)


def _introduce(principal: str) -> Who:
    if not isinstance(principal, Principal):
        return Who(str(principal), [], str(principal))
    scopes = sorted(principal.scopes) if type(principal.scopes) is frozenset else None
    return Who(str(principal), scopes, str(principal.subject), _write_claims(principal.claims))


def _write_claims(claims: Mapping[str, Any]) -> bytes:
    """Claims come from JSON; what a program has added of its own, and JSON can't say, stays behind."""
    written = {}
    for name, value in claims.items():
        try:
            written[name] = msgspec.Raw(_encode(value))
        except (TypeError, ValueError, RecursionError):
            continue
    return _encode(written)


def _recognize(who: Who | None) -> Principal | None:
    if who is None:
        return None
    scopes = LOCAL.scopes if who.scopes is None else who.scopes
    return Principal(who.identity, scopes, subject=who.subject, claims=msgspec.json.decode(who.claims, type=dict[str, Any]))


def _write_options(options: Any) -> bytes | None:
    if options is None:
        return None
    try:
        return _encode(dict(options))
    except (TypeError, ValueError, RecursionError) as error:
        text = (
            f"options= of this mount can't go to a worker of DocketTasks, since they have no JSON form ({error}): give what JSON can say."
        )
        raise RegistrationError(text) from error


def _snapshot(ctx: Context, tool: Runnable) -> bytes | None:
    if ctx.session is None or getattr(tool, "state", None) is None:
        return None
    kept = ctx.session.kept_state
    if not isinstance(kept, bytes):
        raise RegistrationError(f"{tool.key} takes the session's state, which can't go to a worker of DocketTasks: declare its type.")
    return kept


def _nobody() -> None:
    """Nobody waits for what the call says."""
