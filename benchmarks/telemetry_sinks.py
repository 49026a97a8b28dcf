"""The sinks that the benchmark server tells, by name: what telemetry costs in each of the ways in which it may be switched on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callboard.telemetry import OpenTelemetry, Prometheus, Sink

SAMPLED = 0.01
"""Share of requests that are traced where not all are."""


def make_sinks(name: str) -> list[Sink]:
    """Sinks for one row of the comparison.

    Args:
        name: `prometheus`; `traces` (1 in 100 sampled); `both`: these two; `otel`: traces (1 in 100) and metrics; `all`: traces of every
            request and metrics; empty for none. Spans and metrics go nowhere.
    """
    if not name:
        return []
    sinks: list[Sink] = [Prometheus()] if name in {"prometheus", "both"} else []
    if name != "prometheus":
        measures = name in {"otel", "all"}
        sinks.append(OpenTelemetry(_tracer(), _meter() if measures else None, share=1.0 if name == "all" else SAMPLED, metrics=measures))
    return sinks


def _tracer() -> Any:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            del spans
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    return provider


def _meter() -> Any:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    return MeterProvider([InMemoryMetricReader()])
