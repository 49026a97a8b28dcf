"""The token endpoint: what is sent there, how a client shows who it is, what may come back."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote_plus, urlencode

import msgspec

from callboard.client.auth import HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed, Origin
from callboard.client.oauth.challenge import MIN_SECRET, scopes_in
from callboard.client.oauth.metadata import ServerMetadata
from callboard.client.oauth.step import Plan
from callboard.client.oauth.urls import Place
from callboard.core.urls import printable

__all__ = [
    "Assert",
    "Prove",
    "Registration",
    "TokenRefused",
    "Tokens",
    "ask",
    "authentication_method",
    "json_object",
    "refresh",
    "request_token",
]

JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# Longest life that is believed, in seconds; it keeps arithmetic finite.
MAX_LIFE = 10 * 365 * 86_400
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+")
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")

Prove: TypeAlias = Callable[[str, str, str], str]
"""Makes a DPoP proof: HTTP method, URL, nonce (empty: none) -> the `DPoP` header."""

Assert: TypeAlias = Callable[[ServerMetadata], str]
"""Makes a client assertion, a signed JWT, for an authorization server (RFC 7523, section 2.2)."""


class Registration(msgspec.Struct, frozen=True):
    """Who a client is to one authorization server. Its `repr` holds no secret.

    Attributes:
        client_id: Its id there.
        client_secret: Its secret; empty for public clients.
        method: How it proves who it is, if that is fixed: `none`, `client_secret_basic`, `client_secret_post`, `private_key_jwt`.
        redirect_uris: Where the server may send browsers to; empty if the client can't tell.
        expires_at: Unix time after which the secret is void; 0: never.
        source: `given` by the user, `document` (a URL, AC-10), `registered` by this client.
    """

    client_id: str
    client_secret: str = ""
    method: str = ""
    redirect_uris: tuple[str, ...] = ()
    expires_at: float = 0
    source: str = "given"

    def __repr__(self) -> str:
        return f"Registration(client_id={self.client_id!r}, source={self.source!r})"


class Tokens(msgspec.Struct, frozen=True):
    """What a token endpoint gave. Its `repr` holds no secret.

    Attributes:
        access_token: The token.
        token_type: `Bearer` or `DPoP`.
        expires_in: Seconds it lives; None: unknown.
        scopes: Scopes it has; None: those that were asked for.
        refresh_token: What the next one can be had for; empty: nothing came (AC-15).
    """

    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - a kind, no secret
    expires_in: float | None = None
    scopes: tuple[str, ...] | None = None
    refresh_token: str = ""

    def __repr__(self) -> str:
        return f"Tokens(token_type={self.token_type!r}, expires_in={self.expires_in!r}, scopes={self.scopes!r})"


class TokenRefused(AuthorizationFailed):
    """The token endpoint said no.

    Attributes:
        error: Its error code, for example `invalid_grant`; empty when it gave none.
    """

    def __init__(self, text: str, error: str, origin: Origin) -> None:
        super().__init__(text, origin)
        self.error = error


def request_token(
    place: Place,
    server: ServerMetadata,
    registration: Registration | None,
    parameters: Mapping[str, str],
    *,
    sign: Assert | None = None,
    prove: Prove | None = None,
) -> Plan[Tokens]:
    """Ask for a token; arguments and errors are those of `ask`."""
    answer = yield from ask(place, server, registration, parameters, sign=sign, prove=prove)
    return _read_tokens(place, server.token_endpoint or "", answer)


def ask(
    place: Place,
    server: ServerMetadata,
    registration: Registration | None,
    parameters: Mapping[str, str],
    *,
    sign: Assert | None = None,
    prove: Prove | None = None,
) -> Plan[HttpResponse]:
    """Send a request to a token endpoint.

    Args:
        place: The MCP endpoint.
        server: The authorization server.
        registration: Who asks; None: the parameters say it.
        parameters: `grant_type`, `resource` and what the grant needs; the client's authentication is added.
        sign: Makes client assertions, for `private_key_jwt`.
        prove: Makes DPoP proofs; None: an ordinary token is asked for.

    Returns:
        Its answer, with status 200.

    Raises:
        TokenRefused: The server says no; the text has its `error` and `error_description`.
        AuthorizationFailed: It wants a way of authentication that this client has not.
    """
    url = place.check(server.token_endpoint or "", "the token_endpoint")
    body = dict(parameters)
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    if registration is not None:
        _authenticate(place, server, registration, body, headers, sign)
    secret = registration.client_secret if registration else ""
    secrets = (*body.values(), secret, quote_plus(secret), headers.get("Authorization", "").removeprefix("Basic "))
    nonce = ""
    while True:
        proof = {"DPoP": prove("POST", url, nonce)} if prove else {}
        answer: HttpResponse = yield HttpRequest("POST", url, {**headers, **proof}, urlencode(body).encode())
        if answer.status == 200:
            return answer
        refused = _refusal(place, url, answer, secrets)
        asked_nonce = answer.headers.get("dpop-nonce", "")
        if not prove or refused.error != "use_dpop_nonce" or nonce or not _HEADER_TEXT.fullmatch(asked_nonce):
            raise refused
        nonce = asked_nonce  # RFC 9449, section 8: once


def refresh(
    place: Place,
    server: ServerMetadata,
    registration: Registration,
    held: Tokens,
    *,
    resource: str,
    sign: Assert | None = None,
    prove: Prove | None = None,
) -> Plan[Tokens]:
    """Renew a token at the endpoint that the server advertises (A29). What the answer leaves out stays as it was; a new refresh token replaces.

    Raises:
        TokenRefused: `invalid_grant`: the refresh token is void, or has been used by somebody else.
        AuthorizationFailed: As in `ask`.
    """
    parameters = {"grant_type": "refresh_token", "refresh_token": held.refresh_token, "resource": resource}
    fresh = yield from request_token(place, server, registration, parameters, sign=sign, prove=prove)
    scopes = held.scopes if fresh.scopes is None else fresh.scopes
    return msgspec.structs.replace(fresh, scopes=scopes, refresh_token=fresh.refresh_token or held.refresh_token)


def authentication_method(server: ServerMetadata, registration: Registration, *, signs: bool = False) -> str:
    """How a client shows who it is (AC-17): as registered, else the best that both sides know. Empty: there is no such way.

    Args:
        server: The authorization server.
        registration: The client.
        signs: It can sign assertions.
    """
    offered = server.token_endpoint_auth_methods_supported
    if registration.method and (offered is None or registration.method in offered):
        return registration.method
    able = ["private_key_jwt"] if signs else []
    able += ["client_secret_basic", "client_secret_post"] if registration.client_secret else []
    able += ["none"] if not signs else []
    # RFC 8414's default is client_secret_basic; a client without a secret can only be public.
    return able[0] if not offered else next((method for method in able if method in offered), "")


def _authenticate(
    place: Place, server: ServerMetadata, registration: Registration, body: dict[str, str], headers: dict[str, str], sign: Assert | None
) -> None:
    method = authentication_method(server, registration, signs=sign is not None)
    if method == "client_secret_basic":
        pair = f"{quote_plus(registration.client_id)}:{quote_plus(registration.client_secret)}"  # RFC 6749, section 2.3.1
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif method == "client_secret_post":
        body |= {"client_id": registration.client_id, "client_secret": registration.client_secret}
    elif method == "private_key_jwt" and sign is not None:
        body |= {"client_assertion_type": JWT_BEARER, "client_assertion": sign(server)}
    elif method == "none":
        body["client_id"] = registration.client_id
    else:
        offered = ", ".join(map(printable, server.token_endpoint_auth_methods_supported or ()))
        raise place.fail(
            f"the authorization server {printable(server.issuer)} takes clients that authenticate by {offered or method}, which this client"
            " can't: give it a client_secret, or a key"
        )


def _read_tokens(place: Place, url: str, answer: HttpResponse) -> Tokens:
    found = json_object(answer)
    wrong = "is no JSON object" if found is None else ""
    found = found or {}
    access, kind, renewal = found.get("access_token"), found.get("token_type"), found.get("refresh_token") or ""
    if not wrong and not (isinstance(access, str) and _HEADER_TEXT.fullmatch(access)):
        wrong = "has no access_token that a header can carry"
    if not wrong and not (isinstance(kind, str) and kind.lower() in {"bearer", "dpop"}):
        wrong = f"has token_type {printable(repr(kind), 40)}; this client knows Bearer and DPoP"
    if not wrong and not isinstance(renewal, str):
        wrong = "has a refresh_token that is no text"
    scope = found.get("scope")
    if not wrong and not isinstance(scope, str | None):
        wrong = "has a scope that is no text"
    if wrong:
        raise place.fail(f"the answer of the token endpoint {printable(url)} {wrong}")
    return Tokens(
        str(access),
        "DPoP" if str(kind).lower() == "dpop" else "Bearer",
        _lifetime(found.get("expires_in")),
        None if not scope else scopes_in(scope),
        str(renewal),
    )


def _lifetime(value: object) -> float | None:
    """Seconds that a token lives. Some servers send a text, or 0 for no end; anything else says nothing, and the server's 401 will tell."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return min(seconds, MAX_LIFE) if math.isfinite(seconds) and seconds > 0 else None


def _refusal(place: Place, url: str, answer: HttpResponse, secrets: tuple[str, ...]) -> TokenRefused:
    found = json_object(answer) or {}
    code, words = found.get("error"), found.get("error_description")
    error = code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    text = words if isinstance(words, str) else ""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:
            text = text.replace(secret, "***")  # a server that quotes what it was sent
            error = "" if secret in error and len(secret) >= MIN_SECRET else error
    said = f": {printable(text)}" if text.strip() else ""
    return TokenRefused(f"the token endpoint {printable(url)} refuses: {error or f'HTTP {answer.status}'}{said}", error, Origin(place.name))


def json_object(answer: HttpResponse) -> dict[str, Any] | None:
    """The JSON object in an answer; None if there is none."""
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
