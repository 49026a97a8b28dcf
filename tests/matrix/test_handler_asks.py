"""A handler that asks its client: an approval by hand, and `ctx.elicit`, in both eras."""

from typing import Any

import pytest
from legacy_driver import Legacy
from rounds import Rounds, accept
from virtual_time import virtual_time

from callboard import asgi
from callboard.handler import Channel, Handler, NeedInput, Reply, Stream

QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Spend 100?",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
}
CAPABLE: dict[str, Any] = {"elicitation": {"form": {}}}


class Approvals(Handler[int]):
    """Spends money when its user says so.

    Attributes:
        rounds: What `ctx.input` was when a call ran.
    """

    def __init__(self) -> None:
        self.rounds: list[Any] = []

    def list_tools(self, ctx: Channel, state: int) -> list[Any]:
        return [{"name": name} for name in ("spend", "ask", "stream")]

    async def call_tool(self, name: str, arguments: dict[str, Any], ctx: Channel, state: int) -> Any:
        if name == "ask":
            answer = await ctx.elicit("Spend 100?", bool)
            return Reply(f"spent {state + 100}" if answer.value else "kept", state=state + 100)
        self.rounds.append(None if ctx.input is None else ctx.input.state)
        if ctx.input is None:
            if name == "stream":
                ctx.send("ask")
                return Stream(state)
            return NeedInput({"approval": QUESTION}, state={"amount": 100})
        approval = ctx.input.responses["approval"]
        if approval["action"] != "accept" or not approval["content"]["ok"]:
            return "kept"
        spent = state + (ctx.input.state or {"amount": 1})["amount"]
        return Reply(f"spent {spent}", state=spent)

    async def handle_message(self, message: Any, channel: Channel, state: int) -> Any:
        return NeedInput({"approval": QUESTION})


@pytest.mark.parametrize(("ok", "text"), [(True, "spent 100"), (False, "kept")])
@virtual_time
async def test_an_approval_by_hand_on_the_current_protocol(*, ok: bool, text: str) -> None:
    """Scenario 42, of a handler."""
    # MR-01, MR-03
    approvals = Approvals()
    rounds = Rounds(asgi(approvals), lambda key, request: accept(ok=ok))
    assert (await rounds.call("spend")).text == text
    assert rounds.asked[0]["approval"]["params"] == QUESTION["params"]
    assert approvals.rounds == [None, {"amount": 100}]


@pytest.mark.parametrize(("tool", "texts"), [("spend", ["spent 100", "spent 200"]), ("stream", ["spent 1", "spent 2"])])
@virtual_time
async def test_an_approval_by_hand_in_a_session(tool: str, texts: list[str]) -> None:
    session = await Legacy(asgi(Approvals())).connect(capabilities=CAPABLE)
    for text in texts:
        async with session.open(tool, token=None) as stream:
            asked = await stream.message()
            assert (asked["method"], asked["params"]["message"]) == ("elicitation/create", "Spend 100?")
            await session.respond(asked, accept(ok=True))
            assert (await stream.message())["result"]["content"][0]["text"] == text


@virtual_time
async def test_a_stream_that_asks_by_hand_on_the_current_protocol() -> None:
    rounds = Rounds(asgi(Approvals()), lambda key, request: accept(ok=True))
    assert (await rounds.call("stream")).text == "spent 1"


@virtual_time
async def test_elicit_works_in_a_handler() -> None:
    app = asgi(Approvals())
    rounds = Rounds(app, lambda key, request: accept(value=True))
    assert (await rounds.call("ask")).text == "spent 100"
    session = await Legacy(app).connect(capabilities=CAPABLE)
    for text in ("spent 100", "spent 200"):
        async with session.open("ask", token=None) as stream:
            await session.respond(await stream.message(), accept(value=True))
            assert (await stream.message())["result"]["content"][0]["text"] == text


@virtual_time
async def test_a_client_that_can_not_be_asked_is_told_what_is_missing() -> None:
    # MR-05
    app = asgi(Approvals())
    answer = await Rounds(app, lambda key, request: None, capabilities={}).call("spend")
    assert (answer.status, answer.error["code"]) == (400, -32021)
    assert answer.error["data"]["requiredCapabilities"] == {"elicitation": {}}
    session = await Legacy(app).connect()
    assert (await session.call("spend")).error["code"] == -32603
