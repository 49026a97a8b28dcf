"""What a server tells its sinks, and by which names: those that it knows, and no others."""

from __future__ import annotations

import inspect
import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from callboard.core.outcome import Deferred, NeedInput, Outcome, Reply
from callboard.errors import REASONS, Fail, RegistrationError
from callboard.server.context import Context
from callboard.server.mount import Mount
from callboard.telemetry.events import (
    EVENTS,
    OTHER,
    AuthChecked,
    Event,
    Levels,
    RequestRefused,
    ServerClosed,
    ServerOpened,
    SessionEnded,
    SessionOpened,
    Sink,
    StoreUsed,
    StreamClosed,
    StreamOpened,
    TaskEnded,
    TaskStarted,
)
from callboard.wire import v2026_07_28 as v
from callboard.wire.versions import CLIENT_REQUESTS

__all__ = ["MAX_BORN", "MAX_LEARNED", "MAX_TEXT", "RAISED", "SSE", "Sinks", "find_code", "gather", "name_http", "read_outcome"]

_log = logging.getLogger("callboard")
MAX_LEARNED = 200
"""Names of components that no registry has and that were served all the same, of handlers and providers, that may become labels."""
MAX_BORN = 100_000
"""Sessions and tasks whose beginning is known, so that their end says how long they took: they may end in another process, unheard."""
MAX_TEXT = 80
"""Characters of what an author says."""
RAISED = (Exception, SystemExit, CancelledError)
"""What code of an author's may raise, and nobody but a sink's author is to suffer for."""
_HTTP = frozenset({"GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"})
SSE = "2024-11-05"
"""The version whose HTTP is another one."""


def gather(telemetry: Any) -> list[Sink]:
    """The sinks of an option `telemetry=`.

    Args:
        telemetry: A sink, a list of them, or None.

    Raises:
        RegistrationError: One of them is none.
    """
    given = [] if telemetry is None else list(telemetry) if isinstance(telemetry, list | tuple) else [telemetry]
    for each in given:
        if isinstance(each, type) or not callable(getattr(each, "take", None)):
            shown = f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__
            raise RegistrationError(f"telemetry is a sink, like callboard.telemetry.Prometheus(), or a list of them, not {shown}.")
        if inspect.iscoroutinefunction(each.take):
            raise RegistrationError(
                f"{_show(each)}.take is async: nobody waits for a sink. Make it a def that puts events where a task of yours takes them."
            )
        if unknown := sorted(set(getattr(each, "takes", EVENTS)) - set(EVENTS)):
            raise RegistrationError(
                f"{_show(each)}.takes is a set of names of events, {', '.join(EVENTS)}; {unknown[0]!r} is none of them."
            )
    return given


class Sinks:
    """The sinks of one server. There is one only where there are sinks: nobody else pays for it.

    Args:
        sinks: As given.
        hash_of: Makes what stands for a name, or for a session's id.

    Attributes:
        beginners: What takes each request's beginning.
        enders: What takes its end.
        hash: As given.
        pages: Path -> ASGI application of what sinks show to everybody who reaches the endpoint.
    """

    __slots__ = ("_born", "_failed", "_learned", "_lock", "_mounts", "_takers", "beginners", "enders", "hash", "pages")

    def __init__(self, sinks: list[Sink], hash_of: Callable[[str | None], str | None]) -> None:
        self._takers = {name: tuple(sink.take for sink in sinks if name in getattr(sink, "takes", EVENTS)) for name in EVENTS}
        self.beginners, self.enders = self._takers["request.start"], self._takers["request.stop"]
        self.hash = hash_of
        self._failed: set[tuple[int, str]] = set()
        self._learned: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._mounts: dict[Mount, None] = {}
        self._born: dict[str, float] = {}
        self.pages: dict[str, Any] = {}
        for sink in sinks:
            self.pages |= getattr(sink, "pages", {})

    def tell(self, event: Event) -> None:
        """Tell all sinks that take this event; what one of them raises is logged once for each kind of event."""
        for take in self._takers[event.name]:
            try:
                take(event)
            except RAISED:
                self.complain(take, event)

    def complain(self, take: Callable[[Event], None], event: Event) -> None:
        """Log that a sink raised, the exception that is being handled: once for each kind of event.

        Args:
            take: The sink's.
            event: What it was told.
        """
        sink = getattr(take, "__self__", take)
        if (key := (id(sink), event.name)) not in self._failed:
            self._failed.add(key)
            _log.exception("A telemetry sink, %s, fails with %s; it is told on, and this is not logged again.", _show(sink), event.name)

    # Servers

    def open(self, mount: Mount) -> None:
        """A mount begins to serve."""
        if mount in self._mounts:
            return
        self._mounts[mount] = None
        server = mount.server
        if hasattr(server.store, "observe"):
            server.store.observe = self.note_store
        self.tell(ServerOpened(server.info.name, server.info.version, self.levels))

    def close(self, mount: Mount) -> None:
        """A mount has ended."""
        if self._mounts.pop(mount, 0) is None:
            self.tell(ServerClosed(mount.server.info.name))

    def levels(self) -> Levels:
        """How much there is of everything; from any thread."""
        mounts = list(self._mounts)
        return Levels(
            in_flight=sum([mount.load.in_flight for mount in mounts]),
            threads_busy=sum([mount.workers.running for mount in mounts]),
            threads=sum([mount.workers.max_threads for mount in mounts]),
            thread_queue=sum([mount.workers.waiting for mount in mounts]),
            buffered_bytes=sum([mount.load.buffered + mount.load.unread for mount in mounts]),
        )

    # Requests

    def refuse(self, request_id: str, method: str | None, fail: Fail, transport: str, *, modern: bool) -> None:
        """Tell that a request was refused before it came to run."""
        known = method if method is None or method in CLIENT_REQUESTS or method in _HTTP or method == "initialize" else OTHER
        self.tell(RequestRefused(request_id, known, fail.reason.name, find_code(fail, modern=modern), transport))

    # What lasts

    def begin_session(self, session_id: str, version: str, transport: str) -> None:
        """Tell that a session has begun."""
        self._bear(session_id)
        self.tell(SessionOpened(self.hash(session_id) or "", version, transport))

    def end_session(self, session_id: str, reason: str) -> None:
        """Tell that a session has ended."""
        began = self._born.pop(session_id, None)
        seconds = None if began is None else monotonic() - began
        self.tell(SessionEnded(self.hash(session_id) or "", str(reason)[:MAX_TEXT], seconds))

    def begin_task(self, task_id: str, component: str) -> None:
        """Tell that a call goes on as a task."""
        self._bear(f"task {task_id}")
        self.tell(TaskStarted(component))

    def end_task(self, task_id: str, component: str, status: str) -> None:
        """Tell that a task is over."""
        began = self._born.pop(f"task {task_id}", None)
        self.tell(TaskEnded(component, status, None if began is None else monotonic() - began))

    def _bear(self, name: str) -> None:
        with self._lock:
            if len(self._born) >= MAX_BORN:
                del self._born[next(iter(self._born))]
            self._born[name] = monotonic()

    def open_stream(self, kind: str) -> Callable[[], None]:
        """Tell that a stream opens; what is returned tells, once, that it has closed."""
        began = [monotonic()]
        self.tell(StreamOpened(kind))

        def close() -> None:
            if began:
                self.tell(StreamClosed(kind, monotonic() - began.pop()))

        return close

    def note_store(self, operation: str, seconds: float, failed: bool) -> None:  # noqa: FBT001 - as stores call it
        """Tell how long a store took."""
        self.tell(StoreUsed(operation, seconds, failed))

    def note_auth(self, outcome: str, seconds: float) -> None:
        """Tell what looking at a credential came to."""
        self.tell(AuthChecked(outcome, seconds))

    # Names

    def name_component(self, context: Context) -> str | None:
        """What a request names, in words of the server's."""
        request = context.request
        params: Any = request.params
        registry = context.mount.server.registry
        method = request.method
        if method == "tools/call":
            kind, name, known = "tool", params.name, registry.tools
        elif method == "prompts/get":
            kind, name, known = "prompt", params.name, registry.prompts
        elif method == "completion/complete" and isinstance(params.ref, v.PromptReference):
            kind, name, known = "prompt", params.ref.name, registry.prompts
        elif method == "completion/complete":
            return self._name_resource(registry, params.ref.uri)
        else:
            uri = getattr(params, "uri", None)
            return self._name_resource(registry, uri) if isinstance(uri, str) else None
        return name if name in known or (kind, name) in self._learned else OTHER

    @staticmethod
    def _name_resource(registry: Any, uri: str) -> str:
        if uri in registry.resources or uri in registry.templates:
            return uri
        for template, _ in registry.find_templates(uri):
            return str(template.key)
        for repository in registry.find_repositories(uri):
            return f"{repository.key}..."
        return OTHER

    def learn(self, context: Context) -> str:
        """The name of what no registry has and was served: few of them are remembered."""
        kinds = {"tools/call": "tool", "prompts/get": "prompt"}
        kind, name = kinds.get(context.request.method), getattr(context.request.params, "name", None)
        if kind is None or not isinstance(name, str) or len(name) > 128 or not name.isprintable():
            return OTHER
        with self._lock:
            if len(self._learned) >= MAX_LEARNED:
                return OTHER
            self._learned.add((kind, name))
        return name


def read_outcome(outcome: Outcome, context: Context) -> tuple[str, Fail | None]:
    """A word for what a request came to, and its error where it is one.

    Args:
        outcome: What it came to.
        context: Its context.
    """
    if isinstance(outcome, Reply):  # what most come to
        value = outcome.value
        failed = value.get("isError") if type(value) is dict or isinstance(value, Mapping) else getattr(value, "is_error", False)
        if failed is True:
            return ("timed_out" if context.crashed else "tool_error"), None
        return "ok", None
    if isinstance(outcome, Fail):
        return "error", outcome
    if isinstance(outcome, NeedInput):
        return "input_required", None
    return ("task" if isinstance(outcome, Deferred) else "accepted"), None


def find_code(fail: Fail, *, modern: bool) -> int:
    """The code of an error.

    Args:
        fail: The error.
        modern: Whether it goes to a client of the current protocol.
    """
    rule = REASONS.get(fail.reason)
    return fail.code or 0 if rule is None else rule.code if modern else rule.legacy_code


def name_http(version: str) -> str:
    """What the HTTP of a protocol version is called: that of 2024-11-05 is another one."""
    return "sse" if version == SSE else "http"


def _show(sink: object) -> str:
    return type(sink).__name__[:MAX_TEXT]
