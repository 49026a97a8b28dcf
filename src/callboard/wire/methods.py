"""The current protocol's methods as rows: what is true of a method whoever serves it.

Absence of a row is how a method does not exist. What a server does for a method stands in `server/dispatch.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callboard.wire import v2026_07_28 as v

__all__ = ["METHODS", "ListenFilter", "ListenParams", "Method"]


class Method(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        params: Type of `params`; `_meta` stays raw in it.
        decode: Reads raw `params` as that type.
        header: The method's name as `Mcp-Method` has it.
        mirrored: Attribute of `params` that the header `Mcp-Name` mirrors (HH-04); empty when none.
        capability: Field of the server capabilities that gates it (EC-10); empty when nothing does.
        asks: Whether its answer may be a request for input (MR-02).
        cacheable: Whether its result carries caching hints (CA-01).
        serve: What serves it in place of the server's table: a method that only an older protocol has; None for the table.
    """

    params: type[Any]
    decode: Any
    header: bytes
    mirrored: str = ""
    capability: str = ""
    asks: bool = False
    cacheable: bool = False
    serve: Any = None


class ListenFilter(v.SubscriptionFilter, kw_only=True):
    """What a listen stream asks for, that of extensions included.

    Attributes:
        task_ids: Tasks to hear of, as sent (TX-15).
    """

    task_ids: Any = msgspec.field(name="taskIds", default=UNSET)


class ListenParams(msgspec.Struct):
    """Parameters of `subscriptions/listen`.

    Attributes:
        notifications: What it asks for.
        meta: `_meta` as sent.
    """

    notifications: ListenFilter
    meta: msgspec.Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)


def _row(method: str, params: type[Any], **facts: Any) -> tuple[str, Method]:
    return method, Method(params, msgspec.json.Decoder(params).decode, method.encode(), **facts)


METHODS: dict[str, Method] = dict(
    (
        _row("server/discover", v.RequestParams, cacheable=True),
        _row("tools/list", v.PaginatedRequestParams, capability="tools", cacheable=True),
        _row("tools/call", v.CallToolRequestParams, capability="tools", mirrored="name", asks=True),
        _row("resources/list", v.PaginatedRequestParams, capability="resources", cacheable=True),
        _row("resources/templates/list", v.PaginatedRequestParams, capability="resources", cacheable=True),
        _row("resources/read", v.ReadResourceRequestParams, capability="resources", mirrored="uri", asks=True, cacheable=True),
        _row("prompts/list", v.PaginatedRequestParams, capability="prompts", cacheable=True),
        _row("prompts/get", v.GetPromptRequestParams, capability="prompts", mirrored="name", asks=True),
        _row("completion/complete", v.CompleteRequestParams, capability="completions"),
        _row("subscriptions/listen", ListenParams),
    )
)
