"""Buckets of calls: a rate for each of many callers, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from callboard.server import rates
from callboard.server.rates import MAX_KEYS, SHARED, Buckets

FULL = 3


def fill(buckets: Buckets, count: int, *, now: float = 0.0) -> None:
    """Give so many callers a bucket that is not full."""
    for number in range(count):
        wait = buckets.take(f"made up {number}", now)
        assert number >= MAX_KEYS or wait == 0


def test_a_bucket_gives_a_burst_and_then_one_after_the_other() -> None:
    buckets = Buckets(3, 30)
    assert [buckets.take("ada", 0) for _ in range(4)] == [0, 0, 0, 10]
    assert buckets.take("ada", 9.9) > 0
    assert buckets.take("ada", 10) == 0
    assert buckets.take("ada", 10) == 10
    assert buckets.take("bob", 10) == 0


def test_several_calls_are_taken_all_or_none() -> None:
    buckets = Buckets(4, 40)
    assert buckets.take("ada", 0, calls=3) == 0
    assert buckets.take("ada", 0, calls=2) == 10
    assert buckets.take("ada", 0) == 0, "what was refused took nothing"


def test_more_calls_than_a_bucket_holds_empty_it() -> None:
    buckets = Buckets(4, 40)
    assert buckets.take("ada", 0, calls=100) == 0
    assert buckets.take("ada", 0) == 10


@given(
    times=st.lists(st.floats(0, 100), min_size=1, max_size=60).map(sorted),
    calls=st.integers(1, 6),
    seconds=st.floats(0.5, 20),
)
def test_no_window_lets_more_than_twice_the_rate_through(times: list[float], calls: int, seconds: float) -> None:
    buckets = Buckets(calls, seconds)
    let = [now for now in times if buckets.take("ada", now) == 0]
    for begin in let:
        assert sum(begin <= now < begin + seconds for now in let) <= 2 * calls
    wait = buckets.take("ada", times[-1])
    if wait:
        assert buckets.take("ada", times[-1] + wait) == 0, "who waits as long as was said gets through"


def test_made_up_callers_reset_nobodys_count() -> None:
    buckets = Buckets(2, 60)
    assert [buckets.take("ada", 0) for _ in range(3)] == [0, 0, 30]
    fill(buckets, 3 * MAX_KEYS // 2, now=1)
    assert buckets.take("ada", 2) > 0
    assert buckets.take("made up 5", 2) == 0
    assert buckets.take("made up 5", 2) > 0, "nor does one who made up many get a new bucket"


def test_memory_is_bounded_whoever_comes() -> None:
    buckets = Buckets(10_000, 60)
    fill(buckets, MAX_KEYS)
    for number in range(3 * SHARED):
        buckets.take(f"late {number}", 0)
    assert len(buckets) <= MAX_KEYS + SHARED


def test_who_comes_when_all_is_full_shares_with_its_network() -> None:
    buckets = Buckets(2, 60)
    fill(buckets, MAX_KEYS)
    assert buckets.take("a", 0, network="n") == 0
    assert buckets.take("b", 0, network="n") == 0
    assert buckets.take("c", 0, network="n") > 0
    others = [f"other {number}" for number in range(200)]
    assert sum(buckets.take(other, 0, network=other) == 0 for other in others) > 150, "others have buckets of their own, or share by chance"


def test_full_buckets_make_room() -> None:
    buckets = Buckets(60, 60)
    for _ in range(60):
        buckets.take("busy", 0)
    fill(buckets, MAX_KEYS - 1)  # each full again after a second
    assert buckets.take("new", 0.5, network="n") == 0
    assert buckets.take("busy", 0.5) > 0
    assert buckets.take("newer", 2, network="n") == 0
    assert len(buckets._full_at) < FULL, "all but the busy one and the newest were full again"
    assert buckets.take("busy", 2) == 0
    assert buckets.take("busy", 2) == 0
    assert buckets.take("busy", 2) > 0, "the busy one kept its count"


def test_the_search_for_room_is_bounded_in_time() -> None:
    """A flood of new callers searches all buckets once a second, not with every request."""
    buckets = Buckets(1, 1000)
    fill(buckets, MAX_KEYS)
    assert buckets.take("a", 1) == 0
    searched = buckets._searched
    for number in range(100):
        buckets.take(f"b{number}", 1.5)
    assert buckets._searched == searched == 1
    buckets.take("c", 2.5)
    assert buckets._searched == rates._SEARCH + 1.5
