"""Bytes to messages and back: one parse, strict where leniency would hurt."""

import json
import math
import tracemalloc
from time import process_time
from typing import Any

import msgspec
import pytest
from oracles import mcp_types_validate, schema_dir, validate

from callboard.errors import Reason
from callboard.wire.jsonrpc import (
    MAX_DEPTH,
    Batch,
    Malformed,
    RawNotification,
    RawRequest,
    RawResponse,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
)


def refusal(body: bytes | str) -> Malformed:
    """What the body is refused with."""
    message = decode(body.encode() if isinstance(body, str) else body)
    assert isinstance(message, Malformed)
    return message


def raw_request(params: str) -> str:
    return '{"jsonrpc":"2.0","id":7,"method":"x","params":' + params + "}"


# Messages


@pytest.mark.parametrize("kind", [RawRequest, RawNotification])
def test_params_of_null_are_none(kind: type[Any]) -> None:
    head = '"id":6,' if kind is RawRequest else ""
    message = decode(f'{{"jsonrpc":"2.0",{head}"method":"x","params":null}}'.encode())
    assert isinstance(message, RawRequest | RawNotification)
    assert (type(message), message.params) == (kind, None)


@pytest.mark.parametrize("request_id", ["1", 1, "01", "é", "", 0, -5, 2**53, 2**64 - 1, "😀", "\n", 10**30])
def test_a_request_keeps_its_id_and_its_type(request_id: Any) -> None:
    # A25, JR-02
    message = decode(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "m"}).encode())
    assert isinstance(message, RawRequest)
    assert (message.id, type(message.id)) == (request_id, type(request_id))
    assert json.loads(encode_result(message.id, {}))["id"] == request_id


def test_params_stay_raw() -> None:
    message = decode(raw_request(' {"a": [1, 2]} ').encode())
    assert isinstance(message, RawRequest)
    assert message.params is not None
    assert bytes(message.params) == b'{"a": [1, 2]}'
    assert message.method == "x"


def test_params_may_be_absent() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"x"}')
    assert isinstance(message, RawRequest)
    assert message.params is None


def test_no_id_makes_a_notification() -> None:
    # JR-12
    message = decode(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
    assert isinstance(message, RawNotification)
    assert message.method == "notifications/cancelled"


@pytest.mark.parametrize("kind", ["result", "error"])
def test_a_response_is_told_from_a_request(kind: str) -> None:
    message = decode(b'{"jsonrpc":"2.0","id":"a","%b":{}}' % kind.encode())
    assert isinstance(message, RawResponse)
    assert (message.id, message.result is None, message.error is None) == ("a", kind == "error", kind == "result")


def test_an_error_without_id_is_a_response() -> None:
    # JR-09
    message = decode(b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}')
    assert isinstance(message, RawResponse)
    assert message.id is None


def test_keys_may_come_in_any_order_and_unknown_ones_are_skipped() -> None:
    message = decode(b' {"params":{},"extra":[{"id":9}],"method":"m","id":3,"jsonrpc":"2.0"}\r\n')
    assert isinstance(message, RawRequest)
    assert (message.id, message.method) == (3, "m")


def test_an_array_is_a_batch_whose_time_has_gone() -> None:
    # JR-20, SA04
    assert isinstance(decode(b'[{"jsonrpc":"2.0","id":1,"method":"x"}]'), Batch)
    assert refusal("[]").fail.reason is Reason.INVALID_REQUEST


# What is no JSON


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b" \n", id="blank"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"meth', id="SA01 truncated in a key"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"x"', id="SA01 truncated at the end"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"b', id="SA01 truncated in params"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xff\xfe"}}', id="SA02 ff fe in a string"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}', id="SA02 ff fe in the method"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xc0\xaf"}}', id="overlong UTF-8"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xed\xa0\x80"}}', id="surrogate as UTF-8"),
        pytest.param('{"jsonrpc":"2.0","id":1,"method":"x"}'.encode("utf-16"), id="UTF-16"),
        pytest.param('{"jsonrpc":"2.0","id":1,"method":"x"}'.encode("utf-16-le"), id="UTF-16 without mark"),
        pytest.param(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"x"}', id="byte order mark"),
        pytest.param(raw_request('{"a":NaN}').encode(), id="NaN"),
        pytest.param(raw_request('{"a":-Infinity}').encode(), id="Infinity"),
        pytest.param(raw_request('{"a":01}').encode(), id="leading zero"),
        pytest.param(raw_request('{"a":1,}').encode(), id="trailing comma"),
        pytest.param(raw_request("{'a':1}").encode(), id="single quotes"),
        pytest.param(raw_request('{"a":"\\q"}').encode(), id="unknown escape"),
        pytest.param(raw_request('{"a":"\x01"}').encode(), id="control character"),
        pytest.param(raw_request('{"a":"\n"}').encode(), id="line break in a string"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"x"}{"jsonrpc":"2.0","id":2,"method":"x"}', id="two messages"),
        pytest.param(b"\x00", id="NUL"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
    ],
)
def test_what_is_no_json_is_a_parse_error(body: bytes) -> None:
    # SA01, SA02, JR-01, JR-09, EC-01
    malformed = refusal(body)
    assert malformed.fail.reason is Reason.PARSE
    assert malformed.id is None


# What is JSON, but no message


@pytest.mark.parametrize(
    ("body", "request_id"),
    [
        pytest.param('{"jsonrpc":"2.0","id":null,"method":"x"}', None, id="SA03 id null"),
        pytest.param('{"jsonrpc":"2.0","id":1.5,"method":"x"}', None, id="SA03 id 1.5"),
        pytest.param('{"jsonrpc":"2.0","id":true,"method":"x"}', None, id="SA03 id true"),
        pytest.param('{"jsonrpc":"2.0","id":{},"method":"x"}', None, id="SA03 id object"),
        pytest.param('{"jsonrpc":"2.0","id":[1],"method":"x"}', None, id="id array"),
        pytest.param('{"id":6,"method":"tools/list"}', 6, id="no jsonrpc"),
        pytest.param('{"jsonrpc":"1.0","id":"6","method":"x"}', "6", id="jsonrpc 1.0"),
        pytest.param('{"jsonrpc":2.0,"id":6,"method":"x"}', 6, id="jsonrpc as number"),
        pytest.param('{"jsonrpc":"2.0","id":6}', 6, id="no method"),
        pytest.param('{"jsonrpc":"2.0","id":6,"method":null}', 6, id="method null"),
        pytest.param('{"jsonrpc":"2.0","id":6,"method":["x"]}', 6, id="method array"),
        pytest.param('{"jsonrpc":"2.0","id":6,"method":"x","params":[]}', 6, id="params array"),
        pytest.param('{"jsonrpc":"2.0","id":6,"method":"x","params":"y"}', 6, id="params string"),
        pytest.param('{"jsonrpc":"2.0","id":6,"result":{},"error":{}}', 6, id="result and error"),
        pytest.param("{}", None, id="empty object"),
        pytest.param('"x"', None, id="SA04 string"),
        pytest.param("5", None, id="SA04 number"),
        pytest.param("null", None, id="SA04 null"),
        pytest.param("true", None, id="SA04 boolean"),
        pytest.param("[]", None, id="SA04 empty array"),
    ],
)
def test_what_is_no_message_is_an_invalid_request_with_the_id_where_it_can_be_read(body: str, request_id: int | str | None) -> None:
    # SA03, SA04, JR-02, JR-08, JR-09, EC-01
    malformed = refusal(body)
    assert malformed.fail.reason is Reason.INVALID_REQUEST
    assert malformed.id == request_id
    assert type(malformed.id) is type(request_id)


@pytest.mark.parametrize(
    ("body", "culprit"),
    [
        ('{"id":6,"method":"x"}', "jsonrpc"),
        ('{"jsonrpc":"2.0","id":null,"method":"x"}', "id"),
        ('{"jsonrpc":"2.0","id":1,"method":5}', "method"),
        ('{"jsonrpc":"2.0","id":1}', "method"),
        ('{"jsonrpc":"2.0","id":1,"method":"x","params":[]}', "params"),
    ],
)
def test_a_refusal_names_the_culprit(body: str, culprit: str) -> None:
    assert culprit in refusal(body).fail.text


@pytest.mark.parametrize("key", ["jsonrpc", "id", "method", "params"])
@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
def test_an_envelope_key_may_not_come_twice(key: str, escaped: bool) -> None:
    """Two readers of one body, a proxy and this server say, would see two messages."""
    values = {"jsonrpc": '"2.0"', "id": "1", "method": '"x"', "params": "{}"}
    again = f"\\u00{ord(key[0]):02x}{key[1:]}" if escaped else key
    body = "{" + ",".join(f'"{name}":{value}' for name, value in values.items()) + f',"{again}":{values[key]}' + "}"
    malformed = refusal(body)
    assert malformed.fail.reason is Reason.INVALID_REQUEST
    assert key in malformed.fail.text


@pytest.mark.parametrize("key", ["jsonrpc", "id", "result"])
@pytest.mark.parametrize("blank", ["", " "], ids=["compact", "spaced"])
def test_a_key_of_a_result_may_not_come_twice(key: str, blank: str) -> None:
    values = {"jsonrpc": '"2.0"', "id": "1", "result": '{"result":1}'}
    fields = [f'"{name}":{blank}{value}' for name, value in values.items()]
    assert isinstance(decode(("{" + ",".join(fields) + "}").encode()), RawResponse)
    malformed = decode(("{" + ",".join([*fields, f'"{key}":{values[key]}']) + "}").encode())
    assert isinstance(malformed, Malformed)
    assert key in malformed.fail.text


@pytest.mark.parametrize("key", ["jsonrpc", "id", "method", "params", "result", "error"])
def test_the_same_keys_inside_params_are_the_authors(key: str) -> None:
    message = decode(raw_request('{"%s":1,"a":[{"%s":2}]}' % (key, key)).encode())  # noqa: UP031
    assert isinstance(message, RawRequest)
    assert message.id == 7


@pytest.mark.parametrize("key", ["a", "id"])
def test_numbers_of_any_length_are_no_crash(key: str) -> None:
    """Python reads no integer of more than 4,300 digits; what decides about one is the tool's schema."""
    message = decode(raw_request('{"%s":%s}' % (key, "1" * 5000)).encode())  # noqa: UP031
    assert isinstance(message, RawRequest)


@pytest.mark.parametrize("text", ["\\ud800", "a\\udfff", "\\ud800\\ud800", "\\udc00\\ud800"])
def test_a_lone_surrogate_is_refused_with_the_id(text: str) -> None:
    # SA06: valid by JSON's grammar, so the id can be read and its sender must not wait for ever
    malformed = refusal(raw_request(f'{{"a":"{text}"}}'))
    assert malformed.fail.reason is Reason.INVALID_PARAMS
    assert malformed.id == 7


def test_paired_surrogates_are_one_character() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00","method":"x"}')
    assert isinstance(message, RawRequest)
    assert message.id == "😀"


# Size and depth


@pytest.mark.parametrize("item", ["[]", "{}", "0", '{"a":[]}'])
def test_a_large_array_of_what_is_no_message_is_judged_in_no_time(item: str) -> None:
    # A20: nobody else is served meanwhile
    body = f"[{','.join([item] * (4_000_000 // (len(item) + 1)))}]".encode()
    started = process_time()
    decode(body)
    assert process_time() - started < 0.3


@pytest.mark.parametrize("depth", [20_000, 1_000_000])
@pytest.mark.parametrize(
    ("head", "opening", "closing", "tail"),
    [
        pytest.param("", "[", "", "", id="open arrays"),
        pytest.param("", "[", "]", "", id="arrays"),
        pytest.param("", '{"a":', "", "", id="open objects"),
        pytest.param('{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":', "[", "]", "}}", id="arrays in params"),
        pytest.param('{"jsonrpc":"2.0","id":1,"id":2,"method":"x","params":{"id":', "[", "]", "}}", id="arrays beside a key twice"),
        pytest.param('{"id":1,"method":"x","x":', "[", "]", "}", id="arrays in no message"),
    ],
)
def test_deep_nesting_costs_nothing(depth: int, head: str, opening: str, closing: str, tail: str) -> None:
    # SA05
    body = (head + opening * depth + closing * depth + tail).encode()
    tracemalloc.start()
    try:
        started = process_time()
        malformed = refusal(body)
        took = process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert malformed.fail.reason is Reason.PARSE
    assert took < 0.2
    assert peak < 3 * len(body) + 100_000


def test_nesting_is_allowed_up_to_the_limit() -> None:
    # SA05 at n-1, n, n+1: the message and its params are two levels
    for extra, fits in ((-1, True), (0, True), (1, False)):
        inner = MAX_DEPTH - 2 + extra
        message = decode(raw_request('{"a":' + "[" * inner + "]" * inner + "}").encode())
        assert isinstance(message, RawRequest if fits else Malformed)


def test_brackets_in_strings_are_no_nesting() -> None:
    text = json.dumps({"a": '[{"\\' * 1000, "b": "\\" * 999 + '"' + "[" * 500})
    assert isinstance(decode(raw_request(text).encode()), RawRequest)


def test_keys_like_an_envelopes_inside_params_cost_little() -> None:
    """A megabyte of records that have an `id` each must not keep the loop much longer than records that have a `name`."""

    def best(key: str) -> float:
        body = raw_request(json.dumps({"records": [{key: number} for number in range(80_000)]})).encode()
        times = []
        for _ in range(3):
            started = process_time()
            assert isinstance(decode(body), RawRequest)
            times.append(process_time() - started)
        return min(times)

    assert best("id") < 2 * best("xd")


# Encoding


def check(message: bytes) -> Any:
    """The message as JSON, valid by the oracles."""
    value = json.loads(message)
    if schema_dir() is not None:
        validate("JSONRPCMessage", value)
    return value


def test_what_is_encoded_is_what_peers_read() -> None:
    # JR-01, JR-08, JR-12
    assert check(encode_result("a", {"resultType": "complete"})) == {"jsonrpc": "2.0", "id": "a", "result": {"resultType": "complete"}}
    assert check(encode_error(1, -32602, "No.")) == {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "No."}}
    assert check(encode_error(1, 5, "No.", None))["error"].keys() == {"code", "message"}
    assert check(encode_error(1, 5, "No.", [1]))["error"]["data"] == [1]
    assert check(encode_notification("notifications/x", {"a": 1})) == {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": 1}}
    assert check(encode_notification("notifications/x")) == {"jsonrpc": "2.0", "method": "notifications/x"}
    assert check(encode_request("q", "m", {"_meta": {}}))["id"] == "q"
    mcp_types_validate("JSONRPCMessage", json.loads(encode_request("q", "m", {"_meta": {}})))


def test_an_error_whose_request_was_unreadable_has_no_id() -> None:
    # JR-09: absent, not null
    assert "id" not in check(encode_error(None, -32700, "No."))


def test_messages_are_one_line_of_utf8() -> None:
    # SD-01, JR-01
    line = encode_result("é\n", {"a": "x\r\n\u2028"})
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line.decode("utf-8"))["result"] == {"a": "x\r\n\u2028"}


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, {1, 2}.__iter__(), object()])
def test_what_has_no_json_form_raises_in_its_producer(value: Any) -> None:
    # SA07: so that the crash guard around the producer answers
    with pytest.raises((TypeError, UnicodeEncodeError)):
        encode_result(1, {"a": value})


def test_nan_does_not_reach_the_wire_as_nan() -> None:
    # SA07
    assert b"NaN" not in encode_result(1, {"a": math.nan})


def test_params_that_stand_twice_in_a_body_mislead_nobody() -> None:
    """The same bytes as `params`, earlier, half in and half out of strings."""
    twin = '{",":":{",":1,":1}'
    body = f'{{"a":"{twin}":0}},"z":{{"id":0}},"jsonrpc":"2.0","id":1,"method":"x","params":{twin}}}'
    assert json.loads(body)["params"] == json.loads(twin)
    message = decode(body.encode())
    assert isinstance(message, RawRequest)
    assert (message.id, message.params) == (1, msgspec.Raw(twin.encode()))


# What no two readers may read differently, and what is much

META = '"_meta":{"a":1}'


@pytest.mark.parametrize("blank", ["", " ", "\n"])
@pytest.mark.parametrize("padding", ["x", "x" * 5000])
@pytest.mark.parametrize("notice", [True, False])
@pytest.mark.parametrize(
    ("params", "place"),
    [
        ('{"":1,"":2}', 'params has the key "" twice.'),
        ('{"name":"a","name":"b"}', 'params has the key "name" twice.'),
        ('{"uri":"a","_meta":{},"uri":"a"}', 'params has the key "uri" twice.'),
        ('{"name":"a","\\u006eame":"b"}', 'params has the key "name" twice.'),
        ('{"arguments":{},"name":"a","arguments":{"x":1}}', 'params has the key "arguments" twice.'),
        ('{"arguments":{"a":1,"b":2,"a":3}}', 'params.arguments has the key "a" twice.'),
        (
            '{"_meta":{"io.modelcontextprotocol/protocolVersion":"1","io.modelcontextprotocol/protocolVersion":"2"}}',
            "params._meta has the key",
        ),
        ('{"é":1,"é":2}', 'params has the key "é" twice.'),
        ('{"\\u0000":1,"\\u0000":2}', "params has a key twice."),
    ],
)
def test_a_key_that_decides_something_may_not_come_twice(params: str, place: str, blank: str, padding: str, notice: bool) -> None:
    # HH-06: a proxy may have judged the other one
    params = params[:-1] + f',"padding":"{padding}"}}'
    body = raw_request(params.replace(",", f",{blank}").replace(":", f"{blank}:") if blank else params)
    if notice:
        body = body.replace('"id":7,', "")
    found = refusal(body)
    assert found.fail.reason is Reason.INVALID_REQUEST
    assert place in found.fail.text
    assert (found.id, found.answerable) == ((None, False) if notice else (7, True))


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("padding", ["x", "x" * 5000])
@pytest.mark.parametrize(
    "params",
    [
        "{}",
        '{"name":"name","arguments":{"name":"name","uri":1},"_meta":{"name":{"name":1}}}',
        '{"arguments":{"a":{"b":1},"b":{"b":1},"é":1,"\\u00e8":2,"\\u0061\\n":3}}',
        '{"arguments":[{"a":1},{"a":1}],"_meta":null}',
        '{"arguments":{"":{},"x":[],"number":1e5,"large":123456789012345678901234567890}}',
    ],
)
def test_keys_that_are_there_once_are_taken_however_they_are_written(params: str, padding: str, blank: str) -> None:
    params = params[:-1] + ("," if len(params) > 2 else "") + f'"padding":"{padding}"}}'
    body = raw_request(params.replace(",", f",{blank}").replace(":", f"{blank}:"))
    message = decode(body.encode())
    assert isinstance(message, RawRequest)
    assert json.loads(bytes(message.params or b"")) == json.loads(body)["params"]


@pytest.mark.parametrize("text", ["[1]", "[{},[]]", '[",,,[[[", {"a": 1}]', '["\\\\\\"", 1]'])
def test_so_many_values_fit_and_no_more(text: str) -> None:
    # max_items: what counts are commas and opening brackets outside of strings
    body = raw_request(f'{{"a":{text}}}').encode()
    plain = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    most = sum(map(plain.count, (b",", b"[", b"{")))
    assert isinstance(decode(body, max_items=most), RawRequest)
    found = decode(body, max_items=most - 1)
    assert isinstance(found, Malformed)
    assert (found.id, found.fail.reason) == (7, Reason.INVALID_REQUEST)
    assert "max_items" in found.fail.text


@pytest.mark.parametrize("item", ["[]", "{}", "1", '""', '","', '"[\\\\]"'])
@pytest.mark.parametrize(
    "head", ["", '{"jsonrpc":"1.0","id":7,"method":"x","params":', '{"jsonrpc":"2.0","id":7,"method":"x","x":"\\ud800","params":']
)
def test_many_values_take_little_memory(item: str, head: str) -> None:
    # SA05: 4 MiB of them, also where the message is none for other reasons
    body = (head + "[" + ",".join([item] * (4 * 2**20 // (len(item) + 1))) + "]" + ("}" if head else "")).encode()
    tracemalloc.start()
    found = decode(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, Malformed)
    assert peak < 4 * len(body)


@pytest.mark.parametrize(
    ("text", "deep"), [("[[]]", 2), ("[{}]", 2), ('{"a":[{}]}', 3), ("[[],[[[]]],[]]", 4), ('["[[[[",[]]', 2), ("[" * 9 + "]" * 9, 9)]
)
def test_depth_is_counted_to_the_level(text: str, deep: int) -> None:
    body = raw_request(f'{{"a":{text}}}').encode() + b" " * 5000
    assert isinstance(decode(body, max_depth=deep + 2), RawRequest)
    found = decode(body, max_depth=deep + 1)
    assert isinstance(found, Malformed)
    assert found.fail.reason is Reason.PARSE


def test_an_answer_may_have_ten_times_as_many_values() -> None:
    # a table that was asked for is no attack
    for count in (99, 100, 101):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": list(range(count - 3))}).encode()
        assert sum(map(body.count, (b",", b"[", b"{"))) == count
        assert isinstance(decode(body, max_items=10), RawResponse) == (count <= 100)
