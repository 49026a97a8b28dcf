"""The numbers that a server's events add up to, with labels out of bounded sets. Knows neither Prometheus nor OpenTelemetry."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from callboard.telemetry.events import (
    EVENTS,
    OTHER,
    AuthChecked,
    Event,
    Levels,
    RequestRefused,
    RequestStopped,
    ServerClosed,
    ServerOpened,
    SessionEnded,
    SessionOpened,
    StoreUsed,
    StreamClosed,
    StreamOpened,
    TaskEnded,
    TaskStarted,
    read_size,
)

__all__ = ["BUCKETS", "METRICS", "Metric", "Sample", "Spread", "Tally"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms, in seconds."""

_LISTEN = "subscriptions/listen"
# Label values of one metric that come from outside the library: reasons that functions give, words of verifiers and stores, names of tasks.
_MOST = 500
# Components that have numbers of their own: more are there only where they come and go.
_MOST_COMPONENTS = 5_000
# Requests that have ended and are not counted yet; whoever reads a number counts them first.
_MOST_PENDING = 32


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: `requests`; Prometheus calls it `callboard_requests_total`, OpenTelemetry `callboard.requests`.
        kind: `counter`, `gauge` or `histogram`.
        unit: `seconds`, `bytes`, or empty for plain numbers.
        labels: Names of its labels.
        text: What it counts.
    """

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    text: str

    @property
    def prometheus(self) -> str:
        """What Prometheus calls it; a counter's samples have `_total` behind it."""
        return f"callboard_{self.name}" + (f"_{self.unit}" if self.unit else "")

    @property
    def otel(self) -> str:
        """What OpenTelemetry calls it."""
        return f"callboard.{self.name}"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("requests", "counter", "", ("method", "component", "outcome", "reason"), "Requests that were served, by what they came to."),
        Metric("request_duration", "histogram", "seconds", ("method", "component"), "From when a request was read to its answer."),
        Metric("refusals", "counter", "", ("method", "reason"), "Requests that were refused before they came to run."),
        Metric("in_flight", "gauge", "", (), "Requests that are worked on now; listen streams are none."),
        Metric("received", "counter", "bytes", (), "Bytes of request bodies, as their headers say."),
        Metric("sent", "counter", "bytes", (), "Bytes of answers, without what was streamed before them."),
        Metric("buffered", "gauge", "bytes", (), "Bytes of bodies, and of answers that clients have not read, that are held now."),
        Metric("threads", "gauge", "", (), "Functions that may run on threads at once."),
        Metric("threads_busy", "gauge", "", (), "Functions that run on threads now."),
        Metric("thread_queue", "gauge", "", (), "Calls that wait for a thread now."),
        Metric("sessions", "gauge", "", (), "Sessions that began here, less those that ended here."),
        Metric("sessions_opened", "counter", "", ("transport",), "Sessions that have begun."),
        Metric("sessions_ended", "counter", "", ("reason",), "Sessions that have ended, by why."),
        Metric("session_duration", "histogram", "seconds", ("reason",), "How long sessions lived that began and ended here."),
        Metric("streams", "gauge", "", ("kind",), "Streams that are open now: listen, or get."),
        Metric("streams_opened", "counter", "", ("kind",), "Streams that have been opened."),
        Metric("stream_duration", "histogram", "seconds", ("kind",), "How long streams were open."),
        Metric("auth_checks", "counter", "", ("outcome",), "Credentials that a verifier looked at."),
        Metric("auth_duration", "histogram", "seconds", (), "How long verifiers took."),
        Metric("tasks_started", "counter", "", ("component",), "Calls that went on as tasks."),
        Metric("tasks_ended", "counter", "", ("component", "status"), "Tasks that have ended."),
        Metric("task_duration", "histogram", "seconds", ("component",), "How long tasks took."),
        Metric("store_duration", "histogram", "seconds", ("operation",), "How long a shared store took to answer."),
        Metric("store_errors", "counter", "", ("operation",), "What a shared store did not answer."),
        Metric("bus_lag", "histogram", "seconds", (), "From when a message was put on the Bus until it came back."),
    )
}
"""Name -> metric, of all that there are."""

_LEVELS = {
    "in_flight": "in_flight",
    "buffered": "buffered_bytes",
    "threads": "threads",
    "threads_busy": "threads_busy",
    "thread_queue": "thread_queue",
}


class Spread:
    """The values of one histogram with one set of labels.

    Attributes:
        counts: Values in each of `BUCKETS`, and above the last.
        total: Their sum.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, values: list[float]) -> None:
        """Count some values."""
        self.total += sum(values)
        if max(values) <= BUCKETS[0]:  # as they mostly are
            self.counts[0] += len(values)
            return
        for value in values:
            self.counts[bisect_left(BUCKETS, value)] += 1


class _Cell:
    """What requests of one kind came to in one way: how many they are, their bytes, and how long those of their kind took."""

    __slots__ = ("count", "received", "sent", "spread")

    def __init__(self, spread: Spread) -> None:
        self.count = self.received = self.sent = 0
        self.spread = spread


_Kind: TypeAlias = tuple[str, str | None, str, str | None]
# What tells requests apart: method, component, outcome, and the reason of an error.
_kind_of: Callable[[RequestStopped], _Kind] = attrgetter("started.method", "started.component", "outcome", "reason")

Sample: TypeAlias = tuple[tuple[str, ...], "float | Spread"]
"""Values of a metric's labels, and the number, or for a histogram the `Spread`, that they have."""


class Tally:
    """Adds up what one or more servers tell. A sink; from any thread.

    Attributes:
        takes: Names of the events that it takes.
    """

    takes = frozenset(EVENTS) - {"request.start"}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: list[tuple[str, Callable[[], Levels]]] = []
        self._numbers: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in METRICS}
        self._spreads: dict[str, dict[tuple[str, ...], Spread]] = {name: {} for name in METRICS}
        self._numbers["sessions"][()] = 0
        self._cells: dict[_Kind, _Cell] = {}
        self._pending: deque[RequestStopped] = deque()
        self._steps: dict[type[Any], Callable[[Any], None]] = {
            ServerOpened: self._open,
            ServerClosed: self._close,
            RequestRefused: self._refuse,
            SessionOpened: self._begin_session,
            SessionEnded: self._end_session,
            StreamOpened: self._open_stream,
            StreamClosed: self._close_stream,
            AuthChecked: self._check,
            TaskStarted: self._start_task,
            TaskEnded: self._end_task,
            StoreUsed: self._use_store,
        }

    def take(self, event: Event) -> None:
        """See `Sink.take`."""
        if type(event) is RequestStopped:
            pending = self._pending
            pending.append(event)
            if len(pending) >= _MOST_PENDING:
                with self._lock:
                    self._add_up()
        elif (step := self._steps.get(type(event))) is not None:
            with self._lock:
                step(event)

    def _add_up(self) -> None:
        """Count the requests that have ended since this was done last: one after the other each of them would cost twice as much."""
        pending = self._pending
        alike: dict[_Kind, list[RequestStopped]] = {}
        for event in [pending.popleft() for _ in range(len(pending))]:
            alike.setdefault(_kind_of(event), []).append(event)
        for kind, events in alike.items():
            cell = self._cells.get(kind) or self._make_cell(kind)
            cell.count += len(events)
            cell.sent += sum([event.bytes_out or 0 for event in events])
            cell.received += sum([read_size(event.started._headers) or 0 for event in events])  # noqa: SLF001 - as `bytes_in`, with a call less
            if kind[0] != _LISTEN:  # which lasts as long as its client likes
                cell.spread.add([event.seconds for event in events])

    def samples(self, name: str) -> Iterator[Sample]:
        """All that a metric has come to.

        Args:
            name: A key of `METRICS`.
        """
        level = _LEVELS.get(name)
        if level is not None:
            yield (), float(sum([getattr(levels, level) for levels in self._levels()]))
            return
        with self._lock:
            self._add_up()
            kept: list[Sample] = [*self._numbers[name].items()]
            if name == "requests":
                kept += [(tuple([label or "" for label in labels]), cell.count) for labels, cell in self._cells.items()]
            elif name in {"received", "sent"}:
                kept.append(((), sum([getattr(cell, name) for cell in self._cells.values()])))
            for labels, spread in self._spreads[name].items():
                copy = Spread()
                copy.counts, copy.total = list(spread.counts), spread.total
                kept.append((labels, copy))
        yield from kept

    def _levels(self) -> list[Levels]:
        with self._lock:
            servers = list(self._servers)
        # A server that is behind several transports tells the same of each.
        return [levels() for levels in dict.fromkeys([levels for _, levels in servers])]

    # Events

    def _add(self, name: str, labels: tuple[str, ...], value: float = 1) -> None:
        numbers = self._numbers[name]
        if labels not in numbers and len(numbers) >= _MOST:
            labels = (OTHER,) * len(labels)
        numbers[labels] = numbers.get(labels, 0) + value

    def _observe(self, name: str, labels: tuple[str, ...], value: float) -> None:
        spreads = self._spreads[name]
        spread = spreads.get(labels)
        if spread is None:
            if len(spreads) >= _MOST:
                labels = (OTHER,) * len(labels)
            spread = spreads.setdefault(labels, Spread())
        spread.add([value])

    def _open(self, event: ServerOpened) -> None:
        self._servers.append((event.server, event.levels))

    def _close(self, event: ServerClosed) -> None:
        for number, (server, _) in enumerate(self._servers):
            if server == event.server:
                del self._servers[number]
                return

    def _make_cell(self, key: _Kind) -> _Cell:
        method, component, outcome, reason = key
        spreads = self._spreads["request_duration"]
        if component and (method, component) not in spreads and len(spreads) >= _MOST_COMPONENTS:
            component = OTHER
        spread = spreads.setdefault((method, component or ""), Spread())
        return self._cells.setdefault((method, component, outcome, reason), _Cell(spread))

    def _refuse(self, event: RequestRefused) -> None:
        self._add("refusals", (event.method or "", event.reason))

    def _begin_session(self, event: SessionOpened) -> None:
        self._add("sessions", ())
        self._add("sessions_opened", (event.transport,))

    def _end_session(self, event: SessionEnded) -> None:
        self._add("sessions", (), -1)
        self._add("sessions_ended", (event.reason,))
        if event.seconds is not None:
            self._observe("session_duration", (event.reason,), event.seconds)

    def _open_stream(self, event: StreamOpened) -> None:
        self._add("streams", (event.kind,))
        self._add("streams_opened", (event.kind,))

    def _close_stream(self, event: StreamClosed) -> None:
        self._add("streams", (event.kind,), -1)
        self._observe("stream_duration", (event.kind,), event.seconds)

    def _check(self, event: AuthChecked) -> None:
        self._add("auth_checks", (event.outcome,))
        self._observe("auth_duration", (), event.seconds)

    def _start_task(self, event: TaskStarted) -> None:
        self._add("tasks_started", (event.component,))

    def _end_task(self, event: TaskEnded) -> None:
        self._add("tasks_ended", (event.component, event.status))
        if event.seconds is not None:
            self._observe("task_duration", (event.component,), event.seconds)

    def _use_store(self, event: StoreUsed) -> None:
        if event.operation == "bus":
            self._observe("bus_lag", (), event.seconds)
            return
        self._observe("store_duration", (event.operation,), event.seconds)
        if event.failed:
            self._add("store_errors", (event.operation,))
