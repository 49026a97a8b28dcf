"""Ways to fail: told to the model, told to the program, or kept from both when it was a bug."""

import asyncio
import logging

from callboard import Client, Fail, Reason, Server, ToolError, text
from callboard.client.errors import ServerError

server = Server("bank", version="1.0.0")


@server.tool
async def pay(amount: int) -> str:
    """Pay."""
    if amount > 1000:
        raise ToolError("Too much: the limit is 1000.")
    if amount > 100:
        raise ToolError([text("Somebody has to sign this."), text("Ask Ada.")], structured={"signers": ["ada"]})
    if amount == 13:
        raise Fail.custom(4013, "Unlucky amounts are not supported.", {"try": [12, 14]})
    if amount == 7:
        raise Fail(Reason.MISSING_CAPABILITY, data={"requiredCapabilities": {"elicitation": {}}})
    return f"paid {1000 // amount}"


async def refused(client: Client, tool: str, amount: int) -> ServerError:
    try:
        await client.call_tool(tool, {"amount": amount})
    except ServerError as error:
        return error
    raise AssertionError("the call went through")


async def main() -> None:
    logging.getLogger("callboard").addHandler(memory := Memory())
    async with Client(server) as client:
        # For the model, to read and to react to: results with `is_error`.
        result = await client.call_tool("pay", {"amount": 5000})
        assert result.is_error
        assert result.content == [text("Too much: the limit is 1000.")]
        result = await client.call_tool("pay", {"amount": 500})
        assert result.structured_content == {"signers": ["ada"]}
        result = await client.call_tool("pay", {"amount": "five"})
        assert result.content == [text("1 argument is wrong:\n- amount: must be an integer")]

        # For the program: JSON-RPC errors.
        error = await refused(client, "pay", 13)
        assert (error.code, error.message, error.data) == (4013, "Unlucky amounts are not supported.", {"try": [12, 14]})
        assert (await refused(client, "pay", 7)).data == {"requiredCapabilities": {"elicitation": {}}}
        assert "Unknown tool" in (await refused(client, "no_such_tool", 1)).message

        # A bug: the client gets an id, the log has the same id with the traceback.
        error = await refused(client, "pay", 0)
        assert "ZeroDivisionError" not in str(error)
        assert "ZeroDivisionError" in memory.text
        error_id = error.message.partition("(id ")[2].rstrip(").")
        assert error_id in memory.text
    print("OK")


class Memory(logging.Handler):
    """Keeps what was logged."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += logging.Formatter().format(record)


if __name__ == "__main__":
    asyncio.run(main())
