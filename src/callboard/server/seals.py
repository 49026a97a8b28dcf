"""The sealed `requestState` of a server: keys, time and randomness around `core.seal`, and what each state is bound to (MR-06..MR-08)."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from callboard.core.era import Request
from callboard.core.inputs import Memory
from callboard.core.seal import NONCE_SIZE, KeyRing, SealError, bind
from callboard.errors import Fail, Reason, RegistrationError, StoreError
from callboard.stores.base import Kv

__all__ = ["PERIOD", "ROOT", "Seals", "find_secret"]

PERIOD = 30 * 86_400
"""Seconds for which one key that is made of a shared secret seals: far fewer than it takes for 2**32 random nonces."""

ROOT = "callboard:root"
"""Where the secret is that the processes of one server share (`Kv`): 32 random bytes, made by whoever comes first."""

# Seconds between two looks whether the secret in the store is another one.
_LOOKED = 10.0
_SECRET_SIZE = 32
# Secrets that still open what they sealed.
_MAX_SECRETS = 4
_log = logging.getLogger("callboard")
_NO_KEYS = (
    "A call asks its client, and this server has no keys to seal what it must remember: several processes need the same ones, "
    "Server(keys=[...]); make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
)
# JSON, since what is in it came as JSON, or is to come back as that: integers of any size, dates as texts.
_NOT_OURS = (
    "A client came back with a requestState that this process has not sealed. Where several processes serve one address, or one is restarted, "
    "they need the same keys, Server(keys=[...]); see docs/asking.md. This is said once."
)
_encode_memory = msgspec.json.Encoder().encode
_decode_memory = msgspec.json.Decoder(Memory).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


class Seals:
    """Seals and opens the state of calls that wait for their client.

    Args:
        name: The server's.
        keys: The first one seals, all open. None for a random one of this process; none at all where keys are required and absent.
        ttl: Seconds until a state ends.
        single_use: Whether a state opens once.
        store: Remembers which have been opened.
        clock: Unix time in seconds.

    Raises:
        RegistrationError: An option can't work.

    Attributes:
        store: As given.
        clock: As given.
        single_use: As given.
        ttl: As given.
        is_random: Whether nobody gave it keys: they are this process's own, or of the store that it shares.
        has_keys: Whether it was given any.
    """

    def __init__(
        self,
        name: str,
        *,
        keys: Sequence[bytes | str] | None,
        ttl: float,
        single_use: bool,
        store: Kv,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(ttl, int | float) or not 1 <= ttl < 1e9:
            raise RegistrationError(f"request_state_ttl is a number of seconds from 1 to 1e9, not {ttl!r}.")
        self._name = name
        self._ring = KeyRing(keys) if keys else None
        self.is_random = keys is None
        self.has_keys = bool(keys)
        self._told = False
        self.ttl = ttl
        self.single_use = single_use
        self.store = store
        self.clock = clock
        self._secrets: list[bytes] = []
        self._period = -1
        self._looked = -math.inf

    def adopt(self, secret: bytes) -> None:
        """Make the keys of a secret that all processes of the server have; not where keys were given.

        Each `PERIOD` has a key of its own, so that they change everywhere at once and nobody has to tell anybody. What an earlier secret
        sealed opens all the same.

        Args:
            secret: From the store, see `find_secret`.
        """
        if self.is_random and secret not in self._secrets[:1]:
            self._secrets = [secret, *(known for known in self._secrets if known != secret)][:_MAX_SECRETS]
            self._period = -1

    def seal(self, memory: Memory, request: Request, principal: str | None) -> str:
        """Seal what a call remembers.

        Raises:
            Fail: There are no keys, or it is too much; the log says which.
        """
        ring = self._find_ring()
        if ring is None:
            _log.error(_NO_KEYS)
            raise Fail(Reason.INTERNAL)
        expires = int(self.clock() + self.ttl)
        try:
            payload = _encode_memory(memory)
            return ring.seal(payload, self._bind(request, principal), nonce=secrets.token_bytes(NONCE_SIZE), expires=expires)
        except (ValueError, TypeError) as error:
            _log.error("%s can't be asked for input: %s", request.method, error)
            raise Fail(Reason.INTERNAL) from None

    async def open(self, text: str, request: Request, principal: str | None) -> Memory:
        """Open what a client sent back.

        Raises:
            Fail: It does not open; one and the same for every cause (SA28). Or (STORE) nobody can tell whether it has been used.
        """
        ring = self._find_ring()
        if ring is None:
            _log.error(_NO_KEYS)
            raise Fail(Reason.STATE)
        if self._secrets and ring.is_foreign(text):
            ring = await self._look_again(ring)
        try:
            payload = ring.open(text, self._bind(request, principal), now=int(self.clock()))
        except SealError:
            if self.is_random and not self._secrets and not self._told and ring.is_foreign(text):
                self._told = True
                _log.warning(_NOT_OURS)
            raise Fail(Reason.STATE) from None
        if self.single_use:
            await self._use(text)
        try:
            return _decode_memory(payload)
        except msgspec.MsgspecError:  # sealed by another version of ours, while a new one is rolled out
            raise Fail(Reason.STATE) from None

    async def _use(self, text: str) -> None:
        key = f"callboard:state:{hashlib.sha256(text.encode()).hexdigest()}"
        try:
            is_first = await self.store.put(key, b"", expect=0, ttl=self.ttl) is not None
        except StoreError as error:
            _log.error("It can't be seen whether a requestState has been used (single_use): %s", error)
            raise Fail(Reason.STORE) from None
        if not is_first:
            raise Fail(Reason.STATE)

    async def _look_again(self, ring: KeyRing) -> KeyRing:
        """The keys as the store has them now: it may have lost its data, so that others made another secret. Seldom."""
        now = self.clock()
        if abs(now - self._looked) < _LOOKED:
            return ring
        self._looked = now
        try:
            self.adopt(await find_secret(self.store, self._secrets[0]))
        except StoreError as error:
            _log.warning("The keys of requestState can't be looked up: %s", error)
        return self._find_ring() or ring

    def _find_ring(self) -> KeyRing | None:
        """The keys; where none were given those of the shared secret, or, where one process serves, a random one."""
        if self._secrets:
            period = int(self.clock() // PERIOD)
            if period != self._period:
                self._period = period
                # The next one, too: clocks differ. Of the secrets the first seals.
                opened = [period, period + 1, *range(period - 1, period - 2 - math.ceil(self.ttl / PERIOD), -1)]
                self._ring = KeyRing([_derive(secret, each) for secret in self._secrets for each in opened])
            return self._ring
        if self._ring is None and self.is_random and not _is_one_of_many():
            self._ring = KeyRing([secrets.token_bytes(32)])
        return self._ring

    def _bind(self, request: Request, principal: str | None) -> bytes:
        params: Any = request.params
        arguments = getattr(params, "arguments", UNSET)
        return bind(
            version=request.envelope.version,
            method=request.method,
            subject=getattr(params, request.row.mirrored),
            arguments=b"{}" if arguments is UNSET else bytes(arguments) if isinstance(arguments, msgspec.Raw) else _encode(arguments),
            principal=principal,
            server=self._name,
        )


async def find_secret(kv: Kv, ours: bytes | None = None) -> bytes:
    """The secret that all processes of a server share; whoever comes first makes it.

    Args:
        kv: Of the store that they share.
        ours: What to put there where there is none; a random one by default.

    Raises:
        StoreError: The store does not answer.
    """
    while (found := await kv.get(ROOT)) is None or len(found.value) < _SECRET_SIZE:
        made = ours or secrets.token_bytes(_SECRET_SIZE)
        if await kv.put(ROOT, made, expect=0 if found is None else found.version) is not None:
            return made
    return found.value


def _derive(secret: bytes, period: int) -> bytes:
    return hmac.digest(secret, b"callboard requestState %d" % period, "sha256")


def _is_one_of_many() -> bool:
    """Whether this process shares its port with others, as far as that shows: uvicorn and gunicorn read this variable."""
    count = os.environ.get("WEB_CONCURRENCY", "")
    return count.isdigit() and int(count) > 1
