"""The servers of the matrix as processes: one for each peer and way of answering over HTTP, started when it is first wanted."""

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from e2e.serving import free_port, process, wait_until_listening
from interop import cells
from interop.peers import MissingPeerError, install

HERE = Path(__file__).resolve().parent / "servers"


class Program(NamedTuple):
    """How a server is started.

    Attributes:
        folder: Where its packages are, as `peers.install` knows it; empty for ours.
        script: Its file; a `.mjs` gets the folder as its first argument.
    """

    folder: str
    script: str


PROGRAMS = {
    cells.CALLBOARD.name: Program("", "everything.py"),
    cells.MCP2.name: Program("mcp", "peer_mcp2.py"),
    cells.MCP1.name: Program("mcp1", "peer_mcp1.py"),
    cells.FASTMCP.name: Program("fastmcp", "peer_fastmcp.py"),
    cells.NPM_SERVER.name: Program("node-server", "everything.mjs"),
    cells.NPM_SDK.name: Program("node1", "everything.mjs"),
}


class Farm:
    """Servers that run until the farm is closed.

    Args:
        logs: Folder for what they print.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._urls: dict[tuple[str, str], str] = {}
        self._pids: list[int] = []
        self._running = ExitStack()

    def target(self, peer: str, transport: str) -> str | list[str]:
        """What a client is pointed at: a URL, or for stdio a command; `sse` is the transport of 2024."""
        if transport == "stdio":
            return [*command(peer), "stdio"]
        url = self._urls.get((peer, transport))
        if url is None:
            url = self._urls[peer, transport] = self._start(peer, transport)
        return url

    def close(self) -> None:
        """End all, by force: what waits in a server keeps it from ending well."""
        for pid in self._pids:
            os.killpg(pid, signal.SIGKILL)
        self._running.close()

    def _start(self, peer: str, transport: str) -> str:
        port, log = free_port(), self._logs / f"{peer}-{transport}.log"
        started = self._running.enter_context(process([*command(peer), transport, str(port)], log))
        self._pids.append(started.pid)
        wait_until_listening(started, port, log)
        return f"http://127.0.0.1:{port}{'/sse' if transport == 'sse' else '/mcp'}"


def command(peer: str) -> list[str]:
    """How to start a peer's server, but for the transport; skips, or fails in CI, where the peer can't be had."""
    folder, script = PROGRAMS[peer]
    path = str(HERE / script)
    if not folder:
        return [sys.executable, path]
    try:
        place = str(install(folder))
    except MissingPeerError as reason:
        if os.environ.get("REQUIRE_PEERS") == "1":
            pytest.fail(f"REQUIRE_PEERS=1, and the peer {peer!r} can't be had: {reason}")
        pytest.skip(f"the peer {peer!r} can't be had: {reason}")
    return [place, path] if script.endswith(".py") else ["node", path, place]
