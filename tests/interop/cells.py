"""The interop matrix as data: who meets whom, over what, in which protocol version, for which operation, and what must come of it.

Both halves read it: test_our_client.py (our client, peers' servers) and the tests of peers' clients against our server. `table.py` makes
docs/interop.md of it. Nothing here is a result: it is what the tests hold to be true, cell by cell.

A cell is one operation between one peer and ours. A cell that can't work is a `Gap` with its reason and a proof: what a test sees instead.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

Side = Literal["server", "client"]
"""What the peer is: `server` for our client against its server, `client` for its client against our server."""
Transport = Literal["http-json", "http-sse", "stdio"]
"""`http-json`: the server is set to answer with one JSON body. `http-sse`: it may answer with a stream of events."""
Operation = Literal[
    "list", "call", "structured", "progress", "tool_error", "unknown_tool", "resource", "prompt", "completion", "elicitation", "cancel"
]
Proof = Literal["refused", "silent", "in_band", "unheard", "unoffered", "inert", "older", "unasked"]
"""What a test sees where a cell can't work.

- `refused`: no connection, or no answer; the error names the version.
- `silent`: the call succeeds without a single notification.
- `in_band`: an unknown tool is a result with `isError`, no JSON-RPC error.
- `unheard`: the client gives up, and the server's handler runs on.
- `unoffered`: the server fails the call, as the way to the client isn't there.
- `inert`: nothing to try: the peer has no such function.
- `older`: a client that is offered both versions speaks the older one.
- `unasked`: the client finds out by itself, and asks the server nothing.
"""

MODERN, LEGACY = "2026-07-28", "2025-11-25"
VERSIONS = (MODERN, LEGACY)
OLDER = ("2025-06-18", "2025-03-26")  # tried with fewer operations
OLDEST = "2024-11-05"  # the version of the transport HTTP+SSE
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class Peer(NamedTuple):
    """An implementation at one version.

    Attributes:
        name: What cells call it.
        package: What is installed, as its registry spells it; empty for ours.
        language: `Python` or `Node.js`.
    """

    name: str
    package: str
    language: str


CALLBOARD = Peer("callboard", "", "Python")
MCP2 = Peer("mcp-2.3.0", "PyPI mcp 2.3.0", "Python")
MCP1 = Peer("mcp-1.30", "PyPI mcp 1.30.0", "Python")
FASTMCP = Peer("fastmcp-4.2.3", "PyPI fastmcp 4.2.3", "Python")
NPM_SERVER = Peer("npm-server-2.4.0", "npm @modelcontextprotocol/server 2.4.0", "Node.js")
NPM_CLIENT = Peer("npm-client-2.4.0", "npm @modelcontextprotocol/client 2.4.0", "Node.js")
NPM_SDK = Peer("npm-sdk-1.32.2", "npm @modelcontextprotocol/sdk 1.32.2", "Node.js")
INSPECTOR = Peer(
    "inspector-2.12", "npm @modelcontextprotocol/inspector 2.12.0: `--cli`, and `mcpdo` for completion and elicitation", "Node.js"
)

# Whose servers still have HTTP+SSE.
SSE_SERVERS = (CALLBOARD, MCP2, MCP1, FASTMCP, NPM_SDK)

PEERS: dict[Side, tuple[Peer, ...]] = {
    "server": (CALLBOARD, MCP2, MCP1, FASTMCP, NPM_SERVER, NPM_SDK),
    "client": (CALLBOARD, MCP2, MCP1, FASTMCP, NPM_CLIENT, NPM_SDK, INSPECTOR),
}


class Cell(NamedTuple):
    """One operation between a peer and ours."""

    side: Side
    peer: str
    transport: Transport
    version: str
    operation: Operation


class Gap(NamedTuple):
    """Cells that can't work, or that come out another way, and why.

    Attributes:
        side: As in `Cell`.
        peer: As in `Cell`.
        reason: A sentence for the table.
        proof: What a test sees instead.
        transports: Those it is about.
        versions: Those it is about.
        operations: Those it is about.
    """

    side: Side
    peer: str
    reason: str
    proof: Proof
    transports: tuple[Transport, ...] = TRANSPORTS
    versions: tuple[str, ...] = VERSIONS
    operations: tuple[Operation, ...] = OPERATIONS

    def holds(self, cell: Cell) -> bool:
        """Whether a cell is one of these."""
        return (
            (self.side, self.peer) == (cell.side, cell.peer)
            and cell.transport in self.transports
            and cell.version in self.versions
            and cell.operation in self.operations
        )


_OLD = "It was written before 2026-07-28: it speaks 2025-11-25 and older."
_ONE_BODY = "The server is set to answer with one JSON body: there is nothing that notifications could come on."
_NO_WAY_BACK = "The server is set to answer with one JSON body: there is no stream that a question of 2025 could come on."

_NO_STREAM = "Set to answer with JSON, it has no stream on which it would ask a client of 2025; the tool that asks fails at once."
_DEAF = "Its handler runs on when the connection of a call is closed that is to be answered with JSON."

# Each half keeps its own; the first that holds counts.
SERVER_GAPS: tuple[Gap, ...] = (
    Gap("server", MCP1.name, _OLD, "refused", versions=(MODERN,)),
    Gap("server", NPM_SDK.name, _OLD, "refused", versions=(MODERN,)),
    *(Gap("server", peer.name, _ONE_BODY, "silent", transports=("http-json",), operations=("progress",)) for peer in PEERS["server"]),
    *(
        Gap("server", peer.name, _NO_STREAM, "unoffered", transports=("http-json",), versions=(LEGACY,), operations=("elicitation",))
        for peer in (CALLBOARD, MCP2, FASTMCP)
    ),
    *(
        Gap("server", peer.name, "It says so in a result that is an error, for the model to read.", "in_band", operations=("unknown_tool",))
        for peer in (MCP2, MCP1, FASTMCP, NPM_SDK)
    ),
    *(
        Gap("server", peer.name, _DEAF, "unheard", transports=("http-json",), versions=(MODERN,), operations=("cancel",))
        for peer in (MCP2, FASTMCP)
    ),
)
CLIENT_GAPS: tuple[Gap, ...] = (
    Gap("client", MCP1.name, _OLD, "older", versions=(MODERN,)),
    Gap("client", NPM_SDK.name, _OLD, "older", versions=(MODERN,)),
    *(
        Gap("client", peer.name, _ONE_BODY, "silent", transports=("http-json",), operations=("progress",))
        for peer in PEERS["client"]
        if peer is not INSPECTOR
    ),
    *(
        Gap("client", peer.name, _NO_WAY_BACK, "unoffered", transports=("http-json",), versions=(LEGACY,), operations=("elicitation",))
        for peer in PEERS["client"]
    ),
    Gap("client", INSPECTOR.name, "Its commands print no progress.", "silent", operations=("progress",)),
    Gap("client", INSPECTOR.name, "It looks a tool up in the list before it calls it.", "unasked", operations=("unknown_tool",)),
    Gap(
        "client",
        INSPECTOR.name,
        "It cancels nothing, it ends; over HTTP a lost connection cancels a call since 2026-07-28, and did not before.",
        "unheard",
        transports=("http-json", "http-sse"),
        versions=(LEGACY,),
        operations=("cancel",),
    ),
    Gap(
        "client",
        INSPECTOR.name,
        "It cancels nothing, it ends, and its server with it.",
        "inert",
        transports=("stdio",),
        operations=("cancel",),
    ),
)


def cells(side: Side, peer: str | None = None) -> Iterator[Cell]:
    """Every cell of a half, or of one of its peers, gaps and all."""
    for each in PEERS[side]:
        if peer in {None, each.name}:
            for version in VERSIONS:
                for transport in TRANSPORTS:
                    for operation in OPERATIONS:
                        yield Cell(side, each.name, transport, version, operation)


def gap(cell: Cell) -> Gap | None:
    """Why a cell can't work; None when it must."""
    gaps = SERVER_GAPS if cell.side == "server" else CLIENT_GAPS
    return next((each for each in gaps if each.holds(cell)), None)


# What every "everything" server offers and what every client must see. servers/everything.py is ours; the peers' programs beside it do the same.
NAME = "everything"
TOOLS = ("greet", "add", "count", "refuse", "choose", "hold", "watch")
CALL: tuple[str, dict[str, Any], str] = ("greet", {"name": "Ada"}, "Hello, Ada.")  # tool, arguments, the only text block
STRUCTURED: tuple[str, dict[str, Any], dict[str, Any]] = (
    "add",
    {"a": 2, "b": 3},
    {"total": 5},
)  # tool with an output schema of {total: integer}
PROGRESS: tuple[str, dict[str, Any], list[tuple[float, float, str]], str] = (
    "count",
    {"to": 3},
    [(1, 3, "number 1"), (2, 3, "number 2"), (3, 3, "number 3")],
    "Counted to 3.",
)
REFUSAL = ("refuse", "The curtain is stuck.")  # tool that fails in band, and what its text contains
UNKNOWN_TOOL = ("no_such_tool", -32602)  # code of the protocol error (ledger: ER)
RESOURCE = ("everything://greeting", "text/plain", "Good evening.")  # URI, media type, text
PROMPT = ("review", {"play": "Hamlet"}, "Write a review of Hamlet.")  # prompt, arguments, text of its only message, of the user's
COMPLETION = ("play", "H", ["Hamlet", "Hedda Gabler"])  # argument of PROMPT, typed, what comes
# `choose` asks for a form with message, two properties, `kind` an enum of tea and coffee, `sugar` an integer; it says what it was given.
ELICITATION = ("choose", "What would you like?", {"kind": "tea", "sugar": 2}, "tea with 2")
# `hold` reports progress 1 of 2 ("holding") once it runs and then waits until it is cancelled. `watch` answers "NAME held" once the hold called
# NAME runs and "NAME released" once it has been cancelled; after `patience` seconds it fails in band. Each cell's hold has a name of its own.
CANCEL = ("hold", "watch", "held", "released")
PATIENCE = 5.0
