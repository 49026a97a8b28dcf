"""Listings over HTTP, and what a client learns from them: the headers that a tool's parameters want."""

import logging
from typing import Any

import pytest
from unit.client.peers import Asked, http_client, result, text_result

from callboard import types
from callboard.client.errors import ClientError, InvalidAnswer, ServerError

TOOL = {"name": "stow", "inputSchema": {"type": "object", "properties": {"bay": {"type": "string", "x-mcp-header": "Bay"}}}}


async def ok(asked: Asked) -> None:
    await asked.result(text_result())


def listing(items: list[dict[str, Any]], size: int) -> Any:
    async def reply(asked: Asked) -> None:
        at = int(asked.params.get("cursor") or 0)
        following = {"nextCursor": str(at + size)} if at + size < len(items) else {}
        await asked.result(result(tools=items[at : at + size], ttlMs=0, cacheScope="public", **following))

    return reply


async def test_a_listing_is_all_pages_and_a_cursor_means_one() -> None:
    """A61, PG-04."""
    tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(120)]
    async with http_client(listing(tools, 50)) as (client, peer):
        found = await client.list_tools()
        assert [tool.name for tool in found] == [tool["name"] for tool in tools]
        assert found.next_cursor is None
        assert [asked.params.get("cursor") for asked in peer.asked] == [None, "50", "100"]
        page = await client.list_tools("50")
        assert len(page) == 50
        assert page.next_cursor == "100"


async def test_an_empty_cursor_is_a_cursor_and_a_repeated_one_is_an_error() -> None:
    """PG-03, A61."""

    async def reply(asked: Asked) -> None:
        await asked.result(result(prompts=[{"name": "p"}], ttlMs=0, cacheScope="public", nextCursor=""))

    async with http_client(reply) as (client, peer):
        with pytest.raises(InvalidAnswer, match="repeats a cursor"):
            await client.list_prompts()
    assert len(peer.asked) == 2


async def test_a_listing_without_end_is_given_up() -> None:
    async def reply(asked: Asked) -> None:
        following = str(int(asked.params.get("cursor", 0)) + 1)
        await asked.result(result(resources=[], ttlMs=0, cacheScope="public", nextCursor=following))

    async with http_client(reply) as (client, peer):
        with pytest.raises(InvalidAnswer, match="1000 pages"):
            await client.list_resources()
    assert len(peer.asked) == 1000


async def test_listed_tools_are_called_with_the_headers_they_want() -> None:
    """HH-09, HH-15, HH-22."""

    async def reply(asked: Asked) -> None:
        await asked.result(result(tools=[TOOL], ttlMs=0, cacheScope="public") if asked.method == "tools/list" else text_result())

    async with http_client(reply) as (client, peer):
        await client.call_tool("stow", {"bay": "A"})
        await client.list_tools()
        for arguments in ({"bay": "A"}, {"bay": "Süd"}, {"bay": None}, {}, None):
            await client.call_tool("stow", arguments)
    sent = [asked.headers.get("mcp-param-bay") for asked in peer.asked if asked.method == "tools/call"]
    assert sent == [None, "A", "=?base64?U8O8ZA==?=", None, None, None]


async def test_a_header_that_was_missing_is_learnt_and_sent() -> None:
    """HH-21: once."""

    async def reply(asked: Asked) -> None:
        if asked.method == "tools/list":
            await asked.result(result(tools=[TOOL], ttlMs=0, cacheScope="public"))
        elif asked.headers.get("mcp-param-bay") == "A":
            await ok(asked)
        else:
            await asked.error(-32020, "Mcp-Param-Bay: missing")

    async with http_client(reply) as (client, peer):
        await client.call_tool("stow", {"bay": "A"})
        assert [asked.method for asked in peer.asked] == ["tools/call", "tools/list", "tools/call"]
        with pytest.raises(ServerError, match="missing"):
            await client.call_tool("stow", {"bay": "B"})
    assert [asked.method for asked in peer.asked[3:]] == ["tools/call", "tools/list", "tools/call"]


async def test_a_tool_with_bad_annotations_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """HH-14."""
    bad = {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A"}}}}

    async def reply(asked: Asked) -> None:
        await asked.result(result(tools=[bad, TOOL], ttlMs=0, cacheScope="public"))

    async with http_client(reply) as (client, _):
        with caplog.at_level(logging.WARNING, "callboard.client"):
            assert [tool.name for tool in await client.list_tools()] == ["stow"]
    assert "'bad'" in caplog.text


async def test_an_argument_that_no_header_can_carry_is_refused() -> None:
    tool = {"name": "t", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}}

    async def reply(asked: Asked) -> None:
        await asked.result(result(tools=[tool], ttlMs=0, cacheScope="public"))

    async with http_client(reply) as (client, _):
        await client.list_tools()
        with pytest.raises(ClientError, match="'n'"):
            await client.call_tool("t", {"n": 2**60})


async def test_a_server_without_prompts_has_none() -> None:
    async def reply(asked: Asked) -> None:
        if asked.method == "server/discover":
            await asked.result(result(supportedVersions=["2026-07-28"], capabilities={"tools": {}}, ttlMs=0, cacheScope="public"))
        else:
            await asked.error(-32601, "no such method", status=404)

    async with http_client(reply) as (client, _):
        assert await client.list_prompts() == []
        assert await client.list_resources() == []
        assert await client.list_resource_templates() == []
        with pytest.raises(ServerError, match="no such method"):
            await client.list_tools()


async def test_null_for_what_is_absent_is_understood() -> None:
    schema = {"type": "object", "properties": {"a": {"default": None}}}
    tool = {"name": "t", "title": None, "description": None, "annotations": {"title": None}, "inputSchema": schema, "_meta": None}

    async def reply(asked: Asked) -> None:
        if asked.method == "tools/list":
            await asked.result({"tools": [tool], "nextCursor": None, "ttlMs": 0, "cacheScope": "public", "_meta": None})
        else:
            await asked.result(
                {"content": [{"type": "text", "text": "a", "annotations": None}], "structuredContent": None, "isError": None}
            )

    async with http_client(reply) as (client, _):
        (found,) = await client.list_tools()
        assert (found.name, found.description, found.input_schema) == ("t", types.UNSET, schema)
        answer = await client.call_tool("t")
        assert answer.content == [types.TextContent(text="a")]
        assert answer.structured_content is None
        assert answer.is_error is types.UNSET
