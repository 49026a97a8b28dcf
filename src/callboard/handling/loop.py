"""A handler as a server: its state, and the loop that runs its callbacks in place of components.

The life of a request::

    handle_request ── anything but Stream ────────────────────────────────> answered
         └── Stream ──> the next message ── handle_message ── Stream ─┐
                             ^ └────────────────────────────────────────┘
                             │             └── anything else ────────────> answered; no handle_close
                             ├── channel.close() ──> handle_close ───────> answered with STOPPED
                             └── ended from outside ──> handle_close ────> no answer (cancelled, or its client is gone)

`Stop` is answered with STOPPED. A crash is answered as everywhere, and ends the stream without handle_close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from callboard.core.era import Envelope, Headers, Request
from callboard.core.exchange import Exchange
from callboard.core.outcome import Deferred, NeedInput, Outcome, Reply
from callboard.errors import Fail, Reason, RegistrationError, ToolError
from callboard.handling.callbacks import Callback, Callbacks
from callboard.handling.channel import CLOSED, Channel, Notification, Stop, Stream, name_topic
from callboard.handling.state import MISPLACED, HandlerState, StoppedError
from callboard.handling.wiremap import make_result, read_hint
from callboard.server.app import Server
from callboard.server.component import sole_error
from callboard.server.extension import declares
from callboard.server.mount import Caller, Mount
from callboard.server.registry import Registry
from callboard.server.state import Hello, HookFields, Turn
from callboard.server.tasks import TASKS, TaskExtension
from callboard.server.tool import answer_in_band
from callboard.server.workers import is_imposed
from callboard.wire.jsonrpc import RawNotification, encode
from callboard.wire.methods import METHODS, Method
from callboard.wire.versions import LATEST

__all__ = ["MAX_NOTICES", "HandlerServer", "Teller"]

_Bind: TypeAlias = Callable[[Mount, Caller], Awaitable[Any]]
_log = logging.getLogger("callboard")
MAX_NOTICES = 1000
"""Notifications that one handler works on at once; more are dropped, and the log says so."""
# Seconds that handle_close gets.
FAREWELL = 5.0
# What no handler is asked: the library knows the answer.
_OURS = frozenset({"server/discover", "subscriptions/listen"})
# Methods of 2025 with a callback of their own.
_OWN = {"logging/setLevel": "set_log_level", "resources/subscribe": "subscribe", "resources/unsubscribe": "unsubscribe"}
_NO_COMPONENTS = "a Handler has no components; its lists and calls are callbacks, like call_tool."
_NOTICE = Method(type(None), None, b"")
_PREFIX = "io.modelcontextprotocol/"


class Teller(msgspec.Struct, frozen=True):
    """Who sent a notification.

    Attributes:
        envelope: What is known of the client; None for no more than what the notification says.
        headers: HTTP headers.
        principal: Who it is.
        scope_state: ASGI state of the request.
        session: The session that it belongs to; None without.
        state: The state of that session, as it is kept; UNSET without.
    """

    envelope: Envelope | None = None
    headers: Headers | None = None
    principal: str | None = None
    scope_state: Any = None
    session: Any = None
    state: Any = UNSET


class _Shelf(Registry):
    """The components of a handler: there are none, and what it has it is asked for."""

    def add(self, *components: Any) -> None:
        """Refuse.

        Raises:
            RegistrationError: There are any.
        """
        if components:
            raise RegistrationError(f"{components[0].source}: {_NO_COMPONENTS}")

    def provide(self, provider: Any) -> None:  # noqa: ARG002 - whatever it is
        """Refuse.

        Raises:
            RegistrationError: Always.
        """
        raise RegistrationError(f"server.provide: {_NO_COMPONENTS}")

    def mount(self, other: Registry, mounting: Any) -> None:  # noqa: ARG002 - whatever they are
        """Refuse.

        Raises:
            RegistrationError: Always.
        """
        raise RegistrationError(f"server.mount: {_NO_COMPONENTS}")


class HandlerServer(Server):
    """A handler, ready for a transport. `handler.server` is it; a program only needs what it has beside a Server: `publish`, `changed`.

    Args:
        handler: The handler.
        declared: Type of its state; UNSET when it declares none.
        options: What its attributes say, as keyword arguments of `Server`.

    Raises:
        RegistrationError: An option or a callback can't work.
    """

    context_type = Channel

    def __init__(self, handler: Any, declared: Any, options: dict[str, Any]) -> None:
        self.handler = handler
        self.callbacks = callbacks = Callbacks(handler)
        if taken := sorted(options.keys() & {"state", *HookFields.__annotations__}):
            raise RegistrationError(f"{callbacks.label}: {taken[0]} is no option of a handler; it has init, and callbacks of these names.")
        capabilities = options.pop("capabilities", None)
        if capabilities is None:
            capabilities = callbacks.capabilities()
        if not isinstance(capabilities, Mapping) or not all(isinstance(part, Mapping) for part in capabilities.values()):
            raise RegistrationError(
                f'{callbacks.label}.capabilities must be a mapping of mappings, like {{"tools": {{}}}}, not {capabilities!r}.'
            )
        hooks = {name: getattr(handler, name) for name in ("channels", "terminate") if callbacks.get(name)}
        hooks |= {name: _make_hook(self, callback) for name in _OWN.values() if (callback := callbacks.get(name))}
        super().__init__(**options, **hooks, capabilities=capabilities)
        self.state = self.kind = HandlerState(declared, callbacks.get("init"), callbacks.label)
        self.registry = _Shelf(page_size=options.get("page_size", 50), changed=self.hub.changed)
        self.serving |= dict.fromkeys(METHODS.keys() - _OURS, _serve)
        if self._tasks is not None:  # no tool says that it may be a task: the handler's `Deferred` does
            self.tasks = TaskExtension(self._tasks)
            self.extend(self.tasks)
        self.hears = callbacks.get("handle_notification") is not None
        self._hearing: dict[asyncio.Task[None], Mount] = {}

    async def find_watched(self, uri: str, ctx: Any) -> str:  # noqa: ARG002 - whatever it is, whoever asks
        """What a client that subscribes to a URI hears of: a handler does not say beforehand which there are, so it may be any."""
        return uri

    def turn(self, request: Request, *, streams: bool = False) -> Turn:
        """When a request of a session runs.

        Args:
            request: The request.
            streams: Whether its client takes a stream: a call that then asks for progress runs at once, on a snapshot.
        """
        if request.method in _OWN:
            return Turn.SNAPSHOT
        if request.method not in METHODS:
            return Turn.NOW
        is_streaming = streams and request.method == "tools/call" and request.envelope.progress_token is not None
        return Turn.SNAPSHOT if is_streaming else Turn.IN_TURN

    def publish(self, topic: str, message: Any) -> None:
        """Say something to every channel that hears a topic (`channel.subscribe`); from any thread, waiting for nobody.

        Args:
            topic: The topic.
            message: Any JSON value.

        Raises:
            TypeError: `topic` is no str, or `message` has no JSON form.
        """
        if not isinstance(topic, str):
            raise TypeError(f"server.publish: topic is a str, not {type(topic).__name__}.")
        try:
            encoded = encode(message)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"server.publish: the message has no JSON form ({type(error).__name__}).") from error
        self.bus.publish(name_topic(topic), encoded)

    def changed(self, kind: Literal["tools", "resources", "prompts"]) -> None:
        """Tell clients that listen that a list is another one now; from any thread."""
        if kind not in {"tools", "resources", "prompts"}:
            raise ValueError(f"server.changed: kind is tools, resources or prompts, not {kind!r}.")
        self.hub.publish(kind)

    def hear(self, mount: Mount, message: RawNotification, bind: _Bind, facts: Mapping[str, Any]) -> None:
        """Begin to work on a notification, which is accepted already. It has a channel of its own, on which nothing can be said.

        Args:
            mount: The transport's.
            message: The notification.
            bind: Makes the bound options.
            facts: What a `Teller` is made of.
        """
        if len(self._hearing) >= MAX_NOTICES:
            _log.error("A %.80r was dropped: %d notifications are being worked on.", message.method, MAX_NOTICES)
            return
        notification = Notification(message.method, _read_object(message.params))
        who = Teller(**facts)
        envelope = who.envelope or _read_envelope(notification.params.get("_meta"))
        request = Request(0, message.method, None, _NOTICE, envelope, who.headers)
        channel = Channel(mount, request, Exchange(_nobody, streams=False), who.principal, who.scope_state, who.session)
        if who.state is not UNSET:
            channel.give_state(self.kind.draft(who.state))
        task = mount.workers.loop.create_task(self._hear(notification, channel, bind))
        self._hearing[task] = mount
        task.add_done_callback(self._hearing.pop)
        mount.closing[self] = partial(self._end_hearing, mount)

    async def _end_hearing(self, mount: Mount) -> None:
        hearing = [task for task, where in list(self._hearing.items()) if where is mount]
        for task in hearing:
            task.cancel()
        if hearing:
            await asyncio.wait(hearing, timeout=FAREWELL)

    async def _hear(self, notification: Notification, channel: Channel, bind: _Bind) -> None:
        callback = self.callbacks.get("handle_notification")
        assert callback is not None
        try:
            if channel.session is None:
                bound = await bind(channel.mount, Caller(channel.headers, channel.principal, channel.scope_state))
                if isinstance(bound, Fail):
                    return  # the log says why
                channel.options = bound
            await self.open_state(channel)
            await callback(channel.mount.workers, notification, channel, channel.state)
        except BaseException as error:  # user code, and nobody to tell
            if is_imposed(error):
                raise
            _log.exception("handle_notification failed.")
        finally:
            await channel.end()

    async def open_state(self, channel: Channel) -> None:
        """Give a request that has no session a state of its own.

        Raises:
            Fail: `init` gave none.
        """
        if channel.has_state:
            return
        ctx = channel
        hello = Hello(ctx.client_info, ctx.client_capabilities, ctx.protocol_version, {}, None, ctx.options)
        try:
            kept = await self.kind.open(hello, ctx.mount.workers)
        except StoppedError as stopped:
            channel.stop_reason = stopped.stop_reason
            raise
        channel.give_state(self.kind.draft(kept))

    def settle(self, request: Request, channel: Channel, returned: Any) -> Outcome:
        """What a handler's last word comes to.

        Raises:
            TypeError: It is none; the text says what is.
            ToolError: It is a `CallToolResult` that is an error.
        """
        hint = None
        if isinstance(returned, Reply):
            hint, returned = returned.cache, self._open_reply(channel, returned)
        if isinstance(returned, MISPLACED):
            raise TypeError(f"{self.callbacks.label}: {type(returned).__name__} has no place there.")
        if isinstance(returned, Stop):
            _log.info("%s of %s was stopped: %.200r", request.method, self.callbacks.label, returned.reason)
            channel.stop_reason = returned.reason
            return Fail(Reason.STOPPED)
        if isinstance(returned, Deferred) and not _takes_tasks(channel):  # TX-02
            data: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            return Fail(Reason.MISSING_CAPABILITY, "This request is answered with a task, and its client declared no tasks.", data)
        if isinstance(returned, Deferred) and self.tasks is None:  # TX-01, TX-06
            raise TypeError(
                f"{self.callbacks.label}: Deferred takes server_options = {{'tasks': ...}}, which answers what is asked about tasks."
            )
        if isinstance(returned, Fail | NeedInput | Deferred):
            return returned
        if isinstance(returned, ToolError):
            return answer_in_band(returned) if request.method == "tools/call" else Fail(Reason.INTERNAL, str(returned.content))
        try:
            value = make_result(request, returned, self.registry.page_size, channel.principal)
        except TypeError as error:
            raise TypeError(f"{self.callbacks.label}: {error}") from error.__cause__
        return Reply(value, hint or read_hint(returned) or self.cache, wrap=channel.wraps, stop_reason=channel.stop_reason)

    def keep(self, channel: Channel, state: Any) -> None:
        """Take a state that a callback leaves; UNSET for none.

        Raises:
            TypeError: It is not of the declared type.
        """
        if state is not UNSET:
            if channel.session is None:
                self.kind.seal(state)  # as a session would
            channel.give_state(state)

    def _open_reply(self, channel: Channel, reply: Reply) -> Any:
        """Take what a Reply leaves; the result in it."""
        self.keep(channel, reply.state)
        channel.stop_reason = reply.stop_reason
        if isinstance(reply.value, Stop | NeedInput | Deferred):
            raise TypeError(f"{self.callbacks.label}: a Reply holds a result, a Fail or a ToolError, not {type(reply.value).__name__}.")
        return reply.value


def _takes_tasks(ctx: Channel) -> bool:
    """Whether a call may be answered with a task."""
    if ctx.method != "tools/call":
        return False
    envelope = ctx.request.envelope
    return declares(ctx, TASKS) if envelope.version == LATEST else envelope.task is not None


async def _serve(server: Any, _params: Any, request: Request, ctx: Any) -> Outcome:
    """Run a handler for one request."""
    channel: Channel = ctx
    channel.begin()
    try:
        await server.open_state(channel)
        returned = await server.callbacks.answer(request, channel)
        if isinstance(returned, Stream):
            returned = await _stream(server, channel, returned)
        elif channel.shut:
            returned = Fail(Reason.STOPPED)
        outcome: Outcome = server.settle(request, channel, returned)
    except (ToolError, ExceptionGroup) as error:
        reply = _read_error(request, error)
        if reply is None:
            raise
        outcome = reply
    finally:
        await channel.end()
    return outcome


def _read_error(request: Request, error: Exception) -> Reply | None:
    """What a tool's failure is answered with; None where it is none. No frame that lives on may hold the failure: each holds the other."""
    sole = sole_error(error)
    return answer_in_band(sole) if request.method == "tools/call" and isinstance(sole, ToolError) else None


async def _stream(server: HandlerServer, channel: Channel, stream: Any) -> Any:
    """Hand a handler its messages until it has a last word."""
    callback, workers = server.callbacks.get("handle_message"), channel.mount.workers
    if callback is None:
        raise TypeError(f"{server.callbacks.label} returned Stream, but has no handle_message.")
    channel.start_stream()
    try:
        while isinstance(stream, Stream):
            server.keep(channel, stream.state)
            message = await channel.receive()
            if message is CLOSED:
                break
            stream = await callback(workers, message, channel, channel.state)
            if stream is None and not channel.shut:
                text = "handle_message returned None: return Stream(state) to go on, else what the request comes to."
                raise TypeError(f"{server.callbacks.label}: {text}")
        else:
            if not channel.shut:
                return stream
    except asyncio.CancelledError:
        # A question to the client ends the run in the same way, and is an answer of the handler's own.
        if channel.task is not None and channel.task.cancelling() and not (channel.asks is not None and channel.asks.suspended):
            channel.shut_down()
            await _say_farewell(server, channel)
        raise
    channel.shut_down()
    await _say_farewell(server, channel)
    return Fail(Reason.STOPPED)


async def _say_farewell(server: HandlerServer, channel: Channel) -> None:
    callback = server.callbacks.get("handle_close")
    if callback is None:
        return
    try:
        async with asyncio.timeout(FAREWELL):
            await callback(channel.mount.workers, channel, channel.state, bounded=False)
    except BaseException as error:  # user code, and nobody to tell
        if is_imposed(error):
            raise
        _log.exception("handle_close failed.")


def _nobody() -> None:
    """A notification has no way out that somebody could be woken for."""


def _read_object(raw: msgspec.Raw | None) -> dict[str, Any]:
    """Parameters of a notification; none where they are no object."""
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, dict) else {}


def _read_envelope(meta: Any) -> Envelope:
    """What a notification says of its client, which the current protocol does not ask of it."""
    said = meta if isinstance(meta, dict) else {}
    version, capabilities = said.get(f"{_PREFIX}protocolVersion"), said.get(f"{_PREFIX}clientCapabilities")
    return Envelope(version if isinstance(version, str) else LATEST, capabilities if isinstance(capabilities, dict) else {})


def _make_hook(server: HandlerServer, callback: Callback) -> Callable[[str, Any], Awaitable[None]]:
    """A callback as a hook of a Server, which knows no state."""

    async def hook(argument: str, channel: Channel) -> None:
        await server.open_state(channel)
        await callback(channel.mount.workers, argument, channel, channel.state)

    return hook
