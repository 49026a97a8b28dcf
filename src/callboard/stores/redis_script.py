"""Lua that a Redis runs in one step, and the scripts of the plain contracts."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from callboard.stores.redis_dial import pack

__all__ = ["Script"]

_Part = str | bytes | int | float


class Script:
    """A Lua script, known by its digest.

    Args:
        source: Lua 5.1. All keys that it touches are given to it, and lie in one slot of a cluster.

    Attributes:
        source: As given.
        digest: What `EVALSHA` calls it.
    """

    __slots__ = ("digest", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.digest = sha1(source.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: tuple[_Part, ...], args: tuple[_Part, ...], *, whole: bool = False) -> bytes:
        """The command that runs it.

        Args:
            keys: Names of keys.
            args: Whatever else it needs.
            whole: Whether to send the script itself, which the Redis then remembers.
        """
        head: tuple[Any, ...] = ("EVAL", self.source) if whole else ("EVALSHA", self.digest)
        return pack((*head, len(keys), *keys, *args))
