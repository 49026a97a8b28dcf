"""A person's login for one MCP server: `Client(url, auth=OAuth())`.

The plans of this folder say what to do; this module has the clock, the storage, the randomness and the turns:

    1. One thing at a time. However many requests are refused, one of them gets new credentials; the rest wait for it and share its end.
    2. A refusal of a token that has been replaced meanwhile is a retry, nothing else.
    3. Renewing comes first, then other processes' tokens in the storage, then a login. `headers` renews; only `answer` shows a page.
    4. Tokens, registrations and refresh tokens are kept by issuer and shown to no other (AC-12).
    5. Three logins in a row that don't help are the end (AC-14); one, if it got all that was asked for.

Nothing here logs, shows or raises a secret.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from secrets import token_urlsafe
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from callboard.client.auth import Challenge, Fetch, HttpRequest, HttpResponse
from callboard.client.errors import AuthorizationFailed, ClientError, ConnectionFailed, Origin
from callboard.client.oauth.challenge import Demand, demand_of
from callboard.client.oauth.code_flow import Login, authorization_url, authorize, redeem, scopes_to_ask
from callboard.client.oauth.dpop import Nonces, Prover
from callboard.client.oauth.kept import Grant, Kept, Pending, client_key, pending_key
from callboard.client.oauth.metadata import Discovery, ServerMetadata, discover, find_legacy_server, find_server, led
from callboard.client.oauth.names import fetch_alone
from callboard.client.oauth.pages import HeadlessPage, Opened, Page, browser_page
from callboard.client.oauth.registration import Identity, check_options, find_registration, is_current
from callboard.client.oauth.step import Plan, perform
from callboard.client.oauth.storage import MemoryStorage, Storage
from callboard.client.oauth.token import Prove, Registration, TokenRefused, Tokens, refresh
from callboard.client.oauth.turn import Turn, within
from callboard.client.oauth.urls import Place, origin_of, place_of
from callboard.core.urls import is_loopback, masked, printable, shown

__all__ = ["OAuth"]

logger = logging.getLogger("callboard.client")

# Seconds within which a new token that is refused, and was never taken, was no good from the start.
FRESH = 60.0
# Seconds until a renewal that failed for another reason than a void refresh token is tried again.
PAUSE = 30.0
# Logins in a row, each of which answers the refusal of the last one's token (AC-14).
MAX_LOGINS = 3
# Seconds that a login may take which begins and ends in two requests of a web application.
PENDING = 600.0
# Seconds for finding the authorization server, however many documents and redirects it takes.
DISCOVERY = 60.0
# Seconds until the storage is looked at again after a refresh token was refused: the process that was quicker has to save its own.
LOOK_AGAIN = (0.1, 0.2, 0.4)
# Refusals of a token endpoint that say nothing of the refresh token; the empty one is an answer without an error code.
PASSING = {"", "server_error", "temporarily_unavailable", "invalid_dpop_proof", "use_dpop_nonce"}
T = TypeVar("T")


class OAuth:
    """Logs somebody in at an MCP server's authorization server, in the browser, and keeps the tokens fresh. One object for one server and user.

        async with Client("https://mcp.example.com/mcp", auth=OAuth(storage=FileStorage("~/.config/my-app/tokens"))) as client: ...

    Who the client is: `client_id` if it is registered at the authorization server, else `client_metadata_url` where the server supports that, else
    it registers itself, where that is allowed (AC-09).

    Args:
        client_id: Id of a client that is registered already.
        client_secret: Its secret, if it has one.
        issuer: The authorization server where `client_id` is registered, or the only one to use; the credentials are never shown to another
            (AC-12). Without it the first one that the MCP server names is remembered.
        client_metadata_url: An https URL of a client metadata document (AC-10); its `redirect_uris` must hold the redirect URI.
        client_name: What people read when they are asked for their consent.
        application_type: `native` or `web`, for registration; None: `native` for redirects to this machine (AC-11).
        scopes: Scopes to ask for besides those that the server demands; without a demand they replace the server's list (AC-13).
        storage: Where tokens and registrations are kept; None: in memory.
        redirect: Shows pages; None: `RedirectReceiver()`, the system's browser and a port of this machine. It is used again and again.
        browse: In place of `redirect`: takes the page's URL, gives the URL that the browser was sent back to.
        redirect_uri: For `browse`, and for web applications, which log people in with `begin` and `finish`.
        dpop: Bind tokens to a key (EX-06): None: when the MCP server wants it and the authorization server can; True: always; False: never.
        clock: Gives Unix time in seconds.

    Raises:
        ValueError: Arguments that contradict each other.
    """

    def __init__(
        self,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        issuer: str | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "Callboard",
        application_type: str | None = None,
        scopes: Sequence[str] = (),
        storage: Storage | None = None,
        redirect: Page | None = None,
        browse: Callable[[str], Awaitable[str]] | None = None,
        redirect_uri: str | None = None,
        dpop: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_options(client_id, client_secret, client_metadata_url, application_type, scopes, redirect, browse, redirect_uri)
        self._identity = Identity(
            client_id or "", client_secret or "", issuer or "", client_metadata_url or "", client_name, application_type or ""
        )
        self._scopes = tuple(scopes)
        self._kept = Kept(storage if storage is not None else MemoryStorage(), self._identity)
        self._redirect: Page | None = HeadlessPage(browse, redirect_uri or "") if browse else redirect
        self._redirect_uri = redirect_uri or ""
        self._dpop = dpop
        self._clock = clock
        self._nonces = Nonces()
        self._place: Place | None = None
        self._fetch: Fetch = fetch_alone
        self._grant: Grant | None = None
        self._prover: Prover | None = None
        self._loaded = False
        self._login: Grant | None = None  # what the last login of this object gave
        self._unproven: Grant | None = None  # the same, until the server has taken a token
        self._taken = True  # the server has taken the token that there is
        self._in_a_row = 0
        self._renew_after = 0.0
        self._servers: dict[str, ServerMetadata] = {}
        self._turn: Turn | None = None
        self._exchange: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"OAuth({self._place.name if self._place else 'not bound'})"

    # the Auth protocol

    def bind(self, url: str, fetch: Fetch) -> None:
        """Learn which endpoint it is for, and how to reach authorization servers; the client does it.

        Raises:
            ValueError: It is another endpoint than before, or no URL.
        """
        place = place_of(url)
        if self._place is not None and self._place.resource != place.resource:
            raise ValueError(f"this OAuth object belongs to {self._place.name}: make another one for {printable(masked(url))}")
        if urlsplit(url).scheme == "http" and not is_loopback(urlsplit(url).hostname or "") and self._place is None:
            logger.warning("%s is plain http: whoever is on the way can read the tokens; use https", place.origin)
        self._place, self._fetch = place, fetch

    async def headers(self, http_method: str, url: str) -> Mapping[str, str]:
        """What a request carries. A token that ends within 30 s is renewed first; nobody is asked to log in.

        Raises:
            AuthorizationFailed: The storage fails.
        """
        place = self._bound()
        if not self._loaded:
            await self._load(place)
        grant = self._grant
        if grant is None or (url != place.url and origin_of(url) != place.origin):
            return {}
        ends = grant.ends_at()
        if ends is not None and grant.tokens.refresh_token and max(ends, self._renew_after) <= self._clock():
            await self._renew_ahead(place, grant)
        return self._carried(http_method, url)

    async def answer(self, challenge: Challenge) -> bool:
        """Get credentials after a 401, or more scopes after a 403.

        Returns:
            Whether to send the request again; False for a 403 that more scopes don't mend.

        Raises:
            AuthorizationFailed: There will be none; it says why.
        """
        place = self._bound()
        demand = demand_of(challenge.headers, sent=challenge.sent)
        self._nonces.learn(place.url, dict(challenge.headers))
        if challenge.status != 401 and not (challenge.status == 403 and (demand.error == "insufficient_scope" or demand.scopes)):
            return False
        while not self._is_replaced(challenge):
            turn = self._turn
            if turn is None or turn.is_over():
                turn = self._turn = Turn(self._get(place, challenge, demand), interactive=True)
                return await turn.wait()
            if await turn.wait() and turn.interactive:
                return True
        return True

    def learn(self, headers: Mapping[str, str]) -> None:
        """Take note of whether the token was taken, and of a nonce that the endpoint wants in the next proof."""
        if "www-authenticate" not in headers:
            self._taken, self._unproven = True, None
        if self._place is not None and "dpop-nonce" in headers:
            self._nonces.learn(self._place.url, headers)

    # for web applications

    async def begin(self, url: str, redirect_uri: str | None = None) -> str:
        """Begin a login in one request; `finish` ends it in another, in any process that shares the storage (A31).

        Args:
            url: The MCP endpoint.
            redirect_uri: Where the browser shall come back to; None: that of the constructor.

        Returns:
            The page to send the browser to. It is good for ten minutes and for one login.

        Raises:
            AuthorizationFailed: There is no way to log in.
            ValueError: There is no redirect URI.
        """
        back = redirect_uri or self._redirect_uri
        if not back:
            raise ValueError("begin needs to know where the browser comes back to: begin(url, redirect_uri)")
        self.bind(url, self._fetch)
        place = self._bound()
        await self._load(place)
        found = await self._discover(place, Demand(), "")
        prover = self._new_prover(place, found, Demand())
        registration = await self._registration(place, found.server, (back,))
        login = self._new_login(found, registration, back, Demand(), prover)
        page = authorization_url(place, login)
        login = msgspec.structs.replace(login, registration=self._kept.without_secret(registration))
        pending = Pending(login, place.resource, self._clock() + PENDING, prover.pem() if prover else "")
        await self._kept.save(place, pending_key(login.state), pending)
        return page

    async def finish(self, redirected: str) -> None:
        """End a login that `begin` began, and keep its tokens.

        Args:
            redirected: The URL that the browser came back with.

        Raises:
            AuthorizationFailed: It is the answer to no login that waits, or the login failed.
        """
        state = parse_qs(redirected.partition("?")[2]).get("state", [""])[-1]
        place = self._place or Place(shown(redirected), "", "", internal=False)
        key = pending_key(state)
        pending = await self._kept.find(place, key, Pending)
        if pending is None or pending.login.state != state or pending.ends < self._clock():
            raise place.fail("no login waits for this answer: it was too late, or came a second time; begin again")
        await self._kept.remove(place, key)  # good once, whatever comes of it
        self.bind(pending.endpoint, self._fetch)
        place = self._bound()
        prover = Prover(pending.key) if pending.key else None
        registration = self._kept.with_secret(pending.login.registration)
        login = msgspec.structs.replace(pending.login, registration=registration)
        tokens = await self._perform(place, redeem(place, login, redirected, prove=self._prove(prover)))
        await self._take(place, login, tokens, prover)

    async def forget(self, url: str | None = None) -> None:
        """Log out on this side: forget the tokens, here and in the storage. The authorization server is not told.

        Args:
            url: The MCP endpoint; None: the one that it is bound to.
        """
        if url is not None:
            self.bind(url, self._fetch)
        place = self._bound()
        await self._load(place)
        grant, self._grant, self._login, self._prover = self._grant, None, None, None
        if grant is not None:
            await self._kept.drop(place, grant)

    # a turn

    async def _get(self, place: Place, challenge: Challenge, demand: Demand) -> bool:
        """What answers a refusal, from the cheapest to the dearest."""
        if self._grant is None:
            await self._load(place)  # somebody may have logged in elsewhere meanwhile
            if self._is_replaced(challenge):
                return True
        grant = self._grant
        if grant is not None:
            if challenge.status == 403:
                self._check_step_up(place, grant, demand)
            elif grant.key and demand.error in {"use_dpop_nonce", "invalid_dpop_proof"}:
                return self._answer_proof(place, demand)
            elif await self._adopt(place, grant):
                return True
        found = await self._discover(place, demand, challenge.protocol)
        if grant is not None and challenge.status == 401 and grant.issuer == found.server.issuer:
            if self._is_fresh(grant):
                self._check_new_token(place, grant, found, demand)
            elif grant.tokens.refresh_token and await self._renew(place, grant):
                return True
        self._count_login(place, demand)
        await self._log_in(place, found, demand)
        return True

    def _check_new_token(self, place: Place, grant: Grant, found: Discovery, demand: Demand) -> None:
        if self._has_just_logged_in():
            raise place.fail(
                f"the server refuses the token that {printable(grant.issuer)} has just issued for it{_words(demand)}"
                + ("" if demand.description else f"; does it accept tokens for {printable(masked(found.resource))}?")
            )

    def _answer_proof(self, place: Place, demand: Demand) -> bool:
        if demand.error == "use_dpop_nonce" and self._nonces.at(place.url):
            return True
        raise place.fail(f"the server refuses the proof of possession{_words(demand)}; is this machine's clock right?")

    def _check_step_up(self, place: Place, grant: Grant, demand: Demand) -> None:
        """Whether a login with more scopes can help: not without knowing which, nor if this object has just asked for them."""
        if not demand.scopes:
            raise place.fail(f"the server wants more scopes and does not say which{_words(demand)}; OAuth(scopes=[...]) asks for them")
        if grant is self._login and set(demand.scopes) <= set(grant.asked):
            raise place.fail(f"the server wants scope {' '.join(demand.scopes)}; it was asked for, and {_outcome(grant, demand)}")

    def _count_login(self, place: Place, demand: Demand) -> None:
        self._in_a_row = self._in_a_row + 1 if self._has_just_logged_in() else 1
        if self._in_a_row > MAX_LOGINS:
            raise place.fail(f"{MAX_LOGINS} logins in a row did not satisfy the server{_words(demand)}")

    def _is_fresh(self, grant: Grant) -> bool:
        """Whether it is new and the server has never taken it."""
        return not self._taken and self._clock() - grant.obtained < FRESH

    def _has_just_logged_in(self) -> bool:
        return self._unproven is not None and self._clock() - self._unproven.obtained < FRESH

    async def _log_in(self, place: Place, found: Discovery, demand: Demand) -> None:
        """Show a page and take what comes; a registration that the server has forgotten is made anew, once."""
        if self._redirect is None and self._redirect_uri:
            raise place.fail("somebody has to log in: send their browser to the page that OAuth.begin gives")
        prover = self._new_prover(place, found, demand)
        for again in (True, False):
            async with await self._open_page(place, found.server) as page:
                registration = await self._registration(place, found.server, page.redirect_uris)
                back = next(iter(registration.redirect_uris), page.redirect_uris[0])
                login = self._new_login(found, registration, back, demand, prover)
                try:
                    tokens = await self._perform(place, authorize(place, login, prove=self._prove(prover)), page)
                except TokenRefused as error:
                    if not again or error.error != "invalid_client" or registration.source != "registered":
                        raise
                    await self._kept.remove(place, client_key(found.server.issuer))
                    continue
            await self._take(place, login, tokens, prover)
            self._login = self._unproven = self._grant
            return

    async def _open_page(self, place: Place, server: ServerMetadata) -> Opened:
        """The page to show; the port of an earlier registration is taken again, so that it still holds."""
        if self._redirect is not None:
            return Opened(self._redirect)
        kept = await self._kept.find(place, client_key(server.issuer), Registration)
        return browser_page(kept.redirect_uris[0] if kept and kept.redirect_uris else "")

    async def _registration(self, place: Place, server: ServerMetadata, redirect_uris: Sequence[str]) -> Registration:
        key = client_key(server.issuer)
        if not (self._identity.client_id or (self._identity.document and server.client_id_metadata_document_supported)):
            kept = await self._kept.find(place, key, Registration)
            if kept and any(is_current(kept, uri, self._clock()) for uri in redirect_uris):
                return kept
        made = await self._perform(place, find_registration(place, server, self._identity, redirect_uris))
        if made.source == "registered":
            await self._kept.save(place, key, made)
        return made

    def _new_login(self, found: Discovery, registration: Registration, back: str, demand: Demand, prover: Prover | None) -> Login:
        grant = self._grant
        before = grant.asked if grant is not None and grant.issuer == found.server.issuer else ()
        return Login(
            server=found.server,
            registration=registration,
            redirect_uri=back,
            resource=found.resource,
            scopes=scopes_to_ask(found, demand.scopes, wanted=self._scopes, before=before),
            state=token_urlsafe(32),
            verifier=token_urlsafe(48),
            thumbprint=prover.thumbprint if prover else "",
        )

    async def _take(self, place: Place, login: Login, tokens: Tokens, prover: Prover | None) -> None:
        if self._dpop and tokens.token_type != "DPoP":  # noqa: S105
            raise place.fail(f"{printable(login.server.issuer)} gave a token that is bound to no key, and dpop=True wants one that is")
        if tokens.token_type == "DPoP" and prover is None:  # noqa: S105
            raise place.fail(f"{printable(login.server.issuer)} gave a token that is bound to a key, and none was named to it")
        key = prover.pem() if prover and tokens.token_type == "DPoP" else ""  # noqa: S105
        grant = Grant(
            tokens, login.server.issuer, login.resource, login.registration, login.scopes, self._clock(), key, login.server.legacy
        )
        await self._keep(place, grant)

    # renewing

    async def _renew_ahead(self, place: Place, grant: Grant) -> None:
        """Renew before the end, unless somebody is being asked anyway."""
        turn = self._turn
        if turn is None or turn.is_over():
            turn = self._turn = Turn(self._try_to_renew(place, grant), interactive=False)
        if not turn.interactive:
            await turn.wait()

    async def _try_to_renew(self, place: Place, grant: Grant) -> bool:
        """Renew; when that fails the token goes out as it is, and the server's refusal asks for more."""
        try:
            return await self._renew(place, grant)
        except ClientError as error:
            self._renew_after = self._clock() + PAUSE
            logger.warning("the token for %s could not be renewed, %s", place.name, error.text)
            return False

    async def _renew(self, place: Place, grant: Grant) -> bool:
        """Renew a token; False if its refresh token is void and no other process has a better one (A29)."""
        if await self._adopt(place, grant):
            return True
        if self._exchange is None or self._exchange.done():
            self._exchange = asyncio.create_task(self._refresh(place, grant))
            self._exchange.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            # It goes on when its last waiter is cancelled: the refresh token may be good once, and the next one is in the answer.
            await asyncio.shield(self._exchange)
        except TokenRefused as error:
            if error.error in PASSING:
                raise
            if await self._adopt_soon(place, grant, LOOK_AGAIN if error.error == "invalid_grant" else ()):
                return True
            if error.error == "invalid_client" and grant.registration.source == "registered":
                await self._kept.remove(place, client_key(grant.issuer))  # the server has forgotten it
            if self._grant is grant:
                self._grant = msgspec.structs.replace(grant, tokens=msgspec.structs.replace(grant.tokens, refresh_token=""))
                if self._login is grant:
                    self._login = self._grant
            return False
        return True

    async def _refresh(self, place: Place, grant: Grant) -> None:
        server = self._servers.get(grant.issuer)
        if server is None:
            plan = find_legacy_server(place) if grant.legacy else find_server(place, grant.issuer)
            server = self._servers[grant.issuer] = await self._perform(place, plan)
        plan_of_tokens = refresh(
            place,
            server,
            self._kept.with_secret(grant.registration),
            grant.tokens,
            resource=grant.resource,
            prove=self._prove(self._prover if grant.key else None),
        )
        tokens = await self._perform(place, plan_of_tokens)
        await self._keep(place, msgspec.structs.replace(grant, tokens=tokens, obtained=self._clock()))

    # what is kept

    async def _load(self, place: Place) -> None:
        known = await self._kept.known(place)
        if known is not None:
            grant = await self._kept.grant(place, known.issuer, known.resource)
            pinned = self._identity.issuer.rstrip("/")
            if grant is not None and pinned in {"", grant.issuer.rstrip("/")} and self._grant is None:  # nobody logged in meanwhile
                self._use(grant)
        self._loaded = True

    async def _keep(self, place: Place, grant: Grant) -> None:
        self._use(grant)
        self._taken = False
        await self._kept.keep(place, grant)

    async def _adopt(self, place: Place, grant: Grant) -> bool:
        """Take tokens that another process has put into the storage meanwhile, if they are newer and live."""
        kept = await self._kept.grant(place, grant.issuer, grant.resource)
        # Ours is the newer one, unless it is from the future: then the clock was set back, and times tell nothing.
        older = kept is not None and kept.obtained < grant.obtained <= self._clock()
        if kept is None or older or kept.tokens.access_token == grant.tokens.access_token:
            return False
        ends = kept.ends_at()
        if ends is not None and ends <= self._clock():
            return False
        self._use(kept)
        return True

    async def _adopt_soon(self, place: Place, grant: Grant, pauses: Sequence[float]) -> bool:
        """The same, with time for the other process to save them."""
        for pause in pauses:
            if await self._adopt(place, grant):
                return True
            await asyncio.sleep(pause)
        return await self._adopt(place, grant)

    def _use(self, grant: Grant) -> None:
        self._grant = grant
        self._prover = Prover(grant.key) if grant.key else None
        self._taken, self._renew_after = True, 0.0

    # small things

    def _bound(self) -> Place:
        if self._place is None:
            raise AuthorizationFailed("not bound to a server: give the object to Client(url, auth=...)", Origin("OAuth"))
        return self._place

    def _is_replaced(self, challenge: Challenge) -> bool:
        """Whether there is another token now than the one that was refused."""
        grant = self._grant
        sent = next((value for name, value in challenge.sent.items() if name.lower() == "authorization"), "")
        return grant is not None and sent != f"{grant.tokens.token_type} {grant.tokens.access_token}"

    def _carried(self, http_method: str, url: str) -> Mapping[str, str]:
        grant = self._grant
        if grant is None:
            return {}
        token = grant.tokens.access_token
        carried = {"Authorization": f"{grant.tokens.token_type} {token}"}
        if self._prover is not None:
            nonce = self._nonces.at(url)
            carried["DPoP"] = self._prover.proof(http_method, url, now=self._clock(), access_token=token, nonce=nonce)
        return carried

    def _prove(self, prover: Prover | None) -> Prove | None:
        if prover is None:
            return None
        return lambda method, url, nonce: prover.proof(method, url, now=self._clock(), nonce=nonce or self._nonces.at(url))

    def _new_prover(self, place: Place, found: Discovery, demand: Demand) -> Prover | None:
        able = "ES256" in (found.server.dpop_signing_alg_values_supported or ())
        wanted = found.dpop_required or "dpop" in demand.schemes
        if found.dpop_required and (self._dpop is False or not (able or self._dpop)):
            why = "dpop=False forbids it" if self._dpop is False else f"{printable(found.server.issuer)} does not say that it issues them"
            raise place.fail(f"the server takes tokens that are bound to a key alone (DPoP), and {why}")
        if self._dpop or (self._dpop is None and wanted and able):
            # A key of its own for each authorization server: none can tell that it is the same client.
            same = self._grant is not None and self._grant.issuer == found.server.issuer
            return self._prover if same and self._prover else Prover()
        return None

    async def _discover(self, place: Place, demand: Demand, protocol: str) -> Discovery:
        pinned, known = self._identity.issuer, ((self._grant.issuer,) if self._grant else ())
        if self._identity.client_id and not pinned:
            first = await self._kept.known(place)
            if first is not None and first.client_id == self._identity.client_id:
                pinned = first.issuer  # its secret has been shown there, and goes nowhere else (AC-12)
        plan = discover(place, demand.resource_metadata, pinned=pinned, known=known, protocol=protocol)
        found = await within(DISCOVERY, place, self._perform(place, plan))
        self._servers[found.server.issuer] = found.server
        return found

    async def _perform(self, place: Place, plan: Plan[T], browse: Callable[[str], Awaitable[str]] | None = None) -> T:
        """Do a plan; whatever goes wrong outside it ends as `AuthorizationFailed`."""

        async def fetch(request: HttpRequest) -> HttpResponse:
            answer = await self._fetch(led(request, place, self._servers.get(self._identity.issuer), self._identity.issuer))
            self._nonces.learn(request.url, answer.headers)
            return answer

        async def show(page: str) -> str:
            try:
                url = await (browse or _no_browser)(page)
            except ClientError:
                raise
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                raise place.fail("the login page was given up") from error  # not by us: others wait for this
            except Exception as error:
                raise place.fail(f"the login page could not be shown ({type(error).__name__})") from error
            if not isinstance(url, str):
                raise place.fail("browse gave no URL: it has to give the one that the browser was sent back to")
            return url

        try:
            return await perform(plan, fetch, show)
        except ConnectionFailed as error:
            raise place.fail(f"{printable(error.target)} can't be reached: {error.text}") from error


def _outcome(grant: Grant, demand: Demand) -> str:
    """What came of asking for scopes that are refused all the same."""
    given = grant.tokens.scopes
    missing = [] if given is None else [scope for scope in demand.scopes if scope not in given]
    return f"{printable(grant.issuer)} did not grant {' '.join(missing)}" if missing else "the server refuses all the same"


def _words(demand: Demand) -> str:
    """What the server says of its refusal."""
    said = ": ".join(printable(text) for text in (demand.error, demand.description) if text)
    return f" ({said})" if said else ""


async def _no_browser(page: str) -> str:
    raise AuthorizationFailed("this step shows no page", Origin(origin_of(page)))
