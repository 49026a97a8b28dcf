"""The components of a server by name, and their list pages as encoded bytes.

A page is built when it is first asked for and kept until a component comes or goes: a list costs a look-up, however many there are.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.component import Completer, Component, Prompt, Resource, Template, Tool

__all__ = ["Kind", "Registry"]

Kind: TypeAlias = Literal["tools", "resources", "templates", "prompts"]
# Key of the list in the result of each kind's list method.
_LIST_KEY: dict[Kind, str] = {"tools": "tools", "resources": "resources", "templates": "resourceTemplates", "prompts": "prompts"}
# What a client that subscribed hears about: templates are part of the resources.
_TOPIC: dict[Kind, str] = {"tools": "tools", "resources": "resources", "templates": "resources", "prompts": "prompts"}


class Registry:
    """Components by kind and name, in the order they were added (TL-03).

    Args:
        page_size: Components on one list page.
        changed: Called with `tools`, `resources` or `prompts` after every change.

    Attributes:
        offered: Capabilities that the server has ever had a component for.
    """

    def __init__(self, *, page_size: int, changed: Callable[[str], None]) -> None:
        if page_size < 1:
            raise RegistrationError(f"page_size must be at least 1, not {page_size}: a client would ask for empty pages for ever.")
        self.tools: dict[str, Tool] = {}
        self.resources: dict[str, Resource] = {}
        self.templates: dict[str, Template] = {}
        self.prompts: dict[str, Prompt] = {}
        self.completers: dict[tuple[str, str], Completer] = {}
        self.offered: set[str] = set()
        self._page_size = page_size
        self._changed = changed
        self._pages: dict[Kind, dict[int, dict[str, Any]]] = {}

    def add(self, component: Component) -> None:
        """Add a component.

        Raises:
            RegistrationError: Its name is taken; the text names both places.
        """
        if isinstance(component, Completer):
            self._add_completer(component)
            return
        kind: Kind = component.kind
        shelf = self._shelf(kind)
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
        self._invalidate(kind)

    def _add_completer(self, completer: Completer) -> None:
        key = (completer.owner, completer.argument)
        if taken := self.completers.get(key):
            raise RegistrationError(f"Completion of {key} is there twice: at {taken.source} and at {completer.source}.")
        owner = self.prompts.get(completer.owner) or self.templates.get(completer.owner)
        if owner is not None:
            _check_completed(owner, completer.argument, completer.source)
        self.completers[key] = completer
        self.offered.add("completions")

    def remove(self, kind: Kind, key: str) -> None:
        """Take a component out.

        Args:
            kind: `tools`, `resources`, `templates` or `prompts`.
            key: Its name; the URI of a resource, the URI template of a template.

        Raises:
            KeyError: There is none.
        """
        if kind not in _LIST_KEY:
            raise KeyError(f"{kind!r} is no kind of component; use one of {', '.join(_LIST_KEY)}.")
        shelf = self._shelf(kind)
        if key not in shelf:
            raise KeyError(f"{kind}: there is no {key!r} to remove.")
        del shelf[key]
        for completed in [completed for completed in self.completers if completed[0] == key and kind in {"prompts", "templates"}]:
            del self.completers[completed]
        self._invalidate(kind)

    def page(self, kind: Kind, cursor: str | None) -> dict[str, Any]:
        """One list page as the fields of a result; the caller's to change.

        Raises:
            Fail: The cursor is none of ours (CURSOR, PG-05). One past the end is an empty page.
        """
        offset = 0 if cursor is None else _read_cursor(kind, cursor)
        pages = self._pages.setdefault(kind, {})
        page = pages.get(offset)
        if page is None:
            page = self._build_page(kind, offset)
            if offset % self._page_size == 0 and offset <= len(self._shelf(kind)):
                pages[offset] = page
        return page.copy()

    def find_template(self, uri: str) -> tuple[Template, dict[str, Any]] | None:
        """The first declared template that a URI fits, and its variables' values."""
        for template in list(self.templates.values()):
            values = template.uri_template.match(uri)
            if values is not None:
                return template, values
        return None

    def _shelf(self, kind: Kind) -> dict[str, Any]:
        shelf: dict[str, Any] = getattr(self, kind)
        return shelf

    def _build_page(self, kind: Kind, offset: int) -> dict[str, Any]:
        shelf = self._shelf(kind)
        end = offset + self._page_size
        definitions = [component.definition for component in list(shelf.values())[offset:end]]
        page: dict[str, Any] = {_LIST_KEY[kind]: msgspec.Raw(b"[" + b",".join(definitions) + b"]")}
        if end < len(shelf):
            page["nextCursor"] = _write_cursor(kind, end)
        return page

    def _invalidate(self, kind: Kind) -> None:
        self._pages.pop(kind, None)
        self._changed(_TOPIC[kind])


def _check_completed(owner: Component, argument: str, source: str) -> None:
    known = owner.arguments if isinstance(owner, Prompt) else owner.uri_template.variables if isinstance(owner, Template) else ()
    if isinstance(owner, Prompt | Template) and argument not in known:
        raise RegistrationError(
            f"{source} completes {argument!r}, which {owner.key!r} doesn't have; it has {', '.join(known) or 'no arguments'}."
        )


def _write_cursor(kind: Kind, offset: int) -> str:
    return base64.urlsafe_b64encode(f"{kind}:{offset}".encode()).decode()


def _read_cursor(kind: Kind, cursor: str) -> int:
    try:
        owner, _, digits = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise Fail(Reason.CURSOR) from None
    if owner != kind or not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise Fail(Reason.CURSOR)
    return int(digits)
