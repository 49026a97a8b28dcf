"""Which URLs a server may send a client to, and what a server is called in a token request.

Every URL below comes from somebody else: a challenge, a metadata document, a redirect. A client that follows them all can be sent to the
cloud's metadata service or be made to open a script (SC-03, SC-07). So each passes `Place.check` before anything is fetched or opened:

    1. `https`, or `http` if the host is loopback. Documents of the MCP server's own origin may use the scheme that its user chose.
    2. What no URL may hold: `core.urls.split`.
    3. Loopback, private and other special addresses only if the MCP server has such an address itself; link-local ones never
       (`core.urls.check_host`). The MCP server's own origin is its user's choice.

Names are not resolved here, so a name that leads to a private address passes: `names` looks at that when the connection is made.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from callboard.client.errors import AuthorizationFailed, Origin
from callboard.core.urls import PORTS, UnfitUrlError, check_host, is_inside, is_loopback, masked, shown, split

__all__ = ["Place", "origin_of", "place_of", "same_page"]

# More than a verifier takes: the query of an endpoint is its user's, and the URL of its metadata has it too. Nobody needs longer ones.
MAX_URL = 8192


class Place(msgspec.Struct, frozen=True):
    """An MCP endpoint as OAuth sees it.

    Attributes:
        url: The endpoint as its user wrote it.
        resource: Its canonical URI: scheme and host in lower case, no default port, no fragment, no trailing slash (AC-05).
        origin: Its origin, for example `https://example.com:8443`.
        internal: It has a loopback or private address, so its authorization server may have one too.
    """

    url: str
    resource: str
    origin: str
    internal: bool

    @property
    def name(self) -> str:
        """What errors and logs call it; see `core.urls.masked`."""
        return masked(self.url)

    def fail(self, text: str) -> AuthorizationFailed:
        """The error that ends a plan for this endpoint."""
        return AuthorizationFailed(text, Origin(self.name))

    def check(self, url: str, what: str) -> str:
        """Check a URL that somebody else gave (SC-03, SC-07).

        Args:
            url: The URL.
            what: What it is, for the error.

        Returns:
            The URL, unchanged.

        Raises:
            AuthorizationFailed: It must not be followed.
        """
        try:
            parts = split(url, MAX_URL)
            if origin_of(url) != self.origin:
                self._check_elsewhere(parts.scheme, parts.hostname or "")
        except UnfitUrlError as error:
            raise self.fail(f"{what} {shown(url)!r} {error}") from None
        return url

    def _check_elsewhere(self, scheme: str, host: str) -> None:
        if scheme == "http" and not is_loopback(host):
            raise UnfitUrlError("is plain http: tokens travel by https only, except on this machine")
        check_host(host, inside=self.internal)

    def is_covered_by(self, resource: str) -> bool:
        """Whether a protected resource of this name holds the endpoint: same origin, and its path is the endpoint's or a folder above (AC-06)."""
        try:
            parts = split(resource, MAX_URL)
        except UnfitUrlError:
            return False
        if origin_of(resource) != self.origin:
            return False
        mine = urlsplit(self.resource)
        if parts.query:
            return parts.query == mine.query and parts.path.rstrip("/") == mine.path
        folder = parts.path.rstrip("/")
        return mine.path == folder or mine.path.startswith(f"{folder}/")


def place_of(url: str) -> Place:
    """What is known of an endpoint from its URL.

    Raises:
        ValueError: It is no http(s) URL, or one that OAuth can't be used at.
    """
    try:
        parts = split(url.partition("#")[0], MAX_URL)
    except UnfitUrlError as error:
        raise ValueError(f"{shown(url)!r} {error}") from None
    origin = origin_of(url)
    query = f"?{parts.query}" if parts.query else ""
    return Place(url, f"{origin}{parts.path.rstrip('/')}{query}", origin, is_inside(parts.hostname or ""))


def origin_of(url: str) -> str:
    """Scheme, host and port of an http(s) URL, in lower case and without a default port.

    Raises:
        ValueError: The URL has no such thing.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    port = "" if parts.port in {None, PORTS.get(parts.scheme)} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def same_page(url: str, page: str) -> bool:
    """Whether a URL is a page with a query of its own; all names of this machine count as one host, and its ports as one port (RFC 8252)."""
    try:
        one, other = urlsplit(url), urlsplit(page)
        where, there = (one.hostname or "", one.port), (other.hostname or "", other.port)
    except ValueError:
        return False
    if (one.scheme, one.path or "/") != (other.scheme, other.path or "/"):
        return False
    return where == there or (is_loopback(where[0]) and is_loopback(there[0]))
