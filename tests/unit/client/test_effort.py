"""How much work a schema makes of a value, counted before it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.client.effort import MAX_EFFORT, MAX_KNOWN, Effort
from callboard.server.judge import Judge
from callboard.server.subschemas import resolve


def effort(schema: dict[str, Any], *, backtracks: bool = False) -> Effort:
    return Effort(Judge(schema), backtracks=backtracks)


def chain(length: int, name: str = "c") -> Any:
    value: Any = {"leaf": "x"}
    for _ in range(length):
        value = {name: value}
    return value


NODE = {"properties": {"c": {"$ref": "#/$defs/n"}, "leaf": {"type": "string"}}}
TWICE: dict[str, Any] = {"$ref": "#/$defs/n", "$defs": {"n": {"allOf": [NODE, {"properties": {"c": {"$ref": "#/$defs/n"}}}]}}}
DOUBLED = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{i}": {"anyOf": [{"properties": {"c": {"$ref": f"#/$defs/d{i + 1}"}}}] * 2} for i in range(60)},
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "additionalProperties": False},
        {"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [NODE, {"type": "null"}]}}},
        {"enum": list(range(100))},
    ],
)
def test_what_most_tools_say_needs_no_count(schema: dict[str, Any]) -> None:
    assert effort(schema).linear


@pytest.mark.parametrize(
    "schema",
    [
        TWICE,
        DOUBLED,
        {"anyOf": [{"properties": {"a": {}}}, {"properties": {"a": {}}}]},
        {"patternProperties": {"a": {}, "b": {}}},
        {"items": {}, "contains": {}},
        {"anyOf": [{"const": number} for number in range(100)]},
        {"enum": list(range(100_000))},
        {"$ref": "#"},
    ],
)
def test_what_may_cost_more_is_counted(schema: dict[str, Any]) -> None:
    assert not effort(schema).linear


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (TWICE, chain(40)),
        (DOUBLED, chain(40)),
        ({"$ref": "#"}, 1),
        ({"$dynamicAnchor": "a", "anyOf": [{"$dynamicRef": "#a"}]}, 1),
        ({"items": {"anyOf": [{"const": number} for number in range(9000)]}}, [0] * 1000),
        ({"items": {"enum": list(range(100_000))}}, [0] * 10_000),
        ({"not": {"not": TWICE["$defs"]["n"]}, **TWICE}, chain(40)),
        ({"dependentSchemas": {"c": {"$ref": "#/$defs/n"}}, **TWICE}, chain(40)),
        ({"$defs": {"n": {"prefixItems": [{"$ref": "#/$defs/n"}], "contains": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}, None),
    ],
)
def test_too_much_is_refused_before_it_is_done(schema: dict[str, Any], value: Any) -> None:
    # JS-05
    if value is None:
        value = []
        for _ in range(40):
            value = [value]
    started = time.process_time()
    assert not effort(schema).within(value)
    assert time.process_time() - started < 2


def test_what_is_small_or_flat_is_within() -> None:
    assert effort(TWICE).within(chain(10))
    assert effort(DOUBLED).within([chain(10)] * 10)
    rows = [{"a": number, "b": None} for number in range(20_000)]
    assert effort({"items": {"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {}}}]}}).within(rows)


def test_patterns_that_go_back_cost_more() -> None:
    schema = {"items": {"pattern": "^(?!a)b"}}
    assert effort(schema).linear
    assert not effort(schema, backtracks=True).linear
    assert effort(schema, backtracks=True).within(["b"] * 1000)
    assert not effort(schema, backtracks=True).within(["b"] * 10_000)


def test_what_is_remembered_has_bounds() -> None:
    names = [f"p{number}" for number in range(12)]
    schema: dict[str, Any] = {"$ref": "#/$defs/n", "$defs": {"n": {}}}
    schema["$defs"]["n"] = {"anyOf": [{"properties": {name: {"$ref": "#/$defs/n"} for name in names[at:]}} for at in range(12)]}
    counted = effort(schema)
    for one in names:
        for other in names:
            for third in names:
                counted.within({one: {other: {third: {one: 1}}}})
    assert len(counted._known) <= MAX_KNOWN


def reached(schema: Any, root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        inner = [resolve(root, schema["$ref"])] if "$ref" in schema else []
        for part in inner + schema.get("allOf", []):
            yield from reached(part, root)


def naive(schema: Any, value: Any, root: dict[str, Any]) -> int:
    """The same, one schema after another, as a validator without any short cut would go."""
    total = 0
    for node in reached(schema, root):
        total += 1
        if isinstance(value, dict):
            total += sum(
                naive(node.get("properties", {}).get(name, node.get("additionalProperties")), part, root) for name, part in value.items()
            )
        elif isinstance(value, list):
            prefix = node.get("prefixItems", [])
            total += sum(naive(prefix[at] if at < len(prefix) else node.get("items"), part, root) for at, part in enumerate(value))
    return total


LEAVES = st.sampled_from([{}, True, {"type": "string"}, {"$ref": "#/$defs/x"}])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)


@settings(max_examples=100, deadline=None)
@given(
    TREES.filter(lambda one: isinstance(one, dict)), st.sampled_from([{"items": {}}, {"properties": {"a": {"$ref": "#/$defs/x"}}}]), VALUES
)
def test_it_counts_what_there_is_to_do(schema: dict[str, Any], shared: dict[str, Any], value: Any) -> None:
    """JS-05."""
    root = {**schema, "$defs": {"x": shared}}
    work = naive(root, value, root)
    counted = effort(root)
    assert counted.within(value, work)
    assert not counted.within(value, work - 1)
    assert work < MAX_EFFORT


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_no_stack_bears_is_told_apart() -> None:
    # JS-05
    flat = effort({"items": {"items": {}}})
    assert flat.bears(nested(500))
    itself = effort({"items": {"$ref": "#"}})
    assert itself.bears(nested(900))
    assert not itself.bears(nested(1_500))
    inside = effort({"items": {"anyOf": [{"allOf": [{"$ref": "#"}]}, {"type": "null"}]}})
    assert inside.bears(nested(400))
    assert not inside.bears(nested(600))
    references = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(3_000)}
    assert not effort({"$defs": references, "$ref": "#/$defs/d0"}).bears([])
    circle = {f"d{number}": {"$ref": f"#/$defs/d{(number + 1) % 3_000}"} for number in range(3_000)}
    assert not effort({"$defs": circle, "$ref": "#/$defs/d0"}).bears([])
