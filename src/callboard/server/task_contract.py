"""What tasks are to the rest of the server: where they are kept and run, whatever runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from callboard.core.outcome import Outcome
from callboard.core.task import Moment, Task
from callboard.server.context import Context
from callboard.server.lifespan import Lifespan
from callboard.stores.base import Store

__all__ = ["Home", "Runnable", "Tasks", "tell_time"]


def tell_time() -> Moment:
    """Now."""
    now = datetime.now(UTC)
    return Moment(now.timestamp(), now.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


class Home(Protocol):
    """A server, as far as tasks need it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def store(self) -> Store:
        """What it keeps."""
        ...

    @property
    def lifespan(self) -> Lifespan:
        """What lives as long as it does."""
        ...


class Runnable(Protocol):
    """A tool, as far as tasks need it.

    Attributes:
        key: Its name.
    """

    key: str

    async def call(self, raw: msgspec.Raw | None, ctx: Context) -> Outcome:
        """Run it."""
        ...


class Tasks(Protocol):
    """Where tasks are kept and run. A task is its owner's: for everybody else there is none of its id (TX-16, TK-09)."""

    async def start(self, ctx: Context, tool: Runnable, raw: msgspec.Raw | None, *, always: bool) -> Outcome:
        """Run a call that may become a task.

        Args:
            ctx: The call's.
            tool: What it calls.
            raw: Its arguments.
            always: Whether it becomes one even if it is over at once.

        Returns:
            `Deferred` with the fields of the task, which `find` finds from now on (TX-06); or what the call came to before it was one.

        Raises:
            Fail: There are too many tasks, or the server ends (OVERLOADED).
        """
        ...

    async def find(self, task_id: str, owner: str | None) -> Task | None:
        """The task of this id, as it is now; not to be changed."""
        ...

    async def answer(self, task_id: str, owner: str | None, responses: Mapping[str, Any]) -> None:
        """Give a task answers to what it asks, by key; a `NoAnswerError` or `AskError` for what its client refused to answer."""
        ...

    async def cancel(self, task_id: str, owner: str | None) -> bool:
        """Cancel a task; whether it had not ended yet."""
        ...

    async def page(self, owner: str | None, after: int, size: int) -> tuple[list[Task], int | None]:
        """Tasks of an owner in the order they were created, and what to pass as `after` for those that follow; None for none."""
        ...

    def watch(self, task_id: str, tell: Callable[[Task], None]) -> Callable[[], None]:
        """Have `tell` called, from whatever thread, whenever a task has changed; call what is returned to end it."""
        ...
