"""Calls that come whole, in one piece: `callboard.run` answers them past the connection's parser, and past all that comes after it.

A client sends the same head again and again: what it means, and that it may, depends on its bytes and on who sends them, so both are
remembered for a while, and then nothing of it need be read. Heads that differ in nothing but the session that they name mean the same of
different sessions: what is the same of them is remembered, too, as their outline. The rest of uvicorn's protocol takes a `WholeCall` for one
of its own cycles; where more is asked of it than to write one whole answer, one of those takes its place.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias

from callboard.transport.asgi import App
from callboard.transport.known import Known
from callboard.transport.stream import Receive, Scope, Send

__all__ = ["Head", "Heads", "WholeCall"]

# Bytes of heads that are remembered, and of a request whose head is not.
MOST_REMEMBERED = 1024 * 1024
LONGEST = 16 * 1024
# Seconds until all are forgotten: they may hold credentials.
FORGET_AFTER = 60.0
# Heads that are remembered to have been there once; most of those that come twice come often.
MOST_SEEN = 4096
# A session's id, where it can be nothing else: it says nothing to a parser, whatever it is. Not where it may go on in the next line: some
# parsers put the two together.
_find_session = re.compile(rb"\r\nmcp-session-id:[ \t]*([!-~]{1,256})\r\n(?![ \t])", re.IGNORECASE).search
_SESSION = b"mcp-session-id"
# How requests begin that may be answered at once.
_BEGINNINGS = (b"POST ", b"DELET")
# Who sends a head, and all its bytes; or what stands before the session's id, how long that is, and what stands after it.
_Key: TypeAlias = tuple[str | None, bytes] | tuple[str | None, bytes, int, bytes]
# Headers that have a say in how a message is read, in what comes back, or in where it came from.
_DECIDING = frozenset(
    {b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"x-forwarded-for", b"x-forwarded-proto", b"http2-settings"}
)


class Head(NamedTuple):
    """The head of a request that has been read, and found to be in order.

    Attributes:
        known: What the application knows of it.
        length: Bytes of the body that it announces.
        scope: The ASGI scope that it was read into; of an outline it names another session.
    """

    known: Known
    length: int
    scope: Scope

    def of_session(self, session_id: bytes) -> Head:
        """The same head, naming another session."""
        return Head(self.known.of_session(session_id), self.length, self.scope)

    def make_scope(self) -> Scope:
        """The ASGI scope of a request with this head."""
        named = self.known.headers.get(_SESSION)
        headers = [(name, named if name == _SESSION and named is not None else value) for name, value in self.scope["headers"]]
        return {**self.scope, "headers": headers}


class _Collector:
    """What a parser finds in one message."""

    def __init__(self) -> None:
        self.parser: Any = None
        self.clear()

    def clear(self) -> None:
        self.url = self.method = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.begun = self.complete = 0
        self.is_plain = False

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self.parser
        self.method = parser.get_method()
        self.is_plain = parser.get_http_version() == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        self.complete += 1


class Heads:
    """Reads whole requests, and remembers the heads of those that come more than once.

    Args:
        app: What they are for.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._path = app.path.encode()
        self._size = 0
        self._seen: set[int] = set()
        self._kept: dict[_Key, Head] = {}
        self._found = _Collector()
        self.get = self._kept.get

    def read(self, data: bytes, end: int, client: tuple[str, int] | None, loop: asyncio.AbstractEventLoop) -> Head | None:
        """Read what may be one whole request, with a parser of its own where its outline is not known.

        Args:
            data: All that came, between two messages.
            end: Where its head ends.
            client: Who sent it.
            loop: The running event loop.

        Returns:
            Its head; None where it is not one whole request that can be answered at once: then the connection's parser must read it.
        """
        if len(data) > LONGEST or data[:5] not in _BEGINNINGS:
            return None
        peer = None if client is None else client[0]
        outline: _Key | None = None
        if (named := _find_session(data, 0, end)) is not None:
            begin, stop = named.span(1)
            outline = peer, data[:begin], stop - begin, data[stop:end]
            if (like := self.get(outline)) is not None:
                head = like.of_session(named[1])
                self._learn((peer, data[:end]), end, head, loop)
                return head
        if (made := self._make(data, end, client)) is not None:
            self._learn((peer, data[:end]), end, made, loop)
            if outline is not None:
                self._learn(outline, end, made, loop)
        return made

    def _make(self, data: bytes, end: int, client: tuple[str, int] | None) -> Head | None:
        """The head of a whole request, by its bytes; None where it is no ordinary one."""
        if (found := self._parse(data)) is None:
            return None
        headers, body = found.headers, found.body
        if found.url != self._path or body != data[end:] or not _DECIDING.isdisjoint([name for name, _ in headers]):
            return None
        told = (b"content-length", b"%d" % len(body)) in headers
        if found.method == b"DELETE":  # without a body, as all that we know send it
            told = not body and (told or b"content-length" not in [name for name, _ in headers])
        if not told:
            return None
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": found.method.decode(),
            "root_path": "",
            "path": self._app.path,
            "raw_path": self._path,
            "query_string": b"",
            "headers": headers,
            "client": client,
        }
        known = self._app.recognise(scope)
        return None if known is None else Head(known, len(body), scope)

    def _parse(self, data: bytes) -> _Collector | None:
        """What is in one whole, ordinary message."""
        import httptools

        found = self._found
        found.clear()
        if found.parser is None:
            found.parser = httptools.HttpRequestParser(found)
        try:
            found.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            found.parser = None  # the connection's own parser says what is wrong
            return None
        if found.begun != 1 or found.complete != 1:
            found.parser = None  # it waits for more
            return None
        return found if found.is_plain else None

    def _learn(self, key: _Key, size: int, made: Head, loop: asyncio.AbstractEventLoop) -> None:
        """Remember a head, or an outline, that comes for the second time."""
        trace = hash(key)
        if trace not in self._seen:
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(trace)
            return
        if not self._kept:
            loop.call_later(FORGET_AFTER, self.forget)
        if self._size + size > MOST_REMEMBERED:
            self.forget()
        self._size += size
        self._kept[key] = made

    def forget(self) -> None:
        """Forget all of them."""
        self._kept.clear()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)


class _Nobody:
    """An event for which nobody waits."""

    def set(self) -> None:
        """Nobody hears of it."""


class WholeCall:
    """One such call: to the protocol a cycle, to the application the owner of `receive` and `send`.

    Args:
        protocol: The connection's protocol.
        head: What it began with.
        make_cycle: Makes the cycle that takes its place.

    Attributes:
        disconnected: Whether the client is gone.
        keep_alive: Whether the connection stays open after it.
        response_complete: Whether it is answered.
        task: What runs it.
    """

    __slots__ = ("_cycle", "_make_cycle", "_protocol", "disconnected", "head", "keep_alive", "response_complete", "task")

    scope = None
    more_body = False
    response_started = False
    message_event = _Nobody()

    def __init__(self, protocol: Any, head: Head, make_cycle: Callable[[WholeCall], Any]) -> None:
        self._protocol: Any = protocol
        self._make_cycle: Any = make_cycle
        self._cycle: Any = None
        self.head = head
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self.task: asyncio.Task[None] | None = None

    def receive(self) -> Any:
        """ASGI receive: the body has been taken, so it tells that the client is gone."""
        return self.cycle().receive()

    def send(self, message: Any) -> Any:
        """ASGI send."""
        return self.cycle().send(message)

    def cycle(self) -> Any:
        """The cycle that has taken its place by now."""
        if self._cycle is None:
            self._cycle = self._make_cycle(self)
        return self._cycle

    def is_ready(self) -> bool:
        """Whether a whole answer can be written as it is."""
        busy = self.response_complete or self.disconnected or not self.keep_alive or self._cycle is not None
        return not busy and not self._protocol.flow.write_paused

    def write(self, status: int, lines: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer; see `Shortcut`."""
        self.response_complete = True
        self._protocol.write_whole(status, lines, headers, body)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in a task of its own; what becomes of errors, and of answers that are none, uvicorn knows."""
        try:
            await work
            if not self.response_complete and (self._cycle is not None or not self.disconnected):
                await self._conclude(_return)
        except BaseException as error:
            if self.response_complete:
                self._protocol.logger.exception("Exception in ASGI application\n")
            else:
                await self._conclude(_Raise(error))
        finally:
            self._protocol.tasks.discard(self.task)
            self.task = self._protocol = self._make_cycle = None  # else they would hold each other

    async def _conclude(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        cycle = self.cycle()
        await cycle.run_asgi(app)


async def _return(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """An application that has nothing to say any more."""


class _Raise:
    """An application that fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def __call__(self, _scope: Scope, _receive: Receive, _send: Send) -> None:
        raise self._error
