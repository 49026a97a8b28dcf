"""SA08, SA09, SA11 to SA14, SA18 to SA21 over a socket: heads and envelopes that lie, are missing, too large or compressed."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_driver import LATEST, META_PREFIX, make_headers, make_meta, make_request
from e2e.hostile_driver import ERAS, MIB, V03, V11, Speaker, Target, stall
from e2e.raw_http import ask, make_head

MAX_BODY, MAX_HEADERS = 100_000, 8_000


@pytest.fixture(scope="module", params=["run", "uvicorn"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    limits = {"max_body": MAX_BODY, "max_headers": MAX_HEADERS}
    with stall(tmp_path_factory.mktemp("headers"), plain=request.param == "uvicorn", limits=limits) as target:
        yield target


@pytest.fixture(scope="module")
def unpacking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("gzip"), encodings=["gzip", "deflate"]) as target:
        yield target


@pytest.fixture(params=ERAS)
def speaker(request: pytest.FixtureRequest, target: Target) -> Iterator[Speaker]:
    """Its next call is served, whatever was sent, and nothing has run."""
    with target.unharmed(request.param) as speaker:
        yield speaker


@pytest.fixture
def modern(target: Target) -> Iterator[Speaker]:
    before = target.runs()
    yield target.speaker(LATEST)
    assert target.runs() == before, "something ran"


# Sizes


def test_a_body_that_says_it_is_too_large_is_refused_unread(speaker: Speaker, target: Target) -> None:
    # SA08: none of the body is sent
    head = make_head(MAX_BODY + 1, speaker.headers())
    with target.wire() as wire:
        wire.send(head)
        answer = wire.read()
        assert (answer.status, answer.message["error"]["code"]) == (413, -32600)
        assert "max_body" in answer.message["error"]["message"]
        assert answer.headers["connection"] == "close"
        wire.half_close()
        assert wire.ends()


def pad(speaker: Speaker, size: int) -> bytes:
    """A call whose body has so many bytes."""
    body = speaker.encode("tools/call", {"name": "quick", "arguments": {}, "x": ""}, request_id="n")
    return body.replace(b'"x": ""', b'"x": "%b"' % (b"y" * (size - len(body))))


@pytest.mark.parametrize(("size", "fits"), [(MAX_BODY - 1, True), (MAX_BODY, True), (MAX_BODY + 1, False)])
def test_a_body_fits_up_to_the_limit(speaker: Speaker, size: int, fits: bool) -> None:
    # SA08, the limit table: n-1, n, n+1
    body = pad(speaker, size)
    assert len(body) == size
    answer = speaker.send(body, speaker.request("tools/call", {"name": "quick"}))
    assert answer.status == (200 if fits else 413)


@pytest.mark.parametrize(("size", "fits"), [(MAX_BODY, True), (MAX_BODY + 1, False)])
def test_a_body_in_chunks_fits_up_to_the_limit(speaker: Speaker, target: Target, size: int, fits: bool) -> None:
    # SA08: it does not say how large it is
    body = pad(speaker, size)
    headers = {**speaker.headers(speaker.request("tools/call", {"name": "quick"})), "transfer-encoding": "chunked"}
    with target.wire() as wire:
        wire.send(make_head(None, headers))
        for at in range(0, size, 9999):
            piece = body[at : at + 9999]
            wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        wire.send(b"0\r\n\r\n")
        assert wire.read().status == (200 if fits else 413)


@pytest.mark.parametrize(("size", "fits"), [(MAX_HEADERS - 1, True), (MAX_HEADERS, True), (MAX_HEADERS + 1, False)])
def test_headers_fit_up_to_the_limit(speaker: Speaker, size: int, fits: bool) -> None:
    # SA08: names and values together
    message = speaker.request("tools/call", {"name": "quick"})
    body = json.dumps(message).encode()
    headers = {**speaker.headers(message), "content-length": str(len(body)), "x-padding": ""}
    headers["x-padding"] = "x" * (size - sum(len(name) + len(value) for name, value in headers.items()))
    answer = ask(speaker.port, make_head(None, headers) + body)
    assert answer.status == (200 if fits else 431)
    assert fits or "max_headers" in answer.message["error"]["message"]


# Compression


def test_a_bomb_is_not_opened(speaker: Speaker, target: Target) -> None:
    # SA09
    before = target.health()["resident"]
    for encoding in ("gzip", "x-gzip", "deflate", "br", "zstd", "compress", "identity, gzip", "gzip, identity", "é"):
        answer = speaker.send(BOMB, content_encoding=encoding)
        assert (answer.status, answer.message["error"]["code"]) == (415, -32600)
        assert "encodings=" in answer.message["error"]["message"]
    assert target.health()["resident"] - before < 8 * MIB


BOMB = gzip.compress(bytes(60 * MIB), compresslevel=9)  # 60 KiB


@pytest.mark.parametrize("version", ERAS)
def test_where_compressed_bodies_are_taken_a_bomb_is_not_opened_either(unpacking: Target, version: str) -> None:
    # SA09: 413 where the cap is met
    speaker = unpacking.speaker(version)
    big = gzip.compress(bytes(4 * MIB + 1))
    for body in (big, BOMB, gzip.compress(bytes(3 * MIB)) * 2):
        answer = speaker.send(body, content_encoding="gzip")
        assert (answer.status, answer.message["error"]["code"]) == (413, -32600)
        assert "max_body" in answer.message["error"]["message"]
    before = unpacking.health()["resident"]
    for _ in range(20):
        assert speaker.send(BOMB, content_encoding="gzip").status == 413
    assert unpacking.health()["resident"] - before < 12 * MIB
    speaker.serves()


@pytest.mark.parametrize("version", ERAS)
def test_a_compressed_request_is_served_where_that_is_allowed(unpacking: Target, version: str) -> None:
    # SA09
    speaker = unpacking.speaker(version)
    message = speaker.request("tools/call", {"name": "echo", "arguments": {"text": "packed"}})
    body = json.dumps(message).encode()
    packed = {"gzip": gzip.compress(body), "X-GZIP": gzip.compress(body), "deflate": zlib.compress(body), "identity": body}
    for _ in range(2):
        for encoding, data in packed.items():
            answer = speaker.send(data, message, content_encoding=encoding)
            assert answer.message["result"]["content"][0]["text"] == "packed"
    assert speaker.send(gzip.compress(body)[:-3], message, content_encoding="gzip").message["error"]["code"] == -32700
    assert speaker.send(body, message, content_encoding="gzip").message["error"]["code"] == -32700
    assert speaker.send(b"", message, content_encoding="gzip").message["error"]["code"] == -32700
    assert speaker.send(body, message, content_encoding="br").status == 415


# What the head says of the body

CALL = make_request("tools/call", {"name": "echo", "arguments": {"text": "x"}})
MISMATCHED: dict[str, dict[str, Any]] = {
    "SA11 version absent": {"mcp_protocol_version": None},
    "SA11 version differs": {"mcp_protocol_version": "2027-01-01"},
    "SA12 method absent": {"mcp_method": None},
    "SA12 method differs": {"mcp_method": "tools/list"},
    "SA12 method in capitals": {"mcp_method": "Tools/Call"},
    "SA12 name absent": {"mcp_name": None},
    "SA12 name differs": {"mcp_name": "stow"},
    "SA12 name in capitals": {"mcp_name": "Echo"},
    "SA12 name in base64 differs": {"mcp_name": "=?base64?c3Rvdw==?="},
    "SA12 name in bad base64": {"mcp_name": "=?base64?ZWNobw?="},
    "SA12 name in base64 with stray bits": {"mcp_name": "=?base64?ZWNobx==?="},
    "SA13 name with a tab": {"mcp_name": "ec\tho"},
    "SA13 name beyond ASCII": {"mcp_name": "echo\xe9"},
    "SA13 name in encoded words": {"mcp_name": "=?utf-8?q?echo?="},
}


@pytest.mark.parametrize("changed", MISMATCHED.values(), ids=MISMATCHED)
def test_a_head_that_says_something_else_is_refused(modern: Speaker, changed: dict[str, Any]) -> None:
    # SA11, SA12, SA13, HH-06
    answer = modern.send(json.dumps(CALL).encode(), CALL, **changed)
    assert (answer.status, answer.message["error"]["code"]) == (400, -32020)
    assert answer.message["id"] == 1


def test_a_parameter_that_a_header_mirrors_says_the_same(modern: Speaker) -> None:
    # SA12, HH-19
    stow = make_request("tools/call", {"name": "stow", "arguments": {"bay": 1, "region": "us"}})
    for value in (None, "eu", "US", "=?base64?ZXU=?=", "us\xe9"):
        answer = modern.send(json.dumps(stow).encode(), stow, mcp_param_region=value)
        assert (answer.status, answer.message["error"]["code"]) == (400, -32020)


HOSTILE_VALUES = {
    "NUL": b"a\x00b",
    "CR": b"a\rx-evil: 1",
    "LF": b"a\nx-evil: 1",
    "CR LF": b"a\r\nx-evil: 1",
    "control": b"a\x01b",
    "DEL": b"a\x7fb",
    "high": b"a\xff\xfeb",
    "escape": b"\x1b[31mred",
    "UTF-8": "a\u2028b".encode(),
}


@pytest.mark.parametrize("name", ["mcp-name", "mcp-method", "mcp-protocol-version", "mcp-session-id", "last-event-id", "origin"])
@pytest.mark.parametrize("version", [LATEST, V11])
def test_no_header_value_comes_back_as_a_header(target: Target, name: str, version: str) -> None:
    # SA13: refused, or served where the header has no say; never echoed into a head or the log
    for value in HOSTILE_VALUES.values():
        send_hostile(target.speaker(version), target, name, value)
    target.speaker(version).serves()


def send_hostile(speaker: Speaker, target: Target, name: str, value: bytes) -> None:
    """Send a call with a hostile header, and look for it in what comes back."""
    message = speaker.request("tools/call", {"name": "quick"})
    headers = {key: text for key, text in speaker.headers(message).items() if key != name}
    body = json.dumps(message).encode()
    head = make_head(len(body), {**headers, name: "@"}).replace(b"@", value)
    with target.wire() as wire:
        wire.send(head + body)
        answer = wire.read()
    assert "x-evil" not in answer.headers
    shown = json.dumps(answer.headers)
    assert not any(text in shown for text in ("\\u0000", "\\u0001", "\\u001b", "\\u00ff", "evil"))
    assert b"\x1b" not in answer.body
    assert b"x-evil: 1\r" not in answer.body
    ignored = name not in speaker.headers(message) and answer.status == 200
    split = b"\r\n" in value and answer.status == 200  # two headers, of which the second says nothing to us
    assert answer.status in {400, 403, 404} or ignored or split


SESSION_IDS = ["x" * 1024, "../../etc/passwd", "' or 1=1 --", "%00", "\xff", "a b", "null", "=?base64?eA==?=", "{}"]


@pytest.mark.parametrize("session_id", SESSION_IDS)
def test_a_made_up_session_is_unknown(speaker: Speaker, session_id: str) -> None:
    # SA13, SA22; the current protocol has none, so it looks at none
    answer = speaker.call("quick", mcp_session_id=session_id)
    assert answer.status == (200 if speaker.is_modern else 404)
    assert session_id not in answer.body.decode()


TYPES = ["text/plain", "text/plain; charset=application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]


@pytest.mark.parametrize("content_type", TYPES)
def test_what_a_browser_sends_without_asking_runs_nothing(speaker: Speaker, content_type: str | None) -> None:
    # SA14
    answer = speaker.call("echo", {"text": "x"}, content_type=content_type)
    assert (answer.status, answer.message["error"]["code"]) == (415, -32600)
    assert "id" not in answer.message


# Versions, envelopes, names


@pytest.mark.parametrize("version", ["1900-01-01", "2099-01-01", "latest", "", "2026-07-28 ", "2026-07-28\u200b"])
def test_a_version_that_nobody_speaks_is_refused_with_those_that_are_spoken(modern: Speaker, version: str) -> None:
    # SA18
    message = make_request("tools/list", meta={**make_meta(), f"{META_PREFIX}protocolVersion": version})
    answer = modern.send(
        json.dumps(message).encode(), message, mcp_protocol_version=version if version.isascii() and version.strip() else None
    )
    assert answer.status == 400
    error = answer.message["error"]
    if version.isascii() and version == version.strip() and version:
        assert (error["code"], error["data"]["requested"]) == (-32022, version)
        assert error["data"]["supported"] == list(ERAS)
    else:
        assert error["code"] in {-32020, -32022}


@pytest.mark.parametrize("version", [V11, V03])
def test_a_session_in_a_version_that_nobody_speaks_is_refused(target: Target, version: str) -> None:
    # SA18
    answer = target.speaker(version).call("quick", mcp_protocol_version="1900-01-01")
    assert answer.status == 400
    assert answer.message["error"]["data"]["supported"] == list(ERAS)


ENVELOPES: dict[str, tuple[Any, int]] = {
    "no _meta": (None, 400),
    "no version": ({f"{META_PREFIX}clientCapabilities": {}}, 400),
    "no capabilities": ({f"{META_PREFIX}protocolVersion": LATEST}, 400),
    "capabilities of a wrong type": ({**make_meta(), f"{META_PREFIX}clientCapabilities": []}, 400),
    "no client info": (make_meta(), 200),
    "client info of a wrong type": ({**make_meta(), f"{META_PREFIX}clientInfo": "x"}, 400),
    "level of a wrong type": ({**make_meta(), f"{META_PREFIX}logLevel": "loud"}, 400),
    "array": ([], 400),
    "text": ("x", 400),
}


@pytest.mark.parametrize(("meta", "status"), ENVELOPES.values(), ids=ENVELOPES)
def test_an_envelope_has_what_it_needs(modern: Speaker, meta: Any, status: int) -> None:
    # SA19
    message = make_request("tools/list")
    message["params"]["_meta"] = meta
    if meta is None:
        del message["params"]["_meta"]
    answer = modern.send(json.dumps(message).encode(), message)
    assert answer.status == status
    assert status == 200 or answer.message["error"]["code"] == -32602


@pytest.mark.parametrize("method", ["tools/none", "ping", "initialize", "logging/setLevel", "", "tools/call ", "__init__", "x" * 2000])
def test_a_method_that_there_is_not_is_not_found(speaker: Speaker, method: str) -> None:
    # SA20
    answer = speaker.post(method, mcp_method=method or None)
    if not speaker.is_modern and method in {"ping", "initialize", "logging/setLevel"}:
        assert answer.message.get("error", {}).get("code") != -32601  # a session has these
    elif method and method == method.strip():
        speaker.expect(answer, 404, -32601, legacy=(200, -32601))
    else:
        assert answer.message["error"]["code"] in {-32601, -32020}
    assert "x" * 100 not in answer.body.decode()


UNKNOWN = [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")]


@pytest.mark.parametrize(("method", "key"), UNKNOWN)
def test_what_is_hidden_looks_like_what_is_not_there(speaker: Speaker, method: str, key: str) -> None:
    # SA21: byte for byte, but for what was asked for
    hidden = {"tools/call": "hidden", "prompts/get": "hidden_prompt", "resources/read": "desk://hidden"}[method]
    absent = hidden[:-1] + "m"
    answers = [speaker.post(method, {key: name}, request_id=1) for name in (hidden, absent)]
    bodies = [answer.body.replace(name.encode(), b"@") for answer, name in zip(answers, (hidden, absent), strict=True)]
    assert bodies[0] == bodies[1]
    heads = [{name: text for name, text in answer.headers.items() if name not in {"date", "content-length"}} for answer in answers]
    assert heads[0] == heads[1]
    assert answers[0].status == answers[1].status
    code = -32002 if method == "resources/read" else -32602
    speaker.expect(answers[0], 400, -32602, legacy=(200, code))


def test_alice_sees_what_is_hidden(tmp_path_factory: pytest.TempPathFactory) -> None:
    # SA21: the test above would pass if nobody could
    with stall(tmp_path_factory.mktemp("alice"), principals=True) as target:
        alice = Speaker(target.port, V11, {"x-principal": "alice"})
        assert alice.call("hidden").message["result"]["content"][0]["text"] == "seen"
        alice.close()
        assert make_headers(CALL)["mcp-name"] == "echo"
