"""What need not be found out again about the head of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from callboard.wire.versions import LEGACY

__all__ = ["Known", "is_older"]

# What the version header may be where there are sessions: clients of 2025-03-26 have none (VN-23).
_VERSIONS = frozenset({None, *(version.encode() for version in LEGACY)})


class Known(NamedTuple):
    """What is known of a POST or DELETE by its head, and by the address that it came from.

    Attributes:
        headers: Its headers by lower-case name.
        shown: Those of them that functions see.
        extra: Headers for every answer.
        streams: Whether the client takes an event stream.
        streams_only: Whether it takes nothing else.
        older: Whether it is of an older protocol, unless its body says otherwise; else it is of the current one.
        ends: Whether it is the DELETE that ends a session.
    """

    headers: dict[bytes, bytes]
    shown: dict[bytes, bytes]
    extra: list[tuple[bytes, bytes]]
    streams: bool
    streams_only: bool
    older: bool
    ends: bool

    def of_session(self, session_id: bytes) -> Known:
        """The same of a request that names another session.

        Args:
            session_id: Its id.
        """
        headers, shown, extra, streams, streams_only, older, ends = self
        named = {b"mcp-session-id": session_id}
        return Known({**headers, **named}, {**shown, **named}, extra, streams, streams_only, older, ends)


def is_older(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request names no version but one that has sessions.

    Args:
        headers: Its headers by lower-case name.
    """
    return headers.get(b"mcp-protocol-version") in _VERSIONS
