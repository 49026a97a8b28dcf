"""What every transport does with a message once it has the bytes: era, context, service, answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from callboard.core.era import Era, Headers, Request
from callboard.core.exchange import Exchange
from callboard.core.outcome import Outcome
from callboard.errors import Fail, Reason
from callboard.server.app import Server
from callboard.server.context import Context, ListenLimits, Mount
from callboard.server.workers import Workers
from callboard.wire.jsonrpc import RawRequest

__all__ = ["Endpoint"]

_log = logging.getLogger("callboard")


class Endpoint:
    """A server behind a transport.

    Args:
        server: The server.
        eras: Protocol eras it speaks; the first that claims a message answers it.
        versions: Protocol versions these eras serve, the preferred one first.
        options: Bound options: a mapping that functions see as `ctx.options`.
        listen_limits: Caps of `subscriptions/listen`; None where the transport can't deliver notifications of change.
        logs: Whether it can deliver log messages.
    """

    def __init__(
        self,
        server: Server,
        eras: Sequence[Era],
        *,
        versions: tuple[str, ...],
        options: Any = None,
        listen_limits: ListenLimits | None = ListenLimits(),
        logs: bool = True,
    ) -> None:
        self.server = server
        self.eras = tuple(eras)
        self._versions = versions
        self._options = options
        self._listen_limits = listen_limits
        self._logs = logs
        self._service = server.service
        self.mount: Mount | None = None

    async def open(self) -> Mount:
        """Enter the server's lifespan, once per event loop.

        Raises:
            Exception: What the lifespan raised.
        """
        loop = asyncio.get_running_loop()
        mount = self.mount
        if mount is not None and mount.workers.loop is loop:
            return mount
        values = await self.server.lifespan.enter()
        if self.mount is not None and self.mount.workers.loop is loop:
            await self.server.lifespan.leave()  # another request was faster
            return self.mount
        workers = Workers(loop, max_threads=self.server.threads)
        self.mount = Mount(
            self.server,
            workers,
            values=values,
            versions=self._versions,
            options=self._options,
            listen_limits=self._listen_limits,
            logs=self._logs,
        )
        return self.mount

    def drain(self) -> None:
        """End listen streams in good order and take no new ones: what comes next is the end of this mount."""
        if self.mount is not None:
            self.mount.draining = True
            self.server.hub.close(self.mount.workers)

    async def close(self) -> None:
        """End listen streams in good order and leave the lifespan."""
        self.drain()
        mount, self.mount = self.mount, None
        if mount is not None:
            mount.workers.close()
            await self.server.lifespan.leave()

    async def answer(
        self,
        mount: Mount,
        era: Era,
        message: RawRequest,
        exchange: Exchange,
        *,
        headers: Headers | None = None,
        principal: str | None = None,
        scope_state: Any = None,
    ) -> None:
        """Serve one request and finish its exchange, whatever happens.

        Raises:
            asyncio.CancelledError: This task was cancelled; the exchange is left to the caller.
        """
        request = era.lift(message, headers)
        if isinstance(request, Fail):
            exchange.finish(*era.render(message.id, request, None))
            return
        context = Context(mount, request, exchange, principal, scope_state)
        outcome: Outcome
        try:
            outcome = await self._service(request, context)
            status, answer = era.render(request.id, outcome, request.row)
        except BaseException as error:
            fail = self._judge(mount, request, exchange, error)
            if fail is None:
                raise
            status, answer = self._render_crash(era, request.id, fail)
        if exchange.dropped:
            context.report_dropped()
        exchange.finish(status, answer)

    def _judge(self, mount: Mount, request: Request, exchange: Exchange, error: BaseException) -> Fail | None:
        """What to answer when a call ended with an exception; None where it must go on its way, because it is not the call's own."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None or isinstance(error, KeyboardInterrupt):
            return None  # the coroutine is being closed, or the process is
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
            if not mount.draining or not exchange.open:
                return None
            task.uncancel()  # the server ends: who still waits learns why
            return Fail(Reason.OVERLOADED, "The server is shutting down.")
        return self.server.crash(_place(request), error)

    def _render_crash(self, era: Era, request_id: int | str, fail: Fail) -> tuple[int, bytes]:
        try:
            return era.render(request_id, fail, None)
        except Exception:  # noqa: BLE001 - an author's error data may be unencodable
            _log.exception("An error of its own can't be encoded: %r", fail.reason)
            return era.render(request_id, Fail(Reason.INTERNAL), None)


def _place(request: Request) -> str:
    """The method and what it was asked for, printable: for the log."""
    mirrored = request.row.mirrored
    return f"{request.method} {getattr(request.params, mirrored)[:100]!a}" if mirrored else request.method
