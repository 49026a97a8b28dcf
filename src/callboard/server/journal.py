"""One line in the log for each request: who, what, how long, and what it came to; and the same, without names, for the server's sinks.

Nothing of it is made while nobody reads the log and there are no sinks.

Values stay out: of a resource the template or its scheme, of a task and a session a hash, of arguments nothing but at DEBUG, redacted.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from asyncio import CancelledError
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from random import getrandbits
from sys import exception
from time import perf_counter
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from callboard.core.era import Headers
from callboard.core.exchange import State
from callboard.core.outcome import Outcome, Reply
from callboard.errors import Fail, Reason
from callboard.logs import MAX_FIELD, REQUEST, clean, report, request_id, write
from callboard.server.context import Context
from callboard.server.redaction import read_redactor
from callboard.server.sinks import MAX_TEXT, RAISED, SSE, Sinks, find_code, gather, name_http, read_outcome
from callboard.telemetry.events import OTHER, RequestStarted, RequestStopped, read_size
from callboard.wire import v2026_07_28 as v
from callboard.wire.versions import LATEST

__all__ = [
    "REQUESTS",
    "Journal",
    "name_call",
    "name_request",
    "new_id",
    "note_end",
    "note_http",
    "note_refusal",
    "note_start",
    "open_noted",
    "report_refusal",
    "show_plainly",
]

_Opened = TypeVar("_Opened", bound=Any)
REQUESTS = logging.getLogger("callboard.requests")
# What a request may bring as its id: nothing that is more than one word, and nothing that is short.
_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9_.-]{7,63}").fullmatch
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.DOTALL).fullmatch
# Reads what holds the bytes as it is: a copy of it costs more than all else that is noted.
_TRACED = re.compile(rb"traceparent").search
# Hexadecimal digits of a hash.
_DIGITS = 12
_DONE, _CANCELLED = State.DONE, State.CANCELLED
_INFO = logging.INFO

# What is worth a line of `callboard.security`, whatever the transport.
_EVENTS = {Reason.SCOPE: "scope", Reason.RATE: "rate", Reason.STATE: "state"}


class _Traced(msgspec.Struct):
    traceparent: Any = None


_decode_traced = msgspec.json.Decoder(_Traced).decode


def new_id() -> str:
    """A random id of a request or an error."""
    return f"{getrandbits(32):08x}"  # nobody who guesses one gains anything, and asking the system for it costs more than a line of log


def name_request(headers: Headers | None, meta: msgspec.Raw | None = None) -> str:
    """The id of a request in logs and error texts: its `X-Request-ID`, else the trace id of its `traceparent`, else a random one.

    Args:
        headers: HTTP headers by lower-case name; None without HTTP.
        meta: Its `_meta`, where a `traceparent` may stand too.
    """
    if headers is not None:
        given = headers.get(b"x-request-id")
        if given is not None and _ID(given):
            return given.decode("ascii")
        if (trace := headers.get(b"traceparent")) is not None and (found := _TRACE(trace[:200])):
            return found[1].decode("ascii")
    if meta is not None and _TRACED(meta) is not None:
        try:
            said = _decode_traced(meta).traceparent
        except (msgspec.DecodeError, RecursionError):
            said = None
        if isinstance(said, str) and (found := _TRACE(said[:200].encode("utf-8", "replace"))):
            return found[1].decode("ascii")
    return new_id()


def show_plainly(value: object) -> str | None:
    """What a value says of itself; None where it raises instead, whatever it raises."""
    try:
        return str(value)
    except (Exception, SystemExit, CancelledError):  # noqa: BLE001 - an author's `__str__`
        return None


class Journal:
    """Names people and sessions in the log of one server, so that lines of one can be found and nobody can be.

    Args:
        keys: The server's; the first makes the hashes, so that all processes that have it write the same. None and empty: random ones.
            What can't be keys is left to those who seal with them.
        telemetry: A sink, or a list of them; None for none.

    Raises:
        RegistrationError: One of the sinks is none.

    Attributes:
        sinks: What is told of all that happens; None where there are no sinks, so that it costs nothing.
    """

    __slots__ = ("_key", "sinks")

    def __init__(self, keys: Sequence[bytes | str] | None, telemetry: Any = None) -> None:
        first: Any = keys[0] if keys and isinstance(keys, Sequence) and not isinstance(keys, str | bytes | bytearray) else None
        secret = first.encode("utf-8", "surrogatepass") if isinstance(first, str) else first
        if not isinstance(secret, bytes) or not secret:
            secret = secrets.token_bytes(32)
        self.adopt(secret)
        self.sinks = Sinks(sinks, self.hash) if (sinks := gather(telemetry)) else None

    def adopt(self, secret: bytes) -> None:
        """Make hashes with a secret that all processes of the server have."""
        self._key = hmac.digest(secret, b"callboard log hashes", "sha256")

    name = staticmethod(name_request)

    def hash(self, name: str | None) -> str | None:
        """What stands for a principal, a session or a task in the log.

        Args:
            name: The identity or the id; None stays None.
        """
        if name is None:
            return None
        return hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), key=self._key).hexdigest()[:_DIGITS]


def note_start(context: Context, sinks: Sinks | None) -> RequestStarted:
    """A request begins to be served: tell the sinks, and give it the id that the log calls it by.

    Args:
        context: What its functions see.
        sinks: The server's.

    Returns:
        What `note_end` needs, whatever the request comes to.
    """
    began = perf_counter()
    request, server = context.request, context.mount.server
    headers, envelope, method = request.headers, request.envelope, request.method
    version, traced = envelope.version, envelope.traced
    component: str | None = None
    if sinks is not None:
        if method == "tools/call" and (name := request.params.name) in server.registry.tools:  # what matters most
            component = name
        else:
            component = sinks.name_component(context)
    started = RequestStarted(
        None,  # the id, which most of them need never have
        method,
        component,
        version,
        "pipe" if headers is None else "sse" if version == SSE else "http",
        traced or (headers is not None and b"traceparent" in headers),
        began,
        request.id,
        server.journal,
        context.principal,
        None if (session := context.session) is None else session.id,
        headers,
        envelope.meta if traced else None,
    )
    started._token = REQUEST.set(started)  # noqa: SLF001 - for `note_end`
    if sinks is not None:
        for take in sinks.beginners:
            try:
                take(started)
            except RAISED:
                sinks.complain(take, started)
    return started


def note_end(started: RequestStarted, context: Context, outcome: Outcome | None, status: int, answer: bytes) -> None:
    """A request is over: tell the sinks, and write its line of log.

    Args:
        started: What `note_start` returned.
        context: What its functions saw.
        outcome: What it came to.
        status: HTTP status; 0 where it ends with an exception that nobody is told of, the one that is being handled.
        answer: The encoded answer.
    """
    seconds, size = perf_counter() - started._began, None  # noqa: SLF001 - for this
    if status:
        # What it came to in the eyes of its client, who may have been told something else before.
        state, size = context.exchange.state, len(answer)
        stopped = "timed_out" if state is _DONE else "cancelled" if state is _CANCELLED else None
    else:
        stopped = "cancelled" if isinstance(exception(), CancelledError) else "aborted"
    if (sinks := context.mount.server.journal.sinks) is not None:
        if stopped is None and type(outcome) is Reply and context.stop_reason is None and started.component is not OTHER:
            value = outcome.value
            word = "ok" if type(value) is dict and "isError" not in value else read_outcome(outcome, context)[0]
            event = RequestStopped(started, word, seconds, size)  # what most come to
        else:
            event = _describe_end(started, context, outcome, stopped, seconds, size)
        for take in sinks.enders:
            try:
                take(event)
            except RAISED:
                sinks.complain(take, event)
    if REQUESTS.isEnabledFor(_INFO):
        _note(context, outcome, stopped, size, seconds)
    try:  # noqa: SIM105 - a context manager costs three calls, here for each request
        REQUEST.reset(started._token)  # noqa: SLF001 - for this
    except ValueError:  # the coroutine is closed by the garbage collector, elsewhere than it ran
        pass
    started._token = None  # noqa: SLF001 - it holds its context, which may hold what was started
    if started.traced:
        started.let_go()


def _describe_end(
    started: RequestStarted, context: Context, outcome: Outcome | None, stopped: str | None, seconds: float, size: int | None
) -> RequestStopped:
    """What the sinks are told of an end that is worth more than a word."""
    sinks = context.mount.server.journal.sinks
    word, fail = (stopped or "aborted", None) if stopped is not None or outcome is None else read_outcome(outcome, context)
    if word == "ok" and started.component is OTHER and sinks is not None:
        started.component = sinks.learn(context)
    why = None if context.stop_reason is None else str(context.stop_reason)[:MAX_TEXT]
    if fail is None:
        return RequestStopped(started, word, seconds, size, stop_reason=why)
    error_id = started.request if context.crashed and fail.reason is Reason.INTERNAL else None
    return RequestStopped(started, word, seconds, size, find_code(fail, modern=started.version == LATEST), fail.reason.name, error_id, why)


def _note(context: Context, outcome: Outcome | None, stopped: str | None, size: int | None, seconds: float) -> None:
    try:
        _write(context, outcome, stopped, size, seconds)
    except Exception:  # a line of log is no reason to fail a request
        logging.getLogger("callboard").exception("A request can't be logged.")


def _write(context: Context, outcome: Outcome | None, stopped: str | None, size: int | None, seconds: float) -> None:
    request, journal = context.request, context.mount.server.journal
    envelope, session = request.envelope, context.session
    said = (
        describe_outcome(outcome, context)
        if stopped is None and outcome is not None
        else {"outcome": stopped and stopped.replace("_", " ")}
    )
    fields: dict[str, Any] = {
        "request": request_id(),
        "method": clean(request.method, MAX_FIELD),
        **_describe_target(context, journal),
        **said,
        "duration_ms": _milliseconds(seconds),
        "version": envelope.version,
        "transport": "pipe" if request.headers is None else name_http(envelope.version),
        "principal": journal.hash(context.principal),
        "session": None if session is None else journal.hash(session.id),
        "bytes_in": read_size(request.headers),
        "bytes_out": size,
    }
    if REQUESTS.isEnabledFor(logging.DEBUG):
        fields["arguments"] = _show_arguments(context)
    write(REQUESTS, logging.INFO, fields["method"], fields)


def describe_outcome(outcome: Outcome, context: Context) -> dict[str, Any]:
    """`outcome`, and for errors `code` and `reason`.

    Args:
        outcome: What the request came to.
        context: Its context.
    """
    word, fail = read_outcome(outcome, context)
    said = {} if fail is None else describe_fail(fail, modern=context.request.envelope.version == LATEST)
    return {"outcome": word.replace("_", " "), **said}


def describe_fail(fail: Fail, *, modern: bool) -> dict[str, Any]:
    """`code` and `reason` of an error.

    Args:
        fail: The error.
        modern: Whether it goes to a client of the current protocol.
    """
    return {"code": find_code(fail, modern=modern), "reason": fail.reason.name}


def _describe_target(context: Context, journal: Journal) -> dict[str, Any]:
    """What a request is about, without values."""
    request = context.request
    params: Any = request.params
    match request.method:
        case "tools/call":
            return {"tool": clean(str(params.name), MAX_FIELD)}
        case "prompts/get":
            return {"prompt": clean(str(params.name), MAX_FIELD)}
        case "completion/complete":
            of = {"prompt": params.ref.name} if isinstance(params.ref, v.PromptReference) else {"resource": _place(context, params.ref.uri)}
            return {name: clean(str(value), MAX_FIELD) for name, value in {**of, "argument": params.argument.name}.items()}
    if request.row.mirrored == "task_id":
        return {"task": journal.hash(params.task_id)}
    uri = getattr(params, "uri", None)
    return {"resource": clean(_place(context, uri), MAX_FIELD)} if isinstance(uri, str) else {}


def name_call(context: Context) -> str:
    """The method of a request and what it is about, without values, printable: for the log.

    Args:
        context: The request's.
    """
    method = f"{context.request.method:.100}"
    with suppress(Exception):  # middleware may have put in other params
        for target in _describe_target(context, context.mount.server.journal).values():
            return f"{clean(method)} {target[:100]!a}"
    return clean(method)


def _place(context: Context, uri: str) -> str:
    """A resource without values: its URI where that is one of ours, the template that it fits, else its scheme."""
    registry = context.mount.server.registry
    if uri in registry.resources or uri in registry.templates:
        return uri
    for template, _ in registry.find_templates(uri):
        return str(template.key)
    for repository in registry.find_repositories(uri):
        return f"{repository.key}..."
    scheme, colon, _ = uri[:MAX_FIELD].partition(":")
    return f"{scheme}:..." if colon and scheme.isascii() and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum() else "..."


def _show_arguments(context: Context) -> Any:
    """Arguments of a tool that is known, as far as they may be shown; nothing of prompts, resources and completions."""
    request = context.request
    if request.method != "tools/call" or not isinstance(request.params, v.CallToolRequestParams):
        return None
    tool = context.mount.server.registry.tools.get(request.params.name)
    raw = request.params.arguments
    definition = getattr(tool, "definition", None)
    if raw is UNSET or not isinstance(raw, msgspec.Raw) or not isinstance(definition, bytes | msgspec.Raw):
        return None
    return read_redactor(bytes(definition)).show(raw)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def note_refusal(
    journal: Journal | None,
    method: str | None,
    fail: Fail,
    *,
    headers: Headers | Iterable[tuple[bytes, bytes]] | None,
    principal: str | None = None,
    modern: bool = True,
) -> None:
    """Log a request that was refused before it came to run, and tell the sinks.

    Args:
        journal: The server's; None where nobody knows who asks.
        method: Its method, or HTTP's where that was not read; None where neither is known.
        fail: Why.
        headers: HTTP headers; None without HTTP.
        principal: Who asks.
        modern: Whether its client speaks the current protocol.
    """
    sinks = None if journal is None else journal.sinks
    if sinks is None and not REQUESTS.isEnabledFor(logging.INFO):
        return
    known = None if headers is None else dict(headers)
    called = request_id() or name_request(known)
    if sinks is not None:
        sinks.refuse(called, method, fail, "pipe" if known is None else "http", modern=modern)
    if not REQUESTS.isEnabledFor(logging.INFO):
        return
    fields = {
        "request": called,
        "method": None if method is None else clean(method, MAX_FIELD),
        "outcome": "error",
        **describe_fail(fail, modern=modern),
        "transport": "pipe" if known is None else "http",
        "principal": None if journal is None else journal.hash(principal),
        "bytes_in": read_size(known),
    }
    write(REQUESTS, logging.INFO, fields["method"] or "a message", fields)


def note_http(
    journal: Journal, method: str, headers: Headers, principal: str | None, session_id: str | None
) -> AbstractContextManager[None]:
    """Log a stream that is over, or another HTTP request that holds no message; the sinks are told of streams.

    Args:
        journal: The server's.
        method: HTTP's.
        headers: HTTP headers.
        principal: Who asks.
        session_id: The session that it is of.
    """
    if journal.sinks is None and not REQUESTS.isEnabledFor(logging.INFO) and method != "GET":
        return nullcontext()
    return _note_http(journal, method, headers, principal, session_id)


@contextmanager
def _note_http(journal: Journal, method: str, headers: Headers, principal: str | None, session_id: str | None) -> Iterator[None]:
    began = perf_counter()
    outcome = "cancelled"
    close = None if journal.sinks is None or method != "GET" else journal.sinks.open_stream("get")
    try:
        yield
        outcome = "ok"
    finally:
        if close is not None:
            close()
        if REQUESTS.isEnabledFor(logging.INFO):
            fields: dict[str, Any] = {"request": name_request(headers), "method": method, "outcome": outcome}
            fields["duration_ms"] = _milliseconds(perf_counter() - began)
            fields |= {"transport": "http", "principal": journal.hash(principal), "session": journal.hash(session_id)}
            write(REQUESTS, logging.INFO, method, fields)


async def open_noted(opened: Awaitable[_Opened], journal: Journal, version: str, principal: str | None, *, is_pipe: bool) -> _Opened:
    """Log the `initialize` of a session, and tell the sinks.

    Args:
        opened: What it comes to: the session, which has an `id`, and what introduces it; or why there is none.
        journal: The server's.
        version: Protocol version.
        principal: Who asks.
        is_pipe: Whether the session has a pipe of its own.
    """
    began = perf_counter()
    transport = "pipe" if is_pipe else name_http(version)
    started = RequestStarted(new_id(), "initialize", None, version, transport, _journal=journal, _principal=principal)
    token = REQUEST.set(started)
    sinks = journal.sinks
    if sinks is not None:
        sinks.tell(started)
    outcome, fail, session_id = "cancelled", None, None
    try:
        result = await opened
        told: Any = result
        if isinstance(told, Fail):
            outcome, fail = "error", told
        else:
            outcome, session_id = "ok", told[0].id
            if sinks is not None:
                sinks.begin_session(session_id, version, transport)
        return result
    finally:
        seconds = perf_counter() - began
        if sinks is not None:
            sinks.tell(_end_opening(started, outcome, fail, seconds))
        if REQUESTS.isEnabledFor(logging.INFO):
            fields: dict[str, Any] = {"request": started.request, "method": "initialize", "outcome": outcome}
            fields |= {} if fail is None else describe_fail(fail, modern=False)
            fields |= {"duration_ms": _milliseconds(seconds), "version": version, "transport": transport}
            fields |= {"principal": journal.hash(principal), "session": journal.hash(session_id)}
            write(REQUESTS, logging.INFO, "initialize", fields)
        REQUEST.reset(token)


def _end_opening(started: RequestStarted, outcome: str, fail: Fail | None, seconds: float) -> RequestStopped:
    if fail is None:
        return RequestStopped(started, outcome, seconds)
    error_id = started.request if fail.reason is Reason.INTERNAL else None
    return RequestStopped(started, outcome, seconds, code=find_code(fail, modern=False), reason=fail.reason.name, error_id=error_id)


def report_refusal(context: Context, fail: Fail) -> None:
    """Log to `callboard.security` that a request was refused, where the reason is one of who asks or how.

    Args:
        context: The request's.
        fail: Why.
    """
    kind = _EVENTS.get(fail.reason)
    if kind is not None:
        journal = context.mount.server.journal
        target = _describe_target(context, journal)
        report(kind, method=context.request.method, **target, principal=journal.hash(context.principal))
