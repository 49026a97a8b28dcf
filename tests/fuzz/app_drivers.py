"""Drivers of a whole server over HTTP, in process, in both eras. See `fuzz.drivers` for what a driver is.

An input is a script of requests, cut where a line is `--`, so that people can read it:

    POST /mcp
    accept: application/json
    -mcp-name

    {"jsonrpc":"2.0","id":1,"method":"tools/list",...}
    --
    WAIT 5
    --
    DROP

Every request has the headers that fit its body, as its era has them; what is named replaces them, a name after a dash takes one out. `x-chunks`
has the body come in so many pieces. `WAIT` lets seconds pass, `DROP` has the client hang up on all that is open. What servers make up stands in
scripts as `$SID`, `$STATE`, `$TASK`, `$CURSOR`, `$EVENT`, `"$ASK"` and `$SSE`: what was last heard of that kind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import asgi_driver
import legacy_driver
from asgi_driver import LATEST, META_PREFIX, MIRRORED, header_value
from fuzz.hosting import Host, check_message, is_sampled, read_message, serve, settle
from fuzz.readers import read_stream
from fuzz.town import SECRET, make_app, make_guarded_app

from callboard.client.oauth.challenge import parse
from callboard.legacy.http import Legacy
from callboard.transport.asgi import App

__all__ = ["run_guarded", "run_legacy", "run_modern"]

MOST: Final = 12  # requests of one script
_FIRST_LINE = re.compile(rb"([A-Z]{3,10}) ?([^\s]*)")
_HEADER = re.compile(rb"[\t\x20-\x7e]*")
_NAME = re.compile(rb"[a-z0-9-]+")
_AGREED = re.compile(rb'"result":\{"protocolVersion":"([\d-]+)"')
NO_CONTENT: Final = 204
GONE: Final = 499  # of an answer whose client has hung up
STATUSES: Final = frozenset({200, 202, NO_CONTENT, 400, 401, 403, 404, 405, 406, 409, 413, 415, 421, 429, 431, GONE, 503})
_LEARNT: Final = (
    (b"$STATE", re.compile(rb'"requestState":"([\w.-]+)"')),
    (b"$TASK", re.compile(rb'"taskId":"([\w-]+)"')),
    (b"$CURSOR", re.compile(rb'"nextCursor":"([\w=-]+)"')),
    (b'"$ASK"', re.compile(rb'"id":("?[\w-]+"?),"method"')),
    (b"$EVENT", re.compile(rb"(?m)^id: (.+)$")),
    (b"$SSE", re.compile(rb"(?m)^event: endpoint\ndata: (.+)$")),
)


class _Apps(Host):
    """A host with an application.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], App] = make_app) -> None:
        super().__init__()
        self.app = make()
        self._guarded = make is make_guarded_app

    def play(self, data: bytes) -> None:
        """Play a script; see the module."""
        self.run(self._play(data), level=logging.DEBUG if is_sampled(data) else logging.WARNING)
        mount, older = self.app.endpoint.mount, self.app.endpoint.older
        assert isinstance(older, Legacy)
        assert mount is None or not older.table(mount).sessions, "a session is left"

    async def end(self) -> None:
        """End the server."""
        await self.app.aclose()

    async def _play(self, script: bytes) -> None:
        talk = _Talk(self.app, judged=is_sampled(script), shut=self._guarded and SECRET.encode() not in script)
        try:
            parts = script.split(b"\n--\n")[:MOST]
            for at, part in enumerate(parts, 1):
                await talk.take(part, parts[at:])
        finally:
            await talk.hang_up()


class _Sent:
    """One request, whose body comes in pieces.

    Attributes:
        sent: What the application has sent so far.
        verb: Its HTTP method.
        is_open: Whether it asks for what everybody may see.
        request: Its body as JSON; None where it is none, or nobody reads it.
        task: The application's.
        awaits: Whether it is a request that is answered where it was sent.
        cuts: What came while it ran that may end it without an answer.
    """

    def __init__(self, app: App, scope: Any, body: bytes, request: Any, pieces: int, version: str) -> None:
        self.sent: list[Any] = []
        self.verb: str = scope["method"]
        self.is_open = scope["path"].startswith("/.well-known/") or self.verb == "OPTIONS"
        self.request: Any = request if self.verb == "POST" else None
        self.awaits = (
            isinstance(self.request, dict) and "id" in self.request and "method" in self.request and not scope["path"].startswith("/sse")
        )
        self.cuts: list[_Sent] = []
        self._version = version
        self._headers = dict(scope["headers"])
        size = max(1, -(-len(body) // pieces))
        parts = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        self._received = [{"type": "http.request", "body": part, "more_body": at < len(parts)} for at, part in enumerate(parts, 1)]
        self._gone = asyncio.Event()
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._received:
            return self._received.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        assert not self.sent or self.sent[-1].get("more_body", True), f"{event} after the end of the answer"
        self.sent.append(event)

    def disconnect(self) -> None:
        """The client goes away."""
        self._gone.set()

    @property
    def body(self) -> bytes:
        """What has come of the body so far."""
        return b"".join(event.get("body", b"") for event in self.sent[1:])

    @property
    def version(self) -> str:
        """The version that its session speaks: what was agreed on before it came, or by it."""
        found = _AGREED.findall(self.body)
        return found[-1].decode() if found else self._version

    @property
    def is_refused(self) -> bool:
        """Whether it came to nothing."""
        return bool(self.sent) and self.sent[0]["status"] >= 400 and self.sent[0]["status"] != GONE

    def may_cut(self, other: _Sent) -> bool:
        """Whether it takes its answer from another one, unless it is refused: it ends the session, goes on from an event of that very stream,
        or cancels that very request."""
        session = self._headers.get(b"mcp-session-id")
        if session is None or session != other._headers.get(b"mcp-session-id"):
            return False
        if self.verb == "GET":
            track = self._headers.get(b"last-event-id", b"").rpartition(b"-")[0]
            return bool(track) and re.search(rb"(?m)^id: %b-\d+$" % re.escape(track), other.body) is not None
        return self.verb == "DELETE" or any(_cancels(message, other.request) for message in _flat(self.request))


class _Talk:
    """What one client does with an application.

    Args:
        app: The application.
        judged: Whether the judges of the test suite see its answers too.
        shut: Whether nobody may get in, because the client has no secret to show.
    """

    def __init__(self, app: App, *, judged: bool, shut: bool) -> None:
        self._scopes = asgi_driver.Client(app)
        self._app = app
        self._known: dict[bytes, bytes] = {}
        self._version = "2025-11-25"
        self._sent: list[_Sent] = []
        self._methods: dict[tuple[type, Any], str] = {}
        self._judged = judged
        self._shut = shut

    async def take(self, part: bytes, rest: list[bytes]) -> None:
        """Do what one part of a script says, and remember what the rest asks for."""
        for name, value in self._known.items():
            part = part.replace(name, value)
        head, _, body = part.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        found = _FIRST_LINE.match(first)
        verb, path = (found[1].decode(), found[2].decode("latin-1")) if found else ("POST", "/mcp")
        if verb == "WAIT":
            await asyncio.sleep(min(float(path), 100.0) if path.isascii() and path.isdigit() else 1.0)
        elif verb == "DROP":
            await self.hang_up()
        else:
            self._start(verb, path or "/mcp", lines, body)
        await settle()
        if rest:
            self._learn(b"".join(rest))

    def _start(self, verb: str, path: str, lines: list[bytes], body: bytes) -> None:
        request = _read(body)
        headers = self._headers(verb, request)
        for line in lines[:50]:
            name, _, value = line.partition(b":")
            name = name.strip().lower()
            headers.pop(name.removeprefix(b"-"), None)
            if not name.startswith(b"-"):
                headers[name] = value.strip()
        pieces = headers.pop(b"x-chunks", b"1")
        raw = list(headers.items())
        if b"x-twice" in headers:  # the header it names comes once more
            raw += [(headers[b"x-twice"], b"again")]
        path, _, query = path.partition("?")
        scope = self._scopes.scope(verb, raw, path)
        scope["query_string"] = query.encode("latin-1")
        for each in _flat(request):
            if isinstance(each, dict) and isinstance(each.get("method"), str) and isinstance(each.get("id"), str | int):
                known = self._methods.setdefault((type(each["id"]), each["id"]), each["method"])
                self._judged = self._judged and known == each["method"]  # else nobody can tell which of them is answered
        fresh = _Sent(self._app, scope, body, request, int(pieces) if pieces in {b"2", b"3", b"9"} else 1, self._version)
        for sent in self._sent:
            if not sent.task.done() and fresh.may_cut(sent):
                sent.cuts.append(fresh)
        self._sent.append(fresh)

    def _headers(self, verb: str, request: Any) -> dict[bytes, bytes]:
        """Headers that fit a body."""
        headers = {b"host": b"127.0.0.1:8000", b"accept": b"text/event-stream" if verb == "GET" else b"application/json, text/event-stream"}
        if verb == "POST":
            headers[b"content-type"] = b"application/json"
        if _is_modern(request):
            params = request["params"]
            mirrored = {b"mcp-protocol-version": params["_meta"][META_PREFIX + "protocolVersion"], b"mcp-method": request.get("method")}
            mirrored[b"mcp-name"] = params.get(MIRRORED.get(str(request.get("method")), ""))
            arguments = params.get("arguments")
            mirrored[b"mcp-param-region"] = arguments.get("region") if isinstance(arguments, dict) else None
            return {**headers, **{name: _header(value) for name, value in mirrored.items() if isinstance(value, str)}}
        if not (isinstance(request, dict) and request.get("method") == "initialize") and b"$SID" in self._known:
            headers |= {b"mcp-session-id": self._known[b"$SID"], b"mcp-protocol-version": self._version.encode()}
        return headers

    def _learn(self, rest: bytes) -> None:
        """Remember what the server has made up, as far as the rest of the script needs it, and what was negotiated."""
        wanted = [(name, pattern) for name, pattern in _LEARNT if name in rest]
        for sent in self._sent[-3:]:
            if not sent.sent:
                continue
            if session_id := dict(sent.sent[0]["headers"]).get(b"mcp-session-id"):
                self._known[b"$SID"] = session_id
            body = sent.body
            for name, pattern in wanted:
                if found := pattern.findall(body):
                    self._known[name] = found[-1]
            if (found := _AGREED.findall(body)) and found[-1].decode() != LATEST:
                self._version = found[-1].decode()

    async def hang_up(self) -> None:
        """Go away, and hold every answer against what one has to be."""
        ended = [sent.task.done() for sent in self._sent]
        for sent in self._sent:
            sent.disconnect()
        if not all(ended):
            await settle()
        if not all(sent.task.done() for sent in self._sent):
            await asyncio.sleep(10)
        for sent, whole in zip(self._sent, ended, strict=True):
            assert sent.task.done(), f"the application goes on without its client: {sent.request}"
            sent.task.result()
            self._check(sent, whole=whole)
        self._sent = []

    def _check(self, sent: _Sent, *, whole: bool) -> None:
        if not sent.sent:
            assert not whole, "a request has no answer"
            return
        head, body = sent.sent[0], sent.body
        headers = dict(head["headers"])
        assert head["status"] in STATUSES, head
        assert len(headers) == len(head["headers"]), f"a header is there twice: {head}"
        assert all(_NAME.fullmatch(name) and _HEADER.fullmatch(value) for name, value in headers.items()), f"no header of HTTP: {headers}"
        assert not self._shut or sent.is_open or head["status"] >= 400, f"it got in without a secret: {sent.request}"
        if challenge := headers.get(b"www-authenticate"):
            assert any(each.scheme == "bearer" for each in parse(challenge.decode("ascii"))), challenge
        if sent.is_open and head["status"] == 200 and sent.verb != "HEAD":
            assert isinstance(read_message(body), dict), body
            return
        if headers.get(b"content-type") == b"text/event-stream":
            texts = [event.data for event in read_stream(body).events if event.data and event.event == "message"]
        else:
            texts = [body] if body else []
            length = None if head["status"] == NO_CONTENT else b"%d" % len(body)  # RFC 9110 section 8.6
            assert not whole or sent.verb == "HEAD" or headers.get(b"content-length") == length, headers
        messages = [message for text in texts for message in _flat(read_message(text))]
        for message in messages:
            check_message(message)
        if whole and (head["status"] == 200 or (head["status"] == 202 and sent.awaits)):
            _check_id(sent.request, messages, cut=body[:1] != b"{" and not all(each.is_refused for each in sent.cuts))
        if self._judged:
            self._judge(sent, messages)

    def _judge(self, sent: _Sent, messages: list[Any]) -> None:
        """Ask the judges of the test suite."""
        for message in messages:
            if "error" in message and message.get("id") is None:
                continue  # an answer before anybody knew whose it was
            if _is_modern(sent.request):
                asgi_driver.judge(message, sent.request.get("method"))
            elif sent.version in legacy_driver.VERSIONS and ("method" in message or (type(message["id"]), message["id"]) in self._methods):
                legacy_driver.judge(message, sent.version, self._methods)


def _flat(value: Any) -> list[Any]:
    """Messages of a batch, or the one."""
    return value if isinstance(value, list) and value else [value]


def _cancels(message: Any, request: Any) -> bool:
    """Whether a message cancels a request."""
    if not isinstance(message, dict) or message.get("method") != "notifications/cancelled" or not isinstance(request, dict):
        return False
    params = message.get("params")
    named = params.get("requestId") if isinstance(params, dict) else None
    return named is not None and not isinstance(named, bool) and named == request.get("id")


def _check_id(request: Any, messages: list[Any], *, cut: bool) -> None:
    """A request is answered once (JR-02); where its stream was cut off, perhaps not at all (CN-04)."""
    if not isinstance(request, dict) or "method" not in request:
        return
    answers = [message for message in messages if "method" not in message]
    assert len(answers) == 1 or (cut and not answers), messages
    assert not answers or answers[0].get("id") in (None, request.get("id")), (request, messages)


def _is_modern(request: Any) -> bool:
    """Whether a request speaks the current protocol, as it says itself."""
    params = request.get("params") if isinstance(request, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and META_PREFIX + "protocolVersion" in meta


def _header(value: str) -> bytes:
    try:
        return header_value(value).encode("latin-1")
    except UnicodeEncodeError:
        return b"?"


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


_modern: Final[list[Host]] = []
_legacy: Final[list[Host]] = []
_guarded: Final[list[Host]] = []


def run_modern(script: bytes) -> None:
    """Scripts of clients of the current protocol; see the module."""
    serve(_modern, _Apps, script)


def run_legacy(script: bytes) -> None:
    """Scripts of clients of 2025, with sessions and without, and of 2024; see the module."""
    serve(_legacy, _Apps, script)


def run_guarded(script: bytes) -> None:
    """Scripts of clients of both eras, of whom those without a secret must not get in (AR-01); see the module."""
    serve(_guarded, partial(_Apps, make_guarded_app), script)
