"""The peers' environments: one folder each under .cache/bench, made from PyPI on first use.

Callboard and the floors run on the project's own interpreter, so that they share every library; a peer gets the same uvicorn, uvloop and
httptools, pinned to the versions found there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Environments made elsewhere by the same names can be lent through BENCH_HOME.
HOME = Path(os.environ.get("BENCH_HOME", ROOT / ".cache" / "bench"))
HTTP_SERVER = ("uvicorn", "uvloop", "httptools")
PEERS = {"v-mcp": "mcp==2.3.0", "v-fastmcp": "fastmcp==4.2.3"}


def interpreter(name: str) -> str:
    """Path of a peer's interpreter; its environment is made if it isn't there.

    Args:
        name: A key of `PEERS`.
    """
    folder = HOME / name
    python = folder / "bin" / "python"
    made = folder / ".done"
    if not made.exists():
        packages = [PEERS[name], *(f"{package}=={version(package)}" for package in HTTP_SERVER)]
        print(f"making {folder} with {', '.join(packages)}", flush=True)
        # Debian's python3 may lack ensurepip, so this environment's pip installs into the new one.
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "-qq"]
        subprocess.run([*pip, *packages], check=True)
        made.touch()
    return str(python)
