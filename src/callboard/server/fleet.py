"""What all processes of one server agree on, taken from the store that they share, before the first request."""

from __future__ import annotations

import hmac
from typing import Any

from callboard.errors import RegistrationError
from callboard.server.seals import find_secret

__all__ = ["check_state", "join"]


async def join(server: Any) -> None:
    """Take what this process must have in common with the others; nothing where no store is shared.

    Without `keys=` the secret of the store makes what seals `requestState`, and the hashes in the log: the first process makes it. It is as
    safe as the store: who must not trust that gives `keys=`.

    Args:
        server: The `Server`, its store opened.

    Raises:
        StoreError: The store does not answer.
    """
    server.hub.begun = True
    store = server.store
    if not store.shared or server.seals.has_keys:
        return
    secret = await find_secret(store.kv)
    server.journal.adopt(hmac.digest(secret, b"callboard log", "sha256"))
    server.seals.adopt(secret)


def check_state(server: Any) -> None:
    """See that what a session keeps between calls can be kept in a store that processes share. Call it where there are sessions.

    Args:
        server: The `Server`.

    Raises:
        RegistrationError: It has no encoded form.
    """
    kind = server.state
    if server.store.shared and kind is not None and getattr(kind, "by_reference", False):
        raise RegistrationError(
            f"Server {server.name!r} shares a store, and sessions can't be kept there: what its init gives has no encoded form. Say its type, "
            'one that msgspec reads back from bytes (class Shop(Handler[Cart]), Cart a msgspec.Struct or a dataclass), or serve it with sessions="off".'
        )
