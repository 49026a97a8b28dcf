"""A program whose tasks are run by workers."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callboard import Context, Server, ToolError, asgi
from callboard.auth import Principal
from callboard.tasks import DocketTasks

FOLDER = Path(os.environ["DEPOT"])


@asynccontextmanager
async def lifespan(_server: Server) -> AsyncIterator[dict[str, str]]:
    """Something that functions find."""
    yield {"shelf": "third"}


server = Server("depot", lifespan=lifespan, tasks=DocketTasks(redelivery=1.0, poll=0.2), keys=["depot" * 8])


def principal(scope: Mapping[str, Any]) -> Principal | None:
    """Who asks, as a header says."""
    who = dict(scope["headers"]).get(b"x-who")
    return None if who is None else Principal(who.decode(), ["depot:write"], claims={"floor": 2})


app = asgi(server, principal=principal)


@server.tool(task="allowed")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@server.tool(task="always", scopes={"depot:write"})
async def tell(ctx: Context) -> dict[str, Any]:
    """What a function sees of its call."""
    claims: Any = getattr(ctx.principal, "claims", {})
    return {
        "who": ctx.principal,
        "scopes": sorted(ctx.scopes),
        "floor": claims.get("floor"),
        "shelf": ctx.locals["shelf"],
        "headers": ctx.headers,
        "trace": ctx.meta.get("traceparent"),
        "client": ctx.client_info.name,
    }


@server.tool(task="allowed")
def fall() -> str:
    """Fail as tools do."""
    raise ToolError("It fell.")


@server.tool(task="allowed", timeout=0.2)
async def dawdle() -> str:
    """Take too long."""
    await asyncio.sleep(60)
    return "never"


@server.tool(task="allowed")
async def confirm(ctx: Context) -> str:
    """Ask."""
    ctx.progress(1, 2, "Asking.")
    answer = await ctx.elicit("Sure?", bool, key="sure")
    return f"yes: {answer.value}"


async def _carry(ctx: Context) -> str:
    mark = await ctx.once("mark", lambda: secrets.token_hex(4))
    ctx.progress(1, 2, f"{os.getpid()} {mark} {ctx.chain_id}")
    while not (FOLDER / "go").exists() and not ctx.cancelled:  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.05)
    return f"{mark} {os.getpid()}"


@server.tool(task="allowed", idempotent=True)
async def carry(ctx: Context) -> str:
    """Work until told to end; may be begun again."""
    return await _carry(ctx)


@server.tool(task="allowed")
async def pay(ctx: Context) -> str:
    """Work until told to end; must not be begun again."""
    return await _carry(ctx)
