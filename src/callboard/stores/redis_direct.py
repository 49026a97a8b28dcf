"""Messages from worker to worker, over a Redis's channels: at most once, to whoever is there."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from callboard.stores.redis_dial import Dialer, Outage, Wire, pack

__all__ = ["Ear"]

_BEAT = 1.0  # seconds between questions whether the Redis is still there
_PAUSES = (0.02, 0.5)
_log = logging.getLogger("callboard.stores")


class Ear:
    """Hears what is said on some channels.

    Args:
        dialer: Says what went wrong.
        dial: Makes a connection.
        outage: Is told when it is lost, and back.
        channels: Their names.
        deliver: Called with each message.
        timeout: Seconds without any word after which the connection is taken for dead.
        again: Called when it hears again after it did not: what was said in between is lost.

    Attributes:
        hears: Whether it hears now.
        reason: Why it did not the last time that it tried; empty before.
    """

    def __init__(
        self,
        dialer: Dialer,
        dial: Callable[[], Awaitable[Wire]],
        outage: Outage,
        channels: tuple[str, ...],
        deliver: Callable[[bytes], None],
        *,
        timeout: float,
        again: Callable[[], None],
    ) -> None:
        self.hears = False
        self.reason = ""
        self._dialer = dialer
        self._dial = dial
        self._outage = outage
        self._channels = channels
        self._deliver = deliver
        self._timeout = timeout
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._once = False
        self._task = self._loop.create_task(self._live())

    async def ready(self) -> None:
        """Wait until it hears for the first time."""
        await self._ready.wait()

    async def stop(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._outage.forget(self)

    async def _live(self) -> None:
        pause = _PAUSES[0]
        while True:
            try:
                wire = await self._dial()
                try:
                    pause = _PAUSES[0]
                    await self._listen(wire)
                finally:
                    self.hears = False
                    wire.abort()
            except Exception as error:  # noqa: BLE001 - whatever it was, this worker must not stay deaf for ever
                self.reason = self._dialer.explain(error)
                if self._once:
                    self._outage.gone(self, self.reason)
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - so that workers don't come all at once
                pause = min(_PAUSES[1], pause * 2)

    async def _listen(self, wire: Wire) -> None:
        await wire.send_packed_command([pack(("SUBSCRIBE", *self._channels))], check_health=False)
        async with asyncio.timeout(self._timeout):
            for _ in self._channels:
                await wire.read_response(disable_decoding=True)
        self.hears = True
        self._outage.back(self)
        if self._once:
            self._again()
        self._once = True
        self._ready.set()
        beat = self._loop.create_task(self._keep_asking(wire))
        try:
            async with asyncio.timeout(self._timeout + _BEAT) as limit:
                while True:
                    said = await wire.read_response(disable_decoding=True)
                    limit.reschedule(self._loop.time() + self._timeout + _BEAT)
                    if said[0] == b"message":
                        self._hand_over(said[2])
        finally:
            beat.cancel()
            await asyncio.wait({beat})

    async def _keep_asking(self, wire: Wire) -> None:
        question = pack(("PING",))
        while True:
            await asyncio.sleep(_BEAT)
            await wire.send_packed_command([question], check_health=False)

    def _hand_over(self, message: bytes) -> None:
        try:
            self._deliver(message)
        except Exception:  # noqa: BLE001 - one message that can't be read must not cost those after it
            _log.exception("A message from another worker could not be handled.")
