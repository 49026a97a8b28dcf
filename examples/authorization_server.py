"""An authorization server to try logins with, small enough to read. DEMO ONLY: no passwords, nothing outlives it, this machine alone.

    pip install joserfc starlette uvicorn aiohttp
    python examples/authorization_server.py [--port 9000] [--auto-consent] [--resource http://127.0.0.1:8000/mcp] [--scopes "notes:read ..."]

What OAuth 2.1 and the authorization part of MCP 2026-07-28 ask of such a server is here, each rule with the RFC that has it. What is not
here: users with passwords, a database, TLS, rates. protected.py is an MCP server that trusts it, login.py a client that logs in.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import hmac
import html
import ipaddress
import json
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import aiohttp
import uvicorn
from aiohttp.abc import ResolveResult
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CODE_LIFE, TICKET_LIFE, ACCESS_LIFE, LOGIN_LIFE, KEY_LIFE = 60, 300, 300, 86_400, 86_400  # seconds
MOST_BYTES, MOST_DOCUMENT_BYTES = 65_536, 5_120  # of a request, and of a client's metadata document (which its draft says)
SECRET_WAYS = ("client_secret_basic", "client_secret_post")
ENDPOINTS = {"authorization": "/authorize", "token": "/token", "registration": "/register", "revocation": "/revoke"}
ENDPOINTS |= {"introspection": "/introspect"}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
HEADERS = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}  # RFC 6749, 5.1
PAGE_HEADERS = {**HEADERS, "content-security-policy": "default-src 'none'; frame-ancestors 'none'"}  # RFC 9700, 4.16: clickjacking
PAGE = """<!doctype html><title>Log in (demo)</title>
<p><strong>DEMO ONLY: no passwords. Whoever sees this page may be anybody.</strong></p>
<p>{name} ({client_id}) wants to use {resource} and may then: <strong>{scopes}</strong>. You will go on to {redirect_uri}</p>
<form method="post"><input type="hidden" name="ticket" value="{ticket}"><select name="user">{users}</select>
<button name="answer" value="yes">Allow</button> <button name="answer" value="no">Deny</button></form>"""

Document = dict[str, Any]


T = TypeVar("T")


class RefusedError(Exception):
    """An error as RFC 6749, 5.2 has it: a code for the program, a sentence for people."""

    def __init__(self, code: str, why: str, status: int = 400) -> None:
        super().__init__(f"{code}: {why}")
        self.code, self.why, self.status = code, why, status


class Table(Generic[T]):
    """What is known until its time is over. It has a bound: the oldest goes first."""

    def __init__(self, most: int) -> None:
        self.most, self.rows = most, OrderedDict[str, tuple[float, T]]()

    def put(self, key: str, row: T, end: float = math.inf) -> None:
        self.rows[key] = end, row
        while len(self.rows) > self.most:
            self.rows.popitem(last=False)

    def find(self, key: str, now: float) -> T | None:
        end, row = self.rows.get(key, (now, None))
        return row if end > now else None

    def drop(self, key: str) -> None:
        self.rows.pop(key, None)


@dataclass
class Client:
    """A client; `secret` is a digest. `serves`: it is the MCP server of that URL, and may introspect its tokens."""

    client_id: str
    name: str
    redirect_uris: tuple[str, ...] = ()
    way: str = "none"  # token_endpoint_auth_method
    secret: str = ""
    grants: frozenset[str] = frozenset({"authorization_code", "refresh_token"})
    serves: str = ""

    def goes_to(self, redirect_uri: str) -> str:
        if redirect_uri not in self.redirect_uris:  # letter for letter: RFC 9700, 2.1
            raise RefusedError("invalid_request", "this redirect_uri is not registered")
        return redirect_uri


@dataclass
class Asked:
    """What a client asked for in the browser; first a ticket stands for it (while somebody decides), then a code."""

    client: Client
    redirect_uri: str
    state: str | None
    challenge: str
    resource: str
    scopes: frozenset[str]
    user: str = ""
    login: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    used: bool = False


@dataclass
class Login:
    """What somebody agreed to: all tokens that came of it belong to it and end with it."""

    key: str
    client_id: str
    user: str
    resource: str
    scopes: frozenset[str]


@dataclass
class Refresh:
    """A refresh token; a used one is remembered, to notice when it comes again."""

    login: str
    used: bool = False


def digest(secret: str) -> str:
    """What is kept and looked up in place of a secret: how long that takes tells nothing of the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def once(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Parameters; they come once, and an empty one is none (RFC 6749, 3.1 and 3.2)."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise RefusedError("invalid_request", "a parameter came twice")
        found[name] = value
    return {name: value for name, value in found.items() if value}


async def read_body(request: Request, kind: str) -> bytes:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise RefusedError("invalid_request", f"the body must be {kind}")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise RefusedError("invalid_request", f"more than {MOST_BYTES} bytes", 413)
    return body


async def read_form(request: Request) -> dict[str, str]:
    body = await read_body(request, "application/x-www-form-urlencoded")
    try:
        return once(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError as error:
        raise RefusedError("invalid_request", "the body is no form") from error


def check_redirect_uri(uri: Any) -> str:
    """RFC 8252, 7 and OAuth 2.1, 2.3.1: https, or http to this machine; no fragment."""
    if isinstance(uri, str) and len(uri) <= 500 and uri.isascii() and uri.isprintable() and not {" ", "#"} & set(uri):
        with contextlib.suppress(ValueError):
            where = urlsplit(uri)
            here = where.scheme == "http" and where.hostname in LOOPBACK
            if where.hostname and where.username is None and (here or where.scheme == "https"):
                return uri
    raise RefusedError("invalid_redirect_uri", "redirect URIs are https, or http to a loopback address, and have no fragment")


def client_of(client_id: str, document: Document, ways: tuple[str, ...]) -> Client:
    """Reads client metadata (RFC 7591, 2), registered or of a metadata document."""
    uris, name = document.get("redirect_uris"), document.get("client_name", "a program without a name")
    way, grants = document.get("token_endpoint_auth_method", ways[0]), document.get("grant_types", ["authorization_code"])
    if not isinstance(uris, list) or not 1 <= len(uris) <= 10:
        raise RefusedError("invalid_redirect_uri", "redirect_uris must be 1 to 10 addresses")
    if not isinstance(name, str) or len(name) > 100 or not name.isprintable():
        raise RefusedError("invalid_client_metadata", "client_name must be up to 100 printable characters")
    if way not in ways:
        raise RefusedError("invalid_client_metadata", f"token_endpoint_auth_method must be one of {ways}")
    if not isinstance(grants, list) or "authorization_code" not in grants:
        raise RefusedError("invalid_client_metadata", "grant_types must hold authorization_code")
    # What else it wants it does not get (RFC 7591, 3.2.1). client_credentials is no grant for whoever comes along: it needs no user.
    taken = Client.grants.intersection(map(str, grants))
    return Client(client_id, name, tuple(map(check_redirect_uri, uris)), way, grants=taken)


class PublicAddresses(aiohttp.ThreadedResolver):
    """Leads nowhere but into the internet: a client's id must not make this server knock on doors inside (SSRF)."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        if not all(ipaddress.ip_address(address["host"]).is_global for address in found):
            raise OSError("not a public address")
        return found


async def fetch_document(url: str, connector: aiohttp.BaseConnector | None = None) -> bytes:
    """A client's metadata document: no redirects, 5 seconds, 5 KiB (draft-ietf-oauth-client-id-metadata-document, 4 and 6)."""
    connector = connector or aiohttp.TCPConnector(resolver=PublicAddresses())
    limit = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=limit) as session,
        session.get(url, allow_redirects=False, headers={"accept": "application/json"}) as response,
    ):
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MOST_DOCUMENT_BYTES:
                raise OSError("too long")
        if response.status != 200 or response.content_type != "application/json":
            raise OSError(f"status {response.status}")
        return bytes(body)


def check_document_url(url: str) -> None:
    """Same draft, 3: https, a path without dots, no fragment, no user; nor a literal address, which no resolver would see."""
    found = re.fullmatch(r"https://([a-z0-9.-]+\.[a-z][a-z0-9-]*)(:\d+)?(/[!$-.0-;=?-Z_a-z~/]+)", url, re.ASCII)
    if found is None or len(url) > 500 or {".", ".."} & set(found[3].partition("?")[0].split("/")):
        raise RefusedError("invalid_client", "client_id is no https URL with a name and a path, or has dots, a user or a fragment", 401)


class AuthorizationServer:
    """The server; `app` is its ASGI application.

    Args:
        issuer: Its own address, at a loopback address.
        resources: MCP servers that tokens may be for.
        scopes: What may be asked for.
        users: Who may be chosen on the page.
        auto_consent: Agree at once, as the first of the users: for programs that can't press a button.
        fetch: How metadata documents of clients are had.
        clock: What time it is.
    """

    def __init__(
        self,
        issuer: str,
        resources: Iterable[str],
        scopes: Iterable[str],
        *,
        users: tuple[str, ...] = ("ada", "ben"),
        auto_consent: bool = False,
        fetch: Callable[[str], Awaitable[bytes]] = fetch_document,
        clock: Callable[[], float] = time.time,
    ) -> None:
        host = urlsplit(issuer).hostname
        if host not in LOOPBACK:
            raise ValueError(f"This demo has no passwords: it serves loopback addresses alone, not {issuer}.")
        self.issuer, self.resources, self.scopes, self.users = issuer, frozenset(resources), frozenset(scopes), users
        self.auto_consent, self.fetch, self.clock = auto_consent, fetch, clock
        self.known: dict[str, Client] = {}  # by whoever runs this server
        self.registered: Table[Client] = Table(1_000)
        self.documents: Table[Client] = Table(100)
        self.tickets: Table[Asked] = Table(1_000)
        self.codes: Table[Asked] = Table(1_000)
        self.logins: Table[Login] = Table(10_000)
        self.refreshes: Table[Refresh] = Table(20_000)
        self.keys: list[tuple[float, ECKey]] = []
        self.fetches = asyncio.Semaphore(4)
        self.rotate()
        posts = {"token": self.token, "registration": self.register, "revocation": self.revoke, "introspection": self.introspect}
        self.app = Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self.metadata),
                Route("/jwks.json", self.jwks),
                Route("/authorize", self.authorize),
                Route("/authorize", self.decide, methods=["POST"]),
                *(Route(ENDPOINTS[name], function, methods=["POST"]) for name, function in posts.items()),
            ],
            exception_handlers={RefusedError: self.refuse},
            # A page of the internet whose name leads here (DNS rebinding) must not read a ticket.
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[host])],
        )

    # Who runs it

    def add_machine(self, client_id: str, *, serves: str = "") -> str:
        """Makes a client that may ask for tokens of its own, or that is an MCP server (`serves`); gives its secret."""
        secret, grants = secrets.token_urlsafe(32), frozenset[str]() if serves else frozenset({"client_credentials"})
        if client_id in self.users:
            raise ValueError("A client must not look like a user.")  # RFC 9068, 5: both may be `sub`
        self.known[client_id] = Client(client_id, client_id, (), SECRET_WAYS[0], digest(secret), grants, serves)
        return secret

    def rotate(self, *, revoke: bool = False) -> None:
        """Signs with a new key; the last one stays published, for tokens that live, unless it is to be revoked."""
        key = ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}, auto_kid=True)  # the kid is its thumbprint (RFC 7638)
        self.keys = [(self.clock(), key), *([] if revoke else self.keys[:1])]

    # Documents

    async def metadata(self, _: Request) -> Response:
        """RFC 8414."""
        document = {
            "issuer": self.issuer,
            **{f"{name}_endpoint": self.issuer + path for name, path in ENDPOINTS.items()},
            "jwks_uri": f"{self.issuer}/jwks.json",
            "scopes_supported": sorted(self.scopes),
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", *SECRET_WAYS],
            "authorization_response_iss_parameter_supported": True,  # RFC 9207
            "client_id_metadata_document_supported": True,
        }
        return JSONResponse(document)

    async def jwks(self, _: Request) -> Response:
        """RFC 7517."""
        return JSONResponse(KeySet([key for _, key in self.keys]).as_dict(private=False))

    async def refuse(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        headers = {**HEADERS, "www-authenticate": 'Basic realm="demo"'} if error.status == 401 else HEADERS
        return JSONResponse({"error": error.code, "error_description": error.why}, error.status, headers)

    # Clients

    async def register(self, request: Request) -> Response:
        """RFC 7591. Deprecated in MCP since 2026-07-28, and still what most clients do."""
        try:
            document = json.loads(await read_body(request, "application/json"))
        except (ValueError, RecursionError) as error:
            raise RefusedError("invalid_client_metadata", "no JSON") from error
        if not isinstance(document, dict):
            raise RefusedError("invalid_client_metadata", "no JSON object")
        client = client_of(secrets.token_urlsafe(12), document, (*SECRET_WAYS, "none"))
        answer: Document = {
            "client_id": client.client_id,
            "client_id_issued_at": int(self.clock()),
            "client_name": client.name,
            "redirect_uris": client.redirect_uris,
            "grant_types": sorted(client.grants),
            "response_types": ["code"],
            "token_endpoint_auth_method": client.way,
        }
        if client.way in SECRET_WAYS:
            secret = secrets.token_urlsafe(32)
            client.secret = digest(secret)
            answer |= {"client_secret": secret, "client_secret_expires_at": 0}
        self.registered.put(client.client_id, client)
        return JSONResponse(answer, 201, HEADERS)

    async def client(self, client_id: str) -> Client:
        """The client of an id: known, registered, or described by a document at the id, which is a URL then."""
        now = self.clock()
        client = self.known.get(client_id) or self.registered.find(client_id, now) or self.documents.find(client_id, now)
        if client is not None:
            return client
        if not client_id.startswith("https://"):
            raise RefusedError("invalid_client", "there is no such client", 401)
        check_document_url(client_id)
        try:
            async with self.fetches:
                document = json.loads(await self.fetch(client_id))
            if not isinstance(document, dict) or document.get("client_id") != client_id or "client_secret" in document:
                raise RefusedError("invalid_client", "the document at client_id must hold that very client_id, and no secret", 401)
            client = client_of(client_id, document, ("none",))
        except (OSError, ValueError, RecursionError, TimeoutError, aiohttp.ClientError) as error:
            raise RefusedError("invalid_client", "the document at client_id can't be had", 401) from error
        self.documents.put(client_id, client, now + 300)
        return client

    async def authenticate(self, request: Request, form: dict[str, str]) -> Client:
        """RFC 6749, 2.3: in the one way that the client has registered."""
        way, client_id, secret = "none", form.get("client_id", ""), form.get("client_secret", "")
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, word = header.partition(" ")
            try:
                pair = base64.b64decode(word.strip(), validate=True).decode().partition(":")
            except ValueError:
                pair = ("", "", "")
            basic_id, secret_too = unquote_plus(pair[0]), unquote_plus(pair[2])
            if scheme.lower() != "basic" or secret or client_id not in {"", basic_id}:
                raise RefusedError("invalid_request", "a client authenticates in one way")
            way, client_id, secret = "client_secret_basic", basic_id, secret_too
        elif secret:
            way = "client_secret_post"
        client = await self.client(client_id)
        right = way == "none" or hmac.compare_digest(client.secret, digest(secret))
        if client.way != way or not right:
            raise RefusedError("invalid_client", "the client is not who it says", 401)
        return client

    # The browser's endpoint

    async def authorize(self, request: Request) -> Response:
        """RFC 6749, 4.1.1. Errors go back to the client only when it is certain where it is."""
        try:
            query = once(request.query_params.multi_items())
            client = await self.client(query.get("client_id", ""))
            redirect_uri = client.goes_to(query.get("redirect_uri", ""))
        except RefusedError as error:
            return HTMLResponse(f"This login can't go on: {html.escape(error.why)}.", 400, PAGE_HEADERS)
        try:
            asked = self.judge(client, query)
        except RefusedError as error:
            return self.send_back(redirect_uri, query.get("state"), error=error.code, error_description=error.why)
        if self.auto_consent:
            return self.agree(asked, self.users[0])
        ticket = secrets.token_urlsafe(32)
        self.tickets.put(digest(ticket), asked, self.clock() + TICKET_LIFE)
        facts = {"name": client.name, "client_id": client.client_id, "resource": asked.resource, "ticket": ticket}
        facts |= {"scopes": ", ".join(sorted(asked.scopes)) or "nothing in particular", "redirect_uri": redirect_uri}
        users = "".join(f"<option>{html.escape(user)}</option>" for user in self.users)
        page = PAGE.format(users=users, **{name: html.escape(fact) for name, fact in facts.items()})
        return HTMLResponse(page, headers=PAGE_HEADERS)

    def judge(self, client: Client, query: dict[str, str]) -> Asked:
        challenge = query.get("code_challenge", "")
        if query.get("response_type") != "code":
            raise RefusedError("unsupported_response_type", "response_type must be code")
        if query.get("code_challenge_method") != "S256" or not re.fullmatch(
            r"[\w-]{43}", challenge, re.ASCII
        ):  # RFC 7636, 4.3; `plain` is no protection
            raise RefusedError("invalid_request", "PKCE with S256 is needed")
        resource, scopes = self.resource(query), self.allow(query, self.scopes)
        return Asked(client, query["redirect_uri"], query.get("state"), challenge, resource, scopes)

    async def decide(self, request: Request) -> Response:
        """What the page's buttons send; nobody else knows the ticket, which is good once."""
        form = await read_form(request)
        key = digest(form.get("ticket", ""))
        asked = self.tickets.find(key, self.clock())
        self.tickets.drop(key)
        if asked is None or form.get("user") not in self.users:
            return HTMLResponse("This page was open for too long. Start again in the program.", 400, PAGE_HEADERS)
        if form.get("answer") != "yes":
            return self.send_back(asked.redirect_uri, asked.state, error="access_denied", error_description="somebody said no")
        return self.agree(asked, form["user"])

    def agree(self, asked: Asked, user: str) -> Response:
        code = secrets.token_urlsafe(32)
        asked.user = user
        self.codes.put(digest(code), asked, self.clock() + CODE_LIFE)
        return self.send_back(asked.redirect_uri, asked.state, code=code)

    def send_back(self, redirect_uri: str, state: str | None, **answer: str) -> Response:
        """RFC 6749, 4.1.2, with `iss` in every answer (RFC 9207): so a client knows whose it is."""
        answer |= {"iss": self.issuer} | ({} if state is None else {"state": state})
        return RedirectResponse(f"{redirect_uri}{'&' if '?' in redirect_uri else '?'}{urlencode(answer)}", 303, HEADERS)

    # The token endpoint

    async def token(self, request: Request) -> Response:
        """RFC 6749, 3.2."""
        form = await read_form(request)
        grants = {"authorization_code": self.take_code, "refresh_token": self.take_refresh, "client_credentials": self.take_itself}
        client, grant = await self.authenticate(request, form), form.get("grant_type", "")
        if grant not in grants:
            raise RefusedError("unsupported_grant_type", f"grant_type must be one of {list(grants)}")
        if grant not in client.grants:
            raise RefusedError("unauthorized_client", f"this client has not registered {grant}")
        return grants[grant](client, form)

    def take_code(self, client: Client, form: dict[str, str]) -> Response:
        """RFC 6749, 4.1.3 and RFC 7636, 4.6. One try: a code that comes twice was stolen, and ends what came of it (4.1.2)."""
        asked = self.codes.find(digest(form.get("code", "")), self.clock())
        if asked is None:
            raise RefusedError("invalid_grant", "there is no such code, or it is over")
        if asked.used:
            self.logins.drop(asked.login)
            raise RefusedError("invalid_grant", "the code has been used")
        asked.used = True
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        if not 43 <= len(form.get("code_verifier", "")) <= 128 or not hmac.compare_digest(challenge, asked.challenge):
            raise RefusedError("invalid_grant", "code_verifier does not fit")
        if client.client_id != asked.client.client_id or form.get("redirect_uri", asked.redirect_uri) != asked.redirect_uri:
            raise RefusedError("invalid_grant", "the code is another client's, or for another redirect_uri")
        self.resource(form, asked.resource)
        login = Login(asked.login, client.client_id, asked.user, asked.resource, asked.scopes)
        self.logins.put(login.key, login, self.clock() + LOGIN_LIFE)
        return self.issue(login, login.scopes, refresh="refresh_token" in client.grants)

    def take_refresh(self, client: Client, form: dict[str, str]) -> Response:
        """RFC 6749, 6. Each is good once; one that comes again was stolen, by whoever came first or now: all end (RFC 9700, 4.14.2)."""
        refresh = self.refreshes.find(digest(form.get("refresh_token", "")), self.clock())
        login = self.logins.find(refresh.login, self.clock()) if refresh else None
        if refresh is None or login is None or login.client_id != client.client_id:
            raise RefusedError("invalid_grant", "there is no such refresh token, or it is over")
        if refresh.used:
            self.logins.drop(login.key)
            raise RefusedError("invalid_grant", "the refresh token has been used; the login is over")
        self.resource(form, login.resource)
        scopes = self.allow(form, login.scopes, login.scopes)  # fewer for this token, never more
        refresh.used = True
        return self.issue(login, scopes, refresh=True)

    def take_itself(self, client: Client, form: dict[str, str]) -> Response:
        """RFC 6749, 4.4: the client is the user."""
        scopes = self.allow(form, self.scopes)
        login = Login(secrets.token_urlsafe(12), client.client_id, client.client_id, self.resource(form), scopes)
        self.logins.put(login.key, login, self.clock() + ACCESS_LIFE)
        return self.issue(login, scopes, refresh=False)

    def resource(self, parameters: dict[str, str], bound: str = "") -> str:
        """Which MCP server a token is to be for: RFC 8707, and MCP, which wants one named."""
        resource = parameters.get("resource", bound)
        if resource not in self.resources or resource != (bound or resource):
            raise RefusedError("invalid_target", "resource must be the MCP server that the login was for, one of those known here")
        return resource

    def allow(self, parameters: dict[str, str], most: frozenset[str], default: frozenset[str] = frozenset()) -> frozenset[str]:
        """RFC 6749, 3.3. More than before is a new login (step-up): the client asks for all scopes that it wants to have then."""
        scopes = frozenset(parameters["scope"].split(" ")) if "scope" in parameters else default
        if not scopes <= most:
            raise RefusedError("invalid_scope", f"scopes can be: {' '.join(sorted(most))}")
        return scopes

    def issue(self, login: Login, scopes: frozenset[str], *, refresh: bool) -> Response:
        """An access token as RFC 9068 has it: a JWT that anybody can verify by the JWKS, for one MCP server."""
        now = int(self.clock())
        if self.keys[0][0] + KEY_LIFE <= now:
            self.rotate()
        key = self.keys[0][1]
        scope = " ".join(sorted(scopes))
        claims = {
            "iss": self.issuer,
            "aud": login.resource,
            "sub": login.user,
            "client_id": login.client_id,
            "scope": scope,
            "iat": now,
            "exp": now + ACCESS_LIFE,
            "jti": f"{login.key}.{secrets.token_urlsafe(6)}",
        }
        access = jwt.encode({"alg": "ES256", "typ": "at+jwt", "kid": key.kid}, claims, key, algorithms=["ES256"])
        answer = {"access_token": access, "token_type": "Bearer", "expires_in": ACCESS_LIFE, "scope": scope}
        if refresh:
            answer["refresh_token"] = secrets.token_urlsafe(32)
            self.refreshes.put(digest(str(answer["refresh_token"])), Refresh(login.key))
        return JSONResponse(answer, headers=HEADERS)

    # What becomes of tokens

    def read_access(self, token: str) -> tuple[Login, Document] | None:
        """Login and claims of an access token that is good."""
        try:
            claims = jwt.decode(token, KeySet([key for _, key in self.keys]), algorithms=["ES256"]).claims
        except (JoseError, ValueError):
            return None
        login = self.logins.find(str(claims["jti"]).partition(".")[0], self.clock())
        return None if login is None or claims["exp"] <= self.clock() else (login, claims)

    async def revoke(self, request: Request) -> Response:
        """RFC 7009: a client ends its own login. An MCP server that doesn't introspect takes the access token till it ends."""
        form = await read_form(request)
        client, token = await self.authenticate(request, form), form.get("token", "")
        refresh, access = self.refreshes.find(digest(token), self.clock()), self.read_access(token)
        login = self.logins.find(refresh.login, self.clock()) if refresh else access[0] if access else None
        if login is not None and login.client_id == client.client_id:
            self.logins.drop(login.key)
        return Response(headers=HEADERS)  # whatever it was: 2.2

    async def introspect(self, request: Request) -> Response:
        """RFC 7662: an MCP server asks for the tokens that are for itself."""
        form = await read_form(request)
        client, found = await self.authenticate(request, form), self.read_access(form.get("token", ""))
        if not client.serves:
            raise RefusedError("unauthorized_client", "only MCP servers ask", 403)
        if found is None or found[0].resource != client.serves:
            return JSONResponse({"active": False}, headers=HEADERS)
        return JSONResponse({"active": True, "token_type": "Bearer", **found[1]}, headers=HEADERS)


def main() -> None:
    options = argparse.ArgumentParser(description="An authorization server to try logins with. DEMO ONLY: no passwords.")
    options.add_argument("--port", type=int, default=9000)
    options.add_argument("--resource", action="append", help="an MCP server that tokens may be for (default: http://127.0.0.1:8000/mcp)")
    options.add_argument("--scopes", default="notes:read notes:write", help="what may be asked for, space separated")
    options.add_argument("--auto-consent", action="store_true", help="agree at once, without a page")
    chosen = options.parse_args()
    resources = chosen.resource or ["http://127.0.0.1:8000/mcp"]
    server = AuthorizationServer(f"http://127.0.0.1:{chosen.port}", resources, chosen.scopes.split(), auto_consent=chosen.auto_consent)
    print(f"DEMO ONLY: no passwords. {server.issuer} issues tokens for {', '.join(resources)}.", flush=True)
    print(f"A program without a user: client_id=robot client_secret={server.add_machine('robot')}", flush=True)
    print(f"{resources[0]} may introspect as: client_id=mcp client_secret={server.add_machine('mcp', serves=resources[0])}", flush=True)
    uvicorn.run(server.app, host="127.0.0.1", port=chosen.port, log_level="warning")


if __name__ == "__main__":
    main()
