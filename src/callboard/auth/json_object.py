"""JSON objects from somebody else, read the one way: what two readers could understand differently is refused (RFC 8725 section 2.4)."""

from __future__ import annotations

import json
from typing import Any, Never

__all__ = ["read_object"]


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Args:
        data: UTF-8, without a byte order mark.

    Raises:
        ValueError: It is none; or a key stands twice in an object, a number is none of JSON's or has thousands of digits, a string holds half
            a surrogate pair, or it is nested too deeply. The text holds nothing of `data`.
    """
    try:
        found = _DECODER.decode(data.decode())
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()  # half a pair can be escaped, not encoded
    except _AmbiguousError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("no JSON that can be read") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - bad data, not a bad argument
    return found


class _AmbiguousError(ValueError):
    """JSON that readers differ about."""


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _AmbiguousError("JSON with a key twice in one object")
    return made


def _refuse_constant(_name: str) -> Never:
    raise _AmbiguousError("JSON with a number that JSON has not")


_DECODER = json.JSONDecoder(object_pairs_hook=_read_pairs, parse_constant=_refuse_constant)
