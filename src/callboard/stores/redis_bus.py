"""The Bus in a Redis: one stream that every process reads from where it was.

Rules:
    1. What was published waits in a bounded outbox; one batch at a time is on its way, again and again until the Redis says that it has it.
       The Redis counts what it has of each publisher, so that a batch that comes twice is kept once.
    2. Everybody reads everything, in the stream's order, the publisher's own process included, and hands it to subscribers of its topic.
    3. The stream holds the newest 10,000 messages and about 32 MiB. Each message has a number: who finds one missing has missed it, whether
       it was away for too long or the Redis has lost its memory, and tells the topic `LOST`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident
from typing import Any

from callboard.errors import StoreError
from callboard.stores.redis_dial import pack
from callboard.stores.redis_kv import Commands
from callboard.stores.redis_link import Link
from callboard.stores.redis_script import Script
from callboard.stores.topics import LOST, Topics

__all__ = ["RedisBus"]

MAX_ENTRIES = 10_000
MAX_BYTES = 32 << 20
# What may wait to be published: messages and bytes; and how much of it goes at once.
MAX_OUTBOX = (10_000, 16 << 20)
_BATCH = (500, 1 << 20)
_PAGE = 1000  # messages read at once
_TURN = 100  # messages delivered before others have a turn
BLOCK = 1.0  # seconds that a read waits for something new
_PAUSE = 0.05
_MEMORY = 3_600_000  # milliseconds that the count of a publisher is remembered
_START = "0-0"
_log = logging.getLogger("callboard.stores")
_PUBLISH = Script(
    """
local seen, number = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[1])
local count = tonumber(redis.call('HGET', KEYS[3], 'count') or '0')
local bytes, entries, id = 0, 0, ''
for i = 5, #ARGV, 2 do
  if number > seen then
    bytes, entries, count = bytes + #ARGV[i] + #ARGV[i + 1], entries + 1, count + 1
    id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 't', ARGV[i], 'm', ARGV[i + 1], 'n', string.format('%.0f', count))
  end
  number = number + 1
end
if entries > 0 then
  redis.call('SET', KEYS[2], string.format('%.0f', number - 1), 'PX', ARGV[4])
  redis.call('HSET', KEYS[3], 'count', string.format('%.0f', count))
  bytes = redis.call('HINCRBY', KEYS[3], 'bytes', bytes)
  entries = redis.call('HINCRBY', KEYS[3], 'entries', entries)
  if bytes > tonumber(ARGV[3]) then
    redis.call('XTRIM', KEYS[1], 'MAXLEN', entries)
    redis.call('HDEL', KEYS[3], 'bytes', 'entries')
  end
end
return id
"""
)


def _order(position: str) -> tuple[int, int]:
    first, _, second = position.partition("-")
    return int(first), int(second)


def _read(fields: Any) -> tuple[str, bytes, int] | None:
    """Topic, message and number of an entry of the stream; None where it is not one of ours."""
    try:
        _, topic, _, message, _, number = fields
        return topic.decode(errors="surrogatepass"), message, int(number)
    except (TypeError, ValueError):
        return None


class RedisBus:
    """`Bus` in a Redis.

    Args:
        commands: Where the Redis is asked.
        missed: Called when messages were lost that this process should have heard.

    Attributes:
        observe: Called with the seconds from publishing to hearing of some of the messages of this process; None for nobody.
        position: Id of the newest message that was delivered, and within `deliver`, of the one that is being delivered; empty until the
            store is open.
    """

    def __init__(self, commands: Commands, missed: Callable[[], None]) -> None:
        self.position = ""
        self.observe: Callable[[float], None] | None = None
        self._commands = commands
        self._missed = missed
        self._topics = Topics()
        self._lock = Lock()
        self._outbox: deque[tuple[bytes, bytes, float]] = deque()
        self._heard = 0
        self._under_way: deque[tuple[tuple[int, int], float]] = deque(maxlen=100)
        self._size = 0
        self._dropped = 0
        self._publisher = secrets.token_hex(8)
        self._number = 1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._wake: asyncio.Event | None = None
        self._emptied = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def publish(self, topic: str, message: bytes) -> None:
        """Send a message, from any thread: it is put into the outbox, or, where that is full, dropped with a line in the log."""
        name = topic.encode(errors="surrogatepass")
        with self._lock:
            size = len(name) + len(message)
            if len(self._outbox) >= MAX_OUTBOX[0] or self._size + size > MAX_OUTBOX[1]:
                self._dropped += 1
                if self._dropped == 1:
                    _log.error("Messages of the Bus are dropped: the store does not take them, and %d wait already.", len(self._outbox))
                return
            self._outbox.append((name, message, time.monotonic()))
            self._size += size
            loop, wake = self._loop, self._wake
        if loop is None or wake is None:
            return
        if get_ident() == self._thread:
            wake.set()
        else:
            with suppress(RuntimeError):  # that loop has ended: it goes out when the store is opened on another one
                loop.call_soon_threadsafe(wake.set)

    def subscribe(self, topic: str, deliver: Callable[[bytes], None]) -> Callable[[], None]:
        """Have `deliver` called, on the event loop, with every message of a topic; call what is returned to end it."""
        return self._topics.subscribe(topic, deliver)

    async def since(self, position: str) -> list[tuple[str, str, bytes]]:
        """Messages after a position that the stream still has, oldest first.

        Args:
            position: A value of `position`, of this or another process; nothing comes after the empty one.

        Returns:
            Id, topic and message of each.

        Raises:
            StoreError: No answer in time.
        """
        found: list[tuple[str, str, bytes]] = []
        while position:
            first, second = _order(position)
            rows = await self._commands.execute("XRANGE", self._keys()[0], f"{first}-{second + 1}", "+", "COUNT", _PAGE)
            found += [(id_.decode(), read[0], read[1]) for id_, fields in rows if (read := _read(fields)) is not None]
            position = rows[-1][0].decode() if len(rows) == _PAGE else ""
        return found

    def _keys(self) -> tuple[str, str, str]:
        key = self._commands.key
        return key("{bus}"), key("{bus}", self._publisher), key("{bus}", "size")

    @property
    def stream(self) -> str:
        """Name of the stream's key."""
        return self._keys()[0]

    async def open(self, link: Link) -> None:
        """Begin to publish and to listen; when it returns, whatever is published from now on is heard.

        Args:
            link: A connection for the reads that wait; they take `BLOCK` seconds of its time limit.

        Raises:
            StoreError: No answer in time.
        """
        self.position, self._heard = await self._find_newest(link)
        self._under_way.clear()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._publisher = secrets.token_hex(8)
        self._number = 1
        self._wake = asyncio.Event()
        self._wake.set()
        self._emptied = asyncio.Event()
        self._tasks = [self._loop.create_task(self._listen(link)), self._loop.create_task(self._empty())]

    async def close(self, grace: float) -> None:
        """Stop both.

        Args:
            grace: Seconds for what is in the outbox yet.
        """
        tasks, self._tasks = self._tasks, []
        try:
            if tasks and self._outbox:
                self._emptied.clear()
                async with asyncio.timeout(grace):
                    await self._emptied.wait()
        except TimeoutError:
            _log.warning("The store is closed with %d messages of the Bus that nobody will hear.", len(self._outbox))
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self._loop = self._wake = None

    # ------------------------------------------------------------------------------------------------------------------- out

    async def _empty(self) -> None:
        assert self._wake is not None
        while True:
            if not self._outbox:
                self._emptied.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            self._emptied.clear()
            batch = self._next_batch()
            newest = await self._send(batch)
            self._number += len(batch)
            with self._lock:
                for topic, message, _ in batch:
                    self._outbox.popleft()
                    self._size -= len(topic) + len(message)
                dropped, self._dropped = self._dropped, 0
            if dropped:
                _log.error("%d messages of the Bus were dropped.", dropped)
            if newest and self.observe is not None:
                self._under_way.append((_order(newest.decode()), batch[0][2]))
                self._measure()

    def _next_batch(self) -> list[tuple[bytes, bytes, float]]:
        batch: list[tuple[bytes, bytes, float]] = []
        size = 0
        with self._lock:
            for message in self._outbox:
                size += len(message[1])
                if batch and (len(batch) >= _BATCH[0] or size > _BATCH[1]):
                    break
                batch.append(message)
        return batch

    async def _send(self, batch: list[tuple[bytes, bytes, float]]) -> bytes:
        """Have the Redis take a batch, however often it must be offered; the id of its last message."""
        args = [part for message in batch for part in message[:2]]
        refused = False
        while True:
            try:
                newest: bytes = await self._commands.run(_PUBLISH, self._keys(), (self._number, MAX_ENTRIES, MAX_BYTES, _MEMORY, *args))
            except StoreError as error:
                if error.__cause__ is not None and not refused:  # it is there, and does not want it
                    refused = True
                    _log.error("The Bus can't publish, and tries again: %s", error)
                await asyncio.sleep(_PAUSE * 10 if refused else _PAUSE)
            else:
                return newest

    # -------------------------------------------------------------------------------------------------------------------- in

    async def _listen(self, link: Link) -> None:
        from redis.exceptions import ResponseError

        read = ("XREAD", "COUNT", _PAGE, "BLOCK", round(BLOCK * 1000), "STREAMS", self.stream)
        since, is_told = link.since, False
        while True:
            try:
                if since != link.since:
                    await self._find_place(link)
                    since = link.since
                reply = await link.send(pack((*read, self.position)))
                if since == link.since and reply:  # or else it waited for another connection than the one that we thought of
                    await self._deliver(reply[0][1])
            except StoreError:
                await asyncio.sleep(_PAUSE)
            except Exception as error:  # noqa: BLE001 - whatever it was, this process must not stay deaf for ever
                if not isinstance(error, ResponseError) and not is_told:
                    is_told = True
                    _log.exception("The Bus can't read what is under %s, and tries again.", self.stream)
                link.cut(str(error))  # the slot has moved, the master has changed, or somebody put another thing under our key
                await asyncio.sleep(_PAUSE * 10)

    async def _deliver(self, rows: list[Any]) -> None:
        for turn, (id_, fields) in enumerate(rows, 1):
            self.position = id_.decode()
            read = _read(fields)
            if read is None:
                _log.error("Somebody else has written into %s: that is not a message of the Bus.", self.stream)
                continue
            topic, message, number = read
            missed, self._heard = number != self._heard + 1, number
            if missed:
                self._tell_loss()
            self._topics.deliver(topic, message)
            if turn % _TURN == 0:
                await asyncio.sleep(0)
        if self.observe is not None:
            self._measure()

    def _measure(self) -> None:
        """Tell how long those of our own messages took that have come back."""
        place, now = _order(self.position), time.monotonic()
        while self._under_way and self._under_way[0][0] <= place:
            published = self._under_way.popleft()[1]
            if self.observe is not None:
                self.observe(now - published)

    def _tell_loss(self) -> None:
        _log.error("Messages of the Bus were lost: this process was away for too long or is too slow, or the store has lost data.")
        self._missed()
        self._topics.deliver(LOST, b"")

    async def _find_place(self, link: Link) -> None:
        """See whether the stream is still the one that was read: where the Redis has lost its end, what comes next may lie before us."""
        last, number = await self._find_newest(link)
        if _order(last) < _order(self.position):
            self.position, self._heard = last, number
            self._tell_loss()

    async def _find_newest(self, link: Link) -> tuple[str, int]:
        """Position and number of the newest message."""
        count, newest = await asyncio.gather(
            link.send(pack(("HGET", self._keys()[2], "count"))),  # first: what comes in between is found in the stream
            link.send(pack(("XREVRANGE", self.stream, "+", "-", "COUNT", 1))),
        )
        return newest[0][0].decode() if newest else _START, self._number_of(newest, count)

    @staticmethod
    def _number_of(newest: list[Any], count: bytes | None) -> int:
        read = _read(newest[0][1]) if newest else None
        return int(count or 0) if read is None else read[2]
