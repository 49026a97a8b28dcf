"""The matrix of cells.py as a page: docs/interop.md.

    PYTHONPATH=tests python -m interop.table --write      writes it anew
    PYTHONPATH=tests python -m interop.table              status 1 when it is not what it should be

The page is made of what cells.py says, and the tests of this folder hold that to be true; so it needs no network and no peer.
"""
# ruff: noqa: T201 - a command that reports

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from interop.cells import (
    OLDER,
    OLDEST,
    OPERATIONS,
    PEERS,
    SSE_SERVERS,
    TRANSPORTS,
    VERSIONS,
    Cell,
    Gap,
    Operation,
    Peer,
    Side,
    Transport,
    cells,
    gap,
)

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "interop.md"
HEADS: dict[Operation, str] = {
    "list": "List",
    "call": "Call",
    "structured": "Structured",
    "progress": "Progress",
    "tool_error": "Tool error",
    "unknown_tool": "Unknown tool",
    "resource": "Resource",
    "prompt": "Prompt",
    "completion": "Completion",
    "elicitation": "Elicitation",
    "cancel": "Cancel",
}
WAYS: dict[Transport, str] = {"http-json": "HTTP, JSON", "http-sse": "HTTP, SSE", "stdio": "stdio"}
TITLES: dict[Side, str] = {"server": "Callboard's client, their servers", "client": "Their clients, Callboard's server"}
BEGIN = """# Interoperability

<!-- Generated from tests/interop/cells.py by tests/interop/table.py: change it there. -->

Callboard meets the clients and servers of others in its tests: every operation below runs between two real programs, each installed from its
registry, over HTTP with answers of one JSON body, over HTTP with answers that may be streams of events, and over stdio, in each protocol
version that both sides know. `make interop` runs it all, and the CI does on every change.

A ✓ is an operation that works and gives exactly what was agreed on. A ◐ is one that comes to the same by another way, and a — one that this
peer, or this way of answering, has not got; the number says why, and a test holds that to be true, too.

What is tried:

| Operation | What is seen |
| --- | --- |
| List | Tools with their input and output schemas, resources and prompts |
| Call | A tool's text |
| Structured | A tool's structured content |
| Progress | Three notes of a running call, in order, before its result |
| Tool error | A failure for the model to read |
| Unknown tool | A JSON-RPC error with code -32602 |
| Resource | Its text and media type |
| Prompt | Its message |
| Completion | Values for an argument that has been begun |
| Elicitation | A form that a running tool asks for, filled in |
| Cancel | The server's handler sees that its call was given up |
"""
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
BY_ANOTHER_WAY = {"in_band", "unasked"}


class Notes:
    """Reasons, numbered in the order of their first use."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def mark(self, found: Gap | None) -> str:
        """What stands in a cell."""
        if found is None:
            return "✓"
        number = self.reasons.setdefault(found.reason, len(self.reasons) + 1)
        return ("◐" if found.proof in BY_ANOTHER_WAY else "—") + str(number).translate(SUPERSCRIPTS)


def rows(side: Side, peer: Peer, notes: Notes) -> Iterator[str]:
    """A peer's rows: one for each version and the transports that have the same cells."""
    for version in VERSIONS:
        lines = {
            way: tuple(notes.mark(gap(Cell(side, peer.name, way, version, operation))) for operation in OPERATIONS) for way in TRANSPORTS
        }
        for marks, ways in groupby(TRANSPORTS, key=lines.__getitem__):
            names = "; ".join(WAYS[way] for way in ways)
            yield f"| {peer.package or 'Callboard'} | {version} | {names} | " + " | ".join(marks) + " |"


def half(side: Side) -> Iterator[str]:
    """One of the two tables with its notes."""
    notes = Notes()
    found = [gap(cell) for cell in cells(side)]
    works = found.count(None)
    yield f"\n## {TITLES[side]}\n"
    yield f"{works} cells work as agreed; {len(found) - works} have a reason.\n"
    yield "| Peer | Protocol | Way | " + " | ".join(HEADS[operation] for operation in OPERATIONS) + " |"
    yield "| --- | --- | --- |" + " :-: |" * len(OPERATIONS)
    for peer in PEERS[side]:
        yield from rows(side, peer, notes)
    yield ""
    yield from (f"{number}. {reason}" for reason, number in notes.reasons.items())


def named(peers: Iterable[Peer]) -> str:
    """Peers in a sentence."""
    *others, last = [peer.package or "Callboard" for peer in peers]
    return f"{', '.join(others)} and {last}"


def older() -> Iterator[str]:
    """What is tried of the protocol's older versions."""
    yield "\n## Older versions\n"
    yield (
        f"Callboard's client also speaks {' and '.join(OLDER)} with each of those servers over HTTP, and {OLDEST} over its own transport,"
        f" HTTP+SSE, with the servers of {named(SSE_SERVERS)}: calls, progress, tool errors, resources, prompts, completion and"
        " cancellation. Without being told it finds the newest version that both sides know."
    )


def logins() -> Iterator[str]:
    """What is tried of authorization; `test_login.py` holds it to be true."""
    yield "\n## Logging in\n"
    yield (
        "PyPI mcp 1.30 and 2.3, npm @modelcontextprotocol/sdk 1.32 and client 2.4, in each mode that they have, log in at a server of"
        " Callboard's: they find the authorization server by its 401, register or bring a client metadata document, step up on 403, renew, and"
        " go on when its keys change. Two things that hosts should know: npm sdk 1.32 answers a step-up by renewing, which brings no scope, so"
        " the host drops the refresh token and tries again; PyPI mcp renews by its own clock, and on a 401 that it did not expect logs in"
        " anew, with the scopes of the challenge alone."
    )


def page() -> str:
    """The whole page."""
    return BEGIN + "\n".join((*half("server"), *half("client"), *logins(), *older())) + "\n"


def main() -> None:
    """Writes the page, or compares it."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE.name} is not what tests/interop/cells.py says: python -m interop.table --write, with PYTHONPATH=tests")
    print(PAGE)


if __name__ == "__main__":
    main()
