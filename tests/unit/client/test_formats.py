"""Strings of a result as what they stand for, where its schema says so."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.client.formats import MAX_DEPTH, Reader

WHEN = {"type": "string", "format": "date-time"}
DAY = {"type": "string", "format": "date"}
MOMENT = dt.datetime(2026, 1, 31, 9, 30, tzinfo=dt.UTC)
TEXT = "2026-01-31T09:30:00Z"


def read(schema: Any, value: Any) -> Any:
    return Reader(schema).read(value)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (WHEN, TEXT, MOMENT),
        (WHEN, "2026-01-31T10:30:00.000+01:00", MOMENT),
        (WHEN, "2026-01-31T09:30:00", dt.datetime(2026, 1, 31, 9, 30)),  # noqa: DTZ001 as sent
        (DAY, "2026-01-31", dt.date(2026, 1, 31)),
        ({"type": "string", "format": "time"}, "09:30:00", dt.time(9, 30)),
        ({"type": "string", "format": "duration"}, "PT1H30M", dt.timedelta(minutes=90)),
        ({"type": "string", "format": "uuid"}, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")),
        ({"type": "string", "contentEncoding": "base64"}, "aGk=", b"hi"),
        ({"format": "date"}, "2026-01-31", dt.date(2026, 1, 31)),
        ({"type": ["string", "null"], "format": "date"}, "2026-01-31", dt.date(2026, 1, 31)),
    ],
)
def test_a_string_of_a_format_becomes_what_it_stands_for(schema: Any, text: str, value: Any) -> None:
    assert read(schema, text) == value
    assert type(read(schema, text)) is type(value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (WHEN, "2026-01-31"),
        (WHEN, "soon"),
        (WHEN, "2026-02-31T00:00:00Z"),
        (WHEN, None),
        (WHEN, 7),
        (DAY, TEXT),
        ({"format": "duration"}, "P9999999999999D"),
        ({"format": "duration"}, "P1Y"),
        ({"format": "uuid"}, "f81d4fae"),
        ({"format": "email"}, "a@example.com"),
        ({"contentEncoding": "base64"}, "a"),
        ({"contentEncoding": "base32"}, "MFRGG==="),
        ({"type": "integer", "format": "date"}, "2026-01-31"),
        ({"format": ["date"], "contentEncoding": {}}, "2026-01-31"),
        ({}, TEXT),
    ],
)
def test_what_is_not_written_that_way_stays_as_it_is(schema: Any, value: Any) -> None:
    assert read(schema, value) == value
    assert type(read(schema, value)) is type(value)


def test_places_inside() -> None:
    schema = {
        "type": "object",
        "properties": {
            "at": WHEN,
            "pair": {"prefixItems": [{"type": "string"}, DAY], "items": WHEN},
            "all": {"type": "array", "items": {"$ref": "#/$defs/Stay"}},
            "old": {"items": [DAY], "additionalItems": WHEN},
            "named": {"additionalProperties": DAY},
            "both": {"allOf": [{"properties": {"a": DAY}}, {"properties": {"b": DAY}}]},
        },
        "$defs": {"Stay": {"properties": {"from": DAY, "note": {"type": "string"}}}},
    }
    day = dt.date(2026, 1, 31)
    given_, meant = "2026-01-31", day
    value = {
        "at": TEXT,
        "pair": [given_, given_, TEXT],
        "all": [{"from": given_, "note": given_}, None],
        "old": [given_, TEXT],
        "named": {"x": given_, "y": given_},
        "both": {"a": given_, "b": given_, "c": given_},
        "other": given_,
    }
    before = json.dumps(value)
    assert read(schema, value) == {
        "at": MOMENT,
        "pair": [given_, meant, MOMENT],
        "all": [{"from": meant, "note": given_}, None],
        "old": [meant, MOMENT],
        "named": {"x": meant, "y": meant},
        "both": {"a": meant, "b": meant, "c": given_},
        "other": given_,
    }
    assert json.dumps(value) == before, "what was sent is left as it is"


def test_alternatives() -> None:
    day, text = dt.date(2026, 1, 31), "2026-01-31"
    null = {"type": "null"}
    assert read({"anyOf": [DAY, null]}, text) == day
    assert read({"oneOf": [null, DAY]}, None) is None
    assert read({"anyOf": [DAY, {"type": "integer"}]}, text) == day
    assert read({"anyOf": [WHEN, DAY]}, text) == day
    assert read({"anyOf": [WHEN, DAY]}, TEXT) == MOMENT
    assert read({"anyOf": [DAY, {"type": "string"}]}, text) == text, "it may be a text"
    assert read({"anyOf": [DAY, {}]}, text) == text
    assert read({"anyOf": [DAY, True]}, text) == text
    assert read({"anyOf": [DAY, False]}, text) == day
    assert read({"anyOf": [{"$ref": "#/$defs/D"}, null], "$defs": {"D": DAY}}, text) == day


@pytest.mark.parametrize(
    "branches",
    [
        [{"properties": {"kind": {"const": "a"}, "x": DAY}}, {"properties": {"kind": {"const": "b"}, "x": {"type": "string"}}}],
        [{"properties": {"kind": {"enum": ["a"]}, "x": DAY}}, {"properties": {"kind": {"enum": ["b"]}, "x": {"type": "string"}}}],
        [{"properties": {"x": DAY}, "required": ["kind"]}, {"properties": {"x": {"type": "string"}}, "required": ["other"]}],
        [{"properties": {"x": DAY, "kind": {}}}, {"properties": {"x": {"type": "string"}}, "additionalProperties": False}],
        [{"properties": {"kind": {"type": "string"}, "x": DAY}}, {"properties": {"kind": {"type": "integer"}, "x": {"type": "string"}}}],
        [{"type": "object", "properties": {"x": DAY}}, {"type": "array", "items": {"type": "string"}}],
    ],
)
def test_the_alternative_that_is_meant(branches: list[Any]) -> None:
    for keyword in ("anyOf", "oneOf"):
        assert read({keyword: branches}, {"kind": "a", "x": "2026-01-31"}) == {"kind": "a", "x": dt.date(2026, 1, 31)}
        assert read({keyword: branches[::-1]}, {"kind": "a", "x": "2026-01-31"}) == {"kind": "a", "x": dt.date(2026, 1, 31)}


def test_where_two_may_be_meant_both_must_agree() -> None:
    either = {"anyOf": [{"properties": {"x": DAY, "y": DAY}}, {"properties": {"x": DAY, "y": {"type": "string"}}}]}
    assert read(either, {"x": "2026-01-31", "y": "2026-01-31"}) == {"x": dt.date(2026, 1, 31), "y": "2026-01-31"}


def test_what_holds_itself_is_read_as_deep_as_the_value_goes() -> None:
    # A22
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": {"properties": {"at": DAY, "next": {"$ref": "#/$defs/Node"}}}}}
    value: Any = {"at": "2026-01-31"}
    for _ in range(MAX_DEPTH + 20):
        value = {"at": "2026-01-31", "next": value}
    found = read(schema, value)
    depth = 0
    while isinstance(found.get("at"), dt.date):
        found, depth = found["next"], depth + 1
    assert depth == MAX_DEPTH
    assert found["at"] == "2026-01-31", "what is deeper stays JSON"


def test_a_schema_without_formats_costs_nothing() -> None:
    value = {"a": [1, 2]}
    assert read({"properties": {"a": {"items": {"type": "integer"}}}}, value) is value
    assert Reader({"const": {"format": "date"}}).idle, "that is data"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#", "format": "date"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "format": "date"},
        {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(200)}, "$ref": "#/$defs/d0", "format": "date"},
        {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, DAY]} for i in range(5000)}, "$ref": "#/$defs/d0", "format": "date"},
        {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(50_000)}, "$ref": "#/$defs/d0", "format": "date"},
        {"anyOf": [{"oneOf": [dict(DAY) for _ in range(60)]} for _ in range(60)]},
        {"anyOf": [dict(DAY) for _ in range(50)], "oneOf": [dict(DAY) for _ in range(50)]},
        {"allOf": [dict(DAY) for _ in range(5000)]},
        {"$ref": "http://example.com/schema", "format": "date"},
        {"$ref": "#/anyOf/99", "anyOf": [DAY]},
    ],
)
def test_hostile_schemas_take_little_time(schema: Any) -> None:
    # JS-03, JS-05
    started = time.process_time()
    reader = Reader(schema)
    for _ in range(3):
        assert reader.read("2026-01-31") in {"2026-01-31", dt.date(2026, 1, 31)}
    assert time.process_time() - started < 2


def test_it_costs_what_the_value_is_long() -> None:
    # JS-05
    union = {"anyOf": [{"properties": {"x": {"$ref": "#/$defs/U"}, f"k{i}": DAY}} for i in range(20)]}
    reader = Reader({"$ref": "#/$defs/U", "$defs": {"U": union}})
    value: Any = {"k0": "2026-01-31"}
    for _ in range(50):
        value = {"x": value, "k1": "2026-01-31"}
    started = time.process_time()
    reader.read([value] * 10)
    for _ in range(20):
        reader.read(value)
    assert time.process_time() - started < 2


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from([TEXT, "2026-01-31", "aGk="]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "kind"]) | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)
KEYWORDS = [
    *("$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contentEncoding", "enum", "format", "items", "oneOf"),
    *("patternProperties", "prefixItems", "properties", "required", "type", "$defs"),
]
WORDS = st.sampled_from(
    ["date", "date-time", "base64", "string", "object", "array", "null", "#", "#/properties/a", "#/$defs/a", "#/anyOf/0"]
)
SCHEMAS = st.recursive(
    st.booleans() | WORDS | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
        | st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from(["a", "b", "kind"]), inner)})
    ),
    max_leaves=20,
)


def same_shape(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same_shape(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same_shape, one, other))
    return bool(one == other) or (isinstance(one, str) and isinstance(other, dt.date | dt.time | dt.timedelta | UUID | bytes))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), SCHEMAS, max_size=5) | SCHEMAS.filter(lambda one: isinstance(one, dict)), JSON)
def test_reading_never_fails_and_changes_strings_alone(schema: Any, value: Any) -> None:
    """JS-05: whatever a server calls its schema."""
    before = json.dumps(value)
    assert same_shape(value, Reader(schema).read(value))
    assert json.dumps(value) == before
