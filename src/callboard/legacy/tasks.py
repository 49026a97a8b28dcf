"""Tasks of 2025-11-25, where they belong to the core protocol and clients ask for them (TK-01..TK-10); the tasks are the server's.

A client that sends `task` with a call gets a task at once. What the task asks waits in its record, as for any client; it is put to the
client, as a request of ours, on the stream of the `tasks/result` that waits for the task's end, where clients of this version look for it
(TK-10). Without such a stream it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from callboard.core.era import Request
from callboard.core.outcome import Outcome, Reply
from callboard.core.task import Task
from callboard.errors import AskError, Fail, NoAnswerError, Reason
from callboard.server.context import Context
from callboard.server.cursor import read_cursor, write_cursor
from callboard.server.task_table import Tasks, tell_time
from callboard.server.tasks import unknown_task
from callboard.wire.jsonrpc import encode_notification
from callboard.wire.methods import Method
from callboard.wire.v2026_07_28 import PaginatedRequestParams

__all__ = ["RELATED", "TASK_METHODS", "TASK_SUPPORT", "encode_status", "lower_task", "offer_tasks", "read_task"]

RELATED = "io.modelcontextprotocol/related-task"
"""Key in `_meta` of what belongs to a task (TK-06)."""

TASK_SUPPORT: Mapping[str, str] = {"allowed": "optional", "always": "required"}
"""A tool's policy -> its `execution.taskSupport`; absent for none."""

_RENAMED = {"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}
_FIELDS = ("taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs")
# Tasks on one page of a list.
_PAGE = 50


class _Wanted(msgspec.Struct):
    ttl: int | None = None


class _Call(msgspec.Struct):
    task: _Wanted | None = None


class _Named(msgspec.Struct):
    task_id: str = msgspec.field(name="taskId")
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


def read_task(params: Raw) -> dict[str, Any] | None:
    """What a call says of the task that it wants to be; None when it wants none.

    Raises:
        msgspec.DecodeError: It says that in no way that it can be said.
    """
    wanted = _decode_call(params).task
    return None if wanted is None else {"ttl": wanted.ttl}


def offer_tasks(*, owned: bool) -> dict[str, Any]:
    """The capability `tasks` of a server that has them (TK-01).

    Args:
        owned: Whether its client has a principal; else a list would show everybody's tasks (TK-09).
    """
    return {"requests": {"tools": {"call": {}}}, "cancel": {}, **({"list": {}} if owned else {})}


def lower_task(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task in the words of this version."""
    return {_RENAMED.get(name, name): value[name] for name in _FIELDS if name in value}


def _render(task: Task) -> dict[str, Any]:
    value = lower_task(task.render(tell_time()))
    if task.result is not None and task.result.is_error:
        value["status"] = "failed"  # TK-04: here a tool's own failure is one
    return value


def encode_status(task: Task) -> bytes:
    """The notification that tells a client where a task stands."""
    return encode_notification("notifications/tasks/status", _render(task))


def _find_tasks(ctx: Context) -> Tasks:
    """Where tasks are kept.

    Raises:
        Fail: Nowhere: the methods are not offered.
    """
    if ctx.mount.server.tasks is None:
        raise Fail(Reason.METHOD_NOT_FOUND, "Method not found: this server has no tasks.")
    tasks: Tasks = ctx.mount.server.tasks.tasks
    return tasks


async def _get(_server: Any, params: _Named, _request: Request, ctx: Context) -> Outcome:
    task = await _find_tasks(ctx).find(params.task_id, ctx.principal)
    return unknown_task() if task is None else Reply(_render(task))


async def _cancel(_server: Any, params: _Named, _request: Request, ctx: Context) -> Outcome:
    tasks = _find_tasks(ctx)
    task = await tasks.find(params.task_id, ctx.principal)
    if task is None:
        return unknown_task()
    if not await tasks.cancel(params.task_id, ctx.principal):  # TK-07
        return Fail(Reason.INVALID_PARAMS, f"This task has ended already ({_render(task)['status']}).")
    cancelled = await tasks.find(params.task_id, ctx.principal)
    return Reply(_render(cancelled or task))


async def _list(_server: Any, params: PaginatedRequestParams, _request: Request, ctx: Context) -> Outcome:
    tasks = _find_tasks(ctx)
    if ctx.principal is None:  # TK-09
        return Fail(Reason.METHOD_NOT_FOUND, "Method not found: tasks are listed only for clients that say who they are.")
    after = read_cursor("tasks", None if params.cursor is UNSET else params.cursor)
    found, following = await tasks.page(ctx.principal, after, _PAGE)
    value: dict[str, Any] = {"tasks": [_render(task) for task in found]}
    if following is not None:
        value["nextCursor"] = write_cursor("tasks", following)
    return Reply(value)


async def _result(_server: Any, params: _Named, _request: Request, ctx: Context) -> Outcome:
    """Wait for a task's end, and put to its client meanwhile what it asks (TK-05, TK-10)."""
    tasks, task_id = _find_tasks(ctx), params.task_id
    changed = asyncio.Event()
    loop = ctx.mount.workers.loop
    stop = tasks.watch(task_id, lambda _: _wake(loop, changed))
    asked: dict[str, asyncio.Task[None]] = {}
    try:
        while (task := await tasks.find(task_id, ctx.principal)) is not None and not task.over:
            ctx.exchange.open_stream()
            for key in asked.keys() - task.pending.keys():
                asked.pop(key).cancel()
            for key, request in task.pending.items():
                if key not in asked:
                    asked[key] = loop.create_task(_put(ctx, tasks, task_id, key, request))
            await changed.wait()
            changed.clear()
    finally:
        stop()
        for each in asked.values():
            each.cancel()
    return unknown_task() if task is None else _render_end(task)


def _wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(changed.set)


def _render_end(task: Task) -> Outcome:
    """Exactly what the call came to, as if it had been no task, and which task that was."""
    if task.fail is not None:
        return task.fail
    if task.result is None:
        return Fail(Reason.CANCELLED, f"The task was cancelled. {task.message}".strip())
    value: dict[str, Any] = dict(_decode_object(task.result.value))
    meta = msgspec.json.decode(value["_meta"], type=dict[str, Any]) if "_meta" in value else {}
    value["_meta"] = {**meta, RELATED: {"taskId": task.id}}
    return Reply(value, None, UNSET, task.result.wrap)


async def _put(ctx: Context, tasks: Tasks, task_id: str, key: str, request: Mapping[str, Any]) -> None:
    """Ask the client what a task asks; where there is no stream to ask on it goes on waiting."""
    if ctx.session is None:
        return
    timeout = ctx.mount.server.ask_timeout
    loop = ctx.mount.workers.loop
    began = loop.time()
    params = dict(request["params"])
    params["_meta"] = {**params.get("_meta", {}), RELATED: {"taskId": task_id}}
    answer: Any
    try:
        answer = await ctx.session.ask(request["method"], params, exchange=ctx.exchange, timeout=timeout)
    except NoAnswerError as error:
        if loop.time() - began < timeout:
            return
        answer = error
    except (AskError, Fail) as error:
        answer = error
    await tasks.answer(task_id, ctx.principal, {key: answer})


def _row(name: str, params: type[Any], serve: Any, mirrored: str = "task_id") -> Method:
    return Method(params, msgspec.json.Decoder(params).decode, name.encode(), mirrored=mirrored, serve=serve)


TASK_METHODS: Mapping[str, Method] = {
    "tasks/get": _row("tasks/get", _Named, _get),
    "tasks/cancel": _row("tasks/cancel", _Named, _cancel),
    "tasks/list": _row("tasks/list", PaginatedRequestParams, _list, mirrored=""),
    "tasks/result": _row("tasks/result", _Named, _result),
}
