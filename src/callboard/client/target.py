"""What a client can be pointed at, and the connection that fits."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from callboard.client.auth import Auth
from callboard.client.cache import fingerprint
from callboard.client.connection import Connection
from callboard.client.http import HttpConnection, check_headers
from callboard.client.line import LineConnection
from callboard.client.memory import MemoryStream
from callboard.client.sse_2024 import SseStream
from callboard.client.stdio import ChildStream
from callboard.core.urls import masked
from callboard.handling.handler import Served, adapt, is_handler
from callboard.server.app import Server
from callboard.server.limits import Limits

__all__ = ["Link", "Target", "connect_to"]

Target: TypeAlias = "str | Path | Sequence[str] | Mapping[str, Any] | Served"
"""A URL, a Python file (`weather.py`, or `weather.py:name` where it has several servers), a command as a list of words or a text, a server or
a handler; or several servers: a mapping with `mcpServers`, or a `.json` file that holds one."""

_FILE = re.compile(r"(?P<path>.+\.py)(?P<name>(?::\w+)?)", re.DOTALL)


class Link(NamedTuple):
    """A connection, not yet open.

    Attributes:
        name: The target, as text for errors; credentials in a URL are left out.
        kind: How it is reached.
        connection: The way there.
        place: What a server is remembered by: its URL without the query; empty where nothing is to be remembered.
        context: What tells one user's headers from another's (CA-06).
        make_old: Makes a connection by the transport of 2024-11-05; None where there is no such thing.
        auth: Holds the credentials; None for none.
        query: What stands in for the URL's query, which may hold credentials; empty without one.
    """

    name: str
    kind: Literal["http", "stdio", "memory"]
    connection: Connection
    place: str = ""
    context: str = ""
    make_old: Callable[[], Connection] | None = None
    auth: Auth | None = None
    query: str = ""


def connect_to(
    target: Target,
    *,
    max_message: int,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    auth: Auth | None = None,
    connect_timeout: float | None = None,
    principal: str | None = None,
    limits: Limits | None = None,
) -> Link:
    """Find the connection for a target; nothing is opened.

    Args:
        target: What to connect to.
        max_message: Most bytes of one message from the server.
        headers: HTTP headers of every request.
        env: Variables of a child process, on top of this process's own.
        cwd: Folder that a child process runs in.
        auth: Holds the credentials for a URL.
        connect_timeout: Seconds that an HTTP connection may take to come about; None for no limit.
        principal: Who the client is to a server in memory.
        limits: Bounds of what it can make a server in memory take.

    Raises:
        ValueError: A string that is neither URL nor Python file, a file or folder that isn't there, an empty command; an option that
            means nothing for this kind of target, or can't be used as it is.
        TypeError: Anything else that is no target.
    """
    if isinstance(target, str) and target.lower().startswith(("http://", "https://")):
        _refuse("is for child processes, and this server runs already", env=env, cwd=cwd)
        _refuse("is for servers in memory: over HTTP, credentials say who asks", principal=principal)
        _refuse("is for servers in memory: elsewhere it is the server that has them", limits=limits)
        return _link_http(target, headers or {}, auth, max_message, connect_timeout)
    if isinstance(target, Server) or is_handler(target) or (callable(target) and not isinstance(target, type)):
        target = adapt(target)
        _refuse("is for child processes, and this server runs in the same process", env=env, cwd=cwd)
        _refuse(
            "is for HTTP, which a server in memory does without: serve callboard.asgi(server) and connect to its URL",
            headers=headers,
            auth=auth,
        )
        served = target
        return Link(served.name, "memory", LineConnection(lambda: MemoryStream(served, principal, limits)))
    command = _command(target)
    _refuse("is for servers in memory: a child process has one user", principal=principal)
    _refuse("is for servers in memory: elsewhere it is the server that has them", limits=limits)
    _refuse("is for HTTP: a child process is told things by env=", headers=headers, auth=auth)
    _check_texts("env", env or {})
    if cwd is not None and not Path(cwd).is_dir():
        raise ValueError(f"cwd: there is no folder {cwd}")
    return Link(shlex.join(command), "stdio", LineConnection(lambda: ChildStream(command, max_message=max_message, env=env, cwd=cwd)))


def _link_http(url: str, headers: Mapping[str, str], auth: Auth | None, max_message: int, connect_timeout: float | None) -> Link:
    name = _checked_url(url, headers)

    def make_old() -> Connection:
        return LineConnection(lambda: SseStream(url, max_message=max_message, headers=headers, auth=auth, connect_timeout=connect_timeout))

    connection = HttpConnection(url, max_message=max_message, headers=headers, auth=auth, connect_timeout=connect_timeout)
    parts = urlsplit(url)
    query = fingerprint({"?": parts.query}) if parts.query else ""
    return Link(name, "http", connection, parts._replace(query="", fragment="").geturl(), fingerprint(headers), make_old, auth, query)


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
        return _run_text(target)
    if not (isinstance(target, list | tuple) and all(isinstance(word, str) for word in target)):
        raise TypeError(
            f"{type(target).__name__} is no target: give a URL, a .py file, a command as a list of words, a Server or a Handler"
        )
    if not target:
        raise ValueError("the command is empty: give program and arguments, as in ['python', 'server.py']")
    return target


def _run_text(target: str | Path) -> Sequence[str]:
    """The command that serves a Python file over stdio, or the one that a text is."""
    text = str(target)
    found = _FILE.fullmatch(text)
    if found is not None and Path(found["path"]).is_file():
        # Absolute: the child may run elsewhere.
        return [sys.executable, "-m", "callboard", "run", f"{Path(found['path']).absolute()}{found['name']}", "--stdio"]
    try:
        words = shlex.split(text) if isinstance(target, str) else []
    except ValueError as error:
        raise ValueError(f"{text!r} is no command: {str(error).lower()}; give it as a list of words") from error
    if len(words) > 1 or (words and found is None and shutil.which(words[0])):
        return words
    if found is not None:
        raise ValueError(f"there is no file {found['path']}")
    raise ValueError(f"{text!r} is no target: give a URL (http://...), a .py or .json file, or a command")


def _checked_url(url: str, headers: Mapping[str, str]) -> str:
    """The URL as errors show it."""
    _check_texts("headers", headers)
    check_headers(headers)
    complaint = f"{masked(url)!r} is no URL of a server: it needs a host, as in http://127.0.0.1:8000/mcp"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(complaint) from error
    if not parts.hostname or port == 0:
        raise ValueError(complaint)
    if parts.netloc.rpartition("@")[0] and any(name.lower() == "authorization" for name in headers):
        raise ValueError("headers: Authorization, and a login in the URL, would be two; leave one out")
    return masked(url)
