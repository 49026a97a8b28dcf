"""A server's lifespan: entered once, however many transports serve it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from callboard.errors import RegistrationError
from callboard.server.lifespan import Lifespan


class Recorder:
    """A lifespan that says what happens to it.

    Attributes:
        events: What has happened.
        gate: Cleared: entering waits.
        broken: Error that entering raises.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken: BaseException | None = None

    @asynccontextmanager
    async def __call__(self, server: Any) -> AsyncIterator[dict[str, Any]]:
        self.events.append(f"enter {server}")
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        task = asyncio.current_task()
        async with asyncio.TaskGroup():
            yield {"db": self}
        assert asyncio.current_task() is task
        self.events.append("leave")


async def within(waiting: Any) -> Any:
    async with asyncio.timeout(5):
        return await waiting


async def test_it_is_entered_once_and_left_by_the_last() -> None:
    # A33
    recorder = Recorder()
    lifespan = Lifespan("desk", recorder)
    first, second = await asyncio.gather(lifespan.enter(), lifespan.enter())
    third = await lifespan.enter()
    assert first == second == third == {"db": recorder}
    for _ in range(2):
        await lifespan.leave()
    assert recorder.events == ["enter desk"]
    await lifespan.leave()
    assert recorder.events == ["enter desk", "leave"]


async def test_it_is_left_in_the_task_that_entered_it() -> None:
    """Task groups demand it; requests enter and leave in tasks of their own."""
    recorder = Recorder()
    lifespan = Lifespan("desk", recorder)
    await asyncio.create_task(lifespan.enter())
    await asyncio.create_task(lifespan.leave())
    assert recorder.events[-1] == "leave"


async def test_after_the_last_has_left_it_can_begin_again() -> None:
    recorder = Recorder()
    lifespan = Lifespan("desk", recorder)
    for _ in range(2):
        await lifespan.enter()
        await lifespan.leave()
    assert recorder.events == ["enter desk", "leave"] * 2


async def test_who_gives_up_waiting_harms_nobody() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    lifespan = Lifespan("desk", recorder)
    hasty, patient = asyncio.create_task(lifespan.enter()), asyncio.create_task(lifespan.enter())
    await asyncio.sleep(0)
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    recorder.gate.set()
    assert await within(patient) == {"db": recorder}
    await within(lifespan.leave())
    assert recorder.events == ["enter desk", "leave"]


async def test_what_fails_on_the_way_in_is_everybodys_error_and_the_next_one_tries_again() -> None:
    recorder = Recorder()
    recorder.gate.clear()
    recorder.broken = RuntimeError("no database")
    lifespan = Lifespan("desk", recorder)
    tasks = [asyncio.create_task(lifespan.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    recorder.gate.set()
    for task in tasks:
        with pytest.raises(RuntimeError, match="no database"):
            await within(task)
    recorder.broken = None
    assert await within(lifespan.enter()) == {"db": recorder}
    await within(lifespan.leave())


def takes_no_server() -> AbstractAsyncContextManager[None]:
    raise NotImplementedError


def raises(_server: Any) -> AbstractAsyncContextManager[None]:
    raise RuntimeError("no settings")


async def bare_generator(_server: Any) -> AsyncIterator[None]:
    yield


async def coroutine(_server: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("factory", "way_out"),
    [(takes_no_server, "one argument"), (bare_generator, "asynccontextmanager"), (coroutine, "asynccontextmanager"), (5, "function")],
)
def test_what_can_be_no_lifespan_is_refused_at_once(factory: Any, way_out: str) -> None:
    with pytest.raises(RegistrationError, match=way_out):
        Lifespan("desk", factory)


async def test_a_factory_that_fails_does_so_every_time() -> None:
    lifespan = Lifespan("desk", raises)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await within(lifespan.enter())


async def test_a_lifespan_yields_a_mapping() -> None:
    @asynccontextmanager
    async def lifespan(_server: Any) -> AsyncIterator[Any]:
        yield object()

    with pytest.raises(RegistrationError, match="yield a mapping"):
        await within(Lifespan("desk", lifespan).enter())


async def test_what_fails_on_the_way_out_is_heard() -> None:
    @asynccontextmanager
    async def factory(_server: Any) -> AsyncIterator[None]:
        yield
        raise RuntimeError("flush failed")

    lifespan = Lifespan("desk", factory)
    assert await lifespan.enter() == {}
    with pytest.raises(RuntimeError, match="flush failed"):
        await lifespan.leave()


async def test_one_that_dies_while_it_is_needed_is_heard_at_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = asyncio.Event()

    async def watch() -> None:
        await broken.wait()
        raise RuntimeError("connection lost")

    @asynccontextmanager
    async def factory(_server: Any) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            yield

    lifespan = Lifespan("desk", factory)
    await lifespan.enter()
    broken.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert "connection lost" in caplog.text
    with pytest.raises(ExceptionGroup):
        await within(lifespan.leave())


async def test_without_one_there_is_nothing_to_do() -> None:
    lifespan = Lifespan("desk", None)
    assert await lifespan.enter() == {}
    await lifespan.leave()


async def test_leaving_what_was_never_entered_is_no_error() -> None:
    await Lifespan("desk", Recorder()).leave()


def test_every_loop_has_its_own() -> None:
    # A32: a test client makes a loop per request
    events: list[str] = []

    @asynccontextmanager
    async def factory(_server: Any) -> AsyncIterator[None]:
        events.append("enter")
        yield

    lifespan = Lifespan("desk", factory)

    async def visit() -> None:
        await within(lifespan.enter())

    for _ in range(2):
        asyncio.run(visit())
    assert events == ["enter", "enter"]
