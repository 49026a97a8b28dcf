"""What test_stdio.py starts: a server whose code does everything that a stdio server should not have to mind."""
# ruff: noqa: T201 - it prints because servers do

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct

from callboard import Context, Server
from callboard.compose import endpoint
from callboard.transport.stdio import run

print("import-time print")
os.write(1, b"import-time write\n")
logging.basicConfig(stream=sys.stdout, level=logging.INFO)


@contextlib.asynccontextmanager
async def lifespan(_server: Server) -> AsyncIterator[Mapping[str, Any]]:
    if "broken" in sys.argv:
        raise OSError("no database")
    print("lifespan in")
    yield {}
    print("lifespan out")


class Visits(Struct):
    """What a session keeps."""

    count: int = 0


def leave(reason: str, visits: Visits) -> None:
    print(f"session {reason} after {visits.count} visits")


server = Server("program", version="1", lifespan=lifespan, state=Visits, terminate=leave)
started: asyncio.Queue[str] = asyncio.Queue()
cancelled: asyncio.Queue[str] = asyncio.Queue()


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def visit(visits: Visits, milliseconds: float = 0) -> int:
    await asyncio.sleep(milliseconds / 1000)
    visits.count += 1
    return visits.count


@server.tool
async def size(text: str) -> int:
    return len(text)


@server.tool
async def large(length: int) -> str:
    return "x" * length


@server.tool
async def nap(milliseconds: float) -> str:
    await asyncio.sleep(milliseconds / 1000)
    return "rested"


@server.tool
async def progress(steps: int, length: int, ctx: Context) -> str:
    for step in range(steps):
        ctx.progress(step + 1, steps)
    return "x" * length


@server.tool
async def hold() -> str:
    started.put_nowait("hold")
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.put_nowait("hold")
    return "never"


@server.tool
async def wait_for_cancel() -> str:
    return await cancelled.get()


@server.tool
async def wait_for_start() -> str:
    return await started.get()


@server.tool
def block(ctx: Context) -> str:
    ctx.progress(1)
    threading.Event().wait()
    return "never"


@server.tool
async def block_on_a_foreign_thread(ctx: Context) -> str:
    ctx.progress(1)
    await asyncio.to_thread(threading.Event().wait)
    return "never"


@server.tool
async def refuse_to_end(ctx: Context) -> str:
    ctx.progress(1)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@server.tool
def pollute() -> str:
    print("print")
    sys.stdout.buffer.write(b"buffer\n")
    sys.stdout.flush()
    os.write(1, b"os.write\n")
    logging.getLogger("user").warning("log")
    subprocess.run(["echo", "child"], check=True)
    read = subprocess.run(["cat"], check=True, stdout=subprocess.PIPE).stdout
    return f"cat read {len(read)} bytes"


@server.tool
async def change() -> str:
    server.add(added)
    return "changed"


def added() -> str:
    return "new"


if __name__ == "__main__":
    run(endpoint(server))
