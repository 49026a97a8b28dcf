"""Results of the current protocol in the words of an older one: pure functions over plain data, per version.

| | 2025-11-25 | 2025-06-18 | 2025-03-26 |
|---|---|---|---|
| `resultType`, `ttlMs`, `cacheScope`, reserved keys of `_meta` | - | - | - |
| icons; description and website of an implementation | kept | - | - |
| `title`; `_meta` of definitions, blocks and contents; `lastModified` | kept | kept | - |
| `resource_link` | kept | kept | a text block |
| `structuredContent`, `outputSchema` | objects, others in `{"result": ...}` | the same | - |

Nothing that came from the author is changed in place: it may be the same object on the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw

from callboard.server.subschemas import walk
from callboard.types import AudioContent, EmbeddedResource, ImageContent, Implementation, TextContent
from callboard.wire.jsonrpc import encode
from callboard.wire.versions import Features

__all__ = ["Lowering", "wrap_schema"]

_Wire: TypeAlias = dict[str, Any]
_RESERVED = "io.modelcontextprotocol/"
_RELATED = "io.modelcontextprotocol/related-task"  # of these versions, not of the current one
_RESULT_EXTRAS = frozenset({"resultType", "ttlMs", "cacheScope"})  # JR-13, CA-01
_BLOCKS = (TextContent, ImageContent, AudioContent, EmbeddedResource)
_LEAF_TYPES = frozenset({"text", "image", "audio"})
_SUSPECTS = frozenset({"_meta", "annotations"})
_SHARED_DEFINITIONS = ("$defs", "definitions")
_BRACE = ord("{")
_BLANK = ord(" ")
# Pages remembered per version. A server with more of them lowers anew what was not asked for lately.
MAX_PAGES = 64

_decode = msgspec.json.decode


class Lowering:
    """Lowers results to one version.

    Args:
        features: What the version can carry.
        find_support: Gives a tool's `taskSupport` by its name (TK-02); None for none.
    """

    __slots__ = ("_absent", "_features", "_find_support", "_pages", "_parts", "_structured")

    def __init__(self, features: Features, find_support: Callable[[str], str | None] = lambda _: None) -> None:
        self._features = features
        self._find_support = find_support
        self._structured = features.structured_content != "none"
        absent: set[str] = set()
        if not features.icons:
            absent |= {"icons"}
        if not features.titles:
            absent |= {"title", "_meta"}
        if not self._structured:
            absent |= {"outputSchema"}
        self._absent = frozenset(absent)
        self._pages: dict[int, tuple[Raw, Raw]] = {}
        # Method -> key of the list in its result, what lowers an item of it, whether the list is one of definitions.
        self._parts: dict[str, tuple[str, Callable[[Any], Any], bool]] = {
            "tools/call": ("content", self._block, False),
            "tasks/result": ("content", self._block, False),
            "prompts/get": ("messages", self._message, False),
            "resources/read": ("contents", self._contents, False),
            "tools/list": ("tools", self._tool, True),
            "resources/list": ("resources", self._item, True),
            "resources/templates/list": ("resourceTemplates", self._item, True),
            "prompts/list": ("prompts", self._prompt, True),
        }

    def lower(self, method: str, value: _Wire, *, wrap: bool = False) -> None:
        """Lower a result in place; lists and what is in them are replaced, not changed.

        Args:
            method: Method of the request; an empty text where the result has only what every result has.
            value: The result's fields in the words of the current protocol.
            wrap: Whether `structuredContent` goes into `{"result": ...}` even if it is an object (TL-07).
        """
        if not _RESULT_EXTRAS.isdisjoint(value):
            for key in _RESULT_EXTRAS:
                value.pop(key, None)
        if "_meta" in value:
            _drop_reserved(value)
        part = self._parts.get(method)
        if part is not None and (items := value.get(part[0])) is not None:
            key, lower, is_list = part
            if type(items) is list and len(items) == 1 and type(items[0]) is TextContent and _is_bare(items[0]):
                pass  # what most results are
            elif not isinstance(items, Raw):
                value[key] = [lower(item) for item in items]
            elif is_list:
                value[key] = self._page(items, lower)
            else:
                value[key] = [lower(item) for item in _decode(items)]
        structured = value.get("structuredContent", UNSET)
        if structured is not UNSET and (wrap or type(structured) is not Raw or not self._structured or memoryview(structured)[0] != _BRACE):
            self._structure(value, wrap=wrap)

    def implementation(self, info: Implementation) -> _Wire:
        """What a server says of itself (IC-01, MT-20)."""
        absent = self._absent if self._features.icons else self._absent | {"description", "websiteUrl"}
        return {key: field for key, field in _plain(info).items() if key not in absent}

    def _page(self, page: Raw, lower: Callable[[Any], Any]) -> Raw:
        """A list page as lowered the first time. The registry hands out the same object until a component comes or goes."""
        known = self._pages.get(id(page))
        if known is not None:
            return known[1]
        items = _decode(page)
        lowered = [lower(item) for item in items]
        result = page if lowered == items else Raw(encode(lowered))
        if len(self._pages) >= MAX_PAGES:
            del self._pages[next(iter(self._pages))]
        self._pages[id(page)] = page, result  # the page is kept, so that no other object gets its identity
        return result

    def _structure(self, value: _Wire, *, wrap: bool) -> None:
        structured = value["structuredContent"]
        raw = structured if isinstance(structured, Raw) else Raw(encode(structured))
        if not self._structured:
            del value["structuredContent"]
            if not value.get("content"):  # TL-10: else nothing of the result would arrive
                value["content"] = [TextContent(text=str(raw, "utf-8"))]
        elif wrap or not _is_object(raw):
            value["structuredContent"] = {"result": raw}
        else:
            value["structuredContent"] = raw

    def _item(self, item: Any) -> _Wire:
        """A definition, a block or contents without what the version does not have."""
        lowered = {key: field for key, field in _plain(item).items() if key not in self._absent}
        if "_meta" in lowered:
            _drop_reserved(lowered)
        annotations = lowered.get("annotations")
        if not self._features.titles and isinstance(annotations, dict):
            annotations.pop("lastModified", None)
        return lowered

    def _tool(self, tool: Any) -> _Wire:
        lowered = self._item(tool)
        output = lowered.get("outputSchema")
        if isinstance(output, dict) and output.get("type") != "object":
            lowered["outputSchema"] = wrap_schema(output)
        if self._features.tasks and (support := self._find_support(lowered["name"])) is not None:
            lowered["execution"] = {"taskSupport": support}
        for key in ("inputSchema", "outputSchema"):
            schema = lowered.get(key)
            properties = schema.get("properties") if isinstance(schema, dict) else None
            if isinstance(properties, dict):  # whose schemas are objects in these versions
                properties.update({name: {} if inner else {"not": {}} for name, inner in properties.items() if isinstance(inner, bool)})
        return lowered

    def _prompt(self, prompt: Any) -> _Wire:
        lowered = self._item(prompt)
        if "arguments" in lowered:
            lowered["arguments"] = [self._item(argument) for argument in lowered["arguments"]]
        return lowered

    def _contents(self, contents: Any) -> Any:
        return contents if _has_no_meta(contents) else self._item(contents)

    def _block(self, block: Any) -> Any:
        if _is_bare(block):
            return block
        lowered = self._item(block)
        if "resource" in lowered:
            lowered["resource"] = self._item(lowered["resource"])
        if lowered.get("type") == "resource_link" and not self._features.resource_links:
            return _describe_link(lowered, _plain(block).get("title"))
        return lowered

    def _message(self, message: Any) -> Any:
        if isinstance(message, Raw):
            message = _decode(message)
        content = message["content"] if isinstance(message, dict) else message.content
        lowered = self._block(content)
        if lowered is content:
            return message
        return {**message, "content": lowered} if isinstance(message, dict) else {"role": message.role, "content": lowered}


def wrap_schema(schema: _Wire) -> _Wire:
    """Make an output schema one of an object whose `result` is what the schema says (TL-07).

    Args:
        schema: Any JSON Schema that is an object; the caller's own, for references in it are rewritten.
    """
    hoisted = ("$schema",) if "$id" in schema else ("$schema", *_SHARED_DEFINITIONS)
    nodes = list(walk(schema))
    # What has an `$id` is a document of its own: references inside it start there.
    documents = [path for path, node in nodes if "$id" in node]
    for path, node in nodes:
        reference = node.get("$ref")
        if isinstance(reference, str) and not any(path[: len(document)] == document for document in documents):
            node["$ref"] = _move(reference)
    inner = {key: keyword for key, keyword in schema.items() if key not in hoisted}
    outer = {key: schema[key] for key in hoisted if key in schema}
    return {"type": "object", "properties": {"result": inner}, "required": ["result"], **outer}


def _move(reference: str) -> str:
    """A reference into a schema, now that the schema stands under `properties.result` and its definitions do not."""
    if reference != "#" and (not reference.startswith("#/") or reference.split("/")[1] in _SHARED_DEFINITIONS):
        return reference
    return f"#/properties/result{reference[1:]}"


def _drop_reserved(holder: _Wire) -> None:
    """Take the keys of the current protocol out of `_meta`, and `_meta` itself where nothing else was in it (MT-05, MT-08)."""
    meta = holder["_meta"]
    if not isinstance(meta, dict) or not any(key.startswith(_RESERVED) for key in meta):
        return
    rest = {key: item for key, item in meta.items() if key == _RELATED or not key.startswith(_RESERVED)}
    if rest:
        holder["_meta"] = rest
    else:
        del holder["_meta"]


def _describe_link(link: _Wire, title: str | None) -> _Wire:
    """TL-18: what a link says, where links do not exist."""
    lines = [f"{title or link['name']}: {link['uri']}", *filter(None, [link.get("description")])]
    block = {"type": "text", "text": "\n".join(lines)}
    return {**block, "annotations": link["annotations"]} if "annotations" in link else block


def _is_bare(block: Any) -> bool:
    """Whether a block has nothing that any version would change: most have not, and may be large."""
    if isinstance(block, _BLOCKS):
        is_bare = block.meta is UNSET and block.annotations is UNSET
        return is_bare and (not isinstance(block, EmbeddedResource) or _has_no_meta(block.resource))
    if not isinstance(block, dict) or not _SUSPECTS.isdisjoint(block):
        return False
    kind = block.get("type")
    return kind in _LEAF_TYPES or (kind == "resource" and _has_no_meta(block.get("resource")))


def _has_no_meta(contents: Any) -> bool:
    return "_meta" not in contents if isinstance(contents, dict) else getattr(contents, "meta", None) is UNSET


def _is_object(raw: Raw) -> bool:
    first = memoryview(raw)[0]
    return (first if first > _BLANK else bytes(raw).lstrip()[0]) == _BRACE


def _plain(item: Any) -> _Wire:
    """An item as the client would read it, and ours to change."""
    plain: _Wire = _decode(item if isinstance(item, Raw) else encode(item))
    return plain
