"""Streamable HTTP as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from callboard.auth.guard import Denial
from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason, RegistrationError, StoreError
from callboard.server.journal import note_refusal
from callboard.server.mount import Mount
from callboard.server.workers import is_imposed
from callboard.transport.body import read_body
from callboard.transport.door import Door, MetadataPage, check_old_path, check_pages
from callboard.transport.endpoint import Endpoint, HttpCall
from callboard.transport.health import ALIVE, READY, Health, answer_probe, check_paths
from callboard.transport.inflate import inflate
from callboard.transport.known import Known, is_older
from callboard.transport.rates import Rates, settle
from callboard.transport.refusal import LINGER_BYTES, note, refuse_unread, refuse_work, report_client, wait_headers
from callboard.transport.security import HttpRules, accepted_types, check, check_caller, check_media, read_coding
from callboard.transport.signals import SignalHook
from callboard.transport.stream import Pulse, Receive, Scope, Send, Stream, send_answer
from callboard.wire.jsonrpc import Batch, Malformed, Message, RawNotification, RawRequest, RawResponse, RequestId, decode
from callboard.wire.versions import LATEST

__all__ = ["LINGER_BYTES", "App", "inner_path", "report_lifespan"]

_log = logging.getLogger("callboard")
# Distinct callers and Accept headers whose verdict is remembered; a client that makes up new ones costs no more than these.
_REMEMBERED = 256
_LATEST = LATEST.encode()
# Bytes of a body that are not worth counting.
_SMALL = 4096
_LISTEN = "subscriptions/listen"
_ORDINARY = (RawRequest, RawNotification, RawResponse)
_CORS_EXPOSED = b"mcp-session-id, mcp-protocol-version, www-authenticate, retry-after"
K = TypeVar("K")
V = TypeVar("V")
_is_name_list = re.compile(rb"[A-Za-z0-9_, -]{1,2000}").fullmatch
_Headers = list[tuple[bytes, bytes]]


class App:
    """A server's MCP endpoint.

    Serves `path` when it is the whole application, the mount point when it is mounted, and any path that a router sends to it, each with
    or without a trailing slash. Needs no lifespan events: without them it starts with the first request.

    Args:
        endpoint: The server, ready to be served.
        rules: What requests are accepted.
        path: Where the endpoint is.
        keep_alive: Seconds; longest silence on a stream. None for no keep-alive.
        json_only: Whether every answer is JSON: no progress, no logs, no listen streams.
        cors: Whether to answer preflights of, and expose headers to, the origins of `rules`.
        door: Finds out who is asking, and lets them in or not; None where nobody does.
        sse_path: Where the transport of 2024-11-05 is; what is under it is its own too. None where it is not offered.
        health: Paths where everybody may ask whether the process lives, and whether it serves; None for none.
        signals: Whether SIGTERM and SIGINT begin to drain, where the ASGI server handles them.

    Attributes are the arguments, and:
        limits: Bounds of all that goes on.
        rates: Counts requests and messages.
        health: Whether it serves.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rules: HttpRules,
        *,
        path: str = "/mcp",
        keep_alive: float | None = 15.0,
        json_only: bool = False,
        cors: bool = False,
        door: Door | None = None,
        sse_path: str | None = None,
        health: tuple[str, str] | None = (ALIVE, READY),
        signals: bool = True,
    ) -> None:
        self.endpoint = endpoint
        self._journal = endpoint.server.journal
        self.rules = rules
        self.limits = endpoint.limits
        self.rates = Rates(self.limits, server=endpoint.server)
        self._counts = self.rates.by_address or self.rates.by_message
        self._decode = partial(decode, max_depth=self.limits.max_depth, max_items=self.limits.max_items)
        self.path = "/" + path.strip("/")
        older = endpoint.older
        self._allow = (b"allow", b"POST" if older is None else older.methods())
        self.keep_alive = keep_alive
        self._pulse = Pulse(keep_alive, self.limits.stream_buffer, lambda: self.endpoint.load)
        self.json_only = json_only
        self.cors = cors
        self.door = door
        self._documents: dict[str, Any] = {} if door is None else {place: MetadataPage(page) for place, page in door.documents.items()}
        self.sse_path = sse_path
        self.health = Health(endpoint)
        self._probes = check_paths(health, self.path)
        if self._journal.sinks is not None:
            self._documents |= check_pages(self._journal.sinks.pages, (self.path, *self._probes, *self._documents))
        check_old_path(sse_path, (*self._probes, *self._documents))
        self.signals: SignalHook | None = SignalHook(self.drain) if signals else None
        self._accepts: dict[bytes | None, tuple[bool, bool]] = {}
        self._callers: dict[tuple[str | None, bytes | None, bytes | None], Fail | None] = {}

    def drain(self) -> None:
        """Begin to end: what runs goes on, listen and GET streams get their end, new work is refused (503), `/readyz` says so.

        Call it on the event loop that serves, when the process is told to end and whoever serves waits for open answers; `aclose`, or the
        lifespan's end, does the rest. Under servers that handle SIGTERM and SIGINT it is called by itself. Once more does nothing.
        """
        self.endpoint.drain()

    async def aclose(self) -> None:
        """End sessions, listen streams and the server's lifespan: for a host application that passes no lifespan events on.

        Call it when the host's own lifespan ends. The next request would begin everything anew.
        """
        await self.endpoint.close()
        if self.door is not None:
            await self.door.close()

    @property
    def metadata_routes(self) -> list[tuple[str, MetadataPage]]:
        """Path -> ASGI application of each document that says how this server is protected (RFC 9728).

        The application serves them itself where it is asked for their paths. A host that mounts it somewhere must put them at its root:
        `[Route(path, page) for path, page in app.metadata_routes]` with Starlette and FastAPI.
        """
        return [(path, page) for path, page in self._documents.items() if isinstance(page, MetadataPage)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            await (self._serve_lifespan(receive, send) if scope["type"] == "lifespan" else send({"type": "websocket.close", "code": 1003}))
            return
        if scope["path"] != self.path and self._probes and (asked := self._probes.get(inner_path(scope))) is not None:
            await answer_probe(scope, receive, send, self.health.check if asked else None)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(headers) != len(scope["headers"]) and b"accept" in headers:  # never one more: `check` counts them to see what is there twice
            headers[b"accept"] = b",".join(value for name, value in scope["headers"] if name == b"accept") or b"*/*"
        extra = self._expose(headers)
        if (fail := self._check(scope, headers)) is not None:
            await refuse_unread(scope, receive, send, fail, extra, self._journal)
            return
        serve = self._route(scope)
        if serve is None:
            await self._serve_other(scope, headers, receive, send, extra)
            return
        held = self.rates.refuse_address(scope.get("client")) if self._counts else None
        if held is not None and (fail := await settle(held)) is not None:
            await refuse_unread(scope, receive, send, fail, extra, self._journal)
            return
        principal: str | None = None
        if self.door is not None:
            if (principal := self.door.recall(headers)) is None:
                admitted = await self._admit(self.door, scope, headers)
                if isinstance(admitted, Denial):
                    await refuse_unread(scope, receive, send, admitted.fail, [*extra, *admitted.headers], self._journal)
                    return
                principal = admitted
            self.door.strip(headers)
        await serve(scope, headers, receive, send, extra, principal)

    def _expose(self, headers: dict[bytes, bytes]) -> _Headers:
        """What lets a web page of another origin read the answer, where CORS is on."""
        if self.cors and (origin := headers.get(b"origin")) is not None and origin.decode("latin-1").lower() in self.rules.origins:
            return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _CORS_EXPOSED), (b"vary", b"origin")]
        return []

    def recognise(self, scope: Scope) -> Known | None:
        """What every other request with this head, and from this address, can be spared: all checks that see nothing else.

        Args:
            scope: The ASGI scope of a request.

        Returns:
            What `serve_known` needs; None where such requests must come in as all others do.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        older, ends = self.endpoint.older is not None and is_older(headers), scope["method"] == "DELETE"
        if len(headers) != len(scope["headers"]) or scope["path"] != self.path:
            return None
        if b"content-encoding" in headers or not (older or (headers.get(b"mcp-protocol-version") == _LATEST and not ends)):
            return None  # its body has to be unpacked, or decides what serves it
        accepted = (False, accepted_types(headers.get(b"accept"))[1]) if ends else self._read_accept(headers)
        if self._check(scope, headers) is not None or isinstance(accepted, Fail):
            return None
        shown = dict(headers)
        if self.door is not None:
            self.door.strip(shown)
        return Known(headers, shown, self._expose(headers), accepted[1] and not self.json_only, not accepted[0], older, ends)

    def serve_known(self, known: Known, body: bytes, state: Any, receive: Receive, send: Send) -> Coroutine[Any, Any, None] | None:
        """Serve a request whose head is known.

        Args:
            known: What `recognise` made of a request with the same head, from the same address.
            body: Its whole body.
            state: ASGI `scope["state"]`.
            receive: ASGI receive, to learn that the client is gone.
            send: ASGI send.

        Returns:
            What is to run in a task of its own; None where the request must come in as all others do.
        """
        mount, principal = self.endpoint.mount, None
        if mount is None or mount.draining or self._counts or len(body) > _SMALL:
            return None
        load = mount.load
        if load.buffered + load.unread > self.limits.max_buffered:
            return None
        if self.door is not None and (principal := self.door.recall(known.headers)) is None:
            return None
        loop = mount.workers.loop
        message = None if known.ends else self._decode(body)
        if asyncio.get_running_loop() is not loop:
            return None
        if known.older:
            return self._serve_known_older(mount, known, message, principal, state, receive, send)
        if type(message) is not RawRequest or message.method == _LISTEN:
            return None
        stream = Stream(loop, receive, send, self._pulse, known.extra, streams=known.streams, streams_only=known.streams_only)
        return self._answer(stream, mount, message, known.shown, principal, state)

    def _serve_known_older(
        self, mount: Mount, known: Known, message: Message | None, principal: str | None, state: Any, receive: Receive, send: Send
    ) -> Coroutine[Any, Any, None] | None:
        """Serve an ordinary message of an older protocol, as `_serve_older` does."""
        older, modern = self.endpoint.older, self.endpoint.era
        _, headers, extra, streams, streams_only, _, ends = known
        if older is None or not (ends or (isinstance(message, _ORDINARY) and not modern.claims(message, known.headers))):
            return None
        scope = {"type": "http", "method": "DELETE" if ends else "POST", "path": self.path, "state": state}
        http = HttpCall(
            mount, scope, receive, send, self._pulse, headers, extra, principal, message, streams=streams, streams_only=streams_only
        )
        return older.serve(http)

    def _answer(
        self, stream: Stream, mount: Mount, message: RawRequest, headers: dict[bytes, bytes], principal: str | None, state: Any
    ) -> Coroutine[Any, Any, None]:
        """Serve a request of the current protocol."""
        answering = self.endpoint.answer(
            mount, self.endpoint.era, message, stream.exchange, headers=headers, principal=principal, scope_state=state
        )
        return stream.run(answering)

    def _route(self, scope: Scope) -> Callable[[Scope, dict[bytes, bytes], Receive, Send, _Headers, str | None], Awaitable[None]] | None:
        """What serves a request, once it is known who sends it; None for what everybody may ask."""
        method = scope["method"]
        if scope["path"] != self.path:
            if inner_path(scope) in self._documents:
                return None
            if self.sse_path is not None and method != "OPTIONS" and self._is_sse(scope):
                return self._serve_sse
        if method == "POST":
            return self._serve_post
        return self._serve_get if method in {"GET", "DELETE"} and self.endpoint.older is not None else None

    async def _admit(self, door: Door, scope: Scope, headers: dict[bytes, bytes]) -> str | Denial | None:
        """Who asks; why they may not where nobody can tell, or where finding out failed."""
        sinks, began = self._journal.sinks if self.endpoint.challenge is not None else None, perf_counter()
        try:
            admitted = await door.admit(scope, headers)
        except BaseException as error:  # user code
            if is_imposed(error):
                raise
            fail = self.endpoint.server.crash(door.culprit, error)
            admitted = Denial(Fail(Reason.OPTIONS, fail.text, fail.data), [], "crash")
        if sinks is not None:
            sinks.note_auth(admitted.kind if isinstance(admitted, Denial) else "granted", perf_counter() - began)
        if isinstance(admitted, Denial) and admitted.kind not in {"missing", "crash"}:  # every client that is to log in begins with that
            report_client("scope" if admitted.kind == "scope" else "auth", scope, f"{admitted.kind}: {admitted.fail.text}")
        return admitted

    async def _serve_get(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, extra: _Headers, principal: str | None
    ) -> None:
        streams = accepted_types(headers.get(b"accept"))[1]
        serving = partial(self._serve_older, scope, headers, receive, send, extra, principal, None, streams=streams, streams_only=True)
        await (self._hold_open(serving, principal, send, extra) if scope["method"] == "GET" else serving())

    async def _hold_open(
        self,
        serving: Callable[[], Awaitable[None]],
        principal: str | None,
        send: Send,
        extra: _Headers,
        request_id: RequestId | None = None,
    ) -> None:
        """Serve what stays open until somebody closes it, where there is room for that."""
        limits, streams = self.limits, self.endpoint.load.streams
        try:
            held = streams.take(principal, limits.max_streams, limits.max_streams_per_principal, self.endpoint.server.store)
            if held is not None:
                await held
        except Fail as fail:
            await self._refuse(send, fail, extra, request_id)
            return
        try:
            await serving()
        finally:
            streams.give_back(principal)

    async def _serve_post(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, extra: _Headers, principal: str | None
    ) -> None:
        accepted = self._read_accept(headers)
        if isinstance(accepted, Fail):
            await refuse_unread(scope, receive, send, accepted, extra, self._journal)
            return
        load = self.endpoint.load
        body = load.refuse_bytes() if load.is_full else await read_body(receive, self.rules.max_body, load)
        if body is None:
            return
        if isinstance(body, Fail):
            await refuse_unread(scope, receive, send, body, extra, self._journal)
            return
        size, share = len(body), 0
        try:
            if not body and b"upgrade" in headers:
                text = "The HTTP server drops the body of a request that offers an upgrade: have the client speak HTTP/1.1 from the start."
                await self._refuse(send, Fail(Reason.INVALID_REQUEST, text), extra)
                return
            unpacked = self._unpack(body, headers) if self.rules.codings else body
            if isinstance(unpacked, Fail):
                await self._refuse(send, unpacked, extra)
                return
            size = max(size, len(unpacked))
            load.buffered += size - len(body)
            message, share = self._decode(unpacked), size
            fail = load.take_share(principal, share)
            if fail is None and self._counts:
                held = self.rates.refuse_message(principal, scope.get("client"), message)
                fail = None if held is None else await settle(held)
            if fail is not None:
                note(scope, fail)
                await self._refuse(send, fail, extra, getattr(message, "id", None))
                return
            await self._serve_message(scope, headers, receive, send, extra, principal, message, accepted)
        finally:
            load.buffered -= size
            load.give_back_share(principal, share)

    async def _serve_message(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        extra: _Headers,
        principal: str | None,
        message: Message,
        accepted: tuple[bool, bool],
    ) -> None:
        """What the body of a POST says."""
        modern, opened = self.endpoint.era, self.endpoint.mount
        if opened is not None and opened.draining and isinstance(message, RawRequest | Batch):  # answers and cancels are for what runs
            await refuse_work(scope, send, getattr(message, "id", None), extra, self._journal)
            return
        streams, streams_only = accepted[1] and not self.json_only, not accepted[0]
        if self.endpoint.older is not None and not modern.claims(message, headers):
            await self._serve_older(scope, headers, receive, send, extra, principal, message, streams=streams, streams_only=streams_only)
            return
        if not isinstance(message, RawRequest):
            await self._serve_other_message(message, scope, headers, send, extra, principal)
            return
        mount = await self._enter()
        if isinstance(mount, Fail):
            status, answer = modern.render(message.id, mount, None)
            await send_answer(send, 500 if status == 200 else status, answer, extra)
            return
        stream = Stream(mount.workers.loop, receive, send, self._pulse, extra, streams=streams, streams_only=streams_only)
        if message.method == _LISTEN:
            listening = partial(self._answer, stream, mount, message, headers, principal, scope.get("state"))
            await self._hold_open(listening, principal, send, extra, message.id)
        else:
            await self._answer(stream, mount, message, headers, principal, scope.get("state"))

    def _read_accept(self, headers: dict[bytes, bytes]) -> tuple[bool, bool] | Fail:
        """Which answers the sender of a POST takes, JSON and streams; why it gets none."""
        if (fail := check_media(headers, self.rules.codings)) is not None:
            return fail
        accept = headers.get(b"accept")
        accepted = self._accepts.get(accept) or _remember(self._accepts, accept, accepted_types(accept))
        return Fail(Reason.NOT_ACCEPTABLE) if accepted == (False, False) or (self.json_only and not accepted[0]) else accepted

    async def _enter(self) -> Mount | Fail:
        """The mount, open; what the lifespan came to where it fails."""
        mount = self.endpoint.mount
        if mount is not None and mount.workers.loop is asyncio.get_running_loop():
            return mount
        try:
            return await self.endpoint.open()
        except Exception as error:  # noqa: BLE001 - user code
            return self.endpoint.server.crash("The server's lifespan", error)

    async def _serve_older(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        extra: _Headers,
        principal: str | None,
        message: Message | None,
        *,
        streams: bool,
        streams_only: bool,
    ) -> None:
        """A request of a client of an older protocol."""
        older = self.endpoint.older
        assert older is not None
        opened = self.endpoint.mount
        ready = opened is not None and opened.workers.loop is asyncio.get_running_loop()
        mount = opened if ready and opened is not None else await self._enter()
        if isinstance(mount, Fail):
            status, answer = render_fail(getattr(message, "id", None), mount)
            await send_answer(send, 500 if status == 200 else status, answer, extra)
            return
        http = HttpCall(
            mount, scope, receive, send, self._pulse, headers, extra, principal, message, streams=streams, streams_only=streams_only
        )
        await older.serve(http)

    async def _serve_sse(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, extra: _Headers, principal: str | None
    ) -> None:
        """A request of the transport of 2024-11-05."""
        if scope["method"] != "POST":
            await self._serve_get(scope, headers, receive, send, extra, principal)
            return
        load = self.endpoint.load
        fail: Fail | None = check_media(headers, self.rules.codings)
        fail = fail or (load.refuse_bytes() if load.is_full else None)
        body = fail or await read_body(receive, self.rules.max_body, load)
        if isinstance(body, Fail):
            await refuse_unread(scope, receive, send, body, extra, self._journal)
            return
        if body is None:
            return
        size = len(body)
        try:
            unpacked = self._unpack(body, headers)
            if isinstance(unpacked, Fail):
                await self._refuse(send, unpacked, extra)
            else:
                message = self._decode(unpacked)
                held = self.rates.refuse_message(principal, scope.get("client"), message) if self._counts else None
                if held is not None and (fail := await settle(held)) is not None:
                    note(scope, fail)
                    await self._refuse(send, fail, extra, getattr(message, "id", None))
                else:
                    await self._serve_older(scope, headers, receive, send, extra, principal, message, streams=True, streams_only=True)
        finally:
            load.buffered -= size

    async def _serve_other_message(
        self, message: Message, scope: Scope, headers: dict[bytes, bytes], send: Send, extra: _Headers, principal: str | None
    ) -> None:
        """What is no request: a notification is accepted (HM-07), the rest has no place in a body of the current protocol (HM-06)."""
        if isinstance(message, RawNotification):
            fail = self.endpoint.era.notice(message, headers)
            if fail is None:
                await send_answer(send, 202, b"", extra)
                await self._hear(message, scope, headers, principal)
                return
        elif isinstance(message, Malformed):
            await self._refuse(send, message.fail, extra, message.id)
            return
        else:
            fail = Fail(Reason.INVALID_REQUEST, "The body must be one request or notification: no response, and no batch.")
        await self._refuse(send, fail, extra)

    async def _hear(self, message: RawNotification, scope: Scope, headers: dict[bytes, bytes], principal: str | None) -> None:
        """Let the server hear a notification that was accepted, where it wants to."""
        if not self.endpoint.server.hears:
            return
        mount = await self._enter()
        if not isinstance(mount, Fail):  # the log says why
            self.endpoint.hear(mount, message, headers=headers, principal=principal, scope_state=scope.get("state"))

    async def _serve_other(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, extra: _Headers) -> None:
        """What everybody may ask: the metadata document, a CORS preflight where CORS is on; other HTTP methods are 405 (HM-20)."""
        if (page := self._documents.get(inner_path(scope))) is not None:
            await page(scope, receive, send)
            return
        method = scope["method"]
        if method == "OPTIONS" and extra:
            asked = headers.get(b"access-control-request-headers", b"")
            if not _is_name_list(asked):
                asked = b"content-type, mcp-protocol-version, mcp-method, mcp-name"
            allow = [
                (b"access-control-allow-methods", self._allow[1]),
                (b"access-control-allow-headers", asked),
                (b"access-control-max-age", b"600"),
            ]
            if headers.get(b"access-control-request-private-network") == b"true":  # a page of the internet, a server of this network
                allow.append((b"access-control-allow-private-network", b"true"))
            await send_answer(send, 204, b"", [*extra, *allow])
            return
        await self._refuse(send, Fail(Reason.HTTP_METHOD, f"This endpoint takes {self._allow[1].decode()}."), [*extra, self._allow])

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            starts = kind == "lifespan.startup"
            try:
                await (self.endpoint.open() if starts else self.aclose())
            except Exception as error:  # noqa: BLE001 - user code; the ASGI server is told
                report_lifespan(error)
                await send({"type": f"{kind}.failed", "message": f"{type(error).__name__}: {error}"})
                return
            if self.signals is not None:
                self.signals.install() if starts else self.signals.remove()
            await send({"type": f"{kind}.complete"})
            if not starts:
                return

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> Fail | None:
        """Who asks, for what, and in what shape: in this order."""
        client = scope.get("client")
        origin = headers.get(b"origin")
        if origin is not None and isinstance(self._documents.get(inner_path(scope)), MetadataPage):
            origin = None  # pages of any origin may read what is for everybody (RFC 9728 section 3.1)
        caller = (None if client is None else client[0], headers.get(b"host"), origin)
        try:
            fail = self._callers[caller]
        except KeyError:
            fail = _remember(self._callers, caller, check_caller(self.rules, *caller))
        if fail is None and scope["path"] != self.path:
            fail = self._locate(scope)
        return fail or check(self.rules, scope, headers)

    def _locate(self, scope: Scope) -> Fail | None:
        """Whether the request is for this endpoint; see the class."""
        if scope["path"].rstrip("/") == self.path or scope.get("endpoint") is self:
            return None
        inner = inner_path(scope)
        if inner.rstrip("/") in {self.path, "" if scope.get("root_path") else self.path} or self._is_sse(scope) or inner in self._documents:
            return None
        return Fail(Reason.PATH, f"There is no MCP endpoint at this path; it is at {self.path}.")

    def _is_sse(self, scope: Scope) -> bool:
        return self.sse_path is not None and (inner_path(scope) + "/").startswith(self.sse_path + "/")

    def _unpack(self, body: bytes, headers: dict[bytes, bytes]) -> bytes | Fail:
        """A body as it was before it was compressed; `check_media` has found that it may be."""
        if not self.rules.codings or not (coding := read_coding(headers.get(b"content-encoding", b""))):
            return body
        return inflate(body, coding, self.rules.max_body)

    async def _refuse(self, send: Send, fail: Fail, extra: _Headers, request_id: RequestId | None = None) -> None:
        note_refusal(self._journal, None, fail, headers=())
        status, answer = render_fail(request_id, fail)
        await send_answer(send, status, answer, [*extra, *wait_headers(fail)])


def report_lifespan(error: Exception) -> None:
    """Log that a server's lifespan failed."""
    says_all = isinstance(error, RegistrationError | StoreError)  # what is to be done, which no traceback adds to
    _log.error("The server's lifespan failed: %s", error, exc_info=None if says_all else error)


def inner_path(scope: Scope) -> str:
    """The path of a request as seen from where the application is mounted: some servers and routers leave the mount point in `path`."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _remember(memory: dict[K, V], key: K, verdict: V) -> V:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = verdict
    return verdict
