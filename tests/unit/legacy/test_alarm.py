"""Timers that share one delay, on virtual time."""

import asyncio

from virtual_time import now, run, virtual_time

from callboard.legacy.alarm import Alarm


class Bell:
    """An alarm that notes when it rings for what.

    Attributes:
        rung: What, and how many seconds after the beginning.
        timers: How many timers of the loop it has set.
    """

    def __init__(self, delay: float = 10) -> None:
        self.began = now()
        self.rung: list[tuple[str, float]] = []
        self.alarm: Alarm[str] = Alarm(asyncio.get_running_loop(), delay, self.ring)

    def ring(self, thing: str) -> None:
        self.rung.append((thing, round(now() - self.began, 2)))

    @property
    def waits(self) -> bool:
        """Whether it has a timer of the loop."""
        return self.alarm._timer is not None


@virtual_time
async def test_it_rings_once_for_each_thing_when_its_time_is_up() -> None:
    bell = Bell()
    bell.alarm.set("a")
    await asyncio.sleep(3)
    bell.alarm.set("b")
    assert len(bell.alarm) == 2
    await asyncio.sleep(100)
    assert bell.rung == [("a", 10), ("b", 13)]
    assert len(bell.alarm) == 0


@virtual_time
async def test_what_is_forgotten_does_not_ring() -> None:
    bell = Bell()
    bell.alarm.set("a")
    bell.alarm.set("b")
    assert bell.alarm.unset("a")
    assert not bell.alarm.unset("a")
    assert not bell.alarm.unset("never there")
    await asyncio.sleep(100)
    assert bell.rung == [("b", 10)]


@virtual_time
async def test_setting_a_thing_again_begins_its_time_anew() -> None:
    bell = Bell()
    bell.alarm.set("a")
    bell.alarm.set("b")
    await asyncio.sleep(9)
    bell.alarm.set("a")
    await asyncio.sleep(100)
    assert bell.rung == [("b", 10), ("a", 19)]


@virtual_time
async def test_there_is_one_timer_however_much_waits_and_none_when_nothing_does() -> None:
    bell = Bell()
    assert not bell.waits
    for number in range(100):
        bell.alarm.set(str(number))
    timers = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    assert len(timers) == 1
    await asyncio.sleep(100)
    assert len(bell.rung) == 100
    assert not bell.waits


@virtual_time
async def test_a_timer_that_comes_for_nothing_is_not_set_again() -> None:
    bell = Bell()
    bell.alarm.set("a")
    bell.alarm.unset("a")
    await asyncio.sleep(11)
    assert not bell.waits
    bell.alarm.set("b")
    await asyncio.sleep(11)
    assert bell.rung == [("b", 21)]


@virtual_time
async def test_a_thing_may_set_itself_again_when_it_rings() -> None:
    bell = Bell()

    def ring(thing: str) -> None:
        bell.ring(thing)
        if len(bell.rung) < 3:
            bell.alarm.set(thing)

    bell.alarm = Alarm(asyncio.get_running_loop(), 10, ring)
    bell.alarm.set("a")
    await asyncio.sleep(100)
    assert bell.rung == [("a", 10), ("a", 20), ("a", 30)]
    assert not bell.waits


@virtual_time
async def test_a_thing_may_take_others_away_when_it_rings() -> None:
    bell = Bell()

    def ring(thing: str) -> None:
        bell.ring(thing)
        for other in ("a", "b", "c"):
            bell.alarm.unset(other)

    bell.alarm = Alarm(asyncio.get_running_loop(), 10, ring)
    for each in ("a", "b", "c"):
        bell.alarm.set(each)
    await asyncio.sleep(100)
    assert bell.rung == [("a", 10)]


@virtual_time
async def test_closing_it_forgets_everything() -> None:
    bell = Bell()
    bell.alarm.set("a")
    bell.alarm.close()
    bell.alarm.close()
    assert (len(bell.alarm), bell.waits) == (0, False)
    await asyncio.sleep(100)
    assert bell.rung == []


def test_no_time_at_all_is_the_next_turn_of_the_loop() -> None:
    async def main() -> list[tuple[str, float]]:
        bell = Bell(0)
        bell.alarm.set("a")
        assert bell.rung == []
        await asyncio.sleep(0.01)
        return bell.rung

    assert run(main) == [("a", 0)]
