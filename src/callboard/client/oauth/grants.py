"""Credentials of machines: nobody logs in, and no browser opens.

    client credentials      a client's own secret or key -> token (CC-01 to CC-03)
    enterprise-managed      somebody's identity token -> ID-JAG at their identity provider -> token (EM-01 to EM-03)
    workload identity       an assertion of the platform's -> token (EX-07)

All of them wait for the server's refusal, find its authorization server, and ask there. What differs is the question, `_ask`; the rest is
`Machine`: one question at a time however many requests wait, one token until it ends, a new one after one 401, wider scopes after a 403
(AC-14), proofs of a key where the server wants them (EX-06). What was shown to one authorization server is never shown to another (AC-12).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from callboard.client.auth import Challenge, Fetch, HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed, ConnectionFailed, Origin
from callboard.client.oauth.challenge import MAX_SCOPES, Demand, demand_of, scopes_in
from callboard.client.oauth.dpop import Nonces, Prover, Signer, client_assertion, nonce_in
from callboard.client.oauth.metadata import Discovery, ServerMetadata, discover, find_server, led
from callboard.client.oauth.step import Plan, perform
from callboard.client.oauth.token import Prove, Registration, TokenRefused, Tokens, ask, json_object, request_token
from callboard.client.oauth.turn import within
from callboard.client.oauth.urls import Place, origin_of, place_of
from callboard.core.urls import is_loopback, masked, printable, shown

__all__ = ["ClientCredentials", "EnterpriseManaged", "Machine", "WorkloadIdentity"]

logger = logging.getLogger("callboard.client")

T = TypeVar("T")

MAX_STEPS: Final = 3
"""Times that scopes are widened in a row, none of which the server was content with (AC-14)."""

LEEWAY: Final = 30.0
"""Seconds before its end that a token is renewed; a tenth of its life, if that is less."""

PAUSE: Final = 10.0
"""Seconds until a renewal that failed is tried again, while the old token is good."""

DISCOVERY: Final = 60.0
"""Seconds for finding the authorization server, however many documents and redirects it takes."""

_GRANT = "urn:ietf:params:oauth:grant-type:"
_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:"  # noqa: S105 - a name
_ID_JAG = f"{_TOKEN_TYPE}id-jag"
_ID_JAG_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"
SUBJECTS: Final = ("id_token", "saml2", "refresh_token")
"""What an identity provider may be given in exchange for an ID-JAG."""

TokenSource: TypeAlias = str | Callable[[], Awaitable[str]]
AssertionSource: TypeAlias = str | Callable[[str], Awaitable[str]]


class _Held(msgspec.Struct, frozen=True):
    """A token in hand; `soon` and `end` are times of the clock: when to renew it, and when it is over."""

    tokens: Tokens
    scopes: tuple[str, ...]
    soon: float
    end: float

    def __repr__(self) -> str:
        return f"_Held({self.tokens!r})"

    @property
    def authorization(self) -> str:
        return f"{self.tokens.token_type} {self.tokens.access_token}"


class Machine:
    """What all grants of machines have in common: an `Auth` without a person. Give each endpoint one of its own.

    Args:
        scopes: Scopes to ask for; none: those that the server names (AC-13).
        issuer: The authorization server that the credentials are for. Without it, the first one that the MCP server names gets them: name it
            unless you trust the MCP server with the choice.
        dpop: Whether tokens are bound to a key; None: when the MCP server wants it and its authorization server can do it.
        clock: Gives Unix time.
    """

    def __init__(self, *, scopes: Sequence[str] | str, issuer: str | None, dpop: bool | None, clock: Callable[[], float]) -> None:
        given = scopes if isinstance(scopes, str) else " ".join(scopes)
        self._scopes = scopes_in(given)
        if len(self._scopes) != len(set(given.split())):
            raise ValueError("scopes: each is one word of printable ASCII without quotes and backslashes")
        if issuer is not None:
            _check_server(issuer, "issuer")
        self._named = (issuer,) if issuer else ()
        self._issuer, self._dpop, self._clock = issuer or "", dpop, clock
        self._place = place_of("https://unbound.invalid")
        self._raw_fetch: Fetch = _unbound
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = asyncio.Lock()
        self._prover: Prover | None = None
        self._nonces = Nonces()
        self._found: Discovery | None = None
        self._held: _Held | None = None
        self._accepted = True  # the server has taken the token in hand
        self._steps = 0

    async def _ask(self, found: Discovery, scopes: tuple[str, ...], prove: Prove | None) -> Tokens:
        """Get a token; the one thing in which grants differ."""
        raise NotImplementedError

    # What a client calls

    def bind(self, url: str, fetch: Fetch) -> None:
        """Learn which endpoint the credentials are for, and how to reach authorization servers.

        Raises:
            ValueError: They are in use for another endpoint.
        """
        if self._loop is not None and url != self._place.url:
            raise ValueError(f"auth: these credentials are for {self._place.name}; give {masked(url)} an object of its own")
        self._place, self._raw_fetch = place_of(url), fetch
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._turn = loop, asyncio.Lock()

    async def headers(self, http_method: str, url: str) -> Mapping[str, str]:
        """What a request to the endpoint carries; a token that is about to end is renewed first.

        Raises:
            AuthorizationFailed: The token has ended and there is no other.
        """
        held = self._held
        if held is None or origin_of(url) != self._place.origin:  # AC-01: for this server alone
            return {}
        if self._clock() >= held.soon:
            held = await self._renew(held)
        sent = {"Authorization": held.authorization}
        if self._prover is not None and held.tokens.token_type == "DPoP":  # noqa: S105 - a kind
            sent["DPoP"] = self._prover.proof(
                http_method, url, now=self._clock(), access_token=held.tokens.access_token, nonce=self._nonces.at(url)
            )
        return sent

    def learn(self, headers: Mapping[str, str]) -> None:
        """Take note of the headers of an answer: whether the token was taken, and what the next proof has to hold."""
        self._nonces.learn(self._place.url, headers)
        if "www-authenticate" not in headers and self._held is not None:
            self._accepted, self._steps = True, 0

    async def answer(self, challenge: Challenge) -> bool:
        """Get a token after a refusal.

        Returns:
            Whether to send the request again; not after a 403 that is not about scopes.

        Raises:
            AuthorizationFailed: There is none, or it would be refused again.
        """
        demand = demand_of(challenge.headers, sent=challenge.sent)
        for name, value in challenge.headers:
            if name == "dpop-nonce":
                self._nonces.learn(challenge.url, {name: value})
        if challenge.status == 403 and demand.error != "insufficient_scope":
            return False
        async with self._turn:
            held = self._held
            if held is not None and challenge.sent.get("Authorization") != held.authorization:
                return True  # somebody has got a new one meanwhile
            if held is not None and self._wants_nonce(demand, challenge):
                return True
            self._check_hope(held, demand, challenge.status)
            await self._obtain(demand, challenge.protocol, again=challenge.status == 401)
        return True

    # What becomes of a refusal

    def _wants_nonce(self, demand: Demand, challenge: Challenge) -> bool:
        """Whether another proof is all that is wanted, and can be given (RFC 9449, section 9)."""
        if "dpop_" not in demand.error or "DPoP" not in challenge.sent:
            return False
        known = self._nonces.at(challenge.url)
        if known is not None and known != nonce_in(challenge.sent["DPoP"]):
            return True
        raise self._place.fail(
            "the server refuses the proof of the key"
            f" ({demand.error}{_said(demand)}); compare this machine's clock with the server's, and the URL with the one that the server sees"
        )

    def _check_hope(self, held: _Held | None, demand: Demand, status: int) -> None:
        """Raise if a new token would be refused as this one was."""
        if status == 403 and not demand.scopes:
            raise self._place.fail(
                f"the token's scopes do not suffice and the server does not say which would{_said(demand)}; give scopes="
            )
        if held is None or set(demand.scopes) - set(held.scopes):
            return  # there are scopes to add
        issuer = printable(self._found.server.issuer) if self._found else "the authorization server"
        if status == 403:
            had = held.tokens.scopes if held.tokens.scopes is not None else held.scopes
            raise self._place.fail(
                f"the server wants scope {_words(demand.scopes)}, which {issuer} was asked for; it gave {_words(had) or 'none'}{_said(demand)}."
                " Ask its operator to grant them to this client"
            )
        if not self._accepted:
            raise self._place.fail(
                f"the server refuses the token that {issuer} has just given ({demand.error or 'HTTP 401'}{_said(demand)}); do the two know each"
                " other, and is the URL the one that the server has as its resource?"
            )

    async def _renew(self, held: _Held) -> _Held:
        async with self._turn:
            if self._held is not None and self._held is not held:
                return self._held
            try:
                await self._obtain(Demand(), "", again=False)
            except AuthorizationFailed as error:
                now = self._clock()
                if now >= held.end:
                    raise
                self._held = msgspec.structs.replace(held, soon=min(held.end, now + PAUSE))
                logger.warning("the token for %s could not be renewed and is used to its end: %s", self._place.name, error.text)
        return self._held or held

    async def _obtain(self, demand: Demand, protocol: str, *, again: bool) -> None:
        """Ask for a token and keep it.

        Args:
            demand: What the server asks for.
            protocol: For `MCP-Protocol-Version` in discovery.
            again: Look for the authorization server anew: it may have moved.
        """
        found = self._found
        if found is None or again:
            plan = discover(self._place, demand.resource_metadata, pinned=self._issuer, protocol=protocol)
            found = self._found = await within(DISCOVERY, self._place, self._perform(plan, "finding the authorization server"))
        earlier = self._held.scopes if self._held else self._scopes
        scopes = tuple(dict.fromkeys((*earlier, *demand.scopes))) or found.scopes_supported
        if self._held and set(scopes) != set(earlier):
            self._steps += 1
        if self._steps > MAX_STEPS or len(scopes) > MAX_SCOPES:
            raise self._place.fail(
                f"the server wanted more scopes {self._steps} times in a row and was never content; the last: {_words(demand.scopes)}"
            )
        self._issuer = found.server.issuer  # from here on what is secret is shown, to this one alone (AC-12)
        tokens = await self._ask(found, scopes, self._prove_to(found, demand))
        if self._dpop and tokens.token_type != "DPoP":  # noqa: S105 - a kind
            raise self._place.fail(
                f"{printable(found.server.issuer)} gave a token that is bound to no key; without dpop=True it can be used"
            )
        now, life = self._clock(), inf if tokens.expires_in is None else tokens.expires_in
        self._held = _Held(tokens, scopes, now + life - min(LEEWAY, life / 10), now + life)
        self._accepted = False

    def _prove_to(self, found: Discovery, demand: Demand) -> Prove | None:
        algorithms = found.server.dpop_signing_alg_values_supported
        wanted = self._dpop or found.dpop_required or "dpop" in demand.schemes or (self._held and self._held.tokens.token_type == "DPoP")  # noqa: S105
        able = algorithms is None if self._dpop else False
        able = able or "ES256" in (algorithms or ())
        if found.dpop_required and self._dpop is False:
            raise self._place.fail("the server takes tokens that are bound to a key, and those alone; leave dpop=False away")
        if not wanted or self._dpop is False:
            return None
        if not able:
            if self._dpop or found.dpop_required:
                raise self._place.fail(
                    f"a token bound to a key is needed, and {printable(found.server.issuer)} does not take keys that sign with ES256"
                )
            return None
        self._prover = self._prover or Prover()
        return self._prove

    def _prove(self, method: str, url: str, nonce: str) -> str:
        assert self._prover is not None
        return self._prover.proof(method, url, now=self._clock(), nonce=nonce or self._nonces.at(url))

    # What grants are made of

    async def _perform(self, plan: Plan[T], step: str, *, named: bool = False) -> T:
        """Do a plan; whatever becomes of it is told with the name of the step. `named`: it goes where the user said, and nowhere else."""
        try:
            return await perform(plan, self._raw_fetch if named else self._fetch, _no_browser)
        except TokenRefused as error:
            raise TokenRefused(f"{step}: {error.text}", error.error, Origin(self._place.name)) from error
        except AuthorizationFailed as error:
            raise self._place.fail(f"{step}: {error.text}") from error
        except ConnectionFailed as error:
            raise self._place.fail(f"{step}: {printable(error.target)} can't be reached: {error.text}") from error

    async def _fetch(self, request: HttpRequest) -> HttpResponse:
        answer = await self._raw_fetch(led(request, self._place, self._found.server if self._named and self._found else None, *self._named))
        self._nonces.learn(request.url, answer.headers)
        return answer

    async def _given(self, source: Awaitable[str], what: str) -> str:
        """A text that the user's own function gives."""
        try:
            text = await source
        except Exception as error:
            raise self._place.fail(f"{what}: the function that gives it raised {type(error).__name__}") from error
        if not isinstance(text, str) or not text:
            raise self._place.fail(f"{what}: the function that gives it gave no text")
        return text


class _Client:
    """Who a machine is to an authorization server, and how it shows it."""

    def __init__(
        self, client_id: str, secret: str | None, private_key: str | bytes | None, algorithm: str | None, clock: Callable[[], float]
    ) -> None:
        if not client_id:
            raise ValueError("client_id: it is empty; the authorization server's operator gives one")
        if secret is not None and private_key is not None:
            raise ValueError("client_secret and private_key: one of them, not both")
        self.registration = Registration(client_id, secret or "", "" if private_key is None else "private_key_jwt")
        self._signer = None if private_key is None else Signer(private_key, algorithm)
        self._clock = clock

    def signs(self, place: Place, server: ServerMetadata) -> Callable[[ServerMetadata], str] | None:
        """What makes assertions for a server; None when there is no key."""
        signer, known = self._signer, server.token_endpoint_auth_signing_alg_values_supported
        if signer is None:
            return None
        if known and signer.algorithm not in known:
            raise place.fail(
                f"{printable(server.issuer)} takes assertions signed by {_words(known)}; the key signs with {signer.algorithm}"
            )
        return lambda to: client_assertion(signer, self.registration.client_id, to.issuer, now=self._clock())


class ClientCredentials(Machine):
    """A client that acts for itself: `grant_type=client_credentials` (CC-01).

    Args:
        client_id: Its id; it was registered beforehand (CC-03).
        client_secret: Its secret, for HTTP Basic or a form field, as the server has it.
        private_key: In place of a secret: its key as PEM, with which it signs assertions; EC on P-256, RSA or Ed25519.
        algorithm: `ES256`, `RS256` or `EdDSA`; None: what fits the key.
        scopes: As for `Machine`.
        issuer: As for `Machine`; name it when there is a secret.
        dpop: As for `Machine`.
        clock: As for `Machine`.

    Raises:
        ValueError: A value can't be used. The text shows no secret.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        private_key: str | bytes | None = None,
        algorithm: str | None = None,
        scopes: Sequence[str] | str = (),
        issuer: str | None = None,
        dpop: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(scopes=scopes, issuer=issuer, dpop=dpop, clock=clock)
        if not client_secret and private_key is None:
            raise ValueError("client_secret or private_key: client credentials need one of them")
        self._client = _Client(client_id, client_secret, private_key, algorithm, clock)

    def __repr__(self) -> str:
        return f"ClientCredentials({self._client.registration.client_id!r})"

    async def _ask(self, found: Discovery, scopes: tuple[str, ...], prove: Prove | None) -> Tokens:
        form = _form("client_credentials", found, scopes)
        sign = self._client.signs(self._place, found.server)
        plan = request_token(self._place, found.server, self._client.registration, form, sign=sign, prove=prove)
        return await self._perform(plan, "asking for a token with the client's credentials")


class EnterpriseManaged(Machine):
    """Somebody who logged in at their organisation's identity provider, and is known by that wherever the organisation says so (EM-01, EM-02).

    Args:
        client_id: The client at the MCP server's authorization server; may be the URL of its metadata document.
        client_secret: Its secret there; None for a public client or one with a key.
        subject_token: What shows who logged in: a text, or an async function that gives a fresh one each time.
        idp_client_id: The client at the identity provider.
        idp_client_secret: Its secret there; None for none.
        idp_issuer: The identity provider; its token endpoint is found by it.
        idp_token_endpoint: Its token endpoint, if it is known; one of the two is needed.
        subject_type: What the subject token is: `id_token`, `saml2` or `refresh_token`.
        private_key: The client's key at the MCP server's authorization server, as for `ClientCredentials`.
        algorithm: As for `ClientCredentials`.
        scopes: As for `Machine`.
        issuer: As for `Machine`.
        dpop: As for `Machine`.
        clock: As for `Machine`.

    Raises:
        ValueError: A value can't be used. The text shows no secret.
    """

    def __init__(
        self,
        client_id: str,
        client_secret: str | None = None,
        *,
        subject_token: TokenSource,
        idp_client_id: str,
        idp_client_secret: str | None = None,
        idp_issuer: str | None = None,
        idp_token_endpoint: str | None = None,
        subject_type: str = "id_token",
        private_key: str | bytes | None = None,
        algorithm: str | None = None,
        scopes: Sequence[str] | str = (),
        issuer: str | None = None,
        dpop: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(scopes=scopes, issuer=issuer, dpop=dpop, clock=clock)
        if subject_type not in SUBJECTS:
            raise ValueError(f"subject_type: {subject_type!r} is none of {_words(SUBJECTS)}")
        if idp_issuer is None and idp_token_endpoint is None:
            raise ValueError("idp_issuer or idp_token_endpoint: the identity provider has to be named")
        for url, name in ((idp_issuer, "idp_issuer"), (idp_token_endpoint, "idp_token_endpoint")):
            if url is not None:
                _check_server(url, name)
        if not subject_token:
            raise ValueError("subject_token: it is empty")
        self._client = _Client(client_id, client_secret, private_key, algorithm, clock)
        self._idp_client = _Client(idp_client_id, idp_client_secret, None, None, clock)
        self._subject, self._subject_type = subject_token, subject_type
        self._idp_issuer, self._idp_endpoint = idp_issuer, idp_token_endpoint

    def __repr__(self) -> str:
        return f"EnterpriseManaged({self._client.registration.client_id!r}, idp={self._idp_issuer or self._idp_endpoint!r})"

    async def _ask(self, found: Discovery, scopes: tuple[str, ...], prove: Prove | None) -> Tokens:
        server, profiles = found.server, found.server.authorization_grant_profiles_supported
        if profiles is not None and _ID_JAG_PROFILE not in profiles:  # EM-03
            raise self._place.fail(
                f"{printable(server.issuer)} takes no tokens of identity providers (its metadata lack {_ID_JAG_PROFILE})"
            )
        assertion = await self._exchange(found, scopes)
        form = {**_form(f"{_GRANT}jwt-bearer", found, scopes), "assertion": assertion}
        sign = self._client.signs(self._place, server)
        plan = request_token(self._place, server, self._client.registration, form, sign=sign, prove=prove)
        return await self._perform(plan, "asking for a token with the identity provider's word")

    async def _exchange(self, found: Discovery, scopes: tuple[str, ...]) -> str:
        """The ID-JAG: the identity provider's word for the MCP server's authorization server (EM-01)."""
        step = "exchanging the subject token at the identity provider"
        idp = await self._find_idp(step)
        subject = self._subject if isinstance(self._subject, str) else await self._given(self._subject(), "subject_token")
        form = {
            **_form(f"{_GRANT}token-exchange", found, scopes),
            "requested_token_type": _ID_JAG,
            "audience": found.server.issuer,
            "subject_token": subject,
            "subject_token_type": f"{_TOKEN_TYPE}{self._subject_type}",
        }
        where = place_of(idp.token_endpoint or "")  # the user named it, so it may be in a network of the user's own
        answer = await self._perform(ask(where, idp, self._idp_client.registration, form), step, named=True)
        given = json_object(answer) or {}
        token, kind = given.get("access_token"), given.get("issued_token_type")
        if kind != _ID_JAG or not isinstance(token, str) or not token:
            raise self._place.fail(
                f"{step}: {printable(idp.issuer)} gave no ID-JAG but {printable(repr(kind))}; does it support {_ID_JAG_PROFILE}?"
            )
        return token

    async def _find_idp(self, step: str) -> ServerMetadata:
        if self._idp_endpoint is not None:
            return ServerMetadata(self._idp_issuer or self._idp_endpoint, token_endpoint=self._idp_endpoint)
        issuer = self._idp_issuer or ""
        return await self._perform(find_server(place_of(issuer), issuer), step, named=True)


class WorkloadIdentity(Machine):
    """A workload that its platform vouches for: `grant_type=urn:ietf:params:oauth:grant-type:jwt-bearer` (EX-07).

    The assertion alone says who asks. One that was refused is not shown again, and no other way is tried.

    Args:
        assertion: The platform's JWT: a text, good for one token, or an async function that is given the token endpoint's URL (the audience)
            and gives a fresh one.
        client_id: Sent along, if the authorization server wants it; None for not.
        scopes: As for `Machine`.
        issuer: As for `Machine`.
        dpop: As for `Machine`.
        clock: As for `Machine`.

    Raises:
        ValueError: A value can't be used. The text shows no secret.
    """

    def __init__(
        self,
        assertion: AssertionSource,
        *,
        client_id: str | None = None,
        scopes: Sequence[str] | str = (),
        issuer: str | None = None,
        dpop: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(scopes=scopes, issuer=issuer, dpop=dpop, clock=clock)
        if not assertion:
            raise ValueError("assertion: it is empty")
        self._assertion, self._client_id = assertion, client_id
        self._refused = ""

    def __repr__(self) -> str:
        return f"WorkloadIdentity(client_id={self._client_id!r})"

    async def _ask(self, found: Discovery, scopes: tuple[str, ...], prove: Prove | None) -> Tokens:
        step, source = "asking for a token with the workload's assertion", self._assertion
        assertion = source if isinstance(source, str) else await self._given(source(found.server.token_endpoint or ""), "assertion")
        if assertion == self._refused:
            raise self._place.fail(
                f"{step}: it was refused before, and is not shown again; give a fresh one, or a function that gives them"
            )
        form = {**_form(f"{_GRANT}jwt-bearer", found, scopes), "assertion": assertion}
        if self._client_id is not None:
            form["client_id"] = self._client_id
        try:
            return await self._perform(request_token(self._place, found.server, None, form, prove=prove), step)
        except TokenRefused:
            self._refused = assertion
            raise


def _form(grant: str, found: Discovery, scopes: tuple[str, ...]) -> dict[str, str]:
    form = {"grant_type": grant, "resource": found.resource}  # AC-05
    return {**form, "scope": " ".join(scopes)} if scopes else form


def _words(names: Sequence[str]) -> str:
    return printable(", ".join(names))


def _said(demand: Demand) -> str:
    return f": {printable(demand.description)}" if demand.description else ""


def _check_server(url: str, name: str) -> None:
    try:
        place_of(url)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError(f"{name}: {shown(url)!r} is plain http; secrets go by https only, except on this machine")


async def _unbound(request: HttpRequest) -> HttpResponse:
    raise RuntimeError(f"{request.method} {origin_of(request.url)}: the credentials belong to no client yet")


async def _no_browser(url: str) -> str:
    raise RuntimeError(f"a machine opens no browser: {printable(url)}")
