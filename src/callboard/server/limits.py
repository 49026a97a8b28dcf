"""Every bound on what strangers can make a server take, in one object: `asgi(server, limits=Limits(max_body=1 << 20))`."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

import msgspec

from callboard.errors import RegistrationError

__all__ = ["DEFAULTS", "PER_ADDRESS", "PER_PRINCIPAL", "Limits", "Rate", "read_rate", "refuse_moved"]

Rate: TypeAlias = str | tuple[int, float]
"""So many in so long: `"10/s"`, `"60/min"`, `"1000/h"` or `(calls, seconds)`."""

PER_ADDRESS: Rate = (60, 60.0)
"""For `Limits(address_rate=PER_ADDRESS)`: 60 HTTP requests of one address in 60 seconds."""

PER_PRINCIPAL: Rate = (50, 300.0)
"""For `Limits(message_rate=PER_PRINCIPAL)`: 50 messages of one principal in 300 seconds."""

_KIB = 1024
_MIB = 1024 * 1024
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATES = ("address_rate", "message_rate", "log_rate")
_SECONDS = ("listen_lifetime", "head_timeout", "body_timeout", "write_timeout")
DEEPEST = 128
LEAST_STREAM_BUFFER = 64 * _KIB
_MAY_BE_ZERO = frozenset({"max_listens", "session_buffer", "session_max_pending", "thread_queue"})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one server, on every transport that is made with it. Sizes are bytes, times seconds.

    What says `per_principal` counts where it is known who asks; callers without a principal share only what there is in all. Unless noted
    otherwise one principal may have a tenth of that. Where processes share a store, `max_sessions`, `max_tasks`, `max_listens`, `max_streams` (with
    their `_per_principal`), `address_rate` and `message_rate` are what all of them together may have; see docs/limits.md.

    Raises:
        RegistrationError: A value can't work; the text names the field.

    Attributes:
        max_body: Bytes of an HTTP request's body; past that 413.
        max_line: Bytes of a line over stdio; a longer one is skipped, with an error.
        max_headers: Bytes of the headers of an HTTP request; past that 431.
        max_depth: Levels that objects and arrays of a message may nest, at most 128; past that `-32700`.
        max_items: Values in one message, as many as it has commas and opening brackets, at whatever depth; past that `-32600`.
        max_arguments: Bytes of the arguments of one tool call; past that `-32602`.
        max_result: Bytes of one encoded answer; a larger one is that call's error.
        max_in_flight: Requests that are worked on at once, those of sessions included, listen streams not; past that 503.
        max_in_flight_per_principal: The same for one principal.
        max_buffered: Bytes of request bodies and unread answers that are held at once; past that new requests are 503, and the slowest
            readers lose their streams.
        threads: `def` functions that run at once.
        threads_per_principal: The same for one principal, whose further calls wait; None for three quarters of `threads`.
        thread_queue: Calls that wait for a thread; past that 503. One principal may have half of them.
        max_sessions: Sessions of 2025 clients; past that 503.
        max_sessions_per_principal: The same for one principal.
        session_max_pending: Calls of one session that wait for its state; past that an error.
        session_buffer: Events of one session that can be replayed; 0 for none.
        max_kept: Bytes of such events over all sessions, beside 1 MiB for each; past that the oldest of the session that keeps most go.
            As much again of results of tasks that have ended; past that the oldest of the principal who keeps most are unknown.
        max_streams: Streams over HTTP that stay open until somebody closes them, at once: GET streams of sessions, listen streams, HTTP+SSE; past
            that 503. A streamed answer is a request that is worked on.
        max_streams_per_principal: The same for one principal.
        stream_buffer: Bytes that wait on one stream for a reader who is slow; past that the stream is given up. From a sixteenth of it on
            progress coalesces, and logs are dropped and counted.
        max_listens: Listen streams; past that 503. 0 for none, and then none is promised.
        max_listens_per_principal: The same for one principal (8).
        listen_lifetime: Seconds until a listen stream, or the GET stream of a session whose client has a principal, is closed in good order;
            the client opens it again, and its credential is looked at anew.
        max_sse_connections: Streams of HTTP+SSE, the transport of 2024; past that 503.
        max_tasks: Tasks, those that have ended and are kept included; past that 503.
        max_tasks_per_principal: The same for one principal.
        address_rate: HTTP requests of one address (IPv6: of one /64 network); past that 429. None, the default, for no limit.
        message_rate: Messages of one principal, or of one address where nobody knows who asks, over HTTP; past that 429. Notifications
            other than `notifications/cancelled`, and answers, are free. None, the default, for no limit.
        uncounted_methods: Methods that `message_rate` doesn't count.
        log_rate: Log messages of one call to its client, and as many of progress; what is more is dropped, and the client told of how many
            logs. None for no limit.
        head_timeout: Seconds until the headers of a request must be there (`callboard.run`).
        body_timeout: Seconds until its body must be there (`callboard.run`); past that 408.
        write_timeout: Seconds in which a reader must take something of what waits for it (`callboard.run`).
        max_connections: Connections that are open at once (`callboard.run`).
    """

    max_body: int = 4 * _MIB
    max_line: int = 16 * _MIB
    max_headers: int = 16 * _KIB
    max_depth: int = 128
    max_items: int = 200_000
    max_arguments: int = 16 * _MIB
    max_result: int = 64 * _MIB
    max_in_flight: int = 10_000
    max_in_flight_per_principal: int = 1_000
    max_buffered: int = 256 * _MIB
    threads: int = 40
    threads_per_principal: int | None = None
    thread_queue: int = 1_000
    max_sessions: int = 10_000
    max_sessions_per_principal: int = 1_000
    session_max_pending: int = 100
    session_buffer: int = 256
    max_kept: int = 256 * _MIB
    max_streams: int = 20_000
    max_streams_per_principal: int = 2_000
    stream_buffer: int = 4 * _MIB
    max_listens: int = 10_000
    max_listens_per_principal: int = 8
    listen_lifetime: float = 3600.0
    max_sse_connections: int = 1_000
    max_tasks: int = 1_000
    max_tasks_per_principal: int = 100
    address_rate: Rate | None = None
    message_rate: Rate | None = None
    uncounted_methods: Collection[str] = ()
    log_rate: Rate | None = (1_000, 1.0)
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    max_connections: int = 20_000

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if name in _RATES:
                if value is not None:
                    read_rate(value, f"Limits: {name}")
            elif name in _SECONDS:
                if type(value) not in {int, float} or not value > 0:
                    raise RegistrationError(f"Limits: {name} must be a number of seconds above 0, not {value!r}; float('inf') for no end.")
            elif name not in {"uncounted_methods", "threads_per_principal"} or (name == "threads_per_principal" and value is not None):
                least = 0 if name in _MAY_BE_ZERO else 1
                if type(value) is not int or value < least:
                    raise RegistrationError(f"Limits: {name} must be an integer of at least {least}, not {value!r}.")
        self._check_relations()

    def _check_relations(self) -> None:
        if self.max_depth > DEEPEST:
            raise RegistrationError(
                f"Limits: max_depth is at most {DEEPEST}, not {self.max_depth}: what nests deeper can't be read safely."
            )
        if self.stream_buffer < LEAST_STREAM_BUFFER:
            text = f"Limits: stream_buffer must be at least {LEAST_STREAM_BUFFER} bytes, not {self.stream_buffer}: no stream would last."
            raise RegistrationError(text)
        methods = self.uncounted_methods
        if isinstance(methods, str) or not isinstance(methods, Collection) or not all(isinstance(method, str) for method in methods):
            raise RegistrationError(f'Limits: uncounted_methods is a set of methods, like {{"ping"}}, not {methods!r}.')


def read_rate(rate: Any, where: str) -> tuple[int, float]:
    """How many, in how many seconds.

    Args:
        rate: See `Rate`.
        where: What has it, for the error.

    Raises:
        RegistrationError: It is none.
    """
    calls: Any = None
    seconds: Any = None
    if isinstance(rate, str):
        count, _, unit = rate.partition("/")
        calls, seconds = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else None, _UNITS.get(unit)
    elif isinstance(rate, tuple) and len(rate) == 2:
        calls, seconds = rate
    if type(calls) is not int or not 1 <= calls < 10**9 or type(seconds) not in {int, float} or not 0 < seconds < math.inf:
        raise RegistrationError(f'{where} is "10/s", "60/min", "1000/h" or (calls, seconds), not {rate!r}.')
    return calls, float(seconds)


def refuse_moved(names: Iterable[str]) -> None:
    """Say where an option is now that is a limit.

    Raises:
        RegistrationError: One of the names is a limit's.
    """
    moved = sorted(set(names) & set(Limits.__struct_fields__))
    if moved:
        name = moved[0]
        raise RegistrationError(
            f"{name} is one of the limits: write limits=Limits({name}=...) where the server is served (asgi, stdio, run, Client), "
            "with `from callboard.limits import Limits`."
        )


DEFAULTS = Limits()
