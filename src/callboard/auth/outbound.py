"""What verifiers ask of others over HTTP: which URLs they may follow, and one request with its answer bounded.

Rules for URLs:
    1. https; http only to this machine, or where an author said `insecure=True`.
    2. What no URL may hold: `core.urls.split`.
    3. A URL from a document leads to this machine or into a private network only if the URL of the document does; to link-local addresses
       never (`core.urls.check_host`). Where an author's own URL leads is the author's choice.
Redirects are never followed, cookies never kept, proxies of the environment not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from callboard.core.urls import UnfitUrlError, check_host, is_inside, is_loopback, shown, split
from callboard.errors import RegistrationError

__all__ = ["Answer", "Ask", "Outbound", "OutboundError", "Send", "check_url", "fault_of", "fault_of_found"]

MAX_ANSWER = 2**20
MAX_URL = 2048


class Ask(NamedTuple):
    """A request to somebody.

    Attributes:
        url: Where to.
        method: `GET` or `POST`.
        headers: Of the request.
        body: Of the request.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None

    def __repr__(self) -> str:
        """Without headers and body, which hold credentials."""
        return f"<Ask {self.method} {shown(self.url)}>"


class Answer(NamedTuple):
    """What came back.

    Attributes:
        status: Its HTTP status.
        body: Its body, of at most 1 MiB.
    """

    status: int
    body: bytes


Send: TypeAlias = Callable[[Ask], Awaitable[Answer]]


class OutboundError(Exception):
    """There is no answer. The text is the end of a sentence that begins with the URL, and holds no credential.

    Attributes:
        broken: The connection ended before the answer: perhaps it was an old one, and the next one does better.
    """

    broken = False


def check_url(url: Any, option: str, *, insecure: bool = False) -> str:
    """Find out now whether an author's URL can be used.

    Args:
        url: The URL.
        option: What it is called.
        insecure: Whether http will do.

    Raises:
        RegistrationError: It can't.
    """
    if not isinstance(url, str):
        raise RegistrationError(f"{option} is a URL, not {type(url).__name__}.")
    if fault := fault_of(url, insecure=insecure):
        raise RegistrationError(f"{option}: {shown(url)!r} {fault}.")
    return url


def fault_of(url: str, *, insecure: bool = False) -> str:
    """What is wrong with a URL (rules 1 and 2); empty if nothing is."""
    try:
        parts = split(url, MAX_URL)
    except UnfitUrlError as error:
        return str(error)
    if parts.scheme == "http" and not insecure and not is_loopback(parts.hostname or ""):
        return "is http, which anybody on the way can change; it must begin with https:// (on this machine http will do)"
    return ""


def fault_of_found(url: Any, source: str, *, insecure: bool = False) -> str:
    """What is wrong with a URL that a document holds (rules 1 to 3); empty if nothing is.

    Args:
        url: The URL.
        source: The URL of the document, or of who answers for it.
        insecure: Whether http will do.
    """
    if not isinstance(url, str):
        return "is no string"
    if fault := fault_of(url, insecure=insecure):
        return fault
    try:
        check_host(urlsplit(url).hostname or "", inside=is_inside(urlsplit(source).hostname or ""))
    except UnfitUrlError as error:
        return str(error)
    return ""


class Outbound:
    """Sends requests; connections are kept per event loop, until `close`.

    Args:
        connections: How many there may be at once.
    """

    def __init__(self, connections: int = 4) -> None:
        self._connections = connections
        self._sessions: dict[asyncio.AbstractEventLoop, Any] = {}

    async def send(self, ask: Ask) -> Answer:
        """Send a request and read the answer. Whoever calls limits the time.

        Raises:
            OutboundError: There is no answer, or it is too big or compressed.
        """
        import aiohttp
        from yarl import URL

        try:
            async with self._session().request(
                ask.method, URL(ask.url, encoded=True), headers=ask.headers, data=ask.body, allow_redirects=False
            ) as response:
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise OutboundError("answered compressed, though it was asked not to")
                return Answer(response.status, await _read(response.content))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failed = OutboundError(_explain(error))
            failed.broken = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
            raise failed from None

    async def close(self) -> None:
        """Close the connections of the running loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> Any:
        import aiohttp

        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            self._sessions = {other: kept for other, kept in self._sessions.items() if not other.is_closed()}
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                headers={
                    "Accept": "application/json, application/jwk-set+json, */*;q=0.1",
                    "Accept-Encoding": "identity",
                    "User-Agent": "callboard",
                },
                auto_decompress=False,
                trust_env=False,
            )
        return session


async def _read(content: Any) -> bytes:
    held = bytearray()
    async for chunk in content.iter_any():
        held += chunk
        if len(held) > MAX_ANSWER:
            raise OutboundError(f"answered with more than {MAX_ANSWER} bytes")
    return bytes(held)


def _explain(error: Exception) -> str:
    """What went wrong, in words that hold nothing of what was sent."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "has a certificate that is not trusted here"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "can't be found: its name leads to no address"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"can't be reached: {error.os_error.strerror or type(error.os_error).__name__}"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "broke off before its answer was complete"
    return f"gave no answer that can be read ({type(error).__name__})"
