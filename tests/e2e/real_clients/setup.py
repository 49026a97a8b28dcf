"""Installs the official clients that test_real_clients.py runs, once: `mcp` from PyPI and `@modelcontextprotocol/client` from npm.

    python tests/e2e/real_clients/setup.py

They go into `.cache/peers` (or the folder that PEERS_HOME names), each into an environment of its own so that its dependencies can't
shadow ours. It ends with status 1 and a sentence when one can't be had; the other is installed all the same.
"""
# ruff: noqa: T201 - a command that reports

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
HOME = Path(os.environ.get("PEERS_HOME") or ROOT / ".cache" / "peers")
PYTHON_CLIENT = "mcp==2.3.0"
NODE_CLIENT = "@modelcontextprotocol/client@2.4.0"
LEAST_NODE = 20  # what that package needs
LIMIT = 300  # seconds for one installation


class MissingClientError(Exception):
    """A client that can't be had here, and why."""


def python_client() -> Path:
    """Python of the environment that holds PyPI's client; installs it first when it is not there.

    Raises:
        MissingClientError: It can't be installed.
    """
    place = HOME / "mcp"
    python = place / "bin" / "python"
    if done(place, PYTHON_CLIENT):
        return python
    venv.create(place, clear=True, symlinks=True, with_pip=False)
    attempt([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", PYTHON_CLIENT], PYTHON_CLIENT)
    mark(place, PYTHON_CLIENT)
    return python


def node_client() -> Path:
    """Folder whose node_modules hold npm's client; installs it first when it is not there.

    Raises:
        MissingClientError: It can't be installed.
    """
    place = HOME / "node"
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingClientError("node and npm are not installed (Debian: apt-get install nodejs npm)")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < LEAST_NODE:
        raise MissingClientError(f"node {version} is too old; the client needs {LEAST_NODE} or newer")
    if not done(place, NODE_CLIENT):
        place.mkdir(parents=True, exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        attempt([npm, "install", "--prefix", str(place), *quiet, NODE_CLIENT], NODE_CLIENT)
        mark(place, NODE_CLIENT)
    return place


def done(place: Path, package: str) -> bool:
    """Whether a folder holds exactly this package."""
    marker = place / ".installed"
    return marker.exists() and marker.read_text(encoding="utf-8") == package


def mark(place: Path, package: str) -> None:
    """Remembers that a folder holds this package."""
    (place / ".installed").write_text(package, encoding="utf-8")


def attempt(command: list[str], package: str) -> None:
    """Runs an installer.

    Raises:
        MissingClientError: It failed.
    """
    try:
        ran = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=LIMIT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise MissingClientError(f"{package} was not installed within {LIMIT} s") from None
    if ran.returncode:
        raise MissingClientError(f"{package} can't be installed: {ran.stderr.strip()[-400:]}")


def main() -> None:
    """Installs both and says where they are."""
    HOME.mkdir(parents=True, exist_ok=True)
    failed = False
    clients: tuple[Callable[[], Path], ...] = (python_client, node_client)
    for client in clients:
        try:
            print(client(), flush=True)
        except MissingClientError as reason:
            failed = True
            print(reason, file=sys.stderr, flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
