"""What to think of a deployment: an inventory in, findings out. Pure: it reads data, and decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from callboard.inventory import HttpFacts, Inventory, PartFacts

__all__ = ["SEVERITIES", "Finding", "Severity", "examine"]

Severity = Literal["ok", "note", "warning", "danger"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "danger")
"""From the least to the worst."""
# Names that a sentence lists; more are counted.
_NAMED = 5
# Hosts whose pages nobody on the way can change.
_OWN_PAGES = ("http://localhost", "http://127.0.0.1", "http://[::1]")
_MIN_WORKERS = 2


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is well, or isn't.

    Attributes:
        id: Names the kind of finding; it stays the same from version to version.
        severity: `ok`: a protection is on. `note`: worth knowing. `warning`: likely a mistake. `danger`: strangers can do harm now.
        text: What is so, and what follows from it.
        setting: What changes it; empty where nothing has to.
        parts: Names of the components that it is about.
    """

    id: str
    severity: Severity
    text: str
    setting: str = ""
    parts: tuple[str, ...] = ()


Rule = Callable[[Inventory, int], Iterator[Finding]]


def examine(inventory: Inventory, *, workers: int = 1) -> list[Finding]:
    """Judge a deployment.

    Args:
        inventory: What there is.
        workers: Processes that serve it, as far as the environment says (`WEB_CONCURRENCY`).

    Returns:
        The findings, the worst first; within a severity in the order of the rules.
    """
    found = [finding for rule in _RULES for finding in rule(inventory, workers)]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _judge_reach(it: Inventory, _workers: int) -> Iterator[Finding]:
    """Who gets to the endpoint at all."""
    http = it.http
    if http.exposure == "remote" and not (http.resource or "").startswith("https:"):
        text = "Plain HTTP: credentials, session ids and all else can be read and changed on the way, unless something in front encrypts."
        yield Finding(id="unencrypted", severity="note", text=text, setting="TLS in front; resource= with https says so")
    if http.auth:
        yield Finding(id="auth", severity="ok", text="Whoever has no good credential gets 401.")
        return
    unheeded = " principal= tells who asks, and refuses nobody." if http.names_callers else ""
    if http.exposure == "remote":
        text = f"Other machines are let in, and nobody asks who calls: whoever reaches the port may call every tool.{unheeded}"
        yield Finding(id="open-to-everybody", severity="danger", text=text, setting="auth=, or allow_remote=False (and no --host)")
    elif http.exposure == "proxied":
        text = f"hosts= has names of other machines, so that a proxy seems to stand in front; whoever it lets through may call every tool.{unheeded}"
        yield Finding(id="open-behind-a-proxy", severity="warning", text=text, setting="auth=; Upstream(...) where the proxy authenticates")
    else:
        yield Finding(id="loopback", severity="ok", text="Only programs of its own machine get in.")
        text = f"Every program and every user of this machine may call every tool.{unheeded}"
        yield Finding(id="open-to-this-machine", severity="note", text=text, setting="auth=BearerTokens(...), or serve stdio")


def _judge_pages(it: Inventory, _workers: int) -> Iterator[Finding]:
    """DNS rebinding, and web pages that call."""
    http = it.http
    if "*" in http.hosts:
        text = "Host may be anything, so that a web page can get here by a name of its own (DNS rebinding), unless a proxy looks at it."
        severity: Severity = "note" if http.auth else "warning"
        yield Finding(id="any-host", severity=severity, text=text, setting="hosts=[the names that clients use]")
    else:
        yield Finding(id="hosts", severity="ok", text=f"Host must be one of {_list(http.hosts)}{_or_address(http)} (DNS rebinding).")
    if not http.origins:
        yield Finding(id="origins", severity="ok", text="Pages of other web origins are refused.")
        if http.cors:
            yield Finding(
                id="cors-for-nobody",
                severity="note",
                text="cors=True answers the origins that are listed; there are none.",
                setting="origins=",
            )
        return
    plain = [origin for origin in http.origins if origin.startswith("http://") and not origin.startswith(_OWN_PAGES)]
    if plain:
        text = f"Pages of {_list(plain)} come unencrypted: whoever is on the way can change what they do here."
        yield Finding(id="unencrypted-origin", severity="warning", text=text, setting="origins= with https")
    if not http.auth:
        text = f"Pages of {_list(http.origins)} may call every tool, whoever looks at them."
        yield Finding(id="open-to-pages", severity="warning", text=text, setting="auth=")


def _judge_auth(it: Inventory, _workers: int) -> Iterator[Finding]:
    """What finds out who asks."""
    http = it.http
    kinds = [verifier.kind for verifier in http.auth]
    if "Upstream" in kinds:
        text = "Upstream takes what a middleware in front established: who reaches this port past it must not be able to say who they are."
        severity: Severity = "warning" if http.exposure == "remote" else "note"
        yield Finding(id="upstream", severity=severity, text=text, setting="bind to loopback, or let the middleware verify a signature")
    static = [kind for kind in kinds if kind in {"ApiKeys", "BearerTokens"}]
    if static:
        text = f"{_list(static)}: these secrets don't end by themselves, and whoever has one is its owner."
        yield Finding(id="lasting-secrets", severity="note", text=text, setting="replace them now and then, or use JWT(...)")
    if http.auth and not http.metadata and not static and "Upstream" not in kinds:
        text = "Clients can't find out where to log in: no verifier names an authorization server."
        yield Finding(id="no-metadata", severity="note", text=text, setting="issuers of the verifier, resource=")
    if http.metadata:
        yield Finding(id="metadata", severity="ok", text=f"Clients learn where to log in, at {_list(http.metadata)}.")
    if http.published is False:
        text = "The application around it does not serve the documents that tell clients where to log in at its root."
        yield Finding(
            id="metadata-hidden", severity="warning", text=text, setting="app.metadata_routes as routes of the application around it"
        )


def _judge_scopes(it: Inventory, _workers: int) -> Iterator[Finding]:
    """Who may use what."""
    http = it.http
    scoped = [part.name for part in it.parts if part.scopes]
    if scoped and not http.auth and not http.names_callers:
        text = f"Nobody is granted scopes over HTTP here, so that nobody can use {_list(scoped)}."
        yield Finding(id="scopes-of-nobody", severity="note", text=text, setting="auth=", parts=tuple(scoped))
    if scoped:
        yield Finding(id="scopes", severity="ok", text=f"{len(scoped)} of {len(it.parts)} components need scopes.", parts=tuple(scoped))
    elif http.auth and not http.scopes and it.parts:
        text = "No component needs a scope: whoever has a good credential may use everything."
        yield Finding(id="no-scopes", severity="note", text=text, setting="scopes= of components, or of asgi")
    tools = [part for part in it.parts if part.kind == "tool"]
    destroys = [tool.name for tool in tools if _destroys(tool) and not tool.scopes and tool.visible is None]
    if destroys:
        text = f"Destructive, and without scopes of their own: {_list(destroys)}."
        severity: Severity = "warning" if http.auth or http.exposure != "local" else "note"
        yield Finding(
            id="destructive-for-all", severity=severity, text=text, setting="scopes= or visible= of the tool", parts=tuple(destroys)
        )
    unsaid = [tool.name for tool in tools if not tool.hints]
    if unsaid:
        text = f"No annotations, so that hosts take them for destructive and ask their users every time: {_list(unsaid)}."
        setting = "annotations=ToolAnnotations(read_only_hint=True), ..."
        yield Finding(id="no-annotations", severity="note", text=text, setting=setting, parts=tuple(unsaid))


def _judge_limits(it: Inventory, _workers: int) -> Iterator[Finding]:
    """How much of it a stranger can use up."""
    http, limits = it.http, it.http.limits
    counted = [part.name for part in it.parts if part.rate]
    if limits.get("address_rate") is not None or limits.get("message_rate") is not None:
        yield Finding(id="rates", severity="ok", text="Requests are counted, and refused past a rate.", parts=tuple(counted))
    elif http.exposure != "local":
        text = f"One client may call as often as it likes{f', but for {_list(counted)}' if counted else ''}."
        setting = "limits=Limits(address_rate=PER_ADDRESS, message_rate=PER_PRINCIPAL), rate= of components"
        yield Finding(id="no-rates", severity="note", text=text, setting=setting)
    if http.raised:
        yield Finding(
            id="raised-limits", severity="note", text=f"Above their defaults: {_list(http.raised, len(http.raised))}.", setting="limits="
        )
    else:
        yield Finding(id="limits", severity="ok", text="Sizes, counts and times have limits, none above its default.")
    endless = [part.name for part in it.parts if part.kind == "tool" and part.timeout is None and part.task != "always"]
    if endless:
        text = f"A call may take as long as its client waits: {_list(endless)}."
        yield Finding(id="no-timeout", severity="note", text=text, setting="timeout= of the tool", parts=tuple(endless))
    matched = [f"{part.name} ({', '.join(part.patterns)})" for part in it.parts if part.patterns]
    if matched:
        text = f"Texts of any length are held to a pattern of Python's re, which may take seconds for a few characters: {_list(matched)}."
        setting = "max_length beside the pattern, a pattern that can't backtrack, or pydantic's Field(pattern=...)"
        yield Finding(
            id="patterns", severity="note", text=text, setting=setting, parts=tuple(part.name for part in it.parts if part.patterns)
        )
    if http.keep_alive is None:
        text = "Silent streams are not kept alive: proxies cut them off, and clients that are gone stay unnoticed."
        yield Finding(id="no-keep-alive", severity="note", text=text, setting="keep_alive=15")


def _judge_server(it: Inventory, workers: int) -> Iterator[Finding]:
    """What the server itself gives away."""
    server, http = it.server, it.http
    if server.mask_errors:
        yield Finding(id="masked", severity="ok", text="Texts of unexpected exceptions stay in the log; clients get an id.")
    else:
        severity: Severity = "warning" if http.exposure == "local" else "danger"
        text = "Texts of unexpected exceptions go to clients, with whatever is in them: addresses, queries, secrets."
        yield Finding(id="unmasked", severity=severity, text=text, setting="mask_errors=True")
    if not server.strict_input:
        text = "Arguments that a tool doesn't take are passed over instead of refused."
        yield Finding(id="loose-input", severity="note", text=text, setting="strict_input=True")
    if server.keys == "random":
        several = workers >= _MIN_WORKERS
        text = (
            "What clients keep between rounds is sealed with a key of this process: after a restart, or in another process, it is refused."
        )
        yield Finding(
            id="random-keys", severity="warning" if several else "note", text=text, setting="Server(keys=[...]), from a secret store"
        )
    elif server.keys == "store":
        text = "What clients keep between rounds is sealed with a key that the shared store made: whoever reads the store can make such things."
        yield Finding(id="store-keys", severity="note", text=text, setting="Server(keys=[...]), from a secret store")
    elif server.keys == "none":
        text = "keys=() and no key given: calls that ask their client fail."
        yield Finding(id="no-keys", severity="note", text=text, setting="Server(keys=[...])")
    else:
        yield Finding(id="keys", severity="ok", text="What clients keep between rounds is sealed with keys of yours.")
    if server.is_handler:
        text = "A handler answers by itself: who may use what is up to its callbacks, and is not in the table."
        yield Finding(id="handler", severity="note", text=text)
    if server.providers:
        text = f"What is given for each request anew is not in the table: {_list(server.providers)}."
        yield Finding(id="providers", severity="note", text=text)


def _judge_sessions(it: Inventory, _workers: int) -> Iterator[Finding]:
    """Clients of older protocols, and what is looked at."""
    http = it.http
    sessions = http.sessions or {}
    if sessions.get("sessions") == "auto":
        if http.auth or http.names_callers:
            yield Finding(
                id="owned-sessions", severity="ok", text="A session of a 2025 client is its principal's; to others it does not exist."
            )
        elif http.exposure != "local":
            text = "Nobody knows who asks, so that a session's id is a password: whoever has it has the session."
            yield Finding(id="ownerless-sessions", severity="note", text=text, setting='auth=, or sessions="off"')
        if sessions.get("session_id") != "128 random bits":
            text = "Ids of sessions are made by the program: they must be as hard to guess as 128 random bits."
            yield Finding(id="own-session-ids", severity="note", text=text, setting="leave session_id= out")
    if http.sse_path is not None:
        text = f"HTTP+SSE, the transport of 2024-11-05, is offered at {http.sse_path}; the protocol has deprecated it."
        yield Finding(id="old-transport", severity="note", text=text, setting="leave sse_path= out")
    if not it.is_app:
        text = "This is what `callboard run` serves. Options that the program gives to callboard.run are not seen."
        yield Finding(
            id="unseen-options", severity="note", text=text, setting="app = callboard.asgi(server, ...) at the top level of the program"
        )


_RULES: tuple[Rule, ...] = (_judge_reach, _judge_auth, _judge_pages, _judge_scopes, _judge_server, _judge_limits, _judge_sessions)


def _destroys(tool: PartFacts) -> bool:
    """Whether a tool says of itself that it may destroy something."""
    return bool(tool.hints) and tool.hints.get("destructiveHint") is True and tool.hints.get("readOnlyHint") is not True  # type: ignore[union-attr]


def _or_address(http: HttpFacts) -> str:
    return ", or an IP address" if http.exposure == "remote" else ""


def _list(names: Sequence[str], most: int = _NAMED) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
