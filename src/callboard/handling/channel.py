"""What a handler has of one request: its Context, and a mailbox for the time in which the request streams.

Rules:
    1. A message is read in the order in which it came, also one that was sent before `Stream` was returned.
    2. `send` and what comes from topics is refused when `MAX_MAILBOX` messages wait. The end of a job never is: there are no more of
       these than the handler itself began.
    3. A channel is closed when its request is over, whoever ended it. From then on everything is refused; nothing is ever raised.
    4. Jobs and subscriptions end with the request: `end` cancels them, however the request came to its end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from typing_extensions import deprecated

from callboard.core.era import Request
from callboard.core.exchange import Exchange
from callboard.server.context import Context
from callboard.server.mount import Mount, Session
from callboard.wire.jsonrpc import encode, encode_notification

__all__ = ["CLOSED", "MAX_MAILBOX", "Channel", "Crashed", "Finished", "Notification", "Published", "Stop", "Stream", "name_topic"]

_log = logging.getLogger("callboard")
MAX_MAILBOX = 1000
"""Messages that may wait for a handler; past that `send` is refused."""
# Seconds that jobs get to end when their request does, before nobody waits for them any more.
SETTLE = 5.0


class Stream(msgspec.Struct):
    """Instruction of a handler: go on, and give me what comes into the mailbox. From the first one on the answer is a stream.

    Attributes:
        state: What `handle_message` is given next; what it had when left out.
    """

    state: Any = UNSET


class Stop(msgspec.Struct):
    """Instruction of a handler: end this without a result. The client gets an error with a fixed text and nothing of the reason.

    Attributes:
        reason: For `terminate`, for middleware (`ctx.stop_reason`), and for the log.
    """

    reason: str = "stopped"


class Finished(msgspec.Struct, frozen=True):
    """Message: a job has ended.

    Attributes:
        tag: As given to `channel.spawn`.
        value: What the job returned.
    """

    tag: Any
    value: Any


class Crashed(msgspec.Struct, frozen=True):
    """Message: a job has failed.

    Attributes:
        tag: As given to `channel.spawn`.
        error: What it raised; a `CancelledError` when it was cancelled.
    """

    tag: Any
    error: BaseException


class Published(msgspec.Struct, frozen=True):
    """Message: something was published to a topic that the channel hears.

    Attributes:
        topic: The topic.
        message: The value, as JSON has it.
    """

    topic: str
    message: Any


class Notification(msgspec.Struct, frozen=True):
    """What a client tells, and wants no answer to.

    Attributes:
        method: Its method, for example `notifications/roots/list_changed`.
        params: Its parameters; empty when it has none.
    """

    method: str
    params: dict[str, Any]


class _Closed:
    """The mailbox will hold nothing any more."""


CLOSED = _Closed()


class _Refused:
    """Awaitable like what `progress` and `log` give, but false."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield

    def __bool__(self) -> bool:
        return False


_REFUSED = _Refused()


async def _run_job(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except SystemExit as error:  # which would end the loop, with all other requests
        raise RuntimeError("the job raised SystemExit") from error


def name_topic(topic: str) -> str:
    """The Bus topic that messages for channels travel on."""
    return f"callboard.topic.{topic}"


class Channel(Context):
    """One request, as a handler sees it: everything that a Context has, and the ways in and out of a request that streams.

    `send`, `spawn`, `subscribe`, `notify` and the like can be called from any thread. They say whether it was taken: once the channel is
    closed nothing is.
    """

    __slots__ = ("_box", "_jobs", "_lock", "_lossy", "_reader", "_shut", "_topics", "_watching", "wraps")

    def __init__(
        self,
        mount: Mount,
        request: Request,
        exchange: Exchange,
        principal: str | None = None,
        scope_state: Any = None,
        session: Session | None = None,
    ) -> None:
        Context.__init__(self, mount, request, exchange, principal, scope_state, session)
        self.wraps = False
        self._box: deque[Any] = deque()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._topics: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._reader: asyncio.Future[None] | None = None
        self._shut = False
        self._watching = False
        self._lossy = False

    @property
    def state(self) -> Any:
        """The state as the callback that runs was given it."""
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value

    @property
    def has_state(self) -> bool:
        """Whether the request has been given a state; without a session that takes an `init`."""
        return self._state is not UNSET

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._shut or not self.exchange.open

    @property
    def shut(self) -> bool:
        """Whether the handler itself closed it, or is through."""
        return self._shut

    @property
    def progress_token(self) -> int | str | None:
        """What the client wants progress under; None when it wants none."""
        return self.request.envelope.progress_token

    @property
    def log_level(self) -> str | None:
        """The least severe log messages that the client wants; None for none."""
        return self._log_level

    # To the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> Any:
        """Report progress; see `Context.progress`. What it gives is false when the channel is closed."""
        return _REFUSED if self.closed else Context.progress(self, progress, total, message)

    @deprecated("Logging is deprecated by SEP-2577; removed at the earliest by the first revision of 2027-07-28 or later.", category=None)
    def log(self, level: str, data: Any, logger: str | None = None) -> Any:
        """Send a log message; see `Context.log`. What it gives is false when the channel is closed."""
        return _REFUSED if self.closed else Context.log(self, level, data, logger)

    def notify(self, method: str, params: Any = None) -> bool:
        """Send a notification on this request's stream.

        Args:
            method: Its whole method.
            params: Its parameters; None for none.

        Returns:
            Whether it was taken: not when the channel is closed, or the client takes no stream.

        Raises:
            TypeError: `method` is no text, or `params` are no JSON object.
        """
        if not isinstance(method, str) or not method:
            raise TypeError(f"channel.notify: method is the name of a notification, not {method!r}.")
        if self.closed or not self.exchange.streams:
            return False
        try:
            encoded = None if params is None else msgspec.Raw(encode(params))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"channel.notify: params of {method} have no JSON form ({type(error).__name__}).") from error
        if encoded is not None and not bytes(encoded).startswith(b"{"):
            raise TypeError(f"channel.notify: params of {method} are an object, not {type(params).__name__}.")
        self._on_loop(self.exchange.emit, encode_notification(method, encoded))
        return True

    def start_stream(self) -> bool:
        """Begin the stream before there is anything to say, so that keep-alives flow while something slow is done.

        Returns:
            Whether the answer is a stream now.
        """
        if self.closed or not self.exchange.streams:
            return False
        self._on_loop(self.exchange.open_stream)
        return True

    def close(self) -> None:
        """End the request without a result of the handler's: `handle_close` runs, then the client gets what `Stop` gives it."""
        self.shut_down()
        self._on_loop(self._rouse)

    # Into the mailbox

    def send(self, message: Any) -> bool:
        """Put a message into the mailbox; `handle_message` gets it when those before it are through.

        Returns:
            Whether it was taken: not when the channel is closed or `MAX_MAILBOX` messages wait.
        """
        return self._post(message, bound=MAX_MAILBOX)

    def spawn(self, work: Coroutine[Any, Any, Any], tag: Any = None) -> bool:
        """Run a coroutine beside the handler. Its end comes as a message, `Finished` or `Crashed`; it never outlives the request.

        Args:
            work: The coroutine.
            tag: What its message is known by.

        Returns:
            Whether it was begun.

        Raises:
            TypeError: `work` is none.
        """
        if not asyncio.iscoroutine(work):
            raise TypeError(f"channel.spawn takes a coroutine, as calling an async function gives it, not {work!r}.")
        if self.closed:
            work.close()
            return False
        self._on_loop(self._begin_job, work, tag)
        return True

    def subscribe(self, topic: str) -> bool:
        """Hear a topic (`handler.server.publish`): what is said there comes as `Published`, until `unsubscribe` or the request's end.

        Returns:
            Whether the channel hears it now.

        Raises:
            TypeError: `topic` is no str.
        """
        if not isinstance(topic, str):
            raise TypeError(f"channel.subscribe: topic is a str, not {type(topic).__name__}.")
        with self._lock:
            if self.closed:
                return False
            if topic not in self._topics:
                self._topics[topic] = self.mount.server.bus.subscribe(name_topic(topic), partial(self._hear, topic))
        return True

    def unsubscribe(self, topic: str) -> bool:
        """Hear a topic no more; works on a closed channel too. Whether it was heard."""
        with self._lock:
            cancel = self._topics.pop(topic, None)
        if cancel is not None:
            cancel()
        return cancel is not None

    # For the loop that runs the handler

    def begin(self) -> None:
        """The handler runs, for the first time or, with what its client answered, once more."""
        self.task = asyncio.current_task()
        self.wraps = self._shut = False
        self._box.clear()

    async def receive(self) -> Any:
        """Wait for the next message; `CLOSED` when the channel is: by the handler, or because its caller has been answered (TIMED_OUT)."""
        await asyncio.sleep(0)  # a handler that writes to itself would keep everybody else waiting, and never hear of its end
        while not self.closed:
            if self._box:
                return self._box.popleft()
            self._reader = self.mount.workers.loop.create_future()
            if not self._watching:
                self._watching = True
                self.exchange.when_drained(self._look)
            try:
                await self._reader
            finally:
                self._reader = None
        return CLOSED

    async def end(self) -> None:
        """The request is over: nothing is taken any more, jobs are cancelled and waited for, topics left."""
        self.shut_down()
        jobs = set(self._jobs)
        for job in jobs:
            job.cancel()
        for topic in list(self._topics):
            self.unsubscribe(topic)
        if jobs:
            _, late = await asyncio.wait(jobs, timeout=SETTLE)
            if late:
                _log.error("%d jobs of a %s go on although they were cancelled.", len(late), self.method)
        self.task = None  # else the two would hold each other until the garbage collector comes

    def shut_down(self) -> None:
        """Refuse everything from now on."""
        with self._lock:
            self._shut = True

    def _post(self, message: Any, *, bound: int | None = None) -> bool:
        with self._lock:
            if self.closed or (bound is not None and len(self._box) >= bound):
                return False
            self._box.append(message)
        self._on_loop(self._rouse)
        return True

    def _look(self) -> None:
        """Something has been written; it may have been the answer."""
        self._watching = False
        self._rouse()

    def _rouse(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _begin_job(self, work: Coroutine[Any, Any, Any], tag: Any) -> None:
        if self._shut:
            work.close()
            return
        job = self.mount.workers.loop.create_task(_run_job(work))
        self._jobs.add(job)
        job.add_done_callback(partial(self._end_job, work, tag))

    def _end_job(self, work: Coroutine[Any, Any, Any], tag: Any, job: asyncio.Task[Any]) -> None:
        self._jobs.discard(job)
        work.close()  # where it was cancelled before it began
        error = asyncio.CancelledError() if job.cancelled() else job.exception()
        message = Finished(tag, job.result()) if error is None else Crashed(tag, error)
        if not self._post(message) and not job.cancelled() and error is not None:
            _log.error("A job failed when its %s was over.", self.method, exc_info=error)

    def _hear(self, topic: str, message: bytes) -> None:
        taken = self._post(Published(topic, msgspec.json.decode(message)), bound=MAX_MAILBOX)
        if not (taken or self.closed or self._lossy):
            self._lossy = True
            _log.warning("Messages to %.80r are dropped: %d wait for the handler of a %s already.", topic, MAX_MAILBOX, self.method)
