"""Room for so many of something, and what requests take at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import Fail, Reason
from callboard.limits import Limits
from callboard.server.places import Load, Places

WHO = ["ada", "bob", None]
LIMITS = Limits(max_in_flight=5, max_in_flight_per_principal=2)


@given(st.lists(st.tuples(st.sampled_from(WHO), st.booleans()), max_size=60))
def test_requests_are_counted_exactly_and_nobody_has_more_than_a_share(script: list[tuple[str | None, bool]]) -> None:
    load, running = Load(LIMITS), list[str | None]()
    for who, comes in script:
        if comes:
            fail = load.enter(who, "tools/call")
            full = len(running) >= 5
            own = who is not None and running.count(who) >= 2
            assert (fail is not None) == (full or own)
            if fail is None:
                running.append(who)
            else:
                assert fail.reason is Reason.OVERLOADED
                assert ("max_in_flight)" in fail.text) == full
        elif who in running:
            running.remove(who)
            load.leave(who, "tools/call")
        assert load.in_flight == len(running)
        assert load._of == {each: running.count(each) for each in set(running) if each is not None}


def test_a_listen_stream_is_no_request_that_is_worked_on() -> None:
    load = Load(Limits(max_in_flight=1))
    for _ in range(5):
        assert load.enter("ada", "subscriptions/listen") is None
    assert (load.in_flight, load._of) == (0, {})
    load.leave("ada", "subscriptions/listen")
    assert load.in_flight == 0


def test_bytes_are_too_many_together() -> None:
    load = Load(Limits(max_buffered=100))
    load.buffered, load.unread = 60, 40
    assert not load.is_full
    load.unread = 41
    assert load.is_full
    assert "max_buffered" in load.refuse_bytes().text


@given(st.lists(st.tuples(st.sampled_from(WHO), st.booleans()), max_size=60))
def test_places_are_counted_exactly(script: list[tuple[str | None, bool]]) -> None:
    calls: list[Any] = []
    places, held = Places("seats", "max_seats", lambda principal, *, is_full: calls.append((principal, is_full))), list[str | None]()
    for who, comes in script:
        if comes:
            full, own = len(held) >= 4, who is not None and held.count(who) >= 2
            calls.clear()
            if full or own:
                with pytest.raises(Fail, match=r"max_seats\)" if full else "max_seats_per_principal"):
                    places.take(who, 4, 2)
                assert calls == [(who, full)], "room is made before somebody is refused"
            else:
                places.take(who, 4, 2)
                held.append(who)
        elif who in held:
            held.remove(who)
            places.give_back(who)
        assert places.taken == len(held)
        assert dict(places.per_principal) == {each: held.count(each) for each in set(held) if each is not None}


def test_a_refusal_names_the_setting() -> None:
    places = Places("seats", "max_seats", lambda principal, *, is_full: None)
    places.take("ada", 2, 1)
    with pytest.raises(Fail, match="max_seats_per_principal"):
        places.take("ada", 2, 1)
    places.take("bob", 2, 1)
    with pytest.raises(Fail, match=r"2 seats already \(max_seats\)"):
        places.take("eve", 2, 1)


def test_one_principal_does_not_hold_all_bytes() -> None:
    # SA26: whoever fills three quarters of what may be held at once is refused, and nobody else
    load = Load(Limits(max_buffered=100_000))
    assert [load.take_share("bob", 25_000) for _ in range(3)] == [None] * 3
    refused = load.take_share("bob", 5_000)
    assert refused is not None
    assert "max_buffered" in refused.text
    load.give_back_share("bob", 5_000)
    assert load.take_share("bob", 100) is None
    assert load.take_share("eve", 25_000) is None
    assert load.take_share(None, 90_000) is None
    load.give_back_share("bob", 25_000)
    assert load.take_share("bob", 20_000) is None
    for size in (20_000, 25_000, 25_000):
        load.give_back_share("bob", size)
    assert load.take_share("bob", 99_000) is None, "alone, whatever its size"
