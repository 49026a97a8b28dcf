"""Servers of other people, as odd as they are: what they write, when they end, and what a client makes of it."""

import asyncio
import gc
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.client.peers import Asked, http_client, result, text_result
from unit.client.test_sessions import OFFERS, Peer2025, answer_to
from unit.client.wire_peer import Heard, WirePeer
from virtual_time import virtual_time

from callboard import Client, Context, Server, types
from callboard.client.changes import ACKNOWLEDGED, note_of
from callboard.client.errors import (
    ConnectionFailed,
    Origin,
    ProcessExited,
    ServerError,
)
from callboard.client.subscription import Subscription

Json = dict[str, Any]


class Peer2024(WirePeer):
    """A server of 2024-11-05, whose streams a test may break."""

    def __init__(self) -> None:
        super().__init__(self.reply)
        self.streams: list[Heard] = []

    async def reply(self, heard: Heard) -> None:
        if heard.method == "GET":
            await heard.stream()
            self.streams.append(heard)
            await heard.chunk(b"event: endpoint\ndata: /messages?session=%d\n\n" % len(self.streams))
            await heard.gone()
        elif heard.path == "/mcp":
            await heard.plain(405)
        else:
            await heard.plain(202)
            message = heard.message
            offers = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": INFO}
            if "id" in message and "method" in message:
                answers = {"initialize": offers, "tools/call": {"content": [{"type": "text", "text": heard.path[-1]}]}}
                await self.streams[-1].event({"id": message["id"], "result": answers.get(message["method"], {})})


INFO = {"name": "older", "version": "1"}


async def test_a_stream_of_2024_that_breaks_is_opened_anew() -> None:
    """HL-26, HL-27: with a session of its own, and listeners hear of it."""
    async with Peer2024() as peer, Client(peer.url, timeout=3) as client, client.listen(tools=True) as changes, asyncio.timeout(10):
        assert (await client.call_tool("t")).text == "1"
        peer.streams[-1].abort()
        assert isinstance(await anext(changes), types.ToolListChangedNotification)
        assert (await client.call_tool("t")).text == "2"
        peer.streams[-1].abort()
        await asyncio.sleep(0.05)
        assert (await client.call_tool("t")).text == "3"


@virtual_time
async def test_who_breaks_each_stream_is_not_asked_ten_times_a_second() -> None:
    """CA-08, SB-10."""
    opened = 0

    async def run(on_note: Any) -> None:
        nonlocal opened
        opened += 1
        await on_note(note_of(ACKNOWLEDGED, {"notifications": {"toolsListChanged": True}}))
        raise ConnectionFailed("broken", Origin("s"))

    async with Subscription(run, types.SubscriptionFilter(tools_list_changed=True), Origin("s"), 5, set()) as changes:
        reader = asyncio.create_task(read_all(changes))
        await asyncio.sleep(600)
        reader.cancel()
    assert 50 < opened < 150


async def read_all(changes: Subscription) -> None:
    async for _ in changes:
        pass


async def test_a_kind_of_task_that_is_no_word_is_none() -> None:
    """TK-02."""
    tools = [{"name": "t", "inputSchema": {"type": "object"}, "execution": {"taskSupport": ["required"]}}]

    async def answer(asked: Asked) -> None:
        await asked.result(result(tools=tools, ttlMs=0, cacheScope="public"))

    async with http_client(answer) as (client, _):
        assert [tool.name for tool in await client.list_tools()] == ["t"]


async def test_what_is_sent_again_is_what_was_sent() -> None:
    """MR-13: whatever has become of the caller's objects while the server thought."""
    seen: list[Json] = []
    given: Json = {"a": [1]}

    async def answer(asked: Asked) -> None:
        seen.append(asked.params["arguments"])
        given["a"].append(2)
        await asked.result({"resultType": "input_required", "requestState": "x"} if len(seen) < 4 else text_result())

    async with http_client(answer) as (client, _):
        await client.call_tool("t", given)
    assert seen == [{"a": [1]}] * 4


async def test_tools_that_are_no_more_are_forgotten() -> None:
    """HH-22: names that change with each listing fill no memory."""

    async def answer(asked: Asked) -> None:
        name = f"t{asked.message['id']}"
        await asked.result(result(tools=[{"name": name, "inputSchema": {"type": "object"}}], ttlMs=0, cacheScope="public"))

    async with http_client(answer) as (client, _):
        for _ in range(20):
            await client.list_tools()
        gc.collect()
        assert len([kept for kept in gc.get_objects() if type(kept).__name__ == "_Facts"]) == 1


ONLY_INITIALIZE = """
import json, sys
with open(sys.argv[1], "a") as file:
    file.write("x")
first = json.loads(sys.stdin.readline())
if first["method"] != "initialize":
    sys.exit("Error: ExpectedInitializeRequest")
offers = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
print(json.dumps({"jsonrpc": "2.0", "id": first["id"], "result": offers}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "tools/call" and message["params"]["name"] == "die":
        sys.exit(3)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}), flush=True)
"""


async def test_a_child_that_ends_at_the_first_question_gets_another_first_word(tmp_path: Path) -> None:
    """VN-14: Rust's rmcp does that; when it is started again, the question is known to be no use (VN-12)."""
    lives = tmp_path / "lives"
    async with Client([sys.executable, "-c", ONLY_INITIALIZE, str(lives)]) as client, asyncio.timeout(20):
        assert client.version == "2025-06-18"
        assert (await client.call_tool("t")).content == []
        assert lives.stat().st_size == 2
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        assert (await client.call_tool("t")).content == []
        assert lives.stat().st_size == 3


async def test_a_child_that_always_ends_says_so() -> None:
    """VN-14: with its last words."""
    with pytest.raises(ProcessExited, match="no such luck"):
        async with Client([sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('no such luck')"]):
            pass


@pytest.mark.parametrize(
    ("query", "shown"), [("key=s3cr3t", "key=***"), ("s3cr3t", "***"), ("a=s3cr3t&s3cr3t&b=s3cr3t=", "a=***&***&b=***")]
)
async def test_what_a_query_holds_is_not_shown(query: str, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    """LG-06: many services want their keys there."""
    caplog.set_level(logging.DEBUG)
    client = Client(f"http://127.0.0.1:1/mcp?{query}")
    with pytest.raises(ConnectionFailed) as found:
        async with client:
            pass
    assert client.target == f"http://127.0.0.1:1/mcp?{shown}"
    assert "s3cr3t" not in f"{found.value} {found.value!r} {vars(found.value)} {found.value.__cause__!r} {caplog.text}"


FORM = {"type": "object", "properties": {"a": {"type": "string", "title": None, "description": None, "default": None}}, "required": None}
MESSAGE = {"role": "user", "content": {"type": "text", "text": "hi", "annotations": None, "_meta": None}}
NULLED: dict[str, Json] = {
    "sampling/createMessage": {
        "messages": [MESSAGE],
        "maxTokens": 9,
        "systemPrompt": None,
        "temperature": None,
        "tools": None,
        "_meta": None,
    },
    "elicitation/create": {"mode": None, "message": "?", "requestedSchema": FORM, "_meta": None},
}


def write(_: Any) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="t"), model="m")


async def test_nulls_for_what_is_absent_are_understood_in_a_session() -> None:
    """JR-07, LG-03, PR-02: as in answers, so in notifications and in what servers ask."""
    heard_of: list[Any] = []

    async def call(heard: Heard) -> None:
        token = heard.message["params"]["_meta"]["progressToken"]
        await heard.stream()
        progress = {"progressToken": token, "progress": 1, "total": None, "message": None, "_meta": None}
        await heard.event({"method": "notifications/progress", "params": progress})
        await heard.event({"method": "notifications/message", "params": {"level": "info", "logger": None, "data": None}})
        await heard.event({"id": heard.id, "result": {"content": [], "isError": None}})
        await heard.end()

    async with (
        Peer2025(call) as peer,
        Client(
            peer.url,
            versions="2025-11-25",
            on_log=lambda log: heard_of.append(log.data),
            on_elicit=lambda _: {"a": "x"},
            on_sample=write,
        ) as client,
        client.listen(tools=True, uris=["test://a"]) as changes,
        asyncio.timeout(10),
    ):
        await client.call_tool("t", on_progress=lambda *step: heard_of.append(step))
        assert heard_of == [(1, None, None), None]
        await peer.until("GET")
        channel = peer.channels[0]
        for method, params in NULLED.items():
            await channel.event({"id": method, "method": method, "params": params})
            assert "result" in await answer_to(peer, method)
        await channel.event({"method": "notifications/tools/list_changed", "params": {"_meta": None}})
        await channel.event({"method": "notifications/resources/updated", "params": {"uri": "test://a", "_meta": None}})
        assert isinstance(await anext(changes), types.ToolListChangedNotification)
        assert isinstance(await anext(changes), types.ResourceUpdatedNotification)


async def test_nulls_for_what_is_absent_are_understood_on_the_way() -> None:
    """SB-03, MR-11."""

    async def answer(asked: Asked) -> None:
        if asked.method == "subscriptions/listen":
            await asked.stream()
            granted = {"toolsListChanged": True, "promptsListChanged": None, "resourceSubscriptions": None}
            meta = {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}
            await asked.event(method=ACKNOWLEDGED, params={"notifications": granted, "_meta": meta})
            await asked.gone()
        elif "inputResponses" in asked.params:
            await asked.result(text_result())
        else:
            asks: Json = {method: {"method": method, "params": params} for method, params in NULLED.items()}
            asks["roots"] = {"method": "roots/list", "params": None}
            await asked.result({"resultType": "input_required", "inputRequests": asks, "requestState": None})

    async with http_client(answer, on_elicit=lambda _: {"a": "x"}, on_sample=write, on_roots=list) as (client, _):
        assert (await client.call_tool("t")).text == "ok"
        async with client.listen(tools=True) as changes:
            assert changes.granted is not None


@pytest.mark.parametrize(
    ("body", "kind", "renewed"),
    [
        (
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}',
            "application/json",
            True,
        ),
        (b"Invalid or missing session ID", "text/plain", True),
        (b"Session not found", "text/plain", True),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"session id: required"}}', "application/json", False),
        (
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session of parliament"}}',
            "application/json",
            False,
        ),
    ],
)
async def test_400_may_mean_that_the_session_is_gone(body: bytes, kind: str, *, renewed: bool) -> None:
    """HL-24: many servers are made after an example that says 400 where 404 is meant."""

    class Express(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if self.lost and heard.body and heard.message.get("method") == "tools/call":
                await heard.plain(400, body, kind)
            else:
                await super().reply(heard)

    async with Express() as peer, Client(peer.url, versions="2025-11-25") as client:
        peer.lost = True
        if renewed:
            assert (await client.call_tool("t")).text == "done"
        else:
            with pytest.raises(ServerError):
                await client.call_tool("t")
        assert peer.sessions == 1 + renewed


async def test_a_task_of_2025_tells_how_it_gets_on() -> None:
    """PR-07: by the token of the call, which has been answered long ago."""
    steps: list[float] = []
    offers = {**OFFERS, "tasks": {"requests": {"tools": {"call": {}}}}}
    task = {"taskId": "t-1", "createdAt": "2026-11-30T12:00:00Z", "lastUpdatedAt": "2026-11-30T12:00:00Z", "ttl": None, "pollInterval": 10}

    class Kitchen(Peer2025):
        async def reply(self, heard: Heard) -> None:
            method = heard.message.get("method") if heard.body else None
            if method == "tools/list":
                tools = [{"name": "t", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}]
                await self.give(heard, {"tools": tools})
            elif method == "tools/call":
                await self.give(heard, {"task": {**task, "status": "working"}})
                params = {"progressToken": heard.message["params"]["_meta"]["progressToken"], "progress": 1}
                await self.channels[0].event({"method": "notifications/progress", "params": params})
            elif method == "tasks/get":
                await self.give(heard, {**task, "status": "completed" if steps else "working"})
            elif method == "tasks/result":
                await self.give(heard, {"content": [{"type": "text", "text": "done"}]})
            else:
                await super().reply(heard)

    async with Kitchen(offers=offers) as peer, Client(peer.url, versions="2025-11-25", tasks=True) as client, asyncio.timeout(5):
        await peer.until("GET")
        assert (await client.call_tool("t", on_progress=lambda step, *_: steps.append(step))).text == "done"
    assert steps == [1]


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_hundreds_of_calls_may_ask_at_once(version: str) -> None:
    """JR-07, MR-11: each gets its own answer."""
    server = Server("asks", version="1")

    @server.tool
    async def ask(number: int, ctx: Context) -> str:
        return (await ctx.elicit(str(number), str)).value

    async def think(asked: Any) -> Json:
        await asyncio.sleep(0.01)
        return {"value": asked.message}

    async with Client(server, versions=version, on_elicit=think) as client:
        found = await asyncio.gather(*(client.call_tool("ask", {"number": number}) for number in range(300)))
    assert [each.text for each in found] == [str(number) for number in range(300)]


async def test_an_answer_for_a_task_gets_through() -> None:
    """TX-12, TX-13: what somebody filled in is not lost, nor the task, because a proxy hiccups."""
    told: list[Json] = []
    task = {
        "taskId": "t",
        "createdAt": "2026-11-30T12:00:00Z",
        "lastUpdatedAt": "2026-11-30T12:00:00Z",
        "ttlMs": None,
        "pollIntervalMs": 10,
    }
    form = {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}

    async def answer(asked: Asked) -> None:
        if asked.method == "tools/call":
            await asked.result({**result(**task, status="working"), "resultType": "task"})
        elif asked.method == "tasks/get" and len(told) < 2:
            asks = {"k": {"method": "elicitation/create", "params": form}}
            await asked.result(result(**task, status="input_required", inputRequests=asks))
        elif asked.method == "tasks/get":
            await asked.result(result(**task, status="completed", result=text_result("done")))
        elif asked.method == "tasks/update":
            told.append(asked.params["inputResponses"])
            await (asked.body_answer(503, b"later", "text/plain") if len(told) == 1 else asked.result(result()))
        else:
            await asked.error(-32601, "unknown", status=404)

    asked_somebody = 0

    def fill_in(_: Any) -> Json:
        nonlocal asked_somebody
        asked_somebody += 1
        return {"a": "x"}

    async with http_client(answer, tasks=True, on_elicit=fill_in) as (client, _):
        assert (await client.call_tool("t")).text == "done"
    assert told == [{"k": {"action": "accept", "content": {"a": "x"}}}] * 2
    assert asked_somebody == 1


async def test_a_server_that_does_one_thing_at_a_time_opens_at_once() -> None:
    """LG-05, JR-07: one that waits for the roots before it takes another request."""

    class Stubborn(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if heard.method == "GET":
                await heard.stream()
                await heard.event({"id": "r", "method": "roots/list"})
                await heard.gone()
            else:
                if heard.message.get("method") == "logging/setLevel":
                    await answer_to(self, "r")
                await super().reply(heard)

    async with asyncio.timeout(3), Stubborn() as peer:
        async with Client(peer.url, versions="2025-11-25", on_roots=list, on_log=lambda _: None) as client:
            await client.ping()
        assert len(peer.of("logging/setLevel")) == 1


@pytest.mark.parametrize("order", ["result first", "error first"])
async def test_an_error_that_is_null_is_none(order: str) -> None:
    """JR-09: servers whose language has no absent fields write both."""

    async def answer(asked: Asked) -> None:
        fields: Json = {"result": text_result(), "error": None} if asked.params["name"] == "t" else {"result": None, "error": ERROR}
        message = {"jsonrpc": "2.0", "id": asked.message["id"], **(fields if order == "result first" else dict(reversed(fields.items())))}
        await asked.body_answer(200, json.dumps(message).encode())

    async with http_client(answer) as (client, _):
        assert (await client.call_tool("t")).text == "ok"
        with pytest.raises(ServerError, match="no such tool"):
            await client.call_tool("u")


ERROR = {"code": -32602, "message": "no such tool"}


async def test_a_listener_outlives_a_server_that_takes_its_time_to_come_back() -> None:
    """HL-24, SB-10: the session is gone, and for a while no other is to be had."""

    class Slow(Peer2025):
        refusals = 2

        async def reply(self, heard: Heard) -> None:
            if heard.method == "GET" and self.lost:
                await heard.plain(404)
            elif heard.body and heard.message.get("method") == "initialize" and self.sessions and self.refusals:
                self.refusals -= 1
                await heard.plain(502, b"not yet")
            else:
                await super().reply(heard)

    async with Slow() as peer, Client(peer.url, versions="2025-11-25") as client, client.listen(uris=["test://a"]) as changes:
        async with asyncio.timeout(20):
            await peer.until("GET")
            peer.lost = True
            peer.channels[0].abort()
            assert isinstance(await anext(changes), types.ResourceUpdatedNotification)
        assert (peer.sessions, peer.refusals) == (2, 0)
