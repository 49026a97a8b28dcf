"""Heads of requests that do not end, or offer what nobody takes, against `callboard.run`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.raw_http import Wire, ask, make_call
from e2e.serving import program

LIMIT = 2 * 1024 * 1024


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("desk") / "log"
    with program("desk_server.py", log) as (_, port):
        yield port


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        pytest.param(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"a" * 65536, id="one value"),
        pytest.param(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-Y: aaaaaaaaaaaa\r\n" * 3000, id="many headers"),
        pytest.param(b"POST /mcp?", b"a" * 65536, id="the path"),
    ],
)
def test_a_head_that_does_not_end_is_cut_off(port: int, start: bytes, piece: bytes) -> None:
    # SA08, HH-25: 431 and close, long before it fills the memory
    with Wire(port) as wire:
        wire.send(start)
        sent = 0
        try:
            while sent < LIMIT:
                wire.send(piece)
                sent += len(piece)
        except OSError:
            pass  # cut off
        else:
            answer = wire.read()
            assert (answer.status, answer.message["error"]["code"]) == (431, -32600)
            assert "max_headers" in answer.message["error"]["message"]
    assert ask(port, make_call("echo", {"text": "hi"}, port=port)).status == 200


def test_an_offer_to_upgrade_is_answered_with_the_way_out(port: int) -> None:
    # A42: uvicorn drops the body of such a request
    call = make_call("echo", {"text": "hi"}, port=port)
    offer = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    answer = ask(port, call.replace(b"\r\n", offer, 1))
    assert answer.status in {200, 400}
    if answer.status == 400:
        assert "upgrade" in answer.message["error"]["message"]


def test_a_trailer_does_not_pass_for_a_header(port: int) -> None:
    # HH-06, SA12: whoever looks at the headers alone has not seen it
    call = make_call("echo", {"text": "hi"}, port=port)
    head, body = call.split(b"\r\n\r\n", 1)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"content-length", b"mcp-name"))]
    chunked = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    answer = ask(port, chunked + b"Mcp-Name: echo\r\n\r\n")
    assert (answer.status, answer.message["error"]["code"]) == (400, -32020)
    named = b"\r\n".join([*lines, b"Mcp-Name: echo", b"Transfer-Encoding: chunked"]) + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert ask(port, named).status == 200
