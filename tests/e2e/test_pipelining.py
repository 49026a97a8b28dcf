"""Requests one behind the other on a connection, by somebody who means no good: what waits for its turn costs little (SA10, SA15, SA26)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from e2e.raw_http import Wire, ask, make_call, state, until
from e2e.test_slow_clients import MIB, PARSERS, alive, serving

SMALL = b"GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module", params=PARSERS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("pipelining") / "log"
    with serving(log, f"max_buffered={32 * MIB}", f"parser={request.param}") as port:
        yield port
    assert log.read_text() == "", "the server complained"


def test_what_waits_for_its_turn_is_not_parsed(port: int) -> None:
    # SA26: 250 KB of small requests, parsed, are 20 MB, which no limit counts; nor is anybody else kept waiting by them
    before = state(port)["resident"]
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for _ in range(6)]
        for wire in wires:
            wire.send(make_call("linger", {"seconds": 60}, port=port))
        time.sleep(0.2)
        for wire in wires:
            wire.socket.settimeout(0.2)
            try:
                wire.send(SMALL * 6000)
            except TimeoutError:
                continue
        alive(port)
        assert state(port)["resident"] - before < 16 * MIB


def test_each_of_thousands_is_answered(port: int) -> None:
    # JR-23
    with Wire(port) as wire:
        wire.send(SMALL * 3000)
        last = make_call("echo", {"text": "the last"}, port=port)
        wire.send(last)
        assert {wire.read().status for _ in range(3000)} == {404}
        assert wire.read().message["result"]["content"][0]["text"] == "the last"


@pytest.mark.parametrize("together", [False, True])
def test_nothing_begins_behind_an_answer_that_is_not_read(port: int, together: bool) -> None:
    # SA26: the second answer would wait where nobody counts it, whatever max_buffered says
    before = state(port)["resident"]
    first, second = (make_call("blob", {"size": size * MIB}, port=port) for size in (6, 24))
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port, receive_buffer=4096)) for _ in range(12)]
        for wire in wires:
            wire.send(first + second if together else first)
        time.sleep(0.5)
        if not together:
            for wire in wires:
                wire.socket.settimeout(5)
                try:
                    wire.send(second)
                except OSError:
                    continue  # the server has ended it
            time.sleep(0.5)
        alive(port)
        assert state(port)["resident"] - before < 160 * MIB


def test_whoever_reads_late_gets_all_answers(port: int) -> None:
    # JR-23
    calls = [make_call("blob", {"size": 7 * MIB}, port=port, request_id=number) for number in range(3)]
    with Wire(port, receive_buffer=4096) as wire:
        wire.send(b"".join(calls))
        time.sleep(0.5)
        assert [wire.read().message["id"] for _ in calls] == [0, 1, 2]
        wire.send(calls[0])
        assert wire.read().status == 200


@pytest.mark.parametrize("pause", [0.0, 0.2])
@pytest.mark.parametrize("protocol", ["foo", "h2c", "websocket"])
def test_the_body_behind_an_offered_upgrade_is_no_request(port: int, protocol: str, pause: float) -> None:
    # SA15: a parser that drops such a body, or takes it for what the connection is upgraded to, goes on after it
    inner = make_call("echo", {"text": f"smuggled {protocol} {pause}"}, port=port)
    offer = f"Connection: Upgrade\r\nUpgrade: {protocol}\r\nContent-Length: {len(inner)}\r\n\r\n".encode()
    with Wire(port) as wire:
        wire.send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + offer)
        time.sleep(pause)
        wire.send(inner)
        assert wire.read().status == 400
    time.sleep(0.1)
    assert f"smuggled {protocol} {pause}" not in state(port)["ran"]


def test_what_is_no_http_behind_a_call_ends_the_connection_after_its_answer(port: int) -> None:
    with Wire(port) as wire:
        wire.send(make_call("linger", {"seconds": 0.2}, port=port))
        time.sleep(0.05)
        wire.send(b"\x00\x01\x02\r\n\r\n")
        wire.send(make_call("echo", {"text": "too late"}, port=port))
        assert wire.read().message["result"]["content"][0]["text"] == "lingered"
        if not wire.ends():
            assert wire.read().status == 400  # the other parser reads it once it is its turn
    assert ask(port, make_call("echo", {"text": "fine"}, port=port)).status == 200
    assert "too late" not in until(port, lambda now: "fine" in now["ran"], 2)["ran"]
