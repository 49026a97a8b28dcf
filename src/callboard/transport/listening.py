"""Sockets that a server listens on, made before anything serves, so that several processes can share them, and errors are sentences."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from callboard.transport.ports import refuse_port

__all__ = ["BACKLOG", "BoundPath", "CannotListenError", "bind_path", "bind_port"]

BACKLOG = 2048
"""Connections that may wait until somebody takes them."""


class CannotListenError(Exception):
    """Nobody can listen there; the text is a sentence with the way out."""


def bind_port(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that a host name stands for.

    Args:
        host: Address or name of this machine.
        port: 0 to 65535; 0 stands for any free one.

    Raises:
        CannotListenError: It can't be.
    """
    if complaint := refuse_port(host, port):
        raise CannotListenError(complaint)
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            listening = socket.socket(family, kind, protocol)
            made.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # the other family has a socket of its own
            listening.bind(address)
            listening.listen(BACKLOG)
    except OSError as error:
        for each in made:
            each.close()
        raise CannotListenError(refuse_port(host, port) or f"{host}:{port} can't be listened on ({error.strerror})") from error
    return made


class BoundPath(NamedTuple):
    """A Unix socket that is listened on.

    Attributes:
        listening: The socket.
        path: Where.
        mark: What tells the file from one that somebody puts in its place.
    """

    listening: socket.socket
    path: str
    mark: tuple[int, int]

    def remove(self) -> None:
        """Remove it, unless it has gone, or is another's by now."""
        with suppress(OSError):
            if _mark(self.path) == self.mark:
                Path(self.path).unlink()


def _mark(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def bind_path(path: str, mode: int) -> BoundPath:
    """Listen on a Unix socket. What a dead server left there is replaced; nobody can connect before the permissions are right.

    Args:
        path: Where.
        mode: Permissions: who may write to it may call.

    Raises:
        CannotListenError: It can't be.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise CannotListenError("this system has no Unix sockets; listen on a port")
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~mode)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
        return BoundPath(listening, path, _mark(path))
    except OSError as error:
        listening.close()
        reason = "the path is too long" if error.errno is None else error.strerror
        raise CannotListenError(f"{path} can't be listened on: {reason}") from error
    finally:
        os.umask(before)


def _clear(path: str) -> None:
    """See that a path is free; a socket on which nobody listens is no more than a leftover.

    Raises:
        CannotListenError: It is not.
    """
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotListenError(f"{path} can't be listened on: {error.strerror}") from error
    if not stat.S_ISSOCK(kind):
        raise CannotListenError(f"{path} is there, and no socket: remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno not in {errno.ECONNREFUSED, errno.ENOENT}:
                raise CannotListenError(f"{path} may be in use ({error.strerror or error}): stop what serves there") from error
            with suppress(OSError):
                Path(path).unlink()
            return
    raise CannotListenError(f"{path} is in use: stop what serves there, or choose another path")
