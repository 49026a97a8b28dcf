"""The rounds of a call that asks its client: what a retry brings, what an outcome comes to, and input asked for by hand in a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from callboard.core.inputs import Ask, Log, digest_request, read_responses
from callboard.core.outcome import Deferred, NeedInput, Outcome
from callboard.errors import Fail, Reason
from callboard.server.asking import Asks, Input
from callboard.server.context import Context
from callboard.wire import v2026_07_28 as v

__all__ = ["advance", "conclude", "is_settled", "resume", "run_rounds"]

_METHODS: dict[str, Any] = {
    "elicitation/create": v.ElicitRequestFormParams,
    "sampling/createMessage": v.CreateMessageRequestParams,
    "roots/list": dict[str, Any],
}


async def resume(ctx: Context) -> Fail | None:
    """Take what a client sends with a retry, before anything of the author's runs. Once for each request.

    Returns:
        Why the call can't go on from there; None where it can.
    """
    params: Any = ctx.request.params
    memory = None
    given: Input | None = None
    try:
        responses = {} if params.input_responses is UNSET else read_responses(params.input_responses)
        if params.request_state is not UNSET:
            memory = await ctx.mount.server.seals.open(params.request_state, ctx.request, ctx.principal)
    except Fail as fail:
        return fail
    ctx.begin_asking(memory, responses)
    if memory is None:
        given = Input(None, responses)
    elif memory.by_hand is not None:  # what `ctx.elicit` and its like were answered is not the function's to read
        given = Input(memory.state, {key: memory.answers[key][1] for key in memory.by_hand if key in memory.answers})
    ctx.input = given
    return None


def conclude(ctx: Context, outcome: Outcome | None) -> Outcome:
    """What a call comes to when its function, or a layer around it, is through. Doing it twice does no harm.

    Args:
        ctx: The call's.
        outcome: What the function came to; None when it was cancelled because the call was suspended.

    Raises:
        Fail: The client can't be asked what `NeedInput` asks.
        TypeError: `NeedInput` makes no sense.
        Exception: What ended the call, whatever its function made of that.
    """
    asks = ctx.asks
    if type(outcome) is Deferred:
        return outcome  # its function goes on, and so do its asks
    if asks is not None:
        outcome = asks.settle(outcome)
    assert outcome is not None
    is_alone = ctx.session is None and (asks is None or asks.route is None)
    if isinstance(outcome, NeedInput) and not outcome.is_sealed and is_alone:
        asked = _read_requests(ctx, outcome)
        return ctx.begin_asking().need(asked, outcome.state)
    return outcome


async def run_rounds(ctx: Context, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Run a function to its end, as `dispatch` does, where another task of the loop than the request's has to.

    Args:
        ctx: The call's.
        run: Runs the function; once more when what it asked by hand has been answered.

    Raises:
        CancelledError: It was cancelled.
        Exception: What the function raised, or what ended the call.
    """
    outcome: Outcome | None
    while True:
        try:
            outcome = await run()
        except (asyncio.CancelledError, Exception) as error:
            if not is_settled(ctx, error):
                raise
            outcome = None
        if ctx.asks is not None or type(outcome) is NeedInput:
            outcome = await advance(ctx, outcome)
        if outcome is not None:
            return outcome


def is_settled(ctx: Context, error: BaseException) -> bool:
    """Whether it is settled what the call comes to, whatever its function, or a layer around it, raises."""
    return ctx.asks is not None and ctx.asks.is_settled_by(error)


async def advance(ctx: Context, outcome: Outcome | None) -> Outcome | None:
    """What a call that asks comes to, see `conclude`; None where it runs again, because what it asked by hand has been answered."""
    if ctx.asks is not None and type(outcome) is not Deferred:
        await ctx.asks.drop()
    concluded = conclude(ctx, outcome)
    if isinstance(concluded, NeedInput) and not concluded.is_sealed:
        await _answer_by_hand(ctx, concluded)
        return None
    return concluded


async def _answer_by_hand(ctx: Context, need: NeedInput) -> None:
    """Ask the client of a session what a function asks by hand, and leave the answers as `ctx.input` for its next run.

    Raises:
        Fail: The client can't be asked that.
        AskError: It does not answer.
    """
    asks = ctx.begin_asking()
    asked = _read_requests(ctx, need)
    memory = asks.log.next_memory({key: ask.digest for key, ask in asked.items()}, None)
    asks.log = Log(memory, {})  # the function runs from its top, and asks again what it has an answer to
    try:
        async with asyncio.TaskGroup() as group:
            answers = {key: group.create_task(asks.send(ask)) for key, ask in asked.items()}
    except ExceptionGroup as several:  # as where one is asked for
        raise several.exceptions[0] from None
    state = msgspec.json.decode(msgspec.json.encode(need.state))  # as a client of the current protocol would bring it back
    ctx.input = Input(state, {key: answer.result() for key, answer in answers.items()})
    ctx.begin_again()


def _check_params(key: str, method: Any, params: Any) -> None:
    """See that a request asked by hand is one, before a client is to make sense of it."""
    kind: Any = _METHODS[method]
    if method == "elicitation/create" and isinstance(params, dict) and params.get("mode") == "url":
        kind = v.ElicitRequestURLParams
    try:
        msgspec.convert(params, kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"NeedInput: the params of {key!r} are none of {method}: {error} (MR-04).") from None


def _read_requests(ctx: Context, need: NeedInput) -> dict[str, Ask]:
    if not ctx.request.row.asks:
        raise TypeError(f"{ctx.request.method} can't ask for input (MR-02).")
    given: Any = need.requests
    if not isinstance(given, Mapping) or not (given or need.state is not None):
        raise TypeError("NeedInput takes requests by key, and at least one of requests and state (MR-03).")
    try:
        msgspec.json.encode(need.state)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"NeedInput: state has no JSON form ({error}).") from error
    asks = ctx.begin_asking()
    asked: dict[str, Ask] = {}
    for key, request in given.items():
        plain = msgspec.to_builtins(request)
        method = plain.get("method") if isinstance(plain, dict) else None
        if not isinstance(key, str):
            raise TypeError(f"NeedInput: a key is a text, not {key!r} (MR-04).")
        if not isinstance(method, str) or method not in _METHODS:
            text = f"a mapping with `params` and a `method`, which is one of {', '.join(_METHODS)}"
            raise TypeError(
                f"NeedInput: the request of {key!r} is {text}, not {type(request).__name__ if method is None else method!r} (MR-04)."
            )
        params = plain.get("params", {})
        _check_params(key, method, params)
        asked[key] = Ask(key, method, params, digest_request(method, params))
    _check(asks, asked.values())
    return asked


def _check(asks: Asks, asked: Iterable[Ask]) -> None:
    """See that the client can be asked all of it; it learns at once of everything that it would have to declare."""
    refusals: list[Fail] = []
    for ask in asked:
        try:
            asks.check(ask)
        except Fail as fail:
            refusals.append(fail)
    if not refusals:
        return
    needed: dict[str, Any] = {}
    for refusal in refusals:
        for name, parts in (refusal.data or {"requiredCapabilities": {}})["requiredCapabilities"].items():
            needed.setdefault(name, {}).update(parts)
    raise Fail(Reason.MISSING_CAPABILITY, refusals[0].text, {"requiredCapabilities": needed} if needed else None)
