"""The cache of keys: its rules, by table and by random histories against a model; then its shell on virtual time."""

import math
import random
from typing import Any

import pytest
from minting import jwk, jwks, private_key

from callboard.auth.jwks import Cache, Verdict
from callboard.auth.keys import ALGORITHMS, KeyRing, read_keys

ALL = frozenset(ALGORITHMS)


def ring(*kids: str) -> KeyRing:
    return read_keys(jwks(*(jwk(private_key("P-256"), kid) for kid in kids)), ALL)


OLD, NEW = ring("a"), ring("b")


def cache(*history: Any) -> Cache:
    """A cache after a history: pairs of a time, and keys that a fetch brought (None: it failed; `...`: it is on its way)."""
    made = Cache()
    for now, came in history:
        made.begin(now)
        if came is None:
            made.fail(now)
        elif came is not ...:
            made.succeed(now, came)
    return made


FETCH = Verdict(begin=True, wait=True)
WAIT = Verdict(wait=True)
UNKNOWN = Verdict()


@pytest.mark.parametrize(
    ("history", "now", "kid", "verdict"),
    [
        ([], 0, "a", FETCH),  # rule 5
        ([(0, ...)], 1, "a", WAIT),  # rule 7
        ([(0, None)], 1, "a", Verdict(retry_after=29)),  # rule 6
        ([(0, None)], 29.5, "a", Verdict(retry_after=0.5)),
        ([(0, None)], 30, "a", FETCH),
        ([(0, OLD)], 1, "a", Verdict(OLD)),  # rule 1
        ([(0, OLD)], 1, "x", FETCH),  # one that was due leaves the next unknown key its own
        ([(0, OLD), (1, OLD)], 2, "x", Verdict(retry_after=29)),  # rule 6: it may be new
        ([(0, OLD)], 31, "x", FETCH),  # rule 5
        ([(0, OLD), (31, ...)], 32, "x", WAIT),
        ([(0, OLD), (31, ...)], 32, "a", Verdict(OLD)),  # rule 1: the known don't wait for the unknown
        ([(0, OLD), (31, None)], 32, "x", Verdict(retry_after=29)),  # rule 6: nobody can tell
        ([(0, OLD), (31, None)], 32, "a", Verdict(OLD)),
        ([(0, OLD), (31, NEW)], 32, "a", Verdict(retry_after=29)),  # rule 9
        ([(0, OLD)], 3239, "a", Verdict(OLD)),
        ([(0, OLD)], 3240, "a", Verdict(OLD, begin=True)),  # rule 2
        ([(0, OLD), (3240, ...)], 3241, "a", Verdict(OLD)),
        ([(0, OLD), (3240, None)], 3241, "a", Verdict(OLD)),  # rule 8
        ([(0, OLD), (3240, None)], 3270, "a", Verdict(OLD, begin=True)),
        ([(0, OLD)], 3600, "a", FETCH),  # rule 3
        ([(0, OLD), (3600, ...)], 3601, "a", WAIT),
        ([(0, OLD), (3600, None)], 3601, "a", Verdict(OLD)),  # rule 4
        ([(0, OLD), (3600, None)], 3630, "a", Verdict(OLD, begin=True)),
        ([(0, OLD), (3600, None), (3630, ...)], 3631, "a", Verdict(OLD)),
        ([(0, OLD), (3600, None)], 3601, "x", Verdict(retry_after=29)),
        ([(0, OLD), (86_390, None)], 86_399, "a", Verdict(OLD)),
        ([(0, OLD), (86_390, None)], 86_400, "a", Verdict(retry_after=20)),  # closed
        ([(0, OLD)], 86_400, "a", FETCH),
        ([(0, KeyRing()), (1, KeyRing())], 2, "a", Verdict(retry_after=29)),  # rule 9: a set without keys is believed
        ([(0, OLD), (31, KeyRing())], 32, "a", Verdict(retry_after=29)),
    ],
)
def test_the_rules(history: list[Any], now: float, kid: str, verdict: Verdict) -> None:
    found = cache(*history).ask(now, now, kid, "ES256")
    assert found._replace(retry_after=None) == verdict._replace(retry_after=None)
    assert (found.retry_after is None) == (verdict.retry_after is None)
    assert math.isclose(found.retry_after or 0, verdict.retry_after or 0)


def test_who_waited_for_a_fetch_learns_for_certain() -> None:
    # rule 6
    assert cache((0, OLD), (10, OLD)).ask(10.5, 9, "x", "ES256") == UNKNOWN
    assert cache((0, OLD), (10, OLD)).ask(10, 10, "x", "ES256") == UNKNOWN
    assert cache((10, None)).ask(10, 9, "x", "ES256") == Verdict(retry_after=30)


def test_keys_with_which_a_signature_was_wrong_count_as_unknown() -> None:
    assert cache((0, OLD)).ask(40, 40, "a", "ES256", tried=OLD) == FETCH
    assert cache((0, OLD), (0, OLD)).ask(10, 10, "a", "ES256", tried=OLD) == Verdict(retry_after=20)
    assert cache((0, OLD), (40, OLD)).ask(41, 41, "a", "ES256", tried=NEW) == Verdict(OLD)


def test_who_is_told_that_keys_are_gone() -> None:
    held = Cache()
    assert not held.succeed(0, OLD)
    assert not held.succeed(1, ring("a", "b"))
    assert held.succeed(2, NEW)
    assert not held.succeed(3, NEW)
    assert held.succeed(4, KeyRing())


def test_how_old_the_keys_are_that_stay() -> None:
    held = Cache()
    assert held.fail(0) is None
    held.succeed(10, OLD)
    assert held.fail(20) == 10
    assert held.fail(86_410) is None


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens(seed: int) -> None:
    """No fetch begins within a cooldown or beside another; no key is used that is over a day old, or that the last set has not."""
    chance = random.Random(seed)
    held, now, ended, newest, fetched, running = Cache(), 0.0, -math.inf, KeyRing(), -math.inf, False
    prompted = False
    for _ in range(2000):
        now += chance.choice([0, 0.5, 5, 29, 30, 400, 3599, 40_000])
        verdict = held.ask(now, now, chance.choice(["a", "b", "x", None]), chance.choice(["ES256", "RS256"]))
        assert not (verdict.begin and (running or now < ended + 30))
        assert not (verdict.wait and not (verdict.begin or running)), "who waits, waits for something"
        if verdict.ring is not None:
            assert verdict.ring is newest
            assert now - fetched < 86_400
            assert not verdict.wait
        if verdict.begin:
            held.begin(now)
            prompted = now - fetched < 3240
            running = True
        if running and chance.random() < 0.5:
            running = False
            if chance.random() < 0.5:
                newest, fetched = chance.choice([OLD, NEW, KeyRing()]), now
                held.succeed(now, newest)
                ended = now if prompted else ended
            else:
                held.fail(now)
                ended = now
