"""A JSON Schema of your own, for tools whose arguments are known only at run time: it is advertised as it is, and it validates."""

import asyncio
from typing import Any

from callboard import Client, Context, Server

server = Server("generic", version="1.0.0")

# As it might come from an OpenAPI document or a database.
INPUT = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
        "amount": {"oneOf": [{"type": "integer", "minimum": 1}, {"const": "all"}]},
        "until": {"type": "string", "format": "date"},
    },
    "required": ["sku"],
    "dependentRequired": {"until": ["amount"]},
    "additionalProperties": False,
}
OUTPUT = {"type": "object", "properties": {"reserved": {"type": "integer"}}, "required": ["reserved"]}


@server.tool(input_schema=INPUT, output_schema=OUTPUT)
async def reserve(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Reserve a product. The function takes the arguments as one dict, as they came."""
    ctx.log("info", {"sku": arguments["sku"]})
    amount = arguments.get("amount", 1)
    return {"reserved": 99 if amount == "all" else amount}


def make_tool(name: str, properties: dict[str, Any]) -> None:
    """Any number of them can be made in a loop."""

    @server.tool(name=name, description=f"Call {name}.", input_schema={"type": "object", "properties": properties})
    async def call(arguments: dict[str, Any]) -> str:
        return f"{name} got {sorted(arguments)}"


async def main() -> None:
    make_tool("ping", {})
    make_tool("move", {"x": {"type": "number"}, "y": {"type": "number"}})

    async with Client(server) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert list(tools) == ["reserve", "ping", "move"]
        assert tools["reserve"].input_schema == INPUT
        assert tools["reserve"].output_schema == OUTPUT

        done = await client.call_tool("reserve", {"sku": "ABC-1", "amount": "all"})
        assert done.structured_content == {"reserved": 99}
        assert not (await client.call_tool("move", {"x": 1})).is_error

        for wrong in ({}, {"sku": "abc"}, {"sku": "ABC-1", "amount": 0}, {"sku": "ABC-1", "until": "2026-07-28"}, {"sku": "ABC-1", "x": 1}):
            assert (await client.call_tool("reserve", wrong)).is_error, wrong
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
