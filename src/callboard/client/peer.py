"""One server, as a client sees it.

What can be mended is mended, each cause once for a request, and the request goes out again under a new id:

| what happened | what is done |
|---|---|
| 401 or 403, and there is an `Auth` | it is asked for other credentials, three times at most |
| the version is refused that the server says it speaks (VN-06) | the same again |
| a tool wants headers that we did not know of (HH-21) | the tools are listed anew |
| the session is gone: 404 (HL-24), or 400 that says so | a new one; the server has not seen the request |
| a child process has ended (SD-08), or the stream of 2024-11-05 | a new one; what may have been seen goes out again only if it may be repeated |
| the connection broke | what may be repeated goes out again (HM-14) |

May be repeated: whatever only reads, and tools that say of themselves that a second call does no harm.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from itertools import count
from typing import Any, NamedTuple

import msgspec

from callboard.client.answer import Kind, read, read_complete, refusal
from callboard.client.answering import answer_request
from callboard.client.auth import Auth
from callboard.client.cache import CACHEABLE, Cache, Key, fingerprint, key_of, read_hint
from callboard.client.changes import ACKNOWLEDGED, CHANGES, grant, is_wanted, note_of, read_change
from callboard.client.connection import Challenged, OnNote
from callboard.client.dialect import Dialect, Legacy, Modern
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InputRequired, Origin, ServerError
from callboard.client.inputs import MAX_ROUNDS, Inputs
from callboard.client.listing import Items, list_pages
from callboard.client.negotiate import add_doubt, means_lost, named_versions
from callboard.client.opening import Hello, Opened, Opening
from callboard.client.post import Event, Post
from callboard.client.renewal import Logins, Renewal
from callboard.client.requests import OnLog, OnProgress, Patience, Requests, subject
from callboard.client.result import ToolResult
from callboard.client.target import Link
from callboard.client.tools import Tools
from callboard.client.updates import Updates
from callboard.errors import REASONS, Reason
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification, RawRequest
from callboard.wire.methods import METHODS

__all__ = ["Answer", "Peer"]

logger = logging.getLogger("callboard.client")

MAX_LOGINS = 3
"""How often one request asks for credentials (AC-14)."""
MAX_RESTARTS = 3
RESTARTS_WITHIN = 60.0
"""How often in how many seconds a child process is started again."""
LEVEL_PATIENCE = 5.0
"""Seconds to tell a new session which logs are wanted."""
_HEADER_MISMATCH = REASONS[Reason.HEADER_MISMATCH].code
_METHOD_NOT_FOUND = REASONS[Reason.METHOD_NOT_FOUND].code
_VERSION = REASONS[Reason.VERSION].code
# What only reads, or does the same however often it is done.
_REPEATABLE = frozenset(METHODS) - {"tools/call", "subscriptions/listen"} | {
    "logging/setLevel",
    "ping",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/get",
    "tasks/list",
    "tasks/result",
}
_numbers = count(1)


class _Loss(NamedTuple):
    """What must be opened anew.

    Attributes:
        cause: `session`, `stream` or `process`.
        text: What happened.
        version: The protocol version that was spoken.
    """

    cause: str
    text: str
    version: str


class Answer(NamedTuple):
    """A result.

    Attributes:
        raw: The result, as it came.
        origin: The request it answers.
        kind: Its `resultType`, where that was looked at.
        body: The request as it was sent; empty where none was.
    """

    raw: msgspec.Raw
    origin: Origin
    kind: str = "complete"
    body: bytes = b""


class Peer:
    """See the module.

    Args:
        link: The way to the server.
        hello: How the client introduces itself.
        inputs: The callbacks that answer what the server asks.
        on_log: Gets its log messages.
        auth: Holds the credentials; None for none.
        cache: Keeps what may be kept; None to ask every time.
    """

    def __init__(self, link: Link, hello: Hello, inputs: Inputs, on_log: OnLog | None, auth: Auth | None, cache: Cache | None) -> None:
        self.target = link.name
        self.tools = Tools(link.name)
        self._link = link
        self._place = f"{link.place}{link.query}" if link.place else f"{link.name} {next(_numbers)}"
        self._hello = hello
        self._inputs = inputs
        self._auth = auth
        self._cache = cache
        self._requests = Requests(link.name, on_log, self._take_note)
        self._post = Post(link.name, self._requests.hand_on, self._answer, self._send, self._note_change)
        self._opening = Opening(link, hello, self._post, self._ask_once)
        self._opened: Opened | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loss: _Loss | None = None
        self._renewal = Renewal(link.name, self._reopen)
        self._logins = Logins(link.name, auth)
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._updates = Updates(self._ask_of)
        self._log_level = hello.log_level
        self._looking = asyncio.Lock()
        self._looked = False
        self._heard = False
        self._closed = False

    async def open(self) -> None:
        """Connect.

        Raises:
            ClientError: It can't be done.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._become(await self._opening.open())
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect, within bounded time.

        Raises:
            ClientError: It was opened in another event loop.
        """
        if self._loop not in {None, asyncio.get_running_loop()}:
            raise ClientError("the client was opened in another event loop, and is closed in that one", Origin(self.target))
        self._closed = True
        self._logins.close()
        try:
            await self._renewal.close()
            await self._updates.close()
            await self._post.close()
        finally:
            try:
                await self._opening.connection.close()
            finally:
                self._requests.close()

    @property
    def version(self) -> str:
        """The protocol version that is spoken."""
        return self._now().dialect.version

    @property
    def legacy(self) -> bool:
        """Whether it is one of 2025, or older."""
        return isinstance(self._now().dialect, Legacy)

    @property
    def mirrors(self) -> bool:
        """Whether requests carry headers that mirror them (HH-09)."""
        return self._opening.connection.mirrors and not self.legacy

    @property
    def last_words(self) -> str:
        """The end of what a child process wrote to standard error."""
        return self._opening.connection.last_words

    @property
    def in_flight(self) -> tuple[Origin, ...]:
        """The requests that wait for their answers."""
        return self._requests.in_flight

    def cancel(self, request_id: int | str) -> bool:
        """End a request."""
        return self._requests.cancel(request_id)

    def ask_for_logs(self, level: str) -> bool:
        """From now on ask for messages of that level, where each request does; False where it is a request of its own."""
        self._log_level = level
        dialect = self._now().dialect
        if isinstance(dialect, Modern):
            dialect.ask_for_logs(level)
            return True
        return False

    async def discover(self, patience: Patience) -> v.DiscoverResult:
        """What the server is; in a session, what it said when the session began."""
        opened = self._now()
        if isinstance(opened.dialect, Legacy):
            assert opened.server is not None
            return opened.server
        answer = await self.ask("server/discover", {}, patience)
        server: v.DiscoverResult = read(v.DiscoverResult, answer.raw, answer.origin)
        return server

    async def ask(self, method: str, params: Mapping[str, Any], patience: Patience, progress: OnProgress | None = None) -> Answer:
        """Send a request, answer what the server asks, and give the result, whatever its type but `input_required`.

        Args:
            method: The method.
            params: Its params, without the envelope.
            patience: How long it may take; its silence is counted anew after each round, and what callbacks take is not counted.
            progress: Gets its progress.

        Raises:
            ClientError: There is no result.
        """
        more: dict[str, Any] = {}
        rounds = 0
        while True:
            answer = await self.exchange(method, {**params, **more} if more else params, patience, progress)
            found: Kind = read(Kind, answer.raw, answer.origin)
            if found.result_type == answer.kind:
                return answer
            raw, origin = answer.raw, answer.origin
            row = METHODS.get(method)
            if found.result_type != "input_required" or row is None or not row.asks:  # MR-02
                return Answer(raw, origin, found.result_type)
            if rounds == MAX_ROUNDS:
                why = f"for more than {MAX_ROUNDS} rounds; it was given up"
                raise InputRequired(found.input_requests, found.request_state, origin, why)
            rounds += 1
            if rounds == 1:  # MR-13: what is sent again is what was sent, whatever has become of the caller's objects
                sent = msgspec.json.decode(answer.body).get("params", {})
                params = {name: value for name, value in sent.items() if name != "_meta"}
            more = await self._inputs.prepare(found.input_requests, found.request_state, origin)

    async def list(self, method: str, cursor: str | None, patience: Patience) -> Items[Any]:
        """List what the server has of a kind; a server that has nothing of the kind may not know the method.

        Args:
            method: A key of `LISTS`.
            cursor: The page to get; None for all of them.
            patience: How long it may take.

        Raises:
            ClientError: It can't be had.
        """

        async def fetch(params: dict[str, Any]) -> tuple[msgspec.Raw, Origin]:
            return (await self.exchange(method, params, patience))[:2]

        def learn(items: builtins.list[Any], page: msgspec.Raw) -> builtins.list[Any]:
            return self.tools.learn(items, page, self.version, mirrors=self.mirrors) if method == "tools/list" else items

        try:
            found = await list_pages(method, cursor, fetch, learn, lambda: self.forget(method))
        except ServerError as error:
            if error.code != _METHOD_NOT_FOUND or await self._offers(METHODS[method].capability):
                raise
            return Items()  # a server without prompts has none
        if method == "tools/list" and cursor is None:
            self.tools.forget_others(found, self.version)
        return found

    async def accept(self, name: str, raw: msgspec.Raw, origin: Origin, kind: str = "") -> ToolResult:
        """Read what a tool answered, and hold it to what the tool has promised; who never listed the tools does so now, once.

        Args:
            name: The tool.
            raw: What it answered.
            origin: The call.
            kind: Its `resultType`, where that is known.

        Raises:
            InvalidAnswer: It is no result of a tool, or breaks the tool's output schema.
        """
        result: ToolResult = (read if kind == "complete" else read_complete)(ToolResult, raw, origin)
        if result.structured_content is not msgspec.UNSET and not result.is_error and not self.tools.outputs.knows(name):
            await self._know(name)
        return self.tools.outputs.accept(name, result, origin)

    async def asks_for_task(self, name: str) -> bool:
        """Whether a call must say that it may become a task: in 2025-11-25 that is the client's to say (TK-02)."""
        dialect = self._now().dialect
        if not isinstance(dialect, Legacy) or not dialect.tasks:
            return False
        await self._know(name)
        return self.tools.task_support(name) != "forbidden"

    async def _know(self, name: str) -> None:
        """List the tools, unless this one has been listed, or that has been tried."""
        if not name or self._looked or self.tools.outputs.knows(name):
            return
        async with self._looking:  # calls that end at the same time wait for the one that looks
            if self._looked or self.tools.outputs.knows(name):
                return
            try:
                await self.list("tools/list", None, self._patience())
            except ClientError as error:
                logger.info("%s: the tools could not be listed, so results are not held to their schemas: %r", self.target, str(error))
            self._looked = True

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        patience: Patience,
        progress: OnProgress | None = None,
        take: OnNote | None = None,
        *,
        fresh: bool = False,
    ) -> Answer:
        """Send a request and give its result, whatever its type; mend what can be mended.

        Args:
            method: The method.
            params: Its params, without the envelope.
            patience: How long it may take.
            progress: Gets its progress.
            take: Gets its notifications in place of those who want progress and logs.
            fresh: Whether an answer that was kept is of no use.

        Raises:
            ClientError: There is no result.
        """
        key = None if self._cache is None or method not in CACHEABLE else await self._key(method, params)
        asked = 0.0 if key is None else asyncio.get_running_loop().time()
        if key is not None and self._cache is not None and not fresh and (kept := self._cache.get(key, asked)) is not None:
            return Answer(kept, Origin(self.target, method))
        mended: dict[str, int] = {}
        while True:
            if self._loss is not None:
                await self._renewal.wait(
                    patience, ConnectionFailed(self._loss.text, Origin(self.target, method, None, subject(params)), sent=False)
                )
            opened = self._now(method)
            try:
                answer = await self._send_request(opened, method, params, patience, progress, take)
                break
            except ClientError as error:
                cause = self._find_cause(error, opened, method, params)
                if cause is None or mended.get(cause, 0) >= (MAX_LOGINS if cause == "credentials" else 1):
                    if not self._heard and opened.server is None and self._link.kind == "http":
                        add_doubt(error, opened.dialect.version)
                    raise
                mended[cause] = mended.get(cause, 0) + 1
                await self._mend(cause, error, opened, patience)
        self._heard = True
        if key is not None and "credentials" in mended:  # CA-06: it was an answer to somebody else
            key = await self._key(method, params)
        if key is not None and self._cache is not None:
            hint = read_hint(answer.raw)
            self._cache.put(key, answer.raw, hint.ttl_ms, hint.scope, asyncio.get_running_loop().time(), asked=asked)
        return answer

    async def _offers(self, capability: str) -> bool:
        return getattr((await self.discover(self._patience())).capabilities, capability) is not msgspec.UNSET

    def forget(self, method: str) -> None:
        """Keep no answers to a method any more (CA-09)."""
        if self._cache is not None:
            self._cache.drop(self._place, method, asyncio.get_running_loop().time())

    async def hear(self, wanted: v.SubscriptionFilter, on_note: OnNote) -> None:
        """Have changes told until the server ends that, first what it agreed to tell (SB-03); cancelling it ends it.

        Args:
            wanted: What to tell of.
            on_note: Gets the acknowledgement and then the notifications.

        Raises:
            ClientError: The server refuses, or the way to it is broken.
        """
        if isinstance(self._now("subscriptions/listen").dialect, Legacy):
            try:
                await self._hear_in_session(wanted, on_note)
            except (HttpError, ServerError) as error:
                if self._loss is None:
                    raise
                raise ConnectionFailed(error.text, Origin(self.target, error.method, error.request_id)) from error  # it may be back
            return

        async def take(note: RawNotification) -> None:
            if note.method in CHANGES:
                self._note_change(note)
            await on_note(note)

        await self.exchange("subscriptions/listen", {"notifications": wanted}, Patience(None, None), take=take)

    async def _hear_in_session(self, wanted: v.SubscriptionFilter, on_note: OnNote) -> None:
        """Changes of a session come by themselves (SB-15), those of resources are asked for one by one (SB-14)."""
        events: deque[Event] = deque()
        arrival = asyncio.Event()

        def listen(event: Event) -> None:
            if isinstance(event, ClientError) or is_wanted(event, wanted):
                events.append(event)
                arrival.set()

        if self._post.doubted:
            with suppress(ServerError):  # any answer will do: the session lives, or is opened anew
                await self.exchange("ping", {}, self._patience())
            self._post.doubted = False
        asked: builtins.list[str] = []
        lost = False
        with self._post.listening(listen):
            granted = grant(wanted, (await self.discover(self._patience())).capabilities)
            try:
                for uri in wanted.resource_subscriptions or ():
                    await self._updates.add(uri)
                    asked.append(uri)
                await on_note(note_of(ACKNOWLEDGED, {"notifications": granted}))
                while True:
                    while events:
                        event = events.popleft()
                        if isinstance(event, ClientError):
                            lost = True
                            raise event
                        await on_note(event)
                    arrival.clear()
                    await arrival.wait()
            finally:
                for uri in asked:
                    self._updates.remove(uri, told=not lost)

    async def _ask_of(self, method: str, uri: str, limit: float | None) -> Answer:
        return await self.exchange(method, {"uri": uri}, self._patience() if limit is None else Patience(limit, limit))

    def _find_cause(self, error: ClientError, opened: Opened, method: str, params: Mapping[str, Any]) -> str | None:
        """What went wrong, if it can be mended; see the module."""
        if isinstance(error, Challenged):
            return "credentials"
        session = isinstance(opened.dialect, Legacy) and opened.dialect.session is not None
        if session and isinstance(error, HttpError | ServerError) and means_lost(error):
            return "session"
        if isinstance(error, ServerError):
            if error.code == _VERSION and opened.dialect.version in named_versions(error):
                return "version"
            return "headers" if error.code == _HEADER_MISMATCH and method == "tools/call" and self.mirrors else None
        if isinstance(error, ConnectionFailed) and not self._closed:
            repeatable = self._may_repeat(method, params)
            if opened.connection.mirrors:
                return "connection" if error.sent and repeatable else None
            return ("stream" if self._link.kind == "http" else "process") if not error.sent or repeatable else None
        return None

    def _may_repeat(self, method: str, params: Mapping[str, Any]) -> bool:
        return method in _REPEATABLE or (method == "tools/call" and self.tools.may_repeat(params.get("name")))

    async def _mend(self, cause: str, error: ClientError, opened: Opened, patience: Patience) -> None:
        if isinstance(error, Challenged):
            await self._logins.answer(error)
        elif cause == "headers":
            self.forget("tools/list")
            await self.list("tools/list", None, patience)
        elif cause in {"session", "stream", "process"} and self._opened is opened:  # else somebody else has opened it anew
            self._loss = self._loss or _Loss(cause, error.text, opened.dialect.version)
            await self._renewal.wait(patience, error)

    async def _reopen(self) -> None:
        """Open anew what was lost; while that is not done, all requests wait for it."""
        assert self._loss is not None
        cause, text, version = self._loss
        self._post.hold()
        if cause == "process":
            now = asyncio.get_running_loop().time()
            if len(self._restarts) == MAX_RESTARTS and now - self._restarts[0] < RESTARTS_WITHIN:
                raise ConnectionFailed(f"that was done {MAX_RESTARTS} times in {RESTARTS_WITHIN:g} s", Origin(self.target))
            self._restarts.append(now)
            logger.warning("%s: started anew, for %s", self.target, text)
            await self._become(await self._opening.open())
        else:
            if cause == "session":
                self._post.lose("the session is gone")
            await self._become(await self._opening.renew(version))

    async def _become(self, opened: Opened) -> None:
        level, legacy = self._log_level, isinstance(opened.dialect, Legacy)
        if level is not None and isinstance(opened.dialect, Modern):
            opened.dialect.ask_for_logs(level)
        self._opened, self._loss = opened, None
        self._post.settle(takes_requests=legacy)
        # LG-05: what the last session was told. The server may want an answer of ours first: that is possible from here on.
        if level is not None and legacy and opened.server is not None and opened.server.capabilities.logging is not msgspec.UNSET:
            with suppress(ClientError):
                await self._ask_once(opened.dialect, "logging/setLevel", {"level": level}, LEVEL_PATIENCE)

    async def _send_request(
        self,
        opened: Opened,
        method: str,
        params: Mapping[str, Any],
        patience: Patience,
        progress: OnProgress | None,
        take: OnNote | None,
    ) -> Answer:
        """Send a request once."""
        connection = opened.connection
        mirrored = self.tools.headers if connection.mirrors and method == "tools/call" and self.mirrors else None
        request = self._requests.compose(connection, opened.dialect, method, params, progress=progress is not None, mirrored=mirrored)
        incoming = await self._requests.wait(connection, request, progress, patience, take)
        if incoming.response.error is not None:
            raise refusal(incoming.response.error, request.origin, incoming.status, incoming.challenges)
        assert incoming.response.result is not None
        return Answer(incoming.response.result, request.origin, body=request.body)

    async def _ask_once(
        self, dialect: Dialect, method: str, params: dict[str, Any], seconds: float | None
    ) -> tuple[msgspec.Raw, Origin, str | None]:
        """Send one of the requests by which a way is opened; only credentials are mended."""
        logins = 0
        while True:
            connection = self._opening.connection
            request = self._requests.compose(connection, dialect, method, params)
            request.told = request.told and method != "initialize"  # LC-07
            try:
                incoming = await self._requests.wait(connection, request, None, Patience(seconds, seconds))
            except Challenged as error:
                if logins == MAX_LOGINS:
                    raise
                await self._logins.answer(error)
                logins += 1
                continue
            if incoming.response.error is not None:
                raise refusal(incoming.response.error, request.origin, incoming.status, incoming.challenges)
            assert incoming.response.result is not None
            return incoming.response.result, request.origin, incoming.session

    async def _key(self, method: str, params: Mapping[str, Any]) -> Key | None:
        """CA-06: answers to other credentials are answers to somebody else."""
        context = self._link.context
        if self._auth is not None:
            context += fingerprint(await self._auth.headers("POST", self._link.place))
        return key_of(self._place, context, method, params)

    def _now(self, method: str = "") -> Opened:
        if self._opened is None or self._closed:
            raise ClientError("the client is not open: use it inside `async with Client(...) as client`", Origin(self.target, method))
        if asyncio.get_running_loop() is not self._loop:
            raise ClientError("the client was opened in another event loop, and works in that one alone", Origin(self.target, method))
        return self._opened

    def _patience(self) -> Patience:
        return Patience(self._hello.connect_timeout, self._hello.connect_timeout)

    def _take_note(self, note: RawNotification) -> None:
        self._post.take_note(note)

    def _note_change(self, note: RawNotification) -> None:
        """CA-07."""
        if self._cache is not None:
            change = read_change(note)
            uri = change.params.uri if isinstance(change, v.ResourceUpdatedNotification) else None
            self._cache.hear(self._place, note.method, asyncio.get_running_loop().time(), uri=uri)

    async def _answer(self, request: RawRequest) -> bytes:
        # What somebody thinks about is no silence of the server's.
        with nullcontext() if request.method == "ping" else self._requests.standing_still():
            return await answer_request(request, self._inputs, self._now().dialect.version, Origin(self.target))

    async def _send(self, message: bytes) -> None:
        opened = self._now()
        await opened.connection.send(message, opened.dialect.headers("", {}), Origin(self.target))
