"""What drivers of a whole server share: an event loop on a clock of its own, what is logged meanwhile, what a message of a server must be.

A host serves one input after another, and is built anew from time to time. After each input it must be as it was before: no task, no session,
nothing raised that nobody saw, nothing logged as an error, no log line that a client could break in two.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from virtual_time import VirtualLoop

__all__ = ["Host", "check_message", "is_sampled", "read_message", "serve", "settle"]

REST: Final = 90.0  # seconds after which everything has come to its end by itself: sessions, tasks, asks, time limits
TURNS: Final = 10_000
LIFE: Final = 1_000  # inputs until a host is built anew
CRASH: Final = "Internal error"  # what clients are told of an exception
_logger = logging.getLogger("callboard")


class _Loop(VirtualLoop):
    """A loop that has nothing but timers: neither threads nor sockets, for which nobody has to look."""

    def __init__(self) -> None:
        super().__init__()
        self._selector.select = self._select  # type: ignore[attr-defined]

    def _select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.pass_time(timeout)
        return []


class Host:
    """Runs coroutines on virtual time, and holds them to leaving nothing behind."""

    def __init__(self) -> None:
        self.loop = _Loop()
        self.left = LIFE
        self._log = _Log()

    def play(self, data: bytes) -> None:
        """Play one input."""
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, None], *, level: int = logging.WARNING) -> None:
        """Run one input to its end, and everything that it set going.

        Args:
            work: What it does.
            level: Of what is logged meanwhile: the less severe, the more time it takes.

        Raises:
            AssertionError: Something is left.
        """
        self.left -= 1
        with self._log.listening(level):
            self.loop.run_until_complete(self._settle(work))
        unseen, self.loop.unseen = self.loop.unseen, []
        assert not unseen, f"nobody saw this: {unseen}"
        self._log.check()

    async def _settle(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        if len(asyncio.all_tasks()) > 1 or not all(timer.cancelled() for timer in _timers(self.loop)):
            await asyncio.sleep(REST)
        left = asyncio.all_tasks()
        assert len(left) == 1, f"tasks are left: {left}"

    def close(self) -> None:
        """End what it serves, and the loop."""
        self.loop.run_until_complete(self.end())
        self.loop.close()

    async def end(self) -> None:
        """End what it serves, in good order."""
        raise NotImplementedError

    def discard(self) -> None:
        """End all that is left after a fault."""
        with suppress(Exception):
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=REST))
        with suppress(Exception):
            self.close()


def serve(hosts: list[Host], make: Callable[[], Host], data: bytes) -> None:
    """Play an input on the host that is there, or a new one where there is none, or it is old; one that fails is not used again."""
    host = hosts.pop() if hosts else make()
    if not host.left:
        host.close()
        host = make()
    try:
        host.play(data)
    except BaseException:
        host.discard()
        raise
    hosts.append(host)


class _Log(logging.Handler):
    """Keeps what the product logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @contextmanager
    def listening(self, level: int) -> Iterator[None]:
        before, propagates = _logger.level, _logger.propagate
        _logger.addHandler(self)
        _logger.propagate = False
        if level < logging.WARNING:  # to change it is slow
            _logger.setLevel(level)
        try:
            yield
        finally:
            _logger.removeHandler(self)
            _logger.propagate = propagates
            if level < logging.WARNING:
                _logger.setLevel(before)

    def check(self) -> None:
        records, self.records = self.records, []
        for record in records:
            text = record.getMessage()
            assert record.levelno < logging.ERROR, f"{text} {record.exc_info}"
            assert text.isprintable(), f"a log line with what a client sent in it: {text!r}"


async def settle() -> None:
    """Let everything happen that needs no time; nothing here runs on threads."""
    loop = asyncio.get_running_loop()
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            return
    raise AssertionError(f"after {TURNS} turns of the event loop there is still something to do")


def _timers(loop: VirtualLoop) -> list[asyncio.TimerHandle]:
    return loop._scheduled  # type: ignore[attr-defined,no-any-return]


def is_sampled(data: bytes) -> bool:
    """Whether an input is one of the few whose answers slow judges read too; always the same ones."""
    return zlib.crc32(data) % 64 == 0


def read_message(text: bytes) -> Any:
    """The JSON of a message.

    Raises:
        AssertionError: It is no JSON that every reader takes.
    """
    try:
        value = json.loads(text.decode(), parse_constant=_refuse)
    except ValueError as error:
        raise AssertionError(f"no JSON: {text[:500]!r}") from error
    if b"\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse(name: str) -> None:
    raise ValueError(name)


def check_message(message: Any) -> None:
    """Hold a message of the server against JSON-RPC.

    Raises:
        AssertionError: It is none, or says that the server failed.
    """
    assert isinstance(message, dict), message
    assert message.get("jsonrpc") == "2.0", message
    if "method" in message:
        assert isinstance(message["method"], str), message
        assert not message.keys() & {"result", "error"}, message
        assert isinstance(message.get("params", {}), dict), message
        return
    assert ("result" in message) != ("error" in message), message
    if "result" in message:
        assert isinstance(message["result"], dict), message
        assert type(message["id"]) in {int, str}, message
        return
    error = message["error"]
    assert type(error["code"]) is int, message
    assert isinstance(error["message"], str), message
    assert error["message"], message
    assert not error["message"].startswith(CRASH), f"the server failed: {message}"
