"""`SessionStore` in a Redis. Every method is one script and one round trip; `open`, `end` and `due` say where they take another.

Whoever reads the Redis reads the sessions, their ids too. Key names, which show up in its log and its tools, have only hashes of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from callboard.errors import Fail, Reason, StoreError
from callboard.legacy import stored_scripts as scripts
from callboard.legacy.stored import (
    AGAIN,
    ALL,
    CHANNEL,
    Answer,
    Changed,
    Ended,
    Entered,
    Event,
    Finished,
    Found,
    Message,
    Reading,
    Record,
    Resumed,
    decode_message,
    decode_record,
    encode_message,
    encode_record,
)
from callboard.server.places import Places
from callboard.stores.redis import RedisStore, Script

__all__ = ["RedisSessions"]

_log = logging.getLogger("callboard")


class _Ears:
    """Those who hear the messages of one store: a server may have more than one endpoint in a process."""

    def __init__(self) -> None:
        self._hearers: tuple[Callable[[Message], None], ...] = ()

    def give(self, before: Callable[[Message], None] | None, now: Callable[[Message], None] | None) -> None:
        """Let somebody hear in the place of somebody else; None for nobody."""
        self._hearers = (*(hearer for hearer in self._hearers if hearer is not before), *(() if now is None else (now,)))

    def __call__(self, data: bytes) -> None:
        message = decode_message(data)
        if message is not None:
            for hearer in self._hearers:
                hearer(message)


class RedisSessions:
    """`SessionStore` of one worker.

    Args:
        store: The Redis; it has its name already. Its messages to this worker come to who hears here.
        keep: Events that one session keeps.
    """

    def __init__(self, store: RedisStore, *, keep: int) -> None:
        self._store = store
        self._keep = keep
        self._hearer: Callable[[Message], None] | None = None
        self._channels = store.key("to", "")
        self._index = (store.key("sessions", "{index}", "due"), store.key("sessions", "{index}", "owners"))

    @property
    def worker(self) -> str:
        """Its name, known once the store is open."""
        return self._store.worker

    @property
    def epoch(self) -> int:
        """Goes up whenever messages may have been missed."""
        return self._store.epoch

    @property
    def hears(self) -> bool:
        """Whether messages come at present."""
        return self._store.hears

    def hear(self, deliver: Callable[[Message], None] | None) -> None:
        """Have `deliver` called with each message for this worker."""
        ears = self._store.direct
        if not isinstance(ears, _Ears):
            ears = self._store.direct = _Ears()
        ears.give(self._hearer, deliver)
        self._hearer = deliver

    def tell(self, worker: str, message: Message) -> None:
        """Tell one worker, or `ALL`."""
        self._store.tell(worker, encode_message(message))

    async def alive(self, worker: str) -> bool:
        """Whether a worker has been heard of in the last five seconds."""
        return await self._store.alive(worker)

    def _key(self, sid: str) -> str:
        return self._store.key("session", sha256(sid.encode()).hexdigest()[:32])

    async def _run(self, script: Script, sid: str, *args: str | bytes | int) -> Any:
        """A script of one session."""
        return await self._store.run(script, (self._key(sid),), args)

    async def _run_telling(self, script: Script, sid: str, *args: str | bytes | int) -> Any:
        """A script of one session that tells workers something."""
        return await self._store.run(script, (self._key(sid),), (sid, self._channels, *args))

    async def open(self, sid: str, record: Record, state: bytes | None, *, ttl: float, total: int, per_owner: int) -> None:
        """Begin a session: a round trip for its place, one for itself."""
        member, owner = _member(sid, record.owner)
        milliseconds = round(ttl * 1000)
        room = await self._store.run(scripts.TAKE_PLACE, self._index, (member, owner, total, per_owner, milliseconds))
        if isinstance(room, list):
            raise _no_room(record.owner, room[0], room[1], total, per_owner)
        given = [] if state is None else [state]
        if room == 1:
            if await self._run(scripts.CREATE, sid, encode_record(record), record.news, milliseconds, *given):
                return
            await self._release(member, owner)
        raise ValueError("Another session has this id.")

    async def find(self, sid: str, *, renew: bool = True) -> Found | None:
        """The session of this id."""
        found = await self._run(scripts.FIND, sid, int(renew))
        return None if found is None else Found(decode_record(found[0], found[2].decode()), found[1])

    async def change(self, sid: str, revision: int, record: Record) -> int | None:
        """Replace a record, but for its news."""
        told = encode_message(Changed(sid))
        changed: int | None = await self._run(scripts.CHANGE, sid, revision, encode_record(record), told, self._channels + ALL)
        return changed

    # The turn

    async def enter(self, sid: str, ticket: str, *, max_pending: int | None = None) -> Entered | None:
        """Join the queue for the turn."""
        found = await self._run(scripts.ENTER, sid, ticket, "" if max_pending is None else max_pending)
        if found is None:
            return None
        if found[0] == 2:
            raise Fail(Reason.SESSION_OVERLOADED)
        return Entered(found[0] == 1, found[1] if len(found) > 1 else None)

    async def state(self, sid: str) -> bytes | None:
        """The state that was kept last."""
        state: bytes | None = await self._store.execute("HGET", self._key(sid), "s")
        return state

    async def leave(self, sid: str, ticket: str, state: bytes | None = None, answer: Answer | None = None) -> bool:
        """Leave the queue; keep state and answer if it is the ticket's turn."""
        left = ticket, self._keep, int(state is not None), state or b""
        if answer is None:
            return bool(await self._run_telling(scripts.LEAVE, sid, *left))
        return bool(await self._run_telling(scripts.LEAVE_ANSWERING, sid, *left, answer.track, answer.number, answer.note))

    async def evict(self, sid: str, ticket: str) -> None:
        """Take off a dead worker's ticket if it is its turn."""
        await self._run_telling(scripts.EVICT, sid, ticket)

    async def head(self, sid: str) -> str | None:
        """The ticket whose turn it is."""
        return _first(await self._store.execute("HGET", self._key(sid), "q"))

    # Events

    async def number(self, sid: str, many: int = 1) -> int:
        """Take numbers that are unique in the session; the first of them."""
        return int(await self._run(scripts.NUMBER, sid, many))

    async def append(self, sid: str, track: str, first: int, notes: list[bytes], *, worker: str, last: bool) -> bool:
        """Add events to the track of a call."""
        return bool(await self._run_telling(scripts.APPEND, sid, self._keep, track, first, int(last), worker, *notes))

    async def push(self, sid: str, note: bytes, news: str = "") -> int | None:
        """Add an event to `g0`."""
        return await self._run_telling(scripts.PUSH, sid, self._keep, note, news) or None

    async def follow(self, sid: str, track: str, after: int, worker: str) -> Resumed | None:
        """Events of a track above a number, and what comes from now on."""
        found = await self._run_telling(scripts.FOLLOW, sid, track, after, worker)
        if found is None:
            return None
        newest, runner, over = found[0], found[1].decode(), found[2] == 1
        return Resumed(_events(track, newest, found[3:], over=over), newest, runner or None, over)

    async def fail_track(self, sid: str, track: str, note: bytes) -> bool:
        """End the track of a dead worker's call."""
        return bool(await self._run_telling(scripts.FAIL_TRACK, sid, self._keep, track, note))

    # Readers

    async def take_reader(self, sid: str, token: str, *, force: bool = False, after: int | None = None) -> Reading | None:
        """Be the reader of `g0`, or the next in line."""
        found = await self._run_telling(scripts.TAKE_READER, sid, token, int(force), "" if after is None else after)
        return None if found is None else Reading(found[0] == 1, found[1], _events(CHANNEL, found[1], found[2:], over=False))

    async def leave_reader(self, sid: str, token: str) -> None:
        """Be no reader any more."""
        await self._run_telling(scripts.LEAVE_READER, sid, token)

    async def reader(self, sid: str) -> str | None:
        """The reader of `g0`."""
        return _first(await self._store.execute("HGET", self._key(sid), "g"))

    # Time and end

    async def end(self, sid: str, *, due: bool = False) -> Ended | None:
        """End a session; where it was there, a second round trip gives its place back."""
        found = await self._run(scripts.END, sid, int(due), encode_message(Finished(sid)), self._channels + ALL)
        if found is None:
            return None
        record = decode_record(found[0], found[1].decode())
        try:
            await self._release(*_member(sid, record.owner))
        except StoreError as error:  # it has ended all the same; `due` finds the place that nobody has
            _log.debug("The place of a session that has ended is given back later: %s", error)
        return Ended(record, found[2] if len(found) > 2 else None)

    async def due(self, limit: int = 100) -> list[str]:
        """Sessions whose time is up: a round trip where there is nothing to look at, else three; again, as long as none is found."""
        while True:
            looked, found = await self._look(limit)
            if found or looked < limit:
                return found

    async def _look(self, limit: int) -> tuple[int, list[str]]:
        """How many were looked at, and those whose time is up."""
        members = [member.decode() for member in await self._store.run(scripts.LOOK, self._index, (limit,))]
        if not members:
            return 0, []
        sids = [member.partition(" ")[0] for member in members]
        left = await asyncio.gather(*(self._store.execute("PTTL", self._key(sid)) for sid in sids))
        found, again, gone = list[str](), list[str | int](), list[str]()
        for sid, member, milliseconds in zip(sids, members, left, strict=True):
            if milliseconds < 0:
                gone.append(member)
            elif milliseconds > scripts.GRACE:
                again += [milliseconds - scripts.GRACE, member]
            else:
                found.append(sid)
                again += [round(AGAIN * 1000), member]
        await asyncio.gather(
            self._store.run(scripts.LOOK_AGAIN, self._index, tuple(again)),
            *(self._release(member, member.partition(" ")[2]) for member in gone),
        )
        return len(members), found

    async def touch(self, sids: list[str]) -> None:
        """Let the time of sessions begin anew: one round trip for all of them."""
        await asyncio.gather(*(self._run(scripts.TOUCH, sid) for sid in sids))

    async def count(self) -> int:
        """How many sessions there are."""
        return int(await self._store.execute("ZCARD", self._index[0]))

    async def _release(self, member: str, owner: str) -> None:
        await self._store.run(scripts.RELEASE, self._index, (member, owner))


def _member(sid: str, owner: str | None) -> tuple[str, str]:
    """How the index names a session, and its owner: as long as a hash, whatever a principal is called."""
    if owner is None:
        return sid, ""
    name = sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{sid} {name}", name


def _first(line: bytes | None) -> str | None:
    return line.decode().partition(" ")[0] if line else None


def _events(track: str, newest: int, notes: list[bytes], *, over: bool) -> list[Event]:
    """Events whose notes come from the newest back."""
    numbers = range(newest, newest - len(notes), -1)
    events = [Event(track, number, note, over and number == newest) for number, note in zip(numbers, notes, strict=True)]
    events.reverse()
    return events


def _no_room(owner: str | None, taken: int, own: int, total: int, per_owner: int) -> Fail:
    """Why a session can't begin, in the words in which one server alone says it."""
    places = Places("sessions", "max_sessions", lambda principal, *, is_full: None)  # noqa: ARG005 - as it is called
    places.taken = taken
    if owner is not None:
        places.per_principal[owner] = own
    try:
        places.take(owner, total, per_owner)
    except Fail as fail:
        return fail
    return Fail(Reason.OVERLOADED)
