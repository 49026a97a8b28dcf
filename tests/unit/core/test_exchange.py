"""The machine of one request: its table row by row, then a random walk that is held to what a client must see."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.core.exchange import HARD_CAP, SOFT_CAP, Exchange, State, Write

BIG = b"b" * (SOFT_CAP + 1)


class Wakes:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def make(*, streams: bool = True, streams_only: bool = False) -> tuple[Exchange, Wakes]:
    wakes = Wakes()
    return Exchange(wakes, streams=streams, streams_only=streams_only), wakes


def congested() -> tuple[Exchange, Wakes]:
    """An exchange whose reader is behind."""
    exchange, wakes = make()
    assert exchange.emit(BIG)
    return exchange, wakes


# ------------------------------------------------------------------------------------------------------------- rule 1: one head


def test_an_answer_without_notes_has_its_own_status() -> None:
    exchange, wakes = make()
    exchange.finish(400, b"no")
    assert exchange.take() == Write(400, False, [b"no"], last=True)
    assert wakes.count == 0, "whoever finishes it takes what waits"


def test_the_first_note_opens_a_stream() -> None:
    """Status 200 from then on, whatever the outcome."""
    exchange, wakes = make()
    assert exchange.emit(b"one")
    assert exchange.emit(b"two")
    assert wakes.count == 1
    assert exchange.take() == Write(200, True, [b"one", b"two"], last=False)
    exchange.finish(400, b"no")
    assert exchange.take() == Write(0, False, [b"no"], last=True)


def test_what_was_not_written_yet_leaves_with_the_answer() -> None:
    exchange, _ = make()
    exchange.emit(b"one")
    exchange.finish(200, b"yes")
    assert exchange.take() == Write(200, True, [b"one", b"yes"], last=True)


def test_an_answer_may_be_empty() -> None:
    """HM-07: 202 has no body."""
    exchange, _ = make()
    exchange.finish(202, b"")
    assert exchange.take() == Write(202, False, [], last=True)


@pytest.mark.parametrize(("status", "expected"), [(200, Write(200, True, [b"a"], last=True)), (404, Write(404, False, [b"a"], last=True))])
def test_a_client_that_takes_streams_only_gets_one_unless_it_failed(status: int, expected: Write) -> None:
    exchange, _ = make(streams_only=True)
    exchange.finish(status, b"a")
    assert exchange.take() == expected


# --------------------------------------------------------------------------------------------------------- rule 2: no streaming


def test_without_streaming_notes_are_dropped() -> None:
    exchange, wakes = make(streams=False)
    assert not exchange.emit(b"one")
    assert exchange.state is State.OPEN
    exchange.finish(404, b"no")
    assert exchange.take() == Write(404, False, [b"no"], last=True)
    assert wakes.count == 0


# ------------------------------------------------------------------------------------------------------ rule 3: over means over


def test_nothing_is_taken_after_the_answer() -> None:
    """PR-04."""
    exchange, _ = make()
    exchange.finish(200, b"yes")
    assert not exchange.emit(b"late")
    exchange.finish(500, b"again")
    exchange.cancel()
    assert exchange.take() == Write(200, False, [b"yes"], last=True)
    assert exchange.take() is None


@pytest.mark.parametrize("notes", [[], [b"one"]])
def test_nothing_leaves_after_a_cancellation(notes: list[bytes]) -> None:
    """HM-15."""
    exchange, wakes = make()
    for note in notes:
        exchange.emit(note)
    exchange.cancel()
    assert exchange.state is State.CANCELLED
    assert not exchange.emit(b"late")
    exchange.finish(200, b"late")
    assert exchange.take() is None
    assert wakes.count == len(notes)


def test_nothing_waits_nothing_to_take() -> None:
    exchange, _ = make()
    assert exchange.take() is None
    exchange.emit(b"one")
    exchange.take()
    assert exchange.take() is None


# --------------------------------------------------------------------------------------------------- rule 4: bounded while it waits


def test_up_to_the_soft_cap_nothing_is_lost_or_merged() -> None:
    exchange, _ = make()
    note = b"x" * (SOFT_CAP // 4)
    for _ in range(4):
        assert exchange.emit(note, key="same", droppable=True)
    assert not exchange.congested
    write = exchange.take()
    assert write is not None
    assert write.notes == [note] * 4


def test_behind_a_slow_reader_notes_of_one_key_replace_each_other() -> None:
    exchange, _ = congested()
    for number in range(100):
        assert exchange.emit(b"progress %d" % number, key="progress")
        assert exchange.emit(b"list %d" % number, key="tools")
    assert exchange.emit(b"once")
    write = exchange.take()
    assert write is not None
    assert write.notes == [BIG, b"progress 99", b"list 99", b"once"]


def test_a_replacement_counts_for_what_it_weighs() -> None:
    exchange, _ = congested()
    assert exchange.emit(b"1", key="k")
    assert exchange.emit(b"x" * HARD_CAP, key="k")
    assert not exchange.emit(b"more")
    assert exchange.overflowed


def test_a_note_that_has_left_is_not_replaced() -> None:
    exchange, _ = congested()
    exchange.emit(b"1", key="k")
    exchange.take()
    exchange.emit(BIG)
    exchange.emit(b"2", key="k")
    write = exchange.take()
    assert write is not None
    assert write.notes == [BIG, b"2"]


def test_behind_a_slow_reader_logs_are_dropped_and_counted() -> None:
    exchange, _ = congested()
    assert not exchange.emit(b"log", droppable=True)
    assert not exchange.emit(b"log", droppable=True)
    assert exchange.dropped == 2
    exchange.take()
    assert exchange.emit(b"log", droppable=True)
    assert exchange.dropped == 2


def test_a_result_is_never_dropped() -> None:
    exchange, _ = congested()
    answer = b"a" * (2 * HARD_CAP)
    exchange.finish(200, answer)
    write = exchange.take()
    assert write is not None
    assert write.notes == [BIG, answer]
    assert write.last


def test_past_the_hard_cap_the_exchange_gives_itself_up() -> None:
    exchange, wakes = make()
    taken = 0
    while exchange.emit(BIG):
        taken += len(BIG)
    assert HARD_CAP < taken <= HARD_CAP + len(BIG)
    assert exchange.overflowed
    assert exchange.state is State.CANCELLED
    assert exchange.take() is None
    assert wakes.count == 2, "once when something came to wait, once for the shell to see that it is over"


def test_notes_that_can_be_merged_or_dropped_never_overflow() -> None:
    exchange, _ = congested()
    assert exchange.emit(b"1", key="progress")
    for _ in range(HARD_CAP // len(BIG)):
        assert exchange.emit(BIG)
    assert exchange.emit(b"2", key="progress")
    assert not exchange.emit(b"log", droppable=True)
    assert exchange.open
    assert not exchange.emit(b"a note of its own"), "and that one does"
    assert exchange.overflowed


# ------------------------------------------------------------------------------------------------------------- when it has drained


@pytest.mark.parametrize("end", ["take", "cancel"])
def test_whoever_waits_for_the_reader_is_told_once(end: str) -> None:
    exchange, _ = congested()
    told = Wakes()
    exchange.when_drained(told)
    exchange.when_drained(told)
    assert told.count == 0
    getattr(exchange, end)()
    assert told.count == 2
    assert not exchange.congested
    exchange.emit(b"more")
    exchange.take()
    assert told.count == 2


def test_an_overflow_frees_those_who_wait() -> None:
    exchange, _ = congested()
    told = Wakes()
    exchange.when_drained(told)
    while exchange.emit(BIG):
        pass
    assert told.count == 1


# ------------------------------------------------------------------------------------------- a stream begun early, or begun again


def test_a_stream_can_begin_before_there_is_a_note() -> None:
    exchange, wakes = make()
    exchange.open_stream()
    exchange.open_stream()
    assert wakes.count == 1
    assert exchange.take() == Write(200, True, [], last=False)
    assert exchange.take() is None
    exchange.emit(b"one")
    exchange.finish(400, b"no")
    assert exchange.take() == Write(0, False, [b"one", b"no"], last=True)


def test_a_stream_that_has_begun_does_not_begin_again() -> None:
    exchange, wakes = make()
    exchange.emit(b"one")
    exchange.take()
    exchange.open_stream()
    assert exchange.take() is None
    assert wakes.count == 1


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_what_is_over_does_not_begin(end: str) -> None:
    exchange, wakes = make()
    exchange.finish(404, b"no") if end == "finish" else exchange.cancel()
    state = exchange.state
    exchange.open_stream()
    assert exchange.state is state
    assert wakes.count == 0


def test_where_the_client_can_not_stream_none_begins() -> None:
    exchange, wakes = make(streams=False)
    exchange.open_stream()
    assert exchange.state is State.OPEN
    assert exchange.take() is None
    assert wakes.count == 0


def test_over_another_connection_the_head_goes_out_again() -> None:
    exchange, old = make()
    exchange.emit(b"one")
    exchange.take()
    new = Wakes()
    exchange.reopen(new)
    assert not exchange.begun
    assert exchange.take() == Write(200, True, [], last=False)
    exchange.emit(b"two")
    assert (old.count, new.count) == (1, 1)
    exchange.finish(400, b"no")
    assert exchange.take() == Write(0, False, [b"two", b"no"], last=True)


def test_what_waited_for_the_old_connection_goes_out_over_the_new_one() -> None:
    exchange, _ = make()
    exchange.emit(b"one")
    exchange.take()
    exchange.emit(b"two")
    exchange.finish(200, b"yes")
    exchange.reopen(Wakes())
    assert exchange.take() == Write(200, True, [b"two", b"yes"], last=True)


def test_what_has_ended_does_not_end_again_over_another_connection() -> None:
    exchange, _ = make()
    exchange.emit(b"one")
    exchange.finish(200, b"yes")
    assert not exchange.ended
    exchange.take()
    assert exchange.ended
    exchange.reopen(Wakes())
    assert exchange.take() is None


def test_after_an_overflow_it_may_go_on_with_what_comes() -> None:
    exchange, wakes = make()
    while exchange.emit(BIG):
        pass
    exchange.restart()
    assert not exchange.overflowed
    assert exchange.emit(b"more")
    assert exchange.take() == Write(200, True, [b"more"], last=False)
    assert wakes.count == 3


# ------------------------------------------------------------------------------------------------------------------- a random walk

KEYS = ["", "", "progress", "tools", "uri:a", "uri:b"]
SIZES = [1, 50, SOFT_CAP // 3, SOFT_CAP + 1]


class Walk(RuleBasedStateMachine):
    """Emissions, answers, cancellations and reads in any order; the model is what the rules promise to a client."""

    @staticmethod
    def label(note: bytes) -> int:
        return int(note.split(b":", 1)[0])

    def __init__(self) -> None:
        super().__init__()
        self.wakes = Wakes()
        self.exchange: Any = None
        self.number = 0
        self.taken: dict[int, tuple[str, bool]] = {}
        self.refused_logs = 0
        self.read: list[bytes] = []
        self.connections: list[list[Write]] = [[]]
        self.answer: tuple[int, bytes] | None = None
        self.cancelled = False
        self.expected_wakes = 0
        self.idle = True

    @precondition(lambda self: self.exchange is None)
    @rule(streams=st.booleans(), streams_only=st.booleans())
    def begin(self, streams: bool, streams_only: bool) -> None:
        self.exchange = Exchange(self.wakes, streams=streams or streams_only, streams_only=streams_only)

    @precondition(lambda self: self.exchange is not None)
    @rule(key=st.sampled_from(KEYS), droppable=st.booleans(), size=st.sampled_from(SIZES), repeat=st.integers(1, 8))
    def emit(self, key: str, droppable: bool, size: int, repeat: int) -> None:
        for _ in range(repeat):
            self.number += 1
            was_open, was_behind = self.exchange.open and self.exchange.streams, self.exchange.congested
            note = b"%d:%b" % (self.number, b"x" * size)
            taken = self.exchange.emit(note, key=key, droppable=droppable)
            if taken:
                assert was_open
                self.taken[self.number] = (key, was_behind)
                self.expected_wakes += self.idle
                self.idle = False
            elif was_open and droppable:
                assert was_behind, "only a slow reader loses logs"
                self.refused_logs += 1
            elif was_open:
                assert self.exchange.overflowed, "nothing else is refused"
                self.cancelled = True
                self.expected_wakes += 1

    @precondition(lambda self: self.exchange is not None)
    @rule(status=st.sampled_from([200, 400]), answer=st.sampled_from([b"", b"answer"]))
    def finish(self, status: int, answer: bytes) -> None:
        if self.exchange.open:
            self.answer = (status, answer)
        self.exchange.finish(status, answer)
        assert not self.exchange.open

    @precondition(lambda self: self.exchange is not None)
    @rule()
    def open_stream(self) -> None:
        self.expected_wakes += self.exchange.streams and self.exchange.state is State.OPEN
        self.exchange.open_stream()

    @precondition(lambda self: self.exchange is not None and self.exchange.state is State.STREAMING)
    @rule()
    def reopen(self) -> None:
        """The reader comes back over another connection, which begins with a head of its own."""
        self.exchange.reopen(self.wakes)
        self.connections.append([])

    @precondition(lambda self: self.exchange is not None)
    @rule()
    def cancel(self) -> None:
        self.cancelled = self.cancelled or self.exchange.open
        self.exchange.cancel()
        assert not self.exchange.open

    @precondition(lambda self: self.exchange is not None)
    @rule()
    def take(self) -> None:
        write = self.exchange.take()
        if write is None:
            return
        assert not self.cancelled, "HM-15"
        waiting = sum(map(len, write.notes))
        assert waiting <= HARD_CAP + (1 + len(set(KEYS))) * (max(SIZES) + 20), "bounded, whatever was emitted"
        self.connections[-1].append(write)
        notes = write.notes
        if write.last:
            assert self.answer is not None
            if self.answer[1]:
                assert notes[-1] == self.answer[1]
                notes = notes[:-1]
        self.read += notes
        self.idle = True
        self.check_what_was_read()

    def check_what_was_read(self) -> None:
        """Everything that was taken has come, once, but for what a later note of its key replaced."""
        labels = [self.label(note) for note in self.read]
        assert len(labels) == len(set(labels))
        assert set(labels) <= set(self.taken)
        for key in set(KEYS):
            own = [label for label in labels if self.taken[label][0] == key]
            assert own == sorted(own), "notes of one key keep their order"
            every = [number for number, (of, _) in self.taken.items() if of == key]
            missing = set(every) - set(own)
            assert not missing or key, "a note without a key is never replaced"
            assert not missing or (all(self.taken[number][1] for number in missing) and max(missing) < max(own))

    @invariant()
    def one_head_and_one_end(self) -> None:
        every = [write for connection in self.connections for write in connection]
        assert not any(write.last for write in every[:-1])
        for first, *others in filter(None, self.connections):
            assert first.status
            assert all(not write.status for write in others)
            if not first.streaming:
                assert first.last
                assert len(every) == 1
                assert self.answer is not None
                assert first.status == self.answer[0]
            else:
                assert first.status == 200

    @invariant()
    def counts(self) -> None:
        if self.exchange is not None:
            assert self.exchange.dropped == self.refused_logs
            assert self.wakes.count == self.expected_wakes
            assert self.exchange.overflowed <= self.cancelled

    def teardown(self) -> None:
        """Whatever happened, an answer that was taken arrives."""
        if self.answer is not None:
            self.take()
            assert [write for connection in self.connections for write in connection][-1].last
        super().teardown()


Walk.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestWalk = Walk.TestCase
