"""docs/interop.md is what cells.py says, and cells.py says nothing in vain. No peer is needed for that."""

import pytest
from interop import cells, table
from interop.cells import CLIENT_GAPS, SERVER_GAPS, Cell, Gap, Side


def test_the_page_is_what_the_cells_say() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "PYTHONPATH=tests python -m interop.table --write"


@pytest.mark.parametrize("side", ["server", "client"])
def test_every_gap_is_of_some_cell(side: Side) -> None:
    """One that no cell falls into, or that earlier ones leave nothing of, would be forgotten when it is no longer true."""
    used = {cells.gap(cell) for cell in cells.cells(side)}
    gaps: tuple[Gap, ...] = SERVER_GAPS if side == "server" else CLIENT_GAPS
    assert [each for each in gaps if each not in used] == []
    assert {each.side for each in gaps} == {side}


@pytest.mark.parametrize("side", ["server", "client"])
def test_what_a_peer_and_we_both_know_works_over_some_transport(side: Side) -> None:
    """Each operation, in each version that the peer speaks: what fails over all transports is no gap but a fault of one side."""
    dead = [
        f"{peer.name} {version} {operation}"
        for peer in cells.PEERS[side]
        for version in cells.VERSIONS
        for operation in cells.OPERATIONS
        if peer is not cells.INSPECTOR
        and not (peer in {cells.MCP1, cells.NPM_SDK} and version == cells.MODERN)
        and operation != "unknown_tool"
        and all(cells.gap(Cell(side, peer.name, way, version, operation)) is not None for way in cells.TRANSPORTS)
    ]
    assert dead == []


def test_the_page_marks_what_works_and_what_does_not() -> None:
    notes = table.Notes()
    row = next(table.rows("server", cells.MCP1, notes))
    assert row.startswith("| PyPI mcp 1.30.0 | 2026-07-28 | HTTP, JSON; HTTP, SSE; stdio | —¹ |")
    assert list(notes.reasons.values()) == [1]
    assert notes.mark(None) == "✓"
