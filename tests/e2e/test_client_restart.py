"""A child process that ends is started again, and what was listened to is listened to again."""

import asyncio
from pathlib import Path

import pytest

from callboard import Client
from callboard.client.errors import ProcessExited

PROGRAM = """
import os
from callboard import Server

server = Server("mortal", version="1")


@server.tool
def pid() -> int:
    return os.getpid()


@server.tool
def die() -> None:
    os._exit(3)


@server.resource("test://a")
def a() -> str:
    return str(os.getpid())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mortal.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_child_that_ended_is_started_again(program: Path, version: str) -> None:
    """SD-08, SD-10, JR-25, A39: the call that it died of is lost, and is not repeated."""
    async with Client(program, versions=version) as client, asyncio.timeout(30):
        first = (await client.call_tool("pid")).data
        with pytest.raises(ProcessExited, match="exit code 3"):
            await client.call_tool("die")
        second = await asyncio.gather(*(client.call_tool("pid") for _ in range(5)))
        assert {result.data for result in second} != {first}
        assert len({result.data for result in second}) == 1
        assert (await asyncio.create_task(client.call_tool("pid"))).data == second[0].data


async def test_a_child_that_always_ends_is_given_up(program: Path) -> None:
    """SD-08: three times in a minute."""
    async with Client(program, versions="2026-07-28") as client, asyncio.timeout(30):
        for _ in range(4):
            with pytest.raises(ProcessExited):
                await client.call_tool("die")
        with pytest.raises(ProcessExited):
            await client.call_tool("pid")


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_what_was_listened_to_is_listened_to_again(program: Path, version: str) -> None:
    """SD-09, SB-10: and told of as changed, for nobody knows what happened meanwhile."""
    async with Client(program, versions=version) as client, client.listen(uris=["test://a"]) as changes, asyncio.timeout(30):
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        await client.call_tool("pid")
        assert type(await anext(changes)).__name__ == "ResourceUpdatedNotification"
