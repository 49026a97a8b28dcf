"""What the requests of a session leave behind: nothing, whatever way they end."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from shop import Cart, Shop
from unit.legacy.lobby import Lobby, Wire, is_a_request_s, lobby, make_call, text
from virtual_time import run, settle, virtual_time

from callboard.legacy.actor import Actor


async def call_json(place: Lobby, actor: Actor) -> None:
    wire = Wire()
    wire.post(actor, make_call("echo", 1, text="x"))
    await wire.end()


async def call_stream(place: Lobby, actor: Actor) -> None:
    wire = Wire()
    wire.post(actor, make_call("report", 1, token=1, seconds=1))
    await wire.end()


async def cancel_running(place: Lobby, actor: Actor) -> None:
    wire, other = Wire(), Wire()
    wire.post(actor, make_call("add_slowly", 1, seconds=1))
    other.post(actor, make_call("add_slowly", 2, seconds=1))
    await settle()
    actor.cancel(1)
    actor.cancel(2)
    await wire.end()
    await other.end()


async def cancel_unborn(place: Lobby, actor: Actor) -> None:
    wire = Wire()
    wire.post(actor, make_call("nap", 1, seconds=1))
    actor.cancel(1)
    await wire.end()


async def drop_stream(place: Lobby, actor: Actor) -> None:
    wire = Wire()
    wire.post(actor, make_call("report", 1, token=1, seconds=1))
    await settle()
    wire.gone.set()
    await wire.end()


async def time_out(place: Lobby, actor: Actor) -> None:
    wire = Wire()
    wire.post(actor, make_call("nap", 1, seconds=9))
    await wire.end()
    await asyncio.sleep(9)


async def replace(place: Lobby, actor: Actor) -> None:
    wire, again = Wire(), Wire()
    wire.post(actor, make_call("report", 1, token=1, seconds=1))
    await settle()
    again.listen(actor, "c1-0")
    await wire.end()
    await again.end()


async def replace_channel(place: Lobby, actor: Actor) -> None:
    wire, again = Wire(), Wire()
    wire.listen(actor)
    await settle()
    again.listen(actor, "g0-0")
    await wire.end()
    again.gone.set()
    await again.end()


async def hang_up(place: Lobby, actor: Actor) -> None:
    wire = Wire()
    wire.post(actor, make_call("report", 1, token=1, seconds=1))
    await settle()
    (work,) = actor.machine.calls.values()
    actor.disconnect(work.exchange, 0.1)
    await wire.end()
    await asyncio.sleep(1)


async def end_busy(place: Lobby, actor: Actor) -> None:
    other, wires = await place.open(), [Wire() for _ in range(4)]
    for number, wire in enumerate(wires[:3]):
        wire.post(other, make_call("add_slowly", number, seconds=1))
    wires[3].listen(other)
    await settle()
    other.end("deleted")
    for wire in wires:
        await wire.end()


WAYS = [call_json, call_stream, cancel_running, cancel_unborn, drop_stream, time_out, replace, replace_channel, hang_up, end_busy]


async def farewell(reason: str, cart: Cart) -> None:
    """Needs no thread: the virtual clock looks at the frames of threads, and holds what they hold."""


@pytest.mark.parametrize("way", WAYS)
def test_a_request_leaves_no_garbage(way: Callable[[Lobby, Actor], Awaitable[None]]) -> None:
    """What needs the collector to go away piles up between its rounds, with all that it holds."""

    async def main() -> set[str]:
        async with lobby(Shop(terminate=farewell).server, request_timeout=3) as place:
            actor = await place.open()
            await way(place, actor)
            await settle()
            gc.collect()
            for _ in range(3):
                await way(place, actor)
                await settle()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return {type(thing).__name__ for thing in gc.garbage if is_a_request_s(thing)}

    gc.collect()
    gc.disable()
    try:
        found = run(main)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == set()


@virtual_time
async def test_after_all_of_that_a_session_is_as_good_as_new() -> None:
    async with lobby(Shop().server, request_timeout=3) as place:
        actor = await place.open()
        tasks = asyncio.all_tasks()
        for way in WAYS:
            await way(place, actor)
        await settle()
        assert asyncio.all_tasks() == tasks
        assert actor.machine.idle
        assert actor.machine.outlets() == []
        assert (len(place.table.slow), len(place.table.deadlines)) == (0, 0)
        assert await text(actor, "look") == "0"
