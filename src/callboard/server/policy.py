"""How a tool may be run: its policy, in one place, around the run of its function, whatever mode it was written in."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from callboard.errors import RegistrationError, ToolError
from callboard.server.callee import Callee, Run
from callboard.server.context import Context

__all__ = ["Policy", "limit"]


class Policy(msgspec.Struct, kw_only=True, frozen=True):
    """How a tool may be run.

    Attributes:
        timeout: Seconds after which its work is cancelled and the call answered in band; None for no limit.
        concurrency: How many calls of it run at once; more wait. None for no limit.
    """

    timeout: float | None = None
    concurrency: int | None = None


def limit(callee: Callee, policy: Policy, name: str) -> Run:
    """Wrap a tool's run in its policy, the wait for a turn inside the time limit."""
    run = callee.call
    if policy.concurrency is not None:
        if type(policy.concurrency) is not int or policy.concurrency < 1:
            raise RegistrationError(f"concurrency must be an integer of at least 1, not {policy.concurrency!r}: no call would ever run.")
        run = _in_turn(run, policy.concurrency, on_thread=not callee.signature.is_async)
    if policy.timeout is not None:
        if not isinstance(policy.timeout, int | float) or policy.timeout <= 0:
            raise RegistrationError(f"timeout must be a number of seconds above 0, not {policy.timeout!r}: no call would ever end well.")
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
        return await asyncio.shield(work)

    return run_in_turn


def _give_turn_back(turn: asyncio.Semaphore, work: asyncio.Future[Any]) -> None:
    turn.release()
    if not work.cancelled():
        work.exception()  # seen, also where nobody waits any more


def _timed(run: Run, seconds: float, name: str) -> Run:
    async def run_timed(kwargs: dict[str, Any], ctx: Context) -> Any:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await run(kwargs, ctx)
        except TimeoutError:
            if limit.expired():
                ctx.crashed = True  # it was stopped anywhere: what it did to the state is half done
                raise ToolError(f"{name} was stopped: it took longer than {seconds:g} s.") from None
            raise

    return run_timed
