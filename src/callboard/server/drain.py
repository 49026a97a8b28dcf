"""Back-pressure: what a function awaits that says more than its client reads."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Generator
from functools import partial
from typing import Any

from callboard.core.exchange import Exchange

__all__ = ["READY", "Drain", "Ready"]


class Drain:
    """Awaitable for back-pressure: done once the reader has caught up."""

    __slots__ = ("_exchange", "_loop")

    def __init__(self, exchange: Exchange, loop: AbstractEventLoop) -> None:
        self._exchange = exchange
        self._loop = loop

    def __await__(self) -> Generator[Any, None, None]:
        if self._exchange.congested and self._exchange.open:
            drained: Future[None] = self._loop.create_future()
            self._exchange.when_drained(partial(_resolve, drained))
            yield from drained


def _resolve(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Ready:
    """Awaitable that is done: nobody is behind."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


READY = Ready()
