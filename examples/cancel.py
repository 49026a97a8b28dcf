"""Cancelling: when the client gives up, the work stops."""

import asyncio
import threading
from contextlib import suppress

from callboard import Client, Context, Server
from callboard.client.errors import RequestTimeout

server = Server("patient", version="1.0.0")
events: list[str] = []
working, stopped = asyncio.Event(), asyncio.Event()
thread_stopped = threading.Event()


@server.tool
async def wait_for_ever() -> None:
    """An `async def` is cancelled where it waits; clean up as with any cancellation."""
    working.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        events.append("cleaned up")
        raise
    finally:
        stopped.set()


@server.tool
def crunch(ctx: Context) -> None:
    """A thread can't be interrupted: it has to look."""
    while not ctx.cancelled:
        threading.Event().wait(0.005)
    events.append("thread gave up")
    thread_stopped.set()


async def main() -> None:
    async with Client(server) as client, asyncio.timeout(5):
        # By cancelling the task that waits ...
        call = asyncio.create_task(client.call_tool("wait_for_ever"))
        await working.wait()
        call.cancel()
        await stopped.wait()
        assert events == ["cleaned up"]

        # ... or by a time limit.
        with suppress(RequestTimeout):
            await client.call_tool("crunch", timeout=0.05)
            raise AssertionError("it came back")
        assert await asyncio.to_thread(thread_stopped.wait, 2)
        assert events == ["cleaned up", "thread gave up"]

        # The connection lives on.
        assert len(await client.list_tools()) == 2
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
