"""Redis 6 and newer, or Valkey, as the store that all processes of a server share."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from callboard.errors import StoreError
from callboard.stores.base import Bus, EventLog, Kv
from callboard.stores.redis_bus import BLOCK, RedisBus
from callboard.stores.redis_dial import Dialer, Outage, pack, require_redis
from callboard.stores.redis_direct import Ear
from callboard.stores.redis_kv import RedisEventLog, RedisKv
from callboard.stores.redis_link import Link
from callboard.stores.redis_routes import Routes
from callboard.stores.redis_script import Script
from callboard.stores.redis_url import read_url

__all__ = ["RedisStore", "Script"]

BEAT, LIFE = 1.0, 5.0
"""Seconds between the signs of life of a worker, and until it is taken for dead."""
OLDEST = (6, 0)
Observe = Callable[[str, float, bool], None]
_log = logging.getLogger("callboard.stores")


class RedisStore:
    """`Store` in a Redis.

    Args:
        url: Where it is: see docs/stores.md.
        timeout: Seconds that one command may take, what it takes to connect included.
        prefix: What all its keys begin with; deployments that share a Redis and a server's name differ in it, or in the database.

    Attributes:
        shared: True.
        kv: Keys and values.
        log: Streams of events.
        bus: Messages to all processes.
        worker: Random id of this process's store: 16 hex digits, known once it is open.
        direct: Called on the event loop with each message to this worker, or to all.
        epoch: Goes up whenever messages to this worker may have been lost: what is cached on their word is stale then.
        observe: Called after each round trip with what was done (`execute`, `run`), its seconds and whether it failed, and with `bus` and the
            seconds that a message of this process took to come back to it; None for nobody.
        patience: Seconds after it has come back itself in which this worker takes nobody else for dead.

    Raises:
        RegistrationError: The URL can't be read, or redis-py is not installed.
    """

    def __init__(self, url: str, *, timeout: float = 2.0, prefix: str = "callboard") -> None:
        self._place = read_url(url)
        self._url = url
        require_redis()
        if not timeout > 0:
            raise ValueError(f"RedisStore: timeout is more than 0 s, not {timeout!r}.")
        self.shared = True
        self.worker = secrets.token_hex(8)
        self.direct: Callable[[bytes], None] | None = None
        self.epoch = 0
        self.patience = LIFE
        self._observe: Observe | None = None
        self.kv: Kv = RedisKv(self)
        self.log: EventLog = RedisEventLog(self)
        self._bus = RedisBus(self, self._note_loss)
        self.bus: Bus = self._bus
        self._timeout = timeout
        # Channels know no databases: the number is in the name of everything.
        self._prefix = f"{prefix}.{self._place.db}" if self._place.db else prefix
        self._namespace = self._prefix
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._outage = Outage(self._place.shown)
        self._dialer: Dialer | None = None
        self._routes: Routes | None = None
        self._ear: Ear | None = None
        self._link: Link | None = None
        self._beating: asyncio.Task[None] | None = None
        self._beat_now: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"RedisStore({self._place.shown!r})"

    @property
    def url(self) -> str:
        """The URL as given, with its password: for other clients of the same Redis, never to be shown."""
        return self._url

    @property
    def observe(self) -> Observe | None:
        """Who is told how long everything takes."""
        return self._observe

    @observe.setter
    def observe(self, observe: Observe | None) -> None:
        self._observe = observe
        self._bus.observe = None if observe is None else lambda seconds: observe("bus", seconds, False)

    @property
    def hears(self) -> bool:
        """Whether messages to this worker arrive at present."""
        return self._ear is not None and self._ear.hears

    def name(self, server: str) -> None:
        """See `Store.name`."""
        self._namespace = f"{self._prefix}:{quote(server, safe=' ')}"

    def key(self, *parts: str) -> str:
        """The whole name of a key or channel.

        Args:
            parts: What tells it from others of this server. Keys of one script have one part in braces in common, for clusters.
        """
        return ":".join((self._namespace, *parts))

    async def open(self) -> None:
        """See `Store.open`.

        Raises:
            StoreError: It can't be reached; the text names it, without its password.
            RuntimeError: It is in use on another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._beating is not None:
            return
        if self._loop is not None and self._loop is not loop:
            if self._loop.is_running():
                raise RuntimeError("The store is open on another event loop: close it there, or give each loop a store of its own.")
            self._forget()
        if self._loop is None:
            self._loop, self._opening = loop, asyncio.Lock()
        async with self._opening:
            if self._beating is not None:
                return
            try:
                await self._connect()
            except BaseException as error:
                await self._disconnect()
                if self._dialer is not None and isinstance(error, self._dialer.refusal):
                    raise self._refused(error) from error
                raise

    async def check(self) -> None:
        """See `Store.check`.

        Raises:
            StoreError: It does not answer, or this worker does not hear the others.
        """
        await self.execute("PING")
        if not self.hears:
            raise StoreError(f"The store {self._place.shown} answers, but messages of other workers don't arrive.")

    async def close(self) -> None:
        """See `Store.close`."""
        if self._loop is None:
            return
        if self._loop is not asyncio.get_running_loop():
            if not self._loop.is_running():
                self._forget()
                return
            raise RuntimeError("The store is open on another event loop: close it there.")
        async with self._opening:
            await self._disconnect()

    async def execute(self, *command: Any, key: str | None = None) -> Any:
        """Send one command, together with all others of this turn of the loop.

        Args:
            command: Its name and arguments: texts, bytes and numbers. The one after its name is taken for its key.
            key: The key, where it is elsewhere; only clusters need it.

        Returns:
            bytes, int, list or None.

        Raises:
            StoreError: No answer within `timeout`, or the Redis refuses it. Whether it was done is not known then; it is never sent twice.
        """
        if self._observe is not None:
            return await self._watch("execute", self._execute(command, key))
        return await self._execute(command, key)

    async def _execute(self, command: tuple[Any, ...], key: str | None) -> Any:
        routes, dialer = self._routes, self._dialer
        if routes is None or dialer is None:
            raise self._not_open()
        if key is None and len(command) > 1:
            key = command[1]
        try:
            return await routes.send(pack(command), key)
        except dialer.refusal as error:
            raise self._refused(error) from error

    async def run(self, script: Script, keys: tuple[str, ...], args: tuple[str | bytes | int | float, ...] = ()) -> Any:
        """Run a script: one round trip, together with all other commands of this turn of the loop.

        Args:
            script: What to run.
            keys: The keys that it touches; in a cluster all of one slot.
            args: Whatever else it needs.

        Returns:
            bytes, int, list or None.

        Raises:
            StoreError: As `execute`.
        """
        if self._observe is not None:
            return await self._watch("run", self._run(script, keys, args))
        return await self._run(script, keys, args)

    async def _run(self, script: Script, keys: tuple[str, ...], args: tuple[str | bytes | int | float, ...]) -> Any:
        routes, dialer = self._routes, self._dialer
        if routes is None or dialer is None:
            raise self._not_open()
        key = keys[0] if keys else None
        try:
            try:
                return await routes.send(script.call(keys, args), key)
            except dialer.no_script:  # nothing was done: this Redis does not know it yet, or no more
                return await routes.send(script.call(keys, args, whole=True), key)
        except dialer.refusal as error:
            raise self._refused(error) from error

    async def _watch(self, operation: str, work: Coroutine[Any, Any, Any]) -> Any:
        began, failed = time.monotonic(), True
        try:
            answer = await work
            failed = False
            return answer
        finally:
            if self._observe is not None:
                self._observe(operation, time.monotonic() - began, failed)

    def tell(self, worker: str, message: bytes) -> None:
        """Send a message to a worker, or to `all`, without waiting; it is lost where the store can't be reached.

        Args:
            worker: A worker's id, or `all`.
            message: What its `direct` is called with.
        """
        if self._routes is not None:
            self._routes.post(pack(("PUBLISH", self.key("to", worker), message)))

    async def alive(self, worker: str) -> bool:
        """Whether a worker has shown a sign of life in the last 5 s.

        Where this worker was cut off itself in that time, everybody passes for alive: they may have been cut off, too, and are not yet back.

        Raises:
            StoreError: No answer in time.
        """
        if worker == self.worker:
            return True
        found = await self.execute("EXISTS", self.key("worker", worker))
        since = None if self._routes is None else self._routes.since()
        return bool(found) or since is None or asyncio.get_running_loop().time() - since < self.patience

    # --------------------------------------------------------------------------------------------------------------- inside

    async def _connect(self) -> None:
        if os.getpid() != self._process:
            self._process, self.worker = os.getpid(), secrets.token_hex(8)
        self._dialer = Dialer(self._place, timeout=self._timeout, name=f"callboard-{self.worker}")
        self._beat_now = asyncio.Event()
        self._routes = routes = Routes(self._dialer, self._outage, timeout=self._timeout, up=self._beat_now.set)
        await routes.open()
        await self._look()
        await self._beat()
        channels = (self.key("to", self.worker), self.key("to", "all"))
        self._ear = Ear(
            self._dialer,
            lambda: routes.dial(channels[0]),
            self._outage,
            channels,
            self._deliver,
            timeout=self._timeout,
            again=self._note_loss,
        )
        self._link = Link(self._dialer, lambda: routes.dial(self._bus.stream), self._outage, timeout=self._timeout + BLOCK)
        try:
            async with asyncio.timeout(self._timeout):
                await self._link.ready()
                await self._ear.ready()
        except TimeoutError:
            reason = f" ({self._ear.reason})" if self._ear.reason else ""
            raise StoreError(f"The store {self._place.shown} did not let this worker listen within {self._timeout:g} s{reason}.") from None
        await self._bus.open(self._link)
        self._beating = asyncio.get_running_loop().create_task(self._keep_beating())

    async def _disconnect(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        reachable = self._routes is not None and self._routes.since() is not None
        await self._bus.close(self._timeout if reachable else 0.0)
        if self._beating is not None and reachable:
            with suppress(StoreError):
                await self.execute("DEL", self.key("worker", self.worker))  # the others need not wait until its time is up
        for part in (self._ear, self._link):
            if part is not None:
                await part.stop()
        if self._routes is not None:
            await self._routes.close()
        self._forget()

    def _forget(self) -> None:
        self._loop = self._routes = self._ear = self._link = self._beating = self._beat_now = None
        self._outage = Outage(self._place.shown)

    async def _look(self) -> None:
        """See that it is new enough, and say what of its settings will hurt."""
        try:
            found = await self.execute("INFO", key="")
        except StoreError as error:
            _log.debug("The store does not say how it is set up: %s", error)
            return
        if not isinstance(found, bytes):
            raise StoreError(
                f"What answers at {self._place.shown} is no Redis: it says something else than Redis does when it is asked for INFO."
            )
        text = found.decode(errors="replace")
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        version = facts.get("redis_version", "")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise StoreError(f"The store {self._place.shown} is Redis {version}: Redis 6 or newer, or Valkey, is needed.")
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
            _log.warning(
                "The store %s throws data away when its memory is full (maxmemory-policy %s): sessions will be lost. Set it to noeviction.",
                self._place.shown,
                policy,
            )

    async def _beat(self) -> None:
        await self.execute("SET", self.key("worker", self.worker), b"1", "PX", round(LIFE * 1000))

    async def _keep_beating(self) -> None:
        assert self._beat_now is not None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT):
                    await self._beat_now.wait()
            self._beat_now.clear()
            with suppress(StoreError):  # that it is gone is in the log
                await self._beat()

    def _deliver(self, message: bytes) -> None:
        if self.direct is not None:
            self.direct(message)

    def _note_loss(self) -> None:
        self.epoch += 1

    def _not_open(self) -> StoreError:
        return StoreError(f"The store {self._place.shown} is not open.")

    def _refused(self, error: Exception) -> StoreError:
        assert self._dialer is not None
        if self._routes is not None and self._dialer.is_replica(error):
            self._routes.cut()
        return self._dialer.refuse(error)
