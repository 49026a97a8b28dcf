"""What a client is pointed at, one server or several, as that which it speaks to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from callboard.client.auth import Auth
from callboard.client.config import Config, ServerSpec, find
from callboard.client.group import Group, form
from callboard.client.negotiate import check_versions
from callboard.client.opening import Hello
from callboard.client.peer import Peer
from callboard.client.target import Link, Target, connect_to
from callboard.server.limits import Limits

__all__ = ["Way", "assemble"]


class Way(NamedTuple):
    """Options of the way to a server; see `Client`."""

    max_message: int
    headers: Mapping[str, str] | None
    env: Mapping[str, str] | None
    cwd: str | Path | None
    auth: Auth | Mapping[str, Auth] | None
    connect_timeout: float | None
    principal: str | None
    limits: Limits | None = None


def assemble(target: Target, way: Way, hello: Hello, timeout: float | None, make: Callable[[Link, Hello], Peer]) -> Peer | Group:
    """Make what a client speaks to; nothing is opened.

    Args:
        target: What the client is pointed at.
        way: How to get there.
        hello: How it introduces itself.
        timeout: The client's limit of silence.
        make: Makes a peer.

    Raises:
        ValueError: The target or an option can't be used.
        TypeError: The target is none.
    """
    config = find(target)
    if config is None:
        if isinstance(way.auth, Mapping):
            raise TypeError("auth= is who holds the credentials; a mapping of names is for several servers")
        if isinstance(way.auth, str):
            raise TypeError('auth= is who holds the credentials; a token goes into headers={"Authorization": "Bearer ..."}')
        if isinstance(way.auth, type) or (
            way.auth is not None and not all(callable(getattr(way.auth, name, None)) for name in ("bind", "headers", "answer", "learn"))
        ):
            given = f"the class {way.auth.__name__}" if isinstance(way.auth, type) else type(way.auth).__name__
            raise TypeError(f"auth= is an object of callboard.oauth's, or one with its methods; {given} has not")
        options = way._asdict()
        return make(connect_to(target, **options), hello)
    auths = _credentials(config, way)

    def make_one(spec: ServerSpec) -> Peer:
        own = way._replace(headers=spec.headers, env=spec.env, cwd=spec.cwd, auth=auths.get(spec.name))
        link = connect_to(spec.target, **own._asdict())
        return make(link, hello._replace(versions=check_versions(spec.versions)) if spec.versions else hello)

    return form(config, make_one, timeout)


def _credentials(config: Config, way: Way) -> Mapping[str, Auth]:
    """Who holds the credentials for each server; refuses options that a configuration has with its servers."""
    for name in ("headers", "env", "cwd", "principal", "limits"):
        if getattr(way, name) is not None:
            raise ValueError(f"{name}= is for one server: a configuration has it with each of its servers")
    auths = way.auth or {}
    names = {spec.name for spec in config.servers}
    if not isinstance(auths, Mapping) or not auths.keys() <= names:
        strange = f"; there is no {min(auths.keys() - names)!r}" if isinstance(auths, Mapping) else ""
        raise ValueError(f"auth= of several servers maps their names to who holds the credentials for each{strange}")
    return auths
