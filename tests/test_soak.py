"""The verdict of benchmarks/soak.py: what grows is found, what merely wavers is not."""

import pytest

from benchmarks.soak import Rest, judge

FLAT = Rest(seconds=0, memory=100 * 2**20, objects=10_000, tasks=30, descriptors=36, keys=7, stored=2 * 2**20, scenarios=0)


def rests(count: int = 12, **growth: int) -> list[Rest]:
    """Rests of which something grows each time, and memory wavers."""
    made = []
    for number in range(count):
        wavering = FLAT._replace(seconds=60.0 * number, memory=FLAT.memory + (number % 3) * 300_000)
        made.append(wavering._replace(**{name: getattr(wavering, name) + number * more for name, more in growth.items()}))
    return made


def test_what_wavers_does_not_grow() -> None:
    verdict = judge(rests(), faults=0)
    assert verdict.holds, verdict.lines


def test_what_warms_up_is_passed_over() -> None:
    warm = rests()
    for number in range(4):
        warm[number] = warm[number]._replace(memory=50 * 2**20, tasks=3)
    assert judge(warm, faults=0).holds


@pytest.mark.parametrize(("name", "more"), [("memory", 2**20), ("tasks", 2), ("descriptors", 4), ("keys", 4)])
def test_what_grows_is_found(name: str, more: int) -> None:
    verdict = judge(rests(**{name: more}), faults=0)
    assert not verdict.holds
    assert [line for line in verdict.lines if "GROWS" in line and line.startswith(name)]


def test_a_wrong_answer_is_enough() -> None:
    assert not judge(rests(), faults=1).holds


def test_a_short_run_says_nothing_of_memory() -> None:
    verdict = judge(rests(3, memory=2**20), faults=0)
    assert verdict.holds
    assert "too few" in verdict.lines[-1]
