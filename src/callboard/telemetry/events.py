"""What a server tells of its work: the events, and the `Sink` that takes them.

Whatever an event says is bounded. Names of methods and components are those that the server knows; what a client made up is `other`.
Nobody's name, no session's id, no argument, no text of an error is in one: of principals and sessions keyed hashes, the ones of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec

__all__ = [
    "EVENTS",
    "OTHER",
    "OUTCOMES",
    "AuthChecked",
    "Event",
    "Levels",
    "RequestRefused",
    "RequestStarted",
    "RequestStopped",
    "ServerClosed",
    "ServerOpened",
    "SessionEnded",
    "SessionOpened",
    "Sink",
    "StoreUsed",
    "StreamClosed",
    "StreamOpened",
    "TaskEnded",
    "TaskStarted",
    "read_size",
]

OTHER = "other"
"""What stands for a name that the server does not know."""

OUTCOMES = ("ok", "tool_error", "error", "input_required", "task", "accepted", "cancelled", "timed_out", "aborted")
"""What a request can come to: answered; answered with `isError`; a JSON-RPC error; the client is asked; goes on as a task; taken without an
answer; its client does not wait any more; took longer than it may; ended from outside."""


# Digits of a length that is one, and lengths that are remembered: most requests are as long as others before them.
_LONGEST, _LENGTHS = 11, 1024


class Levels(NamedTuple):
    """How much of everything there is at this moment, of all that serves one server in this process.

    Attributes:
        in_flight: Requests that are worked on; listen streams are none.
        threads_busy: `def` functions that run on a thread.
        threads: How many may run at once.
        thread_queue: Calls that wait for a thread.
        buffered_bytes: Bytes of request bodies that are held, and of answers that their clients have not read yet.
    """

    in_flight: int = 0
    threads_busy: int = 0
    threads: int = 0
    thread_queue: int = 0
    buffered_bytes: int = 0


class ServerOpened(msgspec.Struct, frozen=True):
    """A server begins to serve through one transport.

    Attributes:
        server: Its name.
        version: Its version.
        levels: Tells how much there is; from any thread.
    """

    server: str
    version: str
    levels: Callable[[], Levels]
    name: ClassVar[str] = "server.open"


class ServerClosed(msgspec.Struct, frozen=True):
    """A transport of a server has ended.

    Attributes:
        server: Its name.
    """

    server: str
    name: ClassVar[str] = "server.close"


class Names(Protocol):
    """What makes names: the server's journal. Most of them nobody asks for."""

    def name(self, headers: Mapping[bytes, bytes] | None, meta: msgspec.Raw | None) -> str:
        """The id of a request."""
        ...

    def hash(self, name: str | None) -> str | None:
        """What stands for a principal or a session."""
        ...


class RequestStarted(msgspec.Struct, eq=False, gc=False):
    """A request begins to be served. Its `RequestStopped` has this very object, so that a sink can keep what it knows of it by that.

    Told in the task that serves it: what a sink puts into a context variable here, the author's functions find there.

    Attributes:
        method: Protocol method.
        component: Tool or prompt that it names; of a resource the URI that was declared, or the template or prefix that it fits; `other`
            for what the server does not know; None where the method names none.
        version: Protocol version.
        transport: `http`, `sse` (of 2024-11-05), or `pipe`.
        traced: Whether `trace` or `http_trace` may say something; with False both are empty.
    """

    name: ClassVar[str] = "request.start"

    # The garbage collector does not look into it, which would cost more than all that is in it: nothing of it leads back to it, but the token
    # for as long as the request is served.
    _request: str | None
    method: str
    component: str | None
    version: str
    transport: str
    traced: bool = False
    _began: float = 0.0
    _rpc_id: str | int | None = None
    _journal: Names | None = None
    _principal: str | None = None
    _session: str | None = None
    _headers: Mapping[bytes, bytes] | None = None
    _meta: msgspec.Raw | None = None
    _said: dict[str, str] | None = None
    _token: Any = None

    @property
    def request(self) -> str:
        """Its id, as in the log and in error texts."""
        if self._request is None:
            self._request = "" if self._journal is None else self._journal.name(self._headers, self._meta)
        return self._request

    @property
    def rpc_id(self) -> str | None:
        """Its JSON-RPC id as text, 80 characters at most; None for none."""
        return None if self._rpc_id is None else str(self._rpc_id)[:80]

    @property
    def principal(self) -> str | None:
        """What stands for who asks: a keyed hash, `server.journal.hash(name)`; None for nobody."""
        return None if self._journal is None or self._principal is None else self._journal.hash(self._principal)

    @property
    def session(self) -> str | None:
        """What stands for its session: a keyed hash; None for none."""
        return None if self._journal is None or self._session is None else self._journal.hash(self._session)

    @property
    def trace(self) -> dict[str, str]:
        """`traceparent`, `tracestate` and `baggage` of its `_meta`, those that are there (SEP-414)."""
        if self._said is None:
            self._said = {} if self._meta is None else _read_trace(self._meta)
        return self._said

    @property
    def http_trace(self) -> dict[str, str]:
        """The same of its HTTP headers."""
        headers = self._headers
        if headers is None or b"traceparent" not in headers:
            return {}
        return _pick({key: value.decode("latin-1") for key in _CARRIED if (value := headers.get(key.encode())) is not None})

    @property
    def bytes_in(self) -> int | None:
        """Bytes of the HTTP body, as its header says; None where nothing does."""
        return read_size(self._headers)

    def let_go(self) -> None:
        """Keep no more than is told: a `_meta` holds the whole body that it stood in."""
        if self._meta is not None:
            self._request, self._said = self.request, self.trace
            self._meta = None

    def __repr__(self) -> str:
        """Without who asks, its session, and its headers."""
        return f"<RequestStarted {self.request} {self.method} {self.component!r}>"


def read_size(headers: Mapping[bytes, bytes] | None) -> int | None:
    """Bytes of an HTTP body, as its header says; None where nothing does.

    Args:
        headers: HTTP headers by lower-case name; None without HTTP.
    """
    length = None if headers is None else headers.get(b"content-length")
    return None if length is None or len(length) > _LONGEST else _read_number(length)


@lru_cache(_LENGTHS)
def _read_number(text: bytes) -> int | None:
    return int(text) if text.isdigit() else None


_decode_meta = msgspec.json.Decoder(dict[str, Any]).decode
# What a trace's context travels in, and how much of it is read. Without a traceparent the rest says nothing.
_CARRIED = {"traceparent": 200, "tracestate": 512, "baggage": 8192}


def _read_trace(meta: msgspec.Raw) -> dict[str, str]:
    try:
        return _pick(_decode_meta(meta))
    except (msgspec.DecodeError, RecursionError):
        return {}


def _pick(said: Mapping[str, Any]) -> dict[str, str]:
    found = {
        key: value
        for key, most in _CARRIED.items()
        if isinstance(value := said.get(key), str) and len(value) <= most and value.isascii() and value.isprintable()
    }
    return found if "traceparent" in found else {}


class RequestStopped(msgspec.Struct, frozen=True, gc=False):
    """A request is over; of a listen stream: it has ended.

    Attributes:
        started: How it began.
        outcome: One of `OUTCOMES`.
        seconds: From when it was read to its answer.
        bytes_out: Bytes of the answer; None where there was none.
        code: JSON-RPC code of an error; None without.
        reason: Name of the error's `Reason`; None without.
        error_id: What the error's text and the log's traceback call it by, where a function failed in a way that is not its own doing; None
            otherwise.
        stop_reason: Why its session ends with it, in the author's words; None where it goes on.
    """

    started: RequestStarted
    outcome: str
    seconds: float
    bytes_out: int | None = None
    code: int | None = None
    reason: str | None = None
    error_id: str | None = None
    stop_reason: str | None = None
    name: ClassVar[str] = "request.stop"


class RequestRefused(msgspec.Struct, frozen=True):
    """A request was refused before it came to run: unreadable, unknown, from the wrong place, without a credential, or too much.

    Attributes:
        request: Its id, as in the log.
        method: Protocol method, or HTTP's where that was not read; None where neither is known.
        reason: Name of the error's `Reason`, such as `RATE`, `HOST`, `SESSION_NOT_FOUND` or `PARSE`.
        code: JSON-RPC code.
        transport: `http` or `pipe`.
    """

    request: str
    method: str | None
    reason: str
    code: int
    transport: str
    name: ClassVar[str] = "request.refused"


class SessionOpened(msgspec.Struct, frozen=True):
    """A session of a 2025 client has begun.

    Attributes:
        session: What stands for its id: a keyed hash.
        version: Protocol version.
        transport: `http`, `sse` or `pipe`.
    """

    session: str
    version: str
    transport: str
    name: ClassVar[str] = "session.open"


class SessionEnded(msgspec.Struct, frozen=True):
    """A session has ended.

    Attributes:
        session: What stands for its id: a keyed hash.
        reason: `deleted`, `expired`, `shutdown`, `closed`, or what a function said (`stop_reason`), 80 characters at most.
        seconds: How long it lived; None where it began in another process.
    """

    session: str
    reason: str
    seconds: float | None
    name: ClassVar[str] = "session.end"


class StreamOpened(msgspec.Struct, frozen=True):
    """A stream opens that stays open until somebody closes it.

    Attributes:
        kind: `listen` (subscriptions/listen), or `get`: a GET of a 2025 client.
    """

    kind: str
    name: ClassVar[str] = "stream.open"


class StreamClosed(msgspec.Struct, frozen=True):
    """It has closed.

    Attributes:
        kind: As when it opened.
        seconds: How long it was open.
    """

    kind: str
    seconds: float
    name: ClassVar[str] = "stream.close"


class AuthChecked(msgspec.Struct, frozen=True):
    """A verifier looked at a credential; what is remembered from the last minute is not looked at again.

    Attributes:
        outcome: `granted`, `missing`, `malformed`, `invalid`, `unavailable`, `scope` (not all that every request needs), or `crash`: the verifier failed.
        seconds: How long it took.
    """

    outcome: str
    seconds: float
    name: ClassVar[str] = "auth.check"


class TaskStarted(msgspec.Struct, frozen=True):
    """A call goes on as a task of the protocol.

    Attributes:
        component: The tool.
    """

    component: str
    name: ClassVar[str] = "task.start"


class TaskEnded(msgspec.Struct, frozen=True):
    """A task is over.

    Attributes:
        component: The tool.
        status: `completed`, `failed` or `cancelled`.
        seconds: From its beginning; None where it began in another process.
    """

    component: str
    status: str
    seconds: float | None
    name: ClassVar[str] = "task.end"


class StoreUsed(msgspec.Struct, frozen=True):
    """A store that processes share has answered, or has not.

    Attributes:
        operation: What was asked of it, one of few words; `bus`: a message of ours has come back, which is how long all others waited for it.
        seconds: How long that took.
        failed: Whether there was no answer.
    """

    operation: str
    seconds: float
    failed: bool
    name: ClassVar[str] = "store.use"


Event: TypeAlias = (
    ServerOpened
    | ServerClosed
    | RequestStarted
    | RequestStopped
    | RequestRefused
    | SessionOpened
    | SessionEnded
    | StreamOpened
    | StreamClosed
    | AuthChecked
    | TaskStarted
    | TaskEnded
    | StoreUsed
)
"""What a sink is told."""

EVENTS: Mapping[str, type[Any]] = {
    kind.name: kind
    for kind in (
        ServerOpened,
        ServerClosed,
        RequestStarted,
        RequestStopped,
        RequestRefused,
        SessionOpened,
        SessionEnded,
        StreamOpened,
        StreamClosed,
        AuthChecked,
        TaskStarted,
        TaskEnded,
        StoreUsed,
    )
}
"""Name of an event -> its type."""


class Sink(Protocol):
    """Takes what a server tells: `Server(telemetry=sink)`, or a list of them.

    An attribute `takes`, where there is one, has the names of those events that it is told of, and no others. A `pages` maps paths to ASGI applications, which the server's application shows.

    It is called where the work is done, mostly on the event loop, sometimes on another thread: it must not wait. What it raises is logged once
    for each event's name, and harms nobody.
    """

    def take(self, event: Event) -> None:
        """Take an event.

        Args:
            event: One of `EVENTS`; its class says which, its `name` too. There may be new ones one day: leave alone what you don't know.
        """
        ...
