"""Runs an official client's script against server.py and gives what it saw."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e.real_clients.setup import MissingClientError, install
from e2e.serving import PEERS, free_port, process, wait_until_listening

LIMIT = 60  # seconds for one client's whole session
SERVER = PEERS / "server.py"
Steps = dict[str, dict[str, Any]]


class Session(NamedTuple):
    """What one client saw over one transport.

    Attributes:
        client: A key of SCRIPTS.
        transport: `http` or `stdio`.
        steps: Name of a step -> the facts it showed.
    """

    client: str
    transport: str
    steps: Steps


SCRIPTS = {  # client -> folder of its installation, its script
    "python": ("mcp", "client.py"),
    "node": ("node", "client.mjs"),
    "python2-legacy": ("mcp", "legacy_client.py"),
    "python1": ("mcp1", "legacy_client.py"),
    "node1": ("node1", "legacy_client.mjs"),
    "asks-python1": ("mcp1", "asks.py"),
    "asks-python2": ("mcp", "asks.py"),
    "asks-node1": ("node1", "asks.mjs"),
    "asks-node2": ("node", "asks.mjs"),
}


def client_command(client: str) -> list[str]:
    """How to start a client's script; skips, or fails in CI, where the client can't be had."""
    folder, script = SCRIPTS[client]
    try:
        place = str(install(folder))
    except MissingClientError as reason:
        if os.environ.get("REQUIRE_PEERS") == "1":
            pytest.fail(f"REQUIRE_PEERS=1, and the official client {client!r} can't be had: {reason}")
        pytest.skip(f"the official client {client!r} can't be had: {reason}")
    return [place, str(PEERS / script)] if script.endswith(".py") else ["node", str(PEERS / script), place]


def play(command: list[str]) -> Steps:
    """Runs a client's script to its end."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL)
    steps = {facts.pop("step"): facts for facts in map(json.loads, ran.stdout.splitlines())}
    assert "end" in steps, f"the client stopped after {list(steps)}:\n{ran.stderr}"
    assert ran.returncode == 0, ran.stderr
    return steps


@contextmanager
def listening(command: list[str], port: int, log: Path) -> Iterator[int]:
    """Runs a program that listens on a port; gives the port once it does."""
    with process([sys.executable, *command], log) as started:
        wait_until_listening(started, port, log)
        yield port


@contextmanager
def served(app: str, log: Path) -> Iterator[str]:
    """Serves an application of server.py over HTTP; gives its URL."""
    port = free_port()
    with listening(["-m", "uvicorn", f"server:{app}", "--port", str(port), "--log-level", "warning"], port, log):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def breakable(url: str, log: Path) -> Iterator[str]:
    """Puts breaking_proxy.py before a server; gives the URL to use instead."""
    port, upstream = free_port(), url.rsplit(":", 1)[1].removesuffix("/mcp")
    with listening([str(PEERS / "breaking_proxy.py"), str(port), upstream], port, log):
        yield f"http://127.0.0.1:{port}/mcp"


def text(result: dict[str, Any]) -> str:
    """The text of a result that holds one text block and nothing else."""
    (block,) = result["content"]
    assert block["type"] == "text"
    return str(block["text"])
