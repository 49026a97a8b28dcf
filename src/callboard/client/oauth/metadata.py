"""Which authorization server guards an MCP endpoint, and where its endpoints are.

Order (AC-02, AC-03, AA-05):

    1. Metadata of the protected resource: the URL of the challenge, else `/.well-known/oauth-protected-resource<path>`, else that of the root.
    2. Metadata of an authorization server that it names; the `issuer` inside must be that very text (AC-04).
    3. A server without 1 is one of 2025-03-26: metadata at its root, else `/authorize`, `/token` and `/register`.

A document is JSON of at most 1 MiB, fetched through at most 3 redirects within its origin.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed, ConnectionFailed
from callboard.client.oauth.challenge import scopes_in
from callboard.client.oauth.step import Plan
from callboard.client.oauth.urls import Place, origin_of
from callboard.core.urls import masked, printable, shown

__all__ = ["Discovery", "ResourceMetadata", "ServerMetadata", "discover", "find_legacy_server", "find_server", "led"]

MAX_DOCUMENT = 2**20
MAX_HOPS = 3
# More authorization servers than these are not tried.
MAX_SERVERS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
T = TypeVar("T")


class ResourceMetadata(msgspec.Struct, frozen=True):
    """Metadata of a protected resource (RFC 9728), as far as a client needs it.

    Attributes:
        resource: What the MCP server is called in `resource` parameters.
        authorization_servers: Issuers that may be asked for tokens.
        scopes_supported: Scopes of use there.
        dpop_bound_access_tokens_required: Bearer tokens are refused.
    """

    resource: str
    authorization_servers: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None
    dpop_bound_access_tokens_required: bool | None = None


class ServerMetadata(msgspec.Struct, frozen=True):
    """Metadata of an authorization server (RFC 8414 or OpenID Connect), as far as a client needs it. None: it doesn't say.

    Attributes:
        issuer: Its name. Without checked metadata (`legacy`): the origin of the MCP server.
        authorization_endpoint: Where people log in.
        token_endpoint: Where tokens come from.
        registration_endpoint: Where clients register.
        scopes_supported: Scopes it knows.
        code_challenge_methods_supported: How codes are bound to a client.
        token_endpoint_auth_methods_supported: How clients prove who they are.
        token_endpoint_auth_signing_alg_values_supported: Algorithms of client assertions.
        grant_types_supported: What tokens are given for.
        authorization_grant_profiles_supported: Profiles of those, for example that of EM-03.
        dpop_signing_alg_values_supported: Algorithms of DPoP proofs.
        authorization_response_iss_parameter_supported: Its redirects carry `iss`.
        client_id_metadata_document_supported: A client id may be a URL (AC-10).
        legacy: Found by the rules of 2025-03-26, which had no issuers.
    """

    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_signing_alg_values_supported: tuple[str, ...] | None = None
    grant_types_supported: tuple[str, ...] | None = None
    authorization_grant_profiles_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None
    legacy: bool = False


class Discovery(msgspec.Struct, frozen=True):
    """What discovery found.

    Attributes:
        resource: What `resource` parameters carry: the very text of the metadata, or the endpoint's canonical URI (AC-05).
        scopes_supported: Scopes that the resource's metadata lists.
        server: The authorization server.
        dpop_required: The resource takes DPoP tokens only.
    """

    resource: str
    scopes_supported: tuple[str, ...]
    server: ServerMetadata
    dpop_required: bool = False


class _Document(msgspec.Struct, frozen=True):
    """What a URL gave: a JSON text, or why there is none.

    Attributes:
        body: The text; empty without one.
        why: Why not; the end of a sentence.
        absent: There is no such document, for certain: 4xx, or a page that is no JSON.
    """

    body: bytes = b""
    why: str = ""
    absent: bool = False


def discover(place: Place, announced: str = "", *, pinned: str = "", known: Collection[str] = (), protocol: str = "") -> Plan[Discovery]:
    """Find the authorization server of an endpoint.

    Args:
        place: The endpoint.
        announced: `resource_metadata` of the server's challenge; empty without.
        pinned: The only issuer to use; empty: any that the resource names.
        known: Issuers where there are credentials already: they go first.
        protocol: Protocol version for `MCP-Protocol-Version`; empty: the header is left out.

    Raises:
        AuthorizationFailed: There is none that can be used, or a document contradicts itself.
    """
    found = yield from _find_resource(place, announced, protocol)
    if found is None:
        if pinned and pinned.rstrip("/") != place.origin:
            server = yield from find_server(place, pinned, protocol)
        else:
            server = yield from find_legacy_server(place, protocol)
        return Discovery(place.resource, (), server)
    issuers = _candidates(place, found, pinned, known)
    server = yield from _first_usable(place, issuers, protocol)
    return Discovery(
        found.resource, scopes_in(" ".join(found.scopes_supported or ())), server, bool(found.dpop_bound_access_tokens_required)
    )


def find_server(place: Place, issuer: str, protocol: str = "") -> Plan[ServerMetadata]:
    """Fetch the metadata of one authorization server and check it (AC-03, AC-04).

    Raises:
        AuthorizationFailed: There is none, or it is not that server's.
    """
    place.check(issuer, "the authorization server")
    if urlsplit(issuer).query:
        raise place.fail(f"the authorization server {printable(issuer)!r} has a query, which no issuer has")
    tried: list[str] = []
    for url in _server_urls(issuer):
        document = yield from _get(place, url, "metadata of the authorization server", protocol)
        if not document.body:
            tried.append(f"{printable(url)} {document.why}")
            continue
        server = _decoded(place, document.body, ServerMetadata, url)
        if server.issuer != issuer:
            raise place.fail(
                f"{printable(url)} calls itself {printable(server.issuer)!r}, not {printable(issuer)!r}: it must be the very same text, or the"
                " metadata may be another server's (AC-04); its operator has to correct one of the two"
            )
        return _checked(place, msgspec.structs.replace(server, legacy=False))
    raise place.fail(f"the authorization server {printable(issuer)!r} has no metadata: {'; '.join(tried)}")


def find_legacy_server(place: Place, protocol: str = "") -> Plan[ServerMetadata]:
    """Find the authorization server of an endpoint of 2025-03-26, which is the MCP server's own origin (AA-05).

    That revision had no rule for issuers. So metadata with another issuer counts, but its endpoints must be on this very origin, and its issuer
    is not believed: credentials are kept under the origin's name, and an `iss` must name it.
    """
    url = f"{place.origin}/.well-known/oauth-authorization-server"
    document = yield from _get(place, url, "metadata of the authorization server", protocol)
    if not document.body:
        if not document.absent:
            raise place.fail(f"the authorization server can't be found: {printable(url)} {document.why}")
        return ServerMetadata(
            issuer=place.origin,
            authorization_endpoint=f"{place.origin}/authorize",
            token_endpoint=f"{place.origin}/token",
            registration_endpoint=f"{place.origin}/register",
            legacy=True,
        )
    server = _decoded(place, document.body, ServerMetadata, url)
    if server.issuer != place.origin:
        for name, endpoint in _endpoints(server):
            if not _is_at(endpoint, place.origin):
                raise place.fail(
                    f"the server publishes no protected resource metadata, and {printable(url)} of another issuer names a {name} elsewhere:"
                    f" {printable(endpoint)!r}; only {place.origin} can be trusted here"
                )
    return _checked(place, msgspec.structs.replace(server, issuer=place.origin, legacy=True))


def led(request: HttpRequest, place: Place, server: ServerMetadata | None, *named: str) -> HttpRequest:
    """Mark a request that the MCP server has led to; where it goes to a server that the user has named, it is the user's.

    Args:
        request: The request.
        place: The endpoint.
        server: Metadata of the authorization server that the user has named; None where it is not known yet.
        named: URLs that the user has named; empty ones don't count.
    """
    theirs = [*named, *(endpoint for _, endpoint in _endpoints(server))] if server else named
    if any(_is_at(url, origin_of(request.url)) for url in (place.url, *theirs)):
        return request
    return msgspec.structs.replace(request, led_by=place.url)


def _find_resource(place: Place, announced: str, protocol: str) -> Plan[ResourceMetadata | None]:
    """The resource's metadata; None if there is none for certain, so that the server is of 2025-03-26."""
    parts = urlsplit(place.resource)
    root = f"{place.origin}/.well-known/oauth-protected-resource"
    query = f"?{parts.query}" if parts.query else ""
    tried: list[str] = []
    if announced:
        place.check(announced, "resource_metadata of the server's challenge")
    for url in dict.fromkeys(filter(None, (announced, f"{root}{parts.path}{query}", root))):
        document = yield from _get(place, url, "metadata of the protected resource", protocol)
        if document.body:
            found = _decoded(place, document.body, ResourceMetadata, masked(url))
            if not place.is_covered_by(found.resource):
                raise place.fail(
                    f"{printable(masked(url))} is about {printable(found.resource)!r}, which is not this server: a token for it could be used elsewhere"
                )
            return found
        if url == announced or not document.absent:
            tried.append(f"{printable(masked(url))} {document.why}")
    if tried:
        raise place.fail(f"the server's protected resource metadata can't be had: {'; '.join(tried)}")
    return None


def _candidates(place: Place, found: ResourceMetadata, pinned: str, known: Collection[str]) -> Sequence[str]:
    """Issuers in the order they are tried (AC-12)."""
    listed = tuple(dict.fromkeys(found.authorization_servers or ()))
    if pinned:
        if listed and pinned.rstrip("/") not in {issuer.rstrip("/") for issuer in listed}:
            raise place.fail(
                f"the credentials are for {pinned}, and the server now names {', '.join(map(printable, listed[:MAX_SERVERS]))}: they are never"
                " shown elsewhere; register there, and give client_id and issuer anew"
            )
        return (pinned,)
    if not listed:
        raise place.fail("the server's protected resource metadata names no authorization server; issuer= names one")
    return sorted(listed[:MAX_SERVERS], key=lambda issuer: issuer not in known)


def _first_usable(place: Place, issuers: Sequence[str], protocol: str) -> Plan[ServerMetadata]:
    failed: list[AuthorizationFailed] = []
    for issuer in issuers:
        try:
            return (yield from find_server(place, issuer, protocol))
        except AuthorizationFailed as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    raise place.fail(f"none of the server's authorization servers can be used: {'; '.join(error.text for error in failed)}")


def _server_urls(issuer: str) -> tuple[str, ...]:
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    known = f"{origin}/.well-known"
    urls = (f"{known}/oauth-authorization-server{path}", f"{known}/openid-configuration{path}")
    return (*urls, f"{origin}{path}/.well-known/openid-configuration") if path else urls


def _endpoints(server: ServerMetadata) -> list[tuple[str, str]]:
    names = ("authorization_endpoint", "token_endpoint", "registration_endpoint")
    return [(name, endpoint) for name in names if (endpoint := getattr(server, name))]


def _checked(place: Place, server: ServerMetadata) -> ServerMetadata:
    for name, endpoint in _endpoints(server):
        place.check(endpoint, f"{name} of {printable(server.issuer)}")
    if not server.token_endpoint:
        raise place.fail(f"the authorization server {printable(server.issuer)} names no token_endpoint")
    return server


def _is_at(url: str, origin: str) -> bool:
    try:
        return origin_of(url) == origin
    except ValueError:
        return False


def _decoded(place: Place, body: bytes, kind: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise place.fail(f"{printable(url)} can't be read: {printable(str(error))}") from None


def _get(place: Place, url: str, what: str, protocol: str) -> Plan[_Document]:
    headers = {"Accept": "application/json"}
    if protocol:
        headers["MCP-Protocol-Version"] = protocol
    origin = origin_of(place.check(url, what))
    for _ in range(MAX_HOPS + 1):
        try:
            answer = yield HttpRequest("GET", url, headers)
        except ConnectionFailed as error:
            return _Document(why=f"can't be reached: {error.text}")
        if answer.status not in _REDIRECTS:
            return _read(answer)
        try:
            url = urljoin(url, answer.headers.get("location", ""))
        except ValueError:
            return _Document(why="redirects to what is no URL")
        if origin_of(place.check(url, f"the redirect for {what}")) != origin:
            return _Document(why=f"redirects to another site, {shown(url)!r}")
    return _Document(why=f"redirects more than {MAX_HOPS} times")


def _read(answer: HttpResponse) -> _Document:
    if answer.status != 200:
        return _Document(why=f"answers HTTP {answer.status}", absent=400 <= answer.status < 500)
    if len(answer.body) > MAX_DOCUMENT:
        return _Document(why="gives more than 1 MiB")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (kind == "application/json" or kind.endswith("+json")) or not answer.body.strip():
        return _Document(why=f"gives {printable(kind or 'no content type')!r} and not JSON", absent=True)
    return _Document(answer.body)
