"""Our client against every server of the matrix, cell by cell; cells.py says what must come of each.

peers.py installs the servers; where that can't be done these tests skip and say why, or fail when REQUIRE_PEERS=1 (as in CI). All cells of
a server over one transport in one version share one client.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from interop import cells
from interop.cells import Cell, Gap, Peer, Proof
from interop.farm import Farm

from callboard import Client
from callboard.client.errors import ClientError, ConnectionFailed, HttpError, ServerError
from callboard.wire import v2026_07_28 as v

LIMIT = 30.0  # seconds for one request
GIVEN_UP = 0.5  # seconds after which a handler that still runs counts as one that was never told
Key = tuple[str, str, str]

numbers = count(1)  # a name for each call that is cancelled

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Sum:
    """What STRUCTURED gives."""

    total: int


class Table(NamedTuple):
    """An open client and who sits before it.

    Attributes:
        client: The client.
        asked: The forms it was given.
    """

    client: Client
    asked: list[v.ElicitRequestFormParams]


class Room:
    """Open clients, and what came of those that must be refused.

    Args:
        farm: Where the servers are.
    """

    def __init__(self, farm: Farm) -> None:
        self.target = farm.target
        self._tables: dict[Key, Table] = {}
        self._refusals: dict[Key, ClientError] = {}

    def client(self, cell: Cell, asked: list[v.ElicitRequestFormParams]) -> Client:
        """A client that is not open yet and speaks the version of a cell alone.

        Over stdio, where a client is a process, the one of the newest version is not told and has to find it.
        """

        def fill_in(form: v.ElicitRequestFormParams | v.ElicitRequestURLParams) -> dict[str, Any]:
            assert isinstance(form, v.ElicitRequestFormParams)
            asked.append(form)
            return dict(cells.ELICITATION[2])

        versions = None if cell.transport == "stdio" and cell.version == newest(cell.peer) else cell.version
        return Client(self.target(cell.peer, cell.transport), versions=versions, timeout=LIMIT, on_elicit=fill_in)

    async def table(self, cell: Cell) -> Table:
        """The open client of a cell."""
        key = (cell.peer, cell.transport, cell.version)
        found = self._tables.get(key)
        if found is None:
            asked: list[v.ElicitRequestFormParams] = []
            found = self._tables[key] = Table(await self.client(cell, asked).__aenter__(), asked)
        assert found.client.version == cell.version  # VN-13, VN-14
        return found

    async def refusal(self, cell: Cell) -> ClientError:
        """How a client is refused that speaks a version the server does not."""
        key = (cell.peer, cell.transport, cell.version)
        if key not in self._refusals:
            with pytest.raises(ClientError) as raised:
                async with self.client(cell, []) as client:
                    await client.list_tools()
            self._refusals[key] = raised.value
        return self._refusals[key]

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(table.client.close() for table in self._tables.values()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def room(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    farm = Farm(tmp_path_factory.mktemp("servers"))
    opened = Room(farm)
    try:
        yield opened
    finally:
        await opened.close()
        farm.close()


def newest(peer: str) -> str:
    """The newest version that a peer's server speaks."""
    return next(version for version in cells.VERSIONS if cells.gap(Cell("server", peer, "stdio", version, "call")) is None)


def text(result: v.CallToolResult) -> str:
    """The only text block of a result."""
    (block,) = result.content
    assert isinstance(block, v.TextContent)
    return block.text


async def lists(table: Table, cell: Cell) -> None:
    tools = {tool.name: tool for tool in await table.client.list_tools()}
    assert tuple(tools) == cells.TOOLS
    assert tools["greet"].input_schema["required"] == ["name"]
    output = tools["add"].output_schema
    assert isinstance(output, dict)
    assert output["properties"]["total"]["type"] == "integer"
    (resource,) = await table.client.list_resources()
    assert resource.uri == cells.RESOURCE[0]
    (prompt,) = await table.client.list_prompts()
    assert prompt.name == cells.PROMPT[0]


async def calls(table: Table, cell: Cell) -> None:
    tool, arguments, line = cells.CALL
    result = await table.client.call_tool(tool, arguments)
    assert (text(result), result.is_error or False) == (line, False)


async def gives_structure(table: Table, cell: Cell) -> None:
    tool, arguments, structured = cells.STRUCTURED
    result = await table.client.call_tool(tool, arguments)
    assert (result.structured, result.data) == (structured, structured)
    assert result.decode(Sum) == Sum(**structured)


async def counted(table: Table) -> list[tuple[float, float | None, str | None]]:
    """The notes of a call that reports its progress; its result is as it must be."""
    tool, arguments, _, line = cells.PROGRESS
    notes: list[tuple[float, float | None, str | None]] = []
    result = await table.client.call_tool(tool, arguments, on_progress=lambda *note: notes.append(note))
    assert text(result) == line
    return notes


async def reports_progress(table: Table, cell: Cell) -> None:
    assert await counted(table) == cells.PROGRESS[2]


async def fails_in_band(table: Table, cell: Cell) -> None:
    tool, complaint = cells.REFUSAL
    result = await table.client.call_tool(tool, {})
    assert result.is_error is True
    assert complaint in text(result)


async def knows_its_tools(table: Table, cell: Cell) -> None:
    tool, code = cells.UNKNOWN_TOOL
    with pytest.raises(ServerError) as raised:
        await table.client.call_tool(tool, {})
    assert raised.value.code == code
    assert tool in str(raised.value)


async def reads(table: Table, cell: Cell) -> None:
    uri, kind, line = cells.RESOURCE
    (found,) = (await table.client.read_resource(uri)).contents
    assert (found.uri, found.mime_type, found.text) == (uri, kind, line)


async def prompts(table: Table, cell: Cell) -> None:
    name, arguments, line = cells.PROMPT
    (message,) = (await table.client.get_prompt(name, arguments)).messages
    assert (message.role, message.content) == ("user", v.TextContent(text=line))


async def completes(table: Table, cell: Cell) -> None:
    argument, typed, values = cells.COMPLETION
    found = await table.client.complete(v.PromptReference(name=cells.PROMPT[0]), argument, typed)
    assert found.values == values


async def asks(table: Table, cell: Cell) -> None:
    tool, question, _, line = cells.ELICITATION
    table.asked.clear()
    result = await table.client.call_tool(tool, {})
    assert text(result) == line
    (form,) = table.asked
    assert form.message == question
    assert set(form.requested_schema["properties"]) == {"kind", "sugar"}


async def given_up(table: Table, cell: Cell, patience: float) -> v.CallToolResult:
    """What `watch` says of a call that runs on the server and is then cancelled here."""
    hold, watch, held, released = cells.CANCEL
    name = f"hold {next(numbers)}"
    call = asyncio.create_task(table.client.call_tool(hold, {"name": name}))
    result = await table.client.call_tool(watch, {"name": name, "event": held})
    assert text(result) == f"{name} {held}"
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    return await table.client.call_tool(watch, {"name": name, "event": released, "patience": patience})


async def cancels(table: Table, cell: Cell) -> None:
    result = await given_up(table, cell, cells.PATIENCE)
    assert result.is_error is not True, text(result)
    assert text(result).endswith(f" {cells.CANCEL[3]}")


CHECKS: dict[cells.Operation, Callable[[Table, Cell], Awaitable[None]]] = {
    "list": lists,
    "call": calls,
    "structured": gives_structure,
    "progress": reports_progress,
    "tool_error": fails_in_band,
    "unknown_tool": knows_its_tools,
    "resource": reads,
    "prompt": prompts,
    "completion": completes,
    "elicitation": asks,
    "cancel": cancels,
}


async def is_silent(table: Table, cell: Cell) -> None:
    assert await counted(table) == []


async def is_told_in_band(table: Table, cell: Cell) -> None:
    result = await table.client.call_tool(cells.UNKNOWN_TOOL[0], {})
    assert result.is_error is True
    assert cells.UNKNOWN_TOOL[0] in text(result)


async def is_unheard(table: Table, cell: Cell) -> None:
    assert (await given_up(table, cell, GIVEN_UP)).is_error is True


async def is_not_asked(table: Table, cell: Cell) -> None:
    table.asked.clear()
    try:
        result = await table.client.call_tool(cells.ELICITATION[0], {})
    except ServerError as error:
        complaint = error.text
    else:
        complaint = text(result) if result.is_error else ""
    assert complaint
    assert table.asked == []


PROOFS: dict[Proof, Callable[[Table, Cell], Awaitable[None]]] = {
    "silent": is_silent,
    "in_band": is_told_in_band,
    "unheard": is_unheard,
    "unoffered": is_not_asked,
}


async def prove(found: Gap, room: Room, cell: Cell) -> None:
    """Holds a gap to what it says."""
    if found.proof == "refused":
        refusal = await room.refusal(cell)
        assert isinstance(refusal, ConnectionFailed if cell.transport == "stdio" else ServerError | HttpError)
        assert cell.version in str(refusal)
    else:
        await PROOFS[found.proof](await room.table(cell), cell)


@pytest.mark.parametrize("cell", [pytest.param(cell, id="-".join(cell[1:])) for cell in cells.cells("server")])
async def test_cell(cell: Cell, room: Room) -> None:
    found = cells.gap(cell)
    if found is not None:
        await prove(found, room, cell)
        return
    table = await room.table(cell)
    await CHECKS[cell.operation](table, cell)


peers = pytest.mark.parametrize("peer", [pytest.param(peer, id=peer.name) for peer in cells.PEERS["server"]])


@peers
@pytest.mark.parametrize("transport", ["http-json", "http-sse"])
async def test_the_newest_common_version_is_found(peer: Peer, transport: cells.Transport, room: Room) -> None:
    """VN-16, VN-17: without being told, and whichever way an old server refuses what it doesn't know."""
    wanted = newest(peer.name)
    async with Client(room.target(peer.name, transport), timeout=LIMIT) as client:
        await calls(Table(client, []), Cell("server", peer.name, transport, wanted, "call"))
        assert client.version == wanted


@peers
@pytest.mark.parametrize("version", cells.OLDER)
async def test_older_versions_are_spoken(peer: Peer, version: str, room: Room) -> None:
    async with Client(room.target(peer.name, "http-sse"), versions=version, timeout=LIMIT) as client:
        table, cell = Table(client, []), Cell("server", peer.name, "http-sse", version, "call")
        for check in (calls, reports_progress, fails_in_band, reads, prompts, completes, cancels):
            await check(table, cell)
        assert client.version == version


@pytest.mark.parametrize("peer", [pytest.param(peer, id=peer.name) for peer in cells.SSE_SERVERS])
async def test_http_sse_of_2024_is_spoken(peer: Peer, room: Room) -> None:
    """HL-26: the transport that Streamable HTTP took the place of, pinned and found."""
    for versions in (cells.OLDEST, None):
        async with Client(room.target(peer.name, "sse"), versions=versions, timeout=LIMIT) as client:
            table, cell = Table(client, []), Cell("server", peer.name, "http-sse", cells.OLDEST, "call")
            for check in (calls, reports_progress, fails_in_band, reads, prompts, completes, cancels):
                await check(table, cell)
            if versions is not None:
                assert client.version == versions
