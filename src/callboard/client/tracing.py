"""Lets a request go on with the trace of who sends it, where the program traces with OpenTelemetry (SEP-414)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["TRACING", "carry_trace"]

TRACING = "opentelemetry.trace"
"""The module that a program has loaded where it traces: others pay one look for it."""

_CARRIED = ("traceparent", "tracestate")


def carry_trace(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Params that say in `_meta` which span they are sent in, where there is one and they don't say so themselves.

    Baggage stays here: it is the program's own, and the server may be anybody's.

    Args:
        params: Params of a request.
    """
    from opentelemetry.propagate import inject
    from opentelemetry.trace import get_current_span

    given = params.get("_meta") or {}
    if not get_current_span().get_span_context().is_valid or not isinstance(given, Mapping) or "traceparent" in given:
        return params
    carrier: dict[str, str] = {}
    inject(carrier)
    said = {key: carrier[key] for key in _CARRIED if key in carrier}
    return {**params, "_meta": {**given, **said}} if said else params
