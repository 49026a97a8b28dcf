"""JSON-RPC 2.0 on the wire: bytes to messages and back. The only parse of a body.

Strict where leniency would hurt: UTF-8 is checked, NaN is refused, nesting and the number of values are bounded. No key may be twice in
the envelope of a message, nor in the `params`, `params._meta` and `params.arguments` of a request or notification: of two, a proxy might
have judged the one and the server would run the other. Deeper inside, the last of two counts, as in most parsers; so it does in what
peers answer. `params`, `result` and `error` stay raw, to be read once by whoever knows their type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from callboard.errors import Fail, Reason

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "Batch",
    "Malformed",
    "Message",
    "RawNotification",
    "RawRequest",
    "RawResponse",
    "RequestId",
    "decode",
    "encode",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_result",
]

RequestId: TypeAlias = int | str
MAX_DEPTH = 128
MAX_ITEMS = 200_000
"""Items of all arrays and members of all objects of one message: 4 MiB of `[],[],[]` would take a hundred times that in memory."""
_MAX_DIGITS = 4000
# Bytes up to which counting a character beats searching for it.
_SMALL = 4096


class RawRequest(msgspec.Struct):
    """A request whose `params` nobody has read yet (None when the key is absent)."""

    id: RequestId
    method: str
    params: msgspec.Raw | None = None


class RawNotification(msgspec.Struct):
    """A notification whose `params` nobody has read yet."""

    method: str
    params: msgspec.Raw | None = None


class RawResponse(msgspec.Struct):
    """An answer to a request of ours; exactly one of `result` and `error` is there. `id` is None when the peer couldn't read it."""

    id: RequestId | None
    result: msgspec.Raw | None = None
    error: msgspec.Raw | None = None


class Malformed(msgspec.Struct):
    """Bytes that are no message. `id` is the request's, where it could be read (JR-09).

    What was clearly meant as a notification or a response is not `answerable` (JR-06, JR-12).
    """

    fail: Fail
    id: RequestId | None = None
    answerable: bool = True


class Batch(msgspec.Struct):
    """Several messages in one body, unread: only 2025-03-26 has them (JR-18, JR-20)."""

    body: bytes


Message: TypeAlias = RawRequest | RawNotification | RawResponse | Batch | Malformed


class _Envelope(msgspec.Struct):
    jsonrpc: Literal["2.0"]
    id: RequestId | msgspec.UnsetType = UNSET
    method: str | msgspec.UnsetType = UNSET
    params: msgspec.Raw | msgspec.UnsetType = UNSET
    result: msgspec.Raw | msgspec.UnsetType = UNSET
    error: msgspec.Raw | msgspec.UnsetType = UNSET


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_encoder = msgspec.json.Encoder()
encode = _encoder.encode

_Value: TypeAlias = list[msgspec.Raw] | str | int | float | bool | None
# A small message down to the members of its parameters' objects: as far as no key may be twice.
_decode_shape = msgspec.json.Decoder(dict[str, dict[str, dict[str, msgspec.Raw] | _Value] | _Value]).decode
_COMPACT = '{"jsonrpc":"2.0","id":,"method":"","params":}'
_COMPACT_RESULT = '{"jsonrpc":"2.0","id":,"result":}'
# Objects in `params` in which no key may be twice.
_WATCHED = ("_meta", "arguments")
_MAX_SHOWN = 64
# What is left of JSON to measure it: brackets, all of one kind, commas and quotes.
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{},"'))
_SQUARE = bytes.maketrans(b"{}", b"[]")
# Half of a surrogate pair, or an exponent that no float holds.
_OUT_OF_RANGE = re.compile(rb"\\u[dD][89a-fA-F]|[eE]\+?\d{3}")
_BRACE = ord("{")
_NULL = msgspec.Raw(b"null")
_BLANKS = b" \t\r\n"
_MORE_IN_ANSWERS = 10
# Bytes that are cut into pieces at once.
_CHUNK = 65536
# Passes that take innermost brackets out, before single ones are counted.
_PASSES = 6
_STEP = {ord("["): 1, ord("]"): -1}


def decode(body: bytes, *, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS) -> Message:
    """Read one body or line.

    Args:
        body: The bytes, without the line's end.
        max_depth: How deep objects and arrays may nest.
        max_items: How many commas and opening brackets it may have: about as many as values. An answer may have ten times as many: what was
            asked for may be a table.

    Returns:
        The message; `Malformed` when the bytes are none. Never raises.
    """
    try:
        if not body.isascii():
            body.decode()  # JR-01: what is skipped or kept raw below would pass unchecked
        envelope = _decode_envelope(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _diagnose(body, error, max_depth, max_items)
    request_id, method, params = envelope.id, envelope.method, envelope.params
    size, shape = len(body), None
    if method is not UNSET and size <= _SMALL and size <= max_items:
        arrays = body.count(b"[")
        try:  # an array takes two bytes, an object with another one in it five: what is short needs not be counted
            if size + 3 * arrays + 3 <= 5 * max_depth or arrays + body.count(b"{") <= max_depth:
                shape = _decode_shape(body)
        except (msgspec.DecodeError, RecursionError):
            shape = None
    if shape is None or encode(shape) != body:
        if (malformed := _check(body, envelope, max_depth, max_items)) is not None:
            return malformed
    # Written without blanks, as most are, and nothing twice: else other bytes had come out.
    elif request_id is not UNSET and method is not UNSET and params is not UNSET and len(shape) == 4 and type(shape["params"]) is dict:
        return RawRequest(request_id, method, params)
    return _classify(envelope)


def _check(body: bytes, envelope: _Envelope, max_depth: int, max_items: int) -> Malformed | None:
    """What is wrong with a message that may be big, or have a key twice."""
    most = max_items if envelope.method is not UNSET else max_items * _MORE_IN_ANSWERS
    if _is_big(body, max_depth, most) and (fail := _measure(body, max_depth, most)):
        return _refuse(envelope, fail)
    if not _is_plain(body, envelope) and (repeated := _find_repeated(body, envelope)):
        where, key = repeated
        shown = f'the key "{key}"' if len(key) <= _MAX_SHOWN and key.isprintable() else "a key"
        fail = Fail(Reason.INVALID_REQUEST, f"{where or 'The message'} has {shown} twice.")
        return Malformed(fail) if not where and key == "id" else _refuse(envelope, fail)
    return None


def _refuse(envelope: _Envelope, fail: Fail) -> Malformed:
    """JR-08, JR-09: with the id, which could be read."""
    known = None if envelope.id is UNSET else envelope.id
    return Malformed(fail, known, answerable=known is not None or envelope.method is UNSET)


def _is_plain(body: bytes, envelope: _Envelope) -> bool:
    """Whether a message is written without blanks, and has no key twice where none may be: the cheap way to tell."""
    return len(body) == _compact_size(envelope) and all(_is_compact(text, members) for _, text, members in _parts(envelope))


def _compact_size(envelope: _Envelope) -> int:
    """Bytes of a request or a result that has just what was decoded and no blank; in a body of this size nothing can be there twice."""
    request_id, method, params = envelope.id, envelope.method, envelope.params
    if request_id is UNSET:
        return -1
    if method is not UNSET and params is not UNSET:
        known = len(_COMPACT) + len(method) + len(params)
    elif method is UNSET and envelope.result is not UNSET:
        known = len(_COMPACT_RESULT) + len(envelope.result)
    else:
        return -1
    return known + len(request_id) + 2 if type(request_id) is str else known + len(str(request_id))


def _is_compact(text: bytes | msgspec.Raw, members: dict[str, msgspec.Raw]) -> bool:
    """Whether an object has just these members and no blank between them: then no key is twice."""
    return len(text) == 1 + max(1, 4 * len(members)) + len("".join(members).encode()) + sum(map(len, members.values()))


def _parts(envelope: _Envelope) -> Iterator[tuple[str, msgspec.Raw, dict[str, msgspec.Raw]]]:
    """The objects inside a request or notification in which no key may be twice: place, text, members."""
    if envelope.method is UNSET or envelope.params is UNSET or memoryview(envelope.params)[0] != _BRACE:
        return
    members = _decode_members(envelope.params)
    yield "params", envelope.params, members
    for name in _WATCHED:
        if (text := members.get(name)) is not None and memoryview(text)[0] == _BRACE:
            yield f"params.{name}", text, _decode_members(text)


def _find_repeated(body: bytes, envelope: _Envelope) -> tuple[str, str] | None:
    """The first key that is twice where none may be: the place, empty for the envelope, and the key."""
    key = _repeated_key(body)
    if key is not None:
        return "", key
    return next(((where, twice) for where, text, _ in _parts(envelope) if (twice := _repeated_key(bytes(text))) is not None), None)


def _repeated_key(text: bytes) -> str | None:
    """First key that an object has twice."""
    text = msgspec.json.format(text, indent=-1)
    if _is_compact(text, _decode_members(text)):
        return None
    seen: set[str] = set()  # else a key is twice, or has an escape in it
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    return None


def _classify(envelope: _Envelope) -> RawRequest | RawNotification | RawResponse | Malformed:
    method, params = envelope.method, envelope.params
    result, error = envelope.result, envelope.error
    if method is not UNSET:
        if result is not UNSET or error is not UNSET:
            return _refuse(envelope, Fail(Reason.INVALID_REQUEST, "The message is a request and a response at once."))
        # null is how some clients write what is absent
        given = None if params is UNSET or params == _NULL else params
        if given is not None and memoryview(given)[0] != _BRACE:
            return _refuse(envelope, Fail(Reason.INVALID_REQUEST, "params must be an object."))
        if envelope.id is UNSET:
            return RawNotification(method, given)
        return RawRequest(envelope.id, method, given)
    answer_id = None if envelope.id is UNSET else envelope.id
    if result is not UNSET and error is UNSET:
        return RawResponse(answer_id, result=result)
    if error is not UNSET and (result is UNSET or result == _NULL != error):
        return RawResponse(answer_id, error=error)
    if result is not UNSET and error == _NULL != result:  # again null for what is absent
        return RawResponse(answer_id, result=result)
    return _refuse(envelope, Fail(Reason.INVALID_REQUEST, "The message has no method."))


def _may_nest(body: bytes, max_depth: int) -> bool:
    """Whether there are brackets enough; of a large body no more than that many are looked for."""
    if len(body) < _SMALL:
        return body.count(b"[") + body.count(b"{") > max_depth
    seen = 0
    for bracket in (b"[", b"{"):
        at = body.find(bracket)
        while at >= 0 and seen <= max_depth:
            seen += 1
            at = body.find(bracket, at + 1)
    return seen > max_depth


def _is_big(body: bytes, max_depth: int, max_items: int) -> bool:
    """Whether it may nest too deep or have too much in it."""
    if _may_nest(body, max_depth):
        return True
    # What is much is mostly text, in which `replace` is many times faster than `count`.
    return len(body) > max_items and sum(len(body) - len(body.replace(mark, b"")) for mark in (b",", b"[", b"{")) > max_items


def _measure(body: bytes, max_depth: int, max_items: int) -> Fail | None:
    """What is too much about the values of a body."""
    marks = _outside_strings(body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_SQUARE, _NOT_MARKS))
    brackets = marks.replace(b",", b"")
    if len(marks) - len(brackets) // 2 > max_items:
        return Fail(Reason.INVALID_REQUEST, f"The message has more than {max_items} values in it (max_items).")
    return _too_deep(max_depth) if _depth(brackets) > max_depth else None


def _outside_strings(marks: bytes) -> bytes:
    """Brackets and commas without those between quotes."""
    marks = marks.replace(b'""', b"")
    kept, inside = [], 0
    for at in range(0, len(marks), _CHUNK):
        pieces = marks[at : at + _CHUNK].split(b'"')
        kept.append(b"".join(pieces[inside::2]))
        inside ^= (len(pieces) - 1) & 1
    return b"".join(kept)


def _depth(brackets: bytes) -> int:
    """How deep brackets nest; of ordinary JSON little is left to count once the innermost ones are gone."""
    passes = 0
    while passes < _PASSES and len(inner := brackets.replace(b"[]", b"")) < len(brackets):
        brackets, passes = inner, passes + 1
    return passes + max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def _too_deep(max_depth: int) -> Fail:
    return Fail(Reason.PARSE, f"The message nests deeper than {max_depth} levels (max_depth).")


def _diagnose(body: bytes, error: Exception, max_depth: int, max_items: int) -> Message:
    """What is wrong with a body that is no envelope, and whose request it was (JR-09: the id only where it can be read)."""
    if isinstance(error, RecursionError):
        return Malformed(_too_deep(max_depth))
    if isinstance(error, UnicodeDecodeError):
        return Malformed(Fail(Reason.PARSE, "The message is not valid UTF-8."))
    if _is_big(body, max_depth, max_items) and (fail := _measure(body, max_depth, max_items)):
        return Malformed(fail if fail.reason is Reason.PARSE or _is_json(body) else Fail(Reason.PARSE))
    if body.lstrip(_BLANKS)[:1] == b"[" and _is_json(body):  # whoever serves batches reads what is in it
        is_empty = not body.strip(_BLANKS)[1:-1].strip(_BLANKS)
        return Malformed(Fail(Reason.INVALID_REQUEST, "The message is an empty array.")) if is_empty else Batch(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _diagnose_unreadable(body)
    if not isinstance(value, dict):
        return Malformed(Fail(Reason.INVALID_REQUEST, "The message is not a JSON object."))
    if value.get("jsonrpc") == "2.0" and value.get("id", "") is None and "error" in value and not value.keys() & {"method", "result"}:
        if (key := _repeated_key(body)) is not None:
            return Malformed(Fail(Reason.INVALID_REQUEST, f'The message has the key "{key[:_MAX_SHOWN]}" twice.'))
        return RawResponse(None, error=msgspec.Raw(encode(value["error"])))  # JSON-RPC's own way to say that an id was unreadable
    known = _known_id(value.get("id"))
    return Malformed(Fail(Reason.INVALID_REQUEST, _complaint(value, known)), known)


def _is_json(body: bytes) -> bool:
    try:
        _check_json(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _diagnose_unreadable(body: bytes) -> Malformed:
    """Half of a surrogate pair, or a number that no float holds, is JSON by its grammar: then the id can be read (SA06)."""
    if _OUT_OF_RANGE.search(body) is None:
        return Malformed(Fail(Reason.PARSE))
    try:
        value = json.loads(body.decode(), parse_int=_read_int, parse_float=_pass_over, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return Malformed(Fail(Reason.PARSE))
    fail = Fail(Reason.INVALID_PARAMS, "The message has half of a surrogate pair, or a number out of range, in it.")
    if not isinstance(value, dict):
        return Malformed(fail)
    if not isinstance(value.get("id", 0), str | int):
        return Malformed(Fail(Reason.INVALID_REQUEST, _complaint(value, None)))
    return Malformed(fail, _known_id(value.get("id")), answerable="id" in value and "method" in value)


def _read_int(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _pass_over(_number: str) -> None:
    """A number that no float holds is no id."""


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _known_id(value: Any) -> RequestId | None:
    if isinstance(value, str):
        return value if value.isascii() or _is_encodable(value) else None
    return value if type(value) is int else None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complaint(value: dict[str, Any], known: RequestId | None) -> str:
    if value.get("jsonrpc") != "2.0":
        return 'The key "jsonrpc" must be "2.0".'
    if "id" in value and known is None:
        return 'The key "id" must be a string or an integer.'
    if not isinstance(value.get("method", ""), str):
        return 'The key "method" must be a string.'
    return Fail(Reason.INVALID_REQUEST).text


def encode_request(request_id: RequestId, method: str, params: Any) -> bytes:
    """Encode a request. `params` is anything msgspec encodes to an object; None for none."""
    if params is None:
        return encode({"jsonrpc": "2.0", "id": request_id, "method": method})
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: Any = None) -> bytes:
    """Encode a notification; without `params` when None."""
    if params is None:
        return encode({"jsonrpc": "2.0", "method": method})
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def encode_result(request_id: RequestId, result: Any) -> bytes:
    """Encode a success response with the request's id, JSON type kept (JR-02)."""
    return encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encode an error response; the id is left out when it could not be read (JR-09)."""
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    if request_id is None:
        return encode({"jsonrpc": "2.0", "error": error})
    return encode({"jsonrpc": "2.0", "id": request_id, "error": error})
