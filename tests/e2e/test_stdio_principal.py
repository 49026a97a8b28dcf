"""Who is at the other end of stdin and stdout: SD-11 has no authorization there."""

import sys
from pathlib import Path

import pytest

import callboard
from callboard import Client, RegistrationError, Server

PROGRAM = '''
import asyncio, sys
import callboard
from callboard import Context, Server
from callboard.auth import Principal

server = Server("who", version="1")

@server.tool(scopes={"write"})
async def write(ctx: Context) -> str:
    """Write."""
    return f"{ctx.principal} wrote"

@server.tool
async def look(ctx: Context) -> str:
    """Look."""
    return f"{ctx.principal} {ctx.headers}"

GIVEN = {"default": {}, "ada": {"principal": Principal("ada", ["write"])}, "eve": {"principal": "eve"}, "nobody": {"principal": None}}
if __name__ == "__main__":
    asyncio.run(callboard.stdio(server, **GIVEN[sys.argv[1]]))
'''


@pytest.mark.parametrize(
    ("given", "name", "may_write"), [("default", "local", True), ("ada", "ada", True), ("eve", "eve", False), ("nobody", "None", False)]
)
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_who_started_the_process_may_do_everything_unless_it_says_otherwise(
    tmp_path: Path, given: str, name: str, version: str, *, may_write: bool
) -> None:
    """SD-11, SC-10: no token, no login; the process has the rights and the environment of who started it."""
    (tmp_path / "who.py").write_text(PROGRAM)
    async with Client([sys.executable, str(tmp_path / "who.py"), given], versions=version) as client:
        assert (await client.call_tool("look")).text == f"{name} None"
        if may_write:
            assert (await client.call_tool("write")).text == f"{name} wrote"
        else:
            with pytest.raises(callboard.CallboardError, match="needs the scope write"):
                await client.call_tool("write")


@pytest.mark.parametrize("principal", ["", 5, ["ada"]])
async def test_what_can_be_nobody_is_refused(principal: object) -> None:
    with pytest.raises(RegistrationError, match="principal is a name"):
        await callboard.stdio(Server("s"), principal=principal)  # type: ignore[arg-type] # that is the test
