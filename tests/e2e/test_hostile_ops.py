"""SA39, SA40 over a socket: the end of the process, and blocking functions without end."""

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from asgi_driver import LATEST, make_request, read_events
from e2e.hostile_driver import ERAS, V11, Speaker, Target, stall
from e2e.raw_http import Response, Wire, make_head

THREADS, QUEUE = 4, 8


def listen(target: Target) -> Wire:
    """A listen stream of the current protocol, begun."""
    message = make_request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, request_id="listen")
    speaker = Speaker(target.port, LATEST)
    wire = target.wire()
    wire.send(speaker.raw(speaker.encode("subscriptions/listen", message["params"], request_id="listen"), message))
    assert wire.head()[0] == 200
    assert b"listen" in wire.chunk()
    return wire


def channel(target: Target, speaker: Speaker) -> Wire:
    """A GET stream of a session, begun."""
    wire = target.wire()
    wire.send(make_head(None, speaker.headers(accept="text/event-stream"), verb="GET"))
    assert wire.head()[0] == 200
    return wire


def rest_of(wire: Wire) -> bytes:
    """What is left on a stream until its end."""
    found = b""
    with suppress(EOFError):
        while piece := wire.chunk():
            found += piece
    return found


def test_the_end_is_in_good_order(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA39: calls finish, streams get their last frame, the process ends soon and without complaint
    with stall(tmp_path_factory.mktemp("end")) as target, ExitStack() as open_wires:
        before = target.health()
        speaker = Speaker(target.port, V11)
        kept = open_wires.enter_context(target.wire())
        kept.send(Speaker(target.port, LATEST).raw_call("quick"))
        assert kept.read().status == 200
        listening, streaming = open_wires.enter_context(listen(target)), open_wires.enter_context(channel(target, speaker))
        calls = [open_wires.enter_context(target.wire()) for _ in range(3)]
        calls[0].send(Speaker(target.port, LATEST).raw_call("linger", {"seconds": 1.0}))
        calls[1].send(speaker.raw_call("linger", {"seconds": 1.0}))
        calls[2].send(Speaker(target.port, LATEST).raw_call("sleepy", {"seconds": 1.0}))
        target.settle(lambda now: now["tasks"] >= before["tasks"] + 5)
        told = time.monotonic()
        target.started.send_signal(signal.SIGTERM)
        last = list(read_events(rest_of(listening)))
        assert last[-1]["id"] == "listen"
        assert "result" in last[-1]
        rest_of(streaming)
        assert [call.read().message["result"]["content"][0]["text"] for call in calls] == ["lingered", "lingered", "slept"]
        with suppress(OSError, EOFError):  # nobody is taken in any more
            kept.send(Speaker(target.port, LATEST).raw_call("quick"))
            assert kept.read().status in {200, 503}
        assert target.started.wait(10) == 0
        assert time.monotonic() - told < 8
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", target.port), timeout=5)
        target.is_over = True


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("pool")) as target:
        with ThreadPoolExecutor(45) as callers:  # threads are made once
            list(callers.map(lambda _: target.speaker(LATEST).call("sleepy", {"seconds": 0.01}), range(45)))
        target.remember()
        yield target


@pytest.mark.parametrize("version", ERAS)
def test_blocking_functions_hold_nobody_else_up(pool: Target, version: str) -> None:
    # SA40: 45 of them on 40 threads; the best of five under 100 ms, and all are answered
    speaker = Speaker(pool.port, version)
    wires = [pool.wire() for _ in range(45)]
    for number, wire in enumerate(wires):
        wire.send(speaker.raw_call("sleepy", {"seconds": 1.0}, request_id=f"block{number}"))
    best = 1.0
    for _ in range(5):
        started = time.monotonic()
        speaker.serves()
        best = min(best, time.monotonic() - started)
    assert best < 0.1
    assert {wire.read().message["result"]["content"][0]["text"] for wire in wires} == {"slept"}
    for wire in wires:
        wire.socket.close()
    speaker.close()


def call_blocking(speaker: Speaker) -> Response:
    """One call that takes a thread for a while."""
    return speaker.call("sleepy", {"seconds": 0.5})


@pytest.mark.parametrize("version", ERAS)
def test_more_than_may_wait_are_told_so_at_once(tmp_path_factory: pytest.TempPathFactory, version: str) -> None:
    # SA40: bounded, 503 and Retry-After over it (2025: an error, the status is their protocol's), and everybody else is served
    limits = {"threads": THREADS, "thread_queue": QUEUE}
    with stall(tmp_path_factory.mktemp("queue"), limits=limits) as target:
        speaker = Speaker(target.port, version)
        with ThreadPoolExecutor(30) as callers:
            answers = list(callers.map(lambda _: call_blocking(speaker), range(30)))
        served = [answer for answer in answers if "result" in answer.message]
        refused = [answer for answer in answers if "error" in answer.message]
        assert 1 <= len(served) <= 2 * (THREADS + QUEUE)
        assert refused, [answer.status for answer in answers]
        for answer in refused:
            assert answer.message["error"]["code"] not in range(-32099, -32001) or version != LATEST
            assert answer.status == 503 or version != LATEST
            assert version != LATEST or int(answer.headers["retry-after"]) >= 1
        speaker.serves()
        speaker.close()
