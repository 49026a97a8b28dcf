"""Resources that a program keeps elsewhere: all URIs with one prefix, listed and read by its functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET

from callboard.core.outcome import CacheHint, Outcome
from callboard.core.traversal import check_traversal
from callboard.core.uri import UriTemplate
from callboard.errors import Fail, Reason, RegistrationError
from callboard.server.callee import Callee, Facts, make_definition
from callboard.server.context import Context
from callboard.server.policy import Policy
from callboard.server.resource import Readable, Template
from callboard.server.state import StateKind
from callboard.wire import v2026_07_28 as v
from callboard.wire.jsonrpc import encode

__all__ = ["Repository", "RepositoryTemplate"]


class Repository(Readable):
    """All resources whose URIs have one prefix.

    Args:
        prefix: The prefix, beginning with a scheme.
        read: Takes `uri` and gives contents, or raises NotFound; it may take what every function may be injected with.
        list: Gives the resources there are: `types.Resource`s, mappings with the same keys, or URIs. One that takes `cursor` gives a page and
            the cursor of the next one, or None. None for a repository whose resources are in no list.
        mime_type: Of what it gives, where that does not say so.
        cache: How long clients may keep what it gives.
        policy: Who may read it.
        state: The server's state, which parameters of its type get.

    Raises:
        RegistrationError: It can't work; the text names the function and what to do.

    Attributes:
        is_paged: Whether its list comes in pages of its own.
        is_listed: Whether it has a list.
    """

    kind: ClassVar[Literal["repositories"]] = "repositories"
    __slots__ = ("_list", "is_listed", "is_paged")

    def __init__(
        self,
        prefix: str,
        read: Callable[..., Any],
        *,
        list: Callable[..., Any] | None = None,  # noqa: A002 - what the class of its author calls it
        mime_type: str | None = None,
        cache: CacheHint | None = None,
        policy: Policy = Policy(),
        state: StateKind | None = None,
    ) -> None:
        callee = Callee(read, state)
        super().__init__(callee, prefix, mime_type, cache, policy)
        if not isinstance(prefix, str) or not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", prefix):
            raise RegistrationError(f'{self.source}: prefix is what its URIs begin with, a scheme first, like "docs://", not {prefix!r}.')
        _check_parameters(callee, "uri", "read takes `uri`, the URI that is asked for")
        self.is_listed = list is not None
        self.is_paged = False
        if list is not None:
            lister = Callee(list)
            self.is_paged = bool(lister.signature.parameters)
            if self.is_paged:
                _check_parameters(lister, "cursor", "list takes `cursor`, where it gives pages, and a Context")
            self._list = lister.call

    async def page(self, cursor: str | None, ctx: Context) -> tuple[Sequence[bytes], str | None]:
        """Encoded entries of its list, and the cursor of the next page; None when there is none.

        Raises:
            TypeError: It gave something else.
        """
        found: Any = await self._list({"cursor": cursor} if self.is_paged else {}, ctx)
        following = None
        if self.is_paged:
            if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], str | None):
                raise TypeError(f"{self.source}: its list takes a cursor, so it returns (resources, next cursor or None).")
            found, following = found
        return [self._entry(item) for item in found], following

    def _entry(self, item: Any) -> bytes:
        if isinstance(item, str):
            item = v.Resource(uri=item, name=item.rstrip("/").rpartition("/")[2] or item)
        elif isinstance(item, Mapping):
            item = msgspec.convert(item, v.Resource)
        if not isinstance(item, v.Resource) or not item.uri.startswith(self.key):
            raise TypeError(f"{self.source}: its list gave {item!r}; give types.Resource whose URI begins with {self.key!r}.")
        entry = encode(item)
        msgspec.json.decode(entry, type=v.Resource)  # a field of another type would spoil the list for all
        return entry

    async def read(self, uri: str, ctx: Context) -> Outcome:
        """Give the contents.

        Raises:
            Fail: The URI would lead out of where it belongs (RS-08).
        """
        if check_traversal({"path": uri[len(self.key) :]}):
            raise Fail(Reason.INVALID_PARAMS, "The URI leads out of where it belongs.", {"uri": uri})
        return await self._contents(uri, {"uri": uri}, ctx)


class RepositoryTemplate(Template):
    """A URI template of a repository, which reads what fits it.

    Args:
        repository: The repository.
        uri: The template.
        facts: What it says about itself.
        mime_type: Of what fits it.
        annotations: Audience, priority, last change.

    Raises:
        RegistrationError: The template is none, or not within the repository's prefix.

    Attributes:
        repository: As given.
    """

    __slots__ = ("repository",)

    def __init__(
        self, repository: Repository, uri: str, *, facts: Facts, mime_type: str | None = None, annotations: v.Annotations | None = None
    ) -> None:
        for name in ("source", "state", "cache", "gate", "visible", "listing"):
            setattr(self, name, getattr(repository, name))
        if not isinstance(uri, str) or not uri.startswith(repository.key):
            raise RegistrationError(f"{self.source}: its template {uri!r} is not within its prefix, {repository.key!r}.")
        try:
            self.uri_template = UriTemplate(uri)
        except ValueError as error:
            raise RegistrationError(f"{self.source}: {error}") from None
        self.repository = repository
        self.key = uri
        _, self.definition = make_definition(
            v.ResourceTemplate,
            self.source,
            uri_template=uri,
            name=facts.name or uri,
            mime_type=mime_type or UNSET,
            annotations=annotations or UNSET,
            **facts.fields(),
        )

    async def read(self, uri: str, values: Mapping[str, Any], ctx: Context) -> Outcome:  # noqa: ARG002 - the repository reads URIs
        """Give the contents at one URI."""
        return await self.repository.read(uri, ctx)


def _check_parameters(callee: Callee, name: str, rule: str) -> None:
    names = [parameter.name for parameter in callee.signature.parameters]
    if name not in names or any(parameter.required for parameter in callee.signature.parameters if parameter.name != name):
        raise RegistrationError(f"{callee.signature.label}: {rule}, and what can be injected; it takes {', '.join(names) or 'nothing'}.")
