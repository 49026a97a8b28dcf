"""Access tokens that only their authorization server can read: it is asked about each (RFC 7662).

Rules:
    1. One question at a time about a token: all who send it wait for the same answer; who stops waiting doesn't stop it.
    2. At most 32 questions at a time, each within 5 seconds; for tokens beyond, nobody can tell right now.
    3. Only `"active": true` lets anybody in. That a token is not active is remembered as long as that one is.
    4. An answer that is none (another status, no JSON, `active` no bool) is nobody's fault who sent a token: nobody can tell. It is not remembered,
       and other tokens are asked about all the same: else one token that upsets the authorization server would shut out everybody.
    5. A token that says itself to be from another issuer is not shown to this one, who could use it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from urllib.parse import quote_plus

from callboard.auth.claims import (
    TokenError,
    check_audience,
    check_expiry,
    check_use,
    read_audience,
    read_names,
    read_scopes,
    read_subject,
    told_issuer,
)
from callboard.auth.json_object import read_object
from callboard.auth.outbound import Answer, Ask, Outbound, OutboundError, Send, check_url
from callboard.auth.principal import Principal
from callboard.auth.verifier import Grant, Refusal, Verifier
from callboard.core.urls import shown
from callboard.errors import RegistrationError

__all__ = ["Introspection"]

AT_ONCE, LIMIT = 32, 5.0
MAX_LENGTH = 16_384
# Tokens that are remembered as not active; one past that takes the place of the oldest.
MAX_REFUSED = 10_000
# Seconds between two lines in the log about the same endpoint.
QUIET = 30.0
_log = logging.getLogger("callboard")
_UNAVAILABLE = Refusal("unavailable", "The authorization server can't be asked about the access token right now.")
_FOREIGN = Refusal("invalid", "The access token is from another issuer.")
_INACTIVE = Refusal("invalid", "The access token is not active.")


class Introspection(Verifier):
    """Access tokens of any form: their authorization server is asked about each.

        auth=Introspection("https://login.example.com/introspect", "mcp", os.environ["SECRET"], "https://login.example.com")

    In a list of verifiers it comes last: what those before it don't know is sent to the endpoint.

    Args:
        endpoint: Where to ask.
        client_id: What this server is called there.
        client_secret: How it proves that.
        issuer: The authorization server, as clients know it, and as `iss` of the answer has it where it is there.
        audience: Who tokens must be for, as `aud` of the answer has it: one name or several. By default the `resource` of the application (AR-08).
        require_audience: Refuse tokens of which the answer doesn't say whom they are for. Turn it off only where the authorization server itself
            answers `active` for tokens of this server alone.
        remember: Seconds for which an answer holds, up to 300: so long a token may still be used after it was revoked.
        leeway: Seconds by which clocks may differ, up to 300.
        subject: Members of the answer that say whose a token is; the first that is there counts.
        scopes: Members that say what it allows; all that are there count.
        insecure: Let the endpoint be http on another machine, for tests within a closed network.
        send: Sends the requests; by default aiohttp does.
        clock: Unix time.
        ticks: Seconds that never go back.

    Raises:
        RegistrationError: An option can't work.
    """

    def __init__(
        self,
        endpoint: str,
        client_id: str,
        client_secret: str,
        issuer: str,
        *,
        audience: str | Collection[str] | None = None,
        require_audience: bool = True,
        remember: float = 10.0,
        leeway: float = 30.0,
        subject: str | Iterable[str] = ("sub", "client_id"),
        scopes: str | Iterable[str] = ("scope",),
        insecure: bool = False,
        send: Send | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = check_url(endpoint, "Introspection: endpoint", insecure=insecure)
        self._issuer = check_url(issuer, "Introspection: issuer", insecure=insecure)
        self._headers = _authenticate(client_id, client_secret)
        for option, value in (("remember", remember), ("leeway", leeway)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 300:
                raise RegistrationError(f"Introspection: {option} is a number of seconds from 0 to 300, not {value!r}.")
        self._audience = None if audience is None else read_audience(audience, "Introspection: audience")
        self._require_audience = require_audience
        self._bound: str | None = None
        self._remember, self._leeway = remember, leeway
        self._subject = read_names(subject, "Introspection: subject")
        self._scopes = read_names(scopes, "Introspection: scopes")
        if not self._subject:
            raise RegistrationError("Introspection: subject names no member that could say whose a token is.")
        self._outbound = Outbound(AT_ONCE)
        self._send = self._outbound.send if send is None else send
        self._clock, self._ticks = clock, ticks
        self._asking: dict[asyncio.AbstractEventLoop, dict[bytes, _Question]] = {}
        self._refused: dict[bytes, float] = {}
        self._told = -QUIET
        self.issuers = (issuer,)

    def __repr__(self) -> str:
        """Who is asked."""
        return f"<Introspection at {shown(self._endpoint)}>"

    def facts(self) -> dict[str, Any]:
        """Who is asked, and what tokens are held to."""
        return {
            "endpoint": shown(self._endpoint),
            "issuer": self._issuer,
            "audience": sorted(self._audience or ()),
            "remember": self._remember,
            "leeway": self._leeway,
        }

    def bind(self, resource: str | None) -> None:
        """Take the server's identifier for the audience, where none was given.

        Args:
            resource: The server's identifier.

        Raises:
            RegistrationError: It is needed, and missing or another one than before.
        """
        if self._audience is not None and self._bound is None:
            return
        if resource is None:
            raise RegistrationError(f"{self!r} doesn't know who tokens must be for: give resource= to the application, or audience= to it.")
        if self._bound not in {None, resource}:
            raise RegistrationError(
                f"{self!r} is for {self._bound} already: tokens for one application are none for another, so make one for each."
            )
        self._bound, self._audience = resource, frozenset({resource})

    async def close(self) -> None:
        """End what is on its way on the running loop, and close the connections; who waits is told that nobody can tell."""
        questions = self._asking.pop(asyncio.get_running_loop(), {})
        tasks = [question.task for question in questions.values() if question.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._outbound.close()

    async def verify(self, credential: str) -> Grant | Refusal:
        """Ask whose a token is.

        Args:
            credential: The token.
        """
        if len(credential) > MAX_LENGTH:
            return Refusal("invalid", f"The access token is longer than {MAX_LENGTH} characters.")
        if told_issuer(credential) not in {None, self._issuer}:  # rule 5
            return _FOREIGN
        digest = sha256(credential.encode("utf-8", "surrogatepass")).digest()
        if self._refused.get(digest, 0.0) > self._ticks():
            return _INACTIVE
        questions = self._questions()
        question = questions.get(digest)
        if question is None:
            if len(questions) >= AT_ONCE:  # rule 2
                self._tell(f"has {AT_ONCE} questions to answer already")
                return _UNAVAILABLE
            question = questions[digest] = _Question()
            loop = asyncio.get_running_loop()
            asking = self._ask(credential, digest, question, loop.time() + LIMIT)
            question.task = loop.create_task(asking, name="callboard introspection")
        await question.ended.wait()
        return question.verdict

    def _questions(self) -> dict[bytes, _Question]:
        loop = asyncio.get_running_loop()
        questions = self._asking.get(loop)
        if questions is None:
            self._asking = {other: kept for other, kept in self._asking.items() if not other.is_closed()}
            questions = self._asking[loop] = {}
        return questions

    async def _ask(self, token: str, digest: bytes, question: _Question, deadline: float) -> None:
        body = f"token={quote_plus(token, errors='surrogatepass')}&token_type_hint=access_token".encode("ascii")
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._post(Ask(self._endpoint, "POST", self._headers, body))
            question.verdict = self._judge(answer)
            if question.verdict is _INACTIVE:
                self._refuse(digest)
        except TimeoutError:
            self._tell(f"gave no answer within {LIMIT:g} seconds")
        except OutboundError as error:
            self._tell(str(error))
        except Exception as error:  # noqa: BLE001 - also of a `send` that is not ours; whoever waits must be answered
            self._tell(f"raised {type(error).__name__}")
        finally:
            self._questions().pop(digest, None)
            question.ended.set()

    async def _post(self, ask: Ask) -> Answer:
        try:
            return await self._send(ask)
        except OutboundError as error:
            if not error.broken:
                raise
            return await self._send(ask)  # a connection that was kept may have ended unseen; asking twice changes nothing

    def _judge(self, answer: Answer) -> Grant | Refusal:
        if answer.status != 200:
            why = {401: ", which means that client_id or client_secret is wrong", 403: ", which means that it must not ask"}
            raise OutboundError(f"answered with status {answer.status}{why.get(answer.status, '')}")
        try:
            found = read_object(answer.body)
        except ValueError as error:
            raise OutboundError(f"gave {error}") from None
        active = found.get("active")
        if not isinstance(active, bool):
            raise OutboundError("gave an answer without active, or with one that is neither true nor false")
        if not active:
            return _INACTIVE
        try:
            return self._grant(found)
        except TokenError as error:
            return Refusal("invalid", str(error), note=error.note)

    def _grant(self, found: Mapping[str, Any]) -> Grant:
        now = self._clock()
        if found.get("iss", self._issuer) != self._issuer:
            raise TokenError("The access token is from another issuer.")
        check_audience(found, self._audience or frozenset(), required=self._require_audience)
        until = check_expiry(found, self._leeway, now, required=False)
        check_use(found)
        kind = found.get("token_type", "Bearer")
        if not isinstance(kind, str) or kind.lower() not in {"bearer", "access_token"}:
            raise TokenError("The token is no bearer token.")
        claim, subject = read_subject(found, self._subject)
        scopes = read_scopes(found, self._scopes)
        principal = Principal(f"{self._issuer}#{claim}={subject}", scopes, subject=subject, claims=MappingProxyType(found))
        return Grant(principal, min(until, now + self._remember))

    def _refuse(self, digest: bytes) -> None:
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused.pop(digest, None)
        self._refused[digest] = self._ticks() + self._remember

    def _tell(self, why: str) -> None:
        now = self._ticks()
        if now >= self._told + QUIET:
            self._told = now
            _log.warning("auth: %s %s; tokens can't be checked there (told at most every %g seconds)", shown(self._endpoint), why, QUIET)


class _Question:
    """What all who send a token wait for.

    Attributes:
        ended: There is an answer.
        verdict: What it is; that nobody can tell, until there is one.
        task: Asks.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.verdict: Grant | Refusal = _UNAVAILABLE
        self.task: asyncio.Task[None] | None = None


def _authenticate(client_id: Any, client_secret: Any) -> dict[str, str]:
    """RFC 6749 section 2.3.1: both are form-encoded before they are joined."""
    for option, value in (("client_id", client_id), ("client_secret", client_secret)):
        if not isinstance(value, str) or not value:
            raise RegistrationError(f"Introspection: {option} is a str that is not empty.")
    joined = f"{quote_plus(client_id)}:{quote_plus(client_secret)}".encode("ascii")
    return {"Authorization": f"Basic {base64.b64encode(joined).decode('ascii')}", "Content-Type": "application/x-www-form-urlencoded"}
