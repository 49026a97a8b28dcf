"""What servers ask in the middle of a call: the client's callbacks answer, and the call goes on. The peer is nobody's framework."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import UNSET, Struct
from oracles import shared_schema, validate
from unit.client.peers import Asked, http_client, result, text_result

from callboard import Context, Server, types
from callboard.client.client import Client
from callboard.client.errors import InputRequired, InvalidAnswer, InvalidRequest
from callboard.client.inputs import MAX_ROUNDS, who_asks

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "seats": {"type": "integer", "minimum": 1, "default": 2},
        "days": {"type": "array", "items": {"type": "string", "enum": ["fri", "sat"]}, "default": ["sat"]},
        "aisle": {"type": "boolean"},
    },
    "required": ["name"],
}
ASK = {"method": "elicitation/create", "params": {"mode": "form", "message": "Who comes?", "requestedSchema": FORM}}
URL = {"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in", "url": "https://board.example/in"}}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {"messages": [{"role": "user", "content": {"type": "text", "text": "A rhyme?"}}], "maxTokens": 9},
}
ROOTS = {"method": "roots/list"}
RHYME = types.CreateMessageResult(role="assistant", model="m", content=types.TextContent(text="time"))
CALLS: dict[str, tuple[str, Callable[[Client], Awaitable[Any]], dict[str, Any]]] = {
    "tools/call": ("CallToolRequest", lambda client: client.call_tool("t", {"a": [1, None]}), text_result()),
    "prompts/get": ("GetPromptRequest", lambda client: client.get_prompt("p", {"a": "b"}), result(messages=[])),
    "resources/read": ("ReadResourceRequest", lambda client: client.read_resource("a://b"), result(contents=[], ttlMs=0)),
}


def asks(requests: dict[str, Any] | None = None, state: str | None = None) -> dict[str, Any]:
    """A result that asks for input."""
    found = {"inputRequests": requests, "requestState": state}
    return {"resultType": "input_required", **{key: value for key, value in found.items() if value is not None}}


def answers(*results: dict[str, Any]) -> Callable[[Asked], Awaitable[None]]:
    """A peer that gives these results, one after the other; the last again and again."""
    queue = list(results)

    async def answer(asked: Asked) -> None:
        await asked.result(queue.pop(0) if len(queue) > 1 else queue[0])

    return answer


async def asked_of(request: dict[str, Any], **callbacks: Any) -> dict[str, Any]:
    """What a client responds to one request."""
    async with http_client(answers(asks({"key": request}), text_result()), **callbacks) as (client, peer):
        await client.call_tool("t")
    response: dict[str, Any] = peer.asked[1].params["inputResponses"]["key"]
    return response


def never(*_: Any) -> Any:
    raise AssertionError("no callback may run")


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({}, {}),
        ({"on_elicit": never}, {"elicitation": {"form": {}, "url": {}}}),
        ({"on_sample": never}, {"sampling": {"tools": {}}}),
        ({"on_roots": never}, {"roots": {}}),
        ({"tasks": True}, {"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        (
            {"on_elicit": never, "tasks": True, "capabilities": {"elicitation": {"form": {}}, "extensions": {"x/y": {}}}},
            {"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}, "x/y": {}}},
        ),
        (
            {"on_roots": never, "capabilities": types.ClientCapabilities(experimental={"a": {}})},
            {"roots": {}, "experimental": {"a": {}}},
        ),
    ],
)
async def test_what_is_given_is_declared_in_every_request(options: dict[str, Any], declared: dict[str, Any]) -> None:
    """EL-01, SM-01, RT-01, TX-01."""
    async with http_client(answers(text_result()), **options) as (client, peer):
        await client.call_tool("t")
        await client.request("x/y")
    for asked in peer.asked:
        assert asked.params["_meta"]["io.modelcontextprotocol/clientCapabilities"] == declared


@shared_schema
@pytest.mark.parametrize("method", CALLS)
async def test_a_retry_is_the_same_request_with_all_inputs_and_the_state(method: str) -> None:
    """MR-11, MR-12, MR-13: a new id, the same keys, the state byte for byte."""
    definition, send, final = CALLS[method]
    state = 'v1."\\\u00e9\u2028\U0001f3ad\x01 =+/'
    asked_for = {"form": ASK, "model": SAMPLE, "roots \u00e9": ROOTS}
    options: dict[str, Any] = {
        "on_elicit": lambda _: {"name": "Ada"},
        "on_sample": lambda _: RHYME,
        "on_roots": lambda: [types.Root(uri="file:///srv", name="srv")],
    }
    async with http_client(answers(asks(asked_for, state), final), **options) as (client, peer):
        await send(client)
    first, second = peer.asked
    assert first.method == second.method == method
    assert first.message["id"] != second.message["id"]
    assert {"inputResponses", "requestState"}.isdisjoint(first.params)
    assert second.params == first.params | {
        "requestState": state,
        "inputResponses": {
            "form": {"action": "accept", "content": {"name": "Ada", "seats": 2, "days": ["sat"]}},
            "model": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "time"}},
            "roots \u00e9": {"roots": [{"uri": "file:///srv", "name": "srv"}]},
        },
    }
    assert {name: first.headers.get(name) for name in ("mcp-method", "mcp-name")} == {
        name: second.headers.get(name) for name in ("mcp-method", "mcp-name")
    }
    validate(definition, second.message)


async def test_arguments_that_change_meanwhile_are_sent_as_they_were() -> None:
    """MR-13."""
    arguments: dict[str, Any] = {"rows": ["a"]}

    def elicit(_: Any) -> None:
        arguments["rows"].append("b")

    async with http_client(answers(asks({"k": ASK}), text_result()), on_elicit=elicit) as (client, peer):
        await client.call_tool("t", arguments)
    assert [asked.params["arguments"] for asked in peer.asked] == [{"rows": ["a"]}] * 2


async def test_each_round_answers_its_own_questions_and_holds_its_own_state() -> None:
    """MR-12: no state where none was given."""
    rounds = (asks({"one": ASK}, "s1"), asks({"two": ASK}), asks(None, ""), text_result())
    async with http_client(answers(*rounds), on_elicit=lambda _: {"name": "Ada"}) as (client, peer):
        assert (await client.call_tool("t")).content == [types.TextContent(text="ok")]
    sent = [(asked.params.get("requestState"), list(asked.params.get("inputResponses", ()))) for asked in peer.asked]
    assert sent == [(None, []), ("s1", ["one"]), (None, ["two"]), ("", [])]
    assert "inputResponses" not in peer.asked[3].params


async def test_a_server_that_asks_for_a_retry_gets_one_at_once_even_without_callbacks() -> None:
    """MR-11: it sheds load."""
    async with http_client(answers(asks(state="s"), asks({}, "t"), text_result())) as (client, peer):
        assert (await client.call_tool("t")).content == [types.TextContent(text="ok")]
    assert [asked.params.get("requestState") for asked in peer.asked] == [None, "s", "t"]


async def test_rounds_are_bounded() -> None:
    """MR-09: a server may ask for ever; the client gives up, and what was asked last is told."""
    async with http_client(answers(asks({"k": ASK}, "s")), on_elicit=lambda _: None) as (client, peer):
        with pytest.raises(InputRequired, match=r"asks for input \(elicitation/create\) for more than 32 rounds") as caught:
            await client.call_tool("t")
    assert len(peer.asked) == 1 + MAX_ROUNDS
    assert (caught.value.input_requests, caught.value.request_state) == ({"k": ASK}, "s")


async def test_without_a_callback_for_one_of_them_nobody_is_asked_anything() -> None:
    """MR-11: all inputs or none."""
    requests = {"a": ASK, "b": SAMPLE, "c": {"method": "x/y"}}
    async with http_client(answers(asks(requests, "s")), on_elicit=never) as (client, peer):
        with pytest.raises(InputRequired, match=r"which nobody here answers; the client takes on_sample$") as caught:
            await client.call_tool("t")
    assert len(peer.asked) == 1
    assert (caught.value.input_requests, caught.value.request_state) == (requests, "s")


async def test_callbacks_of_one_round_run_at_once() -> None:
    together = asyncio.Barrier(3)

    async def elicit(asked: Any) -> dict[str, str]:
        async with asyncio.timeout(5):
            await together.wait()
        return {"name": asked.message}

    async def sample(_: Any) -> types.CreateMessageResult:
        async with asyncio.timeout(5):
            await together.wait()
        return RHYME

    requests = {key: {**ASK, "params": ASK["params"] | {"message": key * 2}} for key in "ab"} | {"c": SAMPLE}  # type: ignore[operator]
    async with http_client(answers(asks(requests), text_result()), on_elicit=elicit, on_sample=sample) as (client, peer):
        await client.call_tool("t")
    responses = peer.asked[1].params["inputResponses"]
    assert [responses[key].get("content", {}).get("name") for key in "abc"] == [key and key * 2 for key in "ab"] + [None]


async def test_calls_that_run_at_once_do_not_share_answers_or_states() -> None:
    """MR-14."""

    async def answer(asked: Asked) -> None:
        name = asked.params["name"]
        ask = {"method": "elicitation/create", "params": {"message": name, "requestedSchema": FORM}}
        await asked.result(text_result() if "requestState" in asked.params else asks({"key": ask}, f"state of {name}"))

    both = asyncio.Barrier(2)

    async def elicit(asked: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> dict[str, str]:
        async with asyncio.timeout(5):
            await both.wait()
        return {"name": asked.message}

    async with http_client(answer, on_elicit=elicit) as (client, peer):
        await asyncio.gather(client.call_tool("one"), client.call_tool("two"))
    retries = [asked.params for asked in peer.asked if "requestState" in asked.params]
    assert sorted(params["name"] for params in retries) == ["one", "two"]
    for params in retries:
        assert params["requestState"] == f"state of {params['name']}"
        assert params["inputResponses"]["key"]["content"]["name"] == params["name"]


class Guest(Struct):
    name: str
    seats: int | None = None
    aisle: Any = UNSET


@dataclass
class Visitor:
    name: str
    days: tuple[str, ...] = ("fri", "sat")


@pytest.mark.parametrize(
    ("given", "response"),
    [
        ({"name": "Ada", "seats": 3}, {"action": "accept", "content": {"name": "Ada", "seats": 3, "days": ["sat"]}}),
        (Guest("Ada"), {"action": "accept", "content": {"name": "Ada", "seats": 2, "days": ["sat"]}}),
        (Guest("Ada", aisle=True), {"action": "accept", "content": {"name": "Ada", "seats": 2, "days": ["sat"], "aisle": True}}),
        (Visitor("Ada"), {"action": "accept", "content": {"name": "Ada", "seats": 2, "days": ["fri", "sat"]}}),
        (
            types.ElicitResult(action="accept", content={"name": "Ada"}),
            {"action": "accept", "content": {"name": "Ada", "seats": 2, "days": ["sat"]}},
        ),
        (None, {"action": "decline"}),
        (types.ElicitResult(action="decline"), {"action": "decline"}),
        (types.ElicitResult(action="cancel", content={"name": "Ada"}), {"action": "cancel"}),
    ],
)
async def test_a_form_is_filled_in_in_any_way(given: Any, response: dict[str, Any]) -> None:
    """EL-06: fields left out get their defaults. EL-07: only an accepted form has content."""
    seen: list[Any] = []

    def elicit(asked: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> Any:
        seen.append(asked)
        return given

    assert await asked_of(ASK, on_elicit=elicit) == response
    assert seen == [types.ElicitRequestFormParams(mode="form", message="Who comes?", requested_schema=FORM)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"seats": 1}, "name: required, missing"),
        ({"name": "A"}, "name: must be a string"),
        ({"name": "Ada", "seats": "s3cret"}, "seats: must be an integer"),
        ({"name": "Ada", "days": ["mon"]}, r"days\[0\]: must be"),
        ({"name": "Ada", "more": {"s3cret": 1}}, "content"),
        ("s3cret", "a mapping, a Struct or a dataclass, not by str"),
        (object(), "object"),
        (types.ElicitResult(action="yes"), "action"),  # type: ignore[arg-type]
    ],
)
async def test_what_does_not_fit_the_form_is_not_sent(given: Any, text: str) -> None:
    """EL-14: the fault names the field, and never shows what was filled in."""
    async with http_client(answers(asks({"key": ASK})), on_elicit=lambda _: given) as (client, peer):
        with pytest.raises(InvalidRequest, match=f"what on_elicit gave can't be sent: .*{text}") as caught:
            await client.call_tool("t")
    assert len(peer.asked) == 1
    assert "s3cret" not in str(caught.value)


async def test_a_request_without_a_mode_is_a_form() -> None:
    """EL-03."""
    request = {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}}
    assert await asked_of(request, on_elicit=lambda asked: {} if asked.mode is UNSET else never()) == {"action": "accept", "content": {}}


@pytest.mark.parametrize(
    ("given", "response"),
    [
        (types.ElicitResult(action="accept"), {"action": "accept"}),
        (types.ElicitResult(action="accept", content={"name": "Ada"}), {"action": "accept"}),
        (types.ElicitResult(action="cancel"), {"action": "cancel"}),
        (None, {"action": "decline"}),
    ],
)
async def test_a_url_is_shown_and_answered_without_content(given: Any, response: dict[str, Any]) -> None:
    """EL-07, EL-13: the client opens nothing by itself."""

    def elicit(asked: types.ElicitRequestFormParams | types.ElicitRequestURLParams) -> Any:
        assert asked == types.ElicitRequestURLParams(message="Sign in", url="https://board.example/in")
        return given

    assert await asked_of(URL, on_elicit=elicit) == response


async def test_a_url_is_never_accepted_by_accident() -> None:
    with pytest.raises(InvalidRequest, match=r"answered by types\.ElicitResult"):
        await asked_of(URL, on_elicit=lambda _: {})


async def test_a_model_s_message_is_typed_both_ways() -> None:
    """SM-01, SM-06: tools too."""
    tool = {"name": "clock", "inputSchema": {"type": "object"}}
    params: dict[str, Any] = {**SAMPLE["params"], "tools": [tool], "toolChoice": {"mode": "required"}}  # type: ignore[dict-item]

    async def sample(asked: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        assert asked.max_tokens == 9
        assert asked.messages[0].content == types.TextContent(text="A rhyme?")
        assert asked.tools is not UNSET
        use = types.ToolUseContent(id="1", name=asked.tools[0].name, input={})
        return types.CreateMessageResult(role="assistant", model="m", content=[use], stop_reason="toolUse")

    assert await asked_of({"method": "sampling/createMessage", "params": params}, on_sample=sample) == {
        "role": "assistant",
        "model": "m",
        "content": [{"type": "tool_use", "id": "1", "name": "clock", "input": {}}],
        "stopReason": "toolUse",
    }


@pytest.mark.parametrize(
    ("request_", "option", "given", "text"),
    [
        (SAMPLE, "on_sample", lambda _: "time", "is a types.CreateMessageResult, not str"),
        (SAMPLE, "on_sample", lambda _: types.CreateMessageResult(role="bot", model="m", content=[]), "role"),  # type: ignore[arg-type]
        (ROOTS, "on_roots", lambda: [types.Root(uri="https://board.example")], "a root is a file:// URI, not 'https://board.example'"),
        (ROOTS, "on_roots", lambda: 7, "types.Root.*, not of int"),
        (ROOTS, "on_roots", lambda: ["file:///srv"], "types.Root.*, not of str"),
        (ROOTS, "on_roots", lambda: None, "types.Root.*, not of NoneType"),
    ],
)
async def test_what_the_protocol_does_not_know_is_not_sent(request_: Any, option: str, given: Any, text: str) -> None:
    """RT-03."""
    with pytest.raises(InvalidRequest, match=rf"tools/call 't' at .*: what {option} gave can't be sent: .*({text})"):
        await asked_of(request_, **{option: given})


@pytest.mark.parametrize("option", ["on_elicit", "on_sample", "on_roots"])
def test_what_can_not_be_called_is_refused_at_once(option: str) -> None:
    with pytest.raises(TypeError, match=f"{option} is a function that answers what the server asks, not list"):
        Client("http://127.0.0.1:1/mcp", **{option: []})  # type: ignore[arg-type]


async def test_a_callback_that_raises_ends_the_call_and_the_other_callbacks() -> None:
    """MR-15: the server is not waiting, so nothing is sent."""
    waiting = asyncio.Event()
    cancelled: list[bool] = []

    async def elicit(_: Any) -> None:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def sample(_: Any) -> Any:
        await waiting.wait()
        raise PermissionError("no model for you")

    async with http_client(answers(asks({"a": ASK, "b": SAMPLE})), on_elicit=elicit, on_sample=sample) as (client, peer):
        with pytest.raises(PermissionError, match="no model for you"):
            await client.call_tool("t")
    assert cancelled == [True]
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (asks(), "without saying which"),
        (asks({}), "without saying which"),
        (asks({"k": 7}), "asks for 'k' against the protocol"),
        (asks({"k": {"params": {}}}), "asks for 'k' against the protocol"),
        (asks({"ok": ASK, "k": {"method": "elicitation/create", "params": {"message": "m"}}}), "'k' can't be answered: .*requestedSchema"),
        (asks({"k": {"method": "elicitation/create", "params": {"message": "m", "mode": "x"}}}), "'k' can't be answered"),
        (asks({"k": {"method": "elicitation/create", "params": {"message": "m", "mode": "url"}}}), "'k' can't be answered: .*url"),
        (
            asks({"k": {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {"type": "array"}}}}),
            "'k' can't be answered: its form",
        ),
        (
            asks({"k": {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {"type": "object", "required": 1}}}}),
            "'k' can't be answered: its form",
        ),
        (asks({"k": {"method": "sampling/createMessage", "params": {"messages": []}}}), "'k' can't be answered: .*maxTokens"),
    ],
)
async def test_a_server_that_asks_against_the_protocol_gets_no_answer(answer: dict[str, Any], text: str) -> None:
    """MR-03, MR-04."""
    async with http_client(answers(answer), on_elicit=never, on_sample=never) as (client, peer):
        with pytest.raises(InvalidAnswer, match=text):
            await client.call_tool("t")
    assert len(peer.asked) == 1


async def test_only_three_methods_may_ask() -> None:
    """MR-02."""
    async with http_client(answers(asks({"k": ASK}, "s")), on_elicit=never) as (client, _):
        with pytest.raises(InvalidAnswer, match="unknown type 'input_required'"):
            await client.list_tools()


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_callback_can_tell_who_asks(version: str) -> None:
    """EL-14: of several servers, too."""
    server = Server("asker", version="1")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("?", bool)).value)

    asked: list[str] = []

    def answer(_: Any) -> dict[str, Any]:
        asked.append(who_asks().target)
        return {"value": True}

    async with Client(server, versions=version, on_elicit=answer) as client:
        assert (await client.call_tool("ask")).text == "True"
    async with Client({"mcpServers": {"one": server}}, on_elicit=answer) as client:
        await client.call_tool("one_ask")
    assert asked == ["asker", "asker"]
    with pytest.raises(LookupError):
        who_asks()
