"""Installs the implementations of others that ours is tried against, once, from PyPI and npm.

    python tests/interop/peers.py [FOLDER ...]

They go into `.cache/peers` (or the folder that PEERS_HOME names), each into an environment of its own so that its dependencies can't
shadow ours. It ends with status 1 and a sentence for each that can't be had; the others are installed all the same. Several processes may
do it at once.
"""
# ruff: noqa: T201 - a command that reports

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = Path(os.environ.get("PEERS_HOME") or ROOT / ".cache" / "peers")
PYPI = {"mcp": "mcp==2.3.0", "mcp1": "mcp==1.30.0", "fastmcp": "fastmcp==4.2.3"}  # folder -> package
NPM = {  # folder -> packages
    "node": "@modelcontextprotocol/client@2.4.0",
    "node1": "@modelcontextprotocol/sdk@1.32.2",
    "node-server": "@modelcontextprotocol/server@2.4.0 @modelcontextprotocol/node@2.1.2",
    "inspector": "@modelcontextprotocol/inspector@2.12.0 node@22.23.3",  # it needs Node.js 22.19, and brings its own
}
LEAST_NODE = 20  # what the other packages need
LIMIT = 300  # seconds for one installation


class MissingPeerError(Exception):
    """A peer that can't be had here, and why."""


def install(folder: str) -> Path:
    """Installs a peer, when it is not there yet.

    Args:
        folder: A key of PYPI or NPM.

    Returns:
        For one of PyPI's the Python of its environment, for one of npm's the folder that holds its node_modules.

    Raises:
        MissingPeerError: It can't be installed.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    with alone(HOME / f"{folder}.lock"):
        return python_peer(HOME / folder, PYPI[folder]) if folder in PYPI else node_peer(HOME / folder, NPM[folder])


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Waits until no other process is in this block."""
    with lock.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def python_peer(place: Path, package: str) -> Path:
    """Python of the environment that holds a package of PyPI's."""
    python = place / "bin" / "python"
    if not done(place, package):
        venv.create(place, clear=True, symlinks=True, with_pip=False)
        attempt([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", package], package)
        mark(place, package)
    return python


def node_peer(place: Path, packages: str) -> Path:
    """Folder whose node_modules hold packages of npm's."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingPeerError("node and npm are not installed (Debian: apt-get install nodejs npm)")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < LEAST_NODE:
        raise MissingPeerError(f"node {version} is too old; the peers need {LEAST_NODE} or newer")
    if not done(place, packages):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        attempt([npm, "install", "--prefix", str(place), *quiet, *packages.split()], packages)
        mark(place, packages)
    return place


def done(place: Path, packages: str) -> bool:
    """Whether a folder holds exactly these packages."""
    marker = place / ".installed"
    return marker.exists() and marker.read_text(encoding="utf-8") == packages


def mark(place: Path, packages: str) -> None:
    """Remembers that a folder holds these packages."""
    (place / ".installed").write_text(packages, encoding="utf-8")


def attempt(command: list[str], packages: str) -> None:
    """Runs an installer.

    Raises:
        MissingPeerError: It failed.
    """
    try:
        ran = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=LIMIT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise MissingPeerError(f"{packages} was not installed within {LIMIT} s") from None
    if ran.returncode:
        raise MissingPeerError(f"{packages} can't be installed: {ran.stderr.strip()[-400:]}")


def main() -> None:
    """Installs what the command line names, or all, and says where it is."""
    failed = False
    for folder in sys.argv[1:] or (*PYPI, *NPM):
        try:
            print(install(folder), flush=True)
        except MissingPeerError as reason:
            failed = True
            print(reason, file=sys.stderr, flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
