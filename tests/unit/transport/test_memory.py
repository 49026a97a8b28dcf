"""In-memory connections."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from legacy_driver import VERSIONS
from shop import Shop
from unit.transport.lines import LIMIT, call, listen, read, request, text_of
from unit.transport.old_lines import make

from callboard import Context, Server
from callboard.compose import endpoint
from callboard.limits import Limits
from callboard.transport.memory import MAX_WAITING, MemoryConnection, connect
from callboard.transport.pipe import MAX_BACKLOG

MIB = 1024 * 1024


class House:
    """A server that keeps account of its lifespan and its calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.started = asyncio.Event()
        self.server = Server("house", lifespan=self.lifespan)
        for tool in (self.echo, self.hold, self.large, self.chatter, self.option, self.lamp):
            self.server.tool(tool)

    @asynccontextmanager
    async def lifespan(self, _server: Server) -> AsyncIterator[Mapping[str, Any]]:
        self.log.append("in")
        yield {"lamp": "lit"}
        self.log.append("out")

    async def echo(self, text: str) -> str:
        return text

    async def hold(self) -> str:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("left")
        return "never"

    async def large(self, size: int) -> str:
        return "x" * size

    async def chatter(self, notes: int, ctx: Context) -> int:
        for step in range(notes):
            await ctx.progress(step, message="x" * 1000)
        return notes

    async def option(self, ctx: Context) -> str:
        return str(ctx.options["colour"])

    async def lamp(self, ctx: Context) -> str:
        return str(ctx.locals["lamp"])


async def receive(connection: MemoryConnection) -> dict[str, Any]:
    return read(await asyncio.wait_for(connection.receive(), LIMIT))


@pytest_asyncio.fixture
async def connected() -> AsyncIterator[MemoryConnection]:
    """Set up and torn down in other tasks than the test's."""
    connection = await asyncio.create_task(connect(endpoint(House().server)))
    yield connection
    await asyncio.create_task(connection.aclose())


async def test_a_connection_of_a_fixture_serves_and_closes(connected: MemoryConnection) -> None:
    """A43."""
    await connected.send(call(1, "echo", text="hello"))
    assert text_of(await receive(connected)) == "hello"


async def test_answers_come_as_they_are_ready_and_keep_their_ids() -> None:
    house = House()
    connection = await connect(endpoint(house.server))
    await connection.send(call("slow", "hold"))
    for number in range(50):
        await connection.send(call(number, "echo", text=str(number)))
    assert [(await receive(connection))["id"] for _ in range(50)] == list(range(50))
    await connection.aclose()


async def test_the_lifespan_surrounds_the_connection() -> None:
    house = House()
    connection = await connect(endpoint(house.server))
    assert house.log == ["in"]
    await connection.send(call(1, "lamp"))
    assert text_of(await receive(connection)) == "lit"
    await connection.aclose()
    await connection.aclose()
    assert house.log == ["in", "out"]


async def test_the_lifespan_is_entered_once_for_all_connections() -> None:
    """A33."""
    house = House()
    first = await connect(endpoint(house.server))
    second = await connect(endpoint(house.server))
    await first.aclose()
    await second.send(call(1, "lamp"))
    assert text_of(await receive(second)) == "lit"
    await second.aclose()
    assert house.log == ["in", "out"]


async def test_what_the_lifespan_raises_comes_through() -> None:
    @asynccontextmanager
    async def broken(_server: Server) -> AsyncIterator[Mapping[str, Any]]:
        raise OSError("no database")
        yield {}

    with pytest.raises(OSError, match="no database"):
        await connect(endpoint(Server("broken", lifespan=broken)))


async def test_closing_cancels_what_runs_before_the_lifespan_ends() -> None:
    house = House()
    connection = await connect(endpoint(house.server))
    await connection.send(call(1, "hold"))
    await asyncio.wait_for(house.started.wait(), LIMIT)
    await asyncio.wait_for(connection.aclose(), LIMIT)
    assert house.log == ["in", "left", "out"]


async def test_closing_ends_listen_streams() -> None:
    house = House()
    connection = await connect(endpoint(house.server))
    await connection.send(listen(1, toolsListChanged=True))
    await receive(connection)
    assert len(house.server.hub) == 1
    await connection.aclose()
    assert len(house.server.hub) == 0


async def test_a_closed_connection_says_so() -> None:
    connection = await connect(endpoint(House().server))
    waiting = asyncio.create_task(connection.receive())
    await asyncio.sleep(0)
    await connection.aclose()
    with pytest.raises(EOFError):
        await asyncio.wait_for(waiting, LIMIT)
    with pytest.raises(EOFError):
        await connection.send(call(1, "echo", text="x"))
    with pytest.raises(EOFError):
        await connection.receive()


async def test_what_came_before_the_end_can_still_be_received() -> None:
    connection = await connect(endpoint(House().server))
    await connection.send(call(1, "echo", text="x"))
    line = await connection.receive()
    await connection.send(b"garbage")
    await connection.aclose()
    assert text_of(read(line)) == "x"
    assert (await receive(connection))["error"]["code"] == -32700


async def test_a_client_that_does_not_receive_slows_the_server_down() -> None:
    """Awaited progress waits for the reader; none of it is lost then, where nothing paces it."""
    connection = await connect(endpoint(House().server, limits=Limits(log_rate=None)))
    count = 2000
    await connection.send(call(1, "chatter", token="p", notes=count))
    seen: list[float] = []
    while "id" not in (message := await receive(connection)):
        seen.append(message["params"]["progress"])
    assert seen == list(range(count))
    assert count * 1000 > MAX_WAITING
    await connection.aclose()


async def test_a_client_that_only_sends_is_stopped() -> None:
    connection = await connect(endpoint(House().server))
    size = 4 * MIB
    most = 2 * MAX_BACKLOG // size

    async def flood() -> None:
        for number in range(100):
            await connection.send(call(number, "large", size=size))
            for _ in range(10):
                await asyncio.sleep(0)
            sent.append(number)

    sent: list[int] = []
    flooding = asyncio.create_task(flood())
    for _ in range(100 * 20):
        await asyncio.sleep(0)
    assert 0 < len(sent) <= most
    for _ in range(len(sent)):
        assert len(text_of(await receive(connection))) == size
    await connection.aclose()
    with pytest.raises(EOFError):
        await asyncio.wait_for(flooding, LIMIT)


async def test_options_reach_the_functions() -> None:
    connection = await connect(endpoint(House().server, options={"colour": "red"}))
    await connection.send(call(1, "option"))
    assert text_of(await receive(connection)) == "red"
    await connection.aclose()


async def test_a_client_of_2025_is_served_in_a_session_of_its_own() -> None:
    # VN-07, VN-08: its version, its state, the options; the end of the connection is the end of the session
    shop = Shop()
    for version in VERSIONS:
        connection = await connect(endpoint(shop.server, options={"colour": "red"}))
        client_info = {"name": "tester", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client_info}
        await connection.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode())
        assert (await receive(connection))["result"]["protocolVersion"] == version
        for count in (1, 2):
            await connection.send(json.dumps(make("tools/call", {"name": "add", "arguments": {}}, count)).encode())
            assert text_of(await receive(connection)) == str(count)
        await connection.send(json.dumps(make("tools/call", {"name": "who", "arguments": {}}, 3)).encode())
        assert json.loads(text_of(await receive(connection)))["options"] == {"colour": "red"}
        await connection.aclose()
    assert shop.over == [("closed", 2)] * 3


async def test_discover_advertises_what_can_be_delivered() -> None:
    """A19."""
    connection = await connect(endpoint(House().server))
    await connection.send(request(1, "server/discover"))
    assert (await receive(connection))["result"]["capabilities"]["tools"] == {"listChanged": True}
    await connection.aclose()


async def test_a_thousand_connections_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "callboard")
    house = House()
    for _ in range(1000):
        connection = await connect(endpoint(house.server))
        await connection.send(call(1, "echo", text="x"))
        await receive(connection)
        await connection.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(house.server.hub) == 0
    assert caplog.records == []
