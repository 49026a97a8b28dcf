"""Machine of one request: what its answer looks like on the way out. Sans-IO; a transport's shell writes what `take` hands it.

States::

    OPEN ── emit ──> STREAMING ── finish ──> DONE
     ├───── finish ─────────────────────────> DONE        (buffered: one JSON answer, its own HTTP status)
     └───── cancel (from OPEN or STREAMING) > CANCELLED

Rules:
    1. The head is chosen once: by the first emission (200, event stream) or by `finish` (the outcome's status, JSON).
    2. Where the client can't stream (`streams` is False) emissions are dropped and the answer is buffered.
    3. After `finish` or `cancel` nothing is accepted (PR-04); after `cancel` nothing leaves either (HM-15).
    4. What waits is bounded. Past a sixteenth of its `cap` (`SOFT_CAP` bytes) a note replaces the waiting one of the same key (progress, list_changed), a
       droppable one (a log) is dropped and counted. The result is always accepted. Past `cap` (`HARD_CAP`) the exchange overflows: it
       cancels itself, so that a reader who never reads costs bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import msgspec

__all__ = ["HARD_CAP", "SOFT_CAP", "Exchange", "State", "Write"]

# Bytes that may wait for a slow reader before notes coalesce, and before the stream is given up.
SOFT_CAP = 256 * 1024
HARD_CAP = 4 * 1024 * 1024


class State(Enum):
    """Where an exchange stands; see the module's table."""

    OPEN = auto()
    STREAMING = auto()
    DONE = auto()
    CANCELLED = auto()


# Looking a member up in its enum costs more than the whole transition.
_OPEN, _STREAMING, _DONE, _CANCELLED = State


class Write(msgspec.Struct):
    """What the shell must write next.

    Attributes:
        status: HTTP status of the head, or 0 when the head has gone out before.
        streaming: Whether the head announces an event stream; meaningless without `status`.
        notes: Encoded JSON-RPC messages, in order; a stream frames each of them.
        last: Whether the answer ends with this write.
    """

    status: int
    streaming: bool
    notes: list[bytes]
    last: bool


class Exchange:
    """One request's way out.

    Args:
        wake: Called whenever a note has come to wait and nothing did before, and on overflow: the shell's cue to write. `finish` does
            not call it.
        streams: Whether the client takes a stream (rule 2).
        streams_only: Whether it takes nothing else: then a good answer is a stream too.
        cap: Bytes that may wait (rule 4).

    Attributes:
        cap: As given.
        held: A note that is said before the answer, if at all.
        retry_after: Seconds after which a refused client should try again, where the answer's status has room for that.
        challenge: What a client that lacks a scope is told to get; likewise.
    """

    __slots__ = (
        "_drained",
        "_ended",
        "_head",
        "_keyed",
        "_size",
        "_status",
        "_waiting",
        "cap",
        "challenge",
        "dropped",
        "held",
        "overflowed",
        "retry_after",
        "state",
        "streams",
        "streams_only",
        "wake",
    )

    def __init__(self, wake: Callable[[], None], *, streams: bool = True, streams_only: bool = False, cap: int = HARD_CAP) -> None:
        self.state = _OPEN
        self.streams = streams
        self.streams_only = streams_only
        self.wake = wake
        self.cap = cap
        self.dropped = 0
        self.held: bytes | None = None
        self.overflowed = False
        self.retry_after = 1
        self.challenge: bytes | None = None
        self._status = 0
        self._head = False
        self._ended = False
        self._waiting: list[bytes] = []
        self._keyed: dict[str, int] | None = None
        self._drained: list[Callable[[], None]] | None = None
        self._size = 0

    @property
    def open(self) -> bool:
        """Whether emissions are still taken."""
        return self.state is _OPEN or self.state is _STREAMING

    @property
    def begun(self) -> bool:
        """Whether the head has been handed over."""
        return self._head

    @property
    def ended(self) -> bool:
        """Whether the last of it has been handed over."""
        return self._ended

    @property
    def size(self) -> int:
        """Bytes that wait to be handed over."""
        return self._size

    @property
    def congested(self) -> bool:
        """Whether the reader is behind (rule 4)."""
        return self._size > self.cap >> 4

    def when_drained(self, call: Callable[[], None]) -> None:
        """Have `call` called once when the reader has caught up or the exchange is over."""
        if self._drained is None:
            self._drained = []
        self._drained.append(call)

    def emit(self, note: bytes, *, key: str = "", droppable: bool = False) -> bool:
        """Take one notification.

        Args:
            note: The encoded JSON-RPC message.
            key: Notes of the same key may replace each other while they wait.
            droppable: Whether it may be lost when the reader is behind.

        Returns:
            Whether it was taken.
        """
        if not self.streams or (self.state is not _STREAMING and self.state is not _OPEN):
            return False
        if self._size > self.cap >> 4:
            return self._emit_congested(note, key, droppable=droppable)
        self.state = _STREAMING
        self._push(note)
        return True

    def _emit_congested(self, note: bytes, key: str, *, droppable: bool) -> bool:
        if droppable:
            self.dropped += 1
            return False
        keyed = self._keyed = {} if self._keyed is None else self._keyed
        if key and (index := keyed.get(key)) is not None:
            self._size += len(note) - len(self._waiting[index])
            self._waiting[index] = note
            return True
        if self._size > self.cap:
            self.overflowed = True
            self.cancel()
            self.wake()
            return False
        if key:
            keyed[key] = len(self._waiting)
        self._push(note)
        return True

    def _push(self, note: bytes) -> None:
        first = not self._waiting
        self._waiting.append(note)
        self._size += len(note)
        if first:
            self.wake()

    def open_stream(self) -> None:
        """Begin the stream before there is a note; without effect where the client can't stream, or the head is chosen."""
        if self.streams and self.state is _OPEN:
            self.state = _STREAMING
            self.wake()

    def restart(self) -> None:
        """Go on after an overflow: what waited is lost, what comes is taken."""
        self.overflowed = False
        self.state = _STREAMING

    def reopen(self, wake: Callable[[], None]) -> None:
        """Go on over another connection: the head of a stream goes out again.

        Args:
            wake: The new shell's.
        """
        self.wake = wake
        self._head = False
        self._status = 0

    def finish(self, status: int, answer: bytes) -> None:
        """Take the answer; without effect when the exchange is over.

        Args:
            status: HTTP status; counts only while the head is open (rule 1).
            answer: The encoded JSON-RPC response, or empty for none.
        """
        if self.state is _OPEN:
            self._status = 0 if self.streams_only and status == 200 else status
        elif self.state is not _STREAMING:
            return
        self.state = _DONE
        if self.held is not None and answer and self._status == 0:
            self._waiting.append(self.held)
            self._size += len(self.held)
        if answer:
            self._waiting.append(answer)
            self._size += len(answer)

    def cancel(self) -> None:
        """Give the exchange up: nothing more is taken or written."""
        if self.open:
            self.state = _CANCELLED
            self._clear()

    def take(self) -> Write | None:
        """Hand over what waits, or None when there is nothing to write."""
        notes, last = self._waiting, self.state is _DONE
        if not (notes or last or (self.state is _STREAMING and not self._head)) or self.state is _CANCELLED or self._ended:
            return None
        self._ended = last
        status, streaming = (0, False) if self._head else (self._status or 200, self._status == 0)
        self._head = True
        if self._drained is None:
            self._waiting, self._keyed, self._size = [], None, 0
        else:
            self._clear()
        return Write(status, streaming, notes, last)

    def _clear(self) -> None:
        self._waiting, self._keyed, self._size = [], None, 0
        if self._drained is not None:
            calls, self._drained = self._drained, None
            for call in calls:
                call()
