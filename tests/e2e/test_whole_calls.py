"""Calls under a head that has been seen before, which `callboard.run` answers past the HTTP parser, over real sockets.

Each test sends its request a few times first. That the shorter way is taken is for tests/unit/transport/test_http_protocol.py to see; here
nothing may show it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import make_meta, read_events
from e2e.raw_http import Wire, ask, make_call, state, until
from e2e.serving import program

WARM = 3


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("whole") / "log"
    with program("slow_server.py", log) as (_, port):
        yield port
    assert log.read_text() == "", "the server complained"


def warm(port: int, tool: str, arguments: dict[str, Any], **more: Any) -> bytes:
    """A call whose head the server knows."""
    call = make_call(tool, arguments, port=port, **more)
    for _ in range(WARM):
        assert ask(port, call).status == 200
    return call


def test_what_needs_a_task_works(port: int) -> None:
    call = warm(port, "structured", {"seconds": 0.02})
    assert ask(port, call).structured == ["timeout", "group"]


def test_contexts_do_not_mix(port: int) -> None:
    call = warm(port, "mark", {"text": "x"})
    with Wire(port) as wire:
        for _ in range(3):
            wire.send(call)
            assert wire.read().message["result"]["content"][0]["text"] == "nobody"


def test_a_stream_begins_where_the_call_begins_to_tell(port: int) -> None:
    call = warm(port, "tick", {"count": 5}, meta=make_meta(progressToken="p"))
    with Wire(port) as wire:
        for _ in range(2):
            wire.send(call)
            answer = wire.read()
            events = list(read_events(answer.body))
            assert answer.headers["content-type"] == "text/event-stream"
            assert [event.get("method") for event in events] == ["notifications/progress"] * 5 + [None]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("after", [0.0, 0.3])
def test_a_client_that_goes_away_cancels_its_call(port: int, how: str, after: float) -> None:
    # SA25, HM-15
    long, quick = (make_call("linger", {"seconds": seconds}, port=port) for seconds in (60.01, 0.001))
    assert len(long) == len(quick)
    for _ in range(WARM):
        assert ask(port, quick).status == 200  # the same head
    before = len(state(port)["ended"])
    wire = Wire(port)
    wire.send(long)
    time.sleep(after)
    wire.reset() if how == "reset" else wire.socket.close()
    found = until(port, lambda now: len(now["ended"]) > before, 2)
    assert found["ended"][-1] == "cancelled"


def test_pipelined_calls_are_answered_in_order(port: int) -> None:
    first, second = warm(port, "linger", {"seconds": 0.2}), warm(port, "echo", {"text": "second"})
    with Wire(port) as wire:
        wire.send(first)
        time.sleep(0.02)
        wire.send(second)
        wire.send(second)
        assert [wire.read().message["result"]["content"][0]["text"] for _ in range(3)] == ["lingered", "second", "second"]
        wire.send(second + first)
        assert [wire.read().message["result"]["content"][0]["text"] for _ in range(2)] == ["second", "lingered"]


def test_other_requests_may_come_between(port: int) -> None:
    call = warm(port, "echo", {"text": "x"})
    with Wire(port) as wire:
        for _ in range(3):
            wire.send(call)
            assert wire.read().status == 200
            wire.send(b"GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert wire.read().status == 404
            wire.send(call[:-3])
            time.sleep(0.02)
            wire.send(call[-3:])
            assert wire.read().status == 200


def test_a_result_larger_than_a_buffer_comes_whole(port: int) -> None:
    call = warm(port, "blob", {"size": 5_000_000})
    with Wire(port, receive_buffer=4096) as wire:
        for _ in range(2):
            wire.send(call)
            time.sleep(0.1)
            assert len(wire.read().message["result"]["content"][0]["text"]) == 5_000_000


def test_an_idle_connection_is_closed(port: int) -> None:
    call = warm(port, "echo", {"text": "x"})
    with Wire(port) as wire:
        for _ in range(WARM):
            wire.send(call)
            assert wire.read().status == 200
        assert wire.ends()


def test_many_calls_leave_nothing_behind(port: int) -> None:
    call = warm(port, "echo", {"text": "x"})
    before = state(port)
    with Wire(port) as wire:
        for _ in range(3000):
            wire.send(call)
            assert wire.read().status == 200
    after = until(port, lambda now: now["descriptors"] <= before["descriptors"] and now["tasks"] <= before["tasks"], 3)
    assert after["resident"] - before["resident"] < 4 << 20


def test_a_stop_lets_a_known_call_finish(tmp_path: Path) -> None:
    with program("slow_server.py", tmp_path / "log") as (started, port):
        call = warm(port, "linger", {"seconds": 0.3})
        with Wire(port) as wire:
            wire.send(call)
            time.sleep(0.1)
            started.terminate()
            answer = wire.read()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert started.wait(5) == 0
