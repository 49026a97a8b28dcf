"""What clients learn of how a server is protected: the metadata document (RFC 9728) and challenges (RFC 6750, RFC 9110)."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from callboard.errors import RegistrationError

__all__ = ["check_resource", "check_scopes", "close_over", "describe", "make_challenge", "metadata_paths", "metadata_url"]

WELL_KNOWN = "/.well-known/oauth-protected-resource"
# What may stand in a quoted string of a header as it is.
_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - set('"\\')


def check_resource(resource: str) -> None:
    """Find out now whether a server's identifier can be one (RFC 8707 section 2, RFC 9728 section 1.2).

    Args:
        resource: The URL of the endpoint as its clients know it.

    Raises:
        RegistrationError: It can't.
    """
    try:
        parts = urlsplit(resource)
        host = parts.hostname
        _ = parts.port
    except (AttributeError, TypeError, ValueError):
        raise RegistrationError(_no_resource(resource)) from None
    if (
        not host
        or parts.scheme not in {"https", "http"}
        or not {*"?#"}.isdisjoint(resource)
        or "@" in parts.netloc
        or not _is_plain(resource)
    ):
        raise RegistrationError(_no_resource(resource))
    if parts.scheme == "http" and not _is_loopback(host):
        raise RegistrationError(f"resource: {resource!r} would have tokens travel unencrypted; it must begin with https://.")


def _no_resource(resource: object) -> str:
    return f"resource is the URL of the endpoint as clients know it, like 'https://mcp.example.com/mcp', without query and fragment, not {resource!r}."


def _is_plain(text: str) -> bool:
    return " " not in text and _PLAIN.issuperset(text)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_scopes(scopes: Collection[str], option: str) -> frozenset[str]:
    """The scopes that an option names (RFC 6749 section 3.3).

    Raises:
        RegistrationError: One of them can't be a scope, or should not be asked for by a resource.
    """
    # An iterator is none: it is empty once it has been looked through, so that everybody would be let in.
    if isinstance(scopes, str) or not isinstance(scopes, Collection) or not all(isinstance(scope, str) for scope in scopes):
        raise RegistrationError(f"{option} is a list of str, not {scopes!r}.")
    for scope in scopes:
        if not scope or not _is_plain(scope):
            raise RegistrationError(f"{option}: {scope!r} can't be a scope: it holds a blank, a quote, or what is no printable ASCII.")
        if scope == "offline_access":
            raise RegistrationError(f"{option}: offline_access is between the client and its authorization server; leave it out (AR-09).")
    return frozenset(scopes)


def close_over(implies: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """A hierarchy of scopes -> for each broader scope all that it stands for, itself included (AR-07).

    Args:
        implies: Scope -> the narrower ones that it stands for; these may stand for others.
    """
    closed: dict[str, frozenset[str]] = {}
    for broad in implies:
        reached, waiting = {broad}, [broad]
        while waiting:
            fresh = [scope for scope in implies.get(waiting.pop(), ()) if scope not in reached]
            reached.update(fresh)
            waiting += fresh
        closed[broad] = frozenset(reached)
    return closed


def metadata_paths(resource: str) -> tuple[str, ...]:
    """Where the document of a resource is: below the well-known path, and at it (AR-03). As ASGI has paths: nothing is escaped."""
    path = unquote(urlsplit(resource).path.rstrip("/"))
    return (WELL_KNOWN + path, WELL_KNOWN) if path else (WELL_KNOWN,)


def metadata_url(resource: str) -> str:
    """The address of the document (RFC 9728 section 3.1)."""
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"


def describe(resource: str, issuers: Iterable[str], scopes: Iterable[str], name: str) -> bytes:
    """The document (RFC 9728 section 2).

    Args:
        resource: The server's identifier.
        issuers: Its authorization servers (AR-02).
        scopes: What every request needs; not a catalogue of all there are (SC-08).
        name: What the server is called.
    """
    document: dict[str, object] = {
        "resource": resource,
        "authorization_servers": list(issuers),
        "bearer_methods_supported": ["header"],  # AR-10
        "resource_name": name,
    }
    if listed := sorted(scopes):
        document["scopes_supported"] = listed
    return msgspec.json.encode(document)


def make_challenge(scheme: str, **parameters: str) -> bytes:
    """A `WWW-Authenticate` header; parameters without a value are left out, and what could end one is too.

    Args:
        scheme: `Bearer`, for example.
        **parameters: What goes along, in order.
    """
    told = {name: "".join(filter(_PLAIN.__contains__, value)) for name, value in parameters.items()}
    shown = ", ".join(f'{name}="{value}"' for name, value in told.items() if value)
    return f"{scheme} {shown}".rstrip().encode("ascii")
