"""What a server program that is watched tells of its own process."""

import os
from pathlib import Path


def descriptors() -> int:
    """Open file descriptors; 0 where the system does not tell."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def resident() -> int:
    """Bytes of memory in use; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0
