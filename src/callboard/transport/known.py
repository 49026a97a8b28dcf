"""What need not be found out again about the head of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from callboard.wire.versions import LEGACY

__all__ = ["Known", "is_in_session"]

# What the version header may be in a session: clients of 2025-03-26 have none (VN-23).
_VERSIONS = frozenset({None, *(version.encode() for version in LEGACY)})


class Known(NamedTuple):
    """What is known of a POST by its head, and by the address that it came from.

    Attributes:
        headers: Its headers by lower-case name.
        shown: Those of them that functions see.
        extra: Headers for every answer.
        streams: Whether the client takes an event stream.
        streams_only: Whether it takes nothing else.
        in_session: Whether it names a session, and no other version than one that has sessions; else it is of the current protocol.
    """

    headers: dict[bytes, bytes]
    shown: dict[bytes, bytes]
    extra: list[tuple[bytes, bytes]]
    streams: bool
    streams_only: bool
    in_session: bool


def is_in_session(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request names a session, and no version that has none.

    Args:
        headers: Its headers by lower-case name.
    """
    return b"mcp-session-id" in headers and headers.get(b"mcp-protocol-version") in _VERSIONS
