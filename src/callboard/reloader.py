"""`--reload`: one process watches the files, another serves and is replaced when a file changes.

The watcher polls modification times, which works on every file system and needs no package. The process that is replaced drains within
bounded time: open streams get their end, so that clients open them again instead of waiting on them, and calls that run on are told so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["changed_files", "scan", "serve_with_reload"]

# Seconds between two looks, and until a process that was asked to end is killed.
INTERVAL = 0.25
GRACE = 3.0
SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}


def scan(folder: Path) -> dict[str, tuple[int, int]]:
    """Modification time (ns) and size of every `.py` file below a folder; hidden folders, environments and caches are passed over."""
    return dict(_stamps(str(folder)))


def _stamps(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    # A folder or file that goes away while we look was not there.
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in SKIPPED:
                        yield from _stamps(entry.path)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    yield entry.path, (status.st_mtime_ns, status.st_size)


def changed_files(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[str]:
    """Files that came, went or changed between two scans, in order."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def serve_with_reload(command: Sequence[str], folder: Path) -> int:
    """Run a command, and anew whenever a `.py` file below a folder changes, until it is interrupted.

    Args:
        command: What serves.
        folder: What to watch.

    Returns:
        0 when it was interrupted.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, _interrupt)
    _say(f"watching {folder} for changes")
    stamps = scan(folder)
    server = _start(command)
    told = False
    try:
        while True:
            time.sleep(INTERVAL)
            now = scan(folder)
            if changed := changed_files(stamps, now):
                stamps, told = now, False
                _say(f"{Path(changed[0]).name} changed: starting anew")
                _end(server)
                server = _start(command)
            elif not told and server.poll() is not None:
                told = True
                _say("the server has ended; it starts anew at the next change")
    except KeyboardInterrupt:
        return 0
    finally:
        _end(server)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(f"callboard: {text}", file=sys.stderr, flush=True)  # noqa: T201 - this process has nothing else to say


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C in a terminal would reach it beside our SIGTERM, and two signals mean "at once".
    # Without byte code: it is judged by whole seconds and size, so that a quick edit of the same length would not be seen.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, start_new_session=True, env=environment)  # noqa: S603 - the words of this very command line


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(GRACE)
        except subprocess.TimeoutExpired:
            server.kill()
    server.wait()
