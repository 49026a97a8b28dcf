"""Answers kept for as long as their server allows: `ttlMs` and `cacheScope`.

Pure: the clock is an argument, nothing is fetched here. One cache may serve any number of clients, tasks and threads.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from callboard.wire.methods import METHODS

__all__ = ["CACHEABLE", "Cache", "Hint", "Key", "fingerprint", "key_of", "read_hint"]

MAX_ENTRIES: Final = 1_000
"""How many answers are kept; the one that was of no use for longest goes first."""
MAX_BYTES: Final = 32 * 1_048_576
"""How many bytes they may have in all."""
MAX_TTL: Final = 86_400.0
"""Seconds that an answer is kept at most, whatever its server says."""
OVERHEAD: Final = 256
"""Bytes that an entry is taken to cost besides its own."""

CACHEABLE: Final = frozenset({*(method for method, row in METHODS.items() if row.cacheable), "skills/list", "skills/get"})
"""Methods whose results say how long they may be kept (CA-01, CA-10)."""

_READ: Final = "resources/read"
_STALE: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    # Templates have no notification of their own; skills are resources.
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list", "skills/list", "skills/get"),
    "notifications/resources/updated": (_READ, "skills/get"),
}
"""Notification -> methods whose answers it makes stale (CA-07)."""
_RETRY: Final = ("inputResponses", "requestState")
_PROOFS: Final = frozenset({"dpop"})
_SALT: Final = os.urandom(32)
_BOUNDARIES: Final = frozenset("/?#")


class Key(NamedTuple):
    """What an answer is an answer to.

    Attributes:
        target: The endpoint. A pipe, a process or a server in memory belongs to one client: give each a text of its own.
        context: Who asks; see `fingerprint`.
        method: Method of the request.
        params: Its parameters as JSON, sorted, without `_meta`.
        uri: The resource or skill that it is about; empty without one.
    """

    target: str
    context: str
    method: str
    params: bytes
    uri: str = ""


class Hint(NamedTuple):
    """What a result says of being kept.

    Attributes:
        ttl_ms: Milliseconds; 0 for not at all.
        scope: `public`, or `private` to the authorization that asked.
    """

    ttl_ms: float = 0
    scope: str = "private"


class _Slot(NamedTuple):
    target: str
    context: str | None  # None: everybody's
    method: str
    params: bytes


class _Entry(NamedTuple):
    raw: bytes
    until: float
    uri: str
    size: int


class _Wire(msgspec.Struct):
    ttl_ms: Any = msgspec.field(name="ttlMs", default=0)
    scope: Any = msgspec.field(name="cacheScope", default="private")
    kind: Any = msgspec.field(name="resultType", default="complete")


_decode_hint = msgspec.json.Decoder(_Wire).decode


def fingerprint(headers: Mapping[str, str]) -> str:
    """Name an authorization by what its requests carry, without keeping it: another token is another authorization (CA-06).

    Args:
        headers: Those that the user and the credentials gave; a proof that is new for each request is passed over.

    Returns:
        A text that means something in this process alone; empty without headers.
    """
    named = sorted((name.lower(), value) for name, value in headers.items() if name.lower() not in _PROOFS)
    return blake2b(msgspec.json.encode(named), key=_SALT, digest_size=16).hexdigest() if named else ""


def key_of(target: str, context: str, method: str, params: Mapping[str, Any] | None) -> Key | None:
    """Make the key of a request; None when its answer must not be kept.

    That is so for other methods than `CACHEABLE`, and for what answers a server's questions (CA-05, MR-16).

    Args:
        target: The endpoint.
        context: Who asks.
        method: Method of the request.
        params: Its parameters; `_meta` is passed over.
    """
    given = params or {}
    if method not in CACHEABLE or any(name in given for name in _RETRY):
        return None
    try:
        canonical = msgspec.json.encode({name: value for name, value in given.items() if name != "_meta"}, order="sorted")
    except (TypeError, ValueError, RecursionError):  # it can't be sent, either
        return None
    uri = given.get("uri", "")
    return Key(target, context, method, canonical, uri if isinstance(uri, str) else "")


def read_hint(raw: bytes | msgspec.Raw) -> Hint:
    """Read how long a result may be kept.

    Without a usable hint that is not at all, and never for others than who asked (CA-04). Only complete results have hints (MR-16).
    """
    try:
        wire = _decode_hint(raw)
    except (msgspec.DecodeError, RecursionError):
        return Hint()
    if wire.kind != "complete" or type(wire.ttl_ms) not in {int, float}:
        return Hint()
    return Hint(max(wire.ttl_ms, 0), "public" if wire.scope == "public" else "private")


class Cache:
    """Answers, by what they answer and to whom.

    `private` ones are given to the authorization that asked alone, `public` ones to all at the same endpoint (CA-06).

    Args:
        max_entries: How many are kept.
        max_bytes: How many bytes they may have in all.
    """

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Slot, _Entry] = OrderedDict()
        self._dropped: dict[tuple[str, str], float] = {}
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Cache of {len(self._entries)} answers, {self._bytes} bytes>"

    @property
    def size(self) -> int:
        """Bytes of all that is kept, as far as they are counted."""
        return self._bytes

    def get(self, key: Key, now: float) -> msgspec.Raw | None:
        """The answer to a request, while it is fresh; None when there is none.

        Args:
            key: What is asked, and who asks.
            now: Monotonic seconds.
        """
        with self._lock:
            for slot in _slots(key):
                entry = self._entries.get(slot)
                if entry is None:
                    continue
                if now < entry.until:
                    self._entries.move_to_end(slot)
                    return msgspec.Raw(entry.raw)
                self._remove(slot)
        return None

    def put(
        self, key: Key, raw: bytes | msgspec.Raw, ttl_ms: float | None, scope: str | None, now: float, *, asked: float | None = None
    ) -> bool:
        """Keep an answer in place of the one before.

        Args:
            key: What was asked, and who asked.
            raw: The result.
            ttl_ms: Milliseconds that it is fresh from now on; None and what is below 0 are 0 (CA-04), and what is above a day is a day.
            scope: `public`; anything else is `private`.
            now: Monotonic seconds, when the answer came.
            asked: The same, when the request was sent: what has been called stale since then is not kept. None: `now`.

        Returns:
            Whether it is kept.
        """
        mine, everybodys = _slots(key)
        ttl = min(max(ttl_ms or 0, 0), MAX_TTL * 1000) / 1000  # the least first: a huge integer can't be divided
        with self._lock:
            # What the server said before no longer holds: neither for this authorization, nor of being for all.
            self._remove(mine)
            self._remove(everybodys)
            data = bytes(raw)
            size = len(data) + len(key.params) + OVERHEAD
            overtaken = self._dropped.get((key.target, key.method))
            if not ttl > 0 or size > self._max_bytes or (overtaken is not None and overtaken >= (now if asked is None else asked)):
                return False
            self._entries[everybodys if scope == "public" else mine] = _Entry(data, now + ttl, key.uri, size)
            self._bytes += size
            while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
                self._remove(next(iter(self._entries)))
            return True

    def drop(self, target: str, methods: Iterable[str] | str, now: float, *, uri: str | None = None) -> int:
        """Forget answers, those to everybody's requests: of a method after an invalid cursor (CA-09), say.

        Args:
            target: The endpoint.
            methods: One method or several.
            now: Monotonic seconds. Answers to requests from before are not kept any more.
            uri: Those about this resource alone, about resources in it and resources that it is in: an update may name a part of
                what was subscribed to (SB-11). None for all.

        Returns:
            How many there were.
        """
        meant = {methods} if isinstance(methods, str) else set(methods)
        with self._lock:
            stale = [
                slot
                for slot, entry in self._entries.items()
                if slot.target == target and slot.method in meant and (uri is None or _related(uri, entry.uri))
            ]
            for slot in stale:
                self._remove(slot)
            for method in meant:
                self._dropped.pop((target, method), None)
                self._dropped[target, method] = now
            while len(self._dropped) > self._max_entries:
                del self._dropped[next(iter(self._dropped))]
        return len(stale)

    def hear(self, target: str, notification: str, now: float, *, uri: str | None = None) -> int:
        """Forget what a notification makes stale (CA-07).

        Args:
            target: The endpoint.
            notification: Its method; those that are of no concern are passed over.
            now: Monotonic seconds.
            uri: The `uri` of `notifications/resources/updated`.

        Returns:
            How many answers that were.
        """
        methods = _STALE.get(notification)
        return self.drop(target, methods, now, uri=uri) if methods else 0

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._dropped.clear()
            self._bytes = 0

    def _remove(self, slot: _Slot) -> None:
        entry = self._entries.pop(slot, None)
        if entry is not None:
            self._bytes -= entry.size


def _slots(key: Key) -> tuple[_Slot, _Slot]:
    """Where an answer for the one who asks would be, and one for everybody."""
    mine = _Slot(key.target, key.context, key.method, key.params)
    return mine, mine._replace(context=None)


def _related(one: str, other: str) -> bool:
    return one == other or _inside(one, other) or _inside(other, one)


def _inside(part: str, whole: str) -> bool:
    return bool(whole) and part.startswith(whole) and (whole[-1] in _BOUNDARIES or part[len(whole)] in _BOUNDARIES)
