"""Where a value doesn't fit a JSON Schema."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.server.judge import MAX_DEPTH, MAX_OF_PART, Judge

ALTERNATIVES = {
    "anyOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
        {"type": "object", "properties": {"kind": {"const": "b"}, "m": {"type": "integer"}}, "required": ["kind", "m"]},
        {"type": "null"},
    ]
}


@pytest.mark.parametrize(
    ("instance", "findings"),
    [
        ({"kind": "a", "n": "x"}, [(("n",), "must be an integer")]),
        ({"kind": "b"}, [(("m",), "required, missing")]),
        ({"kind": "c"}, [(("kind",), 'must be "a" or "b"')]),
        (5, [((), "must be an object with kind, n or an object with kind, m or null")]),
        (None, []),
    ],
)
def test_of_alternatives_the_one_that_was_meant(instance: Any, findings: list[Any]) -> None:
    assert Judge(ALTERNATIVES).findings(instance) == (findings, True)


@pytest.mark.parametrize(
    ("schema", "instance", "findings"),
    [
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
            3,
            [((), "must fit exactly one of the alternatives: an integer or a value of at least 2")],
        ),
        ({"not": {"type": "integer"}}, 3, [((), "must satisfy 'not' of the schema")]),
        ({"type": "string", "not": {"type": "integer"}}, 3, [((), "must be a string")]),
        ({"items": False}, [1], [((0,), "must be left out")]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, [(("b",), "required, missing")]),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}, [(("b",), "unknown argument; there are: a")]),
        (
            {"properties": {"a": {"properties": {"c": {}}, "additionalProperties": False}}},
            {"a": {"b": 1}},
            [(("a", "b"), "unknown field; there are: c")],
        ),
        ({"propertyNames": {"maxLength": 1}}, {"secret": 1}, [((), "every key must be a value of at most 1 character")]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"maximum": 3}}}, 5, [((), "must be a value of at most 3")]),
    ],
)
def test_keywords(schema: dict[str, Any], instance: Any, findings: list[Any]) -> None:
    assert Judge(schema).findings(instance) == (findings, True)


LAT = {"type": "number", "maximum": 90}
PLACES = {
    "anyOf": [
        {"$ref": "#/$defs/Location"},
        {"type": "object", "properties": {"name": {"minLength": 1}, "country": {}}, "required": ["name"], "additionalProperties": False},
        {"$ref": "#/$defs/More"},
    ],
    "$defs": {
        "Location": {"type": "object", "properties": {"lat": LAT, "lon": {"type": "number"}}, "required": ["lat", "lon"]},
        "More": {"oneOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
    },
}


@pytest.mark.parametrize(
    ("instance", "findings"),
    [
        ({"lat": 100, "lon": 2}, [(("lat",), "must be a number of at most 90")]),
        ({"lat": 100}, [(("lon",), "required, missing"), (("lat",), "must be a number of at most 90")]),
        ({"name": ""}, [(("name",), "must be a value of at least 1 character")]),
        ({"name": "x", "nation": "no"}, [(("nation",), "unknown argument; there are: name, country")]),
        ([1, "a"], [((1,), "must be an integer")]),
        ({}, [((), "must be an object with lat, lon or an object with name or an array or null")]),
        ({"far": 1}, [((), "must be an object with lat, lon or an object with name or an array or null")]),
    ],
)
def test_of_alternatives_without_tags_the_one_whose_fields_are_nearest(instance: Any, findings: list[Any]) -> None:
    """M11: alternatives that stand inside alternatives count, too."""
    assert Judge(PLACES).findings(instance) == (findings, True)


def expressions(leaf: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        leaf = {"op": "and", "left": leaf, "right": {"op": "lit", "value": 1}}
    return leaf


def expression(op: str) -> dict[str, Any]:
    sides = {side: {"$ref": "#/$defs/Expr"} for side in ("left", "right")}
    return {"type": "object", "properties": {"op": {"const": op}, **sides}, "required": ["op", "left", "right"]}


EXPR = {
    "type": "object",
    "properties": {"e": {"$ref": "#/$defs/Expr"}},
    "$defs": {
        "Expr": {"anyOf": [expression("and"), expression("or"), {"$ref": "#/$defs/Lit"}]},
        "Lit": {"type": "object", "properties": {"op": {"const": "lit"}, "value": {"type": "integer"}}, "required": ["op", "value"]},
    },
}
HEAVY: list[tuple[str, dict[str, Any], Any]] = [
    ("a union of unions", EXPR, {"e": expressions({"op": "lit", "value": "x"}, 60)}),
    (
        "a union without tags",
        {"$ref": "#/$defs/T", "$defs": {"T": {"anyOf": [{"items": {"$ref": "#/$defs/T"}, "type": "array"}] * 3}}},
        [[[[[5] * 9]]]],
    ),
    ("doubled", {"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "type": "object"}, {"a": {"a": {"a": {"a": 5}}}}),
    ("a long list of alternatives", {"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": "string"}}]}, [1.5] * 200_000),
]


@pytest.mark.parametrize(("schema", "instance"), [row[1:] for row in HEAVY], ids=[row[0] for row in HEAVY])
def test_hostile_values_cost_little(schema: dict[str, Any], instance: Any) -> None:
    """A1, JS-05: the errors of all alternatives at all levels are without end, and were asked for."""
    began = time.process_time()
    findings, _ = Judge(schema).findings(instance)
    assert findings
    assert time.process_time() - began < 0.5


def test_deep_inside_alternatives_the_fault_is_found() -> None:
    instance = {"e": expressions({"op": "lit", "value": "x"}, 60)}
    assert Judge(EXPR).findings(instance) == ([(("e", *["left"] * 60, "value"), "must be an integer")], True)


def test_values_nested_deeper_than_is_looked() -> None:
    deep: Any = 5
    for _ in range(400):
        deep = [deep]
    assert Judge({"type": "array", "items": {"$ref": "#"}}).findings(deep) == ([((0,) * MAX_DEPTH, "must be an array")], True)


def test_no_part_hides_the_others() -> None:
    """M23."""
    schema = {"properties": {"x": {"items": {"type": "integer"}}, "y": {"type": "integer"}}}
    instance = {"x": ["a"] * 500, "y": "b"}
    findings, complete = Judge(schema).findings(instance)
    assert [path for path, _ in findings] == [*(("x", at) for at in range(MAX_OF_PART)), ("y",)]
    assert not complete
    assert Judge(schema).findings(instance, big=True)[0] == [(("x", 0), "must be an integer"), (("y",), "must be an integer")]


def test_a_pattern_that_only_python_reads_is_left_to_the_engine() -> None:
    assert Judge({"properties": {"a": {"pattern": "^a(?#c)$"}}}).findings({"a": "b"}) == ([], True)


def test_circles_end() -> None:
    circle = {"allOf": [{"$ref": "#/$defs/b"}]}
    schema = {"allOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": circle, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}
    assert Judge(schema).findings(5) == ([((), "must be null")], True)


KEYWORDS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": ["string", "null"]},
    {"enum": [1, "a", None]},
    {"minimum": 1},
    {"maxLength": 1},
    {"required": ["a"]},
    {"additionalProperties": False},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"patternProperties": {"^a": {"type": "integer"}}},
    {"propertyNames": {"maxLength": 1}},
    {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    {"contains": {"const": 1}},
    {"uniqueItems": True},
    {"dependentSchemas": {"a": {"required": ["b"]}}},
    {"if": {"type": "object"}, "then": {"required": ["b"]}, "else": {"type": "integer"}},
    {"$ref": "#/$defs/tree"},
    {"unevaluatedProperties": False},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "abc"]), inner, max_size=3),
    max_leaves=6,
)


def keyed(key: str, schemas: list[Any]) -> dict[str, Any]:
    return {key: schemas}


SCHEMAS = st.recursive(
    st.sampled_from(KEYWORDS) | st.booleans(),
    lambda inner: st.one_of(
        *(st.lists(inner, min_size=1, max_size=3).map(partial(keyed, key)) for key in ("anyOf", "oneOf", "allOf")),
        inner.map(lambda one: {"not": one}),
        inner.map(lambda one: {"properties": {"a": one}, "items": one}),
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS, JSON)
def test_there_are_findings_exactly_where_the_value_does_not_fit(schema: Any, instance: Any) -> None:
    whole = {
        "allOf": [schema],
        "$defs": {"tree": {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}}},
    }
    findings, _ = Judge(whole).findings(instance)
    assert bool(findings) == (not jsonschema_rs.is_valid(whole, instance))
