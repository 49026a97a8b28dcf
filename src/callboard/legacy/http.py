"""2025 clients over HTTP: `initialize`, calls, notifications and answers by POST, streams by GET, the end by DELETE.

Order of checks: version header served (VN-24) -> `initialize`, or the session: named (HL-22), known and the caller's (HL-23) -> the message.
The session's version counts, whatever served version the header names.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from callboard.auth.principal import seconds_left
from callboard.core.exchange import Exchange
from callboard.core.modern import render_fail
from callboard.core.outcome import Reply
from callboard.errors import Fail, Reason
from callboard.legacy.actor import Actor, Work
from callboard.legacy.batch import answer_batch
from callboard.legacy.codec import Codec, read_initialize
from callboard.legacy.connection import Connection
from callboard.legacy.lone import Lone
from callboard.legacy.methods import OWN, serve_own
from callboard.legacy.pipe import PipeClient
from callboard.legacy.rules import Rules, make_session_id
from callboard.legacy.session import MAX_CHANNELS
from callboard.legacy.shared import SharedActor
from callboard.legacy.shared_stream import SharedConnection, connect_stream
from callboard.legacy.shared_table import SharedTable, open_sessions
from callboard.legacy.table import Table
from callboard.server.journal import note_http
from callboard.server.mount import Caller, Mount
from callboard.transport.endpoint import Endpoint, HttpCall
from callboard.transport.security import make_field
from callboard.transport.stream import SSE_HEADERS, Stream, nobody, send_answer
from callboard.wire.jsonrpc import Batch, Malformed, RawNotification, RawRequest, RawResponse, RequestId
from callboard.wire.versions import LEGACY, MODERN

__all__ = ["Legacy"]

_SESSION = b"mcp-session-id"
_VERSION = b"mcp-protocol-version"


class Legacy:
    """Serves 2025 clients at an endpoint.

    Args:
        endpoint: The server.
        rules: The options of sessions.
        supported: All versions that the endpoint serves, for error texts.
    """

    def __init__(self, endpoint: Endpoint, rules: Rules, *, supported: tuple[str, ...]) -> None:
        self._endpoint = endpoint
        self._rules = rules
        self._codecs = {version: Codec(version, supported=supported, server=endpoint.server) for version in LEGACY}
        self._supported = supported
        self._stated = frozenset(version.encode() for version in supported)
        self._table: Table | None = None
        self._shared: SharedTable | None = None

    def methods(self) -> bytes:
        """HTTP methods that it takes, as `Allow` lists them."""
        if self._rules.sessions == "off":
            return b"POST"
        return b"POST, DELETE" if self._rules.json_only else b"POST, GET, DELETE"

    def facts(self) -> dict[str, Any]:
        """Its options by name."""
        rules = msgspec.structs.asdict(self._rules)
        return {**rules, "session_id": "128 random bits" if self._rules.session_id is make_session_id else "the program's own"}

    def table(self, mount: Mount) -> Table:
        """The sessions of a mount that are this process's own."""
        if self._table is None or self._table.mount is not mount:
            if self._table is not None:
                self._table.abandon()
            self._table = Table(self._endpoint, mount, self._rules, self._codecs)
        return self._table

    def shared(self, mount: Mount) -> SharedTable | None:
        """The sessions of a mount that other processes serve, too; None where there is no store for that."""
        store = self._endpoint.server.store
        if not store.shared:
            return None
        if self._shared is None or self._shared.mount is not mount:
            if self._shared is not None:
                self._shared.abandon()
            stored = open_sessions(store, keep=mount.limits.session_buffer)
            self._shared = SharedTable(self._endpoint, mount, self._rules, self._codecs, stored)
        return self._shared

    def drain(self) -> None:
        """End what would not end by itself: sessions at rest, and GET streams, which their clients would keep open for ever."""
        for table in (self._table, self._shared):
            if table is not None:
                table.drain()

    async def close(self) -> None:
        """End every session."""
        tables = self._table, self._shared
        self._table = self._shared = None
        for table in tables:
            if table is not None:
                await table.close("shutdown")

    async def connect(
        self, mount: Mount, message: RawRequest, caller: Caller, say: Callable[[list[bytes]], None], channel: Exchange
    ) -> PipeClient | None:
        """Open the session of a pipe with its `initialize`, and answer that; None when it was refused."""
        opening = self.table(mount).read(message.params)
        opened = opening if isinstance(opening, Fail) else await self.table(mount).open(opening, caller, channel)
        if isinstance(opened, Fail):
            say([self._codecs[self._rules.versions[0]].render_fail(message.id, opened)[1]])
            return None
        actor, result = opened
        say([actor.codec.render(message.id, Reply(result), None)[1]])
        return PipeClient(actor, say)

    async def serve(self, http: HttpCall) -> None:
        """Answer one HTTP request."""
        message = http.message
        stated = http.headers.get(_VERSION)
        if stated is not None and stated not in self._stated and stated.decode("latin-1").strip(" \t") not in self._supported:
            text = f"Unsupported MCP-Protocol-Version; supported: {', '.join(self._supported)}."
            await self._refuse(http, Fail(Reason.VERSION, text, {"supported": list(self._supported)}), getattr(message, "id", None))
        elif message is None:
            await self._serve_stream(http) if http.scope["method"] == "GET" else await self._serve_delete(http)
        elif self._rules.sessions == "off":
            await self._serve_alone(http)
        elif isinstance(message, Malformed):
            await self._refuse(http, message.fail, message.id)
        elif isinstance(message, RawRequest) and message.method == "initialize" and _SESSION not in http.headers:
            await self._open(http, message)
        else:
            actor = self._find(http)
            if actor is None:
                actor = await self._fetch(http)
            if isinstance(actor, Fail):
                await self._refuse(http, actor, message.id if isinstance(message, RawRequest) else None)
            else:
                await self._serve_message(http, actor)

    async def _open(self, http: HttpCall, message: RawRequest) -> None:
        opening = self.table(http.mount).read(message.params)
        if isinstance(opening, Fail):
            await self._refuse(http, opening, message.id)
            return
        opened = await (self.shared(http.mount) or self.table(http.mount)).open(opening, _caller(http))
        if isinstance(opened, Fail):
            await self._say_no(http, opened, message.id)  # the log has it
            return
        actor, result = opened
        status, answer = actor.codec.render(message.id, Reply(result), None)
        await _send(http, status, answer, make_field("mcp-session-id", actor.id))

    async def _serve_message(self, http: HttpCall, actor: Actor) -> None:
        """What a client sends in its session."""
        message = http.message
        if isinstance(message, RawRequest):
            exchange = Exchange(nobody, streams=http.streams, streams_only=http.streams_only, cap=http.pulse.buffer)
            connection = SharedConnection(http, actor, exchange) if isinstance(actor, SharedActor) else Connection(http, actor, exchange)
            work = actor.start(message, exchange, headers=http.headers, principal=http.principal, scope_state=http.scope.get("state"))
            if work is not None:
                connection.call, work.connection = work, connection
            await connection.run()
        elif isinstance(message, RawNotification):
            actor.notice(message)
            if isinstance(actor, SharedActor):
                await actor.told()  # what comes next may come to another worker
            await send_answer(http.send, 202, b"", http.extra)
        elif isinstance(message, RawResponse):
            if actor.respond(message):
                await send_answer(http.send, 202, b"", http.extra)
            else:
                await self._refuse(http, Fail(Reason.INVALID_REQUEST, "Nothing was asked that this response could answer."))
        elif isinstance(message, Batch):
            state = http.scope.get("state")
            answer = await answer_batch(actor, message, headers=http.headers, principal=http.principal, scope_state=state)
            if isinstance(answer, Fail):
                await self._refuse(http, answer)
            else:
                await _send(http, 200 if answer else 202, answer)

    async def _serve_stream(self, http: HttpCall) -> None:
        """A GET: a stream of what the server says of its own accord, or the rest of a stream that broke off."""
        actor = self._find(http) or await self._fetch(http)
        if self._rules.sessions == "off" or self._rules.json_only or (isinstance(actor, Fail) and _is_modern(http)):
            fail = Fail(Reason.HTTP_METHOD, f"This endpoint takes {self.methods().decode()}.")
            await self._refuse(http, fail, None, (b"allow", self.methods()))
            return
        fault = actor if isinstance(actor, Fail) else None
        if fault is None and not http.streams:
            fault = Fail(Reason.NOT_ACCEPTABLE, "A GET answers with a stream: Accept must allow text/event-stream.")
        if fault is None and http.mount.draining:
            fault = Fail(Reason.OVERLOADED, "The server is shutting down.")
        if isinstance(actor, SharedActor) and fault is None:
            connection: Connection | Fail = await connect_stream(http, actor, single=self._rules.single_stream)
        else:
            connection = fault or self._connect_stream(http, actor)  # type: ignore[arg-type] # a fault otherwise
        if isinstance(connection, Fail):
            await self._refuse(http, connection)
            return
        left = math.inf  # whoever has a name must prove it again: a credential may have been withdrawn, or say nothing of its end
        if http.principal is not None:
            left = min(http.mount.limits.listen_lifetime, seconds_left(http.principal, time.time()))
        expiry = None if left == math.inf else connection.loop.call_later(left, connection.hang_up, None)
        try:
            with note_http(self._endpoint.server.journal, "GET", http.headers, http.principal, getattr(actor, "id", None)):
                await connection.run()
        finally:
            if expiry is not None:
                expiry.cancel()

    def _connect_stream(self, http: HttpCall, actor: Actor) -> Connection | Fail:
        machine, after = actor.machine, None
        event_id = http.headers.get(b"last-event-id")
        if event_id is not None:
            found = machine.find(event_id.decode("latin-1").strip(" \t"))
            if found is None:
                return Fail(Reason.EVENT_ID)
            track, after = found
        else:
            fresh = machine.open_channel()
            if fresh is None:
                return Fail(Reason.CONFLICT, f"This session has {MAX_CHANNELS} streams already: close one.")
            track = fresh
        if isinstance(track.call, Work) and track.call.exchange.ended:
            actor.settle(track.call)  # its last words are on their way over a connection that may be dead
        if isinstance(track.call, Work):
            exchange = track.call.exchange
            connection = Connection(http, actor, exchange, track=track, call=track.call, after=after)
            exchange.reopen(exchange.wake)
            exchange.wake()
            return connection
        exchange = Exchange(nobody, cap=http.pulse.buffer)
        if not track.is_channel:
            connection = Connection(http, actor, exchange, track=track, after=after)
            exchange.open_stream()
            exchange.finish(200, b"")
            return connection
        if self._rules.single_stream and machine.channel_read and track.outlet is None:
            return Fail(Reason.CONFLICT)
        connection = Connection(http, actor, exchange, track=track, after=after)
        exchange.open_stream()
        return connection

    async def _serve_delete(self, http: HttpCall) -> None:
        actor = self._find(http) or await self._fetch(http)
        if self._rules.sessions == "off" or (isinstance(actor, Fail) and _is_modern(http)):
            fail = Fail(Reason.HTTP_METHOD, f"This endpoint takes {self.methods().decode()}.")
            await self._refuse(http, fail, None, (b"allow", self.methods()))
        elif isinstance(actor, Fail):
            await self._refuse(http, actor)
        else:
            with note_http(self._endpoint.server.journal, "DELETE", http.headers, http.principal, actor.id):
                refused = await (self.shared(http.mount) or self.table(http.mount)).delete(actor)
                if refused is not None:
                    await self._say_no(http, refused, None)
                    return
                await send_answer(http.send, 204, b"", http.extra)

    async def _serve_alone(self, http: HttpCall) -> None:
        """A message that stands alone: there are no sessions here."""
        message, codec = http.message, self._codec(http)
        if isinstance(message, RawNotification):
            state = http.scope.get("state")
            known = {"envelope": codec.base, "headers": http.headers, "principal": http.principal, "scope_state": state}
            self._endpoint.hear(http.mount, message, **known)
            await send_answer(http.send, 202, b"", http.extra)
        elif isinstance(message, Malformed):
            await self._refuse(http, message.fail, message.id)
        elif not isinstance(message, RawRequest):
            text = "The body must be one request or notification: there are no sessions here, so no batch and no response."
            await self._refuse(http, Fail(Reason.INVALID_REQUEST, text))
        elif message.method == "initialize":
            opening = read_initialize(message.params, self._rules.versions)
            if isinstance(opening, Fail):
                await self._refuse(http, opening, message.id)
                return
            result = self.table(http.mount).introduce(opening.version, owned=http.principal is not None)
            await _send(http, *codec.render(message.id, Reply(result), None))
        else:
            table = self.table(http.mount)
            stream = Stream(
                table.loop, http.receive, http.send, http.pulse, http.extra, streams=http.streams, streams_only=http.streams_only
            )
            answering = self._endpoint.answer(
                http.mount,
                Lone(codec),
                message,
                stream.exchange,
                headers=http.headers,
                principal=http.principal,
                scope_state=http.scope.get("state"),
                service=serve_own if message.method in OWN else None,
            )
            await stream.run(answering)

    def _find(self, http: HttpCall) -> Actor | Fail | None:
        """The session that a request names; None where the store knows."""
        session_id = http.headers.get(_SESSION)
        if session_id is None:
            return Fail(Reason.SESSION_REQUIRED)
        if self._endpoint.server.store.shared:
            return None
        table = self._table
        if table is None or table.mount is not http.mount:
            table = self.table(http.mount)
        return table.find(session_id.decode("latin-1").strip(" \t"), http.principal) or Fail(Reason.SESSION_NOT_FOUND)

    async def _fetch(self, http: HttpCall) -> Actor | Fail:
        shared = self.shared(http.mount)
        assert shared is not None
        return await shared.fetch(http.headers[_SESSION].decode("latin-1").strip(" \t"), _caller(http))

    def _codec(self, http: HttpCall) -> Codec:
        """The version that a request names; the oldest, when it names none (VN-23)."""
        return self._codecs.get(http.headers.get(_VERSION, b"").decode("latin-1").strip(" \t")) or self._codecs[LEGACY[-1]]

    async def _refuse(self, http: HttpCall, fail: Fail, request_id: RequestId | None = None, *headers: tuple[bytes, bytes]) -> None:
        if http.message is None or isinstance(http.message, RawRequest):
            method = http.scope["method"] if http.message is None else http.message.method
            self._endpoint.note_refusal(method, fail, headers=http.headers, principal=http.principal, modern=False)
        await self._say_no(http, fail, request_id, *headers)

    async def _say_no(self, http: HttpCall, fail: Fail, request_id: RequestId | None, *headers: tuple[bytes, bytes]) -> None:
        stated = http.headers.get(_VERSION, b"").decode("latin-1").strip(" \t")
        table = self._shared or self._table
        actor = None if table is None else table.sessions.get(http.headers.get(_SESSION, b"").decode("latin-1").strip(" \t"))
        if isinstance(actor, Actor) and actor.owner == http.principal:
            status, answer = actor.codec.render_fail(request_id, fail)
        elif not stated or stated in LEGACY:
            status, answer = self._codec(http).render_fail(request_id, fail)
        else:
            status, answer = render_fail(request_id, fail)
        await send_answer(http.send, status, answer, [*http.extra, *headers])


def _caller(http: HttpCall) -> Caller:
    if http.mount.options_factory is None:
        return Caller(None, http.principal)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in http.headers.items()}
    return Caller(headers, http.principal, http.scope.get("state"))


def _is_modern(http: HttpCall) -> bool:
    return http.headers.get(_VERSION, b"").decode("latin-1").strip(" \t") in MODERN and _SESSION not in http.headers


async def _send(http: HttpCall, status: int, answer: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a result in the form that the client takes: as the only event of a stream where it takes nothing else."""
    extra: list[Any] = [*http.extra, *headers]
    if http.streams_only and answer:
        extra += SSE_HEADERS
        await http.send({"type": "http.response.start", "status": status, "headers": extra})
        await http.send({"type": "http.response.body", "body": b"data: " + answer + b"\n\n"})
    else:
        await send_answer(http.send, status, answer, extra)
