"""The extension `io.modelcontextprotocol/tasks`: calls that are answered with a task, and the methods about it (TX-01..TX-17)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from callboard.core.era import Request
from callboard.core.inputs import read_responses
from callboard.core.outcome import Deferred, Outcome, Reply
from callboard.core.task import OVER, Task
from callboard.errors import Fail, Reason
from callboard.server.context import Context
from callboard.server.extension import Serve, declares
from callboard.server.policy import Policy
from callboard.server.task_contract import Home, Runnable, Tasks, tell_time
from callboard.server.task_ledger import Ledger
from callboard.server.task_shared import SharedTasks
from callboard.server.task_table import MemoryTasks
from callboard.stores.base import Store
from callboard.wire.jsonrpc import encode
from callboard.wire.methods import Method
from callboard.wire.versions import LATEST

__all__ = ["TASKS", "TaskExtension", "unknown_task"]

TASKS = "io.modelcontextprotocol/tasks"
"""Identifier of the extension."""
_NEEDS = f"This method is for clients that declare {TASKS}."


class TaskTool(Runnable, Protocol):
    """A tool, as far as this module needs it.

    Attributes:
        policy: How it may be run.
    """

    policy: Policy


class _Named(msgspec.Struct):
    task_id: str = msgspec.field(name="taskId")
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _Update(msgspec.Struct):
    task_id: str = msgspec.field(name="taskId")
    input_responses: dict[str, Raw] = msgspec.field(name="inputResponses")
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


class Watch:
    """Tells a listen stream of tasks, all of what there is to say each time.

    Args:
        tasks: Where they are kept.
        known: The tasks.
        tell: Takes the id of a task, and what there is to say of it.

    Attributes:
        ids: Of the tasks.
    """

    def __init__(self, tasks: Tasks, known: list[Task], tell: Callable[[str, bytes], None]) -> None:
        self._tasks = tasks
        self._known = known
        self._tell = tell
        self._stops: list[Callable[[], None]] = []
        self.ids = [task.id for task in known]

    def begin(self) -> None:
        """Tell how each stands, so that nothing is missed of what happened before, and from now on of each change."""
        for task in self._known:
            self._say(task)
            if not task.over:
                self._stops.append(self._tasks.watch(task.id, self._say))

    def end(self) -> None:
        """Tell nothing any more."""
        for stop in self._stops:
            stop()

    def _say(self, task: Task) -> None:
        self._tell(task.id, encode(task.render_whole(tell_time())))


class Rooted(Protocol):
    """Tasks that have to know whose they are."""

    def belong_to(self, home: Home) -> None:
        """Use this server's store from now on.

        Raises:
            RegistrationError: It is none that they can be kept in.
        """
        ...


class TaskExtension:
    """Tasks of one server.

    Args:
        tasks: Where they are kept and run; this process by default.
        home: The server; None for one that is found out when it serves.
    """

    id = TASKS

    def __init__(self, tasks: Tasks | None = None, home: Home | None = None) -> None:
        self._given: Tasks = MemoryTasks() if tasks is None else tasks
        self._home = home
        self._store: Store | None = None
        self._tasks = self._given

    @property
    def tasks(self) -> Tasks:
        """Where they are kept and run: where the server's store is shared, what `MemoryTasks` knows is in it, too."""
        self.settle()
        return self._tasks

    def settle(self) -> None:
        """See, before anything is served, that they can be kept where the server keeps what it keeps.

        Raises:
            RegistrationError: They can't.
        """
        if self._home is not None and self._home.store is not self._store:
            self._store = self._home.store
            self._tasks = self._house(self._home)

    def _house(self, home: Home) -> Tasks:
        given: Any = self._given
        if isinstance(self._tasks, SharedTasks):
            self._tasks.leave_bus()
        if isinstance(given, MemoryTasks):
            given.mirror = None
            return SharedTasks(given, Ledger(home.store, ttl=given.ttl, max_age=given.max_age)) if home.store.shared else given
        if hasattr(given, "belong_to"):
            given.belong_to(home)
        return self._given

    def _see(self, ctx: Context) -> None:
        if self._home is None:
            self._home = ctx.mount.server

    def settings(self) -> dict[str, Any]:
        """None; that it is there says it all."""
        return {}

    def components(self) -> Iterable[Any]:
        """None of its own."""
        return ()

    def methods(self) -> Mapping[str, tuple[Method, Serve]]:
        """`tasks/get`, `tasks/update`, `tasks/cancel`."""
        return {
            "tasks/get": (_row("tasks/get", _Named), self._get),
            "tasks/update": (_row("tasks/update", _Update), self._update),
            "tasks/cancel": (_row("tasks/cancel", _Named), self._cancel),
        }

    async def call(self, tool: TaskTool, raw: Raw | None, ctx: Context) -> Outcome:
        """Call a tool: as a task where both sides know them (TX-02) and it takes its time, else like any other."""
        self._see(ctx)
        policy, envelope = tool.policy.task, ctx.request.envelope
        is_modern = envelope.version == LATEST
        wanted = declares(ctx, TASKS) if is_modern else envelope.task is not None  # TX-17
        if wanted and policy != "never":
            outcome = await self.tasks.start(ctx, tool, raw, always=policy == "always")
            if isinstance(outcome, Deferred):
                self._begun(ctx, tool.key, outcome.value)
            return outcome
        if policy == "always":
            text = f"{tool.key} can only be called as a task"
            if is_modern:
                return _undeclared(f"{text}, and the client did not declare {TASKS}.")
            return Fail(Reason.METHOD_NOT_FOUND, f"{text}, which this call does not ask for.")  # TK-02
        if wanted and not is_modern:
            return Fail(Reason.METHOD_NOT_FOUND, f"{tool.key} can't be called as a task.")  # TK-02
        return await tool.call(raw, ctx)

    def _begun(self, ctx: Context, name: str, value: Mapping[str, Any]) -> None:
        """A call has become a task: have its session hear of it, and the sinks of the server."""
        task_id: str = value["taskId"]
        if ctx.session is not None:
            self.tasks.watch(task_id, ctx.session.report)
        sinks = ctx.mount.server.journal.sinks
        if sinks is None:
            return
        sinks.begin_task(task_id, name)
        if value["status"] in OVER:
            sinks.end_task(task_id, name, value["status"])
            return

        def tell(task: Task) -> None:
            if task.over:
                sinks.end_task(task_id, name, task.status)

        self.tasks.watch(task_id, tell)

    async def watch(self, ctx: Context, task_ids: list[str], tell: Callable[[str, bytes], None]) -> Watch:
        """Have a listen stream told of tasks (TX-15).

        Args:
            ctx: The stream's.
            task_ids: What it asks for; it gets those that are the caller's.
            tell: Takes, from whatever thread, the id of a task that has changed, and all that there is to say of it, as an encoded object.

        Raises:
            Fail: The client did not declare the extension (SB-13).
        """
        if not declares(ctx, TASKS):
            raise _undeclared(f"taskIds are for clients that declare {TASKS}.")
        self._see(ctx)
        found = [await self.tasks.find(task_id, ctx.principal) for task_id in dict.fromkeys(task_ids)]
        return Watch(self.tasks, [task for task in found if task is not None], tell)

    async def _get(self, _server: Any, params: _Named, _request: Request, ctx: Context) -> Outcome:
        if not declares(ctx, TASKS):
            return _undeclared(_NEEDS)
        self._see(ctx)
        task = await self.tasks.find(params.task_id, ctx.principal)
        return unknown_task() if task is None else Reply(task.render_whole(tell_time()))

    async def _update(self, _server: Any, params: _Update, _request: Request, ctx: Context) -> Outcome:
        if not declares(ctx, TASKS):
            return _undeclared(_NEEDS)
        self._see(ctx)
        if await self.tasks.find(params.task_id, ctx.principal) is None:
            return unknown_task()
        await self.tasks.answer(params.task_id, ctx.principal, read_responses(params.input_responses))
        return Reply({})

    async def _cancel(self, _server: Any, params: _Named, _request: Request, ctx: Context) -> Outcome:
        if not declares(ctx, TASKS):
            return _undeclared(_NEEDS)
        self._see(ctx)
        if await self.tasks.find(params.task_id, ctx.principal) is None:
            return unknown_task()
        await self.tasks.cancel(params.task_id, ctx.principal)
        return Reply({})


def unknown_task() -> Fail:
    """What is said of an id that never was, of one whose time is up, and of somebody else's (TX-14, TX-16, TK-08)."""
    return Fail(Reason.INVALID_PARAMS, "There is no task of this id: it never was, or its time is up.")


def _undeclared(text: str) -> Fail:
    return Fail(Reason.MISSING_CAPABILITY, text, {"requiredCapabilities": {"extensions": {TASKS: {}}}})


def _row(name: str, params: type[Any]) -> Method:
    return Method(params, msgspec.json.Decoder(params).decode, name.encode(), mirrored="task_id")
