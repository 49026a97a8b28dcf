"""What all sessions of one endpoint share: rules, timers, and who listens to what."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from callboard.legacy.alarm import Alarm
from callboard.legacy.rules import Rules
from callboard.server.mount import Mount
from callboard.transport.endpoint import Endpoint
from callboard.transport.stream import WATCH_AFTER
from callboard.wire.versions import LOG_LEVELS

__all__ = ["Home"]


class Home:
    """The shared part of the sessions of one endpoint on one event loop.

    Args:
        endpoint: The server, ready to be served.
        mount: What its `open` returned.
        rules: The options of sessions.

    Attributes:
        slow: Calls that have just begun; most end before anybody need care for their time or their client.
        deadlines: The others: they may take no longer than `request_timeout`.
        idle: Sessions in which nothing happens, and some in which something has begun since.
        topics: Topic -> the sessions that hear it.
    """

    severity: ClassVar[dict[str, int]] = {level: rank for rank, level in enumerate(LOG_LEVELS)}

    def __init__(self, endpoint: Endpoint, mount: Mount, rules: Rules) -> None:
        self.endpoint = endpoint
        self.mount = mount
        self.rules = rules
        self.server: Any = endpoint.server
        self.loop = mount.workers.loop
        soon = min(WATCH_AFTER, rules.request_timeout)
        self.slow: Alarm[Any] = Alarm(self.loop, soon, self._care_for)
        self.deadlines: Alarm[Any] = Alarm(self.loop, rules.request_timeout - soon, lambda work: work.actor.expire(work))
        self.idle: Alarm[Any] = Alarm(self.loop, rules.session_ttl, self._expire)
        self.topics: dict[str, dict[Any, None]] = {}
        self.sessions: dict[str, Any] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def _expire(self, actor: Any) -> None:
        """The time of a session is up, unless something happens in it: then it begins anew when that has ended."""
        if actor.machine.idle:
            actor.end("expired")

    def _care_for(self, work: Any) -> None:
        """A call takes its time: watch its client, and its deadline."""
        if work.connection is not None:
            work.connection.watch()
        if self.rules.request_timeout <= WATCH_AFTER:
            work.actor.expire(work)
        else:
            self.deadlines.set(work)

    def join(self, actor: Any, topic: str) -> None:
        """Let a session hear a topic."""
        self.topics.setdefault(topic, {})[actor] = None

    def part(self, actor: Any, topic: str) -> None:
        """Let a session hear a topic no more."""
        if (hearers := self.topics.get(topic)) is not None:
            hearers.pop(actor, None)
            if not hearers:
                del self.topics[topic]

    def forget(self, actor: Any) -> None:
        """A session has ended."""
        self.idle.unset(actor)
        self.sessions.pop(actor.id, None)
        for topic in actor.topics or ():
            self.part(actor, topic)

    def see_off(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what is left to do of a session that has ended."""
        task = self.loop.create_task(rest)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def settled(self, seconds: float) -> None:
        """Wait until all that has ended is through, or the time is up."""
        if self._leaving:
            await asyncio.wait(set(self._leaving), timeout=seconds)
