"""Calls that a server makes tasks of: the client waits, answers what is asked meanwhile, and gives the call's own result."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from msgspec.json import encode
from unit.client.peers import Asked, http_client, result, text_result
from unit.client.test_inputs import ASK, SAMPLE, never
from virtual_time import now, virtual_time

from callboard import types
from callboard.client.errors import ClientError, InputRequired, InvalidAnswer, Origin, ServerError
from callboard.client.inputs import Inputs
from callboard.client.result import ToolResult
from callboard.client.tasks import Means, ToolTask

TASK = {"taskId": "t-é", "createdAt": "2026-11-30T12:00:00Z", "lastUpdatedAt": "2026-11-30T12:00:00Z", "ttlMs": None, "pollIntervalMs": 0}
CREATED = {"resultType": "task", **TASK, "status": "working"}
Sent = list[tuple[str, Any]]


def looks(*stages: dict[str, Any]) -> Any:
    """A peer whose task goes through these stages, one for each `tasks/get`; the last stays."""
    queue = list(stages)

    async def answer(asked: Asked) -> None:
        if asked.method == "tools/call":
            await asked.result(CREATED)
        elif asked.method == "tasks/get":
            await asked.result(result(**TASK, **(queue.pop(0) if len(queue) > 1 else queue[0])))
        else:
            await asked.result(result())

    return answer


TOLD = {"tools/call", "tasks/get", "tasks/update", "tasks/cancel"}


def said(peer: Any) -> Sent:
    """What a peer was asked of the task: methods, and the responses that came with them."""
    return [(asked.method, asked.params.get("inputResponses")) for asked in peer.asked if asked.method in TOLD]


COMPLETED = {"status": "completed", "result": {"content": [{"type": "text", "text": "done"}], "structuredContent": None}}


async def test_a_task_ends_in_the_result_of_its_call() -> None:
    """TX-04, TX-08, TX-13; HH-05: the header names the task."""
    async with http_client(looks({"status": "working"}, COMPLETED), tasks=True) as (client, peer):
        found = await client.call_tool("t")
    assert (found.content, found.structured_content) == ([types.TextContent(text="done")], None)
    assert said(peer) == [("tools/call", None), ("tasks/get", None), ("tasks/get", None)]
    (look, *_) = (asked for asked in peer.asked if asked.method == "tasks/get")
    assert look.params["taskId"] == "t-é"
    assert look.headers["mcp-name"] == "=?base64?dC3DqQ==?="
    assert "io.modelcontextprotocol/tasks" in look.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"]


async def test_what_a_task_asks_is_answered_once() -> None:
    """TX-11, TX-13: a key that is still listed was answered already."""
    stages = (
        {"status": "input_required", "inputRequests": {"a": ASK}},
        {"status": "input_required", "inputRequests": {"a": ASK, "b": SAMPLE}},
        {"status": "input_required", "inputRequests": {"a": ASK, "b": SAMPLE}},
        COMPLETED,
    )
    asked: list[Any] = []

    async def sample(_: Any) -> types.CreateMessageResult:
        asked.append("model")
        return types.CreateMessageResult(role="assistant", model="m", content=[])

    options: dict[str, Any] = {"on_elicit": lambda form: asked.append(form.message), "on_sample": sample}
    async with http_client(looks(*stages), tasks=True, **options) as (client, peer):
        await client.call_tool("t")
    assert asked == ["Who comes?", "model"]
    assert [(method, responses) for method, responses in said(peer) if method != "tasks/get"] == [
        ("tools/call", None),
        ("tasks/update", {"a": {"action": "decline"}}),
        ("tasks/update", {"b": {"role": "assistant", "model": "m", "content": []}}),
    ]


@pytest.mark.parametrize(
    ("stage", "kind", "text"),
    [
        ({"status": "failed", "error": {"code": -32603, "message": "It broke.", "data": {"error": "e1"}}}, ServerError, "It broke"),
        ({"status": "cancelled", "statusMessage": "by its owner"}, ClientError, "the server cancelled the task: by its owner"),
        ({"status": "cancelled"}, ClientError, "the server cancelled the task$"),
        ({"status": "completed"}, InvalidAnswer, "the task is completed without saying"),
        ({"status": "failed"}, InvalidAnswer, "the task is failed without saying"),
    ],
)
async def test_a_task_may_end_otherwise(stage: dict[str, Any], kind: type[ClientError], text: str) -> None:
    """TX-08, TX-09: the error is the call's."""
    async with http_client(looks(stage), tasks=True) as (client, peer):
        with pytest.raises(kind, match=f"tools/call 't' at .*{text}") as caught:
            await client.call_tool("t")
    assert [method for method, _ in said(peer)] == ["tools/call", "tasks/get"]
    if isinstance(caught.value, ServerError):
        assert (caught.value.code, caught.value.data) == (-32603, {"error": "e1"})


async def test_a_tool_s_failure_is_no_failure_of_the_task() -> None:
    """TX-09."""
    stage = {"status": "completed", "result": text_result("no such day") | {"isError": True}}
    async with http_client(looks(stage), tasks=True) as (client, _):
        assert (await client.call_tool("t")).is_error


async def test_who_waits_no_more_cancels_the_task() -> None:
    """TX-13, CN-10."""
    looked, told = asyncio.Event(), asyncio.Event()

    async def answer(asked: Asked) -> None:
        await looks({"status": "working"})(asked)
        (looked if asked.method == "tasks/get" else told if asked.method == "tasks/cancel" else asyncio.Event()).set()

    async with http_client(answer, tasks=True) as (client, peer):
        call = asyncio.create_task(client.call_tool("t"))
        async with asyncio.timeout(5):
            await looked.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await told.wait()
        assert peer.asked[-1].params["taskId"] == "t-é"


@pytest.mark.parametrize(("options", "kind"), [({}, InputRequired), ({"on_elicit": lambda _: 1 / 0}, ZeroDivisionError)])
async def test_a_question_that_gets_no_answer_ends_the_task(options: dict[str, Any], kind: type[Exception]) -> None:
    async with http_client(looks({"status": "input_required", "inputRequests": {"a": ASK}}), tasks=True, **options) as (client, peer):
        with pytest.raises(kind):
            await client.call_tool("t")
    assert [method for method, _ in said(peer)] == ["tools/call", "tasks/get", "tasks/cancel"]


async def test_a_task_that_nobody_can_wait_for_is_against_the_protocol() -> None:
    """TX-02: the client did not declare the extension. TX-05: only calls of tools become tasks."""
    async with http_client(looks(COMPLETED)) as (client, _):
        with pytest.raises(InvalidAnswer, match="unknown type 'task'"):
            await client.call_tool("t")

    async def answer(asked: Asked) -> None:
        await asked.result(CREATED)

    async with http_client(answer, tasks=True) as (client, _):
        with pytest.raises(InvalidAnswer, match="unknown type 'task'"):
            await client.get_prompt("p")


@pytest.mark.parametrize(("named", "seconds"), [(None, 1), (250, 0.25), (0, 0.01), (-5, 0.01), (1e300, 60)])
@virtual_time
async def test_the_server_says_how_often_to_look(named: float | None, seconds: float) -> None:
    """TX-13: within bounds of the client's."""
    task = {"taskId": "t", "status": "working", "pollIntervalMs": named}
    times: list[float] = []

    async def send(method: str, params: dict[str, Any], limit: float | None) -> Raw:
        assert (method, params, limit) == ("tasks/get", {"taskId": "t"}, None)
        times.append(now())
        return Raw(encode(task if len(times) < 4 else {"taskId": "t", **COMPLETED}))

    began = now()

    async def hear(*_: Any) -> None:
        raise ServerError(-32601, "no streams here", None, None, Origin("peer"))

    async def accept(name: str, raw: Raw, origin: Origin) -> ToolResult:
        return ToolResult(content=[types.TextContent(text=name)])

    means = Means(send, hear, accept, Inputs(never, None, None), legacy=False)
    found = await ToolTask.begin(means, "tool", Raw(encode(task)), Origin("peer")).result()
    assert found.text == "tool"
    assert [time - began for time in times] == pytest.approx([seconds, 2 * seconds, 3 * seconds, 4 * seconds])
