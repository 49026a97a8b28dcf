"""Cases of the field that a client has to stand up to, with our own server on every way to it."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import fault_child
import pytest
from e2e.serving import free_port, process, wait_until_listening
from endings import ends, handed_back, tables, watched
from fault_proxy import Fault, FaultProxy
from upstream import COMMAND, PAGE, TOOLS, board, many, serve

from callboard import types
from callboard.client.client import Client
from callboard.client.errors import (
    ConnectionFailed,
    InvalidAnswer,
    ProcessExited,
    RequestCancelled,
    RequestTimeout,
    ServerError,
)

MODERN, LEGACY = "2026-07-28", "2025-11-25"
VERSIONS = (MODERN, LEGACY)
LIMIT = 20.0  # seconds: only what hangs takes so long
Open = Callable[..., Awaitable[Client]]


@pytest.fixture(params=[(way, version) for way in ("memory", "http", "stdio") for version in VERSIONS], ids=" ".join)
async def open_client(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Opens clients of one server."""
    way, version = request.param
    async with contextlib.AsyncExitStack() as stack:
        target: Any = COMMAND if way == "stdio" else board() if way == "memory" else stack.enter_context(serve())

        async def open_one(**options: Any) -> Client:
            return await stack.enter_async_context(Client(target, versions=(version,), **options))

        yield open_one


@pytest.fixture
def url() -> Iterator[str]:
    with serve() as url:
        yield url


def connected(proxy: FaultProxy, version: str) -> Client:
    return Client(proxy.url, versions=(version,))


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def begin(client: Client, tool: str, **arguments: Any) -> asyncio.Task[Any]:
    """A call that has begun."""
    begun = asyncio.Event()
    task = asyncio.create_task(client.call_tool(tool, arguments, on_progress=lambda *_: begun.set()))
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({task, waiting}, timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
    assert begun.is_set(), task
    return task


# Sessions that are lost.


async def test_a_session_that_is_lost_is_opened_anew_once() -> None:
    """A03: all that miss it wait for the same new session, and no call runs twice."""
    with serve() as first, serve() as second:
        async with FaultProxy(first) as proxy, Client(proxy.url, versions=(LEGACY,)) as client:
            assert text_of(await client.call_tool("run_once")) == "1"
            proxy.upstream = FaultProxy(second).upstream  # a server that was restarted knows no sessions
            found = await asyncio.gather(*(client.call_tool("run_once") for _ in range(10)))
            assert sorted(int(text_of(each)) for each in found) == list(range(1, 11))
            assert [ask.method for ask in proxy.asks].count("initialize") == 2
            assert text_of(await client.call_tool("echo", {"text": "again"})) == "again"
        assert [ask.method for ask in proxy.asks].count("initialize") == 2


async def test_a_session_that_is_lost_all_the_time_is_an_error(url: str) -> None:
    """A03: one try, not a loop."""
    proxy = FaultProxy(url, lambda ask: Fault("session_gone") if ask.method == "tools/call" else None)
    async with proxy, connected(proxy, LEGACY) as client:
        with pytest.raises(ServerError, match="Session not found") as caught:
            await client.call_tool("echo", {"text": "x"})
        assert caught.value.status == 404
        assert [ask.method for ask in proxy.asks].count("tools/call") == 2


async def test_a_session_that_has_expired_is_no_trouble() -> None:
    """A04, A60."""
    with serve(session_ttl=0.3) as url:
        async with FaultProxy(url, lambda ask: Fault("accepted") if ask.verb == "GET" else None) as proxy:
            async with Client(proxy.url, versions=(LEGACY,)) as client, asyncio.timeout(LIMIT):
                assert text_of(await client.call_tool("echo", {"text": "one"})) == "one"
                await asyncio.sleep(1.0)
                assert text_of(await client.call_tool("echo", {"text": "two"})) == "two"
            assert [ask.method for ask in proxy.asks].count("initialize") == 2


# Calls side by side.


async def test_two_clients_of_one_server_get_their_own(open_client: Open) -> None:
    """A10: ids are the same for both, answers and progress are not."""
    clients = [await open_client() for _ in range(2)]

    async def call(client: Client, number: int, text: str) -> None:
        heard: list[str | None] = []
        arguments = {"text": text, "steps": 5, "pause": 0.005 * (number % 3)}
        result = await client.call_tool("count", arguments, on_progress=lambda step, total, message: heard.append(message))
        assert text_of(result) == text
        assert heard == [text] * 5

    await asyncio.gather(*(call(client, n, f"client {c} call {n}") for c, client in enumerate(clients) for n in range(10)))


async def test_cancelling_at_any_moment_does_no_harm(open_client: Open) -> None:
    """A11: whichever comes first, the answer or the cancellation, the next call works and nothing is kept."""
    client, dice, done = await open_client(), random.Random(11), 0

    async def call(number: int) -> None:
        nonlocal done
        task = asyncio.create_task(client.call_tool("echo", {"text": str(number)}))
        await asyncio.sleep(dice.uniform(0, 0.002))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert text_of(await task) == str(number)
            done += 1

    for block in range(10):
        await asyncio.gather(*(call(50 * block + number) for number in range(50)))
    assert client.in_flight == ()
    assert text_of(await client.call_tool("echo", {"text": "alive"})) == "alive"


@pytest.mark.parametrize("how", ["cancel", "time out", "by id"])
async def test_giving_up_is_told_to_the_server(open_client: Open, how: str) -> None:
    """A12: the function is cancelled, within half a second."""
    client = await open_client(timeout=0.4 if how == "time out" else LIMIT, total_timeout=LIMIT)
    call = await begin(client, "hold")
    asking = asyncio.create_task(client.call_tool("was_cancelled", timeout=LIMIT))
    if how == "cancel":
        call.cancel()
    elif how == "by id":
        (origin,) = [origin for origin in client.in_flight if origin.subject == "hold"]
        assert origin.request_id is not None
        assert client.cancel(origin.request_id)
    expected = {"cancel": asyncio.CancelledError, "time out": RequestTimeout, "by id": RequestCancelled}[how]
    with pytest.raises(expected):
        await call
    outcome = await ends(asyncio.wait_for(asking, None), 0.5, "the news of the cancellation")
    assert text_of(handed_back(outcome)) == "hold"


async def test_many_calls_leave_nothing_in_the_tables(open_client: Open) -> None:
    """A07, the client's half: answered, failed, cancelled, late; with progress and without."""
    client = await open_client()
    many_calls = 10_000 if client.target == "upstream" and client.version == MODERN else 500

    async def call(number: int) -> None:
        if number % 50 == 0:
            with contextlib.suppress(RequestTimeout):
                await client.call_tool("wait", {"seconds": 5}, timeout=0.001)
        elif number % 50 == 1:
            with contextlib.suppress(ServerError):
                await client.call_tool("no such tool")
        elif number % 50 == 2:
            await client.call_tool("count", {"text": "x"}, on_progress=lambda *_: None)
        elif number % 50 == 3:
            task = asyncio.create_task(client.call_tool("hold"))
            await asyncio.sleep(0)
            task.cancel()
        else:
            await client.call_tool("echo", {"text": "x"})

    async def calls(first: int, last: int) -> dict[str, int]:
        for block in range(first, last, 50):
            await asyncio.gather(*(call(number) for number in range(block, block + 50)))
        await asyncio.sleep(0.1)  # servers hear of what was given up
        assert client.in_flight == ()
        return tables(client, "callboard.client")

    before = await calls(0, 200)
    after = await calls(200, many_calls)
    assert len(before) > 5, "nothing was looked at"
    grown = {place: (before.get(place, 0), size) for place, size in after.items() if size > before.get(place, 0) + 3}
    assert not grown, f"tables that grow with every call: {grown}"


async def test_a_large_result_comes_after_its_progress(open_client: Open) -> None:
    """A14, A45."""
    client = await open_client()
    heard: list[float] = []
    result = await client.call_tool("large", {"length": 3 * 2**20}, on_progress=lambda step, *_: heard.append(step))
    assert text_of(result) == "x" * (3 * 2**20)
    assert heard == [1, 2, 3]


async def test_a_result_past_the_limit_names_it(open_client: Open) -> None:
    """A45: and over HTTP, where a message has an end, the next call works."""
    client = await open_client(max_message=2**20)
    if client.target == "upstream":
        return  # in memory there is nothing to protect: the server's memory is the client's
    for streaming in (True, False):
        on_progress = (lambda *_: None) if streaming else None
        outcome = await ends(client.call_tool("large", {"length": 3 * 2**20}, on_progress=on_progress), 5, "the call")
        assert isinstance(outcome.error, InvalidAnswer)
        assert "1048576 bytes" in str(outcome.error)
        assert "max_message" in str(outcome.error)
    if client.target.startswith("http"):
        assert text_of(await client.call_tool("echo", {"text": "alive"})) == "alive"


async def test_progress_keeps_a_call_alive_and_no_longer_than_that(open_client: Open) -> None:
    """A15, CN-08."""
    client = await open_client()

    async def call(**limits: float) -> types.CallToolResult:
        arguments = {"text": "done", "steps": 12, "pause": 0.1}
        return await client.call_tool("count", arguments, on_progress=lambda *_: None, **limits)

    assert text_of(await call(timeout=0.8, total_timeout=LIMIT)) == "done"
    outcome = await ends(call(timeout=0.8, total_timeout=0.6), 0.6)
    assert isinstance(outcome.error, RequestTimeout)
    assert outcome.error.seconds == 0.6
    assert outcome.seconds >= 0.59


# A server that goes away, and comes back.


@pytest.mark.parametrize("version", VERSIONS)
async def test_changes_are_heard_again_when_the_server_is_back(version: str, url: str) -> None:
    """A17."""
    heard: asyncio.Queue[Any] = asyncio.Queue()
    async with FaultProxy(url) as proxy, Client(proxy.url, versions=(version,), on_change=heard.put_nowait) as client:
        await client.call_tool("grow", {"name": "one"})
        async with asyncio.timeout(LIMIT):
            await heard.get()
        await proxy.vanish()
        outcome = await ends(client.call_tool("echo", {"text": "x"}), 1)
        assert isinstance(outcome.error, ConnectionFailed)
        await asyncio.sleep(0.5)
        await proxy.listen()
        while not heard.empty():
            heard.get_nowait()
        async with asyncio.timeout(LIMIT):
            number = 0
            while heard.empty():  # a change while nobody listened is lost, or told afterwards
                number += 1
                await client.call_tool("grow", {"name": f"two{number}"})
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_that_is_killed_ends_the_call(version: str, tmp_path: Path) -> None:
    """A41: kill -9."""
    port, log = free_port(), tmp_path / "log"
    with process([*COMMAND, str(port)], log) as server:
        await asyncio.to_thread(wait_until_listening, server, port, log)
        async with Client(f"http://127.0.0.1:{port}/mcp", versions=(version,)) as client:
            calls = [await begin(client, "wait", seconds=60) for _ in range(3)]
            os.killpg(server.pid, signal.SIGKILL)
            for call in calls:
                outcome = await ends(asyncio.wait_for(call, None), 1, "a call of a dead server")
                assert isinstance(outcome.error, ConnectionFailed)
                assert outcome.error.method == "tools/call"
            await asyncio.to_thread(server.wait, 10)  # until then its socket may still take a connection
            refused = await ends(client.call_tool("echo", {"text": "x"}), 1)
            assert isinstance(refused.error, ConnectionFailed)
            assert "is the server running" in str(refused.error)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_child_that_ends_says_how_and_the_next_call_has_another(version: str) -> None:
    """A39, SD-08: what it may have done is not done again behind the caller's back."""
    async with watched(), Client(COMMAND, versions=(version,)) as client:
        calls = [await begin(client, "wait", seconds=60), asyncio.create_task(client.call_tool("leave"))]
        for call in calls:
            outcome = await ends(asyncio.wait_for(call, None), 1, "a call of a dead server")
            assert isinstance(outcome.error, ProcessExited)
            assert outcome.error.returncode == 3
            assert "exit code 3" in str(outcome.error)
            assert "the database is on fire" in str(outcome.error)
        assert text_of(handed_back(await ends(client.call_tool("run_once"), LIMIT, "the next call"))) == "1"


# What servers say.


async def test_a_failure_is_not_held_to_the_schema_of_success(open_client: Open) -> None:
    """A23."""
    client = await open_client()
    await client.list_tools()
    result = await client.call_tool("refuse")
    assert result.is_error
    assert result.structured_content == {"reason": 7}
    assert text_of(result) == "no sensor"


@pytest.mark.parametrize("version", [*VERSIONS, None])
async def test_a_host_that_is_not_listed_is_named_with_the_way_out(version: str | None) -> None:
    """A34."""
    with serve() as closed, serve(hosts=["mcp.example.com"]) as listed:
        opened = await ends(play(closed, version), LIMIT)
        assert isinstance(opened.error, ServerError)
        assert opened.error.status == 421
        assert "protocol version" not in str(opened.error)
        assert "hosts=" in str(opened.error)
        assert handed_back(await ends(play(listed, version), LIMIT)) == "hello"


async def play(url: str, version: str | None) -> str:
    """A call to a server behind a name."""
    async with Client(url, versions=version, headers={"Host": "mcp.example.com"}) as client:
        return text_of(await client.call_tool("echo", {"text": "hello"}))


LINES = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    method, key = message["method"], message.get("id")
    if key is None:
        continue
    if method == "tools/call":
        text = message["params"]["arguments"]["text"]
        if text == "refuse":
            print(json.dumps({"jsonrpc": "2.0", "id": key, "error": {"code": -32600, "message": "what is that"}}), flush=True)
            continue
        if text == "blindly":
            print(json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "what is that"}}), flush=True)
            continue
        result = {"content": [{"type": "text", "text": text}]}
    elif method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "lines", "version": "1"}}
    else:
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0, "cacheScope": "public"}
    print(json.dumps({"jsonrpc": "2.0", "id": key, "result": {"resultType": "complete", **result}}), flush=True)
"""


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_line_that_the_server_can_not_read_ends_its_call(version: str) -> None:
    """A37: whether the server knows whose it was, or not; the next call works."""
    async with Client([sys.executable, "-c", LINES], versions=(version,)) as client:
        for text, code in (("refuse", -32600), ("blindly", -32700)):
            outcome = await ends(client.call_tool("t", {"text": text}), 1, text)
            assert isinstance(outcome.error, ServerError)
            assert outcome.error.code == code
            assert text_of(await client.call_tool("t", {"text": "next"})) == "next"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", ["memory", "http"])
async def test_a_long_list_is_whole(version: str, way: str) -> None:
    """A61: all pages, or the one that was asked for."""
    with contextlib.ExitStack() as stack:
        target: Any = many() if way == "memory" else stack.enter_context(serve(many()))
        async with Client(target, versions=(version,)) as client:
            everything = await client.list_tools()
            assert [tool.name for tool in everything] == [f"tool_{number}" for number in range(TOOLS)]
            first = await client.request("tools/list")
            page = await client.list_tools(first["nextCursor"])
            assert [tool.name for tool in page] == [f"tool_{number}" for number in range(PAGE, 2 * PAGE)]


# Clients of fixtures.

PROGRAM = """
import pytest{imports}
from callboard import Client, Server

server = Server("board")

@server.tool
async def echo(text: str) -> str:
    return text

{head}

@{fixture}(scope="{scope}", params=[server, {command!r}]{more})
async def client(request):
    async with Client(request.param) as client:
        yield client

class TestAll:
    async def test_one(self, client):
        assert (await client.call_tool("echo", {{"text": "one"}})).content[0].text == "one"

    async def test_two(self, client):
        assert (await client.call_tool("echo", {{"text": "two"}})).content[0].text == "two"

    async def test_streams(self, client):
        async with Client(server) as other, other.listen(tools=True):
            assert (await client.call_tool("echo", {{"text": "three"}})).content[0].text == "three"
"""
ANYIO = """
pytestmark = pytest.mark.anyio

@pytest.fixture(scope="{scope}")
def anyio_backend():
    return "asyncio"
"""
SCOPES = ("function", "class", "module", "session")


def make_module(plugin: str, scope: str) -> str:
    """A user's test module whose fixture lives as long as that."""
    parts = {"imports": "", "head": "", "fixture": "pytest.fixture", "more": ""}
    if plugin == "strict":
        head = f'pytestmark = pytest.mark.asyncio(loop_scope="{scope}")'
        parts = {"imports": ", pytest_asyncio", "head": head, "fixture": "pytest_asyncio.fixture", "more": f', loop_scope="{scope}"'}
    elif plugin == "anyio":
        parts["head"] = ANYIO.format(scope=scope)
    return PROGRAM.format(scope=scope, command=fault_child.command("ignore", at="never"), **parts)


@pytest.mark.parametrize("plugin", ["auto", "strict", "anyio"])
async def test_a_fixture_may_hold_a_client_for_as_long_as_it_likes(tmp_path: Path, plugin: str) -> None:
    """A43: set up and torn down in different tasks, in loops of any scope; no warning, no word."""
    for scope in SCOPES:
        (tmp_path / f"test_{scope}.py").write_text(make_module(plugin, scope))
    mode = "auto" if plugin == "auto" else "strict"
    loops = "".join(f"asyncio_default_{each}_loop_scope = session\n" for each in ("fixture", "test")) if plugin == "auto" else ""
    if plugin != "auto":
        loops = "asyncio_default_fixture_loop_scope = function\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\nasyncio_mode = {mode}\n{loops}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(ran.communicate(), 120)
    assert ran.returncode == 0, said.decode()
    assert f"{6 * len(SCOPES)} passed" in said.decode()
    assert "warning" not in said.decode()
