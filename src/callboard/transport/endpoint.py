"""What every transport does with a message once it has the bytes: era, context, service, answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, cast

import msgspec
from msgspec import UNSET

from callboard.core.era import Era, Headers
from callboard.core.exchange import Exchange
from callboard.core.outcome import NeedInput, Outcome
from callboard.errors import Fail, Reason, ToolError
from callboard.logs import request_id
from callboard.server.app import Server
from callboard.server.component import sole_error
from callboard.server.context import Context
from callboard.server.fleet import check_state, join
from callboard.server.journal import REQUESTS, name_call, name_request, note_end, note_refusal, note_start, report_refusal
from callboard.server.limits import DEFAULTS, Limits
from callboard.server.middleware import Service
from callboard.server.mount import Caller, Mount
from callboard.server.places import Load
from callboard.server.rounds import advance, is_settled, resume
from callboard.server.workers import Workers
from callboard.telemetry.events import RequestStarted
from callboard.transport.stream import Pulse, Receive, Scope, Send
from callboard.wire.jsonrpc import Batch, Message, RawNotification, RawRequest, RawResponse, RequestId

__all__ = ["Endpoint", "HttpCall", "Older", "PipeSession", "read_cancelled"]

_log = logging.getLogger("callboard")
# From here on an HTTP status says that a request was refused.
_REFUSED = 400


class _Cancelled(msgspec.Struct):
    request_id: RequestId = msgspec.field(name="requestId")
    reason: str | None = None


_decode_cancelled = msgspec.json.Decoder(_Cancelled).decode


class HttpCall:
    """One HTTP request that no era of its own claimed, with all that it takes to answer it.

    Attributes:
        mount: What the endpoint's `open` returned, on this event loop.
        scope: ASGI scope.
        receive: ASGI receive.
        send: ASGI send.
        pulse: Keep-alive of the app.
        headers: Its headers by lower-case name.
        extra: Headers for every answer.
        principal: Who asks.
        message: The body of a POST; None for other methods.
        streams: Whether the client takes an event stream.
        streams_only: Whether it takes nothing else.
    """

    __slots__ = ("extra", "headers", "message", "mount", "principal", "pulse", "receive", "scope", "send", "streams", "streams_only")

    def __init__(
        self,
        mount: Mount,
        scope: Scope,
        receive: Receive,
        send: Send,
        pulse: Pulse,
        headers: dict[bytes, bytes],
        extra: list[tuple[bytes, bytes]],
        principal: str | None,
        message: Message | None,
        *,
        streams: bool,
        streams_only: bool,
    ) -> None:
        self.mount = mount
        self.scope = scope
        self.receive = receive
        self.send = send
        self.pulse = pulse
        self.headers = headers
        self.extra = extra
        self.principal = principal
        self.message = message
        self.streams = streams
        self.streams_only = streams_only


class PipeSession(Protocol):
    """The session of a client of an older protocol, on a stream of lines."""

    def start(self, message: RawRequest, exchange: Exchange) -> None:
        """Serve a request; its exchange is woken when it is over."""
        ...

    def notice(self, message: RawNotification) -> None:
        """Take a notification."""
        ...

    def respond(self, message: RawResponse) -> None:
        """Take the answer to a request of ours."""
        ...

    def refuse(self, request_id: RequestId | None, fail: Fail) -> bytes:
        """Encode an error in the words of its protocol."""
        ...

    def give_up(self, request_id: RequestId, fail: Fail | None) -> None:
        """Stop a request; with an error where there is one, else without an answer."""
        ...

    def take_batch(self, batch: Batch) -> None:
        """Serve several messages in one line; what answers them is said when all is done."""
        ...

    async def close(self) -> None:
        """The client is gone."""
        ...


class Older(Protocol):
    """What serves clients of protocols older than the current one."""

    def methods(self) -> bytes:
        """HTTP methods that it takes, as `Allow` lists them."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Its options by name, for people who look at a deployment."""
        ...

    async def serve(self, http: HttpCall) -> None:
        """Answer one HTTP request."""
        ...

    async def connect(
        self, mount: Mount, message: RawRequest, caller: Caller, say: Callable[[list[bytes]], None], channel: Exchange
    ) -> PipeSession | None:
        """Open the session of a pipe with its `initialize`, and answer that.

        Args:
            mount: What the endpoint's `open` returned.
            message: The `initialize`.
            caller: Who asks.
            say: Takes encoded messages to write.
            channel: Takes what the server says of its own accord.

        Returns:
            The session; None when it was refused.
        """
        ...

    def drain(self) -> None:
        """Close streams that would not end by themselves, and open no session any more."""
        ...

    async def close(self) -> None:
        """End every session."""
        ...


class Endpoint:
    """A server behind a transport.

    Args:
        server: The server.
        era: The current protocol.
        versions: Protocol versions that are served, the preferred one first.
        options: Bound options: what functions see as `ctx.options`.
        options_factory: Makes them, for each session, or request where there are no sessions; None where `options` are everybody's.
        instructions: Advice for the model in place of the server's.
        older: What serves clients of older protocols; None where only the current one is served.
        limits: Bounds of all that goes on.
        listens: Whether the transport can deliver notifications of change.
        logs: Whether it can deliver log messages.

    Attributes:
        load: What goes on, counted.
        challenge: What tells a client which scopes to get, where a guard stands before the endpoint; see `Mount`.
    """

    def __init__(
        self,
        server: Server,
        era: Era,
        *,
        versions: tuple[str, ...],
        options: Any = None,
        options_factory: Callable[[Caller], Any] | None = None,
        instructions: str | None = None,
        older: Older | None = None,
        limits: Limits = DEFAULTS,
        listens: bool = True,
        logs: bool = True,
    ) -> None:
        self.server = server
        self.era = era
        self.versions = versions
        self._options = options
        self._options_factory = options_factory
        self._instructions = instructions
        self.older = older
        self.limits = limits
        self.load = Load(limits)
        self._listens = listens
        self._logs = logs
        self.challenge: Callable[[Collection[str]], bytes] | None = None
        self._service = server.service
        self.context_type = server.context_type
        self.mount: Mount | None = None

    async def open(self) -> Mount:
        """Enter the server's lifespan, once per event loop.

        Raises:
            Exception: What the lifespan raised.
        """
        loop = asyncio.get_running_loop()
        mount = self.mount
        if mount is not None and mount.workers.loop is loop:
            return mount
        if self.older is not None and self.older.facts()["sessions"] != "off":
            check_state(self.server)
        await self.server.store.open()
        await join(self.server)
        if self.server.tasks is not None:
            self.server.tasks.settle()
        values = await self.server.lifespan.enter()
        if self.mount is not None and self.mount.workers.loop is loop:
            await self.server.lifespan.leave()  # another request was faster
            return self.mount
        limits = self.limits
        workers = Workers(loop, max_threads=limits.threads, max_waiting=limits.thread_queue, per_principal=limits.threads_per_principal)
        if mount is not None:
            self.load = Load(limits)  # what went on in another event loop is over
        self.mount = Mount(
            self.server,
            workers,
            values=values,
            versions=self.versions,
            options=self._options,
            options_factory=self._options_factory,
            instructions=self._instructions,
            limits=limits,
            load=self.load,
            listens=self._listens,
            logs=self._logs,
            challenge=self.challenge,
        )
        if (sinks := self.server.journal.sinks) is not None:
            sinks.open(self.mount)
        return self.mount

    def drain(self) -> None:
        """End listen streams in good order and take no new ones: what comes next is the end of this mount."""
        if self.mount is not None:
            self.mount.draining = True
            self.server.hub.close(self.mount.workers)
            if self.older is not None:
                self.older.drain()

    async def give_up(self) -> None:
        """Tell calls of sessions that they have had their time; those on the current protocol hear of it when their task is cancelled."""
        self.drain()
        if self.mount is not None and self.older is not None:
            await self.older.close()

    async def close(self) -> None:
        """End listen streams and sessions in good order, and leave the lifespan."""
        self.drain()
        mount, self.mount = self.mount, None
        if mount is not None:
            if self.older is not None:
                await self.older.close()
            for end in list(mount.closing.values()):
                await end()
            mount.workers.close()
            if (sinks := self.server.journal.sinks) is not None:
                sinks.close(mount)
            await self.server.lifespan.leave()
            if not self.server.lifespan.in_use:
                await self.server.store.close()

    async def answer(
        self,
        mount: Mount,
        era: Era,
        message: RawRequest,
        exchange: Exchange,
        *,
        headers: Headers | None = None,
        principal: str | None = None,
        scope_state: Any = None,
        service: Service | None = None,
    ) -> None:
        """Serve one request and finish its exchange, whatever happens.

        Raises:
            asyncio.CancelledError: This task was cancelled; the exchange is left to the caller.
        """
        request = era.lift(message, headers)
        if isinstance(request, Fail):
            self.note_refusal(message.method, request, headers=headers, principal=principal, modern=era is self.era)
            exchange.finish(*era.render(message.id, request, None))
            return
        context = self.context_type(mount, request, exchange, principal, scope_state)
        if mount.options_factory is not None:
            bound = await self.bind(mount, Caller(context.headers, principal, scope_state))
            if isinstance(bound, Fail):
                self.note_refusal(message.method, bound, headers=headers, principal=principal, modern=era is self.era)
                exchange.finish(*era.render(request.id, bound, None))
                return
            context.options = bound
        exchange.finish(*await self.serve(context, era, service))

    async def serve(self, context: Context, era: Era, service: Service | None = None) -> tuple[int, bytes]:
        """Run one request.

        Args:
            context: What its functions see.
            era: What renders the outcome.
            service: What serves it; the server's own by default.

        Returns:
            HTTP status and encoded answer, whatever happens.

        Raises:
            asyncio.CancelledError: This task was cancelled.
        """
        sinks = self.server.journal.sinks
        started = None if sinks is None and not REQUESTS.isEnabledFor(logging.INFO) else note_start(context, sinks)
        request, load = context.request, context.mount.load
        outcome: Outcome | None = None
        if (fail := load.enter(context.principal, request.method)) is not None:
            return self._turn_away(context, era, fail, started)
        try:
            params = request.params
            if request.row.asks and (params.request_state is not UNSET or params.input_responses is not UNSET):
                outcome = await resume(context)  # before layers ask anything
            runs = outcome is None
            while runs:
                try:
                    outcome = await (service or self._service)(request, context)
                except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it passes unless it is settled
                    _check_settled(context, error)
                runs = context.asks is not None or type(outcome) is NeedInput
                if runs:
                    outcome = await advance(context, outcome)
                    runs = outcome is None
            assert outcome is not None
            status, answer = era.render(request.id, outcome, request)
            if len(answer) > load.limits.max_result:
                outcome = load.refuse_result(len(answer))
                status, answer = era.render(request.id, outcome, request)
        except BaseException as error:  # noqa: BLE001 - it passes unless it is the call's own
            outcome, status, answer = self._settle(context, era, error, started)
        finally:
            load.leave(context.principal, request.method)
        if context.asks is not None or status >= _REFUSED or context.exchange.dropped:
            _look_back(context, outcome)
        if started is not None:
            note_end(started, context, outcome, status, answer)
        del outcome, fail  # what a function raised holds this frame
        return status, answer

    def _turn_away(self, context: Context, era: Era, fail: Fail, started: RequestStarted | None) -> tuple[int, bytes]:
        """There is no room for a request."""
        status, answer = era.render(context.request.id, fail, None)
        if started is not None:
            note_end(started, context, fail, status, answer)
        return status, answer

    def hear(self, mount: Mount, message: RawNotification, **facts: Any) -> None:
        """Let the server hear a notification that has been accepted; nobody waits for what it makes of it.

        Args:
            mount: What `open` returned.
            message: The notification.
            **facts: Who tells; see `callboard.handling.loop.Teller`.
        """
        if self.server.hears:
            self.server.hear(mount, message, self.bind, facts)

    def note_refusal(
        self, method: str | None, fail: Fail, *, headers: Headers | None = None, principal: str | None = None, modern: bool = True
    ) -> None:
        """Log a request that was refused before it came to run, where requests are logged.

        Args:
            method: Its method; None where that could not be read.
            fail: Why.
            headers: HTTP headers by lower-case name; None without HTTP.
            principal: Who asks.
            modern: Whether its client speaks the current protocol.
        """
        note_refusal(self.server.journal, method, fail, headers=headers, principal=principal, modern=modern)

    async def bind(self, mount: Mount, caller: Caller) -> Mapping[str, Any] | Fail | None:
        """The options for one session, or for one request where there are no sessions.

        Returns:
            The mapping; a `Fail` without detail when the factory has none (the log says why).
        """
        factory, options = mount.options_factory, mount.options
        if factory is None:
            return cast("Mapping[str, Any] | None", options)
        try:
            options = factory(caller)
            if inspect.isawaitable(options):
                options = await options
        except (Exception, SystemExit):  # noqa: BLE001 - user code; the client learns nothing of it
            _log.exception("options= raised.")
            return Fail(Reason.OPTIONS)
        if isinstance(options, Mapping):
            return cast("Mapping[str, Any]", options)
        _log.error("options= gave %s: it must give a mapping.", type(options).__name__)
        return Fail(Reason.OPTIONS)

    def _settle(self, context: Context, era: Era, error: BaseException, started: RequestStarted | None) -> tuple[Fail, int, bytes]:
        """What to answer when a call ended with an exception, and how that is rendered.

        Raises:
            BaseException: This very exception, where it is not the call's own.
        """
        fail = self._judge(context, error)
        if fail is None:
            if context.asks is not None:
                context.asks.abandon()
            if started is not None:
                note_end(started, context, None, 0, b"")
            del error
            raise  # noqa: PLE0704 - it is called where an exception is handled
        return (fail, *self._render_crash(era, context.request.id, fail))

    def _judge(self, context: Context, error: BaseException) -> Fail | None:
        """What to answer when a call ended with an exception; None where it must go on its way, because it is not the call's own."""
        if not isinstance(sole_error(error), Fail | ToolError):
            context.crashed = True
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None or isinstance(error, KeyboardInterrupt):
            return None  # the coroutine is being closed, or the process is
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
            if not context.mount.draining or not context.exchange.open:
                return None
            task.uncancel()  # the server ends: who still waits learns why
            return Fail(Reason.OVERLOADED, "The server is shutting down.")
        request = context.request
        return self.server.crash(name_call(context), error, request_id() or name_request(request.headers, request.envelope.meta))

    def _render_crash(self, era: Era, request_id: int | str, fail: Fail) -> tuple[int, bytes]:
        try:
            return era.render(request_id, fail, None)
        except Exception:  # noqa: BLE001 - an author's error data may be unencodable
            _log.exception("An error of its own can't be encoded: %r", fail.reason)
            return era.render(request_id, Fail(Reason.INTERNAL), None)


def _check_settled(context: Context, error: BaseException) -> None:
    """Let an exception pass where a layer asked the client, so that it is settled what the call comes to.

    Raises:
        BaseException: This very exception otherwise.
    """
    if not is_settled(context, error):
        del error
        raise  # noqa: PLE0704 - it is called where an exception is handled


def _look_back(context: Context, outcome: Outcome) -> None:
    """A request is over that asked its client, was refused, or was too fast for its client.

    A client that lacks a scope is told what to get (AR-06), one that missed logs how many, and the operator who tries what.
    """
    if context.asks is not None:
        context.asks.abandon()
    if context.exchange.dropped:
        context.report_dropped()
    if not isinstance(outcome, Fail):
        return
    report_refusal(context, outcome)
    if context.mount.challenge is not None and outcome.reason is Reason.SCOPE:
        needed = outcome.data.get("requiredScopes", ()) if isinstance(outcome.data, Mapping) else ()
        context.exchange.challenge = context.mount.challenge(needed)


def read_cancelled(message: RawNotification) -> RequestId | None:
    """The request that a `notifications/cancelled` names; None when it names none (CN-06)."""
    try:
        cancelled = _decode_cancelled(message.params or b"{}")
    except msgspec.DecodeError as error:
        _log.debug("Ignored a cancellation: %.300r", str(error))
        return None
    _log.debug("The client cancels request %.80r: %.200r", cancelled.request_id, cancelled.reason)
    return cancelled.request_id
