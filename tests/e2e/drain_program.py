"""What the drain tests serve: `drain_program:app` for ASGI servers, `drain_program.py:server` for `callboard run`."""

import asyncio
import os

import callboard
from callboard import Server
from callboard.limits import Limits

server = Server("drained")


@server.tool
async def linger(seconds: float) -> str:
    """Take some time."""
    await asyncio.sleep(seconds)
    return "lingered"


@server.tool
async def who() -> int:
    """The process that serves."""
    return os.getpid()


@server.tool
async def flood() -> str:
    """More than a client gets that does not read."""
    return "x" * 20_000_000


@server.tool
async def fall() -> None:
    """The process ends at once."""
    os._exit(9)


LIMITS = Limits(max_listens=2000, max_streams=4000, max_sessions=1000)
app = callboard.asgi(server, limits=LIMITS)
alone = callboard.asgi(server, sessions="off", limits=LIMITS)
