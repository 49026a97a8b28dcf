"""Drivers of what HTTP headers say: mirrored values, media types, who may ask. See `fuzz.drivers` for what a driver is."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

import msgspec
from fuzz.readers import host_is_ours, read_header, read_host

from callboard.core.headers import (
    HeaderAnnotationError,
    HeaderParam,
    HeaderValueError,
    compare_name,
    compare_params,
    compile_param_map,
    decode_value,
    encode_value,
    mirror_params,
)
from callboard.core.modern import render_fail
from callboard.errors import Fail
from callboard.transport.security import HttpRules, accepted_types, check, check_caller, check_media

__all__ = ["run_headers", "run_security"]

_PLAIN: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_LOCAL: Final = HttpRules()
_PUBLIC: Final = HttpRules(
    hosts=("api.example.com", "*.example.org", "localhost:8000"),
    origins=("https://app.example.com",),
    allow_remote=True,
    max_body=100,
    max_headers=500,
)
_PARAMS: Final = (
    HeaderParam(b"mcp-param-region", "Mcp-Param-Region", ("region",), "string"),
    HeaderParam(b"mcp-param-count", "Mcp-Param-Count", ("inner", "count"), "integer"),
    HeaderParam(b"mcp-param-dry", "Mcp-Param-Dry", ("dry",), "boolean"),
)


def run_headers(data: bytes) -> None:
    """`core.headers`: the first line is a header, the rest a text or JSON that it should mirror (HH-06..HH-20)."""
    raw, _, rest = data.partition(b"\n")
    meant = read_header(raw)
    try:
        value: str | None = decode_value(raw.decode("latin-1"))
    except HeaderValueError:
        value = None
    assert value == meant, f"{raw!r} says {meant!r}, and was read as {value!r}"
    if value is not None:
        assert compare_name(raw, value), value
        assert not compare_name(raw, value + "x"), value
        _check_round_trip(value)
    text = rest.decode("utf-8", "surrogatepass" if rest.count(b"\xed") else "replace") if _is_text(rest) else rest.decode("latin-1")
    _check_round_trip(text)
    assert compare_name(raw, text) == (meant == text), (raw, text)
    _check_json(raw, rest)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _check_round_trip(value: str) -> None:
    try:
        written = encode_value(value)
    except HeaderValueError:
        assert any("\ud800" <= letter <= "\udfff" for letter in value), ascii(value)
        return
    assert _PLAIN.fullmatch(written), ascii(written)
    assert decode_value(written) == value, ascii(written)
    assert read_header(written.encode()) == value, ascii(written)
    assert compare_name(written.encode(), value), ascii(written)


def _check_json(raw: bytes, body: bytes) -> None:
    """Schemas are compiled or refused; headers that mirror arguments fit these, and others don't."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    params: tuple[HeaderParam, ...] = _PARAMS
    with suppress(HeaderAnnotationError):
        params = compile_param_map(value) or _PARAMS
    assert len({param.header for param in params}) == len(params), params
    try:
        written = mirror_params(params, value)
    except HeaderValueError:
        return
    headers = {name.lower().encode(): text.encode("ascii") for name, text in written.items()}
    assert compare_params(params, headers, value) is None, (written, value)
    for param in params:
        told = compare_params(params, {**headers, param.header: raw}, value)
        assert told is None or param.name in told, told
        assert (told is None) == _is_same(read_header(raw), headers.get(param.header), integer=param.type == "integer"), (
            raw,
            headers,
            told,
        )
        assert (told is None) or raw == b"" or raw.decode("latin-1") not in told or len(raw) < 24, f"it repeats the value: {told}"


def _is_same(sent: str | None, right: bytes | None, *, integer: bool) -> bool:
    """Whether a header says what the right one says; of integers, whatever their spelling (HH-20)."""
    meant = None if right is None else read_header(right)
    if sent is None or meant is None or sent == meant:
        return sent is not None and sent == meant
    found = [re.fullmatch(r"(-?[0-9]{1,32})(?:\.0{1,32})?", text) for text in (sent, meant)]
    return integer and all(found) and len({int(each[1]) for each in found if each}) == 1


def run_security(data: bytes) -> None:
    """`transport.security`: lines of headers; `host` and `origin` among them are judged by an independent reader (HM-02, HM-04, SA13, SA16)."""
    lines = [line.partition(b":") for line in data.split(b"\n")]
    scope: dict[str, Any] = {"headers": [(name.strip().lower(), value.strip(b" \t")) for name, _, value in lines]}
    headers: dict[bytes, bytes] = dict(scope["headers"])
    peer = headers.get(b"peer", b"127.0.0.1").decode("latin-1")
    for rules in (_LOCAL, _PUBLIC):
        _check_fail(check(rules, scope, headers))
        _check_caller(rules, peer, headers.get(b"host"), headers.get(b"origin"))
    _check_fail(check_media(headers))
    json, stream = accepted_types(headers.get(b"accept"))
    assert isinstance(json, bool), json
    assert isinstance(stream, bool), stream


def _check_fail(fail: Fail | None) -> None:
    if fail is not None:
        status, answer = render_fail(None, fail)
        assert 400 <= status < 500, status
        assert answer.isascii() or answer.decode(), answer
        assert len(answer) < 2_000, answer


def _check_caller(rules: HttpRules, peer: str, host: bytes | None, origin: bytes | None) -> None:
    fail = check_caller(rules, peer, host, None)
    _check_fail(fail)
    if fail is None:
        assert host is not None, "no host is a host"
        name = host.decode("latin-1").lower()
        ours = host_is_ours(name, remote=rules.allow_remote) or re.fullmatch(
            r"(?:api\.example\.com|[^/:@]*\.example\.org)\.?(?::[0-9]*)?", name
        )
        assert ours, f"{name!r} is taken for this server"
    if origin is None:
        return
    _check_fail(fail := check_caller(rules, peer, host, origin))
    if fail is None:
        page = origin.decode("latin-1").lower()
        asked = "" if host is None else host.decode("latin-1").lower()
        own = re.fullmatch(r"https?://(.+)", page)
        is_own = own is not None and read_host(own[1]) == read_host(asked) is not None
        assert page == "https://app.example.com" or is_own, f"{page!r} may call {asked!r}"
