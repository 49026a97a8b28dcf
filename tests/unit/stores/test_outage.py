"""Whether a store is worth asking."""

import logging

import pytest

from callboard.errors import StoreError
from callboard.stores.outage import PAUSE, Outage


class Clock:
    """Time that only a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_while_it_answers_everybody_asks() -> None:
    outage = Outage("Alone.", Clock())
    outage.worked()
    assert [outage.asks() for _ in range(3)] == [True] * 3
    assert not outage.lasts


def test_after_a_failure_one_caller_in_a_while_tries_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage("Alone.", clock)
    with caplog.at_level(logging.WARNING, "callboard.stores"):
        for _ in range(5):  # all of them had asked before the first one failed
            outage.failed(StoreError("It is gone."))
        assert outage.lasts
        assert not outage.asks()
        clock.now += PAUSE
        assert [outage.asks() for _ in range(3)] == [True, False, False], "nobody waits for what one is trying"
        outage.failed(StoreError("It is gone."))
        clock.now += PAUSE
        assert outage.asks()
        outage.worked()
        assert [outage.asks() for _ in range(3)] == [True] * 3
        outage.worked()
    assert [record.getMessage() for record in caplog.records] == ["It is gone. Alone.", "The shared store answers again."]
