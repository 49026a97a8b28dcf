"""What a protocol era is to the rest: who claims a message, lifts it into the one vocabulary, and renders what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from callboard.core.outcome import Outcome
from callboard.errors import Fail
from callboard.wire.jsonrpc import Message, RawNotification, RawRequest, RequestId
from callboard.wire.methods import Method

__all__ = ["Envelope", "Era", "Headers", "Request"]

# HTTP headers by lower-case name, or None where the transport has none.
Headers = Mapping[bytes, bytes]


class Envelope(msgspec.Struct):
    """What a request says about itself and its client, whatever the era.

    Attributes:
        version: Protocol version of this request.
        capabilities: What the client declared, as sent.
        client_info: The client's self-reported name and version (MT-06: never a base for decisions); None when it gave none.
        log_level: The least severe level it wants to see; None for no logs (LG-01).
        progress_token: Where progress goes; None for none.
        meta: `_meta` as sent, unread.
        traced: Whether that has a `traceparent` (SEP-414).
        task: What a 2025-11-25 client says of the task that it wants the call to be (TK-02); None where it wants none.
    """

    version: str
    capabilities: dict[str, Any]
    client_info: Any = None
    log_level: str | None = None
    progress_token: int | str | None = None
    meta: msgspec.Raw | None = None
    traced: bool = False
    task: dict[str, Any] | None = None


class Request(msgspec.Struct):
    """A request in the words of the current protocol: what middleware and `dispatch` see.

    Attributes:
        id: JSON-RPC id, JSON type kept (JR-02).
        method: Name of the method.
        params: Its typed parameters, for example `types.CallToolRequestParams`.
        row: The method's row in `METHODS`.
        envelope: What the request says about its client.
        headers: HTTP headers by lower-case name; None without HTTP.
    """

    id: RequestId
    method: str
    params: Any
    row: Method
    envelope: Envelope
    headers: Headers | None = None

    def __repr__(self) -> str:
        """Without what may be secret: its headers, arguments and `requestState` (AR-10)."""
        return f"<Request {self.id!r:.80} {self.method!r:.80} of {self.envelope.version}>"


class Era(Protocol):
    """One way of speaking MCP."""

    def claims(self, message: Message, headers: Headers | None) -> bool:
        """Whether this era answers the message."""
        ...

    def lift(self, message: RawRequest, headers: Headers | None) -> Request | Fail:
        """Read a request, or say why not."""
        ...

    def notice(self, message: RawNotification, headers: Headers | None) -> Fail | None:
        """Check a notification; None when it is fine."""
        ...

    def render(self, request_id: RequestId | None, outcome: Outcome, request: Request | None) -> tuple[int, bytes]:
        """Turn an outcome into an HTTP status and an encoded response (empty for none).

        Args:
            request_id: JSON-RPC id; None where it could not be read.
            outcome: What the request came to.
            request: The request; None where it could not be lifted.

        Raises:
            Exception: The value can't be encoded; the caller's crash guard answers.
        """
        ...
