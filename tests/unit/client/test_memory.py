"""A server in this process: what crosses from its tasks into the client's, and what does not."""

import asyncio
from contextvars import ContextVar

import msgspec
import pytest

from callboard import Client, Context, Server

PLACE = ContextVar("PLACE", default="nobody's")


class Form(msgspec.Struct):
    place: str


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_callbacks_do_not_run_in_the_context_of_the_server_s_call(version: str) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: Context) -> str:
        PLACE.set("the server's")
        answer = await ctx.elicit("Whose context is this?", Form)
        return answer.value.place if answer.value is not None else ""

    async def tell(_: object) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"place": PLACE.get()}

    PLACE.set("the client's")
    async with Client(server, on_elicit=tell, versions=version) as client:
        found = await client.call_tool("ask")
    assert "the client's" in str(found.content)
