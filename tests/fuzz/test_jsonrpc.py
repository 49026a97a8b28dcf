"""Invariant: whatever bytes come, `decode` gives a message or says what is wrong; it agrees with Python's own JSON reader on both."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import Reason
from callboard.wire.jsonrpc import Batch, Malformed, Message, RawNotification, RawRequest, RawResponse, decode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "_meta", "x"]) | TEXT
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
# Every envelope key: missing, right, or anything.
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | st.just("2.0") | VALUES,
        "id": st.integers(-(2**70), 2**70) | TEXT | VALUES,
        "method": st.sampled_from(["tools/call", "server/discover"]) | VALUES,
        "params": st.dictionaries(NAMES, VALUES, max_size=3) | VALUES,
        "result": VALUES,
        "error": VALUES,
        "x": VALUES,
    },
)
WHOLE = b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"\xc3\xa9","arguments":{"id":[1,-2.5e3,null,true]}}}'


def refuse_constant(name: str) -> None:
    raise ValueError(name)


def read(body: bytes) -> Any:
    """Python's reading of a body, without what it takes beyond JSON.

    Raises:
        ValueError: It is no JSON in UTF-8.
    """
    return json.loads(body.decode("utf-8"), parse_constant=refuse_constant)


def is_id(value: Any) -> bool:
    return isinstance(value, str) or type(value) is int


def expect(value: dict[str, Any]) -> type[Any]:
    """What an object is by the rules of JSON-RPC 2.0 as the protocol narrows them."""
    if value.get("jsonrpc") != "2.0" or ("id" in value and not is_id(value["id"])):
        return Malformed
    if "method" in value:
        if not isinstance(value["method"], str) or not isinstance(value.get("params", {}), dict):
            return Malformed
        if "result" in value or "error" in value:
            return Malformed
        return RawRequest if "id" in value else RawNotification
    if "result" in value and "error" in value:  # null is how some servers write what is absent
        return RawResponse if (value["result"] is None) != (value["error"] is None) else Malformed
    return RawResponse if "result" in value or "error" in value else Malformed


def check_against_python(body: bytes) -> Message:
    message = decode(body)
    try:
        value = read(body)
    except (ValueError, RecursionError):
        assert isinstance(message, Malformed)
        assert message.fail.reason is Reason.PARSE
        assert message.id is None
        return message
    if isinstance(value, list) and value:
        assert isinstance(message, Batch)
    elif not isinstance(value, dict):
        assert isinstance(message, Malformed)
        assert message.fail.reason is Reason.INVALID_REQUEST
    return message


@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_have_an_answer(body: bytes) -> None:
    # JR-01, SA01, SA02
    check_against_python(body)


@given(st.integers(0, len(WHOLE)), st.integers(0, 12), st.binary(max_size=4))
def test_damaged_messages_have_an_answer(at: int, length: int, put: bytes) -> None:
    # SA01
    check_against_python(WHOLE[:at] + put + WHOLE[at + length :])


@given(ENVELOPES, st.booleans())
def test_envelopes_are_what_the_rules_say(value: dict[str, Any], ascii_only: bool) -> None:
    # JR-02, JR-08, SA03
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    message = check_against_python(body)
    assert type(message) is expect(value)
    if isinstance(message, Malformed):
        assert message.fail.reason is Reason.INVALID_REQUEST
        assert message.id == (value["id"] if is_id(value.get("id")) else None)
    elif isinstance(message, RawRequest):
        assert (message.id, message.method) == (value["id"], value["method"])
        assert message.params is None or read(bytes(message.params)) == value["params"]


@given(ENVELOPES.filter(bool), st.data())
def test_a_key_twice_is_never_one_of_them(value: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    twice = {**value, f"{key} again": data.draw(VALUES)}
    body = json.dumps(twice).replace(f'"{key} again"', json.dumps(key)).encode()
    message = decode(body)
    assert isinstance(message, Malformed) or key == "x"


def test_a_message_cut_short_anywhere_is_a_parse_error() -> None:
    # SA01
    for end in range(len(WHOLE)):
        message = check_against_python(WHOLE[:end])
        assert isinstance(message, Malformed)
        assert message.fail.reason is Reason.PARSE
