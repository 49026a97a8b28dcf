"""Who gets in over HTTP: what stands before an endpoint, and the pages that are open to everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Protocol

from callboard.auth.guard import Denial
from callboard.auth.principal import Principal
from callboard.errors import RegistrationError
from callboard.transport.stream import Receive, Scope, Send

__all__ = ["Door", "MetadataPage", "Told", "check_old_path", "check_pages"]


class Door(Protocol):
    """Finds out who sends a request, and lets them in or not. A `Guard` is one.

    Attributes:
        culprit: The option that it comes from, for the log.
    """

    culprit: str

    @property
    def documents(self) -> Mapping[str, bytes]:
        """Path -> JSON document that everybody may read."""
        ...

    def recall(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Who sends a request, where that is known already."""
        ...

    async def admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str | Denial | None:
        """Find out who sends a request; None for somebody without a name who may ask all the same."""
        ...

    def strip(self, headers: MutableMapping[bytes, bytes]) -> None:
        """Take out what proves who sends a request: functions have no use for it but to pass it on, which they must not (AR-08)."""
        ...

    async def close(self) -> None:
        """Give back what it took."""
        ...


class Told:
    """Takes the word of a function for who asks, and lets everybody in: `asgi(principal=...)`.

    Args:
        tell: Takes the ASGI scope; None for somebody without a name.
    """

    culprit = "principal="
    documents: Mapping[str, bytes] = {}

    def __init__(self, tell: Callable[[Scope], str | None]) -> None:
        self._tell = tell

    def recall(self, headers: Mapping[bytes, bytes]) -> None:
        """Nobody: the function is asked each time."""

    async def admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str | None:  # noqa: ARG002 - the function takes the scope
        """What the function says; an empty text is nobody, since all who have no name would be the same one.

        Raises:
            TypeError: It says something else than a str or None.
        """
        told = self._tell(scope)
        if told is not None and not isinstance(told, str):
            raise TypeError(f"principal= gave {type(told).__name__}; it is a plain function that gives a str, a Principal or None.")
        return told or None

    def strip(self, headers: MutableMapping[bytes, bytes]) -> None:
        """What was proven, and by what, is known to whoever stands before the application."""

    async def close(self) -> None:
        """Nothing was taken."""


class MetadataPage:
    """An ASGI application that shows one JSON document to everybody, pages of other origins included (RFC 9728 section 3.1).

    Args:
        document: The document.
    """

    def __init__(self, document: bytes) -> None:
        self._document = document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - nothing is read
        """Serve one ASGI scope."""
        method = scope["method"]
        headers = [(b"access-control-allow-origin", b"*"), (b"x-content-type-options", b"nosniff")]
        status, body = 200, self._document
        if method == "OPTIONS":
            status, body = 204, b""
            headers += [(b"access-control-allow-methods", b"GET"), (b"access-control-allow-headers", b"mcp-protocol-version")]
        elif method in {"GET", "HEAD"}:
            headers += [(b"content-type", b"application/json"), (b"cache-control", b"public, max-age=3600")]
        else:
            status, body = 405, b""
            headers.append((b"allow", b"GET, HEAD, OPTIONS"))
        if status != 204:
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})


def check_pages(pages: dict[str, Any], taken: Iterable[str]) -> dict[str, Any]:
    """The pages of sinks, by path.

    Args:
        pages: Path -> page.
        taken: Where something else is.

    Raises:
        RegistrationError: There is something else at one of them.
    """
    if clash := pages.keys() & set(taken):
        raise RegistrationError(f"telemetry: {min(clash)!r} is taken, so that nobody would see the page of a sink: give it another path.")
    return pages


def check_old_path(sse_path: str | None, taken: Iterable[str]) -> None:
    """See that HTTP+SSE has a path to itself, with all that is under it.

    Args:
        sse_path: The path; None for none.
        taken: Where probes and pages are, which are answered first.

    Raises:
        RegistrationError: One of them is there.
    """
    if sse_path is not None and (clash := [each for each in taken if f"{each}/".startswith(f"{sse_path}/")]):
        raise RegistrationError(
            f"sse_path {sse_path!r} needs all that is under it, and {clash[0]!r} is taken, by health= or a page: give each a path of its own."
        )
