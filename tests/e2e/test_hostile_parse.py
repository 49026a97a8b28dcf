"""SA01 to SA07 over a socket: bodies that are no requests, and results that are no JSON, in every version; then the process is as it was."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_driver import LATEST
from e2e.hostile_driver import ERAS, MIB, V03, Speaker, Target, stall


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with stall(tmp_path_factory.mktemp("parse"), quiet=False, limits={"max_items": 50_000}) as target:
        yield target


@pytest.fixture(params=ERAS)
def speaker(request: pytest.FixtureRequest, target: Target) -> Iterator[Speaker]:
    """Its next call is served, whatever was sent, and nothing has run."""
    with target.unharmed(request.param) as speaker:
        yield speaker


LIST = b'"jsonrpc":"2.0","method":"tools/list"'
NO_JSON = {
    "SA01 empty": b"",
    "SA01 truncated": b'{"jsonrpc":"2.0","id":1,"meth',
    "SA01 truncated in params": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{',
    "SA01 truncated in a string": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"b',
    "SA01 truncated in an escape": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\\u00',
    "SA01 two values": b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}{}',
    "SA01 trailing comma": b'{"jsonrpc":"2.0","id":1,"method":"tools/list",}',
    "SA01 comment": b'{"jsonrpc":"2.0","id":1,"method":"tools/list"/**/}',
    "SA01 single quotes": b"{'jsonrpc':'2.0','id':1,'method':'tools/list'}",
    "SA01 a control character": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\x01"}}',
    "SA01 byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
    "SA01 UTF-16": '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'.encode("utf-16"),
    "SA02 ff fe": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\xff\xfe"}}',
    "SA02 overlong": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\xc0\xae"}}',
    "SA02 encoded surrogate": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":"\xed\xa0\x80"}}',
    "NaN": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":NaN}}',
    "Infinity": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":-Infinity}}',
    "SA05 arrays": b"[" * 20_000,
    "SA05 objects": b'{"a":' * 20_000,
    "SA05 closed": b"[" * 20_000 + b"]" * 20_000,
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_what_is_no_json_is_a_parse_error_without_an_id(speaker: Speaker, body: bytes) -> None:
    # SA01, SA02, SA05, JR-09
    message = speaker.expect(speaker.send(body), 400, -32700)
    assert speaker.has_no_id(message)


@pytest.mark.parametrize("request_id", [b"null", b"1.5", b"true", b"{}", b"[]", b"1e400"])
def test_an_id_is_a_text_or_an_integer(speaker: Speaker, request_id: bytes) -> None:
    # SA03
    answer = speaker.send(b'{"id":%b,%b}' % (request_id, LIST))
    assert speaker.has_no_id(speaker.expect(answer, 400, -32600))


SCALARS = {"SA04 empty array": b"[]", "SA04 number": b"42", "SA04 text": b'"tools/list"', "SA04 null": b"null", "SA04 true": b"true"}


@pytest.mark.parametrize("body", SCALARS.values(), ids=SCALARS)
def test_what_is_no_object_is_no_request(speaker: Speaker, body: bytes) -> None:
    # SA04
    assert speaker.has_no_id(speaker.expect(speaker.send(body), 400, -32600))


def test_a_batch_is_refused_but_in_the_version_that_has_it(speaker: Speaker) -> None:
    # SA04, JR-18, JR-20
    batch = [speaker.request("tools/list", request_id=number) for number in (1, 2)]
    answer = speaker.send(json.dumps(batch).encode())
    if speaker.version == V03:
        assert {message["id"] for message in json.loads(answer.body)} == {1, 2}
    else:
        assert speaker.has_no_id(speaker.expect(answer, 400, -32600))


def test_a_batch_with_garbage_in_it_answers_the_rest(target: Target) -> None:
    # SA04: 2025-03-26
    speaker = target.speaker(V03)
    answer = speaker.send(b'[%b,1,{"id":null},[]]' % speaker.encode("tools/list", request_id="good"))
    found = json.loads(answer.body)
    assert [message["id"] for message in found if "result" in message] == ["good"]
    assert {message["error"]["code"] for message in found if "error" in message} == {-32600}


TWICE = {
    "id": b'{"id":7,"id":8,%b}' % LIST,
    "method": b'{"id":7,"method":"tools/call",%b}' % LIST,
    "params": b'{"id":7,%b,"params":{},"params":{"cursor":"x"}}' % LIST,
    "params.name": b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"quick","name":"crash"}}',
    "params.uri": b'{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"desk://rules","uri":"desk://hidden"}}',
    "params.arguments": b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a","text":"b"}}}',
    "escaped": b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"quick","\\u006eame":"crash"}}',
}


@pytest.mark.parametrize("body", TWICE.values(), ids=TWICE)
def test_a_key_that_two_readers_may_read_differently_is_refused(speaker: Speaker, body: bytes) -> None:
    # HH-06: the proxy in front may have judged the other one
    message = speaker.expect(speaker.send(body, speaker.request("tools/call", {"name": "quick"})), 400, -32600)
    assert "twice" in message["error"]["message"]


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00x", "\\ud83d\\u0041"])
def test_half_a_surrogate_pair_reaches_nobody(speaker: Speaker, escape: str) -> None:
    # SA06
    body = speaker.encode("tools/call", {"name": "echo", "arguments": {"text": "@"}}, request_id="x").replace(b"@", escape.encode())
    answer = speaker.send(body, speaker.request("tools/call", {"name": "echo"}))
    assert answer.message["error"]["code"] == -32602
    assert answer.message["id"] == "x"
    assert b"\\ud" not in answer.body


BAD_RESULTS = ("surrogate", "surrogate_inside", "nan", "raw_bytes", "cycle", "no_json")


@pytest.mark.parametrize("tool", BAD_RESULTS)
def test_a_result_that_is_no_json_is_that_calls_error(speaker: Speaker, tool: str) -> None:
    # SA07: within a second, in valid JSON
    started = time.monotonic()
    answer = speaker.call(tool)
    assert time.monotonic() - started < 1
    message = json.loads(answer.body.decode("utf-8", "strict"), parse_constant=pytest.fail)
    failed = "error" in message or message["result"].get("isError")
    assert failed or tool in {"nan", "raw_bytes"}  # which have a form that JSON knows
    assert "\ud800" not in answer.body.decode()


def test_a_result_of_ten_megabytes_arrives_or_is_an_error(speaker: Speaker) -> None:
    # SA07
    message = speaker.call("huge").message
    assert len(message["result"]["content"][0]["text"]) == 10_000_000


def test_a_million_nested_arrays_cost_neither_time_nor_memory(target: Target) -> None:
    # SA05: the best of three under 200 ms, in every version, and nothing is kept
    bodies = [b"[" * MIB, b"[" * (MIB // 2) + b"]" * (MIB // 2), b'{"a":' * (MIB // 5)]

    def send(speaker: Speaker, body: bytes) -> float:
        started = time.monotonic()
        speaker.expect(speaker.send(body), 400, -32700)
        return time.monotonic() - started

    speakers = [target.speaker(version) for version in (LATEST, V03)]
    for speaker in speakers:
        for body in bodies:
            send(speaker, body)
    before = target.health()["resident"]
    for speaker in speakers:
        for body in bodies:
            assert min(send(speaker, body) for _ in range(3)) < 0.2
    assert target.health()["resident"] - before < 8 * MIB


def nest(depth: int) -> list[Any]:
    """An array in an array and so on: so many levels in all."""
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


@pytest.mark.parametrize(("depth", "fits"), [(125, True), (126, True), (127, False)])
def test_nesting_is_allowed_up_to_the_limit(speaker: Speaker, depth: int, fits: bool) -> None:
    # SA05: 128 levels, of which the message and its params are two
    message = speaker.request("tools/list", {"extra": nest(depth)})
    answer = speaker.send(json.dumps(message).encode(), message)
    if fits:
        assert "result" in answer.message
    else:
        speaker.expect(answer, 400, -32700)
        assert "max_depth" in answer.message["error"]["message"]


@pytest.mark.parametrize("head", [b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"a":', b'{"jsonrpc":"1.0","id":7,"a":{"a":'])
def test_more_values_than_the_limit_are_refused(speaker: Speaker, head: bytes) -> None:
    # max_items = 50,000
    body = head + b"[" + b",".join([b"[]"] * 30_000) + b"]}}"
    message = speaker.expect(speaker.send(body), 400, -32600)
    assert "max_items" in message["error"]["message"]
