"""A child process that broke off in a bad way, and the one that comes after it."""

import asyncio

import fault_child
import pytest
from endings import ends, handed_back, watched

from callboard.client.client import Client
from callboard.client.errors import ClientError, ConnectionFailed, InvalidAnswer

VERSIONS = ("2026-07-28", "2025-11-25")
LIMIT = 8.0  # seconds until there must be another one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["close_stdin", "close_stdout", "leave", "giant_line"])
async def test_a_child_that_broke_off_is_replaced_however_little_time_there_is(kind: str, version: str) -> None:
    """SD-08: the old one may be hung, and has to go first; that must not cost the new one its life."""
    command = fault_child.command(kind, share=0.2)
    async with watched(), Client(command, versions=(version,), connect_timeout=1.0, max_message=2**20) as client:
        outcome = await ends(client.call_tool("echo", {"text": "one"}), 2, "the call that breaks")
        assert isinstance(outcome.error, ConnectionFailed | InvalidAnswer)
        deadline = asyncio.get_running_loop().time() + LIMIT
        while True:
            outcome = await ends(client.list_tools(), LIMIT, "a call of the next child")
            if outcome.error is None or asyncio.get_running_loop().time() > deadline:
                break
            assert isinstance(outcome.error, ClientError)
            await asyncio.sleep(0.2)
        handed_back(outcome)
