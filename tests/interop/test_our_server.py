"""Everybody's client against our everything server: each cell of the matrix in cells.py is what it says there.

Each client is one program that uses all its ways at once; peers.py installs it. Where that can't be done its tests skip and say why, or fail
when REQUIRE_PEERS=1 (as in CI).
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from e2e.serving import free_port
from interop import cells
from interop.cells import Cell, Gap, Transport
from interop.playing import CLIENTS, client_command, listening, look, run

EVERYTHING = Path(cells.__file__).with_name("servers") / "everything.py"
PROMPTLY = 2.0  # seconds until a handler hears that its call was given up, however busy the machine is
Saw = dict[str, Any]
Told = dict[tuple[str, str], Saw]

VALUES = {  # what clients are told to do; what they must see stays here
    "call": cells.CALL,
    "structured": cells.STRUCTURED,
    "progress": cells.PROGRESS,
    "tool_error": cells.REFUSAL,
    "unknown_tool": cells.UNKNOWN_TOOL,
    "resource": cells.RESOURCE,
    "prompt": cells.PROMPT,
    "completion": cells.COMPLETION,
    "elicitation": (cells.ELICITATION[0], cells.ELICITATION[2]),
    "cancel": cells.CANCEL,
}


def way(transport: str, version: str) -> str:
    """What a client calls a way to a server."""
    return f"{transport} {version}"


@contextmanager
def serving(transport: Transport, folder: Path) -> Iterator[dict[str, Any]]:
    """Serves the everything server; gives how a client gets at it. Its log may hold no traceback."""
    if transport == "stdio":
        yield {"command": [sys.executable, str(EVERYTHING), "stdio"]}
        return
    port, log = free_port(), folder / transport
    with listening([str(EVERYTHING), transport, str(port)], port, log):
        yield {"url": f"http://127.0.0.1:{port}/mcp"}
    assert "Traceback" not in log.read_text(), log.read_text()


def use(peer: str) -> Told:
    """Lets a peer's client do everything over every way: way and operation -> what it saw."""
    command = [sys.executable, str(CLIENTS / "player.py"), peer] if peer == cells.CALLBOARD.name else client_command(peer)
    with TemporaryDirectory() as folder, ExitStack() as servers:
        targets = {transport: servers.enter_context(serving(transport, Path(folder))) for transport in cells.TRANSPORTS}
        ways = [
            {"name": way(transport, version), "version": version, "quiet": transport == "http-json", **target}
            for version in cells.VERSIONS
            for transport, target in targets.items()
        ]
        lines = run([*command, json.dumps({"ways": ways, **VALUES})])
    return {(line["way"], line["operation"]): line["saw"] for line in lines}


AHEAD = {"peer": use}


def same(expected: Saw) -> Callable[[Saw], bool]:
    """Sees exactly this."""
    return lambda saw: saw == expected


def without_error(saw: Saw, **expected: Any) -> bool:
    return not saw.get("failed", False) and all(saw.get(key) == value for key, value in expected.items())


def was_cancelled(cell: Cell) -> Callable[[Saw], bool]:
    name = f"{cell.peer} {way(cell.transport, cell.version)}"
    running, stopped = ([f"{name} {event}"] for event in cells.CANCEL[2:])
    return lambda saw: without_error(saw, running=running, stopped=stopped) and saw.get("seconds", 0) < PROMPTLY


def expectation(cell: Cell) -> Callable[[Saw], bool]:
    """What must be seen where a cell works."""
    uri, media, greeting = cells.RESOURCE
    lists = {"tools": list(cells.TOOLS), "resources": [uri], "prompts": [cells.PROMPT[0]]}
    notes = [list(note) for note in cells.PROGRESS[2]]
    _, question, _, order = cells.ELICITATION
    return {
        "list": same({"version": cell.version, **lists}),
        "call": same({"text": [cells.CALL[2]]}),
        "structured": same({"structured": cells.STRUCTURED[2]}),
        "progress": same({"text": [cells.PROGRESS[3]], "notes": notes}),
        "tool_error": lambda saw: saw.get("failed") is True and cells.REFUSAL[1] in str(saw["text"]),
        "unknown_tool": lambda saw: saw.get("code") == cells.UNKNOWN_TOOL[1],
        "resource": same({"contents": [[uri, media, greeting]]}),
        "prompt": same({"messages": [["user", cells.PROMPT[2]]]}),
        "completion": same({"values": cells.COMPLETION[2]}),
        "elicitation": lambda saw: without_error(saw, asked=[question], text=[order]),
        "cancel": was_cancelled(cell),
    }[cell.operation]


def proof(gap: Gap, cell: Cell, told: Told) -> bool:
    """Whether what is seen in place of a cell that can't work is what its gap says."""
    saw = told[way(cell.transport, cell.version), cell.operation]
    if gap.proof == "older":
        return bool(told[way(cell.transport, cells.MODERN), "list"]["version"] == cells.LEGACY)
    if gap.proof == "silent":
        return saw == {"text": [cells.PROGRESS[3]], "notes": []}
    if gap.proof == "unoffered":
        return bool(saw["failed"]) and saw["asked"] == []
    if gap.proof == "unheard":
        return saw["running"] != [] and saw["failed"] is True
    if gap.proof == "unasked":
        return cells.UNKNOWN_TOOL[0] in saw["error"] and saw["code"] != cells.UNKNOWN_TOOL[1]
    assert gap.proof == "inert", f"{gap.proof} is nothing that a client of our server shows"
    return "error" in saw


@pytest.fixture(scope="module", params=[peer.name for peer in cells.PEERS["client"]])
def peer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("operation", cells.OPERATIONS)
@pytest.mark.parametrize("transport", cells.TRANSPORTS)
@pytest.mark.parametrize("version", cells.VERSIONS)
def test_a_client_meets_our_server(peer: str, version: str, transport: Transport, operation: cells.Operation) -> None:
    cell = Cell("client", peer, transport, version, operation)
    told = look(use, peer)
    connection = told.get((way(transport, version), "connection"))
    assert connection is None, connection
    saw = told[way(transport, version), operation]
    if (gap := cells.gap(cell)) is None:
        assert expectation(cell)(saw), saw
    else:
        assert proof(gap, cell, told), f"{gap}\n{saw}"
