"""HTTP+SSE, the transport of 2024-11-05 (HL-27): a GET opens a stream, whose first event says where to POST; all answers come on it.

Rules:
    1. A stream is one client, and its session: that begins with `initialize`, and ends with the stream.
    2. A POST is for the stream that its URI names, and for the principal that opened the stream; for anybody else there is none (SA23).
    3. What can be said on the stream is said there, with 202 for the POST: some official clients send nothing any more after another status.
    4. Only what `initialize` opens is spoken here (HL-28): a client that tries the current protocol first is sent on to that.
"""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs, quote

import msgspec

from callboard.core.outcome import Reply
from callboard.errors import Fail, Reason, RegistrationError
from callboard.legacy.codec import Codec
from callboard.legacy.codec_2024 import VERSION, Codec2024
from callboard.legacy.http import Legacy
from callboard.legacy.rules import Rules
from callboard.legacy.sse_stream import SseStream
from callboard.logs import report
from callboard.server.journal import note_http
from callboard.server.mount import Caller
from callboard.transport.asgi import inner_path
from callboard.transport.endpoint import Endpoint, HttpCall
from callboard.transport.stream import Scope, send_answer
from callboard.wire.jsonrpc import Batch, Malformed, RawNotification, RawRequest, RawResponse
from callboard.wire.versions import MODERN

__all__ = ["LegacyAndSse"]

_MESSAGES = "/messages"


class _Asked(msgspec.Struct):
    protocol_version: str | None = msgspec.field(name="protocolVersion", default=None)


class LegacyAndSse(Legacy):
    """Serves clients of older protocols, those of HTTP+SSE among them.

    Args:
        endpoint: The server.
        rules: The options of sessions.
        supported: All versions that the endpoint serves, for error texts.
        path: Where streams are opened, as seen from where the application is mounted.

    Raises:
        RegistrationError: An option can't work.
    """

    def __init__(self, endpoint: Endpoint, rules: Rules, *, supported: tuple[str, ...], path: str) -> None:
        Legacy.__init__(self, endpoint, rules, supported=supported)
        if rules.json_only or rules.sessions == "off":
            cause = "json_only=True" if rules.json_only else 'sessions="off"'
            raise RegistrationError(f"sse_path offers sessions on streams, which {cause} rules out: leave one of them out.")
        self._codecs[VERSION] = Codec2024(supported=supported)
        self._sse_path = path
        self._streams: dict[str, SseStream] = {}

    async def serve(self, http: HttpCall) -> None:
        """Answer one HTTP request."""
        path, method = inner_path(http.scope).rstrip("/"), http.scope["method"]
        allowed = {self._sse_path: "GET", self._sse_path + _MESSAGES: "POST"}.get(path)
        if allowed is None:
            if not path.startswith(self._sse_path + "/"):
                await Legacy.serve(self, http)
                return
            await self._refuse(http, Fail(Reason.PATH, f"Streams are opened at {self._sse_path}."))
        elif method != allowed:
            fail = Fail(Reason.HTTP_METHOD, f"This is a path of HTTP+SSE ({VERSION}): it takes {allowed}.")
            await self._refuse(http, fail, None, (b"allow", allowed.encode()))
        elif method == "GET":
            await self._open_stream(http)
        else:
            await self._take_message(http)

    def drain(self) -> None:
        """Close GET streams; those of HTTP+SSE when their calls are answered."""
        for stream in list(self._streams.values()):
            stream.reason = "shutdown"
            stream.hang_up()
        Legacy.drain(self)

    async def _open_stream(self, http: HttpCall) -> None:
        fail: Fail | None = None
        if not http.streams:
            fail = Fail(Reason.NOT_ACCEPTABLE, "This answers with a stream: Accept must allow text/event-stream.")
        elif http.mount.draining:
            fail = Fail(Reason.OVERLOADED, "The server is shutting down.")
        elif len(self._streams) >= (most := http.mount.limits.max_sse_connections):
            fail = Fail(Reason.OVERLOADED, f"There are {most} streams already (max_sse_connections): try again later.")
        if fail is not None:
            await self._refuse(http, fail)
            return
        stream_id = secrets.token_hex(16)
        stream = SseStream(http, f"{_outer_path(http.scope)}{_MESSAGES}?session_id={stream_id}", http.mount.workers.loop)
        self._streams[stream_id] = stream
        try:
            with note_http(self._endpoint.server.journal, "GET", http.headers, http.principal, stream_id):
                await stream.run()
        finally:
            del self._streams[stream_id]

    async def _take_message(self, http: HttpCall) -> None:
        message = http.message
        stream = self._find_stream(http)
        if stream is None:
            await self._refuse(
                http, Fail(Reason.PATH, f"There is no such stream: open one with GET {self._sse_path}, and POST where it says.")
            )
            return
        if isinstance(message, Malformed):
            if message.id is not None:
                stream.say(self._codec_of(stream).render_fail(message.id, message.fail)[1])
            await self._refuse(http, message.fail, message.id)
            return
        if isinstance(message, RawRequest | Batch):
            fail = self._refuses(stream, message)
            if fail is None and stream.actor is None and isinstance(message, RawRequest):
                fail = await self._open_session(http, message, stream)
            elif fail is None:
                stream.start(message, http)
            if fail is not None:
                stream.say(self._codec_of(stream).render_fail(getattr(message, "id", None), fail)[1])
        elif stream.actor is not None and isinstance(message, RawNotification):
            stream.actor.notice(message)
        elif stream.actor is not None and isinstance(message, RawResponse):
            stream.actor.respond(message)  # to nothing that was asked: passed over (JR-06)
        await send_answer(http.send, 202, b"", http.extra)

    def _refuses(self, stream: SseStream, message: RawRequest | Batch) -> Fail | None:
        """Why a request is not even looked at; None when it is."""
        if isinstance(message, RawRequest) and self._endpoint.era.claims(message, None):
            text = f"Method not found: HTTP+SSE speaks what initialize agrees on; the current protocol is {', '.join(MODERN)} at the MCP endpoint."
            return Fail(Reason.METHOD_NOT_FOUND, text)
        if stream.actor is None and (isinstance(message, Batch) or message.method != "initialize"):
            return Fail(Reason.NOT_INITIALIZED, "This stream has no session yet: send initialize first.")
        return Fail(Reason.SESSION_OPEN) if stream.opening else stream.busy()

    async def _open_session(self, http: HttpCall, message: RawRequest, stream: SseStream) -> Fail | None:
        """Serve `initialize`."""
        table = self.table(http.mount)
        opening = table.read(message.params)
        if isinstance(opening, Fail):
            return opening
        if msgspec.json.decode(opening.params, type=_Asked).protocol_version == VERSION:
            opening = msgspec.structs.replace(opening, version=VERSION)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in http.headers.items()}
        stream.opening = True
        try:
            opened = await table.open(opening, Caller(headers, http.principal, http.scope.get("state")))
        finally:
            stream.opening = False
        if isinstance(opened, Fail):
            return opened
        actor, result = opened
        stream.begin(actor)
        stream.say(actor.codec.render(message.id, Reply(result), None)[1])
        return None

    def _find_stream(self, http: HttpCall) -> SseStream | None:
        """The stream that a POST names, for whoever opened it (rule 2)."""
        named = parse_qs(http.scope["query_string"].decode("latin-1")).get("session_id", [""])
        stream = self._streams.get(named[0])
        if stream is not None and stream.principal != http.principal:
            journal = self._endpoint.server.journal
            report("session", session=journal.hash(named[0]), owner=journal.hash(stream.principal), principal=journal.hash(http.principal))
            return None
        return stream

    def _codec_of(self, stream: SseStream) -> Codec:
        return self._codecs[self._rules.versions[0]] if stream.actor is None else stream.actor.codec


def _outer_path(scope: Scope) -> str:
    """The path of a request as its client wrote it, mount point included: never a URI of another host, and fit for a line."""
    path, root = scope["path"], scope.get("root_path", "")
    whole = path if path.startswith(root) else root + path
    return quote("/" + whole.strip("/"))
