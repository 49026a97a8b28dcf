"""What a handler's callbacks return, as the fields of a result: wire maps, types of the protocol, and plain values.

One rule for mappings: a mapping is what goes over the wire, and is sent as it is. Its keys are the protocol's (`inputSchema`), or the
attribute names of the type in `callboard.types` that it stands for (`input_schema`), in results, in their items and in content blocks.
What an author defines (schemas, structured content, `_meta`) is never looked into.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from callboard.core.era import Request
from callboard.core.outcome import CacheHint
from callboard.errors import NotFound
from callboard.server.callee import CONTENT_BLOCKS
from callboard.server.cursor import name_for, read_cursor, write_cursor
from callboard.server.prompt import COMPLETION_CAP
from callboard.server.shape import compile_result, encode_value
from callboard.server.tool import check_tool_name
from callboard.wire import v2026_07_28 as v

__all__ = ["LISTS", "make_result", "read_hint", "read_items"]

Fields: TypeAlias = dict[str, Any]

LISTS: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "tools/list": ("tools", v.Tool),
    "resources/list": ("resources", v.Resource),
    "resources/templates/list": ("resourceTemplates", v.ResourceTemplate),
    "prompts/list": ("prompts", v.Prompt),
}
"""List methods: the key of the list in the result, and the type of its items."""

_RESULTS: dict[str, type[msgspec.Struct]] = {
    "tools/list": v.ListToolsResult,
    "resources/list": v.ListResourcesResult,
    "resources/templates/list": v.ListResourceTemplatesResult,
    "prompts/list": v.ListPromptsResult,
    "tools/call": v.CallToolResult,
    "resources/read": v.ReadResourceResult,
    "prompts/get": v.GetPromptResult,
    "completion/complete": v.CompleteResult,
}
_BLOCKS: dict[Any, type[msgspec.Struct]] = {
    "text": v.TextContent,
    "image": v.ImageContent,
    "audio": v.AudioContent,
    "resource": v.EmbeddedResource,
    "resource_link": v.ResourceLink,
}
_CONTENTS = (v.ResourceContents, v.TextResourceContents, v.BlobResourceContents)
# What the era puts into every result by itself.
_ERAS = frozenset({"resultType", "ttlMs", "cacheScope"})
_shape_value = compile_result(Any, label="what call_tool returned").shape


def make_result(request: Request, value: Any, page_size: int, principal: str | None = None) -> Fields:
    """The fields of a result, the caller's to change.

    Args:
        request: What it is the answer to.
        value: What the handler returned.
        page_size: Items on a page of a list that the handler gave whole.
        principal: Whose list it is.

    Raises:
        TypeError: It can't be a result of this method; the text says what can.
        NotFound: There is no such resource.
        ToolError: A `CallToolResult` that is an error.
    """
    method = request.method
    kind = _RESULTS[method]
    if isinstance(value, kind):
        value = _fields(value)
    if isinstance(value, Mapping):
        value = _name_keys(kind, value, method)
        for key in _ERAS & value.keys():
            del value[key]
    if method in LISTS:
        return _make_list(request, value, page_size, principal)
    return _MAKERS[method](request, value)


def read_hint(value: Any) -> CacheHint | None:
    """The caching hint in a wire map; None where it has none."""
    if not isinstance(value, Mapping):
        return None
    ttl, scope = value.get("ttlMs", value.get("ttl_ms")), value.get("cacheScope", value.get("cache_scope"))
    if ttl is None and scope is None:
        return None
    if type(ttl or 0) is not int or not isinstance(scope or "", str):
        raise TypeError(f"ttlMs is a whole number of milliseconds, and cacheScope private or public, not {ttl!r} and {scope!r}.")
    return CacheHint(ttl or 0, scope or "private")


def read_items(method: str, value: Any) -> list[Fields] | None:
    """All items of a list as wire maps; None where it may be a part of them.

    Raises:
        TypeError: It is no list, or an item is none; the text names it.
    """
    if isinstance(value, _RESULTS[method]):
        value = _fields(value)
    key, kind = LISTS[method]
    if isinstance(value, Mapping):
        value = _name_keys(_RESULTS[method], value, method)
        if value.get("nextCursor") is not None:
            return None
        value = value.get(key)
    return [_item(method, kind, item, at) for at, item in enumerate(_listed(method, key, value))]


def _make_list(request: Request, value: Any, page_size: int, principal: str | None) -> Fields:
    method = request.method
    key, kind = LISTS[method]
    if isinstance(value, Mapping):  # a page that the handler has cut itself
        page: Fields = dict(value)
        if not isinstance(page.setdefault("nextCursor", None), str | None):
            raise TypeError(f"{method}: nextCursor is a str, and left out or None on the last page, not {page['nextCursor']!r}.")
        if page["nextCursor"] is None:
            del page["nextCursor"]
        page[key] = [_item(method, kind, item, at) for at, item in enumerate(_listed(method, key, page.get(key)))]
        return page
    items = _listed(method, key, value)
    cursor = request.params.cursor
    name = name_for(method, principal)
    offset = read_cursor(name, None if cursor is UNSET else cursor)
    end = offset + page_size
    page = {key: [_item(method, kind, item, at) for at, item in enumerate(items[offset:end], offset)]}
    if end < len(items):
        page["nextCursor"] = write_cursor(name, end)
    return page


def _listed(method: str, key: str, value: Any) -> list[Any]:
    if value is None or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(
            f"{method}: return the whole list, or a page of it as {{{key!r}: [...], 'nextCursor': ...}}, not {type(value).__name__}."
        )
    return list(value)


def _item(method: str, kind: type[msgspec.Struct], item: Any, at: int) -> Fields:
    """A definition as a wire map; one that clients could not read is refused here, by name."""
    where = f"{method}, item {at}"
    if isinstance(item, kind):
        wire = _fields(item)
    elif isinstance(item, Mapping):
        wire = _name_keys(kind, item, where)
    else:
        raise TypeError(f"{where} is a {type(item).__name__}: make it a types.{kind.__name__}, or a mapping.")
    if kind is v.Tool:
        wire.setdefault("inputSchema", {"type": "object"})  # TL-04
    if kind is v.Prompt and isinstance(arguments := wire.get("arguments"), list | tuple):
        wire["arguments"] = [_name_keys(v.PromptArgument, each, where) if isinstance(each, Mapping) else each for each in arguments]
    try:
        checked = msgspec.convert(msgspec.to_builtins(wire, enc_hook=_opaque), kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise TypeError(f"{where}: {error}") from None
    if isinstance(checked, v.Tool):
        check_tool_name(checked.name, where)
        if checked.input_schema.get("type") != "object":
            raise TypeError(f"{where}: the inputSchema of {checked.name!r} must have the type object at its root (TL-05).")
    return wire


def _opaque(_value: Any) -> None:
    """What only a schema can hold, and encoding will judge."""


def _make_call(_request: Request, value: Any) -> Fields:
    wire: Fields
    if isinstance(value, Mapping):
        wire = dict(value)
        if not wire.keys() & {"content", "structuredContent"}:
            raise TypeError(
                "tools/call: a mapping is the result itself, with content or structuredContent; return data as {'structuredContent': data}."
            )
        if "structuredContent" in wire:  # on the key's presence: null and false are legal
            data = encode_value(wire["structuredContent"])
            wire["structuredContent"] = msgspec.Raw(data)
            if not wire.get("content"):
                wire["content"] = [v.TextContent(text=str(data, "utf-8"))]  # TL-10
        wire["content"] = _blocks(wire["content"])
    elif isinstance(value, list | tuple):
        wire = {"content": _blocks(value)}
    else:
        content, structured, meta = _shape_value(value)
        wire = {"content": content}
        if structured is not None:
            wire["structuredContent"] = structured
        if meta is not None:
            wire["_meta"] = meta
    wire.setdefault("isError", False)
    return wire


def _make_contents(request: Request, value: Any) -> Fields:
    uri = request.params.uri
    if value is None:
        raise NotFound(uri)
    wire = dict(value) if isinstance(value, Mapping) and "contents" in value else {"contents": value}
    contents = wire["contents"]
    wire["contents"] = [_content(uri, item) for item in (contents if isinstance(contents, list | tuple) else [contents])]
    return wire


def _content(uri: str, item: Any) -> Any:
    if isinstance(item, str):
        return {"uri": uri, "text": item}
    if isinstance(item, bytes | bytearray | memoryview):
        return {"uri": uri, "blob": base64.b64encode(item).decode()}
    if isinstance(item, v.EmbeddedResource):
        return item.resource
    if isinstance(item, _CONTENTS):
        return item
    if isinstance(item, Mapping) and item.keys() & {"text", "blob"}:
        return {"uri": uri, **_name_keys(v.ResourceContents, item, "resources/read")}
    raise TypeError(
        f"resources/read: contents are str, bytes, types.ResourceContents or mappings with text or blob, not {type(item).__name__}."
    )


def _make_messages(_request: Request, value: Any) -> Fields:
    wire = dict(value) if isinstance(value, Mapping) and "messages" in value else {"messages": value}
    messages = wire["messages"]
    wire["messages"] = [_message(item) for item in (messages if isinstance(messages, list | tuple) else [messages])]
    return wire


def _message(item: Any) -> Any:
    if isinstance(item, v.PromptMessage):
        return item
    if isinstance(item, Mapping) and "role" in item and "content" in item:
        return {**item, "content": _block(item["content"])}
    return {"role": "user", "content": _block(item)}


def _make_completion(_request: Request, value: Any) -> Fields:
    if isinstance(value, v.Completion):
        value = _fields(value)
    wire: Fields
    if isinstance(value, Mapping):
        wire = dict(value) if "completion" in value else {"completion": value}
        completion = wire["completion"]
        completion = _fields(completion) if isinstance(completion, v.Completion) else completion
        completion = _name_keys(v.Completion, completion, "completion/complete") if isinstance(completion, Mapping) else {}
        values = completion.get("values")
    else:
        wire, completion = {}, {}
        values = None if isinstance(value, str | bytes) or not isinstance(value, Iterable) else list(value)
        completion["total"] = len(values or ())
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise TypeError(f"completion/complete: return a list of str, or {{'values': [...]}}, not {type(value).__name__}.")
    more = len(values) > COMPLETION_CAP  # CP-03
    wire["completion"] = {**completion, "values": list(values[:COMPLETION_CAP]), "hasMore": more or bool(completion.get("hasMore"))}
    return wire


def _blocks(value: Any) -> list[Any]:
    return [_block(item) for item in (value if isinstance(value, list | tuple) else [value])]


def _block(item: Any) -> Any:
    if isinstance(item, str):
        return v.TextContent(text=item)
    if isinstance(item, CONTENT_BLOCKS):
        return item
    if isinstance(item, Mapping) and isinstance(item.get("type"), str):
        kind = _BLOCKS.get(item["type"])
        wire = dict(item) if kind is None else _name_keys(kind, item, "a content block")
        if isinstance(resource := wire.get("resource"), Mapping):
            wire["resource"] = _name_keys(v.ResourceContents, resource, "a content block")
        return wire
    raise TypeError(f"Content is str, content blocks of callboard.types, or mappings with a type, not {type(item).__name__}.")


def _fields(value: msgspec.Struct) -> Fields:
    """A type of the protocol as a wire map; what is in it stays what it is."""
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    found = ((wire, getattr(value, name)) for name, wire in names)
    return {wire: field for wire, field in found if field is not UNSET}


def _name_keys(kind: type[msgspec.Struct], mapping: Mapping[Any, Any], where: str) -> Fields:
    """A mapping with the protocol's keys; unknown ones are sent as they are."""
    names = _wire_names(kind)
    wire: Fields = {}
    for key, value in mapping.items():
        name: Any = names.get(key, key)
        if name in wire:
            raise TypeError(f"{where} says {name!r} twice, once as {key!r}: leave one of them out.")
        if value is not UNSET:
            wire[name] = value
    return wire


@cache
def _wire_names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Attribute -> key on the wire, where the two differ."""
    pairs = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return {name: wire for name, wire in pairs if name != wire}


_MAKERS: dict[str, Callable[[Request, Any], Fields]] = {
    "tools/call": _make_call,
    "resources/read": _make_contents,
    "prompts/get": _make_messages,
    "completion/complete": _make_completion,
}
