"""`subscriptions/listen`: streams of "something changed", and who gets what.

Rules:
    1. The acknowledgement is the first thing on a stream (SB-03); it names what was asked, granted and advertised, nothing else (SB-04).
    2. Every frame is tagged with the id of the listen request, JSON type kept (SB-05, MT-08).
    3. What a stream gets is decided in one place, `_Listener.wants`: kinds it asked for, URIs it named (SB-02), and those that fit a template it
       named, but for what is hidden from its client, or needs a scope that it lacks (SA21). Nothing that belongs to a request can come here:
       only this module emits on a listen stream (HM-16).
    4. A place is taken of `Places`, in all processes that share a store, and given back however the stream dies.
    5. A slow listener costs bounded memory: equal notices that wait replace each other; past the exchange's cap the stream is given up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from callboard.auth.principal import seconds_left
from callboard.core.exchange import Exchange
from callboard.core.outcome import Reply
from callboard.core.uri import UriTemplate
from callboard.errors import Fail, Reason
from callboard.server.context import Context
from callboard.server.limits import Limits
from callboard.server.places import Places
from callboard.server.workers import Workers
from callboard.stores.base import Bus
from callboard.stores.topics import LOST
from callboard.wire.jsonrpc import encode
from callboard.wire.methods import ListenFilter

__all__ = ["CHANGES", "MAX_RESOURCES", "Change", "Hub", "check_kind", "decode_change", "deliverable"]

CHANGES = "callboard.changes"
"""The Bus topic that changes travel on."""

_log = logging.getLogger("callboard")
_SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
_PROMISES = ("listChanged", "subscribe")
# Resources that one stream may name.
MAX_RESOURCES = 1000
# The filter's field, its wire name, and the kind of change it lets through.
_KINDS = (
    ("tools_list_changed", "toolsListChanged", "tools"),
    ("prompts_list_changed", "promptsListChanged", "prompts"),
    ("resources_list_changed", "resourcesListChanged", "resources"),
)


class Change(msgspec.Struct):
    """What travels on the Bus.

    Attributes:
        kind: `tools`, `prompts` or `resources`.
        uri: The resource that was updated; None when the list changed.
    """

    kind: str
    uri: str | None = None


decode_change = msgspec.json.Decoder(Change).decode


class _Listener:
    __slots__ = ("_asking", "_ctx", "closed", "exchange", "kinds", "principal", "tag", "templates", "uris", "workers")

    def __init__(self, ctx: Context, kinds: frozenset[str], uris: frozenset[str], templates: tuple[UriTemplate, ...]) -> None:
        self._ctx = ctx
        self._asking: dict[str | None, asyncio.Task[None]] = {}
        self.exchange: Exchange = ctx.exchange
        self.principal = ctx.principal
        self.workers = ctx.mount.workers
        self.closed: asyncio.Future[None] = self.workers.loop.create_future()
        self.tag = encode({_SUBSCRIPTION_ID: ctx.request_id})
        self.kinds = kinds
        self.uris = uris
        self.templates = templates

    def wants(self, change: Change) -> bool:
        if change.uri is None:
            return change.kind in self.kinds
        return change.uri in self.uris or self._fits(change.uri)

    def _fits(self, uri: str) -> bool:
        return any(template.match(uri) is not None for template in self.templates)

    def tell(self, change: Change) -> None:
        """Tell of what it wants; on its own loop."""
        if change.uri is None or change.uri in self.uris:
            self.notify(change)
            return
        shown = self._ctx.server.tells_at_once(change.uri, self._ctx)
        if shown:
            self.notify(change)
        elif shown is None and change.uri not in self._asking:
            if len(self._asking) < MAX_RESOURCES:
                self._asking[change.uri] = self.workers.loop.create_task(self._tell_if_shown(change, change.uri))
            else:
                _close(self)  # its client opens another one, and takes all for changed

    async def _tell_if_shown(self, change: Change, uri: str) -> None:
        try:
            if await self._ctx.server.tells_of(uri, self._ctx) and not self.closed.done():
                self.notify(change)
        finally:
            del self._asking[uri]

    def notify(self, change: Change) -> None:
        if change.uri is None:
            head, key = b'{"jsonrpc":"2.0","method":"notifications/%b/list_changed","params":{' % change.kind.encode(), change.kind
        else:
            head, key = b'{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%b,' % encode(change.uri), change.uri
        self.exchange.emit(b'%b"_meta":%b}}' % (head, self.tag), key=key)

    def notify_of_task(self, task_id: str, whole: bytes) -> None:
        """All there is to say of a task (TX-15)."""
        head = b'{"jsonrpc":"2.0","method":"notifications/tasks","params":%b' % whole[:-1]
        self.exchange.emit(b'%b,"_meta":%b}}' % (head, self.tag), key=f"task {task_id}")


class Hub:
    """The open listen streams of one server.

    Args:
        bus: What carries changes, between processes too.
        shared: Whether other processes hear it.

    Attributes:
        bus: As given.
        shared: As given.
        begun: Whether the server is served.
    """

    def __init__(self, bus: Bus, *, shared: bool = False) -> None:
        self.bus = bus
        self.shared = shared
        self.begun = False
        self._listeners: dict[_Listener, None] = {}
        self._places = Places("listen streams", "max_listens", self._sweep)
        self._subscribed = False

    def __len__(self) -> int:
        """How many streams are open."""
        self._sweep()
        return len(self._listeners)

    def publish(self, kind: str, uri: str | None = None) -> None:
        """Tell every stream that wants it; from any thread.

        Args:
            kind: `tools`, `prompts` or `resources`.
            uri: The resource that was updated; None when the list changed.
        """
        self.bus.publish(CHANGES, encode(Change(kind, uri)))

    def changed(self, kind: str) -> None:
        """Tell every stream that a list of this server changed; from any thread.

        A process that is only beginning tells nobody else: its components are those that the others have, and with each process that is
        started again all clients would fetch all lists.

        Args:
            kind: `tools`, `prompts` or `resources`.
        """
        if self.begun or not self.shared:
            self.publish(kind)

    async def listen(self, ctx: Context, asked: ListenFilter) -> Reply:
        """Serve one stream until the server closes it.

        Returns:
            The closing result (SB-09).

        Raises:
            Fail: The client can't stream, or there are too many streams.
        """
        limits = _check(ctx)
        granted, listener = await self._grant(ctx, asked)
        watch = await self._watch(ctx, asked, listener)
        if watch is not None:
            granted["taskIds"] = watch.ids
        held = self._places.take(ctx.principal, limits.max_listens, limits.max_listens_per_principal, ctx.server.store)
        if held is not None:
            await held
        self._listeners[listener] = None
        if ctx.mount.draining:  # since `_check` looked
            _close(listener)
        self._subscribe()
        lifetime = listener.workers.loop.call_later(min(limits.listen_lifetime, seconds_left(ctx.principal, time.time())), _close, listener)
        try:
            params = encode(granted)
            ack = b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":%b,"_meta":%b}}'
            ctx.exchange.emit(ack % (params, listener.tag))
            if watch is not None:
                watch.begin()
            sinks = ctx.mount.server.journal.sinks
            close = None if sinks is None else sinks.open_stream("listen")
            try:
                await listener.closed
            finally:
                if close is not None:
                    close()
        finally:
            if watch is not None:
                watch.end()
            lifetime.cancel()
            self._drop(listener)
        return Reply({"_meta": {_SUBSCRIPTION_ID: ctx.request_id}})

    async def _watch(self, ctx: Context, asked: ListenFilter, listener: _Listener) -> Watch | None:
        """What tells a stream of tasks; None when it asks for none, or there are none here."""
        wanted = asked.task_ids
        if wanted is UNSET or ctx.server.tasks is None:
            return None
        if not isinstance(wanted, list) or len(wanted) > MAX_RESOURCES or not all(isinstance(task_id, str) for task_id in wanted):
            raise Fail(Reason.INVALID_PARAMS, f"params.notifications.taskIds: a list of at most {MAX_RESOURCES} ids.")

        def tell(task_id: str, whole: bytes) -> None:
            if listener.workers.thread == threading.get_ident():
                listener.notify_of_task(task_id, whole)
            else:
                self._tell(listener, listener.notify_of_task, task_id, whole)

        found: Watch = await ctx.server.tasks.watch(ctx, wanted, tell)
        return found

    def close(self, workers: Workers | None = None) -> None:
        """End streams in good order: those of one mount, or all."""
        for listener in list(self._listeners):
            if workers is None or listener.workers is workers:
                self._tell(listener, _close, listener)

    async def _grant(self, ctx: Context, asked: ListenFilter) -> tuple[dict[str, Any], _Listener]:
        capabilities = ctx.server.capabilities(listens=True)
        granted: dict[str, Any] = {}
        kinds: set[str] = set()
        for field, wire_name, kind in _KINDS:
            if getattr(asked, field) is True and capabilities.get(kind, {}).get("listChanged"):
                granted[wire_name] = True
                kinds.add(kind)
        uris: list[str] = []
        templates: list[UriTemplate] = []
        wanted = asked.resource_subscriptions
        if isinstance(wanted, list) and len(wanted) > MAX_RESOURCES:
            raise Fail(Reason.INVALID_PARAMS, f"params.notifications.resourceSubscriptions: at most {MAX_RESOURCES} on one stream.")
        if isinstance(wanted, list) and capabilities.get("resources", {}).get("subscribe"):
            for uri in dict.fromkeys(wanted):
                found = await ctx.server.find_watched(uri, ctx)
                if found is None:
                    continue
                if isinstance(found, UriTemplate):
                    templates.append(found)
                uris.append(uri)
            granted["resourceSubscriptions"] = uris
        return granted, _Listener(ctx, frozenset(kinds), frozenset(uris), tuple(templates))

    def _subscribe(self) -> None:
        """Hear of changes, from the first stream on."""
        if not self._subscribed:
            self._subscribed = True
            self.bus.subscribe(CHANGES, self._deliver)
            self.bus.subscribe(LOST, self._give_up)

    def _sweep(self, principal: str | None = None, *, is_full: bool = True) -> None:  # noqa: ARG002 - all that are gone go
        """Take the places of streams whose clients are gone, even where their tasks have not ended yet."""
        for listener in [listener for listener in self._listeners if not listener.exchange.open]:
            self._drop(listener)

    def _drop(self, listener: _Listener) -> None:
        if listener in self._listeners:
            del self._listeners[listener]
            self._places.give_back(listener.principal)

    def _give_up(self, _message: bytes) -> None:
        """Changes were lost, and nobody knows which: clients that open their streams anew take everything for changed."""
        _log.warning("All listen streams end: this process has not heard of changes that others told of.")
        self.close()

    def _deliver(self, message: bytes) -> None:
        change = decode_change(message)
        here = threading.get_ident()
        for listener in list(self._listeners):
            if not listener.wants(change):
                continue
            if listener.workers.thread == here:
                listener.tell(change)
            else:
                self._tell(listener, listener.tell, change)

    def _tell(self, listener: _Listener, call: Callable[..., None], *args: Any) -> None:
        try:
            listener.workers.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._drop(listener)  # its loop was closed under it


class Watch(Protocol):
    """Tells a stream of tasks.

    Attributes:
        ids: Of the tasks.
    """

    ids: list[str]

    def begin(self) -> None:
        """Tell how each stands, and from now on of each change."""
        ...

    def end(self) -> None:
        """Tell nothing any more."""
        ...


def _check(ctx: Context) -> Limits:
    """See that a stream can be had here at all.

    Raises:
        Fail: It can't.
    """
    if not ctx.mount.listens:
        raise Fail(Reason.METHOD_NOT_FOUND, "Method not found: this server sends no notifications of change.")
    if not any(isinstance(on, dict) and any(map(on.get, _PROMISES)) for on in ctx.server.capabilities(listens=True).values()):
        raise Fail(Reason.METHOD_NOT_FOUND, "Method not found: this server promises no notifications of change.")
    if ctx.mount.draining:
        raise Fail(Reason.OVERLOADED, "The server is shutting down.")
    if not ctx.exchange.streams:
        raise Fail(Reason.NOT_ACCEPTABLE, "subscriptions/listen answers with a stream: Accept must allow text/event-stream.")
    return ctx.mount.limits


def _close(listener: _Listener) -> None:
    if not listener.closed.done():
        listener.closed.set_result(None)


def deliverable(declared: Mapping[str, Any], extensions: Mapping[str, Any], *, listens: bool, logs: bool) -> dict[str, Any]:
    """What an author declared, less what can't be delivered here (A19), and logging, which any function may do (LG-02).

    Args:
        declared: Capabilities, as given to the server.
        extensions: Settings of extensions by name.
        listens: Whether the transport can deliver notifications of change.
        logs: Whether it can deliver log messages.
    """
    promises = () if listens else _PROMISES
    kept = {
        key: {name: on for name, on in value.items() if name not in promises} if isinstance(value, Mapping) else value
        for key, value in declared.items()
        if key != "logging"
    }
    if extensions:
        kept["extensions"] = {**kept.get("extensions", {}), **extensions}
    return {**kept, "logging": {}} if logs else kept


def check_kind(kind: str) -> str:
    """A kind of list that can change.

    Raises:
        ValueError: It is none.
    """
    kinds = [known for *_, known in _KINDS]
    if kind not in kinds:
        raise ValueError(f"list_changed: the lists are {', '.join(kinds)}, not {kind!r:.100}.")
    return kind
