"""Keys of an authorization server, fetched from it and kept: whoever sends what, there is one fetch per cooldown, and everybody is answered.

A cooldown follows each fetch that failed, and each that an unknown key prompted: one that began while the keys were fresh. One that was due leaves
the next unknown key its own, so that a key which is new at just that moment is found.

What is known of the keys goes by their age: fresh (below `ttl`), due (the last tenth of `ttl`), lapsed (from `ttl` on), none (from `stale` on, or never
fetched). A token names its key, and that is known or not. Then

    1. fresh, known                                     the keys
    2. due, known                                       the keys; a fetch begins
    3. lapsed, known; the last fetch succeeded          a fetch begins, and is waited for; then the keys, whether it succeeded or not
    4. lapsed, known; the last fetch failed             the keys; a fetch begins: nobody waits for a host that is known to be down
    5. not known, or no keys                            a fetch begins, and is waited for; then as 6
    6. the same within the cooldown after a fetch       it succeeded, and ended after the token came: there is no such key; else nobody can tell,
                                                        for so many seconds: the key may be new, and who has it must not throw its token away
    7. a fetch is on its way                            it is not begun again: all wait for the same one; who stops waiting doesn't stop it
    8. within the cooldown                              no fetch begins, whatever the last one came to
    9. a fetch brings a set                             it replaces the keys, even by none; where one is missing that was there, `on_loss` is told
   10. a fetch fails                                    the keys stay as old as they are; the log says why, once

`Cache` is these rules without input or output. `KeySet` runs them: time limits, tasks, the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from callboard.auth.json_object import read_object
from callboard.auth.keys import KeyRing, read_keys
from callboard.auth.outbound import Ask, Outbound, OutboundError, Send, fault_of_found
from callboard.auth.verifier import Refusal
from callboard.core.urls import shown

__all__ = ["Cache", "KeySet", "Verdict", "well_known"]

TTL, COOLDOWN, STALE, FETCH_LIMIT = 3600.0, 30.0, 86_400.0, 5.0
# From this part of `ttl` on, keys are fetched anew before anybody has to wait for it.
DUE = 0.9
_log = logging.getLogger("callboard")


class Verdict(NamedTuple):
    """What to do for a token.

    Attributes:
        ring: The keys to check it with; None for those that are to wait, or are refused.
        begin: Begin a fetch.
        wait: Wait for the fetch that is on its way, and ask again.
        retry_after: Nobody can tell for so many seconds; None where it is certain that there is no such key.
    """

    ring: KeyRing | None = None
    begin: bool = False
    wait: bool = False
    retry_after: float | None = None


class Cache:
    """The rules above, as a machine: time comes in as an argument.

    Args:
        ttl: Seconds for which keys are fresh.
        cooldown: Seconds after a fetch in which none begins.
        stale: Seconds after which keys are forgotten.

    Attributes:
        ring: The keys; those that are too old still stand here.
        running: A fetch is on its way.
        failed: The last one has failed.
    """

    def __init__(self, ttl: float = TTL, cooldown: float = COOLDOWN, stale: float = STALE) -> None:
        self._ttl, self._cooldown, self._stale = ttl, cooldown, stale
        self.ring: KeyRing | None = None
        self.running = False
        self._fetched = self._tried = -math.inf
        self.failed = self._prompted = False

    def ask(self, now: float, came: float, kid: str | None, algorithm: str, tried: KeyRing | None = None) -> Verdict:
        """What to do for a token.

        Args:
            now: Seconds.
            came: When the token came.
            kid: The key that the token names.
            algorithm: Of its signature.
            tried: Keys with which the signature was found wrong; they count as not known.
        """
        age = now - self._fetched
        ring = self.ring if age < self._stale else None
        cooling = max(0.0, self._tried + self._cooldown - now)
        begin = not self.running and not cooling
        if ring is not None and ring is not tried and ring.fit(kid, algorithm):
            if age < self._ttl or self.failed or (cooling and not self.running):
                return Verdict(ring, begin=begin and age >= self._ttl * DUE)  # rules 1, 2, 4
            return Verdict(begin=begin, wait=True)  # rule 3
        if begin or self.running:
            return Verdict(begin=begin, wait=True)  # rules 5, 7
        certain = not self.failed and self._fetched >= came
        return Verdict(retry_after=None if certain else cooling)  # rule 6

    def begin(self, now: float) -> None:
        """A fetch begins."""
        self.running = True
        self._prompted = now - self._fetched < self._ttl * DUE

    def succeed(self, now: float, ring: KeyRing) -> bool:
        """A fetch has brought keys.

        Returns:
            Whether one is missing that was there (rule 9).
        """
        lost = self.ring is not None and ring.lacks(self.ring)
        self.ring, self._fetched = ring, now
        self._end(now, failed=False)
        return lost

    def fail(self, now: float) -> float | None:
        """A fetch has failed (rule 10).

        Returns:
            How old the keys are that stay in use; None if there are none.
        """
        self._end(now, failed=True)
        age = now - self._fetched
        return age if age < self._stale else None

    def _end(self, now: float, *, failed: bool) -> None:
        self.running, self.failed = False, failed
        if failed or self._prompted:
            self._tried = now


class KeySet:
    """The keys of an authorization server.

    Args:
        issuer: What the server is called; a URL where `url` is not given.
        url: Where its JWK set is; by default its metadata says it.
        algorithms: What keys are wanted for.
        insecure: Whether http will do for what the metadata names.
        send: Sends a request; by default over aiohttp.
        clock: Seconds that never go back.
        on_loss: Called when a key is gone that was in use.
        ttl: Seconds for which keys are used without asking again.
        cooldown: Seconds after a fetch in which none begins.
        stale: Seconds after which keys that can't be fetched anew are no longer used.
    """

    def __init__(
        self,
        issuer: str,
        url: str | None,
        algorithms: Collection[str],
        *,
        insecure: bool = False,
        send: Send | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_loss: Callable[[], None] = lambda: None,
        ttl: float = TTL,
        cooldown: float = COOLDOWN,
        stale: float = STALE,
    ) -> None:
        self._issuer, self._url, self._algorithms, self._insecure = issuer, url, algorithms, insecure
        self._outbound = Outbound()
        self._send = self._outbound.send if send is None else send
        self._clock, self._on_loss = clock, on_loss
        self._times = (ttl, cooldown, stale)
        # Per event loop, since tasks belong to one.
        self._keepers: dict[asyncio.AbstractEventLoop, _Keeper] = {}

    @property
    def source(self) -> str:
        """Where the keys come from, as logs and `describe` may show it."""
        return shown(self._url) if self._url else f"the metadata of {shown(self._issuer)}"

    async def find(self, kid: str | None, algorithm: str, tried: KeyRing | None = None) -> KeyRing | Refusal | None:
        """The keys to check a token with.

        Args:
            kid: The key that the token names; None where it names none.
            algorithm: Of its signature.
            tried: Keys with which the signature was found wrong.

        Returns:
            A ring in which one fits; None if there is certainly none, a refusal if nobody can tell.
        """
        keeper = self._keeper()
        came = self._clock()
        verdict = Verdict(wait=True)
        for _ in range(3):
            verdict = keeper.cache.ask(self._clock(), came, kid, algorithm, tried)
            if verdict.begin:
                self._begin(keeper)
            if not verdict.wait:
                break
            await keeper.ended.wait()  # rule 7: an event, since who stops waiting for a task stops the task
        if verdict.ring is None and (verdict.wait or verdict.retry_after is not None):
            seconds = math.ceil(verdict.retry_after or 1)
            text = "The keys of the authorization server can't be fetched right now."
            if not keeper.cache.failed:
                text = "The key of the token was not among those of its issuer a moment ago; they are fetched again soon."
            return Refusal("unavailable", text, max(1, seconds))
        return verdict.ring

    async def close(self) -> None:
        """End what is on its way on the running loop; who waits for it is told that nobody can tell."""
        keeper = self._keepers.pop(asyncio.get_running_loop(), None)
        if keeper is not None and keeper.task is not None:
            keeper.task.cancel()
            await asyncio.gather(keeper.task, return_exceptions=True)

    def _keeper(self) -> _Keeper:
        loop = asyncio.get_running_loop()
        keeper = self._keepers.get(loop)
        if keeper is None:
            self._keepers = {other: kept for other, kept in self._keepers.items() if not other.is_closed()}
            keeper = self._keepers[loop] = _Keeper(Cache(*self._times))
        return keeper

    def _begin(self, keeper: _Keeper) -> None:
        loop = asyncio.get_running_loop()
        keeper.cache.begin(self._clock())
        keeper.ended.clear()
        # The limit counts from here: in a storm, it takes a while until the task has its turn.
        fetching = self._fetch(keeper, loop.time() + FETCH_LIMIT)
        keeper.task = loop.create_task(fetching, name=f"callboard keys of {shown(self._issuer)}")

    async def _fetch(self, keeper: _Keeper, deadline: float) -> None:
        cache = keeper.cache
        try:
            async with asyncio.timeout_at(deadline):
                ring = await self._retrieve()
        except Exception as error:  # noqa: BLE001 - also of a `send` that is not ours; whoever waits must be answered
            self._tell_failure(cache.fail(self._clock()), error)
        else:
            if cache.succeed(self._clock(), ring):
                self._on_loss()
            if not ring.keys:
                why = "; ".join(ring.passed_over) or "the set is empty"
                _log.warning("auth: %s has no key that can be used (%s); every token of it is refused", self.source, why)
        finally:
            if cache.running:  # the loop ends
                cache.fail(self._clock())
            keeper.task = None
            keeper.ended.set()

    def _tell_failure(self, age: float | None, error: Exception) -> None:
        why = f"gave no answer within {FETCH_LIMIT:g} seconds" if isinstance(error, TimeoutError) else str(error)
        if not isinstance(error, TimeoutError | _NoKeysError):
            why = f"raised {type(error).__name__}"
        text = "no token of it can be checked" if age is None else f"keys that are {age:.0f} seconds old stay in use"
        _log.warning("auth: the keys of %s can't be fetched: %s %s; %s", shown(self._issuer), self.source, why, text)

    async def _retrieve(self) -> KeyRing:
        try:
            url = self._url or await self._discover()
            answer = await self._get(url)
            if answer is None:
                raise _NoKeysError(f"names {shown(url)}, which holds no key set" if self._url is None else "is not found there (404)")
            try:
                return read_keys(answer, self._algorithms)
            except ValueError as error:
                where = "" if self._url else f"names {shown(url)}, which "
                raise _NoKeysError(f"{where}gave {error}") from None
        finally:
            await self._outbound.close()  # the next fetch is minutes away

    async def _get(self, url: str) -> bytes | None:
        """A document; None where there is none."""
        where = "" if url == self._url else f"names {shown(url)}, which "
        try:
            status, body = await self._send(Ask(url))
        except OutboundError as error:
            raise _NoKeysError(f"{where}{error}") from None
        if status in {404, 410}:
            return None
        if 300 <= status < 400:
            raise _NoKeysError(f"{where}answered with a redirect ({status}), which is not followed")
        if status != 200:
            raise _NoKeysError(f"{where}answered with status {status}")
        return body

    async def _discover(self) -> str:
        """Where the JWK set is (RFC 8414 section 3, OpenID Connect Discovery section 4): the issuer inside must be that very text."""
        found: list[str] = []
        for url in well_known(self._issuer):
            body = await self._get(url)
            if body is None:
                continue
            try:
                document = read_object(body)
            except ValueError:
                found.append(f"{shown(url)} is no metadata")
                continue
            if document.get("issuer") != self._issuer:
                found.append(f"{shown(url)} is that of another issuer")
            elif fault := fault_of_found(document.get("jwks_uri"), self._issuer, insecure=self._insecure):
                found.append(f"jwks_uri of {shown(url)} {fault}")
            else:
                return str(document["jwks_uri"])
        raise _NoKeysError(
            f"can't be used: {'; '.join(found) or 'there is none at its well-known places'}; jwks_uri= would say where the keys are"
        )


class _NoKeysError(Exception):
    """No keys came; the text is the end of a sentence that begins with where they come from."""


class _Keeper:
    """What one event loop has of the keys.

    Attributes:
        cache: The machine.
        ended: Set while no fetch is on its way.
        task: The fetch.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.ended = asyncio.Event()
        self.ended.set()
        self.task: asyncio.Task[None] | None = None


def well_known(issuer: str) -> tuple[str, ...]:
    """Where the metadata of an issuer may be, in the order of AC-03."""
    parts = urlsplit(issuer)
    root, path = f"{parts.scheme}://{parts.netloc}/.well-known", parts.path.rstrip("/")
    if not path:
        return (f"{root}/oauth-authorization-server", f"{root}/openid-configuration")
    folder = f"{parts.scheme}://{parts.netloc}{path}"
    return (
        f"{root}/oauth-authorization-server{path}",
        f"{root}/openid-configuration{path}",
        f"{folder}/.well-known/openid-configuration",
    )
