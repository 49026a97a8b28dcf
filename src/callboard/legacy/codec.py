"""The 2025 protocols as eras: requests up into the current vocabulary, outcomes down into an older one. One `Codec` per version.

A 2025 client says who it is once, in `initialize`; what it said comes in here as an `Envelope` that its requests share. The methods of the
session itself (`initialize`, `ping`, `logging/setLevel`, `resources/subscribe`, `resources/unsubscribe`) have no counterpart in the current
protocol: they are not lifted, and this module only reads their parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from callboard.core.era import Envelope, Headers, Request
from callboard.core.modern import unreadable
from callboard.core.outcome import Accepted, Deferred, NeedInput, Outcome, Reply
from callboard.errors import REASONS, Fail, Reason
from callboard.legacy.lowering import Lowering
from callboard.legacy.tasks import RELATED, TASK_METHODS, TASK_SUPPORT, lower_task, offer_tasks, read_task
from callboard.server.app import Server
from callboard.types import Implementation, LoggingLevel
from callboard.wire.jsonrpc import Message, RawNotification, RawRequest, RequestId, encode, encode_error, encode_result
from callboard.wire.methods import METHODS, Method
from callboard.wire.versions import CLIENT_REQUESTS, FEATURES, LATEST, LEGACY, LOG_LEVELS

__all__ = [
    "DEFAULT_LOG_LEVEL",
    "Codec",
    "LevelParams",
    "Opening",
    "UriParams",
    "lower_capabilities",
    "negotiate",
    "read_initialize",
    "read_level",
    "read_uri",
]

DEFAULT_LOG_LEVEL = "info"
"""What a client hears that never asked for a level (LG-05 leaves it to the server)."""

# MT-18, MT-19. `extensions` are the current protocol's: nobody serves their methods here (TX-17).
_CAPABILITIES = frozenset({"completions", "experimental", "logging", "prompts", "resources", "tools"})
# What only the current protocol asks in a request and its retry (MR-01).
_RETRY_KEYS = ("inputResponses", "requestState")
_T = TypeVar("_T")


class _Meta(msgspec.Struct):
    progress_token: int | str | None = msgspec.field(name="progressToken", default=None)
    traceparent: Raw | UnsetType = UNSET


class _Initialize(msgspec.Struct, rename="camel"):
    protocol_version: str | None = None
    capabilities: dict[str, Any] | None = None
    client_info: dict[str, Any] | None = None


class LevelParams(msgspec.Struct):
    """Parameters of `logging/setLevel` (LG-05).

    Attributes:
        level: The least severe level that the client wants to see.
        meta: `_meta` as sent.
    """

    level: LoggingLevel
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class UriParams(msgspec.Struct):
    """Parameters of `resources/subscribe` and `resources/unsubscribe`.

    Attributes:
        uri: The resource.
        meta: `_meta` as sent.
    """

    uri: str
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class Opening(msgspec.Struct):
    """What a client's `initialize` comes to.

    Attributes:
        version: The version that is spoken from now on.
        capabilities: What the client declared, as sent.
        client_info: Its name and version; None when it gave none.
        params: The parameters as sent.
    """

    version: str
    capabilities: dict[str, Any]
    client_info: Implementation | None
    params: Raw


_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_NOTHING = Raw(b"{}")
_NULL = Raw(b"null")


class Codec:
    """The era of one 2025 version.

    Args:
        version: One of `LEGACY`.
        supported: Versions that the endpoint serves, for error texts.
        server: The server, which may have tasks; None for one without.

    Raises:
        ValueError: `version` is none of the 2025 ones.

    Attributes:
        version: As given.
        features: What the version can carry.
        base: The envelope of a client of whom nothing is known, as where there are no sessions.
    """

    __slots__ = ("_info", "_lowering", "_rows", "_server", "_supported", "base", "features", "version")

    def __init__(self, version: str, *, supported: tuple[str, ...] = LEGACY, server: Server | None = None) -> None:
        if version not in LEGACY:
            raise ValueError(f"{version!r} is no version of the 2025 protocols; those are {', '.join(LEGACY)}.")
        self.version = version
        self.features = FEATURES[version]
        self.base = Envelope(version, {}, log_level=DEFAULT_LOG_LEVEL)
        self._supported = supported
        self._server = server
        self._lowering = Lowering(self.features, self._find_support)
        self._info: tuple[Implementation, Any] | None = None
        rows = {**METHODS, **TASK_METHODS}
        self._rows: Mapping[str, Method] = {method: row for method, row in rows.items() if version in CLIENT_REQUESTS.get(method, ())}

    @property
    def _has_tasks(self) -> bool:
        """Whether calls may be tasks; where they may not, what asks for one is ignored (TK-03)."""
        return self.features.tasks and self._server is not None and self._server.tasks is not None

    def _find_support(self, name: str) -> str | None:
        """A tool's `taskSupport` (TK-02)."""
        tool = None if self._server is None else self._server.registry.tools.get(name)
        return None if tool is None else TASK_SUPPORT.get(tool.policy.task)

    def claims(self, message: Message, headers: Headers | None) -> bool:  # noqa: ARG002 the names are the protocol's
        """Whatever the current era did not claim is a 2025 client's."""
        return True

    def lift(self, message: RawRequest, headers: Headers | None, envelope: Envelope | None = None) -> Request | Fail:
        """Read a request.

        Args:
            message: The request.
            headers: HTTP headers by lower-case name; None without HTTP.
            envelope: What is known of the client; `base` when None. A request without `_meta` shares this very object.

        Returns:
            The request, or why it is none: METHOD_NOT_FOUND also for methods of the session itself.
        """
        row = self._rows.get(message.method)
        if row is None or (row.serve is not None and not self._has_tasks):
            served = ", ".join(self._supported)
            text = f"Method not found: this server has none of this name for protocol {self.version} (it serves {served})."
            return Fail(Reason.METHOD_NOT_FOUND, text)
        try:
            params = row.decode(message.params or b"{}")
        except msgspec.DecodeError as error:
            params = _decode_leniently(row, message.params, error)
            if isinstance(params, Fail):
                return params
        if row.asks:
            params.input_responses = params.request_state = UNSET
            if message.method == "tools/call" and params.arguments == _NULL:
                params.arguments = UNSET
        elif not self.features.completion_context and message.method == "completion/complete":
            params.context = UNSET  # CP-02
        known = self.base if envelope is None else envelope
        if params.meta == _NULL:
            params.meta = UNSET
        if params.meta is not UNSET:
            try:
                meta = _decode_meta(params.meta)
            except msgspec.DecodeError as error:
                return unreadable("params._meta", error)
            known = Envelope(known.version, known.capabilities, known.client_info, known.log_level, meta.progress_token, params.meta)
            known.traced = meta.traceparent is not UNSET
        request = Request(message.id, message.method, params, row, known, headers)
        server = self._server
        may = server is not None and server.tasks is not None and self.features.tasks and message.method == "tools/call"
        return _ask_for_task(request, message.params) if may and b'"task"' in bytes(message.params or b"") else request

    def notice(self, message: RawNotification, headers: Headers | None) -> Fail | None:  # noqa: ARG002 the names are the protocol's
        """Nothing to check: versions that have the header have it checked with the session (VN-24)."""
        return None

    def render(self, request_id: RequestId | None, outcome: Outcome, request: Request | None) -> tuple[int, bytes]:
        """Encode an outcome in the words of this version.

        Args:
            request_id: JSON-RPC id; None where it could not be read.
            outcome: What the request came to. A result's `value` is changed.
            request: The request; None for a result that only has to lose what every result of the current protocol has.

        Raises:
            Exception: The value can't be encoded; the caller's crash guard answers.
        """
        if isinstance(outcome, Reply):
            self._lowering.lower("" if request is None else request.method, outcome.value, wrap=outcome.wrap)
            assert request_id is not None
            return 200, encode_result(request_id, outcome.value)
        if isinstance(outcome, Fail):
            return self.render_fail(request_id, outcome)
        if isinstance(outcome, Accepted):
            return 202, b""
        if isinstance(outcome, Deferred) and request is not None and request.envelope.task is not None:
            assert request_id is not None
            task = lower_task(outcome.value)
            return 200, encode_result(request_id, {"task": task, "_meta": {RELATED: {"taskId": task["taskId"]}}})  # TK-03, TK-06
        if isinstance(outcome, NeedInput | Deferred):
            asks = "ask its client" if isinstance(outcome, NeedInput) else "answer with a task"
            text = f"This request has to {asks} in a way that protocol {self.version} does not have; {LATEST} does."
            return self.render_fail(request_id, Fail(Reason.MISSING_CAPABILITY, text))
        raise TypeError(f"A layer of the middleware gave {outcome!r}: return what `await service(request, context)` gives.")

    def introduce(
        self, info: Implementation, capabilities: Mapping[str, Any], instructions: str | None, *, owned: bool = False
    ) -> dict[str, Any]:
        """What `initialize` is answered with (LC-02), in the words of this version.

        Args:
            info: What the server says of itself.
            capabilities: What it offers, in the words of the current protocol.
            instructions: How to use it; None for none.
            owned: Whether the client has a principal.
        """
        if self._info is None or self._info[0] is not info:
            self._info = info, self._lowering.implementation(info)
        lowered = lower_capabilities(capabilities)
        if self._has_tasks:
            lowered["tasks"] = offer_tasks(owned=owned)
        result = {"protocolVersion": self.version, "capabilities": lowered, "serverInfo": self._info[1]}
        if instructions is not None:
            result["instructions"] = instructions
        return result

    def render_fail(self, request_id: RequestId | None, fail: Fail) -> tuple[int, bytes]:
        """Encode a failure with its reason's code and status for 2025 clients.

        Args:
            request_id: JSON-RPC id; None where it could not be read. Only 2025-11-25 lets it be left out (JR-09), elsewhere it is null.
            fail: What went wrong.
        """
        rule = REASONS.get(fail.reason)
        code = fail.code if rule is None else rule.legacy_code
        assert code is not None
        status = 200 if rule is None else rule.legacy_status
        if request_id is not None or self.features.error_without_id:
            return status, encode_error(request_id, code, fail.text, fail.data)
        error: dict[str, Any] = {"code": code, "message": fail.text}
        if fail.data is not None:
            error["data"] = fail.data
        return status, encode({"jsonrpc": "2.0", "id": None, "error": error})


def _ask_for_task(request: Request, params: Raw | None) -> Request | Fail:
    """The request, with what it says of the task that it wants to be."""
    try:
        wanted = read_task(params or _NOTHING)
    except msgspec.DecodeError as error:
        return unreadable("params", error)
    if wanted is not None:
        request.envelope = msgspec.structs.replace(request.envelope, task=wanted)
    return request


def _decode_leniently(row: Method, params: Raw | None, error: msgspec.DecodeError) -> Any:
    """Parameters without what a 2025 client means nothing by: the keys of a retry, and nulls, as which some write what is absent."""
    try:
        given = _decode_object(params or b"{}")
        rest = {key: value for key, value in given.items() if key not in _RETRY_KEYS and value != _NULL}
        if len(rest) < len(given):
            return row.decode(encode(rest))
    except msgspec.DecodeError as fault:
        error = fault
    return unreadable("params", error)


def negotiate(requested: object, served: tuple[str, ...]) -> str:
    """Pick the version of a session (VN-20): the one asked for if it is served, else the first one served.

    Args:
        requested: What the client asked for, whatever its type.
        served: Versions that the endpoint serves, newest first. Of those only 2025 ones are ever picked (VN-10).
    """
    candidates = [version for version in served if version in LEGACY]
    return requested if isinstance(requested, str) and requested in candidates else candidates[0]


def read_initialize(params: Raw | None, served: tuple[str, ...]) -> Opening | Fail:
    """Read the parameters of `initialize`. What is missing or null is made up for; what has the wrong type is not.

    Args:
        params: As sent; None when the key is absent.
        served: Versions that the endpoint serves, newest first.
    """
    given = _read(_Initialize, params)
    if isinstance(given, Fail):
        return given
    # What nobody here knows is read, too, since the server's functions get all of it: a number that no float holds must not stop those.
    if isinstance(whole := _read(dict[str, Any], params), Fail):
        return whole
    info: Implementation | None = None
    if given.client_info is not None:
        # MT-06: nothing depends on it, so a client is not turned away because of a missing version or a null.
        said = {key: value for key, value in given.client_info.items() if value is not None}
        try:
            info = msgspec.convert({"name": "", "version": "", **said}, Implementation)
        except msgspec.ValidationError as error:
            return unreadable("params.clientInfo", error)
    return Opening(negotiate(given.protocol_version, served), given.capabilities or {}, info, params or _NOTHING)


def lower_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Server capabilities without what the version does not have or nobody serves there; `experimental` stays (MT-18, MT-19)."""
    return {name: value for name, value in capabilities.items() if name in _CAPABILITIES}


def read_level(params: Raw | None) -> LevelParams | Fail:
    """Read the parameters of `logging/setLevel`; an unknown or missing level is INVALID_PARAMS and the text lists those there are (LG-05)."""
    level = _read(LevelParams, params)
    return Fail(Reason.INVALID_PARAMS, f"params.level: use one of {', '.join(LOG_LEVELS)}.") if isinstance(level, Fail) else level


def read_uri(params: Raw | None) -> UriParams | Fail:
    """Read the parameters of `resources/subscribe` or `resources/unsubscribe`."""
    return _read(UriParams, params)


def _read(kind: type[_T], params: Raw | None) -> _T | Fail:
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except msgspec.DecodeError as error:
        return unreadable("params", error)
