"""Who the client is to an authorization server: given, a document at a URL, or registered on the spot, in this order (AC-09).

Dynamic registration is deprecated since 2026-07-28 and may go with the first revision after 2027-07-28 (DP-02): a client metadata document
takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.oauth.metadata import ServerMetadata
from callboard.client.oauth.step import Plan
from callboard.client.oauth.token import Registration
from callboard.client.oauth.urls import Place
from callboard.core.urls import is_loopback, printable

__all__ = ["Identity", "application_type", "check_document_url", "check_options", "find_registration", "is_current"]

WAY_OUT = "give OAuth a client_id that is registered there, or a client_metadata_url"
MAX_REDIRECT_URIS = 3
METHODS = ("none", "client_secret_basic", "client_secret_post")


class Identity(msgspec.Struct, frozen=True):
    """What the client's user says about it. Its `repr` holds no secret.

    Attributes:
        client_id: Its id, if it is registered already.
        client_secret: The secret that goes with it.
        issuer: The authorization server where it is registered; empty: the server's.
        document: URL of its metadata document (AC-10); empty: there is none.
        name: What people read when they are asked for their consent.
        kind: `native` or `web`; empty: as the redirect URI tells.
    """

    client_id: str = ""
    client_secret: str = ""
    issuer: str = ""
    document: str = ""
    name: str = "Callboard"
    kind: str = ""

    def __repr__(self) -> str:
        return f"Identity(client_id={self.client_id!r}, issuer={self.issuer!r}, document={self.document!r}, name={self.name!r})"


def check_document_url(url: str) -> None:
    """Check the URL of a client metadata document: https, with a path (AC-10).

    Raises:
        ValueError: It is none.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path in {"", "/"} or parts.fragment or parts.username is not None:
        raise ValueError(
            f"client_metadata_url {url!r} must be an https URL with a path, for example https://example.com/client.json (AC-10)"
        )


def check_options(
    client_id: str | None,
    client_secret: str | None,
    document: str | None,
    kind: str | None,
    scopes: Sequence[str],
    redirect: object,
    browse: object,
    redirect_uri: str | None,
) -> None:
    """Check what a user says of a login, option by option.

    Raises:
        ValueError: Options that contradict each other.
    """
    if client_secret and not client_id:
        raise ValueError("client_secret goes with a client_id")
    if document:
        check_document_url(document)
    if kind not in {None, "native", "web"}:
        raise ValueError(f"application_type is native or web, not {kind!r}")
    if isinstance(scopes, str):
        raise ValueError("scopes is a list of scopes: scopes=['read', 'write']")  # noqa: TRY004 - as the others
    if redirect is not None and (browse or redirect_uri):
        raise ValueError("redirect has a redirect URI of its own: leave browse and redirect_uri out")
    if browse and not redirect_uri:
        raise ValueError("browse needs to know where the browser comes back to: give redirect_uri")


def application_type(redirect_uri: str) -> str:
    """`native` for redirects to this machine or to a scheme of an app's own, else `web` (AC-11)."""
    parts = urlsplit(redirect_uri)
    return "native" if parts.scheme not in {"http", "https"} or is_loopback(parts.hostname or "") else "web"


def is_current(registration: Registration, redirect_uri: str, now: float) -> bool:
    """Whether a registration that was kept still serves: its secret lives, and browsers may be sent to this URI.

    Args:
        registration: The registration.
        redirect_uri: Where browsers are to be sent; empty: nowhere.
        now: Unix time.
    """
    if registration.expires_at and registration.expires_at <= now:
        return False
    return not redirect_uri or not registration.redirect_uris or redirect_uri in registration.redirect_uris


def find_registration(place: Place, server: ServerMetadata, identity: Identity, redirect_uris: Sequence[str]) -> Plan[Registration]:
    """Find out who the client is; register it if there is no other way (AC-09, AC-18).

    Args:
        place: The MCP endpoint.
        server: The authorization server.
        identity: What the user says.
        redirect_uris: Where browsers may be sent back to, the best first; they all lead to the same place.

    Raises:
        AuthorizationFailed: The client is registered elsewhere (AC-12), or can't be registered here.
    """
    if identity.client_id:
        if identity.issuer and identity.issuer.rstrip("/") != server.issuer.rstrip("/"):
            raise place.fail(
                f"client {identity.client_id} is registered at {identity.issuer}, and the server now belongs to {printable(server.issuer)}: its"
                " credentials are never shown there; register there, and give client_id and issuer anew"
            )
        return Registration(identity.client_id, identity.client_secret)
    if identity.document and server.client_id_metadata_document_supported:
        return Registration(identity.document, method="none", source="document")
    if server.registration_endpoint:
        return (yield from _register(place, server, identity, redirect_uris))
    raise place.fail(f"the authorization server {printable(server.issuer)} registers no clients by itself: {WAY_OUT}")


def _register(place: Place, server: ServerMetadata, identity: Identity, redirect_uris: Sequence[str]) -> Plan[Registration]:
    """Register. When the redirect URI is refused, try its other names, then the other kind of application (AC-11), then none at all."""
    kind = identity.kind or application_type(redirect_uris[0])
    tries = [(uri, kind) for uri in redirect_uris[:MAX_REDIRECT_URIS]]
    tries += [(redirect_uris[0], "web" if kind == "native" else "native"), (redirect_uris[0], "")]
    url, said = server.registration_endpoint or "", ""
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    while tries:
        uri, wanted = tries.pop(0)
        asked = _wish(server, identity, uri, wanted)
        answer = yield HttpRequest("POST", url, headers, msgspec.json.encode(asked))
        if answer.status in {200, 201}:
            return _read(place, url, answer, uri, asked["token_endpoint_auth_method"])
        error, said = _refusal(answer)
        if error == "invalid_client_metadata":
            tries = tries[-1:]  # a server that does not know application_type
        elif error != "invalid_redirect_uri":
            break
    raise place.fail(f"{printable(url)} does not register this client: {said}; {WAY_OUT}")


def _wish(server: ServerMetadata, identity: Identity, redirect_uri: str, kind: str) -> dict[str, Any]:
    offered = server.token_endpoint_auth_methods_supported
    wish = {
        "client_name": identity.name,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],  # AC-15
        "response_types": ["code"],
        "token_endpoint_auth_method": next((method for method in METHODS if offered and method in offered), "none"),
    }
    return {**wish, "application_type": kind} if kind else wish


def _read(place: Place, url: str, answer: HttpResponse, redirect_uri: str, method: str) -> Registration:
    try:
        found = msgspec.json.decode(answer.body, type=_Registered)
    except (msgspec.DecodeError, RecursionError) as error:
        raise place.fail(f"the answer of {printable(url)} can't be read: {printable(str(error))}") from None
    if not found.client_id.isascii() or not found.client_id.isprintable() or not found.client_id:
        raise place.fail(f"the answer of {printable(url)} has no client_id that can be used")
    secret, decided = found.client_secret or "", found.token_endpoint_auth_method
    if decided and decided not in METHODS:
        raise place.fail(
            f"{printable(url)} registers a client that has to authenticate by {printable(decided, 60)}, which none can here; {WAY_OUT}"
        )
    return Registration(
        found.client_id,
        secret,
        # RFC 7591: the server may have decided otherwise; a client that asked for nothing and got a secret uses it.
        decided or (method if bool(secret) == (method != "none") else ""),
        (redirect_uri,),
        max(0.0, found.client_secret_expires_at or 0) if secret else 0,
        "registered",
    )


class _Registered(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


class _Refused(msgspec.Struct):
    error: str = ""
    error_description: str | None = None


def _refusal(answer: HttpResponse) -> tuple[str, str]:
    """Error code, and what to say of it."""
    try:
        found = msgspec.json.decode(answer.body, type=_Refused)
    except (msgspec.DecodeError, RecursionError):
        found = _Refused()
    words = f": {printable(found.error_description)}" if found.error_description else ""
    return found.error, f"{printable(found.error, 60) or f'HTTP {answer.status}'}{words}"
