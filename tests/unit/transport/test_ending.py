"""How a process that serves comes to its end, without sockets: when it goes on, and what it waits for. The rest is in tests/e2e/test_drain.py."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from virtual_time import settle, virtual_time

import callboard
from callboard import Server
from callboard.transport.asgi import App
from callboard.transport.ending import LAST_REQUEST, READ, TELL, Ending


class Connection:
    """A connection of uvicorn's, as far as an ending knows it."""

    def __init__(self, *, busy: bool) -> None:
        self.cycle = SimpleNamespace(response_complete=False) if busy else None
        self.told = False

    def shutdown(self) -> None:
        self.told = True


class Stage:
    """A server that serves an application."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.config = SimpleNamespace(encoded_headers=[], timeout_graceful_shutdown=30)
        self.server_state = SimpleNamespace(default_headers=[(b"date", b"x")], connections=set[Any](), tasks=set[asyncio.Task[Any]]())
        self.servers: list[Any] = [self]
        self.should_exit = False
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def ending(self, grace: float) -> Ending:
        return Ending(self.app.endpoint, cast("Any", self), grace)


async def make_stage() -> Stage:
    app = callboard.asgi(Server("s"))
    await app.endpoint.open()
    return Stage(app)


@virtual_time
async def test_with_nothing_to_wait_for_it_ends_at_once_and_keeps_no_connection() -> None:
    stage = await make_stage()
    busy, idle = Connection(busy=True), Connection(busy=False)
    stage.server_state.connections |= {busy, idle}
    stage.ending(30).begin()
    await settle()
    assert stage.should_exit
    assert (busy.told, idle.told) == (True, False)  # whoever has nothing open may ask once more, and learns why not
    assert (b"connection", b"close") in stage.config.encoded_headers
    assert (b"connection", b"close") in stage.server_state.default_headers
    assert not stage.is_closed  # who comes now is told, instead of finding nobody
    assert stage.app.endpoint.mount is not None
    assert stage.app.endpoint.mount.draining
    assert stage.config.timeout_graceful_shutdown == READ + TELL  # who does not read is cut by us before
    await stage.app.aclose()


@virtual_time
async def test_it_waits_for_calls_and_no_longer() -> None:
    stage, loop = await make_stage(), asyncio.get_running_loop()
    stage.app.endpoint.load.in_flight = 1
    stage.ending(30).begin()
    await asyncio.sleep(12)
    assert not stage.should_exit
    stage.app.endpoint.load.in_flight, began = 0, loop.time()
    while not stage.should_exit:  # noqa: ASYNC110 - a flag has no event
        await asyncio.sleep(0.01)
    assert loop.time() - began < 0.2
    await stage.app.aclose()


@virtual_time
async def test_calls_that_take_longer_are_told(caplog: pytest.LogCaptureFixture) -> None:
    stage, loop = await make_stage(), asyncio.get_running_loop()
    told: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            told.append("told")
            await asyncio.sleep(1e6)  # and goes on all the same

    stage.server_state.tasks.add(loop.create_task(stubborn()))
    stage.app.endpoint.load.in_flight = 1
    began = loop.time()
    ending = stage.ending(30)
    ending.begin()
    ending.begin()
    while not stage.should_exit:  # noqa: ASYNC110 - a flag has no event
        await asyncio.sleep(0.01)
    assert told == ["told"]
    assert 30 + TELL <= loop.time() - began < 31 + TELL
    assert "1 calls did not end within 30 seconds" in caplog.text
    assert stage.config.timeout_graceful_shutdown == 2 * TELL
    for task in stage.server_state.tasks:
        task.cancel()
    await stage.app.aclose()


@virtual_time
async def test_who_is_replaced_takes_no_connection_and_refuses_nothing_at_first() -> None:
    stage = await make_stage()
    stage.ending(30).begin(replaced=True)
    await settle()
    assert stage.is_closed
    assert stage.app.endpoint.mount is not None
    assert not stage.app.endpoint.mount.draining
    await asyncio.sleep(LAST_REQUEST)
    await settle()
    assert stage.should_exit
    await stage.app.aclose()
