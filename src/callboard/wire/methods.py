"""The current protocol's methods as rows: what is true of a method whoever serves it.

Absence of a row is how a method does not exist. What a server does for a method stands in `server/dispatch.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callboard.wire import v2026_07_28 as v

__all__ = ["METHODS", "Method"]


class Method(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        params: Type of `params`; `_meta` stays raw in it.
        decode: Reads raw `params` as that type.
        mirrored: Attribute of `params` that the header `Mcp-Name` mirrors (HH-04); empty when none.
        capability: Field of the server capabilities that gates it (EC-10); empty when nothing does.
        asks: Whether its answer may be a request for input (MR-02).
        cacheable: Whether its result carries caching hints (CA-01).
    """

    params: type[Any]
    decode: Any
    mirrored: str = ""
    capability: str = ""
    asks: bool = False
    cacheable: bool = False


def _row(params: type[Any], **facts: Any) -> Method:
    return Method(params, msgspec.json.Decoder(params).decode, **facts)


METHODS: dict[str, Method] = {
    "server/discover": _row(v.RequestParams, cacheable=True),
    "tools/list": _row(v.PaginatedRequestParams, capability="tools", cacheable=True),
    "tools/call": _row(v.CallToolRequestParams, capability="tools", mirrored="name", asks=True),
    "resources/list": _row(v.PaginatedRequestParams, capability="resources", cacheable=True),
    "resources/templates/list": _row(v.PaginatedRequestParams, capability="resources", cacheable=True),
    "resources/read": _row(v.ReadResourceRequestParams, capability="resources", mirrored="uri", asks=True, cacheable=True),
    "prompts/list": _row(v.PaginatedRequestParams, capability="prompts", cacheable=True),
    "prompts/get": _row(v.GetPromptRequestParams, capability="prompts", mirrored="name", asks=True),
    "completion/complete": _row(v.CompleteRequestParams, capability="completions"),
    "subscriptions/listen": _row(v.SubscriptionsListenRequestParams),
}
