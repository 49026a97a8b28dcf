"""What the protocol has deprecated is marked where editors and type checkers look, and goes on working without a word."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard import Client, Context, Server, asgi
from callboard.client import inputs, requests
from callboard.handler import Channel
from callboard.types import CreateMessageRequestParams, CreateMessageResult, Root, TextContent

MARKED: list[Callable[..., Any]] = [
    *(Context.sample, Context.roots, Context.log, Channel.log),
    *(Server.log, Client.set_log_level),
]


@pytest.mark.parametrize("api", MARKED, ids=lambda api: api.__qualname__)
def test_what_is_deprecated_is_marked_for_type_checkers_and_readers(api: Callable[..., Any]) -> None:
    """DP-01, DP-07: natively (PEP 702), with the SEP and the earliest removal."""
    mark = api.__deprecated__  # type: ignore[attr-defined] # what `deprecated` leaves on a function
    assert "SEP-2577" in mark
    assert "2027-07-28" in mark
    assert api.__doc__ is not None
    assert "SEP-2577" in api.__doc__ or "Context.log" in api.__doc__


def test_callbacks_are_marked_where_their_types_are_told_of() -> None:
    """DP-07: a parameter can't be marked natively; its documentation can."""
    assert Client.__doc__ is not None
    assert "SEP-2577" in Client.__doc__
    for module in (inputs, requests):
        assert module.__file__ is not None
        assert "SEP-2577" in Path(module.__file__).read_text(encoding="utf-8")


async def test_it_works_without_a_warning() -> None:
    """DP-07: warnings are errors here. What serves clients of 2025 too must not warn with each of their calls."""
    server = Server("old ways")

    @server.tool
    async def ask(ctx: Context) -> str:
        ctx.log("info", "asking")
        said = await ctx.sample("hello")
        return f"{said.text} {len(await ctx.roots())}"

    def answer(_asked: CreateMessageRequestParams) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(text="hi"), model="m")

    heard: list[Any] = []
    roots = [Root(uri="file:///srv")]
    async with Client(server, on_sample=answer, on_roots=lambda: roots, on_log=heard.append, log_level="debug") as client:
        await client.set_log_level("info")
        assert (await client.call_tool("ask")).text == "hi 1"
    assert [note.data for note in heard][-1] == "asking"


def test_the_transport_of_2024_is_off_unless_it_is_asked_for() -> None:
    """DP-04."""
    assert asgi(Server("s")).sse_path is None
    assert asgi(Server("s"), sse_path="/sse").sse_path == "/sse"
