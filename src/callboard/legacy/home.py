"""What all sessions of one endpoint share: rules, timers, and who listens to what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, ClassVar

from callboard.legacy.alarm import Alarm
from callboard.legacy.methods import run_hook
from callboard.legacy.rules import Rules
from callboard.legacy.session import Kept
from callboard.server.mount import Mount
from callboard.server.places import Places
from callboard.transport.endpoint import Endpoint
from callboard.transport.stream import WATCH_AFTER
from callboard.wire.versions import LOG_LEVELS

__all__ = ["Home"]

_log = logging.getLogger("callboard")


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
        kept: What all of them keep for replay.
        places: Room for so many of them.
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
        self.kept = Kept(mount.limits.max_kept)
        self.places = Places("sessions", "max_sessions", self._make_room)
        self._leaving: set[asyncio.Task[Any]] = set()

    def _make_room(self, principal: str | None, *, is_full: bool) -> None:
        """A session ends when its time is up, not when somebody else wants one."""

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
        if self.sessions.pop(actor.id, None) is not None:
            self.places.give_back(actor.owner)
        for topic in actor.topics or ():
            self.part(actor, topic)

    def see_off(self, rest: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run what is left to do of a session that has ended."""
        task = self.loop.create_task(rest)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def note_end(self, session_id: str, reason: str) -> None:
        """Let telemetry know that a session has ended."""
        if (sinks := self.server.journal.sinks) is not None:
            sinks.end_session(session_id, reason)

    async def run_terminate(self, reason: str, kept: Any) -> None:
        """Run the server's last hook for a session.

        Args:
            reason: Why it has ended.
            kept: Its state, as it was kept.
        """
        terminate, kind = self.server.hooks.terminate, self.server.state
        if terminate is None:
            return
        try:
            state = None if kind is None else kind.draft(kept)
            await run_hook(self.mount.workers, partial(terminate, reason, state), bounded=False)
        except (Exception, SystemExit, asyncio.CancelledError):  # noqa: BLE001 - user code, and nobody to tell
            _log.exception("The terminate hook failed.")

    async def settled(self, seconds: float) -> None:
        """Wait until all that has ended is through, or the time is up."""
        if self._leaving:
            await asyncio.wait(set(self._leaving), timeout=seconds)
