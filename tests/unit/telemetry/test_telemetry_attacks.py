"""Who reads the metrics, what strangers can make them cost, and sinks that do what sinks should not."""

import asyncio
import gc
import json
import tracemalloc
import warnings
from typing import Any

import pytest
from asgi_driver import Client, make_headers, make_meta, make_request
from legacy_driver import V11, Legacy
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from telemetry_sinks import Recorder
from unit.telemetry.test_prometheus import HEADERS

from callboard import Fail, Server, asgi
from callboard.errors import RegistrationError
from callboard.limits import Limits
from callboard.server.sinks import Sinks
from callboard.telemetry import OpenTelemetry, Prometheus
from callboard.telemetry.events import RequestStarted, RequestStopped, SessionEnded
from callboard.telemetry.otel import HISTOGRAMS

ACCEPTS = [
    "application/openmetrics-text; version=abc",
    "application/openmetrics-text;version=1.0.0.0.9",
    "application/openmetrics-text;version=1.0.1",
    "application/openmetrics-text;version=7.7.7;escaping=evil",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "text/plain;version=1.0.0;escaping=dots",
    "text/plain;version=9999",
    ",;=,,;version",
    "*/*",
    "",
]


def make_server(sinks: Any) -> Server:
    """A server with one tool."""
    server = Server("s", telemetry=sinks)

    @server.tool
    async def add(a: int) -> int:
        return a

    return server


async def get(app: Any, **headers: str) -> Any:
    """GET the page; status, headers and body."""
    exchange = Client(app, path="/metrics").start(b"", {**HEADERS, **headers}, verb="GET")
    await asyncio.wait({exchange.task}, timeout=10)
    if exchange.task.done() and (error := exchange.task.exception()) is not None:
        raise error
    return exchange.sent[0]["status"], dict(exchange.sent[0]["headers"]), exchange.sent[1]["body"]


async def test_whatever_is_accepted_costs_two_pages_and_comes_back_as_no_header() -> None:
    prometheus = Prometheus(path="/metrics")
    app = asgi(make_server(prometheus))
    made = []
    collect = prometheus.collect
    prometheus.collect = lambda: made.append(1) or collect()  # type: ignore[method-assign,func-returns-value]
    types = set()
    for accept in ACCEPTS * 3:
        status, headers, _ = await get(app, accept=accept)
        assert status == 200, accept
        types.add(headers[b"content-type"].partition(b";")[0])
        assert not any(word in headers[b"content-type"] for word in (b"abc", b"evil", b"7.7", b"9999", b"0.9"))
    assert types == {b"text/plain", b"application/openmetrics-text"}
    assert len(made) <= 4, "one for each format, and a further one where the second has changed"
    await app.aclose()


async def test_a_page_of_another_origin_reads_no_metrics() -> None:
    app = asgi(make_server(Prometheus(path="/metrics")))
    status, headers, body = await get(app, origin="https://evil.example")
    assert status == 403
    assert b"callboard_" not in body
    assert b"access-control-allow-origin" not in headers
    assert (await get(app))[0] == 200
    await app.aclose()


@pytest.mark.parametrize("path", ["/mcp", "/healthz", "/readyz"])
def test_a_page_where_something_else_is_would_never_be_seen(path: str) -> None:
    with pytest.raises(RegistrationError, match=path):
        asgi(make_server(Prometheus(path=path)), path="/mcp")


class Asynchronous:
    """A sink whose author thought that it is awaited."""

    async def take(self, event: Any) -> None:
        """Do nothing."""


class Ends:
    """A sink that raises what ends tasks and processes.

    Args:
        error: What it raises.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def take(self, event: Any) -> None:
        """Raise it."""
        if isinstance(event, RequestStarted | RequestStopped):
            raise self.error


def test_a_sink_that_would_have_to_be_awaited_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RegistrationError, match="async"):
            make_server(Asynchronous())
        gc.collect()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
async def test_what_a_sink_raises_ends_no_call(error: BaseException) -> None:
    recorder = Recorder()
    app = asgi(make_server([Ends(error), recorder]))
    answer = await asyncio.wait_for(Client(app).request("tools/call", {"name": "add", "arguments": {"a": 1}}), 10)
    assert answer.status == 200
    assert [stopped.outcome for stopped in recorder.stopped()] == ["ok"]
    await app.aclose()


async def test_sessions_that_end_in_another_process_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.server.sinks.MAX_BORN", 100)
    recorder = Recorder()
    sinks = Sinks([recorder], lambda name: name)
    for number in range(110):
        sinks.begin_session(f"s{number}", V11, "http")
    assert len(sinks._born) == 100
    sinks.end_session("s0", "deleted")
    sinks.end_session("s109", "deleted")
    first, last = recorder.of(SessionEnded)
    assert first.seconds is None
    assert last.seconds is not None


async def test_what_functions_say_makes_no_series_without_end() -> None:
    reader = InMemoryMetricReader()
    server = Server("s", telemetry=OpenTelemetry(meter_provider=MeterProvider([reader]), traces=False))

    @server.tool
    async def refuse(code: int) -> str:
        raise Fail.custom(code, "no")

    app = asgi(server)
    sink = server.journal.sinks
    assert sink is not None
    for number in range(600):
        sink.end_session(f"s{number}", f"reason {number}")
        sink.begin_session(f"t{number}", V11, "http")
        sink.end_session(f"t{number}", f"reason {number}")
    client = Client(app)
    for number in range(300):
        await client.request("tools/call", {"name": "refuse", "arguments": {"code": 10_000 + number}})
    data = reader.get_metrics_data()
    assert data is not None
    sizes = {
        metric.name: len(list(metric.data.data_points))
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert max(sizes.values()) <= 510, sizes
    assert max(sizes[name] for name in HISTOGRAMS) <= 210, sizes
    await app.aclose()


HOSTILE = [
    "00-" + "a" * 32 + "-" + "b" * 16 + "-01" + "x" * 10_000,
    "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
    "ff-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "\x00\r\nSet-Cookie: a=b",
    "00-" + "\u0660" * 32 + "-" + "b" * 16 + "-01",
    "",
    ["00-" + "a" * 32 + "-" + "b" * 16 + "-01"],
    {"a": 1},
    None,
    7,
    True,
]


@pytest.mark.parametrize("said", HOSTILE)
async def test_a_hostile_trace_costs_its_call_nothing(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    app = asgi(make_server([OpenTelemetry(TracerProvider(), metrics=False), recorder]))
    client = Client(app)
    for more in ({}, {"tracestate": said, "baggage": said}, {"tracestate": "a=" + "b" * 600, "baggage": "k=v," * 5000}):
        meta = {**make_meta(), "traceparent": said, **more}
        answer = await client.request("tools/call", {"name": "add", "arguments": {"a": 1}}, meta=meta)
        assert answer.status == 200
    assert "sink" not in caplog.text
    assert len(recorder.stopped()) == 3
    await app.aclose()


async def test_levels_are_back_where_they_were_after_all_that_can_happen() -> None:
    recorder, spans = Recorder(), OpenTelemetry(TracerProvider(), metrics=False)
    server = make_server([recorder, spans])

    @server.tool
    async def hold() -> str:
        await asyncio.sleep(60)
        return ""

    app = asgi(server, limits=Limits(max_in_flight=2))
    client, message = Client(app), make_request("tools/call", {"name": "hold"})
    held = [client.start(json.dumps(message).encode(), make_headers(message)) for _ in range(4)]
    await asyncio.sleep(0.2)
    sinks = server.journal.sinks
    assert sinks is not None
    assert sinks.levels().in_flight == 2
    for exchange in held:
        exchange.task.cancel()
    await asyncio.wait([exchange.task for exchange in held])
    session = await Legacy(app, V11).connect()
    await session.request("tools/call", {"name": "add", "arguments": {"a": 1}})
    await client.request("tools/call", {"name": "nothing"})
    await client.request("tools/call", {"name": "add", "arguments": {"a": "x"}})
    assert sinks.levels().in_flight == 0
    outcomes = sorted(stopped.outcome for stopped in recorder.stopped())
    assert outcomes == ["cancelled", "cancelled", "error", "error", "error", "ok", "tool_error"]
    begun = recorder.of(RequestStarted)
    assert len(begun) == len(recorder.of(RequestStopped)) == 8, "each once, and the session's beginning"
    assert spans._spans == {}
    await app.aclose()


async def test_a_call_that_is_left_out_has_a_trace_of_its_own_all_the_same() -> None:
    server = make_server(OpenTelemetry(TracerProvider(), metrics=False, share=0))
    seen = []

    @server.tool
    def look() -> str:
        spans = [trace.get_current_span().get_span_context() for _ in range(2)]
        assert spans[0] == spans[1]
        assert spans[0].is_valid
        assert not spans[0].trace_flags.sampled
        assert repr(trace.get_current_span()).startswith("LeftOut(SpanContext(")
        seen.append(spans[0].trace_id)
        return ""

    client = Client(asgi(server))
    for _ in range(5):
        await client.call("look")
        assert not trace.get_current_span().get_span_context().is_valid
    assert len(set(seen)) == 5


async def test_a_trace_in_meta_does_not_keep_the_body_that_it_came_in() -> None:
    recorder = Recorder()
    server = Server("s", telemetry=[recorder, Prometheus()])

    @server.tool
    async def measure(text: str) -> int:
        return len(text)

    client = Client(asgi(server))
    said: Any = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "baggage": "who=ada"}
    await client.call("measure", {"text": ""}, meta=make_meta(**said))
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(20):
            assert (await client.call("measure", {"text": "x" * 300_000}, meta=make_meta(**said))).text == "300000"
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 600_000
    finally:
        tracemalloc.stop()
    assert [(event.request, event.trace) for event in recorder.of(RequestStarted)] == [("a" * 32, said)] * 21
