"""A login in the browser: what the authorization URL says, what may come back, and the token that a code buys (RFC 6749, 7636, 9207)."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Collection, Iterable
from hashlib import sha256
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from callboard.client.oauth.metadata import Discovery, ServerMetadata
from callboard.client.oauth.step import Browse, Plan
from callboard.client.oauth.token import Prove, Registration, Tokens, request_token
from callboard.client.oauth.urls import Place, same_page
from callboard.core.urls import printable, shown

__all__ = ["Login", "authorization_url", "authorize", "code_in", "redeem", "scopes_to_ask"]

OFFLINE = "offline_access"
# Characters of a login page's address: a command line takes no more, and servers far less.
MAX_PAGE = 32_768
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


class Login(msgspec.Struct, frozen=True):
    """A login that has begun: all that is needed to end it, in another process too (A31). A secret; its `repr` is none.

    The issuer that was checked is kept with the verifier before anybody is sent anywhere (AC-08).

    Attributes:
        server: The authorization server.
        registration: Who the client is there.
        redirect_uri: Where the browser comes back to.
        resource: What the token is for.
        scopes: Scopes that are asked for.
        state: Random text that the redirect must repeat.
        verifier: Random text that the code is bound to (PKCE).
        thumbprint: Of the DPoP key that the code is bound to; empty: none.
    """

    server: ServerMetadata
    registration: Registration
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    state: str
    verifier: str
    thumbprint: str = ""

    def __repr__(self) -> str:
        return f"Login(issuer={self.server.issuer!r}, resource={self.resource!r}, scopes={self.scopes!r})"


def scopes_to_ask(
    found: Discovery, challenged: Iterable[str], *, wanted: Iterable[str] = (), before: Collection[str] = ()
) -> tuple[str, ...]:
    """Choose scopes: those of the challenge, else all that the resource lists, else none at all (AC-13).

    Args:
        found: What discovery found.
        challenged: Scopes of the challenge.
        wanted: Scopes that the user wants besides; without a challenge, in place of the resource's list.
        before: Scopes that were asked for before: they are kept (AC-14).

    Returns:
        The scopes, with `offline_access` if the server knows it (AC-15) and there are others: alone it would replace the server's default.
    """
    needed = [*challenged, *wanted] or list(found.scopes_supported)
    scopes = dict.fromkeys([*before, *needed])
    if scopes and OFFLINE in (found.server.scopes_supported or ()):
        scopes[OFFLINE] = None
    return tuple(scopes)


def authorization_url(place: Place, login: Login) -> str:
    """The page to send somebody to.

    Raises:
        AuthorizationFailed: The server can't do this kind of login, or not safely (AC-07).
    """
    server = login.server
    if not server.authorization_endpoint:
        raise place.fail(f"the authorization server {printable(server.issuer)} has no authorization_endpoint: nobody can log in there")
    methods = server.code_challenge_methods_supported
    if "S256" not in (methods or ()) and not (server.legacy and methods is None):
        raise place.fail(
            f"the authorization server {printable(server.issuer)} does not say that it binds codes to their client by S256"
            " (code_challenge_methods_supported): a stolen code would do (AC-07); its operator has to turn PKCE on"
        )
    if not _VERIFIER.fullmatch(login.verifier):
        raise ValueError("a PKCE verifier has 43 to 128 letters, digits, and -._~")
    asked = {
        "response_type": "code",
        "client_id": login.registration.client_id,
        "redirect_uri": login.redirect_uri,
        "state": login.state,
        "code_challenge": base64.urlsafe_b64encode(sha256(login.verifier.encode()).digest()).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": login.resource,
    }
    if login.scopes:
        asked["scope"] = " ".join(login.scopes)
    if OFFLINE in login.scopes:
        asked["prompt"] = "consent"  # OpenID Connect Core, section 11: without it offline_access is ignored
    if login.thumbprint:
        asked["dpop_jkt"] = login.thumbprint
    parts = urlsplit(place.check(server.authorization_endpoint, "the authorization_endpoint"))
    own = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in asked]
    page = urlunsplit(parts._replace(query=urlencode([*own, *asked.items()])))
    if len(page) > MAX_PAGE:
        raise place.fail(f"the login page's address has {len(page)} characters, and no browser opens it; the server names too many scopes")
    return page


def code_in(place: Place, login: Login, redirected: str) -> str:
    """Read the URL that a browser came back to, in this order: is it ours, is it this login's, is it this server's (AC-08), what does it say.

    Raises:
        AuthorizationFailed: It brings no code for this login. Words of a server that is not the right one are not shown.
    """
    if not same_page(redirected, login.redirect_uri):
        raise place.fail(f"the login came back to {shown(redirected)!r} and not to the redirect URI {login.redirect_uri}")
    pairs = parse_qsl(urlsplit(redirected).query, keep_blank_values=True)
    answer = dict(pairs)
    if len(answer) != len(pairs):
        raise place.fail("the login's answer says something twice, so none of it counts; log in again")
    if not hmac.compare_digest(answer.get("state", "").encode(errors="replace"), login.state.encode()):
        raise place.fail("the login's answer belongs to another login (state differs), so it does not count; log in again")
    _check_issuer(place, login.server, answer.get("iss"))
    if "error" in answer:
        code = answer["error"] if _ERROR_CODE.fullmatch(answer["error"]) else "an error without a name"
        words = answer.get("error_description", "")
        raise place.fail(f"the login failed: {code}{f': {printable(words)}' if words else ''}")
    if not answer.get("code"):
        raise place.fail("the login's answer holds no code; log in again")
    return answer["code"]


def redeem(place: Place, login: Login, redirected: str, *, prove: Prove | None = None) -> Plan[Tokens]:
    """Buy a token with what a browser brought back.

    Raises:
        AuthorizationFailed: See `code_in` and `token.ask`.
    """
    parameters = {
        "grant_type": "authorization_code",
        "code": code_in(place, login, redirected),
        "redirect_uri": login.redirect_uri,
        "code_verifier": login.verifier,
        "resource": login.resource,
    }
    return (yield from request_token(place, login.server, login.registration, parameters, prove=prove))


def authorize(place: Place, login: Login, *, prove: Prove | None = None) -> Plan[Tokens]:
    """A login from its page to the token."""
    redirected = yield Browse(authorization_url(place, login))
    return (yield from redeem(place, login, redirected, prove=prove))


def _check_issuer(place: Place, server: ServerMetadata, issuer: str | None) -> None:
    """RFC 9207: texts are compared as they are, since what nearly fits may be another server (AC-08)."""
    if issuer is None and server.authorization_response_iss_parameter_supported:
        raise place.fail(
            f"the login's answer does not say whose it is, though {printable(server.issuer)} promises iss: it may be another's"
        )
    if issuer is not None and issuer != server.issuer:
        raise place.fail(f"the login's answer is {printable(issuer)!r}'s and not {printable(server.issuer)!r}'s, so none of it counts")
