"""The components of a server by name, and their list pages as encoded bytes.

A page is built when it is first asked for and kept until a component comes or goes: a list costs a look-up, however many there are. Where
what there is depends on who asks (`varying`), `catalogue` makes the page for each request.

Registries of mounted servers hand on what comes and goes: a look-up costs the same however deep a component is mounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol, TypeAlias

from callboard.core.outcome import CacheHint
from callboard.errors import RegistrationError
from callboard.server.component import Completer, Component, Prompt, Repository, RepositoryTemplate, Resource, Template, Tool
from callboard.server.context import Context
from callboard.server.cursor import cut_page, read_cursor
from callboard.server.policy import strictest

__all__ = ["LIST_KEYS", "Kind", "Mounting", "Provider", "Registry"]

Kind: TypeAlias = Literal["tools", "resources", "templates", "prompts", "repositories"]
# Key of the list in the result of each kind's list method. What is in a repository stands among the resources.
LIST_KEYS: dict[Kind, str] = {"tools": "tools", "resources": "resources", "templates": "resourceTemplates", "prompts": "prompts"}
# What a client that subscribed hears about: templates are part of the resources.
_TOPIC: dict[Kind, str] = {
    "tools": "tools",
    "resources": "resources",
    "templates": "resources",
    "prompts": "prompts",
    "repositories": "resources",
}
_NO_CACHE = CacheHint()


def _tell_nobody(_topic: str) -> None:
    """Nobody hears of what is there for one request."""


class Provider(Protocol):
    """Gives more components, for each request anew.

    Attributes:
        source: Name and place of its function.
    """

    source: str

    async def open(self, ctx: Context) -> Registry:
        """What it gives for a request; nothing when it fails."""
        ...


class Mounting(Protocol):
    """What makes the components of one server those of another."""

    def adopt(self, component: Component) -> Component:
        """The component as the other server has it."""
        ...

    def sponsor(self, provider: Provider) -> Provider:
        """The provider as the other server has it."""
        ...


class Registry:
    """Components by kind and name, in the order they were added (TL-03).

    Args:
        page_size: Components on one list page.
        changed: Called with `tools`, `resources` or `prompts` after every change.
        cache: How long clients may keep lists, where no component says less.
        added: Called with every component, and every provider, that has come.

    Attributes:
        offered: Capabilities that the server has ever had a component for.
        page_size: As given.
        cache: As given.
        providers: What is asked for more, for each request.
        varying: Kinds of which not every request finds the same.
        hints: How long clients may keep each list; what has no page yet is not in it.
    """

    def __init__(
        self,
        *,
        page_size: int = 1,
        changed: Callable[[str], None] = _tell_nobody,
        cache: CacheHint = _NO_CACHE,
        added: Callable[[Component | Provider], None] | None = None,
    ) -> None:
        if type(page_size) is not int or page_size < 1:
            raise RegistrationError(
                f"page_size must be an integer of at least 1, not {page_size!r}: a client would ask for empty pages for ever."
            )
        if not isinstance(cache, CacheHint):
            raise RegistrationError(f"cache must be a CacheHint, like CacheHint(ttl_ms=60_000), not {cache!r}.")
        self.tools: dict[str, Tool] = {}
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, Template] = {}
        self.prompts: dict[str, Prompt] = {}
        self.repositories: dict[str, Repository] = {}
        self.completers: dict[tuple[str, str], Completer] = {}
        self.providers: list[Provider] = []
        self.offered: set[str] = set()
        self.varying: set[Kind] = set()
        self.hints: dict[Kind, CacheHint] = {}
        self.page_size = page_size
        self.cache = cache
        self._changed = changed
        self._added = added
        self._pages: dict[Kind, dict[int, dict[str, Any]]] = {}
        self._mounts: list[tuple[Registry, Mounting]] = []

    def add(self, *components: Component) -> None:
        """Add components: all of them or none.

        Raises:
            RegistrationError: A name is taken, here or where this is mounted; the text names both places.
        """
        done: list[Component] = []
        spread: list[tuple[Registry, list[Component]]] = []
        try:
            for component in components:
                self._put(component)
                done.append(component)
            for registry, mounting in self._mounts:
                adopted = [mounting.adopt(component) for component in components]
                registry.add(*adopted)
                spread.append((registry, adopted))
        except RegistrationError:
            for registry, adopted in spread:
                registry.discard(*adopted)
            for component in done:
                self._take(component)
            raise
        if self._added is not None:
            for component in components:
                self._added(component)
        self._tell(components)

    def discard(self, *components: Component) -> None:
        """Take components out as far as they are here, and where this is mounted: there they, or others of their names, may be gone already."""
        here = [found for component in components if (found := self._find(component)) is not None]
        for component in here:
            self._take(component)
        for registry, mounting in self._mounts:
            registry.discard(*[mounting.adopt(component) for component in here])
        self._tell(here)

    def provide(self, provider: Provider) -> None:
        """Ask for more with each request from now on."""
        self.providers.append(provider)
        if self._added is not None:
            self._added(provider)
        self.offered |= {"tools", "resources", "prompts", "completions"}
        self.varying |= {"tools", "resources", "templates", "prompts"}
        for kind in LIST_KEYS:
            self._invalidate(kind)
        for topic in ("tools", "resources", "prompts"):
            self._changed(topic)
        for registry, mounting in self._mounts:
            registry.provide(mounting.sponsor(provider))

    def mount(self, other: Registry, mounting: Mounting) -> None:
        """Have what another registry has, now and later.

        Raises:
            RegistrationError: A name is taken; then nothing of it is here.
        """
        self.add(*[mounting.adopt(component) for component in other])
        for provider in other.providers:
            self.provide(mounting.sponsor(provider))
        other._mounts.append((self, mounting))

    def ancestors(self) -> Iterator[Registry]:
        """Registries that have what is here, this one first."""
        yield self
        for registry, _ in self._mounts:
            yield from registry.ancestors()

    def __iter__(self) -> Iterator[Component]:
        """All components."""
        for kind in _TOPIC:
            yield from list(self.shelf(kind).values())
        yield from list(self.completers.values())

    def remove(self, kind: Kind, key: str) -> None:
        """Take a component out.

        Args:
            kind: `tools`, `resources`, `templates`, `prompts` or `repositories`.
            key: Its name; the URI of a resource, the URI template of a template, the prefix of a repository.

        Raises:
            KeyError: There is none.
        """
        if kind not in _TOPIC:
            raise KeyError(f"{kind!r} is no kind of component; use one of {', '.join(_TOPIC)}.")
        part = self.shelf(kind).get(key)
        if part is None:
            raise KeyError(f"{kind}: there is no {key!r} to remove.")
        gone: list[Component] = [part]
        if kind == "repositories":
            gone += [each for each in self.templates.values() if _belongs(each, part)]
        keys = {each.key for each in gone if isinstance(each, Prompt | Template)}
        self.discard(*[completer for completer in self.completers.values() if completer.owner in keys], *gone)

    def page(self, kind: Kind, cursor: str | None) -> dict[str, Any]:
        """One list page as the fields of a result; the caller's to change.

        Raises:
            Fail: The cursor is none of ours (CURSOR, PG-05). One past the end is an empty page.
        """
        offset = 0 if cursor is None else read_cursor(kind, cursor)
        pages = self._pages.setdefault(kind, {})
        page = pages.get(offset)
        if page is None:
            page = self._build_page(kind, offset)
            if offset % self.page_size == 0 and offset <= len(self.shelf(kind)):
                pages[offset] = page
        return page.copy()

    def find_templates(self, uri: str) -> Iterator[tuple[Template, dict[str, Any]]]:
        """All templates that a URI fits, in the order they were declared, and their variables' values."""
        for template in list(self.templates.values()):
            values = template.uri_template.match(uri)
            if values is not None:
                yield template, values

    def find_repositories(self, uri: str) -> Iterator[Repository]:
        """All repositories that a URI belongs to, in the order they were added."""
        return (repository for repository in list(self.repositories.values()) if uri.startswith(repository.key))

    def shelf(self, kind: Kind) -> dict[str, Any]:
        """All of one kind."""
        shelf: dict[str, Any] = getattr(self, kind)
        return shelf

    def _put(self, component: Component) -> None:
        if isinstance(component, Completer):
            self._put_completer(component)
            return
        kind: Kind = component.kind
        shelf = self.shelf(kind)
        taken = shelf.get(component.key)
        if taken is not None:
            raise RegistrationError(
                f"{kind}: {component.key!r} is there twice: at {taken.source} and at {component.source}. Rename one, or remove the first."
            )
        for owner, argument in self.completers:
            if owner == component.key:
                _check_completed(component, argument, self.completers[owner, argument].source)
        shelf[component.key] = component
        self.offered.add(_TOPIC[kind])
        if component.visible is not None or isinstance(component, Repository):
            self.varying.add("resources" if kind == "repositories" else kind)

    def _put_completer(self, completer: Completer) -> None:
        key = (completer.owner, completer.argument)
        if taken := self.completers.get(key):
            raise RegistrationError(f"Completion of {key} is there twice: at {taken.source} and at {completer.source}.")
        owner = self.prompts.get(completer.owner) or self.templates.get(completer.owner)
        if owner is not None:
            _check_completed(owner, completer.argument, completer.source)
        self.completers[key] = completer
        self.offered.add("completions")

    def _find(self, component: Component) -> Component | None:
        """A component, or what stands in for the same one as it does; None when it is not here."""
        found: Component | None
        if isinstance(component, Completer):
            found = self.completers.get((component.owner, component.argument))
        else:
            found = self.shelf(component.kind).get(component.key)
        is_same = found is component or (found is not None and getattr(found, "inner", self) is getattr(component, "inner", None))
        return found if is_same else None

    def _take(self, component: Component) -> None:
        if isinstance(component, Completer):
            del self.completers[component.owner, component.argument]
            return
        kind: Kind = "resources" if component.kind == "repositories" else component.kind
        del self.shelf(component.kind)[component.key]
        repositories = self.repositories if kind == "resources" else {}
        if not self.providers and not repositories and all(part.visible is None for part in self.shelf(kind).values()):
            self.varying.discard(kind)

    def _build_page(self, kind: Kind, offset: int) -> dict[str, Any]:
        parts = list(self.shelf(kind).values())
        if kind not in self.hints:
            self.hints[kind] = strictest(part.listing or self.cache for part in parts) or self.cache
        return cut_page(kind, LIST_KEYS[kind], [part.definition for part in parts], offset, self.page_size)

    def _tell(self, components: Iterable[Component]) -> None:
        kinds: list[Kind] = [component.kind for component in components if not isinstance(component, Completer)]
        for kind in kinds:
            self._invalidate(kind)
        for topic in dict.fromkeys(_TOPIC[kind] for kind in kinds):
            self._changed(topic)

    def _invalidate(self, kind: Kind) -> None:
        self._pages.pop(kind, None)
        self.hints.pop(kind, None)


def _belongs(template: Any, repository: Any) -> bool:
    """Whether a template is one of a repository's, or each stands in for what is."""
    if isinstance(template, RepositoryTemplate):
        return template.repository is repository
    inner, behind = getattr(template, "inner", None), getattr(repository, "inner", None)
    return inner is not None and behind is not None and _belongs(inner, behind)


def _check_completed(owner: Component, argument: str, source: str) -> None:
    known = owner.arguments if isinstance(owner, Prompt) else owner.uri_template.variables if isinstance(owner, Template) else ()
    if isinstance(owner, Prompt | Template) and argument not in known:
        raise RegistrationError(
            f"{source} completes {argument!r}, which {owner.key!r} doesn't have; it has {', '.join(known) or 'no arguments'}."
        )
