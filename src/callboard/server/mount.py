"""What all requests through one transport share, and what a request sees of its session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from callboard.core.exchange import Exchange
from callboard.core.task import Task
from callboard.server.limits import DEFAULTS, Limits, read_rate
from callboard.server.places import Load
from callboard.server.state import Hello
from callboard.server.workers import Workers

__all__ = ["Caller", "Job", "Mount", "Session"]


class Caller(msgspec.Struct, frozen=True):
    """Who asks, as a mount's options factory sees it.

    Attributes:
        headers: HTTP headers of the request, names in lower case; None without HTTP.
        principal: Who is asking, as established by the transport; None when nobody is.
        scope_state: ASGI `scope["state"]` of the request; None elsewhere.
    """

    headers: Mapping[str, str] | None = None
    principal: str | None = None
    scope_state: Any = None

    def __repr__(self) -> str:
        """Without its headers, which may have a credential (AR-10)."""
        return f"<Caller {self.principal!r:.80}>"


class Job(Protocol):
    """What a request sees of the task that it may become."""

    @property
    def begun(self) -> bool:
        """Whether it has been answered with a task."""
        ...

    @property
    def over(self) -> bool:
        """Whether nobody wants what it comes to any more."""
        ...

    def say(self, message: str) -> None:
        """Say how the work is getting on; on the event loop only."""
        ...


class Session(Protocol):
    """What a request sees of the session that it belongs to. Only 2025 clients have one.

    Attributes:
        id: Its id.
        options: Options that were bound when it began.
        hello: How its client introduced itself.
    """

    id: str
    options: Any

    @property
    def hello(self) -> Hello:
        """How its client introduced itself."""
        ...

    @property
    def log_level(self) -> str | None:
        """The least severe level that its client wants to see now."""
        ...

    @property
    def kept_state(self) -> Any:
        """Its state, encoded, as the last call left it; None for a server without state."""
        ...

    def disconnect(self, exchange: Exchange, retry: float) -> None:
        """Close the connection that one call is answered on, and go on with the call; on the event loop only.

        Args:
            exchange: The call's way out.
            retry: Seconds after which the client should come back for the rest.
        """
        ...

    def report(self, task: Task) -> None:
        """Tell its client how a task of its stands; on the event loop only."""
        ...

    async def ask(
        self,
        method: str,
        params: Any,
        *,
        exchange: Exchange | None = None,
        timeout: float = 60.0,  # noqa: ASYNC109 - the client's time to answer; the session's machine keeps it
    ) -> Any:
        """Send the client a request and wait for its result.

        Args:
            method: The method.
            params: Its parameters.
            exchange: The call on whose stream it travels; None for the session's own streams.
            timeout: Seconds to wait.
        """
        ...


class Mount:
    """What all requests through one transport share.

    Attributes:
        server: The server that is mounted.
        workers: Threads for `def` functions, and the loop.
        values: What the server's lifespan yielded: the first content of every `ctx.locals`.
        versions: Protocol versions that are served, the preferred one first.
        options: Bound options of the mount.
        options_factory: Takes a `Caller`, gives the options of its session, or of its request where there are no sessions; None where
            `options` are everybody's.
        instructions: Advice for the model in place of the server's; None for the server's own.
        logs: Whether log messages can be delivered; likewise.
        challenge: Takes the scopes that an operation needs, gives the `WWW-Authenticate` of the answer to who lacks one; None without auth=.
        closing: What is to be ended before the mount is, by whose it is.
        draining: Whether the mount is about to end, so that no listen stream may begin.
        limits: Bounds of all that goes on in it.
        load: What goes on in it, counted.
        log_rate: Messages to the client that one call may say, and in how many seconds; None for no limit.
        listens: Whether `subscriptions/listen` can work: what can't be delivered is not advertised (A19).
    """

    __slots__ = (
        "challenge",
        "closing",
        "draining",
        "instructions",
        "limits",
        "listens",
        "load",
        "log_rate",
        "logs",
        "options",
        "options_factory",
        "server",
        "values",
        "versions",
        "workers",
    )

    def __init__(
        self,
        server: Any,
        workers: Workers,
        *,
        values: Mapping[str, Any],
        versions: tuple[str, ...],
        options: Any = None,
        options_factory: Callable[[Caller], Any] | None = None,
        instructions: str | None = None,
        limits: Limits = DEFAULTS,
        load: Load | None = None,
        listens: bool = True,
        logs: bool = True,
        challenge: Callable[[Collection[str]], bytes] | None = None,
    ) -> None:
        self.challenge = challenge
        self.server = server
        self.workers = workers
        self.values = values
        self.versions = versions
        self.options = options
        self.options_factory = options_factory
        self.instructions = instructions
        self.closing: dict[object, Callable[[], Awaitable[None]]] = {}
        self.draining = False
        self.limits = limits
        self.load = Load(limits) if load is None else load
        self.log_rate = None if limits.log_rate is None else read_rate(limits.log_rate, "log_rate")
        self.listens = listens and limits.max_listens > 0
        self.logs = logs
