"""Pure checks of an HTTP request before anything of it is read: peer, host, origin, media types, sizes.

Order (HM-02, HM-04): who connects, what host was asked for (DNS rebinding), which web page asks, then the shape of the message.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from callboard.errors import Fail, Reason, RegistrationError

__all__ = ["LOOPBACK_HOSTS", "HttpRules", "accepted_types", "check", "check_caller", "check_media", "is_address", "is_loopback"]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_JSON, _SSE = "application/json", "text/event-stream"
# Headers that decide something; a second one is a smuggling attempt or a broken proxy.
_SINGLE = frozenset(
    {
        b"host",
        b"origin",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"authorization",
        b"mcp-method",
        b"mcp-name",
        b"mcp-protocol-version",
    }
)


class HttpRules(msgspec.Struct, frozen=True):
    """What the HTTP transport accepts.

    Attributes:
        hosts: Names that the `Host` header may have, with any port, or `name:port`; `*.example.com` for subdomains; `*` for any.
            With `allow_remote` any IP address will do, too.
        origins: Web origins that may call (`https://app.example.com`); a page of the very host that is asked may always.
        allow_remote: Whether peers outside this machine may connect.
        max_body: Bytes.
        max_headers: Bytes of all header names and values together.
    """

    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    origins: tuple[str, ...] = ()
    allow_remote: bool = False
    max_body: int = 4 * 1024 * 1024
    max_headers: int = 16 * 1024

    def __post_init__(self) -> None:
        if self.max_body < 1 or self.max_headers < 1:
            raise RegistrationError("max_body and max_headers must be at least 1 byte: nothing would be accepted.")
        for origin in self.origins:
            scheme, separator, rest = origin.partition("://")
            if not (scheme and separator and rest) or "/" in rest:
                raise RegistrationError(f"origins: {origin!r} is no web origin; write it like 'https://app.example.com', without a path.")


def check(rules: HttpRules, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Fail | None:
    """Check what differs from request to request: headers that are there twice, and sizes.

    Args:
        rules: What is accepted.
        scope: The ASGI scope of the request.
        headers: Its headers by lower-case name.

    Returns:
        Why the request is refused; None when it is fine.
    """
    raw = scope["headers"]
    if len(headers) == len(raw):
        size = len(b"".join(headers)) + len(b"".join(headers.values()))
    elif duplicate := _duplicate_header(raw):
        reason = Reason.HEADER_MISMATCH if duplicate.startswith("mcp-") else Reason.INVALID_REQUEST
        return Fail(reason, f"The header {duplicate} is there twice.")
    else:
        size = sum(len(name) + len(value) for name, value in raw)
    if size > rules.max_headers:
        return Fail(Reason.HEADERS_TOO_LARGE, f"The headers have more than {rules.max_headers} bytes (max_headers).")
    content_length = headers.get(b"content-length")
    if content_length is not None and content_length.isdigit() and int(content_length[:20]) > rules.max_body:
        return Fail(Reason.BODY_TOO_LARGE, f"The body has more than {rules.max_body} bytes (max_body).")
    return None


def check_caller(rules: HttpRules, peer: str | None, host: bytes | None, origin: bytes | None) -> Fail | None:
    """Check who asks: pure in its arguments, so that a transport can remember the answer.

    Args:
        rules: What is accepted.
        peer: Address of the peer; None when it has none (a unix socket).
        host: The `Host` header.
        origin: The `Origin` header.

    Returns:
        Why the caller is refused; None when it is fine.
    """
    if not rules.allow_remote and peer is not None and not is_loopback(peer):
        return Fail(
            Reason.REMOTE_PEER,
            "This server takes clients of its own machine only; allow others with allow_remote=True (callboard run: --host).",
        )
    name = b"" if host is None else host
    asked = name.decode("latin-1").lower()
    if not _host_allowed(rules, asked):
        return Fail(
            Reason.HOST, f"Host {_quoted(asked)} is not allowed; name it in hosts=... if it is this server's (DNS rebinding protection)."
        )
    if origin is not None and not _origin_allowed(rules, origin.decode("latin-1").lower(), asked):
        return Fail(
            Reason.ORIGIN, f"Origin {_quoted(origin.decode('latin-1'))} is not allowed; name it in origins=... if it may call this server."
        )
    return None


def check_media(headers: Mapping[bytes, bytes]) -> Fail | None:
    """Check what the body of a POST says it is (SA14: a browser's simple request must not run anything)."""
    content_type = headers.get(b"content-type", b"")
    if content_type != b"application/json" and content_type.split(b";", 1)[0].strip().lower() != b"application/json":
        return Fail(Reason.MEDIA_TYPE)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in {b"", b"identity"}:
        return Fail(Reason.ENCODING)
    return None


def is_loopback(host: str) -> bool:
    """Whether a peer's address is this machine's; what is no IP address (a unix socket, a test client) can't come from elsewhere."""
    if host == "127.0.0.1":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return True
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def accepted_types(accept: bytes | None) -> tuple[bool, bool]:
    """Whether a client takes JSON, and whether it takes an event stream. Without the header it takes both.

    Args:
        accept: The `Accept` header.
    """
    if accept is None:
        return True, True
    json_quality = sse_quality = -1.0
    json_rank = sse_rank = -1
    for item in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        quality = _quality(parameters)
        rank = ("*/*", kind.partition("/")[0] + "/*", kind).index(kind)
        if kind in {_JSON, "application/*", "*/*"} and rank >= json_rank:
            json_quality, json_rank = quality, rank
        if kind in {_SSE, "text/*", "*/*"} and rank >= sse_rank:
            sse_quality, sse_rank = quality, rank
    return json_quality > 0, sse_quality > 0


def _quality(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _duplicate_header(raw: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The first header that must be single and is not."""
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and (name in _SINGLE or name.startswith(b"mcp-")):
            return name.decode("latin-1")
        seen.add(name)
    return None


def _host_allowed(rules: HttpRules, host: str) -> bool:
    name, separator, port = host.rpartition(":")
    if not separator or not port.isdigit():
        name = host
    if rules.allow_remote and is_address(name.removeprefix("[").removesuffix("]")):
        return True  # rebinding is done with names: a page that asks for an address is of that address
    return any(rule in {"*", host, name} or (rule.startswith("*.") and name.endswith(rule[1:])) for rule in rules.hosts)


def _origin_allowed(rules: HttpRules, origin: str, host: str) -> bool:
    if origin in rules.origins:
        return True
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in {"http", "https"} and bool(host) and rest == host


def _quoted(text: str) -> str:
    """Client-controlled text in an error: short and printable."""
    return repr(text[:100]) if text.isprintable() else "(unprintable)"
