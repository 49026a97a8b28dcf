"""Which connections the sweep ends, and when: pure, on a clock that the test turns."""

import asyncio
from typing import Any

import pytest
from virtual_time import virtual_time

from callboard.transport.slow_clients import A_LOT, LEAST_RATE, QUIET_FOR, Phase, Sweep, Watch

MIB = 1 << 20


class Peer:
    """A connection of which everything can be said."""

    def __init__(self, phase: Phase = Phase.IDLE) -> None:
        self.watch = Watch()
        self.received = 0
        self.now = phase
        self.request: Any = object()
        self.waiting = 0
        self.took = 0
        self.reading = True
        self.closing = False
        self.timed_out: list[Phase] = []
        self.cuts = 0

    def unsent(self) -> int:
        return self.waiting

    def taken(self) -> int:
        return self.took

    def phase(self) -> tuple[Phase, Any]:
        return self.now, self.request

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closing

    def time_out(self, phase: Phase) -> None:
        self.timed_out.append(phase)
        self.closing = True

    def cut(self) -> None:
        self.cuts += 1
        self.closing = True


class Days:
    """A sweep, and the time that passes over its connections."""

    def __init__(self, *peers: Peer, **limits: Any) -> None:
        self.sweep = Sweep(**limits)
        self.sweep._connections = peers  # what `start` is given, without a loop
        self.time = 0.0
        self.sweep.look(self.time)

    def pass_by(self, seconds: float) -> None:
        """Look once a second."""
        for _ in range(round(seconds)):
            self.time += 1
            self.sweep.look(self.time)


@pytest.mark.parametrize(("phase", "seconds"), [(Phase.FRESH, 10), (Phase.HEAD, 10), (Phase.BODY, 30), (Phase.IDLE, 5)], ids=str)
def test_each_phase_has_its_limit(phase: Phase, seconds: int) -> None:
    # SA10
    peer = Peer(phase)
    days = Days(peer)
    days.pass_by(seconds - 1)
    assert peer.timed_out == []
    days.pass_by(1)
    assert peer.timed_out == [phase]
    days.pass_by(60)
    assert len(peer.timed_out) == 1


def test_a_call_may_take_as_long_as_it_likes() -> None:
    peer = Peer(Phase.BUSY)
    Days(peer).pass_by(1000)
    assert peer.timed_out == []


def test_another_request_begins_anew() -> None:
    peer = Peer(Phase.HEAD)
    days = Days(peer)
    for _ in range(20):
        days.pass_by(9)
        peer.request = object()
    assert peer.timed_out == []


def test_bytes_of_a_head_win_no_time_but_those_of_a_body_do() -> None:
    # SA10: 1 byte/s, and a large body over a slow line
    head, slow, steady = Peer(Phase.HEAD), Peer(Phase.BODY), Peer(Phase.BODY)
    days = Days(head, slow, steady)
    for _ in range(100):
        head.received += LEAST_RATE
        slow.received += 1
        steady.received += LEAST_RATE
        days.pass_by(1)
    assert (head.timed_out, slow.timed_out, steady.timed_out) == ([Phase.HEAD], [Phase.BODY], [])
    days.pass_by(40)
    assert steady.timed_out == [Phase.BODY]


def test_time_in_which_nobody_reads_does_not_count() -> None:
    peer = Peer(Phase.BODY)
    peer.reading = False
    days = Days(peer)
    days.pass_by(100)
    assert peer.timed_out == []
    peer.reading = True
    days.pass_by(31)
    assert peer.timed_out == [Phase.BODY]


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("closing", [False, True])
def test_a_reader_that_takes_nothing_is_cut(phase: Phase, *, closing: bool) -> None:
    # SA10: whatever else goes on, and also when only the rest of an answer keeps it open
    peer = Peer(phase)
    peer.closing = closing
    peer.waiting = 1
    days = Days(peer, keep_alive=1000, head_timeout=1000, body_timeout=1000)
    days.pass_by(29)
    assert peer.cuts == 0
    days.pass_by(1)
    assert peer.cuts == 1


def test_a_reader_that_takes_a_little_is_left_alone() -> None:
    peer = Peer(Phase.BUSY)
    peer.waiting = MIB
    days = Days(peer)
    for _ in range(10):
        days.pass_by(29)
        peer.took += 1
    peer.waiting = 0
    days.pass_by(100)
    peer.waiting = 1  # new bytes, after a long time without
    days.pass_by(29)
    assert peer.cuts == 0


def test_whoever_has_been_behind_longest_makes_room() -> None:
    # SA10
    peers = [Peer(Phase.BUSY) for _ in range(4)]
    days = Days(*peers, max_unsent=10 * MIB)
    for peer in peers[:3]:
        peer.waiting = 3 * MIB
        days.sweep.hold(peer)
    assert days.sweep.unsent == 9 * MIB
    days.sweep.hold(peers[0])  # behind anew: then it is the last in line
    peers[3].waiting = 3 * MIB
    days.sweep.hold(peers[3])
    assert [peer.cuts for peer in peers] == [0, 1, 0, 0]
    for peer in peers:
        days.sweep.release(peer)
        days.sweep.release(peer)
    assert days.sweep.unsent == 0


def test_one_who_is_too_much_alone_is_cut() -> None:
    peer = Peer(Phase.BUSY)
    days = Days(peer, max_unsent=MIB)
    peer.waiting = 2 * MIB
    days.sweep.hold(peer)
    assert (peer.cuts, days.sweep.unsent) == (1, 0)


def test_memory_is_given_back_once_after_a_lot_has_waited() -> None:
    given: list[None] = []
    peer = Peer(Phase.BUSY)
    days = Days(peer, give_back=lambda: given.append(None))
    for size, count in ((A_LOT - 1, 0), (A_LOT, 1), (A_LOT - 1, 1), (A_LOT, 2)):
        peer.waiting = size
        days.sweep.hold(peer)
        peer.waiting = 0
        days.pass_by(QUIET_FOR + 2)
        assert len(given) < 2 or count == 2  # not while it waits
        days.sweep.release(peer)
        days.pass_by(QUIET_FOR + 2)
        assert len(given) == count
        days.pass_by(100)
        assert len(given) == count


@pytest.mark.parametrize(("limits", "interval"), [({}, 0.625), ({"head_timeout": 0.5}, 0.0625), ({"keep_alive": 1e-9}, 0.02)])
def test_it_looks_often_enough(limits: dict[str, float], interval: float) -> None:
    assert Sweep(**limits).interval == interval  # type: ignore[arg-type]
    everything = dict.fromkeys(("head_timeout", "body_timeout", "write_timeout", "keep_alive"), 1000.0)
    assert Sweep(**everything).interval == 1.0  # type: ignore[arg-type]


@virtual_time
async def test_one_timer_does_it_all() -> None:
    loop = asyncio.get_running_loop()
    peers = [Peer(Phase.HEAD) for _ in range(3)]
    sweep = Sweep()
    sweep.start(loop, peers)
    await asyncio.sleep(9)
    assert not any(peer.timed_out for peer in peers)
    peers.append(Peer(Phase.FRESH))
    await asyncio.sleep(3)
    assert [peer.timed_out for peer in peers] == [[Phase.HEAD]] * 3 + [[]]
    sweep.stop()
    await asyncio.sleep(60)
    assert peers[3].timed_out == []
    sweep.stop()
