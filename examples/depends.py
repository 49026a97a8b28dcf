"""What a function needs and the caller doesn't give: `Depends`, made per call, shared within it, torn down after it."""

import asyncio
from collections.abc import AsyncIterator

from callboard import Client, Context, Depends, Server, ToolError

server = Server("accounts", version="1.0.0")
events: list[str] = []


class Connection:
    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.balance = {"ada": 10}


async def connect(ctx: Context) -> AsyncIterator[Connection]:
    """Teardown runs when the call is over, also when it failed."""
    events.append("open")
    try:
        yield Connection(ctx.method)
    except ToolError:
        events.append("roll back")
        raise
    finally:
        events.append("close")


class Accounts:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection


def accounts(connection: Connection = Depends(connect)) -> Accounts:
    """Dependencies may have dependencies."""
    return Accounts(connection)


@server.tool
async def withdraw(name: str, amount: int, book: Accounts = Depends(accounts), connection: Connection = Depends(connect)) -> int:
    """Take money from an account."""
    assert book.connection is connection, "one connection per call, whoever asks for it"
    if amount > book.connection.balance[name]:
        raise ToolError(f"{name} has only {book.connection.balance[name]}.")
    return book.connection.balance[name] - amount


async def main() -> None:
    async with Client(server) as client:
        (tool,) = await client.list_tools()
        assert set(tool.input_schema["properties"]) == {"name", "amount"}, "clients don't see what is injected"

        assert (await client.call_tool("withdraw", {"name": "ada", "amount": 3})).structured_content == 7
        assert events == ["open", "close"]

        events.clear()
        assert (await client.call_tool("withdraw", {"name": "ada", "amount": 30})).is_error
        assert events == ["open", "roll back", "close"]

        events.clear()
        assert (await client.call_tool("withdraw", {"name": "ada", "amount": 3, "connection": {}})).is_error, "nor can they set it"
        assert events == []
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
