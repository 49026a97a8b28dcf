"""Time limits: who is cancelled when, and what a cancellation means."""

import asyncio
from math import inf

import pytest
from virtual_time import now, virtual_time

from callboard.client.deadline import Deadline, Deadlines


async def wait_in(deadlines: Deadlines, seconds: float, work: float) -> str:
    """Work for so long under a limit: what came of it, and when."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    limit = deadlines.begin(began + seconds)
    try:
        await asyncio.sleep(work)
    except asyncio.CancelledError:
        if not limit.take_back():
            raise
        return f"late after {loop.time() - began:.2f}"
    finally:
        limit.close()
    return f"done after {loop.time() - began:.2f}"


@virtual_time
async def test_each_task_has_its_own_limit() -> None:  # CN-07
    deadlines = Deadlines()
    limits_and_work = [(30.0, 5.0), (30.0, 50.0), (1.0, 50.0), (inf, 100.0), (2.0, 1.0), (0.0, 1.0)]
    found = await asyncio.gather(*(wait_in(deadlines, limit, work) for limit, work in limits_and_work))
    assert found == ["done after 5.00", "late after 30.00", "late after 1.00", "done after 100.00", "done after 1.00", "late after 0.00"]


@virtual_time
async def test_a_limit_that_moves_on_is_not_due() -> None:  # CN-08
    deadlines = Deadlines()
    begun = now()
    limit = deadlines.begin(begun + 10)
    for _ in range(5):
        await asyncio.sleep(9)
        limit.move(now() + 10)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(100)
    assert now() - begun == pytest.approx(55, abs=0.01)
    assert limit.take_back()
    limit.close()


@virtual_time
async def test_a_limit_that_moves_forward_is_due_sooner() -> None:
    begun = now()
    limit = Deadlines().begin(begun + 100)
    await asyncio.sleep(1)
    limit.move(now() + 1)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(100)
    assert now() - begun == pytest.approx(2, abs=0.01)
    assert limit.take_back()


@virtual_time
async def test_many_limits_share_a_timer() -> None:
    deadlines = Deadlines()
    loop = asyncio.get_running_loop()
    armed = 0
    original = loop.call_at

    def counted(*arguments: object, **more: object) -> asyncio.TimerHandle:
        nonlocal armed
        armed += 1
        return original(*arguments, **more)  # type: ignore[arg-type]

    loop.call_at = counted  # type: ignore[method-assign]
    for _ in range(1000):
        deadlines.begin(loop.time() + 30).close()
    assert armed == 1
    deadlines.close()


@virtual_time
async def test_limits_shortly_after_each_other_are_looked_at_together() -> None:
    deadlines = Deadlines()
    begun = now()
    found = await asyncio.gather(*(wait_in(deadlines, 1 + number / 100_000, 60) for number in range(2000)))
    assert found[0] == "late after 1.00"
    assert found[-1] in {"late after 1.02", "late after 1.03"}
    assert now() - begun < 1.04


@virtual_time
async def test_a_cancellation_from_outside_stays_one() -> None:
    deadlines = Deadlines()
    task = asyncio.ensure_future(wait_in(deadlines, 10, 100))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@virtual_time
async def test_of_two_reasons_at_once_the_one_from_outside_wins() -> None:
    task = asyncio.current_task()
    assert task is not None
    limit = Deadlines().begin(inf)
    limit.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(1)
    assert not limit.take_back()
    limit.close()
    assert task.uncancel() == 0


@virtual_time
async def test_an_expired_limit_leaves_no_cancellation_behind() -> None:
    """Also where something between turned it into another error."""
    task = asyncio.current_task()
    assert task is not None
    limit = Deadlines().begin(now() + 1)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(10)
    limit.close()
    assert limit.expired
    assert task.cancelling() == 0


@virtual_time
async def test_limits_within_limits() -> None:
    deadlines = Deadlines()
    outer = deadlines.begin(now() + 5)
    assert await wait_in(deadlines, 1, 60) == "late after 1.00"
    with pytest.raises(asyncio.CancelledError):
        await wait_in(deadlines, 60, 60)
    assert outer.take_back()
    outer.close()


@virtual_time
async def test_expiring_twice_cancels_once() -> None:
    limit = Deadlines().begin(now() + 1)
    limit.expire()
    limit.expire()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(10)
    assert limit.take_back()
    await asyncio.sleep(10)
    limit.close()


@virtual_time
async def test_closing_stops_the_timer() -> None:
    deadlines = Deadlines()
    limit: Deadline = deadlines.begin(now() + 1)
    deadlines.close()
    await asyncio.sleep(10)
    assert not limit.expired
    limit.close()
