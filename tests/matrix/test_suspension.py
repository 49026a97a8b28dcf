"""The contract that asking the client will stand on: a layer can end a call where it waits, whatever the function does about it.

An unanswered ask suspends; one turn of the loop after the last new ask the call is cancelled in its own task, and from then on its
outcome is `NeedInput`. Nothing of this needs more than a layer: no transport, no era and no dispatch knows of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgi_driver import Client

from callboard import Context, NeedInput, Outcome, Request, Server, Service, asgi

QUESTION = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}


class Asks:
    """Collects the asks of one call."""

    def __init__(self) -> None:
        self.pending: dict[str, Any] = {}
        self._task = asyncio.current_task()

    async def ask(self, key: str) -> None:
        """Ask; never answered here."""
        loop = asyncio.get_running_loop()
        self.pending[key] = QUESTION
        loop.call_soon(loop.call_soon, self._suspend, len(self.pending))
        await loop.create_future()

    def _suspend(self, known: int) -> None:
        if known == len(self.pending):
            assert self._task is not None
            self._task.cancel()

    def release(self) -> None:
        """The cancellation was ours, and is over."""
        assert self._task is not None
        while self._task.cancelling():
            self._task.uncancel()


def asking(inner: Service) -> Service:
    async def serve(request: Request, ctx: Context) -> Outcome:
        asks = ctx.locals["asks"] = Asks()
        try:
            outcome = await inner(request, ctx)
        except asyncio.CancelledError:
            if not asks.pending:
                raise
            outcome = NeedInput({})
        if not asks.pending:
            return outcome
        asks.release()
        return NeedInput(asks.pending)

    return serve


server = Server("asking", middleware=[asking])
closed: list[str] = []


@server.tool
async def plain(ctx: Context) -> str:
    await ctx.locals["asks"].ask("a")
    return "never"


@server.tool
async def guarded(ctx: Context) -> str:
    try:
        await ctx.locals["asks"].ask("a")
    except Exception:  # noqa: BLE001 - what must not swallow a suspension
        return "swallowed"
    finally:
        closed.append("guarded")
    return "never"


@server.tool
async def stubborn(ctx: Context) -> str:
    try:
        await ctx.locals["asks"].ask("a")
    except asyncio.CancelledError:
        return "swallowed"
    return "never"


@server.tool
async def together(ctx: Context) -> str:
    async def slow() -> None:
        await asyncio.sleep(0)
        await ctx.locals["asks"].ask("b")

    await asyncio.gather(ctx.locals["asks"].ask("a"), slow(), return_exceptions=True)
    return "swallowed"


@server.tool
async def grouped(ctx: Context) -> str:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(ctx.locals["asks"].ask("a"))
        group.create_task(ctx.locals["asks"].ask("b"))
    return "never"


@server.tool
async def plain_answer() -> str:
    return "plain"


@pytest.mark.parametrize(
    ("tool", "keys"), [("plain", {"a"}), ("guarded", {"a"}), ("stubborn", {"a"}), ("together", {"a", "b"}), ("grouped", {"a", "b"})]
)
async def test_a_layer_can_end_a_call_where_it_waits(tool: str, keys: set[str]) -> None:
    # MR-01, MR-03, MR-04
    answer = await Client(asgi(server)).call(tool)
    assert answer.status == 200
    assert answer.result["resultType"] == "input_required"
    assert set(answer.result["inputRequests"]) == keys


async def test_teardown_runs_and_the_next_call_is_untouched() -> None:
    closed.clear()
    client = Client(asgi(server))
    await client.call("guarded")
    assert closed == ["guarded"]
    assert (await client.call("plain_answer")).text == "plain"
