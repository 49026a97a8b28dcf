"""Who may run a component, and how: its policy, in one place, around the run of its function, whatever mode it was written in.

A request meets it in this order: `visible` (what is hidden is unknown, and stands in no list), `scopes`, `rate`; then come the arguments;
then, for tools, `concurrency` inside `timeout`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

import msgspec

from callboard.core.outcome import CacheHint
from callboard.errors import Fail, Reason, RegistrationError, ToolError
from callboard.server.callee import Callee, Facts, Run, read_facts
from callboard.server.context import Context
from callboard.server.signature import accepts
from callboard.server.workers import is_imposed

__all__ = [
    "ACCESS",
    "MAX_BUCKETS",
    "AccessFields",
    "Gate",
    "Guarded",
    "Policy",
    "Rate",
    "Visible",
    "limit",
    "make_gate",
    "sees",
    "sort_options",
    "strictest",
]

Visible: TypeAlias = Callable[[Context], bool | Awaitable[bool]]
Rate: TypeAlias = str | tuple[int, float]
# Principals whose calls are counted at once; past that the one who has been quiet longest is forgotten.
MAX_BUCKETS = 10_000
_TASKS = ("never", "allowed", "always")
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
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
            a principal share one count.
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
            raise RegistrationError(f'{source}: scopes is a set of str, like {{"files:write"}}, not {self.scopes!r}.')
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

    Attributes:
        scopes: As given.
        counts: Whether it remembers calls.
    """

    __slots__ = ("_buckets", "_rounds", "counts", "scopes")

    def __init__(self, scopes: frozenset[str], rate: tuple[int, float] | None) -> None:
        self.scopes = scopes
        self._buckets = None if rate is None else _Buckets(*rate)
        self._rounds: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.counts = rate is not None

    def admit(self, ctx: Context) -> Fail | None:
        """Count a call, or say why it may not be. One that has come to a mounted server was counted where it came in."""
        fail = self.refuse(ctx)
        if fail is not None or self._buckets is None or ctx.within is not None or self._goes_on(ctx):
            return fail
        wait = self._buckets.take(ctx.principal, ctx.mount.workers.loop.time())
        if wait <= 0:
            return None
        seconds = ctx.exchange.retry_after = max(1, math.ceil(wait))
        return Fail(Reason.RATE, f"Too many calls: try again in {seconds} s.", {"retryAfter": seconds})

    def _goes_on(self, ctx: Context) -> bool:
        """Whether it is a call that was counted, in its next round; a round that is sent again is a call."""
        memory = None if ctx.asks is None else ctx.asks.log.memory
        if memory is None or not memory.rounds or (memory.chain, memory.rounds) in self._rounds:
            return False
        self._rounds[memory.chain, memory.rounds] = None
        if len(self._rounds) > MAX_BUCKETS:
            self._rounds.popitem(last=False)
        return True

    def refuse(self, ctx: Context) -> Fail | None:
        """Why the caller may have nothing to do with the component; None when they may."""
        if self.scopes <= ctx.scopes:
            return None
        needed = sorted(self.scopes)
        return Fail(Reason.SCOPE, f"This needs the scope {' '.join(needed)}, which was not granted.", {"requiredScopes": needed})


def make_gate(policy: Policy, source: str) -> Gate | None:
    """What lets calls through to a component; None where everybody may call it.

    Raises:
        RegistrationError: `rate` is none.
    """
    rate = None if policy.rate is None else _read_rate(policy.rate, source)
    return Gate(frozenset(policy.scopes), rate) if policy.scopes or rate else None


class _Buckets:
    """For each principal a bucket of calls that may be made at once and fills up again as time goes by."""

    __slots__ = ("_calls", "_left", "_seconds")

    def __init__(self, calls: int, seconds: float) -> None:
        self._calls = calls
        self._seconds = seconds
        self._left: OrderedDict[str | None, tuple[float, float]] = OrderedDict()

    def take(self, principal: str | None, now: float) -> float:
        """Take one call; seconds until there is one, 0 when it was taken."""
        left, since = self._left.get(principal, (float(self._calls), now))
        left = min(float(self._calls), left + (now - since) * self._calls / self._seconds)
        # What is a call but for a rounding error is one: who waits as long as was said must not be turned away again.
        taken = left >= 1.0 - 1e-9
        self._left[principal] = (left - 1.0 if taken else left, now)
        self._left.move_to_end(principal)
        if len(self._left) > MAX_BUCKETS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) * self._seconds / self._calls


def _read_rate(rate: Any, source: str) -> tuple[int, float]:
    calls: Any = None
    seconds: Any = None
    if isinstance(rate, str):
        count, _, unit = rate.partition("/")
        calls, seconds = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else None, _UNITS.get(unit)
    elif isinstance(rate, tuple) and len(rate) == 2:
        calls, seconds = rate
    if type(calls) is not int or not 1 <= calls < 10**9 or type(seconds) not in {int, float} or not 0 < seconds < math.inf:
        raise RegistrationError(f'{source}: rate is "10/s", "60/min", "1000/h" or (calls, seconds), not {rate!r}.')
    return calls, float(seconds)


def _are_scopes(scopes: Any) -> bool:
    """An iterator is none: it is empty once it has been looked through, so that everybody would be let in."""
    return isinstance(scopes, Collection) and not isinstance(scopes, str) and all(isinstance(scope, str) and scope for scope in scopes)


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
