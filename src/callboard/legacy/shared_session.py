"""The machine of what one worker has of a session that others serve, too, and what of its calls' events the store has."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable

import msgspec

from callboard.errors import StoreError
from callboard.legacy.codec import Opening
from callboard.legacy.session import Call, Session, Track
from callboard.legacy.stored import CHANNEL, Record
from callboard.wire.jsonrpc import RequestId, encode

__all__ = ["Delta", "Saving", "SharedSession", "as_record", "find_place", "read_track"]

# Bytes of events that wait for the store; a track with more can't be resumed.
MAX_UNSAVED = 1024 * 1024
# Characters of a request id, as JSON, that are a part of its track's name.
MAX_NAMED = 60


def name_track(mark: str, number: int, request_id: RequestId) -> str:
    """A name for the track of a call that no other worker makes, with the id in it: if its worker dies, another one answers with an error."""
    told = encode(request_id)
    named = urlsafe_b64encode(told).rstrip(b"=").decode() if len(told) <= MAX_NAMED else ""
    return f"c{mark}.{number}.{named}"


def read_track(name: str) -> RequestId | None:
    """The id of the request whose track it is; None where the name does not have it."""
    named = name.rpartition(".")[2]
    try:
        return msgspec.json.decode(urlsafe_b64decode(named + "=" * (-len(named) % 4)), type=int | str)
    except ValueError:
        return None


class SharedSession(Session):
    """The machine of what one worker has of a session.

    Attributes:
        mark: What the tracks of its calls begin with.
    """

    __slots__ = ("mark",)

    mark: str

    def open_track(self, call: Call) -> Track:
        """The track of a call, which no other worker has one of the same name as."""
        if call.track is None:
            self._opened += 1
            call.track = self._add(Track(name_track(self.mark, self._opened, call.id), call))
        return call.track

    def stamp(self, track: Track, notes: list[bytes]) -> bytes:
        """Make messages events; those of `g0` are kept in the store alone."""
        if track.name != CHANNEL or not self._keep:
            return Session.stamp(self, track, notes)
        first = track.last + 1
        track.last += len(notes)
        return b"".join(b"id: %b-%d\ndata: %b\n\n" % (CHANNEL.encode(), number, note) for number, note in enumerate(notes, first))


class Saving:
    """What of a call's track the store has.

    Attributes:
        saved: Number of the newest event that it has; -1 where it does not take any more.
        waiting: Events that it is to have.
    """

    __slots__ = ("_lock", "saved", "waiting")

    def __init__(self) -> None:
        self.saved = 0
        self.waiting: list[bytes] = []
        self._lock = asyncio.Lock()

    async def flush(self, append: Callable[[int, list[bytes]], Awaitable[bool]]) -> None:
        """Have the store take what waits; where too much does, it takes nothing of this track any more.

        Args:
            append: Adds events from a number on; whether they were taken.

        Raises:
            StoreError: It can't be reached: they wait on.
        """
        async with self._lock:  # so that events come in order
            waiting, self.waiting = self.waiting, []
            if self.saved < 0 or (self.saved and not waiting):
                return
            try:
                taken = await append(self.saved + 1, waiting)
            except BaseException as error:  # whether it has them is not known: they are offered again
                self.waiting = [*waiting, *self.waiting]
                if sum(map(len, self.waiting)) > MAX_UNSAVED:
                    self.saved, self.waiting = -1, []
                    if isinstance(error, StoreError):
                        return
                raise
            if taken:
                self.saved += len(waiting)
            else:
                self.saved, self.waiting = -1, []


class Delta(msgspec.Struct, frozen=True, eq=False):
    """One change of a record, so that what others change at the same time is kept.

    Attributes:
        level: The log level from now on; None to leave it.
        initialized: Whether the client has said that it is.
        topic: What is heard from now on, or no more; empty for no change.
        heard: Which of the two.
    """

    level: str | None = None
    initialized: bool = False
    topic: str = ""
    heard: bool = True

    def apply(self, record: Record) -> Record:
        """The record with this change."""
        topics = set(record.topics)
        if self.topic and self.heard:
            topics.add(self.topic)
        topics -= set() if self.heard else {self.topic}
        level, initialized = self.level or record.log_level, self.initialized or record.initialized
        return msgspec.structs.replace(record, log_level=level, initialized=initialized, topics=tuple(sorted(topics)))


def find_place(position: str) -> tuple[int, int]:
    """A position of the Bus, to be compared."""
    major, _, minor = position.partition("-")
    return int(major or 0), int(minor or 0)


def as_record(opening: Opening, owner: str | None, topics: tuple[str, ...], news: str) -> Record:
    """The record of a session that begins."""
    return Record(owner, opening.version, bytes(opening.params), topics, news=news)
