"""The client's pipes on event loops other than asyncio's own on Linux."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.client.peers import script

from callboard.client.client import Client
from callboard.client.errors import ClientError, ConnectionFailed, ProcessExited

ECHO = 'text(message, params["arguments"]["text"])'
MEGABYTE = "x" * 2**20


class Blind(asyncio.SelectorEventLoop):
    """Can't watch file descriptors that are not its own, as the loop of Windows that starts processes."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def new_uvloop() -> asyncio.AbstractEventLoop:
    uvloop: Any = pytest.importorskip("uvloop")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


async def converse() -> None:
    async with asyncio.timeout(30):
        async with Client(script(ECHO)) as client:
            assert (await client.call_tool("t", {"text": "hello"})).text == "hello"
            assert (await client.call_tool("t", {"text": MEGABYTE})).text == MEGABYTE
            answers = await asyncio.gather(*(client.call_tool("t", {"text": f"{number}{MEGABYTE[:5000]}"}) for number in range(100)))
            assert [answer.text for answer in answers] == [f"{number}{MEGABYTE[:5000]}" for number in range(100)]
        async with Client(script("os._exit(3)")) as client:
            with pytest.raises(ProcessExited, match="exit code 3"):
                await client.call_tool("t")
        with pytest.raises(ConnectionFailed, match="can't start"):
            async with Client([f"{os.sep}nowhere{os.sep}server"]):
                pass
        if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):  # uvloop tells of it when the child has exited
            with pytest.raises(ClientError, match="closed its pipes"):
                async with Client(script("os.close(1); time.sleep(60)"), timeout=5) as client:
                    await client.call_tool("t")


@pytest.mark.parametrize("make_loop", [asyncio.SelectorEventLoop, Blind, new_uvloop])
def test_every_event_loop_carries_lines_and_tells_of_the_end(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """SD-01, SD-08: in whatever way the loop reads pipes; and no descriptor is left."""
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.sleep(0))
        before = descriptors()
        runner.run(converse())
        runner.run(asyncio.sleep(0.05))
        assert descriptors() <= before + 1  # the loop's own for children's signals
