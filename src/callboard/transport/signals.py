"""Hearing that a process is told to end, whichever ASGI server runs in it.

Servers close their listening sockets at SIGTERM and wait until every open answer has ended; only then do they tell the application (the
lifespan's shutdown). A listen stream never ends by itself, so that they wait until a time-out cuts it, or for ever. So the application
listens, too: it puts itself before the handler that the server has set, and lets that one do what it always does.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["SignalHook"]

_SIGNALS = tuple(number for name in ("SIGTERM", "SIGINT", "SIGQUIT") if (number := getattr(signal, name, None)) is not None)


class SignalHook:
    """Calls something on an event loop when the process is told to end, before whoever handles that.

    Signals that nobody handles stay so: they end the process at once, as they would have.

    Args:
        told: What is called, on the loop that `install` ran on; more than once where there are several signals.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def install(self) -> None:
        """Begin to hear; without effect in a thread that gets no signals, and where nobody handles them."""
        self.remove()
        if threading.current_thread() is not threading.main_thread():
            return
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                self._before[number] = handler
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Put the handlers back that were there, unless somebody has set others since."""
        self._loop = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in list(self._before.items()):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
                del self._before[number]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._told)
        self._before[number](number, frame)
