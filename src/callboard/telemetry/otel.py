"""Traces and metrics for OpenTelemetry, by its semantic conventions for MCP (development status, as of its GenAI conventions 0.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from random import random
from secrets import token_bytes
from typing import Any

from callboard.errors import RegistrationError
from callboard.logs import request_id
from callboard.telemetry.events import OTHER, Event, RequestStarted, RequestStopped, SessionEnded
from callboard.telemetry.tally import METRICS, Spread, Tally

__all__ = ["HISTOGRAMS", "SPAN_ATTRIBUTES", "OpenTelemetry"]

# The boundaries that the conventions advise, in seconds.
_BOUNDARIES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]

HISTOGRAMS = {
    "mcp.server.operation.duration": "From when a request was read to its answer; of a listen stream, how long it was open.",
    "mcp.server.session.duration": "How long sessions lived that began and ended here.",
}
"""Histograms of the conventions; they stand for `request_duration` and `session_duration`."""

SPAN_ATTRIBUTES = {
    "mcp.method.name": "the method",
    "mcp.protocol.version": "the version that its client speaks",
    "mcp.session.id": "a keyed hash of the session's id, the log's `session`; the id itself is as good as a password",
    "jsonrpc.request.id": "the id of the request as text",
    "gen_ai.operation.name": "`execute_tool`, of `tools/call`",
    "gen_ai.tool.name": "the tool, where the server has it",
    "gen_ai.prompt.name": "the prompt, where the server has it",
    "mcp.resource.uri": "the URI that was declared, or the template or prefix that was met: what a client puts into it stays out",
    "network.transport": "`tcp` for HTTP, `pipe` for stdio and memory",
    "network.protocol.name": "`http`; none for pipes",
    "enduser.pseudo.id": "a keyed hash of who asks, the log's `principal`",
    "error.type": "the JSON-RPC code of an error; `tool_error`, `timed_out`, `cancelled`, `aborted`",
    "rpc.response.status_code": "the JSON-RPC code of an error",
    "callboard.request.id": "the id of the request in the log",
    "callboard.outcome": "what it came to, one of the outcomes",
    "callboard.reason": "name of the error's `Reason`",
    "callboard.error.id": "what the error's text and the log's traceback call it by",
    "callboard.stop_reason": "why its session ends with it",
}
"""Attribute of a span -> what it says."""

# Methods that name a thing of low cardinality, and the attribute for that.
_TARGETS = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
# What is known of a request that was told of before there was a tracer.
_NOTHING = (None, None)
# Kinds of requests that are remembered.
_REMEMBERED = 10_000
# Codes of errors, and reasons of sessions' ends, that are told apart in metrics.
_MOST = 200
_FAILED = {"tool_error": "tool_error", "timed_out": "timed_out", "cancelled": "cancelled", "aborted": "aborted"}


class OpenTelemetry:
    """A sink that makes a span of each request, and metrics.

    The span is current while the request is served: what your functions trace becomes its child. Its parent is what the client says in `_meta`
    (`traceparent`, `tracestate`, `baggage`), else the span that is current in this process, such as that of an instrumented web framework,
    else what the HTTP headers say. Where `_meta` decides, the span is linked to the one of the transport.

    Args:
        tracer_provider: Makes spans; the process's own by default.
        meter_provider: Takes metrics; the process's own by default.
        traces: Whether to make spans.
        share: Share of requests that are traced, from 0 to 1, where neither their client nor a span of this process decides that. A sampler of
            the provider can do the same; what is left out here costs much less. What your functions trace in such a request is left out, too.
        metrics: Whether to measure.
        parents: Whether to believe what a client says of its trace. Where clients are strangers, one that marks all as sampled decides what
            tracing costs you: with False what they say becomes a link, and their baggage is dropped.

    Raises:
        RegistrationError: opentelemetry-api is not installed, or `share` is no share.
    """

    def __init__(
        self,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        *,
        traces: bool = True,
        share: float = 1.0,
        metrics: bool = True,
        parents: bool = True,
    ) -> None:
        try:
            from opentelemetry import context, propagate, trace
            from opentelemetry.metrics import get_meter
        except ImportError:
            raise RegistrationError("OpenTelemetry needs opentelemetry-api: pip install 'callboard[telemetry]'.") from None
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise RegistrationError(f"OpenTelemetry: share is a number from 0 to 1, not {share!r}.")
        self._trace, self._context, self._propagate = trace, context, propagate
        self._share = share if traces else 1.0
        self._parents = parents
        self._tracer: Any = trace.get_tracer("callboard", tracer_provider=tracer_provider) if traces else None
        self._spans: dict[RequestStarted, tuple[Any, Any]] = {}
        self._current, self._attach, self._detach = _reach_current(context)
        self._left_out = trace.set_span_in_context(_make_left_out(trace), context.Context())
        self._tally: Tally | None = None
        self._introductions: dict[tuple[str | None, ...], tuple[str, dict[str, str]]] = {}
        self._attributes: dict[tuple[str | None, ...], dict[str, str]] = {}
        self._codes: set[str] = set()
        self._reasons: set[str] = set()
        if metrics:
            self._tally = Tally()
            self._measure(get_meter("callboard", meter_provider=meter_provider))

    def take(self, event: Event) -> None:
        """See `Sink.take`."""
        if type(event) is RequestStarted:
            if event.traced or random() < self._share:  # noqa: S311 - no secret
                self._begin(event)
            elif self._current():
                self._leave_out(event)
            else:  # the same where nothing is current, as for most requests of all
                self._spans[event] = None, self._attach(self._left_out)
        elif type(event) is RequestStopped:
            span, token = self._spans.pop(event.started, _NOTHING)
            if token is not None:
                try:  # noqa: SIM105 - a context manager costs three calls, here for each request
                    self._detach(token)
                except ValueError:  # the coroutine is closed by the garbage collector, elsewhere than it ran
                    pass
            if span is not None:
                self._end(event, span)
            if self._tally is not None:
                self._count(event, self._tally)
        elif self._tally is not None:
            self._count(event, self._tally)

    def _count(self, event: Event, tally: Tally) -> None:
        if type(event) is RequestStopped:
            self._operations.record(event.seconds, self._measured(event))
        elif type(event) is SessionEnded and event.seconds is not None:
            self._sessions.record(event.seconds, {"callboard.reason": _bound(self._reasons, event.reason)})
        tally.take(event)

    # Spans

    def _leave_out(self, started: RequestStarted) -> None:
        """Trace neither a request nor what its functions do, unless a span of this process decides that."""
        if self._trace.get_current_span().get_span_context().is_valid:
            self._open_span(started, {}, {})
        else:
            self._spans[started] = None, self._attach(type(self._left_out)({**self._current(), **self._left_out}))

    def _begin(self, started: RequestStarted) -> None:
        said, http = started.trace, started.http_trace
        if self._tracer is not None and started.traced and not said and not http and random() >= self._share:  # noqa: S311 - no secret
            self._leave_out(started)
        elif self._tracer is not None:
            self._open_span(started, said, http)

    def _open_span(self, started: RequestStarted, said: dict[str, str], http: dict[str, str]) -> None:
        """Begin a span, and make it the current one.

        Args:
            started: What it is of.
            said: What `_meta` says of a trace.
            http: What HTTP headers say of one.
        """
        trace, tracer = self._trace, self._tracer
        name, facts = self._introduce(started)
        parent, links = self._find_parent(said, http) if said or http else (None, None)
        span = tracer.start_span(name, parent, trace.SpanKind.SERVER, facts, links)
        if span.is_recording():
            span.set_attributes(_identify(started))
        self._spans[started] = span, self._attach(trace.set_span_in_context(span, parent))

    def _introduce(self, started: RequestStarted) -> tuple[str, dict[str, str]]:
        """Name and first attributes of a span, which samplers see: the same few again and again."""
        key = (started.method, started.component, started.version, started.transport)
        known = self._introductions.get(key)
        if known is None:
            if len(self._introductions) >= _REMEMBERED:
                self._introductions.clear()
            known = self._introductions[key] = _name_span(started), _describe(started)
        return known

    def _find_parent(self, said: dict[str, str], http: dict[str, str]) -> tuple[Any, list[Any] | None]:
        """The context that a span begins in, None for the current one, and what it is linked to.

        Args:
            said: What `_meta` says.
            http: What HTTP headers say.
        """
        trace, extract = self._trace, self._propagate.extract
        ambient, believed = trace.get_current_span().get_span_context(), trace.get_current_span(extract(said)).get_span_context()
        transport = ambient if ambient.is_valid else trace.get_current_span(extract(http)).get_span_context()
        if not self._parents:
            told = believed if believed.is_valid else trace.get_current_span(extract(http)).get_span_context()
            return None, [trace.Link(told)] if told.is_valid else None
        if believed.is_valid:
            return extract(said, context=self._context.get_current()), [trace.Link(transport)] if transport.is_valid else None
        return (None if ambient.is_valid else extract(http, context=self._context.get_current())), None

    def _end(self, stopped: RequestStopped, span: Any) -> None:
        if span.is_recording():
            outcome, reason = stopped.outcome, stopped.reason
            facts: dict[str, str] = {"callboard.outcome": outcome}
            if stopped.code is not None:
                facts["error.type"] = facts["rpc.response.status_code"] = str(stopped.code)
            elif outcome in _FAILED:
                facts["error.type"] = _FAILED[outcome]
            for key, value in (("reason", reason), ("error.id", stopped.error_id), ("stop_reason", stopped.stop_reason)):
                if value is not None:
                    facts[f"callboard.{key}"] = value
            span.set_attributes(facts)
            if "error.type" in facts:
                span.set_status(self._trace.StatusCode.ERROR, reason or outcome)
        span.end()

    # Metrics

    def _measure(self, meter: Any) -> None:
        for metric in METRICS.values():
            observe = partial(self._observe, metric.name, metric.labels)
            unit = {"seconds": "s", "bytes": "By"}.get(metric.unit, "1")
            if metric.kind == "counter":
                meter.create_observable_counter(metric.otel, [observe], unit=unit, description=metric.text)
            elif metric.kind == "gauge":
                meter.create_observable_gauge(metric.otel, [observe], unit=unit, description=metric.text)
            elif metric.name not in {"request_duration", "session_duration"}:
                # What is slow has few values: their number and sum say how long it takes on the average.
                for part in ("count", "sum"):
                    meter.create_observable_counter(
                        f"{metric.otel}.{part}",
                        [partial(self._observe, metric.name, metric.labels, part=part)],
                        unit="1" if part == "count" else unit,
                        description=metric.text,
                    )
        self._operations, self._sessions = (
            meter.create_histogram(name, unit="s", description=text, explicit_bucket_boundaries_advisory=_BOUNDARIES)
            for name, text in HISTOGRAMS.items()
        )

    def _observe(self, name: str, labels: tuple[str, ...], _options: Any, part: str = "") -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        assert self._tally is not None
        for values, number in self._tally.samples(name):
            attributes = dict(zip(labels, values, strict=True))
            if isinstance(number, Spread):
                yield Observation(sum(number.counts) if part == "count" else number.total, attributes)
            else:
                yield Observation(number, attributes)

    def _measured(self, stopped: RequestStopped) -> dict[str, str]:
        """Attributes of an operation's duration: as few as the conventions allow, since a SDK's histogram costs by their number."""
        started = stopped.started
        failure = _FAILED.get(stopped.outcome, "") if stopped.code is None else _bound(self._codes, str(stopped.code))
        key = (started.method, started.component, failure)
        known = self._attributes.get(key)
        if known is None:
            if len(self._attributes) >= _REMEMBERED:
                self._attributes.clear()
            known = self._attributes[key] = {"mcp.method.name": started.method, **_target(started)}
            if failure:
                known["error.type"] = failure
            if stopped.code is not None:
                known["rpc.response.status_code"] = failure
        return known


def _reach_current(context: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], None]]:
    """How to read, set and reset what is current: in the context variable itself, where that is what OpenTelemetry has it in; else as it says.

    Its functions for that are six calls for each request, a tenth of what a small call costs in all.
    """
    variable = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    if isinstance(variable, ContextVar):
        return variable.get, variable.set, variable.reset
    return context.get_current, context.attach, context.detach


def _make_left_out(trace: Any) -> Any:
    """The one span of all requests that are left out: it has another id in each of them, made for those who ask, which few do."""
    salt = token_bytes(16)

    class LeftOut(trace.NonRecordingSpan):  # type: ignore[misc]
        def get_span_context(self) -> Any:
            digest = blake2b((request_id() or "").encode("utf-8"), key=salt, digest_size=24).digest()
            return trace.SpanContext(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1, is_remote=False)

        def __repr__(self) -> str:
            return f"LeftOut({self.get_span_context()!r})"

    return LeftOut(None)


def _bound(known: set[str], value: str) -> str:
    """What an author's function says, as the value of a metric's attribute: the first few, then `other`, since each one is kept for ever."""
    if value not in known:
        if len(known) >= _MOST:
            return OTHER
        known.add(value)
    return value


def _target(started: RequestStarted) -> dict[str, str]:
    key = _TARGETS.get(started.method)
    return {} if key is None or started.component is None else {key: started.component}


def _name_span(started: RequestStarted) -> str:
    """`tools/call add`; of what the client made up the method alone."""
    named = started.method in _TARGETS and started.component not in {None, OTHER}
    return f"{started.method} {started.component}" if named else started.method


def _describe(started: RequestStarted) -> dict[str, str]:
    """What requests like this one have in common."""
    method, component = started.method, started.component
    facts = {"mcp.method.name": method, "mcp.protocol.version": started.version}
    if component != OTHER:
        facts |= _target(started)
        if method.startswith("resources/") and component is not None:
            facts["mcp.resource.uri"] = component
    if method == "tools/call":
        facts["gen_ai.operation.name"] = "execute_tool"
    if started.transport == "pipe":
        return {**facts, "network.transport": "pipe"}
    return {**facts, "network.transport": "tcp", "network.protocol.name": "http"}


def _identify(started: RequestStarted) -> dict[str, str]:
    """What is this request's own."""
    known = {
        "callboard.request.id": started.request,
        "jsonrpc.request.id": started.rpc_id,
        "mcp.session.id": started.session,
        "enduser.pseudo.id": started.principal,
    }
    return {key: value for key, value in known.items() if value is not None}
