"""The sealed `requestState` of a server: keys, time and randomness around `core.seal`, and what each state is bound to (MR-06..MR-08)."""

from __future__ import annotations

import hashlib
import logging
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
from callboard.errors import Fail, Reason, RegistrationError
from callboard.stores.base import Kv

__all__ = ["Seals"]

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
        clock: As given.
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
        self._is_random = keys is None
        self._told = False
        self._ttl = ttl
        self._single_use = single_use
        self._store = store
        self.clock = clock

    def seal(self, memory: Memory, request: Request, principal: str | None) -> str:
        """Seal what a call remembers.

        Raises:
            Fail: There are no keys, or it is too much; the log says which.
        """
        ring = self._find_ring()
        if ring is None:
            _log.error(_NO_KEYS)
            raise Fail(Reason.INTERNAL)
        expires = int(self.clock() + self._ttl)
        try:
            payload = _encode_memory(memory)
            return ring.seal(payload, self._bind(request, principal), nonce=secrets.token_bytes(NONCE_SIZE), expires=expires)
        except (ValueError, TypeError) as error:
            _log.error("%s can't be asked for input: %s", request.method, error)
            raise Fail(Reason.INTERNAL) from None

    async def open(self, text: str, request: Request, principal: str | None) -> Memory:
        """Open what a client sent back.

        Raises:
            Fail: It does not open; one and the same for every cause (SA28).
        """
        ring = self._find_ring()
        if ring is None:
            _log.error(_NO_KEYS)
            raise Fail(Reason.STATE)
        try:
            payload = ring.open(text, self._bind(request, principal), now=int(self.clock()))
        except SealError:
            if self._is_random and not self._told and ring.is_foreign(text):
                self._told = True
                _log.warning(_NOT_OURS)
            raise Fail(Reason.STATE) from None
        if self._single_use:
            key = f"callboard:state:{hashlib.sha256(text.encode()).hexdigest()}"
            if await self._store.put(key, b"", expect=0, ttl=self._ttl) is None:
                raise Fail(Reason.STATE)
        try:
            return _decode_memory(payload)
        except msgspec.MsgspecError:  # sealed by another version of ours, while a new one is rolled out
            raise Fail(Reason.STATE) from None

    def _find_ring(self) -> KeyRing | None:
        """The keys; where none were given and one process serves, a random one."""
        if self._ring is None and self._is_random and not _is_one_of_many():
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


def _is_one_of_many() -> bool:
    """Whether this process shares its port with others, as far as that shows: uvicorn and gunicorn read this variable."""
    count = os.environ.get("WEB_CONCURRENCY", "")
    return count.isdigit() and int(count) > 1
