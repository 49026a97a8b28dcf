"""How calls that ask wait and end: shapes of waiting, threads, clients that go away, what is left behind."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import anyio
import pytest
from asgi_driver import Client, make_headers, make_meta, make_request
from both_eras import add_asking_tool, connect, on_both, same_text
from legacy_driver import V06
from rounds import EVERYTHING, Rounds, accept
from shapes import respond
from virtual_time import now, settle, virtual_time

from callboard import Context, Depends, Server, ToolError, asgi
from callboard.server.asking import HOLD

# Shapes of waiting


async def cancel_shielded(ctx: Context) -> str:
    found: list[str] = []
    with anyio.CancelScope(shield=True):
        found.append((await ctx.elicit("Name?", str)).value)
    return found[0]


async def in_anyio_group(ctx: Context) -> str:
    found: list[str] = []

    async def ask(text: str) -> None:
        found.append((await ctx.elicit(text, str)).value)

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "A?")
        group.start_soon(ask, "B?")
    return " ".join(found)


async def in_shield(ctx: Context) -> str:
    return (await asyncio.shield(ctx.elicit("Name?", str))).value


async def as_completed(ctx: Context) -> str:
    return " ".join([(await each).value for each in asyncio.as_completed([ctx.elicit("A?", str), ctx.elicit("B?", str)])])


async def by_a_task_of_its_own(ctx: Context) -> str:
    done, found = asyncio.Event(), []

    async def ask() -> None:
        found.append((await ctx.elicit("Name?", str)).value)
        done.set()

    asking = asyncio.create_task(ask())
    await done.wait()
    await asking
    return found[0]


async def by_a_thread(ctx: Context) -> str:
    return await asyncio.to_thread(lambda: ctx.wait(ctx.elicit("Name?", str)).value)


async def after_a_group_that_failed(ctx: Context) -> str:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ToolError("broken")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(60))
    except* ToolError:
        pass
    return (await ctx.elicit("Name?", str)).value


async def retried(ctx: Context) -> str:
    for _ in range(5):
        try:
            return (await ctx.elicit("Name?", str)).value
        except BaseException:  # noqa: BLE001 - as bad as it gets
            continue
    return "lost"


WAYS: Final = [
    cancel_shielded,
    in_anyio_group,
    in_shield,
    as_completed,
    by_a_task_of_its_own,
    by_a_thread,
    after_a_group_that_failed,
    retried,
]


@pytest.mark.parametrize("way", WAYS)
@virtual_time
async def test_ways_of_waiting(way: Callable[[Context], Any]) -> None:
    # MR-17
    def declare(server: Server, _log: list[str]) -> None:
        server.tool(way, name="t")

    assert await same_text(declare) in {"text", "text text"}


@virtual_time
async def test_a_function_that_tries_for_ever_does_not_stop_the_others() -> None:
    """It stopped the event loop: an ask of a suspended call was refused without a pause."""
    server = Server("s")

    @server.tool
    async def stubborn(ctx: Context) -> str:
        while trying:
            try:
                return (await ctx.elicit("Name?", str)).value
            except BaseException:  # noqa: BLE001 - a bare except in a loop
                continue
        return "never"

    trying = [True]
    add_asking_tool(server, [])
    client = Client(asgi(server))
    async with asyncio.timeout(60):
        stuck = asyncio.create_task(client.call("stubborn", meta=make_meta(EVERYTHING)))
        await settle()
        assert (await client.call("t", meta=make_meta(EVERYTHING))).result["resultType"] == "input_required"
    assert not stuck.done()
    trying.clear()
    stuck.cancel()
    await asyncio.wait([stuck])


@virtual_time
async def test_a_thread_ends_before_what_it_was_given_does() -> None:
    """The call was suspended around a thread that still ran: its `finally` met a database that was closed."""

    def declare(server: Server, log: list[str]) -> None:
        def resource() -> Iterator[int]:
            try:
                yield 1
            finally:
                log.append("closed")

        def t(ctx: Context, number: int = Depends(resource)) -> str:
            try:
                return ctx.wait(ctx.elicit("Name?", str)).value
            finally:
                log.append("finally")

        server.tool(t)

    _, _, logs = await on_both(declare)
    assert logs == [["finally", "closed"] * 2, ["finally", "closed"]]


@virtual_time
async def test_a_dependency_on_a_thread_ends_before_what_it_was_given_does() -> None:
    def declare(server: Server, log: list[str]) -> None:
        async def resource() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                log.append("closed")

        def name(ctx: Context, number: int = Depends(resource)) -> str:
            try:
                return ctx.wait(ctx.elicit("Name?", str)).value
            finally:
                log.append("finally")

        async def t(found: str = Depends(name)) -> str:
            return found

        server.tool(t)

    _, _, logs = await on_both(declare)
    assert logs == [["finally", "closed"] * 2, ["finally", "closed"]]


@pytest.mark.parametrize("way", ["cancel", "drop", "delete"])
@virtual_time
async def test_a_thread_does_not_wait_on_for_a_call_that_is_over(way: str) -> None:
    """It waited for the answer of a client that had gone, for five minutes: forty of them and no `def` function ran."""
    # CN-01, SA40
    server = Server("s")
    log: list[str] = []

    @server.tool(timeout=5)
    def t(ctx: Context) -> str:
        try:
            return ctx.wait(ctx.elicit("Name?", str)).value
        except BaseException as error:
            log.append(type(error).__name__)
            raise

    session = await connect(server)
    stream = session.start(session.make_call("t", {}, request_id=7))
    asked = await stream.message()
    if way == "cancel":
        await session.cancel(7)
    elif way == "drop":
        await stream.drop()
    else:
        await session.delete()
    await settle()
    assert log == ["CancelledError"]
    assert (await session.respond(asked, accept(value="late"))).status == (404 if way == "delete" else 400)


@pytest.mark.parametrize("on_thread", [False, True])
@virtual_time
async def test_the_time_that_a_user_takes_is_not_the_tools(on_thread: bool) -> None:
    """A tool of five seconds worked in rounds, and in a session of 2025 only for users who were faster than that."""
    server = Server("s")

    async def ask(ctx: Context) -> str:
        first, second = await asyncio.gather(ctx.elicit("A?", str), ctx.elicit("B?", str))
        await asyncio.sleep(first.value == "slow" and 6)
        return second.value

    def ask_on_thread(ctx: Context) -> str:
        return ctx.wait(ask(ctx))

    server.tool(ask_on_thread if on_thread else ask, name="t", timeout=5)
    session = await connect(server)
    for value in ("quick", "slow"):
        stream = session.start(session.make_call("t", {}))
        for asked in await stream.take(2):
            await asyncio.sleep(20)
            await session.respond(asked, accept(value=value))
        end = await stream.end()
        assert ("longer than 5 s" in end.text) is (value == "slow")


@virtual_time
async def test_an_ask_that_nobody_waits_for_is_taken_back() -> None:
    # CN-07
    server = Server("s")
    log: list[str] = []

    @server.tool
    async def t(ctx: Context) -> str:
        async def ask() -> None:
            try:
                await ctx.elicit("Name?", str)
            finally:
                log.append("ended")

        log.append(asyncio.create_task(ask()).get_name())
        await asyncio.sleep(1)
        return "done"

    session = await connect(server, V06)
    stream = session.start(session.make_call("t", {}))
    asked, note = await stream.take(2)
    assert note["params"]["requestId"] == asked["id"]
    assert (await stream.end()).text == "done"
    assert log[1:] == ["ended"]


# What is left behind


def _group(server: Server) -> None:
    def threaded(ctx: Context) -> str:
        return ctx.wait(ctx.elicit("Name?", str)).value

    async def gathered(ctx: Context) -> str:
        return str(await asyncio.gather(ctx.elicit("A?", str), ctx.elicit("B?", str)))

    async def twice(ctx: Context) -> None:
        await ctx.elicit("A?", key="k")
        await ctx.elicit("B?", key="k")

    def failing() -> None:
        raise ToolError("no")

    for function in (threaded, gathered, twice, failing):
        server.tool(function)
    server.tool(threaded, name="limited", timeout=5, concurrency=1)


@pytest.mark.parametrize("tool", ["t", "threaded", "gathered", "twice", "limited", "failing"])
async def test_a_suspended_or_failed_call_leaves_no_garbage(tool: str) -> None:
    """What only the collector can take away piles up between its rounds."""
    server = Server("s")
    _group(server)
    add_asking_tool(server, [])
    client = Client(asgi(server))

    async def go() -> None:
        first = await client.call(tool, meta=make_meta(EVERYTHING))
        for change in ({"action": "maybe"}, None):
            requests = first.result.get("inputRequests", {})
            responses = {key: change or respond(key, request) for key, request in requests.items()}
            if responses:
                params = {"name": tool, "requestState": first.result["requestState"], "inputResponses": responses}
                await client.request("tools/call", params, meta=make_meta(EVERYTHING))
        await asyncio.sleep(0.01)

    await go()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await go()
        gc.collect()
        found = {type(thing).__name__ for thing in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found & {"Context", "Asks", "Task", "Exchange", "CancelledError", "Fail", "RuntimeError", "ToolError"}


@pytest.mark.parametrize("tool", ["t", "threaded"])
@virtual_time
async def test_a_client_that_goes_away_at_any_moment_leaves_nothing_behind(tool: str) -> None:
    # CN-01, SA25
    server = Server("s")
    _group(server)
    add_asking_tool(server, [])
    app = asgi(server)
    await Client(app).call(tool, meta=make_meta(EVERYTHING))
    await settle()
    before = asyncio.all_tasks()
    for turns in range(20):
        message = make_request("tools/call", {"name": tool}, meta=make_meta(EVERYTHING, progressToken=1))
        exchange = Client(app).start(json.dumps(message).encode(), make_headers(message))
        for _ in range(turns):
            await asyncio.sleep(0)
        exchange.disconnect()
        await exchange.gone()
        await settle()
        assert asyncio.all_tasks() == before


@virtual_time
async def test_a_once_that_waits_for_a_branch_that_asks_does_not_wait_for_ever() -> None:
    server = Server("s")

    @server.tool
    async def tangled(ctx: Context) -> str:
        lock = asyncio.Lock()

        async def ask() -> str:
            async with lock:
                return (await ctx.elicit("Which?", str)).value

        async def make() -> str:
            async with lock:
                return "made"

        asking = asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        made = await ctx.once("made", make)
        return made + await asking

    began = now()
    client = Rounds(asgi(server), lambda _key, _request: accept(value="x"))
    assert (await client.call("tangled")).text == "madex"
    assert now() - began == pytest.approx(HOLD)
