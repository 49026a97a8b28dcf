"""Installs the official clients that the tests run, once: those of the current protocol and those of 2025, from PyPI and npm.

    python tests/e2e/real_clients/setup.py

They go into `.cache/peers` (or the folder that PEERS_HOME names), each into an environment of its own so that its dependencies can't
shadow ours. It ends with status 1 and a sentence for each that can't be had; the others are installed all the same.
"""
# ruff: noqa: T201 - a command that reports

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
HOME = Path(os.environ.get("PEERS_HOME") or ROOT / ".cache" / "peers")
PYPI = {"mcp": "mcp==2.3.0", "mcp1": "mcp==1.30.0"}  # folder -> package
NPM = {"node": "@modelcontextprotocol/client@2.4.0", "node1": "@modelcontextprotocol/sdk@1.32.2"}
LEAST_NODE = 20  # what those packages need
LIMIT = 300  # seconds for one installation


class MissingClientError(Exception):
    """A client that can't be had here, and why."""


def install(folder: str) -> Path:
    """Installs a client, when it is not there yet.

    Args:
        folder: A key of PYPI or NPM.

    Returns:
        For one of PyPI's the Python of its environment, for one of npm's the folder that holds its node_modules.

    Raises:
        MissingClientError: It can't be installed.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    return python_client(HOME / folder, PYPI[folder]) if folder in PYPI else node_client(HOME / folder, NPM[folder])


def python_client(place: Path, package: str) -> Path:
    """Python of the environment that holds a package of PyPI's."""
    python = place / "bin" / "python"
    if not done(place, package):
        venv.create(place, clear=True, symlinks=True, with_pip=False)
        attempt([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", package], package)
        mark(place, package)
    return python


def node_client(place: Path, package: str) -> Path:
    """Folder whose node_modules hold a package of npm's."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingClientError("node and npm are not installed (Debian: apt-get install nodejs npm)")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < LEAST_NODE:
        raise MissingClientError(f"node {version} is too old; the client needs {LEAST_NODE} or newer")
    if not done(place, package):
        place.mkdir(parents=True, exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        attempt([npm, "install", "--prefix", str(place), *quiet, package], package)
        mark(place, package)
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
    """Installs all and says where they are."""
    failed = False
    for folder in (*PYPI, *NPM):
        try:
            print(install(folder), flush=True)
        except MissingClientError as reason:
            failed = True
            print(reason, file=sys.stderr, flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
