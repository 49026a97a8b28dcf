"""What a client can be pointed at, and the connection that fits."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from callboard.client.connection import Connection
from callboard.client.http import HttpConnection, check_headers
from callboard.client.line import LineConnection
from callboard.client.memory import MemoryStream
from callboard.client.stdio import ChildStream
from callboard.handling.handler import Served, adapt, is_handler
from callboard.server.app import Server

__all__ = ["Link", "Target", "connect_to"]

Target: TypeAlias = "str | Path | Sequence[str] | Served"
"""A URL, a Python file (`weather.py`, or `weather.py:name` where it has several servers), a command as a list of words, a server or a handler."""

_FILE = re.compile(r"(?P<path>.+\.py)(?P<name>(?::\w+)?)", re.DOTALL)


class Link(NamedTuple):
    """A connection, not yet open.

    Attributes:
        name: The target, as text for errors; credentials in a URL are left out.
        connection: The way there.
        probe: Whether to ask `server/discover` before all else: a child process may be a server that knows no such protocol and yet
            would run a call (VN-15).
    """

    name: str
    connection: Connection
    probe: bool


def connect_to(
    target: Target,
    *,
    max_message: int,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Link:
    """Find the connection for a target; nothing is opened.

    Args:
        target: What to connect to.
        max_message: Most bytes of one message from the server.
        headers: HTTP headers of every request.
        env: Variables of a child process, on top of this process's own.
        cwd: Folder that a child process runs in.

    Raises:
        ValueError: A string that is neither URL nor Python file, a file or folder that isn't there, an empty command; an option that
            means nothing for this kind of target, or can't be used as it is.
        TypeError: Anything else that is no target.
    """
    if isinstance(target, str) and target.lower().startswith(("http://", "https://")):
        _refuse("is for child processes, and this server runs already", env=env, cwd=cwd)
        return Link(
            _checked_url(target, headers or {}), HttpConnection(target, max_message=max_message, headers=headers or {}), probe=False
        )
    if isinstance(target, Server) or is_handler(target) or (callable(target) and not isinstance(target, type)):
        target = adapt(target)
        _refuse("is for child processes, and this server runs in the same process", env=env, cwd=cwd)
        _refuse("is for HTTP, which a server in memory does without: serve callboard.asgi(server) and connect to its URL", headers=headers)
        return Link(target.name, LineConnection(MemoryStream(target)), probe=False)
    command = _command(target)
    _refuse("is for HTTP: a child process is told things by env=", headers=headers)
    _check_texts("env", env or {})
    if cwd is not None and not Path(cwd).is_dir():
        raise ValueError(f"cwd: there is no folder {cwd}")
    stream = ChildStream(command, max_message=max_message, env=env, cwd=cwd)
    return Link(shlex.join(command), LineConnection(stream), probe=True)


def _refuse(reason: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name}= {reason}")


def _check_texts(option: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{option} must be a mapping of names to values, not {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"{option}: names and values are strings, but {name!r} is given {type(value).__name__}")


def _command(target: Any) -> Sequence[str]:
    """The words of a child's command line."""
    if isinstance(target, str | Path):
        return _run_file(target)
    if not (isinstance(target, list | tuple) and all(isinstance(word, str) for word in target)):
        raise TypeError(
            f"{type(target).__name__} is no target: give a URL, a .py file, a command as a list of words, a Server or a Handler"
        )
    if not target:
        raise ValueError("the command is empty: give program and arguments, as in ['python', 'server.py']")
    return target


def _run_file(target: str | Path) -> list[str]:
    """The command that serves a Python file over stdio."""
    found = _FILE.fullmatch(str(target))
    if found is None:
        raise ValueError(f"{str(target)!r} is no target: give a URL (http://...), a .py file, or a command as a list of words")
    path, name = Path(found["path"]), found["name"]
    if not path.is_file():
        words = str(target).split()
        raise ValueError(f"there is no file {path}" + (f"; a command is given as a list of words: {words}" if len(words) > 1 else ""))
    # Absolute: the child may run elsewhere.
    return [sys.executable, "-m", "callboard", "run", f"{path.absolute()}{name}", "--stdio"]


def _checked_url(url: str, headers: Mapping[str, str]) -> str:
    """The URL as errors show it."""
    _check_texts("headers", headers)
    check_headers(headers)
    complaint = f"{url!r} is no URL of a server: it needs a host, as in http://127.0.0.1:8000/mcp"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(complaint) from error
    if not parts.hostname or port == 0:
        raise ValueError(complaint)
    login, at, host = parts.netloc.rpartition("@")
    if login and any(name.lower() == "authorization" for name in headers):
        raise ValueError("headers: Authorization, and a login in the URL, would be two; leave one out")
    return parts._replace(netloc=f"***@{host}").geturl() if at else url
