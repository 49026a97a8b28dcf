"""A request of the client's goes on with the trace of who sends it (SEP-414)."""

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from telemetry_sinks import Recorder

from callboard import Client, Server
from callboard.client.tracing import TRACING, carry_trace
from callboard.telemetry.events import RequestStarted

OWN = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def span() -> Iterator[trace.Span]:
    """A span that is current, with baggage."""
    token = context.attach(baggage.set_baggage("user", "ada"))
    with TracerProvider().get_tracer("test").start_as_current_span("outer") as made:
        yield made
    context.detach(token)


def written(span: trace.Span) -> str:
    """The traceparent of a span."""
    known = span.get_span_context()
    return f"00-{known.trace_id:032x}-{known.span_id:016x}-{known.trace_flags:02x}"


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_the_server_hears_of_the_span(version: str, span: trace.Span) -> None:
    told = Recorder()
    server = Server("s", telemetry=told)
    server.tool(name="add")(lambda: "")
    async with Client(server, versions=version) as client:
        await client.call_tool("add")
        await client.request("tools/call", {"name": "add", "_meta": {"traceparent": OWN}})
    calls = [event for event in told.of(RequestStarted) if event.method == "tools/call"]
    assert [event.trace for event in calls] == [{"traceparent": written(span)}, {"traceparent": OWN}]


@pytest.mark.parametrize("params", [{}, {"_meta": {"x": 1}}, {"_meta": None}])
def test_what_is_there_stays(params: Mapping[str, Any], span: trace.Span) -> None:
    assert carry_trace(params) == {"_meta": {**(params.get("_meta") or {}), "traceparent": written(span)}}


@pytest.mark.parametrize("params", [{"_meta": {"traceparent": "x"}}, {"_meta": [1]}])
@pytest.mark.usefixtures("span")
def test_what_says_a_trace_or_is_no_object_is_left_alone(params: Mapping[str, Any]) -> None:
    assert carry_trace(params) is params


async def test_without_a_span_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"name": "add"}
    assert carry_trace(params) is params
    told = Recorder()
    server = Server("s", telemetry=told)
    server.tool(name="add")(lambda: "")
    async with Client(server) as client:
        await client.call_tool("add")
        for loaded in (None, ModuleType(TRACING)):  # nobody traces; it is about to be imported
            monkeypatch.setitem(sys.modules, TRACING, loaded)
            await client.call_tool("add")
    assert all(event.trace == {} for event in told.of(RequestStarted))
