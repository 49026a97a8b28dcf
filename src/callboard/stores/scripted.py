"""A shared store that runs scripts: what it takes to count together, in one round trip."""

from __future__ import annotations

from typing import Any, Protocol

from callboard.stores.redis_script import Script

__all__ = ["Script", "Scripted", "can_count"]


class Scripted(Protocol):
    """A shared store that runs scripts, as `RedisStore` does."""

    def key(self, *parts: str) -> str:
        """A name of this server's own. Keys of one script have one part in braces in common."""
        ...

    async def run(self, script: Script, keys: tuple[str, ...], args: tuple[str | bytes | int | float, ...]) -> Any:
        """Run a script in one round trip.

        Raises:
            StoreError: There was no answer in time.
        """
        ...


def can_count(store: Any) -> bool:
    """Whether all processes count together in a store: it is shared, and runs scripts. With any other one each counts for itself.

    Args:
        store: A server's.
    """
    return store.shared and callable(getattr(store, "run", None))
