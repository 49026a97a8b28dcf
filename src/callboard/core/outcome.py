"""What a request comes to: a closed union, always terminal (no outcome escapes middleware while work goes on)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from callboard.errors import Fail, RegistrationError

__all__ = ["Accepted", "CacheHint", "Deferred", "NeedInput", "Outcome", "Reply"]


class CacheHint(msgspec.Struct, frozen=True):
    """How long, and for whom, a client may keep a result (CA-01).

    Attributes:
        ttl_ms: Milliseconds; 0 means stale at once.
        scope: `private` to this authorization, or `public`.
    """

    ttl_ms: int = 0
    scope: Literal["private", "public"] = "private"

    def __post_init__(self) -> None:
        if type(self.ttl_ms) is not int or self.ttl_ms < 0 or self.scope not in ("private", "public"):
            raise RegistrationError(
                f"CacheHint: ttl_ms is an integer of 0 or more and scope private or public, not {self.ttl_ms!r} and {self.scope!r}."
            )


class Reply(msgspec.Struct):
    """A result.

    Attributes:
        value: The result's fields in the words of the current protocol, without `resultType`, `ttlMs`, `cacheScope` and
            server info, which the era adds. The era may add to this very dict: hand over a fresh one. In the return of a function:
            what it would return without Reply.
        cache: The caching hint of a cacheable method; the server's default when None.
        state: In the return of a function: takes the place of the session's state.
        stop_reason: In the return of a function: ends the session with this answer, for this reason; without a session only middleware
            sees it (`ctx.stop_reason`).
        wrap: Whether what `structuredContent` may be is no object, so that protocols which allow only objects wrap it (TL-07).
    """

    value: Any
    cache: CacheHint | None = None
    state: Any = UNSET
    wrap: bool = False
    stop_reason: str | None = None


class NeedInput(msgspec.Struct):
    """The work can't go on without the client (MR-01..MR-05).

    Attributes:
        requests: Input requests by key: `{"method": ..., "params": ...}` each.
        state: In the return of a function: any JSON value that it wants back as `ctx.input.state`. As an outcome: what the client sends back.
        is_sealed: Whether `state` is the sealed one; not for functions to say.
    """

    requests: Mapping[str, Any]
    state: Any = None
    is_sealed: bool = False


class Deferred(msgspec.Struct):
    """The work goes on elsewhere, as a task (TX-05).

    Attributes:
        value: The result's fields: `taskId`, `status` and so on.
    """

    value: dict[str, Any]


class Accepted(msgspec.Struct):
    """A notification was taken; there is nothing to answer (JR-12)."""


Outcome: TypeAlias = Reply | Fail | NeedInput | Deferred | Accepted
