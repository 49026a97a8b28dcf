"""What the workers of one server share of the sessions of 2025 clients: the contract; `stored_memory.py` and `stored_redis.py` keep it.

Any worker may serve any session. What must be known of one everywhere is its *record*, which the workers cache; what its calls change in
turn is its *state*; what its client may ask for again are *events*.

Rules that every implementation keeps, whatever its workers do and wherever they die:
    1. Tickets have their turn in the order in which they entered. A ticket that was evicted, and one of a session that has ended, keeps
       nothing: neither its state nor its answer.
    2. A track's events have the numbers 1, 2, 3 ... without hole or double. Of all tracks of a session the newest `keep` events, and at
       most `MAX_KEPT` bytes of their notes, stay; the newest stays whatever its size.
    3. A session ends once: one caller of `end` gets what it was. From then on it is unknown, and its place is free.
    4. Time is the store's, not the workers'. A session whose time is up is there until somebody ends it (`due`), so that it is seen
       off; found before that, it lives on.
    5. Of what a method says that it tells, a worker may miss some (`epoch`): whoever waits for a message looks after a while.

Where a method raises StoreError it may have happened or not. All but `open`, `number`, `push` without news and `end` can be called again
then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

__all__ = [
    "AGAIN",
    "ALL",
    "CHANNEL",
    "Answer",
    "Changed",
    "Ended",
    "Entered",
    "Event",
    "Finished",
    "Found",
    "Message",
    "Moved",
    "Occurred",
    "Read",
    "Reading",
    "Record",
    "Relayed",
    "Resumed",
    "SessionStore",
    "Turned",
    "Yielded",
    "decode_message",
    "decode_record",
    "encode_message",
    "encode_record",
    "plain",
    "worker_of",
]

_log = logging.getLogger("callboard")
# The track of what belongs to no call.
CHANNEL = "g0"
# Seconds after which `due` names a session again that nobody has ended.
AGAIN = 5.0
# To whom is told what is for all workers.
ALL = "all"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a session in every worker. Change it with `msgspec.structs.replace` and `SessionStore.change`.

    Attributes:
        owner: Who alone may use it; None for nobody in particular.
        version: Protocol version.
        opening: Params of `initialize` as the client sent them, JSON.
        topics: What it hears: `topic:<name>` and `uri:<uri>`.
        log_level: Least severity of log messages that its client wants.
        initialized: Whether its client has sent `notifications/initialized`.
        news: Position of the Bus up to which broadcasts are events of it. Only `push` moves it; `change` leaves it as it is.
    """

    owner: str | None
    version: str
    opening: bytes
    topics: tuple[str, ...] = ()
    log_level: str = "info"
    initialized: bool = False
    news: str = ""


class Found(NamedTuple):
    """A session's record and the revision that `change` must name."""

    record: Record
    revision: int


class Entered(NamedTuple):
    """Where a ticket stands.

    Attributes:
        turn: Whether it is the head of the queue. If not, `Turned` comes when it is.
        state: The state then; None where the session has none, and for a ticket that waits.
    """

    turn: bool
    state: bytes | None


class Answer(NamedTuple):
    """The answer of a call, as the last event of its track.

    Attributes:
        track: The track.
        note: The message.
        number: The event's number; 1 where nothing went out before.
    """

    track: str
    note: bytes
    number: int = 1


class Ended(NamedTuple):
    """What a session was."""

    record: Record
    state: bytes | None


class Event(NamedTuple):
    """One event. `last`: nothing follows on its track."""

    track: str
    number: int
    note: bytes
    last: bool


class Resumed(NamedTuple):
    """What there is on a track.

    Attributes:
        events: Those that were asked for and are still kept, in order, without hole.
        newest: Number of the newest event of the track.
        worker: Who runs its call; None when it is over, and for `g0`.
        over: Whether nothing more comes.
    """

    events: list[Event]
    newest: int
    worker: str | None
    over: bool


class Reading(NamedTuple):
    """Where a reader of `g0` stands.

    Attributes:
        turn: Whether it is the one. If not, `Read` comes when it is.
        newest: Number of the newest event of `g0`.
        events: Those that were asked for, when it is the one.
    """

    turn: bool
    newest: int
    events: list[Event]


# What workers are told. Messages are msgpack arrays, the first item says which it is.


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """To all: a record is another now."""

    session: str


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """To all: a session has ended."""

    session: str


class Turned(msgspec.Struct, frozen=True, array_like=True, tag="turn"):
    """It is this ticket's turn: `state` has the state."""

    session: str
    ticket: str


class Occurred(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """An event of a track that this worker follows, or of `g0` whose reader is its."""

    session: str
    track: str
    number: int
    note: bytes
    last: bool


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """The client that read this track here has come back for it elsewhere: hang up."""

    session: str
    track: str


class Yielded(msgspec.Struct, frozen=True, array_like=True, tag="yield"):
    """This reader of `g0` is it no more, another has taken its place: hang up."""

    session: str
    token: str


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """This reader that stood in line is the reader of `g0` now; `newest` is the number of its newest event."""

    session: str
    token: str
    newest: int


class Relayed(msgspec.Struct, frozen=True, array_like=True, tag="relay"):
    """What one worker says to another of a session: the shell's own kinds."""

    session: str
    kind: str
    body: bytes


Message = Changed | Finished | Turned | Occurred | Moved | Yielded | Read | Relayed

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_records = msgspec.msgpack.Decoder(Record)


def encode_message(message: Message) -> bytes:
    """A message as it travels."""
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message | None:
    """A message that came; None for one that can't be read, which is logged: workers of two releases may share a store for a while."""
    try:
        return _messages.decode(data)
    except msgspec.DecodeError as error:
        _log.warning("A message of another worker can't be read (%s): do all workers run the same release?", error)
        return None


def plain(record: Record) -> Record:
    """A record whose owner is no more than a name, whatever kind of str a transport gives: what else is known of them is a request's."""
    owner = record.owner
    return record if owner is None or type(owner) is str else msgspec.structs.replace(record, owner=str(owner))


def encode_record(record: Record) -> bytes:
    """A record as it is kept."""
    return _encoder.encode(plain(record))


def decode_record(data: bytes, news: str = "") -> Record:
    """A record that was kept.

    Args:
        data: As `encode_record` made it.
        news: Its news now.
    """
    record = _records.decode(data)
    return record if record.news == news else msgspec.structs.replace(record, news=news)


def worker_of(name: str) -> str:
    """The worker whose ticket or token, `<worker>:<number>`, this is."""
    return name.partition(":")[0]


class SessionStore(Protocol):
    """Sessions in a store that the workers of one server share.

    A ticket and a token is `<worker>:<number>`, a track a name without blanks and `!`; no two are the same in a session's life.

    Attributes:
        worker: Name of this worker; random, without `:`.
        epoch: Goes up whenever messages may have been missed: what was cached on the word of messages is stale then.
        hears: Whether messages come at present.
    """

    @property
    def worker(self) -> str:
        """See the class."""
        ...

    @property
    def epoch(self) -> int:
        """See the class."""
        ...

    @property
    def hears(self) -> bool:
        """See the class."""
        ...

    def hear(self, deliver: Callable[[Message], None] | None) -> None:
        """Have `deliver` called on the event loop with each message for this worker; None for nobody."""
        ...

    def tell(self, worker: str, message: Message) -> None:
        """Tell one worker, or `ALL` of them, this one too. Nobody waits for it, and it may be lost."""
        ...

    async def alive(self, worker: str) -> bool:
        """Whether a worker has been heard of in the last five seconds. One that is not may still be there, cut off."""
        ...

    async def open(self, sid: str, record: Record, state: bytes | None, *, ttl: float, total: int, per_owner: int) -> None:
        """Begin a session.

        Args:
            sid: Its id: visible ASCII without blanks.
            record: Its record.
            state: Its state; None for none.
            ttl: Seconds that it may be idle.
            total: How many sessions there may be.
            per_owner: How many its owner may have; no matter where it has none.

        Raises:
            Fail: There is no room (OVERLOADED), worded as `Places` does.
            ValueError: Another session has this id; where there is no room either, one of the two.
        """
        ...

    async def find(self, sid: str, *, renew: bool = True) -> Found | None:
        """The session of this id; None for none. Its time begins anew, unless `renew` is False: whoever asks may be nobody to it."""
        ...

    async def change(self, sid: str, revision: int, record: Record) -> int | None:
        """Replace a record, but for its `news`. Tells `Changed` to all. Called again after StoreError, it is as if somebody was faster.

        Returns:
            The new revision; None when somebody was faster or there is no such session: find it again.
        """
        ...

    async def enter(self, sid: str, ticket: str, *, max_pending: int | None = None) -> Entered | None:
        """Join the queue for the turn; a ticket that is in it stays where it is. The session's time begins anew.

        Args:
            sid: The session.
            ticket: Who wants the turn.
            max_pending: How many may wait, the one whose turn it is not counted; None for any number.

        Returns:
            Where it stands; None for no such session.

        Raises:
            Fail: Too many wait (SESSION_OVERLOADED).
        """
        ...

    async def state(self, sid: str) -> bytes | None:
        """The state that was kept last; None where there is none."""
        ...

    async def leave(self, sid: str, ticket: str, state: bytes | None = None, answer: Answer | None = None) -> bool:
        """Leave the queue. If it is the ticket's turn, keep its state and its answer, and tell `Turned` to the worker of the next.

        The answer is the last event of its track; `Occurred` is told as by `append`. The session's time begins anew.

        Args:
            sid: The session.
            ticket: Whose turn it is, or was.
            state: The state to be kept; None to leave it.
            answer: What the call came to; None where that is not to be an event.

        Returns:
            Whether it was its turn. If not, nothing is kept; a ticket that waited is taken out. Called again for the one that has left
            last, it says so again and changes nothing: after StoreError that tells whether it was through, unless another has left since.
        """
        ...

    async def evict(self, sid: str, ticket: str) -> None:
        """Take off a dead worker's ticket if it is its turn, and tell `Turned` to the worker of the next."""
        ...

    async def head(self, sid: str) -> str | None:
        """The ticket whose turn it is; None for none."""
        ...

    async def number(self, sid: str, many: int = 1) -> int:
        """Take so many numbers that are unique in the session, from 1; the first of them. 0 for no such session."""
        ...

    async def append(self, sid: str, track: str, first: int, notes: list[bytes], *, worker: str, last: bool) -> bool:
        """Add events to the track of a call. Where events are there already, they are not added again.

        Without notes, and 1 for `first`, it only says that `worker` runs the call of the track. `Occurred` is told to the worker that
        follows the track, if it is another.

        Args:
            sid: The session.
            track: The track.
            first: Number of the first of them; 1 begins the track.
            notes: The messages; they may be empty unless `last`.
            worker: Who runs the call.
            last: Whether nothing follows.

        Returns:
            Whether they are events now. If not, the track is over (`fail_track`), there is no such session, or events before `first` are
            missing.
        """
        ...

    async def push(self, sid: str, note: bytes, news: str = "") -> int | None:
        """Add an event to `g0`, and tell `Occurred` to the worker of its reader, this one too.

        Args:
            sid: The session.
            note: The message.
            news: Position on the Bus where it is from: only what is above the record's `news` is added, which becomes this. So whoever
                pushes news pushes all that the session hears, in order. Empty for what only one worker knows of.

        Returns:
            The event's number; None when it was there before, or there is no such session.
        """
        ...

    async def follow(self, sid: str, track: str, after: int, worker: str) -> Resumed | None:
        """Events of a track above a number. What comes on it from now on is told to `worker`, too, unless that runs the call itself.

        `Moved` is told to the worker that followed before, or that runs the call, if it is another. `g0` is followed by its reader alone
        (`take_reader`).

        Returns:
            None when `after` is no event of the track: none that went out (0: before the first), or the track is over and forgotten.
        """
        ...

    async def fail_track(self, sid: str, track: str, note: bytes) -> bool:
        """End the track of a dead worker's call with one more event; `Occurred` is told to who follows it. Whether it was not over yet."""
        ...

    async def take_reader(self, sid: str, token: str, *, force: bool = False, after: int | None = None) -> Reading | None:
        """Be the reader of `g0`, or the next in line. A token that is one already stays where it is.

        Args:
            sid: The session.
            token: The reader.
            force: Be it at once (a client that resumes): `Yielded` is told to the worker of the one before, which is out of the line.
            after: Number of the event above which it wants those that are kept; None for none. Above the newest: it is not taken.

        Returns:
            Where it stands; None for no such session.
        """
        ...

    async def leave_reader(self, sid: str, token: str) -> None:
        """Be no reader any more; `Read` is told to the worker of the next in line. For a dead worker's token, too."""
        ...

    async def reader(self, sid: str) -> str | None:
        """The reader of `g0`; None for none."""
        ...

    async def end(self, sid: str, *, due: bool = False) -> Ended | None:
        """End a session. Tells `Finished` to all.

        Args:
            sid: The session.
            due: Only if its time is up.

        Returns:
            What it was, to one caller; None when it had ended before, or its time is not up.
        """
        ...

    async def due(self, limit: int = 100) -> list[str]:
        """Sessions whose time is up: end them. One that is named here is named again after `AGAIN` seconds, if it is still there.

        Args:
            limit: How many sessions to name at most: where there are some, call again for more. Each is looked at once in its `ttl`, and
                seldom while it is in use.
        """
        ...

    async def touch(self, sids: list[str]) -> None:
        """Let the time of sessions begin anew: those with open streams and long calls."""
        ...

    async def count(self) -> int:
        """How many sessions there are."""
        ...
