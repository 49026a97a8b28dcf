"""URLs of a Redis, read once and strictly. What is shown of one never has what is secret in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from callboard.errors import RegistrationError

__all__ = ["FORMS", "Place", "read_url"]

FORMS = (
    "redis://host:6379/0, rediss://host:6379/0 (TLS), unix:///path/of/socket?db=0, "
    "redis+sentinel://host:26379,host:26379/name-of-the-master/0 or redis+cluster://host:6379,host:6379"
)
_PORTS = {"one": 6379, "sentinel": 26379, "cluster": 6379}
# scheme -> what is behind it, whether with TLS
_SCHEMES = {
    "redis": ("one", False),
    "rediss": ("one", True),
    "valkey": ("one", False),
    "valkeys": ("one", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_password")
_TLS_CHOICES: dict[str, dict[str, str | bool]] = {
    "ssl_check_hostname": {"true": True, "false": False},
    "ssl_cert_reqs": {"required": "required", "none": "none"},
}
_SENTINEL = ("sentinel_username", "sentinel_password")
_OPTIONS = ("db", *_TLS_FILES, *_TLS_CHOICES, *_SENTINEL)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a Redis is, and how to get in.

    Attributes:
        kind: `one`, `unix`, `sentinel` or `cluster`.
        nodes: Hosts and ports: of the server, of the sentinels, or of some nodes of the cluster. Empty for `unix`.
        path: Of the socket; empty except for `unix`.
        master: The name that sentinels know the master by; empty except for `sentinel`.
        db: Number of the database.
        tls: Whether to use TLS.
        shown: The URL without credentials and options, for errors and logs.
        username: Or None.
        password: Or None.
        options: Of TLS, as redis-py's connections name them.
        sentinel: Credentials for the sentinels: `username`, `password`.
    """

    kind: str
    nodes: tuple[tuple[str, int], ...]
    path: str
    master: str
    db: int
    tls: bool
    shown: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: dict[str, str | bool] = field(default_factory=dict, repr=False)
    sentinel: dict[str, str] = field(default_factory=dict, repr=False)

    def hide(self, text: str) -> str:
        """A text of somebody else's, without the secrets of this place, and without what a command that is not known was given."""
        text = text.partition(" with args beginning with")[0].rstrip(",")
        for secret in (self.password, self.sentinel.get("password"), self.options.get("ssl_password")):
            if isinstance(secret, str) and secret:
                text = text.replace(secret, "***")
        return text


def read_url(url: str) -> Place:
    """Read the URL of a Redis.

    Args:
        url: One of the forms in `FORMS`, with `user:password@` before the host where there is a password.

    Raises:
        RegistrationError: It is none of them. The text shows nothing that could be a part of a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _bad("its host is no host") from None
    kind, tls = _SCHEMES.get(parts.scheme.lower(), ("", False))
    if not kind:
        raise RegistrationError(f"The URL of a store is {FORMS}; this one begins with another scheme.")
    if parts.fragment or "#" in url:
        raise _bad("it has a '#'")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    if kind == "unix":
        nodes: tuple[tuple[str, int], ...] = ()
        path, master, number = unquote(parts.path), "", ""
        if hosts or not path:
            raise _bad("the path of a socket follows on three slashes: unix:///run/redis.sock")
    else:
        nodes = tuple(_read_node(each, _PORTS[kind]) for each in hosts.split(","))
        path, (master, number) = "", _read_path(parts.path, kind)
        if kind == "one" and len(nodes) > 1:
            raise _bad("it has more than one host: that is for redis+sentinel:// and redis+cluster://")
    options = _read_options(parts)
    db = _read_db(number, options.pop("db", ""), kind)
    where = path or ",".join(_join(node) for node in nodes)
    tail = "".join([f"/{master}" if master else "", f"/{db}" if kind != "unix" and (db or kind == "one") else ""])
    return Place(
        kind,
        nodes,
        path,
        master,
        db,
        tls,
        shown=f"{parts.scheme}://{where}{tail}",
        username=unquote(username) or None,
        password=unquote(password) or None,
        options=_choose({name: value for name, value in options.items() if name.startswith("ssl_")}, tls=tls),
        sentinel={name.removeprefix("sentinel_"): value for name, value in options.items() if name in _SENTINEL},
    )


def _bad(why: str) -> RegistrationError:
    return RegistrationError(
        f"The URL of the store can't be read: {why}. It is {FORMS}. Characters like / ? # @ : in a password are written as %2F %3F %23 %40 %3A."
    )


def _read_options(parts: SplitResult) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            shown = f"{name!r}" if re.fullmatch(r"[a-z_]{1,30}", name) else "one of its options"
            raise _bad(f"{shown} is not known; there are {', '.join(_OPTIONS)}")
        options[name] = value
    return options


def _read_node(text: str, port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^:\[\]\s]+)(?::([0-9]{1,5}))?", text)
    if found is None or not 0 < int(found[2] or port) < 65536:
        raise _bad("its host or port is missing or wrong")
    return unquote(found[1].strip("[]")), int(found[2] or port)


def _join(node: tuple[str, int]) -> str:
    return f"[{node[0]}]:{node[1]}" if ":" in node[0] else f"{node[0]}:{node[1]}"


def _read_path(path: str, kind: str) -> tuple[str, str]:
    pieces = [unquote(piece) for piece in path.split("/")[1:]]
    if pieces and pieces[-1] == "":
        pieces.pop()
    master = pieces.pop(0) if kind == "sentinel" and pieces else ""
    if kind == "sentinel" and not master:
        raise _bad("after the sentinels comes the name that they know the master by")
    if len(pieces) > 1:
        raise _bad("after its host comes the number of a database, and nothing else")
    return master, pieces[0] if pieces else ""


def _read_db(path: str, option: str, kind: str) -> int:
    number = option or path or "0"
    if not re.fullmatch(r"[0-9]{1,5}", number) or (option and path and option != path):
        raise _bad("a database has a number")
    if kind == "cluster" and int(number):
        raise _bad("a cluster has one database only, 0")
    return int(number)


def _choose(options: dict[str, str], *, tls: bool) -> dict[str, str | bool]:
    if options and not tls:
        raise _bad("ssl_ options are for rediss://")
    chosen: dict[str, str | bool] = {}
    for name, value in options.items():
        choices = _TLS_CHOICES.get(name)
        if choices is not None and value not in choices:
            raise _bad(f"{name} is {' or '.join(choices)}")
        chosen[name] = value if choices is None else choices[value]
    if chosen.get("ssl_cert_reqs") == "none":
        chosen["ssl_check_hostname"] = False
    return chosen
