"""What a client needs of a transport: one request out, its notifications and its answer in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from callboard.client.errors import Origin
from callboard.wire.jsonrpc import RawNotification, RawResponse

__all__ = ["MAX_MESSAGE", "Connection", "Incoming", "OnNote", "Outgoing", "means_answer"]

MAX_MESSAGE = 64 * 2**20
"""Default of `Client(max_message=...)`: 64 MiB, in bytes."""

OnNote: TypeAlias = Callable[[RawNotification], Awaitable[None]]
"""Takes a request's notifications, in order, in the request's own task."""


def means_answer(message: bytes) -> bool:
    """Whether bytes that are no message were meant as an answer, rather than as a log line that strayed in."""
    return b'"jsonrpc"' in message and (b'"result"' in message or b'"error"' in message)


class Outgoing(msgspec.Struct):
    """A request, ready to be sent.

    Attributes:
        origin: Who sends it to whom; its `request_id` is the id on the wire.
        body: The encoded message.
        headers: HTTP headers that mirror the body (HH-03, HH-04, HH-09); empty where the transport has none.
    """

    origin: Origin
    body: bytes
    headers: dict[str, str]


class Incoming(msgspec.Struct):
    """An answer.

    Attributes:
        response: Result or error, still raw.
        status: HTTP status; None without HTTP.
    """

    response: RawResponse
    status: int | None = None


class Connection(Protocol):
    """One way to a server. Any number of tasks of one event loop may use it at once.

    Attributes:
        mirrors: Whether requests carry headers that mirror their body.
    """

    mirrors: bool

    async def open(self, origin: Origin) -> None:
        """Get ready.

        Args:
            origin: Names the server in errors.

        Raises:
            ClientError: It can't be done.
        """
        ...

    async def exchange(self, request: Outgoing, on_note: OnNote) -> Incoming:
        """Send a request and wait for its answer. Cancelling this cancels the request, in the transport's way (CN-01).

        Args:
            request: What to send.
            on_note: Gets what comes before the answer; what it raises ends the request.

        Raises:
            ClientError: There will be no answer.
        """
        ...

    @property
    def last_words(self) -> str:
        """What the server has said beside the protocol, for people; empty where that can't be heard."""
        ...

    async def close(self) -> None:
        """Let go of everything, within bounded time; requests that wait fail. Any task may do it; twice is harmless."""
        ...
