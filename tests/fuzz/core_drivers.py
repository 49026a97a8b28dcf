"""Drivers of the core's readers: messages, event streams, URI templates, sealed texts. See `fuzz.drivers` for what a driver is."""

from __future__ import annotations

import json
from typing import Any, Final

from fuzz.readers import Pairs, is_unsafe, read_json, read_stream

from callboard.core.modern import render_fail
from callboard.core.seal import NONCE_SIZE, KeyRing, SealError, bind
from callboard.core.sse import Event, SseDecoder, SseLimitError, frame
from callboard.core.traversal import check_traversal
from callboard.core.uri import UriTemplate, UriTemplateError, UriValue
from callboard.errors import Fail, Reason
from callboard.server.cursor import read_cursor
from callboard.wire.jsonrpc import (
    MAX_DEPTH,
    MAX_ITEMS,
    Batch,
    Malformed,
    RawNotification,
    RawRequest,
    RawResponse,
    decode,
    encode_notification,
    encode_request,
)

__all__ = ["run_decode", "run_seal", "run_sse", "run_uri"]

# JSON-RPC ---------------------------------------------------------------------------------------------------------------------------------


def run_decode(body: bytes) -> None:
    """`wire.jsonrpc.decode` against Python's reader (JR-01, JR-02, JR-08, JR-09)."""
    message = decode(body)
    reading = read_json(body)
    if isinstance(message, Malformed):
        _check_refusal(message)
    if reading is None:
        assert isinstance(message, Malformed), f"no JSON, and taken for {message}"
        assert message.fail.reason is Reason.PARSE, message
        assert message.id is None, message
        return
    if len(body) > MAX_ITEMS and isinstance(message, Malformed):
        return  # it may have too many values
    if reading.odd:
        _check_odd(message, reading.object)
    elif not isinstance(reading.value, Pairs):
        expected = Batch if isinstance(reading.value, list) and reading.value else Malformed
        assert type(message) is expected or _is_too_deep(message), message
    elif reading.depth > MAX_DEPTH:
        assert isinstance(message, Malformed), message
    else:
        _check_envelope(message, dict(reading.value), repeats=reading.repeats)


def _check_refusal(message: Malformed) -> None:
    status, answer = render_fail(message.id, message.fail)
    told = json.loads(answer)
    assert 400 <= status < 500, status
    assert told["error"]["message"], told
    assert told.get("id") == message.id, told


def _is_too_deep(message: Any) -> bool:
    return isinstance(message, Malformed) and message.fail.reason is Reason.PARSE


def _check_odd(message: Any, value: dict[str, Any] | None) -> None:
    """SA06: refused with its id, or handed on with what is odd still in its raw parts."""
    known = getattr(message, "id", None)
    if known is not None:
        assert value is not None
        assert str(known) == str(value["id"]), message


def _check_envelope(message: Any, value: dict[str, Any], *, repeats: bool) -> None:
    expected = Malformed if repeats else _expect(value)
    assert type(message) is expected, f"{message} for {value}"
    if isinstance(message, Malformed):
        assert message.fail.reason is Reason.INVALID_REQUEST, message
        known = value.get("id")
        assert message.id in {None, known if _is_id(known) else None}, message
    elif isinstance(message, RawResponse):
        assert message.id == value.get("id"), message
    else:
        _check_method(message, value)


def _check_method(message: RawRequest | RawNotification, value: dict[str, Any]) -> None:
    params = None if message.params is None else read_json(bytes(message.params))
    assert message.method == value["method"], message
    assert (None if params is None else params.value) == value.get("params"), message
    if isinstance(message, RawRequest):
        assert type(message.id) is type(value["id"]), message
        assert message.id == value["id"], message
        again = decode(encode_request(message.id, message.method, message.params))
    else:
        again = decode(encode_notification(message.method, message.params))
    assert again == message, f"{message} encoded and read is {again}"


def _is_id(value: Any) -> bool:
    return (isinstance(value, str) and not isinstance(value, Pairs)) or type(value) is int


def _expect(value: dict[str, Any]) -> type[Any]:
    """What an object is by the rules of JSON-RPC 2.0 as the protocol narrows them."""
    has_id, has_method, has_result, has_error = (key in value for key in ("id", "method", "result", "error"))
    if value.get("jsonrpc") != "2.0":
        return Malformed
    if has_id and not _is_id(value["id"]):
        # JSON-RPC's own way to say that an id was unreadable
        return RawResponse if value["id"] is None and has_error and not has_method and not has_result else Malformed
    if has_method:
        params = value.get("params")  # null is how some clients write what is absent
        fine = isinstance(value["method"], str) and (params is None or isinstance(params, Pairs))
        return Malformed if not fine or has_result or has_error else RawRequest if has_id else RawNotification
    if has_result and has_error:  # null is how some servers write what is absent
        return RawResponse if (value["result"] is None) != (value["error"] is None) else Malformed
    return RawResponse if has_result or has_error else Malformed


# Event streams ----------------------------------------------------------------------------------------------------------------------------


def run_sse(data: bytes) -> None:
    """`core.sse`: the first two bytes say how the rest is cut; however it is, the events are those of an independent reader."""
    size, limit, stream = 1 + (data[:1] or b"\0")[0] % 16, 1 + (data[1:2] or b"\0")[0], data[2:]
    size = max(size, len(stream) // 1000)  # a large one byte by byte is only slow
    expected = read_stream(stream)
    for chunks in ([stream], [stream[at : at + size] for at in range(0, len(stream), size)], [*_lines(stream), b""]):
        decoder = SseDecoder()
        events = [event for chunk in chunks for event in decoder.feed(chunk)]
        assert [tuple(event) for event in events] == [tuple(event) for event in expected.events], (events, expected)
        assert (decoder.last_event_id, decoder.retry) == (expected.last_id, expected.retry), (decoder.retry, expected)
    whole = _feed_bounded([stream], limit)
    assert whole == _feed_bounded([stream[at : at + size] for at in range(0, len(stream), size)], limit), "how it is cut makes a difference"
    _check_frame(stream)


def _lines(stream: bytes) -> list[bytes]:
    return stream.splitlines(keepends=True)


def _feed_bounded(chunks: list[bytes], limit: int) -> tuple[list[Event], bool]:
    """The events, and whether one was too large."""
    decoder = SseDecoder(max_event=limit)
    events: list[Event] = []
    try:
        for chunk in chunks:
            events += decoder.feed(chunk)
    except SseLimitError as error:
        return [*events, *error.events], True
    assert all(len(event.data) <= limit for event in events), events
    return events, False


def _check_frame(data: bytes) -> None:
    """What is written is read as it was meant, or not written."""
    head, _, payload = data.partition(b"|")
    kind, _, event_id = head.decode("utf-8", "replace").partition(",")
    try:
        written = frame(payload, event=kind or None, id=event_id or None, retry=len(payload))
    except ValueError:
        assert set(head) & set(b"\r\n\0"), head
        return
    decoder = SseDecoder()
    meant = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decoder.feed(written) == [Event(meant, kind or "message", event_id)], written
    assert decoder.retry == len(payload), written


# URIs -------------------------------------------------------------------------------------------------------------------------------------


def run_uri(data: bytes) -> None:
    """`core.uri`: the first line is a template, the rest a URI."""
    text, _, uri = data.decode("utf-8", "surrogateescape").partition("\n")
    try:
        template = UriTemplate(text)
    except UriTemplateError as error:
        _check_position(error, text)
        _check_expansion(text)
        return
    values = template.match(uri)
    if values is None:
        return
    assert set(values) <= set(template.variables), values
    culprit = check_traversal(values, windows=False)
    unsafe = [name for name, value in values.items() if any(map(is_unsafe, _texts(value)))]
    assert culprit is not None or not unsafe, f"{unsafe} lead out in {values}"
    assert culprit is None or culprit in unsafe or any(set("%\n") & set(text) or not text.isascii() for text in _texts(values[culprit])), (
        culprit,
        values,
    )
    again = template.match(template.expand({name: value for name, value in values.items() if not _is_cut(text, name, value)}))
    assert again is None or set(again) <= set(template.variables), again


def _check_position(error: UriTemplateError, text: str) -> None:
    assert 0 <= error.position <= len(text), error


def _texts(value: UriValue) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [*value, "/".join(value)] if isinstance(value, list) else [*value, *value.values()]


def _is_cut(template: str, name: str, value: UriValue) -> bool:
    """Whether a variable has a prefix length, which fits text alone."""
    return not isinstance(value, str) and f"{name}:" in template


def _check_expansion(text: str) -> None:
    """A template that can't be matched can be expanded, or is none at all."""
    try:
        template = UriTemplate(text, matching=False)
    except UriTemplateError:
        return
    uri = template.expand(dict.fromkeys(template.variables, "é/..%"))
    assert uri.isascii(), uri
    assert not set(uri) & set(' "<>\\^`{|}'), uri


# Sealed texts and cursors -----------------------------------------------------------------------------------------------------------------

_RING: Final = KeyRing([b"k" * 32, b"old" * 32])
_BINDING: Final = bind(version="2026-07-28", method="tools/call", subject="a", arguments=b"{}", principal=None, server="s")
_NOW: Final = 1_000


def run_seal(data: bytes) -> None:
    """`core.seal` and cursors: no text but ours opens, whatever it is, and what ours opens to is what went in (MR-06, MR-07, SA28, PG-05)."""
    nonce, payload = (data[:NONCE_SIZE] + bytes(NONCE_SIZE))[:NONCE_SIZE], data[NONCE_SIZE:]
    text = _RING.seal(payload, _BINDING, nonce=nonce, expires=_NOW + 1)
    assert _RING.open(text, _BINDING, now=_NOW) == payload
    assert not _opens(text, _BINDING, now=_NOW + 1), "it opens past its end"
    assert not _opens(text, bind(version="", method="", subject="", arguments=data, principal="p", server=""), now=_NOW)
    at = sum(data) % len(text)
    for other in (text[:at] + chr(33 + (ord(text[at]) + 1) % 90) + text[at + 1 :], text[:at], text + text[:1], text[at:] + text[:at]):
        assert other == text or not _opens(other, _BINDING, now=_NOW), f"{other} opens, which is not {text}"
    for foreign in (data.decode("latin-1"), data.decode("utf-8", "surrogateescape"), "v1." + data.decode("latin-1")):
        assert not _opens(foreign, _BINDING, now=_NOW), foreign
        _RING.is_foreign(foreign)
        _check_cursor(foreign)
    _check_binding(data)


def _opens(text: str, binding: bytes, *, now: int) -> bool:
    try:
        _RING.open(text, binding, now=now)
    except SealError as error:
        if error.args:
            raise AssertionError("it says why") from error
        return False
    return True


def _check_cursor(text: str) -> None:
    try:
        offset = read_cursor("tools", text)
    except Fail as fail:
        if fail.reason is not Reason.CURSOR:
            raise AssertionError(fail) from fail
        return
    assert 0 <= offset < 10**11, text


def _check_binding(arguments: bytes) -> None:
    """The same JSON in another spelling is bound as the same (MR-07)."""
    reading = read_json(arguments)
    mine = _bind(arguments)
    if reading is None or reading.odd or reading.depth > MAX_DEPTH:
        return
    plain = json.loads(arguments)
    assert _bind(b" " + arguments + b"\n") == mine, arguments
    assert _bind(json.dumps([plain]).encode()) != mine, arguments


def _bind(arguments: bytes) -> bytes:
    return bind(version="v", method="m", subject="s", arguments=arguments, principal=None, server="s")
