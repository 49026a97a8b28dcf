"""Over stdin and stdout the client is whoever started the process: nobody else could grant it scopes (SD-11)."""

from pathlib import Path

import pytest

from callboard import Client

PROGRAM = """
import callboard
from callboard import Context, Server

server = Server("local")

@server.tool(scopes={"files:write"}, visible=lambda ctx: ctx.principal == "local")
async def write(ctx: Context) -> str:
    ctx.require("anything")
    return f"{ctx.principal} wrote"

callboard.run(server, transport="stdio")
"""


@pytest.mark.parametrize("versions", [None, ["2025-11-25"]])
async def test_every_scope_is_theirs(tmp_path: Path, versions: list[str] | None) -> None:
    program = tmp_path / "local.py"
    program.write_text(PROGRAM)
    async with Client(program, versions=versions) as client:
        assert [tool.name for tool in await client.list_tools()] == ["write"]
        assert (await client.call_tool("write")).text == "local wrote"
