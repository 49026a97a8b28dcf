"""What all sessions keep for replay is bounded together: those that keep most forget first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.exchange import Exchange
from callboard.legacy import session
from callboard.legacy.session import Call, Kept, Session, Track
from callboard.server.state import Turn
from callboard.transport.stream import nobody

LIMIT = 8_000


@pytest.fixture(autouse=True)
def free(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events cost what is in them, so that sums are easy."""
    if "cost" not in request.node.name:
        monkeypatch.setattr(session, "EVENT_COST", 0)


def begin(kept: Kept) -> Session:
    return Session(None, max_pending=0, keep=1000, kept=kept)


def say(one: Session, size: int, track: Track | None = None) -> Track:
    """Keep one event of so many bytes."""
    track = track or one.open_channel()
    assert track is not None
    one.stamp(track, [b"x" * size])
    return track


def sizes(*sessions: Session) -> list[int]:
    return [one.kept_size for one in sessions]


def test_within_the_limit_nothing_is_forgotten() -> None:
    kept = Kept(LIMIT)
    one, two = begin(kept), begin(kept)
    for _ in range(4):
        say(one, 1000)
        say(two, 1000)
    assert (sizes(one, two), kept.total) == ([4000, 4000], LIMIT)


def test_past_it_those_that_keep_most_forget_their_oldest() -> None:
    kept = Kept(LIMIT)
    small, middle, big = begin(kept), begin(kept), begin(kept)
    say(small, 500)
    for _ in range(3):
        say(middle, 1000)
    track = say(big, 1000)
    for _ in range(4):
        track = say(big, 1000)
    assert kept.total <= LIMIT - LIMIT // 8
    assert sizes(small, middle, big) == [500, 3000, 3000]
    found = big.find("g0-5")
    assert found is not None
    assert big.replay(found[0], 0).count(b"id: ") == 3, "the newest are kept"
    assert track.last == 5


def test_one_huge_event_does_not_stay() -> None:
    kept = Kept(LIMIT)
    one, two = begin(kept), begin(kept)
    say(one, 900)
    say(two, 2 * LIMIT)
    assert (sizes(one, two), kept.total) == ([900, 0], 900)


def test_a_session_that_ends_takes_what_it_kept_along() -> None:
    kept = Kept(LIMIT)
    one, two = begin(kept), begin(kept)
    track = say(one, 3000)
    say(two, 1000)
    one.end()
    assert kept.total == 1000
    say(one, 3000, track)
    assert kept.total == 1000, "last words are nobody's to replay"
    assert list(kept._sessions) == [two]


def test_what_is_forgotten_with_a_call_is_given_back() -> None:
    kept = Kept(LIMIT)
    one = begin(kept)
    call = Call(1, Turn.NOW, Exchange(nobody))
    one.submit(call)
    say(one, 3000, one.open_track(call))
    say(one, 100)
    one.close(one.open_track(call), forget=True)
    assert (one.kept_size, kept.total) == (100, 100)
    one.answer(b"x" * 50, priming=True)
    assert kept.total == 150


SCRIPT = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3000), st.sampled_from(["say", "answer", "end"])), max_size=80)


@given(SCRIPT)
def test_the_count_of_costs_is_exact_and_the_limit_holds_whatever_happens(script: list[tuple[int, int, str]]) -> None:
    kept = Kept(LIMIT)
    sessions = [begin(kept) for _ in range(5)]
    for number, size, act in script:
        one = sessions[number]
        if act == "end":
            one.end()
            sessions[number] = begin(kept)
        elif act == "answer":
            one.answer(b"x" * size, priming=False)
        else:
            say(one, size)
        assert kept.total == sum(sizes(*sessions)) <= LIMIT
        assert all(each.kept_size == sum(len(note) + session.EVENT_COST for _, _, note in each._events or ()) for each in sessions)


def test_small_events_cost_more_than_what_is_in_them() -> None:
    kept = Kept(LIMIT)
    one = begin(kept)
    for _ in range(100):
        say(one, 1)
    assert kept.total <= LIMIT
    assert len(one._events or ()) < LIMIT // session.EVENT_COST
