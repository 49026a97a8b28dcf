"""The only composition root: a server, the eras it speaks, and the transport that serves it."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from urllib.parse import quote

from callboard.auth.guard import Guard
from callboard.auth.principal import LOCAL
from callboard.auth.verifier import Verifier
from callboard.core.modern import Modern
from callboard.errors import RegistrationError
from callboard.handling.handler import Served, adapt
from callboard.server.app import Server
from callboard.server.limits import DEFAULTS, Limits, refuse_moved
from callboard.server.mount import Caller
from callboard.server.signature import accepts
from callboard.transport.asgi import App
from callboard.transport.door import Door, Told
from callboard.transport.endpoint import Endpoint, Older
from callboard.transport.health import ALIVE, READY
from callboard.transport.security import LOOPBACK_HOSTS, HttpRules, is_address, is_loopback
from callboard.transport.stream import Scope
from callboard.wire.versions import LEGACY, MODERN

__all__ = [
    "LOADING",
    "Options",
    "OptionsFactory",
    "SessionOptions",
    "asgi",
    "endpoint",
    "meant_option",
    "reach",
    "refuse_while_loading",
    "static_options",
    "stdio",
]


LOADING: ContextVar[bool] = ContextVar("a program is only looked at", default=False)
"""Whether a program is being loaded by somebody who wants to look at it, and not to have it serve."""

Options: TypeAlias = Mapping[str, Any] | None
"""What functions see as `ctx.options`."""

OptionsFactory: TypeAlias = Callable[[Caller], Options | Awaitable[Options]]
"""Makes them for one session, or for one request where there are no sessions."""


class SessionOptions(TypedDict, total=False):
    """How 2025 clients are served over HTTP; each option is told of in `docs/sessions.md`.

    Attributes:
        sessions: `auto`: each client has one. `off`: every request stands alone.
        handshake: `strict`: until `notifications/initialized` nothing but `ping` is served.
        session_ttl: Seconds that a session lives while nothing happens in it (300).
        request_timeout: Seconds until a caller that has had no bytes is told that it takes too long (60).
        session_id: Makes the id of a new session; 128 random bits.
        cancel_on_disconnect: Which calls end when their connection does: `streaming` ones, `never`, `always`.
        single_stream: Whether a second GET stream is refused while one is open.
        reply_on_cancel: Whether the caller of a cancelled call is answered.
        sse_path: Where to offer HTTP+SSE, the transport of 2024-11-05, beside the endpoint; None (the default) for nowhere.
    """

    sessions: Literal["auto", "off"]
    handshake: Literal["lenient", "strict"]
    session_ttl: float
    request_timeout: float
    session_id: Callable[[], str]
    cancel_on_disconnect: Literal["streaming", "never", "always"]
    single_stream: bool
    reply_on_cancel: bool
    sse_path: str | None


def endpoint(
    server: Served,
    *,
    options: Options | OptionsFactory = None,
    instructions: str | None = None,
    versions: Sequence[str] | None = None,
    limits: Limits | None = None,
    listens: bool = True,
    logs: bool = True,
    sessions: Mapping[str, Any] | None = None,
) -> Endpoint:
    """Make a server ready for a transport.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        options: What functions see as `ctx.options`: a mapping, or over HTTP a function that makes it.
        instructions: Advice for the model in place of the server's.
        versions: Protocol versions to serve; all by default.
        limits: Bounds of all that goes on; the defaults of `Limits`.
        listens: Whether `subscriptions/listen` can work.
        logs: Whether log messages can be delivered.
        sessions: Options of sessions.

    Raises:
        RegistrationError: `server` is nothing that can be served, or an option can't work.
    """
    server = adapt(server)
    factory = _check_factory(options) if callable(options) else None
    if options is not None and factory is None and not isinstance(options, Mapping):
        raise RegistrationError(f"options must be a mapping, or a function that makes one, not {type(options).__name__}.")
    if instructions is not None and not isinstance(instructions, str):
        raise RegistrationError(f"instructions must be a str, not {instructions!r}.")
    served = _check_versions(versions)
    made = Endpoint(
        server,
        Modern(server.info, supported=served, methods=server.methods),
        versions=served,
        options=None if factory else options,
        options_factory=factory,
        instructions=instructions,
        limits=check_limits(limits),
        listens=listens,
        logs=logs,
    )
    made.older = _serve_older(made, served, sessions or {})
    return made


def _check_factory(factory: OptionsFactory) -> OptionsFactory:
    """Find out now what would fail every session."""
    if not accepts(factory, None):
        raise RegistrationError("options: the function is called with one argument, the Caller; let it take that.")
    return factory


def _check_versions(versions: Sequence[str] | None) -> tuple[str, ...]:
    """The versions to serve, newest first; the current one alone where the package was installed without the older ones."""
    known = (*MODERN, *LEGACY) if _has_legacy() else MODERN
    if versions is None:
        return known
    if isinstance(versions, str) or not versions or not set(versions) <= set(known):
        raise RegistrationError(f"versions takes a list of protocol versions out of {', '.join(known)}, not {versions!r}.")
    return tuple(version for version in known if version in versions)


def _has_legacy() -> bool:
    return importlib.util.find_spec("callboard.legacy") is not None


def meant_option(name: str, others: Collection[str] = ()) -> str:
    """What an option that isn't there may have been meant to be, else all that there are.

    Args:
        name: As it was given.
        others: Names that are there besides those of `asgi`.
    """
    if name in inspect.signature(Server).parameters:
        return f"the server does: Server(..., {name}=...)."
    own = [option for option in (*others, *inspect.signature(asgi).parameters) if option not in {"server", "sessions", "http"}]
    known = list(dict.fromkeys([*own, *SessionOptions.__annotations__]))
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known)}."


def _serve_older(made: Endpoint, served: tuple[str, ...], sessions: Mapping[str, Any]) -> Older | None:
    """What serves 2025 clients, where it is there and asked for."""
    refuse_moved(sessions)
    if unknown := sorted(sessions.keys() - SessionOptions.__annotations__.keys() - {"json_only"}):
        raise RegistrationError(f"callboard.asgi takes no {unknown[0]!r}; {meant_option(unknown[0])}")
    older = tuple(version for version in served if version in LEGACY)
    more = dict(sessions)
    sse_path = more.pop("sse_path", None)
    if not older or not _has_legacy():
        if sse_path is not None:
            raise RegistrationError("sse_path is for clients of older protocols, and none of those is served here: leave it out.")
        return None
    from callboard.legacy.http import Legacy
    from callboard.legacy.rules import Rules

    rules = Rules(versions=older, **more)
    if sse_path is None:
        return Legacy(made, rules, supported=served)
    from callboard.legacy.sse_2024 import LegacyAndSse

    return LegacyAndSse(made, rules, supported=served, path=sse_path)


def asgi(
    server: Served,
    *,
    path: str = "/mcp",
    hosts: Sequence[str] = LOOPBACK_HOSTS,
    origins: Sequence[str] = (),
    cors: bool = False,
    encodings: Sequence[str] = (),
    allow_remote: bool = False,
    limits: Limits | None = None,
    keep_alive: float | None = 15.0,
    json_only: bool = False,
    options: Options | OptionsFactory = None,
    instructions: str | None = None,
    versions: Sequence[str] | None = None,
    principal: Callable[[Scope], str | None] | None = None,
    auth: Verifier | Sequence[Verifier] | None = None,
    resource: str | None = None,
    scopes: Collection[str] = (),
    implies: Mapping[str, Collection[str]] | None = None,
    health: tuple[str, str] | None = (ALIVE, READY),
    signals: bool = True,
    **sessions: Unpack[SessionOptions],
) -> App:
    """Make an ASGI application of a server: run it alone, route to it, or mount it.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        path: Where the endpoint is when the application is not mounted.
        hosts: `Host` names that are this server's: `name`, `name:port`, `*.example.com`, or `*` (then something before it must check).
        origins: Web origins whose pages may call it.
        cors: Whether to answer CORS preflights of these origins.
        encodings: What bodies of requests may be compressed with: `gzip`, `deflate`; nothing by default (415). Inflated, a body must not have
            more than `max_body` bytes either.
        allow_remote: Whether clients of other machines may connect.
        limits: Bounds of what clients can make the server take; see `callboard.limits.Limits`.
        keep_alive: Longest silence in seconds on a stream; None for no keep-alive.
        json_only: Whether every answer is plain JSON; then there are no progress, logs, listen and GET streams.
        options: What functions see as `ctx.options`: a mapping, or a function that makes it from a `Caller` (headers, principal, scope
            state), called once for each session of a 2025 client, and for each request on the current protocol.
        instructions: Advice for the model in place of the server's.
        versions: Protocol versions to serve; all by default.
        principal: Tells from the ASGI scope who is asking, where that is known; it refuses nobody. `auth` does.
        auth: Who finds out who is asking, with every request: a verifier of `callboard.auth`, or a list of them, of which one must grant.
            Whoever sends no credential that is good here gets 401. None: whoever reaches the endpoint may call it.
        resource: The URL of the endpoint as clients know it, such as `https://mcp.example.com/mcp`: what tokens must be meant for.
        scopes: What every request must have been granted; what a component needs beyond that is its own `scopes=`.
        implies: Scope -> narrower ones that it stands for, such as `{"files": ["files:read", "files:write"]}`.
        health: Paths where everybody may ask whether the process lives, and whether work should be sent to it; None for none.
        signals: Whether SIGTERM and SIGINT, where the ASGI server handles them, begin to drain: streams end, and nobody waits for them.
        **sessions: How 2025 clients are served; see `SessionOptions`.

    Raises:
        RegistrationError: An option can't work.
    """
    _check_http(path, keep_alive, hosts=hosts, origins=origins, encodings=encodings)
    sse_path = _check_sse_path(sessions.get("sse_path"), path)
    limits = check_limits(limits)
    rules = HttpRules(
        hosts=tuple(host.lower() for host in hosts),
        origins=tuple(origin.lower() for origin in origins),
        codings=tuple(encodings),
        allow_remote=allow_remote,
        max_body=limits.max_body,
        max_headers=limits.max_headers,
        single=_credential_headers(auth),
    )
    made = endpoint(
        server,
        options=options,
        instructions=instructions,
        versions=versions,
        limits=limits,
        listens=not json_only,
        logs=not json_only,
        sessions={**sessions, "sse_path": sse_path, "json_only": json_only},
    )
    door = _make_door(made, principal, auth, resource=resource, scopes=scopes, implies=implies)
    return App(
        made,
        rules,
        path=path,
        keep_alive=keep_alive,
        json_only=json_only,
        cors=cors,
        door=door,
        sse_path=sse_path,
        health=health,
        signals=signals,
    )


def _check_http(path: Any, keep_alive: Any, **lists: Any) -> None:
    """Refuse what can't be.

    Raises:
        RegistrationError: An option can't work.
    """
    for name, value in lists.items():
        if isinstance(value, str):
            raise RegistrationError(f"{name} takes a list, not a str: write {name}=[{value!r}].")
    if not isinstance(path, str):
        raise RegistrationError(f"path is a text like '/mcp', not {path!r}.")
    if keep_alive is not None and keep_alive <= 0:
        raise RegistrationError(f"keep_alive must be more than 0 seconds, not {keep_alive:g}; None turns it off.")


def check_limits(limits: Limits | None) -> Limits:
    """The limits that hold.

    Raises:
        RegistrationError: They are none.
    """
    if limits is not None and not isinstance(limits, Limits):
        raise RegistrationError(f"limits takes a callboard.limits.Limits, like Limits(max_body=1 << 20), not {limits!r}.")
    return limits or DEFAULTS


def _make_door(
    made: Endpoint, principal: Callable[[Scope], str | None] | None, auth: Verifier | Sequence[Verifier] | None, **options: Any
) -> Door | None:
    """What stands before an endpoint, of the options that say so."""
    if auth is None:
        if given := [option for option, value in options.items() if value]:
            raise RegistrationError(f"{given[0]}= says what tokens must hold, but nobody looks at them: add auth=, or leave it out.")
        return None if principal is None else Told(principal)
    if principal is not None:
        raise RegistrationError("auth= finds out who asks; leave principal= out. What middleware established is auth=Upstream(...).")
    verifiers: Any = list(auth) if isinstance(auth, list | tuple) else [auth]  # Guard checks them
    guard = Guard(verifiers, name=made.server.name, **options)
    made.challenge = guard.challenge
    return guard


def _credential_headers(auth: Any) -> frozenset[bytes]:
    """Headers that carry a credential; of two of a kind nobody can tell which one a proxy in front has looked at."""
    return frozenset(verifier.header for verifier in (auth if isinstance(auth, list | tuple) else [auth]) if isinstance(verifier, Verifier))


def _check_sse_path(sse_path: Any, path: str) -> str | None:
    """The path without a slash at its end; it must be another than the endpoint's, and hold nothing that a URI would have to escape."""
    if sse_path is None:
        return None
    if not isinstance(sse_path, str) or not sse_path.strip("/") or quote(sse_path) != sse_path:
        raise RegistrationError(f"sse_path is a path like '/sse', not {sse_path!r}.")
    clean = "/" + sse_path.strip("/")
    if f"/{path.strip('/')}/".startswith(clean + "/"):
        raise RegistrationError(f"sse_path {sse_path!r} would hide the endpoint at {path!r}: give each a path of its own.")
    return clean


async def stdio(
    server: Served, *, options: Mapping[str, Any] | None = None, limits: Limits | None = None, principal: str | None = LOCAL
) -> None:
    """Serve one client over stdin and stdout until stdin ends.

    File descriptor 1 belongs to the protocol from here on: prints, logs and child processes write to stderr instead.

    Args:
        server: The server, or a handler: an object, its class, or a function that makes one.
        options: What functions see as `ctx.options`.
        limits: Bounds of what the client can make the server take; see `callboard.limits.Limits`.
        principal: Who the client is, a `Principal` with scopes, for example. By default it is `local`, whoever started this process, who has
            every scope; None for nobody with a name.

    Raises:
        RegistrationError: An option can't work.
    """
    from callboard.transport.stdio import serve

    refuse_while_loading("callboard.stdio")
    if principal is not None and (not isinstance(principal, str) or not principal):
        raise RegistrationError(f"callboard.stdio: principal is a name, like Principal('ada', ['read']), or None, not {principal!r}.")
    await serve(endpoint(server, options=static_options(options), limits=limits), principal=principal)


def reach(host: str) -> dict[str, Any]:
    """Options of `asgi` that an address to listen on implies.

    Args:
        host: The address, or a name.
    """
    is_local = host == "localhost" or (is_address(host) and is_loopback(host))
    names = dict.fromkeys((*LOOPBACK_HOSTS, f"[{host}]" if ":" in host else host))
    return {"allow_remote": not is_local, "hosts": tuple(names)}


def refuse_while_loading(what: str) -> None:
    """Whoever loads a program would wait for ever, or serve what was only to be looked at."""
    if LOADING.get():
        raise RegistrationError(f'{what} serves while the program is being loaded: put it under `if __name__ == "__main__":`.')


def static_options(options: Any) -> Options:
    """Options where there is no request that they could depend on."""
    if callable(options):
        raise RegistrationError("options: a function that makes them needs a request to look at, which only HTTP has; pass a mapping.")
    return options  # type: ignore[no-any-return] # `endpoint` checks it
