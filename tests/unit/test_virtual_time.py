"""The clock that tests turn."""

import asyncio
import queue
import threading
import time
from typing import Any

import pytest
from asgi_driver import Client
from virtual_time import START, VirtualLoop, run, virtual_time

from callboard import Context, Server, asgi
from callboard.server.workers import Workers


@virtual_time
async def test_a_day_passes_at_once() -> None:
    began = time.monotonic()
    await asyncio.sleep(86_400)
    assert asyncio.get_running_loop().time() == pytest.approx(START + 86_400)
    assert time.monotonic() - began < 1


@virtual_time
async def test_timers_fire_in_order_at_their_times() -> None:
    loop, seen = asyncio.get_running_loop(), list[tuple[str, float]]()

    async def after(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time() - START))

    await asyncio.gather(after("c", 3), after("a", 0.001), after("b", 2.5))
    assert [name for name, _ in seen] == ["a", "b", "c"]
    assert [when for _, when in seen] == pytest.approx([0.001, 2.5, 3])


@virtual_time
async def test_time_stands_still_while_anything_is_ready() -> None:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(0.000_001, lambda: None)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert loop.time() == START
    timer.cancel()


@virtual_time
async def test_a_timeout_is_virtual() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()


def test_what_would_wait_for_ever_fails_at_once() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match=r"(?s)can't come.*forever"):
        run(forever)


def test_what_nobody_saw_fails() -> None:
    async def careless() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(careless)


@pytest.mark.parametrize("kind", ["executor", "workers", "thread"])
@virtual_time
async def test_while_a_thread_works_the_wait_is_real(kind: str) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[float] = loop.create_future()

    def work() -> None:
        time.sleep(0.02)
        loop.call_soon_threadsafe(done.set_result, loop.time())

    tasks: list[asyncio.Task[None]] = []
    if kind == "executor":
        tasks.append(asyncio.create_task(asyncio.to_thread(work)))
    elif kind == "workers":
        tasks.append(asyncio.create_task(Workers(loop).run(work, {})))
    else:
        threading.Thread(target=work, daemon=True).start()
    await asyncio.wait_for(done, 0.001)
    assert done.result() == START
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("again", range(20))
@virtual_time
async def test_a_thread_that_waits_does_not_stop_the_clock_until_it_is_released(again: int) -> None:
    loop = asyncio.get_running_loop()
    workers, release, seen = Workers(loop), threading.Event(), list[float]()

    def work() -> str:
        release.wait(10)
        seen.append(loop.time())
        return "released"

    task = asyncio.create_task(workers.run(work, {}))
    await asyncio.sleep(60)
    assert not task.done()
    release.set()
    assert await asyncio.wait_for(task, 0.001) == "released"
    assert seen == [START + 60]
    workers.close()


@virtual_time
async def test_a_thread_that_waits_for_the_loop_lets_time_pass() -> None:
    loop = asyncio.get_running_loop()

    def work() -> float:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(30), loop).result()
        return loop.time()

    assert await asyncio.to_thread(work) == START + 30


@virtual_time
async def test_a_thread_that_waits_at_a_queue_lets_time_pass() -> None:
    jobs: queue.Queue[int] = queue.Queue()
    taking = asyncio.create_task(asyncio.to_thread(jobs.get))
    await asyncio.sleep(5)
    jobs.put(3)
    assert await taking == 3


@virtual_time
async def test_def_functions_of_a_server_are_waited_for() -> None:
    server = Server("slow")

    @server.tool
    def slow(ctx: Context) -> str:
        time.sleep(0.01)
        return "done"

    answers = await asyncio.gather(*(Client(asgi(server)).call("slow") for _ in range(5)))
    assert [answer.text for answer in answers] == ["done"] * 5
    assert asyncio.get_running_loop().time() < START + 0.1


def test_two_loops_have_two_clocks() -> None:
    async def sleep() -> Any:
        await asyncio.sleep(10)
        return asyncio.get_running_loop()

    first, second = run(sleep), run(sleep)
    assert isinstance(first, VirtualLoop)
    assert first.time() == second.time() == START + 10
