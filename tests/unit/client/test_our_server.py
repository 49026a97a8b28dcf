"""The client and Callboard's own server, over each transport."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from callboard import Server, asgi, types
from callboard.client.client import Client
from callboard.client.errors import ConnectionFailed, RequestTimeout, ServerError

PROGRAM = """
import asyncio
from callboard import Context, Server, ToolError

server = Server("board", version="3", page_size=2)
started, cancelled = asyncio.Event(), asyncio.Event()

@server.tool
async def echo(text: str) -> str:
    return text

@server.tool
async def count(steps: int, ctx: Context) -> list[int]:
    for step in range(steps):
        ctx.progress(step + 1, steps, f"step {step}")
        ctx.log("info", step)
    return list(range(steps))

@server.tool
async def fail() -> str:
    raise ToolError("no such day")

@server.tool
async def wait() -> None:
    started.set()
    try:
        await asyncio.sleep(60)
    finally:
        cancelled.set()

@server.tool
async def was_started() -> str:
    async with asyncio.timeout(10):
        await started.wait()
    return "yes"

@server.tool
async def was_cancelled() -> str:
    async with asyncio.timeout(2):
        await cancelled.wait()
    return "yes"

@server.tool
async def publish(uri: str) -> None:
    server.resource_updated(uri)

@server.resource("note://one")
def one() -> str:
    return "first"

@server.resource("note://by/{name}")
def by(name: str) -> str:
    return name

@server.prompt
def greet(name: str) -> str:
    return f"Hello {name}"

@server.complete("greet", "name")
def names(value: str) -> list[str]:
    return [name for name in ("Ada", "Alan", "Bob") if name.startswith(value)]
"""


def program() -> Server:
    """The program's server, made in this process."""
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(PROGRAM, namespace)
    server = namespace["server"]
    assert isinstance(server, Server)
    return server


@contextlib.asynccontextmanager
async def served(server: Server) -> AsyncIterator[str]:
    """URL of a server on a loopback socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    runner = uvicorn.Server(uvicorn.Config(asgi(server), log_level="critical", lifespan="on"))
    task = asyncio.create_task(runner.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        runner.should_exit = True
        await task
        listener.close()


@pytest.fixture(params=["memory", "http", "stdio"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "stdio":
            path = tmp_path / "program.py"
            path.write_text(PROGRAM)
            target: Any = path
        else:
            target = program() if request.param == "memory" else await stack.enter_async_context(served(program()))
        yield await stack.enter_async_context(Client(target, timeout=10))


async def test_everything_a_client_asks(client: Client) -> None:
    found = await client.discover()
    assert found.supported_versions == ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"]
    assert (found.meta or {})["io.modelcontextprotocol/serverInfo"]["name"] == "board"
    assert {tool.name for tool in await client.list_tools()} == {"echo", "count", "fail", "wait", "was_started", "was_cancelled", "publish"}
    assert [resource.uri for resource in await client.list_resources()] == ["note://one"]
    assert [template.uri_template for template in await client.list_resource_templates()] == ["note://by/{name}"]
    assert [prompt.name for prompt in await client.list_prompts()] == ["greet"]
    assert (await client.read_resource("note://one")).contents[0].text == "first"
    assert (await client.read_resource("note://by/caf%C3%A9")).contents[0].text == "café"
    (message,) = (await client.get_prompt("greet", {"name": "Ada"})).messages
    assert message.content == types.TextContent(text="Hello Ada")
    assert (await client.complete(types.PromptReference(name="greet"), "name", "A")).values == ["Ada", "Alan"]


@pytest.mark.parametrize("text", ["12345", '{"a":1}', "null", "1e5", " é\n\u2028 ", "x" * 100_000])
async def test_text_comes_back_as_it_was(client: Client, text: str) -> None:
    """A24."""
    assert (await client.call_tool("echo", {"text": text})).content == [types.TextContent(text=text)]


async def test_progress_and_logs(client: Client) -> None:
    steps: list[Any] = []
    found = await client.call_tool("count", {"steps": 3}, on_progress=lambda *step: steps.append(step))
    assert steps == [(1, 3, "step 0"), (2, 3, "step 1"), (3, 3, "step 2")]
    assert found.structured_content == [0, 1, 2]


async def test_failures(client: Client) -> None:
    found = await client.call_tool("fail")
    assert found.is_error
    assert found.content == [types.TextContent(text="no such day")]
    for call in (client.call_tool("nope"), client.read_resource("note://none"), client.get_prompt("nope"), client.request("no/method")):
        with pytest.raises(ServerError) as caught:
            await call
        assert caught.value.target == client.target
    assert (await client.call_tool("echo", {"text": 7})).is_error


@pytest.mark.parametrize("how", ["cancel", "time out"])
async def test_a_cancelled_call_is_cancelled_in_the_server(client: Client, how: str) -> None:
    """A12, CN-01."""
    call = asyncio.create_task(client.call_tool("wait", timeout=0.2 if how == "time out" else 30))
    if how == "cancel":
        await client.call_tool("was_started")  # what has not begun is never run, and could not tell
        call.cancel()
    with pytest.raises((asyncio.CancelledError, RequestTimeout)):
        await call
    assert (await client.call_tool("was_cancelled")).content == [types.TextContent(text="yes")]


async def test_many_calls_at_once_find_their_answers(client: Client) -> None:
    found = await asyncio.gather(*(client.call_tool("echo", {"text": str(number)}) for number in range(100)))
    assert [each.content for each in found] == [[types.TextContent(text=str(number))] for number in range(100)]


async def test_a_subscription(client: Client) -> None:
    async with asyncio.timeout(10), client.listen(uris=["note://one"]) as changes:
        assert changes.granted == types.SubscriptionFilter(resource_subscriptions=["note://one"])
        await client.call_tool("publish", {"uri": "note://two"})
        await client.call_tool("publish", {"uri": "note://one"})
        change = await anext(changes)
    assert getattr(change.params, "uri", None) == "note://one"


async def test_closing_fails_what_waits(client: Client) -> None:
    waiting = asyncio.create_task(client.call_tool("wait"))
    await client.call_tool("echo", {"text": "by now the call has arrived"})
    async with asyncio.timeout(3):
        await asyncio.create_task(client.close())
    with pytest.raises(ConnectionFailed, match="client was closed"):
        await waiting


async def test_logs_of_a_server_in_memory() -> None:
    logs: list[Any] = []
    async with Client(program(), on_log=lambda log: logs.append((log.level, log.data))) as client:
        await client.call_tool("count", {"steps": 2})
    assert logs == [("info", 0), ("info", 1)]


async def test_a_failing_lifespan_fails_the_connect_in_memory() -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[dict[str, Any]]:
        raise RuntimeError("no database")
        yield {}

    with pytest.raises(RuntimeError, match="no database"):
        async with Client(Server("broken", lifespan=lifespan)):
            pytest.fail("it can't start")


async def test_a_program_that_prints_does_not_disturb_the_protocol(tmp_path: Path) -> None:
    """A38, for what `callboard run` loads."""
    path = tmp_path / "noisy.py"
    path.write_text("print('loading')\nimport os; os.system('echo child')\n" + PROGRAM.replace("return text", "print(text); return text"))
    async with Client(path) as client:
        assert (await client.call_tool("echo", {"text": "hi"})).content == [types.TextContent(text="hi")]
