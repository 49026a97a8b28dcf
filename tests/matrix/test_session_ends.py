"""The terminate hook: once, whatever the end; and what is left of a server that shuts down."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgi_driver import Application, Event
from legacy_driver import V11, Legacy, ends
from shop import Shop
from virtual_time import now, settle, virtual_time

from callboard import Server, asgi
from callboard.limits import Limits


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Lifespan:
    """What an ASGI server says to an application as it starts and stops."""

    def __init__(self, app: Application) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._said: asyncio.Queue[Event] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(app))

    async def _run(self, app: Application) -> None:
        await app({"type": "lifespan", "state": {}}, self._events.get, self._send)

    async def _send(self, event: Event) -> None:
        self._said.put_nowait(event)

    async def start(self) -> None:
        """Start it."""
        await self._events.put({"type": "lifespan.startup"})
        assert (await self._said.get())["type"] == "lifespan.startup.complete"

    async def stop(self) -> None:
        """Stop it, and wait until it has stopped."""
        await self._events.put({"type": "lifespan.shutdown"})
        assert (await self._said.get())["type"] == "lifespan.shutdown.complete"
        await self._task


async def end_by(kind: str, app: Application, session: Any, lifespan: Lifespan) -> None:
    """End a session."""
    if kind == "deleted":
        await session.delete()
    elif kind == "expired":
        await asyncio.sleep(11)
    else:
        await lifespan.stop()


@pytest.mark.parametrize("reason", ["deleted", "expired", "shutdown"])
@virtual_time
async def test_the_hook_runs_once_with_the_reason_and_the_last_state(shop: Shop, reason: str) -> None:
    """A08; scenario 16."""
    app = asgi(shop.server, session_ttl=10)
    lifespan = Lifespan(app)
    await lifespan.start()
    session = await Legacy(app).connect()
    await session.call("add", {"amount": 3})
    await end_by(reason, app, session, lifespan)
    assert shop.over == [(reason, 3)]
    await asyncio.sleep(100)
    assert shop.over == [(reason, 3)]
    if reason != "shutdown":
        await lifespan.stop()
        assert shop.over == [(reason, 3)]


@pytest.mark.parametrize("reason", ["deleted", "expired", "shutdown"])
@pytest.mark.parametrize("is_async", [True, False])
@virtual_time
async def test_a_hook_that_fails_is_logged_and_the_session_is_over_all_the_same(
    reason: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A08."""
    heard: list[str] = []

    async def later(reason: str, _: Any) -> None:
        await asyncio.sleep(0)
        heard.append(reason)
        raise ValueError("password=hunter2")

    def at_once(reason: str, _: Any) -> None:
        heard.append(reason)
        raise ValueError("password=hunter2")

    shop = Shop(terminate=later if is_async else at_once)
    app = asgi(shop.server, session_ttl=10, limits=Limits(max_sessions=2))
    lifespan = Lifespan(app)
    await lifespan.start()
    client = Legacy(app)
    session, _ = await client.connect(), await client.connect()
    caplog.set_level(logging.ERROR)
    if reason == "deleted":
        assert (await session.delete()).status == 204
        await settle()
        assert heard == ["deleted"]
        await client.connect()
    else:
        await end_by(reason, app, session, lifespan)
        assert heard == [reason] * 2
    assert "hunter2" in caplog.text
    assert (await session.request("ping")).status in {404, 503}


@virtual_time
async def test_without_state_the_hook_gets_none() -> None:
    heard: list[Any] = []
    server = Server("plain", terminate=lambda reason, state: heard.append((reason, state)))
    session = await Legacy(asgi(server)).connect()
    await session.delete()
    assert heard == [("deleted", None)]


@virtual_time
async def test_what_a_running_call_did_until_the_end_is_not_in_the_last_state(shop: Shop) -> None:
    # DESIGN section 4: dropped when it is cancelled
    session = await Legacy(asgi(shop.server)).connect()
    await session.call("add")
    call = session.begin("limited")
    await settle()
    await session.delete()
    await call.end()
    await settle()
    assert shop.over == [("deleted", 1)]


@virtual_time
async def test_a_slow_hook_keeps_no_place_and_nobody_waiting() -> None:
    done: list[str] = []

    async def slow(reason: str, _: Any) -> None:
        await asyncio.sleep(30)
        done.append(reason)

    client = Legacy(asgi(Shop(terminate=slow).server, limits=Limits(max_sessions=1)))
    session = await client.connect()
    began = now()
    deleting = asyncio.create_task(session.delete())
    await settle()
    assert (await session.request("ping")).status == 404
    await client.connect()
    assert now() - began < 0.1
    await asyncio.wait([deleting])
    assert deleting.result().status == 204
    await asyncio.sleep(31)
    assert done == ["deleted"]


@virtual_time
async def test_an_end_that_races_the_idle_time_is_one_end(shop: Shop) -> None:
    """A08."""
    client = Legacy(asgi(shop.server, session_ttl=10))
    for offset in (-0.001, 0, 0.001):
        session = await client.connect()
        await asyncio.sleep(10 + offset)
        assert (await session.delete()).status in {204, 404}
    await asyncio.sleep(20)
    assert len(shop.over) == 3


@virtual_time
async def test_a_server_that_shuts_down_answers_and_closes_all_that_waits(shop: Shop) -> None:
    """A40 and SA39, in process: streams end, callers hear of it, hooks run, nothing is left, nothing is logged."""
    app = asgi(shop.server)
    lifespan = Lifespan(app)
    await lifespan.start()
    tasks = asyncio.all_tasks()
    session, idle = await Legacy(app, V11).connect(), await Legacy(app).connect()
    await session.call("add")
    calls = [session.begin("add_slowly", {"seconds": 500}) for _ in range(2)]
    async with session.listen() as channel, session.open("report", {"seconds": 500}) as stream:
        await stream.message()
        await lifespan.stop()
        for answer in await ends(calls):
            assert answer.status in {200, 503}
            assert answer.error["code"] == -32603
        assert (await channel.end()).is_empty
        assert "result" not in (await stream.end()).messages[-1]
    assert sorted(shop.over) == [("shutdown", 0), ("shutdown", 1)]
    await settle()
    assert asyncio.all_tasks() <= tasks
    assert idle.id != session.id


@virtual_time
async def test_a_server_can_start_again_and_knows_nothing_of_its_old_sessions(shop: Shop) -> None:
    app = asgi(shop.server)
    old = []
    for _ in range(3):
        lifespan = Lifespan(app)
        await lifespan.start()
        old.append(await Legacy(app).connect())
        assert (await old[-1].call("add")).text == "1"
        for session in old[:-1]:
            assert (await session.request("ping")).status == 404
        await lifespan.stop()


@virtual_time
async def test_sessions_cost_no_task_and_their_end_leaves_nothing(shop: Shop) -> None:
    """A05, A07: however many there were, whatever they did."""
    app = asgi(shop.server)
    client = Legacy(app)
    await (await client.connect()).delete()
    tasks = asyncio.all_tasks()
    for number in range(50):
        session = await client.connect()
        await session.call("count", {"to": 3}, token=number)
        async with session.listen():
            await session.call("add")
        calls = [session.begin("add_slowly", {"seconds": 50}), session.begin("report", {"seconds": 50}, token="t")]
        await settle()
        await session.delete()
        await ends(calls)
    await settle()
    assert asyncio.all_tasks() == tasks
    assert len(shop.over) == 51


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError, KeyError], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_async", [True, False])
@virtual_time
async def test_whatever_a_hook_raises_ends_its_session_and_nothing_else(
    raised: type[BaseException], is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A08."""

    async def later(reason: str, _: Any) -> None:
        raise raised

    def at_once(reason: str, _: Any) -> None:
        raise raised

    app = asgi(Shop(terminate=later if is_async else at_once).server)
    session, other = await Legacy(app).connect(), await Legacy(app).connect()
    caplog.set_level(logging.ERROR)
    assert (await session.delete()).status == 204
    await settle()
    assert caplog.records
    assert (await other.call("add")).text == "1"


@virtual_time
async def test_a_hook_waits_for_no_thread_that_a_call_keeps(shop: Shop) -> None:
    """A20, A08: threads that functions block can't keep a session from ending."""
    app = asgi(shop.server, limits=Limits(threads=1))
    blocked, session = await Legacy(app).connect(), await Legacy(app).connect()
    call = blocked.begin("hold")
    await settle()
    began = now()
    assert (await session.delete()).status == 204
    assert (await session.request("ping")).status == 404
    assert now() - began < 30
    shop.release.set()
    assert (await call.end()).text == "1"
    await asyncio.sleep(1)
    assert shop.over == [("deleted", 0)]


@virtual_time
async def test_a_hook_that_never_ends_keeps_no_client_waiting_for_ever() -> None:
    async def never(reason: str, _: Any) -> None:
        await asyncio.Event().wait()

    session = await Legacy(asgi(Shop(terminate=never).server)).connect()
    began = now()
    assert (await session.delete()).status == 204
    assert now() - began < 60


@virtual_time
async def test_a_server_that_is_about_to_stop_ends_sessions_at_rest_at_once(shop: Shop) -> None:
    """A40: what holds the others up must not cost them their hook."""
    app = asgi(shop.server)
    resting, listening, busy = [await Legacy(app).connect() for _ in range(3)]
    await resting.call("add")
    call = busy.begin("add_slowly", {"seconds": 20, "name": "busy"})
    async with listening.listen() as stream:
        await settle()
        began = now()
        app.endpoint.drain()
        assert (await stream.end()).is_empty
        await settle()
        assert now() - began < 0.1
    assert sorted(shop.over) == [("shutdown", 0), ("shutdown", 1)]
    assert (await call.end()).text == "1"
    await app.endpoint.close()
    assert sorted(shop.over) == [("shutdown", 0), ("shutdown", 1), ("shutdown", 1)]


@virtual_time
async def test_a_host_without_lifespan_events_can_close_the_application() -> None:
    went: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        went.append("up")
        yield
        went.append("down")

    shop = Shop(lifespan=lifespan)
    app = asgi(shop.server)
    session = await Legacy(app).connect()
    await session.call("add")
    async with session.listen() as stream:
        await app.aclose()
        assert (await stream.end()).is_empty
    assert (went, shop.over) == (["up", "down"], [("shutdown", 1)])
    assert (await session.request("ping")).status == 404
    assert (await (await Legacy(app).connect()).call("add")).text == "1"
    assert went == ["up", "down", "up"]
    await app.aclose()
    assert (went, shop.over) == (["up", "down"] * 2, [("shutdown", 1)] * 2)
