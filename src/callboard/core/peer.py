"""Machine of what one side asks the other: ids, what is pending, who gets which answer. Sans-IO.

Rules:
    1. Ids are texts of ours, never used twice (JR-03); an answer to anything else is nobody's.
    2. An ask ends once: by its answer, or because whoever asked gave it up. An answer that comes later is nobody's (CN-05).
    3. Who gives up tells the other side (CN-07); only requests that are pending are named in a cancellation (CN-02).
"""

from __future__ import annotations

from typing import Any

import msgspec

from callboard.errors import AskError
from callboard.wire.jsonrpc import RawResponse, encode_notification, encode_request

__all__ = ["Peer"]


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


_decode_error = msgspec.json.Decoder(_Error).decode
_decode_result = msgspec.json.Decoder(dict[str, Any]).decode


class Peer:
    """Requests to the other side that are not answered yet, each with a token of the shell's.

    Args:
        prefix: What ids begin with.
    """

    __slots__ = ("_count", "_prefix", "pending")

    def __init__(self, prefix: str = "server") -> None:
        self._prefix = prefix
        self._count = 0
        self.pending: dict[str, Any] = {}

    def ask(self, token: Any, method: str, params: Any) -> tuple[str, bytes]:
        """Make a request.

        Args:
            token: What `answer` hands back.
            method: Its method.
            params: Its params.

        Returns:
            Its id, and the encoded message.

        Raises:
            TypeError: `params` have no JSON form; nothing is pending then.
        """
        request_id = f"{self._prefix}-{self._count + 1}"
        message = encode_request(request_id, method, params)
        self._count += 1
        self.pending[request_id] = token
        return request_id, message

    def answer(self, response: RawResponse) -> tuple[Any, dict[str, Any] | AskError] | None:
        """Take an answer.

        Returns:
            The token of the request, and its result or error; None when nothing of this id is pending.
        """
        if not isinstance(response.id, str) or response.id not in self.pending:
            return None
        return self.pending.pop(response.id), _read(response)

    def give_up(self, request_id: str, reason: str) -> bytes | None:
        """Stop waiting.

        Returns:
            The cancellation to send; None when the request is not pending any more.
        """
        if self.pending.pop(request_id, None) is None:
            return None
        return encode_notification("notifications/cancelled", {"requestId": request_id, "reason": reason})

    def clear(self) -> list[Any]:
        """Stop waiting for everything, because the other side is gone; the tokens."""
        tokens = list(self.pending.values())
        self.pending.clear()
        return tokens


def _read(response: RawResponse) -> dict[str, Any] | AskError:
    try:
        if response.error is not None:
            error = _decode_error(response.error)
            return AskError(error.code, error.message, error.data)
        return _decode_result(response.result or b"")
    except msgspec.DecodeError as fault:
        return AskError(0, f"The answer is not readable: {fault}")
