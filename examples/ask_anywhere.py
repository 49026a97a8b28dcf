"""Asking in the middle of a function, written once: clients of 2026-07-28 and of 2025-11-25 get the same, and the order is placed once."""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, Literal

import callboard
from callboard import Client, Context, Server, types

server = Server("cafe", version="1.0.0")
orders: list[str] = []


@dataclass
class Drink:
    kind: Literal["tea", "coffee"]
    sugar: int = 1


@server.tool
async def order(ctx: Context) -> str:
    """Take an order."""
    drink = (await ctx.elicit("What would you like?", Drink)).value

    def place() -> int:
        orders.append(drink.kind)
        return len(orders)

    number = await ctx.once("order", place)  # a client of 2026-07-28 runs this function three times in all, but this once
    sure = await ctx.elicit(f"Number {number}: {drink.kind} with {drink.sugar}. Right?", bool)
    return f"number {number} of {len(orders)}: {'coming' if sure.value else 'poured away'}"


def fill_in(asked: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> dict[str, Any]:
    return {"kind": "tea"} if asked.message == "What would you like?" else {"value": True}


async def talk_2025(program: asyncio.subprocess.Process) -> list[Any]:
    """A client of 2025-11-25: all that it reads until its call is answered."""
    assert program.stdin is not None
    assert program.stdout is not None
    write = program.stdin.write

    def send(**message: Any) -> None:
        write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "example", "version": "1"}}
    send(id=1, method="initialize", params=hello)
    send(id=2, method="tools/call", params={"name": "order"})
    read: list[Any] = []
    while not (read and read[-1]["id"] == 2):
        read.append(json.loads(await program.stdout.readline()))
        if "method" in read[-1]:  # the server asks, with a request of its own
            asked = types.ElicitRequestFormParams(message=read[-1]["params"]["message"], requested_schema={})
            send(id=read[-1]["id"], result={"action": "accept", "content": fill_in(asked)})
    program.stdin.close()
    return read


async def main() -> None:
    async with Client(server, on_elicit=fill_in) as client:
        result = await client.call_tool("order")
    assert result.content == [types.TextContent(text="number 1 of 1: coming")]

    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(sys.executable, __file__, "serve", stdin=pipe, stdout=pipe)
    read = await talk_2025(program)
    await program.wait()
    assert [message["method"] for message in read[1:-1]] == ["elicitation/create", "elicitation/create"]
    assert read[-1]["result"]["content"] == [{"type": "text", "text": "number 1 of 1: coming"}]
    print("OK")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        callboard.run(server, transport="stdio")
    else:
        asyncio.run(main())
