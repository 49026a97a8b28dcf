"""Rounds by hand: a function returns what it needs, with a state of its own, and is called again with both. What the client sees of it."""

import asyncio
from typing import Any

from callboard import Client, Context, NeedInput, Server, types
from callboard.client.errors import ServerError

server = Server("quiz", version="1.0.0")
ANSWERS = {"2 + 2": 4, "3 * 3": 9}


def question(text: str) -> dict[str, Any]:
    form = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    return {"answer": {"method": "elicitation/create", "params": {"message": text, "requestedSchema": form}}}


@server.tool
def quiz(ctx: Context) -> str | NeedInput:
    """Ask questions until one is answered wrong."""
    if ctx.input is None:  # the first round
        return NeedInput(question("2 + 2"), state=["2 + 2"])
    asked: list[str] = ctx.input.state  # ours: sealed, nobody else has read or changed it
    reply = ctx.input.responses.get("answer", {})  # the client's: check it
    if reply.get("action") != "accept" or reply.get("content", {}).get("answer") != ANSWERS[asked[-1]]:
        return f"{len(asked) - 1} right"
    left = [text for text in ANSWERS if text not in asked]
    return NeedInput(question(left[0]), state=[*asked, left[0]]) if left else "all right"


async def main() -> None:
    async with Client(server, on_elicit=lambda asked: {"answer": ANSWERS[asked.message]}) as client:
        assert (await client.call_tool("quiz")).content == [types.TextContent(text="all right")]
    async with Client(server, on_elicit=lambda _: {"answer": 4}) as client:
        assert (await client.call_tool("quiz")).content == [types.TextContent(text="1 right")]

    # What goes over the wire: without a callback, a client sees the rounds as they are.
    async with Client(server, capabilities={"elicitation": {}}) as client:
        first = await client.request("tools/call", {"name": "quiz"})
        assert first["resultType"] == "input_required"
        assert first["inputRequests"] == question("2 + 2")
        answers = {"answer": {"action": "accept", "content": {"answer": 5}}}
        retry = {"name": "quiz", "inputResponses": answers, "requestState": first["requestState"]}
        assert (await client.request("tools/call", retry))["content"][0]["text"] == "0 right"

        code = 0
        try:
            await client.request("tools/call", {**retry, "requestState": first["requestState"] + "x"})
        except ServerError as refused:
            code = refused.code
        assert code == -32602, "whatever is wrong with a state, and before any function of the server's runs"
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
