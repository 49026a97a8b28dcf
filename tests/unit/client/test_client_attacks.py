"""Attacks on a client: servers, callbacks and moments that are out to break it."""

import asyncio
import gc
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from unit.client.peers import Asked, http_client, result, script, text_result
from unit.client.test_sessions import Peer2025, answer_to
from unit.client.wire_peer import Heard

from callboard import CacheHint, Client, Context, Server, types
from callboard.client import post
from callboard.client.cache import Cache
from callboard.client.errors import (
    ClientError,
    ConnectionFailed,
    InvalidRequest,
    ProcessExited,
    RequestCancelled,
    RequestTimeout,
    ServerError,
)

Json = dict[str, Any]

# A child that speaks 2025-11-25. `wait` is how long `initialize` takes from its second life on.
SCRIPT_2025 = """
import json, os, sys, time
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def answer(message, **fields):
    send(id=message["id"], result=fields)
lives = sys.argv[1]
with open(lives, "a") as file:
    file.write("x")
life = os.path.getsize(lives)
ready = False
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if method == "server/discover":
        send(id=message["id"], error={"code": -32601, "message": "unknown"})
    elif method == "initialize":
        if life > 1:
            time.sleep(float(sys.argv[2]))
        answer(message, protocolVersion="2025-11-25", capabilities={"tools": {"listChanged": True}}, serverInfo={"name": "s", "version": "1"})
    elif method == "notifications/initialized":
        ready = True
    elif method == "tools/call" and not ready:
        send(id=message["id"], error={"code": -32600, "message": "not initialized"})
    elif method == "tools/call" and params["name"] == "die":
        os._exit(3)
    elif method == "tools/call":
        answer(message, content=[{"type": "text", "text": str(life)}])
    elif "id" in message:
        answer(message)
"""


def child_2025(lives: Path, *, wait: float = 0.0) -> list[str]:
    return [sys.executable, "-c", SCRIPT_2025, str(lives), str(wait)]


async def test_no_call_goes_to_a_new_child_before_its_session_has_begun(tmp_path: Path) -> None:
    """SD-08, LC-03, LC-04."""
    async with Client(child_2025(tmp_path / "lives", wait=0.5), versions="2025-11-25") as client, asyncio.timeout(20):
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        first = asyncio.create_task(client.call_tool("t"))
        await asyncio.sleep(0.3)
        others = [asyncio.create_task(client.call_tool("t")) for _ in range(3)]
        assert {result.text for result in await asyncio.gather(first, *others)} == {"2"}


async def test_who_gives_up_while_a_child_starts_anew_leaves_a_good_client(tmp_path: Path) -> None:
    """SD-08."""
    async with Client(child_2025(tmp_path / "lives", wait=0.5), versions="2025-11-25") as client, asyncio.timeout(20):
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("t"), 0.3)
        assert (await client.call_tool("t")).text == "2"


async def test_a_child_that_can_not_be_started_again_is_an_error_each_time(tmp_path: Path) -> None:
    """SD-08: and works when it can be."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{SCRIPT_2025}")
    program.chmod(0o755)
    async with Client([str(program), str(tmp_path / "lives"), "0"], versions="2025-11-25") as client, asyncio.timeout(20):
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        program.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(ConnectionFailed):
                await client.call_tool("t", timeout=3)
        (tmp_path / "away").rename(program)
        assert (await client.call_tool("t")).text == "2"


async def test_a_listener_hears_that_its_child_ended(tmp_path: Path) -> None:
    """SD-08, SB-10: though nobody asks anything meanwhile."""
    async with (
        Client(child_2025(tmp_path / "lives"), versions="2025-11-25") as client,
        client.listen(tools=True) as changes,
        asyncio.timeout(10),
    ):
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        assert isinstance(await anext(changes), types.ToolListChangedNotification)
        assert (tmp_path / "lives").stat().st_size == 2


async def test_a_listener_hears_that_its_session_is_gone() -> None:
    """HL-23, HL-24, SB-10: though nobody asks anything meanwhile."""

    class Forgetful(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if (heard.method == "GET" and heard.headers["mcp-session-id"] != f"s-{self.sessions}") or (heard.method == "GET" and self.lost):
                await heard.plain(404)
            else:
                await super().reply(heard)

    async with Forgetful() as peer, Client(peer.url, versions="2025-11-25") as client, client.listen(tools=True) as changes:
        async with asyncio.timeout(10):
            await peer.until("GET")
            peer.lost = True
            await peer.channels[0].end()
            peer.channels[0].abort()
            assert isinstance(await anext(changes), types.ToolListChangedNotification)
        assert peer.sessions == 2


async def test_all_who_miss_a_session_hear_that_there_is_no_other_at_once() -> None:
    """HL-24: the time that opening takes is not spent once for each."""

    class Stuck(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if heard.body and heard.message.get("method") == "initialize" and self.sessions:
                await asyncio.sleep(60)
            else:
                await super().reply(heard)

    async with Stuck() as peer, Client(peer.url, versions="2025-11-25", connect_timeout=0.5) as client:
        peer.lost = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await asyncio.gather(*(client.call_tool("t") for _ in range(20)), return_exceptions=True)
        assert all(isinstance(each, ClientError) for each in found)
        assert loop.time() - began < 3


async def test_a_session_takes_no_longer_to_open_than_the_call_may_take() -> None:
    """CN-07, HL-24."""

    class Stuck(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if heard.body and heard.message.get("method") == "initialize" and self.sessions:
                await asyncio.sleep(60)
            else:
                await super().reply(heard)

    async with Stuck() as peer, Client(peer.url, versions="2025-11-25", connect_timeout=8) as client:
        peer.lost = True
        began = asyncio.get_running_loop().time()
        with pytest.raises(ClientError):
            await client.call_tool("t", total_timeout=0.5)
        assert asyncio.get_running_loop().time() - began < 3


async def test_what_a_server_asks_as_soon_as_the_session_has_begun_is_answered() -> None:
    """LC-05, JR-07, RT-02: many ask for the roots right then, on a stream that opens at that moment."""

    class Eager(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if heard.method == "GET":
                await heard.stream()
                await heard.event({"id": "r", "method": "roots/list"})
                await heard.gone()
            else:
                await super().reply(heard)

    async with Eager() as peer, Client(peer.url, versions="2025-11-25", on_roots=lambda: [types.Root(uri="file:///srv")]):
        async with asyncio.timeout(3):
            found = await answer_to(peer, "r")
    assert found["result"] == {"roots": [{"uri": "file:///srv"}]}


async def test_requests_of_one_id_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """JR-07: a server that asks the same thing a thousand times wakes no thousand callbacks, and none outlives the client."""
    monkeypatch.setattr(post, "MAX_REQUESTS", 100)
    asked = 0
    forever = asyncio.Event()

    async def think(_: Any) -> None:
        nonlocal asked
        asked += 1
        await forever.wait()

    async with Peer2025() as peer:
        async with Client(peer.url, versions="2025-11-25", on_elicit=think) as client:
            await peer.until("GET")
            form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
            for _ in range(500):
                await peer.channels[0].event({"id": 1, "method": "elicitation/create", "params": form})
            await client.ping()
            await asyncio.sleep(0.5)
            assert asked == 100
        assert [task for task in asyncio.all_tasks() if "callboard client answer" in task.get_name()] == []


async def test_time_that_a_callback_takes_is_not_silence() -> None:
    """CN-08: also where the server asks by a request of its own."""
    server = Server("slow", version="1")

    @server.tool
    async def ask(ctx: Context) -> str:
        return "yes" if (await ctx.elicit("Sure?", bool)).accepted else "no"

    async def think(_: Any) -> Json:
        await asyncio.sleep(0.6)
        return {"value": True}

    for version in ("2026-07-28", "2025-11-25"):
        async with Client(server, versions=version, on_elicit=think, timeout=0.3) as client:
            assert (await client.call_tool("ask")).text == "yes", version


async def test_cancelling_oneself_from_a_callback_is_over_with_the_call() -> None:
    """CN-02: whoever waits gets an error, and is not cancelled by it."""

    async def answer(asked: Asked) -> None:
        token = asked.params["_meta"]["progressToken"]
        note = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progress":1}}' % token
        await asked.stream()
        body = b'{"jsonrpc":"2.0","id":%d,"result":{"resultType":"complete","content":[]}}' % asked.message["id"]
        await asked.chunk(b"data: " + note + b"\n\ndata: " + body + b"\n\n")
        await asked.end()

    async with http_client(answer) as (client, _):

        def give_up(*_: Any) -> None:
            assert client.cancel(client.in_flight[0].request_id or 0)

        with pytest.raises(RequestCancelled):
            await client.call_tool("t", on_progress=give_up)
        await asyncio.sleep(0)


async def test_all_calls_at_once_get_typed_results() -> None:
    """TL-08: the first call lists the tools; the others wait for that."""
    server = Server("typed", version="1")

    @server.tool
    async def when() -> dict[str, Any]:
        return {"at": "2026-07-28"}

    async def answer(asked: Asked) -> None:
        if asked.method == "tools/list":
            await asyncio.sleep(0.2)
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
            await asked.result(
                result(tools=[{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}], ttlMs=0, cacheScope="public")
            )
        else:
            await asked.result({**text_result(), "structuredContent": {"n": "no number"}})

    async with http_client(answer) as (client, _):
        found = await asyncio.gather(*(client.call_tool("t") for _ in range(5)), return_exceptions=True)
        assert [type(each).__name__ for each in found] == ["InvalidAnswer"] * 5


async def test_a_subscription_that_fails_takes_nothing_from_another() -> None:
    """SB-14."""

    class Picky(Peer2025):
        async def reply(self, heard: Heard) -> None:
            if heard.body and heard.message.get("method") == "resources/subscribe" and heard.message["params"]["uri"] == "test://bad":
                await heard.json({"jsonrpc": "2.0", "id": heard.id, "error": {"code": -32002, "message": "no such resource"}})
            else:
                await super().reply(heard)

    async with Picky() as peer, Client(peer.url, versions="2025-11-25") as client, client.listen(uris=["test://b"]) as changes:
        with pytest.raises(ServerError):
            async with client.listen(uris=["test://bad", "test://b"]):
                pass
        await client.ping()
        await asyncio.sleep(0.2)
        assert [heard.message["params"]["uri"] for heard in peer.of("resources/unsubscribe")] in ([], ["test://bad"])
        await peer.channels[0].event({"method": "notifications/resources/updated", "params": {"uri": "test://b"}})
        async with asyncio.timeout(3):
            assert isinstance(await anext(changes), types.ResourceUpdatedNotification)


async def test_who_listens_again_at_once_is_told() -> None:
    """SB-14: a late `unsubscribe` of the one before does not undo the new `subscribe`."""
    subscribed: set[str] = set()

    class Slow(Peer2025):
        async def reply(self, heard: Heard) -> None:
            method = heard.message.get("method") if heard.body else None
            if method == "resources/unsubscribe":
                await asyncio.sleep(0.2)
                subscribed.discard(heard.message["params"]["uri"])
            elif method == "resources/subscribe":
                subscribed.add(heard.message["params"]["uri"])
            await super().reply(heard)

    async with Slow() as peer, Client(peer.url, versions="2025-11-25") as client:
        async with client.listen(uris=["test://a"]):
            pass
        async with client.listen(uris=["test://a"]):
            await asyncio.sleep(0.4)
            assert subscribed == {"test://a"}


async def test_a_change_is_told_whole_while_another_resource_is_added() -> None:
    """SB-14: `subscribe` cuts no callback short, and loses nothing that has come."""
    begun, heard_of = asyncio.Event(), []

    async def hear(change: Any) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        heard_of.append(change.params.uri)

    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25", on_change=hear) as client:
        await client.subscribe("test://a")
        for _ in range(3):
            await peer.channels[0].event({"method": "notifications/resources/updated", "params": {"uri": "test://a"}})
        await begun.wait()
        await client.subscribe("test://b")
        await asyncio.sleep(1)
        assert heard_of == ["test://a"] * 3


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_level_outlives_the_session(version: str, tmp_path: Path) -> None:
    """LG-05, MT-09, HL-24, SD-08."""
    if version == "2025-11-25":
        async with Peer2025() as peer, Client(peer.url, versions=version, on_log=lambda _: None) as client:
            await client.set_log_level("error")
            peer.lost = True
            await client.call_tool("t")
            assert [heard.message["params"]["level"] for heard in peer.of("logging/setLevel")][-2:] == ["error", "error"]
    else:
        command = script(
            "os._exit(3) if method == 'tools/call' and params['name'] == 'die' else text(message, params['_meta']['io.modelcontextprotocol/logLevel'])"
        )
        async with Client(command, versions=[version, "2025-11-25"], on_log=lambda _: None) as client, asyncio.timeout(20):
            await client.set_log_level("error")
            with pytest.raises(ProcessExited):
                await client.call_tool("die")
            assert (await client.call_tool("t")).text == "error"


async def test_a_shared_cache_takes_no_client_for_another() -> None:
    """CA-06: two servers in memory of one name, one after the other."""
    cache = Cache()
    for number in range(30):
        server = Server("same", version="1", cache=CacheHint(ttl_ms=60_000))

        @server.tool(name=f"tool{number}")
        def tool() -> str:
            return ""

        async with Client(server, cache=cache) as client:
            assert [each.name for each in await client.list_tools()] == [f"tool{number}"]
        del client, server, tool
        gc.collect()


async def test_queries_are_places_of_their_own_to_a_cache() -> None:
    """CA-06: credentials may stand in the query."""
    cache = Cache()

    async def answer(asked: Asked) -> None:
        await asked.result(result(tools=[], ttlMs=60_000, cacheScope="private"))

    async with http_client(answer, cache=cache) as (client, peer):
        await client.list_tools()
        before = len(peer.asked)
        for query in ("?key=1", "?key=2"):
            async with Client(peer.url + query, versions="2026-07-28", cache=cache) as other:
                await other.list_tools()
        assert len(peer.asked) == before + 2


async def test_what_a_login_led_to_is_not_kept_for_those_without() -> None:
    """CA-06: the request went out without credentials, its answer came with some."""
    cache = Cache()

    class Login:
        def __init__(self, token: str) -> None:
            self.token = token
            self.given: dict[str, str] = {}

        def bind(self, url: str, fetch: Any) -> None:
            pass

        async def headers(self, http_method: str, url: str) -> dict[str, str]:
            return self.given

        async def answer(self, challenge: Any) -> bool:
            self.given = {"Authorization": f"Bearer {self.token}"}
            return True

        def learn(self, headers: Any) -> None:
            pass

    async def answer(asked: Asked) -> None:
        token = asked.headers.get("authorization", "")[-1:]
        if not token:
            await asked.body_answer(401, b"", "text/plain", "WWW-Authenticate: Bearer")
        else:
            tools = [{"name": f"of_{token}", "inputSchema": {"type": "object"}}]
            await asked.result(result(tools=tools, ttlMs=60_000, cacheScope="private"))

    async with http_client(answer, cache=cache, auth=Login("a")) as (client, peer):
        async with Client(peer.url, versions="2026-07-28", cache=cache, auth=Login("b")) as other:
            for _ in range(2):
                assert [tool.name for tool in await client.list_tools()] == ["of_a"]
                assert [tool.name for tool in await other.list_tools()] == ["of_b"]
        assert len([asked for asked in peer.asked if asked.headers.get("authorization")]) == 2


async def test_a_limit_in_all_holds_for_a_task() -> None:
    """CN-07, TX-13."""

    async def answer(asked: Asked) -> None:
        task = {
            "taskId": "t",
            "createdAt": "2026-11-30T12:00:00Z",
            "lastUpdatedAt": "2026-11-30T12:00:00Z",
            "ttlMs": None,
            "pollIntervalMs": 50,
        }
        kind = "task" if asked.method == "tools/call" else "complete"
        await asked.result({**result(**task, status="working"), "resultType": kind})

    async with http_client(answer, tasks=True) as (client, peer):
        async with asyncio.timeout(5):
            with pytest.raises(RequestTimeout):
                await client.call_tool("t", total_timeout=0.5)
        assert peer.asked[-1].method == "tasks/cancel"


async def test_an_interval_beyond_all_numbers_is_a_number() -> None:
    """TX-13."""

    async def answer(asked: Asked) -> None:
        task = {
            "taskId": "t",
            "createdAt": "2026-11-30T12:00:00Z",
            "lastUpdatedAt": "2026-11-30T12:00:00Z",
            "ttlMs": None,
            "pollIntervalMs": 10**400,
        }
        kind = "task" if asked.method == "tools/call" else "complete"
        await asked.result({**result(**task, status="working"), "resultType": kind})

    async with http_client(answer, tasks=True) as (client, _):
        with pytest.raises((ClientError, TimeoutError)):
            await asyncio.wait_for(client.call_tool("t"), 0.5)


async def test_a_callback_that_was_cancelled_cancels_nobody() -> None:
    """MR-11."""
    server = Server("asks", version="1")

    @server.tool
    async def ask(ctx: Context) -> str:
        return "yes" if (await ctx.elicit("Sure?", bool)).accepted else "no"

    async def closed(_: Any) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    for version in ("2026-07-28", "2025-11-25"):
        async with Client(server, versions=version, on_elicit=closed, timeout=2) as client:
            if version == "2026-07-28":
                with pytest.raises(InvalidRequest, match="on_elicit gave nothing: it was cancelled"):
                    await client.call_tool("ask")
            else:
                assert (await client.call_tool("ask")).is_error


async def test_a_server_writes_no_lines_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """LG-06."""
    caplog.set_level(logging.DEBUG)
    evil = "x\n2026-01-01 CRITICAL forged \x1b[31m"

    async def answer(asked: Asked) -> None:
        if asked.method == "tools/list":
            await asked.error(-32601, evil, status=200)
            return
        await asked.stream()
        await asked.event(id=1, method=evil)
        await asked.event(method=evil, params={})
        await asked.event(method="notifications/progress", params={"progress": evil})
        await asked.event(id=asked.message["id"], result={**text_result(), "structuredContent": {"x": 1}})
        await asked.end()

    async with http_client(answer) as (client, _):
        await client.call_tool("t", on_progress=lambda *_: None)
    async with Peer2025() as peer, Client(peer.url, versions="2025-11-25") as old:
        await peer.until("GET")
        await peer.channels[0].event({"id": 1, "method": evil})
        await peer.channels[0].event({"method": "notifications/resources/updated", "params": {"uri": 1, "x": evil}})
        await old.ping()
        await asyncio.sleep(0.1)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("callboard")]
    assert [line for line in lines if "\n" in line or "\x1b" in line] == []


async def test_a_flood_of_nonsense_is_not_a_flood_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """LG-06."""

    async def answer(asked: Asked) -> None:
        await asked.stream()
        for number in range(300):
            await asked.event(id=number, method="elicitation/create", params={})
            await asked.event(method="notifications/progress", params={})
            await asked.event(method="notifications/tools/list_changed", params=[])
        await asked.event(id=asked.message["id"], result=text_result())
        await asked.end()

    async with http_client(answer) as (client, _):
        await client.call_tool("t", on_progress=lambda *_: None)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) < 20


@pytest.mark.parametrize("moment", [0.05, 0.3])
async def test_a_client_may_be_closed_while_it_opens_anew(moment: float, tmp_path: Path) -> None:
    """SD-08: all who wait hear of it, and nothing is left."""
    client = Client(child_2025(tmp_path / "lives", wait=10), versions="2025-11-25")
    async with client, asyncio.timeout(20):
        with pytest.raises(ProcessExited):
            await client.call_tool("die")
        calls = [asyncio.create_task(client.call_tool("t")) for _ in range(5)]
        await asyncio.sleep(moment)
        await client.close()
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, ConnectionFailed) for each in found)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
