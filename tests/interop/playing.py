"""Runs the programs of clients/ against servers of ours and gives what they saw, several at once: they mostly wait.

`look` gives what a play came to and begins it when nobody has; conftest.py begins those of the selected tests ahead.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import pytest
from e2e.serving import HERE, free_port, process, spawn, wait_until_listening
from interop.peers import MissingPeerError, install

LIMIT = 180  # seconds for one client's whole session
GRACE = 15  # seconds it has to end when it took longer
AT_ONCE = 3  # plays
CLIENTS = Path(__file__).resolve().parent / "clients"
STAGE = HERE / "stage.py"
MODERN = "2026-07-28"
NOVEMBER, JUNE, MARCH = "2025-11-25", "2025-06-18", "2025-03-26"
APPS = {NOVEMBER: "app", JUNE: "june", MARCH: "march"}  # of stage.py
Steps = dict[str, dict[str, Any]]
T = TypeVar("T")

PROGRAMS = {  # client -> folder of its installation, its program and what that is told first
    "python": ("mcp", "client.py"),
    "node": ("node", "client.mjs"),
    "python2-legacy": ("mcp", "legacy_client.py"),
    "python1": ("mcp1", "legacy_client.py"),
    "node1": ("node1", "legacy_client.mjs"),
    "asks-python1": ("mcp1", "asks.py"),
    "asks-python2": ("mcp", "asks.py"),
    "asks-node1": ("node1", "asks.mjs"),
    "asks-node2": ("node", "asks.mjs"),
    "login-python1": ("mcp1", "login.py"),
    "login-python2": ("mcp", "login.py"),
    "login-node1": ("node1", "login.mjs"),
    "login-node2": ("node", "login.mjs"),
    # those of the matrix
    "mcp-2.3.0": ("mcp", "player.py", "mcp-2.3.0"),
    "mcp-1.30": ("mcp1", "player.py", "mcp-1.30"),
    "fastmcp-4.2.3": ("fastmcp", "player.py", "fastmcp-4.2.3"),
    "npm-client-2.4.0": ("node", "player.mjs", "npm-client-2.4.0"),
    "npm-sdk-1.32.2": ("node1", "player.mjs", "npm-sdk-1.32.2"),
    "inspector-2.12": ("inspector", "inspector.mjs", "inspector-2.12"),
}

pool = ThreadPoolExecutor(AT_ONCE, "play")


class Seen(NamedTuple):
    """What a client saw.

    Attributes:
        client: A key of PROGRAMS.
        way: `http` or `stdio`, or the version of the protocol that was spoken.
        steps: Name of a step -> the facts it showed.
    """

    client: str
    way: str
    steps: Steps


@cache
def begin(play: Callable[[str], T], what: str) -> "Future[T]":
    """Begins a play; the same one only once."""
    return pool.submit(play, what)


def look(play: Callable[[str], T], what: str) -> T:
    """What a play came to; skips or fails as it did."""
    seen: T = begin(play, what).result()
    return seen


def client_command(client: str) -> list[str]:
    """How to start a client's program; skips, or fails in CI, where the client can't be had."""
    folder, program, *told = PROGRAMS[client]
    try:
        place = install(folder)
    except MissingPeerError as reason:
        if os.environ.get("REQUIRE_PEERS") == "1":
            pytest.fail(f"REQUIRE_PEERS=1, and the client {client!r} can't be had: {reason}")
        pytest.skip(f"the client {client!r} can't be had: {reason}")
    if program.endswith(".py"):
        return [str(place), str(CLIENTS / program), *told]
    its_own = place / "node_modules" / "node" / "bin" / "node"
    return [str(its_own) if its_own.exists() else "node", str(CLIENTS / program), str(place), *told]


def run(command: list[str]) -> list[dict[str, Any]]:
    """Runs a client's program to its end; gives the lines it printed."""
    pipe = subprocess.PIPE
    with spawn(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as started:
        try:
            printed, complaints = started.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            started.terminate()  # so that it can end what it started itself
            try:
                printed, complaints = started.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                started.kill()
                raise
    assert started.returncode == 0, f"{command[:3]} ended with {started.returncode}:\n{printed}\n{complaints}"
    return [json.loads(line) for line in printed.splitlines()]


def play(command: list[str]) -> Steps:
    """Runs a client's program that prints steps."""
    steps = {facts.pop("step"): facts for facts in run(command)}
    assert "end" in steps, f"the client stopped after {list(steps)}"
    return steps


@contextmanager
def listening(command: list[str], port: int, log: Path) -> Iterator[int]:
    """Runs a program that listens on a port; gives the port once it does."""
    with process([sys.executable, *command], log) as started:
        wait_until_listening(started, port, log)
        yield port


@contextmanager
def served(app: str, log: Path) -> Iterator[str]:
    """Serves an application of stage.py over HTTP; gives its URL."""
    port = free_port()
    with listening(["-m", "uvicorn", f"stage:{app}", "--port", str(port), "--log-level", "warning"], port, log):
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def breakable(url: str, log: Path) -> Iterator[str]:
    """Puts breaking_proxy.py before a server; gives the URL to use instead."""
    port, upstream = free_port(), url.rsplit(":", 1)[1].removesuffix("/mcp")
    with listening([str(CLIENTS / "breaking_proxy.py"), str(port), upstream], port, log):
        yield f"http://127.0.0.1:{port}/mcp"


def use_as_of_2025(what: str) -> Seen:
    """Lets a client use a server as clients of 2025 do: `client way`, where the way is the version to speak over HTTP, or `stdio`."""
    client, way = what.split()
    command = client_command(client)
    if way == "stdio":
        return Seen(client, NOVEMBER, play([*command, "stdio", sys.executable, str(STAGE), "stdio"]))
    with TemporaryDirectory() as folder, served(APPS[way], Path(folder, "log")) as url, breakable(url, Path(folder, "proxy")) as cuttable:
        return Seen(client, way, play([*command, "http", cuttable]))


def text(result: dict[str, Any]) -> str:
    """The text of a result that holds one text block and nothing else."""
    (block,) = result["content"]
    assert block["type"] == "text"
    return str(block["text"])
