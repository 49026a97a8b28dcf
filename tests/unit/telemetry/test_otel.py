"""Spans and metrics as the OpenTelemetry SDK takes them, by the semantic conventions for MCP."""

import asyncio
import builtins
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_driver import Client, make_meta
from legacy_driver import V11, Legacy
from log_lines import watch_logs
from opentelemetry import baggage, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from benchmarks.in_process import send_once
from benchmarks.traffic import call
from callboard import Fail, Server, ToolError, asgi
from callboard.errors import RegistrationError
from callboard.telemetry import OpenTelemetry
from callboard.telemetry.otel import HISTOGRAMS, SPAN_ATTRIBUTES
from callboard.telemetry.tally import METRICS

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAID = f"00-{TRACE}-{PARENT}-01"
OTHERS = f"00-{'c' * 32}-{'d' * 16}-01"


class Watch:
    """What OpenTelemetry is told.

    Attributes:
        provider: Of traces.
        options: For `OpenTelemetry`.
    """

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])
        self.sinks: list[OpenTelemetry] = []

    def server(self, **options: Any) -> Server:
        """A server that tells it."""
        self.sinks.append(OpenTelemetry(self.provider, self.meters, **options))
        server = Server("s", telemetry=self.sinks[-1])
        tracer = trace.get_tracer("author", tracer_provider=self.provider)

        @server.tool
        async def add(a: int) -> int:
            with tracer.start_as_current_span("inside"):
                return a

        @server.tool
        def threaded() -> str:
            with tracer.start_as_current_span("inside"):
                return str(baggage.get_all().get("who"))

        @server.tool
        async def refuse() -> str:
            raise Fail.custom(4013, "no")

        @server.tool
        async def fail() -> str:
            raise ToolError("no")

        @server.tool
        async def crash() -> str:
            raise ValueError("x")

        @server.tool
        async def wait() -> str:
            await asyncio.sleep(60)
            return ""

        server.resource("note://{owner}")(_read)
        server.prompt(_greet)
        return server

    @property
    def spans(self) -> list[ReadableSpan]:
        """Spans that have ended, in the order of that."""
        return list(self._exporter.get_finished_spans())

    @property
    def metrics(self) -> dict[str, Any]:
        """Name -> metric."""
        data = self._reader.get_metrics_data()
        return (
            {}
            if data is None
            else {metric.name: metric for found in data.resource_metrics for scope in found.scope_metrics for metric in scope.metrics}
        )


async def _read(owner: str) -> str:
    return owner


async def _greet(name: str) -> str:
    return name


@pytest.fixture
def watch() -> Iterator[Watch]:
    """The SDK, in memory."""
    made = Watch()
    yield made
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert not any(vars(sink)["_spans"] for sink in made.sinks), "a span is kept that has ended"
    made.provider.shutdown()
    made.meters.shutdown()


async def test_a_call_is_a_span_by_the_conventions(watch: Watch) -> None:
    app = asgi(watch.server(), principal=lambda _: "ada@example.com")
    await Client(app).call("add", {"a": 1}, x_request_id="12345678")
    inside, span = watch.spans
    assert (span.name, span.kind, span.status.status_code) == ("tools/call add", SpanKind.SERVER, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "jsonrpc.request.id": "1",
        "callboard.request.id": "12345678",
        "callboard.outcome": "ok",
        "enduser.pseudo.id": app.endpoint.server.journal.hash("ada@example.com"),
    }
    assert span.parent is None
    assert inside.parent == span.get_span_context()


@pytest.mark.parametrize(
    ("method", "params", "name", "facts"),
    [
        ("tools/call", {"name": "made-up"}, "tools/call", {"error.type": "-32602", "callboard.reason": "UNKNOWN_TOOL"}),
        ("tools/call", {"name": "fail"}, "tools/call fail", {"error.type": "tool_error", "callboard.outcome": "tool_error"}),
        ("tools/call", {"name": "refuse"}, "tools/call refuse", {"error.type": "4013", "rpc.response.status_code": "4013"}),
        ("tools/list", {}, "tools/list", {"callboard.outcome": "ok"}),
        ("prompts/get", {"name": "_greet", "arguments": {"name": "ada"}}, "prompts/get _greet", {"gen_ai.prompt.name": "_greet"}),
        ("resources/read", {"uri": "note://ada"}, "resources/read", {"mcp.resource.uri": "note://{owner}"}),
        ("resources/read", {"uri": "x://ada"}, "resources/read", {"callboard.reason": "RESOURCE_NOT_FOUND"}),
    ],
)
async def test_each_kind_has_its_name_and_its_end(
    watch: Watch, method: str, params: dict[str, Any], name: str, facts: dict[str, str]
) -> None:
    await Client(asgi(watch.server())).request(method, params)
    (span,) = watch.spans
    attributes = dict(span.attributes or {})
    assert span.name == name
    assert facts.items() <= attributes.items()
    assert (span.status.status_code is StatusCode.ERROR) == ("error.type" in attributes)
    assert attributes.keys() <= SPAN_ATTRIBUTES.keys()
    assert "ada" not in str(attributes)
    assert "made-up" not in str(attributes)


async def test_what_crashes_has_the_id_of_its_traceback(watch: Watch) -> None:
    with watch_logs(logging.WARNING) as taken:
        answer = await Client(asgi(watch.server())).call("crash", {})
    (span,) = watch.spans
    error_id = (span.attributes or {})["callboard.error.id"]
    assert f"(id {error_id!s})" in answer.error["message"]
    assert str(error_id) in taken.of("callboard")[0]["message"]
    assert not span.events  # exceptions hold what their authors wrote


async def test_sessions_are_named_by_hashes(watch: Watch) -> None:
    server = watch.server()
    session = await Legacy(asgi(server)).connect()
    await session.call("add", {"a": 1})
    await session.delete()
    opening, _, calling = watch.spans
    assert opening.name == "initialize"
    assert (calling.attributes or {})["mcp.session.id"] == server.journal.hash(session.id)
    assert (calling.attributes or {})["mcp.protocol.version"] == V11
    (point,) = watch.metrics["mcp.server.session.duration"].data.data_points
    assert (point.count, dict(point.attributes)) == (1, {"callboard.reason": "deleted"})


@pytest.mark.parametrize(
    ("meta", "header", "parent", "link"),
    [
        ({"traceparent": SAID}, None, TRACE, None),
        ({}, SAID, TRACE, None),
        ({"traceparent": SAID}, OTHERS, TRACE, "c" * 32),
        ({"traceparent": "nonsense"}, None, None, None),
        ({"traceparent": "nonsense"}, SAID, TRACE, None),
        ({"traceparent": {"a": SAID}}, None, None, None),
    ],
)
async def test_the_parent_is_what_the_client_says(
    watch: Watch, meta: dict[str, Any], header: str | None, parent: str | None, link: str | None
) -> None:
    # A53, MT-11
    """SEP-414: `_meta` says more than the transport."""
    await Client(asgi(watch.server())).call("add", {"a": 1}, meta=make_meta(**meta), traceparent=header)
    span = watch.spans[-1]
    found = None if span.parent is None else f"{span.parent.trace_id:032x}"
    assert found == parent
    assert [f"{each.context.trace_id:032x}" for each in span.links] == ([link] if link else [])


async def test_baggage_comes_to_functions_on_threads(watch: Watch) -> None:
    app = asgi(watch.server())
    meta = make_meta(traceparent=SAID, baggage="who=ada")
    answer = await Client(app).call("threaded", {}, meta=meta)
    assert answer.result["content"][0]["text"] == "ada"
    inside, span = watch.spans
    assert inside.parent == span.get_span_context()


async def test_a_span_of_the_framework_is_the_parent_or_a_link(watch: Watch) -> None:
    app, tracer = asgi(watch.server()), watch.provider.get_tracer("framework")
    with tracer.start_as_current_span("POST /mcp") as outer:
        await Client(app).call("add", {"a": 1}, traceparent=OTHERS)
        await Client(app).call("add", {"a": 1}, meta=make_meta(traceparent=SAID))
        assert trace.get_current_span() is outer
    first, second = (span for span in watch.spans if span.name == "tools/call add")
    assert first.parent == outer.get_span_context()
    assert second.parent
    assert f"{second.parent.trace_id:032x}" == TRACE
    assert [each.context for each in second.links] == [outer.get_span_context()]


async def test_a_client_that_is_not_believed_becomes_a_link(watch: Watch) -> None:
    answer = await Client(asgi(watch.server(parents=False))).call("threaded", {}, meta=make_meta(traceparent=SAID, baggage="who=ada"))
    assert answer.result["content"][0]["text"] == "None"
    span = watch.spans[-1]
    assert span.parent is None
    assert [f"{each.context.trace_id:032x}" for each in span.links] == [TRACE]


async def test_what_is_left_out_is_left_out_with_all_below_it(watch: Watch) -> None:
    client = Client(asgi(watch.server(share=0)))
    await client.call("add", {"a": 1})
    assert not watch.spans
    await client.call("add", {"a": 1}, meta=make_meta(traceparent=SAID))
    assert [span.name for span in watch.spans] == ["inside", "tools/call add"]
    (point,) = watch.metrics["mcp.server.operation.duration"].data.data_points
    assert point.count == 2


async def test_about_as_many_are_traced_as_was_said(watch: Watch) -> None:
    client = Client(asgi(watch.server(share=0.5)))
    for _ in range(100):
        await client.request("tools/list", {})
    assert 20 < len(watch.spans) < 80


async def test_a_call_that_is_cancelled_ends_its_span(watch: Watch) -> None:
    app = asgi(watch.server())
    async with Client(app).open("tools/call", {"name": "wait"}):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
    await app.aclose()
    (span,) = watch.spans
    assert ((span.attributes or {})["error.type"], span.status.status_code) == ("cancelled", StatusCode.ERROR)


async def test_calls_side_by_side_keep_their_spans_apart(watch: Watch) -> None:
    client = Client(asgi(watch.server()))
    await asyncio.gather(*[client.call("add" if number % 2 else "threaded", {"a": 1} if number % 2 else {}) for number in range(20)])
    spans = {span.context.span_id: span for span in watch.spans if span.context}
    inside = [span for span in watch.spans if span.name == "inside"]
    assert len(inside) == 20
    assert len({span.parent.span_id for span in inside if span.parent}) == 20
    assert all(span.parent and spans[span.parent.span_id].name.startswith("tools/call ") for span in inside)


async def test_whoever_serves_two_calls_in_one_task_has_its_own_span_again(watch: Watch) -> None:
    app = asgi(watch.server())
    for _ in range(2):
        status, _ = await send_once(app, call("add", {"a": 1}))
        assert status == 200
        assert trace.get_current_span() is trace.INVALID_SPAN
    assert [span.parent for span in watch.spans if span.name == "tools/call add"] == [None, None]
    await app.aclose()


async def test_metrics_have_the_conventions_names_and_ours(watch: Watch) -> None:
    app = asgi(watch.server())
    client = Client(app)
    await client.call("add", {"a": 1})
    await client.call("made-up", {})
    found = watch.metrics
    points = {tuple(sorted(point.attributes.items())): point for point in found["mcp.server.operation.duration"].data.data_points}
    good, bad = (("gen_ai.tool.name", "add"), ("mcp.method.name", "tools/call")), ("error.type", "-32602")
    assert points[good].count == 1
    assert any(bad in attributes and ("gen_ai.tool.name", "other") in attributes for attributes in points)
    assert points[good].explicit_bounds[:3] == (0.01, 0.02, 0.05)
    requests = {point.attributes["component"]: point.value for point in found["callboard.requests"].data.data_points}
    assert requests == {"add": 1, "other": 1}
    assert found["callboard.threads"].data.data_points[0].value > 0
    ours = {metric.otel for metric in METRICS.values()}
    assert all(name in HISTOGRAMS or name.removesuffix(".count").removesuffix(".sum") in ours for name in found)
    await app.aclose()


async def test_traces_and_metrics_may_be_left_out(watch: Watch) -> None:
    await Client(asgi(watch.server(metrics=False))).call("refuse", {})
    assert len(watch.spans) == 1
    assert not watch.metrics
    await Client(asgi(watch.server(traces=False))).call("refuse", {})
    assert len(watch.spans) == 1
    assert watch.metrics


@pytest.mark.parametrize("share", [-1, 1.1, True, "1"])
def test_a_share_is_a_share(share: Any) -> None:
    with pytest.raises(RegistrationError, match="share"):
        OpenTelemetry(share=share)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(RegistrationError, match=r"pip install 'callboard\[telemetry\]'"):
        OpenTelemetry()
