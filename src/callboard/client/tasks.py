"""A call that the server made a task of: look at it, answer what it asks, wait for its end, or end it.

Two protocols, one row of verbs each: the extension `io.modelcontextprotocol/tasks` of 2026-07-28 (TX), and the tasks of 2025-11-25 (TK).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from callboard.client.answer import read, refusal
from callboard.client.changes import ACKNOWLEDGED
from callboard.client.connection import OnNote
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, InvalidAnswer, Origin, RequestTimeout
from callboard.client.inputs import Inputs
from callboard.client.result import ToolResult
from callboard.wire.jsonrpc import RawNotification
from callboard.wire.methods import ListenFilter

__all__ = ["EXTENSION", "Means", "Send", "TaskStatus", "ToolTask"]

T = TypeVar("T")
EXTENSION = "io.modelcontextprotocol/tasks"
PAUSE = 1.0
"""Seconds between two looks at a task whose server names no interval."""
LEAST_PAUSE, MOST_PAUSE = 0.01, 60.0
"""Bounds of the interval that a server names, in seconds."""
TOLD_PAUSE = 30.0
"""Seconds between two looks at a task whose server tells of its changes."""
FAREWELL = 2.0
"""Seconds to tell a server that nobody waits any more."""
MISSES = 5
"""How many looks in a row may fail for reasons that pass."""
_PASSING = frozenset({429, 500, 502, 503, 504})
_ENDED = frozenset({"completed", "failed", "cancelled"})

Send: TypeAlias = Callable[[str, dict[str, Any], float | None], Awaitable[msgspec.Raw]]
"""Sends a request, given method, params and its time limit (None for the usual one), and gives its result."""


class Means(NamedTuple):
    """What a task needs of the client.

    Attributes:
        send: Sends requests about it.
        hear: Hears what a stream of changes tells; see `Peer.hear`.
        accept: Reads a result of the tool of that name.
        inputs: Answers what it asks.
        legacy: Whether its protocol is that of 2025-11-25.
    """

    send: Send
    hear: Callable[[Any, OnNote], Awaitable[None]]
    accept: Callable[[str, msgspec.Raw, Origin], Awaitable[ToolResult]]
    inputs: Inputs
    legacy: bool


class TaskStatus(msgspec.Struct, rename="camel"):
    """How a task stands.

    Attributes:
        task_id: Its id.
        status: How it stands; the last three are ends.
        status_message: What the server says about it; None when it says nothing.
        poll_interval_ms: Milliseconds after which to look again; None when the server names none.
        input_requests: What it asks, by key, where it waits for input.
    """

    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: float | None = None
    input_requests: dict[str, Any] | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()

    def __repr__(self) -> str:  # `result` and `error` are still JSON
        return f"TaskStatus({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__struct_fields__[:-2])})"


class _Created(msgspec.Struct):
    """CreateTaskResult of 2025-11-25 (TK-03)."""

    task: msgspec.Raw


class ToolTask:
    """A call of a tool that runs on the server, perhaps for longer than this client.

    Attributes:
        task_id: Its id, good for `Client.task` after a restart; None when the server answered at once.
        name: The tool; empty when the task was found again by its id.
    """

    def __init__(self, means: Means, name: str, task_id: str | None, origin: Origin, ended: msgspec.Raw | None = None) -> None:
        self.name = name
        self.task_id = task_id
        self._means = means
        self._origin = origin
        self._ended = ended
        self._created: TaskStatus | None = None
        self._answered: set[str] = set()
        self._news = asyncio.Event()
        self._is_told = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"<ToolTask {self.task_id} of {self.name or 'a tool'}>"

    @classmethod
    def begin(cls, means: Means, name: str, raw: msgspec.Raw, origin: Origin) -> ToolTask:
        """Make one of what a call was answered with: a task, or already its result (TX-04, TX-05)."""
        if means.legacy:
            raw = read(_Created, raw, origin).task
        created: TaskStatus = _read_status(raw, origin)
        task = cls(means, name, created.task_id, origin)
        task._created = created
        return task

    async def status(self) -> TaskStatus:
        """Look how it stands.

        Raises:
            ServerError: The server does not know it (any more).
            ClientError: As for any request.
        """
        if self.task_id is None:
            return TaskStatus("", "completed")
        return _read_status(await self._means.send("tasks/get", {"taskId": self.task_id}, None), self._origin)

    async def cancel(self) -> None:
        """Ask the server to end it (TX-10, TK-07, CN-09); harmless where it has ended.

        Raises:
            ServerError: The server does not know it (any more).
            ClientError: As for any request.
        """
        if self.task_id is not None and self._ended is None:
            await self._means.send("tasks/cancel", {"taskId": self.task_id}, None)

    async def result(self) -> ToolResult:
        """Wait for its end, answering what it asks by the client's callbacks. Giving up the wait lets it run on; see `cancel`.

        Returns:
            The call's result; asked again, the same.

        Raises:
            ServerError: The call ended in an error.
            InputRequired: It asks for something that no callback answers.
            ClientError: It was cancelled; or as for any request.
        """
        if self._ended is None:
            self._ended = await (self._wait_in_session() if self._means.legacy else self._wait())
        return await self._means.accept(self.name, self._ended, self._origin)

    async def finish(self) -> ToolResult:
        """Wait as `result` does; giving up ends the task, too."""
        try:
            return await self.result()
        except BaseException:
            if not self._is_over:
                with suppress(ClientError):
                    await self._means.send("tasks/cancel", {"taskId": self.task_id}, FAREWELL)
            raise

    async def _wait(self) -> msgspec.Raw:
        """Look again and again until it has ended (TX-13)."""
        listener: asyncio.Task[None] | None = None
        try:
            stands = await self._first_look()
            while stands.status not in _ENDED:
                asked = {key: request for key, request in (stands.input_requests or {}).items() if key not in self._answered}
                if asked:
                    responses = await self._means.inputs.answer(asked, self._origin)
                    update = {"taskId": self.task_id, "inputResponses": responses}
                    await self._patiently(partial(self._means.send, "tasks/update", update, None))
                    self._answered |= asked.keys()  # TX-12: a key is never used for another question
                else:
                    listener = listener or asyncio.create_task(self._listen(), name=f"callboard client listens to task {self.task_id}")
                    await self._pause(stands)
                stands = await self._look()
            return self._conclude(stands)
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.wait([listener])

    async def _wait_in_session(self) -> msgspec.Raw:
        """TK-05, TK-10: what it asks comes as requests while `tasks/result` waits."""
        stands = await self._first_look()
        while stands.status == "working":
            await self._pause(stands)
            stands = await self._look()
        if stands.status == "cancelled":
            return self._conclude(stands)
        self._is_over = stands.status in _ENDED
        return await self._means.send("tasks/result", {"taskId": self.task_id}, inf)

    async def _first_look(self) -> TaskStatus:
        """What the server said when it made the task, unless it has ended or asks: then that is all that was said (TX-05)."""
        return self._created if self._created is not None and self._created.status == "working" else await self._look()

    async def _look(self) -> TaskStatus:
        self._news.clear()
        return await self._patiently(self.status)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask something that may be asked twice; a failure for a reason that passes is no reason to give a task up."""
        missed = 0
        while True:
            try:
                return await ask()
            except ClientError as error:
                passing = isinstance(error, ConnectionFailed | RequestTimeout) or (
                    isinstance(error, HttpError) and error.status in _PASSING
                )
                missed += 1
                if not passing or missed == MISSES:
                    raise
            await asyncio.sleep(PAUSE * missed)

    async def _pause(self, stands: TaskStatus) -> None:
        """Wait until it is time to look again, or the server tells that something has changed."""
        named = stands.poll_interval_ms
        seconds = PAUSE if named is None else min(max(named / 1000, LEAST_PAUSE), MOST_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, TOLD_PAUSE) if self._is_told else seconds):
                await self._news.wait()

    async def _listen(self) -> None:
        """TX-15: servers may tell of changes; those that do not are looked at by the clock."""

        async def take(note: RawNotification) -> None:
            if note.method == ACKNOWLEDGED:
                self._is_told = b'"taskIds"' in bytes(note.params or b"")
            elif note.method == "notifications/tasks":
                self._news.set()

        with suppress(ClientError):
            await self._means.hear(ListenFilter(task_ids=[self.task_id]), take)
        if self._is_told:
            self._is_told = False
            self._news.set()

    def _conclude(self, stands: TaskStatus) -> msgspec.Raw:
        self._is_over = True
        if stands.status == "completed" and stands.result:
            return stands.result
        if stands.status == "failed" and stands.error:
            raise refusal(stands.error, self._origin)
        if stands.status == "cancelled":
            said = f": {stands.status_message}" if stands.status_message else ""
            raise ClientError(f"the server cancelled the task{said}", self._origin)
        raise InvalidAnswer(f"the task is {stands.status} without saying what came of it", self._origin)  # TX-08


class _Lowered(msgspec.Struct, rename="camel"):
    """TK-03: what 2025-11-25 calls otherwise."""

    poll_interval: float | None = None


def _read_status(raw: msgspec.Raw, origin: Origin) -> TaskStatus:
    status: TaskStatus = read(TaskStatus, raw, origin)
    if status.poll_interval_ms is None:
        status.poll_interval_ms = read(_Lowered, raw, origin).poll_interval
    return status
