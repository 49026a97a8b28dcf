"""The server as a process, and clients that misbehave."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from asgi_driver import make_headers, make_meta, make_request, read_events
from e2e.raw_http import Wire, ask, make_call, make_head, make_post, state, until
from e2e.serving import program

PROGRESS = make_meta(progressToken="p")
PADDING = b"\r\nX-Padding: %b\r\n" % (b"x" * 4000)


@contextmanager
def desk(log: Path, *options: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """The desk on a free port."""
    with program("desk_server.py", log, *options) as started:
        yield started


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("desk") / "log"
    with desk(log) as (_, port):
        yield port
    complaints = [line for line in log.read_text().splitlines() if " event=" not in line]  # what was refused is to be told of
    assert complaints == [], "the server complained"


def alive(port: int) -> None:
    """Demand that the server serves."""
    assert ask(port, make_call("echo", {"text": "hi"}, port=port)).message["result"]["content"][0]["text"] == "hi"


# Connections


def test_a_connection_serves_many_requests(port: int) -> None:
    # HM-01, A09
    with Wire(port) as wire:
        for number in range(50):
            wire.send(make_call("echo", {"text": str(number)}, port=port, request_id=number))
            assert wire.read().message["id"] == number


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    # JR-23
    with Wire(port) as wire:
        calls = [
            make_call("linger", {"seconds": 0.05}, port=port, request_id="slow"),
            make_call("count", {"to": 2}, port=port, request_id="stream", meta=PROGRESS),
            make_call("echo", {"text": "x"}, port=port, request_id="quick"),
            make_post("tools/list", port=port, request_id="list"),
        ]
        wire.send(b"".join(calls))
        assert [wire.read().message["id"] for _ in calls] == ["slow", "stream", "quick", "list"]


def test_a_burst_of_pipelined_requests_is_no_long_head(port: int) -> None:
    # SA08, HH-25: most packets end within a head, and together they are longer than any head may be
    calls = [make_call("echo", {"text": "x"}, port=port, request_id=number).replace(b"\r\n", PADDING, 1) for number in range(300)]
    with Wire(port) as wire, ThreadPoolExecutor(1) as sender:
        sending = sender.submit(wire.send, b"".join(calls))
        assert [wire.read().message["id"] for _ in calls] == list(range(300))
        sending.result()


def test_a_request_may_trickle_in(port: int) -> None:
    # SA10
    request = make_call("echo", {"text": "é"}, port=port)
    with Wire(port) as wire:
        for at in range(0, len(request), 7):
            wire.send(request[at : at + 7])
        assert wire.read().status == 200


def test_a_body_may_come_in_chunks(port: int) -> None:
    message = make_request("tools/call", {"name": "echo", "arguments": {"text": "chunked"}})
    body = json.dumps(message).encode()
    with Wire(port) as wire:
        wire.send(make_head(None, {**make_headers(message, host=f"127.0.0.1:{port}"), "transfer-encoding": "chunked"}))
        for at in range(0, len(body), 50):
            piece = body[at : at + 50]
            wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        wire.send(b"0\r\n\r\n")
        assert wire.read().message["result"]["content"][0]["text"] == "chunked"


def test_connection_close_and_http_1_0_are_heeded(port: int) -> None:
    with Wire(port) as wire:
        wire.send(make_call("echo", {"text": "x"}, port=port, connection="close"))
        assert wire.read().status == 200
        assert wire.ends()
    with Wire(port) as wire:
        wire.send(make_call("echo", {"text": "x"}, port=port).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert wire.read().status == 200


def test_a_client_that_sends_no_more_harms_nobody(port: int) -> None:
    # SA10: half-closed; an answer or an end, never a hang
    with Wire(port) as wire:
        wire.send(make_call("echo", {"text": "x"}, port=port))
        wire.half_close()
        try:
            assert wire.read().status == 200
        except EOFError:
            assert wire.ends()
    with Wire(port) as wire:
        wire.send(make_call("hang", port=port, meta=PROGRESS))
        wire.head()
        wire.half_close()
        while True:
            try:
                wire.chunk()
            except EOFError:
                break
    alive(port)


# Clients that go away


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_goes_away_cancels_its_call(port: int, how: str, streaming: bool) -> None:
    # SA25, HM-15, CN-04: within half a second
    before = state(port)
    wire = Wire(port)
    wire.send(make_call("hang", port=port, meta=PROGRESS if streaming else make_meta()))
    if streaming:
        wire.head()
    else:
        until(port, lambda now: now["tasks"] > before["tasks"], 2)
    if how == "reset":
        wire.reset()
    else:
        wire.socket.close()
    until(port, lambda now: now["ended"] == before["ended"] + 1, 0.5)
    until(port, lambda now: now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"], 2)


@pytest.mark.parametrize("end", [10, 200, -20])
def test_a_request_cut_off_half_way_runs_nothing(port: int, end: int) -> None:
    # SA01, SA10
    before = state(port)
    request = make_call("echo", {"text": "x"}, port=port)
    wire = Wire(port)
    wire.send(request[:end])
    wire.reset()
    after = until(port, lambda now: now["descriptors"] <= before["descriptors"], 2)
    assert after["calls"] == before["calls"]


def test_five_hundred_listeners_killed_at_once_are_gone_at_once(port: int) -> None:
    # SB-06, SB-08, SA25
    before = state(port)
    request = make_post("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, port=port)
    wires = [Wire(port) for _ in range(500)]
    for wire in wires:
        wire.send(request)
    for wire in wires:
        wire.head()
        wire.chunk()
    assert state(port)["listeners"] == 500
    for wire in wires:
        wire.reset()
    started = time.monotonic()
    until(port, lambda now: now["listeners"] == 0, 2)
    assert time.monotonic() - started < 1
    until(port, lambda now: now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"], 2)


def test_many_calls_leave_nothing_behind(port: int) -> None:
    # A07, A09
    calls = [make_call("count", {"to": 3}, port=port, meta=PROGRESS), make_call("sync_echo", {"text": "x"}, port=port)]

    def work() -> None:
        with Wire(port) as wire:
            for number in range(1500):
                wire.send(calls[number % 2])
                assert wire.read().status == 200
        wires = [Wire(port) for _ in range(200)]
        for wire in wires:
            wire.send(calls[0])
        for wire in wires:
            assert wire.read().message["result"]["content"][0]["text"] == "counted"
            wire.socket.close()

    work()
    before = until(port, lambda now: now["descriptors"] < 50, 2)
    work()
    after = until(port, lambda now: now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"], 2)
    assert after["resident"] - before["resident"] < 3_000_000


# Slow readers


def test_a_reader_that_does_not_read_costs_bounded_memory_and_still_gets_its_result(port: int) -> None:
    # SA26, SA10
    before = state(port)
    with Wire(port, receive_buffer=4096) as wire:
        wire.send(make_call("flood", {"count": 60_000}, port=port, meta=make_meta(progressToken="p", logLevel="info")))
        wire.head()
        during = until(port, lambda now: now["calls"] > before["calls"], 10)
        assert during["resident"] - before["resident"] < 12_000_000
        body = b""
        while chunk := wire.chunk():
            body += chunk
    assert list(read_events(body))[-1]["result"]["content"][0]["text"] == "flooded"


def test_five_hundred_requests_that_never_end_stop_nobody(port: int) -> None:
    # SA10
    before = state(port)
    request = make_call("echo", {"text": "x"}, port=port)
    wires = [Wire(port) for _ in range(500)]
    for number, wire in enumerate(wires):
        wire.send(request[: (10, 120, -1)[number % 3]])
    started = time.monotonic()
    alive(port)
    assert time.monotonic() - started < 0.5
    for wire in wires:
        wire.socket.close()
    until(port, lambda now: now["tasks"] <= before["tasks"] and now["descriptors"] <= before["descriptors"], 2)


# Sizes


def test_a_body_over_the_limit_is_refused_before_it_is_read(port: int) -> None:
    # SA08
    headers = make_headers(make_request("tools/list"), host=f"127.0.0.1:{port}")
    with Wire(port) as wire:
        wire.send(make_head(5_000_000, headers))
        response = wire.read()
        assert response.status == 413
        assert "max_body" in response.message["error"]["message"]
        assert response.headers["connection"] == "close"
        assert wire.ends()


def test_a_body_without_a_length_is_read_up_to_the_limit(port: int) -> None:
    # SA08
    headers = {**make_headers(make_request("tools/list"), host=f"127.0.0.1:{port}"), "transfer-encoding": "chunked"}
    with Wire(port) as wire:
        wire.send(make_head(None, headers))
        piece = b"%x\r\n%b\r\n" % (1 << 16, b" " * (1 << 16))
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(200):
                wire.send(piece)
        with suppress(EOFError):  # a reset may overtake the answer
            assert wire.read().status == 413
    alive(port)


def test_big_headers_are_refused(port: int) -> None:
    response = ask(port, make_call("echo", {"text": "x"}, port=port, x_padding="x" * 20_000))
    assert response.status == 431
    assert "max_headers" in response.message["error"]["message"]


def test_a_big_call_goes_through_and_comes_back(port: int) -> None:
    # A44
    text = "x" * 3_000_000
    response = ask(port, make_call("echo", {"text": text}, port=port))
    assert response.message["result"]["content"][0]["text"] == text


# What is no HTTP


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), id="SA15 length and chunks"),
        pytest.param((b"Content-Length: ", b"Content-Length: 5\r\nContent-Length: "), id="SA15 two lengths"),
        pytest.param((b"mcp-name: echo", b"mcp-name: e\x00cho"), id="SA13 NUL"),
        pytest.param((b"mcp-name: echo", b"mcp-name: echo\rx-evil: 1"), id="SA13 bare CR"),
        pytest.param((b"mcp-name:", b"mcp name:"), id="space in a name"),
        pytest.param((b"POST /mcp HTTP/1.1", b"POST /mcp HTTP/1.1 x"), id="request line"),
        pytest.param((b"Content-Length: ", b"Content-Length: -"), id="negative length"),
        pytest.param((b"Content-Length: ", b"Content-Length: +"), id="signed length"),
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(port: int, change: tuple[bytes, bytes]) -> None:
    # SA13, SA15
    before = state(port)["calls"]
    with Wire(port) as wire:
        wire.send(make_call("echo", {"text": "x"}, port=port).replace(*change, 1))
        status, headers = wire.head()
        assert status == 400
        assert "x-evil" not in headers
        wire.ends()
    assert state(port)["calls"] == before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param((b"mcp-name: echo\r\n", b"mcp-name: ec\r\n ho\r\n"), id="SA15 obs-fold"),
        pytest.param((b"\r\nmcp-name", b"\nmcp-name"), id="SA15 bare LF"),
    ],
)
def test_what_a_lenient_parser_joins_is_no_call(port: int, change: tuple[bytes, bytes]) -> None:
    # SA15: refused by the HTTP parser, or read as what it says, which is then checked
    with Wire(port) as wire:
        wire.send(make_call("echo", {"text": "x"}, port=port).replace(*change, 1))
        status, _ = wire.head()
        assert status == 400
    alive(port)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"mcp_name": "\xe9cho"}, 400),
        ({"content_type": "text/plain"}, 415),
        ({"content_encoding": "gzip"}, 415),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"accept": "text/html"}, 406),
        ({"mcp_protocol_version": "2031-01-01"}, 400),
    ],
)
def test_refusals_keep_the_connection(port: int, changed: dict[str, str], status: int) -> None:
    # SA09, SA11, SA13, SA14, SA16
    with Wire(port) as wire:
        wire.send(make_call("echo", {"text": "x"}, port=port, **changed))
        response = wire.read()
        assert response.status == status
        assert response.message["error"]["message"]
        wire.send(make_call("echo", {"text": "x"}, port=port))
        assert wire.read().status == 200


def test_another_host_is_refused(port: int) -> None:
    # A34, HM-04
    request = make_call("echo", {"text": "x"}, port=port).replace(f"host: 127.0.0.1:{port}".encode(), b"host: mcp.example.com", 1)
    response = ask(port, request)
    assert response.status == 421
    assert "hosts" in response.message["error"]["message"]


@pytest.mark.parametrize("verb", ["GET", "DELETE", "OPTIONS", "HEAD", "PUT"])
def test_other_verbs_are_refused_at_once(port: int, verb: str) -> None:
    # HM-20, A18
    headers = make_headers(make_request("tools/list"), host=f"127.0.0.1:{port}")
    with Wire(port) as wire:
        started = time.monotonic()
        wire.send(make_head(None, headers, verb=verb))
        status, answered = wire.head()
        assert (status, answered["allow"]) == (405, "POST, GET, DELETE")
        assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
def test_without_a_session_there_is_nothing_to_get_or_delete(port: int, verb: str) -> None:
    # HL-22, A06: a client of 2025 learns at once what it lacks, and holds nothing open
    headers = {"host": f"127.0.0.1:{port}", "accept": "text/event-stream", "mcp-protocol-version": "2025-06-18"}
    tasks = state(port)["tasks"]
    with Wire(port) as wire:
        started = time.monotonic()
        for _ in range(2):
            wire.send(make_head(None, headers, verb=verb))
            response = wire.read()
            assert (response.status, response.message["id"], response.message["error"]["code"]) == (400, None, -32600)
        assert time.monotonic() - started < 0.5
        assert state(port)["tasks"] <= tasks + 1  # this connection's own


def test_nested_arrays_cost_nothing(port: int) -> None:
    # SA05
    before = state(port)["resident"]
    body = b"[" * 1_000_000
    headers = make_headers(make_request("tools/list"), host=f"127.0.0.1:{port}")
    started = time.monotonic()
    response = ask(port, make_head(len(body), headers) + body)
    assert (response.status, response.message["error"]["code"]) == (400, -32700)
    assert time.monotonic() - started < 0.5
    assert state(port)["resident"] - before < 20_000_000


# The end


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_streams_in_good_order_and_the_process_at_once(tmp_path: Path, stop: signal.Signals) -> None:
    # A40, SA39, SB-09
    log = tmp_path / "log"
    with desk(log) as (started, port), Wire(port) as wire:
        wire.send(make_post("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, port=port, request_id="l"))
        wire.head()
        wire.chunk()
        stopped = time.monotonic()
        started.send_signal(stop)
        body = b""
        while chunk := wire.chunk():
            body += chunk
        (message,) = read_events(body)
        assert message["id"] == "l"
        assert message["result"]["resultType"] == "complete"
        assert wire.ends()
        assert started.wait(5) == 0
        assert time.monotonic() - stopped < 2
    assert log.read_text() == ""


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_streams_of_sessions_and_lets_their_calls_finish(tmp_path: Path, stop: signal.Signals) -> None:
    # A40, SA39
    log = tmp_path / "log"
    with desk(log) as (started, port), Wire(port) as channel, Wire(port) as caller:
        headers = open_session(port)
        channel.send(make_head(None, {**headers, "accept": "text/event-stream"}, verb="GET"))
        assert channel.head()[0] == 200
        before = state(port)["tasks"]
        caller.send(make_old_post(headers, "tools/call", {"name": "linger", "arguments": {"seconds": 0.4}}))
        until(port, lambda now: now["tasks"] > before, 2)
        stopped = time.monotonic()
        started.send_signal(stop)
        while chunk := channel.chunk():
            assert b'"method"' not in chunk
        assert channel.ends()
        assert caller.read().message["result"]["content"][0]["text"] == "lingered"
        assert started.wait(5) == 0
        assert time.monotonic() - stopped < 2
    assert log.read_text() == ""


def open_session(port: int) -> dict[str, str]:
    """Open a session of a 2025 client; the headers of its requests."""
    headers = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "accept": "application/json, text/event-stream"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tester", "version": "1"}}
    response = ask(port, make_old_post(headers, "initialize", params))
    assert response.status == 200
    return {**headers, "mcp-protocol-version": "2025-11-25", "mcp-session-id": response.headers["mcp-session-id"]}


def make_old_post(headers: dict[str, str], method: str, params: dict[str, Any]) -> bytes:
    """A whole request of a 2025 client."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    return make_head(len(body), headers) + body


def test_a_stop_lets_running_calls_finish(tmp_path: Path) -> None:
    # A40, SA39
    log = tmp_path / "log"
    with desk(log) as (started, port), Wire(port) as wire:
        wire.send(make_call("linger", {"seconds": 0.4}, port=port))
        until(port, lambda now: now["tasks"] >= 3, 2)
        started.send_signal(signal.SIGTERM)
        assert wire.read().message["result"]["content"][0]["text"] == "lingered"
        assert started.wait(5) == 0
    assert log.read_text() == ""


def test_a_stop_takes_in_no_listener_any_more(tmp_path: Path) -> None:
    # A40, SB-09: a request that is still in middleware when the stream would have been closed
    log = tmp_path / "log"
    with desk(log, "--slow-listen") as (started, port), Wire(port) as wire:
        wire.send(make_post("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, port=port))
        until(port, lambda now: now["tasks"] >= 3, 2)
        started.send_signal(signal.SIGTERM)
        response = wire.read()
        assert response.status == 503 or "result" in response.message
        assert started.wait(5) == 0
    assert log.read_text() == ""


def test_a_stop_waits_for_no_thread_for_ever(tmp_path: Path) -> None:
    # A40, A35
    log = tmp_path / "log"
    with desk(log) as (started, port), Wire(port) as wire:
        wire.send(make_call("block", port=port))
        until(port, lambda now: now["threads"] >= 2, 2)
        wire.reset()
        started.send_signal(signal.SIGTERM)
        assert started.wait(5) == 0
    assert log.read_text() == ""


def test_a_silent_stream_is_kept_alive(tmp_path: Path) -> None:
    # HM-13, A16
    with desk(tmp_path / "log", "--quick") as (_, port), Wire(port) as wire:
        wire.send(make_post("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, port=port))
        wire.head()
        wire.chunk()
        started = time.monotonic()
        for _ in range(3):
            assert wire.chunk().startswith(b":")
        assert 0.1 < time.monotonic() - started < 2


@pytest.mark.parametrize("behind", [1, 2])
def test_a_client_that_goes_away_is_missed_also_with_requests_waiting_behind_its_stream(tmp_path: Path, behind: int) -> None:
    # SA25: the stream's own connection is gone, whatever else was sent on it
    with desk(tmp_path / "log", "--quick") as (_, port):
        before = state(port)
        wire = Wire(port)
        wire.send(make_call("hang", port=port, meta=PROGRESS) + make_call("state", port=port) * behind)
        wire.head()
        wire.reset()
        until(port, lambda now: now["ended"] == before["ended"] + 1, 3)
