"""Write once, ask anywhere: the functions of asks_program.py give the same to the official clients, over every transport, in every era.

PyPI's `mcp` 1.30 and 2.3 and npm's `@modelcontextprotocol/sdk` 1.32 and `client` 2.4 in each mode they have, as e2e/test_asks_everywhere.py
has it of ours. peers.py installs them; where that can't be done these tests skip and say why, or fail when REQUIRE_PEERS=1 (as in CI).
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import asks_program
import pytest
from asks_program import SEEN
from e2e.serving import free_port
from interop.playing import Steps, client_command, listening, look, play

PROGRAM = Path(asks_program.__file__)
CLIENTS = {  # an official client -> the modes it has
    "python1": ("legacy",),
    "python2": ("legacy", "modern"),
    "node1": ("legacy",),
    "node2": ("legacy", "modern"),
}
NO_TASKS = {  # client and mode -> why it can't call a tool as a task
    "python2 legacy": "it has dropped the tasks of 2025-11-25 (the first generation has them), and takes no other result of tools/call",
    "node2 legacy": "it has dropped the tasks of 2025-11-25 (the first generation has them), and takes no other result of tools/call",
    "node2 modern": "it refuses results of the type `task`, and has no way to add them",
}


def answer(client: str) -> Steps:
    """What an official client saw: transport and mode -> results."""
    command = client_command(f"asks-{client}")
    port = free_port()
    server = ["-m", "uvicorn", "asks_program:app", "--app-dir", str(PROGRAM.parent), "--port", str(port), "--log-level", "warning"]
    with TemporaryDirectory() as folder, listening(server, port, Path(folder, "log")):
        return play([*command, f"http://127.0.0.1:{port}/mcp", sys.executable, str(PROGRAM)])


AHEAD = {"client": answer}


@pytest.mark.parametrize(
    ("client", "way"),
    [(client, f"{way} {mode}") for client, modes in CLIENTS.items() for mode in modes for way in ("http", "stdio")],
)
def test_official_clients_see_the_same(client: str, way: str) -> None:
    """MR-17: on protocols of 2025 the same ask is a request to the client."""
    seen = look(answer, client)[way]
    if (mode := f"{client} {way.split()[1]}") in NO_TASKS:
        assert seen == SEEN | {"later": None, "asked": SEEN["asked"][:-1]}, NO_TASKS[mode]
    else:
        assert seen == SEEN
