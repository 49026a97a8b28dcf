"""A handler that answers whole requests and asks its user by hand: `NeedInput`, then `ctx.input`."""

import asyncio
from typing import Any

from callboard import Client, Fail, Handler, Reason, Request, ToolError, types
from callboard.handler import Channel, NeedInput

LIMIT = 100
FORM = {"type": "object", "properties": {"reason": {"type": "string", "minLength": 3}}, "required": ["reason"]}


class Purse(Handler[Any]):
    """Pays. Large amounts need somebody who says why."""

    capabilities = {"tools": {}}  # of whole requests nothing else says which there are

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []

    async def handle_request(self, request: Request, channel: Channel, state: Any) -> Any:
        if request.method == "tools/list":
            amount = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
            return [types.Tool(name="pay", description="Pay an amount.", input_schema=amount)]
        if request.method == "tools/call" and request.params.name == "pay":
            return self.pay(request.params.arguments["amount"], channel)
        return Fail(Reason.METHOD_NOT_FOUND)

    def pay(self, amount: int, channel: Channel) -> Any:
        reason = "small change"
        if amount > LIMIT:
            if channel.input is None:  # the first round
                params = {"mode": "form", "message": f"Pay {amount}?", "requestedSchema": FORM}
                return NeedInput({"approval": {"method": "elicitation/create", "params": params}}, state={"amount": amount})
            approval = channel.input.responses["approval"]  # client input: what it says is checked here
            if approval["action"] != "accept":
                return ToolError(f"Nobody wants to pay {channel.input.state['amount']}.")
            reason = approval["content"]["reason"]
        self.paid.append((amount, reason))
        return f"Paid {amount}."


async def main() -> None:
    answers = [types.ElicitResult(action="accept", content={"reason": "a piano"}), types.ElicitResult(action="decline")]
    asked: list[str] = []

    async def approve(params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return answers.pop(0)

    purse = Purse()
    async with Client(purse, on_elicit=approve) as client:
        for amount, text in ((5, "Paid 5."), (5000, "Paid 5000."), (300, "Nobody wants to pay 300.")):
            result = await client.call_tool("pay", {"amount": amount})
            (block,) = result.content
            assert isinstance(block, types.TextContent)
            assert (block.text, result.is_error) == (text, amount == 300)
    assert asked == ["Pay 5000?", "Pay 300?"]
    assert purse.paid == [(5, "small change"), (5000, "a piano")]
    print("OK")


if __name__ == "__main__":
    asyncio.run(main())
