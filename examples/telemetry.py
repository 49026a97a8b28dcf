"""What operators see: numbers for Prometheus, spans of OpenTelemetry that go on where the client's began, and a sink of one's own.

pip install "callboard[telemetry]" opentelemetry-sdk
"""

import asyncio
from typing import ClassVar

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from callboard import Client, Server
from callboard.client.errors import ServerError
from callboard.telemetry import Event, OpenTelemetry, Prometheus
from callboard.telemetry.events import RequestStopped

SLOW = 0.05  # seconds


class SlowCalls:
    """A sink of one's own: it is told of everything, and keeps what it cares for."""

    found: ClassVar[list[str]] = []

    def take(self, event: Event) -> None:
        if isinstance(event, RequestStopped) and event.seconds > SLOW:
            self.found.append(f"{event.started.method} {event.started.component} {event.outcome}")


spans = InMemorySpanExporter()  # in earnest: an OTLP exporter, and `share=0.01` where there are many calls
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
metrics = Prometheus()  # in earnest: Prometheus(port=9464), or path="/metrics"
slow = SlowCalls()

server = Server("watched", version="1.0.0", telemetry=[metrics, OpenTelemetry(provider, metrics=False), slow])


@server.tool
async def nap(seconds: float) -> str:
    """Sleep."""
    with provider.get_tracer("mine").start_as_current_span("sleeping"):  # a child of the call's span
        await asyncio.sleep(seconds)
    return "awake"


@server.tool
async def trip() -> str:
    """Fail."""
    raise ValueError("a bug")


async def main() -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with Client(server) as client:
        await client.call_tool("nap", {"seconds": 0.1})
        meta = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        await client.request("tools/call", {"name": "nap", "arguments": {"seconds": 0}, "_meta": meta})
        failure = ""
        try:
            await client.call_tool("trip")
        except ServerError as error:
            failure = str(error)
    samples = [sample for family in text_string_to_metric_families(metrics.render()[0].decode()) for sample in family.samples]
    counted = {each.labels["component"]: each.value for each in samples if each.name == "callboard_requests_total"}
    assert counted.items() >= {"nap": 2, "trip": 1}.items(), counted
    ended = spans.get_finished_spans()
    calls = [span.context for span in ended if span.name == "tools/call nap"]
    assert [span.parent for span in ended if span.name == "sleeping"] == calls, "the author's spans are below the call's"
    assert [f"{call.trace_id:032x}" for call in calls if call][1] == trace_id, "the client's trace goes on here"
    (tripped,) = [span.attributes or {} for span in ended if span.name == "tools/call trip"]
    assert str(tripped["callboard.error.id"]) in failure, "what the client was told leads to the span"
    assert slow.found == ["tools/call nap ok"], slow.found
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
