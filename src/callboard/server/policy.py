"""Who may run a component, and how: its policy, in one place, around the run of its function, whatever mode it was written in.

A request meets it in this order: `visible` (what is hidden is unknown, and stands in no list), `scopes`, `rate`; then come the arguments;
then, for tools, `concurrency` inside `timeout`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

import msgspec

from callboard.core.outcome import CacheHint
from callboard.errors import Fail, Reason, RegistrationError, ToolError
from callboard.server.callee import Callee, Facts, Run, read_facts
from callboard.server.context import Context
from callboard.server.limits import Rate, read_rate
from callboard.server.rates import Buckets
from callboard.server.shared_rates import SharedBuckets
from callboard.server.signature import accepts
from callboard.server.workers import is_imposed
from callboard.stores.scripted import can_count

__all__ = [
    "ACCESS",
    "MAX_ROUNDS",
    "AccessFields",
    "Gate",
    "Guarded",
    "Policy",
    "Rate",
    "Visible",
    "limit",
    "make_gate",
    "sees",
    "settle",
    "sort_options",
    "strictest",
]

Visible: TypeAlias = Callable[[Context], bool | Awaitable[bool]]
# Rounds of calls that were counted; past that the oldest is forgotten.
MAX_ROUNDS = 10_000
# RFC 6749 section 3.3: what a scope is made of.
_SCOPE = re.compile(r"[!#-\[\]-~]+")
_TASKS = ("never", "allowed", "always")
_log = logging.getLogger("callboard")


class AccessFields(TypedDict, total=False):
    """The options of every component that say who may use it."""

    visible: Visible | None
    scopes: Collection[str]
    rate: Rate | None


class Policy(msgspec.Struct, kw_only=True, frozen=True):
    """Who may run a component, and how. Resources and prompts have the first three alone.

    Attributes:
        visible: Takes the Context, async or not; false hides the component from this request. It runs on the event loop.
        scopes: What the caller must have been granted, all of it.
        rate: Calls of one principal in a time: `"10/s"`, `"60/min"`, `"1000/h"` or `(calls, seconds)`; None for no limit. Callers without
            a principal share one count, and all processes that share a store count together.
        timeout: Seconds after which its work is cancelled and the call answered in band; None for no limit. While the client is asked the
            time stands still, whatever the client.
        concurrency: How many calls of it run at once; more wait. None for no limit.
        cache: How long clients may keep its entry in the list; the server's `cache` by default.
        idempotent: Whether calling it twice with the same arguments does no more than calling it once, so that it may be run again.
        task: Whether a call may go on as a task after its request is answered: `never`, `allowed` (where the client knows tasks), `always`.
    """

    visible: Visible | None = None
    scopes: Collection[str] = ()
    rate: Rate | None = None
    timeout: float | None = None
    concurrency: int | None = None
    cache: CacheHint | None = None
    idempotent: bool = False
    task: Literal["never", "allowed", "always"] = "never"

    def check(self, source: str) -> None:
        """Find out now what would fail calls.

        Raises:
            RegistrationError: An option can't work; the text names it and the component.
        """
        if self.visible is not None:
            _check_visible(self.visible, source)
        if not _are_scopes(self.scopes):
            text = f'scopes is a set of str, like {{"files:write"}}, without blanks and quotes, not {self.scopes!r}.'
            raise RegistrationError(f"{source}: {text}")
        if self.concurrency is not None and (type(self.concurrency) is not int or self.concurrency < 1):
            text = f"concurrency must be an integer of at least 1, not {self.concurrency!r}: no call would ever run."
            raise RegistrationError(f"{source}: {text}")
        if self.timeout is not None and (not isinstance(self.timeout, int | float) or not self.timeout > 0):
            text = f"timeout must be a number of seconds above 0, not {self.timeout!r}: no call would ever end well."
            raise RegistrationError(f"{source}: {text}")
        if self.cache is not None and not isinstance(self.cache, CacheHint):
            raise RegistrationError(f"{source}: cache must be a CacheHint, like CacheHint(ttl_ms=60_000), not {self.cache!r}.")
        if type(self.idempotent) is not bool:
            raise RegistrationError(f"{source}: idempotent is True or False, not {self.idempotent!r}.")
        if self.task not in _TASKS:
            raise RegistrationError(f"{source}: task is one of {', '.join(map(repr, _TASKS))}, not {self.task!r}.")


ACCESS = frozenset(AccessFields.__annotations__)
"""Options of a policy that resources and prompts have too."""


def sort_options(
    where: str, options: Mapping[str, Any], *, policy: frozenset[str], own: frozenset[str] = frozenset()
) -> tuple[Facts, Policy, dict[str, Any]]:
    """Sort the options of a component into facts about it, its policy, and what only its kind has.

    Args:
        where: Who takes them, for error texts.
        options: The options.
        policy: Names of those of the policy.
        own: Names of those of its kind.

    Raises:
        RegistrationError: One of them is unknown; the text lists those there are.
    """
    facts = {name: value for name, value in options.items() if name not in policy | own}
    stated = {name: value for name, value in options.items() if name in policy}
    return read_facts(where, facts, policy | own), Policy(**stated), {name: value for name, value in options.items() if name in own}


class Guarded(Protocol):
    """What may be hidden.

    Attributes:
        visible: Says for each request whether it is there; None where it always is.
        source: Its name and place.
    """

    visible: Visible | None
    source: str


async def sees(part: Guarded, ctx: Context) -> bool:
    """Whether a component is there for this request. Where its predicate fails it is not: the log has the traceback."""
    if part.visible is None:
        return True
    try:
        answer = part.visible(ctx)
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except BaseException as error:  # who may not see it must not see it because of a bug
        if is_imposed(error):
            raise
        _log.exception("visible= of %s raised, so that the component was hidden.", part.source)
        return False


def strictest(hints: Iterable[CacheHint]) -> CacheHint | None:
    """The hint of what is made of parts: the shortest and the most private of theirs; None of none."""
    found = list(hints)
    if not found:
        return None
    return CacheHint(min(hint.ttl_ms for hint in found), "public" if all(hint.scope == "public" for hint in found) else "private")


class Gate:
    """Lets calls of one component through, or not.

    Args:
        scopes: What a caller must have been granted.
        rate: Calls, and the seconds in which they may be made; None for no limit.
        name: What its count is called where processes count together: the same in each of them, and no other gate's.

    Attributes:
        scopes: As given.
        rate: As given.
        counts: Whether it remembers calls.
    """

    __slots__ = ("_buckets", "_name", "_rounds", "_shared", "counts", "rate", "scopes")

    def __init__(self, scopes: frozenset[str], rate: tuple[int, float] | None, name: str) -> None:
        self.scopes = scopes
        self.rate = rate
        self._name = name
        self._buckets = None if rate is None else Buckets(*rate)
        self._shared: SharedBuckets | None = None
        self._rounds: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.counts = rate is not None

    def admit(self, ctx: Context) -> Fail | Awaitable[Fail | None] | None:
        """Count a call, or say why it may not be. One that has come to a mounted server was counted where it came in.

        Returns:
            None for a call that may be; why it may not; where processes count together what gives either, see `settle`.
        """
        fail = self.refuse(ctx)
        if fail is not None or self._buckets is None or ctx.within is not None:
            return fail
        server = ctx.mount.server
        if server.store.shared and can_count(server.store):
            return self._admit_shared(ctx, server)
        if self._goes_on(ctx):
            return None
        wait = self._buckets.take(ctx.principal, ctx.mount.workers.loop.time())
        return None if wait <= 0 else _refuse(ctx, wait)

    async def _admit_shared(self, ctx: Context, server: Any) -> Fail | None:
        assert self.rate is not None
        shared = self._shared
        if shared is None or shared.store is not server.store:
            shared = self._shared = SharedBuckets(server.store, self._name, *self.rate, time.monotonic)
        memory = None if ctx.asks is None else ctx.asks.log.memory
        mark = None if memory is None or not memory.rounds else f"{memory.chain}.{memory.rounds}"
        wait = await shared.take(ctx.principal, mark=mark, mark_ttl=server.seals.ttl)
        return None if wait <= 0 else _refuse(ctx, wait)

    def _goes_on(self, ctx: Context) -> bool:
        """Whether it is a call that was counted, in its next round; a round that is sent again is a call."""
        memory = None if ctx.asks is None else ctx.asks.log.memory
        if memory is None or not memory.rounds or (memory.chain, memory.rounds) in self._rounds:
            return False
        self._rounds[memory.chain, memory.rounds] = None
        if len(self._rounds) > MAX_ROUNDS:
            self._rounds.popitem(last=False)
        return True

    def refuse(self, ctx: Context) -> Fail | None:
        """Why the caller may have nothing to do with the component; None when they may."""
        return ctx.lacks(self.scopes)


async def settle(held: Fail | Awaitable[Fail | None]) -> Fail | None:
    """Why a call may not be, as `Gate.admit` has it; None where it may.

    Args:
        held: What it gave.
    """
    return held if isinstance(held, Fail) else await held


def _refuse(ctx: Context, wait: float) -> Fail:
    seconds = ctx.exchange.retry_after = max(1, math.ceil(wait))
    return Fail(Reason.RATE, f"Too many calls: try again in {seconds} s.", {"retryAfter": seconds})


def make_gate(policy: Policy, source: str, name: str | None = None) -> Gate | None:
    """What lets calls through to a component; None where everybody may call it.

    Args:
        policy: The component's.
        source: Its name and place, for error texts.
        name: See `Gate`; `source` by default.

    Raises:
        RegistrationError: `rate` is none.
    """
    rate = None if policy.rate is None else read_rate(policy.rate, f"{source}: rate")
    return Gate(frozenset(policy.scopes), rate, source if name is None else name) if policy.scopes or rate else None


def _are_scopes(scopes: Any) -> bool:
    """An iterator is none: it is empty once it has been looked through, so that everybody would be let in. `"a b"` is two, and nobody has it."""
    if not isinstance(scopes, Collection) or isinstance(scopes, str):
        return False
    return all(isinstance(scope, str) and _SCOPE.fullmatch(scope) for scope in scopes)


def _check_visible(visible: Any, source: str) -> None:
    if inspect.isgeneratorfunction(visible) or inspect.isasyncgenfunction(visible):
        raise RegistrationError(f"{source}: visible= yields, so that it would never say no; let it return.")
    if not accepts(visible, None):
        raise RegistrationError(f"{source}: visible is a function of the Context, `def visible(ctx) -> bool`, not {visible!r}.")


def limit(callee: Callee, policy: Policy, name: str) -> Run:
    """Wrap a tool's run in its limits, the wait for a turn inside the time limit."""
    run = callee.call
    if policy.concurrency is not None:
        run = _in_turn(run, policy.concurrency, on_thread=not callee.signature.is_async)
    if policy.timeout is not None:
        run = _timed(run, policy.timeout, name)
    return run


def _in_turn(run: Run, concurrency: int, *, on_thread: bool) -> Run:
    turns: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    async def run_in_turn(kwargs: dict[str, Any], ctx: Context) -> Any:
        loop = ctx.mount.workers.loop
        if loop not in turns:
            turns.clear()
            turns[loop] = asyncio.Semaphore(concurrency)
        turn = turns[loop]
        if not on_thread:
            async with turn:
                return await run(kwargs, ctx)
        await turn.acquire()
        # A thread can't be stopped: it keeps its turn until it returns, whoever has stopped waiting for it.
        work = asyncio.ensure_future(run(kwargs, ctx))
        work.add_done_callback(partial(_give_turn_back, turn))
        try:
            return await asyncio.shield(work)
        finally:
            del work  # it may hold an error, that its frames, and one of those is this

    return run_in_turn


def _give_turn_back(turn: asyncio.Semaphore, work: asyncio.Future[Any]) -> None:
    turn.release()
    if not work.cancelled():
        work.exception()  # seen, also where nobody waits any more


def _timed(run: Run, seconds: float, name: str) -> Run:
    async def run_timed(kwargs: dict[str, Any], ctx: Context) -> Any:
        limit = ctx.limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await run(kwargs, ctx)
        except TimeoutError:
            if limit.expired():
                ctx.crashed = True  # it was stopped anywhere: what it did to the state is half done
                raise ToolError(f"{name} was stopped: it took longer than {seconds:g} s.") from None
            raise
        finally:
            ctx.limit = None
            if ctx.asks is not None:
                ctx.asks.limit = None

    return run_timed
