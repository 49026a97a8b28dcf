"""What a client asks of whoever holds its credentials, and the few words of HTTP that they have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

__all__ = ["Auth", "Challenge", "Fetch", "HttpRequest", "HttpResponse"]


class HttpRequest(msgspec.Struct, frozen=True):
    """A request to an authorization server, or for a document about one. Its `repr` holds no secret.

    Attributes:
        method: `GET` or `POST`.
        url: Where to.
        headers: Its headers.
        body: Its body.
        led_by: URL of the MCP endpoint that led there, so that a name may lead into no private network (SC-03); empty: whoever uses the client
            has named it.
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    led_by: str = ""

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url.partition('?')[0]})"


class HttpResponse(msgspec.Struct, frozen=True):
    """What came back. Its `repr` holds no secret.

    Attributes:
        status: HTTP status; redirects are not followed.
        headers: Its headers, with names in lower case.
        body: Its body, at most 1 MiB.
    """

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""

    def __repr__(self) -> str:
        return f"HttpResponse({self.status})"


Fetch: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Sends a request. Raises `ConnectionFailed` when there is no answer."""


class Challenge(msgspec.Struct, frozen=True):
    """A refusal of the MCP server's: 401 or 403. Its `repr` holds no secret.

    Attributes:
        status: HTTP status.
        http_method: Method of the request that was refused.
        url: The MCP endpoint.
        headers: Headers of the answer, names in lower case; a name may come more than once.
        sent: What `Auth.headers` gave for the request.
        protocol: Protocol version that the request was sent in.
    """

    status: int
    http_method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    sent: Mapping[str, str] = {}
    protocol: str = ""

    def __repr__(self) -> str:
        return f"Challenge({self.status} {self.http_method} {self.url.partition('?')[0]})"


class Auth(Protocol):
    """Whoever holds the credentials for one MCP endpoint; `Client(auth=...)`. Any number of tasks may use it at once."""

    def bind(self, url: str, fetch: Fetch) -> None:
        """Learn which endpoint the credentials are for, and how to reach authorization servers; the client does it when it opens."""
        ...

    async def headers(self, http_method: str, url: str) -> Mapping[str, str]:
        """What a request to the endpoint carries: `Authorization`, `DPoP`; nothing while there are no credentials. It may renew them."""
        ...

    async def answer(self, challenge: Challenge) -> bool:
        """Get credentials after a refusal; it may take as long as a person needs to log in.

        Returns:
            Whether to send the request again.

        Raises:
            AuthorizationFailed: There will be none; it says why.
        """
        ...

    def learn(self, headers: Mapping[str, str]) -> None:
        """Take note of the headers of an answer of the endpoint's, names in lower case; not of a 401, which `answer` gets."""
        ...
