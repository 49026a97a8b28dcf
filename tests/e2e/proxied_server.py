"""What stands behind the proxies of the deployment guide: `callboard run proxied_server.py`, for other programs' eyes.

KEEP_ALIVE is the longest silence on a stream, in seconds ("none" for any); WORKER the prefix of its sessions' ids, WHO=1 has it believe
X-User.
"""

import asyncio
import os
import secrets
import time

from msgspec import Struct

from callboard import Context, Server, asgi
from callboard.auth import Upstream
from callboard.transport.stream import Scope

PATIENCE = 10.0  # seconds that a tool waits for what another call must bring about
KEEP_ALIVE = os.environ.get("KEEP_ALIVE", "15")
WORKER = os.environ.get("WORKER", "")


class Tally(Struct):
    """What a session remembers.

    Attributes:
        count: How often it called `tally`.
    """

    count: int = 0


server = Server("proxied", version="1.0.0", state=Tally, channels=["everyone"])
ended: asyncio.Queue[str] = asyncio.Queue()


@server.tool
async def ticks(count: int, pause: float, ctx: Context) -> str:
    """Say the time, by the clock that all processes of a machine share, as progress."""
    for number in range(1, count + 1):
        await asyncio.sleep(pause)
        ctx.progress(number, count, repr(time.monotonic()))
    return "done"


@server.tool
async def hold(name: str, ctx: Context) -> str:
    """Report progress, then wait to be cancelled."""
    try:
        ctx.progress(1, 2, "holding")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended.put_nowait(name)
        raise
    return "never"


@server.tool
async def mute(name: str) -> str:
    """Wait to be cancelled, without a word."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended.put_nowait(name)
        raise
    return "never"


@server.tool
async def released() -> str:
    """Wait until a `hold` or `mute` is cancelled; answers its name."""
    return await asyncio.wait_for(ended.get(), PATIENCE)


@server.tool
async def measure(text: str) -> int:
    """Count the characters of a text."""
    return len(text)


@server.tool
async def repeat(size: int) -> str:
    """A text of so many characters."""
    return "x" * size


@server.tool
async def caller(ctx: Context) -> str:
    """Who asks: the peer's address, or whom the proxy names."""
    return str(ctx.principal)


@server.tool
async def process() -> str:
    """Which process, and which worker."""
    return f"{WORKER}{os.getpid()}"


@server.tool
async def tally(tally: Tally) -> int:
    """Count the session's calls of this tool."""
    tally.count += 1
    return tally.count


@server.tool
async def shout(line: str) -> str:
    """Say a line to every session."""
    server.broadcast("everyone", {"method": "notifications/message", "params": {"level": "notice", "data": line}})
    return "shouted"


@server.tool
async def announce(name: str) -> str:
    """Add a tool, so that listeners hear that the list changed."""

    async def act() -> str:
        return name

    server.tool(name=name, description=f"Play {name}.")(act)
    return f"added {name}"


def named(scope: Scope) -> str | None:
    """Whom the proxy has let in."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers.get(b"x-user", b"").decode("latin-1") or None


def address(scope: Scope) -> str:
    """The peer's address."""
    client = scope["client"]
    return str(client[0]) if isinstance(client, tuple | list) else "none"


IS_TOLD = bool(os.environ.get("WHO"))

app = asgi(
    server,
    hosts=["notes.example.com"],
    allow_remote=True,
    keep_alive=None if KEEP_ALIVE == "none" else float(KEEP_ALIVE),
    session_id=lambda: f"{WORKER}{secrets.token_urlsafe(16)}",
    auth=Upstream(named, issuers=["https://login.example.com"]) if IS_TOLD else None,
    resource="https://notes.example.com/mcp" if IS_TOLD else None,
    principal=None if IS_TOLD else address,
)
