"""What a client can be pointed at, and the connection that fits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from callboard.client.connection import Connection
from callboard.client.http import HttpConnection
from callboard.client.line import LineConnection
from callboard.client.memory import MemoryStream
from callboard.client.stdio import ChildStream
from callboard.server.app import Server

__all__ = ["Link", "Target", "connect_to"]

Target: TypeAlias = "str | Path | Sequence[str] | Server"
"""A URL, a Python file, a command as a list of words, or a server object."""


class Link(NamedTuple):
    """A connection, not yet open.

    Attributes:
        name: The target, as text for errors.
        connection: The way there.
        probe: Whether to ask `server/discover` before all else: a child process may be a server that knows no such protocol and yet
            would run a call (VN-15).
    """

    name: str
    connection: Connection
    probe: bool


def connect_to(target: Target, *, max_message: int) -> Link:
    """Find the connection for a target; nothing is opened.

    Args:
        target: What to connect to.
        max_message: Most bytes of one message from the server.

    Raises:
        ValueError: A string that is neither URL nor Python file, a file that isn't there, an empty command.
        TypeError: Anything else that is no target.
    """
    if isinstance(target, str) and target.lower().startswith(("http://", "https://")):
        return Link(_checked_url(target), HttpConnection(target, max_message=max_message), probe=False)
    if isinstance(target, str | Path):
        return _child(_run_file(target), max_message)
    if isinstance(target, Server):
        return Link(target.name, LineConnection(MemoryStream(target)), probe=False)
    if isinstance(target, list | tuple) and all(isinstance(word, str) for word in target):
        if not target:
            raise ValueError("the command is empty: give program and arguments, as in ['python', 'server.py']")
        return _child(target, max_message)
    raise TypeError(f"{type(target).__name__} is no target: give a URL, a .py file, a command as a list of words, or a Server")


def _child(command: Sequence[str], max_message: int) -> Link:
    return Link(shlex.join(command), LineConnection(ChildStream(command, max_message=max_message)), probe=True)


def _run_file(target: str | Path) -> list[str]:
    """The command that serves a Python file over stdio."""
    path = Path(target)
    if path.suffix != ".py":
        raise ValueError(f"{str(target)!r} is no target: give a URL (http://...), a .py file, or a command as a list of words")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return [sys.executable, "-m", "callboard", "run", str(path), "--stdio"]


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        named = False
    if not named:
        raise ValueError(f"{url!r} is no URL of a server: it needs a host, as in http://127.0.0.1:8000/mcp")
    return url
