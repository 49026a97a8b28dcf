"""One request of the client's: put into words, sent, waited for no longer than it may take, and ended by whoever ends it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from math import inf, isfinite
from typing import Any, TypeAlias, TypeVar

import msgspec

from callboard.client.answer import read
from callboard.client.connection import Connection, Incoming, OnNote, Outgoing
from callboard.client.deadline import Deadline, Deadlines
from callboard.client.dialect import Dialect
from callboard.client.errors import InvalidAnswer, InvalidRequest, Origin, RequestCancelled, RequestTimeout
from callboard.client.tracing import TRACING, carry_trace
from callboard.core.headers import HeaderValueError
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import RawNotification, encode_request

__all__ = ["OnLog", "OnProgress", "Patience", "Requests", "subject"]

logger = logging.getLogger("callboard.client")

T = TypeVar("T")
MAX_LASTING = 100
"""Of how many tasks, the latest, progress is heard."""
OnProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Takes progress, total and message; total and message are None when the server gave none. May be async."""
OnLog: TypeAlias = Callable[[v.LoggingMessageNotificationParams], Awaitable[None] | None]
"""Takes a log message of the server's. May be async. Deprecated by SEP-2577, at the earliest removed after 2027-07-28."""


_EMPTY = msgspec.Raw(b"{}")


class Patience(msgspec.Struct):
    """How long a request may still take. One may serve several requests after each other: rounds of a call, a repetition.

    Attributes:
        silence: Seconds without a word of the server's about the request (CN-07, CN-08); None for no limit.
        total: Seconds in all; what has been waited is taken off. None for no limit.
    """

    silence: float | None
    total: float | None


class _Waiting:
    """A request that is waited for.

    Attributes:
        end: When it has taken too long in all, on the event loop's clock.
    """

    __slots__ = ("_held", "_since", "cancelled", "end", "limit", "origin", "progress", "silence")

    def __init__(self, origin: Origin, progress: OnProgress | None, limit: Deadline, silence: float | None, end: float) -> None:
        self.origin = origin
        self.progress = progress
        self.limit = limit
        self.silence = silence
        self.end = end
        self.cancelled = False
        self._held = 0
        self._since = 0.0

    def count_anew(self, now: float) -> None:
        """The server has said a word (CN-08)."""
        if not self._held:
            self.limit.move(self.end if self.silence is None else min(now + self.silence, self.end))

    def left(self, now: float) -> float:
        """Seconds that are left in all."""
        return self.end - (self._since if self._held else now)

    def hold(self, now: float) -> None:
        """No time counts from now on."""
        self._held += 1
        if self._held == 1:
            self._since = now
            self.limit.move(inf)

    def release(self, now: float) -> None:
        """Time counts again."""
        self._held -= 1
        if not self._held:
            self.end += now - self._since
            self.count_anew(now)


class Requests:
    """Sends requests to one server.

    Args:
        target: The server, as errors name it.
        on_log: Gets log messages.
        take_note: Takes notifications that come with a request and are not its own.
    """

    def __init__(self, target: str, on_log: OnLog | None, take_note: Callable[[RawNotification], None]) -> None:
        self._target = target
        self._on_log = on_log
        self._take_note = take_note
        self._ids = count(1)
        self._waiting: dict[int | str, _Waiting] = {}
        self._lasting: dict[int | str, OnProgress] = {}
        self._strange = 0
        self._deadlines = Deadlines()

    @property
    def in_flight(self) -> tuple[Origin, ...]:
        """The requests that are waited for."""
        return tuple(waiting.origin for waiting in self._waiting.values())

    def cancel(self, request_id: int | str) -> bool:
        """End a request: the server is told, and whoever waits gets `RequestCancelled`. False when it is not in flight (CN-02)."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.limit.expired:
            return False
        waiting.cancelled = True
        waiting.limit.expire()
        return True

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """While somebody thinks about what the server asks, no time counts for the requests that wait now (CN-08)."""
        time = asyncio.get_running_loop().time
        held = tuple(self._waiting.values())
        for waiting in held:
            waiting.hold(time())
        try:
            yield
        finally:
            for waiting in held:
                waiting.release(time())

    def close(self) -> None:
        """There will be no more."""
        self._deadlines.close()

    def compose(
        self,
        connection: Connection,
        dialect: Dialect,
        method: str,
        params: Mapping[str, Any],
        *,
        progress: bool = False,
        mirrored: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None,
    ) -> Outgoing:
        """Put a request into words (MT-01..MT-03, JR-03, JR-04).

        Args:
            connection: The way it will go.
            dialect: How it is put.
            method: Its method.
            params: Its params, without the envelope.
            progress: Whether progress is wanted.
            mirrored: Gives further headers that mirror the params.

        Raises:
            InvalidRequest: It can't be written.
        """
        request_id = next(self._ids)
        origin = Origin(self._target, method, request_id, subject(params))
        try:
            tracing: Any = sys.modules.get(TRACING)
            if hasattr(tracing, "__all__") and tracing.get_current_span() is not tracing.INVALID_SPAN:  # and not about to be imported
                params = carry_trace(params)
            wrapped = dialect.wrap(params, request_id if progress else None)  # PR-01: as unique as the id
            body = encode_request(request_id, method, wrapped)
            # The encoder writes null for what JSON has no number for: the server would be told something else.
            culprit = _find_nonfinite(msgspec.to_builtins(params), "") if b"null" in body else None
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidRequest(f"the parameters can't be written as JSON: {error}", origin) from error
        if culprit is not None:
            raise InvalidRequest(f"{culprit}, which JSON has no number for: send None or a text, whichever the server takes", origin)
        if not connection.mirrors:
            return Outgoing(origin, body, {}, lasting="task" in params)
        try:
            headers = dialect.headers(method, params)
            if mirrored is not None:
                headers |= mirrored(params)
        except HeaderValueError as error:
            raise InvalidRequest(f"the request can't be sent: {error}", origin) from error
        return Outgoing(origin, body, headers, told=dialect.told, resumed=dialect.resumed, lasting="task" in params)

    async def wait(
        self,
        connection: Connection,
        request: Outgoing,
        progress: OnProgress | None,
        patience: Patience,
        take: OnNote | None = None,
    ) -> Incoming:
        """Send a request and wait for its answer.

        Args:
            connection: The way to go.
            request: The request.
            progress: Gets its progress.
            patience: How long it may take; the time that has passed is taken off.
            take: Gets its notifications in place of those who want progress and logs.

        Raises:
            RequestTimeout: It took too long.
            RequestCancelled: `cancel` ended it.
            ClientError: There will be no answer.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        silence, total = patience.silence, patience.total
        end = inf if total is None else began + total
        limit = self._deadlines.begin(end if silence is None else min(began + silence, end))
        origin = request.origin
        request_id = origin.request_id
        assert request_id is not None
        waiting = self._waiting[request_id] = _Waiting(origin, progress, limit, silence, end)

        async def on_note(note: RawNotification) -> None:
            waiting.count_anew(loop.time())
            try:
                await (self.hand_on(note, waiting) if take is None else take(note))
            finally:
                if limit.expired:  # by the callback itself: its cancellation must not come later, to somebody else
                    await asyncio.sleep(0)

        try:
            return await connection.exchange(request, on_note)
        except asyncio.CancelledError as error:
            if not limit.take_back():
                raise
            if waiting.cancelled:
                raise RequestCancelled("it was cancelled by Client.cancel", origin) from error
            if total is not None and limit.at >= waiting.end:
                raise RequestTimeout(total, origin, total=True) from error
            assert silence is not None
            raise RequestTimeout(silence, origin) from error
        finally:
            limit.close()
            del self._waiting[request_id]
            if request.lasting and progress is not None:
                self._outlast(request_id, progress)
            if total is not None:
                patience.total = max(waiting.left(loop.time()), 0.0)

    async def hand_on(self, note: RawNotification, waiting: _Waiting | None = None) -> None:
        """Give progress and logs to whoever wants them; what does not fit the protocol is dropped, for the answer still counts."""
        done: Awaitable[None] | None = None
        if note.method == "notifications/progress":
            step = self._read(v.ProgressNotificationParams, note)
            wanted = None if step is None else self._who_wants(step.progress_token, waiting)
            if step is not None and wanted is not None:
                done = wanted(step.progress, _given(step.total), _given(step.message))
        elif note.method == "notifications/message":
            log = self._read(v.LoggingMessageNotificationParams, note) if self._on_log is not None else None
            done = self._on_log(log) if self._on_log is not None and log is not None else None
        elif waiting is not None:
            self._take_note(note)
        if done is not None and inspect.isawaitable(done):
            await done

    def _who_wants(self, token: int | str, waiting: _Waiting | None) -> OnProgress | None:
        named = waiting or self._waiting.get(token)
        if named is not None and named.origin.request_id == token:
            return named.progress
        return self._lasting.get(token)

    def _outlast(self, token: int | str, progress: OnProgress) -> None:
        """PR-07: a task tells how it gets on until it has ended."""
        self._lasting[token] = progress
        if len(self._lasting) > MAX_LASTING:
            del self._lasting[next(iter(self._lasting))]

    def _read(self, kind: type[T], note: RawNotification) -> T | None:
        found: T | None = None
        try:
            found = read(kind, note.params or _EMPTY, Origin(self._target))
        except InvalidAnswer as error:
            self._strange += 1
            level = logging.WARNING if self._strange == 1 else logging.DEBUG
            logger.log(level, "%s: dropped a notification: %s: %.300r", self._target, note.method, str(error.__cause__))
        return found


def subject(params: Mapping[str, Any]) -> str:
    """What a request asks for: a tool, a prompt, a resource, a task; empty when that is no string, or nothing."""
    ref = params.get("ref")
    if ref is not None:
        found = getattr(ref, "name", getattr(ref, "uri", ""))
    else:
        found = params.get("name", params.get("uri", params.get("taskId")))
    return found if isinstance(found, str) else ""


def _find_nonfinite(value: Any, place: str) -> str | None:
    """Where the first infinity or NaN is, and what; None when there is none."""
    if isinstance(value, float):
        return None if isfinite(value) else f"{place} is {value}"
    inside: Iterator[tuple[str, Any]]
    if isinstance(value, dict):
        inside = ((f"{place}.{key}" if place else str(key), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        inside = ((f"{place}[{at}]", each) for at, each in enumerate(value))
    else:
        return None
    return next((found for where, each in inside if (found := _find_nonfinite(each, where))), None)


def _given(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value
