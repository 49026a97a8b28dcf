"""What a server tells of its work, for `Server(telemetry=...)`: traces, metrics, or a sink of your own. Each is loaded when it is first asked for.

`callboard.telemetry.events` has the types of all that a sink is told.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.telemetry.events import Event as Event
    from callboard.telemetry.events import Sink as Sink
    from callboard.telemetry.otel import OpenTelemetry as OpenTelemetry
    from callboard.telemetry.prometheus import Prometheus as Prometheus

_HOMES = {
    "Event": "events",
    "OpenTelemetry": "otel",
    "Prometheus": "prometheus",
    "Sink": "events",
}
__all__ = ["Event", "OpenTelemetry", "Prometheus", "Sink"]


def __getattr__(name: str) -> Any:
    """Load a name's module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
