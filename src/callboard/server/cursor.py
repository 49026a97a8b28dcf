"""List pages cut from encoded items, and the cursors between them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from callboard.errors import Fail, Reason

__all__ = ["cut_page", "name_for", "read_cursor", "write_cursor"]


def cut_page(of: str, key: str, items: Sequence[bytes], offset: int, size: int) -> dict[str, Any]:
    """One page as the fields of a result.

    Args:
        of: What the list is of; a cursor is good for one list.
        key: Name of the list in the result.
        items: All of them, encoded.
        offset: Items before this page.
        size: Items on a page.
    """
    end = offset + size
    page: dict[str, Any] = {key: Raw(b"[" + b",".join(items[offset:end]) + b"]")}
    if end < len(items):
        page["nextCursor"] = write_cursor(of, end)
    return page


def write_cursor(of: str, offset: int) -> str:
    """The cursor of a page of one list: what begins at an offset."""
    return base64.urlsafe_b64encode(f"{of}:{offset}".encode()).decode()


def read_cursor(of: str, cursor: str | None) -> int:
    """Offset that a cursor of one list stands for; 0 without one.

    Raises:
        Fail: The cursor is none of this list's (CURSOR, PG-05). One past the end gives an empty page.
    """
    if cursor is None:
        return 0
    try:
        owner, _, digits = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().rpartition(":")
    except (binascii.Error, ValueError):
        raise Fail(Reason.CURSOR) from None
    if owner != of or not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise Fail(Reason.CURSOR)
    return int(digits)


def name_for(of: str, principal: str | None) -> str:
    """What a list is called that is made for one principal, so that its cursors are good for theirs alone.

    They carry no authority: whoever made one up would get a page of the list that is theirs.

    Args:
        of: What the list is of.
        principal: Whose it is; None for whoever has no name.
    """
    return of if principal is None else f"{of}@{blake2b(principal.encode(errors='surrogatepass'), digest_size=6).hexdigest()}"
