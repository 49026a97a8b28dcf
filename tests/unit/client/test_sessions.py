"""A client in a session of 2025: what it says, what it answers, and how it gets over the loss of the session."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from unit.client.wire_peer import Heard, WirePeer

from callboard import Client, types
from callboard.client.errors import ClientError, ServerError

Json = dict[str, Any]
OFFERS = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {},
    "logging": {},
    "completions": {},
}
ASK = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string", "default": "Ada"}}}}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 9}


class Peer2025(WirePeer):
    """A server of 2025 whose calls a test answers; all else it does itself.

    Attributes:
        lost: Whether it knows no session that it opened before.
    """

    def __init__(self, call: Callable[[Heard], Awaitable[None]] | None = None, version: str = "2025-11-25", offers: Json = OFFERS) -> None:
        super().__init__(self.reply)
        self.call = call
        self.version = version
        self.offers = offers
        self.sessions = 0
        self.lost = False
        self.channels: list[Heard] = []

    async def reply(self, heard: Heard) -> None:
        if heard.method == "GET":
            await heard.stream()
            self.channels.append(heard)
            await heard.gone()
        elif heard.method == "DELETE":
            await heard.plain(200)
        elif "method" not in heard.message or "id" not in heard.message:
            await heard.plain(202)
        elif heard.message["method"] == "initialize":
            self.sessions += 1
            self.lost = False
            info = {"name": "old", "version": "1"}
            opened = {"protocolVersion": self.version, "capabilities": self.offers, "serverInfo": info, "instructions": "Mind the gap."}
            await self.give(heard, opened, Mcp_Session_Id=f"s-{self.sessions}")
        elif self.lost:
            await heard.plain(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}', "application/json")
        elif heard.message["method"] == "tools/call" and self.call is not None:
            await self.call(heard)
        else:
            await self.give(heard, ANSWERS.get(heard.message["method"], {}))

    async def give(self, heard: Heard, result: Json, **extra: str) -> None:
        await heard.json({"jsonrpc": "2.0", "id": heard.id, "result": result}, **extra)


ANSWERS: dict[str, Json] = {
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
    "resources/read": {"contents": [{"uri": "test://a", "text": "a"}]},
}


def bodies(peer: WirePeer) -> list[Json]:
    return [heard.message for heard in peer.heard if heard.body]


async def test_a_session_opens_in_order_and_ends() -> None:
    """LC-01, LC-03, LC-04, LC-11, HL-02, HL-13, HL-21, HL-25, VN-19, VN-22, JR-04, JR-19."""
    async with Peer2025() as peer, Client(peer.url, versions=["2025-11-25", "2025-06-18"]) as client:
        await client.list_tools()
        found = await client.discover()
        assert (client.version, found.instructions, found.supported_versions) == ("2025-11-25", "Mind the gap.", ["2025-11-25"])
        await client.call_tool("t")
        await client.ping()
        await peer.until("ping")
        await client.close()
        await peer.until("DELETE")
    said = [message["method"] for message in bodies(peer)]
    assert said == ["initialize", "notifications/initialized", "tools/list", "tools/call", "ping"]
    assert all(isinstance(message, dict) for message in bodies(peer))  # batches are never sent
    opening, *rest = peer.heard
    assert opening.message["params"]["protocolVersion"] == "2025-11-25"
    assert opening.message["params"]["clientInfo"]["name"] == "callboard"
    assert not {"mcp-session-id", "mcp-protocol-version"} & opening.headers.keys()
    for heard in rest:
        assert (heard.headers["mcp-session-id"], heard.headers["mcp-protocol-version"]) == ("s-1", "2025-11-25")
    ids = [message["id"] for message in bodies(peer) if "id" in message]
    assert len(ids) == len(set(ids))


async def test_what_the_client_can_do_is_declared_once() -> None:
    """MT-17, MT-19, EL-01, SM-01, RT-01."""

    def never(*_: Any) -> Any:
        raise AssertionError

    async with (
        Peer2025() as peer,
        Client(
            peer.url, versions="2025-11-25", on_elicit=never, on_sample=never, on_roots=never, capabilities={"experimental": {"x": {}}}
        ) as client,
    ):
        await client.list_tools()
    opening, *_ = bodies(peer)
    assert opening["params"]["capabilities"] == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {"tools": {}},
        "roots": {},
        "experimental": {"x": {}},
    }
    assert all("_meta" not in message.get("params", {}) for message in bodies(peer))  # no envelope


async def ask_on_channel(peer: Peer2025, **request: Any) -> Json:
    """Ask the client something on the stream of the session; gives what it answers."""
    await peer.until("GET")
    (channel,) = peer.channels
    await channel.event({"id": "q", **request})
    return await answer_to(peer, "q")


async def answer_to(peer: Peer2025, request_id: str) -> Json:
    """What the client answers to a request."""
    while True:
        if found := [message for message in bodies(peer) if message.get("id") == request_id]:
            return found[0]
        await asyncio.sleep(0.01)


def write(asked: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    assert asked.max_tokens == 9  # SM-04
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="hello", meta={"k": 1}), model="m")


def refuse(_: Any) -> Any:
    raise ValueError("s3cret")


@pytest.mark.parametrize(
    ("options", "request_", "answer"),
    [
        ({}, {"method": "ping"}, {"result": {}}),  # LC-08
        (
            {"on_elicit": lambda _: {}},
            {"method": "elicitation/create", "params": ASK},
            {"result": {"action": "accept", "content": {"name": "Ada"}}},
        ),
        ({"on_elicit": lambda _: None}, {"method": "elicitation/create", "params": ASK}, {"result": {"action": "decline"}}),
        ({}, {"method": "elicitation/create", "params": ASK}, -32602),  # EC-18
        ({"on_elicit": lambda _: {}}, {"method": "elicitation/create", "params": {"message": "?"}}, -32602),
        ({"on_elicit": lambda _: {"name": 5}}, {"method": "elicitation/create", "params": ASK}, -32603),
        ({}, {"method": "roots/list"}, -32601),  # EC-17
        ({"on_roots": list}, {"method": "roots/list"}, {"result": {"roots": []}}),
        ({"on_roots": lambda: 1 / 0}, {"method": "roots/list"}, -32603),  # EC-17
        ({}, {"method": "sampling/createMessage", "params": SAMPLE}, -32601),
        ({"on_sample": refuse}, {"method": "sampling/createMessage", "params": SAMPLE}, -1),  # EC-16
        (
            {"on_sample": write},
            {"method": "sampling/createMessage", "params": SAMPLE},  # SM-04, SM-07: what is in `_meta` stays
            {"result": {"role": "assistant", "content": {"type": "text", "text": "hello", "_meta": {"k": 1}}, "model": "m"}},
        ),
        ({}, {"method": "tools/list"}, -32601),
    ],
)
async def test_what_a_server_asks_is_answered(options: Json, request_: Json, answer: Any) -> None:
    """JR-07, LC-08, EC-16, EC-17, EC-18, EL-06, EL-07, SM-04, SM-07; the answer is a POST of its own (HL-04)."""
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25", **options), asyncio.timeout(5):
        said = await ask_on_channel(peer, **request_)
    if isinstance(answer, int):
        assert said["error"]["code"] == answer
        assert "s3cret" not in json.dumps(said)
    else:
        assert said == {"jsonrpc": "2.0", "id": "q", **answer}


async def test_an_older_session_gets_older_words() -> None:
    """EL-07: 2025-06-18 has no lists in an answer; a message has one block before 2025-11-25."""
    colours = {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}
    form = {"message": "?", "requestedSchema": {"type": "object", "properties": {"colours": colours}}}
    blocks = types.CreateMessageResult(role="assistant", content=[types.TextContent(text="one")], model="m")
    async with (
        Peer2025(version="2025-06-18") as peer,
        Client(peer.url, versions="2025-06-18", on_elicit=lambda _: {"colours": ["red"]}, on_sample=lambda _: blocks),
        asyncio.timeout(5),
    ):
        assert (await ask_on_channel(peer, method="elicitation/create", params=form))["error"]["code"] == -32603
    async with (
        Peer2025(version="2025-06-18") as peer,
        Client(peer.url, versions="2025-06-18", on_sample=lambda _: blocks),
        asyncio.timeout(5),
    ):
        said = await ask_on_channel(peer, method="sampling/createMessage", params=SAMPLE)
    assert said["result"]["content"] == {"type": "text", "text": "one"}


async def test_a_question_that_is_taken_back_gets_no_answer() -> None:
    """CN-04: and its callback is cancelled."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def think(_: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25", on_elicit=think), asyncio.timeout(5):
        await peer.until("GET")
        (channel,) = peer.channels
        await channel.event({"id": "q", "method": "elicitation/create", "params": ASK})
        await begun.wait()
        await channel.event({"method": "notifications/cancelled", "params": {"requestId": "q"}})
        await ended.wait()
        await channel.event({"id": "p", "method": "ping"})
        await answer_to(peer, "p")
    assert not any(message.get("id") == "q" for message in bodies(peer))


async def test_a_lost_session_is_opened_anew_once_for_all_who_miss_it() -> None:
    """HL-24, A02, A03, A60: the server has not seen the requests, so all of them are sent again."""
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25") as client, asyncio.timeout(10):
        await client.list_tools()
        peer.lost = True
        results = await asyncio.gather(*(client.call_tool("t") for _ in range(10)))
        assert [result.text for result in results] == ["done"] * 10
        assert peer.sessions == 2
        fresh = [heard for heard in peer.of("tools/call") if heard.headers["mcp-session-id"] == "s-2"]
        assert len(fresh) == 10
        second = peer.of("initialize")[1]
        assert "mcp-session-id" not in second.headers


async def test_a_session_that_is_lost_again_and_again_is_an_error() -> None:
    """A03: once, not for ever."""
    async with Peer2025() as peer:

        async def lose(heard: Heard) -> None:
            await heard.plain(404, b"no such session")

        peer.call = lose
        async with Client(peer.url, versions="2025-11-25") as client, asyncio.timeout(5):
            with pytest.raises(ClientError, match="404"):
                await client.call_tool("t")
        assert peer.sessions == 2


async def test_giving_up_tells_the_server_but_never_of_initialize() -> None:
    """CN-02, CN-07, LC-07, HL-07."""
    asked = asyncio.Event()

    async def hang(heard: Heard) -> None:
        asked.set()
        await heard.gone()

    async with Peer2025(hang) as peer, Client(peer.url, versions="2025-11-25") as client, asyncio.timeout(5):
        call = asyncio.create_task(client.call_tool("t"))
        await asked.wait()
        call.cancel()
        (told,) = await peer.until("notifications/cancelled")
        assert told.message["params"]["requestId"] == peer.of("tools/call")[0].id

    async def silent(heard: Heard) -> None:
        await heard.gone()

    async with WirePeer(silent) as wire:
        with pytest.raises(ClientError, match="no answer within"):
            async with Client(wire.url, versions="2025-11-25", connect_timeout=0.2):
                pytest.fail("nobody is there")
        await asyncio.sleep(0.1)
        assert [heard.message["method"] for heard in wire.heard] == ["initialize"]


async def test_updates_of_resources_are_asked_for_once_and_given_back() -> None:
    """SB-14, SB-15."""
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25") as client, asyncio.timeout(5):
        async with client.listen(tools=True, uris=["test://a"]) as one, client.listen(uris=["test://a"]) as two:
            await peer.until("GET")
            (channel,) = peer.channels
            await channel.event({"method": "notifications/prompts/list_changed"})  # nobody asked
            await channel.event({"method": "notifications/resources/updated", "params": {"uri": "test://a/part"}})  # SB-11
            await channel.event({"method": "notifications/tools/list_changed"})
            assert [type(await anext(one)).__name__ for _ in range(2)] == ["ResourceUpdatedNotification", "ToolListChangedNotification"]
            change = await anext(two)
            assert isinstance(change, types.ResourceUpdatedNotification)
            assert change.params.uri == "test://a/part"
        await peer.until("resources/unsubscribe")
    assert [len(peer.of(f"resources/{verb}")) for verb in ("subscribe", "unsubscribe")] == [1, 1]


async def test_a_stream_of_changes_goes_on_in_the_next_session() -> None:
    """SB-10, HL-24: what was subscribed to is subscribed to again, and told of as changed."""
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25") as client, asyncio.timeout(10):
        async with client.listen(uris=["test://a"]) as changes:
            peer.lost = True
            await client.ping()
            change = await anext(changes)
            assert isinstance(change, types.ResourceUpdatedNotification)
        assert [heard.headers["mcp-session-id"] for heard in peer.of("resources/subscribe")] == ["s-1", "s-2"]


async def test_levels_are_a_request_of_their_own() -> None:
    """LG-05."""
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25", on_log=lambda _: None) as client:
        await client.set_log_level("error")
    assert [heard.message["params"] for heard in peer.of("logging/setLevel")] == [{"level": "info"}, {"level": "error"}]


@pytest.mark.parametrize("code", [-32000, -32002, -32010, -32019])
async def test_codes_without_a_meaning_get_none(code: int) -> None:
    """EC-03, EC-09: `-32002` is how older servers say that there is no such resource; nothing is done about either but to tell."""

    async def fail(heard: Heard) -> None:
        await heard.json({"jsonrpc": "2.0", "id": heard.id, "error": {"code": code, "message": "Resource not found"}})

    async with Peer2025(fail) as peer, Client(peer.url, versions="2025-11-25") as client:
        with pytest.raises(ServerError, match="Resource not found") as caught:
            await client.call_tool("t")
        assert caught.value.code == code
        assert len(peer.of("tools/call")) == 1
        assert peer.sessions == 1


async def test_a_failure_of_a_tool_s_own_is_a_result() -> None:
    """TL-14: so that it can be given to a model."""

    async def fail(heard: Heard) -> None:
        await peer.give(heard, {"content": [{"type": "text", "text": "out of tea"}], "isError": True})

    async with Peer2025(fail) as peer, Client(peer.url, versions="2025-11-25") as client:
        result = await client.call_tool("t")
        assert (result.is_error, result.text) == (True, "out of tea")


async def test_cursors_are_what_they_are() -> None:
    """PG-02."""
    cursors: list[Any] = []

    class Pages(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if heard.body and heard.message.get("method") == "tools/list" and not self.lost:
                cursor = heard.message.get("params", {}).get("cursor")
                cursors.append(cursor)
                page = {"tools": [{"name": f"t{len(cursors)}", "inputSchema": {"type": "object"}}]}
                await self.give(heard, page if cursor else {**page, "nextCursor": " é\u0000=="})
            else:
                await super().reply(heard)

    async with Pages() as peer, Client(peer.url, versions="2025-11-25") as client:
        assert len(await client.list_tools()) == 2
        assert cursors == [None, " é\u0000=="]


async def test_nothing_is_asked_because_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """CA-08: what is no longer fresh is asked for when somebody wants it."""
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25") as client:
        monkeypatch.setitem(ANSWERS, "tools/list", {**ANSWERS["tools/list"], "ttlMs": 20, "cacheScope": "private"})
        await client.list_tools()
        await client.list_tools()
        await asyncio.sleep(0.1)
        assert len(peer.of("tools/list")) == 1
        await client.list_tools()
        assert len(peer.of("tools/list")) == 2


async def test_a_call_may_be_a_task_of_2025() -> None:
    """TK-02, TK-05, TK-10, CN-09: who waits no more cancels the task, not the request that made it."""
    stands = {"taskId": "k", "status": "working", "createdAt": "2026-11-30T12:00:00Z", "lastUpdatedAt": "2026-11-30T12:00:00Z", "ttl": None}
    looked = asyncio.Event()
    ended = False

    class Tasks(Peer2025):
        async def reply(self, heard: Heard) -> None:
            match heard.message.get("method") if heard.body else "":
                case "tools/list":
                    execution = {"taskSupport": "optional"}
                    await self.give(heard, {"tools": [{"name": "t", "inputSchema": {"type": "object"}, "execution": execution}]})
                case "tools/call":
                    asks = heard.message["params"].get("task") == {}
                    await self.give(heard, {"task": {**stands, "pollInterval": 10}} if asks else ANSWERS["tools/call"])
                case "tasks/get":
                    await self.give(heard, {**stands, "status": "completed" if ended else "working", "pollInterval": 10})
                    looked.set()
                case "tasks/result":
                    await self.give(heard, {"content": [{"type": "text", "text": "slow"}]})
                case _:
                    await super().reply(heard)

    offers = {**OFFERS, "tasks": {"requests": {"tools": {"call": {}}}, "cancel": {}}}
    async with Tasks(offers=offers) as peer, Client(peer.url, versions="2025-11-25", tasks=True) as client, asyncio.timeout(5):
        call = asyncio.create_task(client.call_tool("t"))
        await looked.wait()
        call.cancel()
        await peer.until("tasks/cancel")
        ended = True
        assert (await client.call_tool("t")).text == "slow"
        assert peer.of("tools/call")[0].id not in [heard.message["params"]["requestId"] for heard in peer.of("notifications/cancelled")]
    async with Tasks(offers=OFFERS) as peer, Client(peer.url, versions="2025-11-25", tasks=True) as client:  # TK-02: not declared
        assert (await client.call_tool("t")).text == "done"
