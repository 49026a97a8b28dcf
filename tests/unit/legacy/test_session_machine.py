"""Random histories of one session, held to what the rules of its machine promise; no event loop takes part.

    HISTORIES=10000 python -m pytest tests/unit/legacy/test_session_machine.py

walks the full number (minutes); the ordinary suite walks a few hundred. Every run walks the same ones.
"""

import os
from itertools import count
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from callboard.core.exchange import Exchange, State
from callboard.errors import Reason
from callboard.legacy.session import MAX_CHANNELS, MAX_KEPT, Call, Phase, Session, Track
from callboard.server.state import Turn
from callboard.transport.stream import nobody

T = TypeVar("T")
HISTORIES: Final = int(os.environ.get("HISTORIES", "200"))
PART: Final = 100  # histories of one test, so that each takes a moment
IDS: Final[list[Any]] = [1, 2, 3, "1", "2", ""]
SIZES: Final = [5, 5, 5, 50, MAX_KEPT // 3, MAX_KEPT + 1]
QUEUED: Final = {Turn.IN_TURN, Turn.WAIT, Turn.LATE}
PICKS: Final = st.integers(0, 23)
ODD_NUMBERS: Final = ["01", "00", "+1", "-1", "1_0", " 1", "1 ", "\u0661", "\u00b2", "1.0", "", "9" * 18, "9" * 19, "9" * 5000]
ANSWER: Final = b"answer "
NOTE: Final = b"note "


class Request:
    """One call as its client sees it.

    Attributes:
        call: What the machine has of it.
        number: How many were sent before it.
        read: Messages that have reached the client, or were kept for it.
        told: Answers that whoever serves the call has given.
        silenced: Whether it was given up without an answer.
        buffered: Whether it was answered without a stream.
        tracks: Names of the tracks that it has had.
    """

    def __init__(self, call: Call, number: int) -> None:
        self.call = call
        self.number = number
        self.read: list[bytes] = []
        self.told = 0
        self.silenced = False
        self.buffered = False
        self.tracks: set[str] = set()

    @property
    def answers(self) -> int:
        """How many terminal messages have reached the client."""
        return sum(message.startswith(ANSWER) for message in self.read)


class Histories(RuleBasedStateMachine):
    """Calls, streams and connections in any order; the model is a few lists.

    Attributes:
        requests: Everything that the machine has taken, in order of arrival.
        waiting: Calls that wait for their turn, or have it, in order of arrival; the first of them runs.
        state: What the last call left whose state is to be kept.
        said: Every event: track, number, message; in order.
        kept: Those of them that can be replayed.
        live: Tracks on which more may come, by name.
        primed: Tracks that began with an empty event.
    """

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(b"0", max_pending=0, keep=0)
        self.keep = self.max_pending = 0
        self.requests: list[Request] = []
        self.waiting: list[Request] = []
        self.ran: list[int] = []
        self.state: bytes | None = b"0"
        self.said: list[tuple[str, int, bytes]] = []
        self.kept: list[tuple[str, int, bytes]] = []
        self.primed: set[str] = set()
        self.live: dict[str, Track] = {}
        self.channels: list[Track] = []
        self.labels = count()
        self.ends = 0

    @initialize(keep=st.sampled_from([0, 1, 4, 256]), max_pending=st.integers(0, 3), state=st.sampled_from([b"0", None]))
    def begin(self, keep: int, max_pending: int, state: bytes | None) -> None:
        self.session = Session(state, max_pending=max_pending, keep=keep)
        self.state, self.keep, self.max_pending = state, keep, max_pending

    # What the model knows

    @property
    def in_flight(self) -> list[Request]:
        return [request for request in self.requests if request.call.phase is not Phase.OVER]

    @property
    def known(self) -> set[str]:
        """Rule 8."""
        return {track for track, _, _ in self.kept} | self.live.keys()

    def is_given(self, name: str, number: int) -> bool:
        """Whether a client can have seen this event id, or can come back with it anyway because all of the track is kept."""
        if not self.keep or name not in self.known or number > self.last(name):
            return False
        return number > 0 or (number == 0 and (name in self.primed or name not in self.live))

    def last(self, track: str) -> int:
        return max((number for name, number, _ in self.said if name == track), default=0)

    # Calls

    @rule(
        request_id=st.sampled_from(IDS),
        turn=st.sampled_from([*Turn, Turn.IN_TURN, Turn.IN_TURN]),
        streams=st.booleans(),
        only=st.booleans(),
    )
    def submit(self, request_id: Any, turn: Turn, streams: bool, only: bool) -> None:
        call = Call(request_id, turn, Exchange(nobody, streams=streams or only, streams_only=only))
        reason = self.session.submit(call)
        same = [request for request in self.in_flight if (type(request.call.id), request.call.id) == (type(request_id), request_id)]
        if self.session.ended:
            assert reason is Reason.SESSION_ENDED
        elif same:
            assert reason is Reason.DUPLICATE_ID
        elif turn in QUEUED and len(self.waiting) > self.max_pending:
            assert reason is Reason.SESSION_OVERLOADED
        else:
            assert reason is None
            request = Request(call, len(self.requests))
            self.requests.append(request)
            if turn in QUEUED:
                self.waiting.append(request)
                self.note_turns()
            else:
                assert call.phase is Phase.RUNNING, "rule 2: at once"

    def note_turns(self) -> None:
        """Who has come to its turn now."""
        running = [request for request in self.waiting if request.call.phase is not Phase.QUEUED]
        if running and (not self.ran or self.ran[-1] != running[0].number):
            self.ran.append(running[0].number)

    @precondition(lambda self: any(request.call.phase in {Phase.RUNNING, Phase.STOPPING} for request in self.requests))
    @rule(pick=PICKS, crashed=st.booleans())
    def finish(self, pick: int, crashed: bool) -> None:
        request = choose(pick, [each for each in self.in_flight if each.call.phase is not Phase.QUEUED])
        call, stopped = request.call, request.call.phase is Phase.STOPPING
        left = None if crashed else b"%d" % request.number
        following = self.session.finish(call, left)
        assert call.phase is Phase.OVER
        if call.turn in QUEUED:
            if not stopped and not crashed and call.turn is Turn.IN_TURN:
                self.state = left
            assert self.waiting.pop(0) is request, "only the first can run"
            assert following is (self.waiting[0].call if self.waiting else None)
            self.note_turns()
        else:
            assert following is None
        self.answer(request)
        assert self.session.finish(call, b"again") is None, "what is over stays over"

    @precondition(lambda self: self.requests)
    @rule(pick=PICKS)
    def expire(self, pick: int) -> None:
        request = choose(pick, self.requests)
        phase, untouched = request.call.phase, request.call.exchange.state is State.OPEN
        told = self.session.expire(request.call)
        assert told == (phase is Phase.QUEUED or (phase is Phase.RUNNING and untouched))
        if phase is Phase.QUEUED:
            assert request.call.phase is Phase.OVER
            self.waiting.remove(request)
        else:
            assert request.call.phase is phase, "rule of the table: the work goes on"
        if told:
            self.answer(request)

    @rule(pick=PICKS, replies=st.booleans())
    def stop(self, pick: int, replies: bool) -> None:
        request_id = choose(pick, [*(request.call.id for request in self.in_flight), *IDS, 7, "7"])
        meant = [request for request in self.in_flight if (type(request.call.id), request.call.id) == (type(request_id), request_id)]
        before = [request.call.phase for request in meant]
        call = self.session.stop(request_id)
        if not meant or before == [Phase.STOPPING]:
            assert call is None
            return
        (request,) = meant
        assert call is request.call, "A25"
        self.end_call(request, before[0], replies=replies)

    def end_call(self, request: Request, before: Phase, *, replies: bool) -> None:
        """What a shell does with a call that was stopped."""
        if before is Phase.QUEUED:
            assert request.call.phase is Phase.OVER
            self.waiting.remove(request)
        else:
            assert request.call.phase is Phase.STOPPING
        if replies and not request.call.exchange.begun:
            self.answer(request)
        else:
            request.silenced = request.silenced or request.call.exchange.open
            request.call.exchange.cancel()

    @rule(really=st.sampled_from([False, False, False, True]), replies=st.booleans())
    def end(self, really: bool, replies: bool) -> None:
        if not really:
            return
        before = {id(request.call): request.call.phase for request in self.in_flight}
        stopped = self.session.end()
        if self.ends:
            assert stopped is None, "rule 4: once"
            return
        self.ends += 1
        assert stopped is not None
        assert {id(call) for call in stopped} == {call for call, phase in before.items() if phase is not Phase.STOPPING}
        for request in self.in_flight + [each for each in self.requests if id(each.call) in before]:
            if id(request.call) in before and before[id(request.call)] is not Phase.STOPPING:
                self.end_call(request, before.pop(id(request.call)), replies=replies)
        assert all(request.call.phase is Phase.STOPPING for request in self.in_flight)

    def answer(self, request: Request) -> None:
        request.told += 1
        request.call.exchange.finish(200, ANSWER + b"%d" % request.number)

    # What goes out of calls

    @precondition(lambda self: any(request.call.phase is Phase.RUNNING for request in self.requests))
    @rule(pick=PICKS, size=st.sampled_from(SIZES))
    def emit(self, pick: int, size: int) -> None:
        request = choose(pick, [each for each in self.in_flight if each.call.phase is Phase.RUNNING])
        exchange = request.call.exchange
        exchange.emit(NOTE + b"%d " % next(self.labels) + b"x" * size)
        request.silenced = request.silenced or exchange.overflowed

    @precondition(lambda self: self.requests)
    @rule(pick=PICKS, at_once=st.booleans())
    def write(self, pick: int, at_once: bool) -> None:
        """A connection, or nobody in its place, takes what waits."""
        self.drain(choose(pick, self.requests), at_once=at_once)

    def drain(self, request: Request, *, at_once: bool = False) -> None:
        call = request.call
        write = call.exchange.take()
        if write is not None:
            request.read += write.notes
            if write.status and not write.streaming:
                request.buffered = True
                assert not request.tracks
            elif at_once and write.last and write.status and len(write.notes) == 1:
                self.answer_at_once(request, write.notes[0])
            else:
                track = self.session.open_track(call)
                assert track.call is call
                assert track.live
                assert not track.is_channel
                self.live[track.name] = track
                request.tracks.add(track.name)
                self.stamp(track, write.notes)
        if not call.exchange.open and call.track is not None:
            track, silenced = call.track, call.exchange.state is State.CANCELLED
            self.session.close(track, forget=silenced)
            del self.live[track.name]
            if silenced:
                self.kept = [event for event in self.kept if event[0] != track.name]
            assert call.track is None
            assert track.call is None

    def answer_at_once(self, request: Request, note: bytes) -> None:
        """A stream of one event costs no track; in all else it is like the others."""
        name = f"c{1 + sum(len(each.tracks) for each in self.requests)}"
        request.tracks.add(name)
        sent = self.session.answer(note, priming=True)
        if not self.keep:
            assert sent == b"data: %b\n\n" % note
            return
        assert sent == b"id: %b-0\ndata: \n\n" % name.encode() + frames([(name, 1, note)])
        self.said.append((name, 1, note))
        self.kept = fit([*self.kept, (name, 1, note)], self.keep)

    def stamp(self, track: Track, notes: list[bytes]) -> None:
        before = self.last(track.name)
        sent = self.session.stamp(track, notes)
        if not self.keep:
            assert sent == b"".join(b"data: %b\n\n" % note for note in notes), "no buffer, no ids"
            return
        events = [(track.name, before + step, note) for step, note in enumerate(notes, 1)]
        assert sent == frames(events), "HL-17"
        self.said += events
        for event in events:
            self.kept = fit([*self.kept, event], self.keep)

    # Streams of the session's own

    @rule()
    def listen(self) -> None:
        free = [track for track in self.channels if track.outlet is None]
        track = self.session.open_channel()
        if not free and len(self.channels) == MAX_CHANNELS:
            assert track is None
            return
        assert track is not None
        assert track.is_channel
        if free:
            assert track is free[0]
        else:
            assert track.name == f"g{len(self.channels)}"
            self.channels.append(track)
            self.live[track.name] = track
        track.outlet = object()
        self.session.attached += 1

    @precondition(lambda self: any(track.outlet is not None for track in self.channels))
    @rule(pick=PICKS)
    def hang_up(self, pick: int) -> None:
        choose(pick, [track for track in self.channels if track.outlet is not None]).outlet = None
        self.session.attached -= 1

    @rule(size=st.sampled_from(SIZES))
    def push(self, size: int) -> None:
        """Rule 9, and HL-16: it is on one track."""
        read = [track for track in self.channels if track.outlet is not None]
        track = self.session.route()
        assert self.session.channel_read == bool(read)
        if not self.channels:
            self.channels.append(track)
            self.live[track.name] = track
        assert track is (read[0] if read else self.channels[0])
        assert track.name in {"g0"} | {channel.name for channel in read}
        self.stamp(track, [b"push %d " % next(self.labels) + b"x" * size])

    # Replay

    @rule(pick=PICKS, after=st.integers(-1, 12))
    def replay(self, pick: int, after: int) -> None:
        """HL-18: what is kept of one track, in order, and never an event of another."""
        names = sorted({name for name, _, _ in self.said} | self.live.keys() | {"c1", "g0", "g15", "c99"})
        name = choose(pick, names)
        found = self.session.find(f"{name}-{after}")
        if not self.is_given(name, after):
            assert found is None
            return
        assert found is not None
        track, number = found
        assert (track.name, number) == (name, after)
        assert self.session.replay(track, number) == frames([event for event in self.kept if event[0] == name and event[1] > after])

    @precondition(lambda self: self.live)
    @rule(pick=PICKS)
    def prime(self, pick: int) -> None:
        """HL-08."""
        track = choose(pick, list(self.live.values()))
        sent = self.session.prime(track)
        assert sent == (b"id: %b-%d\ndata: \n\n" % (track.name.encode(), self.last(track.name)) if self.keep else b"")
        self.primed.add(track.name)

    @rule(name=st.sampled_from(["c0", "c4", "G0", "g", "", "-", " g0"]))
    def make_up(self, name: str) -> None:
        """HL-18: an id that was never given out names nothing."""
        for track in (*self.known, name):
            for odd in ODD_NUMBERS:
                assert self.session.find(f"{track}-{odd}") is None
            assert self.session.find(f"{track}-{self.last(track) + 1}") is None
            assert self.session.find(track) is None

    # What holds after each step

    @invariant()
    def one_terminal_message(self) -> None:
        for request in self.requests:
            assert request.answers <= 1
            assert len(request.tracks) <= 1
            assert request.answers <= request.told
            assert not (request.silenced and request.answers)
            if request.answers:
                assert request.read[-1].startswith(ANSWER), "PR-04"
        answers = [message for _, _, message in self.said if message.startswith(ANSWER)]
        assert len(answers) == len(set(answers)), "and once among the events"

    @invariant()
    def order_and_state(self) -> None:
        assert self.ran == sorted(self.ran), "calls that take the state run in the order they came"
        assert [request.call.phase is Phase.QUEUED for request in self.waiting] == [False, *([True] * len(self.waiting))][
            : len(self.waiting)
        ]
        assert len(self.waiting) <= self.max_pending + 1
        assert self.session.state == self.state, "no lost state"
        assert not any(request.call.phase is Phase.QUEUED for request in self.requests if request.call.turn not in QUEUED)

    @invariant()
    def what_is_there(self) -> None:
        session = self.session
        assert session.ended == bool(self.ends)
        assert list(session.calls.values()) == [request.call for request in self.in_flight]
        assert all(call.id == key and type(call.id) is type(key) for key, call in session.calls.items())
        read = sum(track.outlet is not None for track in self.channels)
        assert session.attached == read
        assert session.idle == (not self.in_flight and not read)
        assert session.outlets() == [track.outlet for track in self.live.values() if track.outlet is not None]
        self.check_room()

    def check_room(self) -> None:
        """Nothing of the machine grows beyond what the model says is there."""
        session, kept = self.session, self.kept
        assert list(session._events or ()) == kept
        assert session._size == sum(len(note) for _, _, note in kept)
        assert len(kept) <= self.keep
        assert session._size <= MAX_KEPT or len(kept) == 1
        assert (session._tracks or {}) == self.live
        for name in self.known:
            track, _ = self.session.find(f"{name}-{self.last(name)}") or (self.live[name], 0)
            assert session.replay(track, 0) == frames([event for event in kept if event[0] == name]), "HL-18: never an event of another"
        assert len(session._channels or ()) <= MAX_CHANNELS
        assert [call.id for call in session._queue or ()] == [request.call.id for request in self.waiting[1:]]
        assert session._holder is (self.waiting[0].call if self.waiting else None)

    def teardown(self) -> None:
        """Whatever happened: let all calls end and all connections close; nothing is left but what can be replayed."""
        for request in list(self.in_flight):
            if request.call.phase is not Phase.QUEUED:
                self.close_call(request)
        while self.waiting:
            self.close_call(self.waiting[0])
        for request in self.requests:
            self.drain(request)
            assert self.session.stop(request.call.id) is None
            assert not request.call.exchange.open
            assert request.answers == (not request.silenced), "each is answered once, unless it was given up"
            assert not (request.buffered and request.tracks)
        for track in self.channels:
            if track.outlet is not None:
                track.outlet = None
                self.session.attached -= 1
        assert self.session.idle
        assert self.live.keys() == {track.name for track in self.channels}
        assert all(track.call is None for track in self.live.values()), "no request is kept"
        self.what_is_there()
        self.order_and_state()
        super().teardown()

    def close_call(self, request: Request) -> None:
        self.session.finish(request.call, None)
        self.waiting = [each for each in self.waiting if each is not request]
        self.note_turns()
        self.answer(request)


def choose(pick: int, among: list[T]) -> T:
    return among[pick % len(among)]


def fit(events: list[tuple[str, int, bytes]], keep: int) -> list[tuple[str, int, bytes]]:
    """The newest that fit: `keep` of them, `MAX_KEPT` bytes, and one in any case."""
    found: list[tuple[str, int, bytes]] = []
    size = 0
    for event in reversed(events):
        size += len(event[2])
        if len(found) >= keep or (found and size > MAX_KEPT):
            break
        found.append(event)
    return found[::-1]


def frames(events: list[tuple[str, int, bytes]]) -> bytes:
    """Events as they go out."""
    return b"".join(b"id: %b-%d\ndata: %b\n\n" % (track.encode(), number, note) for track, number, note in events)


@pytest.mark.parametrize("part", range(-(-HISTORIES // PART)))
def test_whatever_comes_the_rules_of_a_session_hold(part: int) -> None:
    histories = seed(part)(type(f"Histories{part}", (Histories,), {}))
    walk = settings(max_examples=PART, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(histories, settings=walk)
