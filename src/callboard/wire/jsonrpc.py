"""JSON-RPC 2.0 on the wire: bytes to messages and back. The only parse of a body.

Strict where leniency would hurt: UTF-8 is checked, NaN and duplicate envelope keys are refused, nesting is bounded. `params`, `result`
and `error` stay raw, to be read once by whoever knows their type.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import msgspec

from callboard.errors import Fail, Reason

__all__ = [
    "MAX_DEPTH",
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
    id: RequestId | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encoder = msgspec.json.Encoder()
encode = _encoder.encode

_ENVELOPE_KEYS = frozenset(_Envelope.__struct_fields__)
_QUOTED_KEYS = tuple(f'"{key}"'.encode() for key in sorted(_ENVELOPE_KEYS))
_COMPACT = '{"jsonrpc":"2.0","id":,"method":"","params":}'
# An escaped ASCII letter could spell an envelope key that counting its plain form would miss.
_ESCAPED_LETTER = re.compile(rb"\\u00[67]")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# Half of a surrogate pair, or an exponent that no float holds.
_OUT_OF_RANGE = re.compile(rb"\\u[dD][89a-fA-F]|[eE]\+?\d{3}")
_BRACE = ord("{")
_NULL = msgspec.Raw(b"null")
_BLANKS = b" \t\r\n"
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def decode(body: bytes, *, max_depth: int = MAX_DEPTH) -> Message:
    """Read one body or line.

    Args:
        body: The bytes, without the line's end.
        max_depth: How deep objects and arrays may nest.

    Returns:
        The message; `Malformed` when the bytes are none. Never raises.
    """
    try:
        if not body.isascii():
            body.decode()  # JR-01: what is skipped or kept raw below would pass unchecked
        envelope = _decode_envelope(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _diagnose(body, error, max_depth)
    if _may_nest(body, max_depth) and _depth(body) > max_depth:
        return _refuse(envelope, Fail(Reason.PARSE, f"The message nests deeper than {max_depth} levels."))
    if len(body) != _compact_size(envelope) and (duplicate := _repeated_key(body, envelope)):
        fail = Fail(Reason.INVALID_REQUEST, f'The message has the key "{duplicate}" twice.')
        return Malformed(fail) if duplicate == "id" else _refuse(envelope, fail)
    return _classify(envelope)


def _refuse(envelope: _Envelope, fail: Fail) -> Malformed:
    """JR-08, JR-09: with the id, which could be read."""
    known = None if envelope.id is msgspec.UNSET else envelope.id
    return Malformed(fail, known, answerable=known is not None or envelope.method is msgspec.UNSET)


def _compact_size(envelope: _Envelope) -> int:
    """Bytes of a request that has just what was decoded and no blank; in a body of this size nothing can be there twice."""
    request_id, method, params = envelope.id, envelope.method, envelope.params
    if method is msgspec.UNSET or params is msgspec.UNSET or request_id is msgspec.UNSET:
        return -1
    known = len(_COMPACT) + len(method) + len(params)
    return known + len(request_id) + 2 if type(request_id) is str else known + len(str(request_id))


def _repeated_key(body: bytes, envelope: _Envelope) -> str | None:
    """First envelope key that the body's outermost object has twice."""
    if not _may_repeat(body):
        return None
    rest = body if envelope.params is msgspec.UNSET else _without_params(body, bytes(envelope.params))
    if not _may_repeat(rest):
        return None
    pairs: list[tuple[str, Any]] = json.loads(rest, object_pairs_hook=list, parse_int=str, parse_float=str)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen and key in _ENVELOPE_KEYS:
            return key
        seen.add(key)
    return None


def _without_params(body: bytes, params: bytes) -> bytes:
    """The body with null for its params, whose keys are of no interest; the whole body where the cut would hit something else."""
    rest = body.replace(params, b"null", 1)
    try:
        hit = _decode_envelope(rest).params
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    return rest if hit is not msgspec.UNSET and bytes(hit) == b"null" else body


def _may_repeat(body: bytes) -> bool:
    return any(body.count(key) > 1 for key in _QUOTED_KEYS) or _ESCAPED_LETTER.search(body) is not None


def _classify(envelope: _Envelope) -> RawRequest | RawNotification | RawResponse | Malformed:
    method, params = envelope.method, envelope.params
    result, error = envelope.result, envelope.error
    if method is not msgspec.UNSET:
        if result is not msgspec.UNSET or error is not msgspec.UNSET:
            return _refuse(envelope, Fail(Reason.INVALID_REQUEST, "The message is a request and a response at once."))
        # null is how some clients write what is absent
        given = None if params is msgspec.UNSET or params == _NULL else params
        if given is not None and memoryview(given)[0] != _BRACE:
            return _refuse(envelope, Fail(Reason.INVALID_REQUEST, "params must be an object."))
        if envelope.id is msgspec.UNSET:
            return RawNotification(method, given)
        return RawRequest(envelope.id, method, given)
    answer_id = None if envelope.id is msgspec.UNSET else envelope.id
    if result is not msgspec.UNSET and error is msgspec.UNSET:
        return RawResponse(answer_id, result=result)
    if error is not msgspec.UNSET and result is msgspec.UNSET:
        return RawResponse(answer_id, error=error)
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


def _depth(body: bytes) -> int:
    brackets = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def _diagnose(body: bytes, error: Exception, max_depth: int) -> Message:
    """What is wrong with a body that is no envelope, and whose request it was (JR-09: the id only where it can be read)."""
    if isinstance(error, RecursionError):
        return Malformed(Fail(Reason.PARSE, f"The message nests deeper than {max_depth} levels."))
    if isinstance(error, UnicodeDecodeError):
        return Malformed(Fail(Reason.PARSE, "The message is not valid UTF-8."))
    try:
        # What is in an array nobody reads here, and it may be much.
        value = _decode_items(body) if body.lstrip(_BLANKS)[:1] == b"[" else msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return _diagnose_unreadable(body)
    if isinstance(value, list):
        return Batch(body) if value else Malformed(Fail(Reason.INVALID_REQUEST, "The message is an empty array."))
    if not isinstance(value, dict):
        return Malformed(Fail(Reason.INVALID_REQUEST, "The message is not a JSON object."))
    if value.get("jsonrpc") == "2.0" and value.get("id", "") is None and "error" in value and not value.keys() & {"method", "result"}:
        return RawResponse(None, error=msgspec.Raw(encode(value["error"])))  # JSON-RPC's own way to say that an id was unreadable
    known = _known_id(value.get("id"))
    return Malformed(Fail(Reason.INVALID_REQUEST, _complaint(value, known)), known)


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
