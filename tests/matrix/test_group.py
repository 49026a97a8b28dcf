"""Several servers, one client: in memory, over HTTP and as child processes, of two protocols, one of them broken."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from callboard import Client, Context, Server, asgi, types
from callboard.client.config import ConfigError
from callboard.client.errors import ClientError, ConnectionFailed, InvalidRequest, ProcessExited, RequestCancelled, RequestTimeout
from callboard.tasks import MemoryTasks

BROKEN = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no such licence')"]}
PROGRAM = """
from callboard import Server

server = Server("child")


@server.tool
def where() -> dict[str, str]:
    import os
    return {"key": os.environ["GROUP_KEY"], "cwd": os.getcwd()}


@server.resource("child://note")
def note() -> str:
    return "of the child"
"""


def desk(name: str) -> Server:
    server = Server(name, tasks=MemoryTasks())

    @server.tool
    async def who(ctx: Context) -> dict[str, str]:
        await ctx.progress(1, 2, f"{name} works")
        await ctx.log("warning", f"{name} says so")
        return {"name": name}

    @server.tool
    async def stay() -> str:
        await asyncio.Event().wait()
        return ""

    @server.tool(task="always")
    async def errand() -> dict[str, str]:
        return {"of": name}

    @server.tool
    async def book(ctx: Context) -> dict[str, str]:
        answer = await ctx.elicit(f"{name}: how many?", int)
        return {"booked": f"{answer.value} at {name}"}

    @server.resource(f"{name}://note")
    def note() -> str:
        return f"note of {name}"

    @server.prompt
    def greet(whom: str) -> str:
        return f"{name} greets {whom}"

    return server


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    """A server on a free port, in this loop; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        runner = uvicorn.Server(uvicorn.Config(asgi(server), log_level="critical", lifespan="on", timeout_graceful_shutdown=1))
        task = asyncio.create_task(runner.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            runner.should_exit = True
            await task


@asynccontextmanager
async def both(version: str | None, extra: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[tuple[Client, Server, Server]]:
    """A client of a server in memory and one over HTTP; the latter speaks one version, if that is said."""
    near, far = desk("near"), desk("far")
    async with serving(far) as url:
        settings = {"url": url, **({"versions": version} if version else {})}
        async with Client({"mcpServers": {"near": near, "far": settings, **(extra or {})}}, **options) as client:
            yield client, near, far


VERSIONS = pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18"])


@VERSIONS
async def test_everything_by_its_name(version: str) -> None:
    # TL-16
    told: list[Any] = []
    logs: list[Any] = []
    async with both(version, on_progress=lambda *step: told.append(step), on_log=lambda log: logs.append(log.data)) as (client, _, _far):
        names = [tool.name for tool in await client.list_tools()]
        assert names == [f"{prefix}_{name}" for prefix in ("near", "far") for name in ("who", "stay", "errand", "book")]
        assert (await client.call_tool("near_who")).data == {"name": "near"}
        assert (await client.call_tool("far_who")).data == {"name": "far"}
        assert [step[2] for step in told] == ["near works", "far works"]
        assert logs == ["near says so", "far says so"]
        assert [prompt.name for prompt in await client.list_prompts()] == ["near_greet", "far_greet"]
        filled = await client.get_prompt("far_greet", {"whom": "you"})
        assert isinstance(filled.messages[0].content, types.TextContent)
        assert filled.messages[0].content.text == "far greets you"
        assert [resource.uri for resource in await client.list_resources()] == ["near://note", "far://note"]
        read = await client.read_resource("far://note")
        assert read.contents[0].text == "note of far"
        await client.ping()
        assert client.failures == {}
        with pytest.raises(InvalidRequest, match="names begin with near_, far_"):
            await client.call_tool("who")


@VERSIONS
async def test_servers_ask_through_it(version: str) -> None:
    # MR-01
    asked: list[str] = []

    async def fill(form: Any) -> Any:
        asked.append(form.message)
        return {"value": 2}

    async with both(version, on_elicit=fill) as (client, _, _far):
        for name in ("near", "far"):
            assert (await client.call_tool(f"{name}_book")).data == {"booked": f"2 at {name}"}
    assert asked == ["near: how many?", "far: how many?"]


async def test_a_broken_one_is_told_of_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with both(None, {"broken": BROKEN}) as (client, _, _far):
        assert len(await client.list_tools()) == 8
        assert list(client.failures) == ["broken"]
        failure = client.failures["broken"]
        assert isinstance(failure, ProcessExited)
        assert "no such licence" in failure.stderr
        with pytest.raises(ProcessExited, match="no such licence"):
            await client.call_tool("broken_anything")
        assert (await client.call_tool("far_who")).data == {"name": "far"}
    assert caplog.text.count("Server 'broken' is left out") == 1


async def test_all_broken() -> None:
    with pytest.raises(ConnectionFailed, match=r"no server can be used: one: .*no such licence.*\n*.*other: "):
        async with Client({"mcpServers": {"one": BROKEN, "other": BROKEN}}):
            pass


async def test_one_that_goes_away_is_an_error_of_its_own() -> None:
    near, far = desk("near"), desk("far")
    stack = serving(far)
    url = await stack.__aenter__()
    async with Client({"mcpServers": {"near": near, "far": {"url": url}}}, timeout=5) as client:
        assert (await client.call_tool("far_who")).data == {"name": "far"}
        await stack.__aexit__(None, None, None)
        with pytest.raises(ClientError):
            await client.call_tool("far_who")
        assert [tool.name for tool in await client.list_tools()][:2] == ["near_who", "near_stay"]
        assert (await client.call_tool("near_who")).data == {"name": "near"}


@VERSIONS
async def test_tasks(version: str) -> None:
    # TX-13
    async with both(version, tasks=True) as (client, _, _far):
        assert (await client.call_tool("near_errand")).data == {"of": "near"}
        task = await client.start_tool("near_errand")
        assert task.task_id is not None
        assert (await client.task(task.task_id, "near_errand").result()).data == {"of": "near"}
        if version == "2026-07-28":
            task = await client.start_tool("far_errand")
            assert task.task_id is not None
            assert (await client.task(task.task_id).result()).structured == {"of": "far"}


@VERSIONS
async def test_changes(version: str) -> None:
    # SB-03, SB-15, CA-07
    heard: asyncio.Queue[Any] = asyncio.Queue()
    async with both(version, on_change=heard.put_nowait) as (client, near, far):
        assert len(await client.list_tools()) == 8
        async with client.listen(tools=True) as changes:
            for count, server in enumerate((near, far), 9):

                @server.tool(name="more")
                def more() -> str:
                    return ""

                for source in (anext(changes), heard.get()):
                    assert isinstance(await asyncio.wait_for(source, 10), types.ToolListChangedNotification)
                assert len(await client.list_tools()) == count
        await client.subscribe("far://note")
        far.resource_updated("far://note")
        update = await asyncio.wait_for(heard.get(), 10)
        assert isinstance(update, types.ResourceUpdatedNotification)
        assert update.params.uri == "far://note"


async def test_changes_go_on_without_one_that_goes_away() -> None:
    # SB-10
    near, far = desk("near"), desk("far")
    stack = serving(far)
    url = await stack.__aenter__()
    async with Client({"mcpServers": {"far": {"url": url}, "near": near}}, timeout=5) as client, client.listen(tools=True) as changes:
        await stack.__aexit__(None, None, None)

        @near.tool(name="more")
        def more() -> str:
            return ""

        assert isinstance(await asyncio.wait_for(anext(changes), 10), types.ToolListChangedNotification)


@VERSIONS
async def test_calls_end_one_by_one(version: str) -> None:
    # CN-07
    async with both(version) as (client, _, _far):
        calls = {name: asyncio.create_task(client.call_tool(f"{name}_stay")) for name in ("near", "far")}
        async with asyncio.timeout(10):
            while len(client.in_flight) < 2:  # noqa: ASYNC110 nobody says when a request is out
                await asyncio.sleep(0.01)
        far = next(origin.request_id for origin in client.in_flight if str(origin.request_id).startswith("far:"))
        assert far is not None
        assert client.cancel(far)
        with pytest.raises(RequestCancelled):
            await calls["far"]
        assert not calls["near"].done()
        calls["near"].cancel()
        with pytest.raises(RequestTimeout):
            await client.call_tool("far_stay", timeout=0.2)


async def test_a_servers_own_time_limit() -> None:
    near, far = desk("near"), desk("far")
    async with serving(far) as url, Client({"mcpServers": {"near": near, "far": {"url": url, "timeout": 200}}}) as client:
        with pytest.raises(RequestTimeout, match=r"0\.2 s"):
            await client.call_tool("far_stay")


async def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_GROUP", "s3cret")
    program = tmp_path / "child.py"
    program.write_text(PROGRAM)
    child = {
        "command": sys.executable,
        "args": ["-m", "callboard", "run", "${workspaceFolder}/child.py", "--stdio"],
        "env": {"GROUP_KEY": "${SECRET_OF_GROUP}"},
        "cwd": str(tmp_path),
    }
    path = tmp_path / "mcp.json"
    path.write_text(f"{json.dumps({'mcpServers': {'my child': child, 'off': {**BROKEN, 'disabled': True}}})} // as editors have it")
    for target in (path, str(path)):
        async with Client(target) as client:
            assert [tool.name for tool in await client.list_tools()] == ["my_child_where"]
            assert (await client.call_tool("my_child_where")).data == {"key": "s3cret", "cwd": str(tmp_path)}
            assert "s3cret" not in repr(client.in_flight) + client.target
            assert (await client.read_resource("child://note")).contents


@pytest.mark.parametrize(
    ("config", "options", "told"),
    [
        ({"mcpServers": {}}, {}, "there is no server"),
        (
            {"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET_AT_ALL}"}}}},
            {},
            "server 'a': 'env.K' wants the variable 'NOT_SET_AT_ALL'",
        ),
        ({"mcpServers": {"a": {"command": "x", "cwd": "/there/is/none"}}}, {}, "server 'a': cwd: there is no folder"),
        ({"mcpServers": {"a": {"command": "x", "versions": "1"}}}, {}, "server 'a': "),
        (
            {"mcpServers": {"a": {"url": "http://h/", "headers": {"X": "s3cret\n"}}}},
            {},
            "server 'a': headers: the value of X must be one line",
        ),
        ({"mcpServers": {"a": {"command": "x"}}}, {"headers": {}}, "headers= is for one server"),
        ({"mcpServers": {"a": {"command": "x"}}}, {"cwd": "/"}, "cwd= is for one server"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_starts(config: Any, options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        Client(config, **options)
    assert "s3cret" not in str(caught.value)
    assert options or isinstance(caught.value, ConfigError)
