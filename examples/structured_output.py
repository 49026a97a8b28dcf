"""What a tool returns: values become structured content with a schema, and the same as text; strings stay text."""

import asyncio
import json
from dataclasses import dataclass, field

import msgspec

from callboard import Client, Server, text
from callboard.types import UNSET

server = Server("files", version="1.0.0")


@dataclass
class Folder:
    """May hold itself: recursive types are fine."""

    name: str
    folders: list["Folder"] = field(default_factory=list)


class Found(msgspec.Struct, tag="found", rename="camel"):
    file_name: str
    size: int


class Missing(msgspec.Struct, tag="missing"):
    did_you_mean: list[str]


@server.tool
async def tree(depth: int) -> Folder:
    """A folder with folders in it."""
    return Folder(f"level {depth}", [await tree(depth - 1)] if depth else [])


@server.tool
async def stat(name: str) -> Found | Missing:
    """Look up a file."""
    return Found(name, 12) if name == "notes.txt" else Missing(["notes.txt"])


@server.tool
async def greet() -> str:
    """Say hello."""
    return "hello"


async def main() -> None:
    async with Client(server) as client:
        schemas = {tool.name: tool.output_schema for tool in await client.list_tools()}
        done = await client.call_tool("tree", {"depth": 1})
        assert done.structured_content == {"name": "level 1", "folders": [{"name": "level 0", "folders": []}]}
        assert done.content == [text(json.dumps(done.structured_content, separators=(",", ":")))], "for clients that read only text"
        assert isinstance(schemas["tree"], dict)

        found = await client.call_tool("stat", {"name": "notes.txt"})
        assert found.structured_content == {"type": "found", "fileName": "notes.txt", "size": 12}
        missing = await client.call_tool("stat", {"name": "note.txt"})
        assert missing.structured_content == {"type": "missing", "did_you_mean": ["notes.txt"]}

        plain = await client.call_tool("greet")
        assert plain.content == [text("hello")]
        assert plain.structured_content is UNSET, "absent, not null"
        assert schemas["greet"] is UNSET
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
