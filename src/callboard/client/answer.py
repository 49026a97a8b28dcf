"""What an answer says: a result, or an error of the server's; read leniently where servers write null for what is absent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec

from callboard.client.errors import InvalidAnswer, Origin, ServerError

__all__ = ["Kind", "read", "read_complete", "refusal", "without_nulls"]

# Keys that hold JSON of people's own, which may hold nulls; of these, the ones that may be null altogether.
_FREE = frozenset({"structuredContent", "data", "_meta", "inputSchema", "outputSchema", "requestedSchema"})
_NULLABLE = frozenset({"structuredContent", "data"})


class _Error(msgspec.Struct):
    code: int
    message: str
    data: Any = None


class Kind(msgspec.Struct):
    """What tells results apart; JR-14: without a type, a result is complete.

    Attributes:
        result_type: `complete`, `input_required`, or a word of an extension's.
        input_requests: What the server asks for, by key.
        request_state: What it wants back unchanged; None when it wants nothing back.
    """

    result_type: str = msgspec.field(name="resultType", default="complete")
    input_requests: dict[str, Any] = msgspec.field(name="inputRequests", default_factory=dict)
    request_state: str | None = msgspec.field(name="requestState", default=None)


def refusal(raw: msgspec.Raw, origin: Origin, status: int | None = None, challenges: tuple[str, ...] = ()) -> ServerError:
    """Make an exception of a JSON-RPC error, which came with that HTTP status and these `WWW-Authenticate` headers."""
    error: _Error = read(_Error, raw, origin)
    return ServerError(error.code, error.message, error.data, status, origin, challenges=challenges)


def read(kind: Any, raw: msgspec.Raw, origin: Origin) -> Any:
    """Read JSON as a type of the protocol's.

    Raises:
        InvalidAnswer: It does not fit.
    """
    try:
        return _decoder(kind)(raw)
    except msgspec.DecodeError as error:
        with suppress(msgspec.DecodeError):  # servers that write null for what is absent can be understood
            return msgspec.convert(without_nulls(msgspec.json.decode(raw)), kind)
        raise InvalidAnswer(f"the answer does not fit the protocol: {error}", origin) from error


def read_complete(kind: Any, raw: msgspec.Raw, origin: Origin) -> Any:
    """Read a result that must be complete.

    Raises:
        InvalidAnswer: It is of another type (JR-15), or does not fit.
    """
    found: Kind = read(Kind, raw, origin)
    if found.result_type != "complete":
        raise InvalidAnswer(f"the result is of the unknown type {found.result_type!r}", origin)
    return read(kind, raw, origin)


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    return msgspec.json.Decoder(kind).decode


def without_nulls(value: Any) -> Any:
    """A copy of JSON without the nulls that the protocol has no place for: many servers write them for what is absent."""
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: each if key in _FREE else without_nulls(each) for key, each in value.items() if each is not None or key in _NULLABLE}
