"""`mcpServers`: the configuration that hosts of several servers keep, as data.

    {"mcpServers": {
        "weather": {"command": "uvx", "args": ["weather"], "env": {"KEY": "${WEATHER_KEY}"}, "cwd": "/srv"},
        "maps": {"type": "http", "url": "https://maps.example.com/mcp", "headers": {"Authorization": "Bearer ${MAPS_TOKEN:-none}"}}}}

It is read as Claude Desktop, Claude Code, Cursor and VS Code read it (the last calls it `servers`); a file may hold comments and commas too
many. Pure but for `load`: nothing is started, and the environment is an argument. What is wrong with it is told all at once, with the name of
the server, and never with a value: they are secrets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from callboard.errors import CallboardError

__all__ = ["Config", "ConfigError", "ServerSpec", "find", "load", "parse", "prefix_of"]

MAX_BYTES: Final = 1_048_576
"""Size of a file."""
MAX_PREFIX: Final = 64
"""Characters of a name as a prefix: the names of tools have 128 in all (TL-15)."""
MAX_TOLD: Final = 20
"""How many mistakes are told at once."""
SSE: Final = "2024-11-05"
"""The version whose transport `sse` is."""

_SECTIONS: Final = ("mcpServers", "servers")
_KINDS: Final = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",
    "sse": "sse",
}
_OF_PROCESS: Final = ("command", "args", "env", "cwd")
_OF_URL: Final = ("url", "headers")
_KNOWN: Final = frozenset({*_OF_PROCESS, *_OF_URL, "type", "transport", "timeout", "disabled", "enabled", "versions"})
_DECORATION: Final = frozenset({"name", "description", "icon", "alwaysAllow", "autoApprove"})
"""Keys that say nothing of the connection: hosts keep them for themselves."""
_VARIABLE: Final = re.compile(r"\$\{([^{}$]*)\}")
_NAME: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*|[^"/,\s\]}]+|\s+|.', re.DOTALL)
_NO_PREFIX: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_EDITORS: Final = frozenset({".vscode", ".cursor"})


class ConfigError(CallboardError, ValueError):
    """A configuration that can't be used. The text names the file, the servers and the keys, and says what to write instead."""


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a configuration, as `Client` takes it.

    Attributes:
        name: As configured.
        prefix: What the names of its tools and prompts begin with, before a `_`; see `prefix_of`.
        target: A URL, a command as a list of words, or what stood in a mapping in place of the server's settings.
        headers: HTTP headers; None for a command.
        env: Variables of the process; None for a URL.
        cwd: Folder that the process runs in; None for this process's own.
        versions: Protocol versions that may be spoken; None for all.
        timeout: Seconds; None for the client's own.
    """

    name: str
    prefix: str
    target: Any
    headers: dict[str, str] | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None
    versions: tuple[str, ...] | None = None
    timeout: float | None = None

    def __repr__(self) -> str:
        return f"<ServerSpec {self.name!r}>"  # all else may hold secrets


class Config(msgspec.Struct, frozen=True):
    """A configuration that can be used.

    Attributes:
        servers: The servers that are not disabled, in their order.
        warnings: Sentences about what was passed over.
    """

    servers: tuple[ServerSpec, ...]
    warnings: tuple[str, ...] = ()


def find(target: Any) -> Config | None:
    """The configuration that a client is pointed at: a mapping, or a path or text that ends in `.json`; None when it is something else.

    Args:
        target: What the client is given.

    Raises:
        ConfigError: It is one, and can't be used.
    """
    if isinstance(target, Mapping):
        return parse(target)
    if isinstance(target, Path) or (isinstance(target, str) and not target.lower().startswith(("http://", "https://"))):
        return load(target) if str(target).lower().endswith(".json") else None
    return None


def load(path: str | Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read a file.

    Args:
        path: The file, JSON in UTF-8.
        environ: Variables to fill in; those of the process by default.

    Raises:
        ConfigError: It can't be read, or not be used.
    """
    source = Path(path)
    try:
        with source.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: can't be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: has more than {MAX_BYTES} bytes, so it is no configuration of servers")
    try:
        document = _decode(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}: is no JSON at line {error.lineno}, column {error.colno} ({error.msg})") from None
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply") from None
    except _RepeatedError as error:
        raise ConfigError(f"{source}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f'{source}: must hold an object: {{"mcpServers": {{...}}}}')
    return parse(document, environ, source=source)


def parse(document: Mapping[str, Any], environ: Mapping[str, str] | None = None, *, source: Path | None = None) -> Config:
    """Read a configuration.

    Args:
        document: `{"mcpServers": {name: settings}}`. In place of a server's settings there may stand what `Client` can be pointed at and
            JSON has no word for, such as a `Server`.
        environ: Variables to fill in; those of the process by default.
        source: The file that it came from, for errors and `${workspaceFolder}`.

    Raises:
        ConfigError: It can't be used. All mistakes are told.
    """
    where = f"{source}: " if source else ""
    section = _section(document, where)
    reader = _Reader(os.environ if environ is None else environ, source)
    servers = [spec for name, settings in section.items() if (spec := reader.read(name, settings)) is not None]
    reader.mistakes += _collisions(servers)
    if reader.mistakes:
        more = len(reader.mistakes) - MAX_TOLD
        told = reader.mistakes[:MAX_TOLD] + ([f"and {more} more"] if more > 0 else [])
        raise ConfigError(where + (told[0] if len(told) == 1 else "\n".join(["", *(f"- {mistake}" for mistake in told)]).lstrip(" ")))
    if not servers:
        raise ConfigError(f"{where}there is no server{' that is not disabled' if section else ''}; add one to {_SECTIONS[0]!r}")
    return Config(tuple(servers), tuple(where + warning for warning in reader.warnings))


def prefix_of(name: str) -> str:
    """What the names of a server's tools begin with: its own name, and `_` for what names of tools can't hold (TL-15).

    Args:
        name: The server's name.

    Returns:
        The prefix; empty when nothing is left.
    """
    return _NO_PREFIX.sub("_", name).strip("_")


def _section(document: Mapping[str, Any], where: str) -> Mapping[Any, Any]:
    """The servers of a document."""
    found = [name for name in _SECTIONS if name in document]
    if len(found) != 1:
        what = (
            f"has both {' and '.join(map(repr, _SECTIONS))}; keep one" if found else f"has no {_SECTIONS[0]!r}: name the servers under it"
        )
        raise ConfigError(f"{where}the configuration {what}")
    section = document[found[0]]
    if not isinstance(section, Mapping):
        raise ConfigError(f"{where}{found[0]!r} must be an object of names and settings, not {_noun(section)}")
    return section


def _collisions(servers: list[ServerSpec]) -> Iterator[str]:
    """TL-16: no two servers may answer to one name."""
    known: dict[str, str] = {}
    for spec in servers:
        if spec.prefix in known:
            yield f"servers {known[spec.prefix]!r} and {spec.name!r} would both be called {spec.prefix!r}; rename one"
        known.setdefault(spec.prefix, spec.name)


class _MistakeError(Exception):
    """What is wrong with one server; caught where its name is known."""


class _RepeatedError(Exception):
    """A name that stands twice in an object."""


class _Reader:
    """Reads the settings of servers.

    Attributes:
        mistakes: What was wrong, as sentences.
        warnings: What was passed over, as sentences.
    """

    def __init__(self, environ: Mapping[str, str], source: Path | None) -> None:
        self.mistakes: list[str] = []
        self.warnings: list[str] = []
        self._environ = environ
        self._folder = _workspace(source)

    def read(self, name: Any, settings: Any) -> ServerSpec | None:
        """One server; None when it is disabled, or wrong."""
        try:
            if not isinstance(name, str) or not (prefix := prefix_of(name)):
                raise _MistakeError("the name needs at least one of A-Z a-z 0-9: names of tools begin with it")  # noqa: TRY301 one place for all
            if len(prefix) > MAX_PREFIX:
                raise _MistakeError(f"the name has more than {MAX_PREFIX} characters: names of tools begin with it")  # noqa: TRY301 as above
            if not isinstance(settings, Mapping):
                return ServerSpec(name=name, prefix=prefix, target=_foreign(settings))
            if _switch(settings, "disabled", default=False) or not _switch(settings, "enabled", default=True):
                return None
            return self._server(name, prefix, settings)
        except _MistakeError as mistake:
            self.mistakes.append(f"server {_cut(name)}: {mistake}")
            return None

    def _server(self, name: str, prefix: str, settings: Mapping[Any, Any]) -> ServerSpec:
        kind = _kind(settings)
        strange = [str(key) for key in settings if key not in _KNOWN and key not in _DECORATION]
        if strange:
            self.warnings.append(f"server {_cut(name)}: unknown settings are passed over: {', '.join(map(_cut, strange[:MAX_TOLD]))}")
        out_of_place = [key for key in (_OF_URL if kind == "stdio" else _OF_PROCESS) if key in settings]
        if out_of_place:
            raise _MistakeError(f"{out_of_place[0]!r} means nothing beside {'command' if kind == 'stdio' else 'url'!r}; leave one out")
        timeout, versions = _timeout(settings), _versions(settings)
        if kind == "stdio":
            command = [self._text("command", settings["command"]), *self._words("args", settings.get("args", []))]
            env = self._texts("env", settings.get("env", {}), numbers=True)
            cwd = self._text("cwd", settings["cwd"]) if settings.get("cwd") is not None else None
            return ServerSpec(name=name, prefix=prefix, target=command, env=env or None, cwd=cwd, versions=versions, timeout=timeout)
        url = self._text("url", settings["url"])
        if not url.lower().startswith(("http://", "https://")):
            raise _MistakeError("'url' must begin with http:// or https://")
        headers = self._texts("headers", settings.get("headers", {}))
        if kind == "sse" and versions is None:
            versions = (SSE,)
        return ServerSpec(name=name, prefix=prefix, target=url, headers=headers or None, versions=versions, timeout=timeout)

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise _MistakeError(f"{key!r} must be a text with something in it, not {_noun(value)}")
        return self._filled(key, value)

    def _words(self, key: str, values: Any) -> list[str]:
        if not isinstance(values, list | tuple):
            raise _MistakeError(f"{key!r} must be a list of texts, not {_noun(values)}")
        for at, value in enumerate(values):
            if not isinstance(value, str) or "\0" in value:
                raise _MistakeError(f"'{key}[{at}]' must be a text, not {_noun(value)}")
        return [self._filled(f"{key}[{at}]", value) for at, value in enumerate(values)]

    def _texts(self, key: str, values: Any, *, numbers: bool = False) -> dict[str, str]:
        if not isinstance(values, Mapping):
            raise _MistakeError(f"{key!r} must be an object of names and texts, not {_noun(values)}")
        found: dict[str, str] = {}
        for name, value in values.items():
            what = f"{key}.{name}" if isinstance(name, str) else key
            text = str(value) if numbers and type(value) in {int, float} else value
            if not isinstance(name, str) or not name or not isinstance(text, str) or "\0" in name + text:
                raise _MistakeError(f"{_cut(what)} must be a text, not {_noun(value)}")
            found[name] = self._filled(what, text)
        return found

    def _filled(self, key: str, text: str) -> str:
        """A text with its variables filled in."""
        if "${" not in text:
            return text
        if len(_VARIABLE.findall(text)) != text.count("${"):
            raise _MistakeError(f"{_cut(key)} holds a ${{ that is not closed, or one inside another; write ${{NAME}} or ${{NAME:-default}}")
        return _VARIABLE.sub(lambda match: self._value(key, match[1]), text)

    def _value(self, key: str, inside: str) -> str:
        """What stands for a variable. Of `NAME:-default` the default stands where NAME is not set; set to nothing it is set."""
        if inside in self._folder:
            return self._folder[inside]
        found = _NAME.fullmatch(inside)
        if found is None:
            hint = "an editor asks for it; " if inside.startswith("input:") else ""
            raise _MistakeError(
                f"{_cut(key)} wants {_cut('${' + inside + '}')}, which is unknown here: {hint}write ${{NAME}} and set the variable"
            )
        name, default = found.groups()
        value = self._environ.get(name, default)
        if value is None:
            raise _MistakeError(f"{_cut(key)} wants the variable {name!r}, which is not set: set it, or write ${{{name}:-default}}")
        return value


def _decode(text: str) -> Any:
    """Read JSON; if need be, without comments and commas too many, so that what is wrong stays where it was."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError:
        return json.loads(_plain(text), object_pairs_hook=_object)


def _plain(text: str) -> str:
    """A text with blanks in place of comments and of commas before a closing bracket, in one pass."""
    kept: list[str] = []
    at, comma = 0, -1
    while match := _TOKEN.match(text, at):
        piece = match[0]
        if piece == "/*":
            end = text.find("*/", at + 2)
            piece = text[at : end + 2] if end >= 0 else text[at:]
        at += len(piece)
        if piece.startswith(("//", "/*")):
            piece = re.sub(r"[^\n]", " ", piece)
        elif piece == ",":
            comma = len(kept)
        elif not piece.isspace():
            if comma >= 0 and piece in {"}", "]"}:
                kept[comma] = " "
            comma = -1
        kept.append(piece)
        if piece == '"':  # it is never closed
            break
    return "".join(kept) + text[at:]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError(
            f"the name {_cut(next(name for name in names if names.count(name) > 1))} stands twice in one object; rename one"
        )
    return made


def _workspace(source: Path | None) -> dict[str, str]:
    """What editors fill in of themselves."""
    known = {"userHome": str(Path.home()), "pathSeparator": os.sep, "/": os.sep}
    if source is None:
        return known
    folder: PurePath = source.absolute().parent
    if folder.name in _EDITORS:
        folder = folder.parent
    return {**known, "workspaceFolder": str(folder), "workspaceFolderBasename": folder.name}


def _kind(settings: Mapping[Any, Any]) -> str:
    """`stdio`, `http` or `sse`: what is said, or what there is to connect to."""
    said = [(key, settings[key]) for key in ("type", "transport") if settings.get(key) is not None]
    kinds = {_KINDS.get(value.lower(), "") if isinstance(value, str) else "" for _, value in said}
    if "" in kinds or len(kinds) > 1:
        names = " and ".join(repr(key) for key, _ in said)
        raise _MistakeError(f"{names} must be one of 'stdio', 'http', 'sse'")
    has_command, has_url = (settings.get(key) is not None for key in ("command", "url"))
    if has_command == has_url:
        raise _MistakeError("needs 'command' or 'url'" if not has_url else "has both 'command' and 'url'; leave one out")
    kind = next(iter(kinds), "stdio" if has_command else "http")
    if (kind == "stdio") != has_command:
        raise _MistakeError(f"is of the type {kind!r} and has {'command' if has_command else 'url'!r}; leave 'type' out, or correct it")
    return kind


def _switch(settings: Mapping[Any, Any], key: str, *, default: bool) -> bool:
    value = settings.get(key, default)
    if not isinstance(value, bool):
        raise _MistakeError(f"{key!r} must be true or false, not {_noun(value)}")
    return value


def _timeout(settings: Mapping[Any, Any]) -> float | None:
    """Hosts count milliseconds here."""
    value = settings.get("timeout")
    if value is None:
        return None
    if type(value) not in {int, float} or not 1 <= value <= 86_400_000:
        raise _MistakeError("'timeout' must be a number of milliseconds from 1 to 86400000")
    return float(value) / 1000


def _versions(settings: Mapping[Any, Any]) -> tuple[str, ...] | None:
    value = settings.get("versions")
    if value is None:
        return None
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not values or not all(isinstance(each, str) for each in values):
        raise _MistakeError("'versions' must be a protocol version or a list of them")
    return tuple(values)


def _foreign(value: Any) -> Any:
    """What is no JSON is a target of its own."""
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | set):
        raise _MistakeError(f"its settings must be an object with 'command' or 'url', not {_noun(value)}")
    return value


def _noun(value: Any) -> str:
    """What a value is, not which."""
    for kinds, noun in (
        (bool, "true or false"),
        (str, "a text"),
        (int | float, "a number"),
        (list | tuple, "a list"),
        (Mapping, "an object"),
    ):
        if isinstance(value, kinds):
            return "an empty text" if value == "" else noun
    return "null" if value is None else type(value).__name__


def _cut(name: Any) -> str:
    text = repr(name)
    return text if len(text) <= 100 else f"{text[:100]}..."
