"""The life of a process whose client is measured: it connects, calls as often as it is told, and counts its own CPU time.

Standard library only, for the peers' environments load it too. The driver, `benchmarks/client.py`, names the target in the first argument
and then writes one order a line; each is answered by one line, all JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

TEXT = {"text": "hello world"}
SAID = {"result": "hello world"}


class Target(NamedTuple):
    """What a client is to be connected to.

    Attributes:
        kind: `http`, `stdio`, `memory` (the client's own kind of server, in its process) or `bare` (the least that can answer, there too).
        version: Protocol version.
        url: Of `http`.
        command: Of `stdio`.
        environment: Of its process.
    """

    kind: str
    version: str
    url: str = ""
    command: Sequence[str] = ()
    environment: Mapping[str, str] = MappingProxyType({})

    @property
    def modern(self) -> bool:
        """Whether it is the current protocol."""
        return self.version == "2026-07-28"


Call = Callable[[], Awaitable[None]]
"""One `tools/call`, its result checked."""
Connect = Callable[[Target], AbstractAsyncContextManager[Call]]
"""Opens a client and gives what makes one call."""


def run(connect: Connect) -> None:
    """Do as told until the input ends."""
    asyncio.run(_obey(connect, Target(**json.loads(sys.argv[1]))))


async def _obey(connect: Connect, target: Target) -> None:
    loop = asyncio.get_running_loop()
    async with connect(target) as call:
        _answer({})
        # A thread waits for orders, so that the loop sees meanwhile what servers do to idle connections.
        while order := await loop.run_in_executor(None, sys.stdin.readline):
            told: dict[str, int] = json.loads(order)
            _answer(await _make_calls(call, **told) if told else _census())


def _answer(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


async def _make_calls(call: Call, calls: int, at_once: int) -> dict[str, float]:
    async def repeat() -> None:
        for _ in range(calls // at_once):
            await call()

    gc.collect()
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(repeat() for _ in range(at_once)))
    used, taken = time.process_time() - used, time.perf_counter() - began
    return {"cpu_us": used / calls * 1e6, "wall_us": taken / calls * 1e6}


def _census() -> dict[str, int]:
    """What the process holds."""
    garbage = gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "rss_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "objects": len(gc.get_objects()),
        "garbage": garbage,
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }
