"""Results in the words of the 2025 protocols: by vectors in every form a result may have, against the published schemas, and at large."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from oracles import definitions, mcp_types_result, shared_schema, validate

from callboard.legacy import lowering
from callboard.legacy.lowering import Lowering, wrap_schema
from callboard.types import (
    Content,
    Icon,
    Implementation,
    Prompt,
    PromptMessage,
    Resource,
    ResourceContents,
    ResourceTemplate,
    TextContent,
    Tool,
)
from callboard.wire.jsonrpc import encode
from callboard.wire.versions import FEATURES, LEGACY

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "legacy.json").read_text("utf-8"))
SHORT = {version[5:7]: version for version in LEGACY} | {"11": "2025-11-25", "06": "2025-06-18", "03": "2025-03-26"}
RESULTS = {
    "tools/call": "CallToolResult",
    "prompts/get": "GetPromptResult",
    "resources/read": "ReadResourceResult",
    "completion/complete": "CompleteResult",
    "tools/list": "ListToolsResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "prompts/list": "ListPromptsResult",
}
# Method -> key of the list in its result, type of an item, name of that type.
ITEMS: dict[str, tuple[str, Any, str]] = {
    "tools/call": ("content", Content, ""),
    "prompts/get": ("messages", PromptMessage, "PromptMessage"),
    "resources/read": ("contents", ResourceContents, "TextResourceContents"),
    "tools/list": ("tools", Tool, "Tool"),
    "resources/list": ("resources", Resource, "Resource"),
    "resources/templates/list": ("resourceTemplates", ResourceTemplate, "ResourceTemplate"),
    "prompts/list": ("prompts", Prompt, "Prompt"),
}
# What each version knows, from its specification; `test_what_a_version_knows_is_what_its_schema_says` keeps it honest.
_TEXT = {"type", "text", "annotations"}
_DATA = {"type", "data", "mimeType", "annotations"}
_CONTENTS = {"uri", "mimeType"}
KNOWN_03: dict[str, set[str]] = {
    "Tool": {"name", "description", "inputSchema", "annotations"},
    "Resource": {"uri", "name", "description", "mimeType", "annotations", "size"},
    "ResourceTemplate": {"uriTemplate", "name", "description", "mimeType", "annotations"},
    "Prompt": {"name", "description", "arguments"},
    "PromptArgument": {"name", "description", "required"},
    "PromptMessage": {"role", "content"},
    "Implementation": {"name", "version"},
    "Annotations": {"audience", "priority"},
    "TextContent": _TEXT,
    "ImageContent": _DATA,
    "AudioContent": _DATA,
    "EmbeddedResource": {"type", "resource", "annotations"},
    "TextResourceContents": _CONTENTS | {"text"},
    "BlobResourceContents": _CONTENTS | {"blob"},
    "CallToolResult": {"_meta", "content", "isError"},
    "GetPromptResult": {"_meta", "description", "messages"},
    "ReadResourceResult": {"_meta", "contents"},
    "ListToolsResult": {"_meta", "nextCursor", "tools"},
    "ListResourcesResult": {"_meta", "nextCursor", "resources"},
    "ListResourceTemplatesResult": {"_meta", "nextCursor", "resourceTemplates"},
    "ListPromptsResult": {"_meta", "nextCursor", "prompts"},
    "CompleteResult": {"_meta", "completion"},
}
NEW_06: dict[str, set[str]] = {
    "Tool": {"title", "_meta", "outputSchema"},
    "Resource": {"title", "_meta"},
    "ResourceTemplate": {"title", "_meta"},
    "Prompt": {"title", "_meta"},
    "PromptArgument": {"title"},
    "Implementation": {"title"},
    "Annotations": {"lastModified"},
    "TextContent": {"_meta"},
    "ImageContent": {"_meta"},
    "AudioContent": {"_meta"},
    "EmbeddedResource": {"_meta"},
    "TextResourceContents": {"_meta"},
    "BlobResourceContents": {"_meta"},
    "CallToolResult": {"structuredContent"},
    "ResourceLink": {"type", "uri", "name", "title", "description", "mimeType", "size", "annotations", "_meta"},
}
NEW_11: dict[str, set[str]] = {
    "Tool": {"icons"},
    "Resource": {"icons"},
    "ResourceTemplate": {"icons"},
    "Prompt": {"icons"},
    "Implementation": {"description", "icons", "websiteUrl"},
    "ResourceLink": {"icons"},
}


def joined(*tables: dict[str, set[str]]) -> dict[str, set[str]]:
    names = [name for table in tables for name in table]
    return {name: set().union(*(table.get(name, set()) for table in tables)) for name in names}


KNOWN = {"2025-03-26": KNOWN_03, "2025-06-18": joined(KNOWN_03, NEW_06), "2025-11-25": joined(KNOWN_03, NEW_06, NEW_11)}
# What the schema of 2025-11-25 has of tasks, which are not served.
OF_TASKS = {"Tool": {"execution"}}
BLOCKS = {
    "text": "TextContent",
    "image": "ImageContent",
    "audio": "AudioContent",
    "resource": "EmbeddedResource",
    "resource_link": "ResourceLink",
}

every_version = pytest.mark.parametrize("version", LEGACY)


def plain(value: Any) -> Any:
    """What goes over the wire for `value`, as plain JSON values."""
    return json.loads(encode(value))


def lower(version: str, method: str, value: dict[str, Any], *, wrap: bool = False) -> Any:
    Lowering(FEATURES[version]).lower(method, value, wrap=wrap)
    return plain(value)


def as_structs(method: str, value: dict[str, Any]) -> dict[str, Any]:
    if method not in ITEMS:
        return value
    key, kind, _ = ITEMS[method]
    return {**value, key: [msgspec.json.decode(encode(item), type=kind) for item in value[key]]}


def as_raw_items(method: str, value: dict[str, Any]) -> dict[str, Any]:
    key = ITEMS[method][0] if method in ITEMS else ""
    return {name: [Raw(encode(item)) for item in field] if name == key else field for name, field in value.items()}


def as_raw_fields(_method: str, value: dict[str, Any]) -> dict[str, Any]:
    return {name: field if name == "_meta" else Raw(encode(field)) for name, field in value.items()}


FORMS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "maps": lambda _method, value: value,
    "structs": as_structs,
    "raw items": as_raw_items,
    "raw fields": as_raw_fields,
}


def outcomes() -> Iterator[Any]:
    """Every vector at every version, as (version, vector, what it becomes)."""
    for vector in VECTORS["results"]:
        for names, becomes in vector["becomes"].items():
            for name in names.split():
                yield pytest.param(SHORT[name], vector, becomes, id=f"{vector['name']}-{name}")


every_outcome = pytest.mark.parametrize(("version", "vector", "becomes"), list(outcomes()))


# By vectors


def test_every_vector_says_what_it_becomes_at_every_version() -> None:
    for vector in VECTORS["results"]:
        assert sorted(" ".join(vector["becomes"]).split()) == ["03", "06", "11"], vector["name"]


@pytest.mark.parametrize("form", FORMS)
@every_outcome
def test_a_result_is_lowered_whatever_form_it_has(version: str, vector: dict[str, Any], becomes: Any, form: str) -> None:
    # TL-04, TL-07, TL-09, TL-10, TL-12, TL-18, IC-01, MT-05, RS-03, RS-09, PM-03, PM-05, CP-03, CA-01, JR-13
    value = FORMS[form](vector["method"], copy.deepcopy(vector["value"]))
    assert lower(version, vector["method"], value, wrap=vector.get("wrap", False)) == becomes


@shared_schema
@every_outcome
def test_what_becomes_of_a_result_is_valid_there(version: str, vector: dict[str, Any], becomes: Any) -> None:
    validate(RESULTS[vector["method"]], becomes, version)


@every_outcome
def test_a_peer_of_that_version_reads_what_becomes_of_a_result(version: str, vector: dict[str, Any], becomes: Any) -> None:
    mcp_types_result(vector["method"], copy.deepcopy(becomes), version)


@every_outcome
def test_what_the_author_made_stays_as_it_is(version: str, vector: dict[str, Any], becomes: Any) -> None:
    value = copy.deepcopy(vector["value"])
    parts = list(value.items())
    lower(version, vector["method"], value, wrap=vector.get("wrap", False))
    assert dict(parts) == vector["value"]
    assert plain(value) == becomes


# By version


@shared_schema
@every_version
def test_what_a_version_knows_is_what_its_schema_says(version: str) -> None:
    described = definitions(version)
    assert {name: set(described[name]["properties"]) - OF_TASKS.get(name, set()) for name in KNOWN[version]} == KNOWN[version]


@shared_schema
@every_version
def test_an_implementation_says_what_its_version_knows(version: str) -> None:
    # LC-02, IC-01
    info = Implementation(
        name="yard",
        version="1",
        title="Yard",
        description="A yard.",
        website_url="https://yard.example",
        icons=[Icon(src="https://y.example/i")],
    )
    lowered = Lowering(FEATURES[version]).implementation(info)
    assert set(lowered) == KNOWN[version]["Implementation"]
    validate("Implementation", lowered, version)


@every_version
def test_a_result_of_an_unknown_kind_loses_what_every_result_of_today_has(version: str) -> None:
    # JR-13, CA-01, MT-05
    value = {"resultType": "complete", "ttlMs": 1, "cacheScope": "public", "tools": 7, "_meta": {"io.modelcontextprotocol/serverInfo": {}}}
    assert lower(version, "", value) == {"tools": 7}


@every_version
def test_a_list_that_is_missing_stays_missing(version: str) -> None:
    assert lower(version, "tools/list", {"nextCursor": "c"}) == {"nextCursor": "c"}


@pytest.mark.parametrize(("structured", "becomes"), [(Raw(b' \n{"a":1}'), {"a": 1}), (Raw(b" \t[1]"), {"result": [1]})])
def test_blanks_before_the_structure_do_not_hide_what_it_is(structured: Raw, becomes: Any) -> None:
    # TL-07
    assert lower("2025-11-25", "tools/call", {"content": [], "structuredContent": structured})["structuredContent"] == becomes


class Bay(msgspec.Struct):
    number: int


@pytest.mark.parametrize(("structured", "becomes"), [(Bay(3), {"number": 3}), ((1, 2), {"result": [1, 2]}), ("a", {"result": "a"})])
def test_structure_may_be_anything_that_can_be_encoded(structured: Any, becomes: Any) -> None:
    # TL-07
    assert lower("2025-06-18", "tools/call", {"content": [], "structuredContent": structured})["structuredContent"] == becomes


def test_metadata_that_is_no_object_is_left_to_its_author() -> None:
    assert lower("2025-11-25", "tools/call", {"content": [], "_meta": [1]}) == {"content": [], "_meta": [1]}


def test_what_needs_no_change_is_not_copied() -> None:
    block, structured = TextContent(text="7"), Raw(b'{"a":1}')
    value = {"content": [block], "structuredContent": structured}
    Lowering(FEATURES["2025-06-18"]).lower("tools/call", value)
    assert value["content"][0] is block
    assert value["structuredContent"] is structured


# List pages


def page(*names: str, **fields: Any) -> Raw:
    return Raw(encode([{"name": name, "inputSchema": {"type": "object"}, **fields} for name in names]))


def lowered_page(lowering_: Lowering, raw: Raw) -> Raw:
    value = {"tools": raw}
    lowering_.lower("tools/list", value)
    return value["tools"]


def test_a_page_is_lowered_once() -> None:
    to_06 = Lowering(FEATURES["2025-06-18"])
    raw = page("stow", icons=[{"src": "https://y.example/i"}])
    first = lowered_page(to_06, raw)
    assert plain(first) == [{"name": "stow", "inputSchema": {"type": "object"}}]
    assert lowered_page(to_06, raw) is first


@every_version
def test_a_page_without_anything_to_lower_stays_the_same(version: str) -> None:
    raw = page("stow")
    assert lowered_page(Lowering(FEATURES[version]), raw) is raw


def test_pages_are_forgotten_in_turn_and_never_confused() -> None:
    to_03 = Lowering(FEATURES["2025-03-26"])
    first = page("0", title="x")
    kept = lowered_page(to_03, first)
    # Every page but the first is gone as soon as it is lowered, and its identity is free for the next one.
    for number in range(1, 3 * lowering.MAX_PAGES):
        assert plain(lowered_page(to_03, page(str(number), title="x")))[0]["name"] == str(number)
        assert len(to_03._pages) <= lowering.MAX_PAGES
    again = lowered_page(to_03, first)
    assert again is not kept
    assert plain(again) == plain(kept)


# Output schemas

every_schema = pytest.mark.parametrize("vector", VECTORS["schemas"], ids=lambda vector: vector["name"])


@every_schema
def test_a_schema_is_wrapped(vector: dict[str, Any]) -> None:
    # TL-07
    assert wrap_schema(copy.deepcopy(vector["schema"])) == vector["becomes"]


@every_schema
def test_a_wrapped_schema_says_the_same_of_a_wrapped_value(vector: dict[str, Any]) -> None:
    # TL-07, TL-08
    before = jsonschema_rs.validator_for(vector["schema"])
    after = jsonschema_rs.validator_for(wrap_schema(copy.deepcopy(vector["schema"])))
    for value in vector["values"]:
        assert after.is_valid({"result": value}) == before.is_valid(value), value
        assert not after.is_valid(value) or (isinstance(value, dict) and "result" in value)
    assert any(map(before.is_valid, vector["values"])), "at least one value fits"


# At large

_WORDS = st.text("abc/.", max_size=6)
_META = st.dictionaries(
    st.sampled_from(["io.modelcontextprotocol/x", "io.modelcontextprotocol/y", "com.example/z", "plain"]), st.integers()
)
_ICONS = st.lists(st.just({"src": "https://yard.example/i.png"}), max_size=2)
_ANNOTATIONS = st.fixed_dictionaries(
    {}, optional={"priority": st.just(0.5), "lastModified": st.just("2026-01-02"), "audience": st.just(["user"])}
)
_FACTS = {"title": _WORDS, "description": _WORDS, "icons": _ICONS, "_meta": _META}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)
_SCHEMA = st.recursive(
    st.sampled_from([{"type": "object"}, {"type": "array"}, {"type": ["object", "null"]}, {}, {"$ref": "#"}, {"$ref": "#/$defs/a"}]),
    lambda inner: st.builds(
        lambda base, part, keyword: {**base, keyword: {"a": part} if keyword in {"properties", "$defs"} else [part]},
        inner,
        inner | st.booleans(),
        st.sampled_from(["anyOf", "properties", "$defs"]),
    ),
    max_leaves=4,
)
_INPUT_SCHEMA = st.builds(
    lambda properties: {"type": "object", "properties": properties}, st.dictionaries(_WORDS, st.booleans() | _SCHEMA, max_size=3)
)


def _record(required: dict[str, Any], /, **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


_BLOCK_FACTS = {"annotations": _ANNOTATIONS, "_meta": _META}
_RESOURCE_CONTENTS = _record({"uri": st.just("a:b"), "text": _WORDS}, mimeType=_WORDS, _meta=_META)
_BLOCK = (
    _record({"type": st.just("text"), "text": _WORDS}, **_BLOCK_FACTS)
    | _record({"type": st.sampled_from(["image", "audio"]), "data": st.just("AA=="), "mimeType": _WORDS}, **_BLOCK_FACTS)
    | _record({"type": st.just("resource"), "resource": _RESOURCE_CONTENTS}, **_BLOCK_FACTS)
    | _record(
        {"type": st.just("resource_link"), "uri": st.just("a:b"), "name": _WORDS}, size=st.just(1), **_FACTS, annotations=_ANNOTATIONS
    )
)
_ARGUMENT = _record({"name": _WORDS}, title=_WORDS, description=_WORDS, required=st.booleans())
_ITEM: dict[str, st.SearchStrategy[Any]] = {
    "tools/call": _BLOCK,
    "prompts/get": _record({"role": st.just("user"), "content": _BLOCK}),
    "resources/read": _RESOURCE_CONTENTS,
    "tools/list": _record({"name": _WORDS, "inputSchema": _INPUT_SCHEMA}, outputSchema=_SCHEMA, **_FACTS),
    "resources/list": _record({"name": _WORDS, "uri": st.just("a:b")}, annotations=_ANNOTATIONS, size=st.just(1), **_FACTS),
    "resources/templates/list": _record({"name": _WORDS, "uriTemplate": st.just("a:{b}")}, annotations=_ANNOTATIONS, **_FACTS),
    "prompts/list": _record({"name": _WORDS}, arguments=st.lists(_ARGUMENT, max_size=2), **_FACTS),
}


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, dict[str, Any], bool]:
    """Any method's result in the words of the current protocol, in any form, and whether its structure is wrapped anyway."""
    method = draw(st.sampled_from(sorted(_ITEM)))
    value: dict[str, Any] = {ITEMS[method][0]: draw(st.lists(_ITEM[method], max_size=3))}
    if method == "tools/call" and draw(st.booleans()):
        value["structuredContent"] = draw(_JSON)
    if draw(st.booleans()):
        value["_meta"] = draw(_META)
    if draw(st.booleans()):
        value |= {"resultType": "complete", "ttlMs": 1, "cacheScope": "public"}
    form = draw(st.sampled_from(sorted(FORMS)))
    return method, FORMS[form](method, value), draw(st.booleans())


def strangers(version: str, method: str, result: dict[str, Any]) -> Iterator[str]:
    """Whatever is in a result that its version does not know."""
    known = KNOWN[version]
    key, _, kind = ITEMS[method]

    def look(name: str, item: dict[str, Any]) -> Iterator[str]:
        if name not in known:
            yield f"{name} as such"
            return
        yield from (f"{name}.{field}" for field in item.keys() - known[name])
        yield from (f"{name}._meta.{field}" for field in item.get("_meta", {}) if field.startswith("io.modelcontextprotocol/"))
        if name != "Tool":
            yield from (f"Annotations.{field}" for field in item.get("annotations", {}).keys() - known["Annotations"])
        for argument in item.get("arguments", ()):
            yield from look("PromptArgument", argument)
        if name == "EmbeddedResource":
            yield from look("TextResourceContents", item["resource"])
        if name == "PromptMessage":
            yield from look(BLOCKS[item["content"]["type"]], item["content"])

    yield from look(RESULTS[method], result)
    for item in result[key]:
        yield from look(kind or BLOCKS[item["type"]], item)


@settings(max_examples=100, deadline=None)
@given(call=_calls())
def test_nothing_gets_out_that_an_older_version_does_not_know(call: tuple[str, dict[str, Any], bool]) -> None:
    # TL-04, TL-07, TL-18, IC-01, MT-05, CA-01, JR-13
    method, value, wrap = call
    for version in LEGACY:
        result = lower(version, method, dict(value), wrap=wrap)
        assert not list(strangers(version, method, result))
        assert isinstance(result.get("structuredContent", {}), dict)
        for tool in result.get("tools", ()):
            for schema in (tool["inputSchema"], tool.get("outputSchema", {"type": "object"})):
                assert schema["type"] == "object"
                assert all(isinstance(field, dict) for field in schema.get("properties", {}).values())


@shared_schema
@settings(max_examples=100, deadline=None)
@given(call=_calls())
def test_whatever_gets_out_is_valid_there(call: tuple[str, dict[str, Any], bool]) -> None:
    method, value, wrap = call
    for version in LEGACY:
        validate(RESULTS[method], lower(version, method, dict(value), wrap=wrap), version)


@settings(max_examples=100, deadline=None)
@given(call=_calls())
def test_lowering_twice_is_lowering_once(call: tuple[str, dict[str, Any], bool]) -> None:
    method, value, _ = call
    for version in LEGACY:
        once = lower(version, method, dict(value))
        assert lower(version, method, copy.deepcopy(once)) == once
