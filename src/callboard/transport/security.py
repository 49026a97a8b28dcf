"""Pure checks of an HTTP request before anything of it is read: peer, host, origin, media types, sizes.

Order (HM-02, HM-04): who connects, what host was asked for (DNS rebinding), which web page asks, then the shape of the message.

What `Forwarded` and `X-Forwarded-Host` say counts for nothing: whoever sends them may write what they like, and a proxy that replaces them
can pass `Host` on as well.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from callboard.errors import Fail, Reason, RegistrationError

__all__ = [
    "CODINGS",
    "LOOPBACK_HOSTS",
    "HttpRules",
    "accepted_types",
    "check",
    "check_caller",
    "check_media",
    "is_address",
    "is_loopback",
    "make_field",
    "read_coding",
]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
CODINGS = ("gzip", "deflate")
"""What bodies may be compressed with, where that is allowed."""
_JSON, _SSE = "application/json", "text/event-stream"
# RFC 3986 section 3.2.2, without what no resolver takes; a port is ASCII digits. No blanks, no user, no path: they mislead a comparison. Nor the
# zone of an IPv6 address: it means something to its client alone, which takes it out (RFC 6874 section 4), and any text could stand in it.
_read_host = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?").fullmatch
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_is_field_value = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?").fullmatch
_is_field_name = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
# Headers that decide something; a second one is a smuggling attempt or a broken proxy.
_SINGLE = frozenset(
    {
        b"host",
        b"origin",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"authorization",
        b"x-api-key",
        b"last-event-id",
    }
)


class HttpRules(msgspec.Struct, frozen=True):
    """What the HTTP transport accepts.

    Attributes:
        hosts: Names that the `Host` header may have, with any port, or `name:port`; `*.example.com` for subdomains; `*` for any.
            With `allow_remote` any IP address will do, too. Case makes no difference, nor does a dot at the end, nor how an IPv6 address
            or a name beyond ASCII is written. Kept as `Host` headers have them.
        origins: Web origins that may call (`https://app.example.com`); a page of the very host that is asked may always. Kept as browsers
            send them.
        allow_remote: Whether peers outside this machine may connect.
        max_body: Bytes.
        max_headers: Bytes of all header names and values together.
        codings: What a body may be compressed with, out of `CODINGS`; inflated it must not have more than `max_body` bytes either.
        single: Headers that must not come twice, in lower case, besides those that never may: what carries a credential, for example.

    Raises:
        RegistrationError: A value can't work; the text says what to write instead.
    """

    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    origins: tuple[str, ...] = ()
    allow_remote: bool = False
    max_body: int = 4 * 1024 * 1024
    max_headers: int = 16 * 1024
    codings: tuple[str, ...] = ()
    single: frozenset[bytes] = frozenset()

    def __post_init__(self) -> None:
        if self.max_body < 1 or self.max_headers < 1:
            raise RegistrationError("max_body and max_headers must be at least 1 byte: nothing would be accepted.")
        if strange := [coding for coding in self.codings if coding not in CODINGS]:
            raise RegistrationError(f"encodings: {strange[0]!r} is none that can be read; those are {', '.join(CODINGS)}.")
        msgspec.structs.force_setattr(self, "hosts", tuple(map(_read_rule, self.hosts)))
        msgspec.structs.force_setattr(self, "origins", tuple(map(_read_origin, self.origins)))


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
    elif duplicate := _duplicate_header(raw, rules.single):
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
            "This server takes clients of its own machine only; allow others, or a proxy that tells of them, with allow_remote=True "
            "(callboard run: --host).",
        )
    given = "" if host is None else host.decode("latin-1")
    asked = _canonical(given)
    if not _host_allowed(rules, *asked) if asked else given or "*" not in rules.hosts:
        return Fail(
            Reason.HOST,
            f"Host {_quoted(given)} is not allowed; name it in hosts=... if it is this server's (DNS rebinding protection). Behind a proxy "
            "it is the name that clients ask for, or what the proxy sends in its place.",
        )
    if origin is not None and not _origin_allowed(rules, origin.decode("latin-1").lower(), asked):
        return Fail(
            Reason.ORIGIN, f"Origin {_quoted(origin.decode('latin-1'))} is not allowed; name it in origins=... if it may call this server."
        )
    return None


def make_field(name: str, value: str) -> tuple[bytes, bytes]:
    """Make a header of an answer: the one way for a value that was not written down in this package.

    Args:
        name: In lower case.
        value: Visible ASCII characters, with blanks and tabs between them.

    Raises:
        ValueError: Name or value would not arrive as one header: a line break in it would begin another (SA13). The text doesn't hold it.
    """
    if not _is_field_name(name):
        raise ValueError("This is no name of a header: letters, digits and dashes, in lower case.")
    if not _is_field_value(value):
        raise ValueError(f"What was to go into the header {name} can't: it takes visible ASCII characters with blanks between them.")
    return name.encode("ascii"), value.encode("ascii")


def check_media(headers: Mapping[bytes, bytes], codings: Collection[str] = ()) -> Fail | None:
    """Check what the body of a POST says it is (SA14: a browser's simple request must not run anything).

    Args:
        headers: By lower-case name.
        codings: What it may be compressed with.
    """
    content_type = headers.get(b"content-type", b"")
    if content_type != b"application/json" and content_type.split(b";", 1)[0].strip().lower() != b"application/json":
        return Fail(Reason.MEDIA_TYPE)
    encoding = headers.get(b"content-encoding")
    if encoding is None or read_coding(encoding) in {"", *codings}:
        return None
    known = f"; {' and '.join(codings)} would do" if codings else "; encodings=[...] of the server would allow some"
    return Fail(Reason.ENCODING, f"Content-Encoding is not supported here: send the body as it is{known}.")


def read_coding(encoding: bytes) -> str:
    """What a body is compressed with, as `Content-Encoding` says; empty for nothing."""
    text = encoding.decode("latin-1").strip().lower()
    return {"identity": "", "x-gzip": "gzip"}.get(text, text)


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


def _duplicate_header(raw: Iterable[tuple[bytes, bytes]], single: frozenset[bytes]) -> str | None:
    """The first header that must be single and is not."""
    seen: set[bytes] = set()
    for name, _ in raw:
        if name in seen and (name in _SINGLE or name in single or name.startswith(b"mcp-")):
            return name.decode("latin-1")
        seen.add(name)
    return None


class _Host(NamedTuple):
    """A host as it was asked for.

    Attributes:
        name: In the one form that it is compared in.
        port: Empty where none was given.
    """

    name: str
    port: str


def _canonical(text: str) -> _Host | None:
    """Read a `Host` header; None for what is no host."""
    found = _read_host(text.lower())
    if found is None:
        return None
    name, port = found[1], found[2] or ""
    if name.startswith("["):
        try:
            return _Host(f"[{ipaddress.IPv6Address(name[1:-1])}]", port)
        except ValueError:
            return None
    name = name.removesuffix(".")
    return _Host(name, port) if name and all(name.split(".")) else None


def _read_rule(rule: str) -> str:
    """One of `hosts`, as `Host` headers have it."""
    if rule == "*":
        return rule
    head, text = ("*.", rule[2:]) if rule.startswith("*.") else ("", rule)
    if ":" in text.partition(":")[2] and not text.startswith("["):
        text = f"[{text}]"  # an IPv6 address
    host = _canonical(_ascii(text))
    if host is None:
        raise RegistrationError(
            f"hosts: {rule!r} is no name that a Host header has; write it like 'mcp.example.com', 'mcp.example.com:8443' or '*.example.com'."
        )
    return f"{head}{host.name}{':' if host.port else ''}{host.port}"


def _read_origin(origin: str) -> str:
    """One of `origins`, as browsers send it."""
    scheme, separator, rest = origin.lower().partition("://")
    host = _canonical(_ascii(rest)) if scheme in _DEFAULT_PORTS else _Host(rest, "")
    if not (scheme and separator and rest) or set(rest) & set("/?#@ ") or host is None:
        raise RegistrationError(f"origins: {origin!r} is no web origin; write it like 'https://app.example.com', without a path.")
    port = "" if host.port == _DEFAULT_PORTS.get(scheme) else host.port
    return f"{scheme}://{host.name}{':' if port else ''}{port}"


def _ascii(name: str) -> str:
    """A name as it goes over the wire; empty where it can't."""
    try:
        return name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def _host_allowed(rules: HttpRules, name: str, port: str) -> bool:
    if rules.allow_remote and is_address(name.removeprefix("[").removesuffix("]")):
        return True  # rebinding is done with names: a page that asks for an address is of that address
    whole = f"{name}:{port}"
    return any(
        rule in {"*", name, whole} or (rule.startswith("*.") and (name if ":" not in rule else whole).endswith(rule[1:]))
        for rule in rules.hosts
    )


def _origin_allowed(rules: HttpRules, origin: str, asked: _Host | None) -> bool:
    if origin in rules.origins:
        return True
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in _DEFAULT_PORTS and asked is not None and _canonical(rest) == asked


def _quoted(text: str) -> str:
    """Client-controlled text in an error: short and printable."""
    return repr(text[:100]) if text.isprintable() else "(unprintable)"
