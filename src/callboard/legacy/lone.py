"""The era of a 2025 request that belongs to no session."""

from __future__ import annotations

from callboard.core.era import Headers, Request
from callboard.core.outcome import Outcome
from callboard.errors import Fail
from callboard.legacy.codec import Codec
from callboard.legacy.methods import OWN, lift_own
from callboard.wire.jsonrpc import Message, RawNotification, RawRequest, RequestId

__all__ = ["Lone"]


class Lone:
    """A version of the protocol for requests that stand alone; the session's own methods are accepted and have no effect.

    Args:
        codec: The version.
    """

    __slots__ = ("_codec",)

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def claims(self, message: Message, headers: Headers | None) -> bool:
        """Whether this era answers the message."""
        return self._codec.claims(message, headers)

    def lift(self, message: RawRequest, headers: Headers | None) -> Request | Fail:
        """Read a request, or say why not."""
        if message.method in OWN:
            return lift_own(message, headers, self._codec.base)
        return self._codec.lift(message, headers)

    def notice(self, message: RawNotification, headers: Headers | None) -> Fail | None:
        """Check a notification; None when it is fine."""
        return self._codec.notice(message, headers)

    def render(self, request_id: RequestId | None, outcome: Outcome, request: Request | None) -> tuple[int, bytes]:
        """Turn an outcome into an HTTP status and an encoded response."""
        return self._codec.render(request_id, outcome, request)
