"""What sessions cost a worker that remembers them while nobody uses them: the look around of each second, a change told to all, and their end.

    python -m benchmarks.copies                        # 100,000 of them
    python -m benchmarks.copies --sessions 1e6

In one process and with sessions in memory, so that nothing else is counted. It says what each takes in microseconds of CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

from callboard import Server, asgi
from callboard.legacy.codec import Opening
from callboard.legacy.http import Legacy
from callboard.legacy.shared_table import SharedTable
from callboard.limits import Limits
from callboard.server.mount import Caller
from callboard.stores.memory import MemoryStore

SESSIONS = 100_000
FORGOTTEN, NEXT = "one is forgotten", "a look for the next one"
TIMES = 20


async def fill(sessions: int) -> tuple[Server, SharedTable]:
    """A worker that remembers so many sessions."""
    server = Server("copies", store=MemoryStore(shared=True))
    app = asgi(server, session_ttl=3600.0, limits=Limits(max_sessions=sessions))
    mount = await app.endpoint.open()
    older = app.endpoint.older
    assert isinstance(older, Legacy)
    table = older.shared(mount)
    assert table is not None
    opening = table.read(None)
    assert isinstance(opening, Opening)
    for _ in range(sessions):
        await table.open(opening, Caller(None, None))
    return server, table


async def time_of(act: Callable[[], Awaitable[object] | None], times: int = TIMES) -> float:
    """Microseconds of CPU; half of the times it is less."""
    took = []
    for _ in range(times):
        before = time.process_time()
        if (rest := act()) is not None:
            await rest
        await asyncio.sleep(0)
        took.append(time.process_time() - before)
    return median(took) * 1e6


async def measure(sessions: int) -> dict[str, float]:
    """Microseconds of CPU for each."""
    server, table = await fill(sessions)
    found = {
        "a look around": await time_of(table._look_around),  # noqa: SLF001 - only a timer calls it
        "a change told to all": await time_of(lambda: server.hub.publish("tools")),
    }
    ending = list(table.sessions.values())[: sessions // 2]
    before = time.process_time()
    for actor in ending:
        actor.let_go()
    found[FORGOTTEN] = (time.process_time() - before) / len(ending) * 1e6
    found[NEXT] = await time_of(table.idle._check)  # noqa: SLF001 - likewise
    return found


def main() -> None:
    """Measure, and say it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=float, default=SESSIONS, help=f"that a worker remembers ({SESSIONS:,})")
    for what, took in asyncio.run(measure(int(parser.parse_args().sessions))).items():
        print(f"{took:10,.1f} us  {what}")


if __name__ == "__main__":
    main()
