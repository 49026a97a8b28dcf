"""Failures as data, and the exceptions that user code raises or meets.

    Exception
     └── CallboardError
          ├── RegistrationError    a component or option that can't work; raised when it is added, never during a call
          ├── ToolError            a tool's own failure, shown to the model (`isError: true`)
          │    └── AskError        the client could not be asked, or answered with an error
          │         └── NoAnswerError   it did not answer in time, or is gone
          └── Fail                 a protocol error: what the client gets as a JSON-RPC error
               └── NotFound        a resource that does not exist

`REASONS` is the only place that knows an error code or the HTTP status that goes with it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, NamedTuple

__all__ = [
    "REASONS",
    "AskError",
    "CallboardError",
    "Fail",
    "NoAnswerError",
    "NotFound",
    "Reason",
    "RegistrationError",
    "Rule",
    "StoreError",
    "ToolError",
]

# JSON-RPC reserves this range; an author's own code must lie outside it (EC-12).
RESERVED_CODES = range(-32768, -31999)


class Reason(Enum):
    """Why a request failed; a key of `REASONS`."""

    PARSE = auto()
    INVALID_REQUEST = auto()
    METHOD_NOT_FOUND = auto()
    INVALID_PARAMS = auto()
    INTERNAL = auto()
    HEADER_MISMATCH = auto()
    MISSING_CAPABILITY = auto()
    VERSION = auto()
    UNKNOWN_TOOL = auto()
    UNKNOWN_PROMPT = auto()
    RESOURCE_NOT_FOUND = auto()
    CURSOR = auto()
    ORIGIN = auto()
    HOST = auto()
    REMOTE_PEER = auto()
    MEDIA_TYPE = auto()
    ENCODING = auto()
    NOT_ACCEPTABLE = auto()
    BODY_TOO_LARGE = auto()
    HEADERS_TOO_LARGE = auto()
    PATH = auto()
    HTTP_METHOD = auto()
    OVERLOADED = auto()
    DUPLICATE_ID = auto()
    OPTIONS = auto()
    SESSION_REQUIRED = auto()
    SESSION_NOT_FOUND = auto()
    SESSION_OPEN = auto()
    SESSION_OVERLOADED = auto()
    SESSION_ENDED = auto()
    NOT_INITIALIZED = auto()
    TIMED_OUT = auto()
    CANCELLED = auto()
    EVENT_ID = auto()
    CONFLICT = auto()
    STATE = auto()
    STOPPED = auto()
    SCOPE = auto()
    RATE = auto()
    SLOW = auto()
    UNAUTHORIZED = auto()
    BAD_CREDENTIAL = auto()
    AUTH_UNAVAILABLE = auto()
    STORE = auto()
    CUSTOM = auto()


class Rule(NamedTuple):
    """What a reason looks like on the wire, per era.

    Attributes:
        code: JSON-RPC error code for 2026-07-28 clients.
        status: HTTP status for 2026-07-28 clients.
        legacy_code: JSON-RPC error code for 2025 clients.
        legacy_status: HTTP status for 2025 clients.
        text: The public text when the failure brings none of its own.
    """

    code: int
    status: int
    legacy_code: int
    legacy_status: int
    text: str


# EC-01..EC-15; where the protocol leaves the HTTP status open: 400 for what the client can mend, 200 for the rest.
REASONS: dict[Reason, Rule] = {
    Reason.PARSE: Rule(-32700, 400, -32700, 400, "The message is not valid JSON."),
    Reason.INVALID_REQUEST: Rule(-32600, 400, -32600, 400, "The message is not a JSON-RPC 2.0 request or notification."),
    Reason.METHOD_NOT_FOUND: Rule(-32601, 404, -32601, 200, "Method not found."),
    Reason.INVALID_PARAMS: Rule(-32602, 400, -32602, 200, "Invalid params."),
    Reason.INTERNAL: Rule(-32603, 200, -32603, 200, "Internal error."),
    Reason.HEADER_MISMATCH: Rule(-32020, 400, -32600, 400, "A header and the body differ."),
    Reason.MISSING_CAPABILITY: Rule(-32021, 400, -32603, 200, "The client did not declare a capability that this request needs."),
    Reason.VERSION: Rule(-32022, 400, -32600, 400, "Unsupported protocol version."),
    Reason.UNKNOWN_TOOL: Rule(-32602, 400, -32602, 200, "Unknown tool."),
    Reason.UNKNOWN_PROMPT: Rule(-32602, 400, -32602, 200, "Unknown prompt."),
    Reason.RESOURCE_NOT_FOUND: Rule(-32602, 400, -32002, 200, "Resource not found."),
    Reason.CURSOR: Rule(-32602, 400, -32602, 200, "Invalid cursor: start again without one."),
    Reason.ORIGIN: Rule(-32600, 403, -32600, 403, "Origin not allowed."),
    Reason.HOST: Rule(-32600, 421, -32600, 421, "Host not allowed."),
    Reason.REMOTE_PEER: Rule(-32600, 403, -32600, 403, "Remote clients are not allowed."),
    Reason.MEDIA_TYPE: Rule(-32600, 415, -32600, 415, "Content-Type must be application/json."),
    Reason.ENCODING: Rule(-32600, 415, -32600, 415, "Content-Encoding is not supported: send the body as it is."),
    Reason.NOT_ACCEPTABLE: Rule(-32600, 406, -32600, 406, "Accept must allow application/json or text/event-stream."),
    Reason.BODY_TOO_LARGE: Rule(-32600, 413, -32600, 413, "The body is too large."),
    Reason.HEADERS_TOO_LARGE: Rule(-32600, 431, -32600, 431, "The headers are too large."),
    Reason.PATH: Rule(-32600, 404, -32600, 404, "There is no MCP endpoint at this path."),
    Reason.HTTP_METHOD: Rule(-32600, 405, -32600, 405, "This endpoint takes POST."),
    Reason.OVERLOADED: Rule(-32603, 503, -32603, 503, "The server is at its limit: try again later."),
    Reason.DUPLICATE_ID: Rule(-32600, 400, -32600, 400, "A request with this id is still in flight."),
    Reason.OPTIONS: Rule(-32603, 500, -32603, 500, "Internal error."),
    Reason.SESSION_REQUIRED: Rule(-32600, 400, -32600, 400, "Mcp-Session-Id is missing: send the one that initialize was answered with."),
    Reason.SESSION_NOT_FOUND: Rule(-32600, 404, -32600, 404, "There is no such session: initialize again, without Mcp-Session-Id."),
    Reason.SESSION_OPEN: Rule(-32600, 400, -32600, 400, "This session is initialized already."),
    Reason.SESSION_OVERLOADED: Rule(-32603, 503, -32603, 200, "Session overloaded: wait for answers before sending more."),
    Reason.SESSION_ENDED: Rule(-32603, 200, -32603, 200, "Session ended."),
    Reason.NOT_INITIALIZED: Rule(-32600, 400, -32600, 400, "Server not initialized: send notifications/initialized first."),
    Reason.TIMED_OUT: Rule(-32603, 200, -32603, 200, "Request timed out."),
    Reason.CANCELLED: Rule(-32603, 200, -32603, 200, "Request cancelled."),
    Reason.EVENT_ID: Rule(-32600, 400, -32600, 400, "Last-Event-ID names no event of this session: open a stream without it."),
    Reason.STATE: Rule(
        -32602, 400, -32602, 200, "params.requestState is not one that this request can go on from: start again without it."
    ),
    # SA27: codes of our own, as HTTP numbers them.
    Reason.SCOPE: Rule(403, 403, 403, 403, "A scope that this needs was not granted."),
    Reason.RATE: Rule(429, 429, 429, 429, "Too many calls: try again later."),
    Reason.SLOW: Rule(-32600, 408, -32600, 408, "The request did not arrive in time."),
    Reason.UNAUTHORIZED: Rule(401, 401, 401, 401, "This server needs to know who asks: send a valid token."),
    Reason.BAD_CREDENTIAL: Rule(400, 400, 400, 400, "The request's credential can't be read."),
    Reason.AUTH_UNAVAILABLE: Rule(503, 503, 503, 503, "Nobody can check who asks right now: try again later."),
    Reason.STORE: Rule(-32603, 503, -32603, 503, "The store that this server keeps its state in can't be reached: try again."),
    Reason.STOPPED: Rule(-32603, 200, -32603, 200, "The server ended this request without a result."),
    Reason.CONFLICT: Rule(-32600, 409, -32600, 409, "This session has a stream already (single_stream)."),
}


class CallboardError(Exception):
    """Root of every exception that Callboard defines."""


class RegistrationError(CallboardError, TypeError):
    """A component or an option that can't work. The text names the culprit, the place and the way out."""


class StoreError(CallboardError):
    """A shared store can't be reached, or does not answer in time. The text names it, without its password.

    Where it ends a request the client gets 503 with `Retry-After`, `Reason.STORE`.
    """


class ToolError(CallboardError):
    """A tool's own failure, answered in band (`isError: true`) so that the model can react (TL-12).

    Args:
        content: What the model reads: a text, one content block or a list of blocks. In a prompt or resource the client gets the text
            as an error.
        structured: Optional JSON value that goes along as `structuredContent`; it is not held to the tool's output schema.
    """

    def __init__(self, content: Any = "The tool failed.", *, structured: Any = None) -> None:
        super().__init__(content)
        self.content = content
        self.structured = structured


class AskError(ToolError):
    """The client answered a request of ours with an error (EL-15). A tool that does not catch it fails in band.

    Attributes:
        code: The JSON-RPC error code; 0 where there was no readable answer.
        data: The error's `data`; None when it sent none.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class NoAnswerError(AskError):
    """A request to the client that came to nothing: it timed out, the session ended, or no stream could carry it."""

    def __init__(self, message: str) -> None:
        super().__init__(0, message)


class Fail(CallboardError):  # noqa: N818 - it is an outcome too
    """A protocol error. It can be returned as an outcome or raised.

    Args:
        reason: A key of `REASONS`, which decides code and HTTP status.
        text: One sentence for the client; the reason's own text by default.
        data: Optional JSON value for the error's `data`.
    """

    code: int | None = None

    def __init__(self, reason: Reason, text: str | None = None, data: Any = None) -> None:
        if not isinstance(reason, Reason):
            raise TypeError(
                f"Fail takes a Reason, not {reason!r}; for a text of your own raise ToolError(text), or Fail.custom(code, text)."
            )
        super().__init__(text or (REASONS[reason].text if reason in REASONS else ""))
        self.reason = reason
        self.data = data

    @property
    def text(self) -> str:
        """The sentence that the client reads."""
        return str(self.args[0])

    @classmethod
    def custom(cls, code: int, message: str, data: Any = None) -> Fail:
        """Make an error with a code of the author's own.

        Args:
            code: A JSON-RPC error code outside -32768..-32000, which the protocol reserves (EC-12).
            message: One sentence for the client.
            data: Optional JSON value.

        Raises:
            ValueError: `code` is a reserved one, or no integer.
        """
        if type(code) is not int:
            raise ValueError(f"Fail.custom: the code must be an integer (JR-08), not {type(code).__name__}.")
        if code in RESERVED_CODES:
            raise ValueError(f"Fail.custom: {code} lies in -32768..-32000, which JSON-RPC and MCP reserve; use a code outside it.")
        fail = Fail(Reason.CUSTOM, message, data)
        fail.code = code
        return fail


class NotFound(Fail):
    """A resource that does not exist (RS-05): raise it in a resource function.

    Args:
        uri: The URI that was asked for; it goes into the error's `data`. The URI of the request by default.
    """

    def __init__(self, uri: str | None = None) -> None:
        super().__init__(Reason.RESOURCE_NOT_FOUND, None, None if uri is None else {"uri": uri})
