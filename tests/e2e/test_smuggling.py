"""Requests that two readers may read differently, byte by byte, against `callboard.run` with each of uvicorn's parsers (SA15).

What one of them takes for one request and a proxy before it for two must be answered 400 and closed, and nothing of it may run.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from e2e.raw_http import Response, Wire, ask, make_call
from e2e.serving import program


@pytest.fixture(scope="module", params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def port(parser: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    log = tmp_path_factory.mktemp("smuggling") / "log"
    with program("slow_server.py", log, f"parser={parser}") as (_, port):
        yield port
    assert "Traceback" not in log.read_text()


def calls(port: int) -> int:
    """How many calls have run."""
    return len(ask(port, make_call("state", port=port)).structured["ran"])


def with_head(port: int, *lines: bytes, drop: tuple[bytes, ...] = (b"content-length",)) -> bytes:
    """A call's head with other lines in place of some of its own, and no body."""
    head = make_call("echo", {"text": "smuggled"}, port=port).partition(b"\r\n\r\n")[0]
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(drop)]
    return b"\r\n".join([*kept, *lines]) + b"\r\n\r\n"


def body(port: int) -> bytes:
    """A call's body."""
    return make_call("echo", {"text": "smuggled"}, port=port).partition(b"\r\n\r\n")[2]


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """One chunk."""
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


CHUNKED = b"Transfer-Encoding: chunked"
END = b"0\r\n\r\n"
# Lines of the head in place of Content-Length, by what is wrong with them; the body follows as it is.
LENGTHS = {
    "negative": [b"Content-Length: -1"],
    "plus": [b"Content-Length: +%d"],
    "hexadecimal": [b"Content-Length: 0x%x"],
    "with a point": [b"Content-Length: %d.0"],
    "two that differ": [b"Content-Length: 5", b"Content-Length: %d"],
    "with a blank": [b"Content-Length: 1 0"],
    "empty": [b"Content-Length: "],
    "beyond 64 bits": [b"Content-Length: 18446744073709551617"],
    "many digits": [b"Content-Length: " + b"9" * 400],
    "underscore": [b"Content-Length: 1_0"],
    "other digits": ["Content-Length: ١٢".encode()],
}
# The same for what comes with Transfer-Encoding; the body follows in chunks.
ENCODINGS = {
    "length after": [CHUNKED, b"Content-Length: %d"],
    "length before": [b"Content-Length: %d", CHUNKED],
    "length of nothing": [b"Content-Length: 0", CHUNKED],
    "unknown": [b"Transfer-Encoding: xchunked"],
    "identity": [b"Transfer-Encoding: identity", b"Content-Length: %d"],
    "chunked is not last": [b"Transfer-Encoding: chunked, gzip"],
    "chunked twice": [b"Transfer-Encoding: chunked, chunked"],
    "two lines": [CHUNKED, b"Transfer-Encoding: identity"],
    "quoted": [b'Transfer-Encoding: "chunked"'],
    "vertical tab": [b"Transfer-Encoding: \x0bchunked"],
    "blank before the colon": [b"Transfer-Encoding : chunked"],
    "bare CR": [b"X: y\rTransfer-Encoding: chunked"],
    "bare LF": [b"X: y\nTransfer-Encoding: chunked"],
    "fold": [b"Transfer-Encoding:\r\n chunked"],
    "NUL": [b"Transfer-Encoding: chunked\x00"],
    "underscore": [b"Content-Length: %d", b"Transfer_Encoding: chunked", b"Transfer-Encoding: chunked"],
}
# What is wrong with the chunks themselves.
CHUNKS = {
    "negative": b"-5\r\nabcde\r\n" + END,
    "plus": b"+5\r\nabcde\r\n" + END,
    "prefix": b"0x5\r\nabcde\r\n" + END,
    "no size": b"\r\nabcde\r\n" + END,
    "no number": b"zz\r\nabcde\r\n" + END,
    "too short": b"3\r\nabcde\r\n" + END,
    "bare LF after the size": b"5\nabcde\r\n" + END,
    "bare CR after the size": b"5\rabcde\r\n" + END,
    "bare LF after the data": b"5\r\nabcde\n" + END,
    "bare LF in an extension": b"5;a\nabcde\r\n" + END,
    "trailer without a colon": b"5\r\nabcde\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
}
# What is wrong with the request line, or with another line of the head.
LINES = {
    "no version": (b" HTTP/1.1\r\n", b"\r\n"),
    "version 3": (b"HTTP/1.1", b"HTTP/3.0"),
    "version 1.10": (b"HTTP/1.1", b"HTTP/1.10"),
    "a tab": (b"POST ", b"POST\t"),
    "a target with a blank": (b"/mcp", b"/mcp /x"),
    "a control character in the target": (b"/mcp", b"/mcp\x01"),
    "a verb of its own": (b"POST", b"P@ST"),
    "a blank first": (b"POST", b" POST"),
    "fold of the first header": (b"\r\n", b"\r\n X: y\r\n"),
    "fold": (b"mcp-name: echo", b"mcp-name: echo\r\n x"),
    "a name with a blank": (b"mcp-name:", b"mcp name:"),
    "no name": (b"mcp-name:", b":"),
    "no colon": (b"mcp-name: echo", b"mcp-name echo"),
    "a name with a NUL": (b"mcp-name:", b"mcp-na\x00me:"),
    "bare LF": (b"mcp-name: echo\r\n", b"mcp-name: echo\n"),
    "bare CR": (b"mcp-name: echo\r\n", b"mcp-name: echo\r"),
    "two hosts": (b"mcp-name:", b"Host: evil.example\r\nmcp-name:"),
    "the same host twice": (b"mcp-name:", b"Host: 127.0.0.1\r\nmcp-name:"),
}
FOLLOWED = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"


def refused(port: int, data: bytes, statuses: tuple[int, ...] = (400,)) -> Response:
    """Demand that bytes are refused as one request, with 400 and the end of the connection, and that nothing of them runs."""
    before = calls(port)
    with Wire(port) as wire:
        with suppress(OSError):
            wire.send(data + FOLLOWED)
        answer = wire.read()
        assert answer.status in statuses, answer.body
        assert answer.headers["connection"] == "close"
        assert wire.ends()
    assert calls(port) == before
    return answer


@pytest.mark.parametrize("lines", LENGTHS.values(), ids=LENGTHS)
def test_a_length_that_is_none(port: int, lines: list[bytes]) -> None:
    # SA15; to h11 a number of 20 digits is one, and too large
    size = len(body(port))
    refused(
        port, with_head(port, *[line.replace(b"%d", b"%d" % size).replace(b"%x", b"%x" % size) for line in lines]) + body(port), (400, 413)
    )


@pytest.mark.parametrize("lines", ENCODINGS.values(), ids=ENCODINGS)
def test_chunks_beside_something_else(port: int, lines: list[bytes]) -> None:
    # SA15
    chunks = chunk(body(port)) + END
    refused(port, with_head(port, *[line.replace(b"%d", b"%d" % len(chunks)) for line in lines]) + chunks)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_chunks_that_are_none(port: int, chunks: bytes) -> None:
    # SA15
    refused(port, with_head(port, CHUNKED) + chunks)


def test_a_chunk_beyond_64_bits(port: int, parser: str) -> None:
    # SA15; to h11 it is one that does not end, which is a matter of time
    if parser == "httptools":
        refused(port, with_head(port, CHUNKED) + b"1" + b"0" * 16 + b"\r\nabcde\r\n" + END)


@pytest.mark.parametrize("change", LINES.values(), ids=LINES)
def test_a_head_that_is_none(port: int, change: tuple[bytes, bytes]) -> None:
    # SA15, SA13
    call = make_call("echo", {"text": "smuggled"}, port=port)
    assert change[0] in call
    refused(port, call.replace(*change, 1))


@pytest.mark.parametrize("host", [b"evil.example", b"127.0.0.1@evil.example", b"127.0.0.1.evil.example", b"127.0.0.1:1"])
def test_a_target_of_another_host(port: int, parser: str, host: bytes) -> None:
    # SA15: which of the two is asked for?
    call = make_call("echo", {"text": "smuggled"}, port=port).replace(b"/mcp", b"http://%b/mcp" % host, 1)
    if parser == "httptools":
        refused(port, call)
    else:
        assert ask(port, call).status == 404


def test_a_target_of_this_host_is_served(port: int, parser: str) -> None:
    # RFC 9112 section 3.2.2
    call = make_call("echo", {"text": "plain"}, port=port)
    host = call.partition(b"host: ")[2].partition(b"\r\n")[0]
    answer = ask(port, call.replace(b"/mcp", b"http://%b/mcp" % host, 1))
    assert answer.status == (200 if parser == "httptools" else 404)


@pytest.mark.parametrize("warm", [0, 3])
def test_what_is_left_of_a_body_is_no_request(port: int, warm: int) -> None:
    # SA15: also where the head of the request has been seen before
    call = make_call("echo", {"text": "plain"}, port=port)
    before = calls(port)
    with Wire(port) as wire:
        for _ in range(warm):
            wire.send(call)
            assert wire.read().status == 200
        wire.send(call + b"G" + call)
        assert wire.read().status == 200
        with suppress(EOFError):  # closed after the answer, where the parser sees the rest while the call runs
            assert wire.read().status in {400, 404, 405}
    assert calls(port) == before + warm + 1


@pytest.mark.parametrize("chunks", [1, 7], ids=["one chunk", "chunks of seven bytes"])
@pytest.mark.parametrize("extension", [b"", b";a=b", b';a="b;c"'], ids=["plain", "extension", "quoted extension"])
def test_chunks_are_put_together(port: int, chunks: int, extension: bytes) -> None:
    data, size = body(port), len(body(port)) if chunks == 1 else 7
    parts = [chunk(data[at : at + size], extension) for at in range(0, len(data), size)]
    with Wire(port) as wire:
        for trailer in (b"", b"X-Trailer: 1\r\n"):
            wire.send(with_head(port, CHUNKED) + b"".join(parts) + b"0\r\n" + trailer + b"\r\n")
            assert wire.read().message["result"]["content"][0]["text"] == "smuggled"
