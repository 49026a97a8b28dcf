"""What the protocol asks of a server for every request, done as cheaply as Python allows: the measure for Callboard's own overhead.

Host and Origin against rebinding, media types, the version in header and body, `Mcp-Method` and `Mcp-Name` against the body, a typed
envelope, `_meta` with version and capabilities, typed arguments with an error in band where they don't fit; for the 2025 protocols the
session in place of what they don't have.
"""

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.floors.data import SESSIONS
from benchmarks.floors.tools import TOOLS, Call, encode

VERSION = "2026-07-28"
LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
VERSIONS = {VERSION, *LEGACY_VERSIONS}
LOCAL_HOSTS = ("127.0.0.1:", "localhost:", "[::1]:")
LOCAL_ORIGINS = ("http://127.0.0.1", "http://localhost")
JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"
# JSON-RPC codes stand in the server's own table; a floor needs but one, for any refusal.
INVALID = -32600


class RefusalError(Exception):
    """A request that is not answered with a result."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Session:
    """What a server must know of a 2025 client, and has room for."""

    __slots__ = ("calls", "client", "level", "stream", "version")

    def __init__(self, hello: dict[str, Any]) -> None:
        self.version = hello["protocolVersion"]
        self.client = hello["clientInfo"]
        self.level = self.stream = self.calls = None


sessions: dict[str, Session] = {}


class _Envelope(msgspec.Struct):
    jsonrpc: str
    method: str
    id: int | str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _LegacyMeta(msgspec.Struct):
    token: int | str | None = msgspec.field(name="progressToken", default=None)


class _Meta(msgspec.Struct):
    version: str = msgspec.field(name="io.modelcontextprotocol/protocolVersion")
    capabilities: dict[str, Any] = msgspec.field(name="io.modelcontextprotocol/clientCapabilities")
    token: int | str | None = msgspec.field(name="progressToken", default=None)


class _CallParams(msgspec.Struct):
    name: str
    meta: _Meta = msgspec.field(name="_meta")
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _LegacyParams(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    meta: _LegacyMeta = msgspec.field(name="_meta", default_factory=_LegacyMeta)


class _OtherParams(msgspec.Struct):
    meta: _Meta = msgspec.field(name="_meta")
    notifications: dict[str, Any] | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_call = msgspec.json.Decoder(_CallParams).decode
_decode_legacy = msgspec.json.Decoder(_LegacyParams).decode
_decode_other = msgspec.json.Decoder(_OtherParams).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_decode_arguments = {name: msgspec.json.Decoder(arguments).decode for name, (arguments, _) in TOOLS.items()}


def check_headers(fields: Mapping[str, str]) -> str:
    """The protocol version of a request whose headers are in order.

    Raises:
        RefusalError: They are not.
    """
    if not fields.get("host", "").startswith(LOCAL_HOSTS):
        raise RefusalError(421, "host")
    origin = fields.get("origin")
    if origin is not None and not origin.startswith(LOCAL_ORIGINS):
        raise RefusalError(403, "origin")
    media_type = fields.get("content-type", "")
    if media_type != JSON_TYPE and media_type.partition(";")[0].strip().lower() != JSON_TYPE:
        raise RefusalError(415, "content type")
    accepted = fields.get("accept", "")
    if "*/*" not in accepted and not (JSON_TYPE in accepted and STREAM_TYPE in accepted):
        raise RefusalError(406, "accept")
    version = fields.get("mcp-protocol-version", LEGACY_VERSIONS[-1])
    if version not in VERSIONS:
        raise RefusalError(400, "version")
    return version


def read_strictly(body: bytes, fields: Mapping[str, str], version: str) -> Call:
    """A request, everything of it checked.

    Raises:
        RefusalError: Something is missing, of the wrong type, or contradicts the headers.
    """
    try:
        message = _decode_envelope(body)
        if message.jsonrpc != "2.0" or message.id is None or fields.get("mcp-method") != message.method:
            raise RefusalError(400, "method")
        if message.method != "tools/call":
            other = _decode_other(message.params)
            if other.meta.version != version:
                raise RefusalError(400, "version")
            return Call(message.id, message.method, params={"notifications": other.notifications})
        params = _decode_call(message.params)
        if params.meta.version != version or fields.get("mcp-name") != params.name:
            raise RefusalError(400, "name or version")
        return Call(message.id, message.method, params.name, read_arguments(params.name, params.arguments), token=params.meta.token)
    except msgspec.DecodeError as error:
        raise RefusalError(400, str(error)) from None


def read_arguments(tool: str, arguments: msgspec.Raw) -> Any:
    """The arguments as the tool wants them.

    Raises:
        RefusalError: There is no such tool.
        msgspec.DecodeError: They are of the wrong type.
    """
    decode = _decode_arguments.get(tool)
    if decode is None:
        raise RefusalError(400, "unknown tool")
    return decode(arguments)


def read_legacy(body: bytes, fields: Mapping[str, str]) -> Call:
    """A request or notification of a 2025 client, everything of it checked; `initialize` opens a session.

    Raises:
        RefusalError: Something is missing, of the wrong type, or of no session.
    """
    try:
        message = _decode_envelope(body)
        if message.jsonrpc != "2.0":
            raise RefusalError(400, "jsonrpc")
        if message.method == "initialize":
            return Call(message.id, message.method, session=open_session(_decode_any(message.params)) if SESSIONS else "")
        if SESSIONS:
            session = fields.get("mcp-session-id")
            if session not in sessions:
                raise RefusalError(400 if session is None else 404, "session")
        if message.method != "tools/call":
            return Call(message.id, message.method)
        params = _decode_legacy(message.params)
        return Call(message.id, message.method, params.name, read_arguments(params.name, params.arguments), token=params.meta.token)
    except msgspec.DecodeError as error:
        raise RefusalError(400, str(error)) from None


def open_session(hello: dict[str, Any]) -> str:
    """Keep what a client says of itself; the id of its session."""
    session = secrets.token_hex(16)
    sessions[session] = Session(hello)
    return session


def close_session(fields: Mapping[str, str]) -> int:
    """Forget a session; the HTTP status of the answer to DELETE."""
    return 404 if sessions.pop(fields.get("mcp-session-id", ""), None) is None else 204


def refuse(refusal: RefusalError) -> bytes:
    """The body of a refusal."""
    return encode({"jsonrpc": "2.0", "id": None, "error": {"code": INVALID, "message": str(refusal)}})
