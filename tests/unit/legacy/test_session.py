"""The machine of one session, rule by rule; `test_session_machine.py` walks it at random."""

import pytest

from callboard.core.exchange import Exchange
from callboard.errors import Reason
from callboard.legacy.session import MAX_CHANNELS, MAX_KEPT, Call, Phase, Session, Track
from callboard.server.state import Turn
from callboard.transport.stream import nobody

NOW, IN_TURN, SNAPSHOT = Turn.NOW, Turn.IN_TURN, Turn.SNAPSHOT


def make(*, state: bytes | None = b"0", max_pending: int = 100, keep: int = 256) -> Session:
    return Session(state, max_pending=max_pending, keep=keep)


def call(request_id: int | str = 1, turn: Turn = IN_TURN) -> Call:
    return Call(request_id, turn, Exchange(nobody))


def submit(session: Session, *calls: Call) -> None:
    for each in calls:
        assert session.submit(each) is None


def streaming(session: Session, *notes: bytes) -> Track:
    """The track of a new call that has said something."""
    track = session.open_track(call())
    session.stamp(track, list(notes))
    return track


# ------------------------------------------------------------------------------------------------------------- rule 1: ids in use


def test_a_second_request_with_the_id_of_one_in_flight_is_refused() -> None:
    """SA24."""
    session, first = make(), call(1, NOW)
    submit(session, first)
    assert session.submit(call(1, NOW)) is Reason.DUPLICATE_ID
    assert list(session.calls.values()) == [first]


def test_a_text_and_a_number_are_two_ids() -> None:
    """A25."""
    session, number, text = make(), call(1, NOW), call("1", NOW)
    submit(session, number, text)
    assert session.stop("1") is text
    assert number.phase is Phase.RUNNING


@pytest.mark.parametrize("turn", Turn)
def test_an_id_is_free_again_once_its_call_is_over(turn: Turn) -> None:
    session, first = make(), call(1, turn)
    submit(session, first)
    session.finish(first)
    submit(session, call(1, turn))


def test_the_id_of_a_call_that_is_being_stopped_is_still_in_use() -> None:
    session, first = make(), call(1, NOW)
    submit(session, first)
    assert session.stop(1) is first
    assert first.phase is Phase.STOPPING
    assert session.submit(call(1, NOW)) is Reason.DUPLICATE_ID


def test_the_end_of_a_call_frees_no_other_call_of_its_id() -> None:
    session, first, second = make(), call(1, NOW), call(1, NOW)
    submit(session, first)
    session.finish(first)
    submit(session, second)
    session.finish(first)
    assert session.calls == {1: second}


# ----------------------------------------------------------------------------------------------------------------- rule 2: turns


def test_calls_that_take_the_state_run_one_after_the_other() -> None:
    session, calls = make(), [call(number) for number in range(4)]
    submit(session, *calls)
    for position, each in enumerate(calls):
        assert [other.phase for other in calls] == [Phase.OVER] * position + [Phase.RUNNING] + [Phase.QUEUED] * (3 - position)
        assert session.finish(each) is (calls[position + 1] if position < 3 else None)


@pytest.mark.parametrize("turn", [NOW, SNAPSHOT])
def test_every_other_call_runs_at_once(turn: Turn) -> None:
    session, holder, other = make(max_pending=0), call(1), call(2, turn)
    submit(session, holder, other)
    assert other.phase is Phase.RUNNING
    assert session.finish(other) is None
    assert holder.phase is Phase.RUNNING


def test_so_many_calls_may_wait_and_no_more() -> None:
    session = make(max_pending=2)
    submit(session, call(1), call(2), call(3))
    assert session.submit(call(4)) is Reason.SESSION_OVERLOADED
    assert 4 not in session.calls
    assert session.stop(2) is not None
    submit(session, call(4))


def test_with_no_room_to_wait_one_call_runs() -> None:
    session, first = make(max_pending=0), call(1)
    submit(session, first)
    assert session.submit(call(2)) is Reason.SESSION_OVERLOADED
    session.finish(first)
    submit(session, call(2))


def test_a_call_that_is_stopped_keeps_its_turn_until_it_is_over() -> None:
    """Two calls never have the state at the same time, however long one takes to stop."""
    session, first, second = make(), call(1), call(2)
    submit(session, first, second)
    session.stop(1)
    assert [first.phase, second.phase] == [Phase.STOPPING, Phase.QUEUED]
    assert session.finish(first) is second
    assert [first.phase, second.phase] == [Phase.OVER, Phase.RUNNING]


# ----------------------------------------------------------------------------------------------------------------- rule 3: state


@pytest.mark.parametrize(("turn", "expected"), [(IN_TURN, b"1"), (NOW, b"0"), (SNAPSHOT, b"0")])
def test_the_state_is_that_of_the_last_call_in_turn(turn: Turn, expected: bytes) -> None:
    session, first = make(), call(1, turn)
    submit(session, first)
    session.finish(first, b"1")
    assert session.state == expected


def test_a_crash_leaves_the_state_as_it_was() -> None:
    session, first = make(), call()
    submit(session, first)
    session.finish(first, None)
    assert session.state == b"0"


def test_an_empty_state_is_a_state() -> None:
    session, first = make(), call()
    submit(session, first)
    session.finish(first, b"")
    assert session.state == b""


def test_what_a_stopped_call_leaves_is_dropped() -> None:
    """It may have swallowed its cancellation, and done half of what it meant to."""
    session, first = make(), call()
    submit(session, first)
    session.stop(1)
    session.finish(first, b"1")
    assert session.state == b"0"


def test_what_a_call_leaves_whose_caller_was_freed_is_kept() -> None:
    session, first = make(), call()
    submit(session, first)
    assert session.expire(first)
    session.finish(first, b"1")
    assert session.state == b"1"


def test_a_call_is_over_once() -> None:
    session, first, second, third = make(), call(1), call(2), call(3)
    submit(session, first, second, third)
    session.finish(first, b"1")
    assert session.finish(first, b"2") is None
    assert session.state == b"1"
    assert (second.phase, third.phase) == (Phase.RUNNING, Phase.QUEUED)


# ----------------------------------------------------------------------------------------------------- what takes too long, stops


def test_a_call_that_waited_too_long_never_runs() -> None:
    session, first, second, third = make(), call(1), call(2), call(3)
    submit(session, first, second, third)
    assert session.expire(second)
    assert second.phase is Phase.OVER
    assert session.finish(first) is third


@pytest.mark.parametrize("turn", Turn)
def test_the_caller_of_a_running_call_is_told_unless_bytes_have_gone_to_it(turn: Turn) -> None:
    session, silent, streams = make(), call(1, turn), call(2, NOW)
    submit(session, silent, streams)
    streams.exchange.emit(b"note")
    assert session.expire(silent)
    assert not session.expire(streams)
    assert [silent.phase, streams.phase] == [Phase.RUNNING, Phase.RUNNING]


def test_the_caller_of_a_stopped_call_is_told_nothing_more() -> None:
    session, first = make(), call(1)
    submit(session, first)
    session.stop(1)
    assert not session.expire(first)
    session.finish(first)
    assert not session.expire(first)


def test_a_queued_call_that_is_stopped_is_over() -> None:
    session, first, second = make(), call(1), call(2)
    submit(session, first, second)
    assert session.stop(2) is second
    assert second.phase is Phase.OVER
    assert session.finish(first) is None


@pytest.mark.parametrize("request_id", [2, "1", ""])
def test_what_is_not_in_flight_is_not_stopped(request_id: int | str) -> None:
    """CN-06."""
    session = make()
    submit(session, call(1))
    assert session.stop(request_id) is None


def test_a_call_is_stopped_once() -> None:
    session = make()
    submit(session, call(1))
    assert session.stop(1) is not None
    assert session.stop(1) is None


# ------------------------------------------------------------------------------------------------------------- rules 4, 5: the end


def test_the_end_stops_every_call() -> None:
    session, calls = make(), [call(1), call(2), call(3, NOW), call(4, SNAPSHOT)]
    submit(session, *calls)
    stopped = session.end()
    assert stopped == calls
    assert [each.phase for each in calls] == [Phase.STOPPING, Phase.OVER, Phase.STOPPING, Phase.STOPPING]
    assert session.finish(calls[0]) is None


def test_the_end_comes_once_and_nothing_is_taken_after_it() -> None:
    session = make()
    assert session.end() == []
    assert session.end() is None
    assert session.submit(call(1, NOW)) is Reason.SESSION_ENDED


def test_the_end_leaves_alone_what_is_being_stopped() -> None:
    session = make()
    submit(session, call(1), call(2))
    session.stop(1)
    stopped = session.end()
    assert stopped is not None
    assert [each.id for each in stopped] == [2]


def test_a_session_is_idle_when_nothing_is_in_it_and_nobody_hangs_on_it() -> None:
    session, first, second = make(), call(1), call(2)
    assert session.idle
    submit(session, first, second)
    session.finish(first)
    assert not session.idle
    session.attached += 1
    session.finish(second)
    assert not session.idle
    session.attached -= 1
    assert session.idle


# -------------------------------------------------------------------------------------------------------- rules 6, 7: event ids


def test_events_are_numbered_from_one_on_each_track() -> None:
    """HL-17."""
    session = make()
    first, second = session.open_track(call(1)), session.open_track(call(2))
    assert session.stamp(first, [b"a", b"b"]) == b"id: c1-1\ndata: a\n\nid: c1-2\ndata: b\n\n"
    assert session.stamp(second, [b"c"]) == b"id: c2-1\ndata: c\n\n"
    assert session.stamp(first, [b"d"]) == b"id: c1-3\ndata: d\n\n"
    assert session.stamp(first, []) == b""


def test_a_call_has_one_track() -> None:
    session, first = make(), call(1)
    assert session.open_track(first) is session.open_track(first)


def test_the_name_of_a_track_is_never_used_again() -> None:
    session = make()
    session.close(session.open_track(call(1)), forget=True)
    assert session.open_track(call(1)).name == "c2"


def test_without_a_buffer_events_have_no_ids_and_nothing_is_kept() -> None:
    session = make(keep=0)
    track = session.open_track(call())
    assert session.stamp(track, [b"a", b"b"]) == b"data: a\n\ndata: b\n\n"
    assert session.prime(track) == b""
    assert session.answer(b"c", priming=True) == b"data: c\n\n"
    assert session.find("c1-0") is None
    assert session.find("c1-1") is None


def test_an_empty_event_tells_where_a_client_may_resume() -> None:
    """HL-08."""
    session = make()
    track = session.open_track(call())
    assert session.prime(track) == b"id: c1-0\ndata: \n\n"
    session.stamp(track, [b"a"])
    assert session.prime(track) == b"id: c1-1\ndata: \n\n"


@pytest.mark.parametrize(("priming", "expected"), [(True, b"id: c1-0\ndata: \n\nid: c1-1\ndata: a\n\n"), (False, b"id: c1-1\ndata: a\n\n")])
def test_a_stream_that_is_only_its_answer_can_be_replayed_like_any_other(priming: bool, expected: bytes) -> None:
    session = make()
    assert session.answer(b"a", priming=priming) == expected
    found = session.find("c1-0")
    assert found is not None
    assert session.replay(*found) == b"id: c1-1\ndata: a\n\n"
    assert session.open_track(call()).name == "c2"


def test_replay_is_of_one_track_and_of_what_came_later() -> None:
    """HL-18."""
    session = make()
    track = streaming(session, b"a", b"b")
    streaming(session, b"c")
    session.stamp(track, [b"d"])
    assert session.replay(track, 1) == b"id: c1-2\ndata: b\n\nid: c1-3\ndata: d\n\n"
    assert session.replay(track, 3) == b""


def test_the_newest_events_of_all_tracks_are_kept() -> None:
    session = make(keep=3)
    first = streaming(session, b"a", b"b", b"c")
    second = streaming(session, b"d")
    assert session.replay(first, 0) == b"id: c1-2\ndata: b\n\nid: c1-3\ndata: c\n\n"
    assert session.replay(second, 0) == b"id: c2-1\ndata: d\n\n"


def test_no_more_than_so_many_bytes_are_kept() -> None:
    session = make()
    track = streaming(session, b"a" * (MAX_KEPT // 2), b"b" * (MAX_KEPT // 2))
    assert session.replay(track, 0).count(b"id: ") == 2
    session.stamp(track, [b"c"])
    assert session.replay(track, 0).count(b"id: ") == 2
    assert session.replay(track, 0).startswith(b"id: c1-2\n")


def test_the_newest_event_is_kept_whatever_its_size() -> None:
    session = make()
    track = streaming(session, b"a", b"b" * (2 * MAX_KEPT))
    assert session.replay(track, 0).startswith(b"id: c1-2\n")
    session.stamp(track, [b"c"])
    assert session.replay(track, 0) == b"id: c1-3\ndata: c\n\n"


# --------------------------------------------------------------------------------------------------------- rule 8: what is an id


@pytest.mark.parametrize("event_id", ["c1-1", "c1-2", "c2-1"])
def test_an_event_id_that_went_out_names_its_track(event_id: str) -> None:
    session = make()
    streaming(session, b"a", b"b")
    session.close(streaming(session, b"c"))
    found = session.find(event_id)
    assert found is not None
    assert f"{found[0].name}-{found[1]}" == event_id


@pytest.mark.parametrize(
    "event_id",
    [
        *("", "-", "1", "c1", "c1-", "-1", "c1--1", "c1-3", "c1-01", "c1-1 ", " c1-1", "c1-+1", "c1-1.0", "c1-1_0", "C1-1", "c9-1"),
        *("c1-\u0661", "c1-\u00b9", "c1-\x00", "g0-0", "c1-0", "c1-" + "9" * 18, "c1-" + "9" * 5000, "c1-1-1", "x" * 100_000),
    ],
)
def test_what_never_went_out_is_no_event_id(event_id: str) -> None:
    """HL-18."""
    session = make()
    streaming(session, b"a", b"b")
    session.route()
    assert session.find(event_id) is None


def test_the_number_of_the_empty_event_is_an_id_once_it_went_out() -> None:
    session = make()
    track = session.open_track(call())
    assert session.find("c1-0") is None
    session.prime(track)
    assert session.find("c1-0") == (track, 0)


def test_a_closed_track_is_known_as_long_as_an_event_of_it_is_kept() -> None:
    session = make(keep=2)
    session.close(streaming(session, b"a", b"b"))
    other = streaming(session, b"c")
    found = session.find("c1-1")
    assert found is not None
    assert not found[0].live
    assert session.replay(*found) == b"id: c1-2\ndata: b\n\n"
    session.stamp(other, [b"d"])
    assert session.find("c1-2") is None
    assert session.find("c2-1") is not None


def test_nothing_is_kept_of_a_call_that_ended_without_an_answer() -> None:
    """A client that came back for one would come back for ever."""
    session = make()
    other, track = streaming(session, b"a"), streaming(session, b"b", b"c")
    session.stamp(other, [b"d"])
    session.close(track, forget=True)
    assert session.find("c2-1") is None
    assert session.replay(other, 0) == b"id: c1-1\ndata: a\n\nid: c1-2\ndata: d\n\n"


def test_what_is_forgotten_makes_room() -> None:
    session = make()
    session.close(streaming(session, b"x" * MAX_KEPT), forget=True)
    track = streaming(session, b"a" * (MAX_KEPT // 2), b"b" * (MAX_KEPT // 2))
    assert session.replay(track, 0).count(b"id: ") == 2


def test_an_event_that_is_kept_keeps_no_request() -> None:
    session, first = make(), call(1)
    track = session.open_track(first)
    session.stamp(track, [b"a"])
    session.close(track)
    assert track.call is None
    assert first.track is None
    assert session.find("c1-1") is not None


# --------------------------------------------------------------------------------------------------------- rule 9: GET streams


def test_a_stream_that_nobody_reads_is_opened_again_before_another_begins() -> None:
    session = make()
    first = session.open_channel()
    assert first is not None
    assert session.open_channel() is first
    first.outlet = object()
    second = session.open_channel()
    assert second is not None
    assert (first.name, second.name) == ("g0", "g1")
    second.outlet = object()
    first.outlet = None
    assert session.open_channel() is first


def test_a_session_has_so_many_streams_and_no_more() -> None:
    session = make()
    for _ in range(MAX_CHANNELS):
        track = session.open_channel()
        assert track is not None
        track.outlet = object()
    assert session.open_channel() is None


def test_what_the_server_says_goes_to_the_first_stream_that_is_read() -> None:
    """HL-16."""
    session = make()
    assert session.route().name == "g0"
    assert not session.channel_read
    first = session.open_channel()
    assert first is not None
    first.outlet = object()
    second = session.open_channel()
    assert second is not None
    second.outlet = object()
    assert session.channel_read
    assert session.route() is first
    first.outlet = None
    assert session.route() is second
    second.outlet = None
    assert session.route() is first


def test_the_connections_of_a_session_are_those_of_all_its_tracks() -> None:
    session = make()
    assert session.outlets() == []
    track, channel = session.open_track(call()), session.open_channel()
    assert channel is not None
    track.outlet, channel.outlet = "one", "two"
    assert session.outlets() == ["one", "two"]
    session.close(track)
    assert session.outlets() == ["two"]
