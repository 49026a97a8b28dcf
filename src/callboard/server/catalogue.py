"""What a server has for one request, where that depends on who asks: what is visible, what providers give, what repositories hold.

What a request does not find is unknown to it in the same words, whether it is hidden or was never there (SA21).

A list goes: components in the order they were added, those of providers, whole lists of repositories; then repositories whose lists come in
pages of their own, one after the other.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from callboard.core.outcome import CacheHint
from callboard.core.uri import UriTemplate
from callboard.errors import Fail, Reason
from callboard.server.component import Repository, Resource, Template
from callboard.server.context import Context
from callboard.server.cursor import name_for, read_cursor, write_cursor
from callboard.server.policy import sees, strictest
from callboard.server.registry import LIST_KEYS, Kind, Provider, Registry
from callboard.server.workers import is_imposed
from callboard.wire.jsonrpc import encode

__all__ = [
    "ask_provider",
    "find",
    "find_readable",
    "find_watched",
    "hides",
    "list_page",
    "tells_at_once",
    "tells_of",
    "unknown_prompt",
    "unknown_tool",
]

Readable: TypeAlias = tuple[Resource | Repository, None] | tuple[Template, dict[str, Any]]
_log = logging.getLogger("callboard")


def unknown_tool(name: str) -> Fail:
    """What a request for a tool that is not there comes to."""
    return Fail(Reason.UNKNOWN_TOOL, f"Unknown tool {name[:100]!r}.", {"name": name})


def unknown_prompt(name: str) -> Fail:
    """What a request for a prompt that is not there comes to."""
    return Fail(Reason.UNKNOWN_PROMPT, f"Unknown prompt {name[:100]!r}.", {"name": name})


async def find(registry: Registry, kind: Kind, key: str, ctx: Context) -> tuple[Any, Registry] | None:
    """A component by its name, and the registry that it is in; None when there is none for this request."""
    for home in await _homes(registry, ctx):
        part = home.shelf(kind).get(key)
        if part is not None and await sees(part, ctx):
            return part, home
    return None


async def find_readable(registry: Registry, uri: str, ctx: Context) -> Readable | None:
    """What is read at a URI, and the values of its variables; None when there is nothing for this request."""
    for home in await _homes(registry, ctx):
        resource = home.resources.get(uri)
        if resource is not None and await sees(resource, ctx):
            return resource, None
        for template, values in home.find_templates(uri):
            if await sees(template, ctx):
                return template, values
        for repository in home.find_repositories(uri):
            if await sees(repository, ctx):
                return repository, None
    return None


async def find_watched(registry: Registry, uri: str, ctx: Context) -> UriTemplate | str | None:
    """What a client that subscribes to a URI hears of: the URI, or all that fit when it is one of our templates; None for nothing."""
    found = await find(registry, "templates", uri, ctx)
    if found is not None:
        template: Template = found[0]
        return None if template.gate is not None and template.gate.refuse(ctx) else template.uri_template
    readable = await find_readable(registry, uri, ctx)
    if readable is None or (readable[0].gate is not None and readable[0].gate.refuse(ctx)):
        return None
    return uri


def tells_at_once(registry: Registry, uri: str, ctx: Context) -> bool | None:
    """Whether a client that asked for a template hears of a URI that fits it; None where an author has to be asked: see `tells_of`."""
    if registry.providers:
        return None
    first = _first(registry, uri)
    if first is None:
        return True  # what has gone is nobody's secret
    return None if first.visible is not None else first.gate is None or first.gate.refuse(ctx) is None


async def tells_of(registry: Registry, uri: str, ctx: Context) -> bool:
    """Whether a client that asked for a template hears of a URI that fits it.

    Not where what comes first there is hidden, or needs a scope that it lacks: then the URI itself may be a secret (SA21).
    """
    for home in await _homes(registry, ctx):
        first = _first(home, uri)
        if first is not None:
            return await sees(first, ctx) and (first.gate is None or first.gate.refuse(ctx) is None)
    return False


def _first(home: Registry, uri: str) -> Any:
    """What is asked for a URI; None where nothing is there."""
    template = next(home.find_templates(uri), None)
    return home.resources.get(uri) or (None if template is None else template[0]) or next(home.find_repositories(uri), None)


async def hides(registry: Registry, uri: str, ctx: Context) -> bool:
    """Whether there is something at a URI that this request must not know of."""
    is_known = uri in registry.resources or any(registry.find_templates(uri)) or any(registry.find_repositories(uri))
    return is_known and await find_watched(registry, uri, ctx) is None


async def list_page(registry: Registry, kind: Kind, cursor: str | None, ctx: Context) -> tuple[dict[str, Any], CacheHint]:
    """One list page as the fields of a result, and how long the client may keep it: for this caller alone.

    Raises:
        Fail: The cursor is none of ours (CURSOR).
    """
    homes = await _homes(registry, ctx)
    parts: dict[str, Any] = {}
    for home in homes:
        for part in list(home.shelf(kind).values()):
            if part.key not in parts and await sees(part, ctx):
                parts[part.key] = part
    listing: list[bytes] = [part.definition for part in parts.values()]
    paged: list[Repository] = []
    if kind == "resources":
        for repository in await _listed(homes, ctx):
            if repository.is_paged:
                paged.append(repository)
            else:
                listing += (await _ask_repository(repository, None, ctx))[0]
    items, following = await _cut(kind, cursor, listing, paged, registry.page_size, ctx)
    page: dict[str, Any] = {LIST_KEYS[kind]: [Raw(item) for item in items]}
    if following is not None:
        page["nextCursor"] = following
    hint = strictest(part.listing or registry.cache for part in parts.values()) or registry.cache
    return page, CacheHint(hint.ttl_ms, "private")


async def ask_provider(provider: Provider, ctx: Context) -> Registry:
    """What a provider gives for a request; it is asked once."""
    if ctx.provided is None:
        ctx.provided = {}
    given: Registry | None = ctx.provided.get(provider)
    if given is None:
        given = ctx.provided[provider] = await provider.open(ctx)
    return given


async def _homes(registry: Registry, ctx: Context) -> list[Registry]:
    return [registry, *[await ask_provider(provider, ctx) for provider in registry.providers]]


async def _listed(homes: list[Registry], ctx: Context) -> list[Repository]:
    found = [repository for home in homes for repository in list(home.repositories.values()) if repository.is_listed]
    return [repository for repository in found if await sees(repository, ctx)]


async def _ask_repository(repository: Repository, cursor: str | None, ctx: Context) -> tuple[Sequence[bytes], str | None]:
    """A page of a repository's list; one that fails has nothing in it, and the rest of the list is not harmed."""
    try:
        return await repository.page(cursor, ctx)
    except BaseException as error:  # user code
        if is_imposed(error) or isinstance(error, Fail):
            raise
        _log.exception("The list of %s failed, so that its resources are in no list.", repository.source)
        return (), None


async def _cut(
    kind: Kind, cursor: str | None, listing: list[bytes], paged: list[Repository], size: int, ctx: Context
) -> tuple[list[bytes], str | None]:
    """The items of a page, and the cursor of the next."""
    name = name_for(kind, ctx.principal)
    place = None if cursor is None or kind != "resources" else _read_place(name, cursor)
    items: list[bytes] = []
    if place is None:
        offset = read_cursor(name, cursor)
        items = listing[offset : offset + size]
        if offset + size < len(listing):
            return items, write_cursor(name, offset + size)
        place = 0, None
    index, inner = place
    asked = 0  # a repository may give empty pages for ever
    while index < len(paged) and len(items) < size and asked < size:
        entries, following = await _ask_repository(paged[index], inner, ctx)
        items += entries
        index, inner = (index + 1, None) if following is None else (index, following)
        asked += 1
    return items, _write_place(name, index, inner) if index < len(paged) else None


def _write_place(name: str, index: int, inner: str | None) -> str:
    return base64.urlsafe_b64encode(encode([index, inner, name])).decode()


def _read_place(name: str, cursor: str) -> tuple[int, str | None] | None:
    """Which repository a cursor of this list stands in, and its own cursor there; None when it stands before all of them."""
    try:
        decoded = base64.b64decode(cursor, altchars=b"-_", validate=True)
        index, inner, owner = msgspec.json.decode(decoded, type=tuple[int, str | None, str])
    except (binascii.Error, ValueError):
        return None
    if index < 0 or owner != name:
        raise Fail(Reason.CURSOR)
    return index, inner
