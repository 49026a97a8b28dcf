"""The current era, 2026-07-28: every request carries its own envelope, every result its type.

Order of checks (HH-02 fixes that a mismatch wins over an unsupported version): version header = body, version
supported, `_meta` complete, `Mcp-Method` and `Mcp-Name`, method known, params. `Mcp-Param-*` waits for the tool (dispatch).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from callboard.core.era import Envelope, Headers, Request
from callboard.core.headers import compare_name
from callboard.core.outcome import Accepted, CacheHint, Deferred, NeedInput, Outcome, Reply
from callboard.errors import REASONS, Fail, Reason
from callboard.wire.jsonrpc import Message, RawNotification, RawRequest, RequestId, encode, encode_error, encode_result
from callboard.wire.methods import METHODS, Method
from callboard.wire.v2026_07_28 import Implementation
from callboard.wire.versions import LATEST, LEGACY

__all__ = ["Modern", "render_fail", "unreadable"]

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class _Meta(msgspec.Struct):
    """The required part of `_meta` (MT-01..MT-04) and what we read of the rest."""

    version: str = msgspec.field(name=_VERSION_KEY)
    capabilities: dict[str, Any] = msgspec.field(name="io.modelcontextprotocol/clientCapabilities")
    client_info: Implementation | None = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=None)
    log_level: _LogLevel | None = msgspec.field(name="io.modelcontextprotocol/logLevel", default=None)
    progress_token: int | str | None = msgspec.field(name="progressToken", default=None)
    traceparent: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Claim(msgspec.Struct):
    version: Any = msgspec.field(name=_VERSION_KEY, default=msgspec.UNSET)


class _Handshake(msgspec.Struct):
    version: str = msgspec.field(name="protocolVersion", default=LEGACY[-1])


class _Params(msgspec.Struct):
    meta: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="_meta", default=msgspec.UNSET)


class _ClaimParams(msgspec.Struct):
    meta: _Claim | msgspec.UnsetType = msgspec.field(name="_meta", default=msgspec.UNSET)


_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_handshake = msgspec.json.Decoder(_Handshake).decode
_decode_claim = msgspec.json.Decoder(_ClaimParams).decode
_LATEST_VALUE = LATEST.encode()
_LEGACY_VALUES = frozenset(version.encode() for version in LEGACY)
_WITH_PARAMS = (RawRequest, RawNotification)
_VERSION_BYTES = b"protocolVersion"  # to look for it costs less than to read what it would stand in
_NO_META = f'params._meta must carry "{_VERSION_KEY}" and "io.modelcontextprotocol/clientCapabilities" (protocol {LATEST}).'
_OLDEST = LEGACY[-1]  # VN-23: what a client is taken for that names no version


def _stated_version(message: RawRequest | RawNotification) -> Any:
    """The version that the body names, whatever its type; UNSET without one."""
    if message.params is None:
        return msgspec.UNSET
    try:
        meta = _decode_claim(message.params).meta
    except msgspec.DecodeError:
        return msgspec.UNSET
    return meta.version if isinstance(meta, _Claim) else msgspec.UNSET


class Modern:
    """Codec of 2026-07-28.

    Args:
        server_info: Goes into every result's `_meta` (MT-05); None leaves it out.
        supported: Versions that the endpoint serves, this era's first; what `-32022` and `server/discover` list.
        methods: The methods there are: the core's, and those of extensions.
    """

    def __init__(
        self, server_info: Implementation | None, *, supported: tuple[str, ...] = (LATEST,), methods: Mapping[str, Method] = METHODS
    ) -> None:
        self._methods = methods
        self.supported = supported
        self._spoken = LATEST if LATEST in supported else None
        self._meta = {} if server_info is None else {"io.modelcontextprotocol/serverInfo": msgspec.Raw(encode(server_info))}

    def claims(self, message: Message, headers: Headers | None) -> bool:
        """Body first, header second (VN-08)."""
        if headers is not None:
            stated = headers.get(b"mcp-protocol-version")
            if stated == _LATEST_VALUE:
                return True
            if stated is not None and stated not in _LEGACY_VALUES and stated.decode("latin-1").strip(" \t") not in LEGACY:
                return True
        if not isinstance(message, _WITH_PARAMS) or message.params is None or _VERSION_BYTES not in bytes(message.params):
            return False
        return _stated_version(message) is not msgspec.UNSET

    def lift(self, message: RawRequest, headers: Headers | None) -> Request | Fail:
        """Read a request whose every part is right; where one is not, `_explain` finds which comes first in the order of checks."""
        row = self._methods.get(message.method)
        if row is None:
            return self._explain(message, headers)
        try:
            params = row.decode(message.params or b"{}")
            if params.meta is msgspec.UNSET:
                return self._explain(message, headers)
            meta = _decode_meta(params.meta)
        except msgspec.DecodeError as error:
            return self._explain(message, headers, error)
        if meta.version != self._spoken or (headers is not None and not _mirrors(headers, row, params)):
            return self._explain(message, headers)
        traced = meta.traceparent is not msgspec.UNSET
        envelope = Envelope(meta.version, meta.capabilities, meta.client_info, meta.log_level, meta.progress_token, params.meta, traced)
        return Request(message.id, message.method, params, row, envelope, headers)

    def _explain(self, message: RawRequest, headers: Headers | None, error: Exception | None = None) -> Fail:
        """Say what is wrong with a request; see the module's order of checks."""
        raw_meta = self._raw_meta(message)
        if isinstance(raw_meta, Fail):
            return self._refuse_unversioned(message, headers) or raw_meta
        try:
            meta = _decode_meta(raw_meta)
        except msgspec.DecodeError as fault:
            return self._check_version(_stated_version(message), headers) or unreadable("params._meta", fault)
        if fail := self._check_version(meta.version, headers):
            return fail
        if headers is not None and (fail := _check_method(message.method, headers)):
            return fail
        row = self._methods.get(message.method)
        if row is None:
            return Fail(Reason.METHOD_NOT_FOUND, f"Method not found: protocol {LATEST} has none of this name.")
        if error is not None:
            return unreadable("params", error)
        return Fail(Reason.HEADER_MISMATCH, f"Mcp-Name must equal params.{row.mirrored}.")

    def notice(self, message: RawNotification, headers: Headers | None) -> Fail | None:
        """Check a notification's headers where there are any (HM-22: none are required)."""
        if headers is None:
            return None
        if b"mcp-method" in headers and (fail := _check_method(message.method, headers)):
            return fail
        version = _stated_version(message)
        if version is msgspec.UNSET or b"mcp-protocol-version" not in headers:
            return None
        return self._check_version(version, headers)

    def render(self, request_id: RequestId | None, outcome: Outcome, request: Request | None) -> tuple[int, bytes]:
        """Encode an outcome: `resultType` (JR-13), server info (MT-05) and caching hints (CA-01) come in here."""
        if isinstance(outcome, Reply):
            value = outcome.value
            value["resultType"] = "complete"
            if request is not None and request.row.cacheable:
                hint = outcome.cache or CacheHint()
                value["ttlMs"], value["cacheScope"] = hint.ttl_ms, hint.scope
        elif isinstance(outcome, Fail):
            return render_fail(request_id, outcome)
        elif isinstance(outcome, Accepted):
            return 202, b""
        elif isinstance(outcome, NeedInput):
            value = {"resultType": "input_required", "inputRequests": outcome.requests}
            if outcome.state is not None:
                value["requestState"] = outcome.state
        elif isinstance(outcome, Deferred):
            value = {**outcome.value, "resultType": "task"}
        else:
            raise TypeError(f"A layer of the middleware gave {outcome!r}: return what `await service(request, context)` gives.")
        if self._meta:
            own = value.get("_meta")
            value["_meta"] = self._meta if own is None else {**own, **self._meta}
        assert request_id is not None
        return 200, encode_result(request_id, value)

    def _raw_meta(self, message: RawRequest) -> msgspec.Raw | Fail:
        if message.params is None:
            return Fail(Reason.INVALID_PARAMS, _NO_META)
        try:
            meta = _decode_params(message.params).meta
        except msgspec.DecodeError as error:
            return unreadable("params", error)
        return meta if isinstance(meta, msgspec.Raw) else Fail(Reason.INVALID_PARAMS, _NO_META)

    def _refuse_unversioned(self, message: RawRequest, headers: Headers | None) -> Fail | None:
        """A request without an envelope: whoever speaks an older protocol learns which ones are served (VN-11, VN-18)."""
        if headers is not None:
            stated = headers.get(b"mcp-protocol-version")
            if stated is None:
                text = f"MCP-Protocol-Version is missing; supported: {', '.join(self.supported)}."
                return Fail(Reason.HEADER_MISMATCH, text, {"supported": list(self.supported)})
            version = stated.decode("latin-1").strip(" \t")
            return None if version == self._spoken else self._refuse_version(version)
        if message.method != "initialize":
            return None
        try:
            return self._refuse_version(_decode_handshake(message.params or b"{}").version)
        except msgspec.DecodeError:
            return self._refuse_version(_OLDEST)

    def _check_version(self, version: Any, headers: Headers | None) -> Fail | None:
        if headers is not None and isinstance(version, str):
            stated = headers.get(b"mcp-protocol-version")
            if stated is None or (stated != version.encode() and stated.strip(b" \t") != version.encode()):
                return Fail(Reason.HEADER_MISMATCH, f'MCP-Protocol-Version must equal params._meta["{_VERSION_KEY}"].')
        if isinstance(version, str) and version != self._spoken:
            return self._refuse_version(version)
        return None

    def _refuse_version(self, requested: str) -> Fail:
        supported = list(self.supported)
        text = f"Unsupported protocol version; supported: {', '.join(supported)}."
        return Fail(Reason.VERSION, text, {"supported": supported, "requested": requested})


def _mirrors(headers: Headers, row: Method, params: Any) -> bool:
    """Whether the required headers say what the body says (HH-01..HH-08)."""
    exact = headers.get(b"mcp-protocol-version") == _LATEST_VALUE and headers.get(b"mcp-method") == row.header
    if not exact and (_trimmed(headers, b"mcp-protocol-version") != _LATEST_VALUE or _trimmed(headers, b"mcp-method") != row.header):
        return False
    return not row.mirrored or compare_name(headers.get(b"mcp-name"), getattr(params, row.mirrored))


def _trimmed(headers: Headers, name: bytes) -> bytes:
    return headers.get(name, b"").strip(b" \t")


def unreadable(where: str, error: Exception) -> Fail:
    """What msgspec expected where; its texts about enums and tags repeat the client's value, which must not be echoed."""
    expected, at, path = str(error).partition(" - at ")
    if not expected.startswith(("Expected", "Object missing", "Number out of range")):
        expected = "not one of the allowed values" if at else "not valid"
    return Fail(Reason.INVALID_PARAMS, f"{where}: {expected}{at}{path}.")


def _check_method(method: str, headers: Headers) -> Fail | None:
    given = headers.get(b"mcp-method")
    if given is None or not given.isascii() or given.strip(b" \t") != method.encode():
        return Fail(Reason.HEADER_MISMATCH, "Mcp-Method must equal the body's method.")
    return None


def render_fail(request_id: RequestId | None, fail: Fail) -> tuple[int, bytes]:
    """Encode a failure; the text falls back to the reason's own where it can't be encoded."""
    rule = REASONS.get(fail.reason)
    code = fail.code if rule is None else rule.code
    assert code is not None
    status = 200 if rule is None else rule.status
    return status, encode_error(request_id, code, fail.text, fail.data)
