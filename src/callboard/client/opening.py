"""Opening a way to a server: the transport, then the protocol version, then a session where the version has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple, Protocol

import msgspec

from callboard.client.answer import read
from callboard.client.connection import Connection, Receiver
from callboard.client.dialect import Dialect, Legacy, Modern, read_initialized
from callboard.client.errors import ClientError, ConnectionFailed, Origin, RequestTimeout
from callboard.client.negotiate import VERSIONS, Discover, Initialize, OldTransport, Outcome, Remembered, Settled, Step, negotiate
from callboard.client.target import Link
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import encode_notification
from callboard.wire.versions import LATEST, MODERN

__all__ = ["Ask", "Hello", "Opened", "Opening"]

_REMEMBERED = Remembered()


class Hello(NamedTuple):
    """How a client introduces itself.

    Attributes:
        versions: What it speaks, newest first.
        capabilities: What it can do.
        info: Who it is.
        log_level: The least severe message it wants; None for none.
        connect_timeout: Seconds to get connected in; None for no limit.
    """

    versions: tuple[str, ...]
    capabilities: Any
    info: v.Implementation
    log_level: str | None
    connect_timeout: float | None


class Ask(Protocol):
    """Sends one request in the words of a dialect."""

    def __call__(
        self, dialect: Dialect, method: str, params: dict[str, Any], seconds: float | None
    ) -> Awaitable[tuple[msgspec.Raw, Origin, str | None]]:
        """Give the result, where it is from, and the session that came with it."""
        ...


class Opened(NamedTuple):
    """A way to a server.

    Attributes:
        connection: The transport.
        dialect: How requests are put.
        server: What the server said it is; None when it was not asked.
    """

    connection: Connection
    dialect: Dialect
    server: v.DiscoverResult | None


class Opening:
    """Opens, and opens anew.

    Args:
        link: Where to.
        hello: How the client introduces itself.
        receiver: Takes what no request waits for.
        ask: Sends a request over the connection that is open just now.
    """

    def __init__(self, link: Link, hello: Hello, receiver: Receiver, ask: Ask) -> None:
        self._link = link
        self._hello = hello
        self._receiver = receiver
        self._ask = ask
        self._origin = Origin(link.name)
        self.connection = link.connection
        self._dialect: Dialect = Modern(LATEST, hello.capabilities, hello.info, hello.log_level)
        self._server: v.DiscoverResult | None = None
        self._way: type[Step] | None = None

    async def open(self) -> Opened:
        """Open the transport and agree on a version.

        Raises:
            ClientError: It can't be done.
        """
        loop = asyncio.get_running_loop()
        limit = self._hello.connect_timeout
        end = None if limit is None else loop.time() + limit
        await self._connect(limit)
        if self._needs_no_words():
            return Opened(self.connection, self._dialect, None)
        place = self._link.place
        over_http = self._link.make_old is not None
        remembered = _REMEMBERED.recall(place, loop.time()) if place else self._way
        plan = negotiate(self._hello.versions, remembered, self._origin, over_http=over_http)
        settled = await self._follow(plan, end)
        self._way = type(settled.way)
        if place and (isinstance(settled.way, Discover) or self._hello.versions == VERSIONS):  # a client of few versions finds out little
            _REMEMBERED.note(place, type(settled.way), loop.time())
        return Opened(self.connection, self._dialect, self._server)

    async def renew(self, version: str) -> Opened:
        """Open another session on the same transport (HL-24); that of 2024-11-05 has one for each stream (HL-27).

        Raises:
            ClientError: The server opens none.
        """
        if not self.connection.mirrors:
            await self._connect(self._hello.connect_timeout)
        outcome = await self._initialize(Initialize(version), self._hello.connect_timeout)
        if isinstance(outcome, ClientError):
            raise outcome
        if list(outcome) != [self._dialect.version]:
            raise ConnectionFailed(f"the server speaks {', '.join(outcome)} now: open a client anew", self._origin)
        return Opened(self.connection, self._dialect, self._server)

    def _needs_no_words(self) -> bool:
        """Whether there is nothing to agree on: a server that speaks what is wanted first, or a single version.

        A child process is asked all the same: it may be a server that knows no such protocol and yet would run a call (VN-15).
        """
        wanted = self._hello.versions
        return wanted[0] in MODERN and (self._link.kind == "memory" or (self._link.kind == "http" and len(wanted) == 1))

    async def _connect(self, limit: float | None) -> None:
        try:
            async with asyncio.timeout(limit):
                await self.connection.open(self._origin, self._receiver)
        except TimeoutError as error:
            raise ConnectionFailed(
                f"not connected within {limit:g} s; raise connect_timeout if it takes longer", self._origin, sent=False
            ) from error

    async def _follow(self, plan: Any, end: float | None) -> Settled:
        """Do the steps of a plan."""
        loop = asyncio.get_running_loop()
        try:
            step: Step = next(plan)
            while True:
                left = None if end is None else max(end - loop.time(), 0.001)
                step = plan.send(await self._take(step, left))
        except StopIteration as stop:
            settled: Settled = stop.value
            return settled
        except RequestTimeout as error:
            seconds = self._hello.connect_timeout or error.seconds
            raise RequestTimeout(
                seconds, Origin(self._link.name, error.method), stderr=self.connection.last_words if self._link.kind == "stdio" else None
            ) from error

    async def _take(self, step: Step, left: float | None) -> Outcome:
        match step:
            case Discover():
                # A server of old may say nothing at all; then there must be time for the next step.
                patience = left if left is None or self._hello.versions[-1] in MODERN else left / 2
                outcome = await self._discover(step, patience)
                if isinstance(outcome, ConnectionFailed) and self._link.kind == "stdio" and self._hello.versions[-1] not in MODERN:
                    # VN-14: servers made with Rust's rmcp end when something else than `initialize` comes first; another one gets that.
                    await self._connect(left)
                    return ClientError(outcome.text, self._origin)
                return outcome
            case Initialize():
                return await self._initialize(step, left)
            case OldTransport():
                return await self._change_transport(step, left)

    async def _discover(self, step: Discover, seconds: float | None) -> Outcome:
        """VN-02."""
        hello = self._hello
        dialect = self._dialect = Modern(step.version, hello.capabilities, hello.info, hello.log_level)
        try:
            raw, origin, _ = await self._ask(dialect, "server/discover", {}, seconds)
            server: v.DiscoverResult = read(v.DiscoverResult, raw, origin)
        except ClientError as error:
            return error
        self._server = server
        # It has answered in this version, whatever its list says.
        return [step.version, *server.supported_versions] if step.version not in server.supported_versions else server.supported_versions

    async def _initialize(self, step: Initialize | OldTransport, seconds: float | None) -> Outcome:
        """Open a session (LC-01, LC-03, VN-19)."""
        hello = self._hello
        params = {"protocolVersion": step.version, "capabilities": hello.capabilities, "clientInfo": hello.info}
        try:
            raw, origin, session = await self._ask(Legacy(step.version, settled=False), "initialize", params, seconds)
            version, server, tasks = read_initialized(raw, origin)
            if version not in hello.versions:
                return [version]
            dialect = Legacy(version, session, tasks=tasks)
            headers = dialect.headers("", {})
            async with asyncio.timeout(seconds):
                await self.connection.send(encode_notification("notifications/initialized"), headers, origin)
                await self.connection.begin(headers)
        except ClientError as error:
            return error
        except TimeoutError:
            return RequestTimeout(seconds or 0, Origin(self._link.name, "notifications/initialized"))
        self._dialect, self._server = dialect, server
        return [version]

    async def _change_transport(self, step: OldTransport, seconds: float | None) -> Outcome:
        """HL-26."""
        assert self._link.make_old is not None
        before, self.connection = self.connection, self._link.make_old()
        try:
            async with asyncio.timeout(seconds):
                await self.connection.open(self._origin, self._receiver)
        except (ClientError, TimeoutError) as error:
            await self.connection.close()
            self.connection = before
            return error if isinstance(error, ClientError) else RequestTimeout(seconds or 0, self._origin)
        await before.close()
        return await self._initialize(step, seconds)
