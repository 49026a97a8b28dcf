"""Finding the server in a program: `app.py`, `app.py:name`, `package.module`, `package.module:name`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from callboard.errors import CallboardError, RegistrationError
from callboard.handling.handler import adapt, is_handler
from callboard.server.app import Server
from callboard.transport.asgi import App

__all__ = ["Found", "LoadError", "load_program", "load_server", "split_place"]

# Looked for in this order when no name is given.
USUAL_NAMES = ("server", "app", "mcp")
PACKAGE = Path(__file__).parent
PACKAGES = frozenset({"site-packages", "dist-packages"})
# Where ASGI applications and frameworks (Starlette, FastAPI) keep what is inside of them; looked for among what instances have, so that no
# property of anybody's runs.
INSIDE = ("app", "router", "routes", "endpoint")
DEEPEST = 12


class LoadError(CallboardError):
    """The program can't be loaded, or has no server; the text says what to do.

    Attributes:
        broken: Whether the program was found, and failed.
    """

    def __init__(self, text: str, *, broken: bool = False) -> None:
        super().__init__(text)
        self.broken = broken


class Found(NamedTuple):
    """What a program serves.

    Attributes:
        served: The server, or the application that `callboard.asgi` made of one.
        inside: Whether it is inside of another ASGI application.
        hosted: Whether that leads to it from some paths alone.
        routed: Paths that the other one has routes for.
    """

    served: Server | App
    inside: bool = False
    hosted: bool = False
    routed: tuple[str, ...] = ()


def split_place(place: str) -> tuple[str, str]:
    """Cut `app.py:name` into file or module, and name; the name is empty when there is none."""
    module, colon, name = place.rpartition(":")
    return (module, name) if colon and name.isidentifier() else (place, "")


def load_server(place: str) -> Server:
    """Run a program's module and find its server.

    Args:
        place: A file or a dotted module, with `:name` where it has several servers. Files are loaded with their own folder first on
            `sys.path`, as if they were run; modules are looked for in the working directory too.

    Returns:
        The object of that name; without a name `server`, `app` or `mcp`, else the only server there is.

    Raises:
        LoadError: There is no such program, it fails, or it has no such server.
    """
    module, origin, name = _load(place)
    return _named(module, origin, name) if name else _find(vars(module), origin)


def load_program(place: str) -> Found:
    """Run a program's module and find what it serves: the application that it has made, else its server.

    Args:
        place: See `load_server`; the name may also be that of an application, ours or one of another framework's with ours inside.

    Raises:
        LoadError: There is no such program, it fails, or it has nothing that is served.
    """
    module, origin, name = _load(place)
    if name:
        return _pick(_look_inside(getattr(module, name, None)), place) or Found(_named(module, origin, name))
    inside = {key: found for key, value in vars(module).items() if (found := _look_inside(value))}
    every = [each for found in inside.values() for each in found]
    return _pick(inside.get("app", every), origin, *inside) or Found(_find(vars(module), origin))


def _pick(found: Sequence[Found], origin: str, *names: str) -> Found | None:
    """The only application; as part of another one where it is that, too."""
    if len({id(each.served) for each in found}) > 1:
        ways = _offer(dict.fromkeys(names), origin) if len(names) > 1 else "; give the one that is meant a name at the top level"
        raise LoadError(f"{origin} has several MCP applications{ways}")
    return max(found, key=lambda each: (each.hosted, each.inside), default=None)


def _look_inside(value: Any) -> list[Found]:
    """Applications of ours that something is, or has inside."""
    if isinstance(value, App):
        return [Found(value)]
    if isinstance(value, type | ModuleType | FunctionType | Server) or not callable(value):
        return []
    apps: dict[int, tuple[App, str]] = {}
    routed: list[str] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, str, int]] = [(value, "", 0)]
    while waiting:
        each, path, depth = waiting.pop()
        if isinstance(each, App):
            apps[id(each)] = each, path
        elif id(each) not in seen and depth < DEEPEST and not isinstance(each, type):
            seen.add(id(each))
            held = getattr(each, "__dict__", {})
            if isinstance(own := held.get("path"), str):
                path += own.rstrip("/")
                routed.append(path)
            inner = each if isinstance(each, list | tuple) else [held[name] for name in INSIDE if name in held]
            waiting += [(item, path, depth + 1) for item in inner]
    return [Found(app, inside=True, hosted=bool(path), routed=tuple(routed)) for app, path in apps.values()]


def _load(place: str) -> tuple[ModuleType, str, str]:
    """A program's module, where it is, and the name that was given; empty for none."""
    origin, name = split_place(place)
    return (_load_file(Path(origin)) if origin.endswith(".py") else _load_module(origin)), origin, name


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"there is no file {path}")
    path = path.resolve()
    sys.path.insert(0, str(path.parent))
    # Under its own name, so that pickling and string annotations work, unless that name is taken (a file called json.py, say).
    name = path.stem if path.stem not in sys.modules else f"_callboard_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failure(str(path), error, path.parent) from error
    return module


def _load_module(name: str) -> ModuleType:
    if Path(name).is_file() or not all(part.isidentifier() for part in name.split(".")):
        raise LoadError(f"{name!r} is neither a .py file nor a module: use app.py, app.py:name, package.module or package.module:name")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise LoadError(f"there is no module {error.name!r} here or among the installed packages") from error
        raise _failure(name, error, Path.cwd()) from error


def _failure(origin: str, error: Exception, folder: Path) -> LoadError:
    """Blame the program in its own lines: what led into it (this file, importlib) is left out, and of our own errors all but the place."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [at for at, frame in enumerate(frames) if _is_theirs(Path(frame.filename), folder)]
    if isinstance(error, RegistrationError) and theirs:
        frame = frames[theirs[-1]]
        return LoadError(f"{Path(frame.filename).name}, line {frame.lineno}: {error}", broken=True)
    lines = [*traceback.format_list(frames[min(theirs, default=len(frames)) :]), *traceback.format_exception_only(error)]
    return LoadError(f"{origin} can't be loaded:\n{''.join(lines).rstrip()}", broken=True)


def _is_theirs(path: Path, folder: Path) -> bool:
    """Whether a file is of the program: in its folder, but not of a package in an environment there, nor of this one."""
    if not path.is_relative_to(folder) or path.is_relative_to(PACKAGE):
        return False
    return PACKAGES.isdisjoint(path.relative_to(folder).parts)


def _named(module: ModuleType, origin: str, name: str) -> Server:
    if not hasattr(module, name):
        raise LoadError(f"{origin} has no {name!r}{_offer(_servers(vars(module)), origin)}")
    found = getattr(module, name)
    if not isinstance(found, Server) and not is_handler(found) and not isinstance(found, FunctionType):
        kind = type(found).__name__
        raise LoadError(f"{origin}:{name} is a {kind}, not a callboard.Server or Handler{_offer(_servers(vars(module)), origin)}")
    return _adapt(found, f"{origin}:{name}")


def _adapt(found: Any, place: str) -> Server:
    try:
        return adapt(found)
    except RegistrationError as error:
        raise LoadError(f"{place}: {error}", broken=True) from error


def _find(namespace: Mapping[str, Any], origin: str) -> Server:
    servers = _servers(namespace)
    for name in USUAL_NAMES:
        if name in servers:
            return _adapt(servers[name], origin)
    if len({id(server) for server in servers.values()}) > 1:
        raise LoadError(f"{origin} has several servers{_offer(servers, origin)}")
    if not servers:
        raise LoadError(f"{origin} has no server at its top level: it needs a line such as server = callboard.Server('name')")
    return _adapt(next(iter(servers.values())), origin)


def _servers(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Servers and handlers; where there are none, classes of handlers that were written there."""
    found = {name: value for name, value in namespace.items() if isinstance(value, Server) or is_handler(value)}
    made = {name: value for name, value in found.items() if not isinstance(value, type)}
    return made or {name: value for name, value in found.items() if value.__module__ == namespace.get("__name__")}


def _offer(servers: Mapping[str, Any], origin: str) -> str:
    return f"; say which: {' or '.join(f'{origin}:{name}' for name in servers)}" if servers else ""
