"""Which store a server was given: an object, a URL, or nothing."""

from __future__ import annotations

from callboard.errors import RegistrationError
from callboard.stores.base import Store
from callboard.stores.memory import MemoryStore
from callboard.stores.redis import RedisStore

__all__ = ["open_store"]

_PARTS = ("kv", "log", "bus", "name", "open", "check", "close")


def open_store(store: Store | str | None, server: str) -> Store:
    """The store of a server.

    Args:
        store: A store; the URL of a Redis; None for this process's memory.
        server: The server's name.

    Raises:
        RegistrationError: It is none, or its URL can't be read.
    """
    if isinstance(store, str):
        store = RedisStore(store)
    if store is None:
        store = MemoryStore()
    if isinstance(store, type) or not all(hasattr(store, part) for part in _PARTS):
        shown = f"the class {store.__name__}" if isinstance(store, type) else type(store).__name__
        raise RegistrationError(
            f"store is a callboard.stores.base.Store, or the URL of a Redis like 'redis://127.0.0.1:6379/0', not {shown}."
        )
    store.name(server)
    return store
