"""Sessions that several workers serve: the scenarios, in memory on a virtual clock."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

import pytest
from legacy_driver import Legacy
from shared_sessions import SCENARIOS, Fleet, Scenario, at, principal_of, stream_of, value
from virtual_time import virtual_time

from callboard import Handler, RegistrationError, Reply, asgi
from callboard.legacy.shared_table import find_space
from callboard.limits import Limits
from callboard.stores.memory import MemoryStore


def make_stores(number: int = 2) -> list[MemoryStore]:
    """The store as each worker sees it."""
    first = MemoryStore(shared=True)
    return [first, *(first.twin() for _ in range(number - 1))]


def names(run: Callable[..., object]) -> str:
    """What a scenario is called."""
    return getattr(run, "__name__", "scenario")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=names)
@virtual_time
async def test_in_memory(scenario: Scenario) -> None:
    fleet = Fleet(make_stores(), principal=principal_of)
    try:
        await scenario(fleet)
    finally:
        await fleet.close()


@virtual_time
async def test_what_waits_for_a_dead_worker_goes_on() -> None:
    """Its turn passes on, the stream of its call ends with an error, and what it does later is not kept."""
    stores = make_stores()
    fleet = Fleet(stores)
    session = await fleet.connect()
    held = session.begin("held", {"item": 1}, request_id="the call", token=1, **at(0))
    begun = await held.frame()
    await fleet.until(lambda: fleet.begun)
    following = session.start_listening(begun.event_id, **at(1))
    assert await following.head() == 200
    waiting = session.begin("add", {"item": 2}, **at(1))
    await fleet.until(lambda: fleet.table(1).sessions[str(session.id)].followers)
    find_space(stores[0]).part(stores[0].worker)
    assert value(await waiting.end()) == [1, 2]
    (_, last) = (await stream_of(following))[-1]
    assert last["id"] == "the call"
    assert "gone" in last["error"]["message"]
    fleet.open_gate(1)
    await held.drop()
    assert value(await session.call("add", {"item": 3}, **at(1))) == [1, 2, 3]
    await fleet.close()


@virtual_time
async def test_a_call_that_outlives_the_grace_is_answered_before_its_connection_is_cut() -> None:
    # HL-24
    fleet = Fleet(make_stores())
    session = await fleet.connect()
    calls = [session.begin(tool, {"item": 1}, **at(0)) for tool in ("held", "free")]
    await fleet.until(lambda: len(fleet.begun) == 2)
    await fleet.apps[0].endpoint.give_up()
    for call in calls:
        call.task.cancel()  # as the HTTP server does next
    for call in calls:
        answer = await call.end()
        assert "error" in answer.message
    assert value(await session.call("add", {"item": 2}, **at(1))) == [1, 2]
    assert fleet.ends == []
    await fleet.close()


@virtual_time
async def test_a_session_that_nobody_uses_ends_once() -> None:
    # HL-24
    fleet = Fleet(make_stores(3), ttl=30.0)
    session = await fleet.connect()
    await session.call("add", {"item": 1})
    await asyncio.sleep(25)
    assert value(await session.call("add", {"item": 2}, **at(2)))[1:] == [1, 2]
    await asyncio.sleep(25)
    assert fleet.ends == []
    await asyncio.sleep(20)
    assert [(end.reason, end.items) for end in fleet.ends] == [("expired", [1, 2])]
    for number in range(3):
        assert (await session.call("add", {"item": 3}, **at(number))).status == 404
    await fleet.close()


@virtual_time
async def test_an_open_stream_keeps_a_session_alive() -> None:
    fleet = Fleet(make_stores(), ttl=30.0)
    session = await fleet.connect()
    async with session.listen(**at(1)) as stream:
        await stream.frame()
        await asyncio.sleep(200)
        assert value(await session.call("add", {"item": 1}, **at(0))) == [0, 1]
    assert fleet.ends == []
    await fleet.close()


@virtual_time
async def test_there_is_room_for_so_many_sessions_in_all_workers() -> None:
    fleet = Fleet(make_stores(), limits=Limits(max_sessions=3))
    client = Legacy(fleet.app)
    sessions = [await client.connect() for _ in range(3)]
    refused = await client.try_initialize()
    assert refused.status == 503
    assert "max_sessions" in refused.message["error"]["message"]
    await sessions[0].delete()
    await client.connect()
    await fleet.close()


@virtual_time
async def test_a_call_that_waits_too_long_is_dropped() -> None:
    fleet = Fleet(make_stores(), request_timeout=5.0)
    session = await fleet.connect()
    held = session.begin("held", {"item": 1}, token=1, **at(0))
    await fleet.until(lambda: fleet.begun)
    late = await session.call("add", {"item": 2}, **at(1))
    assert "request_timeout" in late.message["error"]["message"]
    fleet.open_gate(1)
    assert value(await held.end()) == [0, 1]
    assert value(await session.call("add", {"item": 3}, **at(1))) == [1, 1, 3]
    await fleet.close()


@virtual_time
async def test_one_program_may_have_two_endpoints() -> None:
    stores = make_stores(1)
    fleet = Fleet([stores[0], stores[0].twin()])
    session = await fleet.connect()
    answers = await asyncio.gather(*(session.call("add", {"item": item}) for item in range(8)))
    assert sorted(len(value(answer)) for answer in answers) == list(range(2, 10))
    await fleet.close()


@virtual_time
async def test_what_a_session_subscribes_to_is_bounded() -> None:
    fleet = Fleet(make_stores())
    session = await fleet.connect()
    answers = [await session.request("resources/subscribe", {"uri": f"desk://{number}{'x' * 2_000}"}) for number in range(40)]
    refused = [answer.message["error"]["message"] for answer in answers if "error" in answer.message]
    assert 5 <= len(refused) < 15
    assert "65536 characters together" in refused[0]
    await fleet.close()


class Counter(Handler[int]):
    """A handler whose state has a type; it hears notifications, too."""

    name = "counter"
    heard: ClassVar[list[int]] = []

    def list_tools(self, ctx: Any, state: int) -> list[dict[str, Any]]:
        """One tool."""
        return [{"name": "add", "inputSchema": {"type": "object"}}]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Any, state: int) -> Reply:
        """Count on."""
        total = state + arguments["item"]
        return Reply(str(total), state=total)

    async def handle_notification(self, notification: Any, channel: Any, state: int) -> None:
        """Remember the state that it came with."""
        if notification.method == "notifications/roots/list_changed":
            self.heard.append(state)


@virtual_time
async def test_a_handler_is_served_by_every_worker() -> None:
    apps = []
    for store in make_stores():
        app = asgi(Counter)
        app.endpoint.server.keep_in(store)
        apps.append(app)
    turn = count()

    async def spread(scope: Any, receive: Any, send: Any) -> None:
        await apps[next(turn) % 2](scope, receive, send)

    session = await Legacy(spread).connect()
    totals = [(await session.call("add", {"item": item})).message["result"]["content"][0]["text"] for item in (1, 2, 3)]
    assert totals == ["1", "3", "6"]
    await session.notify("notifications/roots/list_changed")
    await asyncio.sleep(0.1)
    assert Counter.heard == [6]
    for app in apps:
        await app.aclose()


class Loose(Handler):
    """A handler whose state is whatever `init` gives."""

    name = "loose"

    def init(self, hello: Any) -> object:
        """Something that nobody can write down."""
        return object()


@virtual_time
async def test_a_state_without_an_encoded_form_is_refused_at_the_start() -> None:
    (store,) = make_stores(1)
    app = asgi(Loose, sessions="auto")
    app.endpoint.server.keep_in(store)
    with pytest.raises(RegistrationError, match="has no encoded form"):
        await app.endpoint.open()
    app = asgi(Loose, sessions="off")
    app.endpoint.server.keep_in(store.twin())
    await app.endpoint.open()
    await app.aclose()
