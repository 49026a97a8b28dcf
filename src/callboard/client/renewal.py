"""What requests wait for that is not their answer: a login, and the opening of what was lost.

Of the latter one task does it, all who need it wait, and none of them ends it by going away. Neither outlives the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from callboard.client.auth import Auth
from callboard.client.connection import Challenged
from callboard.client.errors import ClientError, ConnectionFailed, Origin, RequestTimeout
from callboard.client.requests import Patience

__all__ = ["Logins", "Renewal"]


class Logins:
    """Has refusals answered, until the client is closed: somebody may be in no hurry to log in.

    Args:
        target: The server, for errors.
        auth: Holds the credentials; None for none.
    """

    def __init__(self, target: str, auth: Auth | None) -> None:
        self._target, self._auth = target, auth
        self._tasks: set[asyncio.Task[bool]] = set()

    async def answer(self, refused: Challenged) -> None:
        """Get the credentials that a server wants.

        Raises:
            Challenged: The refusal: there are no others.
            AuthorizationFailed: They can't be had.
            ConnectionFailed: The client was closed meanwhile.
        """
        if self._auth is None:
            raise refused
        task = asyncio.create_task(self._log_in(self._auth, refused), name=f"callboard client logs in at {self._target}")
        self._tasks.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._tasks.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            where = Origin(self._target, refused.method, refused.request_id, refused.subject)
            raise ConnectionFailed("the client was closed during the login", where) from refused
        if not task.result():
            raise refused

    def close(self) -> None:
        """Cut all of them short; whoever waits sees to it that nothing is left."""
        for task in self._tasks:
            task.cancel()

    @staticmethod
    async def _log_in(auth: Auth, refused: Challenged) -> bool:
        return await auth.answer(refused.challenge)


class Renewal:
    """See the module.

    Args:
        target: The server, for the task's name.
        work: Opens anew.
    """

    def __init__(self, target: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._target = target
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def wait(self, patience: Patience, error: ClientError) -> None:
        """Wait until it is open; begin with it where nobody has.

        Args:
            patience: Of the request that needs it; the time that passes is taken off.
            error: What the request ends with where it can't be opened; its text then says why.

        Raises:
            RequestTimeout: The request may take no longer. Others may wait on.
            ClientError: `error`.
        """
        task = self._task
        if task is None:
            task = self._task = asyncio.create_task(self._work(), name=f"callboard client opens {self._target} anew")
            task.add_done_callback(self._look_at)
        loop = asyncio.get_running_loop()
        began, total = loop.time(), patience.total
        await asyncio.wait([task], timeout=total)
        if total is not None:
            patience.total = max(total - (loop.time() - began), 0.0)
            if not task.done():
                raise RequestTimeout(total, Origin(error.target, error.method, error.request_id, error.subject), total=True) from error
        if task.cancelled():
            raise error
        if (failure := task.exception()) is not None:
            error.text += f"; it could not be opened anew: {failure.text if isinstance(failure, ClientError) else failure}"
            raise error from failure

    async def close(self) -> None:
        """Give it up."""
        task = self._task
        if task is not None and task is not asyncio.current_task():  # it may be a callback of its own that closes the client
            task.cancel()
            await asyncio.wait([task])

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """Perhaps nobody waits for it any more; then its failure is known all the same."""
        self._task = None
        if not task.cancelled():
            task.exception()
