"""A call that the server made a task of: wait for its end, answering what it asks meanwhile (TX-13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec

from callboard.client.answer import read, refusal
from callboard.client.errors import ClientError, InvalidAnswer, Origin
from callboard.client.inputs import Inputs

__all__ = ["EXTENSION", "Send", "follow"]

EXTENSION = "io.modelcontextprotocol/tasks"
PAUSE = 1.0
"""Seconds between two looks at a task whose server names no interval."""
LEAST_PAUSE, MOST_PAUSE = 0.01, 60.0
"""Bounds of the interval that a server names, in seconds."""
FAREWELL = 2.0
"""Seconds to tell a server that nobody waits any more."""

Send: TypeAlias = Callable[[str, dict[str, Any], float | None], Awaitable[msgspec.Raw]]
"""Sends a request, given method, params and its time limit (None for the usual one), and gives its result."""


class _Task(msgspec.Struct, rename="camel"):
    task_id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    poll_interval_ms: float | None = None
    status_message: str | None = None
    input_requests: dict[str, Any] | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


async def follow(created: msgspec.Raw, send: Send, inputs: Inputs, origin: Origin) -> msgspec.Raw:
    """Wait for the end of a task. When that is given up, by a cancellation or a failure, the server is told to stop.

    Args:
        created: What the server answered instead of a result (TX-05).
        send: Sends requests about it.
        inputs: Answers what it asks.
        origin: The call that became a task.

    Returns:
        The call's result.

    Raises:
        ServerError: The call ended in an error.
        ClientError: The server cancelled it; or as for any request.
    """
    task: _Task = read(_Task, created, origin)
    try:
        task = await _wait(task, send, inputs, origin)
    except BaseException:
        with suppress(ClientError):
            await send("tasks/cancel", {"taskId": task.task_id}, FAREWELL)
        raise
    if task.status == "completed" and task.result:
        return task.result
    if task.status == "failed" and task.error:
        raise refusal(task.error, origin)
    if task.status == "cancelled":
        raise ClientError(f"the server cancelled the task{f': {task.status_message}' if task.status_message else ''}", origin)
    raise InvalidAnswer(f"the task is {task.status} without saying what came of it", origin)  # TX-08


async def _wait(task: _Task, send: Send, inputs: Inputs, origin: Origin) -> _Task:
    """Look again and again until the task has ended."""
    task_id = task.task_id
    answered: set[str] = set()
    if task.status != "working":  # TX-05: that it has ended, or asks, is all that is said when it is created
        task = read(_Task, await send("tasks/get", {"taskId": task_id}, None), origin)
    while task.status in {"working", "input_required"}:
        open_requests = {key: request for key, request in (task.input_requests or {}).items() if key not in answered}
        if open_requests:
            responses = await inputs.answer(open_requests, origin)
            await send("tasks/update", {"taskId": task_id, "inputResponses": responses}, None)
            answered |= open_requests.keys()  # TX-12: a key is never used for another question
        else:
            named = task.poll_interval_ms
            await asyncio.sleep(PAUSE if named is None else min(max(named / 1000, LEAST_PAUSE), MOST_PAUSE))
        task = read(_Task, await send("tasks/get", {"taskId": task_id}, None), origin)
    return task
