"""What outlives a login, and where: tokens, registrations and logins that wait, by issuer (AC-12).

issuer <endpoint>                       which authorization server it had last, and who the client was there
tokens <issuer> <resource> [<client>]   a `Grant`
client <issuer>                         a registration that was made there
pending <state>                         a login between its two halves (A31)
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from callboard.client.oauth.code_flow import Login
from callboard.client.oauth.dpop import Prover
from callboard.client.oauth.registration import Identity
from callboard.client.oauth.storage import Storage, StorageError
from callboard.client.oauth.token import Registration, Tokens
from callboard.client.oauth.urls import Place
from callboard.core.urls import printable

__all__ = ["Grant", "Kept", "Known", "Pending", "client_key", "pending_key"]

logger = logging.getLogger("callboard.client")

# Seconds before its end that a token is renewed; a short-lived one: a quarter of its life.
SKEW = 30.0
T = TypeVar("T")


class Grant(msgspec.Struct, frozen=True):
    """Tokens and all that belongs to them, as they are stored. A secret; its `repr` is none.

    Attributes:
        tokens: The tokens.
        issuer: Who issued them.
        resource: What they are for.
        registration: Who they were issued to; a secret that the user gave is left out.
        asked: Scopes that were asked for.
        obtained: Unix time they came.
        key: Private key that they are bound to (DPoP), as PEM; empty: none.
        legacy: The issuer was found by the rules of 2025-03-26.
    """

    tokens: Tokens
    issuer: str
    resource: str
    registration: Registration
    asked: tuple[str, ...]
    obtained: float
    key: str = ""
    legacy: bool = False

    def __repr__(self) -> str:
        return f"Grant(issuer={self.issuer!r}, resource={self.resource!r}, asked={self.asked!r})"

    def ends_at(self) -> float | None:
        """Unix time from which it is to be renewed; None: not before it is refused."""
        life = self.tokens.expires_in
        return None if life is None else self.obtained + life - min(SKEW, life / 4)


class Pending(msgspec.Struct, frozen=True):
    """A login between its two halves. A secret; its `repr` is none.

    Attributes:
        login: The login.
        endpoint: The MCP endpoint.
        ends: Unix time after which it counts no more.
        key: Private key for DPoP, as PEM; empty: none.
    """

    login: Login
    endpoint: str
    ends: float
    key: str = ""

    def __repr__(self) -> str:
        return f"Pending({self.login!r})"


class Known(msgspec.Struct, frozen=True):
    """Which authorization server an endpoint had, what it calls the endpoint, and which given client was used there."""

    issuer: str
    resource: str
    client_id: str = ""


class Kept:
    """A storage that holds these things for one client. What the storage raises is `AuthorizationFailed`.

    Args:
        storage: The storage.
        identity: Who the client is; a secret that its user gave is never stored.
    """

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self._storage, self._identity = storage, identity

    async def known(self, place: Place) -> Known | None:
        """The authorization server that an endpoint had last."""
        return await self.find(place, f"issuer {place.resource}", Known)

    async def grant(self, place: Place, issuer: str, resource: str) -> Grant | None:
        """Tokens of an authorization server's for a resource, if they are this client's."""
        grant = await self.find(place, self._tokens_key(issuer, resource), Grant)
        if (
            grant is None
            or not _is_key(grant.key)
            or (grant.registration.source == "given" and grant.registration.client_id != self._identity.client_id)
        ):
            return None
        return msgspec.structs.replace(grant, registration=self.with_secret(grant.registration))

    async def keep(self, place: Place, grant: Grant) -> None:
        """Keep tokens, and where they are from."""
        registration = self.without_secret(grant.registration)
        await self.save(place, self._tokens_key(grant.issuer, grant.resource), msgspec.structs.replace(grant, registration=registration))
        await self.save(place, f"issuer {place.resource}", Known(grant.issuer, grant.resource, self._identity.client_id))

    async def drop(self, place: Place, grant: Grant) -> None:
        """Forget tokens."""
        await self.remove(place, self._tokens_key(grant.issuer, grant.resource))

    def with_secret(self, registration: Registration) -> Registration:
        """A registration that was kept, with the secret that its user gives."""
        if registration.source != "given":
            return registration
        return msgspec.structs.replace(registration, client_secret=self._identity.client_secret)

    @staticmethod
    def without_secret(registration: Registration) -> Registration:
        """A registration as it is kept: a secret that its user gives stays out."""
        return msgspec.structs.replace(registration, client_secret="") if registration.source == "given" else registration

    async def find(self, place: Place, key: str, kind: type[T]) -> T | None:
        """What is kept under a key; None if there is nothing of this kind."""
        value = await _stored(place, self._storage.load(key))
        try:
            return None if value is None else msgspec.convert(value, kind)
        except msgspec.ValidationError:
            logger.warning("what the storage has under %r can't be read, and is made anew", printable(key))
            return None

    async def save(self, place: Place, key: str, value: msgspec.Struct) -> None:
        """Keep something under a key."""
        await _stored(place, self._storage.save(key, msgspec.to_builtins(value)))

    async def remove(self, place: Place, key: str) -> None:
        """Forget a key."""
        await _stored(place, self._storage.remove(key))

    def _tokens_key(self, issuer: str, resource: str) -> str:
        return f"tokens {issuer} {resource} {self._identity.client_id or self._identity.document}".rstrip()


def client_key(issuer: str) -> str:
    """Where a registration at an authorization server is kept."""
    return f"client {issuer}"


def pending_key(state: str) -> str:
    """Where a login that waits is kept."""
    return f"pending {state[:200]}"


def _is_key(pem: str) -> bool:
    """Whether a key that was kept can be used; no key can."""
    try:
        return not pem or bool(Prover(pem).thumbprint)
    except ValueError:
        return False


async def _stored(place: Place, work: Awaitable[T]) -> T:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - a storage is anybody's code
        # What others' storages say may quote a value; ours does not.
        ours = isinstance(error, StorageError)
        why = printable(str(error)) if ours else type(error).__name__
        raise place.fail(f"the storage of tokens fails: {why}") from (error if ours else None)
