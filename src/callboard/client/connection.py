"""What a client needs of a transport: one request out, its notifications and its answer in.

A connection knows no protocol version. What a request carries is in the request; what comes and belongs to no request goes to a `Receiver`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from callboard.client.auth import Challenge
from callboard.client.errors import HttpError, Origin
from callboard.wire.jsonrpc import RawNotification, RawRequest, RawResponse

__all__ = ["MAX_MESSAGE", "Challenged", "Connection", "Incoming", "OnNote", "Outgoing", "Receiver", "means_answer"]

MAX_MESSAGE = 64 * 2**20
"""Default of `Client(max_message=...)`: 64 MiB, in bytes."""

OnNote: TypeAlias = Callable[[RawNotification], Awaitable[None]]
"""Takes a request's notifications, in order, in the request's own task."""


def means_answer(message: bytes) -> bool:
    """Whether bytes that are no message were meant as an answer, rather than as a log line that strayed in."""
    return b'"jsonrpc"' in message and (b'"result"' in message or b'"error"' in message)


class Challenged(HttpError):  # noqa: N818 - as its siblings in errors.py
    """The endpoint wants other credentials than it got; raised only where there is an `Auth` to ask.

    Attributes:
        challenge: What it said.
    """

    def __init__(self, challenge: Challenge, snippet: str, origin: Origin) -> None:
        challenges = tuple(value for name, value in challenge.headers if name == "www-authenticate")
        super().__init__(challenge.status, snippet, origin, challenges=challenges)
        self.challenge = challenge


class Outgoing(msgspec.Struct):
    """A request, ready to be sent.

    Attributes:
        origin: Who sends it to whom; its `request_id` is the id on the wire.
        body: The encoded message.
        headers: HTTP headers that mirror the body (HH-01, HH-03, HH-04, HH-09) or name the session (HL-21); empty where the transport has none.
        told: Whether the server is told by `notifications/cancelled` when the request is given up (CN-01, LC-07).
        resumed: Whether its event stream, once broken, is taken up again where it ended (HL-10, HL-19; HM-14).
        lasting: Whether its progress goes on after the answer (PR-07).
    """

    origin: Origin
    body: bytes
    headers: Mapping[str, str]
    told: bool = True
    resumed: bool = False
    lasting: bool = False


class Incoming(msgspec.Struct):
    """An answer.

    Attributes:
        response: Result or error, still raw.
        status: HTTP status; None without HTTP.
        session: The session that the server opened with it (HL-20); None when it named none.
        challenges: `WWW-Authenticate` headers of a refusal; empty without HTTP.
    """

    response: RawResponse
    status: int | None = None
    session: str | None = None
    challenges: tuple[str, ...] = ()


class Receiver(Protocol):
    """Takes what no request of the client's waits for. No method may block; they are called in the order of arrival."""

    def take_note(self, note: RawNotification) -> None:
        """A notification of the session as a whole, or of a request that has ended."""
        ...

    def take_request(self, request: RawRequest) -> None:
        """A request of the server's (JR-07)."""
        ...

    def lose(self, text: str) -> None:
        """The way by which they come has ended, though the connection was not closed; the text says how."""
        ...


class Connection(Protocol):
    """One way to a server. Any number of tasks of one event loop may use it at once.

    Attributes:
        mirrors: Whether requests carry HTTP headers.
    """

    mirrors: bool

    async def open(self, origin: Origin, receiver: Receiver) -> None:
        """Get ready. After the other side has gone away it may be opened anew.

        Args:
            origin: Names the server in errors.
            receiver: Takes what no request waits for.

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
            Challenged: The server wants other credentials.
            ClientError: There will be no answer.
        """
        ...

    async def send(self, message: bytes, headers: Mapping[str, str], origin: Origin) -> None:
        """Send what has no answer: a notification, or a response to a request of the server's.

        Args:
            message: The encoded message.
            headers: As for a request.
            origin: Names it in errors.

        Raises:
            ClientError: It did not arrive.
        """
        ...

    async def begin(self, headers: Mapping[str, str]) -> None:
        """A session of 2025 has begun: open the server's channel where it needs one (HL-13), and end the session with the connection (HL-25).

        Args:
            headers: What each of the session's messages carries. A second call replaces the first session, which the server has forgotten.
        """
        ...

    @property
    def last_words(self) -> str:
        """What the server has said beside the protocol, for people; empty where that can't be heard."""
        ...

    async def close(self) -> None:
        """Let go of everything, within bounded time; requests that wait fail. Any task may do it; twice is harmless."""
        ...
