"""A server over standard input and output: lines of JSON, and nothing else on standard output (SD-01, SD-02)."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from callboard.auth.principal import LOCAL
from callboard.transport.descriptor import Source, open_sink
from callboard.transport.endpoint import Endpoint
from callboard.transport.pipe import Lines, Pipe

__all__ = ["GRACE", "Streams", "guard", "run", "serve"]

# Seconds that requests in flight get to be answered when the input has ended, or a signal asked to stop. With what comes after it the
# process is gone in less than two (SD-06).
GRACE = 1.0
# Seconds that `run` then gives to tasks and threads which don't end.
LAST = 0.3
# Seconds that the lifespan gets to end.
TEARDOWN = 5.0
_log = logging.getLogger("callboard")


class Streams(NamedTuple):
    """Descriptors of the protocol's streams."""

    input: int
    output: int


@cache
def guard() -> Streams:
    """Take descriptors 0 and 1 for the protocol (SD-02, A38); the same ones when called again.

    From here on whatever reads standard input, child processes included, finds it empty, and whatever is printed goes to standard error.
    Call it before any code that may print.

    Raises:
        OSError: Standard input or output is closed.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise OSError("Serving over stdio needs standard input and standard output, and one of them was closed when this process started.")
    streams = Streams(os.dup(0), os.dup(1))
    if sys.platform == "win32":
        import msvcrt

        for fd in streams:
            msvcrt.setmode(fd, os.O_BINARY)  # A36: no carriage returns
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(null, 1)  # standard error is closed
    os.close(null)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return streams


async def serve(endpoint: Endpoint, *, streams: Streams | None = None, principal: str | None = LOCAL) -> None:
    """Serve one client, until it closes our input or a signal (SIGINT, SIGTERM) asks to stop.

    Requests that are in flight then have `GRACE` seconds to be answered. The server's lifespan surrounds it all.

    Args:
        endpoint: The server.
        streams: Descriptors to use; those of `guard` by default.
        principal: Who the client is.

    Raises:
        Exception: What the lifespan raised.
    """
    source_fd, sink_fd = streams or guard()
    mount = await endpoint.open()
    stop = asyncio.Event()
    sink = open_sink(sink_fd, stop.set)
    pipe = Pipe(endpoint, mount, sink.write, principal=principal)
    lines = Lines(mount.limits.max_line)
    over: list[bool] = []  # the input has ended: the client is gone

    def take(data: bytes) -> None:
        for line in lines.feed(data) if data else (lines.end(),):
            pipe.feed(line)
        if not data:
            over.append(True)
            stop.set()
        elif pipe.congested:
            source.pause()
            pipe.when_drained(source.resume)

    source = Source(source_fd, take)
    try:
        with _signals(stop.set):
            source.resume()
            await stop.wait()
            source.pause()
            if late := await pipe.drain(GRACE if sink.open else 0):
                _log.warning("Stopped with %d requests in flight; they were cancelled.", late)
    finally:
        source.pause()
        await pipe.drain(0)
        if over or not sink.open:
            await pipe.hang_up()
        try:
            async with asyncio.timeout(TEARDOWN):
                await endpoint.close()
        except TimeoutError:
            _log.warning("The server's lifespan did not end within %g s; it was cancelled.", TEARDOWN)
        finally:
            await pipe.close()


def run(endpoint: Endpoint) -> None:
    """Serve, for a program that does nothing else: once that is over, neither tasks nor threads keep the process (SD-06).

    Raises:
        Exception: What the lifespan raised.
    """
    guard()
    gc.freeze()  # what imports left behind need not be walked again and again
    asyncio.run(_serve_and_leave(endpoint))


async def _serve_and_leave(endpoint: Endpoint) -> None:
    status = 1
    try:
        await serve(endpoint)
        status = 0
    finally:
        threading.Thread(target=_leave, args=(status,), name="callboard-leave", daemon=True).start()


def _leave(status: int) -> None:
    """End the process unless it ends by itself first."""
    time.sleep(LAST)
    os._exit(status)


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM ask to stop; elsewhere than on the main thread, and on Windows, they do what they did."""
    loop = asyncio.get_running_loop()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, stop)
            except NotImplementedError:
                break
            before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
