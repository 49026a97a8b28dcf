"""What a program exposes, as data: its server, how it is put up over HTTP, and each component with who may use it.

Nothing of the author's runs: no predicate, provider, list, lifespan or verifier. Nothing secret is in it: of keys and credentials there is how
many, never which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from callboard.auth.guard import Guard
from callboard.auth.verifier import Verifier
from callboard.handling.loop import HandlerServer
from callboard.server.app import Server
from callboard.server.component import Completer, Prompt, Repository, RepositoryTemplate, Resource, Template, Tool
from callboard.server.limits import Limits, read_rate
from callboard.server.workers import fair_share
from callboard.transport.asgi import App
from callboard.transport.door import Told
from callboard.transport.endpoint import Older
from callboard.transport.security import LOOPBACK_HOSTS

__all__ = ["Exposure", "HttpFacts", "Inventory", "PartFacts", "ServerFacts", "VerifierFacts", "take_inventory"]

_KINDS = {"tools": "tool", "resources": "resource", "templates": "template", "prompts": "prompt", "repositories": "repository"}
# Subschemas hang below these; what else a schema holds may be anything.
_BELOW = ("properties", "$defs", "definitions", "patternProperties")
_BESIDE = ("items", "additionalProperties", "anyOf", "oneOf", "allOf", "prefixItems", "not", "if", "then", "else")
Exposure = Literal["local", "proxied", "remote"]


class PartFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A component, and who may use it.

    Attributes:
        kind: `tool`, `resource`, `template`, `repository` or `prompt`.
        name: Its name; URI, URI template or prefix of a resource.
        place: Its function and where that stands.
        scopes: What its callers must have been granted.
        visible: Name of the function that hides it from some; None where everybody sees it.
        rate: Calls of one principal in so many seconds; None for no limit.
        timeout: Seconds; None for no limit.
        concurrency: Calls at once; None for no limit.
        task: `never`, `allowed` or `always`; None for what is no tool.
        hints: Its annotations as the protocol spells them; None where it has none.
        patterns: Its arguments, of any length, that are held to a regular expression of Python's.
    """

    kind: str
    name: str
    place: str
    scopes: tuple[str, ...] = ()
    visible: str | None = None
    rate: tuple[int, float] | None = None
    timeout: float | None = None
    concurrency: int | None = None
    task: str | None = None
    hints: dict[str, Any] | None = None
    patterns: tuple[str, ...] = ()


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server, whatever transport it is served by.

    Attributes:
        name: Its name.
        version: Its version.
        is_handler: Whether callbacks answer, so that nobody knows beforehand what there is.
        mask_errors: Whether texts of unexpected exceptions are kept from clients.
        strict_input: Whether arguments that a function doesn't take are faults.
        keys: What seals what clients keep: `given`, `random` (of this process), `store` (made by the shared store), or `none`.
        store: What keeps sessions and all else that outlasts a request, without a password.
        single_use: Whether that is taken once only.
        providers: What is asked for more components with each request.
        extensions: Extensions of the protocol that it offers.
    """

    name: str
    version: str
    is_handler: bool
    mask_errors: bool
    strict_input: bool
    keys: Literal["given", "random", "store", "none"]
    store: str
    single_use: bool
    providers: tuple[str, ...]
    extensions: tuple[str, ...]


class VerifierFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What finds out who asks.

    Attributes:
        kind: Name of its class.
        header: Header of the credential.
        issuers: Authorization servers.
        facts: What else it tells of itself; nothing of it is secret.
    """

    kind: str
    header: str
    issuers: tuple[str, ...]
    facts: dict[str, Any]


class HttpFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is put up over HTTP.

    Attributes:
        path: Path of the endpoint.
        exposure: Who can reach it: `local`, programs of its machine; `proxied`, whoever a proxy lets through, as `hosts` has names of other
            machines; `remote`, everybody.
        hosts: Names that `Host` may have.
        origins: Web origins that may call.
        cors: Whether their preflights are answered.
        codings: What bodies may be compressed with.
        auth: What finds out who asks; nobody is let in without it, where there is any.
        names_callers: Whether `principal=` tells who asks, which refuses nobody.
        resource: What tokens must be meant for.
        scopes: What every request needs.
        metadata: Paths of the documents that say how it is protected.
        versions: Protocol versions.
        sessions: Options of sessions of 2025 clients; None where those are not served.
        sse_path: Where the transport of 2024-11-05 is; None for nowhere.
        json_only: Whether there are no streams.
        keep_alive: Longest silence on a stream in seconds.
        limits: Every limit by name; one that follows from another as the number that it comes to.
        raised: Those that are above their defaults.
        hosted: Whether it is part of another ASGI application.
        published: Whether that application serves the documents at its root; None where it need not.
    """

    path: str
    exposure: Exposure
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    cors: bool
    codings: tuple[str, ...]
    auth: tuple[VerifierFacts, ...]
    names_callers: bool
    resource: str | None
    scopes: tuple[str, ...]
    metadata: tuple[str, ...]
    versions: tuple[str, ...]
    sessions: dict[str, Any] | None
    sse_path: str | None
    json_only: bool
    keep_alive: float | None
    limits: dict[str, Any]
    raised: tuple[str, ...]
    hosted: bool = False
    published: bool | None = None


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to see of a program.

    Attributes:
        server: The server.
        http: How it is put up over HTTP.
        parts: Its components, in the order of its lists.
        is_app: Whether `http` is the program's own application; else it is what `callboard run` makes of the server.
    """

    server: ServerFacts
    http: HttpFacts
    parts: tuple[PartFacts, ...]
    is_app: bool


def take_inventory(app: App, *, is_app: bool, hosted: bool = False, routed: Iterable[str] = ()) -> Inventory:
    """Look at an application.

    Args:
        app: What `callboard.asgi` made.
        is_app: Whether the program made it.
        hosted: Whether it is part of another ASGI application.
        routed: Paths that this one serves by itself.
    """
    server: Server = app.endpoint.server
    return Inventory(
        server=_look_at_server(server),
        http=_look_at_app(app, hosted=hosted, routed=frozenset(routed)),
        parts=tuple(_look_at_part(part) for part in server.registry if not isinstance(part, Completer | RepositoryTemplate)),
        is_app=is_app,
    )


def _look_at_server(server: Server) -> ServerFacts:
    seals = server.seals
    return ServerFacts(
        name=server.name,
        version=server.info.version,
        is_handler=isinstance(server, HandlerServer),
        mask_errors=server.mask_errors,
        strict_input=server.strict_input,
        keys=_name_keys(server),
        store=repr(server.store) if server.store.shared else "this process",
        single_use=seals.single_use,
        providers=tuple(provider.source for provider in server.registry.providers),
        extensions=tuple(server.extensions),
    )


def _name_keys(server: Server) -> Literal["given", "random", "store", "none"]:
    if not server.seals.is_random:
        return "given" if server.seals.has_keys else "none"
    return "store" if server.store.shared else "random"


def _look_at_app(app: App, *, hosted: bool, routed: frozenset[str]) -> HttpFacts:
    door, rules, limits = app.door, app.rules, app.endpoint.limits
    guard = door if isinstance(door, Guard) else None
    metadata = tuple(path for path, _ in app.metadata_routes)
    older = app.endpoint.older
    return HttpFacts(
        path=app.path,
        exposure=_judge_exposure(rules.hosts, allow_remote=rules.allow_remote),
        hosts=rules.hosts,
        origins=rules.origins,
        cors=app.cors,
        codings=rules.codings,
        auth=tuple(_look_at_verifier(verifier) for verifier in guard.verifiers) if guard else (),
        names_callers=isinstance(door, Told),
        resource=guard.resource if guard else None,
        scopes=tuple(sorted(guard.scopes)) if guard else (),
        metadata=metadata,
        versions=app.endpoint.versions,
        sessions=None if older is None else _look_at_sessions(older),
        sse_path=app.sse_path,
        json_only=app.json_only,
        keep_alive=app.keep_alive,
        limits=_settle(limits),
        raised=_find_raised(limits),
        hosted=hosted,
        published=not routed.isdisjoint(metadata) if hosted and metadata else None,
    )


def _judge_exposure(hosts: Iterable[str], *, allow_remote: bool) -> Exposure:
    if allow_remote:
        return "remote"
    return "local" if set(hosts) <= set(LOOPBACK_HOSTS) else "proxied"


def _look_at_verifier(verifier: Verifier) -> VerifierFacts:
    header = verifier.header.decode("latin-1")
    return VerifierFacts(kind=type(verifier).__name__, header=header, issuers=tuple(verifier.issuers), facts=verifier.facts())


def _look_at_sessions(older: Older) -> dict[str, Any]:
    facts = dict(older.facts())
    facts.pop("versions", None)
    return facts


def _settle(limits: Limits) -> dict[str, Any]:
    found = msgspec.structs.asdict(limits)
    if limits.threads_per_principal is None:  # to people, "none" is no limit at all
        found["threads_per_principal"] = fair_share(limits.threads)
    return found


def _find_raised(limits: Limits) -> tuple[str, ...]:
    """Limits that let more through than they do by default."""
    usual = msgspec.structs.asdict(Limits())
    found = []
    for name, value in msgspec.structs.asdict(limits).items():
        default = usual[name]
        if value == default or default is None or name == "uncounted_methods":
            continue
        if value is None or (_per_second(value) > _per_second(default) if name.endswith("_rate") else value > default):
            found.append(name)
    return tuple(found)


def _per_second(rate: Any) -> float:
    calls, seconds = read_rate(rate, "Limits")
    return calls / seconds


def _look_at_part(part: Tool | Prompt | Resource | Template | Repository) -> PartFacts:
    definition: dict[str, Any] = {} if isinstance(part, Repository) else msgspec.json.decode(part.definition)
    gate = part.gate
    facts = PartFacts(
        kind=_KINDS[part.kind],
        name=part.key,
        place=part.source,
        scopes=() if gate is None else tuple(sorted(gate.scopes)),
        visible=_name_predicate(part),
        rate=None if gate is None else gate.rate,
    )
    if not isinstance(part, Tool):
        return facts
    return msgspec.structs.replace(
        facts,
        timeout=part.policy.timeout,
        concurrency=part.policy.concurrency,
        task=part.policy.task,
        hints=definition.get("annotations"),
        patterns=tuple(_find_patterns(definition["inputSchema"])) if _own(part).matches_with_re else (),
    )


def _own(part: Any) -> Any:
    """A component; of a stand-in, on a server that has another one mounted, the one that it stands for."""
    while hasattr(part, "inner"):
        part = part.inner
    return part


def _name_predicate(part: Any) -> str | None:
    visible = _own(part).visible
    while isinstance(visible, partial):
        visible = visible.func
    return None if visible is None else str(getattr(visible, "__qualname__", type(visible).__name__))


def _find_patterns(schema: Any, where: str = "") -> Iterator[str]:
    """Where a schema holds texts of any length to a pattern."""
    if not isinstance(schema, Mapping):
        for each in schema if isinstance(schema, list) else ():
            yield from _find_patterns(each, where)
        return
    if "pattern" in schema and "maxLength" not in schema:
        yield where or "(all)"
    for key in _BELOW:
        for name, each in (schema.get(key) or {}).items():
            yield from _find_patterns(each, where or name)
    for key in _BESIDE:
        yield from _find_patterns(schema.get(key), where)
