"""Whether a process lives, and whether it serves: what load balancers and orchestrators ask for.

`/healthz` says that the event loop turns; whoever asks restarts the process when no answer comes. `/readyz` says whether work should be sent
here: the lifespan has been entered, the store answers, and the server is not about to end. Both are for everybody, so they say no more than
one word; they cost no rate, and are answered within a second whatever the store does (SA39, SA40).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from socket import socket
from typing import Any

import msgspec

from callboard.errors import RegistrationError
from callboard.transport.endpoint import Endpoint
from callboard.transport.stream import JSON_HEADERS, Receive, Scope, Send

__all__ = ["ALIVE", "DRAINING", "OK", "READY", "Health", "answer_probe", "check_paths", "serve_probes"]

ALIVE, READY = "/healthz", "/readyz"
"""Where both are asked for."""
OK, DRAINING = "ok", "draining"
"""The word for a process that is fine, and for one that is about to end; every word but the first is why it is not."""

_log = logging.getLogger("callboard")
# Seconds that a store is waited for, and that what it came to counts for others who ask.
PATIENCE, KEPT = 0.8, 1.0
# On a port of their own: seconds that a probe may take, bytes that it may have, and how many there may be at once.
_SECONDS, _BYTES, _MOST = 5.0, 8192, 100
_PHRASES = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Service Unavailable"}


class Health:
    """Whether an endpoint serves, asked by as many as like: there is one look at the store at a time, and at most one a second.

    Args:
        endpoint: The endpoint.
        opens: Whether asking enters a lifespan that nobody has entered, as a first request would. Not where somebody else is at it.
    """

    def __init__(self, endpoint: Endpoint, *, opens: bool = True) -> None:
        self._endpoint = endpoint
        self._opens = opens
        self._looking: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._answered = False
        self._until = 0.0

    async def check(self) -> str:
        """`ok`; else `starting`, `draining` or `store`: what it lacks. Takes less than a second."""
        loop = asyncio.get_running_loop()
        mount = self._endpoint.mount
        if mount is None or mount.workers.loop is not loop:
            if not self._opens or not await self._enter(loop):
                return "starting"
            mount = self._endpoint.mount
        if mount is None or mount.draining:
            return DRAINING
        return OK if await self._store_answers(loop) else "store"

    async def _enter(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._opening is None or self._opening.done() or self._opening.get_loop() is not loop:
            self._opening = loop.create_task(self._open())
        await asyncio.wait({self._opening}, timeout=PATIENCE)
        return self._endpoint.mount is not None

    async def _open(self) -> None:
        try:
            await self._endpoint.open()
        except Exception:  # noqa: BLE001 - user code; who probes learns that it is not ready
            _log.exception("The server's lifespan failed.")

    async def _store_answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        looking = self._looking
        if looking is not None and looking.get_loop() is not loop:
            looking, self._until = None, 0.0
        if looking is None and loop.time() < self._until:
            return self._answered
        if looking is None:
            looking = self._looking = loop.create_task(self._look())
        done, _ = await asyncio.wait({looking}, timeout=PATIENCE)
        if not done:
            return False
        return self._answered

    async def _look(self) -> None:
        """Ask the store, and remember what came of it."""
        answered = False
        try:
            await self._endpoint.server.store.check()
            answered = True
        except Exception as error:  # noqa: BLE001 - a store may be anybody's; who asks learns that it does not answer
            _log.debug("The store does not answer: %s", error)
        finally:
            self._answered, self._looking = answered, None
            self._until = asyncio.get_running_loop().time() + KEPT


def check_paths(health: Any, path: str) -> dict[str, bool]:
    """The paths of probes, and whether each asks for readiness.

    Args:
        health: Path of the one that asks whether it lives, and of the one that asks whether it serves; None for none.
        path: Path of the endpoint.

    Raises:
        RegistrationError: These can't be paths.
    """
    if health is None:
        return {}
    if not isinstance(health, tuple | list) or len(health) != 2 or not all(isinstance(each, str) and each[:1] == "/" for each in health):
        raise RegistrationError(f"health takes two paths, like ('{ALIVE}', '{READY}'), or None for no such paths, not {health!r}.")
    alive, ready = health
    if alive == ready or path in health:
        raise RegistrationError(f"health: {alive!r} and {ready!r} must differ from each other, and from the endpoint's path {path!r}.")
    return {alive: False, ready: True}


async def answer_probe(scope: Scope, receive: Receive, send: Send, ready: Callable[[], Awaitable[str]] | None) -> None:
    """Answer a probe that came to an ASGI application.

    Args:
        scope: ASGI scope.
        receive: ASGI receive; a body, if there is one, is the HTTP server's to drop.
        send: ASGI send.
        ready: Says `ok`, or what is lacking; None where the question is only whether the process lives.
    """
    del receive
    headers = [*JSON_HEADERS]
    if scope["method"] in {"GET", "HEAD"}:
        word = OK if ready is None else await ready()
        status, body = (200 if word == OK else 503), msgspec.json.encode({"status": word})
        headers += [] if status == 200 else [(b"retry-after", b"1")]
    else:
        status, body = 405, b'{"status":"ask with GET"}'
        headers.append((b"allow", b"GET, HEAD"))
    with suppress(OSError):
        await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def serve_probes(sockets: list[socket], ready: Callable[[], Awaitable[str]]) -> Callable[[], None]:
    """Answer probes on sockets of their own, whatever goes on elsewhere.

    Args:
        sockets: Listening sockets.
        ready: Says `ok`, or what is lacking.

    Returns:
        What ends it.
    """
    asking: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(asking) >= _MOST:
            # The oldest: it has had its time, while a probe that has just come says at once what it wants.
            next(iter(asking)).transport.abort()
            asking.pop(next(iter(asking)))
        asking[writer] = None
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(head, ready))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # whoever asks so learns nothing
        finally:
            asking.pop(writer, None)
            writer.close()

    servers = [await asyncio.start_server(answer, sock=each, limit=_BYTES) for each in sockets]

    def end() -> None:
        for server in servers:
            server.close()

    return end


async def _answer(head: bytes, ready: Callable[[], Awaitable[str]]) -> bytes:
    """The whole answer to a request's head."""
    method, _, target = head.partition(b"\r\n")[0].partition(b" ")
    path = target.partition(b" ")[0].partition(b"?")[0]
    if method not in {b"GET", b"HEAD"}:
        status, word = (405, "ask with GET") if path else (400, "this is no HTTP request")
    elif path == ALIVE.encode():
        status, word = 200, OK
    elif path == READY.encode():
        word = await ready()
        status = 200 if word == OK else 503
    else:
        status, word = 404, f"ask for {ALIVE} or {READY}"
    body = msgspec.json.encode({"status": word})
    lines = b"".join(b"%b: %b\r\n" % header for header in JSON_HEADERS)
    text = b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (status, _PHRASES[status], lines, len(body))
    return text if method == b"HEAD" else text + body
