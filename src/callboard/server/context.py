"""The one Context: what a function can know of, and send to, the request that it serves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from asyncio import run_coroutine_threadsafe
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from copy import copy
from functools import partial
from math import isfinite
from types import GenericAlias
from typing import Any, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET
from typing_extensions import deprecated

from callboard.auth.principal import Principal
from callboard.core.era import Request
from callboard.core.exchange import Exchange
from callboard.core.inputs import Memory
from callboard.errors import Fail, Reason
from callboard.server.asking import Asks, Input, read_elicited, read_roots, read_sampled
from callboard.server.drain import READY, Drain, Ready
from callboard.server.form import compile_form
from callboard.server.mount import Job, Mount, Session
from callboard.server.rates import Pace
from callboard.server.sampling import Messages, Sampled, SampleFields, build_sampling
from callboard.server.state import Hello, show_type
from callboard.types import Answer
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RequestId, encode_notification
from callboard.wire.versions import LOG_LEVELS

__all__ = ["Context"]

T = TypeVar("T")
_DAY = 24 * 3600.0
_NO_SCOPES: frozenset[str] = frozenset()
_SEVERITY = {level: rank for rank, level in enumerate(LOG_LEVELS)}


class Context:
    """One request, as the function that serves it sees it. Declare a parameter of this type to get it; it stays out of the schema.

    Attributes:
        mount: What all requests through this transport share.
        request: The request in the words of the current protocol.
        exchange: The request's way out.
        principal: Who is asking, as established by the transport; None when nobody is.
        scope_state: ASGI `scope["state"]` of this HTTP request; None elsewhere.
        options: Bound options: the session's, else the mount's; None without.
        session: The session of a 2025 client; None on the current protocol, which has none.
        asks: What the call asks its client; None as long as it asks nothing.
        limit: The time limit of the function, which stands still while the client is asked; None without.
        input: What the client sends with a retry, for functions that return `NeedInput` by hand; None in the first round.
        task: The task that runs the function, as soon as that is known; what a suspension ends.
        job: The task, in the protocol's sense, that the call may become; None where it can't.
        provided: What providers gave for this request, by provider; None as long as none was asked.
        within: The mounted server that the request has come to; None at the server that the transport serves.
        crashed: Whether the call ended in a way that was not its own doing, so that what it did to the state is dropped.
        stop_reason: Why its session ends with it, as `Reply(stop_reason=)` or a handler's `Stop` says; None when it goes on.
    """

    __slots__ = (
        "_locals",
        "_meta",
        "_paces",
        "_reached",
        "_state",
        "asks",
        "crashed",
        "exchange",
        "input",
        "job",
        "limit",
        "mount",
        "options",
        "principal",
        "provided",
        "request",
        "scope_state",
        "session",
        "stop_reason",
        "task",
        "within",
    )

    # `Context[...]` may stand in annotations of code that comes from generic contexts (A50).
    @classmethod
    def __class_getitem__(cls, item: Any) -> GenericAlias:
        return GenericAlias(cls, item)

    def __init__(
        self,
        mount: Mount,
        request: Request,
        exchange: Exchange,
        principal: str | None = None,
        scope_state: Any = None,
        session: Session | None = None,
    ) -> None:
        self.mount = mount
        self.request = request
        self.exchange = exchange
        self.principal = principal
        self.scope_state = scope_state
        self.session = session
        self.options = mount.options if session is None else session.options
        self.crashed = False
        self.stop_reason: str | None = None
        self.input: Input | None = None
        self.task: asyncio.Task[Any] | None = None
        self.job: Job | None = None
        self.asks: Asks | None = None
        self.limit: asyncio.Timeout | None = None
        self.provided: dict[Any, Any] | None = None
        self.within: Any = None
        self._state: Any = UNSET
        self._locals: dict[str, Any] | None = None
        self._meta: dict[str, Any] | None = None
        self._reached: float | None = None
        self._paces: tuple[Pace, Pace] | None = None

    @property
    def server(self) -> Any:
        """The server whose component serves this request: the mounted one, where it is a mounted one's."""
        return self.within or self.mount.server

    @property
    def scopes(self) -> frozenset[str]:
        """What the caller was granted; empty where the transport does not say."""
        principal = self.principal
        return principal.scopes if isinstance(principal, Principal) else _NO_SCOPES

    def lacks(self, scopes: Collection[str]) -> Fail | None:
        """Why the caller may not do what needs these scopes, all of them; None where they were granted."""
        if self.scopes.issuperset(scopes):
            return None
        needed = sorted(scopes)
        return Fail(Reason.SCOPE, f"This needs the scope {' '.join(needed)}, which was not granted.", {"requiredScopes": needed})

    def require(self, *scopes: str) -> None:
        """Go on only where the caller was granted these scopes: for what depends on the arguments. What always holds is `scopes=`.

        Args:
            *scopes: All that the operation needs: a client that lacks one asks its user for all of them at once (AR-06).

        Raises:
            Fail: One was not granted; over HTTP the answer is 403 with a challenge that says what to get, unless progress or a log message has
                been sent before: then its error is in band.
        """
        if (fail := self.lacks(scopes)) is not None:
            raise fail

    def enter(self, server: Any, values: Mapping[str, Any]) -> None:
        """Go on as a request of a mounted server; `locals` keeps what is in it.

        Args:
            server: The server.
            values: What its lifespan yielded.
        """
        self._locals = {**self.locals, **values}
        self.within = server

    def inside(self, server: Any, values: Mapping[str, Any]) -> Context:
        """A copy for what is asked of a mounted server on the way to others; see `enter`."""
        if self.provided is None:
            self.provided = {}  # which the copies share
        inner = copy(self)
        inner.enter(server, values)
        return inner

    @property
    def request_id(self) -> RequestId:
        """JSON-RPC id of the request."""
        return self.request.id

    @property
    def method(self) -> str:
        """Protocol method, for example `tools/call`."""
        return self.request.method

    @property
    def protocol_version(self) -> str:
        """Protocol version of this request, for example `2026-07-28`."""
        return self.request.envelope.version

    @property
    def client_info(self) -> Any:
        """What the client says its name and version are (`types.Implementation`); None when it says nothing. Not to be trusted (MT-06)."""
        return self.request.envelope.client_info

    @property
    def client_capabilities(self) -> dict[str, Any]:
        """Capabilities that the client declared on this request (MT-07)."""
        return self.request.envelope.capabilities

    @property
    def session_id(self) -> str | None:
        """Id of the session; always None on the current protocol, which has none."""
        return None if self.session is None else self.session.id

    @property
    def state(self) -> Any:
        """This call's draft of the session's state; without a session one that begins with this request.

        Raises:
            RuntimeError: The server has no state, or the call did not declare that it takes it.
        """
        if self._state is UNSET:
            self._state = self._begin_state()
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        if self._state is UNSET:
            self._begin_state()
        if self.session is None:
            self.mount.server.state.seal(value)  # as a session would
        self._state = value

    def give_state(self, draft: Any) -> None:
        """Give this call its draft of the session's state; the session's to do."""
        self._state = draft

    def begin_again(self) -> None:
        """The function runs from its top, in the same session: what its last run did to the state never was."""
        if self._state is not UNSET and self.session is not None:
            self._state = self.mount.server.state.draft(self.session.kept_state)

    def _begin_state(self) -> Any:
        kind = self.mount.server.state
        if kind is None:
            raise RuntimeError("ctx.state: this server has none; give it one: Server(..., state=Cart).")
        if self.session is not None or not self.mount.server.turn(self.request).has_state:
            raise RuntimeError(f"ctx.state: calls that use it run one at a time; declare it: `def f(state: {show_type(kind.type)}, ...)`.")
        hello = Hello(self.client_info, self.client_capabilities, self.protocol_version, {}, None, self.options)
        return kind.draft(kind.begin(hello))

    @property
    def headers(self) -> dict[str, str] | None:
        """HTTP headers of this very request, names in lower case; None without HTTP."""
        headers = self.request.headers
        return None if headers is None else {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}

    @property
    def meta(self) -> dict[str, Any]:
        """`params._meta` as the client sent it."""
        if self._meta is None:
            raw = self.request.envelope.meta
            self._meta = {} if raw is None else msgspec.json.decode(raw, type=dict[str, Any])
        return self._meta

    @property
    def locals(self) -> dict[str, Any]:
        """Values of this request: what the lifespan yielded, and what middleware puts in."""
        if self._locals is None:
            self._locals = dict(self.mount.values)
        return self._locals

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more; for `def` functions, which can't be interrupted."""
        job = self.job
        return job.over if job is not None and job.begun else not self.exchange.open

    # Asking the client

    def begin_asking(self, memory: Memory | None = None, responses: Mapping[str, dict[str, Any]] | None = None) -> Asks:
        """What the call asks, from now on at the latest.

        Args:
            memory: Of earlier rounds.
            responses: What the client answers now.
        """
        if self.asks is None:
            server = self.mount.server
            self.asks = Asks(server, self.request, self.exchange, self.session, self.principal, memory, responses)
        if self.task is not None:
            self.asks.task = self.task
        self.asks.limit = self.limit
        return self.asks

    @overload
    async def elicit(self, message: str, form: type[T], *, key: str | None = None) -> Answer[T]: ...
    @overload
    async def elicit(self, message: str, form: None = None, *, key: str | None = None) -> Answer[None]: ...
    @overload
    async def elicit(self, message: str, form: Any, *, key: str | None = None) -> Answer[Any]: ...
    async def elicit(self, message: str, form: Any = None, *, key: str | None = None) -> Answer[Any]:
        """Ask the user, in the middle of a function, whatever the client.

        On the current protocol the function ends here, and runs again from its top once there is an answer: what must not happen twice
        belongs behind the ask, or into `ctx.once`.

        Args:
            message: What the user reads.
            form: What to fill in: a dataclass, Struct, TypedDict, attrs class or pydantic model of plain fields, one plain type, or a JSON
                Schema; None for a yes or no. Never for secrets (EL-10): see `elicit_url`.
            key: Names the ask. Needed only where equal ones wait together, or where a question may be reworded while it is open.

        Returns:
            The answer; its `value` is of the type that was asked for.

        Raises:
            Fail: The client can't do that (MISSING_CAPABILITY), or its answer does not fit (INVALID_PARAMS).
            AskError: A 2025 client answered with an error, or not within the server's `ask_timeout`.
            RegistrationError: No form can be made of `form`.
        """
        _check_message("ctx.elicit", message)
        compiled = compile_form(form)
        params = {"mode": "form", "message": message, "requestedSchema": compiled.schema}
        return await self.begin_asking().ask("elicitation/create", params, key, partial(read_elicited, form=compiled))

    async def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Answer[None]:
        """Ask the user to open an address, as for secrets, payment or consent elsewhere (EL-08..EL-12); see `elicit`.

        An `accept` means that it was opened, not that anything was done there.

        Args:
            message: What the user reads.
            url: An absolute http or https address, with nothing in it that gives access to anything.
            key: See `elicit`.

        Raises:
            ValueError: `url` is no such address.
            Fail: See `elicit`.
            AskError: See `elicit`.
        """
        _check_message("ctx.elicit_url", message)
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise ValueError(f"ctx.elicit_url: url is an absolute https address, not {url!r}.")
        params = {"mode": "url", "message": message, "url": url}
        return await self.begin_asking().ask("elicitation/create", params, key, partial(read_elicited, form=None))

    # DP-07: marked for type checkers and editors alone. The same call serves clients of 2025, for whom nothing is deprecated, so that a
    # warning at run time would come at every call, and could not be heeded before the last of them is gone.
    @deprecated("Sampling is deprecated by SEP-2577; removed at the earliest by the first revision of 2027-07-28 or later.", category=None)
    async def sample(
        self, messages: Messages, *, max_tokens: int = 1000, key: str | None = None, **options: Unpack[SampleFields]
    ) -> Sampled:
        """Ask the client's model; see `elicit` for what that means on which client.

        Deprecated since protocol 2026-07-28 (SEP-2577): it works until a revision removes it, at the earliest the first one on or after
        2027-07-28. New servers call a model of their own.

        Args:
            messages: A text, a `types.SamplingMessage`, or a list of them.
            max_tokens: Most tokens of the answer.
            key: See `elicit`.
            **options: `system_prompt`, `temperature`, `stop_sequences`, `model_preferences`, `tools`, `tool_choice`, `include_context`,
                `metadata`, as the protocol has them.

        Raises:
            TypeError: An option is unknown or of the wrong type.
            ValueError: The conversation breaks a rule of the protocol (SM-05).
            Fail: See `elicit`.
            AskError: See `elicit`.
        """
        params = build_sampling(messages, max_tokens, options)
        return await self.begin_asking().ask("sampling/createMessage", params, key, read_sampled)

    @deprecated("Roots are deprecated by SEP-2577; removed at the earliest by the first revision of 2027-07-28 or later.", category=None)
    async def roots(self, *, key: str | None = None) -> list[v.Root]:
        """Ask the client for the folders that it works in (RT-01); see `elicit`.

        Deprecated since protocol 2026-07-28 (SEP-2577), with the same date as `sample`. New servers take paths as arguments, or from their
        own configuration.

        Args:
            key: See `elicit`.

        Raises:
            Fail: See `elicit`.
            AskError: See `elicit`.
        """
        return await self.begin_asking().ask("roots/list", {}, key, read_roots)

    @overload
    async def once(self, key: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
    @overload
    async def once(self, key: str, function: Callable[[], T]) -> T: ...
    async def once(self, key: str, function: Callable[[], Any]) -> Any:
        """Call a function in the first round that comes here, and give its value in all later ones.

        Not exactly once: where an answer gets lost, or a client sends an old state again, the function is called again. Give it
        `ctx.chain_id` as idempotency key where that matters.

        Args:
            key: What the value is known by, within this call.
            function: Takes nothing; async, or run on a thread. Its value must have a JSON form, and is read back as its return annotation
                says, in the first round too, so that every round sees the same.

        Raises:
            TypeError: The value has no JSON form.
        """
        return await self.begin_asking().once(key, function)

    @property
    def chain_id(self) -> str:
        """Identifies the call in all its rounds: an idempotency key."""
        return self.begin_asking().log.memory.chain

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> Drain | Ready:
        """Report progress, at once and from any thread. Without effect when the client asked for none; of a task the message is told.

        Args:
            progress: How far the work is. Values that don't increase are left out (PR-03).
            total: What `progress` counts up to, when known.
            message: What is going on, for people.

        Returns:
            Something to await where the function produces faster than a client reads; awaiting is optional.

        Raises:
            TypeError: `message` is no text that can be sent.
        """
        if message is not None and not _is_sendable(message):
            raise TypeError(f"ctx.progress: message is a text, without half a surrogate pair, not {message!a}.")
        if self.job is not None and message is not None:
            self._on_loop(self.job.say, message)
        if self.request.envelope.progress_token is None or not self.exchange.streams:
            return READY
        return self._on_loop(self._report, progress, total, message)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if not isfinite(progress) or (self._reached is not None and progress <= self._reached):
            return
        self._reached = progress
        params: dict[str, Any] = {"progressToken": self.request.envelope.progress_token, "progress": progress}
        if total is not None and isfinite(total):
            params["total"] = total
        if message is not None:
            params["message"] = message
        note = encode_notification("notifications/progress", params)
        self.exchange.held = note if (late := self._is_too_fast(0)) else None  # PR-06; the last one comes in any case
        if not late:
            self.exchange.emit(note, key="progress")

    @deprecated("Logging is deprecated by SEP-2577; removed at the earliest by the first revision of 2027-07-28 or later.", category=None)
    def log(self, level: str, data: Any, logger: str | None = None) -> Drain | Ready:
        """Send a log message to the client, at once and from any thread; only when the request asked for logs of this level (LG-01).

        Deprecated since protocol 2026-07-28 (SEP-2577), with the same date as `sample`. What operators are to read goes to `logging`; what
        the user is to see while a call runs goes into `progress`.

        Args:
            level: One of `debug`, `info`, `notice`, `warning`, `error`, `critical`, `alert`, `emergency`.
            data: Any JSON value.
            logger: Name of the part that speaks.

        Raises:
            ValueError: `level` is none of these.
            TypeError: `data` has no JSON form.
        """
        if level not in _SEVERITY:
            raise ValueError(f"ctx.log: unknown level {level!r}; use one of {', '.join(LOG_LEVELS)}.")
        wanted = self._log_level
        if wanted is None or _SEVERITY[level] < _SEVERITY[wanted]:
            return READY
        params = {"level": level, "data": data} if logger is None else {"level": level, "logger": logger, "data": data}
        try:
            note = encode_notification("notifications/message", params)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"ctx.log: its data has no JSON form ({type(error).__name__}); pass a str, or what JSON can say.") from error
        return self._on_loop(self._log, note)

    @property
    def _log_level(self) -> str | None:
        """The least severe level that the client wants: a session's may change while its calls run (LG-05)."""
        return self.request.envelope.log_level if self.session is None else self.session.log_level

    def report_dropped(self) -> None:
        """Tell the client how many log messages it was too slow for, and start counting anew; on the event loop only."""
        dropped, self.exchange.dropped = self.exchange.dropped, 0
        wanted = self._log_level or "warning"
        level = wanted if _SEVERITY[wanted] > _SEVERITY["warning"] else "warning"
        params = {
            "level": level,
            "logger": "callboard",
            "data": f"{dropped} log messages were dropped: the client reads too slowly, or there were too many (log_rate).",
        }
        self.exchange.emit(encode_notification("notifications/message", params), key="dropped")

    def _is_too_fast(self, kind: int) -> bool:
        """Whether the call says more than it may, of progress (0) or logs (1)."""
        rate = self.mount.log_rate
        if rate is None:
            return False
        if self._paces is None:
            self._paces = Pace(*rate), Pace(*rate)
        return not self._paces[kind].admit(self.mount.workers.loop.time())

    def _log(self, note: bytes) -> None:
        if self._is_too_fast(1):  # LG-06, SA26
            self.exchange.dropped += 1
            return
        if self.exchange.dropped and not self.exchange.congested:
            self.report_dropped()
        self.exchange.emit(note, droppable=True)

    def disconnect(self, retry: float = 0.5) -> Drain | Ready:
        """Close this call's connection and go on; a 2025-11-25 client comes back for the rest. For work that outlasts proxies' patience.

        At once and from any thread; without effect where there is no session.

        Args:
            retry: Seconds after which the client should come back.

        Returns:
            Something that may be awaited, as that of `progress` and `log`.

        Raises:
            ValueError: `retry` is no number of seconds from 0 to a day.
        """
        if not isinstance(retry, int | float) or not 0 <= retry <= _DAY:
            raise ValueError(f"ctx.disconnect: retry is a number of seconds, from 0 to a day, not {retry!r}.")
        if self.session is None:
            return READY
        return self._on_loop(self.session.disconnect, self.exchange, retry)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something on the event loop and wait for it; for `def` functions.

        Raises:
            RuntimeError: Called on the event loop itself, where `await` belongs.
        """
        workers = self.mount.workers
        if threading.get_ident() == workers.thread:
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise RuntimeError("ctx.wait is for `def` functions, which run on threads; in an `async def` function use `await`.")
        waiting = _await(awaitable)
        try:
            future = run_coroutine_threadsafe(waiting, workers.loop)
        except RuntimeError:  # the loop has closed
            waiting.close()
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            # As on the loop: `except Exception` must not take the end of the call for a failure.
            raise asyncio.CancelledError from None
        finally:
            del future  # it may hold an error, that its frames, and one of those is this

    async def on_thread(self, function: Callable[..., T], kwargs: dict[str, Any]) -> T:
        """Call a `def` function.

        A thread can't be cancelled: where the call is suspended, what it waits for is, so that it ends before what it was given does.

        Args:
            function: The function.
            kwargs: Its arguments.
        """
        outer, self.task = self.task, None
        if self.asks is not None:
            self.asks.task = None
        try:
            return await self.mount.workers.run(function, kwargs, principal=self.principal)
        finally:
            self.task, outer = outer, None

    def _on_loop(self, emit: Callable[..., Any], *args: Any) -> Drain | Ready:
        """Emit from whatever thread: what one function says keeps its order."""
        workers = self.mount.workers
        if threading.get_ident() == workers.thread:
            emit(*args)
        else:
            try:
                workers.loop.call_soon_threadsafe(emit, *args)
            except RuntimeError:
                return READY  # the loop has closed
        return Drain(self.exchange, workers.loop) if self.exchange.congested else READY


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, str):
        raise TypeError(f"{where}: message is a text for the user, not {type(message).__name__}.")


def _is_sendable(text: Any) -> bool:
    try:
        return isinstance(text, str) and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:
        return False


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
