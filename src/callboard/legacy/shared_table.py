"""The sessions of one endpoint that every worker of its server may serve: found in the store, cached here, kept alive, seen off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from callboard.core.exchange import Exchange
from callboard.errors import Fail, Reason, StoreError
from callboard.legacy.actor import Actor, make_hello
from callboard.legacy.codec import Codec, Opening
from callboard.legacy.rules import Rules
from callboard.legacy.shared import SharedActor, SharedHome
from callboard.legacy.shared_session import as_record, read_track
from callboard.legacy.stored import (
    CHANNEL,
    Changed,
    Event,
    Finished,
    Found,
    Message,
    Moved,
    Occurred,
    Read,
    Relayed,
    SessionStore,
    Turned,
    Yielded,
    worker_of,
)
from callboard.legacy.stored_memory import MemorySessions, MemorySpace
from callboard.legacy.stored_redis import RedisSessions
from callboard.legacy.table import FAREWELL, Table, check_id
from callboard.server.mount import Caller, Mount
from callboard.server.pushes import PUSHES, Push, decode_push
from callboard.server.subscriptions import CHANGES, Change, decode_change
from callboard.stores.base import Kv, Store
from callboard.stores.memory import MemoryStore
from callboard.stores.redis import RedisStore
from callboard.transport.endpoint import Endpoint
from callboard.wire.jsonrpc import RawResponse, decode, encode_notification

__all__ = ["SharedTable", "find_space", "open_sessions"]

_log = logging.getLogger("callboard")
# Of tickets and readers; several endpoints of one process are one worker.
_numbers = count(1)
# Tickets and readers that are in use here: what the store has beside these has been left there by a command that came too late.
_in_use: set[str] = set()
# Seconds between two looks at what may need care.
LOOK_EVERY = 1.0
# Seconds between two looks for sessions whose time is up, at most.
REAP_EVERY = 5.0
# Seconds between two tries to give a turn back, and how many there are.
AGAIN, TRIES = 0.5, 120
# What the twins of a MemoryStore share.
_SPACES: WeakKeyDictionary[Kv, MemorySpace] = WeakKeyDictionary()
_GONE = "The worker that ran this call is gone: whether it did what it was to do is not known."


class _Look:
    """A look at the store. `epoch`: of the messages that tell of changes since; -1 once one has. `ended`: whether the session has, since."""

    __slots__ = ("ended", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.ended = False


class SharedTable(Table, SharedHome):
    """The sessions of one endpoint on one event loop, of those that several workers serve.

    Args:
        endpoint: The server.
        mount: What its `open` returned.
        rules: The options of sessions.
        codecs: Version -> its codec.
        stored: The store.
    """

    def __init__(self, endpoint: Endpoint, mount: Mount, rules: Rules, codecs: dict[str, Codec], stored: SessionStore) -> None:
        Table.__init__(self, endpoint, mount, rules, codecs)
        self.stored = stored
        self.busy = {}
        self._epoch = stored.epoch
        self._reaped = self._touched = self.loop.time()
        self._due: dict[str, None] = {}
        self._looks: dict[str, list[_Look]] = {}
        self._closing = False
        stored.hear(self._take)
        self._keeper = self.loop.create_task(self._keep_house())

    def next_token(self) -> str:
        """A ticket, or what a reader is known by: in use until it is given back or `done_with`."""
        token = f"{self.stored.worker}:{next(_numbers)}"
        _in_use.add(token)
        return token

    def done_with(self, token: str) -> None:
        """A ticket or a reader is not in use any more, and the store does not have it."""
        _in_use.discard(token)

    def see_off(self, rest: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run what nobody need wait for; where the store can't be reached, the log has it."""
        task = Table.see_off(self, rest)
        task.add_done_callback(_note_failure)
        return task

    def free(self, session_id: str, ticket: str) -> None:
        """Give a turn back, as soon as the store can be reached."""
        _in_use.discard(ticket)
        self.insist(partial(self.stored.leave, session_id, ticket))

    def free_reader(self, session_id: str, token: str) -> None:
        """Give the place of a reader back, as soon as the store can be reached."""
        _in_use.discard(token)
        self.insist(partial(self.stored.leave_reader, session_id, token))

    def insist(self, act: Callable[[], Awaitable[object]]) -> None:
        """Do something as soon as the store can be reached; nobody waits for it."""
        self.see_off(self._insist(act))

    async def _insist(self, act: Callable[[], Awaitable[object]]) -> None:
        for _ in range(TRIES):
            try:
                await act()
            except StoreError:
                if self._closing:
                    return
                await asyncio.sleep(AGAIN)
            else:
                return

    # Finding and opening

    async def fetch(self, session_id: str, caller: Caller) -> SharedActor | Fail:
        """The session of this id, for its owner; unknown, ended and somebody else's are the same (A26, SA23).

        Args:
            session_id: The id.
            caller: Who asks.
        """
        actor: SharedActor | None = self.sessions.get(session_id)
        if actor is None or actor.stale or (self.rules.handshake == "strict" and not actor.machine.initialized):
            try:
                with self._looking(session_id) as look:
                    fail = await self._look_up(session_id, caller, look)
            except StoreError:
                return Fail(Reason.STORE)
            if fail is not None:
                return fail
            actor = self.sessions.get(session_id)
        if actor is None or self.find(session_id, caller.principal) is None:
            return Fail(Reason.SESSION_NOT_FOUND)
        if self.loop.time() - actor.touched > self.rules.session_ttl / 4:
            self._due[session_id] = None
        return actor

    @contextmanager
    def _looking(self, session_id: str) -> Iterator[_Look]:
        """What the store says may be out of date before it is here: messages come on another way."""
        look = _Look(self.stored.epoch if self.stored.hears else -1)
        self._looks.setdefault(session_id, []).append(look)
        try:
            yield look
        finally:
            self._looks[session_id].remove(look)
            if not self._looks[session_id]:
                del self._looks[session_id]

    async def _look_up(self, session_id: str, caller: Caller, look: _Look) -> Fail | None:
        """Have a session here as the store has it; why it can't be."""
        actor: SharedActor | None = self.sessions.get(session_id)
        if actor is not None and self.find(session_id, caller.principal) is None:
            return Fail(Reason.SESSION_NOT_FOUND)
        found = await self.stored.find(session_id, renew=actor is not None)  # a stranger does not keep it
        actor = self.sessions.get(session_id)
        if found is not None and actor is None and found.record.owner != caller.principal:
            self.report_stranger(session_id, found.record.owner, caller.principal)
            return Fail(Reason.SESSION_NOT_FOUND)
        if found is not None and actor is None:
            adopted = await self._adopt(session_id, found, caller)
            if isinstance(adopted, Fail):
                return adopted
            actor = adopted
            self._due[session_id] = None
        if found is None or look.ended:
            if actor is not None:
                actor.let_go()
            return Fail(Reason.SESSION_NOT_FOUND)
        if actor is not None:
            actor.learn(found, look.epoch)
        return None

    async def relearn(self, actor: SharedActor) -> bool:
        """Have a session know its record anew; whether it is still there. If not, it is let go of."""
        with self._looking(actor.id) as look:
            found = await self.stored.find(actor.id)
            if found is None or look.ended:
                actor.let_go()
                return False
            actor.learn(found, look.epoch)
        return True

    async def _adopt(self, session_id: str, found: Found, caller: Caller) -> SharedActor | Fail:
        """Serve a session that another worker has opened."""
        options = await self.endpoint.bind(self.mount, caller)
        if isinstance(options, Fail):
            return options
        opening = self.read(msgspec.Raw(found.record.opening))
        codec = self._codecs.get(found.record.version)
        if isinstance(opening, Fail) or codec is None:  # of a release that served other versions
            return Fail(Reason.SESSION_NOT_FOUND)
        return self._enlist(session_id, codec, opening, options, found)

    def _enlist(self, session_id: str, codec: Codec, opening: Opening, options: Any, found: Found) -> SharedActor:
        known: SharedActor | None = self.sessions.get(session_id)
        if known is None:
            known = self.sessions[session_id] = SharedActor(self, session_id, codec, opening, options, found)
        return known

    async def _open(self, opening: Opening, caller: Caller, channel: Exchange | None) -> tuple[Actor, dict[str, Any]] | Fail:
        assert channel is None, "the session of a pipe is the pipe's"
        if self.mount.draining:
            return Fail(Reason.OVERLOADED, "The server is shutting down.")
        limits = self.mount.limits
        try:
            options = await self.endpoint.bind(self.mount, caller)
            if isinstance(options, Fail):
                return options
            session_id = self.rules.session_id()
            check_id(session_id, taken=False)
            state, topics = await self._begin(make_hello(opening, session_id, options))
            heard = tuple(f"topic:{topic}" for topic in topics)
            record = as_record(opening, caller.principal, heard, self.server.bus.position)
            await self.stored.open(
                session_id,
                record,
                state,
                ttl=self.rules.session_ttl,
                total=limits.max_sessions,
                per_owner=limits.max_sessions_per_principal,
            )
        except StoreError:
            return Fail(Reason.STORE)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code
            if isinstance(error, Fail) and error.reason is Reason.OVERLOADED:
                return error
            return self.endpoint.server.crash("initialize", error)
        actor = self._enlist(session_id, self._codecs[opening.version], opening, options, Found(record, 1))
        return actor, self.introduce(opening.version, owned=caller.principal is not None)

    async def delete(self, actor: Actor) -> Fail | None:
        """End a session because its client says so, within bounded time; why it can't be."""
        ending = actor.end("deleted")
        if ending is None:
            return None
        await asyncio.wait({ending}, timeout=FAREWELL)
        failed = ending.done() and not ending.cancelled() and isinstance(ending.exception(), StoreError)
        return Fail(Reason.STORE) if failed else None

    def forget(self, actor: Any) -> None:
        """A session is not served here any more; its place is the store's."""
        self.idle.unset(actor)
        self.sessions.pop(actor.id, None)
        for topic in actor.topics or ():
            self.part(actor, topic)

    def _expire(self, actor: Any) -> None:
        if actor.machine.idle:
            actor.let_go()

    # What other workers say

    def _take(self, message: Message) -> None:
        kind = type(message)
        if kind is Changed or kind is Finished:
            for look in self._looks.get(message.session, ()):
                look.epoch = -1
                look.ended = look.ended or kind is Finished
        actor: SharedActor | None = self.sessions.get(message.session)
        if isinstance(message, Relayed) and message.kind in {"ticket", "reader"}:
            self._on_asked(message)
        elif actor is not None:
            _TAKE[kind](self, actor, message)

    def _on_asked(self, message: Relayed) -> None:
        """Whoever waits asks whether the one before it is in use."""
        token = message.body.decode()
        if token not in _in_use:
            (self.free if message.kind == "ticket" else self.free_reader)(message.session, token)

    def _on_changed(self, actor: SharedActor, _message: Changed) -> None:
        actor.epoch = -1
        if actor.reads:
            self.see_off(self.relearn(actor))

    def _on_finished(self, actor: SharedActor, _message: Finished) -> None:
        actor.let_go()

    def _on_turned(self, actor: SharedActor, message: Turned) -> None:
        actor.turned(message)

    def _on_occurred(self, actor: SharedActor, message: Occurred) -> None:
        event = Event(message.track, message.number, message.note, message.last)
        if message.track == CHANNEL:
            for reader in list(actor.readers.values()):
                if reader.turn:
                    reader.take(event)
        elif (follower := actor.followers.get(message.track)) is not None:
            follower.take(event)

    def _on_moved(self, actor: SharedActor, message: Moved) -> None:
        actor.move(message.track)

    def _on_yielded(self, actor: SharedActor, message: Yielded) -> None:
        reader = actor.readers.pop(message.token, None)
        if reader is not None:
            self.done_with(message.token)
            reader.give_way()

    def _on_read(self, actor: SharedActor, message: Read) -> None:
        reader = actor.readers.get(message.token)
        if reader is None and message.token not in _in_use:  # it has gone in the meantime
            self.free_reader(actor.id, message.token)
        elif reader is not None and not reader.turn:
            reader.promote(message.newest)

    def _on_relayed(self, actor: SharedActor, message: Relayed) -> None:
        if message.kind == "cancel":
            actor.cancel(msgspec.json.decode(message.body, type=int | str))
        elif message.kind == "answer":
            response = decode(message.body)
            if isinstance(response, RawResponse):
                Actor.respond(actor, response)

    # What the server says to many

    def _hear(self, tell: Any, message: bytes) -> None:
        position = self.server.bus.position
        Table._hear(self, partial(tell, position), message)  # noqa: SLF001 - its own class's

    def _tell_change(self, position: str, message: bytes) -> None:  # type: ignore[override] # `_hear` adds where it is on the Bus
        self._tell(position, CHANGES, message)

    def _tell_push(self, position: str, message: bytes) -> None:  # type: ignore[override] # likewise
        self._tell(position, PUSHES, message)

    def _tell(self, position: str, topic: str, message: bytes) -> None:
        said = _read_news(topic, message)
        for actor in self._attended():
            if actor.reads and actor.stale:  # what it hears may be something else by now
                actor.catch_up()
            elif actor.reads:
                actor.hear_news(position, self._note_for(actor, said))

    async def news_since(self, actor: SharedActor, position: str) -> list[tuple[str, bytes]]:
        """What has been said to many since a position of the Bus, as far as it is for this session."""
        news = []
        for place, topic, message in await self.server.bus.since(position):
            if topic in {CHANGES, PUSHES} and (note := self._note_for(actor, _read_news(topic, message))) is not None:
                news.append((place, note))
        return news

    def _note_for(self, actor: SharedActor, said: Change | Push) -> bytes | None:
        """What a session is told of it; None for nothing."""
        topics = actor.topics or ()
        if isinstance(said, Push):
            if said.session is None:
                return bytes(said.note) if f"topic:{said.topic}" in topics else None
            return bytes(said.note) if said.session == actor.id and actor.wants(said.level) else None
        if said.uri is not None:
            return encode_notification("notifications/resources/updated", {"uri": said.uri}) if f"uri:{said.uri}" in topics else None
        promised = self.server.capabilities(listens=True).get(said.kind)
        if isinstance(promised, Mapping) and promised.get("listChanged"):
            return encode_notification(f"notifications/{said.kind}/list_changed")
        return None

    # Care

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self._look_around()
            except StoreError as error:
                _log.debug("Sessions are not looked after: %s", error)
            except Exception:  # noqa: BLE001 - it goes on with the next look
                _log.exception("Sessions were not looked after.")

    async def _look_around(self) -> None:
        now, ttl = self.loop.time(), self.rules.session_ttl
        if self._epoch != self.stored.epoch:
            self._epoch = self.stored.epoch
            for actor in self._attended():
                self._refill(actor)
        if now - self._touched >= min(ttl / 4, 60.0):
            self._due.update((actor.id, None) for actor in self._attended())
            self._touched = now
        if self._due:
            due, self._due = list(self._due), {}
            await self.stored.touch(due)
            for session_id in due:
                if (known := self.sessions.get(session_id)) is not None:
                    known.touched = now
        if now - self._reaped >= min(ttl / 4, REAP_EVERY):
            self._reaped = now
            await self._reap()
        for actor in self._attended():
            if actor.followers or actor.readers:
                await self._look_after(actor)

    def _attended(self) -> list[SharedActor]:
        """Sessions in which something goes on."""
        self.busy = {actor: None for actor in self.busy if not (actor.machine.idle or actor.machine.ended)}
        return list(self.busy)

    def _refill(self, actor: SharedActor) -> None:
        """Messages may have been missed."""
        for outlet in [*actor.followers.values(), *actor.readers.values()]:
            outlet.fill()
        if actor.reads:
            actor.catch_up()
        elif actor.readers or actor.followers or actor.machine.calls:
            self.see_off(self.relearn(actor))

    async def _reap(self) -> None:
        """End sessions whose time is up, one worker each."""
        while due := await self.stored.due():
            await asyncio.gather(*map(self._end_due, due))

    async def _end_due(self, session_id: str) -> None:
        ended = await self.stored.end(session_id, due=True)
        if ended is not None:
            if (actor := self.sessions.get(session_id)) is not None:
                actor.let_go()
            self.note_end(session_id, "expired")
            self.see_off(self.run_terminate("expired", ended.state))

    async def _look_after(self, actor: SharedActor) -> None:
        """See that what streams wait for is still there."""
        stored = self.stored
        for outlet in [*actor.followers.values(), *actor.readers.values()]:
            if outlet.behind or outlet.worker == stored.worker:  # a call that has ended here, whose end the store may not have yet
                outlet.fill()
        for name, follower in list(actor.followers.items()):
            if follower.worker is not None and not await stored.alive(follower.worker):
                await self.fail_track(actor, name)
        if any(not reader.turn for reader in actor.readers.values()):
            head = await stored.reader(actor.id)
            reader = None if head is None else actor.readers.get(head)
            if reader is not None:
                reader.fill()
            elif head is not None and await stored.alive(worker_of(head)):
                stored.tell(worker_of(head), Relayed(actor.id, "reader", head.encode()))
            elif head is not None:
                await stored.leave_reader(actor.id, head)

    async def fail_track(self, actor: SharedActor, track: str) -> None:
        """Answer a call whose worker is dead, with an error; once in the fleet."""
        request_id = read_track(track)
        await self.stored.fail_track(actor.id, track, actor.codec.render_fail(request_id, Fail(Reason.INTERNAL, _GONE))[1])

    # The end

    def drain(self) -> None:
        """Close GET streams, as this worker is about to end: their clients find another one. Sessions stay."""
        for actor in self._attended():
            for outlet in actor.machine.outlets():
                if outlet.call is None:
                    outlet.hang_up(None)
            for outlet in [*actor.readers.values(), *actor.followers.values()]:
                outlet.hang_up(None)

    async def close(self, reason: str) -> None:
        """Let go of every session, within bounded time."""
        self._closing = True
        self._keeper.cancel()
        await asyncio.wait({self._keeper})
        await Table.close(self, reason)
        self.stored.hear(None)

    def abandon(self) -> None:
        """Hear of nothing any more."""
        Table.abandon(self)
        if not self.loop.is_closed():
            self._keeper.cancel()


def open_sessions(store: Store, *, keep: int) -> SessionStore:
    """The sessions in a store.

    Args:
        store: The server's.
        keep: Events of a session that can be replayed.
    """
    if isinstance(store, RedisStore):
        return RedisSessions(store, keep=keep)
    assert isinstance(store, MemoryStore), "a shared store is a RedisStore, or in tests a MemoryStore"
    return MemorySessions(find_space(store), keep=keep, worker=store.worker)


def find_space(store: MemoryStore) -> MemorySpace:
    """What the twins of a store share of sessions."""
    space = _SPACES.get(store.kv)
    if space is None:
        space = _SPACES[store.kv] = MemorySpace(asyncio.get_running_loop().time)
    return space


def _note_failure(task: asyncio.Task[Any]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, StoreError):
        _log.debug("Something of a session could not be kept: %s", error)
    else:
        _log.error("Something of a session failed.", exc_info=error)


def _read_news(topic: str, message: bytes) -> Change | Push:
    said: Change | Push = decode_change(message) if topic == CHANGES else decode_push(message)
    return said


_TAKE: dict[type, Any] = {
    Changed: SharedTable._on_changed,  # noqa: SLF001 - its own class's
    Finished: SharedTable._on_finished,  # noqa: SLF001
    Turned: SharedTable._on_turned,  # noqa: SLF001
    Occurred: SharedTable._on_occurred,  # noqa: SLF001
    Moved: SharedTable._on_moved,  # noqa: SLF001
    Yielded: SharedTable._on_yielded,  # noqa: SLF001
    Read: SharedTable._on_read,  # noqa: SLF001
    Relayed: SharedTable._on_relayed,  # noqa: SLF001
}
