"""Who listens to which topic, in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

__all__ = ["LOST", "Topics"]

LOST = "callboard.lost"
"""Topic of this process alone: messages that it should have heard were lost."""

_log = logging.getLogger("callboard.stores")


class Topics:
    """Subscribers by topic. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._topics: dict[str, dict[object, Callable[[bytes], None]]] = {}

    def find(self, topic: str) -> list[Callable[[bytes], None]]:
        """Those who listen to a topic now."""
        found = self._topics.get(topic)
        return [] if found is None else list(found.values())

    def deliver(self, topic: str, message: bytes, before: Callable[[], None] | None = None) -> None:
        """Call every subscriber of a topic; one that raises is logged, and harms nobody else.

        Args:
            topic: The topic.
            message: The message.
            before: Called before each subscriber.
        """
        for deliver in self.find(topic):
            if before is not None:
                before()
            try:
                deliver(message)
            except Exception:  # noqa: BLE001 - the contract: it harms nobody else
                _log.exception("A subscriber of %r failed.", topic)

    def subscribe(self, topic: str, deliver: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `deliver` called with every message of a topic; call what is returned to end it."""
        token = object()
        with self._lock:
            self._topics[topic] = {**self._topics.get(topic, {}), token: deliver}

        def cancel() -> None:
            with self._lock:
                left = {key: value for key, value in self._topics.pop(topic, {}).items() if key is not token}
                if left:
                    self._topics[topic] = left

        return cancel
