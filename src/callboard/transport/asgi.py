"""Streamable HTTP as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from callboard.core.modern import render_fail
from callboard.errors import Fail, Reason
from callboard.server.mount import Mount
from callboard.transport.endpoint import Endpoint, HttpCall
from callboard.transport.security import HttpRules, accepted_types, check, check_caller, check_media
from callboard.transport.stream import Pulse, Receive, Scope, Send, Stream, send_answer, take_whole
from callboard.wire.jsonrpc import Malformed, Message, RawNotification, RawRequest, decode

__all__ = ["LINGER_BYTES", "App", "inner_path"]

_log = logging.getLogger("callboard")
# Distinct callers and Accept headers whose verdict is remembered; a client that makes up new ones costs no more than these.
_REMEMBERED = 256
# How much more of a body that is refused for its size is read and thrown away, and for how long.
LINGER_BYTES = 16 * 1024 * 1024
LINGER_SECONDS = 2.0
_CLOSE = (b"connection", b"close")
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
        principal: Tells from the ASGI scope who is asking; None when nobody is.
        sse_path: Where the transport of 2024-11-05 is; what is under it is its own too. None where it is not offered.
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
        principal: Callable[[Scope], str | None] | None = None,
        sse_path: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.rules = rules
        self.path = "/" + path.strip("/")
        older = endpoint.older
        self._allow = (b"allow", b"POST" if older is None else older.methods())
        self._pulse = Pulse(keep_alive)
        self._json_only = json_only
        self._cors = cors
        self._principal = principal
        self._sse_path = sse_path
        self._accepts: dict[bytes | None, tuple[bool, bool]] = {}
        self._callers: dict[tuple[str | None, bytes | None, bytes | None], Fail | None] = {}

    async def aclose(self) -> None:
        """End sessions, listen streams and the server's lifespan: for a host application that passes no lifespan events on.

        Call it when the host's own lifespan ends. The next request would begin everything anew.
        """
        await self.endpoint.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(headers) != len(scope["headers"]):
            headers[b"accept"] = b",".join(value for name, value in scope["headers"] if name == b"accept") or b"*/*"
        extra: _Headers = []
        if self._cors and (origin := headers.get(b"origin")) is not None and origin.decode("latin-1").lower() in self.rules.origins:
            extra = [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _CORS_EXPOSED), (b"vary", b"origin")]
        if (fail := self._check(scope, headers)) is not None:
            await _refuse_unread(scope, receive, send, fail, extra)
            return
        if self._sse_path is not None and scope["method"] != "OPTIONS" and self._is_sse(scope):
            await self._serve_sse(scope, headers, receive, send, extra)
        elif scope["method"] in {"GET", "DELETE"} and self.endpoint.older is not None:
            streams = accepted_types(headers.get(b"accept"))[1]
            await self._serve_older(scope, headers, receive, send, extra, None, streams=streams, streams_only=True)
        elif scope["method"] != "POST":
            await self._serve_other(scope["method"], headers, send, extra)
        elif (fail := check_media(headers)) is not None:
            await _refuse_unread(scope, receive, send, fail, extra)
        else:
            await self._serve_post(scope, headers, receive, send, extra)

    async def _serve_post(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, extra: _Headers) -> None:
        accept = headers.get(b"accept")
        accepted = self._accepts.get(accept) or _remember(self._accepts, accept, accepted_types(accept))
        if accepted == (False, False) or (self._json_only and not accepted[0]):
            await _refuse_unread(scope, receive, send, Fail(Reason.NOT_ACCEPTABLE), extra)
            return
        body = take_whole(receive)
        more = False
        if body is None:
            received = await receive()
            if received["type"] != "http.request":
                return
            body, more = received.get("body", b""), bool(received.get("more_body"))
        if more or (body and len(body) > self.rules.max_body):
            body = await _read_rest(body or b"", receive, self.rules.max_body, more=more)
        if body is None:
            await _refuse_unread(scope, receive, send, self._too_large(), extra)
            return
        if not body and b"upgrade" in headers:
            text = "The HTTP server drops the body of a request that offers an upgrade: have the client speak HTTP/1.1 from the start."
            await self._refuse(send, Fail(Reason.INVALID_REQUEST, text), extra)
            return
        message = decode(body)
        modern = self.endpoint.era
        streams, streams_only = accepted[1] and not self._json_only, not accepted[0]
        if self.endpoint.older is not None and not modern.claims(message, headers):
            await self._serve_older(scope, headers, receive, send, extra, message, streams=streams, streams_only=streams_only)
            return
        if not isinstance(message, RawRequest):
            await self._serve_other_message(message, scope, headers, send, extra)
            return
        entered = await self._enter(scope)
        if isinstance(entered, Fail):
            status, answer = modern.render(message.id, entered, None)
            await send_answer(send, 500 if status == 200 else status, answer, extra)
            return
        mount, principal = entered
        stream = Stream(mount.workers.loop, receive, send, self._pulse, extra, streams=streams, streams_only=streams_only)
        answering = self.endpoint.answer(
            mount, modern, message, stream.exchange, headers=headers, principal=principal, scope_state=scope.get("state")
        )
        await stream.run(answering)

    async def _enter(self, scope: Scope) -> tuple[Mount, str | None] | Fail:
        """The mount, open, and who asks; what user code on the way there came to where it fails."""
        culprit = "The server's lifespan"
        try:
            mount = self.endpoint.mount
            if mount is None or mount.workers.loop is not asyncio.get_running_loop():
                mount = await self.endpoint.open()
            culprit = "principal="
            return mount, None if self._principal is None else self._principal(scope)
        except Exception as error:  # noqa: BLE001 - user code
            return self.endpoint.server.crash(culprit, error)

    async def _serve_older(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        extra: _Headers,
        message: Message | None,
        *,
        streams: bool,
        streams_only: bool,
    ) -> None:
        """A request of a client of an older protocol."""
        older = self.endpoint.older
        assert older is not None
        mount, principal = self.endpoint.mount, None
        if mount is None or mount.workers.loop is not asyncio.get_running_loop() or self._principal is not None:
            entered = await self._enter(scope)
            if isinstance(entered, Fail):
                status, answer = render_fail(getattr(message, "id", None), entered)
                await send_answer(send, 500 if status == 200 else status, answer, extra)
                return
            mount, principal = entered
        http = HttpCall(
            mount, scope, receive, send, self._pulse, headers, extra, principal, message, streams=streams, streams_only=streams_only
        )
        await older.serve(http)

    async def _serve_sse(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, extra: _Headers) -> None:
        """A request of the transport of 2024-11-05."""
        message = None
        if scope["method"] == "POST":
            fail, body = check_media(headers), None
            if fail is None and (body := await _read_rest(b"", receive, self.rules.max_body, more=True)) is None:
                fail = self._too_large()
            if fail is not None:
                await _refuse_unread(scope, receive, send, fail, extra)
                return
            message = decode(body or b"")
        streams = accepted_types(headers.get(b"accept"))[1]
        await self._serve_older(scope, headers, receive, send, extra, message, streams=streams, streams_only=True)

    async def _serve_other_message(self, message: Message, scope: Scope, headers: dict[bytes, bytes], send: Send, extra: _Headers) -> None:
        """What is no request: a notification is accepted (HM-07), the rest has no place in a body of the current protocol (HM-06)."""
        if isinstance(message, RawNotification):
            fail = self.endpoint.era.notice(message, headers)
            if fail is None:
                await send_answer(send, 202, b"", extra)
                await self._hear(message, scope, headers)
                return
        elif isinstance(message, Malformed):
            status, answer = render_fail(message.id, message.fail)
            await send_answer(send, status, answer, extra)
            return
        else:
            fail = Fail(Reason.INVALID_REQUEST, "The body must be one request or notification: no response, and no batch.")
        await self._refuse(send, fail, extra)

    async def _hear(self, message: RawNotification, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Let the server hear a notification that was accepted, where it wants to."""
        if not self.endpoint.server.hears:
            return
        entered = await self._enter(scope)
        if not isinstance(entered, Fail):  # the log says why
            mount, principal = entered
            self.endpoint.hear(mount, message, headers=headers, principal=principal, scope_state=scope.get("state"))

    async def _serve_other(self, method: str, headers: dict[bytes, bytes], send: Send, extra: _Headers) -> None:
        """Other HTTP methods: a CORS preflight where CORS is on, else 405 (HM-20)."""
        if method == "OPTIONS" and extra:
            asked = headers.get(b"access-control-request-headers", b"")
            if not _is_name_list(asked):
                asked = b"content-type, mcp-protocol-version, mcp-method, mcp-name"
            allow = [
                (b"access-control-allow-methods", self._allow[1]),
                (b"access-control-allow-headers", asked),
                (b"access-control-max-age", b"600"),
            ]
            await send_answer(send, 204, b"", [*extra, *allow])
            return
        await self._refuse(send, Fail(Reason.HTTP_METHOD, f"This endpoint takes {self._allow[1].decode()}."), [*extra, self._allow])

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            step = self.endpoint.open if kind == "lifespan.startup" else self.endpoint.close
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - user code; the ASGI server is told
                _log.exception("The server's lifespan failed.")
                await send({"type": f"{kind}.failed", "message": f"{type(error).__name__}: {error}"})
                return
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> Fail | None:
        """Who asks, for what, and in what shape: in this order."""
        client = scope.get("client")
        caller = (None if client is None else client[0], headers.get(b"host"), headers.get(b"origin"))
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
        if inner_path(scope).rstrip("/") in {self.path, "" if scope.get("root_path") else self.path} or self._is_sse(scope):
            return None
        return Fail(Reason.PATH, f"There is no MCP endpoint at this path; it is at {self.path}.")

    def _is_sse(self, scope: Scope) -> bool:
        return self._sse_path is not None and (inner_path(scope) + "/").startswith(self._sse_path + "/")

    def _too_large(self) -> Fail:
        return Fail(Reason.BODY_TOO_LARGE, f"The body has more than {self.rules.max_body} bytes (max_body).")

    async def _refuse(self, send: Send, fail: Fail, extra: _Headers) -> None:
        status, answer = render_fail(None, fail)
        await send_answer(send, status, answer, extra)


def inner_path(scope: Scope) -> str:
    """The path of a request as seen from where the application is mounted: some servers and routers leave the mount point in `path`."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


def _closing(scope: Scope) -> _Headers:
    """Ask for the connection's end where the protocol has a header for it (HTTP/2 and later forbid it)."""
    return [_CLOSE] if scope.get("http_version", "1.1").startswith("1") else []


def _remember(memory: dict[K, V], key: K, verdict: V) -> V:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = verdict
    return verdict


async def _read_rest(body: bytes, receive: Receive, limit: int, *, more: bool) -> bytes | None:
    """The whole body, or None when it is larger than the limit."""
    parts, size = [body], len(body)
    while more and size <= limit:
        received = await receive()
        if received["type"] != "http.request":
            return b""
        part = received.get("body", b"")
        parts.append(part)
        size += len(part)
        more = received.get("more_body", False)
    return None if size > limit else b"".join(parts)


async def _refuse_unread(scope: Scope, receive: Receive, send: Send, fail: Fail, extra: _Headers) -> None:
    """Refuse a request whose body may still be coming, and throw away a bounded rest of it.

    Ending at once would reset the connection before a client that still writes has read why, and some servers lose what else is on it.
    """
    status, answer = render_fail(None, fail)
    too_large = _closing(scope) if fail.reason is Reason.BODY_TOO_LARGE else []
    headers = [*extra, *too_large, (b"content-length", b"%d" % len(answer)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer, "more_body": True})
    left, more = LINGER_BYTES, True
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while more and left > 0:
                received = await receive()
                left -= len(received.get("body", b""))
                more = received["type"] == "http.request" and received.get("more_body", False)
    await send({"type": "http.response.body", "body": b""})
