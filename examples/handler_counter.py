"""A handler: a server as a class. Its state goes from call to call as what callbacks return; tested as a function, then served."""

import asyncio
from typing import Any

from callboard import Client, Handler, ToolError
from callboard.handler import Channel, Hello, Reply, handle_method


class Counter(Handler[int]):
    """Counts, for each session of a 2025 client by itself. Without sessions every request begins anew."""

    version = "1.0.0"

    def init(self, hello: Hello) -> int:
        return int((hello.options or {}).get("start", 0))

    def list_tools(self, ctx: Channel, state: int) -> list[dict[str, Any]]:
        amount = {"type": "object", "properties": {"amount": {"type": "integer"}}}
        tools = [{"name": "add", "description": "Count on.", "inputSchema": amount}]
        return tools if state < 10 else [*tools, {"name": "reset", "description": "Begin anew."}]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: int) -> Any:
        if name == "reset":
            return Reply("Back to 0.", state=0)
        total = state + arguments.get("amount", 1)
        if total > 100:
            return Reply(ToolError("That is too much. Back to 0."), state=0)  # a failure of its own may leave a state, too
        return Reply({"structuredContent": {"total": total}}, state=total)


async def main() -> None:
    # as a function: no transport, no session but what is handed on
    counter = Counter()
    _, session = await handle_method(counter, "initialize")
    for amount, total in ((4, 4), (5, 9), (3, 12)):
        outcome, session = await handle_method(counter, "tools/call", {"name": "add", "arguments": {"amount": amount}}, 1, session)
        assert isinstance(outcome, Reply)
        assert session.state == total
    listed, _ = await handle_method(counter, "tools/list", {}, 2, session)
    assert isinstance(listed, Reply)
    assert [tool["name"] for tool in listed.value["tools"]] == ["add", "reset"]
    outcome, session = await handle_method(counter, "tools/call", {"name": "add", "arguments": {"amount": 200}}, 3, session)
    assert isinstance(outcome, Reply)
    assert (outcome.value["isError"], session.state) == (True, 0)

    # as a server, to a client of the current protocol, which has no sessions
    async with Client(Counter) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add"]
        for _ in range(2):
            result = await client.call_tool("add", {"amount": 4})
            assert result.structured_content == {"total": 4}
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
