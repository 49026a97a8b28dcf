"""The sessions of one endpoint: how one begins, who may use it, and what the server tells them all."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from callboard.core.exchange import Exchange
from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor, make_hello
from callboard.legacy.codec import Codec, Opening, read_initialize
from callboard.legacy.home import Home
from callboard.legacy.rules import Rules
from callboard.logs import report
from callboard.server.journal import REQUESTS, open_noted
from callboard.server.mount import Caller, Mount
from callboard.server.pushes import PUSHES, Push, decode_push
from callboard.server.state import Hello
from callboard.server.subscriptions import CHANGES, Change, decode_change
from callboard.transport.endpoint import Endpoint
from callboard.wire.jsonrpc import encode_notification

__all__ = ["FAREWELL", "Table", "check_id"]

_log = logging.getLogger("callboard")
# Distinct openings that are kept once for all sessions that began with them: most clients say the same.
_REMEMBERED = 256
# Bytes of what a client says of itself.
MAX_OPENING = 16 * 1024
# Values in it, as many as its brackets and commas: decoded, each takes some hundred bytes.
MAX_OPENING_VALUES = 512
# Characters of a session id.
MAX_ID = 1024
# Seconds that the end of a session may take, its last hook included, before nobody waits for it any more.
FAREWELL = 5.0


class Table(Home):
    """The sessions of one endpoint on one event loop.

    Args:
        endpoint: The server.
        mount: What its `open` returned.
        rules: The options of sessions.
        codecs: Version -> its codec.
    """

    def __init__(self, endpoint: Endpoint, mount: Mount, rules: Rules, codecs: dict[str, Codec]) -> None:
        Home.__init__(self, endpoint, mount, rules)
        self._codecs = codecs
        self._openings: dict[bytes, Opening] = {}
        self._reserved: set[str] = set()
        bus = self.server.bus
        self._unsubscribe = (
            bus.subscribe(CHANGES, partial(self._hear, self._tell_change)),
            bus.subscribe(PUSHES, partial(self._hear, self._tell_push)),
        )

    def find(self, session_id: str, principal: str | None) -> Actor | None:
        """The session of this id, for its owner; unknown, ended and somebody else's are the same (A26, SA23)."""
        actor: Actor | None = self.sessions.get(session_id)
        if actor is not None and actor.owner != principal:
            self.report_stranger(session_id, actor.owner, principal)
            return None
        return actor

    def report_stranger(self, session_id: str, owner: str | None, principal: str | None) -> None:
        """Log that somebody asks for another one's session."""
        journal = self.server.journal
        report("session", session=journal.hash(session_id), owner=journal.hash(owner), principal=journal.hash(principal))

    async def open(self, opening: Opening, caller: Caller, channel: Exchange | None = None) -> tuple[Actor, dict[str, Any]] | Fail:
        """Begin a session, and log that.

        Args:
            opening: What its `initialize` says.
            caller: Who asks: to whom it belongs, and what its options may depend on.
            channel: Where what the server says of its own accord goes, when the session has a pipe of its own.

        Returns:
            The session, and the result of `initialize`; why there is none, and then nothing has begun.
        """
        opened = self._open(opening, caller, channel)
        if self.server.journal.sinks is None and not REQUESTS.isEnabledFor(logging.INFO):
            return await opened
        return await open_noted(opened, self.server.journal, opening.version, caller.principal, is_pipe=channel is not None)

    async def _open(self, opening: Opening, caller: Caller, channel: Exchange | None) -> tuple[Actor, dict[str, Any]] | Fail:
        if self.mount.draining:
            return Fail(Reason.OVERLOADED, "The server is shutting down.")
        limits = self.mount.limits
        try:  # what the author does may take its time: there must be room for what has begun
            self.places.take(caller.principal, limits.max_sessions, limits.max_sessions_per_principal)
        except Fail as fail:
            return fail
        made: Actor | Fail | None = None
        try:
            made = await self._make(opening, caller, channel)
            return made if isinstance(made, Fail) else (made, self.introduce(opening.version, owned=caller.principal is not None))
        finally:
            if not isinstance(made, Actor):
                self.places.give_back(caller.principal)

    async def _make(self, opening: Opening, caller: Caller, channel: Exchange | None) -> Actor | Fail:
        """The session, entered in the list of all."""
        session_id = ""
        try:
            options = await self.endpoint.bind(self.mount, caller)
            if isinstance(options, Fail):
                return options
            made = self.rules.session_id()
            check_id(made, taken=made in self.sessions or made in self._reserved)
            session_id = made
            self._reserved.add(session_id)
            state, topics = await self._begin(make_hello(opening, session_id, options))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code
            return self.endpoint.server.crash("initialize", error)
        finally:
            self._reserved.discard(session_id)
        if self.mount.draining:
            return Fail(Reason.OVERLOADED, "The server is shutting down.")
        actor = Actor(self, session_id, self._codecs[opening.version], opening, options, state, caller.principal, channel)
        self.sessions[session_id] = actor
        for topic in topics:
            actor.join(f"topic:{topic}")
        return actor

    async def _begin(self, hello: Hello) -> tuple[Any, Iterable[str]]:
        """The state that a session begins with, and the topics that it hears."""
        kind, hooks = self.server.state, self.server.hooks
        state = None if kind is None else await kind.open(hello, self.mount.workers)
        topics = () if hooks.channels is None else hooks.channels(None if kind is None else kind.draft(state))
        return state, topics

    def introduce(self, version: str, *, owned: bool = False) -> dict[str, Any]:
        """The result of `initialize`.

        Args:
            version: What is spoken.
            owned: Whether the client has a principal.
        """
        mount = self.mount
        listens = self.rules.sessions != "off" and not self.rules.json_only
        capabilities = self.server.capabilities(listens=listens, logs=mount.logs)
        instructions = self.server.instructions if mount.instructions is None else mount.instructions
        return self._codecs[version].introduce(self.server.info, capabilities, instructions, owned=owned)

    async def delete(self, actor: Actor) -> Fail | None:
        """End a session because its client says so, within bounded time; why it can't be."""
        if (ending := actor.end("deleted")) is not None:
            await asyncio.wait({ending}, timeout=FAREWELL)
        return None

    def drain(self) -> None:
        """End sessions in which no call runs, and close the GET streams of the others, as the server is about to end."""
        for actor in list(self.sessions.values()):
            if not actor.machine.calls:
                actor.end("shutdown")
                continue
            for outlet in actor.machine.outlets():
                if outlet.call is None:
                    outlet.hang_up(None)

    async def close(self, reason: str) -> None:
        """End every session, within bounded time."""
        self.abandon()
        for actor in list(self.sessions.values()):
            actor.end(reason)
        await self.settled(FAREWELL)
        for alarm in (self.slow, self.deadlines, self.idle):
            alarm.close()

    def abandon(self) -> None:
        """Hear of nothing any more: the event loop is gone, or about to be."""
        for cancel in self._unsubscribe:
            cancel()

    def read(self, params: msgspec.Raw | None) -> Opening | Fail:
        """Read the params of an `initialize`: the same object for all that say the same, since an idle session should cost little."""
        said = b"{}" if params is None else bytes(params)
        if len(said) > MAX_OPENING:
            return Fail(Reason.INVALID_PARAMS, f"initialize has more than {MAX_OPENING} bytes of params, the most that a session keeps.")
        if sum(map(said.count, (b",", b"[", b"{"))) > MAX_OPENING_VALUES:
            return Fail(
                Reason.INVALID_PARAMS, f"initialize has more than {MAX_OPENING_VALUES} values in its params, the most that a session keeps."
            )
        opening: Opening | Fail | None = self._openings.get(said)
        if opening is None:
            opening = read_initialize(msgspec.Raw(said), self.rules.versions)  # what was sent would keep the whole body
            if isinstance(opening, Opening):
                if len(self._openings) >= _REMEMBERED:
                    self._openings.clear()
                self._openings[said] = opening
        return opening

    def _hear(self, tell: Callable[[bytes], None], message: bytes) -> None:
        """Take a message of the Bus, in whatever thread it comes."""
        if self.mount.workers.thread == threading.get_ident():
            tell(message)
        else:
            try:
                self.loop.call_soon_threadsafe(tell, message)
            except RuntimeError:
                _log.debug("A message came for sessions whose event loop is closed.")

    def _tell_change(self, message: bytes) -> None:
        change: Change = decode_change(message)
        if change.uri is not None:
            note = encode_notification("notifications/resources/updated", {"uri": change.uri})
            for actor in list(self.topics.get(f"uri:{change.uri}", ())):
                actor.push(note, change.uri)
        elif self.sessions:
            promised = self.server.capabilities(listens=True).get(change.kind)
            if isinstance(promised, Mapping) and promised.get("listChanged"):
                note = encode_notification(f"notifications/{change.kind}/list_changed")
                for actor in list(self.sessions.values()):
                    actor.push(note, change.kind)

    def _tell_push(self, message: bytes) -> None:
        push: Push = decode_push(message)
        note = bytes(push.note)
        if push.session is not None:
            actor = self.sessions.get(push.session)
            if actor is not None and actor.wants(push.level):
                actor.push(note, push.key, droppable=push.level is not None)
        else:
            for actor in list(self.topics.get(f"topic:{push.topic}", ())):
                actor.push(note, push.key)


def check_id(session_id: Any, *, taken: bool) -> None:
    """HL-20: visible ASCII, and never a second time."""
    if (
        not isinstance(session_id, str)
        or not 0 < len(session_id) <= MAX_ID
        or not session_id.isascii()
        or not session_id.isprintable()
        or " " in session_id
    ):
        raise ValueError(f"session_id= must make 1 to {MAX_ID} characters of visible ASCII without blanks.")
    if taken:
        raise ValueError("session_id= made an id that another session has.")
