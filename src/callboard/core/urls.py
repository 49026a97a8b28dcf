"""What holds for every URL that a program follows: what may stand in it, which hosts lead where, and how errors and logs show it.

Whose URLs are followed when is for those who follow them to say (`auth.outbound` for verifiers, `client.oauth.urls` for clients). Here is
what they share, so that no rule is known on one side only:

    1. No user info, no fragment, no blanks or control characters, no `..`, no number that some resolvers take for an address (`127.1`).
    2. An address inside another one (IPv4 in IPv6: mapped, 6to4, NAT64) counts as the inner one, which is where packets go.
    3. A URL that somebody else gave leads into a private network only if it came from one; link-local addresses, where clouds keep their
       secrets, are never followed.

Names are not resolved here.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

__all__ = [
    "PORTS",
    "UnfitUrlError",
    "check_host",
    "is_fit",
    "is_inside",
    "is_loopback",
    "is_public",
    "masked",
    "printable",
    "shown",
    "split",
]

PORTS = {"http": 80, "https": 443}
# Characters of somebody else's text that an error quotes.
QUOTED = 200
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\<>\"`{}|^]")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_NAME = re.compile(r"[a-z0-9._~-]+")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
_BRACKETS = re.compile(r"\[[^\[\]]*\](?::[0-9]*)?")
_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)


class UnfitUrlError(ValueError):
    """A URL breaks a rule; the text is the end of a sentence that begins with the URL, and holds nothing of it."""


def split(url: str, limit: int) -> SplitResult:
    """Take an absolute http(s) URL apart.

    Args:
        url: The URL.
        limit: How many characters it may have.

    Raises:
        UnfitUrlError: It breaks rule 1, is longer, or is no URL.
    """
    if len(url) > limit:
        raise UnfitUrlError(f"is longer than {limit} characters")
    if _FORBIDDEN.search(url):
        raise UnfitUrlError("holds a space, a control character or another one that no URL holds")
    try:
        parts = urlsplit(url)  # ValueError: brackets of an IPv6 address
        port = parts.port  # ValueError: no port
    except ValueError:
        raise UnfitUrlError("is no URL") from None
    if parts.scheme not in PORTS:
        raise UnfitUrlError("is neither https nor http")
    if "@" in parts.netloc:
        raise UnfitUrlError("holds a user name or password")
    if "#" in url:
        raise UnfitUrlError("has a fragment")
    if _DOTS.search(parts.path):
        raise UnfitUrlError("has . or .. in its path")
    _check_spelling(parts, port)
    return parts


def _check_spelling(parts: SplitResult, port: int | None) -> None:
    """One spelling for every host, so that checks and resolvers mean the same one."""
    host = (parts.hostname or "").removesuffix(".")
    if "[" in parts.netloc and not _BRACKETS.fullmatch(parts.netloc):
        raise UnfitUrlError("has something beside the brackets of its address")
    if not host or port == 0:
        raise UnfitUrlError("names no host and port that can be reached")
    if _address(host) is not None:
        return
    if ":" in host or not _NAME.fullmatch(host) or ".." in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise UnfitUrlError("has a host that is neither a name nor an address in its usual form")


def check_host(host: str, *, inside: bool) -> None:
    """Find out whether somebody else's URL may lead to a host (rule 3).

    Args:
        host: The host, as `SplitResult.hostname` has it.
        inside: Whether whoever gave the URL is inside too (`is_inside` of their host).

    Raises:
        UnfitUrlError: It must not.
    """
    if _address(host) is not None and not is_fit(host):
        raise UnfitUrlError("has an address that no authorization server has")
    if is_inside(host) and not inside:
        raise UnfitUrlError("leads into a private network, which a server outside it has no say about")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: `localhost`, a name below it, or a loopback address."""
    name = host.lower().removesuffix(".")
    address = _address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)


def is_inside(host: str) -> bool:
    """Whether a host is this machine, or has an address that is not everybody's; of names only those of this machine are."""
    return is_loopback(host) or (_address(host) is not None and not is_public(host))


def is_public(host: str) -> bool:
    """Whether a host is an address that anybody on the internet may have; of IPv6, those are in one block, and the rest leads who knows where."""
    address = _address(host)
    return address is not None and address.is_global and (address.version == 4 or address in _UNICAST)


def is_fit(host: str) -> bool:
    """Whether a host is an address that an authorization server may have: not link-local, as that of a cloud's metadata service."""
    address = _address(host)
    return address is not None and not (address.is_link_local or address.is_multicast or address.is_unspecified)


def shown(url: str) -> str:
    """A URL as logs and errors may show it, whoever wrote it: no user, query or fragment, printable ASCII, at most 200 characters."""
    begin, _, rest = _around_login(re.split("[?#]", url, maxsplit=1)[0])
    return printable(f"{begin}{rest}").replace(" ", "?")


def masked(url: str) -> str:
    """The URL of an endpoint as its user knows it by, who may have given it keys: login and values of the query are `***`, no fragment."""
    page, mark, query = url.partition("#")[0].partition("?")
    begin, login, rest = _around_login(page)
    fields = (field.partition("=") for field in query.split("&"))
    hidden = "&".join(f"{name}=***" if equals else "***" for name, equals, _ in fields)
    return f"{begin}{'***@' if login else ''}{rest}{f'?{hidden}' if mark and query else ''}"


def printable(text: str, limit: int = QUOTED) -> str:
    """Somebody else's text as an error may show it: printable ASCII, not too long."""
    kept = "".join(letter if " " <= letter <= "~" else "?" for letter in text[:limit])
    return f"{kept}..." if len(text) > limit else kept


def _around_login(page: str) -> tuple[str, str, str]:
    """What stands before user and password, these, and what comes after them."""
    scheme, slashes, rest = page.partition("//")
    if not slashes:
        login, _, rest = page.rpartition("@")
        return "", login, rest
    netloc, slash, path = rest.partition("/")
    login, _, host = netloc.rpartition("@")
    return f"{scheme}{slashes}", login, f"{host}{slash}{path}"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.removesuffix("."))  # with the zone of an IPv6 address, if it has one
    except ValueError:
        return None
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    return inner or address.ipv4_mapped or address.sixtofour or address
