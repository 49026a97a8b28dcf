"""Sinks for tests: one that keeps what it is told, and one that fails."""

from typing import Any, TypeVar

from callboard.telemetry import Event
from callboard.telemetry.events import RequestStarted, RequestStopped

T = TypeVar("T")


class Recorder:
    """Keeps all events.

    Attributes:
        events: In the order in which they came.
    """

    def __init__(self) -> None:
        self.events: list[Any] = []

    def take(self, event: Event) -> None:
        """Keep one."""
        self.events.append(event)

    def of(self, kind: type[T]) -> list[T]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def stopped(self, method: str = "tools/call") -> list[RequestStopped]:
        """How requests of a method ended; each has begun, once."""
        begun = [event for event in self.events if isinstance(event, RequestStarted)]
        ended = [event.started for event in self.of(RequestStopped)]
        assert len(set(map(id, begun))) == len(begun)
        assert all(ended.count(each) == 1 for each in ended)
        assert {id(each) for each in ended} <= {id(each) for each in begun}
        return [event for event in self.of(RequestStopped) if event.started.method == method]

    @property
    def text(self) -> str:
        """All that can be read of all of them."""
        parts = []
        for event in self.events:
            parts.append(repr(event))
            if isinstance(event, RequestStarted):
                parts += [str((event.rpc_id, event.principal, event.session, event.trace, event.http_trace, event.component, event.method))]
        return "\n".join(parts)


class Broken:
    """Fails at all it is told."""

    def take(self, event: Event) -> None:
        """Fail.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"no {event.name}")
