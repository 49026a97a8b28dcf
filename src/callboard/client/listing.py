"""Listings: the pages of one are followed to the end, unless one page was asked for (PG-02..PG-04)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from callboard.client.answer import read_complete
from callboard.client.errors import InvalidAnswer, Origin, ServerError
from callboard.errors import REASONS, Reason
from callboard.wire import v2026_07_28 as v

__all__ = ["LISTS", "Items", "Listing", "list_pages"]

T = TypeVar("T")
MAX_PAGES = 1000
"""A61: what ends a listing that would never end."""
_INVALID_PARAMS = REASONS[Reason.INVALID_PARAMS].code


class Items(list[T]):
    """A listing.

    Attributes:
        next_cursor: Where the next page begins; None when these are all.
    """

    next_cursor: str | None = None


class Listing(NamedTuple):
    """A method that lists.

    Attributes:
        kind: Type of its result.
        field: Where the items stand in it.
    """

    kind: type[Any]
    field: str


LISTS = {
    "tools/list": Listing(v.ListToolsResult, "tools"),
    "resources/list": Listing(v.ListResourcesResult, "resources"),
    "resources/templates/list": Listing(v.ListResourceTemplatesResult, "resource_templates"),
    "prompts/list": Listing(v.ListPromptsResult, "prompts"),
}


async def list_pages(
    method: str,
    cursor: str | None,
    fetch: Callable[[dict[str, Any]], Awaitable[tuple[msgspec.Raw, Origin]]],
    learn: Callable[[list[Any], msgspec.Raw], list[Any]],
    forget: Callable[[], None],
) -> Items[Any]:
    """List what a server has.

    Args:
        method: A key of `LISTS`.
        cursor: The page to get; None for all of them.
        fetch: Gets a page.
        learn: Takes note of the items of a page, and gives those that count.
        forget: Drops the pages that are kept.

    Raises:
        InvalidAnswer: The pages go round in circles, or there are more than 1,000.
        ClientError: A page can't be had.
    """
    kind, field = LISTS[method]
    found: Items[Any] = Items()
    seen: set[str] = set()
    following = cursor
    begun_anew = False
    while True:
        try:
            raw, origin = await fetch({} if following is None else {"cursor": following})
        except ServerError as error:
            if error.code != _INVALID_PARAMS or not seen or begun_anew:
                raise
            forget()  # CA-09: pages that were kept led to a cursor that is none any more
            found, seen, following, begun_anew = Items(), set(), None, True
            continue
        page = read_complete(kind, raw, origin)
        found += learn(getattr(page, field), raw)
        following = page.next_cursor if isinstance(page.next_cursor, str) else None  # PG-03
        if following is None or cursor is not None:
            found.next_cursor = following
            return found
        if following in seen or len(seen) == MAX_PAGES - 1:
            fault = "repeats a cursor" if following in seen else f"has more than {MAX_PAGES} pages"
            raise InvalidAnswer(f"the listing {fault}; it was given up", Origin(origin.target, method))
        seen.add(following)
