"""An OAuth authorization server for tests: strict, adjustable in the middle of a test, and it remembers every request.

    authorization, protected = AuthorizationServer(), ProtectedServer()     # of protected_server.py
    async with serving(authorization, protected): ...

It refuses what RFC 6749, 7636, 7591, 8707, 9207, 9449 and the MCP profile forbid, and says why in `violations`. It is an identity
provider too (`identity_token`, token exchange), so that one may stand beside another.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote_plus, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from jwt_oracle import Nonces, PublicKey, TokenError, parts, prove, sign, times, verify
from recording_app import Answer, Recorded, RecordingApp, json_answer

GRANT = "urn:ietf:params:oauth:grant-type:"
TOKEN_TYPE = "urn:ietf:params:oauth:token-type:"
JWT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LOOPBACK = {"localhost", "127.0.0.1", "[::1]", "::1"}


class RefusedError(Exception):
    """An OAuth error: its code, and why."""

    def __init__(self, code: str, why: str, status: int = 400) -> None:
        super().__init__(f"{code}: {why}")
        self.code, self.why, self.status = code, why, status


@dataclass
class Client:
    """A client that the server knows.

    Attributes:
        method: How it authenticates at the token endpoint.
        key: Its public key for `private_key_jwt`.
        any_port: Whether a loopback redirect URI may have any port (RFC 8252, 7.3).
    """

    client_id: str
    secret: str | None = None
    redirect_uris: tuple[str, ...] = ()
    method: str = "none"
    key: PublicKey | None = None
    any_port: bool = False
    scopes: frozenset[str] | None = None  # None: all that the server knows


@dataclass
class Token:
    """What an access or refresh token stands for; `end` is on the server's clock."""

    client_id: str
    scopes: frozenset[str]
    resource: str
    end: float
    family: str
    thumbprint: str | None = None
    revoked: bool = False


@dataclass
class _Code:
    client_id: str
    redirect_uri: str
    challenge: str
    resource: str
    scopes: frozenset[str]
    end: float


@dataclass
class AuthorizationServer(RecordingApp):
    """The server; every field may change while it runs.

    Attributes:
        issuer_path: Path of the issuer, for example `/tenant1`; "" for none.
        endpoint_path: What the endpoints' paths begin with; None: the issuer's path.
        places: Where metadata are: `oauth`, `oidc`, `oidc-appended`; `origin`: as of 2025-03-26; empty: nowhere.
        metadata_changes: Put over the metadata; a value of None takes a field out.
        resources: Resources that tokens may be for; empty: any, as long as one is named.
        cimd: Client id metadata documents, by URL; None: it takes none.
        dcr: Whether clients may register.
        redirect_allowed: Judges a redirect URI at registration.
        application_types: Which it takes at registration; empty: it does not know the field and refuses it.
        auth_methods: How clients may authenticate.
        iss: `sent`, `absent`, `missing` (announced all the same), `unadvertised`; any other text is sent as `iss`, announced.
        deny: Error code with which authorization is refused; "" for none.
        scopes: Scopes that it knows.
        lifetime: Seconds that an access token is good for; None: it does not say, and an hour.
        refresh: Whether it gives refresh tokens; they rotate, and one that comes twice ends all of its family.
        dpop: `off`, `on` or `required`.
        nonces: What DPoP proofs must carry; None: nothing.
        trusted: Issuers of ID-JAGs and of workload assertions, with their keys.
        clock: What time it is.
    """

    issuer_path: str = ""
    endpoint_path: str | None = None
    places: tuple[str, ...] = ("oauth",)
    metadata_changes: dict[str, Any] = field(default_factory=dict)
    resources: set[str] = field(default_factory=set)
    cimd: dict[str, dict[str, Any]] | None = None
    dcr: bool = True
    redirect_allowed: Callable[[str], bool] = lambda uri: True
    application_types: tuple[str, ...] = ("native", "web")
    auth_methods: tuple[str, ...] = ("none",)
    iss: str = "sent"
    deny: str = ""
    scopes: frozenset[str] = frozenset({"mcp:basic", "mcp:read", "mcp:write"})
    lifetime: int | None = 3600
    refresh: bool = True
    dpop: str = "off"
    nonces: Nonces | None = None
    trusted: dict[str, PublicKey] = field(default_factory=dict)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        super().__init__()
        self.clients: dict[str, Client] = {}
        self.tokens: dict[str, Token] = {}
        self.refresh_tokens: dict[str, Token] = {}
        self._codes: dict[str, _Code] = {}
        self._seen: set[str] = set()  # jti of proofs and assertions
        self._key = ec.generate_private_key(ec.SECP256R1())

    # What a test asks of it

    @property
    def issuer(self) -> str:
        """The issuer."""
        return self.origin + self.issuer_path

    @property
    def public_key(self) -> PublicKey:
        """What its ID-JAGs are verified with."""
        return self._key.public_key()

    def url(self, endpoint: str) -> str:
        """URL of `authorize`, `token` or `register`."""
        return f"{self.origin}{self.issuer_path if self.endpoint_path is None else self.endpoint_path}/{endpoint}"

    def identity_token(self, client_id: str, subject: str = "ada") -> str:
        """An ID token of somebody who logged in here."""
        now = int(self.clock())
        claims = {"iss": self.issuer, "sub": subject, "aud": client_id, "iat": now, "exp": now + 600}
        return sign({"typ": "JWT", "alg": "ES256"}, claims, self._key)

    def end_tokens(self) -> None:
        """Every access token is over."""
        for token in self.tokens.values():
            token.end = 0

    def metadata(self) -> dict[str, Any]:
        """The document as it is served."""
        document: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": self.url("authorize"),
            "token_endpoint": self.url("token"),
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials", f"{GRANT}jwt-bearer"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(self.auth_methods),
            "scopes_supported": sorted(self.scopes),
        }
        if self.dcr:
            document["registration_endpoint"] = self.url("register")
        if self.cimd is not None:
            document["client_id_metadata_document_supported"] = True
        if self.iss not in {"absent", "unadvertised"}:
            document["authorization_response_iss_parameter_supported"] = True
        if "private_key_jwt" in self.auth_methods:
            document["token_endpoint_auth_signing_alg_values_supported"] = ["ES256", "RS256", "EdDSA"]
        if self.dpop != "off":
            document["dpop_signing_alg_values_supported"] = ["ES256"]
        document |= self.metadata_changes
        return {name: value for name, value in document.items() if value is not None}

    # HTTP

    def kind(self, request: Recorded) -> str:
        """`metadata`, `authorize`, `token`, `register` or `other`."""
        if "/.well-known/" in request.path:
            return "metadata"
        here = self.origin + request.path
        return next((name for name in ("authorize", "token", "register") if here == self.url(name)), "other")

    async def reply(self, request: Recorded) -> Answer:
        """Answers; what is refused is noted."""
        endpoints = {"metadata": self._metadata, "register": self._register, "authorize": self._authorize, "token": self._token}
        try:
            return endpoints.get(request.kind, self._other)(request)
        except RefusedError as refused:
            self.violations.append(f"{request.method} {request.path}: {refused}")
            headers = {"dpop-nonce": self.nonces.current} if self.nonces else {}
            return json_answer(refused.status, {"error": refused.code, "error_description": refused.why}, headers)

    def _other(self, request: Recorded) -> Answer:
        return Answer(404, f"nothing at {request.path}".encode())

    def _metadata(self, request: Recorded) -> Answer:
        known = {
            "oauth": f"/.well-known/oauth-authorization-server{self.issuer_path}",
            "oidc": f"/.well-known/openid-configuration{self.issuer_path}",
            "oidc-appended": f"{self.issuer_path}/.well-known/openid-configuration",
            "origin": "/.well-known/oauth-authorization-server",
        }
        if request.path not in [known[place] for place in self.places]:
            return Answer(404)
        return json_answer(200, self.metadata())

    # Registration (RFC 7591)

    def _register(self, request: Recorded) -> Answer:
        if not self.dcr or request.method != "POST" or request.headers.get("content-type") != "application/json":
            raise RefusedError("invalid_request", "nobody registers here, or not so")
        wanted = request.json
        kind, uris = wanted.get("application_type"), wanted.get("redirect_uris")
        if not isinstance(uris, list) or not uris or any(urlsplit(uri).fragment or not self.redirect_allowed(uri) for uri in uris):
            raise RefusedError("invalid_redirect_uri", f"not these: {uris}")
        if kind not in (self.application_types or (None,)):
            raise RefusedError("invalid_client_metadata", f"application_type {kind!r} is not taken here")
        if kind == "web" and any(urlsplit(uri).scheme != "https" or urlsplit(uri).hostname in LOOPBACK for uri in uris):
            raise RefusedError("invalid_redirect_uri", "a web application has https redirect URIs on a host of its own")
        method = wanted.get("token_endpoint_auth_method", "client_secret_basic")
        if method not in self.auth_methods:
            raise RefusedError("invalid_client_metadata", f"{method} is none of {self.auth_methods}")
        secret = secrets.token_urlsafe(16) if method.startswith("client_secret") else None
        client = Client(f"dcr {secrets.token_hex(6)}:%", secret, tuple(uris), method)  # an id that has to be encoded everywhere
        self.clients[client.client_id] = client
        answer = {**wanted, "client_id": client.client_id, "client_id_issued_at": int(self.clock())}
        return json_answer(201, answer | ({"client_secret": secret, "client_secret_expires_at": 0} if secret else {}))

    # The authorization endpoint

    def _authorize(self, request: Recorded) -> Answer:
        query = request.query
        client = self._client(query.get("client_id", ""))
        if request.repeated:
            raise RefusedError("invalid_request", f"{request.repeated} came twice")
        redirect_uri = query.get("redirect_uri", "")
        if not _redirects_to(client, redirect_uri):
            raise RefusedError("invalid_request", f"redirect_uri {redirect_uri!r} is not registered")
        try:
            answer = {"code": self._grant_code(client, query)}
        except RefusedError as refused:
            self.violations.append(f"authorize: {refused}")
            answer = {"error": refused.code, "error_description": refused.why}
        if "state" in query:
            answer["state"] = query["state"]
        if self.iss not in {"absent", "missing"}:
            answer["iss"] = self.issuer if self.iss in {"sent", "unadvertised"} else self.iss
        separator = "&" if urlsplit(redirect_uri).query else "?"
        return Answer(302, headers={"location": f"{redirect_uri}{separator}{urlencode(answer)}", "cache-control": "no-store"})

    def _grant_code(self, client: Client, query: dict[str, str]) -> str:
        if self.deny:
            raise RefusedError(self.deny, "somebody said no")
        if query.get("response_type") != "code":
            raise RefusedError("unsupported_response_type", "code alone")
        challenge = query.get("code_challenge", "")
        if query.get("code_challenge_method") != "S256" or len(challenge) != 43:
            raise RefusedError("invalid_request", "PKCE with S256 is needed")  # AC-07
        if len(query.get("state", "")) < 16:
            raise RefusedError("invalid_request", "a state that nobody guesses is needed")  # AC-16
        code = secrets.token_urlsafe(16)
        self._codes[code] = _Code(
            client.client_id, query["redirect_uri"], challenge, self._resource(query), self._scopes(client, query), self.clock() + 60
        )
        return code

    def _client(self, client_id: str) -> Client:
        if client_id in self.clients:
            return self.clients[client_id]
        document = (self.cimd or {}).get(client_id)
        if document is None:
            raise RefusedError("invalid_client", f"nobody knows {client_id!r}", 401)
        address = urlsplit(client_id)
        if (
            address.scheme != "https"
            or address.path in {"", "/"}
            or document.get("client_id") != client_id
            or not document.get("client_name")
        ):
            raise RefusedError("invalid_client", "its metadata document is not right")  # AC-10
        return Client(client_id, None, tuple(document["redirect_uris"]), document.get("token_endpoint_auth_method", "none"), any_port=True)

    def _resource(self, parameters: dict[str, str], bound: str = "") -> str:
        resource = parameters.get("resource", "")
        if not resource or urlsplit(resource).fragment or (self.resources and resource not in self.resources):
            raise RefusedError("invalid_target", f"resource {resource!r} is not one of {sorted(self.resources)}")  # AC-05
        if bound and resource != bound:
            raise RefusedError("invalid_target", f"it was for {bound}")
        return resource

    def _scopes(self, client: Client, parameters: dict[str, str], most: frozenset[str] | None = None) -> frozenset[str]:
        if parameters.get("scope") == "":
            raise RefusedError("invalid_scope", "an empty scope")
        allowed = next(scopes for scopes in (most, client.scopes, self.scopes) if scopes is not None)
        wanted = frozenset(parameters["scope"].split(" ")) if "scope" in parameters else allowed if most is not None else frozenset()
        if not wanted <= allowed:
            raise RefusedError("invalid_scope", f"{sorted(wanted - allowed)} can't be had")
        return wanted

    # The token endpoint

    def _token(self, request: Recorded) -> Answer:
        form = request.form
        if request.repeated:
            raise RefusedError("invalid_request", f"{request.repeated} came twice")
        if request.method != "POST" or request.query or not form:
            raise RefusedError("invalid_request", "a form is posted here, and nothing stands in the URL")
        grant = form.get("grant_type", "").removeprefix(GRANT)
        grants: dict[str, Callable[[Recorded, dict[str, str], str | None], Answer]] = {
            "authorization_code": self._redeem,
            "refresh_token": self._renew,
            "client_credentials": self._credentials,
            "token-exchange": self._exchange,
            "jwt-bearer": self._bearer,
        }
        if grant not in grants:
            raise RefusedError("unsupported_grant_type", grant)
        return grants[grant](request, form, self._proof(request))

    def _proof(self, request: Recorded) -> str | None:
        proof = request.headers.get("dpop")
        if proof is None or self.dpop == "off":
            if self.dpop == "required":
                raise RefusedError("invalid_dpop_proof", "a proof is needed")
            return None
        try:
            thumbprint, nonce = prove(proof, request.method, self.origin + request.path, self.clock(), seen=self._seen)
        except TokenError as error:
            raise RefusedError("invalid_dpop_proof", str(error)) from error
        if self.nonces and not self.nonces.take(nonce):
            raise RefusedError("use_dpop_nonce", "a nonce is needed")
        return thumbprint

    def _authenticated(self, request: Recorded, form: dict[str, str]) -> Client:
        client_id, secret, method = form.get("client_id", ""), form.get("client_secret"), "none"
        scheme, _, word = request.headers.get("authorization", "").partition(" ")
        ways = [scheme != "", secret is not None, "client_assertion" in form]
        if sum(ways) > 1:
            raise RefusedError("invalid_request", "one way to authenticate, not more")
        if scheme:
            if scheme.lower() != "basic" or "client_id" in form:
                raise RefusedError("invalid_request", "Basic alone")
            client_id, secret = map(unquote_plus, base64.b64decode(word).decode().split(":", 1))
            method = "client_secret_basic"
        elif secret is not None:
            method = "client_secret_post"
        elif "client_assertion" in form:
            return self._by_assertion(form)
        client = self._client(client_id)
        if method != client.method or method not in self.auth_methods or (client.secret or "") != (secret or ""):
            raise RefusedError("invalid_client", f"{client_id!r} has to come with {client.method}, and with its own secret", 401)
        return client

    def _by_assertion(self, form: dict[str, str]) -> Client:
        if form.get("client_assertion_type") != JWT_ASSERTION or "private_key_jwt" not in self.auth_methods:
            raise RefusedError("invalid_client", "no such assertion here", 401)
        try:
            _, unchecked = parts(form["client_assertion"])
            client = self._client(str(unchecked.get("sub")))
            _, claims = verify(form["client_assertion"], client.key, ["ES256", "RS256", "EdDSA"])
            self._once(claims)
        except TokenError as error:
            raise RefusedError("invalid_client", str(error), 401) from error
        if client.method != "private_key_jwt" or claims.get("iss") != client.client_id or claims.get("aud") != self.issuer:
            raise RefusedError("invalid_client", "iss and sub are the client, aud the issuer", 401)  # CC-01
        if form.get("client_id", client.client_id) != client.client_id:
            raise RefusedError("invalid_request", "client_id is somebody else's")
        return client

    def _once(self, claims: dict[str, Any]) -> None:
        times(claims, self.clock())
        token_id = claims.get("jti")
        if not isinstance(token_id, str) or token_id in self._seen:
            raise TokenError("no jti, or one that was here before")
        self._seen.add(token_id)

    def _redeem(self, request: Recorded, form: dict[str, str], thumbprint: str | None) -> Answer:
        client = self._authenticated(request, form)
        code = self._codes.pop(form.get("code", ""), None)
        if code is None or code.end < self.clock() or code.client_id != client.client_id or code.redirect_uri != form.get("redirect_uri"):
            raise RefusedError("invalid_grant", "no such code, or of another client or redirect URI")
        verifier = form.get("code_verifier", "")
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        if not 43 <= len(verifier) <= 128 or digest != code.challenge:
            raise RefusedError("invalid_grant", "the verifier does not fit")
        return self._issue(client.client_id, code.scopes, self._resource(form, code.resource), thumbprint, refresh=self.refresh)

    def _renew(self, request: Recorded, form: dict[str, str], thumbprint: str | None) -> Answer:
        client = self._authenticated(request, form)
        token = self.refresh_tokens.get(form.get("refresh_token", ""))
        if token is None or token.client_id != client.client_id or (token.thumbprint and token.thumbprint != thumbprint):
            raise RefusedError("invalid_grant", "no such refresh token, or of another client or key")
        if token.revoked:
            for other in [*self.tokens.values(), *self.refresh_tokens.values()]:
                if other.family == token.family:
                    other.revoked = True
            raise RefusedError("invalid_grant", "used before: the whole family is over")
        scopes = self._scopes(client, form, token.scopes)
        answer = self._issue(client.client_id, scopes, self._resource(form, token.resource), thumbprint, refresh=True, family=token.family)
        token.revoked = True
        return answer

    def _credentials(self, request: Recorded, form: dict[str, str], thumbprint: str | None) -> Answer:
        client = self._authenticated(request, form)
        if client.method == "none":
            raise RefusedError("unauthorized_client", "a public client has no credentials")
        return self._issue(client.client_id, self._scopes(client, form), self._resource(form), thumbprint)

    def _exchange(self, request: Recorded, form: dict[str, str], thumbprint: str | None) -> Answer:
        del thumbprint
        client = self._authenticated(request, form)
        if form.get("requested_token_type") != f"{TOKEN_TYPE}id-jag" or form.get("subject_token_type") != f"{TOKEN_TYPE}id_token":
            raise RefusedError("invalid_request", "an id_token is exchanged for an id-jag here")  # EM-01
        try:
            _, claims = verify(form.get("subject_token", ""), self.public_key, ["ES256"])
            times(claims, self.clock())
        except TokenError as error:
            raise RefusedError("invalid_grant", str(error)) from error
        if claims["aud"] != client.client_id or not form.get("audience"):
            raise RefusedError("invalid_grant", "the token is another client's, or there is no audience")
        now = int(self.clock())
        jag = {
            "iss": self.issuer, "sub": claims["sub"], "aud": form["audience"], "resource": self._resource(form), "client_id": client.client_id,
            "jti": secrets.token_urlsafe(16), "iat": now, "exp": now + 300, **({"scope": form["scope"]} if "scope" in form else {}),
        }  # fmt: skip
        token = sign({"typ": "oauth-id-jag+jwt", "alg": "ES256"}, jag, self._key)
        answer = {"issued_token_type": f"{TOKEN_TYPE}id-jag", "access_token": token, "token_type": "N_A", "expires_in": 300}
        return json_answer(200, answer)

    def _bearer(self, request: Recorded, form: dict[str, str], thumbprint: str | None) -> Answer:
        try:
            header, unchecked = parts(form.get("assertion", ""))
            _, claims = verify(form["assertion"], self.trusted.get(str(unchecked.get("iss"))), ["ES256"])
            self._once(claims)
        except TokenError as error:
            raise RefusedError("invalid_grant", str(error)) from error
        if header.get("typ") == "oauth-id-jag+jwt":  # EM-04
            client = self._authenticated(request, form)
            if claims.get("aud") != self.issuer or (self.resources and claims.get("resource") not in self.resources):
                raise RefusedError("invalid_grant", "for another server")
            resource = str(claims["resource"])
        else:  # EX-07: the assertion alone says who it is
            if {"client_secret", "client_assertion"} & set(form) or "authorization" in request.headers:
                raise RefusedError("invalid_request", "the assertion says who it is; nothing else does")
            client, resource = Client(str(claims.get("sub"))), self._resource(form)
            if claims.get("aud") not in {self.url("token"), self.issuer}:
                raise RefusedError("invalid_grant", "the assertion is for another server")
        return self._issue(client.client_id, self._scopes(replace(client), form), resource, thumbprint)

    def _issue(
        self, client_id: str, scopes: frozenset[str], resource: str, thumbprint: str | None, *, refresh: bool = False, family: str = ""
    ) -> Answer:
        family = family or secrets.token_hex(8)
        token = Token(client_id, scopes, resource, self.clock() + (self.lifetime or 3600), family, thumbprint)
        access = secrets.token_urlsafe(24)
        self.tokens[access] = token
        answer: dict[str, Any] = {"access_token": access, "token_type": "DPoP" if thumbprint else "Bearer"}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if scopes:
            answer["scope"] = " ".join(sorted(scopes))
        if refresh:
            answer["refresh_token"] = secrets.token_urlsafe(24)
            self.refresh_tokens[answer["refresh_token"]] = replace(token, end=float("inf"))
        return json_answer(200, answer, {"dpop-nonce": self.nonces.current} if self.nonces else {})


def _redirects_to(client: Client, redirect_uri: str) -> bool:
    if redirect_uri in client.redirect_uris:
        return True
    here = urlsplit(redirect_uri)
    if not client.any_port or here.hostname not in LOOPBACK or here.scheme != "http":
        return False
    return any(
        urlsplit(uri)._replace(netloc="") == here._replace(netloc="") and urlsplit(uri).hostname == here.hostname
        for uri in client.redirect_uris
    )
